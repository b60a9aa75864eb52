"""The control socket: who may speak to it, what passes over it, and what it makes of nonsense."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Union

import pytest

from gpuguard.errors import GpuguardError, NotFoundError
from gpuguard.guard import control
from gpuguard.guard.control import SOCKET, ControlServer
from gpuguard.model.reports import DaemonReport, ReleaseReport, Repair, RepairReport, SourceReport
from gpuguard.model.state import State
from gpuguard.model.write import Standing
from tests.report.support import until

REPAIR = RepairReport(
    dry_run=False,
    repairs=(
        Repair(
            "docker-a.scope",
            "a",
            State.LOST,
            State.PROTECTED,
            ("write c 195:0 rw",),
            name="main",
            namespace="ml",
            pod="train-0",
        ),
        Repair("docker-b.scope", "b", State.AT_RISK, State.AT_RISK, (), "systemd refuses"),
    ),
)
ASK = """
import asyncio, pathlib, sys
from gpuguard.guard.control import daemon_runs
print(asyncio.run(daemon_runs(pathlib.Path(sys.argv[1]))))
"""
ASK_REPAIR = """
import asyncio, pathlib, sys
from gpuguard.errors import GpuguardError
from gpuguard.guard import control
try:
    asyncio.run(control.repair(pathlib.Path(sys.argv[1]), []))
except GpuguardError as error:
    print(error)
"""
DAEMON = DaemonReport(
    "1.0",
    "observe",
    '[guard]\nmode = "observe"\n',
    "configuration not taken",
    sources=(SourceReport("signals", up=True), SourceReport("monitor", up=False, reason="no such bus")),
    standing=Standing("nice", "not permitted"),
    pid=4711,
    paused={"/system.slice/a.scope": 1.5},
)
RELEASE = ReleaseReport("docker-a.scope", "a", ("c 195:0 rw",), ("c 195:0 rw",), ())


class Desk:
    """Answers like the daemon's, and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def answer(self, request: dict[str, Any]) -> Union[RepairReport, ReleaseReport, DaemonReport]:
        """Answer by the verb."""
        self.requests.append(request)
        await self.hold.wait()
        if request["verb"] == "repair":
            return REPAIR
        if request["verb"] == "daemon":
            return DAEMON
        if request["name"] == "nobody":
            raise NotFoundError("nobody: no GPU container of this id")
        if request["name"] == "broken":
            raise GpuguardError("the ledger cannot be written")
        return RELEASE


