"""From what the guard knows of one scope to all that can be said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from gpuguard.config import Paths
from gpuguard.errors import UnitFileError
from gpuguard.guard import numbers
from gpuguard.guard.parts import Parts
from gpuguard.guard.scope import Scope
from gpuguard.guard.statuses import statuses
from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.model.device_filter import DeviceFilter, denying, given, of_systemd
from gpuguard.model.deviceallow import standard_rules
from gpuguard.model.explanation import Comparison, Declaration, Denier, Explanation
from gpuguard.model.grant import Source
from gpuguard.model.observation import Declared
from gpuguard.model.reload import in_force_v1, in_force_v2
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.runtime_record import RuntimeRecord
from gpuguard.model.status import NodeStatus
from gpuguard.systemd.unit_files import texts

_OF_DEVICES = re.compile(r"^\s*Device(Allow|Policy)\s*=", re.MULTILINE)


def explanation(parts: Parts, scope: Scope, node: NodeStatus, paths: Paths) -> Explanation:
    """Explain a scope that was looked at. Raises CgroupGoneError, CgroupUnreadableError."""
    (container,) = statuses([scope], parts.guarded.node_of)
    view, writable = scope.view, parts.devices.writable
    declared = view.declared if view is not None else None
    return Explanation(
        node=node,
        container=container,
        root=str(Path(paths.cgroup, "devices") if writable else Path(paths.cgroup)),
        comparisons=tuple(_Comparer(parts, scope, declared).all()),
        filters=None if writable or scope.seen is None else scope.seen.filters,
        shield=parts.devices.shielded(scope.target.control_group) if writable else None,
        declaration=None if declared is None else _declaration(scope.target.unit, declared, paths.root),
        refusal=view.refusal if view is not None else None,
        trouble=view.trouble if view is not None else None,
        verdict=scope.verdict,
        plan=scope.plan,
        bundle=scope.record.path,
        elsewhere=scope.record.elsewhere if writable else None,
        doubts=_doubts(scope.record),
    )


def _doubts(record: RuntimeRecord) -> tuple[str, ...]:
    return tuple(filter(None, (record.trouble, record.refusal, *record.doubts, record.identity.doubt)))


def _declaration(unit: str, declared: Declared, root: str) -> Declaration:
    memory, disk = declared.memory, declared.disk
    differs = disk is not None and bool(
        memory.unrestricted != disk.unrestricted or memory.missing(disk.rules) or disk.missing(memory.rules)
    )
    return Declaration(declared.policy, len(declared.entries), differs, _files(unit, root) if differs else ())


def _files(unit: str, root: str) -> Optional[tuple[str, ...]]:
    """Return the unit's files that speak of devices, None when they cannot be read."""
    try:
        return tuple(file.path for file in texts("", unit, root) if _OF_DEVICES.search(file.text))
    except UnitFileError:
        return None


class _Entry(NamedTuple):
    """What systemd has in memory, and the rules that it writes for it."""

    text: str
    rules: RuleSet


