"""The simulated node's own dbus-daemon: a real one, on a socket below the node's root."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path
from typing import Optional

from tests.lab.sim import layout

# Open to all, as only the user who started it can reach the socket. BecomeMonitor is allowed to that user.
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>{address}</listen>
  <auth>EXTERNAL</auth>
  <pidfile>{pidfile}</pidfile>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*" eavesdrop="true"/>
    <allow receive_sender="*" eavesdrop="true"/>
  </policy>
</busconfig>
"""


class BusDaemon:
    """Starts and stops dbus-daemon; always at the same address."""

    def __init__(self, root: Path) -> None:
        self.address = layout.bus_address(root)
        self._root = root
        self._process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> None:
        """Start it and wait until it listens. Raises OSError when it does not."""
        config = self._root / layout.BUS_CONFIG
        config.write_text(_CONFIG.format(address=self.address, pidfile=self._root / layout.BUS_PID))
        arguments = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address"]
        self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout
        with self._process.stdout as output:
            if not output.readline():
                raise OSError(f"dbus-daemon ended at once with status {self._process.wait()}; what it said is above")

    def stop(self) -> None:
        """Kill it: its clients lose their connections."""
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            for leftover in (layout.BUS_PID, layout.BUS_SOCKET):
                with contextlib.suppress(FileNotFoundError):
                    (self._root / leftover).unlink()
