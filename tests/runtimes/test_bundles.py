"""Which specification is believed to be a container's: made files of root's, and a made /proc."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any, Optional

import pytest

from gpuguard.errors import GpuguardError, RuntimeFileError, RuntimeFileUnreadableError, RuntimeRunError, SpecError
from gpuguard.model.rule import Rule
from gpuguard.model.runtime_record import Bundle
from gpuguard.model.scope_name import ContainerScope
from gpuguard.runtimes.bundles import Bundles
from gpuguard.runtimes.trusted import TrustedFiles
from tests.runtimes.tree import Tree, needs_root

pytestmark = needs_root

ID = "0123456789abcdef" * 4
OTHER = "f" * 64
DOCKER = ContainerScope("docker", ID)
GROUP = f"/system.slice/docker-{ID}.scope"
TASKS = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby"
STATES = "/run/docker/runtime-runc/moby"
PID = 4711
_HERTZ = os.sysconf("SC_CLK_TCK")


def now() -> int:
    """Return this moment in ticks since the boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _HERTZ)


def config(container: str = ID, path: Optional[str] = None) -> str:
    """Return the text of a specification that gives /dev/nvidia0."""
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    cgroups_path = path if path is not None else f"system.slice:docker:{container}"
    return json.dumps({"linux": {"cgroupsPath": cgroups_path, "resources": {"devices": [rule]}}})


def state(bundle: str, pid: int = PID, ticks: Optional[int] = None, labels: tuple[str, ...] = ()) -> str:
    """Return the text of runc's state of a container."""
    noted: dict[str, Any] = {"init_process_pid": pid, "config": {"labels": [*labels, f"bundle={bundle}"]}}
    if ticks is not None:
        noted["init_process_start"] = ticks
    return json.dumps(noted)


@pytest.fixture
def running(tree: Tree) -> Tree:
    """Return the files of a running container of Docker's."""
    ticks = now()
    tree.write(f"{TASKS}/{ID}/config.json", config())
    tree.process(PID, [GROUP], ticks)
    tree.write(f"{STATES}/{ID}/state.json", state(f"{TASKS}/{ID}", ticks=ticks))
    return tree


def find(tree: Tree, container: ContainerScope = DOCKER, group: str = GROUP) -> Optional[Bundle]:
    """Look for a bundle."""
    return Bundles(TrustedFiles(tree.root), tree.path("/proc")).find(container, group)


def refused(tree: Tree, container: ContainerScope = DOCKER, group: str = GROUP) -> str:
    """Return why nothing is believed."""
    with pytest.raises(GpuguardError) as raised:
        find(tree, container, group)
    assert isinstance(raised.value, (RuntimeFileError, SpecError))
    return str(raised.value)


def test_a_running_container(running: Tree) -> None:
    """The specification, its path, its age and the first process."""
    bundle = find(running)
    assert bundle is not None
    assert bundle.path == f"{TASKS}/{ID}/config.json"
    assert bundle.pid == PID
    assert bundle.since == running.path(bundle.path).stat().st_ctime
    assert bundle.spec.allowed == {Rule.parse("c 195:0 rw")}


def test_nothing_at_all(tree: Tree) -> None:
    """Where no runtime knows the container there is no bundle."""
    assert find(tree) is None
    assert find(tree, ContainerScope("nspawn", ID)) is None


@pytest.mark.parametrize(
    ("noted", "lying"),
    [
        ("/run/runc/{}/state.json", "/var/lib/containers/storage/overlay-containers/{}/userdata"),
        ("/run/docker/runtime-nvidia/moby/{}/state.json", "/srv/exec/moby/{}"),
        ("/run/containerd/runc/k8s.io/{}/state.json", "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{}"),
        ("/run/k3s/containerd/runc/k8s.io/{}/state.json", "/run/k3s/x/{}"),
    ],
)
def test_the_low_level_runtime_s_state_leads_to_it(tree: Tree, noted: str, lying: str) -> None:
    """Wherever the bundle lies, the state names it."""
    ticks = now()
    tree.write(f"{lying.format(ID)}/config.json", config())
    tree.process(PID, [GROUP], ticks)
    tree.write(noted.format(ID), state(lying.format(ID), ticks=ticks))
    bundle = find(tree)
    assert bundle is not None
    assert bundle.path == f"{lying.format(ID)}/config.json"


