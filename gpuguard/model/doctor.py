"""What `gpuguard doctor` finds out about a node, and what it makes of it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Optional

from gpuguard.model.advice import short_name
from gpuguard.model.reports import SourceReport
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, NodeStatus
from gpuguard.model.write import Standing

# Microseconds of each second: a storm of writes to 200 scopes takes some 10,000.
_BUDGET = 50_000
_FIRST_WITHOUT_LINKS = 240
_OUTAGES = frozenset({State.LOST, State.PARTIAL, State.STALE})
_DOUBTFUL = frozenset({State.AT_RISK, State.OPAQUE})
_UNIT = "gpuguard.s"  # its slice, and the service itself
_STAND_IN = "Losses are found all the same, by the poll at the latest; who caused them may stay unknown."
_BUS_SOURCES = frozenset({"signals", "units", "monitor"})


class Gravity(enum.IntEnum):
    """How grave a finding is; the number is the command's exit code."""

    FINE = 0
    ADVICE = 1
    BROKEN = 2


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, and what to do about it."""

    gravity: Gravity
    text: str
    advice: str


@dataclass(frozen=True)
class Versions:
    """Whose versions matter: `gpuguard` is this command's, `daemon` None where none tells, `systemd` too."""

    gpuguard: str
    python: str
    kernel: str
    daemon: Optional[str] = None
    systemd: Optional[int] = None


@dataclass(frozen=True)
class Links:
    """The guarded device nodes of the host, and those without a link in /dev/char."""

    nodes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Examination:
    """All that was found out. What is None could not be, or nobody was there to tell.

    `unserved` says where the daemon's metrics cannot be had, and why.
    `trouble` says why there is no `node`. `budgets` are the files that hold no real-time budget for the sentinel, the
    outermost first. `fault` is what is wrong with the configuration file; `without_effect` are settings that do
    nothing, each with where. `root`: the command may see everything.
    """

    versions: Versions
    node: Optional[NodeStatus] = None
    trouble: Optional[str] = None
    sources: Optional[tuple[SourceReport, ...]] = None
    standing: Optional[Standing] = None
    unserved: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    links: Optional[Links] = None
    fault: Optional[str] = None
    without_effect: tuple[tuple[str, str], ...] = ()
    root: bool = True

    @property
    def gravity(self) -> Gravity:
        """The gravest of what was found."""
        return max((finding.gravity for finding in findings(self)), default=Gravity.FINE)


def findings(examination: Examination) -> tuple[Finding, ...]:
    """Return what is not as it should be, the gravest first."""
    found = (*_about_the_node(examination), *_about_the_guard(examination), *_about_containers(examination))
    return tuple(sorted(found, key=lambda finding: -finding.gravity))


def _about_the_node(seen: Examination) -> Iterator[Finding]:
    if not seen.root:
        unseen = "much cannot be seen so" if seen.node is not None else seen.trouble or "nothing can be seen so"
        yield Finding(Gravity.ADVICE, f"not asked as root: {unseen}", "`sudo gpuguard doctor`")
    elif seen.node is None:
        why = seen.trouble or "the node cannot be looked at"
        yield Finding(Gravity.BROKEN, why, "Nothing is guarded until that is mended.")
    if seen.node is not None and seen.node.systemd is None:
        bus = "See whether it answers: `busctl status`, `systemctl status dbus`."
        yield Finding(Gravity.BROKEN, "systemd does not answer: nothing can be declared to it", bus)
    if seen.links is not None and seen.links.missing and (seen.versions.systemd or 0) < _FIRST_WITHOUT_LINKS:
        yield from _unlinked(seen, seen.links)


def _unlinked(seen: Examination, links: Links) -> Iterator[Finding]:
    if seen.versions.systemd is not None:
        missing = f"no link in /dev/char to {', '.join(links.missing)}"
        why = f"{missing}: systemd {seen.versions.systemd} forgets rules that runtimes spell by them"
        yield Finding(Gravity.ADVICE, why, "`nvidia-ctk system create-dev-char-symlinks --create-all`, at each boot.")


