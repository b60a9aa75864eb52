"""Packages that are installed in a node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.node import Node
from tests.lab.package import Package

pytestmark = [
    pytest.mark.node,
    pytest.mark.cgroup("v2"),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs dpkg and apt"),
]


@pytest.fixture
def package(node: Node) -> Iterator[Package]:
    """Yield a package that tells who runs its script; it is removed after the test."""
    made = Package(node, "lab-package", "cat /proc/$$/cmdline /proc/$PPID/comm >/root/told")
    yield made
    made.remove()


def told(node: Node) -> list[str]:
    """Return the command line of the script, and the name of its parent."""
    return node.path("/root/told").read_text(encoding="utf-8").split("\0")


@pytest.mark.parametrize("how", ["by_dpkg", "by_apt"])
def test_install(node: Node, package: Package, how: str) -> None:
    """The script is run by dpkg, as every package's is; the machine knows nothing of it."""
    node.run(getattr(package, how))
    assert told(node) == ["/bin/sh", "/var/lib/dpkg/info/lab-package.postinst", "configure", "", "dpkg\n"]
    assert not Path("/var/lib/dpkg/info/lab-package.postinst").exists()
