"""What is done before anything is understood. Needs root, and cgroup v1."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from gpuguard.kernel.device_files import OpenHierarchy
from gpuguard.kernel.fanotify import HANDLE_AT, Fanotify
from gpuguard.model.backoff import Backoff
from gpuguard.model.write import Watched
from gpuguard.sentinel.reflex import Answered, Surroundings, answerer
from gpuguard.sentinel.scope import Scope
from tests.kernel.groups import Groups
from tests.model.looks import rules
from tests.sentinel.inside import event

GPU0, GPU1, NULL = "c 195:0 rw", "c 195:1 rw", "c 1:3 rwm"
KEY = b"\x08\0\0\0\xfe\0\0\0\x07\0\0\0\0\0\0\0"


@pytest.fixture
def scope(kernel: Groups) -> Iterator[Scope]:
    """Return a scope that was looked at; systemd is known to write GPU1."""
    inode = kernel.make(kernel.scope, NULL, GPU0, GPU1)
    files = OpenHierarchy(kernel.root).files(kernel.scope, inode)
    made = Scope(Watched(kernel.scope, inode, rules(GPU0), rules(GPU1)), files, Backoff(5, 60.0, 30.0))
    made.look()
    yield made
    files.close()


@pytest.fixture
def queue() -> Iterator[tuple[int, int]]:
    """Return both ends of what stands in for a fanotify group: systemd cannot be had write at a given moment."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def answer(queue: tuple[int, int], scope: Scope) -> Answered:
    """Answer what is in the queue, with one scope known."""
    return answerer(queue[0], {KEY: scope})()


def test_the_form_of_an_event(kernel: Groups) -> None:
    """The kernel's own are read alike."""
    kernel.make(kernel.scope)
    fd = os.open(kernel.path(kernel.scope) / "devices.deny", os.O_WRONLY)
    group = Fanotify(handles=True)
    group.mark(fd)
    kernel.deny(kernel.scope, "a")
    ((some,), _) = answerer(group.fileno(), {})()
    assert group.understand(some) == [(group.key(fd), os.getpid())]
    assert some[HANDLE_AT:] == group.key(fd)
    group.close()
    os.close(fd)


def test_what_systemd_took_is_there_again(kernel: Groups, scope: Scope, queue: tuple[int, int]) -> None:
    """What it writes itself is not written for it."""
    kernel.deny(kernel.scope, "a")
    os.write(queue[1], event(1, KEY))
    events, done = answer(queue, scope)
    assert (events, list(done)) == ([event(1, KEY)], [KEY])
    assert kernel.lines(kernel.scope) == [GPU0]
    assert done[KEY].found == b""
    assert done[KEY].written_at >= done[KEY].at


@pytest.mark.invariant(8)
def test_a_list_that_is_as_it_was_is_not_written(kernel: Groups, scope: Scope, queue: tuple[int, int]) -> None:
    """Some programs empty a file before they write it."""
    before = kernel.lines(kernel.scope)
    os.write(queue[1], event(1, KEY))
    assert answer(queue, scope) == ([event(1, KEY)], {})
    assert kernel.lines(kernel.scope) == before


def test_others_are_understood_first(kernel: Groups, scope: Scope, queue: tuple[int, int]) -> None:
    """An administrator may mean it; what is not watched is nobody's."""
    kernel.deny(kernel.scope, "a")
    os.write(queue[1], event(77, KEY) + event(1, KEY[:-1] + b"\x01"))
    assert answer(queue, scope) == ([event(77, KEY) + event(1, KEY[:-1] + b"\x01")], {})
    assert kernel.lines(kernel.scope) == []


@pytest.mark.invariant(3)
def test_nobody_is_waited_for_beside_another(monkeypatch: pytest.MonkeyPatch, queue: tuple[int, int]) -> None:
    """He may be gone soon, and has to be identified."""
    monkeypatch.setattr(select, "select", lambda *_: pytest.fail("somebody is waited for"))
    answering = answerer(queue[0], {})
    for events in (event(1, KEY) + event(77, KEY), event(77, KEY) + event(1, KEY), event(77, KEY)):
        os.write(queue[1], events)
        assert answering() == ([events], {})