def test_crun_s_status_leads_to_it(tree: Tree) -> None:
    """The same with crun, whose container is in a group below its scope."""
    ticks = now()
    tree.write("/srv/b/config.json", config())
    tree.process(PID, [f"{GROUP}/container"], ticks)
    tree.write(f"/run/crun/{ID}/status", json.dumps({"bundle": "/srv/b", "pid": PID, "process-start-time": ticks}))
    assert find(tree) is not None


@pytest.mark.parametrize(
    ("bundle", "pid_file"),
    [
        ("/run/containerd/io.containerd.runtime.v2.task/default/{}", "{}/init.pid"),
        ("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{}", "{}/init.pid"),
        ("/var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io/{}", "{}/init.pid"),
        ("/run/containers/storage/overlay-containers/{}/userdata", "{}/pidfile"),
    ],
)
def test_a_bundle_with_a_pid_file(tree: Tree, bundle: str, pid_file: str) -> None:
    """Where no state is found, the usual places of bundles are looked at."""
    place = bundle.format(ID)
    tree.write(f"{place}/config.json", config())
    tree.process(PID, [GROUP], now())
    tree.write(pid_file.format(place), f"{PID}")
    found = find(tree)
    assert found is not None
    assert found.pid == PID


def test_podman_s_bundle_and_its_pid_file_lie_apart(tree: Tree) -> None:
    """Podman's pid file is in the run directory of its storage."""
    tree.write(f"/var/lib/containers/storage/overlay-containers/{ID}/userdata/config.json", config())
    tree.process(PID, [GROUP], now())
    tree.write(f"/run/containers/storage/overlay-containers/{ID}/userdata/pidfile", f"{PID}\n")
    assert find(tree) is not None


@pytest.mark.invariant(4)
def test_whose_device_rules_count_is_handed_on(running: Tree) -> None:
    """Where the device hierarchy has the first process in another group, the list of its own says nothing of it."""
    running.write(f"/proc/{PID}/cgroup", f"9:memory:{GROUP}\n8:devices:/system.slice\n")
    bundle = find(running)
    assert bundle is not None
    assert bundle.elsewhere == "/system.slice"


def test_the_first_complaint_is_told(running: Tree) -> None:
    """What is wrong with the low-level runtime's own state is the news, whatever else is wrong."""
    running.write(f"{STATES}/{ID}/state.json", "=")
    running.write(f"{TASKS}/{ID}/init.pid", "0")
    assert refused(running).startswith(f"{STATES}/{ID}/state.json: ")


