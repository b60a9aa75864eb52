"""What to do, for each state, hindrance and way in which nobody guards."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuguard.model import advice as advice_module
from gpuguard.model.advice import advice
from gpuguard.model.device_filter import Owner
from gpuguard.model.explanation import Declaration, Denier, Explanation
from gpuguard.model.plan import Plan
from gpuguard.model.refusal import Refusal
from gpuguard.model.rule import Access, Rule
from gpuguard.model.state import State
from gpuguard.model.unit import DeviceAllow, DevicePolicy
from tests.model.explained import GROUP, NAME, SCOPE, UNDECLARED, UNSPELT, compared, explained, lost
from tests.model.programs import runtime, systemd

REPAIR = f"`gpuguard repair {NAME}`"
ODD = Rule.parse("c *:77 rw")


def text(explanation: Explanation) -> str:
    """Return the advice in one text; each line of it is one that somebody can follow."""
    lines = advice(explanation)
    assert lines
    assert all(line.endswith(".") and "\n" not in line for line in lines)
    assert len(set(lines)) == len(lines) <= 5
    return "\n".join(lines)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("cgroup", ["v1", "v2"])
@pytest.mark.parametrize("daemon", ["running", "stopped", "unknown"])
@pytest.mark.parametrize("declaration", [None, Declaration(DevicePolicy.STRICT, 8)])
def test_there_is_advice_for_every_state(state: State, cgroup: str, daemon: str, declaration: Any) -> None:  # noqa: ANN401
    """No state, no mode and nothing that is not known leaves the reader alone."""
    assert text(explained(state, cgroup=cgroup, daemon=daemon, declaration=declaration))
    assert text(explained(state, UNDECLARED, cgroup=cgroup, daemon=daemon, declaration=declaration))


class TestWithoutAWorry:
    """States that ask nothing."""

    def test_protected(self) -> None:
        """Nothing is to be done."""
        assert text(explained(State.PROTECTED, compared())) == "Nothing."

    def test_unrestricted(self) -> None:
        """Not even a stopped daemon matters."""
        assert text(explained(State.UNRESTRICTED, daemon="stopped")).startswith("Nothing: without a device filter")

    def test_settling(self) -> None:
        """Wait."""
        assert (
            text(explained(State.SETTLING, UNDECLARED)) == f"Wait some seconds, then `gpuguard explain {NAME}` again."
        )

    def test_excess_is_named(self) -> None:
        """What it was never given is a question for a person, in a state that is well otherwise."""
        assert "Find out who let it use c 195:3 rw" in text(explained(State.PROTECTED, excess=("c 195:3 rw",)))


class TestTheGuard:
    """What is wrong with the daemon is a part of the advice."""

    def test_stopped(self) -> None:
        """Start it."""
        assert "`systemctl start gpuguard`" in text(explained(State.PROTECTED, daemon="stopped"))

    def test_observing(self) -> None:
        """One that only observes refuses to repair: no advice to try."""
        said = text(explained(State.LOST, lost(Denier(GROUP, curable=True)), mode="observe"))
        assert 'mode = "enforce"' in said
        assert REPAIR not in said

    def test_unknown(self) -> None:
        """Nothing is claimed of one that cannot be asked."""
        assert "`systemctl status gpuguard`" in text(explained(State.PROTECTED, daemon="unknown"))

    def test_that_is_not_to_declare(self) -> None:
        """The setting that leaves containers at risk is named."""
        assert "[guard] declare = true" in text(explained(State.AT_RISK, UNDECLARED, declares=False))


class TestAtRisk:
    """What keeps systemd from being told."""

    def test_nothing_hinders(self) -> None:
        """One command."""
        assert text(explained(State.AT_RISK, UNDECLARED)).startswith(REPAIR)

    def test_no_spelling_v1(self) -> None:
        """A wildcard major has no words; a daemon gives it back."""
        found = explained(State.AT_RISK, UNSPELT, plan=Plan(undeclarable=(ODD,)))
        assert "device number in place of `*` for c *:77 rw" in text(found)
        assert "keep the daemon running" in text(found)

    def test_no_spelling_under_the_shield(self) -> None:
        """As long as the shield stands no rewrite takes it."""
        found = explained(State.AT_RISK, UNSPELT, plan=Plan(undeclarable=(ODD,)), shield=True)
        assert "the shield keeps the devices" in text(found)
        assert "keep the daemon running" not in text(found)

    def test_no_spelling_v2(self) -> None:
        """There it keeps the rest from being declared, too, and no reload may come."""
        plan = Plan(narrowed=(ODD,), undeclarable=(ODD,))
        for one in (UNSPELT, compared("c *:77 rw", entitled=False, guarded=False, hinders=True)):
            said = text(explained(State.AT_RISK, UNDECLARED, one, cgroup="v2", plan=plan))
            assert "Restart the container without c *:77 rw (--device-cgroup-rule)" in said
            assert "Until then no daemon-reload" in said

    def test_excess(self) -> None:
        """A guarded device that came later would be taken away: not by gpuguard."""
        added = compared("c 195:3 rw", entitled=False, hinders=True)
        plan = Plan(narrowed=(added.rule,))
        said = text(explained(State.AT_RISK, UNDECLARED, added, cgroup="v2", plan=plan, excess=("c 195:3 rw",)))
        assert "Restart the container: c 195:3 rw came to it after its start" in said
        assert "Find out" not in said

    def test_released(self) -> None:
        """What was released and is still in force hinders likewise."""
        freed = compared("c 195:3 rw", entitled=False, released=True, hinders=True)
        said = text(explained(State.AT_RISK, UNDECLARED, freed, cgroup="v2", plan=Plan(narrowed=(freed.rule,))))
        assert "Take away what was released" in said
        assert "came to it" not in said

    def test_what_was_taken_on_purpose_and_comes_back(self) -> None:
        """That systemd must forget it is not nothing."""
        gone = compared("c 195:3 rw", entitled=False, released=True, effective=False)
        said = text(explained(State.PROTECTED, gone))
        assert "Have systemd forget" in said
        assert "Nothing" not in said

    def test_a_program_that_is_no_list(self) -> None:
        """It is named by its id and its level."""
        odd = runtime("c 195:0 rw", exact=False)
        said = text(explained(State.AT_RISK, UNDECLARED, cgroup="v2", filters=(odd,), plan=Plan(unclear=True)))
        assert f"the runtime's program 11 on {odd.control_group}" in said

    def test_a_unit_that_outlives_the_run(self) -> None:
        """The lines to write into it are given."""
        said = text(explained(State.AT_RISK, UNDECLARED, refusal=Refusal.NOT_TRANSIENT.value))
        assert f"`systemctl edit {SCOPE}`, there [Service] DeviceAllow=/dev/char/195:0 rw." in said
        said = text(explained(State.AT_RISK, UNDECLARED, refusal=Refusal.RESTARTABLE.value))
        assert "`systemd-run --property=`: DeviceAllow=/dev/char/195:0 rw." in said

    def test_gated_by_a_program_of_the_unit(self) -> None:
        """BPFProgram= is the unit's own matter."""
        assert "BPFProgram=device:" in text(explained(State.AT_RISK, UNDECLARED, refusal=Refusal.GATED.value))

    def test_no_filter_of_systemds(self) -> None:
        """Nothing can be declared where one entry would make a filter."""
        said = text(explained(State.AT_RISK, UNDECLARED, refusal=Refusal.UNFILTERED.value))
        assert "Nothing can be declared" in said

    def test_no_such_unit(self) -> None:
        """A control group without unit, or another one's."""
        said = text(explained(State.AT_RISK, UNDECLARED, declaration=None, trouble="systemd has no such unit"))
        assert f"`systemctl status {SCOPE}`: systemd has no such unit." in said
        said = text(explained(State.AT_RISK, UNDECLARED, refusal="systemd has the unit elsewhere"))
        assert "not that of a unit that systemd knows" in said

    def test_no_bus(self) -> None:
        """Why systemd does not answer is to be seen there."""
        said = text(explained(State.AT_RISK, compared(memory=None, disk=None), declaration=None, systemd=None))
        assert "`busctl status`" in said

    def test_an_administrators_drop_in(self) -> None:
        """The file that overrules memory is named, systemd's own are not."""
        own, foreign = "/run/systemd/transient/x.scope.d/50-DeviceAllow.conf", "/etc/systemd/system/x.scope.d/x.conf"
        only_memory = compared(disk=False, after_reload=False)
        differs = Declaration(DevicePolicy.STRICT, 8, differs=True, files=(own, foreign))
        said = text(explained(State.AT_RISK, only_memory, declaration=differs))
        assert f"at a reload: {foreign}." in said
        assert own not in said
        for files in ((own,), None):
            differs = Declaration(DevicePolicy.STRICT, 8, differs=True, files=files)
            assert "write its list to disk again" in text(explained(State.AT_RISK, only_memory, declaration=differs))