class _Comparer:
    """Compares the lists of one scope."""

    def __init__(self, parts: Parts, scope: Scope, declared: Optional[Declared]) -> None:
        self._parts = parts
        self._scope = scope
        self._declared = declared
        self._group = scope.target.control_group
        self._filters = scope.seen.filters if scope.seen is not None else ()
        self._systemds_group = scope.target.unit_group or self._group
        self._given = given(self._filters, self._group, self._systemds_group)
        self._entries = self._read_entries()
        self._payload = scope.seen.payload if scope.seen is not None else None
        # Any group below is as good as the shield (cgroup v1).
        nested = scope.seen is not None and scope.seen.nested
        self._shield = nested or parts.devices.shielded(self._group)
        self._stale = numbers.of(parts, scope).stale
        # What its own list says counts for nothing in it.
        self._elsewhere = parts.devices.writable and scope.record.elsewhere is not None

    def all(self) -> list[Comparison]:
        """Return a comparison for each rule of any list, those that somebody is entitled to first."""
        entitled = self._scope.entitled
        lists = [self._scope.effective, self._given]
        if self._declared is not None:
            lists += [self._declared.memory, self._declared.disk]
        rules = {rule for known in lists if known is not None for rule in known.rules}
        compared = [self._compare(rule) for rule in rules.union(entitled.rules if entitled is not None else ())]
        return sorted(compared, key=lambda one: (not one.entitled, not one.guarded, one.rule.sort_key))

    def _compare(self, rule: Rule) -> Comparison:
        known, declared, plan = self._scope.entitled, self._declared, self._scope.plan
        effective = self._effective(rule)
        denied_by = self._denied_by(rule) if effective is False else ()
        return Comparison(
            rule=rule,
            node=self._parts.guarded.node_of(rule),
            guarded=self._parts.guarded(rule),
            entitled=RuleSet(known.rules).covers(rule) if known is not None else None,
            released=known is not None and rule.device in known.released,
            given=self._given is not None and not self._given.unrestricted and self._given.covers(rule),
            effective=effective,
            memory=None if declared is None else declared.memory.covers(rule),
            disk=None if declared is None else declared.after_reload.covers(rule),
            entry=next((entry.text for entry in self._entries if entry.rules.covers(rule)), None),
            after_reload=self._after_reload(rule, denied_by),
            denied_by=denied_by,
            hinders=rule in plan.narrowed or rule in plan.undeclarable,
            sources=tuple(self._sources(rule)),
            stale=self._stale.get(rule),
        )

    def _sources(self, rule: Rule) -> Iterator[str]:
        known = self._scope.entitled
        if known is None or not RuleSet(known.rules).covers(rule):
            return
        if rule in known.rules and known.source(rule) is Source.LEDGER:
            yield "ledger: seen in force"
        grants = (grant for grant in self._scope.record.grants if grant.rule.covers(rule))
        yield from (f"{grant.source.value}: {grant.why}" for grant in grants)

    def _effective(self, rule: Rule) -> Optional[bool]:
        if self._elsewhere:
            return None
        effective = self._scope.effective
        if effective is None or effective.covers(rule):
            return None if effective is None else True
        deniers = denying(self._filters, rule)
        return False if self._asked(rule) or not deniers or any(entry.exact for entry in deniers) else None

    def _asked(self, rule: Rule) -> bool:
        """Whether a program that no list of rules describes was asked about a rule for certain."""
        return self._scope.entitled is not None and rule in self._scope.entitled.rules

    def _denied_by(self, rule: Rule) -> tuple[Denier, ...]:
        devices = self._parts.devices
        if isinstance(devices, DevicesV1):
            ancestor = devices.denying_ancestor(self._group, rule)
            own = self._group if self._payload is None else self._payload.control_group
            return (Denier(ancestor or own, curable=not ancestor),)
        return tuple(self._denier(entry) for entry in denying(self._filters, rule))

    def _denier(self, entry: DeviceFilter) -> Denier:
        curable = entry in of_systemd(self._filters, self._systemds_group)
        return Denier(entry.control_group, entry.program, entry.owner, curable)

    def _after_reload(self, rule: Rule, denied_by: tuple[Denier, ...]) -> Optional[bool]:
        if self._elsewhere:
            return None
        # systemd writes the unit's own list, and never one below it.
        if self._payload is not None or not self._scope.target.managed(writable=self._parts.devices.writable):
            return self._effective(rule)
        if self._parts.devices.writable:
            denied_above = any(not denier.curable for denier in denied_by)
            return in_force_v1(
                rule, self._scope.effective, self._declared, shield=self._shield, denied_above=denied_above
            )
        filters = self._filters if self._scope.seen is not None else None
        return in_force_v2(rule, filters, self._declared, self._systemds_group, asked=self._asked(rule))

    def _read_entries(self) -> list[_Entry]:
        declared = self._declared
        if declared is None:
            return []
        observer = self._parts.observer
        entries = [
            _Entry(f"DeviceAllow={entry}", RuleSet(found)) for entry, found in observer.resolved(declared.entries)
        ]
        standard = RuleSet(standard_rules(declared.policy, declared.entries), declared.memory.unrestricted)
        return [*entries, _Entry(f"DevicePolicy={declared.policy.value}", standard)]
