"""What is remembered of programs that were started."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.process import Process
from gpuguard.model.recent import Execution, Recent, telling


def process(pid: int, name: str = "sh", parent: int = 0, *arguments: str) -> Process:
    """Return a process."""
    return Process(pid, name, command=(name, *arguments), parent=parent)


def test_by_pid() -> None:
    """A number is whose it was at the time: of several programs of one process the last before it."""
    recent = Recent()
    recent.note(Execution(1.0, (process(7, "sh"),)))
    recent.note(Execution(2.0, (process(7, "tee"),)))
    recent.note(Execution(9.0, (process(7, "later"),)))
    assert [process.name for process in recent.by_pid(7, 2.5)] == ["tee"]
    assert [process.name for process in recent.by_pid(7, 1.5)] == ["sh"]
    assert recent.by_pid(7, 0.5) == ()
    assert recent.by_pid(8, 2.5) == ()


def test_a_number_is_not_believed_for_long() -> None:
    """A process that only forked may have the number after so long."""
    recent = Recent()
    recent.note(Execution(1.0, (process(7),)))
    assert recent.by_pid(7, 61.0) != ()
    assert recent.by_pid(7, 61.5) == ()
    assert recent.by_pid(7, 3.0, longest=1.0) == ()


def test_ancestors_that_are_gone_too() -> None:
    """What was read is continued with what is remembered, up to a gap."""
    recent = Recent()
    recent.note(Execution(0.5, (process(4, "cron"),)))
    recent.note(Execution(1.0, (process(5, "bash", parent=99),)))
    recent.note(Execution(2.0, (process(6, "sh", parent=5),)))
    recent.note(Execution(3.0, (process(7, "systemctl", 6, "daemon-reload"),), asks=True))
    recent.note(Execution(4.0, (process(5, "newer", parent=4),)))
    assert [process.name for process in recent.by_pid(7, 3.5)] == ["systemctl", "sh", "bash"]
    [line] = recent.requesters(lambda _: True, 0.0)
    assert [process.name for process in line] == ["systemctl", "sh", "bash"]


def test_ancestors_in_a_circle() -> None:
    """Numbers that are reused make no endless chain."""
    recent = Recent()
    recent.note(Execution(1.0, (process(5, "a", parent=6),)))
    recent.note(Execution(1.0, (process(6, "b", parent=5),)))
    assert len(recent.by_pid(5, 2.0)) == 16


def test_requesters() -> None:
    """Those that ask, that are wanted and that came since then, newest first."""
    recent = Recent()
    for at, name, verb in ((1.0, "systemctl", "old"), (2.0, "systemctl", "reload"), (3.0, "busctl", "reload")):
        recent.note(Execution(at, (process(int(at), name, 0, verb),), asks=True))
    recent.note(Execution(4.0, (process(4, "systemctl", 0, "status"),), asks=True))
    recent.note(Execution(5.0, (process(5, "sh", 0, "reload"),)))
    found = recent.requesters(lambda command: command[1] == "reload", 2.0)
    assert [line[0].name for line in found] == ["busctl", "systemctl"]


@pytest.mark.invariant(10)
@given(st.lists(st.booleans(), max_size=60))
def test_it_is_bounded(asks: list[bool]) -> None:
    """However many start, so many are remembered, and other programs push out none that asked."""
    recent = Recent(most=8, asking=4)
    for index, each in enumerate(asks):
        recent.note(Execution(float(index), (process(index + 1),), asks=each))
    assert len(recent) == min(len(asks), 8)
    newest = [index + 1 for index, each in enumerate(asks) if each][-4:][::-1]
    assert [line[0].pid for line in recent.requesters(lambda _: True, 0.0)] == newest


@pytest.mark.parametrize(
    "name", ["systemctl", "busctl", "runc", "docker", "sh", "-bash", "python3.11", "nvidia-containe", "foo.postinst"]
)
def test_telling(name: str) -> None:
    """Programs that ask systemd or write device lists, and what may do either, are worth to be read."""
    assert telling(name)


@pytest.mark.parametrize("name", ["", "true", "sleep", "cc1plus", "systemd", "pushd", "shred", "runc:[1:CHILD]"])
def test_not_telling(name: str) -> None:
    """Others are not."""
    assert not telling(name)
