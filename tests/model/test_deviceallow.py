"""DeviceAllow= entries: what systemd makes of them, and how rules are spelt for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.deviceallow import (
    NodeFacts,
    declared_rules,
    merge,
    paths_to_look_up,
    resolve,
    spell,
    standard_rules,
)
from gpuguard.model.fragment import parse_fragments
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DeviceAllow, DevicePolicy
from tests.model.strategies import ENTRIES, NEW_SYSTEMD, RULES, facts
from tests.model.test_majors import NVIDIA_535, NVIDIA_550, REAL

GPU = DeviceNumber("c", 195, 0)
NEW = NodeFacts(252, NVIDIA_535, {"/dev/nvidia0": GPU})
OLD = NodeFacts(239, NVIDIA_535, {"/dev/nvidia0": GPU})
LINKED = NodeFacts(239, NVIDIA_535, {"/dev/nvidia0": GPU, "/dev/char/195:0": GPU})

STANDARD = RuleSet.of(
    "b 0:0 rwm",
    "c 0:0 rwm",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rw",
)


def entry(text: str) -> DeviceAllow:
    """Read an entry as a unit file spells it, with its access."""
    path, _, access = text.rpartition(" ")
    return DeviceAllow(path, Access.parse(access))


def entries(*texts: str) -> list[DeviceAllow]:
    """Read several entries."""
    return [entry(text) for text in texts]


def rules(*lines: str) -> frozenset[Rule]:
    """Read the rules of some lines; no line, no rule."""
    return RuleSet.of(*lines).rules


class TestResolve:
    """From an entry to the rules that systemd writes."""

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            ("/dev/char/195:0 rw", ["c 195:0 rw"]),
            ("/dev/block/7:1 r", ["b 7:1 r"]),
            ("/dev/char/4095:1048575 m", ["c 4095:1048575 m"]),
            ("/dev/char/0:0 r", ["c 0:0 r"]),
            ("/dev/nvidia0 rw", ["c 195:0 rw"]),
            ("/dev/nvidia9 rw", []),
            ("char-195 rw", ["c 195:* rw"]),
            ("char-0 rw", ["c 0:* rw"]),
            ("block-7 rw", ["b 7:* rw"]),
            ("char-nvidia* rw", ["c 195:* rw", "c 507:* rw", "c 508:* rw", "c 509:* rw"]),
            ("char-infiniband_verbs rw", ["c 231:* rw", "c 235:* rw"]),
            ("char-pts rw", ["c 136:* rw"]),
            ("char-/dev/tty m", ["c 5:* m"]),
            ("block-loop rwm", ["b 7:* rwm"]),
            ("char-loop rwm", []),
            ("char-nosuch rw", []),
            ("char-* m", ["c *:* m"]),
            ("block-* m", ["b *:* m"]),
            ("char-?ts r", ["c 136:* r"]),
            ("char- rw", []),
        ],
    )
    def test_spellings_from_240_on(self, text: str, lines: list[str]) -> None:
        """From 240 on systemd reads numbers from the text, and groups through /proc/devices."""
        assert resolve(entry(text), NEW) == rules(*lines)

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            ("/dev/char/195:0 rw", []),
            ("/dev/nvidia0 rw", ["c 195:0 rw"]),
            ("char-195 rw", []),
            ("char-pts rw", ["c 136:* rw"]),
            ("block-* m", ["b 7:* m", "b 259:* m"]),
        ],
    )
    def test_spellings_before_240(self, text: str, lines: list[str]) -> None:
        """Older ones need the link to exist, take 195 for a name, and a star for one rule per known major."""
        assert resolve(entry(text), OLD) == rules(*lines)

    def test_a_link_is_followed_before_240(self) -> None:
        """With the /dev/char link there, an old systemd resolves it like any node."""
        assert resolve(entry("/dev/char/195:0 rw"), LINKED) == rules("c 195:0 rw")

    @pytest.mark.parametrize(
        "path",
        [
            "/dev/char/x",
            "/dev/char/195",
            "/dev/char/195:",
            "/dev/char/195:0x",
            "/dev/char/010:7",
            "/dev/char/0x11:7",
            "/dev/char/4096:0",
            "/dev/char/1:1048576",
            "/dev/char/-1:0",
            "/dev/char/ 1:0",
            "/dev/char/1:0\n",
            "/dev/char/\u0661:0",
            "char-4096",
            "char-021",
            "char-0x11",
            "char-\u0661",
            "nvidia0",
            "/srv/nvidia0",
            "",
        ],
    )
    def test_what_is_not_surely_read_gives_nothing(self, path: str) -> None:
        """No permission is believed in that systemd may not give: odd and over-long numbers give none."""
        assert resolve(DeviceAllow(path, Access.RWM), NEW) == frozenset()

    def test_a_node_below_dev_char_is_not_looked_up(self) -> None:
        """From 240 on a /dev/char path without numbers is refused even when there is a node."""
        there = NodeFacts(252, NVIDIA_535, {"/dev/char/gpu": GPU})
        assert resolve(entry("/dev/char/gpu rw"), there) == frozenset()

    def test_inaccessible_nodes_are_ignored_as_entries(self) -> None:
        """The bus accepts such an entry but systemd passes it over, though it allows these nodes by itself."""
        there = NodeFacts(252, NVIDIA_535, {"/run/systemd/inaccessible/chr": DeviceNumber("c", 0, 0)})
        assert resolve(entry("/run/systemd/inaccessible/chr rwm"), there) == frozenset()

    def test_no_access_gives_no_rule(self) -> None:
        """An entry without access is passed over."""
        assert resolve(DeviceAllow("/dev/char/195:0", Access.NONE), NEW) == frozenset()

    @given(ENTRIES, facts())
    def test_gives_the_entry_s_access(self, given_entry: DeviceAllow, there: NodeFacts) -> None:
        """Whatever an entry resolves to carries exactly the access of the entry."""
        assert {rule.access for rule in resolve(given_entry, there)} <= {given_entry.access}

    @given(st.text(), facts())
    def test_any_path_is_taken(self, path: str, there: NodeFacts) -> None:
        """No text makes the translation fail."""
        for prefix in ("", "char-", "/dev/", "/dev/char/"):
            resolve(DeviceAllow(prefix + path, Access.RW), there)

    @given(st.lists(ENTRIES), facts())
    def test_looks_at_the_named_paths_only(self, given_entries: Sequence[DeviceAllow], there: NodeFacts) -> None:
        """Numbers of the paths that paths_to_look_up() names are all that matters."""
        named = paths_to_look_up(given_entries, there.systemd)
        fewer = NodeFacts(there.systemd, there.majors, {p: n for p, n in there.numbers.items() if p in named})
        for one in given_entries:
            assert resolve(one, there) == resolve(one, fewer)


class TestDeclared:
    """From a unit's policy and entries to the list that systemd writes."""

    # devices.list of scopes that systemd 252 made on the kernel of REAL, with these properties.
    @pytest.mark.parametrize(
        ("policy", "texts", "lines"),
        [
            (DevicePolicy.CLOSED, ["/dev/char/1:3 rwm"], STANDARD.text().splitlines()),
            (DevicePolicy.AUTO, ["/dev/char/195:0 rw"], [*STANDARD.text().splitlines(), "c 195:0 rw"]),
            (DevicePolicy.STRICT, [], []),
            (
                DevicePolicy.STRICT,
                [
                    "/run/systemd/inaccessible/chr rw",
                    "block-loop rwm",
                    "block-* m",
                    "char-* m",
                    "char-p*s r",
                    "char-0 r",
                    "char-188 rw",
                    "char-cpu/cpuid m",
                    "/dev/block/9:1 r",
                    "/dev/char/195:0 rw",
                    "/dev/zero rwm",
                    "char-4097 r",
                ],
                [
                    "b *:* m",
                    "b 7:* rwm",
                    "b 9:1 r",
                    "c *:* m",
                    "c 0:* r",
                    "c 136:* r",
                    "c 188:* rw",
                    "c 195:0 rw",
                    "c 1:5 rwm",
                    "c 203:* m",
                    "c 251:* r",
                ],
            ),
        ],
    )
    def test_lists_of_a_real_systemd(self, policy: DevicePolicy, texts: list[str], lines: list[str]) -> None:
        """The rules are those that systemd 252 was seen to write into devices.list."""
        there = NodeFacts(252, REAL, {"/dev/zero": DeviceNumber("c", 1, 5)})
        assert declared_rules(policy, entries(*texts), there) == RuleSet.of(*lines)

    def test_auto_without_entries_is_no_filter(self) -> None:
        """Policy auto and an empty list leave the unit unrestricted."""
        assert declared_rules(DevicePolicy.AUTO, [], NEW).unrestricted

    def test_auto_with_an_entry_that_gives_nothing_is_a_filter(self) -> None:
        """One entry makes auto behave as closed, even one that resolves to nothing."""
        assert declared_rules(DevicePolicy.AUTO, entries("/dev/gone rw"), NEW) == STANDARD

    def test_closed_without_entries_has_the_standard_devices(self) -> None:
        """Closed allows null, zero and their like by itself."""
        assert declared_rules(DevicePolicy.CLOSED, [], NEW) == STANDARD

    def test_strict_adds_nothing(self) -> None:
        """Strict implies no device at all, nor does auto without entries."""
        assert standard_rules(DevicePolicy.STRICT, entries("char-pts rw")) == frozenset()
        assert standard_rules(DevicePolicy.AUTO, []) == frozenset()


