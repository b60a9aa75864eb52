"""A sentinel in a node, told and heard by the test in the daemon's place."""

from __future__ import annotations

import itertools
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Standing, Watched, Write
from gpuguard.sentinel.command import command
from gpuguard.sentinel.wire import Message, Ping, Pong, decode, encode
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.scope import BASICS, Scope

GPU = ("c 195:0 rw", "c 195:255 rw")
DECLARED = (*BASICS, "/dev/char/195:0 rw", "/dev/char/195:255 rw")
_PATIENCE = 30.0  # seconds; far more than is ever needed, since the machine may be busy
_AT_ONCE = 0.2  # seconds, after which it answers whatever it still has to do


class Driven:
    """One running sentinel. Get it by `driven()`."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket) -> None:
        self.process = process
        self.socket = end
        self._lines = end.makefile("rb")
        self._numbers = itertools.count(1)
        self._shells: list[subprocess.Popen[bytes]] = []
        self.heard: list[Message] = []

    def close(self) -> None:
        """End as the daemon ends, and the shells that have written."""
        self._lines.close()
        self.socket.close()
        for shell in self._shells:
            shell.communicate(timeout=_PATIENCE)

    def tell(self, message: Message) -> None:
        """Say something as the daemon would."""
        self.socket.sendall(encode(message))

    def hear(self) -> Message:
        """Wait for the next thing that it says."""
        line = self._lines.readline()
        assert line, "the sentinel has ended"
        message = decode(line)
        self.heard.append(message)
        return message

    def asked(self) -> list[Message]:
        """Ask it once, and return all that it says until it answers."""
        number, said = next(self._numbers), []
        self.tell(Ping(number))
        while (message := self.hear()) != Pong(number):
            said.append(message)
        return said

    def caught_up(self) -> list[Message]:
        """Return all that it says until it has done what it was told: it is asked until it need not put it off."""
        end, said = time.monotonic() + _PATIENCE, list[Message]()
        while True:
            began = time.monotonic()
            said += self.asked()
            if time.monotonic() - began < _AT_ONCE or time.monotonic() > end:
                return said

    def writes(self) -> list[Write]:
        """Return what it tells of writes until it has done what it was told."""
        return [message for message in self.caught_up() if isinstance(message, Write)]

    def watch(
        self, scope: Scope, undeclared: tuple[str, ...] = GPU, declared: tuple[str, ...] = (), *, heal: bool = True
    ) -> Watched:
        """Have a scope watched, and return how."""
        watched = Watched(group(scope), inode(scope), rules(*undeclared), rules(*declared), heal)
        self.tell(watched)
        return watched


@contextmanager
def driven(node: Node, *, max_repairs: int = 5, prefix: Sequence[str] = ()) -> Iterator[Driven]:
    """Start a sentinel in the node, by way of another program perhaps, and wait until it says how it runs."""
    with _driven(lambda end: node.popen([*prefix, *_command(node.mode, max_repairs)], stdin=end)) as sentinel:
        yield sentinel


@contextmanager
def driven_here(*, max_repairs: int = 5) -> Iterator[Driven]:
    """Start one on the machine itself, for control groups that systemd has nothing to do with."""
    argv = _command("v1", max_repairs)
    with _driven(lambda end: subprocess.Popen(argv, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as one:
        yield one


def _command(mode: str, max_repairs: int) -> list[str]:
    cgroup = "/sys/fs/cgroup"
    return command(0, mode=mode, cgroup=cgroup, proc="/proc", max_repairs=max_repairs, window=60.0, pause=30.0)


@contextmanager
def _driven(start: Callable[[int], subprocess.Popen[bytes]]) -> Iterator[Driven]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = start(theirs.fileno())
        theirs.close()
        ours.settimeout(_PATIENCE)
        sentinel = Driven(process, ours)
        try:
            assert isinstance(sentinel.hear(), Standing)
            yield sentinel
        finally:
            sentinel.close()
            process.communicate(timeout=_PATIENCE)


def give(scope: Scope, *lines: str) -> None:
    """Write rules as a runtime's hook does."""
    for line in lines:
        (scope.cgroup / "devices.allow").write_text(line, encoding="ascii")


def rules(*lines: str) -> frozenset[Rule]:
    """Return the rules of these lines."""
    return frozenset(map(Rule.parse, lines))


def listed(scope: Scope) -> RuleSet:
    """Return what the kernel allows the scope."""
    return RuleSet.parse((scope.cgroup / "devices.list").read_text(encoding="ascii"))


def inode(scope: Scope) -> int:
    """Return the inode of a scope's control group."""
    return scope.cgroup.stat().st_ino


def group(scope: Scope) -> str:
    """Return a scope's control group, as systemd names it."""
    return scope.node.run(["systemctl", "show", "--property=ControlGroup", "--value", scope.name]).stdout.strip()


def until_whole(scope: Scope, *lines: str, seconds: float = _PATIENCE) -> float:
    """Wait until a scope has these rules, and return how long that took."""
    began = time.monotonic()
    until(lambda: not listed(scope).missing(rules(*lines)), seconds, f"{lines} in {scope.name}")
    return time.monotonic() - began


def shell(sentinel: Driven, scope: Scope, text: str, prefix: tuple[str, ...] = ()) -> None:
    """Run a shell in the node when what was told to the sentinel is done; in its text $D is the scope's directory.

    It lives on as an admin's, and can be seen.
    """
    sentinel.caught_up()
    text = f"D=/sys/fs/cgroup/devices{group(scope)}; {text}; echo done; read line"
    started = scope.node.popen([*prefix, "sh", "-c", text], stdin=subprocess.PIPE)
    sentinel._shells.append(started)
    assert started.stdout is not None
    assert started.stdout.readline() == b"done\n"


def one(writes: list[Write], *, denied: bool = True) -> Write:
    """Return the only write of this kind."""
    (found,) = [write for write in writes if write.denied is denied]
    return found


def inner(sentinel: Driven) -> int:
    """Return the sentinel's number outside the node."""
    launcher = sentinel.process.pid
    text = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii")
    return int(text.split()[0])


def held(sentinel: Driven) -> tuple[int, int]:
    """Return how many files of scopes it has open, and how many marks it has set."""
    process = Path(f"/proc/{inner(sentinel)}")
    links = [(fd.name, str(fd.readlink())) for fd in (process / "fd").iterdir()]
    infos = [(process / "fdinfo" / fd).read_text(encoding="ascii") for fd, to in links if "fanotify" in to]
    return sum("/devices." in to for _, to in links), sum(info.count("fanotify ino:") for info in infos)
