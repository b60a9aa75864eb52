"""What a daemon, and the commands that change something, have to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from gpuguard.model.container_name import full_name
from gpuguard.model.state import State
from gpuguard.model.write import Standing

# Nothing is left to do for a container in one of these.
WELL = frozenset({State.PROTECTED, State.UNRESTRICTED})


@dataclass(frozen=True)
class Repair:
    """One container: its state before and after, what was done, and what is not well in the end, and why.

    In a dry run `after` is the state that the deeds would lead to. The names are as in ContainerStatus.
    """

    scope: str
    id: str
    before: State
    after: State
    deeds: tuple[str, ...] = ()
    error: Optional[str] = None
    name: Optional[str] = None
    namespace: Optional[str] = None
    pod: Optional[str] = None

    @property
    def full_name(self) -> str:
        """What people call it: its name, in Kubernetes namespace/pod/name, or ""."""
        return full_name(self.namespace, self.pod, self.name)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.error is None and self.after in WELL


@dataclass(frozen=True)
class RepairReport:
    """The repair of some or all containers."""

    dry_run: bool
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True)
class ReleaseReport:
    """Devices that a container is no longer entitled to.

    `effective` is what it may still use, `declared` what systemd would still give back.
    """

    scope: str
    id: str
    devices: tuple[str, ...]
    effective: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceReport:
    """An event source of a daemon: whether it works, and if not, why."""

    name: str
    up: bool
    reason: Optional[str] = None


@dataclass(frozen=True)
class WriterReport:
    """Who wrote a container's device list last, in the form of last_writer.to_document(); None: not known."""

    last: Optional[dict[str, Any]]


@dataclass(frozen=True)
class DaemonReport:
    """A running daemon: its version, the mode that it runs in, and its settings as TOML.

    `trouble` says what it was told to take for its settings and did not; `standing` is how the sentinel runs, None
    where there is none. `pid` is as the daemon itself sees it. `paused` are the control groups that are not repaired
    for now, since that was in vain, and until when, in seconds since the epoch. `unserved` says where its metrics
    cannot be had, and why.
    """

    version: str
    mode: str
    settings: str
    trouble: Optional[str] = None
    sources: tuple[SourceReport, ...] = ()
    standing: Optional[Standing] = None
    pid: Optional[int] = None
    paused: Mapping[str, float] = field(default_factory=dict)
    unserved: tuple[str, ...] = ()
