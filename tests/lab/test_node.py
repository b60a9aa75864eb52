"""The node is a real systemd, harms nothing outside, and goes without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.errors import LabError
from tests.lab.fixtures import need_node
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.process import identify
from tests.lab.record import BASE
from tests.lab.supervision import ROOT, reap

pytestmark = pytest.mark.node


def traces(name: str) -> list[str]:
    """Everything on this machine that belongs to the node `name`: groups, processes, mounts and files."""
    found = [str(path) for path in (BASE / name, BASE / f".new-{name}") if path.exists()]
    for top in Path("/sys/fs/cgroup").iterdir() if Path("/sys/fs/cgroup").exists() else ():
        found += [path for path, _, _ in os.walk(top) if path.endswith(f"/lab-{name}")]
    for process in Path("/proc").glob("[0-9]*"):
        for file in ("cgroup", "cmdline", "mountinfo"):
            try:
                text = (process / file).read_bytes()
            except OSError:  # it ended meanwhile
                continue
            words = text.replace(b"\0", b" ").replace(b"/", b" ").split()
            if process.name != str(os.getpid()) and {name.encode(), b"lab-" + name.encode()} & set(words):
                found.append(f"{process.name} {file}")
    return found


@pytest.fixture(autouse=True)
def _able() -> None:
    need_node("v1")


@contextmanager
def owner(**environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that boots a node and waits; give it and the node's name."""
    script = "import time; from tests.lab.node import Node; print(Node.boot().name, flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        try:
            assert said.startswith("v1-"), said + process.stdout.read()
            yield process, said
        finally:
            process.kill()


def test_systemd_is_its_first_process(node_v1: Node) -> None:
    """PID 1 of the node is systemd, and the system has started in full."""
    assert node_v1.run(["cat", "/proc/1/comm"]).stdout.strip() == "systemd"
    assert node_v1.run(["systemctl", "is-system-running"]).stdout.strip() == "running"


def test_bus_and_journal_work(node_v1: Node) -> None:
    """The manager answers on the system bus, and the journal keeps what is logged."""
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    assert node_v1.run(["busctl", "get-property", *manager, "SystemState"]).stdout == 's "running"\n'
    node_v1.run(["systemd-cat", "--identifier=lab", "echo", "noted"])
    node_v1.run(["journalctl", "--sync"])
    assert node_v1.run(["journalctl", "--identifier=lab", "--output=cat"]).stdout == "noted\n"


def test_nothing_happens_by_itself(node_v1: Node) -> None:
    """No timer and no service of the machine runs in the node, so that no package reloads systemd during a test."""
    timers = node_v1.run(["systemctl", "list-timers", "--no-legend"]).stdout
    running = node_v1.run(["systemctl", "list-units", "--type=service", "--state=running", "--plain", "--no-legend"])
    assert timers == ""
    assert {line.split()[0] for line in running.stdout.splitlines()} <= {
        "dbus.service",
        "dbus-broker.service",
        "systemd-journald.service",
    }


def test_machine_is_left_alone(node_v1: Node) -> None:
    """Files, host name, mounts and kernel settings of the machine stay as they are, whatever is done in the node."""
    mounts = Path("/proc/self/mountinfo").read_text()
    node_v1.run(["sh", "-c", "echo changed > /etc/hostname; mkdir /srv/mine; mount -t tmpfs mine /srv/mine"])
    refused = node_v1.run(["sh", "-c", "echo 1 > /proc/sys/vm/overcommit_memory"], check=False)
    assert node_v1.run(["hostname"]).stdout.strip() != os.uname().nodename
    assert not Path("/srv/mine").exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert "Read-only file system" in refused.stderr
    node_v1.run(["umount", "/srv/mine"])


def test_two_at_once_know_nothing_of_each_other() -> None:
    """Two nodes run side by side: a unit and a file of one are not in the other."""
    with Node.boot() as one, Node.boot() as two:
        one.run(["touch", "/root/of-one"])
        scope = one.scope()
        assert one.name != two.name
        assert not two.path("/root/of-one").exists()
        assert two.run(["systemctl", "is-active", scope.name], check=False).stdout.strip() == "inactive"


