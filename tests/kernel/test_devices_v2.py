"""Reading cgroup v2 on the kernel's own hierarchy: what counts, whose it is, and that a look costs little."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, ProgramGoneError
from gpuguard.kernel import bpf, devices_v2, effort
from gpuguard.kernel.devices_v2 import DevicesV2
from gpuguard.model.device_filter import Owner
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from tests.lab import bpf as lab
from tests.lab import device_programs as shapes
from tests.model.looks import rules

SCOPE = f"/docker-{'ab' * 32}.scope"
NULL, GPU0, GPU1 = "c 1:3 rwm", "c 195:0 rw", "c 195:1 rw"
# A program that no list of rules describes: it denies one device of a major that it allows.
ALL_BUT_ONE = shapes.crun([(Rule.parse("c 195:* rwm"), True), (Rule.parse("c 195:1 rwm"), False)])


class Tree:
    """Control groups below a scratch group, with programs as systemd and the runtimes attach them."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        self.root = root
        self.asked: list[Rule] = []
        self.devices = DevicesV2(root, lambda: self.asked)
        self._stack = stack
        stack.callback(self.devices.close)

    def path(self, group: str) -> Path:
        """Return the directory of a control group."""
        return self.root / group.lstrip("/")

    def make(self, group: str, *lines: str, systemd: Optional[tuple[str, ...]] = None) -> str:
        """Make a control group with the runtime's program for these rules, if any, and systemd's."""
        self.path(group).mkdir(exist_ok=True)
        if lines:
            self.attach(group, shapes.runc(rules(*lines)))
        if systemd is not None:
            self.attach(group, shapes.systemd(rules(*systemd)), licence="GPL", name="sd_devices")
        return group

    def attach(self, group: str, code: bytes, licence: str = "Apache", name: str = "") -> lab.Loaded:
        """Attach a program; the descriptor is open until the end of the test."""
        loaded = self._stack.enter_context(lab.program(code, licence=licence, name=name))
        lab.attach(self.path(group), loaded.fd)
        return loaded

    def lines(self, group: str) -> set[str]:
        """Return the rules in force."""
        return set(self.devices.read(group).rules.text().splitlines())


@contextlib.contextmanager
def sleeping(cgroup: Path) -> Iterator[None]:
    """Keep a process in a control group for the time of the block."""
    process = subprocess.Popen(["sleep", "infinity"])
    try:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def tree() -> Iterator[Tree]:
    """Return an empty tree on the kernel."""
    reason = lab.why_not()
    if reason is not None:
        pytest.skip(reason)
    with lab.scratch() as root, contextlib.ExitStack() as stack:
        yield Tree(root, stack)