@pytest.mark.invariant(5)
class TestAnotherRun:
    """Nothing is inherited from another container of the same id, or from an earlier run."""

    def test_another_group(self, running: Tree) -> None:
        """A specification for another control group is not this container's."""
        assert "it is for control group 'system.slice:docker:" in refused(running, group=f"/user.slice{GROUP}")

    @pytest.mark.parametrize("path", ["", "docker/x", "a:b", "../../x", "system.slice:docker:x", f"{GROUP}/.."])
    def test_a_group_that_is_not_told(self, running: Tree, path: str) -> None:
        """A relative or another path means no group, or another."""
        running.write(f"{TASKS}/{ID}/config.json", config(path=path))
        assert "it is for control group" in refused(running)

    def test_the_process_has_ended(self, running: Tree) -> None:
        """What is left of a container that has ended is not believed."""
        running.path(f"/proc/{PID}/stat").unlink()
        running.path(f"/proc/{PID}/cgroup").unlink()
        assert f"process {PID}, which it names, is not in {GROUP}" in refused(running)

    def test_the_process_is_elsewhere(self, running: Tree) -> None:
        """A process of that number in another group is another one."""
        running.process(PID, [f"/system.slice/docker-{OTHER}.scope"], now())
        assert f"process {PID}, which it names, is not in {GROUP}" in refused(running)

    def test_the_number_was_used_again(self, running: Tree) -> None:
        """A process of that number in this very group that started at another time is another one."""
        running.process(PID, [GROUP], now() + 1)
        assert f"another process has the number {PID} by now" in refused(running)

    def test_the_specification_was_written_after_the_start(self, running: Tree) -> None:
        """A specification that is newer than the container is not what it was given."""
        ticks = now() - 10 * _HERTZ
        running.process(PID, [GROUP], ticks)
        running.write(f"{STATES}/{ID}/state.json", state(f"{TASKS}/{ID}", ticks=ticks))
        assert "it was changed after the container started" in refused(running)

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(("seconds", "believed"), [(0.5, True), (1.5, False)])
    def test_how_much_newer_it_may_be(self, running: Tree, seconds: float, believed: bool) -> None:
        """A second, for the clocks: who changes it after the start says what was never given."""
        age = time.time() - running.path(f"{TASKS}/{ID}/config.json").stat().st_ctime
        ticks = now() - round((age + seconds) * _HERTZ)
        running.process(PID, [GROUP], ticks)
        running.write(f"{STATES}/{ID}/state.json", state(f"{TASKS}/{ID}", ticks=ticks))
        if believed:
            assert find(running) is not None
        else:
            assert "it was changed after the container started" in refused(running)

    def test_a_pid_file_of_an_earlier_run(self, tree: Tree) -> None:
        """A pid file that is older than the process that has the number now names another one."""
        tree.write(f"{TASKS}/{ID}/config.json", config())
        tree.write(f"{TASKS}/{ID}/init.pid", f"{PID}")
        tree.process(PID, [GROUP], now() + 10 * _HERTZ)
        assert f"another process has the number {PID} by now" in refused(tree)

    def test_the_same_id_in_two_namespaces(self, running: Tree) -> None:
        """What another namespace has under the same id does not hide this container's own."""
        tasks = "/run/containerd/io.containerd.runtime.v2.task/aaa"
        running.write(f"{tasks}/{ID}/config.json", config(path="/elsewhere"))
        running.write(f"/run/runc/{ID}/state.json", state(f"{tasks}/{ID}"))
        bundle = find(running)
        assert bundle is not None
        assert bundle.path == f"{TASKS}/{ID}/config.json"


@pytest.mark.invariant(1)
class TestHostile:
    """What users and containers may choose leads nowhere."""

    def test_an_annotation_that_names_a_bundle(self, running: Tree) -> None:
        """runc keeps annotations among the labels in which it notes the bundle."""  # noqa: D403 -- its name
        running.write("/evil/config.json", config())
        noted = json.loads(running.path(f"{STATES}/{ID}/state.json").read_text())
        ticks = noted["init_process_start"]
        text = state(f"{TASKS}/{ID}", ticks=ticks, labels=("bundle=/evil", "a=bundle=/evil"))
        running.write(f"{STATES}/{ID}/state.json", text)
        bundle = find(running)
        assert bundle is not None
        assert bundle.path == f"{TASKS}/{ID}/config.json"

    def test_a_bundle_that_others_may_write(self, running: Tree) -> None:
        """A bundle in a directory that is not root's alone is not believed, and the reason is told."""
        running.path(f"{TASKS}/{ID}").chmod(0o777)
        assert "others than root may write it" in refused(running)

    @pytest.mark.parametrize(
        "container", ["", ".", "..", "../x", "a/b", "a..b", "-x", "a\n", "x" * 300, "\udcff", "a\0"]
    )
    def test_ids_that_are_no_file_s_name(self, running: Tree, container: str) -> None:
        """An id that could be more than a name is not looked for."""
        assert find(running, ContainerScope("docker", container)) is None

    @pytest.mark.parametrize(
        "text",
        ["", "{}", "[]", "null", '{"config": {"labels": [1]}}', "{" * 100_000, state("relative"), state("/x", -1)],
    )
    def test_a_malformed_state(self, running: Tree, text: str) -> None:
        """A state that makes no sense is told with its path; the bundle is found without it where that can be."""
        running.write(f"{STATES}/{ID}/state.json", text)
        assert refused(running).startswith(f"{STATES}/{ID}/state.json: ")
        running.write(f"{TASKS}/{ID}/init.pid", f"{PID}")
        assert find(running) is not None

    @pytest.mark.parametrize("text", ["", "0", "-1", "1 2", "\u0661", "9" * 40, "self"])
    def test_a_malformed_pid_file(self, tree: Tree, text: str) -> None:
        """A pid file names a process, and nothing else that /proc may have."""
        tree.write(f"{TASKS}/{ID}/config.json", config())
        tree.write(f"{TASKS}/{ID}/init.pid", text)
        assert f"{TASKS}/{ID}/init.pid: " in refused(tree)

    @pytest.mark.parametrize("text", ["", "[]", '{"linux": 1}', "[" * 100_000, '{"a": 1, "a": 2}'])
    def test_a_malformed_specification(self, running: Tree, text: str) -> None:
        """It is told with its path, and ends nothing."""
        running.write(f"{TASKS}/{ID}/config.json", text)
        assert refused(running).startswith(f"{TASKS}/{ID}/config.json: ")

    def test_an_oversized_specification(self, running: Tree) -> None:
        """A specification that is larger than any is not read."""
        running.write(f"{TASKS}/{ID}/config.json", config() + " " * (1 << 22))
        assert "not read: it has more than 4194304 bytes" in refused(running)

    def test_a_specification_that_is_a_pipe(self, running: Tree) -> None:
        """A pipe in its place keeps nobody waiting."""
        path: Path = running.path(f"{TASKS}/{ID}/config.json")
        path.unlink()
        os.mkfifo(path, 0o644)
        assert "it is not a plain file" in refused(running)


