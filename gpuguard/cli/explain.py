"""`gpuguard explain`: one container's three lists side by side, who denies, what a reload would do, what to do."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.cli import codes, colour, status, table
from gpuguard.cli.colour import paint
from gpuguard.cli.settings import load
from gpuguard.cli.table import Cell, Names
from gpuguard.model.advice import advice
from gpuguard.model.device_filter import DeviceFilter, Owner
from gpuguard.model.explanation import Comparison, Denier, Explanation
from gpuguard.model.last_writer import to_document
from gpuguard.model.pathname import within
from gpuguard.model.reload import reload_sentence
from gpuguard.model.state import State
from gpuguard.report.phrases import Phrases

_HEADER = ("DEVICE", "NODE", "ENTITLED", "NOW", "SYSTEMD WRITES", "AFTER RELOAD", "DENIED BY")
_NODES = Names(_HEADER.index("NODE"), left=0)
_UNKNOWN = Cell("cannot tell", colour.YELLOW)
_AFTER = {True: ("kept", "LOST"), False: ("allowed", "DENIED"), None: ("allowed", "DENIED")}


def run(args: argparse.Namespace) -> int:
    """Explain the container and print it."""
    from gpuguard.guard import once  # noqa: PLC0415 - its libraries are slow to import, and rendering needs none

    settings, fault = load(args.config)
    explanation = asyncio.run(once.explain(settings, args.container, fault))
    if args.json:
        print(json.dumps(document(explanation), indent=2))
        return codes.OK
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(people(explanation, width=width, colours=colour.wanted(sys.stdout), everything=args.all))
    return codes.OK


def document(explanation: Explanation) -> dict[str, object]:
    """Return what --json prints: node and container as in `status --json`, and the rest."""
    shown = status.document(replace(explanation.node, containers=(explanation.container,)))
    containers = shown["containers"]
    declaration = explanation.declaration
    return {
        "version": 1,
        "node": shown["node"],
        "container": containers[0] if isinstance(containers, list) else None,
        "rules": [_rule(one) for one in explanation.comparisons],
        "programs": None if explanation.filters is None else [_program(one) for one in explanation.filters],
        "shield": explanation.shield,
        "systemd": {
            "policy": None if declaration is None else declaration.policy.value,
            "entries": None if declaration is None else declaration.entries,
            "differs_on_disk": None if declaration is None else declaration.differs,
            "files": None if declaration is None or declaration.files is None else list(declaration.files),
            "refusal": explanation.refusal,
            "trouble": explanation.trouble,
        },
        "hindrance": explanation.plan.hindrance,
        "last_writer": None if explanation.last_writer is None else to_document(explanation.last_writer),
        "bundle": explanation.bundle,
        "doubts": list(explanation.doubts),
        "reload": reload_sentence(explanation),
        "advice": list(advice(explanation)),
    }


def _rule(one: Comparison) -> dict[str, object]:
    return {
        "device": one.rule.device,
        "node": one.node,
        "access": one.rule.access.letters(),
        "guarded": one.guarded,
        "entitled": one.entitled,
        "released": one.released,
        "effective": one.effective,
        "declared": one.declared,
        "declared_memory": one.memory,
        "declared_disk": one.disk,
        "declared_by": one.entry,
        "after_reload": one.after_reload,
        "denied_by": [_denier(denier) for denier in one.denied_by],
        "sources": list(one.sources),
        "stale": one.stale,
    }


def _denier(denier: Denier) -> dict[str, object]:
    return {"cgroup": denier.control_group, "program": denier.program, "owner": _owner(denier.owner)}


def _program(one: DeviceFilter) -> dict[str, object]:
    return {
        "cgroup": one.control_group,
        "program": one.program,
        "owner": _owner(one.owner),
        "rules": len(one.rules) if one.exact and not one.rules.unrestricted else None,
        "allows_all": one.rules.unrestricted,
        "exact": one.exact,
    }


def _owner(owner: Owner) -> Optional[str]:
    return None if owner is Owner.UNKNOWN else owner.value


def people(
    explanation: Explanation, *, width: Optional[int] = None, colours: bool = False, everything: bool = False
) -> str:
    """Return the text for people; `everything` includes the rules that need no attention."""
    lines = list(_head(explanation, colours=colours))
    shown = [one for one in explanation.comparisons if everything or one.matters]
    if shown:
        rows = [_row(one, explanation) for one in shown]
        lines += ["", *table.render(_HEADER, rows, width, colours=colours, names=_NODES)]
    hidden = len(explanation.comparisons) - len(shown)
    if hidden:
        lines.append(f"other rules, which need no attention: {hidden} (--all shows them)")
    sections = (
        ("Where the entitlement comes from:", _sources(explanation)),
        ("Programs in force, all of which must allow:", _programs(explanation, width)),
        ("What systemd knows:", _systemd(explanation)),
        ("Who wrote last:", _wrote(explanation)),
        ("What a reload of systemd would do:", [reload_sentence(explanation)]),
        ("What to do:", advice(explanation)),
    )
    for title, section in sections:
        body = [f"  {table.printable(line)}" for line in section]
        if body:
            lines += ["", title, *body]
    return "\n".join(lines)


def _head(explanation: Explanation, *, colours: bool) -> Iterator[str]:
    container, node = explanation.container, explanation.node
    state = status.state_cell(container.state)
    name = table.printable(status.display_name(container))
    reason = f": {table.printable(status.in_short(container.reason, container.cgroup))}" if container.reason else ""
    yield f"{name} is {paint(state.text, state.colour) if colours else state.text}{reason}"
    what = "unit" if container.id == container.scope and container.managed else "container"
    yield f"  {container.runtime} {what} {table.printable(container.id)}"
    yield f"  control group {table.printable(container.cgroup)}"
    systemd = "systemd does not answer" if node.systemd is None else f"systemd {node.systemd}"
    yield f"  node: cgroup {node.cgroup}, {systemd}, mode {node.mode}, daemon {node.daemon}"
    if node.trouble is not None:
        yield from (f"  {table.printable(line)}" for line in node.trouble.splitlines())


def _row(one: Comparison, explanation: Explanation) -> list[Cell]:
    entitled = {True: Cell("yes"), False: Cell("no"), None: _UNKNOWN}[one.entitled]
    owed = bool(one.entitled)
    return [
        Cell(str(one.rule)),
        Cell(one.node or "-"),
        Cell("released") if one.released else entitled,
        _answer(("allowed", "DENIED"), answer=one.effective, owed=owed),
        _declared(one, owed=owed),
        _answer(_AFTER[one.effective], answer=one.after_reload, owed=owed),
        Cell(", ".join(_who(denier, explanation) for denier in one.denied_by) or "-"),
    ]


def _answer(words: tuple[str, str], *, answer: Optional[bool], owed: bool) -> Cell:
    """Return an answer; what the container is not entitled to is neither good nor bad."""
    good, bad = words
    if answer is None:
        return _UNKNOWN
    if not owed:
        return Cell(good if answer else bad.lower())
    return Cell(good, colour.GREEN) if answer else Cell(bad, colour.RED)


def _declared(one: Comparison, *, owed: bool) -> Cell:
    if one.memory is not one.disk:
        return Cell("memory only" if one.memory else "disk only", colour.RED if owed else "")
    return _answer(("yes", "NO"), answer=one.declared, owed=owed)


def _who(denier: Denier, explanation: Explanation) -> str:
    level = _level(denier.control_group, explanation.container.cgroup)
    return level if denier.program is None else f"program {denier.program} on {level}"


def _level(group: str, own: str) -> str:
    """Return a control group as people see it from the container."""
    if group == own:
        kinds = {".scope": "the scope", ".service": "the unit"}
        return kinds.get(PurePosixPath(own).suffix, "the container")
    return group.removeprefix(own) if within(group, own) else group


def _sources(explanation: Explanation) -> Iterator[str]:
    rules: dict[Sequence[str], list[str]] = {}  # most have the same sources, whose names are long
    for one in explanation.comparisons:
        if one.entitled and one.sources:
            rules.setdefault(one.sources, []).append(str(one.rule))
    for sources, those in rules.items():
        yield f"{', '.join(those)}: {'; '.join(sources)}"
    for one in explanation.comparisons:
        if one.stale is not None:
            yield f"{one.rule} is stale: {one.stale}"
    yield from explanation.doubts


def _programs(explanation: Explanation, width: Optional[int]) -> Iterable[str]:
    if not explanation.filters:
        return ()
    own = explanation.container.cgroup
    rows = [
        [Cell(str(one.program)), Cell(_whose(one, own)), Cell(_accepts(one)), Cell(_level(one.control_group, own))]
        for one in explanation.filters
    ]
    header: Sequence[str] = ("ID", "WHOSE", "ACCEPTS", "ON")
    return table.render(header, rows, None if width is None else width - 2, colours=False)


def _whose(one: DeviceFilter, own: str) -> str:
    if one.owner is Owner.UNKNOWN:
        return "unknown"
    if one.owner is Owner.SYSTEMD:
        return "systemd's"
    # On a slice nothing but its not being systemd's is known.
    return "the runtime's" if within(one.control_group, own) else "not systemd's"


def _accepts(one: DeviceFilter) -> str:
    if not one.exact:
        return "cannot be followed: was asked"
    if one.rules.unrestricted:
        return "everything"
    return f"{len(one.rules)} rule" + ("" if len(one.rules) == 1 else "s")


def _systemd(explanation: Explanation) -> Iterator[str]:
    declaration = explanation.declaration
    if explanation.container.state is State.UNRESTRICTED:
        return
    if declaration is None:
        if explanation.container.managed:
            yield f"cannot be told: {explanation.trouble or 'it was not asked'}"
    else:
        yield f"DevicePolicy={declaration.policy.value}, entries of DeviceAllow=: {declaration.entries}"
        for one in explanation.comparisons:
            if one.entitled and one.entry is not None:
                yield f"{one.rule}: {one.entry}"
        if declaration.differs:
            files = ", ".join(declaration.foreign or declaration.files or ())
            yield f"the next reload reads something else: {files or '`systemctl cat` shows it'}"
    if explanation.refusal is not None:
        yield f"gpuguard declares nothing: {explanation.refusal}"
    elif explanation.plan.hindrance is not None:
        how_much = "only a part" if explanation.plan.declare else "nothing"
        yield f"gpuguard declares {how_much}: {explanation.plan.hindrance}"
    if explanation.shield:
        yield "the shield is there: its rewrites take nothing away"


def _wrote(explanation: Explanation) -> Iterator[str]:
    last = explanation.last_writer
    if last is None:
        yield "unknown" if explanation.node.daemon == "running" else "unknown: only a daemon at work sees who writes"
        return
    writer = last.writer
    fields: dict[str, object] = {"cause": last.cause, "property": last.properties}
    if writer is not None:
        fields.update(writer=writer.program, writer_pid=writer.pid, writer_unit=writer.unit)
    yield f"{_time(last.at)} {Phrases(fields)['by']}"
    if writer is not None and writer.pid != 1:
        started = "" if writer.started is None else f", started {_time(writer.started)}"
        yield f"which is {writer.exe or 'a program that is not known'}{started}"
    if last.requester:
        yield f"for {last.request}"


def _time(seconds: float) -> str:
    """Return a time as journalctl's reader knows it: the node's own."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc).astimezone():%Y-%m-%d %H:%M:%S %Z}"
