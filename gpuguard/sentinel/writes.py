"""cgroup v1: is woken by each write to a scope's device list, and heals before it does anything else."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import NoReturn, Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, FanotifyError
from gpuguard.kernel.device_files import GLANCE
from gpuguard.kernel.fanotify import AT_ONCE
from gpuguard.model.process import INIT, Role
from gpuguard.model.write import Watched
from gpuguard.sentinel import dozer, healing
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.lists import unrestricted
from gpuguard.sentinel.reflex import Answered, Reflex, answerer
from gpuguard.sentinel.scope import Happening, Scope
from gpuguard.sentinel.scopes import Scopes
from gpuguard.sentinel.settings import Settings
from gpuguard.sentinel.telling import Teller
from gpuguard.sentinel.timers import Timers
from gpuguard.sentinel.wire import Blind, Forget, Overflow, Ping, Pong, ToSentinel

# Seconds until a rule that systemd has on record is missed: its own rewrite takes less than a tenth of that.
_SECOND_LOOK = 0.002
# Seconds for whoever allows one rule after the other.
_SETTLE = 0.005
# Seconds after a rewrite in which what systemd allows is the rest of it.
_REWRITE = 1.0
# Seconds without marks for a scope with too many events.
_REST = 1.0
# Seconds until it is tried again where a scope could not be watched.
_RETRY = 10.0
# Seconds that an answer may wait for quiet.
_PATIENCE = 0.2
# Things done between two looks at what the daemon says.
_STEPS = 32


def run(link: Link, settings: Settings) -> NoReturn:
    """Heal until the daemon is gone. Raises DaemonGoneError."""
    try:
        loop = Writes(link, settings)
    except FanotifyError as error:
        link.send(Blind(str(error)))
        _answer_only(link)
    loop.run()


def _answer_only(link: Link) -> NoReturn:
    poll = select.poll()
    while True:
        poll.register(link, select.POLLIN | (select.POLLOUT if link.full else 0))
        poll.poll()
        link.flush()
        for message in link.receive():
            if isinstance(message, Ping):
                link.send(Pong(message.number))


class Writes:
    """The loop. Raises FanotifyError where there is no fanotify."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._link = link
        self._scopes = Scopes(settings)
        self._teller = Teller(link, settings.proc)
        self._timers = Timers()
        # Itself and the daemon. 0 is a parent outside the pid namespace, as it is any writer there.
        self._own = frozenset({os.getpid(), os.getppid()}) - {0, INIT}
        self._unwatchable: dict[str, Watched] = {}
        self._pings: list[tuple[float, int]] = []
        self._asked = 0  # the dozer, for what it holds
        self._quiet_until = 0.0  # systemd may be in the middle of a rewrite: nothing is in its way
        self._dozer = dozer.start(self._scopes.calm, [link.fileno()])
        self._dozer.setblocking(False)  # noqa: FBT003 - its only argument
        denies = self._scopes.denies
        self._reflexes = answerer(denies.fileno(), self._scopes.by_key) if denies.handles else _none
        self._poll, self._urgent = select.poll(), select.poll()
        self._urgent.register(denies, select.POLLIN)

    def run(self) -> NoReturn:
        """Go round for ever. Raises DaemonGoneError."""
        poll = self._poll
        for each in (self._scopes.denies, self._scopes.allows, self._link, self._dozer):
            poll.register(each, select.POLLIN)
        on: dict[int, Callable[[], None]] = {
            self._link.fileno(): self._listen,
            self._scopes.allows.fileno(): self._allowed,
            self._dozer.fileno(): self._doze,
            self._scopes.calm.fileno(): self._read_calm,
        }
        reflexes, denies = self._reflexes, (self._scopes.denies,)
        while True:
            if self._calm:
                # Not for the allows of systemd's rewrite: each would wake us in the middle of it.
                select.select(denies, (), (), max(0.0, self._quiet_until - time.monotonic()))
                ready = []
                self._understand(reflexes())
            else:
                ready = poll.poll(self._patience())
                if ready:  # whatever it is: this is what cannot wait
                    self._understand(reflexes())
            self._attend()
            for fd, _ in ready:
                on.get(fd, self._attend)()
            self._tell()
            if self._pings:
                self._answer()
            poll.modify(self._link, select.POLLIN | (select.POLLOUT if self._link.full else 0))

    def _tell(self) -> None:
        """Find out who wrote and tell of it, for as long as nothing else is to be done."""
        for _ in range(_STEPS):
            if not self._teller.busy or self._calm:
                break
            self._teller.step()
            self._attend()
            self._allowed()

    @property
    def _calm(self) -> bool:
        """Whether systemd is to be left alone with its rewrite."""
        return time.monotonic() < self._quiet_until

    def _listen(self) -> None:
        """Take what the daemon says."""
        self._link.flush()
        for message in self._link.receive():
            self._take(message)
            self._attend()

    def _patience(self) -> Optional[float]:
        """Return how long nothing need be done, in milliseconds; None for ever."""
        times = [deadline for deadline, _ in self._pings[:1]]
        if self._teller.busy:
            times.append(self._quiet_until)
        if self._timers.next is not None:
            times.append(self._timers.next)
        return max(0.0, 1e3 * (min(times) - time.monotonic())) if times else None

    def _attend(self) -> None:
        """Do what cannot wait: heal, and look again where it is time."""
        while self._urgent.poll(0):
            self._read_denies()
        self._timers.run()

    def _read_denies(self) -> None:
        """Heal what was denied."""
        self._understand(self._reflexes())

    def _understand(self, answered: Answered) -> None:
        """Go through what was denied; of systemd's denies the most was done before."""
        read, done = answered
        events = [event for some in read for event in self._scopes.denies.understand(some)]
        # Without handles nothing was; and what could not be read says why.
        for event in events or self._scopes.denies.read():
            if event is None:
                self._lost()
            else:
                self._denied(*event, done.pop(event[0], None))

    def _denied(self, key: bytes, pid: int, done: Optional[Reflex]) -> None:
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
            happening.writer = self._teller.identify(pid)
        if done is not None and len(done.found) < GLANCE:
            self._heal(happening, lambda one: healing.after_reflex(one, done))
        else:
            self._heal(happening, healing.at_once)
        self._told_later(happening)

    def _told_later(self, happening: Happening) -> None:
        self._teller.happened(happening)
        if happening.scope.too_many(happening.at, denied=True):
            self._rest(happening.scope)

    def _heal(self, happening: Happening, how: Callable[[Happening], bool]) -> None:
        scope = happening.scope
        try:
            again = how(happening)
        except CgroupGoneError:
            self._drop(scope)
            return
        except CgroupUnreadableError as error:
            happening.error, again = str(error), False
        if again:
            if happening.pid == INIT:
                self._quiet_until = happening.at + _SECOND_LOOK
            scope.open.append(happening)
            self._timers.at(happening.at + _SECOND_LOOK, lambda: self._look_again(scope))
        else:
            self._over([happening])

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
            self._drop(scope)
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

    def _allowed(self) -> None:
        for event in self._scopes.allows.read():
            if event is None:
                self._lost()
            else:
                self._allow(*event)
            self._attend()

    def _read_calm(self) -> None:
        self._go_through(self._scopes.calm.read())

    def _doze(self) -> None:
        """Hear of what could wait."""
        try:
            events = self._dozer.recv(AT_ONCE)
        except BlockingIOError:
            return
        if events == dozer.ASKED:
            self._asked -= 1
        elif events:
            self._go_through(self._scopes.calm.understand(events))
        else:  # it was killed: nothing of that kind is worth to wait for another one
            self._asked = 0
            self._poll.unregister(self._dozer)
            self._poll.register(self._scopes.calm, select.POLLIN)

    def _go_through(self, events: Iterable[Optional[tuple[bytes, int]]]) -> None:
        for event in events:
            if event is None:
                self._lost()
                continue
            scope = self._scopes.of_file(event[0])
            if scope is not None and event[0] == scope.keys[0]:
                self._denied(*event, None)
            else:
                self._allow(*event)
            self._attend()

    def _allow(self, key: bytes, pid: int) -> None:
        scope = self._scopes.of_file(key)
        if scope is None:
            return
        at = time.monotonic()
        if pid != os.getpid():
            self._settle(scope)
        if scope.open or (scope.watched.growing and pid not in self._own):
            self._perhaps_whole(scope)
        if pid not in self._own and pid not in scope.writers:
            rewrites = pid == INIT and at - scope.rewritten_at < _REWRITE
            if not rewrites:
                scope.writers[pid] = self._teller.identify(pid)
        if scope.too_many(at, denied=False):
            self._rest(scope)

    def _perhaps_whole(self, scope: Scope) -> None:
        """See whether systemd has come to the end of its rewrite; what is there now has been seen, whatever comes."""
        try:
            lacking = scope.look()
        except CgroupGoneError:
            self._drop(scope)
            return
        except CgroupUnreadableError:
            return  # the second look tells
        if not lacking:
            happenings, scope.open = scope.open, []
            healing.whole(happenings)
            self._over(happenings)

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
            self._drop(scope)
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

    def _take(self, message: ToSentinel) -> None:
        if isinstance(message, Watched):
            self._watch(message)
        elif isinstance(message, Forget):
            self._sighted(message.control_group)
            scope = self._scopes.named(message.control_group)
            if scope is not None:
                self._drop(scope)
        else:
            self._read_calm()
            with contextlib.suppress(OSError):  # it is gone, or busy: it is asked in vain for as long as one waits
                self._dozer.send(dozer.ASKED)
                self._asked += 1
            self._pings.append((time.monotonic() + _PATIENCE, message.number))

    def _sighted(self, control_group: str) -> None:
        """Say that all is seen again, if this was the last that was not."""
        if self._unwatchable.pop(control_group, None) is not None and not self._unwatchable:
            self._link.send(Overflow())

    def _watch(self, watched: Watched) -> None:
        scope = self._scopes.named(watched.control_group)
        if scope is not None and scope.watched.inode != watched.inode:
            self._drop(scope)
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
            self._blind(watched, str(error))
            return
        self._sighted(watched.control_group)
        if not scope.resting:
            self._look(scope)

    def _blind(self, watched: Watched, why: str) -> None:
        """Say that a scope is not watched, and try again later."""
        self._link.send(Blind(why))
        self._unwatchable[watched.control_group] = watched
        self._timers.after(_RETRY, lambda: self._try_again(watched))

    def _try_again(self, watched: Watched) -> None:
        if self._unwatchable.get(watched.control_group) is watched:
            self._watch(watched)

    def _look(self, scope: Scope) -> None:
        """See what is missing now, for which nobody is to blame; it is given back if it still is after a while."""
        happening = Happening(scope, time.monotonic(), denied=False, before=scope.seen)
        try:
            lacking = scope.look()
        except CgroupGoneError:
            self._drop(scope)
            return
        except CgroupUnreadableError as error:
            happening.error = str(error)
            self._teller.over(happening)
            return
        happening.after = scope.seen
        if lacking and scope.watched.heal:
            scope.open.append(happening)
            self._timers.at(happening.at + _SECOND_LOOK, lambda: self._look_again(scope))

    def _lost(self) -> None:
        """Look at everything: the kernel has not told all."""
        self._link.send(Overflow())
        for scope in self._scopes:
            if not scope.resting:
                self._heal(Happening(scope, time.monotonic(), denied=False), healing.at_once)

    def _rest(self, scope: Scope) -> None:
        """Stop listening for a while: whoever writes so often must not have a processor for himself."""
        self._scopes.rest(scope)
        self._link.send(Overflow())
        self._timers.after(_REST, lambda: self._resume(scope))

    def _resume(self, scope: Scope) -> None:
        if scope.closed:
            return
        try:
            self._scopes.listen(scope)
        except FanotifyError as error:
            self._blind(scope.watched, str(error))
            return
        self._heal(Happening(scope, time.monotonic(), denied=False), healing.at_once)

    def _drop(self, scope: Scope) -> None:
        """Let go of a scope; what is not told of it yet is told as it stands."""
        if not scope.closed:
            self._scopes.drop(scope)
            happenings, scope.open = scope.open, []
            self._over(happenings)

    def _answer(self) -> None:
        """Answer where nothing is left to do, or it has taken too long."""
        waits = self._asked > 0 or self._teller.busy or any(scope.open or scope.settling for scope in self._scopes)
        now = time.monotonic()
        due = [ping for ping in self._pings if not waits or ping[0] <= now]
        self._pings = [ping for ping in self._pings if ping not in due]
        for _, number in due:
            self._link.send(Pong(number))


def _none() -> Answered:
    return [], {}
