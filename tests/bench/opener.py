"""The tight-loop opener, with a processor of its own.

Without one it is often not running just when systemd writes, and sees no gap. On a busy machine that happens all the
same, and other programs make some gaps longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.prober import Loop, Prober
from tests.lab.process import children


@contextmanager
def opening(node: Node, prober: Prober, cgroup: Path) -> Iterator[Loop]:
    """Open the GPU from inside a control group, on another processor than the node's systemd where there are two."""
    with prober.loop(cgroup, GPU0) as loop:
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) > 1:
            os.sched_setaffinity(node.init, processors[:1])
            for pid in children(loop._process.pid):
                os.sched_setaffinity(pid, processors[1:2])
        yield loop
