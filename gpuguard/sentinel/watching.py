"""Which scopes are listened to: as the daemon says, and as far as it can be done."""

from __future__ import annotations

import time

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, FanotifyError
from gpuguard.model.write import Watched
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.losses import Losses
from gpuguard.sentinel.scope import Scope
from gpuguard.sentinel.scopes import Scopes
from gpuguard.sentinel.timers import Timers
from gpuguard.sentinel.wire import Blind, Overflow

# Seconds without marks for a scope with too many events.
_REST = 1.0
# Seconds that systemd is given for the rest of a rewrite.
_LULL = 0.002
# Seconds until it is tried again where a scope could not be watched.
_RETRY = 10.0


class Watching:
    """Carries the daemon's orders out, and says where it cannot. All of it raises DaemonGoneError."""

    def __init__(self, link: Link, scopes: Scopes, losses: Losses, timers: Timers) -> None:
        self._link = link
        self._scopes = scopes
        self._losses = losses
        self._timers = timers
        self._unwatchable: dict[str, Watched] = {}

    def watch(self, watched: Watched) -> None:
        """Watch a scope from now on, or by new orders, and see what it lacks."""
        scope = self._scopes.named(watched.control_group)
        if scope is not None and scope.watched.inode != watched.inode:
            self._losses.drop(scope)
            scope = None
        try:
            if scope is None:
                scope = self._scopes.open(watched)
            else:
                scope.watch(watched)
                self._scopes.tune(scope)
        except CgroupGoneError:
            self._sighted(watched.control_group)
            return  # the daemon finds that out by itself
        except (CgroupUnreadableError, FanotifyError) as error:
            if scope is not None:
                self._losses.drop(scope)
            self._blind(watched, str(error))
            return
        self._sighted(watched.control_group)
        if not scope.resting:
            self._losses.look(scope)

    def forget(self, control_group: str) -> None:
        """Watch it no more."""
        self._sighted(control_group)
        scope = self._scopes.named(control_group)
        if scope is not None:
            self._losses.drop(scope)

    def look_at_all(self) -> None:
        """Look at everything: the kernel has not told all."""
        self._link.send(Overflow())
        for scope in self._scopes:
            if not scope.resting:
                self._losses.heal_unheard(scope)

    def rest(self, scope: Scope) -> None:
        """Stop listening for a while: whoever writes so often must not have a processor for himself."""
        if scope.closed:
            return
        self._scopes.rest(scope)
        self._link.send(Overflow())
        self._timers.after(_REST, lambda: self._resume(scope))

    def lull(self, scope: Scope) -> None:
        """Let nobody be woken for a moment by what is allowed: systemd writes its list. It is looked at after that.

        Needs handles: without them nobody dozes.
        """
        try:
            self._scopes.hush(scope)
        except FanotifyError:  # it is heard at once, as ever
            return
        scope.lull_ends = time.monotonic() + _LULL
        self._timers.at(scope.lull_ends, lambda: self._end_lull(scope))

    def _resume(self, scope: Scope) -> None:
        if not scope.closed and self._listen(scope):
            self._losses.heal_unheard(scope)

    def _end_lull(self, scope: Scope) -> None:
        if scope.hushed and time.monotonic() >= scope.lull_ends and self._listen(scope):
            self._losses.perhaps_whole(scope)

    def _listen(self, scope: Scope) -> bool:
        """Listen to a scope again, and return whether that is possible."""
        try:
            self._scopes.listen(scope)
        except FanotifyError as error:
            self._losses.drop(scope)
            self._blind(scope.watched, str(error))
            return False
        return True

    def _sighted(self, control_group: str) -> None:
        """Say that all is seen again, if this was the last that was not."""
        if self._unwatchable.pop(control_group, None) is not None and not self._unwatchable:
            self._link.send(Overflow())

    def _blind(self, watched: Watched, why: str) -> None:
        """Say that a scope is not watched, and try again later."""
        self._link.send(Blind(why))
        self._unwatchable[watched.control_group] = watched
        self._timers.after(_RETRY, lambda: self._try_again(watched))

    def _try_again(self, watched: Watched) -> None:
        if self._unwatchable.get(watched.control_group) is watched:
            self.watch(watched)
