"""The command line as a shell sees it: streams, exit codes, and how quick it answers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

import pytest

import gpuguard
from gpuguard.cli import helps
from gpuguard.cli.main import _parser

SRC = Path(gpuguard.__file__).parent.parent
ENV = {**os.environ, "PYTHONPATH": str(SRC)}


def gpuguard_command(*args: str, env: Optional[Mapping[str, str]] = None) -> subprocess.CompletedProcess[str]:
    """Run `gpuguard` as a program of its own, with this in its environment as well."""
    argv, whole = [sys.executable, "-m", "gpuguard", *args], {**ENV, **(env or {})}
    return subprocess.run(argv, env=whole, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def bad_config(tmp_path: Path) -> str:
    """Return the path of a configuration with two faults."""
    file = tmp_path / "bad.toml"
    file.write_text('[guard]\nmode = "x"\nsettel = "1s"\n')
    return str(file)


def test_version() -> None:
    """The version goes to stdout."""
    done = gpuguard_command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gpuguard {gpuguard.__version__}\n", "")


def test_help_lists_the_commands() -> None:
    """Every command has a line in the help."""
    done = gpuguard_command("--help")
    assert done.returncode == 0
    words = done.stdout.split()
    assert {"run", "status", "explain", "doctor", "check", "repair", "release", "config"} <= set(words)


@pytest.mark.parametrize("command", helps.OF)
def test_every_command_has_help(command: str) -> None:
    """`gpuguard COMMAND --help` explains, knows --config and tells its exit codes, on 80 columns."""
    done = gpuguard_command(command, "--help", env={"COLUMNS": "80"})
    assert done.returncode == 0
    assert "--config" in done.stdout
    assert re.search("^exit codes.*: 0", done.stdout, re.MULTILINE)
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("line", re.findall(r"(?m)^  gpuguard (.*)", "\n".join(helps.OF.values())))
def test_examples_are_commands(line: str) -> None:
    """What the help shows can be typed."""
    assert _parser().parse_args(shlex.split(line.partition(" | ")[0])).module


@pytest.mark.parametrize(
    "args", [(), ("statsu",), ("status", "--jsno"), ("status", "--json", "--watch"), ("config",), ("release",)]
)
def test_a_wrong_command_line_is_no_verdict(args: tuple[str, ...]) -> None:
    """Usage errors exit with EX_USAGE, on stderr; argparse's own 2 would read as "some lost"."""
    done = gpuguard_command(*args)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith("usage: gpuguard")


def test_no_command_loads_the_daemons_libraries_for_help() -> None:
    """`--version` and `--help` are quick since they import none of what takes long, not even asyncio."""
    code = "import sys, gpuguard.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True, timeout=60)
    assert not {"asyncio", "dbus_next", "structlog", "prometheus_client", "pyroute2"} & set(done.stdout.split())


@pytest.mark.parametrize("command", [("run",), ("status",), ("repair",), ("config", "check"), ("config", "show")])
def test_a_bad_configuration_is_exit_code_78(command: tuple[str, ...], bad_config: str) -> None:
    """Each command refuses a bad file, on stderr, with all faults."""
    done = gpuguard_command(*command, "--config", bad_config)
    assert done.returncode == 78
    assert done.stdout == ""
    assert done.stderr.startswith(f"gpuguard: {bad_config}: 2 faults\n")


def test_a_bad_configuration_is_cannot_tell_to_monitoring(bad_config: str) -> None:
    """`check` keeps to the plugins' exit codes and its one line, whatever goes wrong."""
    done = gpuguard_command("check", "--config", bad_config)
    assert done.returncode == 3
    assert done.stdout.startswith("GPUGUARD UNKNOWN - ")
    assert done.stdout.count("\n") == 1


def test_config_check_says_good(tmp_path: Path) -> None:
    """A good file is confirmed by name."""
    file = tmp_path / "good.toml"
    file.write_text('guard.mode = "observe"')
    done = gpuguard_command("config", "check", "--config", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}: good\n")


def test_config_show_is_a_configuration(tmp_path: Path) -> None:
    """What `config show` prints can be used as the file, and shows the values in effect."""
    file = tmp_path / "shown.toml"
    file.write_text('guard.mode = "observe"')
    first = gpuguard_command("config", "show", "--config", str(file))
    assert 'mode = "observe"' in first.stdout
    file.write_text(first.stdout)
    assert gpuguard_command("config", "show", "--config", str(file)).stdout == first.stdout


@pytest.mark.parametrize("command", [("config", "show"), ("--help",), ("check", "--help")])
def test_a_reader_that_goes_away_is_no_crash(command: tuple[str, ...]) -> None:
    """`gpuguard … | head` ends quietly, with the exit code of a SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "gpuguard", *command],
            env={**ENV, "PYTHONUNBUFFERED": ""},  # with it argparse itself hears of it, and says nothing
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def redirected(redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command that prints much, with its streams as a shell redirects them."""
    script = f'exec "$0" -m gpuguard config show {redirection}'
    argv = ["sh", "-c", script, sys.executable]
    return subprocess.run(
        argv, env={**ENV, "PYTHONUNBUFFERED": ""}, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_full_disk_is_told() -> None:
    """What cannot be written is told in one line, with an exit code that is no command's verdict."""
    done = redirected(">/dev/full")
    assert (done.returncode, done.stderr) == (
        74,
        "gpuguard: cannot write what there is to tell: No space left on device\n",
    )


def test_a_closed_stream_is_no_crash() -> None:
    """Who closes stdout wants the exit code alone; who closes stderr gets no complaint among the answer."""
    assert (redirected(">&-").returncode, redirected(">&-").stderr) == (0, "")
    done = redirected("--config /nonexistent 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (78, "", "")


def test_what_the_locale_cannot_spell_is_replaced(tmp_path: Path) -> None:
    """A terminal that knows no arrows, or a name in no encoding, is no reason to tell nothing."""
    file = tmp_path / "möglich.toml"
    file.write_text("")
    done = gpuguard_command("config", "check", "--config", str(file), env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}/m?glich.toml: good\n", "")