class TestRead:
    """What is in force in a control group."""

    def test_without_programs_everything_is_allowed(self, tree: Tree) -> None:
        """No program at all is no filter."""
        tree.make(SCOPE)
        seen = tree.devices.read(SCOPE)
        assert seen.rules == RuleSet(unrestricted=True)
        assert seen.filters == ()
        assert seen.inode == tree.devices.inode(SCOPE) == tree.path(SCOPE).stat().st_ino

    def test_is_what_the_one_program_accepts(self, tree: Tree) -> None:
        """One program, the runtime's, says it all."""
        tree.make(SCOPE, NULL, GPU0)
        assert tree.lines(SCOPE) == {NULL, GPU0}
        [only] = tree.devices.read(SCOPE).filters
        assert (only.control_group, only.owner, only.exact) == (SCOPE, Owner.RUNTIME, True)
        assert f"the runtime's program {only.program} on {SCOPE}" == str(only)

    def test_may_be_systemd_s_without_its_name(self, tree: Tree) -> None:
        """Up to v250 systemd named none of its programs: one on a scope itself may be its own, and gives nothing."""
        tree.make(SCOPE, NULL, GPU0)
        tree.attach(SCOPE, shapes.systemd(rules(NULL)), licence="GPL")
        assert {entry.owner for entry in tree.devices.read(SCOPE).filters} == {Owner.RUNTIME, Owner.UNKNOWN}

    def test_is_what_all_programs_accept(self, tree: Tree) -> None:
        """A reload puts systemd's beside the runtime's, and both must allow: this is the fault on cgroup v2."""
        tree.make(SCOPE, NULL, GPU0, systemd=(NULL, GPU1))
        assert tree.lines(SCOPE) == {NULL}
        assert {entry.owner for entry in tree.devices.read(SCOPE).filters} == {Owner.RUNTIME, Owner.SYSTEMD}

    def test_counts_the_programs_of_every_group_above(self, tree: Tree) -> None:
        """What a slice denies is denied, and the program is found on its level."""
        tree.make("/a.slice", NULL, GPU0)
        tree.make("/a.slice/a-b.slice")
        scope = tree.make(f"/a.slice/a-b.slice{SCOPE}", NULL, GPU0, GPU1)
        assert tree.lines(scope) == {NULL, GPU0}
        assert [(entry.control_group, entry.owner) for entry in tree.devices.read(scope).filters] == [
            (scope, Owner.RUNTIME),
            ("/a.slice", Owner.UNKNOWN),
        ]

    def test_counts_programs_above_the_root_that_is_seen(self, tree: Tree) -> None:
        """In a cgroup namespace the groups above its root have no name, and their programs are in force."""
        tree.make("/outer", NULL, GPU0)
        tree.make(f"/outer{SCOPE}", NULL, GPU0, GPU1)
        inner = DevicesV2(tree.path("/outer") / SCOPE[1:], lambda: ())
        tree.path(f"/outer{SCOPE}/x.scope").mkdir()
        seen = inner.read("/x.scope")
        inner.close()
        assert seen.rules == RuleSet(rules(NULL, GPU0))
        assert [entry.control_group for entry in seen.filters] == ["/", "/.."]

    def test_leaves_out_what_a_group_below_overrides(self, tree: Tree) -> None:
        """A group may let those below it override its program (BPF_F_ALLOW_OVERRIDE), which then is not in force."""
        top, between = tree.make("/a.slice", NULL, GPU0, GPU1), tree.make("/a.slice/a-b.slice")
        with lab.program(shapes.runc(rules(NULL))) as loaded:
            lab.attach(tree.path(between), loaded.fd, overridable=True)
            scope = tree.make(f"{between}{SCOPE}", NULL, GPU0)
            assert tree.lines(scope) == {NULL, GPU0}
            assert [entry.control_group for entry in tree.devices.read(scope).filters] == [scope, top]

    def test_the_same_program_on_two_levels(self, tree: Tree) -> None:
        """A program may be attached more than once; it is told once, where the container is."""
        tree.make("/a.slice")
        scope = tree.make(f"/a.slice{SCOPE}")
        loaded = tree.attach("/a.slice", shapes.runc(rules(NULL)))
        lab.attach(tree.path(scope), loaded.fd)
        assert tree.lines(scope) == {NULL}
        assert [entry.control_group for entry in tree.devices.read(scope).filters] == [scope]


