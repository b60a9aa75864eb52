"""Keeps the sentinel process alive, tells it what to watch, and hands on what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable
from typing import Optional, Union

from gpuguard.errors import SentinelError
from gpuguard.model.rule import Rule
from gpuguard.model.write import NOT_RUNNING, ProgramsChanged, Standing, Watched, Write
from gpuguard.sentinel.wire import LONGEST, Awake, Blind, Forget, Message, Overflow, Ping, Pong, decode, encode

# The name of the source, for the metrics and the journal.
SENTINEL = "sentinel"

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 60.0
# One that lived for so long in seconds did not fail because of how it is started.
_LIVED = 10.0
_ANSWER = 0.25
# Seconds after which one that has not answered since is held for one that hangs.
_SILENCE = 10.0
_PARTING = 2.0
# Messages that are taken before others have their turn in the loop: some thousand may be there at once.
_IN_A_ROW = 64
# What may wait to be sent to it, in bytes: the orders for some thousand scopes.
_MAX_UNSENT = 8 << 20

Told = Union[Standing, Write, ProgramsChanged, Overflow]


class Sentinel:
    """The sentinel as the guard sees it. What it is told to watch is kept, and told again to one that is new.

    `command` returns the arguments that start it with its end of the socket. Until run() nothing is started and
    nothing is told.
    """

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self._command = command
        self._watched: dict[str, Watched] = {}
        self._writer: Optional[asyncio.StreamWriter] = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._silent_since: Optional[float] = None
        self._awake_until = 0.0

    def watch(self, watched: Watched) -> None:
        """Have a scope watched, and what is to be given back there; the same again costs nothing."""
        if self._watched.get(watched.control_group) != watched:
            self._watched[watched.control_group] = watched
            self._send(watched)

    def watches(self, control_group: str) -> bool:
        """Whether a scope is to be watched."""
        return control_group in self._watched

    def forget(self, control_group: str) -> None:
        """Have a scope watched no more."""
        if self._watched.pop(control_group, None) is not None:
            self._send(Forget(control_group))

    def awake(self, seconds: float) -> None:
        """Have it expect losses for so many seconds from now; 0: no more."""
        self._awake_until = time.monotonic() + seconds
        self._send(Awake(seconds))

    def declared(self, control_group: str) -> frozenset[Rule]:
        """Return what of a scope it was last told that systemd writes itself."""
        watched = self._watched.get(control_group)
        return frozenset() if watched is None else watched.declared

    async def caught_up(self) -> None:
        """Wait, but not for long, until all that it has seen is handed on and all that it was told is done.

        One that has been asked in vain for a while is ended, and another takes its place.
        """
        if self._writer is None or self._writer.is_closing():
            return
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(Ping(number))
        try:
            await asyncio.wait([answer], timeout=_ANSWER)
        finally:
            self._waiting.pop(number, None)
        if not answer.done():
            self._unanswered(time.monotonic())

    def _unanswered(self, now: float) -> None:
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > _SILENCE and self._writer is not None:
            self._writer.transport.abort()

    async def run(self, tell: Callable[[Told], None], up: Callable[[], None], down: Callable[[str], None]) -> None:
        """Keep one running until cancelled. `tell` takes what it says; none of the three may raise."""
        pause, loop = _FIRST_PAUSE, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._session(tell, up, down)
            except (OSError, SentinelError) as error:
                down(str(error))
            else:
                down("it has ended")
            tell(Standing(NOT_RUNNING))
            if loop.time() - began > _LIVED:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _session(self, tell: Callable[[Told], None], up: Callable[[], None], down: Callable[[str], None]) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
            theirs.close()
            try:
                reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST)
                for watched in self._watched.values():
                    self._send(watched)
                if (left := self._awake_until - time.monotonic()) > 0:
                    self._send(Awake(left))
                await self._listen(reader, tell, up, down)
            finally:
                await self._end(process)

    async def _listen(
        self,
        reader: asyncio.StreamReader,
        tell: Callable[[Told], None],
        up: Callable[[], None],
        down: Callable[[str], None],
    ) -> None:
        blind = False
        for number in itertools.count(1):
            if number % _IN_A_ROW == 0:
                await asyncio.sleep(0)
            try:
                line = await reader.readline()
            except ValueError as error:  # longer than the limit
                raise SentinelError(f"it says more than can be: {error}") from error
            if not line:
                return
            message = decode(line)
            if isinstance(message, Blind):
                blind = True
                down(message.reason)
            elif isinstance(message, Pong):
                self._answered(message)
            elif isinstance(message, (Standing, Write, ProgramsChanged, Overflow)):
                if isinstance(message, Standing) or (blind and isinstance(message, Overflow)):
                    blind = False
                    up()
                tell(message)

    def _answered(self, pong: Pong) -> None:
        self._silent_since = None
        answer = self._waiting.get(pong.number)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _send(self, message: Message) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT:
            self._writer.transport.abort()  # it hangs: a new one is told everything
            return
        self._writer.write(encode(message))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Let go of it: it ends by itself when the socket does. One that does not is killed.

        One that even then does not end, as the kernel holds it, is waited for by nobody.
        """
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        self._silent_since = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)
        # Not asyncio.wait_for: before Python 3.12 it can lose a cancellation that comes together with the result.
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait([ended], timeout=_PARTING)
        finally:  # also at a stop that comes meanwhile
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.wait([ended], timeout=_PARTING)
                ended.cancel()
