"""What a runtime's own files say of one container: who it is, and what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.clean import clean
from gpuguard.model.container_name import full_name
from gpuguard.model.grant import Grant
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.oci_spec import OciSpec
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

# Kubernetes takes 253 characters for a pod's name.
_MAX_NAME = 253


@dataclass(frozen=True)
class Identity:
    """Who a container is for its users; for Kubernetes `name` is the container's in its pod.

    Users choose these texts: what cannot be printed is replaced, and they are cut to what any name may have. `doubt`
    says why no more is known, where something stood in the way.
    """

    name: Optional[str] = None
    namespace: Optional[str] = None
    pod: Optional[str] = None
    doubt: Optional[str] = None

    def __post_init__(self) -> None:
        """Clean the names. An empty one is none."""
        for part in ("name", "namespace", "pod"):
            text = getattr(self, part)
            object.__setattr__(self, part, clean(text, _MAX_NAME) if text else None)

    @property
    def full_name(self) -> str:
        """What people call it: its name, in Kubernetes namespace/pod/name, or ""."""
        return full_name(self.namespace, self.pod, self.name)

    @property
    def names(self) -> frozenset[str]:
        """The names that people call it by: its own, and in Kubernetes namespace/pod/name."""
        return frozenset(filter(None, (self.name, self.full_name)))


@dataclass(frozen=True)
class Bundle:
    """A container's specification as found on disk: in a file that root alone can write, of this very run.

    `path` is the file's. `since` is when it was last changed, in seconds since the epoch: the container started after.
    `pid` is that of the container's first process, where the runtime has noted it; `elsewhere` as in
    RuntimeRecord.
    """

    path: str
    spec: OciSpec
    since: float
    pid: Optional[int] = None
    elsewhere: Optional[str] = None


@dataclass(frozen=True)
class RuntimeRecord:
    """All that is known of a container from outside of it.

    `runtime` is who made it, "" where only its cgroup tells. `path` is the file with its specification, None where
    there is none that is believed; `since` when that was written, in seconds since the epoch; `nodes` the guarded
    device nodes that it names. `grants` is what it was given for certain; `possible` all that its runtime and hooks
    may have given, None where that cannot be told. `trusted`: the container has no right to write device rules itself
    (no CAP_SYS_ADMIN), so that what is in force was given from outside; None: cannot be told. `asked`: NVIDIA's hook is
    in its specification. `doubts` say what it may have been given for that, which cannot be told; `refusal` why it was
    given nothing for it. `elsewhere` is the control group whose device rules count for it, where those of its own do
    not. `trouble` says why nothing can be told. `pid` is that of the first process. `late`: what would tell of
    it, or of the request alone, was not read in time.
    """

    runtime: str = ""
    identity: Identity = field(default_factory=Identity)
    path: Optional[str] = None
    since: float = 0.0
    nodes: Mapping[str, DeviceNumber] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    possible: Optional[RuleSet] = None
    trusted: Optional[bool] = None
    asked: bool = False
    doubts: tuple[str, ...] = ()
    refusal: Optional[str] = None
    elsewhere: Optional[str] = None
    trouble: Optional[str] = None
    pid: Optional[int] = None
    late: bool = False

    @property
    def rules(self) -> frozenset[Rule]:
        """The rules of all grants."""
        return frozenset(grant.rule for grant in self.grants)
