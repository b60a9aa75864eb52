"""Programs that are started on this machine, as the kernel's process events connector tells over netlink.

For those that asked systemd, or wrote a device list, and are gone when somebody wants to know who it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from pathlib import Path
from typing import Any, Callable, Optional

from gpuguard.errors import SourceError
from gpuguard.kernel import netlink
from gpuguard.kernel.datagrams import Datagrams
from gpuguard.kernel.pace import Pace
from gpuguard.kernel.processes import Processes
from gpuguard.kernel.socket_filter import accept_words
from gpuguard.model.process import Process
from gpuguard.model.recent import Execution, Recent, telling
from gpuguard.source import OnStanding, Source

EXECUTIONS = "executions"

LONGEST_PAUSE = 60.0
MOST_PER_SECOND = 300
# Seconds without listening after there were too many.
REST = 10.0
ANSWER = 2.0

# cn_proc_mcast_ctl() and cn_proc of the kernel take part only in the initial namespaces (include/linux/proc_ns.h).
_INITIAL = {"ns/pid": 0xEFFFFFFC, "ns/user": 0xEFFFFFFD}

# struct nlmsghdr (16 bytes), struct cn_msg (20), struct proc_event of <linux/cn_proc.h>: what, cpu, timestamp_ns, and
# of an execution the thread and its process, of the answer to a subscription an error number.
_ACKNOWLEDGED = struct.Struct("=28xI")
_EVENT = struct.Struct("=36xI4xQI")
_PROCESS = struct.Struct("=56xI")
_WHAT = 36  # bytes from the beginning
_ACTION_SIZE = 4  # enum proc_cn_mcast_op


class ExecutionSource:
    """Remembers who started a program that is `telling`; each goes to `on_execution`, too.

    Every start of any program costs the daemon some 0.1 ms. More than `most_per_second` are not followed: it stops
    listening for REST seconds, and says so. A program that ends within a millisecond may be gone before it is read.
    """

    def __init__(
        self,
        proc: Path,
        on_standing: OnStanding,
        on_execution: Optional[Callable[[Execution], None]] = None,
        most_per_second: int = MOST_PER_SECOND,
        rest: float = REST,
    ) -> None:
        self._proc = proc
        self._processes = Processes(proc)
        self._on_execution = on_execution
        self._most = most_per_second
        self._rest = rest
        self._source = Source(EXECUTIONS, on_standing)
        self._recent = Recent()
        self._datagrams: Optional[Datagrams] = None

    async def run(self) -> None:
        """Deliver until cancelled."""
        await self._source.keep(self._session, LONGEST_PAUSE)

    def by_pid(self, pid: int, at: float) -> tuple[Process, ...]:
        """Return who had that number at that time of CLOCK_MONOTONIC, and its ancestors; () where it is not known."""
        return self._caught_up().by_pid(pid, at)

    def requesters(self, wanted: Callable[[tuple[str, ...]], bool], since: float) -> list[tuple[Process, ...]]:
        """Return who began to ask systemd for something since then, newest first, each with its ancestors."""
        return self._caught_up().requesters(wanted, since)

    def _caught_up(self) -> Recent:
        if self._datagrams is not None:
            self._datagrams.read()
        return self._recent

    async def _session(self) -> str:
        _require_initial_namespaces(self._proc)
        modules = netlink.load()
        cn_proc = modules.cn_proc
        core = modules.nlsocket.AsyncNetlinkSocket(modules.netlink.NETLINK_CONNECTOR)
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        token = os.getpid()

        def deliver(data: bytes) -> None:
            if len(data) < _PROCESS.size:
                return
            what, nanoseconds, error = _EVENT.unpack_from(data)
            if what == cn_proc.PROC_EVENT_EXEC:
                (pid,) = _PROCESS.unpack_from(data)
                self._executed(pid, nanoseconds / 1e9)
            elif not answered.done():
                # Every listener gets every listener's answer. The sequence number in it is not the one that was sent
                # (send_msg() of the kernel), this one is, plus 1.
                (acknowledged,) = _ACKNOWLEDGED.unpack_from(data)
                if acknowledged == token + 1:
                    answered.set_result(error)

        pace = Pace(self._most)
        # Forks and exits, which are many more, do not wake the daemon.
        program = accept_words(_WHAT, (cn_proc.PROC_EVENT_NONE, cn_proc.PROC_EVENT_EXEC))
        datagrams = Datagrams(core, cn_proc.CN_IDX_PROC, deliver, pace, program)
        try:
            datagrams.open()
            datagrams.send(_control(modules, cn_proc.PROC_CN_MCAST_LISTEN, token))
            either: list[asyncio.Future[Any]] = [answered, datagrams.ended]
            await asyncio.wait(either, timeout=ANSWER, return_when=asyncio.FIRST_COMPLETED)
            if not datagrams.ended.done():
                _require_accepted(answered)
                self._datagrams = datagrams
                self._source.up()
            reason = await datagrams.ended
        finally:
            self._datagrams = None
            # The kernel counts its listeners, and older ones do not count one less when a socket is closed.
            with contextlib.suppress(SourceError):
                datagrams.send(_control(modules, cn_proc.PROC_CN_MCAST_IGNORE, token))
            datagrams.close()
        if pace.over:
            self._source.down(reason)
            await asyncio.sleep(self._rest)
        return reason

    def _executed(self, pid: int, at: float) -> None:
        # The rest of a process that has just begun takes five times as long to read as its name.
        if not telling(self._processes.name(pid)):
            return
        asks = self._processes.asks(pid)
        if asks:
            line = self._processes.lineage(pid)
        else:
            found = self._processes.read(pid)
            line = () if found is None else (found,)
        if not line:
            return
        execution = Execution(at, line, asks)
        self._recent.note(execution)
        if self._on_execution is not None:
            self._on_execution(execution)


def _require_initial_namespaces(proc: Path) -> None:
    """Raise SourceError elsewhere: the kernel takes a subscription there and never delivers."""
    for name, inode in _INITIAL.items():
        path = proc / "self" / name
        try:
            found = path.stat().st_ino
        except OSError as error:
            raise SourceError(f"{path}: cannot read: {error.strerror}") from error
        if found != inode:
            kind = name.rpartition("/")[2]
            raise SourceError(f"the kernel tells of programs only in the host's own {kind} namespace, not in this one")


def _control(modules: netlink.Netlink, action: int, token: int) -> bytes:
    """Return a message that subscribes, or ends that."""
    message = modules.cn_proc.proc_event_control()
    message.update(
        idx=modules.cn_proc.CN_IDX_PROC, val=modules.cn_proc.CN_VAL_PROC, ack=token, len=_ACTION_SIZE, action=action
    )
    message["header"].update(type=modules.netlink.NLMSG_DONE, flags=0, sequence_number=0, pid=0)
    message.reset()
    message.encode()
    return bytes(message.data)


def _require_accepted(answered: asyncio.Future[int]) -> None:
    """Raise SourceError when the kernel has refused the subscription, or not answered."""
    if not answered.done():
        raise SourceError("the kernel does not answer a subscription to process events (CONFIG_PROC_EVENTS)")
    if answered.result():
        raise SourceError(f"the kernel refuses process events: {os.strerror(answered.result())}")
