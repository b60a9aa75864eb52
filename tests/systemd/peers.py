"""The other ends of a bus for these tests: a real dbus-daemon, a plain client, a minimal systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Optional

from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

SYSTEMD = "org.freedesktop.systemd1"
SYSTEMD_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
DBUS = "org.freedesktop.DBus"

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*" eavesdrop="true"/>
    <allow receive_sender="*" eavesdrop="true"/>
    {policy}
  </policy>
</busconfig>
"""


class BusDaemon:
    """A private dbus-daemon that can be restarted at the same address."""

    def __init__(self, policy: str = "") -> None:
        # Not below pytest's own directory: a socket's path has at most 107 bytes.
        self._dir = Path(tempfile.mkdtemp(prefix="gpuguard-bus-"))
        self._socket = self._dir / "bus"
        self._config = self._dir / "bus.conf"
        self._config.write_text(_CONFIG.format(socket=self._socket, policy=policy))
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.address = f"unix:path={self._socket}"

    def start(self) -> None:
        """Return when it listens."""
        self._socket.unlink(missing_ok=True)
        command = ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nosyslog", "--print-address=1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout
        assert self._process.stdout.readline(), "dbus-daemon did not start"

    def stop(self) -> None:
        """Kill it; its clients see the connection break."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        shutil.rmtree(self._dir)


class Peer:
    """A client of the bus with a blocking socket and a thread that reads: independent of the test's event loop."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address.partition("path=")[2])
        self._stream = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._serial = 0
        self._replies: queue.Queue[Message] = queue.Queue()
        self._socket.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        assert self._stream.readline().startswith(b"OK")
        self._socket.sendall(b"BEGIN\r\n")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.name: str = self.call(DBUS, "/org/freedesktop/DBus", DBUS, "Hello").body[0]

    def send(self, message: Message) -> int:
        """Send any message and return its serial."""
        with self._lock:
            self._serial += 1
            message.serial = self._serial
            self._socket.sendall(encoded(message))
            return self._serial

    def call(
        self, destination: str, path: str, interface: str, member: str, signature: str = "", *body: object
    ) -> Message:
        """Call a method and wait for its reply."""
        self.send(
            Message(
                destination=destination,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=list(body),
            )
        )
        return self._replies.get(timeout=30)

    def handle(self, message: Message) -> None:
        """Take a message that is not a reply."""

    def close(self) -> None:
        """Leave the bus, unless it has been left."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._stream.close()
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                message = Unmarshaller(self._stream).unmarshall()  # type: ignore[no-untyped-call]  # untyped library
            except (OSError, EOFError, ValueError):
                return
            if message.message_type in {MessageType.METHOD_RETURN, MessageType.ERROR}:
                self._replies.put(message)
            else:
                self.handle(message)


Answer = Callable[[Message], Optional[Message]]


class FakeSystemd(Peer):
    """Owns systemd's name and answers what gpuguard asks. `answers` overrides by member; None is no answer ever."""

    def __init__(self, address: str, *, replace: bool = False) -> None:
        self.calls: list[Message] = []
        self.answers: dict[str, Answer] = {}
        self.units: dict[str, dict[str, dict[str, Any]]] = {}
        self.version = "252.39-1~deb12u2"
        super().__init__(address)
        self.call(DBUS, "/org/freedesktop/DBus", DBUS, "RequestName", "su", SYSTEMD, 3 if replace else 1)

    def handle(self, message: Message) -> None:
        """Record a call and answer it."""
        if message.message_type is not MessageType.METHOD_CALL:
            return
        self.calls.append(message)
        answer = self.answers.get(message.member) or getattr(self, f"_{message.member}", None)
        reply = answer(message) if answer else Message.new_error(message, f"{DBUS}.Error.UnknownMethod", "no such")
        if reply:
            self.send(reply)

    def emit(self, member: str, signature: str, *body: object, destination: str = "") -> None:
        """Send one of the manager's signals."""
        self.send(manager_signal(member, signature, *body, destination=destination))

    def called(self, member: str) -> list[Message]:
        """Return the calls of one method so far."""
        return [call for call in self.calls if call.member == member]

    def _Subscribe(self, call: Message) -> Message:  # noqa: N802 -- the methods' own names
        if any(earlier.sender == call.sender for earlier in self.called("Subscribe")[:-1]):
            return Message.new_error(call, f"{SYSTEMD}.AlreadySubscribed", "Client is already subscribed.")
        return Message.new_method_return(call)

    def _Get(self, call: Message) -> Message:  # noqa: N802
        return Message.new_method_return(call, "v", [Variant("s", self.version)])

    def _GetUnit(self, call: Message) -> Message:  # noqa: N802
        [name] = call.body
        if name not in self.units:
            return Message.new_error(call, f"{SYSTEMD}.NoSuchUnit", f"Unit {name} not loaded.")
        return Message.new_method_return(call, "o", [f"{SYSTEMD_PATH}/unit/u{list(self.units).index(name)}"])

    def _GetAll(self, call: Message) -> Message:  # noqa: N802
        name = list(self.units)[int(call.path.rpartition("/u")[2])]
        [interface] = call.body
        return Message.new_method_return(call, "a{sv}", [self.units[name].get(interface.rpartition(".")[2], {})])

    def _SetUnitProperties(self, call: Message) -> Message:  # noqa: N802
        return Message.new_method_return(call)


def manager_signal(member: str, signature: str, *body: object, destination: str = "") -> Message:
    """Return one of the manager's signals, to everybody or to one connection."""
    signal = Message.new_signal(SYSTEMD_PATH, MANAGER, member, signature, list(body))
    signal.serial = 1
    signal.destination = destination
    return signal


def encoded(message: Message) -> bytes:
    """Return a message as bytes."""
    return bytes(message._marshall())  # type: ignore[no-untyped-call]  # untyped library


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Let the event loop run until a condition holds; fail after a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.005)
