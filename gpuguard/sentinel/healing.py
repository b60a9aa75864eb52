"""Gives back to a scope what it lacks. Whoever wrote is found out elsewhere, before or after."""

from __future__ import annotations

import time

from gpuguard.model.process import Role
from gpuguard.model.revocation import on_purpose
from gpuguard.model.rule import Rule
from gpuguard.sentinel.lists import Missing, known
from gpuguard.sentinel.scope import Happening

_SYSTEMD = 1


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


def the_rest(happenings: list[Happening]) -> None:
    """Look again; write back all that is still missing, and say in each of `happenings` how it went.

    Raises CgroupGoneError, CgroupUnreadableError.
    """
    first = happenings[0]
    lacking = first.scope.look()
    if lacking and first.scope.watched.heal:
        # systemd's own rewrite counts for nobody.
        by_systemd = [one for one in happenings if one.pid == _SYSTEMD]
        one = (by_systemd or happenings)[0]
        if not _refused(one):
            lacking = _restore(one, lacking.at_once | lacking.later, lacking.every_line)
    if not lacking:
        whole(happenings)


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
    if happening.pid != _SYSTEMD and not happening.counted:
        happening.counted = True
        scope.backoff.repaired(happening.at)
    return left


def _refused(happening: Happening) -> bool:
    """Whether there is a fight with somebody other than systemd, which would go on for ever."""
    if happening.pid == _SYSTEMD or happening.counted or happening.scope.backoff.may_repair(happening.at):
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
