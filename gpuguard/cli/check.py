"""`gpuguard check`: one line with performance data, as monitoring plugins print it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gpuguard.cli import status, table
from gpuguard.cli.settings import load
from gpuguard.errors import GpuguardError
from gpuguard.model.state import State
from gpuguard.model.status import NodeStatus

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_CODES = {
    State.LOST: CRITICAL,
    State.PARTIAL: CRITICAL,
    State.STALE: CRITICAL,
    State.OPAQUE: UNKNOWN,
    State.AT_RISK: WARNING,
}
# An outage that is known comes first; one that cannot be ruled out is worse than one that may come.
_PRECEDENCE = (CRITICAL, UNKNOWN, WARNING, OK)


def run(args: argparse.Namespace) -> int:
    """Print the line and return the plugin's exit code. An error is "cannot tell", whatever it was."""
    try:
        code, line = verdict(status.look(*load(args.config)))
    except GpuguardError as error:
        code, line = UNKNOWN, _line(UNKNOWN, str(error))
    except Exception as error:  # noqa: BLE001 - with Python's own exit code, 1, a fault of ours would be a verdict
        code, line = UNKNOWN, _line(UNKNOWN, f"internal error: {error!r}")
    print(line)
    return code


def verdict(node: NodeStatus) -> tuple[int, str]:
    """Return exit code and line, e.g. "GPUGUARD OK - 3 protected | protected=3 at_risk=0 …"."""
    names = {state: [status.brief_name(c) for c in node.containers if c.state is state] for state in State}
    remarks = list(_remarks(node))
    codes = {_CODES.get(state, OK) for state in State if names[state]} | {code for code, _ in remarks}
    code = next((code for code in _PRECEDENCE if code in codes), OK)
    parts = [_part(state, names[state]) for state in status.ORDER if names[state]]
    text = ", ".join(parts) or "no GPU container"
    text += "".join(f" ({remark})" for _, remark in remarks)
    figures = " ".join(f"{state.name.lower()}={len(names[state])}" for state in reversed(State))
    return code, f"{_line(code, text)} | {figures}"


def _remarks(node: NodeStatus) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with the guard itself: protected or not, what is lost next nobody gives back."""
    if node.daemon == "stopped":
        yield WARNING, "daemon stopped"
    elif node.daemon != "running":
        yield UNKNOWN, "cannot tell whether the daemon works"
    elif node.mode != "enforce":
        yield WARNING, f"daemon in {node.mode} mode"
    if node.trouble is not None:
        yield WARNING, node.trouble.splitlines()[0]


def _part(state: State, names: list[str]) -> str:
    part = f"{len(names)} {state.value}"
    if state not in _CODES:
        return part
    return f"{part} ({status.named(names)})"


def _line(code: int, text: str) -> str:
    # The first | ends the text for a monitoring system, and a line's end everything.
    cleaned = table.printable(" ".join(text.split())).replace("|", "/")
    return f"GPUGUARD {_WORDS[code]} - {cleaned}"
