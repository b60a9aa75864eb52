"""The process that hears of what can wait. Needs root, and cgroup v1."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest

from gpuguard.kernel.fanotify import Fanotify
from gpuguard.model.write import Watched
from gpuguard.sentinel import dozer as module
from gpuguard.sentinel.dozer import start
from tests.kernel.groups import Groups
from tests.lab.poll import until
from tests.lab.process import children
from tests.model.looks import rules
from tests.sentinel.driven import Driven, driven_here
from tests.sentinel.inside import event

GPU, NULL = "c 195:0 rw", "c 1:3 rwm"


@pytest.fixture
def here(kernel: Groups) -> Iterator[Driven]:
    """Return a sentinel of this machine, which watches a scope of which systemd knows everything."""
    inode = kernel.make(kernel.scope, NULL, GPU)
    with driven_here() as sentinel:
        sentinel.tell(Watched(kernel.named(kernel.scope), inode, declared=rules(GPU)))
        sentinel.caught_up()
        yield sentinel


def deny_all(kernel: Groups) -> None:
    """Have somebody else do it: what the daemon writes, which is this process here, is passed over."""
    subprocess.run(["sh", "-c", f"echo a > {kernel.path(kernel.scope)}/devices.deny"], check=True)


def dozer(sentinel: Driven) -> int:
    """Return its number."""
    (pid,) = children(sentinel.process.pid)
    return pid


def test_takes_no_processor_from_anybody(here: Driven) -> None:
    """It is in the batch class, and the last there."""
    pid = dozer(here)
    until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19, 20, "its nice level")
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH


@pytest.mark.usefixtures("here")
def test_passes_on_what_it_hears(kernel: Groups) -> None:
    """Unasked, and soon."""
    deny_all(kernel)
    until(lambda: kernel.lines(kernel.scope) == [GPU], 20, "the device to be back")


def test_ends_with_the_sentinel(here: Driven) -> None:
    """However that ends; and it does not keep the daemon from seeing that."""
    pid = dozer(here)
    here.process.send_signal(signal.SIGKILL)
    here.process.wait()
    until(lambda: not Path(f"/proc/{pid}").exists() or _zombie(pid), 20, "its end")
    assert here.socket.recv(1) == b""


def test_the_daemon_sees_the_sentinel_s_end(here: Driven) -> None:
    """Also where this process has not come to its own yet."""
    pid = dozer(here)
    os.kill(pid, signal.SIGSTOP)
    try:
        here.process.send_signal(signal.SIGKILL)
        assert here.socket.recv(1) == b""
    finally:
        os.kill(pid, signal.SIGCONT)


def test_is_done_without_when_it_is_gone(here: Driven, kernel: Groups) -> None:
    """The sentinel hears for itself then."""
    os.kill(dozer(here), signal.SIGKILL)
    time.sleep(0.1)
    deny_all(kernel)
    until(lambda: kernel.lines(kernel.scope) == [GPU], 20, "the device to be back")


def test_its_end_before_it_has_read_what_it_was_asked(here: Driven, kernel: Groups) -> None:
    """That is one as well, and does not end the sentinel."""
    pid = dozer(here)
    os.kill(pid, signal.SIGSTOP)
    here.asked()
    os.kill(pid, signal.SIGKILL)
    until(lambda: _zombie(pid), 20, "its end")
    deny_all(kernel)
    until(lambda: kernel.lines(kernel.scope) == [GPU], 20, "the device to be back")


@pytest.mark.parametrize(
    ("pids", "alone"), [((1,), True), ((1, 1), True), ((1, 77), False), ((77, 1), False), ((1, 0), False)]
)
def test_whose_writes_can_wait(pids: tuple[int, ...], alone: bool) -> None:
    """Systemd's alone: others may be gone soon."""
    assert module._all_by_systemd(b"".join(event(pid, b"\x08\0\0\0\xfe\0\0\0" + bytes(8)) for pid in pids)) is alone


def test_gives_systemd_time_and_comes_back_when_it_is_asked() -> None:
    """What was heard before is passed on first."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def doze() -> None:
        with contextlib.suppress(SystemExit):
            module._doze(reader, theirs)

    with ours, theirs:
        thread = threading.Thread(target=doze)
        thread.start()
        try:
            began = time.monotonic()
            os.write(writer, event(1, bytes(16)))
            assert ours.recv(100) == event(1, bytes(16))
            assert time.monotonic() - began >= 0.003
            ours.send(module.ASKED)
            assert ours.recv(100) == module.ASKED
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            thread.join()
    os.close(reader)
    os.close(writer)


def test_where_there_may_be_no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as if it had been killed."""

    def refuse() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    with start(cast("Fanotify", None), ()) as end:
        assert end.recv(10) == b""


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
