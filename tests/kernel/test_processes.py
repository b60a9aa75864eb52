"""Processes as /proc shows them: real ones wherever they can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.kernel import processes
from gpuguard.kernel.processes import Processes
from gpuguard.model.process import Process, Role
from tests.lab.node import Node
from tests.lab.poll import until

PROC = Path("/proc")
SLEEP = shutil.which("sleep") or ""
SHELL = shutil.which("dash") or shutil.which("bash") or ""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: systemctl's socket is root's")
RENAME = """
import sys, time
with open("/proc/self/comm", "wb") as comm:
    comm.write(bytes.fromhex(sys.argv[1]))
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of processes that are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.communicate()


@pytest.fixture
def asker(tmp_path: Path) -> Path:
    """Return a program that the kernel calls systemctl, and that waits."""
    path = tmp_path / "systemctl"
    path.symlink_to(SLEEP)
    return path


def start(running: list[subprocess.Popen[bytes]], *command: str, executable: str = SLEEP) -> int:
    """Start a program under a command line of the caller's and return its number once it runs.

    A program that has just begun has no command line yet. In another directory Python 3.13 does not start it by
    posix_spawn(3), for which it wants a name.
    """
    pipe = subprocess.PIPE
    running.append(subprocess.Popen(command, executable=executable, stdin=pipe, stdout=pipe, cwd="/"))
    pid, path = running[-1].pid, Path(executable).resolve()

    def runs() -> bool:
        return (PROC / f"{pid}/exe").resolve() == path and bool((PROC / f"{pid}/cmdline").read_bytes())

    until(runs, 20, "the start of a program")
    return pid


def renamed(running: list[subprocess.Popen[bytes]], name: bytes) -> int:
    """Start a process that has given itself a name."""
    running.append(subprocess.Popen([sys.executable, "-c", RENAME, name.hex()], stdout=subprocess.PIPE))
    assert running[-1].stdout is not None
    running[-1].stdout.readline()
    return running[-1].pid


def read(pid: int) -> Process:
    """Return a process that is there."""
    found = Processes(PROC).read(pid)
    assert found is not None
    return found


def stat(name: str, parent: int, started: int) -> str:
    """Return the text of /proc/PID/stat."""
    return f"7 ({name}) S {parent} {'0 ' * 17}{started} 0 0\n"


def imitation(
    proc: Path, pid: int, *, comm: str = "x", parent: int = 1, started: int = 10, cgroup: str = "0::/x.service\n"
) -> Processes:
    """Put a process into an imitation of /proc, as no real one can be made to look."""
    texts = {"comm": f"{comm}\n", "stat": stat(comm, parent, started), "cgroup": cgroup, "cmdline": ""}
    links = {f"{who}/ns/{name}": f"{name}:[1]" for who in ("self", str(pid)) for name in ("pid", "user")}
    for directory in {(proc / link).parent for link in links}:
        directory.mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        (proc / str(pid) / name).write_text(content)
    for link, target in {f"{pid}/exe": "/x", **links}.items():
        (proc / link).unlink(missing_ok=True)
        (proc / link).symlink_to(target)
    return Processes(proc)


