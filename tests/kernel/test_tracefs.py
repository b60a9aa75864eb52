"""The tracer of this kernel, through a node that has it mounted; and what its lines may look like."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import TraceUnavailableError
from gpuguard.kernel import bpf, tracefs
from gpuguard.kernel.tracefs import LINK_CREATE, PROG_ATTACH, PROG_DETACH, Call, Seen, Trace, parse
from tests.lab import bpf as lab
from tests.lab.node import Node

NOBODY = 65534
# A name is 15 bytes of any kind.
NAMES = st.binary(max_size=15).map(lambda name: name.replace(b"\0", b""))


@pytest.fixture
def root(node_v2: Node) -> Path:
    """Return where the tracer is; skips where its numbers of threads are others than ours."""
    if not tracefs.numbers_are_ours(Path("/proc")):
        pytest.skip("these tests are not in the outermost pid namespace: they would not know their own calls")
    return node_v2.path(tracefs.MOUNTS[0])


@pytest.fixture
def trace(root: Path) -> Iterator[Trace]:
    """Return an instance of our own."""
    with contextlib.closing(Trace(root)) as trace:
        yield trace


def ours(trace: Trace) -> list[int]:
    """Return the commands of this thread's calls that have come: the kernel has other users."""
    return [call.command for call in trace.read().calls if call.thread == threading.get_native_id()]


def refused(command: int, times: int = 1) -> None:
    """Call bpf(2) in vain, as anybody may."""
    libc = ctypes.CDLL(None)
    for _ in range(times):
        libc.syscall(ctypes.c_long(lab._NUMBER), ctypes.c_int(command), None, ctypes.c_size_t(0))


def left(root: Path, pid: int) -> list[Path]:
    """Return the instances of a process."""
    return list((root / "instances").glob(f"gpuguard-*-{pid}"))


def test_who_attaches_and_detaches_is_told(trace: Trace) -> None:
    """Each call once, with the time of the clock that everything else has, and by a descriptor that can be polled."""
    with lab.scratch() as cgroup, lab.program(lab.ALLOW_ALL) as loaded, lab.program(lab.DENY_ALL) as other:
        before = time.monotonic()
        lab.attach(cgroup, loaded.fd)
        poll = select.poll()
        poll.register(trace, select.POLLIN)
        assert poll.poll(20_000)
        calls = [call for call in trace.read().calls if call.thread == threading.get_native_id()]
        assert [call.command for call in calls] == [PROG_ATTACH]
        assert before - 1e-6 <= calls[0].at <= time.monotonic()
        lab.replace(cgroup, loaded.fd, other.fd)
        lab.detach(cgroup, other.fd)
        assert ours(trace) == [PROG_ATTACH, PROG_DETACH]


def test_what_gpuguard_itself_asks_wakes_nobody(trace: Trace) -> None:
    """Queries and programs being read; a program that is only loaded neither."""
    with lab.scratch() as cgroup, lab.program(lab.ALLOW_ALL) as loaded:
        lab.attach(cgroup, loaded.fd)
        assert ours(trace) == [PROG_ATTACH]
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for number in bpf.query(directory, effective=True):
                bpf.program(number)
        finally:
            os.close(directory)
        with lab.program(lab.ALLOW_ALL):
            pass
        assert not ours(trace)


def test_links_are_told(trace: Trace) -> None:
    """Before the kernel has looked at the call, so that one in vain does."""
    refused(LINK_CREATE)
    assert ours(trace) == [LINK_CREATE]


def test_too_many_calls(trace: Trace) -> None:
    """The last ones are kept, and that there were more is told; the next is told as ever."""
    refused(PROG_ATTACH, 5000)
    seen = trace.read()
    assert seen.lost
    assert 0 < len(seen.calls) < 5000
    while trace.read() != Seen():
        pass
    refused(PROG_DETACH)
    assert ours(trace) == [PROG_DETACH]


def test_nothing_is_left_behind(root: Path) -> None:
    """Nor is an instance of somebody else's touched."""
    trace = Trace(root)
    assert left(root, os.getpid()) == [trace.path]
    trace.close()
    assert not left(root, os.getpid())


