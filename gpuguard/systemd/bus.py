"""Method calls on a D-Bus bus: limited in number and time, with gpuguard's own errors."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Optional, TypeVar

from gpuguard.errors import BusError, BusTimeoutError, BusUnavailableError, NoSuchUnitError
from gpuguard.systemd import codec
from gpuguard.systemd.wire import MAX_MESSAGE, Connection, Deliver, Intake, Wanted, open_connection

DBUS = "org.freedesktop.DBus"
DBUS_PATH = "/org/freedesktop/DBus"

# dbus-daemon allows 128 unanswered calls per connection (system.conf, max_replies_per_connection).
IN_FLIGHT = 32
CALL_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0

_MAX_SERIAL = 0xFFFFFFFF

_T = TypeVar("_T")

_ERRORS: dict[str, type[BusError]] = {
    "org.freedesktop.systemd1.NoSuchUnit": NoSuchUnitError,
    "org.freedesktop.DBus.Error.NoReply": BusTimeoutError,
    "org.freedesktop.DBus.Error.Timeout": BusTimeoutError,
    "org.freedesktop.DBus.Error.TimedOut": BusTimeoutError,
    "org.freedesktop.DBus.Error.Disconnected": BusUnavailableError,
    "org.freedesktop.DBus.Error.NameHasNoOwner": BusUnavailableError,
    "org.freedesktop.DBus.Error.ServiceUnknown": BusUnavailableError,
}


class Bus:
    """One connection to the bus at `address`; create it inside the running event loop.

    `on_message` gets every signal and method call that arrives; calls are never answered. `wanted` sees a signal's
    raw header and body first, and what it returns False for costs next to nothing. Messages of more than
    `max_message` bytes are passed over.
    """

    def __init__(
        self,
        address: str,
        on_message: Optional[Deliver] = None,
        wanted: Optional[Wanted] = None,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self.address = address
        self.unique_name = ""
        self._on_message = on_message
        self._intake = Intake(self._receive, wanted, max_message)
        self._connection: Optional[Connection] = None
        self._connecting = asyncio.Lock()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._serial = 0
        self._pending: dict[int, asyncio.Future[codec.Incoming]] = {}

    @property
    def connected(self) -> bool:
        """Whether calls can be made. It turns False by itself when the connection breaks."""
        return bool(self._connection and self.unique_name and not self._connection.lost.done())

    async def connect(self) -> None:
        """Connect unless connected. Raises BusUnavailableError, which names the address."""
        async with self._connecting:
            if self.connected:
                return
            await self.close()
            try:
                await _within(CONNECT_TIMEOUT, self._open(), "no answer")
            except BusUnavailableError:
                raise
            except BusError as error:
                raise BusUnavailableError(f"no D-Bus at {self.address}: {error}") from error
            finally:
                if not self.unique_name:
                    await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight fail with BusUnavailableError."""
        connection, self._connection, self.unique_name = self._connection, None, ""
        if connection:
            await connection.close()

    async def lost(self) -> str:
        """Wait until the connection breaks and return why. Returns at once when there is none."""
        if self._connection is None:
            return "not connected"
        return await asyncio.shield(self._connection.lost)

    async def call(  # noqa: PLR0913, PLR0917 -- the fields of a D-Bus method call
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        *,
        timeout: float = CALL_TIMEOUT,
    ) -> list[Any]:
        """Call a method and return the reply's body, with variants unwrapped.

        `timeout` is in seconds and includes the wait for one of the 32 places. Raises BusTimeoutError when it
        passes, BusUnavailableError when the connection breaks: in both cases the call may have been carried
        out, or may yet be. Raises NoSuchUnitError and BusError for what the peer answers.
        """
        what = f"{interface}.{member} on {destination}"
        exchange = self._exchange(codec.Call(destination, path, interface, member, signature, body))
        reply = await _within(timeout, exchange, f"{what}: no answer within {timeout:g} s; it may yet be carried out")
        if reply.kind == codec.ERROR:
            text = ", ".join(str(item) for item in reply.body)
            error = _ERRORS.get(reply.error, BusError)(f"{what}: {text} ({reply.error})")
            error.name = reply.error
            raise error
        return reply.body

    async def _open(self) -> None:
        self._connection = await open_connection(self.address, self._intake)
        self._connection.lost.add_done_callback(self._fail_pending)
        reply = await self._exchange(codec.Call(DBUS, DBUS_PATH, DBUS, "Hello"))
        [self.unique_name] = reply.body

    async def _exchange(self, call: codec.Call) -> codec.Incoming:
        async with self._slots:
            if self._connection is None:
                raise BusUnavailableError(f"not connected to the D-Bus at {self.address}")
            self._serial = self._serial % _MAX_SERIAL + 1
            serial = self._serial
            answer: asyncio.Future[codec.Incoming] = asyncio.get_running_loop().create_future()
            self._pending[serial] = answer
            try:
                self._connection.send(codec.encode(serial, call))
                return await answer
            finally:
                del self._pending[serial]

    def _receive(self, message: codec.Incoming) -> None:
        if message.reply_to is None:
            if self._on_message:
                self._on_message(message)
            return
        answer = self._pending.get(message.reply_to)
        if answer and not answer.done():
            answer.set_result(message)

    def _fail_pending(self, lost: asyncio.Future[str]) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(BusUnavailableError(f"the connection to {self.address} broke: {lost.result()}"))


async def _within(limit: float, work: Coroutine[Any, Any, _T], failure: str) -> _T:
    # Not asyncio.wait_for: before Python 3.12 it can lose a cancellation that comes together with the result.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=limit)
    finally:
        task.cancel()
    if not task.done():
        raise BusTimeoutError(failure)
    return task.result()