class TestLost:
    """An outage."""

    @pytest.mark.parametrize("state", [State.LOST, State.PARTIAL])
    @pytest.mark.parametrize("cgroup", ["v1", "v2"])
    def test_repair(self, state: State, cgroup: str) -> None:
        """Where nothing hinders, one command, first."""
        one = lost(Denier(GROUP, 12, Owner.SYSTEMD, curable=True))
        assert text(explained(state, one, cgroup=cgroup, daemon="stopped")).startswith(f"{REPAIR} gives it back now")

    def test_denied_above_v1(self) -> None:
        """The ancestor must allow it first."""
        said = text(explained(State.LOST, lost(Denier("/system.slice"))))
        assert "`echo 'c 195:0 rw' > /sys/fs/cgroup/devices/system.slice/devices.allow`" in said
        assert f"Then {REPAIR}" in said

    def test_blocked_by_somebodys_program_on_a_slice(self) -> None:
        """Program and level are named in commands that show whose it is."""
        said = text(explained(State.LOST, lost(Denier("/a.slice", 77)), cgroup="v2"))
        assert "`bpftool prog show id 77`, `bpftool cgroup show /sys/fs/cgroup/a.slice`" in said

    def test_blocked_by_systemds_program_on_a_slice(self) -> None:
        """A slice can be told to allow it, all of it in one command."""
        denier = Denier("/a.slice", 77, Owner.SYSTEMD)
        lines = ("c 195:0 rw", "c 189:* rwm", "b *:* m", "c *:77 rw")
        said = text(explained(State.LOST, *(lost(denier, line=line) for line in lines), cgroup="v2"))
        want = "'DeviceAllow=/dev/char/195:0 rw' 'DeviceAllow=char-189 rwm' 'DeviceAllow=block-* m'"
        assert f"`systemctl set-property --runtime a.slice {want}`" in said
        assert "`systemctl cat a.slice`" in said
        assert "bpftool" in text(explained(State.LOST, lost(denier, line="c *:77 rw"), cgroup="v2"))

    @pytest.mark.parametrize("group", [GROUP, f"{GROUP}/container"])
    def test_blocked_by_the_containers_own_program(self, group: str) -> None:
        """Its runtime denies it: only a new start helps."""
        said = text(explained(State.LOST, lost(Denier(group, 77, Owner.RUNTIME)), cgroup="v2"))
        assert said.startswith("Restart the container with the device: its own program 77 denies it.")

    def test_what_has_words_comes_back_and_the_rest_does_not(self) -> None:
        """After a reload on cgroup v2: the GPU can be declared, `c *:77` cannot."""
        denier = Denier(GROUP, 12, Owner.SYSTEMD, curable=True)
        plan = Plan(declare=(DeviceAllow("/dev/char/195:0", Access.RW),), undeclarable=(ODD,))
        found = explained(State.LOST, lost(denier), lost(denier, line="c *:77 rw"), cgroup="v2", plan=plan)
        assert text(found).startswith(f"{REPAIR} gives back what systemd has words for.\nRestart the container")

    @pytest.mark.parametrize("refusal", [*(one.value for one in Refusal), "systemd has no such unit"])
    def test_no_declaration_is_possible_v2(self, refusal: str) -> None:
        """There nothing else gives back."""
        one = lost(Denier(GROUP, 12, Owner.SYSTEMD, curable=True), memory=False, disk=False)
        said = text(explained(State.LOST, one, cgroup="v2", refusal=refusal))
        assert REPAIR not in said
        if refusal == Refusal.NOT_TRANSIENT.value:
            assert said.startswith("Say it in the unit itself")
        elif refusal != Refusal.RESTARTABLE.value:
            assert said.startswith("Restart the container for the rest")

    def test_stale(self) -> None:
        """Other numbers: a new start."""
        assert text(explained(State.STALE)).startswith("Restart the container")