class TestFieldReports:
    """The drop-ins that people posted in NVIDIA/nvidia-container-toolkit#1744."""

    # Written by runc; NVIDIA's nodes, an AMD card and its render node.
    SAFE = (
        "/dev/char/195:0 rwm",
        "/dev/char/195:254 rwm",
        "/dev/char/195:255 rwm",
        "/dev/char/509:0 rwm",
        "/dev/char/509:1 rwm",
        "/dev/char/226:1 rwm",
        "/dev/char/226:128 rwm",
        "char-136 rwm",
        "char-* m",
        "block-* m",
    )
    AT_RISK = ("char-136 rwm", "char-* m", "block-* m")
    WANTED = ("c 195:0 rw", "c 195:254 rw", "c 195:255 rw", "c 509:0 rw", "c 509:1 rw", "c 226:128 rw")

    def read(self, texts: Sequence[str]) -> RuleSet:
        """Resolve a drop-in as systemd writes it."""
        text = "[Scope]\nDeviceAllow=\n" + "".join(f"DeviceAllow={line}\n" for line in texts)
        policy, found = parse_fragments("docker-1.scope", ["[Scope]\nDevicePolicy=strict\n", text])
        return declared_rules(policy, found, NodeFacts(252, NVIDIA_550))

    def test_the_safe_one_declares_all(self) -> None:
        """The drop-in of a container that keeps its GPUs covers every rule that it was given."""
        assert self.read(self.SAFE).missing(rules(*self.WANTED)) == frozenset()

    def test_the_other_declares_none(self) -> None:
        """The drop-in of a container that loses them covers none, whatever its wildcard mknod rules say."""
        assert self.read(self.AT_RISK).missing(rules(*self.WANTED)) == rules(*self.WANTED)