class TestSubGroup:
    """crun runs the container in a group below its scope."""

    def test_is_judged_with_the_scope(self, tree: Tree) -> None:
        """The scope has systemd's program, the group below it the runtime's: both must allow."""
        tree.make(SCOPE, systemd=(NULL,))
        tree.make(f"{SCOPE}/container", NULL, GPU0)
        seen = tree.devices.read(SCOPE)
        assert seen.rules == RuleSet(rules(NULL))
        assert [(entry.control_group, entry.owner) for entry in seen.filters] == [
            (f"{SCOPE}/container", Owner.RUNTIME),
            (SCOPE, Owner.SYSTEMD),
        ]

    def test_is_the_runtime_s_whatever_its_licence(self, tree: Tree) -> None:
        """The program of crun is unnamed and GPL, as systemd's was; but systemd attaches nothing below a scope."""
        tree.make(SCOPE, systemd=(NULL,))
        tree.make(f"{SCOPE}/container")
        tree.attach(f"{SCOPE}/container", shapes.crun([(Rule.parse(GPU0), True)]), licence="GPL")
        assert [entry.owner for entry in tree.devices.read(SCOPE).filters] == [Owner.RUNTIME, Owner.SYSTEMD]

    def test_one_with_systemd_s_name_is_systemd_s(self, tree: Tree) -> None:
        """Whoever names it so has it taken for that, which blocks and gives nothing, also below a scope."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/container", systemd=(NULL,))
        assert [entry.owner for entry in tree.devices.read(SCOPE).filters] == [Owner.SYSTEMD, Owner.RUNTIME]

    @pytest.mark.parametrize("unit", ["system.slice", "init.scope", "dbus.service"])
    def test_of_a_systemd_in_the_container_is_not_the_container(self, tree: Tree, unit: str) -> None:
        """What a nested systemd denies to its own units is not denied to the container."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/{unit}", systemd=(NULL,))
        assert tree.lines(SCOPE) == {NULL, GPU0}

    def test_that_has_no_program_changes_nothing(self, tree: Tree) -> None:
        """Docker in Docker makes groups of its own below the scope."""
        tree.make(SCOPE, NULL, GPU0)
        for child in ("init", "docker"):
            tree.make(f"{SCOPE}/{child}")
        assert tree.lines(SCOPE) == {NULL, GPU0}

    def test_is_not_chosen_among_several(self, tree: Tree) -> None:
        """Which of several groups is the container cannot be told: the scope's own programs count."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/one", NULL)
        tree.make(f"{SCOPE}/two", NULL)
        assert tree.lines(SCOPE) == {NULL, GPU0}

    @pytest.mark.invariant(2)
    def test_is_not_the_container_when_processes_are_beside_it(self, tree: Tree) -> None:
        """A runtime in the container made it for one of its own: the container has what the scope has."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/nested", NULL)
        assert tree.lines(SCOPE) == {NULL}
        with sleeping(tree.path(SCOPE)):
            assert tree.lines(SCOPE) == {NULL, GPU0}

    @pytest.mark.invariant(10)
    def test_is_not_looked_for_among_many(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many groups a container makes, a look costs the same."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/one", NULL)
        tree.make(f"{SCOPE}/two")
        monkeypatch.setattr(tree.devices, "_children", None)
        assert tree.lines(SCOPE) == {NULL, GPU0}

    def test_that_is_filtered_later_is_seen(self, tree: Tree) -> None:
        """The program of a group below is a change of the scope."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/container")
        before = tree.devices.read(SCOPE)
        tree.attach(f"{SCOPE}/container", shapes.runc(rules(NULL)))
        assert tree.devices.read(SCOPE) != before
        assert tree.lines(SCOPE) == {NULL}


class TestPrograms:
    """Programs that no list of rules describes."""

    @pytest.mark.invariant(4)
    def test_are_asked_about_the_candidates(self, tree: Tree) -> None:
        """The devices that one is entitled to and those of the host are known then, and that it is not all."""
        tree.make(SCOPE)
        tree.attach(SCOPE, ALL_BUT_ONE)
        tree.asked = [Rule.parse(GPU1), Rule.parse("c 195:2 rwm")]
        seen = tree.devices.read(SCOPE, rules(GPU0))
        assert seen.rules == RuleSet(rules("c 195:0 rwm", "c 195:2 rwm"))
        assert [entry.exact for entry in seen.filters] == [False]
        assert tree.devices.read(SCOPE, rules(GPU0, "c 195:9 rw")).rules.covers(Rule.parse("c 195:9 rw"))

    @pytest.mark.invariant(4)
    def test_that_cannot_be_asked_about_a_whole_major(self, tree: Tree) -> None:
        """Whether a wildcard is in force cannot be told by asking: that is unknown, not lost."""
        tree.make(SCOPE)
        tree.attach(SCOPE, ALL_BUT_ONE)
        with pytest.raises(CgroupUnreadableError, match=r"cannot be followed.*c 195:\*"):
            tree.devices.read(SCOPE, rules("c 195:* rw"))

    @pytest.mark.invariant(4)
    def test_that_the_kernel_hides(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that cannot be read makes the container unknown."""
        tree.make(SCOPE, NULL)

        def refuse(program_id: int) -> bpf.DeviceProgram:
            raise CgroupUnreadableError(f"device program {program_id}: the kernel hides its instructions")

        monkeypatch.setattr(bpf, "program", refuse)
        with pytest.raises(CgroupUnreadableError, match="hides"):
            tree.devices.read(SCOPE)