def test_several_at_once(kernel: Groups, scope: Scope, queue: tuple[int, int]) -> None:
    """Each event of one reading is answered; a queue that is empty is no error."""
    kernel.deny(kernel.scope, "a")
    os.write(queue[1], event(77, KEY) + event(1, KEY))
    assert list(answer(queue, scope)[1]) == [KEY]
    assert answer(queue, scope) == ([], {})


def test_a_scope_that_is_gone(kernel: Groups, scope: Scope, queue: tuple[int, int]) -> None:
    """It is left to whoever goes through the events."""
    kernel.path(kernel.scope).rmdir()
    os.write(queue[1], event(1, KEY))
    assert answer(queue, scope) == ([event(1, KEY)], {})


class Endless(dict[bytes, Scope]):
    """Scopes of which systemd denies another whenever one is looked for."""

    def __init__(self, queue: int) -> None:
        super().__init__()
        self._queue = queue
        self._times = 0

    def get(self, _key: bytes, _default: object = None) -> None:  # type: ignore[override]
        """Find none."""
        self._times += 1
        assert self._times < 1000, "it does not come to an end"
        os.write(self._queue, event(1, KEY))


@pytest.mark.invariant(10)
def test_a_systemd_that_comes_to_no_end(queue: tuple[int, int]) -> None:
    """What was read so far is gone through then."""
    os.write(queue[1], event(1, KEY))
    events, done = answerer(queue[0], Endless(queue[1]))()
    assert (len(events), done) == (64, {})


@pytest.mark.invariant(2)
def test_a_hook_at_work_is_waited_for(monkeypatch: pytest.MonkeyPatch, queue: tuple[int, int]) -> None:
    """What it writes is to be seen before the next deny, which may be that scope's; without one nobody else is."""
    waited = []

    def wait(files: tuple[int, ...], *_: object) -> tuple[tuple[int, ...]]:
        waited.append(files)
        return ((),)

    monkeypatch.setattr(select, "select", wait)
    growing = {"/docker-1.scope"}
    answering = answerer(queue[0], {}, Surroundings(growing, 77))
    for _ in range(2):
        os.write(queue[1], event(1, KEY))
        answering()
        growing.clear()
    assert waited == [(queue[0], 77), (queue[0],)]


@pytest.mark.invariant(2)
@pytest.mark.parametrize(
    ("pid", "growing", "hushed"), [(1, True, True), (77, True, False), (1, False, False)], ids=["", "another", "none"]
)
def test_who_is_rewritten_while_a_hook_is_at_work_is_hushed(
    kernel: Groups, scope: Scope, queue: tuple[int, int], *, pid: int, growing: bool, hushed: bool
) -> None:
    """Before anything is written: each allow would be heard in the middle of systemd's rewrite, our own too."""
    kernel.deny(kernel.scope, "a")
    os.write(queue[1], event(pid, KEY))
    lists = []

    def lull(_: Scope) -> None:
        lists.append(kernel.lines(kernel.scope))

    answerer(queue[0], {KEY: scope}, Surroundings({"/docker-1.scope"} if growing else (), queue[0], lull))()
    assert lists == ([[]] if hushed else [])


@pytest.mark.timeout(60)
def test_an_event_of_an_unknown_form(scope: Scope, queue: tuple[int, int]) -> None:
    """What follows it is left to whoever goes through the events."""
    os.write(queue[1], bytes(HANDLE_AT) + event(1, KEY))
    assert answer(queue, scope) == ([bytes(HANDLE_AT) + event(1, KEY)], {})


def test_what_failed_the_second_time_is_not_done(kernel: Groups, scope: Scope, queue: tuple[int, int]) -> None:
    """The scope may have ended between two denies."""
    kernel.deny(kernel.scope, "a")
    broken = SimpleNamespace(first=scope.first, beginning=b"", files=SimpleNamespace(list=-1))
    found = iter([scope, broken])
    scopes = cast("dict[bytes, Scope]", SimpleNamespace(get=lambda _: next(found)))
    os.write(queue[1], event(1, KEY) * 2)
    assert answerer(queue[0], scopes)() == ([event(1, KEY) * 2], {})
    assert kernel.lines(kernel.scope) == [GPU0]
