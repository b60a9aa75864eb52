"""The daemon where systemd is too busy to hear it, a file cannot be written, or a setting does nothing yet."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path

import pytest

from gpuguard.config import Settings
from gpuguard.guard.effect import without_effect
from tests.lab.poll import until
from tests.lab.sim.node import SimNode
from tests.running import PATIENCE, Gpuguard, await_event, events


@pytest.fixture
def gpuguard(sim: SimNode) -> Gpuguard:
    """Return the way to a daemon; it is killed with its node."""
    return Gpuguard(sim)


def fill(path: str) -> None:
    """Send to a datagram socket until its queue is full."""
    sent = True
    while sent:
        sent = False
        # One sender has room for fewer than a queue may hold.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(BlockingIOError):
            sender.settimeout(0)
            while sender.sendto(b"NOISE", path):
                sent = True


def test_ready_is_said_again_when_systemd_could_not_take_it(gpuguard: Gpuguard, tmp_path: Path) -> None:
    """A full notification socket at the end of the start does not make systemd give the service up."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(PATIENCE)
        fill(path)
        await_event(gpuguard.start(env={"NOTIFY_SOCKET": path}), "started")
        time.sleep(0.2)  # one that is sent only once is lost by now
        while receiver.recv(4096) != b"READY=1":
            pass


def test_the_textfile_tells_of_containers_without_an_endpoint(gpuguard: Gpuguard, tmp_path: Path) -> None:
    """Who only reads the textfile sees the containers as well as who scrapes."""
    file = tmp_path / "gpuguard.prom"
    gpuguard.write(metrics={"listen": "", "textfile": str(file)})
    gpuguard.start()
    gpuguard.node.scope(hook_rules=["c 195:0 rw"])
    figure = 'gpuguard_containers{state="protected"} 1.0'
    until(lambda: file.exists() and figure in file.read_text(), PATIENCE, "the figure")


def test_the_textfile_goes_with_its_setting_and_with_the_daemon(gpuguard: Gpuguard, tmp_path: Path) -> None:
    """What nobody writes any more would tell of protected containers for ever."""
    old, new = tmp_path / "old.prom", tmp_path / "new.prom"
    gpuguard.write(metrics={"listen": "", "textfile": str(old)})
    daemon = gpuguard.start()
    until(old.exists, PATIENCE, "the textfile")
    gpuguard.write(metrics={"listen": "", "textfile": str(new)})
    daemon.signal(signal.SIGHUP)
    until(new.exists, PATIENCE, "the other textfile")
    assert not old.exists()
    assert daemon.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_textfile_that_cannot_be_written_does_not_end_it(gpuguard: Gpuguard, tmp_path: Path) -> None:
    """A missing directory is told, and the file comes when the directory does."""
    file = tmp_path / "later" / "gpuguard.prom"
    gpuguard.write(metrics={"listen": "", "textfile": str(file)})
    daemon = gpuguard.start()
    await_event(daemon, "textfile_failed")
    file.parent.mkdir()
    until(file.exists, PATIENCE, "the textfile")
    assert daemon.stop() == 0


def test_settings_of_a_later_version_are_named(gpuguard: Gpuguard) -> None:
    """Who asks for what this version does not do is told so."""
    gpuguard.write(guard={"shield": True}, escalate={"command": ["/bin/false"]})
    daemon = gpuguard.start()
    await_event(daemon, "no_effect")
    said = [entry["event"] for entry in events(daemon, "no_effect")]
    assert said == ["the setting [escalate] command has no effect in this version of gpuguard"]


def test_the_shield_has_no_use_on_v2() -> None:
    """Who asks for the shield where there is none is told so."""
    asked = Settings.from_mapping({"guard": {"shield": True}})
    assert list(without_effect(asked, "v2")) == [("[guard] shield", "on cgroup v2")]
    assert list(without_effect(asked, "v1")) == []
