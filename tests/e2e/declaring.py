"""Declares a scope's device again and again while a hook is at work: `python -m tests.e2e.declaring GROUP TRIES HOW`.

Runs in the node. HOW is "guard", gpuguard's way, or "plain", the bare call to systemd. At a random moment around each
call the hook gives the scope `c 195:77`, which it did not have: on v1 it writes to devices.allow, on v2 it attaches
a program. There are TRIES, and up to MOST times as many until a fifth of TRIES were done while the call was under way;
"plain" ends when something was lost.
Prints one line of JSON: `lost`, how often that was not there afterwards; `during`, how often it was done while the call
was under way; `errors`, what gpuguard's mender complained of.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from pathlib import Path, PurePosixPath
from typing import Callable

from gpuguard.config import Settings
from gpuguard.guard.mend import Mender, Target
from gpuguard.kernel.devices import DeviceControl
from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.kernel.devices_v2 import DevicesV2
from gpuguard.model.rule import Access, Rule
from gpuguard.model.unit import DeviceAllow
from gpuguard.systemd.link import Link
from tests.lab import bpf, hook

HOOKED = Rule.parse("c 195:77 rw")
ENTRIES = (DeviceAllow("/dev/char/195:0", Access.parse("rw")),)
ROOT = Path("/sys/fs/cgroup")
MOST = 10


class Rules:
    """The hook's write to the kernel's list on v1."""

    def __init__(self, control_group: str) -> None:
        self.devices: DeviceControl = DevicesV1(ROOT / "devices")
        self.group = ROOT / "devices" / control_group.lstrip("/")
        self._control_group = control_group

    def hook(self) -> None:
        """Give the device."""
        (self.group / "devices.allow").write_text(str(HOOKED), encoding="ascii")

    def there(self) -> bool:
        """Whether what the hook did is there."""
        return self.devices.read(self._control_group).rules.covers(HOOKED)

    def undo(self) -> None:
        """Take the device away."""
        (self.group / "devices.deny").write_text(str(HOOKED), encoding="ascii")


class Programs:
    """The hook's program on v2: one that lets through what the ones that are there do, and more."""

    def __init__(self, control_group: str) -> None:
        self.devices: DeviceControl = DevicesV2(ROOT, lambda: ())
        self.group = ROOT / control_group.lstrip("/")
        self._fd = bpf.load(bpf.ALLOW_ALL)

    def hook(self) -> None:
        """Attach it."""
        bpf.attach(self.group, self._fd)

    def there(self) -> bool:
        """Whether it is attached."""
        return bpf.program_id(self._fd) in hook.attached(self.group)

    def undo(self) -> None:
        """Detach it."""
        bpf.detach(self.group, self._fd)


async def one(
    mender: Mender, link: Link, target: Target, work: Callable[[], object], delay: float, *, guard: bool
) -> tuple[float, bool, str]:
    """Declare once, with a hook that writes after `delay` seconds.

    Return the seconds that the call took, whether the hook wrote during the call, and the mender's complaint.
    """
    wrote: list[float] = []

    def at_work() -> None:
        time.sleep(delay)
        work()
        wrote.append(time.monotonic())

    writer = threading.Thread(target=at_work)
    begin = time.monotonic()
    writer.start()
    complaint = ""
    if guard:
        complaint = (await mender.declare(target, ENTRIES)).error or ""
    else:
        await (await link.manager()).allow_devices(target.unit, ENTRIES)
    end = time.monotonic()
    writer.join()
    return end - begin, begin < wrote[0] < end, complaint


async def main(control_group: str, tries: int, *, guard: bool) -> dict[str, object]:
    """Make all tries and return what came of them."""
    scope = Rules(control_group) if (ROOT / "devices").exists() else Programs(control_group)
    target = Target(PurePosixPath(control_group).name, control_group, scope.group.stat().st_ino, control_group)
    link = Link(Settings().paths.bus)
    mender = Mender(scope.devices, link)
    lost = during = 0
    errors = []
    usual = 0.01
    for number in range(MOST * tries):
        if (number >= tries and during >= tries / 5) if guard else lost:
            break
        delay = random.uniform(0, usual)  # noqa: S311  # not for secrets
        seconds, within, complaint = await one(mender, link, target, scope.hook, delay, guard=guard)
        usual = 0.9 * usual + 0.1 * min(seconds, 3 * usual)  # however long it was kept from its processor once
        during += within
        lost += not scope.there()
        errors += [complaint] if complaint else []
        scope.undo()
    await link.close()
    return {"lost": lost, "during": during, "errors": errors}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), guard=sys.argv[3] == "guard"))))
