"""`python -m tests.lab.demo`: a GPU container loses its devices at daemon-reload, without gpuguard and with it."""

from __future__ import annotations

import argparse
import re
import socket
import sys
import urllib.request
from collections.abc import Sequence
from typing import Optional

from tests.lab import machine
from tests.lab.containers import Docker
from tests.lab.daemon import Daemon
from tests.lab.demo import screen
from tests.lab.demo.stage import Box, RealStage, SimStage, Stage, entries_of, lines_of
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.sim import node as sim

_CONFIG = """[guard]
settle = "300ms"
declare = {declare}
[log]
format = "json"
[metrics]
listen = "127.0.0.1:{port}"
"""
_SHOWN = re.compile(
    r"gpuguard_(containers\{.*\} [1-9]|drift_total\{|repairs_total\{.*\} [1-9]|reloads_total\{.*\} [1-9])"
)


def main() -> int:
    """Play on a real node where one can boot, else on the simulated one."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.demo", description=__doc__)
    parser.add_argument(
        "--cgroup", choices=["v1", "v2"], help="cgroup version (default: v1 where it can boot, else v2)"
    )
    parser.add_argument("--simulated", action="store_true", help="do not try to boot a real node")
    arguments = parser.parse_args()
    mode, reason = choose(arguments.cgroup)
    reason = "asked for" if arguments.simulated else reason
    try:
        if reason is None:
            with Node.boot(mode) as node:
                play(RealStage(node))
            return 0
        if reason != "asked for":
            screen.say(f"No real node here: {reason}.")
        with sim.SimNode.boot() as simulated:
            play(SimStage(simulated))
        screen.say(screen.bad("No kernel enforced these lists: the node was simulated.") + f" Why: {reason}.")
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def choose(asked: Optional[str]) -> tuple[str, Optional[str]]:
    """Return the cgroup version of the node, and why no such node can boot, None when it can."""
    reasons = {mode: machine.why_not(mode) or Docker.why_not() for mode in ([asked] if asked else ["v1", "v2"])}
    able = [mode for mode, reason in reasons.items() if reason is None]
    return (able[0], None) if able else next(iter(reasons.items()))


def play(stage: Stage) -> None:
    """Show loss, repair, protection, and what gpuguard tells of them."""
    screen.heading(f"gpuguard on {stage.title}")
    without_guard(stage)
    port = free_port()
    with stage.guard(_CONFIG.format(declare="false", port=port)) as guard:
        guard.await_output('"started"')
        box = first_loss(stage, guard)
        next_reload(stage, guard, box)
        what_it_tells(stage, port)
    with stage.guard(_CONFIG.format(declare="true", port=free_port())) as guard:
        guard.await_output('"started"')
        before_the_loss(stage, guard)
    screen.say()


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on: a node shares the machine's network."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def without_guard(stage: Stage) -> None:
    """Show the fault."""
    screen.heading("1. Without gpuguard")
    box = stage.box("lonely")
    before = box.gpu_rules()
    screen.command(box.shown)
    screen.lists(stage.list_shown, before, before)
    show_open(box)
    screen.command(stage.reload_shown)
    stage.reload()
    screen.lists(stage.list_shown, before, box.gpu_rules())
    show_open(box)
    screen.say("Every new CUDA process in it says: Failed to initialize NVML: Unknown Error. It stays so.")


def first_loss(stage: Stage, guard: Daemon) -> Box:
    """Show loss and repair: gpuguard is told not to protect before the first loss."""
    screen.heading("2. With gpuguard, told to wait for the first loss ([guard] declare = false)")
    box = stage.box("guarded")
    before = box.gpu_rules()
    screen.command(box.shown)
    until(lambda: bool(lines_of(guard, box.scope, ["found"])), 20, "gpuguard to learn the container")
    screen.quote(lines_of(guard, box.scope, ["found"]))
    gaps = reload_while_opening(stage, box, "healed")
    until(lambda: bool(lines_of(guard, box.scope, ["declared"])), 20, "gpuguard to mend the container")
    screen.quote(lines_of(guard, box.scope, ["lost", "repaired", "declared"]))
    for entry in entries_of(guard, box.scope, ["repaired"]):
        screen.say(which_bound(entry.get("outage_usec"), gaps))
    screen.lists(stage.list_shown, before, box.gpu_rules())
    show_open(box)
    return box


def which_bound(told: Optional[float], gaps: Optional[Sequence[float]]) -> str:
    """Say what gpuguard's time has to do with the gaps that a process met; all in microseconds. None: nobody tried."""
    if told is None:
        return "since when they were gone gpuguard does not know"
    if gaps is not None and not gaps:
        return "no open fell into the gap"
    if gaps and told < max(gaps):
        return "gpuguard's time is a lower bound, from when it noticed the write on; the gap a process meets is longer"
    return "gpuguard's time is an upper bound, from the start of the reload on; the gap that a process meets is shorter"


