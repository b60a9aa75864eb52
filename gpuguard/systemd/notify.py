"""sd_notify(3): what a service tells systemd about itself, one datagram for each message."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Optional


class Notifier:
    """Speaks to the socket that the environment names; without one every message is left out.

    Each message returns whether it was handed over. It never blocks: while systemd is too busy to empty its socket
    the answer is False.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._path = environ.get("NOTIFY_SOCKET", "")
        self._watchdog = _watchdog_interval(environ)

    def ready(self) -> bool:
        """Tell that start-up, or a reload of the configuration, is over."""
        return self._send("READY=1")

    def reloading(self) -> bool:
        """Tell that the configuration is being read again; ready() ends it. systemd 253 wants the time as well."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> bool:
        """Tell that the service is on its way down."""
        return self._send("STOPPING=1")

    def status(self, text: str) -> bool:
        """Set the line that `systemctl status` shows."""
        return self._send("STATUS=" + " ".join(text.splitlines()))

    def watchdog(self) -> bool:
        """Tell that the service is alive; due within each watchdog_interval()."""
        return self._send("WATCHDOG=1")

    def watchdog_interval(self) -> Optional[float]:
        """Return the seconds within which systemd wants a watchdog() call, None when it wants none."""
        return self._watchdog

    def _send(self, message: str) -> bool:
        if not self._path:
            return False
        path = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto(message.encode(errors="replace"), path)
        except OSError:
            return False
        return True


def _watchdog_interval(environ: Mapping[str, str]) -> Optional[float]:
    # sd_watchdog_enabled(3): both are decimal, and the pid, if there, must be this process's.
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (usec.isdecimal() and int(usec)) or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1_000_000