class TestChange:
    """What is seen between two looks, and during one."""

    def test_none_gives_the_same_object(self, tree: Tree) -> None:
        """The clock tells by identity that nothing has changed."""
        tree.make(SCOPE, NULL, GPU0)
        seen = tree.devices.read(SCOPE, rules(GPU0))
        assert tree.devices.read(SCOPE) is seen
        assert tree.devices.read(SCOPE, rules(GPU0)) is seen

    def test_of_a_program_is_seen(self, tree: Tree) -> None:
        """Another program is another answer."""
        tree.make(SCOPE)
        old = tree.attach(SCOPE, shapes.runc(rules(NULL, GPU0)))
        assert tree.lines(SCOPE) == {NULL, GPU0}
        with lab.program(shapes.runc(rules(NULL))) as new:
            lab.replace(tree.path(SCOPE), old.fd, new.fd)
            assert tree.lines(SCOPE) == {NULL}

    @pytest.mark.invariant(4)
    def test_during_a_look_makes_another_look(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that goes while the programs are read is no reason to tell anything."""
        tree.make(SCOPE)
        old = tree.attach(SCOPE, shapes.runc(rules(NULL, GPU0)))
        read = bpf.program

        def late(program_id: int) -> bpf.DeviceProgram:
            if program_id == old.id:
                tree.make(SCOPE, NULL)
                lab.detach(tree.path(SCOPE), old.fd)
                raise ProgramGoneError("gone")
            return read(program_id)

        monkeypatch.setattr(bpf, "program", late)
        assert tree.lines(SCOPE) == {NULL}

    @pytest.mark.invariant(4)
    def test_at_the_end_of_a_look_makes_another_look(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that comes when the others were read already counts."""
        tree.make(SCOPE, NULL, GPU0)
        read, news = bpf.program, iter([shapes.runc(rules(NULL))])

        def early(program_id: int) -> bpf.DeviceProgram:
            found = read(program_id)
            for code in news:
                tree.attach(SCOPE, code)
            return found

        monkeypatch.setattr(bpf, "program", early)
        assert tree.lines(SCOPE) == {NULL}

    def test_of_a_group_below_that_has_just_gone_is_none(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """A group below that ended since it was listed does not end the scope."""
        tree.make(SCOPE, NULL, GPU0)
        tree.make(f"{SCOPE}/container", NULL)
        monkeypatch.setattr(tree.devices, "_children", lambda _: ["ended"])
        assert tree.lines(SCOPE) == {NULL, GPU0}

    @pytest.mark.invariant(10)
    def test_leaves_no_memory_of_old_programs(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """However often programs are replaced, only so many are remembered."""
        monkeypatch.setattr(devices_v2, "_MOST_PROGRAMS", 3)
        tree.make(SCOPE)
        for number in range(8):
            tree.attach(SCOPE, shapes.runc(rules(NULL, f"c 195:{number} rw")))
            assert tree.lines(SCOPE) == ({NULL} if number else {NULL, GPU0})
        assert len(tree.devices._programs) <= 3

    @pytest.mark.invariant(4, 10)
    def test_to_programs_that_take_long_is_unknown_for_a_while(
        self, tree: Tree, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A container with ever new programs that take long does not hold up the loop; what was seen stays."""
        monkeypatch.setattr(effort, "_LITTLE", 0.0)
        monkeypatch.setattr(effort, "_REST", 1e9)  # for as long as a busy machine takes
        tree.make(SCOPE, NULL, GPU0)
        seen = tree.devices.read(SCOPE)
        assert tree.devices.read(SCOPE) is seen
        more = tree.attach(SCOPE, shapes.runc(rules(NULL, "c 195:77 rw")))
        for _ in range(3):
            with pytest.raises(CgroupUnreadableError, match="take too long"):
                tree.devices.read(SCOPE)
        lab.detach(tree.path(SCOPE), more.fd)
        assert tree.devices.read(SCOPE) is seen

    @pytest.mark.invariant(10)
    def test_to_programs_that_need_much_memory(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """Instructions of those that are asked again and again, rules of the others: kept, but not of any number."""
        tree.make(SCOPE)
        many = shapes.runc(rules(*(f"c 195:{number} rw" for number in range(50))))
        for code, size in ((ALL_BUT_ONE, len(ALL_BUT_ONE)), (many, 50 * devices_v2._RULE_BYTES)):
            monkeypatch.setattr(devices_v2, "_MOST_BYTES", 3 * size)
            for _ in range(8):
                tree.attach(SCOPE, code)
                tree.lines(SCOPE)
            assert 1 < len(tree.devices._programs) <= 3

    @pytest.mark.invariant(10)
    def test_to_rules_without_number(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two lists have in common as many rules as their product, at worst."""
        monkeypatch.setattr(devices_v2, "_MOST_RULES", 3)
        tree.make(SCOPE, "c 1:* rw", "c 2:* rw")
        tree.attach(SCOPE, shapes.runc(rules("c *:1 rw", "c *:2 rw")))
        with pytest.raises(CgroupUnreadableError, match="too many rules"):
            tree.devices.read(SCOPE)

    @pytest.mark.invariant(4, 10)
    def test_without_end_is_told(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """Programs that change faster than they can be read are unknown, after a bounded number of looks."""
        tree.make(SCOPE, NULL)
        tries: list[int] = []

        def never(program_id: int) -> bpf.DeviceProgram:
            tries.append(program_id)
            raise ProgramGoneError("gone")

        monkeypatch.setattr(bpf, "program", never)
        with pytest.raises(CgroupUnreadableError, match="change faster"):
            tree.devices.read(SCOPE)
        assert len(tries) == devices_v2._TRIES


class TestKept:
    """The descriptors that are kept open."""

    @pytest.mark.invariant(5)
    def test_of_a_group_that_ended_is_let_go(self, tree: Tree) -> None:
        """A new group of the same name is another one, and is seen as such."""
        tree.make(SCOPE, NULL, GPU0)
        before = tree.devices.read(SCOPE)
        tree.path(SCOPE).rmdir()
        with pytest.raises(CgroupGoneError):
            tree.devices.read(SCOPE)
        tree.make(SCOPE, NULL)
        after = tree.devices.read(SCOPE)
        assert after.inode != before.inode
        assert after.rules == RuleSet(rules(NULL))

    @pytest.mark.invariant(5)
    def test_never_answers_for_a_namesake(self, tree: Tree) -> None:
        """What was kept of a group that ended unseen says that it is gone, not what its namesake has."""
        tree.make(SCOPE, NULL, GPU0)
        tree.devices.read(SCOPE)
        tree.path(SCOPE).rmdir()
        tree.make(SCOPE, NULL)
        with pytest.raises(CgroupGoneError):
            tree.devices.read(SCOPE)
        assert tree.lines(SCOPE) == {NULL}

    @pytest.mark.invariant(10)
    def test_are_closed(self, tree: Tree) -> None:
        """No descriptor is left when a group is forgotten, or all are."""
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number
        for number in range(3):
            tree.devices.read(tree.make(f"/docker-{number}.scope", NULL))
        tree.devices.forget("/docker-0.scope")
        tree.devices.forget("/docker-0.scope")
        assert tree.lines("/docker-0.scope") == {NULL}
        tree.devices.close()
        # The three programs that the test holds.
        assert len(os.listdir("/proc/self/fd")) == before + 3  # noqa: PTH208

    @pytest.mark.invariant(10)
    def test_are_no_more_than_there_may_be(self, tree: Tree) -> None:
        """With too few descriptors for all groups it goes on, and slower; also where a program is new."""
        groups = [tree.make(f"/docker-{number}.scope") for number in range(40)]
        with lab.program(shapes.runc(rules(NULL))) as loaded:
            for group in groups:
                lab.attach(tree.path(group), loaded.fd)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 20, hard))
        try:
            assert all(tree.lines(group) == {NULL} for group in groups)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    @pytest.mark.invariant(10)
    def test_leave_half_of_them_for_all_else(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bus, the ledger and the rounds of the clock need some, too."""
        monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
        for number in range(9):
            tree.devices.read(tree.make(f"/docker-{number}.scope", NULL))
            assert len(tree.devices._kept) <= 4


class TestUntouched:
    """Nothing on cgroup v2 is gpuguard's to write."""

    @pytest.mark.invariant(6)
    def test_neither_program_nor_group(self, tree: Tree) -> None:
        """Shield and write do nothing there, whoever calls them."""
        tree.make(SCOPE, NULL)
        [program] = tree.devices.read(SCOPE).filters
        inode = tree.devices.inode(SCOPE)
        with pytest.raises(CgroupUnreadableError, match="no list to write"):
            tree.devices.allow(SCOPE, inode, Rule("c", 195, 0, Access.RW))
        tree.devices.shield(SCOPE, inode)
        assert not tree.devices.shielded(SCOPE)
        assert not tree.devices.unshield(SCOPE, inode)
        assert not tree.devices.as_made(SCOPE, RuleSet())
        assert tree.devices.read(SCOPE).filters == (program,)
        assert tree.path(SCOPE).stat().st_nlink == 2


def test_units_are_found_with_their_inodes(tree: Tree) -> None:
    """Scopes in slices at any depth, and nothing below them."""
    for group in ("/a.slice", "/a.slice/a-b.slice", "/x"):
        tree.make(group)
    scopes = [tree.make(f"{above}{SCOPE}") for above in ("", "/a.slice", "/a.slice/a-b.slice")]
    for group in (f"/x{SCOPE}", f"{scopes[0]}{SCOPE}"):
        tree.make(group)
    found = dict(tree.devices.units(lambda name: name.startswith("docker-")))
    assert found == {scope: tree.path(scope).stat().st_ino for scope in scopes}
