"""A Debian package that is nothing but its script, to be installed in a node as an administrator would."""

from __future__ import annotations

from pathlib import Path

from tests.lab.node import Node

_DIRECTORY = Path("/root/lab-packages")
_CONTROL = """\
Package: {name}
Version: 1.0
Architecture: all
Maintainer: The lab <root@localhost>
Description: nothing but a script
"""
# What apt needs to install one file that is at hand, and nothing else: no lists, no recommendations, no questions.
_APT = (
    "-o",
    "Dir::Etc::SourceList=/dev/null",
    "-o",
    "Dir::Etc::SourceParts=/dev/null",
    "-o",
    "APT::Sandbox::User=root",
)


class Package:
    """One package, built in a node by dpkg-deb. The node's files are an overlay: the machine never has it."""

    def __init__(self, node: Node, name: str, postinst: str = "systemctl daemon-reload") -> None:
        """Build it. `postinst`: the lines that it runs at its installation. Raises LabError."""
        self.name = name
        self._node = node
        tree = node.path(_DIRECTORY / name)
        script = tree / "DEBIAN/postinst"
        script.parent.mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(_CONTROL.format(name=name), encoding="ascii")
        script.write_text(f"#!/bin/sh\nset -e\n{postinst}\n", encoding="utf-8")
        script.chmod(0o755)
        self._file = f"{_DIRECTORY / name}.deb"
        node.run(["dpkg-deb", "--build", "--root-owner-group", str(_DIRECTORY / name), self._file])

    @property
    def by_dpkg(self) -> list[str]:
        """The command that installs it by dpkg."""
        return ["dpkg", "--install", self._file]

    @property
    def by_apt(self) -> list[str]:
        """The command that installs it by apt-get, which runs dpkg."""
        return ["apt-get", "install", "--yes", "--quiet", *_APT, self._file]

    def remove(self) -> None:
        """Remove it, and the file that it was installed from. Raises LabError."""
        self._node.run(["dpkg", "--purge", self.name])
        self._node.run(["rm", "-rf", str(_DIRECTORY / self.name), self._file])
