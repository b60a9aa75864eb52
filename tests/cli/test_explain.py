"""What `gpuguard explain` shows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Optional

import pytest

from gpuguard.cli.explain import document, people
from gpuguard.model.device_filter import DeviceFilter, Owner
from gpuguard.model.explanation import Declaration, Denier, Explanation, LastWriter
from gpuguard.model.plan import Plan
from gpuguard.model.process import Process
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.unit import DevicePolicy
from tests.model.explained import GROUP, ID, UNDECLARED, compared, explained, lost
from tests.model.programs import runtime, systemd

AT = 1_796_034_737.25
BASH = Process(4711, "bash", "/usr/bin/bash", control_group="/user.slice/session-3.scope", started=AT - 60)
UPGRADE = ("systemctl daemon-reload", "dpkg postinst of telegraf", "apt-get", "unattended-upgrade.service")
OTHER = compared("c 1:3 rwm", node=None, guarded=False, entitled=False, entry="DeviceAllow=/dev/null rwm")


def section(text: str, title: str) -> list[str]:
    """Return the lines below a title."""
    _, _, rest = text.partition(f"\n\n{title}")
    assert rest, text
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()[1:]]


def row(text: str, device: str) -> list[str]:
    """Return the cells of a rule's line in the table."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"{device} "))
    return [cell.strip() for cell in line.split("  ") if cell]


def _here(filters: tuple[DeviceFilter, ...]) -> tuple[DeviceFilter, ...]:
    """Return the programs of a made-up look on the explained container's own control group."""
    return tuple(replace(one, control_group=GROUP) if one.control_group.endswith(".scope") else one for one in filters)


