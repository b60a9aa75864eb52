"""A scheduling class that is woken at once, as far as the kernel allows one.

Kernel side: sched(7). With RT_GROUP_SCHED a real-time class needs a budget in the process's own cpu group, which a
service's has not unless somebody gave it one: EPERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct

from gpuguard.model.write import Standing

_PRIORITY = 10  # above nobody's but its own class: the kernel's threads have 50 and more
_NICEST = -20
# struct sched_attr of <linux/sched/types.h>: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_RESET_ON_FORK = 1
_SLICE = 100_000  # nanoseconds, the least that there is
# Microseconds that a real-time process may run without ever waiting (RLIMIT_RTTIME): a loop that healing never needs.
_MOST_AT_ONCE = 500_000
_MOST_EVER = 5_000_000


def hurry() -> Standing:
    """Have this process run before others, and say how far that went.

    A real-time process that never waits gets SIGXCPU, which calls relent(); programs that it starts are normal ones.
    """
    try:
        _bound()
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        return _nice(f"no real-time class: {why} (with RT_GROUP_SCHED the cpu group needs a budget, cpu.rt_runtime_us)")
    return Standing("rr")


def relent(reason: str) -> Standing:
    """Give the real-time class up."""
    os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    return _nice(reason)


def _bound() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    most = [limit if hard == resource.RLIM_INFINITY else min(limit, hard) for limit in (_MOST_AT_ONCE, _MOST_EVER)]
    resource.setrlimit(resource.RLIMIT_RTTIME, (most[0], most[1]))


def _nice(reason: str) -> Standing:
    for level in range(_NICEST, 0):
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, level)
            _short_slice(level)
            return Standing("nice", reason if level == _NICEST else f"{reason}; nice level {level} at best")
    return Standing("normal", reason)


def _short_slice(nice: int) -> None:
    """Ask for the shortest slice, since Linux 6.12: who wants little waits for nobody's slice to end.

    Older kernels take no notice. sched_setattr(2), and Documentation/scheduler/sched-eevdf.rst.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, _SLICE, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