class TestSpell:
    """From a rule to the entry that gives just it."""

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("c 195:0 rw", "/dev/char/195:0 rw"),
            ("b 7:1 r", "/dev/block/7:1 r"),
            ("c 136:* rwm", "char-136 rwm"),
            ("c 0:* r", "char-0 r"),
            ("b 259:* m", "block-259 m"),
            ("c *:* m", "char-* m"),
            ("b *:* m", "block-* m"),
        ],
    )
    def test_from_240_on(self, line: str, text: str) -> None:
        """Numbers are spelt as numbers: no node, link or driver is needed."""
        assert spell(Rule.parse(line), NodeFacts(252)) == entry(text)

    @pytest.mark.parametrize(
        ("line", "text"),
        [("c 195:0 rw", "/dev/nvidia0 rw"), ("c 136:* rw", "char-pts rw"), ("b 7:* r", "block-loop r")],
    )
    def test_before_240(self, line: str, text: str) -> None:
        """A node that is there, or a name that is the major's alone, has to do."""
        assert spell(Rule.parse(line), OLD) == entry(text)

    @pytest.mark.parametrize(
        "line",
        [
            "c 195:1 rw",  # no node
            "c 555:* rw",  # no driver
            "c 231:* rw",  # its names stand for other majors too, but for the first
            "c *:* m",  # a rule per known major is less
        ],
    )
    def test_no_spelling_before_240(self, line: str) -> None:
        """Nothing is spelt that an old systemd would not resolve to exactly the rule."""
        majors = NVIDIA_535.parse("Character devices:\n231 infiniband_verbs\n235 infiniband_verbs\n")
        assert spell(Rule.parse(line), NodeFacts(239, majors, {"/dev/nvidia0": GPU})) is None

    def test_the_shortest_path_is_taken(self) -> None:
        """Of several nodes with the same number the plainest name is sent."""
        there = NodeFacts(239, NVIDIA_535, {"/dev/by-id/gpu": GPU, "/dev/nvidia0": GPU, "/srv/n": GPU, "/dev/a b": GPU})
        assert spell(Rule.parse("c 195:0 rw"), there) == entry("/dev/nvidia0 rw")

    @pytest.mark.parametrize("line", ["c *:77 rw", "b *:0 m"])
    def test_a_minor_of_every_major_has_no_spelling(self, line: str) -> None:
        """No systemd can be told of it."""
        assert spell(Rule.parse(line), NEW) is None

    @given(RULES, facts(NEW_SYSTEMD))
    def test_everything_else_has_one_from_240_on(self, rule: Rule, there: NodeFacts) -> None:
        """Every rule but a minor of every major can be declared, and resolves to itself alone."""
        spelt = spell(rule, there)
        if rule.major is None and rule.minor is not None:
            assert spelt is None
        else:
            assert spelt is not None
            assert resolve(spelt, there) == {rule}

    @given(RULES, facts())
    def test_never_gives_more_or_less(self, rule: Rule, there: NodeFacts) -> None:
        """On every version what is spelt resolves to exactly the rule, in a form that the bus takes."""
        spelt = spell(rule, there)
        if spelt is not None:
            assert resolve(spelt, there) == {rule}
            assert not any(letter.isspace() for letter in spelt.path)


