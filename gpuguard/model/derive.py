"""From a container's specification to what it was given: the runtime's own rules, and an honoured request. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.clean import clean
from gpuguard.model.grant import Grant, Source
from gpuguard.model.oci_spec import OciSpec
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.runtime_record import Bundle, Identity, RuntimeRecord

_MAY_WRITE = "CAP_SYS_ADMIN"
_CDI = "cdi.k8s.io/"
# Of the annotations that are told, and of one of them.
_MOST_CDI, _LONGEST = 8, 200


@dataclass(frozen=True)
class Requested:
    """What came of the request to NVIDIA's hook that a specification holds.

    `rules` were given for certain, `possible` is all that may have been; `why` says by which request and what honours
    it; `doubts` what of it cannot be told. `refusal` says why nothing was given. `late`: what would tell was not read
    in time.
    """

    rules: frozenset[Rule] = frozenset()
    possible: frozenset[Rule] = frozenset()
    why: str = ""
    doubts: tuple[str, ...] = ()
    refusal: Optional[str] = None
    late: bool = False


def derive(
    runtime: str,
    identity: Identity,
    bundle: Optional[Bundle],
    guarded: Callable[[Rule], bool],
    requested: Optional[Requested] = None,
) -> RuntimeRecord:
    """Put together what is known of one container; without `requested` its specification asks for nothing."""
    if bundle is None:
        return RuntimeRecord(runtime, identity)
    spec, asked = bundle.spec, requested is not None
    requested = requested or Requested()
    grants = () if spec.unrestricted else (*_of_spec(bundle, guarded), *_of_request(requested, guarded))
    return RuntimeRecord(
        runtime=runtime,
        identity=identity,
        path=bundle.path,
        since=bundle.since,
        nodes={path: number for path, number in spec.nodes.items() if guarded(Rule(*number, Access.RW))},
        grants=grants,
        possible=RuleSet(spec.allowed | requested.possible | requested.rules, unrestricted=spec.unrestricted),
        trusted=not may_write(spec),
        asked=asked,
        doubts=requested.doubts,
        refusal=requested.refusal,
        late=requested.late,
        elsewhere=bundle.elsewhere,
        pid=bundle.pid,
    )


def may_write(spec: OciSpec) -> bool:
    """Whether the container's own programs may write device rules.

    That takes CAP_SYS_ADMIN in the first user namespace (security/device_cgroup.c, devcgroup_update_access). A process
    without `capabilities` in its specification keeps those of the runtime.
    """
    if "user" in spec.namespaces:
        return False
    return spec.capabilities is None or _MAY_WRITE in spec.capabilities


def _of_spec(bundle: Bundle, guarded: Callable[[Rule], bool]) -> Iterator[Grant]:
    # A pod's user can choose an annotation: it says where the rules come from, and gives nothing.
    asked = sorted(clean(value, _LONGEST) for key, value in bundle.spec.annotations.items() if key.startswith(_CDI))
    cdi = f" (CDI: {', '.join(asked[:_MOST_CDI])})" if asked else ""
    why = f"linux.resources.devices in {bundle.path}{cdi}"
    for rule in sorted(bundle.spec.allowed, key=lambda rule: rule.sort_key):
        if guarded(rule):
            yield Grant(rule, Source.SPEC, why)


def _of_request(requested: Requested, guarded: Callable[[Rule], bool]) -> Iterator[Grant]:
    for rule in sorted(requested.rules, key=lambda rule: rule.sort_key):
        if guarded(rule):
            yield Grant(rule, Source.REQUEST, requested.why)
