"""The command with which people play."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.lab import image
from tests.lab.containers import Podman
from tests.lab.fixtures import need_node
from tests.lab.node import Node
from tests.lab.record import load
from tests.lab.supervision import ROOT


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    argv = [sys.executable, "-m", "tests.lab", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.node
def test_a_node_from_up_to_down() -> None:
    """A node that was brought up outlives the command, is listed, takes commands with their status, and goes down."""
    need_node("v1")
    name = f"play-{os.getpid()}"
    try:
        assert lab("up", name).returncode == 0
        assert f"{name}\tv1\tup" in lab("list").stdout
        assert lab("shell", name, "cat", "/proc/1/comm").stdout == "systemd\n"
        assert lab("shell", name, "sh", "-c", "exit 5").returncode == 5
        assert "is taken" in lab("up", name).stderr
    finally:
        assert lab("down", name).returncode == 0
    assert load(name) is None


@pytest.mark.parametrize("command", ["shell", "down"])
def test_an_unknown_node_is_an_error(command: str) -> None:
    """Naming a node that is not there fails and says where to look."""
    done = lab(command, "none-such")
    assert done.returncode == 1
    assert "there is no node named 'none-such'" in done.stderr


def test_help_tells_every_command() -> None:
    """The help lists what can be done."""
    said = lab("--help").stdout
    assert all(command in said for command in ("up", "shell", "list", "down", "reap"))


@pytest.mark.parametrize("mode", ["v1", "v2"])
@pytest.mark.node
def test_help_names_a_podman_command_that_works(mode: str) -> None:
    """What the help says to type starts a container in a node of either kind."""
    need_node(mode)
    reason = Podman.why_not()
    if reason is not None:
        pytest.skip(reason)
    said = " ".join(lab("--help").stdout.split())
    match = re.search(r"podman (?P<ways>--.*?) (?P<run>run .*) IMAGE", said)
    assert match is not None, said
    with Node.boot(mode) as node:
        node.run(["podman", *match["ways"].split(), "import", "-", image.NAME], stdin=image.archive())
        command = ["podman", *match["ways"].split(), *match["run"].split(), image.NAME, "/bin/ls", "/dev/nvidia0"]
        assert node.run(command).stdout == "/dev/nvidia0\n"


def test_a_bad_name_is_refused() -> None:
    """A name that would not do as a file or host name is refused in plain words."""
    need_node("v1")
    assert "cannot name a node" in lab("up", "../x").stderr


def test_a_reader_that_has_seen_enough() -> None:
    """A pipe that is closed at its other end (`list | head -2`) is no error."""
    reading, writing = os.pipe()
    os.close(reading)
    # A line is printed also where there is no node.
    lister = (
        "import sys; from tests.lab import __main__ as lab; lab.show = lambda _: print('n1') or 0; sys.exit(lab.main())"
    )
    argv = [sys.executable, "-c", lister, "list"]
    done = subprocess.run(argv, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
