"""What a write to a scope's files means: who has denied, who has allowed, and what is to be done about it."""

from __future__ import annotations

import os
import time
from typing import Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.kernel.device_files import GLANCE
from gpuguard.model.process import INIT, Process, Role
from gpuguard.sentinel import healing
from gpuguard.sentinel.losses import Losses
from gpuguard.sentinel.reflex import Reflex
from gpuguard.sentinel.scope import Happening, Scope
from gpuguard.sentinel.scopes import Scopes
from gpuguard.sentinel.telling import Teller
from gpuguard.sentinel.timers import Timers
from gpuguard.sentinel.watching import Watching

# Seconds for whoever allows one rule after the other.
_SETTLE = 0.005
# Seconds after a rewrite in which what systemd allows is the rest of it.
_REWRITE = 1.0


class Hearing:
    """Takes one event after the other. All of it raises DaemonGoneError."""

    def __init__(self, scopes: Scopes, watching: Watching, losses: Losses, teller: Teller, timers: Timers) -> None:
        self._scopes = scopes
        self._watching = watching
        self._losses = losses
        self._teller = teller
        self._timers = timers
        # Itself and the daemon. 0 is a parent outside the pid namespace, as it is any writer there.
        self._own = frozenset({os.getpid(), os.getppid()}) - {0, INIT}

    def identify(self, pid: int) -> Optional[Process]:
        """Return a process that has written, unless it is systemd, which stays."""
        return self._teller.identify(pid) if pid != INIT else None

    def denied(self, key: bytes, pid: int, done: Optional[Reflex] = None, writer: Optional[Process] = None) -> None:
        """Heal what a process has denied, by the key of the file; `done`: what was done about it before."""
        scope = self._scopes.of_file(key)
        if scope is None:
            return
        if pid in self._own:
            self._settle(scope)
            return
        happening = Happening(scope, time.monotonic() if done is None else done.at, denied=True, pid=pid)
        if pid == INIT:
            scope.rewritten_at = happening.at
        else:
            happening.writer = writer
        if done is not None and len(done.found) < GLANCE:
            self._losses.heal(happening, lambda one: healing.after_reflex(one, done))
        else:
            self._losses.heal(happening)
        self._teller.happened(happening)
        if scope.too_many(happening.at, denied=True):
            self._watching.rest(scope)

    def allowed(self, key: bytes, pid: int) -> None:
        """See what a process has allowed, when it has come to its end."""
        scope = self._scopes.of_file(key)
        if scope is None:
            return
        at = time.monotonic()
        if pid != os.getpid():
            self._settle(scope)
        if scope.open or (scope.watched.growing and pid not in self._own):
            self._losses.perhaps_whole(scope)
        if pid not in self._own and pid not in scope.writers:
            rewrites = pid == INIT and at - scope.rewritten_at < _REWRITE
            if not rewrites:
                scope.writers[pid] = self._teller.identify(pid)
        if scope.too_many(at, denied=False):
            self._watching.rest(scope)

    def _settle(self, scope: Scope) -> None:
        if not scope.settling:
            scope.settling, scope.settled = True, scope.seen
            self._timers.after(_SETTLE, lambda: self._settled(scope))

    def _settled(self, scope: Scope) -> None:
        """Tell of what was allowed, and keep the list for the next time."""
        scope.settling = False
        if scope.closed:
            return
        before, writers = scope.settled, scope.writers
        scope.writers = {}
        error = None
        try:
            scope.look()
        except CgroupGoneError:
            self._losses.drop(scope)
            return
        except CgroupUnreadableError as failure:
            error = str(failure)
        at = time.monotonic()
        alone = all(writer is not None and writer.role is Role.HOST for writer in writers.values())
        for pid, writer in writers.items():
            happening = Happening(scope, at, denied=False, pid=pid, writer=writer)
            happening.before, happening.after, happening.error = before, scope.seen, error
            if not alone and writer is not None and writer.role is Role.HOST:
                happening.before = None  # what is new need not be of this one
            self._teller.happened(happening)
            self._teller.over(happening)
