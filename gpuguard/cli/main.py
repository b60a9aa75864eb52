"""The command line: what there is to say, and which module does it.

Each command's module is imported only when it runs: the daemon's libraries cost a quarter of a
second, which `gpuguard --version` and a monitoring check should not pay.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Optional

from gpuguard import __version__
from gpuguard.cli import codes, helps
from gpuguard.errors import ConfigError, GpuguardError, NotFoundError
from gpuguard.model.clean import clean

_WIDTH = 78
_LONGEST = 4096
_CODES = ((ConfigError, codes.CONFIG), (NotFoundError, codes.NOT_FOUND))


class _Parser(argparse.ArgumentParser):
    """A parser whose usage errors cannot be taken for a command's verdict, as argparse's 2 could."""

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong with the command line and exit."""
        self.exit(codes.USAGE, f"{self.format_usage()}{self.prog}: {message}\n")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command and return its exit code. Expected errors become one line on stderr."""
    _make_streams_usable()
    try:
        return _run(argv)
    except GpuguardError as error:
        lines = str(error).split("\n")  # names and paths in it come from outside
        print("gpuguard:", "\n".join(clean(line, _LONGEST) for line in lines), file=sys.stderr)
        return next((code for kind, code in _CODES if isinstance(error, kind)), codes.FAILED)
    except BrokenPipeError:  # the reader has seen enough
        _drop_output()
        return codes.BROKEN_PIPE
    except OSError as error:
        if _writable():
            raise
        _drop_output()
        print(f"gpuguard: cannot write what there is to tell: {error.strerror}", file=sys.stderr)
        return codes.OUTPUT
    except KeyboardInterrupt:
        return codes.INTERRUPTED


def _run(argv: Optional[Sequence[str]]) -> int:
    try:
        args = _parser().parse_args(argv)
        code: int = importlib.import_module(f"gpuguard.cli.{args.module}").run(args)
    finally:
        sys.stdout.flush()  # also of --help, which leaves by SystemExit
    return code


def _make_streams_usable() -> None:
    """Let a name that the locale cannot spell, or a stream that the caller has closed, be no reason to fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # print() would write to the other one
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _writable() -> bool:
    """Whether what is still in the buffer can be written: else that is what went wrong."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Have what is still in the buffer not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpuguard",
        description="Keeps the device permissions of GPU containers.",
        epilog=helps.EVERY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpuguard {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, purpose: str, module: Optional[str] = None) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=purpose,
            description="\n".join(textwrap.wrap(purpose[0].upper() + purpose[1:] + ".", _WIDTH)),
            epilog=helps.OF[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(module=module or name)
        command.add_argument(
            "--config", type=Path, metavar="F", help="configuration file (/etc/gpuguard/gpuguard.toml)"
        )
        return command

    run = add("run", "guard this node, in the foreground, until SIGTERM")
    run.add_argument("--observe-only", action="store_true", help="see and record, touch nothing")

    status = add("status", "show every GPU container: its state and its devices")
    form = status.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--watch", action="store_true", help="show it again every two seconds")
    status.add_argument("--all", action="store_true", help="also show containers without any device filter")

    explain = add("explain", "say of one container who allows and denies what, what a reload would do, and what to do")
    explain.add_argument("container", metavar="CONTAINER", help=helps.CONTAINER)
    explain.add_argument("--json", action="store_true", help="print one JSON document")
    explain.add_argument("--all", action="store_true", help="also show rules that need no attention")

    doctor = add("doctor", "examine the node, its guard and its containers, and say what to do")
    doctor.add_argument("--json", action="store_true", help="print one JSON document")

    add("check", "print one line for a monitoring system and exit with its verdict")

    repair = add("repair", "give lost devices back and make systemd remember them, once, now")
    repair.add_argument("containers", nargs="*", metavar="CONTAINER", help=f"{helps.CONTAINER}; none: all")
    repair.add_argument("--dry-run", action="store_true", help="say what would be done")
    repair.add_argument("--json", action="store_true", help="print one JSON document")

    release = add("release", "forget that a container may have a device, because it was taken away on purpose")
    release.add_argument("container", metavar="CONTAINER", help=helps.CONTAINER)
    release.add_argument("devices", nargs="*", metavar="DEVICE", help="/dev/nvidia0 or 'c 195:0'; none: all")

    config = add("config", "check the configuration file, or show its settings with the defaults", "config")
    config.add_argument("action", choices=["check", "show"])
    return parser
