"""The daemon as a process, on a simulated node: what it does beside guarding."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from tests.lab.daemon import Daemon
from tests.lab.poll import until
from tests.lab.sim.node import SimNode

GPU = "c 195:0 rwm"
QUICK = {"guard": {"poll_interval": "100ms", "settle": "50ms"}, "metrics": {"listen": ""}}


def run(sim: SimNode, env: Optional[Mapping[str, str]] = None, **tables: Mapping[str, object]) -> Daemon:
    """Start the daemon with these settings on top of quick ones."""
    lines = []
    for name, table in {"paths": sim.config_paths(), "log": {"format": "json"}, **QUICK, **tables}.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    config = sim.path("/gpuguard.toml")
    config.write_text("\n".join(lines) + "\n")
    return sim.daemon([sys.executable, "-m", "gpuguard", "run", f"--config={config}"], env=env)


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


def test_the_textfile_tells_of_containers_without_an_endpoint(sim: SimNode, tmp_path: Path) -> None:
    """Who only reads the textfile sees the containers as well as who scrapes."""
    sim.scope(hook_rules=[GPU])
    file = tmp_path / "gpuguard.prom"
    run(sim, metrics={"listen": "", "textfile": str(file)})
    until(lambda: file.exists() and 'gpuguard_containers{state="protected"} 1.0' in file.read_text(), 20, "the figure")


def test_a_textfile_that_cannot_be_written_does_not_end_the_guard(sim: SimNode, tmp_path: Path) -> None:
    """A missing directory is told, and the file comes when the directory does."""
    file = tmp_path / "later" / "gpuguard.prom"
    daemon = run(sim, metrics={"listen": "", "textfile": str(file)})
    daemon.await_output("cannot write the textfile")
    file.parent.mkdir()
    until(file.exists, 20, "the textfile")
    assert daemon.stop() == 0


def test_it_can_be_stopped_while_systemd_is_busy(sim: SimNode) -> None:
    """SIGTERM during the first look ends it at once, although systemd has not answered."""
    sim.scope(hook_rules=[GPU])
    sim.busy(60)
    daemon = run(sim)
    until(lambda: sim.path("/run/gpuguard/control.sock").exists(), 20, "the daemon's start")
    time.sleep(0.2)
    begin = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - begin < 10
    assert '"started"' not in daemon.output()


def test_settings_of_a_later_version_are_named(sim: SimNode) -> None:
    """Who asks for what this version does not do is told so."""
    daemon = run(sim, guard={"shield": True}, escalate={"command": ["/bin/false"]})
    for setting in ("[guard] shield", "[escalate] command"):
        daemon.await_output(setting)


def test_ready_is_said_again_when_systemd_could_not_take_it(sim: SimNode, tmp_path: Path) -> None:
    """A full notification socket at the end of the start does not make systemd give the service up."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(15)
        fill(path)
        run(sim, env={"NOTIFY_SOCKET": path}).await_output('"started"')
        time.sleep(0.2)  # a READY=1 that were sent only once would be lost by now
        while receiver.recv(4096) != b"READY=1":
            pass


def test_a_reload_says_ready_again(sim: SimNode, tmp_path: Path) -> None:
    """SIGHUP reads the configuration again, and systemd is told of the begin and the end of it."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(15)
        daemon = run(sim, env={"NOTIFY_SOCKET": path})
        while receiver.recv(4096) != b"READY=1":
            pass
        daemon.signal(signal.SIGHUP)
        while not receiver.recv(4096).startswith(b"RELOADING=1\n"):
            pass
        while receiver.recv(4096) != b"READY=1":
            pass
        assert '"config_reloaded"' in daemon.output()
