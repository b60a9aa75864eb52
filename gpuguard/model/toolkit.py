"""How NVIDIA's container toolkit is configured: which requests for devices it honours.

Keys, defaults and their meaning: nvidia-container-toolkit 1.17 and 1.18, internal/config/{config,runtime,hook}.go and
cmd/nvidia-container-runtime-hook/hook_config.go.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gpuguard.errors import ToolkitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# internal/config/image/capabilities.go.
CAPABILITIES = frozenset({"compat32", "compute", "display", "graphics", "ngx", "utility", "video"})

# In any other mode ("cdi", "csv", "jit-cdi") the hook ends with an error, and so does the container's start.
_MODES_WITH_HOOK = frozenset({"auto", "legacy"})

_CLI, _RUNTIME, _HOOK = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime-hook"
_ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_VOLUMES = "accept-nvidia-visible-devices-as-volume-mounts"
_SUPPORTED = "supported-driver-capabilities"

_Table = Mapping[str, object]


@dataclass(frozen=True)
class Toolkit:
    """config.toml of nvidia-container-runtime, as far as it decides on devices. The defaults are the toolkit's own.

    `path` is the file, `changed` when it was last changed, in seconds since the epoch (0.0: it is not known to have
    been). `supported` are the driver capabilities that a container may ask for. `disabled`: the hook does nothing.
    `root` is where the driver is on the host, "" for "/": the hook's nodes come from the /dev below it.
    """

    path: str = ""
    changed: float = 0.0
    envvar_when_unprivileged: bool = True
    volume_mounts: bool = False
    no_cgroups: bool = False
    swarm_resource: str = ""
    disabled: bool = False
    supported: frozenset[str] = CAPABILITIES
    root: str = ""

    @property
    def swarm_variables(self) -> tuple[str, ...]:
        """The variables that are asked instead of NVIDIA_VISIBLE_DEVICES, where a container has one of them."""
        return tuple(name.strip() for name in self.swarm_resource.split(",") if name.strip())


def parse_toolkit(text: str, path: str, changed: float) -> Toolkit:
    """Read a config.toml. Raises ToolkitError on what is not TOML or has another type: the hook fails on it, too."""
    try:
        table: _Table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"{path}: not a configuration of NVIDIA's toolkit: {error}") from error
    file = _File(path)
    cli, runtime, hook = (file.table(table, name) for name in (_CLI, _RUNTIME, _HOOK))
    supported = frozenset(split(file.text(table, _SUPPORTED, "all")))
    if supported == {"all"}:
        supported = CAPABILITIES
    if not supported <= CAPABILITIES:
        raise ToolkitError(f"{path}: {_SUPPORTED}: the hook knows only {', '.join(sorted(CAPABILITIES))}")
    skips_mode = file.flag(hook, "skip-mode-detection", default=False)
    return Toolkit(
        path=path,
        changed=changed,
        envvar_when_unprivileged=file.flag(table, _ENVVAR, default=True),
        volume_mounts=file.flag(table, _VOLUMES, default=False),
        no_cgroups=file.flag(cli, "no-cgroups", default=False),
        swarm_resource=file.text(table, "swarm-resource", ""),
        disabled=not skips_mode and file.text(runtime, "mode", "auto") not in _MODES_WITH_HOOK,
        supported=supported,
        root="" if file.text(cli, "root", "") == "/" else file.text(cli, "root", ""),
    )


def split(text: str) -> tuple[str, ...]:
    """Take a list with commas apart, as the toolkit does with all of its lists; empty entries do not count."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class _File:
    path: str

    def table(self, table: _Table, key: str) -> _Table:
        value = self._value(table, key, {})
        if not isinstance(value, dict):
            raise ToolkitError(f"{self.path}: {key}: want a table")
        return value

    def text(self, table: _Table, key: str, default: str) -> str:
        value = self._value(table, key, default)
        if not isinstance(value, str):
            raise ToolkitError(f"{self.path}: {key}: want a text")
        return value

    def flag(self, table: _Table, key: str, *, default: bool) -> bool:
        value = self._value(table, key, default)
        if not isinstance(value, bool):
            raise ToolkitError(f"{self.path}: {key}: want true or false")
        return value

    def _value(self, table: _Table, key: str, default: object) -> object:
        # The hook's parser (pelletier/go-toml) takes some other spellings of a key as well, by rules of its own.
        alike = [name for name in table if name.lower() == key and name != key]
        if alike:
            raise ToolkitError(f"{self.path}: {alike[0]}: not the spelling of {key} that is documented")
        return table.get(key, default)