class TestPeople:
    """The text."""

    def test_a_protected_container(self) -> None:
        """Head, table, and each section, and nothing that needs no attention."""
        found = explained(State.PROTECTED, compared(entry="DeviceAllow=/dev/char/195:0 rw"), OTHER)
        assert people(found).splitlines() == [
            f"{ID[:12]} is protected",
            f"  docker container {ID}",
            f"  control group {GROUP}",
            "  node: cgroup v1, systemd 252, mode enforce, daemon running",
            "",
            "DEVICE      NODE          ENTITLED  NOW      SYSTEMD WRITES  AFTER RELOAD  DENIED BY",
            "c 195:0 rw  /dev/nvidia0  yes       allowed  yes             kept          -",
            "other rules, which need no attention: 1 (--all shows them)",
            "",
            "What systemd knows:",
            "  DevicePolicy=strict, entries of DeviceAllow=: 8",
            "  c 195:0 rw: DeviceAllow=/dev/char/195:0 rw",
            "",
            "Who wrote last:",
            "  unknown",
            "",
            "What a reload of systemd would do:",
            "  Nothing is taken away.",
            "",
            "What to do:",
            "  Nothing.",
        ]

    def test_all_rules_on_demand(self) -> None:
        """What needs no attention is there for who asks."""
        text = people(explained(State.PROTECTED, compared(), OTHER), everything=True)
        assert row(text, "c 1:3 rwm") == ["c 1:3 rwm", "-", "no", "allowed", "yes", "kept", "-"]
        assert "--all" not in text

    @pytest.mark.parametrize(
        ("changes", "cells"),
        [
            ({"memory": False, "disk": False, "after_reload": False}, ["yes", "allowed", "NO", "LOST"]),
            ({"disk": False, "after_reload": False}, ["yes", "allowed", "memory only", "LOST"]),
            ({"memory": False}, ["yes", "allowed", "disk only", "kept"]),
            ({"effective": False}, ["yes", "DENIED", "yes", "allowed"]),
            ({"effective": False, "after_reload": False}, ["yes", "DENIED", "yes", "DENIED"]),
            ({"effective": None, "after_reload": None}, ["yes", "cannot tell", "yes", "cannot tell"]),
            ({"memory": None, "disk": None, "after_reload": None}, ["yes", "allowed", "cannot tell", "cannot tell"]),
            ({"entitled": False, "released": True}, ["released", "allowed", "yes", "kept"]),
            ({"entitled": None}, ["cannot tell", "allowed", "yes", "kept"]),
            ({"entitled": False, "effective": False, "after_reload": False}, ["no", "denied", "yes", "denied"]),
        ],
    )
    def test_each_answer(self, changes: dict[str, Any], cells: list[str]) -> None:
        """Yes, no, and cannot tell are told apart in every column."""
        assert row(people(explained(State.AT_RISK, compared(**changes))), "c 195:0 rw")[2:6] == cells

    def test_eighty_columns(self) -> None:
        """On a narrow terminal the table is no wider than that: a long node's name and who denies are below the row."""
        long = lost(Denier(GROUP, 12, Owner.SYSTEMD), line="c 237:1 rw", node="/dev/nvidia-caps/nvidia-cap1")
        text = people(explained(State.LOST, compared(), long, cgroup="v2"), width=80)
        start = text.index("DEVICE ")
        assert text[start : text.index("\n\n", start)].splitlines() == [
            "DEVICE      NODE          ENTITLED  NOW      SYSTEMD WRITES  AFTER RELOAD",
            "  DENIED BY",
            "c 195:0 rw  /dev/nvidia0  yes       allowed  yes             kept          -",
            "c 237:1 rw                yes       DENIED   yes             DENIED",
            "  /dev/nvidia-caps/nvidia-cap1",
            "  program 12 on the scope",
        ]

    def test_the_programs(self) -> None:
        """Each with its level, id, owner, and what it comes down to; who denies is named in the rule's line."""
        filters = (systemd("c 1:3 rwm"), runtime("c 195:0 rw", exact=False), runtime("c 1:3 rwm", on="/a.slice"))
        deniers = (Denier(GROUP, 12, Owner.SYSTEMD, curable=True), Denier("/a.slice", 11, Owner.RUNTIME))
        text = people(explained(State.LOST, lost(*deniers), cgroup="v2", filters=_here(filters)))
        assert row(text, "c 195:0 rw")[-1] == "program 12 on the scope, program 11 on /a.slice"
        programs = section(text, "Programs in force, all of which must allow:")
        assert [[cell.strip() for cell in line.split("  ") if cell] for line in programs] == [
            ["ID", "WHOSE", "ACCEPTS", "ON"],
            ["12", "systemd's", "1 rule", "the scope"],
            ["11", "the runtime's", "cannot be followed: was asked", "the scope"],
            ["11", "not systemd's", "1 rule", "/a.slice"],
        ]

    def test_what_hinders(self) -> None:
        """Why nothing is declared, and what a reload reads instead of memory."""
        differs = Declaration(DevicePolicy.AUTO, 1, differs=True, files=("/etc/systemd/system/x.conf",))
        plan = Plan(undeclarable=(Rule.parse("c *:77 rw"),))
        text = people(explained(State.AT_RISK, UNDECLARED, declaration=differs, plan=plan))
        assert section(text, "What systemd knows:") == [
            "DevicePolicy=auto, entries of DeviceAllow=: 1",
            "the next reload reads something else: /etc/systemd/system/x.conf",
            "gpuguard declares nothing: undeclarable: systemd has no spelling for c *:77 rw",
        ]
        refused = explained(State.AT_RISK, UNDECLARED, refusal="BPFProgram=")
        assert section(people(refused), "What systemd knows:")[-1] == "gpuguard declares nothing: BPFProgram="

    def test_a_shield_is_told(self) -> None:
        """It explains why a reload takes nothing."""
        text = people(explained(State.AT_RISK, UNDECLARED, shield=True))
        assert "the shield is there: its rewrites take nothing away" in section(text, "What systemd knows:")

    @pytest.mark.parametrize(
        ("last", "lines"),
        [
            (
                LastWriter(AT, "reload", writer=Process(1, "systemd", control_group="/init.scope"), requester=UPGRADE),
                ["2026-11-30 11:32:17 CET by systemd (daemon-reload)", f"for {' ← '.join(UPGRADE)}"],
            ),
            (
                LastWriter(AT, "manual", writer=BASH),
                [
                    "2026-11-30 11:32:17 CET by bash (pid 4711, by hand) in session-3.scope",
                    "which is /usr/bin/bash, started 2026-11-30 11:31:17 CET",
                ],
            ),
            (
                LastWriter(AT, "property", ("CPUQuotaPerSecUSec",), Process(7, "agent")),
                [
                    "2026-11-30 11:32:17 CET by agent (pid 7, set-property of CPUQuotaPerSecUSec)",
                    "which is a program that is not known",
                ],
            ),
            (LastWriter(AT), ["2026-11-30 11:32:17 CET by an unknown program"]),
            (None, ["unknown"]),
        ],
    )
    def test_who_wrote_last(
        self, last: Optional[LastWriter], lines: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When, who, why, and for whom, in the node's own time."""
        monkeypatch.setenv("TZ", "CET-1")
        time.tzset()
        try:
            shown = people(explained(State.PROTECTED, compared(), last_writer=last))
        finally:
            monkeypatch.undo()
            time.tzset()
        assert section(shown, "Who wrote last:") == lines

    def test_without_a_daemon_nobody_saw_who_wrote(self) -> None:
        """It is told why it is not known."""
        shown = people(explained(State.PROTECTED, compared(), daemon="stopped"))
        assert section(shown, "Who wrote last:") == ["unknown: only a daemon at work sees who writes"]

    def test_what_is_not_known(self) -> None:
        """Without lists there is no table, and each unknown is told as such."""
        nothing = explained(State.OPAQUE, declaration=None, trouble="no bus", systemd=None, reason="no CAP_SYS_ADMIN")
        text = people(nothing)
        assert "DEVICE" not in text
        assert text.startswith(f"{ID[:12]} is opaque: no CAP_SYS_ADMIN\n")
        assert "systemd does not answer" in text
        assert section(text, "What systemd knows:") == ["cannot be told: no bus"]

    def test_names_from_outside_cannot_command_the_terminal(self) -> None:
        """Reasons, paths and ids come from outside."""
        evil = "\x1b[31m\n\u202e"
        found = explained(State.AT_RISK, compared(node=evil, entry=evil), reason=evil, refusal=evil, trouble=evil)
        found = replace(found, container=replace(found.container, name=evil, id=evil, cgroup=f"/{evil}"))
        found = replace(found, node=replace(found.node, trouble=evil))
        writer = Process(7, evil, evil, control_group=f"/{evil}.scope")
        found = replace(found, last_writer=LastWriter(0, "property", (evil,), writer, (evil,)))
        files = Declaration(DevicePolicy.AUTO, 1, differs=True, files=(evil,))
        for declaration in (None, files):
            for refusal in (None, evil):
                text = people(replace(found, declaration=declaration, refusal=refusal))
                assert "\x1b" not in text
                assert "\u202e" not in text
                assert "?[31m??" in text

    def test_colour_changes_nothing_else(self) -> None:
        """With colours the text is the same."""
        found = explained(State.LOST, lost(Denier(GROUP, curable=True)), compared("c 195:1 rw"))
        plain, coloured = people(found), people(found, colours=True)
        assert "\x1b[31mlost\x1b[0m" in coloured
        assert "\x1b[31mDENIED\x1b[0m" in coloured
        for code in ("31", "32", "33", "0"):
            coloured = coloured.replace(f"\x1b[{code}m", "")
        assert coloured == plain


def test_says_where_the_entitlement_comes_from() -> None:
    """Each rule's sources, the strongest first; what is stale, and what nobody knows."""
    known = compared(sources=("ledger: seen in force", "spec: linux.resources.devices in /run/b/config.json"))
    old = compared("c 510:0 rw", stale="c 510:0 was nvidia-uvm's")
    text = people(explained(State.STALE, known, old, doubts=("NVIDIA_VISIBLE_DEVICES=7: no such GPU",)))
    section = text.partition("Where the entitlement comes from:\n")[2].partition("\n\n")[0].splitlines()
    assert section == [
        "  c 195:0 rw: ledger: seen in force; spec: linux.resources.devices in /run/b/config.json",
        "  c 510:0 rw is stale: c 510:0 was nvidia-uvm's",
        "  NVIDIA_VISIBLE_DEVICES=7: no such GPU",
    ]


def test_names_a_source_once_for_all_its_rules() -> None:
    """The paths of specifications are long, and most containers have one of them for all their devices."""
    source = "spec: linux.resources.devices in /run/b/config.json"
    one, two = compared(sources=(source,)), compared("c 195:255 rw", sources=(source,))
    other = compared("c 510:0 rw", sources=("ledger: seen in force",))
    text = people(explained(State.PROTECTED, one, other, two))
    section = text.partition("Where the entitlement comes from:\n")[2].partition("\n\n")[0].splitlines()
    assert section == [f"  c 195:0 rw, c 195:255 rw: {source}", "  c 510:0 rw: ledger: seen in force"]


class TestJson:
    """The document."""

    def test_is_the_documented_document(self) -> None:
        """Every key, and nothing but JSON's own types."""
        filters = (runtime("c 195:0 rw"),)
        one = lost(Denier("/a.slice", 11), entry="DeviceAllow=/dev/char/195:0 rw", sources=("ledger: seen in force",))
        found = explained(
            State.LOST, one, cgroup="v2", filters=filters, bundle="/run/b/config.json", doubts=("it asked for more",)
        )
        shown = json.loads(json.dumps(document(found)))
        assert list(shown) == [
            *("version", "node", "container", "rules", "programs", "shield", "systemd", "hindrance", "last_writer"),
            *("bundle", "doubts", "reload", "advice"),
        ]
        assert (shown["version"], shown["container"]["id"], shown["container"]["state"]) == (1, ID, "lost")
        assert shown["node"]["cgroup"] == "v2"
        assert shown["rules"] == [
            {
                "device": "c 195:0",
                "node": "/dev/nvidia0",
                "access": "rw",
                "guarded": True,
                "entitled": True,
                "released": False,
                "effective": False,
                "declared": True,
                "declared_memory": True,
                "declared_disk": True,
                "declared_by": "DeviceAllow=/dev/char/195:0 rw",
                "after_reload": False,
                "denied_by": [{"cgroup": "/a.slice", "program": 11, "owner": None}],
                "sources": ["ledger: seen in force"],
                "stale": None,
            }
        ]
        assert (shown["bundle"], shown["doubts"]) == ("/run/b/config.json", ["it asked for more"])
        assert shown["programs"] == [
            {
                "cgroup": filters[0].control_group,
                "program": 11,
                "owner": "runtime",
                "rules": 1,
                "allows_all": False,
                "exact": True,
            }
        ]
        assert shown["systemd"] == {
            "policy": "strict",
            "entries": 8,
            "differs_on_disk": False,
            "files": [],
            "refusal": None,
            "trouble": None,
        }

    def test_who_wrote_last(self) -> None:
        """The writer and the chain of requesters, as documented."""
        last = LastWriter(AT, "manual", ("DeviceAllow",), BASH, UPGRADE)
        shown = json.loads(json.dumps(document(explained(State.LOST, last_writer=last))))
        assert shown["last_writer"] == {
            "at": "2026-11-30T10:32:17.250000+00:00",
            "cause": "manual",
            "properties": ["DeviceAllow"],
            "writer": {
                "pid": 4711,
                "name": "bash",
                "exe": "/usr/bin/bash",
                "unit": "session-3.scope",
                "container": None,
                "cgroup": "/user.slice/session-3.scope",
                "started": "2026-11-30T10:31:17.250000+00:00",
            },
            "requester": list(UPGRADE),
            "request": " ← ".join(UPGRADE),
        }

    @pytest.mark.invariant(4)
    def test_says_null_where_it_cannot_be_told(self) -> None:
        """Unknown is a value of its own, not false."""
        unclear = compared(entitled=None, effective=None, memory=None, disk=None, after_reload=None)
        shown = document(explained(State.OPAQUE, unclear, declaration=None))
        assert isinstance(shown["rules"], list)
        nulls = {key for key, value in shown["rules"][0].items() if value is None}
        asked = {"entitled", "effective", "declared", "declared_memory", "declared_disk", "declared_by", "after_reload"}
        assert nulls == asked | {"stale"}
        assert isinstance(shown["systemd"], dict)
        assert set(shown["systemd"].values()) == {None}
        assert (shown["programs"], shown["shield"], shown["last_writer"]) == (None, None, None)

    @pytest.mark.parametrize("cgroup", ["v1", "v2"])
    def test_has_no_count_of_rules_for_what_is_no_list(self, cgroup: str) -> None:
        """A program that cannot be followed, and one that allows everything."""
        both: Explanation = explained(
            State.AT_RISK, cgroup=cgroup, filters=(runtime("c 1:3 rwm", exact=False), runtime("a *:* rwm"))
        )
        programs = document(both)["programs"]
        assert isinstance(programs, list)
        assert [(one["rules"], one["allows_all"], one["exact"]) for one in programs] == [
            (None, False, False),
            (None, True, True),
        ]
