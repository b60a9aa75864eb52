"""Declares a scope's device again and again while a hook writes: `python -m tests.e2e.declaring GROUP TRIES HOW`.

Runs in the node. HOW is "shield", gpuguard's way, or "plain", the bare call to systemd. Before each try the scope has
no `c 195:77`; at a random moment around the call somebody writes it to devices.allow. Prints one line of JSON: `lost`,
how often it was not in force afterwards; `during`, how often it was written while the call was under way; `errors`,
what gpuguard's mender complained of.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from pathlib import Path, PurePosixPath

from gpuguard.config import Settings
from gpuguard.guard.mend import Mender, Target
from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.model.rule import Access, Rule
from gpuguard.model.unit import DeviceAllow
from gpuguard.systemd.link import Link

HOOKED = Rule.parse("c 195:77 rw")
ENTRIES = (DeviceAllow("/dev/char/195:0", Access.parse("rw")),)
DEVICES = DevicesV1(Path("/sys/fs/cgroup/devices"))


async def one(mender: Mender, link: Link, target: Target, delay: float, *, shield: bool) -> tuple[float, bool, str]:
    """Declare once, with a hook that writes after `delay` seconds.

    Return the seconds that the call took, whether the hook wrote during the call, and the mender's complaint.
    """
    wrote: list[float] = []

    def hook() -> None:
        time.sleep(delay)
        DEVICES.allow(target.control_group, target.inode, HOOKED)
        wrote.append(time.monotonic())

    writer = threading.Thread(target=hook)
    begin = time.monotonic()
    writer.start()
    complaint = ""
    if shield:
        complaint = (await mender.declare(target, ENTRIES)).error or ""
    else:
        await (await link.manager()).allow_devices(target.unit, ENTRIES)
    end = time.monotonic()
    writer.join()
    return end - begin, begin < wrote[0] < end, complaint


async def main(control_group: str, tries: int, *, shield: bool) -> dict[str, object]:
    """Make all tries and return what came of them."""
    group = DEVICES.root / control_group.lstrip("/")
    target = Target(PurePosixPath(control_group).name, control_group, group.stat().st_ino)
    link = Link(Settings().paths.bus)
    mender = Mender(DEVICES, link)
    lost = during = 0
    errors = []
    usual = 0.01
    for _ in range(tries):
        delay = random.uniform(0, usual)  # noqa: S311  # not for secrets
        seconds, within, complaint = await one(mender, link, target, delay, shield=shield)
        usual = 0.9 * usual + 0.1 * seconds
        during += within
        lost += not DEVICES.read(control_group).rules.covers(HOOKED)
        errors += [complaint] if complaint else []
        (group / "devices.deny").write_text(str(HOOKED), encoding="ascii")
    await link.close()
    return {"lost": lost, "during": during, "errors": errors}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), shield=sys.argv[3] == "shield"))))
