"""sd_notify, with real sockets in systemd's place."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Callable

import pytest

from gpuguard.systemd.notify import Notifier

NAME = f"gpuguard-notify-{os.getpid()}"


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    """Return a bound notification socket in the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0{NAME}")
        bound.setblocking(False)  # noqa: FBT003 -- the standard library's own
        yield bound


@pytest.fixture
def notifier(receiver: socket.socket) -> Notifier:
    """Return a notifier that speaks to it."""
    assert receiver
    return Notifier({"NOTIFY_SOCKET": f"@{NAME}"})


def received(receiver: socket.socket) -> list[str]:
    """Return the lines of the next message."""
    return receiver.recv(65536).decode().split("\n")


@pytest.mark.parametrize(
    ("say", "lines"),
    [
        (Notifier.ready, ["READY=1"]),
        (Notifier.stopping, ["STOPPING=1"]),
        (Notifier.watchdog, ["WATCHDOG=1"]),
        (lambda notifier: notifier.status("guarding 3"), ["STATUS=guarding 3"]),
    ],
)
def test_each_message_is_as_systemd_wants_it(
    notifier: Notifier, receiver: socket.socket, say: Callable[[Notifier], bool], lines: list[str]
) -> None:
    """Each call is one datagram with systemd's spelling."""
    assert say(notifier)
    assert received(receiver) == lines


def test_reloading_tells_the_time(notifier: Notifier, receiver: socket.socket) -> None:
    """RELOADING=1 comes with the monotonic clock in microseconds, which systemd compares."""
    assert notifier.reloading()
    first, second = received(receiver)
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 1_000_000


@pytest.mark.parametrize("end", ["\n", "\r\n", "\v", "\x85", "\u2028"])
def test_a_status_stays_one_line(notifier: Notifier, receiver: socket.socket, end: str) -> None:
    """A line break in the text, whatever its kind, cannot smuggle in another field."""
    assert notifier.status(f"bad{end}STOPPING=1{end}")
    [line] = received(receiver)
    assert line == "STATUS=bad STOPPING=1"


def test_a_status_may_hold_anything(notifier: Notifier, receiver: socket.socket) -> None:
    """Text that has no UTF-8 is sent with replacements."""
    assert notifier.status("\udcff ü")
    assert received(receiver) == ["STATUS=? ü"]


def test_a_socket_with_a_path_is_spoken_to(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NOTIFY_SOCKET may be a path, as it is on a real system."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short; pytest's may not be
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("notify")
        assert Notifier({"NOTIFY_SOCKET": "notify"}).ready()
        assert received(bound) == ["READY=1"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/notify"}])
def test_without_a_socket_nothing_happens(environ: dict[str, str]) -> None:
    """Outside systemd, or with a socket that is gone, the answer is False."""
    assert not Notifier(environ).ready()


def test_a_full_socket_does_not_block(notifier: Notifier) -> None:
    """While nobody empties the socket, a message is given up at once."""
    assert not all(notifier.watchdog() for _ in range(10_000))


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "10000000"}, 10.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_interval_is_read(environ: dict[str, str], seconds: float | None) -> None:
    """The interval holds for this process alone, and only when it is a number."""
    assert Notifier(environ).watchdog_interval() == seconds
