"""The runtimes' files as the guard asks for them."""

from __future__ import annotations

import pytest

from gpuguard.errors import RuntimeFileError, SpecError
from gpuguard.model.runtime_record import Identity
from gpuguard.model.scope_name import ContainerScope
from gpuguard.runtimes.records import RuntimeFiles
from tests.runtimes.tree import Tree, needs_root

pytestmark = needs_root

MACHINE = ContainerScope("nspawn", "my-gpu")
NOTED = "NAME=my-gpu\nSCOPE=machine-my\\\\x2dgpu.scope\nSERVICE=systemd-nspawn\nCLASS=container\nLEADER=1\n"


def confirmed(tree: Tree, container: ContainerScope = MACHINE) -> bool:
    """Ask whether it is a container."""
    return RuntimeFiles(tree.root).confirmed(container)


def test_a_container_needs_no_confirmation(tree: Tree) -> None:
    """Other runtimes' scopes are containers by their names."""
    assert confirmed(tree, ContainerScope("docker", "0" * 64))


def test_a_machine_of_nspawn(tree: Tree) -> None:
    """A machine is a container if systemd-machined says so."""
    assert not confirmed(tree)
    tree.write("/run/systemd/machines/my-gpu", "# comment\n" + NOTED)
    assert confirmed(tree)
    assert RuntimeFiles(tree.root).find(MACHINE, "/machine.slice/x") == (None, Identity("my-gpu"))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("CLASS=container", "CLASS=vm"),
        ("CLASS=container\n", ""),
        ("SERVICE=systemd-nspawn", "SERVICE=libvirt-qemu"),
        ("SCOPE=machine-my\\\\x2dgpu.scope", "SCOPE=machine-other.scope"),
        ("SCOPE=machine-my\\\\x2dgpu.scope", "SCOPE=systemd-nspawn@my-gpu.service"),
        ("NAME=my-gpu", "NAME=other"),
    ],
)
def test_other_machines(tree: Tree, text: str, other: str) -> None:
    """A virtual machine is none, nor one that another program made, or that another unit holds."""
    tree.write("/run/systemd/machines/my-gpu", NOTED.replace(text, other))
    assert not confirmed(tree)


def test_what_is_not_believed(tree: Tree) -> None:
    """A file that others may write, or that makes no sense, is told."""
    path = tree.write("/run/systemd/machines/my-gpu", "nonsense")
    with pytest.raises(SpecError, match="/run/systemd/machines/my-gpu: it names no machine"):
        confirmed(tree)
    path.chmod(0o666)
    with pytest.raises(RuntimeFileError, match="others than root may write it"):
        confirmed(tree)
