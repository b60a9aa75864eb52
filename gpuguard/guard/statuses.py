"""The guard's scopes as `gpuguard status` and the metrics tell of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Optional

from gpuguard.guard.scope import Scope
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, DeviceStatus


def statuses(scopes: Iterable[Scope], node_of: Callable[[Rule], Optional[str]]) -> tuple[ContainerStatus, ...]:
    """Return the containers that have or had guarded devices, or no filter at all, by their scope's name."""
    known = [_status(scope, scope.state, node_of) for scope in scopes if scope.state is not None]
    return tuple(sorted(known, key=lambda status: status.cgroup))


def summary(scopes: Iterable[Scope]) -> str:
    """Return the number of containers in each state, the gravest first, in one line."""
    states = [scope.state for scope in scopes if scope.entitled is not None]
    counts = [f"{states.count(state)} {state.value}" for state in State if state in states]
    return "GPU containers: " + (", ".join(counts) or "none")


def _status(scope: Scope, state: State, node_of: Callable[[Rule], Optional[str]]) -> ContainerStatus:
    verdict, entitled = scope.verdict, scope.entitled
    rules = entitled.rules if entitled is not None else ()
    identity = scope.record.identity
    return ContainerStatus(
        scope=scope.target.unit,
        cgroup=scope.target.control_group,
        id=scope.container.id,
        runtime=scope.record.runtime or scope.container.runtime,
        state=state,
        devices=tuple(_device(scope, rule, node_of) for rule in _sorted(rules)),
        excess=_sorted(verdict.excess if verdict is not None else ()),
        reason=scope.reason,
        released=_sorted(_released(scope)),
        name=identity.name,
        namespace=identity.namespace,
        pod=identity.pod,
        managed=scope.view is None or scope.view.managed,
    )


def _released(scope: Scope) -> Iterable[Rule]:
    """Return what is still in force of the released devices: gpuguard takes nothing away."""
    if scope.entitled is None or scope.effective is None:
        return ()
    return (rule for rule in scope.effective if rule.device in scope.entitled.released)


def _device(scope: Scope, rule: Rule, node_of: Callable[[Rule], Optional[str]]) -> DeviceStatus:
    # cgroup v1: of a container in another group its own list says nothing.
    counts = scope.record.elsewhere is None
    effective = scope.effective if counts else None
    declared = scope.view.declared if scope.view is not None and counts else None
    return DeviceStatus(
        rule=rule,
        node=node_of(rule),
        entitled_by=scope.entitled.source(rule).value if scope.entitled is not None else "",
        effective=None if effective is None else effective.covers(rule),
        declared=None if declared is None else declared.covers(rule),
        blocked=scope.verdict is not None and rule in scope.verdict.blocked,
    )


def _sorted(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: rule.sort_key))
