"""The process behind a simulated node: `python -m tests.lab.sim ROOT`.

It makes the node's files below ROOT, starts dbus-daemon, and is systemd and kernel in one. It says
"ready" on its standard output, and ends when its standard input does, so that it never outlives whoever
started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

from tests.lab.sim import layout
from tests.lab.sim.api import Api
from tests.lab.sim.bus import Bus, Job
from tests.lab.sim.control import Control
from tests.lab.sim.daemon import BusDaemon
from tests.lab.sim.manager import Manager
from tests.lab.sim.tree import Tree


async def run(root: Path) -> None:
    """Be the node until standard input ends."""
    layout.make(root)
    # Every unit holds its two FIFOs open.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Job] = asyncio.Queue()
    with contextlib.ExitStack() as stack:
        tree = Tree(root / layout.CGROUP, root / layout.GRAVEYARD)
        stack.callback(tree.close)
        loop.add_reader(tree.fileno(), tree.drain)
        stack.callback(loop.remove_reader, tree.fileno())
        daemon = BusDaemon(root)
        stack.callback(daemon.stop)
        daemon.start()
        bus = Bus(daemon.address, queue)
        manager = Manager(root, tree, bus)
        api = Api(bus, manager, root)
        bus.serve = api.serve
        await bus.connect()
        await Control(manager, api, tree, bus, daemon).listen(root / layout.CONTROL, queue)
        print("ready", flush=True)
        await _work(loop, queue)
        await bus.leave()
    # Whoever wanted the node may have been killed: its files are removed here.
    shutil.rmtree(root)


async def _work(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Job]) -> None:
    """Do one job after the other, as PID 1 does, until standard input ends."""
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: None if os.read(sys.stdin.fileno(), 1024) else ended.set())

    async def one_after_the_other() -> None:
        while True:
            await (await queue.get())()

    tasks = [asyncio.ensure_future(one_after_the_other()), asyncio.ensure_future(ended.wait())]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)  # gpuguard believes no file that a group can write
    asyncio.run(run(Path(sys.argv[1])))
