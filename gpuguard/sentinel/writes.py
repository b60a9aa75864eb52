"""cgroup v1: is woken by each write to a scope's device list, and heals before it does anything else."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterable
from typing import NoReturn, Optional

from gpuguard.errors import FanotifyError
from gpuguard.kernel.fanotify import AT_ONCE
from gpuguard.model.process import INIT
from gpuguard.model.write import Watched
from gpuguard.sentinel import dozer
from gpuguard.sentinel.hearing import Hearing
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.losses import Losses
from gpuguard.sentinel.reflex import Answered, Surroundings, answerer
from gpuguard.sentinel.scopes import Scopes
from gpuguard.sentinel.settings import Settings
from gpuguard.sentinel.telling import Teller
from gpuguard.sentinel.timers import Timers
from gpuguard.sentinel.watching import Watching
from gpuguard.sentinel.wire import Awake, Blind, Forget, Ping, Pong, ToSentinel

# Seconds that an answer may wait for quiet.
_PATIENCE = 0.2
# Things done between two looks at what the daemon says, and seconds after which it is heard, whatever else there is.
_STEPS = 32
_ROUND = 0.1
# Seconds between two rounds while losses are expected: code that has just run is in the processor's caches when a loss
# comes, which is healed in half the time then (decision 15).
_STEP = 0.001
# Times in a row that systemd is left alone: somebody may have it rewrite without end.
_MOST_CALM = 256


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
    """The loop: waits, and has what cannot wait done first. Raises FanotifyError where there is no fanotify."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._link = link
        self._scopes = Scopes(settings)
        self._teller = Teller(link, settings.proc)
        self._timers = Timers()
        self._losses = Losses(self._scopes, self._teller, self._timers)
        self._watching = Watching(link, self._scopes, self._losses, self._timers)
        self._hearing = Hearing(self._scopes, self._watching, self._losses, self._teller, self._timers)
        self._pings: list[tuple[float, int]] = []
        self._asked = 0  # the dozer, for what it holds
        self._round_ends = float("inf")
        self._awake_until = 0.0
        self._alert = False
        self._dozer = dozer.start(self._scopes.calm, [link.fileno()])
        self._dozer.setblocking(False)  # noqa: FBT003 - its only argument
        denies = self._scopes.denies
        scopes = self._scopes
        self._reflexes = (
            answerer(
                denies.fileno(),
                scopes.by_key,
                Surroundings(scopes.growing, scopes.allows.fileno(), self._watching.lull, self._reloading),
            )
            if denies.handles
            else _none
        )
        self._poll, self._urgent, self._unread = select.poll(), select.poll(), select.poll()
        self._urgent.register(denies, select.POLLIN)
        for each in (denies, self._scopes.allows):
            self._unread.register(each, select.POLLIN)

    def run(self) -> NoReturn:
        """Go round for ever. Raises DaemonGoneError."""
        poll = self._poll
        for each in (self._scopes.denies, self._scopes.allows, self._link, self._dozer):
            poll.register(each, select.POLLIN)
        on: dict[int, Callable[[], None]] = {
            self._link.fileno(): self._listen,
            self._scopes.allows.fileno(): self._read_allows,
            self._dozer.fileno(): self._doze,
            self._scopes.calm.fileno(): self._read_calm,
        }
        reflexes, growing, calms = self._reflexes, self._scopes.growing, 0
        denies, both = (self._scopes.denies,), (self._scopes.denies, self._scopes.allows)
        while True:
            if self._calm and calms < _MOST_CALM:
                calms += 1
                # Not for the allows of systemd's rewrite: each would wake us in the middle of it.
                heard = both if growing else denies
                select.select(heard, (), (), max(0.0, self._losses.quiet_until - time.monotonic()))
                ready = []
                self._round_ends = time.monotonic() + _ROUND
                self._understand(reflexes())
                if growing:
                    self._read_allows()
                self._listen()
            else:
                calms = 0
                ready = poll.poll(self._patience())
                if ready or self._awake:  # whatever it is: this is what cannot wait
                    self._understand(reflexes())
            self._round_ends = time.monotonic() + _ROUND
            self._attend()
            for fd, _ in ready:
                on.get(fd, self._attend)()
            self._tell()
            if self._pings:
                self._answer()
            poll.modify(self._link, select.POLLIN | (select.POLLOUT if self._link.full else 0))

    @property
    def _calm(self) -> bool:
        """Whether systemd is to be left alone with its rewrite."""
        return time.monotonic() < self._losses.quiet_until

    def _reloading(self) -> bool:
        return time.monotonic() < self._awake_until

    @property
    def _awake(self) -> bool:
        """Whether losses are expected, and nothing but losses."""
        return self._alert and self._reloading()

    def _patience(self) -> Optional[float]:
        """Return how long nothing need be done, in milliseconds; None for ever."""
        times = [deadline for deadline, _ in self._pings[:1]]
        if self._teller.busy:
            times.append(self._losses.quiet_until if self._calm else 0.0)
        if self._awake:
            times.append(time.monotonic() + _STEP)
        if self._timers.next is not None:
            times.append(self._timers.next)
        return max(0.0, 1e3 * (min(times) - time.monotonic())) if times else None

    def _attend(self) -> None:
        """Do what cannot wait: heal, and look again where it is time. Somebody may deny without end."""
        while self._urgent.poll(0) and time.monotonic() < self._round_ends:
            self._understand(self._reflexes())
        self._timers.run()

    def _understand(self, answered: Answered) -> None:
        """Go through what was denied; of systemd's denies the most was done before."""
        read, done = answered
        events = [event for some in read for event in self._scopes.denies.understand(some)]
        # Without handles nothing was; and what could not be read says why.
        found = events or self._scopes.denies.read()
        # Who has written may be gone soon.
        writers = {pid: self._hearing.identify(pid) for _, pid in filter(None, found)}
        for event in found:
            if event is None:
                self._watching.look_at_all()
            else:
                key, pid = event
                self._hearing.denied(key, pid, done.pop(key, None) if pid == INIT else None, writers[pid])

    def _read_allows(self) -> None:
        for event in self._scopes.allows.read():
            if event is None:
                self._watching.look_at_all()
            else:
                self._hearing.allowed(*event)
            self._attend()

    def _read_calm(self) -> None:
        self._go_through(self._scopes.calm.read())

    def _doze(self) -> None:
        """Hear of what could wait."""
        try:
            events = self._dozer.recv(AT_ONCE)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it was killed before it had read what it was asked (unix(7))
            events = b""
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
                self._watching.look_at_all()
                continue
            scope = self._scopes.of_file(event[0])
            if scope is not None and event[0] == scope.keys[0]:
                self._hearing.denied(*event, None, self._hearing.identify(event[1]))
            else:
                self._hearing.allowed(*event)
            self._attend()

    def _tell(self) -> None:
        """Find out who wrote and tell of it, for as long as nothing else is to be done."""
        for _ in range(_STEPS):
            if not self._teller.busy or self._calm or time.monotonic() > self._round_ends:
                break
            self._teller.step()
            self._attend()
            self._read_allows()

    def _listen(self) -> None:
        """Take what the daemon says."""
        self._link.flush()
        for message in self._link.receive():
            self._take(message)
            self._attend()
        # Who is woken in the middle of systemd's rewrite makes it longer, where systemd knows all, for nothing.
        scopes = list(self._scopes)
        self._alert = bool(scopes) and all(scope.first or scope.watched.growing for scope in scopes)

    def _take(self, message: ToSentinel) -> None:
        if isinstance(message, Watched):
            self._watching.watch(message)
        elif isinstance(message, Forget):
            self._watching.forget(message.control_group)
        elif isinstance(message, Awake):
            self._awake_until = time.monotonic() + message.seconds
        else:
            self._read_calm()
            with contextlib.suppress(OSError):  # it is gone, or busy: it is asked in vain for as long as one waits
                self._dozer.send(dozer.ASKED)
                self._asked += 1
            self._pings.append((time.monotonic() + _PATIENCE, message.number))

    def _answer(self) -> None:
        """Answer where nothing is left to do, or it has taken too long."""
        waits = (
            self._asked > 0
            or self._teller.busy
            or any(scope.open or scope.settling or scope.hushed for scope in self._scopes)
            or bool(self._unread.poll(0))
        )
        now = time.monotonic()
        due = [ping for ping in self._pings if not waits or ping[0] <= now]
        self._pings = [ping for ping in self._pings if ping not in due]
        for _, number in due:
            self._link.send(Pong(number))


def _none() -> Answered:
    return [], {}
