"""Whether a container is still being started, of real processes in real control groups and of what /proc may say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.kernel.start_phase import StartPhase
from tests.kernel.groups import MOUNT, Groups

_PR_SET_NAME = 15
_MARK = 0x40
RUNC, CRUN = "runc:[2:INIT]", "crun"
PROGRAM = 0x400100


# Its arguments: the cgroup.procs to enter, the name to take, and whether to do so as a fork that executes nothing.
_PROCESS = f"""
import ctypes, os, signal, sys
procs, name, fork = sys.argv[1:]
if fork and (child := os.fork()):
    os.waitpid(child, 0)
    sys.exit()
with open(procs, "w") as file:
    file.write(str(os.getpid()))
ctypes.CDLL(None).prctl({_PR_SET_NAME}, name.encode())
print(os.getpid(), flush=True)
signal.pause()
"""


@contextmanager
def process(directory: Path, called: str, *, executed: bool = False) -> Iterator[None]:
    """Run a process in a control group: one that was forked and no more, or one that has executed a program."""
    arguments = [f"{directory}/cgroup.procs", called, "" if executed else "fork"]
    with subprocess.Popen([sys.executable, "-I", "-c", _PROCESS, *arguments], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)


class TestProcesses:
    """Processes in groups of the kernel's v1 hierarchy."""

    @pytest.fixture
    def scope(self, kernel: Groups) -> Path:
        """Return the directory of a scope; it can be removed when its processes are gone."""
        kernel.path(kernel.scope).mkdir()
        return kernel.path(kernel.scope)

    @pytest.fixture
    def group(self, scope: Path) -> str:
        """Return the scope's name below the mount."""
        return f"/{scope.relative_to(MOUNT)}"

    @pytest.fixture
    def phase(self) -> StartPhase:
        """Return what looks at them."""
        return StartPhase(MOUNT, Path("/proc"))

    @pytest.mark.parametrize("called", [RUNC, "runc:[1:CHILD]", "youki:[2:INIT]", CRUN])
    def test_a_runtimes_init(self, scope: Path, group: str, phase: StartPhase, called: str) -> None:
        """A process that was forked, has a runtime's name and has executed nothing is one that starts a container."""
        with process(scope, called):
            assert phase.starting(group) is True

    def test_in_a_group_below(self, scope: Path, group: str, phase: StartPhase) -> None:
        """The runtime's init is found in a group below the scope, where crun puts it."""
        (scope / "container").mkdir()
        with process(scope / "container", CRUN):
            assert phase.starting(group) is True

    def test_another_fork(self, scope: Path, group: str, phase: StartPhase) -> None:
        """A daemon that forked, or a process that was restored from a checkpoint, is none."""
        with process(scope, "nginx"):
            assert phase.starting(group) is False

    def test_forged(self, scope: Path, group: str, phase: StartPhase) -> None:
        """A container's own program cannot pass for one by its name, nor can what it forks."""
        with process(scope, RUNC, executed=True):
            assert phase.starting(group) is False
            with process(scope, RUNC):
                assert phase.starting(group) is False

    def test_exec(self, scope: Path, group: str, phase: StartPhase) -> None:
        """While something is executed in a running container, its own first process decides."""
        with process(scope, "sleep", executed=True), process(scope, RUNC):
            assert phase.starting(group) is False

    def test_a_hook_in_the_container(self, scope: Path, group: str, phase: StartPhase) -> None:
        """A hook that the runtime's init has started in the group does not end the start."""
        with process(scope, RUNC), process(scope, "ldconfig", executed=True):
            assert phase.starting(group) is True

    def test_a_group_that_is_gone(self, group: str, phase: StartPhase, scope: Path) -> None:
        """Of what is not there nothing can be told."""
        scope.rmdir()
        assert phase.starting(group) is None
        scope.mkdir()


