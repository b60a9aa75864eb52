"""How long the event loop may be held up to follow a container's programs, which the container may have made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from gpuguard.errors import CgroupUnreadableError

# Seconds of this thread's CPU time. A program takes milliseconds, and is followed once.
_MOST = 1.0
_LITTLE = 0.25
# So many times as long as it took.
_REST = 10.0


class Effort:
    """Of one control group: no more than `_MOST` in one look, and after a look that took long, a rest.

    A container that may attach programs (CAP_SYS_ADMIN, or CAP_BPF with CAP_NET_ADMIN) can attach 64 that take seconds
    each, and others in their place whenever it likes.
    """

    def __init__(self, control_group: str) -> None:
        self._control_group = control_group
        self._spent = 0.0
        self._resting = False
        self._rest_until = 0.0

    def begin(self) -> None:
        """Begin a look."""
        self._spent = 0.0
        self._resting = time.monotonic() < self._rest_until

    @contextlib.contextmanager
    def spend(self) -> Iterator[None]:
        """Count the block as a part of the look. Raises CgroupUnreadableError when no more may be spent."""
        if self._resting or self._spent > _MOST:
            raise CgroupUnreadableError(
                f"{self._control_group}: its device programs cannot be followed: they take too long"
            )
        begin = time.thread_time()
        try:
            yield
        finally:
            self._spent += time.thread_time() - begin
            if self._spent > _LITTLE:
                self._rest_until = time.monotonic() + _REST * self._spent
