"""Settings that are valid and do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from gpuguard.config import Settings


def without_effect(settings: Settings, cgroup: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that ask for what a later version will do, or what cgroup v2 has no use for, and say which."""
    if settings.guard.shield and cgroup == "v2":
        yield "[guard] shield", "on cgroup v2"
    if settings.escalate.command:
        yield "[escalate] command", "in this version of gpuguard"
