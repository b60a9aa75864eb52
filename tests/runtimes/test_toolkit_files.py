"""Which configuration NVIDIA's hook reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpuguard.errors import ToolkitError
from gpuguard.model.nvidia_request import HookRequest
from gpuguard.model.oci_spec import Hook
from gpuguard.model.toolkit import Toolkit
from gpuguard.runtimes.toolkit_files import USUAL, ToolkitFiles

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only what root has written is believed")

USUAL_HOOK = "/usr/bin/nvidia-container-runtime-hook"
OPERATOR = "/usr/local/nvidia/toolkit"
STRICT = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"


class Root:
    """A host's root directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.chmod(0o755)

    def write(self, name: str, text: str = STRICT) -> Path:
        """Write a file that root alone can write."""
        path = self.path / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
        return path

    def of(self, hook: str = USUAL_HOOK, configuration: str | None = None) -> Toolkit:
        """Return what a hook reads."""
        return ToolkitFiles(self.path).of(HookRequest(Hook("prestart", hook), configuration))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Return an empty root directory."""
    return Root(tmp_path)


def test_the_usual_one(root: Root) -> None:
    """In /etc, with the time of its last change."""
    path = root.write(USUAL)
    found = root.of()
    assert (found.path, found.envvar_when_unprivileged) == (USUAL, False)
    assert found.changed == path.stat().st_ctime


def test_an_older_date_is_no_older_change(root: Root) -> None:
    """A package's file keeps the date of its making; when it was put there counts."""
    path = root.write(USUAL)
    os.utime(path, (10.0, 10.0))
    assert root.of().changed == path.stat().st_ctime > 10.0


def test_none_at_all(root: Root) -> None:
    """The defaults, as of when one may have been taken away, whatever date its directory was given since."""
    directory = root.path / "etc/nvidia-container-runtime"
    directory.mkdir(parents=True)
    os.utime(directory, (10.0, 10.0))
    assert root.of() == Toolkit(changed=directory.stat().st_ctime)
    directory.rmdir()
    assert root.of() == Toolkit(changed=(root.path / "etc").stat().st_ctime)


def test_the_operators(root: Root) -> None:
    """Beside the hook, where the GPU operator has installed both; the usual one does not count."""
    root.write(USUAL, "")
    root.write(f"{OPERATOR}/.config/nvidia-container-runtime/config.toml")
    for name in ("nvidia-container-runtime-hook", "nvidia-container-toolkit"):
        found = root.of(f"{OPERATOR}/{name}")
        assert found.path == f"{OPERATOR}/.config/nvidia-container-runtime/config.toml"
        assert not found.envvar_when_unprivileged


def test_by_its_arguments(root: Root) -> None:
    """What is named there goes before all others."""
    root.write(USUAL, "")
    root.write("/opt/config.toml")
    assert root.of(configuration="/opt/config.toml").path == "/opt/config.toml"


@pytest.mark.invariant(1)
def test_a_hook_somewhere_else(root: Root) -> None:
    """A program of its name that nobody knows may read anything."""
    root.write(USUAL, "")
    with pytest.raises(ToolkitError, match="which configuration it reads is not known"):
        root.of(f"{OPERATOR}/nvidia-container-runtime-hook")


@pytest.mark.invariant(1)
def test_two_that_it_may_read(root: Root) -> None:
    """Up to 1.17 it preferred one in a driver's container."""
    root.write(USUAL, "")
    root.write(f"/run/nvidia/driver{USUAL}")
    with pytest.raises(ToolkitError, match="hangs on its version"):
        root.of()


@pytest.mark.invariant(1)
def test_a_driver_container_that_was_there(root: Root) -> None:
    """What the hook found in it is not known when it is gone: its directory stays, or that above it has changed."""
    root.write(USUAL, "")
    directory = root.path / "run/nvidia/driver"
    directory.mkdir(parents=True)
    with pytest.raises(ToolkitError, match="hangs on its version"):
        root.of()
    time.sleep(0.02)
    directory.rmdir()
    above = directory.parent.stat()
    assert root.of().changed == max(above.st_mtime, above.st_ctime) > (root.path / USUAL[1:]).stat().st_ctime


@pytest.mark.invariant(1)
@pytest.mark.parametrize("configuration", [None, "/opt/toolkit/config.toml"])
def test_one_that_came_with_its_directory(root: Root, configuration: str | None) -> None:
    """The file's own times are those of its making: when its directory was put in place counts."""
    other = root.write("/srv/lenient/config.toml", "")
    directory = (root.path / (configuration or USUAL)[1:]).parent
    directory.parent.mkdir(parents=True, exist_ok=True)
    time.sleep(0.02)
    other.parent.rename(directory)
    changed = root.of(configuration=configuration).changed
    assert changed == directory.stat().st_ctime > (directory / "config.toml").stat().st_ctime


@pytest.mark.invariant(1)
@pytest.mark.parametrize("configuration", [None, "/opt/config.toml"])
def test_one_that_cannot_be_believed(root: Root, configuration: str | None) -> None:
    """Others can write it, it is a link, it is not TOML."""
    path = root.write(configuration or USUAL)
    path.chmod(0o666)
    with pytest.raises(ToolkitError, match="others than root may write it"):
        root.of(configuration=configuration)
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(ToolkitError, match="symbolic link"):
        root.of(configuration=configuration)
    path.unlink()
    root.write(configuration or USUAL, "accept")
    with pytest.raises(ToolkitError, match="not a configuration of NVIDIA's toolkit"):
        root.of(configuration=configuration)


@pytest.mark.parametrize("configuration", ["/opt/config.toml", "config.toml", "/opt/../config.toml", ""])
def test_one_that_is_not_there(root: Root, configuration: str) -> None:
    """The hook fails then, and does not look for another."""
    with pytest.raises(ToolkitError):
        root.of(configuration=configuration)
