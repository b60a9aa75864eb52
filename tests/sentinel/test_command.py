"""The sentinel is started from wherever gpuguard is."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gpuguard
from gpuguard.model.write import Standing
from gpuguard.sentinel import command as module
from gpuguard.sentinel.command import command
from gpuguard.sentinel.settings import Settings
from gpuguard.sentinel.wire import decode


def test_arguments_arrive() -> None:
    """As they were given."""
    argv = command(7, mode="v2", cgroup="/c g", proc="/p", max_repairs=3, window=0.1, pause=1e3)
    arguments = argv[argv.index(module._HOME) + 1 :]
    assert Settings.parse(arguments) == Settings("v2", Path("/c g"), Path("/p"), 7, 3, 0.1, 1e3)


def test_from_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is started as that copy, whatever the environment says, and whatever lies beside it."""
    source = Path(gpuguard.__path__[0])
    shutil.copytree(source, tmp_path / "gpuguard", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "json.py").write_text("raise SystemExit('not the one')\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(module, "_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = command(0, mode="v1", cgroup=str(tmp_path), proc="/proc", max_repairs=5, window=60, pause=30)
        process = subprocess.Popen(argv, stdin=theirs.fileno(), stderr=subprocess.PIPE, cwd="/")
        theirs.close()
        ours.settimeout(30)
        assert isinstance(decode(ours.makefile("rb").readline()), Standing)
        ours.shutdown(socket.SHUT_RDWR)
        _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (0, b"")
    assert list((tmp_path / "gpuguard" / "sentinel").glob("__pycache__/main.*"))


def test_without_site_packages() -> None:
    """Nothing but gpuguard and Python itself can be imported there."""
    argv = command(0, mode="v1", cgroup="/", proc="/proc", max_repairs=5, window=60, pause=30)
    flags = argv[1 : argv.index("-c")]
    said = subprocess.run(
        [sys.executable, *flags, "-c", "import sys; print(sys.flags.no_site, sys.flags.isolated)"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert said.stdout.split() == ["1", "1"]
