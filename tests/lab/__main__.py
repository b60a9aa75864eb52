"""A node to play with: `python -m tests.lab --help`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from tests.lab.distribution import DISTRIBUTIONS, root
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.record import load_all
from tests.lab.supervision import reap


def up(options: argparse.Namespace) -> int:
    """Boot a node that stays until it is taken down."""
    rootfs = root(options.distribution) if options.distribution else options.rootfs
    node = Node.boot(options.cgroup, rootfs, name=options.name, keep=True)
    print(f"{node.name} is up; python -m tests.lab shell {node.name}")
    return 0


def shell(options: argparse.Namespace) -> NoReturn:
    """Become a command in a node, or a shell."""
    terminal = {"TERM": os.environ.get("TERM", "dumb")}
    command = Node.find(options.name).command(options.command or ["/bin/bash"], env=terminal)
    os.execvp(command[0], command)  # noqa: S606


def show(_options: argparse.Namespace) -> int:
    """List the nodes."""
    for record in load_all():
        state = "up" if record.init() is not None else "starting" if record.keeper.alive() else "dead: reap it"
        print(f"{record.name}\t{record.mode}\t{state}")
    return 0


def down(options: argparse.Namespace) -> int:
    """Remove one node or all."""
    names = [record.name for record in load_all()] if options.all else [options.name]
    for name in names:
        Node.find(name).down()
    return 0


def clean(_options: argparse.Namespace) -> int:
    """Remove nodes whose keeper was killed."""
    for name in reap():
        print(f"{name} removed")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description="Throw-away nodes with a real systemd, D-Bus and cgroups, for playing and testing. Needs root.",
        epilog="In a node: systemctl, busctl, or, since its root is an overlay and a v2 node has no pids controller,\n"
        "podman --storage-driver=vfs --runtime=runc run --pids-limit=0 --device /dev/nvidia0 IMAGE …\n"
        "Nothing outside of it changes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("up", help="boot a node; it stays until `down`")
    one.add_argument("name", nargs="?", metavar="NAME", help="default: made up")
    one.add_argument("--cgroup", choices=["v1", "v2"], default="v1", help="cgroup version (default: v1)")
    what = one.add_mutually_exclusive_group()
    what.add_argument("--rootfs", default="/", metavar="DIR", help="what to boot, left unchanged (default: /)")
    what.add_argument("--distribution", choices=list(DISTRIBUTIONS), help="a Debian release to boot, built when needed")
    one.set_defaults(run=up)

    one = commands.add_parser("shell", help="a shell, or CMD, in a node")
    one.add_argument("name", metavar="NAME")
    one.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
    one.set_defaults(run=shell)

    one = commands.add_parser("list", help="the nodes there are")
    one.set_defaults(run=show)

    one = commands.add_parser("down", help="remove a node")
    which = one.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", metavar="NAME")
    which.add_argument("--all", action="store_true", help="all nodes, those of running tests too")
    one.set_defaults(run=down)

    one = commands.add_parser("reap", help="remove what is left of nodes that were killed")
    one.set_defaults(run=clean)
    return top


def main() -> int:
    """Carry out the command line."""
    options = parser().parse_args()
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
