"""Programs that are started on this machine, as its kernel tells."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Union

import pytest

from gpuguard.kernel import netlink
from gpuguard.kernel.datagrams import Datagrams
from gpuguard.kernel.executions import EXECUTIONS, ExecutionSource
from gpuguard.kernel.pace import Pace
from gpuguard.kernel.socket_filter import accept_words
from gpuguard.model.recent import Execution
from gpuguard.source import SourceDown, SourceUp, Standing
from tests.systemd.peers import until
from tests.systemd.recorder import running

PROC = Path("/proc")
INITIAL_PID_NAMESPACE = 0xEFFFFFFC

host = pytest.mark.skipif(
    os.geteuid() != 0 or Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE,
    reason="needs root in the host's own pid namespace for the kernel to tell of programs",
)


class Heard:
    """What a source has told; other programs of the machine are in it, too."""

    def __init__(self, proc: Path = PROC, most_per_second: int = 100_000, rest: float = 0.05) -> None:
        self.standings: list[Standing] = []
        self.executions: list[Execution] = []
        self.source = ExecutionSource(proc, self.standings.append, self.executions.append, most_per_second, rest)

    async def until(self, *kinds: type[Union[SourceUp, SourceDown]]) -> None:
        """Wait until the standing has begun this way; fail after a deadline."""
        await until(lambda: [type(standing) for standing in self.standings][: len(kinds)] == list(kinds))


def script(path: Path, text: str) -> Path:
    """Write a script that can be executed."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    path.chmod(0o755)
    return path


async def ran(*command: Union[str, Path]) -> int:
    """Run a command to its end; return the number that it had."""
    process = await asyncio.create_subprocess_exec(*command)
    await process.wait()
    return process.pid


@host
async def test_who_asked_and_is_gone(tmp_path: Path) -> None:
    """A short systemctl is known with its command line and its ancestors when it and they are gone."""
    systemctl = script(tmp_path / "systemctl", "sleep 2")
    postinst = script(tmp_path / "fake.postinst", f"{systemctl} daemon-reload now\ntrue")
    heard = Heard()
    async with running(heard.source.run):
        await heard.until(SourceUp)
        since = time.monotonic()
        pid = await ran(postinst)
        found = heard.source.requesters(lambda command: str(systemctl) in command, since)
        assert [line[0].command for line in found] == [("/bin/sh", str(systemctl), "daemon-reload", "now")]
        assert [process.name for process in found[0][:2]] == ["systemctl", "fake.postinst"]
        assert [process.pid for process in found[0][1:3]] == [pid, os.getpid()]
        assert heard.source.requesters(lambda command: str(systemctl) in command, time.monotonic()) == []


@host
async def test_who_had_a_number(tmp_path: Path) -> None:
    """A shell that wrote something and has gone is known by its number at that time."""
    heard = Heard()
    async with running(heard.source.run):
        await heard.until(SourceUp)
        before = time.monotonic()
        pid = await ran("sh", "-c", f"sleep 2; echo > {tmp_path}/written")
        line = heard.source.by_pid(pid, time.monotonic())
        assert line[0].command == ("sh", "-c", f"sleep 2; echo > {tmp_path}/written")
        assert heard.source.by_pid(pid, before) == ()


@host
async def test_what_waits_in_the_socket_is_known(tmp_path: Path) -> None:
    """Who asks before the event loop had its turn is told of what the kernel has sent already."""
    heard = Heard()
    systemctl = script(tmp_path / "systemctl", "sleep 5")
    async with running(heard.source.run):
        await heard.until(SourceUp)
        with subprocess.Popen([systemctl]) as process:  # noqa: ASYNC220 -- the loop must not have its turn
            time.sleep(0.2)  # noqa: ASYNC251
            assert [each.name for each in heard.source.by_pid(process.pid, time.monotonic())][:1] == ["systemctl"]
            process.kill()


@host
async def test_dull_programs_are_passed_over() -> None:
    """Programs that ask nobody are not remembered, nor are forks and exits."""
    heard = Heard()
    async with running(heard.source.run):
        await heard.until(SourceUp)
        pid = await ran("sleep", "0.1")
        await asyncio.sleep(0.05)
        assert heard.source.by_pid(pid, time.monotonic()) == ()


@host
@pytest.mark.invariant(10)
async def test_programs_that_are_too_many() -> None:
    """More than are followed: it says so, rests, and listens again."""
    heard = Heard(most_per_second=2)
    async with running(heard.source.run):
        await heard.until(SourceUp)
        await asyncio.gather(*(ran("true") for _ in range(20)))
        await heard.until(SourceUp, SourceDown, SourceUp)
        reason = "more than 2 events a second: not followed for a while"
        assert heard.standings[1] == SourceDown(EXECUTIONS, reason)


@host
@pytest.mark.invariant(7)
async def test_the_kernel_is_told_of_the_end() -> None:
    """The subscription is undone: the kernel counts subscribers, and some kernels never count a closed socket less."""
    modules = netlink.load()
    answers: list[int] = []

    def answer(data: bytes) -> None:
        (acknowledged,) = struct.unpack_from("=I", data, 28)
        if acknowledged == os.getpid() + 1:
            answers.append(acknowledged)

    core = modules.nlsocket.AsyncNetlinkSocket(modules.netlink.NETLINK_CONNECTOR)
    listener = Datagrams(core, 1, answer, Pace(100_000), accept_words(36, [modules.cn_proc.PROC_EVENT_NONE]))
    try:
        listener.open()
        heard = Heard()
        async with running(heard.source.run):
            await heard.until(SourceUp)
            await until(lambda: len(answers) == 1)
        await until(lambda: len(answers) == 2)
    finally:
        listener.close()


@host
@pytest.mark.parametrize("wrong", ["pid", "user"])
async def test_another_namespace(tmp_path: Path, wrong: str) -> None:
    """Where the kernel would deliver nothing that is the reason, and no socket is opened."""
    (tmp_path / "self/ns").mkdir(parents=True)
    for name in ("pid", "user"):
        (tmp_path / f"self/ns/{name}").symlink_to("/dev/null" if name == wrong else f"/proc/self/ns/{name}")
    heard = Heard(tmp_path)
    async with running(heard.source.run):
        await heard.until(SourceDown)
    reason = f"the kernel tells of programs only in the host's own {wrong} namespace, not in this one"
    assert heard.standings == [SourceDown(EXECUTIONS, reason)]


async def test_a_proc_that_tells_nothing(tmp_path: Path) -> None:
    """Without /proc/self it cannot be told whether the kernel would deliver."""
    heard = Heard(tmp_path)
    async with running(heard.source.run):
        await heard.until(SourceDown)
    assert heard.standings == [
        SourceDown(EXECUTIONS, f"{tmp_path}/self/ns/pid: cannot read: No such file or directory")
    ]


@host
def test_another_network_namespace() -> None:
    """The connector is in the host's network namespace alone; elsewhere that is the reason."""
    code = """import asyncio, sys
from pathlib import Path
from gpuguard.kernel.executions import ExecutionSource
async def main():
    told = asyncio.Event()
    def tell(standing):
        print(getattr(standing, "reason", "up"))
        told.set()
    task = asyncio.ensure_future(ExecutionSource(Path("/proc"), tell).run())
    await asyncio.wait_for(told.wait(), 30)
    task.cancel()
asyncio.run(main())"""
    command = ["unshare", "--net", sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "netlink: cannot send: the kernel has it not, or not in this network namespace\n"
