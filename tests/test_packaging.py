"""The package as pip installs it, with this Python and with the oldest at hand; and the list that `make` prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Union

import pytest

import gpuguard

ROOT = Path(__file__).parent.parent
SHIPPED = ("gpuguard", "pyproject.toml", "README.md")
OLDEST = 9
IMPORT_ALL = """
import importlib, pkgutil, gpuguard
for module in pkgutil.walk_packages(gpuguard.__path__, "gpuguard."):
    if module.name != "gpuguard.__main__":
        importlib.import_module(module.name)
print(gpuguard.__file__)
"""


def run(*command: Union[str, Path], cwd: Path) -> str:
    """Return what a program prints; nothing of this process's own modules is in its way."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def older_python() -> Path:
    """Return the oldest supported interpreter that can make environments, or skip the test."""
    for minor in range(OLDEST, sys.version_info.minor):
        found = shutil.which(f"python3.{minor}")
        installed = [Path(found)] if found else []
        for python in [*installed, *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")]:
            if (
                subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode
                == 0
            ):
                return python
    pytest.skip(f"no Python from 3.{OLDEST} on is here that is older than this one and has venv")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", ["this", "oldest"])
def test_pip_installs_it(which: str, tmp_path: Path) -> None:
    """`pip install .` gives a command, `python -m gpuguard`, and modules that all can be imported."""
    python = Path(sys.executable) if which == "this" else older_python()
    source = tmp_path / "source"
    source.mkdir()
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    run(python, "-m", "venv", "env", cwd=tmp_path)
    env = tmp_path / "env" / "bin"
    run(env / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source, cwd=tmp_path)

    version = f"gpuguard {gpuguard.__version__}\n"
    assert run(env / "gpuguard", "--version", cwd=tmp_path) == version
    assert run(env / "python", "-m", "gpuguard", "--version", cwd=tmp_path) == version
    where = run(env / "python", "-W", "error", "-c", IMPORT_ALL, cwd=tmp_path)
    assert where.startswith(str(tmp_path))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_prints_its_targets() -> None:
    """A plain `make` is a list, one line for each target, and starts nothing."""
    listed = run("make", "--no-print-directory", cwd=ROOT)
    assert {"demo", "test", "lint", "install", "uninstall"} <= set(re.findall(r"(?m)^make (\w+) +\S", listed))
    assert len(listed.splitlines()) == len(re.findall(r"(?m)^make ", listed))


def test_scripts_are_executable_and_parse() -> None:
    """What `make` and the CI call can be run, and bash reads all of it."""
    for script in (*(ROOT / "tools").iterdir(), ROOT / ".ci" / "run"):
        run("bash", "-n", script, cwd=ROOT)
        assert os.access(script, os.X_OK) or script.name == "layout"
