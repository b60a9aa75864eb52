"""What an operator asks of the guard: repair now, release a device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

from gpuguard.errors import GpuguardError, NotFoundError
from gpuguard.guard.build import Assembly
from gpuguard.guard.find import find
from gpuguard.guard.guard import Guard
from gpuguard.guard.ledger import Ledger
from gpuguard.guard.pause import pauses
from gpuguard.guard.record import Recorder
from gpuguard.guard.scope import Scope
from gpuguard.guard.sentinel import Sentinel
from gpuguard.guard.watch import Watch
from gpuguard.kernel.procfs import Host
from gpuguard.model import nested
from gpuguard.model.entitlement import release as without
from gpuguard.model.explanation import LastWriter
from gpuguard.model.last_writer import to_document
from gpuguard.model.reports import WELL, DaemonReport, ReleaseReport, Repair, RepairReport, WriterReport
from gpuguard.model.requester import chain
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.report.log import silent
from gpuguard.report.metrics import Metrics


class Desk:
    """Answers what commands ask of a running daemon."""

    def __init__(self, assembly: Assembly, describe: Callable[[], DaemonReport]) -> None:
        self._assembly = assembly
        self._describe = describe

    async def answer(
        self, request: Mapping[str, Any]
    ) -> Union[RepairReport, ReleaseReport, DaemonReport, WriterReport]:
        """Do what one request of control.py asks. Raises GpuguardError."""
        guard, verb = self._assembly.guard, request.get("verb")
        if verb == "daemon":
            return replace(self._describe(), paused=pauses(guard.scopes.values()))
        if verb == "release":
            name, devices = request["name"], request["devices"]
            report = release(guard, self._assembly.host, str(name), [str(device) for device in devices])
            await guard.parts.sentinel.caught_up()  # what is answered now is not given back a moment later
            return report
        if verb == "last_writer":
            return WriterReport(_last_writer(find(guard, str(request["name"]))))
        if verb == "repair" and not guard.policy.enforce:
            raise GpuguardError("the daemon runs in observe mode and changes nothing: [guard] mode")
        if verb == "repair":
            names = [str(name) for name in request["names"]]
            return await repair(guard, self._assembly.watch, names, dry_run=False)
        raise GpuguardError(f"unknown request {verb!r}")


async def repair(guard: Guard, watch: Watch, names: Sequence[str], *, dry_run: bool) -> RepairReport:
    """Look at the named scopes, or at all, then repair whatever was tried before, and tell what came of it.

    In a dry run, of a guard that does not enforce, tell what would come of it. Raises NotFoundError before
    anything is done.
    """
    scopes = [find(guard, name) for name in names] if names else list(guard.scopes.values())
    scopes = list({scope.target.control_group: scope for scope in scopes}.values())  # one may be named twice
    onlooker = _onlooker(guard)
    repairs = []
    for scope in scopes:
        if scope.state is None:
            continue
        before = None if dry_run else await _seen(onlooker, scope)
        scope.backoff.until, scope.futile = 0.0, None
        scope.deeds.clear()
        was = before or scope.state
        await watch.looked(scope.target.control_group)
        writable = guard.parts.devices.writable
        repairs.append(planned(scope, writable=writable) if dry_run else _repaired(scope, was))
    return RepairReport(dry_run, tuple(repair for repair in repairs if repair is not None))


def _onlooker(guard: Guard) -> Guard:
    """Return a guard that looks with the same eyes, and does, tells and keeps nothing."""
    parts = replace(
        guard.parts,
        recorder=Recorder(Metrics(), silent(), guard.parts.guarded.node_of),
        ledger=Ledger(Path(), "", writable=False),
        sentinel=Sentinel(lambda _: []),
    )
    return Guard(parts, replace(guard.policy, enforce=False))


async def _seen(onlooker: Guard, scope: Scope) -> Optional[State]:
    """Return the state that a scope is in now, None when it has just ended: the last look may be a while ago."""
    control_group = scope.target.control_group
    onlooker.scopes[control_group] = replace(scope)
    await onlooker.look(control_group, True)  # noqa: FBT003 - as the watch calls it
    seen = onlooker.scopes.pop(control_group, None)
    return seen.state if seen is not None else None


def _repaired(scope: Scope, before: State) -> Optional[Repair]:
    """Tell what was done; None for one that had only what it was not given, and that is gone."""
    after, error = scope.state, scope.error
    if after is None:
        return None
    if error is None and after not in WELL:
        error = scope.reason or f"still {after.value}"
    return _repair(scope, before, after, scope.deeds, error)


def planned(scope: Scope, *, writable: bool) -> Repair:
    """Tell what would be done, and to what state it would lead if all of it succeeded.

    `writable`: the kernel's list can be written (cgroup v1); else what is lost comes back by a declaration alone.
    """
    plan, verdict, now = scope.plan, scope.verdict, scope.state or State.OPAQUE
    deeds = [f"write {rule}" for rule in plan.write] + [f"declare {entry}" for entry in plan.declare]
    after = now
    if verdict is not None and deeds:
        cured = verdict.lost <= set(plan.write) if writable else bool(plan.declare) and not verdict.blocked
        declared = not verdict.at_risk or (plan.declare and plan.hindrance is None and not _overruled(scope))
        if cured:
            after = State.PROTECTED if declared else State.AT_RISK
    error = None if after in WELL else scope.reason or f"would still be {after.value}"
    return _repair(scope, now, after, deeds + _owed_below(scope), error)


def _owed_below(scope: Scope) -> list[str]:
    """Return what would be written to groups inside the container, once it is whole itself."""
    groups = nested.debts(scope.entitled.nested if scope.entitled is not None else ())
    return nested.deeds(
        [(rule, group.path) for group in groups for rule in sorted(group.owed, key=lambda rule: rule.sort_key)]
    )


def _repair(scope: Scope, before: State, after: State, deeds: Iterable[str], error: Optional[str]) -> Repair:
    identity = scope.record.identity
    return Repair(
        scope=scope.target.unit,
        id=scope.container.id,
        before=before,
        after=after,
        deeds=tuple(deeds),
        error=error,
        name=identity.name,
        namespace=identity.namespace,
        pod=identity.pod,
    )


def _overruled(scope: Scope) -> bool:
    """Whether files on disk take away what systemd has in memory: they would do so to a declaration as well."""
    declared = scope.view.declared if scope.view is not None else None
    return declared is not None and declared.disk is not None and bool(declared.disk.missing(declared.memory))


def release(guard: Guard, host: Host, name: str, devices: Sequence[str]) -> ReleaseReport:
    """Forget that a container is entitled to some devices, or to all of them. Raises NotFoundError, LedgerError."""
    scope = find(guard, name)
    entitled = scope.entitled
    if entitled is None:
        raise NotFoundError(f"{name}: has no devices that could be released")
    wanted = {_device(host, device) for device in devices} or {rule.device for rule in entitled.rules}
    rules = frozenset(rule for rule in entitled.rules if rule.device in wanted)
    others = wanted - {rule.device for rule in rules}
    if others:
        has = ", ".join(sorted(rule.device for rule in entitled.rules)) or "nothing"
        raise NotFoundError(f"{name}: is not entitled to {', '.join(sorted(others))}; it is entitled to {has}")
    guard.parts.ledger.save(without(entitled, frozenset(wanted)))
    guard.keep(scope, without(entitled, frozenset(wanted)))
    if scope.outage is not None:  # a loss that is wanted does not end in a repair
        left = scope.outage.rules - rules
        scope.outage = replace(scope.outage, rules=left) if left else None
    guard.parts.recorder.released(scope, rules)
    declared = scope.view.declared if scope.view is not None else None
    return ReleaseReport(
        scope=scope.target.unit,
        id=scope.container.id,
        devices=_texts(rules),
        effective=_texts(rule for rule in rules if scope.effective is not None and scope.effective.covers(rule)),
        declared=_texts(rule for rule in rules if declared is not None and declared.covers(rule)),
    )


def _last_writer(scope: Scope) -> Optional[dict[str, Any]]:
    if scope.last is None:
        return None
    at, cause = scope.last
    return to_document(LastWriter(at, cause.cause, cause.properties, cause.writer, chain(cause.requester)))


def _device(host: Host, text: str) -> str:
    """Turn "/dev/nvidia0", "c 195:0" or "195:0" into "c 195:0"."""
    number = host.number(text)
    if number is not None:
        return "{} {}:{}".format(*number)
    match = re.fullmatch(r"(?:([cb]) )?((?:\d+|\*):(?:\d+|\*))", text, re.ASCII)
    if match is None:
        raise NotFoundError(f"{text}: neither a device node on this host nor a number such as 'c 195:0'")
    return f"{match[1] or 'c'} {match[2]}"


def _texts(rules: Iterable[Rule]) -> tuple[str, ...]:
    return tuple(str(rule) for rule in sorted(rules, key=lambda rule: rule.sort_key))
