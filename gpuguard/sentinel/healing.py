"""Gives back to a scope what it lacks. Whoever wrote is found out elsewhere, before or after."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuguard.model.process import INIT, Role
from gpuguard.model.purpose import on_purpose
from gpuguard.model.rule import Rule
from gpuguard.model.write import LONGEST_REWRITE
from gpuguard.sentinel.lists import Missing, known
from gpuguard.sentinel.reflex import Reflex
from gpuguard.sentinel.scope import Happening


def after_reflex(happening: Happening, done: Reflex) -> bool:
    """Look at what came of it; return whether the rest is to be looked for again a little later.

    Raises CgroupGoneError, CgroupUnreadableError.
    """
    scope = happening.scope
    happening.before, happening.after = scope.seen, done.found
    lost, left = scope.lacking(done.found).at_once, scope.look()
    happening.restored = lost - left.at_once
    if lost and not left:
        happening.whole_at = done.written_at
    return bool(left.later)


def at_once(happening: Happening) -> bool:
    """Write back what nobody else will; return whether the rest is to be looked for again a little later.

    Raises CgroupGoneError, CgroupUnreadableError.
    """
    scope = happening.scope
    happening.before = scope.seen
    lacking = scope.look()
    happening.after = scope.seen
    if not lacking or not scope.watched.heal or _meant(happening, lacking) or _refused(happening):
        return False
    if lacking.lines:
        lacking = _restore(happening, lacking.at_once, lacking.lines)
    return bool(lacking.later)


def the_rest(happenings: list[Happening], runs: Callable[[int], bool]) -> bool:
    """Look again; write back all that is still missing, and say in each of `happenings` how it went.

    Nothing is written, and True returned, while systemd is still at it: `runs` tells whether a process is running, or
    would if others had not its processor. Raises CgroupGoneError, CgroupUnreadableError.
    """
    first = happenings[0]
    at_work = _by_systemd_lately(happenings) and runs(INIT)  # asked before the list, which it may end meanwhile
    lacking = first.scope.look()
    if lacking and at_work:
        return True
    if lacking and first.scope.watched.heal:
        # systemd's own rewrite counts for nobody.
        by_systemd = [one for one in happenings if one.pid == INIT]
        one = (by_systemd or happenings)[0]
        if not _refused(one):
            lacking = _restore(one, lacking.at_once | lacking.later, lacking.every_line)
    if not lacking:
        whole(happenings)
    return False


def _by_systemd_lately(happenings: list[Happening]) -> bool:
    """Whether systemd may be in the middle of its rewrite: it writes one rule after the other."""
    last = happenings[-1]
    return last.pid == INIT and time.monotonic() - last.at <= LONGEST_REWRITE


def whole(happenings: list[Happening]) -> None:
    """Say that all is there again, as of now."""
    now = time.monotonic()
    for one in happenings:
        if one.whole_at is None:
            one.whole_at = now


def _restore(happening: Happening, rules: frozenset[Rule], lines: tuple[bytes, ...]) -> Missing:
    scope = happening.scope
    refusal = scope.files.write(lines)
    left = scope.look()
    if not left:
        happening.whole_at = time.monotonic()
    happening.error = refusal or happening.error
    happening.restored |= rules - left.at_once - left.later
    if happening.pid != INIT and not happening.counted:
        happening.counted = True
        scope.backoff.repaired(happening.at)
    return left


def _refused(happening: Happening) -> bool:
    """Whether there is a fight with somebody other than systemd, which would go on for ever."""
    if happening.pid == INIT or happening.counted or happening.scope.backoff.may_repair(happening.at):
        return False
    happening.refused = True
    return True


def _meant(happening: Happening, lacking: Missing) -> bool:
    """Whether somebody took single rules away on purpose: that is for the daemon to judge."""
    writer, scope = happening.writer, happening.scope
    if writer is None or writer.role in {Role.SYSTEMD, Role.RUNTIME}:
        return False
    taken = on_purpose(writer, known(happening.before), known(happening.after), scope.entitled)
    if not taken or taken != lacking.at_once | lacking.later:
        return False
    scope.respect(taken)
    return True