class TestRead:
    """One process."""

    def test_this_one(self) -> None:
        """Everything is told of one's own process."""
        found = read(os.getpid())
        assert (found.pid, found.parent, found.native) == (os.getpid(), os.getppid(), True)
        assert found.exe == str(Path("/proc/self/exe").readlink())
        assert found.command[0] == (PROC / "self/cmdline").read_bytes().split(b"\0")[0].decode()
        assert found.control_group.startswith("/")

    def test_since_when(self, running: list[subprocess.Popen[bytes]]) -> None:
        """The start is told by the clock, to the tick, and is the same at each look."""
        before = time.time()
        pid = start(running, "sleep", "60")
        started = read(pid).started
        assert started is not None
        assert before - 0.1 < started < time.time() + 0.1
        look = Processes(PROC)
        assert look.read(pid) == look.read(pid)

    def test_since_when_after_the_clock_was_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is told by the clock as it is now."""
        look = Processes(PROC)
        before, now = look.read(os.getpid()), time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        after = look.read(os.getpid())
        assert before is not None
        assert before.started is not None
        assert after is not None
        assert after.started == pytest.approx(before.started + 3600, abs=0.1)

    @pytest.mark.parametrize("pid", [0, -1, -(2**40), 2**22 + 1, 2**40])
    def test_none(self, pid: int) -> None:
        """What is no process's number, 0 that fanotify tells for one that cannot be seen among them, is nobody."""
        assert Processes(PROC).read(pid) is None
        assert Processes(PROC).lineage(pid) == ()

    def test_gone(self, running: list[subprocess.Popen[bytes]]) -> None:
        """One that has ended and was waited for is gone."""
        pid = start(running, "sleep", "60")
        running[0].kill()
        running[0].wait()
        assert Processes(PROC).read(pid) is None

    @pytest.mark.invariant(4)
    def test_one_that_nobody_waited_for(self, running: list[subprocess.Popen[bytes]]) -> None:
        """Of a zombie the name is left, and nothing that would make it a program of the host."""
        pid = start(running, "sleep", "60")
        running[0].kill()
        until(lambda: ") Z " in (PROC / f"{pid}/stat").read_text(), 20, "the end of a process")
        found = read(pid)
        assert (found.name, found.exe, found.command, found.role) == ("sleep", "", (), Role.UNKNOWN)

    def test_a_kernel_thread(self) -> None:
        """It has a name alone."""
        pid = next((int(each.parent.name) for each in PROC.glob("[0-9]*/comm") if each.read_text() == "kthreadd\n"), 0)
        if not pid:
            pytest.skip("no kernel threads to be seen: another pid namespace")
        found = read(pid)
        assert (found.exe, found.command, found.role) == ("", (), Role.UNKNOWN)

    @pytest.mark.parametrize(
        ("raw", "name"),
        [
            (b"a) R 1 (b", "a) R 1 (b"),
            (b"two\nlines\n", "two\nlines\n"),
            (b"\xff\xfe\xe2\x82", "\udcff\udcfe\udce2\udc82"),
            (b"\\ back", "\\ back"),
            (b" ", " "),
            (b"longer than the kernel keeps", "longer than the"),
        ],
    )
    def test_an_odd_name(self, running: list[subprocess.Popen[bytes]], raw: bytes, name: str) -> None:
        """A process names itself as it likes, and is read all the same."""
        found = read(renamed(running, raw))
        assert (found.name, found.parent) == (name, os.getpid())

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("sh", "-c", "read x", ""), ("sh", "-c", "read x", "")),
            (("", "60"), ("", "60")),
            (("a\nb", "60"), ("a\nb", "60")),
            (("\udcff", "60"), ("\udcff", "60")),
            (("sleep", "60", *["0"] * 100), ("sleep", "60", *["0"] * 62)),
            (("sleep", "60", "0" * 8000), ("sleep", "60", "0" * 4087)),
        ],
    )
    def test_an_odd_command_line(
        self, running: list[subprocess.Popen[bytes]], arguments: tuple[str, ...], expected: tuple[str, ...]
    ) -> None:
        """It is told as it is, up to 64 arguments and 4 KiB."""
        executable = SHELL if arguments[0] == "sh" else SLEEP
        assert read(start(running, *arguments, executable=executable)).command == expected

    def test_no_command_line(self, tmp_path: Path) -> None:
        """An empty one is none."""
        found = imitation(tmp_path, 7).read(7)
        assert found is not None
        assert (found.exe, found.command, found.native, found.parent) == ("/x", (), True, 1)

    def test_a_control_group(self, tmp_path: Path) -> None:
        """It is systemd's: on v2 and the hybrid layout the unified one, on v1 the one of its name."""
        for lines, group in (
            ("0::/system.slice/x.service\n", "/system.slice/x.service"),
            ("5:devices:/d\n1:name=systemd:/x.scope\n0::/y.scope\n", "/y.scope"),
            ("5:devices:/d\n1:name=systemd:/x.scope\n0::/\n", "/x.scope"),
            ("5:devices:/d\n1:name=systemd:/x.scope\n", "/x.scope"),
            ("5:devices:/d\n1:name=systemd:/odd:name.scope\n", "/odd:name.scope"),
            ("5:devices:/d\n0::/\n", "/"),
            ("0::/system.slice/x.service (deleted)\n", "/system.slice/x.service"),
            ("", ""),
            ("nonsense\n", ""),
        ):
            found = imitation(tmp_path, 7, cgroup=lines).read(7)
            assert found is not None
            assert found.control_group == group

    @pytest.mark.invariant(4)
    def test_what_may_not_be_read(self, tmp_path: Path) -> None:
        """Where nothing but the name can be read, nothing else is told, and it is nobody's program."""
        look = imitation(tmp_path, 7)
        for name in ("exe", "ns/pid"):
            (tmp_path / "7" / name).unlink()
        found = look.read(7)
        assert found is not None
        assert (found.name, found.exe, found.native, found.role) == ("x", "", False, Role.UNKNOWN)

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("group", ["", "0::/" + "x" * 250 + "/x" * 2000 + "\n"])
    def test_a_control_group_of_any_depth(self, tmp_path: Path, group: str) -> None:
        """Whose group is cut, or cannot be told (ENAMETOOLONG), is no program of the host for certain."""
        found = imitation(tmp_path, 7, cgroup=group).read(7)
        assert found is not None
        assert (found.control_group, found.native, found.role) == ("", False, Role.UNKNOWN)

    def test_own_namespaces_that_may_not_be_read(self, tmp_path: Path) -> None:
        """Who cannot tell its own namespaces shares them with nobody."""
        imitation(tmp_path, 7)
        for name in ("self", "7"):
            (tmp_path / name / "ns/user").unlink()
        found = Processes(tmp_path).read(7)
        assert found is not None
        assert not found.native

    @pytest.mark.invariant(10)
    @pytest.mark.parametrize("where", ["container", "namespace"])
    def test_a_containers_command_line(self, tmp_path: Path, where: str) -> None:
        """Its memory is not read: the reader waits where a page of it is made to fault for as long as one likes."""
        look = imitation(tmp_path, 7, cgroup="0::/docker/1\n" if where == "container" else "0::/x.service\n")
        if where == "namespace":
            (tmp_path / "7/ns/pid").unlink()
            (tmp_path / "7/ns/pid").symlink_to("pid:[2]")
        (tmp_path / "7/cmdline").unlink()
        os.mkfifo(tmp_path / "7/cmdline")
        found = look.read(7)
        assert found is not None
        assert found.command == ()

    @ROOT_ONLY
    def test_whose_it_is(self, running: list[subprocess.Popen[bytes]]) -> None:
        """Its effective user is told while it is there."""
        running.append(subprocess.Popen([SLEEP, "60"], user=65534, group=65534))
        assert (Processes(PROC).user(running[0].pid), Processes(PROC).user(os.getpid())) == (65534, 0)
        assert Processes(PROC).user(2**22 + 1) is None

    @pytest.mark.invariant(10)
    @ROOT_ONLY
    def test_a_users_command_line(self, running: list[subprocess.Popen[bytes]]) -> None:
        """Nor is his: anybody on the host can have a page of his that faults as slowly as he likes."""
        running.append(subprocess.Popen([SLEEP, "60"], user=65534, group=65534))
        until(lambda: read(running[0].pid).name == "sleep", 20, "the start of a program")
        found = read(running[0].pid)
        assert (found.native, found.program, found.command) == (True, "sleep", ())

    def test_one_that_ends_meanwhile(
        self, running: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is gone, and whoever has its number next is not taken for it."""
        pid, look = start(running, "sleep", "60"), Processes(PROC)
        name = look._name

        def end(directory: int) -> str:
            found = name(directory)
            running[0].kill()
            running[0].wait()
            return found

        monkeypatch.setattr(look, "_name", end)
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        assert look.read(pid) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors

    @pytest.mark.parametrize(("times", "name"), [(1, "x1"), (2, "x2"), (100, "x2")])
    def test_one_that_executes_another_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, name: str
    ) -> None:
        """Two programs are not told as one; one that keeps changing its name does not escape by that."""
        look, turns = imitation(tmp_path, 7), iter(range(1, times + 1))
        same = look._same

        def executed(found: Process, directory: int) -> bool:
            turn = next(turns, None)
            if turn is not None:
                (tmp_path / "7/comm").write_text(f"x{turn}\n")
            return same(found, directory)

        monkeypatch.setattr(look, "_same", executed)
        found = look.read(7)
        assert found is not None
        assert found.name == name


class TestLineage:
    """A process and its ancestors."""

    def test_of_this_one(self) -> None:
        """It begins with the process, goes from child to parent, and leaves PID 1 out."""
        line = Processes(PROC).lineage(os.getpid())
        assert line[0].pid == os.getpid()
        assert [each.parent for each in line[:-1]] == [each.pid for each in line[1:]]
        assert all(each.pid > 1 for each in line)

    def test_its_limit(self) -> None:
        """No more are read than are asked for."""
        assert len(Processes(PROC).lineage(os.getpid(), limit=1)) == 1

    def test_of_pid_1(self) -> None:
        """PID 1 is nobody's child that could be asked."""
        assert Processes(PROC).lineage(1) == ()

    def test_a_parent_that_is_younger(self, tmp_path: Path) -> None:
        """A process that has taken the parent's number is no ancestor."""
        look = imitation(tmp_path, 7, parent=6)
        imitation(tmp_path, 6, started=11)
        assert [each.pid for each in look.lineage(7)] == [7]

    @pytest.mark.invariant(10)
    def test_a_loop(self, tmp_path: Path) -> None:
        """Whatever /proc says, the end comes."""
        look = imitation(tmp_path, 7, parent=6)
        imitation(tmp_path, 6, parent=7)
        assert len(look.lineage(7)) == processes._LIMIT


@ROOT_ONLY
class TestRequester:
    """Who is asking systemd."""

    def test_systemctl(self, running: list[subprocess.Popen[bytes]], asker: Path) -> None:
        """It is found with its ancestors."""
        pid = start(running, "systemctl", "60", executable=str(asker))
        line = Processes(PROC).requester(lambda command: command == ("systemctl", "60"), 5)
        assert [each.pid for each in line[:2]] == [pid, os.getpid()]

    def test_the_youngest(self, running: list[subprocess.Popen[bytes]], asker: Path) -> None:
        """Of two that are wanted it is the younger one."""
        start(running, "systemctl", "60", "0", executable=str(asker))
        pid = start(running, "systemctl", "60", "0.0", executable=str(asker))
        start(running, "systemctl", "60", "00", executable=str(asker))
        line = Processes(PROC).requester(lambda command: command[1:] in {("60", "0"), ("60", "0.0")}, 5)
        assert line[0].pid == pid

    def test_an_old_one(
        self, running: list[subprocess.Popen[bytes]], asker: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One whose number is not among those last given is found in the list of all."""
        pid = start(running, "systemctl", "60", "0", executable=str(asker))
        monkeypatch.setattr(Processes, "_last", lambda _: pid - 1)
        line = Processes(PROC).requester(lambda command: command == ("systemctl", "60", "0"), 5)
        assert line[0].pid == pid

    def test_one_of_a_user(self, running: list[subprocess.Popen[bytes]]) -> None:
        """The private socket is root's: a user's program of that name is not looked into."""
        naming = "printf systemctl >/proc/$$/comm; echo; read x"
        running.append(
            subprocess.Popen(
                [SHELL, "-c", naming], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=65534, group=65534
            )
        )
        assert running[0].stdout is not None
        running[0].stdout.readline()
        assert read(running[0].pid).name == "systemctl"
        asked: list[tuple[str, ...]] = []

        def note(command: tuple[str, ...]) -> bool:
            asked.append(command)
            return False

        Processes(PROC).requester(note, 5)
        assert (SHELL, "-c", naming) not in asked

    def test_one_that_is_roots_for_anybody(self, running: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
        """A user can start su(1) by the name and with the arguments of systemctl, and have it wait."""
        path = tmp_path / "systemctl"
        shutil.copy(SLEEP, path)
        path.chmod(0o4755)
        pid = start(running, "systemctl", "60", "0", executable=str(path))
        assert Processes(PROC).requester(lambda command: command == ("systemctl", "60", "0"), 5) == ()
        path.chmod(0o755)
        assert Processes(PROC).requester(lambda command: command == ("systemctl", "60", "0"), 5)[0].pid == pid

    def test_nobody(self) -> None:
        """Nobody is found where nobody is wanted."""
        assert Processes(PROC).requester(lambda _: False, 5) == ()

    @pytest.mark.invariant(10)
    def test_the_budget(self, running: list[subprocess.Popen[bytes]], asker: Path) -> None:
        """No time, no look but the first."""
        start(running, "systemctl", "60", executable=str(asker))
        start(running, "sleep", "60")
        assert Processes(PROC).requester(lambda command: command == ("systemctl", "60"), 0) == ()

    def test_a_thread(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread of that name, as every program with GLib has one, is no process."""
        look = imitation(tmp_path, 7, comm="gdbus")
        (tmp_path / "7/status").write_text("Name:\tgdbus\nTgid:\t6\nUid:\t0\t0\t0\t0\n")
        monkeypatch.setattr(look, "_last", lambda: 7)
        assert look.requester(lambda _: True, 5) == ()
        (tmp_path / "7/status").write_text("Name:\tgdbus\nTgid:\t7\nUid:\t0\t0\t0\t0\n")
        assert [each.pid for each in look.requester(lambda _: True, 5)] == [7]

    def test_an_empty_proc(self, tmp_path: Path) -> None:
        """Nobody is found where there is nothing to read."""
        assert Processes(tmp_path / "none").requester(lambda _: True, 5) == ()

    def test_the_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The numbers below the last that was given come first, then those that were given before they began anew."""
        for pid in (1, 2, 400, 500, 900, 1000):
            (tmp_path / str(pid)).mkdir()
        (tmp_path / "loadavg").write_text("0.00 0.00 0.00 1/1 500\n")
        monkeypatch.setattr(processes, "_NEWEST", 3)
        assert list(Processes(tmp_path)._youngest_first()) == [500, 499, 498, 400, 2, 1000, 900]


@pytest.mark.node
def test_in_a_node(node: Node) -> None:
    """A service's process is told with its unit, on cgroup v1 and v2, and is the host's own from within."""
    node.run(["systemd-run", "--unit=asker", "sleep", "60"])
    pid = node.run(["systemctl", "show", "--property=MainPID", "--value", "asker"]).stdout.strip()
    script = f"from gpuguard.kernel.processes import *; p = Processes(Path('/proc')).read({pid}); print(p.unit, p.role)"
    daemon = node.daemon([sys.executable, "-c", script])
    assert daemon.wait() == 0, daemon.output()
    assert daemon.output().split() == ["asker.service", "Role.HOST"]


def test_who_runs() -> None:
    """A process that asks runs; one that sleeps, or is no more, does not."""
    processes = Processes(Path("/proc"))
    assert processes.runs(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        until(lambda: not processes.runs(sleeper.pid), 20, "it to sleep")
        sleeper.kill()
    assert not processes.runs(sleeper.pid)