def systemd_merge(current: Sequence[DeviceAllow], sent: Sequence[DeviceAllow]) -> list[DeviceAllow]:
    """Do what bus_cgroup_set_property() in dbus-cgroup.c does with an array that is not empty."""
    merged = list(current)
    for new in sent:
        known = next((at for at, old in enumerate(merged) if old.path == new.path), None)
        if known is None:
            merged.insert(0, new)
        else:
            merged[known] = new
    return merged


class TestMerge:
    """What is sent so that systemd knows the wanted rules."""

    def test_sends_what_is_missing(self) -> None:
        """Only the rule that nothing covers is sent."""
        current = entries("/dev/char/195:255 rw", "char-pts rw")
        sent, rest = merge(
            DevicePolicy.STRICT, current, rules("c 195:0 rw", "c 195:255 rw", "c 136:3 r"), NEW, disk=None
        )
        assert sent == (entry("/dev/char/195:0 rw"),)
        assert rest == ()

    def test_a_known_path_keeps_its_access(self) -> None:
        """A path that systemd has gets a new access: both accesses are sent."""
        sent, _ = merge(DevicePolicy.STRICT, entries("/dev/char/195:0 m"), rules("c 195:0 rw"), NEW, disk=None)
        assert sent == (entry("/dev/char/195:0 rwm"),)

    def test_a_node_that_covers_is_enough(self) -> None:
        """A device that is declared by its node's name needs no second entry."""
        wanted = rules("c 195:0 rw")
        assert merge(DevicePolicy.STRICT, entries("/dev/nvidia0 rw"), wanted, NEW, disk=None) == ((), ())

    def test_standard_devices_need_no_entry(self) -> None:
        """What the policy implies is not sent."""
        assert merge(DevicePolicy.CLOSED, [], rules("c 1:3 rw", "c 136:* rw"), NEW, disk=None) == ((), ())

    def test_an_unspellable_rule_is_named(self) -> None:
        """A rule without a spelling comes back, and does not keep the others from being sent."""
        wanted = rules("c *:77 rw", "c 195:0 rw")
        sent, rest = merge(DevicePolicy.STRICT, [], wanted, NEW, disk=None)
        assert sent == (entry("/dev/char/195:0 rw"),)
        assert rest == (Rule.parse("c *:77 rw"),)

    def test_an_unspellable_rule_may_be_covered(self) -> None:
        """A rule without a spelling is declared when an entry for a wider one is sent along."""
        sent, rest = merge(DevicePolicy.STRICT, [], rules("c *:* m", "c *:77 m"), NEW, disk=None)
        assert sent == (entry("char-* m"),)
        assert rest == ()

    def test_an_unrestricted_unit_gets_nothing(self) -> None:
        """One entry would put a filter on a unit that has none."""
        for disk in (None, RuleSet(), STANDARD):
            assert merge(DevicePolicy.AUTO, [], rules("c 195:0 rw"), NEW, disk=disk) == ((), ())

    def test_what_the_disk_has_lost_is_sent_again(self) -> None:
        """A rule in memory whose drop-in is gone is sent: systemd then writes its whole list to disk."""
        current = entries("/dev/char/195:0 rwm")
        sent, _ = merge(DevicePolicy.STRICT, current, rules("c 195:0 rw"), NEW, disk=RuleSet())
        assert sent == (entry("/dev/char/195:0 rwm"),)

    @given(st.sampled_from(DevicePolicy), st.lists(ENTRIES, max_size=5), st.frozensets(RULES, max_size=5), facts())
    def test_nothing_is_lost_and_all_that_can_be_is_declared(
        self, policy: DevicePolicy, current: list[DeviceAllow], wanted: frozenset[Rule], there: NodeFacts
    ) -> None:
        """After systemd's merge the declared list covers all that it did, and every wanted rule with a spelling."""
        before = declared_rules(policy, current, there)
        sent, undeclarable = merge(policy, current, wanted, there, disk=None)
        after = declared_rules(policy, systemd_merge(current, sent), there)
        assert after.unrestricted == before.unrestricted
        assert after.missing(before.rules) == frozenset()
        assert after.missing(wanted) == frozenset(undeclarable)
        assert all(spell(rule, there) is None for rule in undeclarable)

    @given(st.lists(ENTRIES, max_size=5), st.frozensets(RULES, max_size=5), facts())
    def test_gives_no_device_that_nobody_asked_for(
        self, current: list[DeviceAllow], wanted: frozenset[Rule], there: NodeFacts
    ) -> None:
        """Each new rule is for a device that was wanted, with no access but the wanted and the declared one."""
        sent, _ = merge(DevicePolicy.STRICT, current, wanted, there, disk=None)
        before = declared_rules(DevicePolicy.STRICT, current, there)
        for rule in declared_rules(DevicePolicy.STRICT, sent, there):
            sources = [known for known in (*wanted, *before) if known.device == rule.device]
            access = Access.NONE
            for known in sources:
                access |= known.access
            assert not rule.access & ~access

    @given(st.lists(ENTRIES, max_size=5), st.frozensets(RULES, max_size=5), facts())
    def test_is_done_after_once(self, current: list[DeviceAllow], wanted: frozenset[Rule], there: NodeFacts) -> None:
        """Once the entries are declared, there is nothing left to send."""
        sent, undeclarable = merge(DevicePolicy.STRICT, current, wanted, there, disk=None)
        again = merge(DevicePolicy.STRICT, systemd_merge(current, sent), wanted, there, disk=None)
        assert again == ((), undeclarable)

    @given(st.lists(ENTRIES, max_size=5), st.frozensets(RULES, max_size=5), facts())
    def test_sends_each_path_once(self, current: list[DeviceAllow], wanted: frozenset[Rule], there: NodeFacts) -> None:
        """No path is sent twice: the second would undo the first."""
        sent, _ = merge(DevicePolicy.STRICT, current, wanted, there, disk=RuleSet())
        assert len({one.path for one in sent}) == len(sent)
