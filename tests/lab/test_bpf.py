"""The loader and attacher of device programs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import bpf
from tests.lab.errors import LabError


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Return an empty cgroup v2; skips where there can be none."""
    reason = bpf.why_not()
    if reason is not None:
        pytest.skip(reason)
    with bpf.scratch() as cgroup:
        yield cgroup


def open_null() -> int:
    """Open /dev/null and return the errno."""
    try:
        os.close(os.open("/dev/null", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return error.errno or -1
    return 0


def test_programs_decide(cgroup: Path) -> None:
    """A process in the cgroup can open a device while all programs say so; the test's own process always can."""
    with bpf.program(bpf.ALLOW_ALL) as allow, bpf.program(bpf.DENY_ALL) as deny:
        answers = [bpf.inside(cgroup, open_null)]
        bpf.attach(cgroup, allow.fd)
        answers.append(bpf.inside(cgroup, open_null))
        bpf.attach(cgroup, deny.fd)
        answers.append(bpf.inside(cgroup, open_null))
        assert open_null() == 0
        bpf.detach(cgroup, deny.fd)
        answers.append(bpf.inside(cgroup, open_null))
        bpf.replace(cgroup, allow.fd, deny.fd)
        answers.append(bpf.inside(cgroup, open_null))
    assert answers == [0, 0, errno.EPERM, 0, errno.EPERM]


def test_a_program_that_the_verifier_refuses(cgroup: Path) -> None:
    """The error shows the verifier's log."""
    assert cgroup.is_dir()
    with pytest.raises(LabError, match=r"(?s)cannot load the program: .*R0 !read_ok"):
        bpf.load(bpf.ALLOW_ALL[8:])


def test_a_long_name() -> None:
    """A name that the kernel would cut is refused."""
    with pytest.raises(LabError, match="15 characters"):
        bpf.load(bpf.ALLOW_ALL, name="sixteen_letters_")


def test_what_the_kernel_refuses(cgroup: Path) -> None:
    """Each refusal is an error that names the cgroup."""
    with bpf.program(bpf.ALLOW_ALL) as program, bpf.program(bpf.DENY_ALL) as other:
        with pytest.raises(LabError, match=f"cannot detach a program of {cgroup}"):
            bpf.detach(cgroup, program.fd)
        with pytest.raises(LabError, match=f"cannot replace a program of {cgroup}"):
            bpf.replace(cgroup, program.fd, other.fd)
        bpf.attach(cgroup, program.fd)
        with pytest.raises(LabError, match=f"cannot attach a program to {cgroup}"):
            bpf.attach(cgroup, program.fd)


def test_a_child_that_fails(cgroup: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An exception in the child is an error here; so is a child that is no more."""

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(LabError, match=r"ValueError\('no'\)"):
        bpf.inside(cgroup, fail)
    assert "ValueError: no" in capfd.readouterr().err
    with pytest.raises(LabError, match="ended without an answer"):
        bpf.inside(cgroup, lambda: os._exit(3))


def test_nothing_is_left(cgroup: Path) -> None:
    """The cgroup goes with all that was made below it."""
    with bpf.scratch() as other:
        (other / "below").mkdir()
        assert other.parent == cgroup.parent
    assert not other.exists()
    assert cgroup.is_dir()
