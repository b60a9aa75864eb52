"""fanotify as this kernel has it. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import FanotifyError
from gpuguard.kernel import fanotify
from gpuguard.kernel.fanotify import Fanotify
from tests.kernel.groups import Groups

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: fanotify needs CAP_SYS_ADMIN")


@pytest.fixture(params=[True, False], ids=["handles", "descriptors"])
def watch(request: pytest.FixtureRequest) -> Iterator[Fanotify]:
    """Return a group without marks, of either kind."""
    made = Fanotify(handles=request.param)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Return an empty file, and a descriptor of it."""
    path = tmp_path / "file"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    yield path, fd
    os.close(fd)


def test_a_write_is_told_with_the_writer(watch: Fanotify, file: tuple[Path, int]) -> None:
    """Own writes as well, in their order, and each once."""
    path, fd = file
    watch.mark(fd)
    assert not watch.read()
    os.write(fd, b"x")
    other = subprocess.Popen(["sh", "-c", 'echo x > "$0"', path])
    other.wait()
    key = watch.key(fd)
    assert watch.read() == [(key, os.getpid()), (key, other.pid)]
    assert not watch.read()


def test_several_writes_are_one_event(watch: Fanotify, file: tuple[Path, int]) -> None:
    """As long as nobody has read it."""
    watch.mark(file[1])
    for _ in range(1000):
        os.write(file[1], b"x")
    assert len(watch.read()) == 1


def test_the_file_of_a_cgroup(watch: Fanotify, kernel: Groups) -> None:
    """Which is there to be written alone."""
    kernel.make(kernel.scope)
    fd = os.open(kernel.path(kernel.scope) / "devices.deny", os.O_WRONLY)
    watch.mark(fd)
    kernel.deny(kernel.scope, "a")
    kernel.allow(kernel.scope, "c 1:3 r")
    assert watch.read() == [(watch.key(fd), os.getpid())]
    os.close(fd)


def test_a_cgroup_that_is_gone(watch: Fanotify, kernel: Groups) -> None:
    """Its last event is passed over, or told, and nothing is in the way of the next one's."""
    kernel.make(kernel.scope)
    fd = os.open(kernel.path(kernel.scope) / "devices.deny", os.O_WRONLY)
    watch.mark(fd)
    kernel.deny(kernel.scope, "a")
    kernel.path(kernel.scope).rmdir()
    watch.read()
    watch.unmark(fd)
    os.close(fd)
    other = f"{kernel.slice}/docker-{'0' * 64}.scope"
    kernel.make(other)
    fd = os.open(kernel.path(other) / "devices.deny", os.O_WRONLY)
    watch.mark(fd)
    kernel.deny(other, "a")
    assert [event and event[0] for event in watch.read()] == [watch.key(fd)]
    os.close(fd)


def test_without_a_mark(watch: Fanotify, file: tuple[Path, int]) -> None:
    """Nothing is told; and to take a mark away that is not there is no error."""
    watch.mark(file[1])
    watch.unmark(file[1])
    watch.unmark(file[1])
    os.write(file[1], b"x")
    assert not watch.read()


def test_no_descriptor_is_left(watch: Fanotify, file: tuple[Path, int]) -> None:
    """Each event comes with one."""
    watch.mark(file[1])
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - its own descriptor is in it both times
    os.write(file[1], b"x")
    watch.read()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_cannot_be_marked(watch: Fanotify) -> None:
    """It is an error of ours."""
    with pytest.raises(FanotifyError, match="cannot watch a file"):
        watch.mark(-1)
    with pytest.raises(FanotifyError, match="cannot stop"):
        watch.unmark(-1)


def test_what_has_no_handle() -> None:
    """Nor has what is no file."""
    with pytest.raises(FanotifyError, match="by its handle"):
        Fanotify().key(-1)


def test_keys_tell_files_apart(watch: Fanotify, kernel: Groups) -> None:
    """Those of one control group, and of one that is made later in the place of another."""
    keys = set()
    for _ in range(3):
        kernel.make(kernel.scope)
        for name in ("devices.deny", "devices.allow"):
            fd = os.open(kernel.path(kernel.scope) / name, os.O_WRONLY)
            keys.add(watch.key(fd))
            os.close(fd)
        kernel.path(kernel.scope).rmdir()
    assert len(keys) == 6


def test_a_full_queue(monkeypatch: pytest.MonkeyPatch, watch: Fanotify) -> None:
    """The kernel says so by an event without a file."""
    reader, writer = os.pipe()
    os.write(writer, fanotify.EVENT.pack(24, 3, 0, 24, fanotify._Q_OVERFLOW, -1, 0))
    monkeypatch.setattr(watch, "_fd", os.dup(reader))
    assert watch.read() == [None]
    os.write(writer, fanotify.EVENT.pack(24, 9, 0, 24, 2, -1, 0))
    with pytest.raises(FanotifyError, match="unknown form"):
        watch.read()
    for fd in (reader, writer):
        os.close(fd)
