"""A long-running program in a node, with its output kept."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import AbstractContextManager
from typing import Callable, Optional

from tests.lab.errors import LabError
from tests.lab.poll import until
from tests.lab.process import children


class Daemon(AbstractContextManager["Daemon"]):
    """One running program. Get it by `Node.daemon()`; it ends with `stop()`, `kill()`, or with its node."""

    def __init__(self, command: str, start: Callable[[int], subprocess.Popen[bytes]]) -> None:
        self._command = command
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in _end; nameless, so nothing is left behind
        self._process = start(self._log.fileno())
        self._end_of_log: Optional[str] = None

    @property
    def pid(self) -> int:
        """The program's number outside the node. Raises LabError when it ended before it began."""
        until(
            lambda: children(self._process.pid) or self._process.poll() is not None, 30, f"the start of {self._command}"
        )
        family = children(self._process.pid)
        if not family:
            raise LabError(f"{self._command} has ended with status {self.returncode}: {self.output()[-2000:]}")
        return family[0]

    @property
    def returncode(self) -> Optional[int]:
        """Its exit status, minus the signal that killed it, or None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """All that it has printed so far, on both streams."""
        if self._log.closed:
            return self._end_of_log or ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")  # moves no offset: the program shares it

    def await_output(self, text: str, timeout: float = 30.0) -> None:
        """Wait until it has printed `text`. Raises LabError, with the output, when it ends before or does not."""
        deadline = time.monotonic() + timeout
        while text not in self.output():
            if self.returncode is not None or time.monotonic() > deadline:
                state = "still runs" if self.returncode is None else f"has ended with status {self.returncode}"
                raise LabError(f"{self._command} {state} and has not printed {text!r} but: {self.output()[-2000:]}")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = 40.0) -> int:
        """Wait for its end and return its exit status. Raises LabError when it does not end; it is killed then."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            said = self.output()[-2000:]
            self.kill()
            raise LabError(f"{self._command} did not end within {timeout} s; its output ends: {said}") from error
        if not self._log.closed:
            self._end_of_log = self.output()
            self._log.close()
        return status

    def stop(self, timeout: float = 40.0) -> int:
        """End it by SIGTERM, as systemd would, and return its exit status."""
        if self.returncode is None:
            self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """End it by SIGKILL, and what it started as well unless that made a session of its own."""
        if self.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def __exit__(self, *_: object) -> None:
        """Kill it, however the block ends."""
        self.kill()