@pytest.fixture
async def run() -> AsyncIterator[Path]:
    """Return a directory with a path short enough for a socket."""
    with TemporaryDirectory(prefix="gpuguard-control-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def desk(run: Path) -> AsyncIterator[Desk]:
    """Run a control server and return who answers behind it."""
    desk = Desk()
    server = ControlServer(run, desk.answer)
    await server.start()
    yield desk
    await server.stop()


async def say(run: Path, data: bytes) -> bytes:
    """Send bytes, close this side, and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(str(run / SOCKET))
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


class TestConversation:
    """Requests of the commands."""

    async def test_repair(self, run: Path, desk: Desk) -> None:
        """A repair's report arrives as it was given, and the request names the containers."""
        assert await control.repair(run, ["a", "b"]) == REPAIR
        assert desk.requests == [{"verb": "repair", "names": ["a", "b"]}]

    async def test_release(self, run: Path, desk: Desk) -> None:
        """A release's report arrives as it was given."""
        assert await control.release(run, "a", ["/dev/nvidia0"]) == RELEASE
        assert desk.requests == [{"verb": "release", "name": "a", "devices": ["/dev/nvidia0"]}]

    async def test_of_the_daemon_itself(self, run: Path, desk: Desk) -> None:
        """What the daemon tells of itself arrives as it was given."""
        assert await control.daemon(run) == DAEMON
        assert desk.requests == [{"verb": "daemon"}]

    async def test_of_a_daemon_from_before_an_upgrade(self, run: Path) -> None:
        """What it does not tell of itself yet is not known, and the rest is."""

        async def older(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            report = {"version": "0.1", "mode": "enforce", "settings": "", "trouble": None}
            writer.write(json.dumps({"report": report}).encode() + b"\n")
            writer.close()

        server = await asyncio.start_unix_server(older, str(run / SOCKET))
        assert await control.daemon(run) == DaemonReport("0.1", "enforce", "")
        server.close()

    async def test_not_found(self, run: Path, desk: Desk) -> None:
        """What the daemon does not find the command does not find, in the same words."""
        with pytest.raises(NotFoundError, match="nobody: no GPU container of this id"):
            await control.release(run, "nobody", [])
        assert len(desk.requests) == 1

    async def test_failure(self, run: Path, desk: Desk) -> None:
        """A failure is told with the daemon's reason."""
        with pytest.raises(GpuguardError, match="the daemon answers: the ledger cannot be written"):
            await control.release(run, "broken", [])
        assert len(desk.requests) == 1

    async def test_several_at_once(self, run: Path, desk: Desk) -> None:
        """A request that takes long holds up no other."""
        desk.hold.clear()
        waiting = [asyncio.ensure_future(control.repair(run, [])) for _ in range(5)]
        await until(lambda: len(desk.requests) == 5)
        desk.hold.set()
        assert await asyncio.gather(*waiting) == [REPAIR] * 5


class TestPresence:
    """Whether a daemon runs."""

    async def test_with_a_server(self, run: Path, desk: Desk) -> None:
        """A daemon that listens runs; asking it so asks nothing of it."""
        assert await control.daemon_runs(run)
        assert desk.requests == []

    @pytest.mark.invariant(4)
    async def test_that_may_not_be_asked(self, run: Path, desk: Desk) -> None:
        """Whom the socket does not let in cannot tell whether a daemon runs; a request says what it lacks."""
        (run / SOCKET).chmod(0)
        # Root without its right to pass over permissions is like anybody else.
        powerless = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--"]
        asking = [*(powerless if os.geteuid() == 0 else []), sys.executable, "-c"]
        answers = []
        for script in (ASK, ASK_REPAIR):
            client = await asyncio.create_subprocess_exec(*asking, script, str(run), stdout=subprocess.PIPE)
            answers.append((await client.communicate())[0].decode())
        refusal = f"{run / SOCKET}: the daemon cannot be asked: Permission denied; are you root?\n"
        assert answers == ["None\n", refusal]
        assert desk.requests == []

    @pytest.mark.invariant(4)
    async def test_with_a_full_queue(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A socket whose queue is full is a daemon's: it is not taken for stopped, and an answer is not waited for."""
        monkeypatch.setattr(control, "_CONNECT_TIME", 0.1)
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
            busy.bind(str(run / SOCKET))
            busy.listen(0)
            waiting.connect(str(run / SOCKET))
            assert await control.daemon_runs(run) is True
            with pytest.raises(GpuguardError, match="the daemon does not answer"):
                await control.repair(run, [])

    async def test_a_place_in_the_queue_is_waited_for(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A queue that is full for a moment costs nobody his answer."""
        monkeypatch.setattr(control, "_CONNECT_TIME", 20.0)
        desk = Desk()
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
            busy.bind(str(run / SOCKET))
            busy.listen(0)
            waiting.connect(str(run / SOCKET))
            asking = asyncio.ensure_future(control.repair(run, []))
            await asyncio.sleep(0.1)
            server = ControlServer(run, desk.answer)
            await server.start()
            assert await asyncio.wait_for(asking, 20) == REPAIR
            await server.stop()

    async def test_without(self, run: Path) -> None:
        """Without a socket no daemon runs, and a request says so."""
        assert not await control.daemon_runs(run)
        with pytest.raises(GpuguardError, match="the daemon does not answer"):
            await control.repair(run, [])

    async def test_a_socket_that_was_left_behind(self, run: Path) -> None:
        """A dead daemon's socket is no daemon; a new one takes its place, and removes it at the end."""
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(run / SOCKET))
        assert not await control.daemon_runs(run)
        server = ControlServer(run, Desk().answer)
        await server.start()
        assert await control.daemon_runs(run)
        await server.stop()
        assert not (run / SOCKET).exists()

    async def test_a_daemon_that_stops_in_the_middle(self, run: Path) -> None:
        """Who waits for an answer when the daemon stops is told that there is none, and nothing goes on behind."""
        desk = Desk()
        desk.hold.clear()
        server = ControlServer(run, desk.answer)
        await server.start()
        waiting = asyncio.ensure_future(control.repair(run, []))
        await until(lambda: bool(desk.requests))
        _, silent = await asyncio.open_unix_connection(str(run / SOCKET))
        # Before Python 3.14 asyncio leaks a connection that it accepts while the server closes.
        await until(lambda: len(server._sessions) == 2)
        await asyncio.wait_for(server.stop(), 20)
        with pytest.raises(GpuguardError, match="the daemon does not answer"):
            await asyncio.wait_for(waiting, 20)
        silent.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


class TestHostility:
    """What may come over the socket."""

    async def test_is_root_s_alone(self, run: Path, desk: Desk) -> None:
        """Nobody but the daemon's own user may connect."""
        assert (run / SOCKET).stat().st_mode & 0o777 == 0o600
        assert desk.requests == []

    @pytest.mark.parametrize(
        "data",
        [
            b"\n",
            b"garbage\n",
            b"\xff\xfe\n",
            b"null\n",
            b"[]\n",
            b'"repair"\n',
            b"{}\n",
            b'{"verb": "release"}\n',
            b"[" * 100_000 + b"\n",
        ],
    )
    async def test_nonsense_gets_an_error_and_harms_nobody(self, run: Path, desk: Desk, data: bytes) -> None:
        """Any line that is no request is answered with an error, and the next client is served."""
        answer = json.loads(await say(run, data))
        assert list(answer) == ["error"]
        assert await control.repair(run, []) == REPAIR
        assert desk.requests

    @pytest.mark.invariant(10)
    async def test_a_huge_line_is_cut_off(self, run: Path, desk: Desk) -> None:
        """A line without end is not kept in memory: the client is let go without an answer."""
        assert await say(run, b'{"verb": "' + b"a" * (3 << 20)) == b""
        assert await control.repair(run, []) == REPAIR
        assert len(desk.requests) == 1

    @pytest.mark.invariant(10)
    async def test_a_silent_client_is_let_go(self, run: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who connects and says nothing is let go after a while, and holds up nobody meanwhile."""
        monkeypatch.setattr(control, "_REQUEST_TIME", 0.2)
        reader, writer = await asyncio.open_unix_connection(str(run / SOCKET))
        assert await control.repair(run, []) == REPAIR
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert len(desk.requests) == 1

    async def test_a_client_that_leaves(self, run: Path, desk: Desk) -> None:
        """Who does not wait for the answer harms nobody."""
        desk.hold.clear()
        _, writer = await asyncio.open_unix_connection(str(run / SOCKET))
        writer.write(b'{"verb": "repair"}\n')
        await until(lambda: bool(desk.requests))
        writer.transport.abort()
        desk.hold.set()
        assert await control.repair(run, []) == REPAIR

    async def test_a_path_too_long_for_a_socket(self, tmp_path: Path) -> None:
        """A run directory with a path that is too long is told with the reason."""
        deep = tmp_path / ("x" * 120)
        deep.mkdir()
        with pytest.raises(GpuguardError, match="cannot listen: AF_UNIX path too long"):
            await ControlServer(deep, Desk().answer).start()

    async def test_a_daemon_that_answers_nonsense(self, run: Path) -> None:
        """A command that gets no report from whoever listens says so."""

        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b"nonsense\n")
            writer.close()

        server = await asyncio.start_unix_server(nonsense, str(run / SOCKET))
        with pytest.raises(GpuguardError, match="the daemon does not answer"):
            await control.repair(run, [])
        server.close()