@pytest.mark.parametrize(
    ("reason", "want"),
    [
        ("x: Operation not permitted: gpuguard needs CAP_SYS_ADMIN (CAP_BPF is not enough)", "with CAP_SYS_ADMIN"),
        ("the kernel hides its instructions: give gpuguard CAP_SYSLOG and", "`sysctl kernel.kptr_restrict=1`"),
        ("cannot read devices.list: Permission denied", f"`sudo gpuguard explain {NAME}`"),
        ("device program 7 on /a.slice cannot be followed: calls", "`bpftool cgroup tree /sys/fs/cgroup`"),
        ("its first process is in /a.slice, whose device rules count for it", "restart it while another container"),
        ("devices.list makes no sense", "what the reason names"),
        (None, "what the reason names"),
    ],
)
def test_opaque_names_the_privilege(reason: str, want: str) -> None:
    """What is missing to read the kernel's answer, by the reason."""
    assert want in text(explained(State.OPAQUE, cgroup="v2", reason=reason))


def test_a_chosen_id_is_used_whole() -> None:
    """A plain unit is called by its name, which no 12 letters of are enough."""
    found = explained(State.SETTLING)
    unit = replace(found, container=replace(found.container, id="text-generation.service"))
    assert "`gpuguard explain text-generation.service`" in text(unit)
    odd = replace(unit, container=replace(unit.container, id=r"a\x2db;c.service"))
    assert r"`gpuguard explain 'a\x2db;c.service'`" in text(odd)


def test_filters_of_no_interest_are_not_named() -> None:
    """Only the program that is no list is told of."""
    both = (systemd("c 195:0 rw"), runtime("c 195:0 rw", exact=False))
    said = text(explained(State.AT_RISK, UNDECLARED, cgroup="v2", filters=both, plan=Plan(unclear=True)))
    assert "program 12" not in said


def test_what_is_to_be_read_is_there() -> None:
    """Pages that a line sends to are installed where it says, and have the heading that it names."""
    root, source = Path(__file__).parents[2], Path(advice_module.__file__).read_text()
    assert f"DOC={advice_module._DOCS.rpartition('/docs')[0]}\n" in (root / "tools/layout").read_text()
    pages = set(re.findall(r"\{_DOCS\}/([\w-]+\.md)", source))
    assert pages
    assert all((root / "docs" / page).exists() for page in pages)
    assert '"Who did it"' in source
    assert "\n## Who did it\n" in (root / "docs/how-it-works.md").read_text()