def _about_the_guard(seen: Examination) -> Iterator[Finding]:
    daemon = seen.node.daemon if seen.node is not None else None
    trouble = seen.node.trouble if seen.node is not None else None
    if seen.fault is not None and daemon != "running":
        yield Finding(Gravity.BROKEN, seen.fault, "Mend the file: the daemon does not start with it.")
    elif daemon != "unknown" and (seen.fault or trouble):
        why = seen.fault or trouble or ""
        yield Finding(Gravity.ADVICE, why, "`gpuguard config check`, then `systemctl reload gpuguard`.")
    if daemon == "stopped":
        stopped = "the daemon is stopped: nobody gives back what gets lost"
        yield Finding(Gravity.ADVICE, stopped, "`systemctl start gpuguard`")
    elif daemon == "unknown" and seen.root:
        mend = "`systemctl restart gpuguard`: no container loses anything by it."
        yield Finding(Gravity.ADVICE, trouble or "whether the daemon works cannot be told", mend)
    elif daemon == "running":
        yield from _about_the_daemon(seen)
    for setting, where in seen.without_effect:
        yield Finding(Gravity.ADVICE, f"the setting {setting} has no effect {where}", "Do not rely on it.")


def _about_the_daemon(seen: Examination) -> Iterator[Finding]:
    versions = seen.versions
    if seen.node is not None and seen.node.mode == "observe":
        observes = "the daemon only observes: nobody gives back what gets lost"
        yield Finding(Gravity.ADVICE, observes, 'Set [guard] mode = "enforce", then `systemctl reload gpuguard`.')
    if versions.daemon is not None and versions.daemon != versions.gpuguard:
        older = f"the daemon is version {versions.daemon}, what is installed is {versions.gpuguard}"
        yield Finding(Gravity.ADVICE, older, "`systemctl restart gpuguard`")
    for source in seen.sources or ():
        if not source.up:
            down = f"the event source {source.name} is down: {source.reason or 'it does not say why'}"
            yield Finding(Gravity.ADVICE, down, _about_source(source.name))
    for trouble in seen.unserved:
        yield Finding(Gravity.ADVICE, trouble, "Prometheus takes that for a node that nobody guards: see [metrics].")
    # On cgroup v2 nothing is given back at the write.
    if seen.standing is not None and seen.standing.scheduling != "rr" and seen.node and seen.node.cgroup == "v1":
        slower = (
            f"on a busy node it takes milliseconds to give back what is lost: {seen.standing.reason or 'unknown why'}"
        )
        yield Finding(Gravity.ADVICE, slower, _about_scheduling(seen.budgets))


def _about_source(name: str) -> str:
    if name in _BUS_SOURCES:
        return f"See whether the bus works: `busctl status`, `systemctl status dbus`. {_STAND_IN}"
    return f"`journalctl -t gpuguard -x` has more. {_STAND_IN}"


def _about_scheduling(budgets: tuple[str, ...]) -> str:
    if not budgets:
        return "`systemctl show -p RestrictRealtime -p CapabilityBoundingSet gpuguard`: it must be allowed SCHED_RR."
    # At each start, since systemd makes the groups anew; "-": one that is refused keeps the daemon from nothing.
    gifts = "; ".join(f"echo {_BUDGET} > {file}" for file in budgets)
    if not any(_UNIT in file for file in budgets):
        return f"As root `{gifts}`, then start the daemon again."
    line = f"ExecStartPre=-+/bin/sh -c {quote(gifts)}"
    edit = "`systemctl edit gpuguard`, which reloads systemd (first see that nothing is at risk)"
    return f"{edit}, there [Service] {line}, then `systemctl restart gpuguard`."


def _about_containers(seen: Examination) -> Iterator[Finding]:
    for container in seen.node.containers if seen.node is not None else ():
        if container.state in _OUTAGES | _DOUBTFUL:
            gravity = Gravity.BROKEN if container.state in _OUTAGES else Gravity.ADVICE
            reason = f": {container.reason}" if container.reason else ""
            advice = f"`gpuguard explain {short_name(container.id)}`"
            yield Finding(gravity, f"{_name(container)} is {container.state.value}{reason}", advice)


def _name(container: ContainerStatus) -> str:
    return container.full_name or f"{container.runtime} {short_name(container.id)}"
