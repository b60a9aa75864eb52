"""What a scope has lost: given back, looked for again a little later, and told when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.model.process import INIT
from gpuguard.sentinel import healing
from gpuguard.sentinel.lists import unrestricted
from gpuguard.sentinel.scope import Happening, Scope
from gpuguard.sentinel.scopes import Scopes
from gpuguard.sentinel.telling import Teller
from gpuguard.sentinel.timers import Timers

# Seconds until a rule that systemd has on record is missed: its own rewrite takes less than a tenth of that.
_SECOND_LOOK = 0.002


class Losses:
    """Follows each from the write to its end. All of it raises DaemonGoneError."""

    def __init__(self, scopes: Scopes, teller: Teller, timers: Timers) -> None:
        self._scopes = scopes
        self._teller = teller
        self._timers = timers
        # systemd may be in the middle of a rewrite until then: nothing is in its way.
        self.quiet_until = 0.0

    def heal(self, happening: Happening, how: Callable[[Happening], bool] = healing.at_once) -> None:
        """Give back what is missing, and look again where systemd may be about to write the rest."""
        scope = happening.scope
        try:
            again = how(happening)
        except CgroupGoneError:
            self.drop(scope)
            return
        except CgroupUnreadableError as error:
            happening.error, again = str(error), False
        if again:
            if happening.pid == INIT:
                self.quiet_until = happening.at + _SECOND_LOOK
            self._open(happening)
        else:
            self._over([happening])

    def heal_unheard(self, scope: Scope) -> None:
        """Give back what is missing where nobody has heard who wrote."""
        self.heal(Happening(scope, time.monotonic(), denied=False))

    def look(self, scope: Scope) -> None:
        """See what is missing now, for which nobody is to blame; it is given back if it still is after a while."""
        happening = Happening(scope, time.monotonic(), denied=False, before=scope.seen)
        try:
            lacking = scope.look()
        except CgroupGoneError:
            self.drop(scope)
            return
        except CgroupUnreadableError as error:
            happening.error = str(error)
            self._teller.over(happening)
            return
        happening.after = scope.seen
        if lacking and scope.watched.heal:
            self._open(happening)

    def perhaps_whole(self, scope: Scope) -> None:
        """See whether systemd has come to the end of its rewrite; what is there now has been seen, whatever comes."""
        try:
            lacking = scope.look()
        except CgroupGoneError:
            self.drop(scope)
            return
        except CgroupUnreadableError:
            return  # the second look tells
        if not lacking:
            happenings, scope.open = scope.open, []
            healing.whole(happenings)
            self._over(happenings)

    def drop(self, scope: Scope) -> None:
        """Let go of a scope; what is not told of it yet is told as it stands."""
        if not scope.closed:
            self._scopes.drop(scope)
        happenings, scope.open = scope.open, []
        self._over(happenings)

    def _open(self, happening: Happening) -> None:
        """Have a second look taken."""
        scope = happening.scope
        scope.open.append(happening)
        self._timers.at(happening.at + _SECOND_LOOK, lambda: self._look_again(scope))

    def _look_again(self, scope: Scope) -> None:
        """Take the second look, unless all was found to be there already, or a later write has its own to come."""
        if not scope.open or scope.closed or time.monotonic() < scope.open[-1].at + _SECOND_LOOK:
            return
        happenings, scope.open = scope.open, []
        try:
            if healing.the_rest(happenings, self._teller.runs):
                scope.open = happenings + scope.open
                self._timers.after(_SECOND_LOOK, lambda: self._look_again(scope))
                return
        except CgroupGoneError:
            self.drop(scope)
            return
        except CgroupUnreadableError as error:
            happenings[0].error = str(error)
        self._over(happenings)

    def _over(self, happenings: list[Happening]) -> None:
        """Have them told, if something came of it: some programs empty a file before they write it; not systemd."""
        for one in happenings:
            changed = one.before != one.after
            # A scope that allows by default shows nothing of what it denies to the container's group below it.
            told = one.denied and (one.pid == INIT or unrestricted(one.after))
            if told or (changed and (one.denied or one.refused)) or one.restored or one.error:
                self._teller.over(one)
