"""What NVIDIA's hook was asked for by a container's specification, and whether the toolkit honours it. Pure.

What the hook does: nvidia-container-toolkit, cmd/nvidia-container-runtime-hook/{main,container_config,hook_config}.go,
internal/config/image/{cuda_image,devices,capabilities,privileged}.go, internal/modifier/hook_remover.go (which hook is
theirs), of 1.13 to 1.18. Where these versions differ, what all of them grant is taken.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from gpuguard.model.clean import clean
from gpuguard.model.oci_spec import Hook, Mount, OciSpec
from gpuguard.model.pathname import shortest
from gpuguard.model.toolkit import Toolkit, split

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
ALL = "all"
# No host has as many GPUs and MIG instances; each one that is asked for is looked for.
MAX_DEVICES = 1024
# Of what is told of a request.
_SHOWN = 200

_HOOKS = frozenset({"nvidia-container-runtime-hook", "nvidia-container-toolkit"})
_STAGES = frozenset({"prestart", "createRuntime"})
_VOLUMES = "/var/run/nvidia-container-devices"
# What is asked for below it in these forms are no GPUs of the hook's: CDI devices, and IMEX channels.
_CDI, _IMEX = "cdi/", "imex/"
_PRIVILEGED = "CAP_SYS_ADMIN"
_MIG_MANAGEMENT = ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
_USUAL_CAPABILITIES = frozenset({"compute", "utility"})
_CONFIG_VARIABLES = ("NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME")


@dataclass(frozen=True)
class HookRequest:
    """The hook in a specification.

    `configuration` is the config.toml that its arguments name, None for none; `trouble` says what about it is not
    known, such as an argument: then nothing can be said of what it does.
    """

    hook: Hook
    configuration: Optional[str] = None
    trouble: Optional[str] = None


@dataclass(frozen=True)
class Honoured:
    """What the hook was asked for and gives.

    `devices` are as they were asked for: ("all",), indexes, UUIDs, () for the driver without a GPU. `capabilities` are
    the driver capabilities. `manages_mig`: it may manage MIG, for which the hook gives other devices than for its use;
    these are never taken from a request. `why` says for people where it was asked. `root`: as in Toolkit.
    """

    devices: tuple[str, ...]
    capabilities: frozenset[str]
    why: str
    manages_mig: bool = False
    root: str = ""


class Untold(str):
    """Why it cannot be told what the hook gave. Any other text is why it gave nothing."""

    __slots__ = ()


def request_of(spec: OciSpec) -> Optional[HookRequest]:
    """Find NVIDIA's hook in a specification; None where it is not there, or does nothing."""
    for hook in spec.hooks:
        if hook.stage in _STAGES and posixpath.basename(hook.path) in _HOOKS:
            found = _asked(hook)
            if found is not None:
                return found
    return None


def _asked(hook: Hook) -> Optional[HookRequest]:
    """Read the hook's command line as Go's flag package does: one dash or two, a value after = or apart."""
    named = [entry.partition("=")[0] for entry in hook.env]
    for variable in _CONFIG_VARIABLES:
        if variable in named:
            return HookRequest(hook, trouble=f"its environment names a configuration ({variable})")
    configuration = None
    rest = list(hook.args[1:])
    while rest and rest[0].startswith("-"):
        flag, equals, value = rest.pop(0).lstrip("-").partition("=")
        if flag == "config" and (equals or rest):
            configuration = value if equals else rest.pop(0)
        elif flag != "debug":
            return HookRequest(hook, trouble=f"its argument {clean(flag, _SHOWN)!r} is not known")
    return HookRequest(hook, configuration) if rest[:1] == ["prestart"] else None


def privileged(spec: OciSpec) -> bool:
    """Whether the toolkit takes the container for a privileged one: by its bounding set."""
    return _PRIVILEGED in (spec.capabilities or ())


def honoured(request: HookRequest, spec: OciSpec, toolkit: Toolkit, started: float) -> Union[Honoured, str]:
    """Return what the hook gave for this specification, or why nothing was given, or why that is Untold.

    `started` is when the specification was written, in seconds since the epoch: a configuration that was changed later
    is not the one that the hook had.
    """
    where = toolkit.path or "NVIDIA's container toolkit"
    refusal = _refusal(request, toolkit, started, where)
    if refusal is not None:
        return refusal
    found = _devices(spec, toolkit, where)
    if isinstance(found, str):
        return found
    devices, asked = found
    manages_mig = any(spec.env.get(name) for name in _MIG_MANAGEMENT)
    if manages_mig and not privileged(spec):
        return "only a privileged container may manage MIG: the hook fails"
    capabilities = _capabilities(spec, toolkit)
    if not capabilities <= toolkit.supported:
        unknown = ", ".join(sorted(capabilities - toolkit.supported))
        return f"{DRIVER_CAPABILITIES} asks for what {where} does not support: {clean(unknown, _SHOWN)}"
    return Honoured(devices, capabilities, asked, manages_mig, toolkit.root)