def test_a_name_is_taken_once() -> None:
    """A second node cannot take a name that is in use, and the first is none the worse for the attempt."""
    with Node.boot() as node:
        with pytest.raises(LabError, match="is taken"):
            Node.boot(name=node.name)
        assert node.run(["true"]).returncode == 0


@pytest.mark.parametrize("mode", ["v1", "v2"])
def test_down_leaves_no_trace(mode: str) -> None:
    """After `down` there is no process, group, mount or file of the node, whatever ran in it."""
    need_node(mode)
    node = Node.boot(mode)
    node.scope()
    node.daemon(["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
    assert len(traces(node.name)) > 10
    node.down()
    assert traces(node.name) == []


def test_an_exception_leaves_no_trace() -> None:
    """A node in a `with` block is gone after an exception in it, and the exception goes on."""
    names = []
    with pytest.raises(RuntimeError, match="a failed test"), Node.boot() as node:  # noqa: PT012
        names.append(node.name)
        raise RuntimeError("a failed test")
    assert traces(names[0]) == []


def test_a_failed_boot_says_why_and_leaves_no_trace(tmp_path: Path) -> None:
    """Booting a root file system without systemd is an error that says so, and nothing stays behind."""
    (tmp_path / "proc").mkdir()
    with pytest.raises(LabError, match="has no systemd"):
        Node.boot(rootfs=str(tmp_path), name="no-systemd")
    assert traces("no-systemd") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_node_ends_with_its_owner(number: int) -> None:
    """When the process that booted a node is ended by a signal, its node goes by itself, without a trace."""
    with owner() as (process, name):
        process.send_signal(number)
        process.wait(40)
        until(lambda: not traces(name), 40, f"the end of node {name}")


def test_reap_removes_what_a_killed_keeper_left(tmp_path: Path) -> None:
    """When even the process that removes nodes is killed, the next `reap` removes the node."""
    base = {"GPUGUARD_LAB_DIR": str(tmp_path / "lab")}  # out of reach of the reaping that other tests do
    with owner(**base) as (process, name):
        keeper = json.loads((tmp_path / "lab" / name / "record.json").read_text())["keeper"]["pid"]
        os.kill(keeper, signal.SIGKILL)
        process.kill()
        process.wait(40)
        until(lambda: identify(keeper) is None, 40, "the end of the keeper")
        assert traces(name)
        reaped = subprocess.run(
            [sys.executable, "-m", "tests.lab", "reap"],
            cwd=ROOT,
            env={**os.environ, **base},
            capture_output=True,
            text=True,
            check=True,
        )
    assert reaped.stdout == f"{name} removed\n"
    until(lambda: not traces(name), 40, f"the end of node {name}")
    assert not (tmp_path / "lab").exists()


def test_reap_leaves_living_nodes_alone(node_v1: Node) -> None:
    """A node whose keeper lives is not reaped."""
    assert node_v1.name not in reap()
    assert node_v1.run(["true"]).returncode == 0


def test_run_reports_a_failure_with_what_was_said(node_v1: Node) -> None:
    """A failing program raises an error with its status and complaint; without `check` the caller is to judge."""
    with pytest.raises(LabError, match="status 3: wrong"):
        node_v1.run(["sh", "-c", "echo wrong >&2; exit 3"])
    assert node_v1.run(["sh", "-c", "exit 3"], check=False).returncode == 3


def test_run_ends_what_takes_too_long(node_v1: Node) -> None:
    """A program that is out of time is killed, in the node too."""
    with pytest.raises(LabError, match="did not end within"):
        node_v1.run(["sleep", "4242"], timeout=0.5)
    until(lambda: "4242" not in node_v1.run(["ps", "ax"]).stdout, 30, "the end of the program")


def test_run_hands_over_input_and_environment(node_v1: Node) -> None:
    """A program gets the input and the variables that it was given, and none of the machine's."""
    done = node_v1.run(["sh", "-c", "cat; env"], stdin=b"given ", env={"MINE": "1"})
    assert done.stdout.startswith("given ")
    assert "MINE=1" in done.stdout
    assert "PYTEST_CURRENT_TEST" not in done.stdout


def test_share_shows_a_directory_read_only(node_v1: Node, tmp_path: Path) -> None:
    """A shared directory of the machine is seen live in the node and cannot be written there."""
    node_v1.share(tmp_path, "/srv/shared")
    (tmp_path / "late").write_text("seen")
    assert node_v1.path("/srv/shared/late").read_text() == "seen"
    assert "Read-only" in node_v1.run(["touch", "/srv/shared/mine"], check=False).stderr
    node_v1.run(["umount", "/srv/shared"])


def test_source_tree_runs_in_the_node(node_v1: Node) -> None:
    """This interpreter and this source tree work in the node, under the paths that they have outside."""
    done = node_v1.run(
        [sys.executable, "-c", "import gpuguard; print(gpuguard.__file__)"], env={"PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.strip() == str(ROOT / "gpuguard/__init__.py")


def test_daemon_keeps_output_and_status(node_v1: Node) -> None:
    """A daemon's output is there while it runs and after, and so is its status when it heeds SIGTERM."""
    script = "trap 'echo bye; exit 7' TERM; echo hello $WHO; while :; do sleep 0.05; done"
    daemon = node_v1.daemon(["sh", "-c", script], env={"WHO": "world"})
    daemon.await_output("hello world")
    assert daemon.returncode is None
    assert daemon.stop() == 7
    assert daemon.output() == "hello world\nbye\n"


def test_daemon_can_be_killed(node_v1: Node) -> None:
    """A killed daemon has no time for last words, and reports the signal."""
    daemon = node_v1.daemon(["sh", "-c", "trap 'echo bye' EXIT TERM; echo up; while :; do sleep 0.05; done"])
    daemon.await_output("up")
    daemon.kill()
    assert daemon.returncode == -signal.SIGKILL
    assert daemon.output() == "up\n"


def test_daemon_that_ends_early_is_an_error(node_v1: Node) -> None:
    """Waiting for the output of a daemon that has ended fails at once and shows what it did say."""
    daemon = node_v1.daemon(["sh", "-c", "echo no luck; exit 5"])
    started = time.monotonic()
    with pytest.raises(LabError, match=r"status 5.*no luck"):
        daemon.await_output("never", timeout=60)
    assert time.monotonic() - started < 30


def test_scope_is_restricted_as_asked(node_v1: Node) -> None:
    """A bare scope has the rules of its DeviceAllow in the kernel's list and nothing more, and ends without a trace."""
    scope = node_v1.scope(device_allow=["/dev/null rw", "/dev/char/195:0 rw"])
    rules = (scope.cgroup / "devices.list").read_text().splitlines()
    assert {"c 1:3 rw", "c 195:0 rw"} <= set(rules)
    assert not [rule for rule in rules if rule.startswith(("a", "c 195:1 ", "c *:* r"))]
    assert scope.pid in map(int, (scope.cgroup / "cgroup.procs").read_text().split())
    scope.stop()
    assert node_v1.run(["systemctl", "is-active", scope.name], check=False).stdout.strip() == "inactive"


def test_cgroup_of_a_dead_unit_is_an_error(node_v1: Node) -> None:
    """Asking for the control group of a unit that does not run says so."""
    with pytest.raises(LabError, match="no control group"):
        node_v1.cgroup("none-such.scope")


def test_v2_node_has_one_hierarchy() -> None:
    """A v2 node has the unified hierarchy alone, and its units are found in it."""
    need_node("v2")
    with Node.boot("v2") as node:
        kinds = node.run(["findmnt", "--noheadings", "--output=FSTYPE", "--types=cgroup,cgroup2"]).stdout.split()
        assert kinds == ["cgroup2"]
        scope = node.scope()
        assert scope.pid in map(int, (scope.cgroup / "cgroup.procs").read_text().split())
