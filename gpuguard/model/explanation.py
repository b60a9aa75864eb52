"""All that `gpuguard explain` tells of one container."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.device_filter import DeviceFilter, Owner, named
from gpuguard.model.plan import Plan
from gpuguard.model.process import Process
from gpuguard.model.requester import text
from gpuguard.model.rule import Rule
from gpuguard.model.status import ContainerStatus, NodeStatus
from gpuguard.model.unit import DevicePolicy
from gpuguard.model.verdict import Verdict


@dataclass(frozen=True)
class Denier:
    """A level that denies a rule: on cgroup v2 by a program, and whose; `curable`: systemd would replace that one."""

    control_group: str
    program: Optional[int] = None
    owner: Owner = Owner.UNKNOWN
    curable: bool = False

    def __str__(self) -> str:
        """Name it for people."""
        if self.program is None:
            return self.control_group
        return named(self.owner, self.program, self.control_group)


@dataclass(frozen=True)
class Comparison:
    """One rule in the three lists. None is "cannot be told".

    `memory` and `disk` are whether systemd has it in memory and whether the unit's files say it; `entry` is what of
    memory says it. `guarded`: of the device classes that gpuguard guards. `given`: the runtime's own program accepts
    it (cgroup v2). `hinders`: systemd is told nothing because of it. `sources` say where the entitlement comes from,
    the strongest first; `stale` why its numbers are not those of the device that was given.
    """

    rule: Rule
    node: Optional[str] = None
    guarded: bool = True
    entitled: Optional[bool] = True
    released: bool = False
    given: bool = False
    effective: Optional[bool] = True
    memory: Optional[bool] = True
    disk: Optional[bool] = True
    entry: Optional[str] = None
    after_reload: Optional[bool] = True
    denied_by: tuple[Denier, ...] = ()
    hinders: bool = False
    sources: tuple[str, ...] = ()
    stale: Optional[str] = None

    @property
    def declared(self) -> Optional[bool]:
        """Whether systemd would write it now, and after a reload too."""
        return None if self.memory is None or self.disk is None else self.memory and self.disk

    @property
    def matters(self) -> bool:
        """Whether a reader should see it: guarded ones, and others that a reload takes, took, or that hinder."""
        taken = self.effective is True and self.after_reload is False
        took = self.given and self.effective is False
        return self.guarded or bool(self.entitled) or self.released or self.hinders or taken or took


@dataclass(frozen=True)
class Declaration:
    """What systemd knows of the unit's devices. `differs`: the files on disk say something else than memory.

    `files` are those that speak of devices, None when they cannot be read.
    """

    policy: DevicePolicy
    entries: int
    differs: bool = False
    files: Optional[tuple[str, ...]] = ()

    @property
    def foreign(self) -> tuple[str, ...]:
        """Those of the files that systemd has not written for a transient unit itself."""
        return tuple(path for path in self.files or () if "/run/systemd/transient/" not in path)


@dataclass(frozen=True)
class LastWriter:
    """Who wrote a container's device rules last, and for whom.

    `at` is in seconds since the epoch; `cause` is as in the metrics. `writer` is None when it is not known;
    `requester` names whom it was done for, the nearest first: "systemctl daemon-reload", "apt-get", "session-3.scope".
    """

    at: float
    cause: str = "unknown"
    properties: tuple[str, ...] = ()
    writer: Optional[Process] = None
    requester: tuple[str, ...] = ()

    @property
    def request(self) -> str:
        """The chain of requesters in one line, the nearest first; "" for none."""
        return text(self.requester)


@dataclass(frozen=True)
class Explanation:
    """One container, explained.

    `root` is where the hierarchy is mounted. `filters` are the programs in force (cgroup v2), None where there are
    none to know of or they cannot be read. `shield` is whether systemd's rewrites are kept off (cgroup v1), None on v2.
    `declaration` is None when systemd does not tell, and `trouble` says why; `refusal` is why it must not be told
    anything. `declares`: the settings want devices declared before a loss. `last_writer` is None: not known.
    `bundle` is the file of the runtime that says what it gave, None where there is none or it is not believed;
    `doubts` say what was asked for and is not granted, or why it cannot be told. `elsewhere` is the control group whose
    rules count for it, where those of its own do not.
    """

    node: NodeStatus
    container: ContainerStatus
    root: str
    comparisons: tuple[Comparison, ...] = ()
    filters: Optional[tuple[DeviceFilter, ...]] = None
    shield: Optional[bool] = None
    declaration: Optional[Declaration] = None
    refusal: Optional[str] = None
    trouble: Optional[str] = None
    verdict: Optional[Verdict] = None
    plan: Plan = field(default_factory=Plan)
    declares: bool = True
    last_writer: Optional[LastWriter] = None
    bundle: Optional[str] = None
    doubts: tuple[str, ...] = ()
    elsewhere: Optional[str] = None

    @property
    def guards(self) -> bool:
        """Whether a daemon is at work that gives back what gets lost."""
        return self.node.daemon == "running" and self.node.mode == "enforce"