def _refusal(request: HookRequest, toolkit: Toolkit, started: float, where: str) -> Optional[str]:
    if request.trouble is not None:
        return Untold(f"{clean(request.hook.path, _SHOWN)}: {request.trouble}")
    if toolkit.changed > started:
        return Untold(f"{where} was changed after the container's start: what it said then is not known")
    if toolkit.disabled:
        return f"{where} has the hook do nothing: nvidia-container-runtime.mode is another one"
    if toolkit.no_cgroups:
        return f"{where} keeps the hook from giving rights: nvidia-container-cli.no-cgroups is set"
    return None


def _devices(spec: OciSpec, toolkit: Toolkit, where: str) -> Union[tuple[tuple[str, ...], str], str]:
    """Return the devices that are asked for and where, or why there are none."""
    volumes = tuple(_volumes(spec.mounts)) if toolkit.volume_mounts else ()
    if volumes:
        devices, asked = volumes, f"mounts below {_VOLUMES}: {clean(', '.join(volumes), _SHOWN)}"
    else:
        found = _by_variable(spec, toolkit)
        if isinstance(found, str):
            return found
        devices, asked = found
        if not toolkit.envvar_when_unprivileged and not privileged(spec):
            return f"{where} takes {asked.partition('=')[0]} from privileged containers only"
    if any("=" in device for device in devices):
        return f"{asked}: CDI devices, which the hook does not give"
    devices = tuple(dict.fromkeys(devices))
    if len(devices) > MAX_DEVICES:
        return f"{asked}: more than {MAX_DEVICES} devices, which no host has"
    return devices, asked


def _volumes(mounts: tuple[Mount, ...]) -> Iterator[str]:
    """Yield what is asked for by mounts, by the hook's own test: whatever begins with the directory's name."""
    for mount in mounts:
        destination = shortest(mount.destination)
        device = destination[len(_VOLUMES) :].strip("/")
        if shortest(mount.source) == "/dev/null" and destination.startswith(_VOLUMES) and device:
            if device.startswith(_CDI):
                yield device[len(_CDI) :].replace("/", "=")
            elif not device.startswith(_IMEX):
                yield device


def _by_variable(spec: OciSpec, toolkit: Toolkit) -> Union[tuple[tuple[str, ...], str], str]:
    """Return the devices and the variables that ask for them, or why there are none."""
    swarm = [name for name in toolkit.swarm_variables if name in spec.env]
    if swarm and len(toolkit.swarm_variables) > 1:
        return Untold(f"swarm-resource of {toolkit.path} is a list, which not all versions of the hook take apart")
    names = swarm or [name for name in (VISIBLE_DEVICES,) if name in spec.env]
    if not names:
        if _legacy(spec):
            return f"only CUDA_VERSION asks for GPUs, which is the image's: nobody has set {VISIBLE_DEVICES}"
        return f"{VISIBLE_DEVICES} is not set"
    asked = f"{names[0]}={clean(spec.env[names[0]], _SHOWN)}"
    devices = split(spec.env[names[0]])
    if not devices or "void" in devices:
        return f"{asked} asks for nothing"
    if "none" in devices:
        return (), asked
    return ((ALL,) if ALL in devices else devices), asked


def _legacy(spec: OciSpec) -> bool:
    """Whether the image is one of before 2018, which the toolkit knows by this."""
    return bool(spec.env.get("CUDA_VERSION")) and not spec.env.get("NVIDIA_REQUIRE_CUDA")


def _capabilities(spec: OciSpec, toolkit: Toolkit) -> frozenset[str]:
    asked = spec.env.get(DRIVER_CAPABILITIES)
    if asked is None and _legacy(spec):
        return toolkit.supported
    if not asked:
        return toolkit.supported & _USUAL_CAPABILITIES
    capabilities = frozenset(split(asked))
    return toolkit.supported if ALL in capabilities else capabilities