class TestText:
    """What stands in files."""

    @pytest.fixture
    def phase(self, tmp_path: Path) -> StartPhase:
        """Return what looks at files below tmp_path: a group named /x, and a /proc."""
        (tmp_path / "groups/x").mkdir(parents=True)
        (tmp_path / "proc").mkdir()
        (tmp_path / "groups/x/cgroup.procs").touch()
        return StartPhase(tmp_path / "groups", tmp_path / "proc")

    def test_no_processes(self, phase: StartPhase) -> None:
        """An empty group is not starting: its processes are elsewhere, or gone."""
        assert phase.starting("/x") is False

    @pytest.mark.parametrize(
        ("processes", "answer"),
        [
            pytest.param([(5, RUNC, _MARK, 100)], True, id="init"),
            pytest.param([(5, RUNC, PROGRAM, 100)], False, id="the-name-alone"),
            pytest.param([(5, RUNC, PROGRAM | _MARK, 100)], True, id="with-other-marks"),
            pytest.param([(5, "a) R (b", _MARK, 100)], False, id="parentheses"),
            pytest.param([(5, "runc:[2:INIT] ) S 1 (", _MARK, 100)], True, id="parentheses-behind"),
            pytest.param([(9, RUNC, _MARK, 100), (5, "sleep", 0, 101)], True, id="number-wrapped"),
            pytest.param([(9, RUNC, _MARK, 100), (5, "sleep", 0, 100)], False, id="in-one-tick"),
            pytest.param([(5, "", _MARK, 100)], False, id="nameless"),
        ],
    )
    def test_the_first_process_decides(
        self, tmp_path: Path, phase: StartPhase, processes: Sequence[tuple[int, str, int, int]], answer: bool
    ) -> None:
        """The oldest one's mark and name count, whatever the name holds."""
        self._put(tmp_path, processes)
        assert phase.starting("/x") is answer

    @pytest.mark.invariant(1)
    def test_the_noted_one_decides(self, tmp_path: Path, phase: StartPhase) -> None:
        """Where the runtime has noted the first process another one that poses as such says nothing."""
        self._put(tmp_path, [(7, "python3", 0, 100)], listed=False)
        self._put(tmp_path, [(5, RUNC, _MARK, 101)])
        assert [phase.starting("/x", first) for first in (None, 7, 5, 4)] == [True, False, True, False]

    def test_crun_from_memory(self, tmp_path: Path, phase: StartPhase) -> None:
        """A crun that runs from a copy of itself may be named by a number; its executable tells."""
        self._put(tmp_path, [(5, "6", _MARK, 100)])
        (tmp_path / "proc/5/exe").symlink_to("/memfd:crun_cloned:/proc/self/exe (deleted)")
        assert phase.starting("/x") is True

    def test_one_that_has_just_ended(self, tmp_path: Path, phase: StartPhase) -> None:
        """A process that is gone before it is looked at does not count."""
        self._put(tmp_path, [(5, RUNC, _MARK, 100)])
        (tmp_path / "groups/x/cgroup.procs").write_text("4\n5\n")
        assert phase.starting("/x") is True

    def test_many(self, tmp_path: Path, phase: StartPhase) -> None:
        """A group of very many processes is a container that runs; they are not all looked at."""
        (tmp_path / "groups/x/cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(1, 2000)))
        self._put(tmp_path, [(pid, RUNC, _MARK, 100) for pid in range(1, 100)], listed=False)
        assert phase.starting("/x") is False

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("stat", [b"", b"garbage", b"5 (runc:[2:INIT])", b"\xff\xfe", None])
    def test_unreadable(self, tmp_path: Path, phase: StartPhase, stat: Optional[bytes]) -> None:
        """What makes no sense, and a process outside of the pid namespace, mean: it cannot be told."""
        if stat is None:
            (tmp_path / "groups/x/cgroup.procs").write_text("0\n")
        else:
            self._put(tmp_path, [(5, RUNC, _MARK, 100)])
            (tmp_path / "proc/5/stat").write_bytes(stat)
        assert phase.starting("/x") is None

    @staticmethod
    def _put(root: Path, processes: Sequence[tuple[int, str, int, int]], *, listed: bool = True) -> None:
        for pid, called, flags, started in processes:
            (root / f"proc/{pid}").mkdir()
            rest = ["S", "1", "1", "1", "0", "-1", str(flags), *["0"] * 12, str(started), "0"]
            (root / f"proc/{pid}/stat").write_text(f"{pid} ({called}) {' '.join(rest)}\n")
        if listed:
            (root / "groups/x/cgroup.procs").write_text("".join(f"{pid}\n" for pid, *_ in processes))
