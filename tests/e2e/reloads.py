"""Reloads of systemd again and again, beside what a test does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.node import Node


@contextmanager
def reloading(node: Node, every: float = 0.0) -> Iterator[None]:
    """Reload systemd every so many seconds, by default with no pause, for as long as the block lasts."""
    over = threading.Event()

    def reload() -> None:
        while not over.wait(every):
            node.run(["systemctl", "daemon-reload"])

    thread = threading.Thread(target=reload)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