@pytest.mark.invariant(1)
class TestWhoMayBeTheReason:
    """Of what is not believed: whoever starts a container must not gain by having its files unreadable."""

    @pytest.mark.parametrize(
        "text", [config().replace("{", '{"annotations": {"a": "' + "x" * (1 << 22) + '"}, ', 1), "\udcff", "[]"]
    )
    def test_its_user(self, running: Tree, text: str) -> None:
        """One that is too large for his annotations, or not a text."""
        running.write(f"{TASKS}/{ID}/config.json", text)
        with pytest.raises(GpuguardError) as raised:
            find(running)
        assert not isinstance(raised.value, RuntimeFileUnreadableError)

    @pytest.mark.parametrize(("owner", "mode"), [(65534, 0o644), (0, 0o666)])
    def test_nobody_inside(self, running: Tree, owner: int, mode: int) -> None:
        """Whose the file is."""
        file = running.path(f"{TASKS}/{ID}/config.json")
        os.chown(file, owner, 0)
        file.chmod(mode)
        with pytest.raises(RuntimeFileUnreadableError):
            find(running)

    def test_its_user_in_one_place_of_several(self, running: Tree) -> None:
        """What he may have done counts, whichever place is looked at first."""
        running.write(f"{TASKS}/{ID}/config.json", "x" * ((1 << 22) + 1))
        running.write(f"/run/runc/{ID}/state.json", state(f"{TASKS}/{ID}")).chmod(0o666)
        with pytest.raises(RuntimeFileError, match="it has more than") as raised:
            find(running)
        assert not isinstance(raised.value, RuntimeFileUnreadableError)

    def test_its_user_where_another_place_is_not_believed(self, running: Tree) -> None:
        """A first process that has left its group tells more than a directory that others may write."""
        running.process(PID, ["/elsewhere"], now())
        running.write("/srv/b/config.json", config())
        running.write(f"/run/runc/{ID}/state.json", state("/srv/b"))
        running.path("/run/docker").chmod(0o777)
        with pytest.raises(RuntimeRunError):
            find(running)

    def test_its_user_by_a_group_of_any_depth(self, running: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """proc(5) names none whose path is longer than a page: ENAMETOOLONG, on cgroup v1 without a limit of depth."""
        read = Path.read_bytes

        def refuse(path: Path) -> bytes:
            if path.name == "cgroup":
                raise OSError(errno.ENAMETOOLONG, "File name too long")
            return read(path)

        monkeypatch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(RuntimeFileError, match="File name too long") as raised:
            find(running)
        assert not isinstance(raised.value, RuntimeFileUnreadableError)
