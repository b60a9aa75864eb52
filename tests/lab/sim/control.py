"""The way in behind the bus: one JSON document per line, on a socket that stands for systemd's private one.

What is asked here is seen by no monitor of the bus, as with `systemctl` run by root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable

from dbus_next.signature import Variant

from tests.lab.sim.api import Api
from tests.lab.sim.bus import Bus, Job
from tests.lab.sim.daemon import BusDaemon
from tests.lab.sim.faults import BusFault
from tests.lab.sim.manager import Manager
from tests.lab.sim.tree import Tree

Answer = dict[str, Any]


class Control:
    """Answers requests {"do": VERB, "with": {ARGUMENT: VALUE}} with {"result": …} or {"error": NAME, "text": …}.

    Each is a job in the same queue as the calls on the bus: PID 1 does them one after the other.
    """

    def __init__(self, manager: Manager, api: Api, tree: Tree, bus: Bus, daemon: BusDaemon) -> None:
        self._manager = manager
        self._api = api
        self._tree = tree
        self._bus = bus
        self._daemon = daemon
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "reload": manager.reload,
            "reexec": api.reexec,
            "set-property": self._set_property,
            "end": manager.end,
            "add-service": manager.add_service,
            "settle": self._settle,
            "set-gap": self._set_gap,
            "writes": self._writes,
            "calls": self._calls,
            "stop-bus": self._stop_bus,
            "start-bus": self._start_bus,
        }

    async def listen(self, path: Path, queue: asyncio.Queue[Job]) -> None:
        """Start to answer at the socket `path`."""

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                request = json.loads(await reader.readline())
                writer.write(json.dumps(await self._queued(request, queue)).encode() + b"\n")
                await writer.drain()

        await asyncio.start_unix_server(talk, path)

    async def _queued(self, request: dict[str, Any], queue: asyncio.Queue[Job]) -> Answer:
        verb, arguments = request["do"], request["with"]
        if verb == "busy":  # whoever asks for it does not wait for its end
            queue.put_nowait(lambda: asyncio.sleep(arguments["seconds"]))
            return {"result": None}
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def job() -> None:
            try:
                result = {"result": await self._verbs[verb](**arguments)}
            except BusFault as fault:
                result = {"error": fault.name, "text": fault.text}
            await self._manager.dispatch()
            answer.set_result(result)

        queue.put_nowait(job)
        return await answer

    async def _set_property(self, name: str, properties: list[tuple[str, str, Any]]) -> None:
        await self._manager.set_properties(name, [(key, Variant(sign, value)) for key, sign, value in properties])

    async def _settle(self) -> None:
        self._tree.drain()

    async def _set_gap(self, seconds: float) -> None:
        self._manager.gap = seconds

    async def _writes(self) -> list[dict[str, Any]]:
        self._tree.drain()
        return [asdict(write) for write in self._tree.writes]

    async def _calls(self) -> list[dict[str, Any]]:
        return self._api.calls

    async def _stop_bus(self) -> None:
        self._daemon.stop()
        await self._bus.leave()

    async def _start_bus(self) -> None:
        self._daemon.start()
        await self._bus.connect()