@contextlib.contextmanager
def holder(root: Path) -> Iterator[int]:
    """Give the number of a process that has an instance; kill it at the end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            trace = Trace(root)
            os.write(writer, str(trace.fileno()).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 20)
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.invariant(7)
def test_what_one_left_that_was_killed_is_removed(root: Path) -> None:
    """By the next start, but not before its end: two daemons on one kernel do not disturb each other."""
    with holder(root) as pid, contextlib.closing(Trace(root)):
        assert left(root, pid)
    assert left(root, pid)
    with contextlib.closing(Trace(root)):
        assert not left(root, pid)


def test_one_that_somebody_looks_into(root: Path) -> None:
    """It cannot be removed: it is idle from then on, and removed by a later start."""
    trace = Trace(root)
    with (trace.path / "trace").open("rb"):
        trace.close()
        assert (trace.path / "events/syscalls/sys_enter_bpf/enable").read_text().strip() == "0"
    tracefs.sweep(root)
    assert not left(root, os.getpid())


def test_a_user_without_privileges(root: Path) -> None:
    """Is told what it takes."""

    def attempt() -> str:
        os.setuid(NOBODY)
        try:
            Trace(root)
        except TraceUnavailableError as error:
            return str(error)
        return ""

    with lab.scratch() as cgroup:
        assert "root is needed" in lab.inside(cgroup, attempt)


def test_no_tracer(tmp_path: Path) -> None:
    """Not mounted; built without system calls; without instances' files; a directory that cannot be written."""
    with pytest.raises(TraceUnavailableError, match="not mounted"):
        tracefs.mount([tmp_path, tmp_path / "debug"])
    (tmp_path / "instances").mkdir()
    assert tracefs.mount([tmp_path / "debug", tmp_path]) == tmp_path
    with pytest.raises(TraceUnavailableError, match="CONFIG_FTRACE_SYSCALLS"):
        Trace(tmp_path)
    (tmp_path / "events/syscalls/sys_enter_bpf").mkdir(parents=True)
    with pytest.raises(TraceUnavailableError, match="No such file"):
        Trace(tmp_path)
    with pytest.raises(TraceUnavailableError, match="No such file"):
        tracefs.sweep(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("line", "call"),
    [
        # Linux 6.18, 5.10; with record-tgid; without irq-info.
        (
            b"         systemd-1       [000] ..... 27211.129118: sys_bpf(cmd: 8, uattr: 7ffe0, size: 90)",
            Call(27211.129118, "systemd", 1, 8),
        ),
        (
            b"     a-b c-9 -77   [011] ....  1.000001: sys_bpf(cmd: 1c, uattr: 0, size: 0)",
            Call(1.000001, "a-b c-9 ", 77, 28),
        ),
        (b"  <...>-4141  ( 4140) [000] d..2. 2.5: sys_bpf(cmd: 0x22, uattr: 0, size: 0)", Call(2.5, "", 4141, 34)),
        (b"  runc-3  (-------) [000] 3.5: sys_bpf(cmd: 0x00000009, uattr: 0x0, size: 0x0)", Call(3.5, "runc", 3, 9)),
    ],
)
def test_lines_of_kernels(line: bytes, call: Call) -> None:
    """As they were seen."""
    assert parse(line + b"\n") == Seen((call,))


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 1 << 22), st.integers(0, 255), st.integers(0, 10**6), st.integers(0, 40)))
)
def test_a_name_forges_nothing(made: list[tuple[bytes, int, int, int, int]]) -> None:
    """Whatever bytes a process has for its name: one call each, of the right thread, with the right number."""
    text = b"".join(
        b"%16s-%-7d [%03d] ..... %5d.000001: sys_bpf(cmd: %x, uattr: 0, size: 0)\n" % (name, thread, cpu, at, command)
        for name, thread, cpu, at, command in made
    )
    found = [(call.thread, call.at, call.command) for call in parse(text).calls]
    assert found == [(thread, float(f"{at}.000001"), command) for _, thread, _, at, command in made]


@given(
    st.binary()
    | st.lists(st.sampled_from([b"CPU:1 [LOST 3 EVENTS]\n", b"-1 [000] ", b"1.5: sys_bpf(cmd: 8,"])).map(b"".join)
)
def test_garbage(text: bytes) -> None:
    """Is passed over."""
    parse(text)


def test_lost() -> None:
    """The kernel says how many, or not."""
    assert parse(b"CPU:1 [LOST 99636 EVENTS]\n") == parse(b"CPU:0 [LOST EVENTS]\n") == Seen(lost=True)