def next_reload(stage: Stage, guard: Daemon, box: Box) -> None:
    """Show that systemd remembers: nothing to repair any more."""
    screen.heading("3. The next reload: systemd itself writes the GPU rules now, gpuguard has nothing to do")
    before = box.gpu_rules()
    reload_while_opening(stage, box, "systemd's own gap")
    screen.lists(stage.list_shown, before, box.gpu_rules())
    screen.say(f"repairs by gpuguard meanwhile       {len(lines_of(guard, box.scope, ['repaired'])) - 1}")


def what_it_tells(stage: Stage, port: int) -> None:
    """Show the status and the metrics."""
    screen.heading("4. What gpuguard tells")
    screen.command("gpuguard status")
    screen.quote(line for line in stage.gpuguard("status").splitlines() if line)
    screen.command(f"curl -s localhost:{port}/metrics | grep …")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    screen.quote(line for line in text.splitlines() if _SHOWN.match(line))


def before_the_loss(stage: Stage, guard: Daemon) -> None:
    """Show the default: no loss at all."""
    screen.heading("5. By default gpuguard does not wait for a loss")
    box = stage.box("protected")
    before = box.gpu_rules()
    screen.command(box.shown)
    until(lambda: bool(lines_of(guard, box.scope, ["declared"])), 20, "gpuguard to protect the container")
    screen.quote(lines_of(guard, box.scope, ["found", "declared"]))
    reload_while_opening(stage, box, "systemd's own gap")
    screen.lists(stage.list_shown, before, box.gpu_rules())
    lost = lines_of(guard, box.scope, ["lost"])
    screen.say("losses seen                         " + (screen.bad(str(len(lost))) if lost else screen.good("0")))


def reload_while_opening(stage: Stage, box: Box, what: str) -> Optional[list[float]]:
    """Reload, with a process in the container that opens /dev/nvidia0 in a tight loop.

    Return its gaps, in µs; None where no kernel tells.
    """
    screen.command(stage.reload_shown)
    with box.opening() as reports:
        stage.reload()
        whole = set(box.gpu_rules())
        until(lambda: len(box.gpu_rules()) >= len(whole) and bool(box.gpu_rules()), 20, "the GPU rules")
    for report in reports:
        lengths = ", ".join(f"{gap.length_us / 1000:.2f} ms" for gap in report.gaps)
        outcome = f"denied for {lengths} ({what})" if report.gaps else "never denied"
        screen.say(f"{'a process that opens all the time':<36}{report.opens} opens, {outcome}")
    return [gap.length_us for report in reports for gap in report.gaps] if reports else None


def show_open(box: Box) -> None:
    """Show what an open comes to, where a kernel is asked."""
    answer = box.opens()
    if answer is not None:
        screen.answer("open /dev/nvidia0 in it", allowed=answer[0], detail=answer[1])


if __name__ == "__main__":
    sys.exit(main())
