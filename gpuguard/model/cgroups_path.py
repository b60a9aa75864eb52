"""Which control group an OCI specification's linux.cgroupsPath means. Pure."""

from __future__ import annotations

from typing import Optional

_SLICE = ".slice"
# Where systemd puts a scope for which the engine names no slice.
_DEFAULT_SLICE = "system.slice"


def control_group(cgroups_path: str) -> Optional[str]:
    """Return the control group's path, None where it cannot be told: a relative one depends on the runtime's own.

    With systemd's help it is written "SLICE:PREFIX:ID", otherwise as the path itself (runc, CreateCgroupConfig; crun
    takes the same).
    """
    if cgroups_path.startswith("/"):
        return cgroups_path if ".." not in cgroups_path.split("/") else None
    parts = cgroups_path.split(":")
    if len(parts) != 3:  # noqa: PLR2004 -- as documented
        return None
    slice_, prefix, name = parts
    unit = name if name.endswith(_SLICE) else f"{prefix}-{name}.scope"
    above = slice_path(slice_ or _DEFAULT_SLICE)
    return f"{above}/{unit}" if above is not None and "/" not in unit else None


def slice_path(name: str) -> Optional[str]:
    """Return the control group of a slice, "" for the root; None for what is no slice's name (systemd.slice(5))."""
    stem = name[: -len(_SLICE)]
    if not name.endswith(_SLICE) or "/" in name:
        return None
    if stem == "-":
        return ""
    parts = stem.split("-")
    if not all(parts):
        return None
    return "".join(f"/{'-'.join(parts[:length])}{_SLICE}" for length in range(1, len(parts) + 1))
