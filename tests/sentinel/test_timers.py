"""Things to do later are done in their order, and not before."""

from __future__ import annotations

import time

from gpuguard.sentinel.timers import Timers


def test_in_their_order() -> None:
    """By time, and those of one time as they were given; what is not due stays."""
    timers, done, now = Timers(), list[str](), time.monotonic()
    timers.at(now - 1, lambda: done.append("second"))
    timers.at(now - 2, lambda: done.append("first"))
    timers.at(now - 1, lambda: done.append("third"))
    timers.after(1000, lambda: done.append("never"))
    timers.run()
    assert done == ["first", "second", "third"]
    assert (timers.next or 0.0) > now + 900
    assert Timers().next is None


def test_what_is_due_at_once() -> None:
    """A thing that has another done may have it done in the same round."""
    timers, done = Timers(), list[str]()
    timers.after(0, lambda: timers.after(0, lambda: done.append("done")))
    timers.run()
    assert done == ["done"]
