"""Which device nodes of the host NVIDIA's hook gives a container.

The toolkit (cmd/nvidia-container-runtime-hook/container_config.go, internal/config/image) finds the request,
libnvidia-container (src/nvc_mount.c) the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_VOLUMES = "/var/run/nvidia-container-devices/"
_DEFAULT_CAPABILITIES = "utility,compute"

Settings = Mapping[str, object]
"""The keys of config.toml, those of its tables as "table.key"."""


def nodes(spec: Mapping[str, Any], settings: Settings, proc: Path) -> Optional[Sequence[str]]:
    """Return the nodes, None for a container that gets nothing. Raises LookupError for a device that is not there."""
    env = dict(entry.partition("=")[::2] for entry in spec["process"].get("env", ()))
    bounding = spec["process"].get("capabilities", {}).get("bounding", ())
    privileged = "CAP_SYS_ADMIN" in bounding
    volumes = [volume for volume in _volumes(spec) if settings.get("accept-nvidia-visible-devices-as-volume-mounts")]
    wanted = [volume for volume in volumes if not volume.startswith("imex/")] or _wanted(env, settings, privileged)
    if not wanted:
        return None
    capabilities = set((env.get("NVIDIA_DRIVER_CAPABILITIES") or _default(env)).split(","))
    found = ["/dev/nvidiactl"]
    if capabilities & {"compute", "video", "all"}:
        found += ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    if capabilities & {"display", "all"}:
        found.append("/dev/nvidia-modeset")
    for device in wanted:
        found += _gpus(device, proc) if device != "none" else ()
    for kind in ("config", "monitor"):
        if env.get(f"NVIDIA_MIG_{kind.upper()}_DEVICES"):
            if not privileged:
                raise LookupError(f"NVIDIA_MIG_{kind.upper()}_DEVICES is for privileged containers")
            found.append(_capability(proc / f"driver/nvidia/capabilities/mig/{kind}"))
    channels = [channel for channel in env.get("NVIDIA_IMEX_CHANNELS", "").split(",") if channel]
    channels += [volume[len("imex/") :] for volume in volumes if volume.startswith("imex/")]
    found += [f"/dev/nvidia-caps-imex-channels/channel{channel}" for channel in channels]
    return list(dict.fromkeys(found))


def _default(env: Mapping[str, str]) -> str:
    return "all" if _legacy(env) else _DEFAULT_CAPABILITIES


def _legacy(env: Mapping[str, str]) -> bool:
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def _volumes(spec: Mapping[str, Any]) -> list[str]:
    return [
        mount["destination"][len(_VOLUMES) :]
        for mount in spec.get("mounts", ())
        if mount.get("source") == "/dev/null" and mount["destination"].startswith(_VOLUMES)
    ]


def _wanted(env: Mapping[str, str], settings: Settings, privileged: bool) -> list[str]:
    if not privileged and not settings.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True):
        return []
    swarm = [name for name in str(settings.get("swarm-resource", "")).split(",") if name in env]
    names = swarm or [_VISIBLE]
    found = [device.strip() for name in names for device in env.get(name, "").split(",") if device.strip()]
    if not any(name in env for name in names) and _legacy(env):
        return ["all"]
    return [] if "void" in found else found


def _gpus(device: str, proc: Path) -> Iterator[str]:
    known = {index: _facts(file) for index, file in enumerate(sorted(proc.glob("driver/nvidia/gpus/*/information")))}
    gpu, _, part = device.partition(":")
    found = [facts for index, facts in known.items() if gpu in {"all", str(index), facts["GPU UUID"]}]
    if not found and gpu != "all":
        raise LookupError(f"device error: {device}: unknown device")
    for facts in found:
        minor = facts["Device Minor"]
        yield f"/dev/nvidia{minor}"
        compute = sorted(proc.glob(f"driver/nvidia/capabilities/gpu{minor}/mig/gi*/ci*/access"), key=_numbers)
        if part and int(part) >= len(compute):
            raise LookupError(f"device error: {device}: unknown device")
        for file in compute if not part else compute[int(part) : int(part) + 1]:
            yield _capability(file.parents[1] / "access")
            yield _capability(file)


def _numbers(file: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(file))]


def _capability(file: Path) -> str:
    return f"/dev/nvidia-caps/nvidia-cap{_facts(file)['DeviceFileMinor']}"


def _facts(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="ascii").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
