"""Rules whose numbers belong to somebody else by now."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import BLOCK, CHAR, Rule
from gpuguard.model.stale import drivers_of, stale, unguarded
from tests.model.strategies import RULES

UVM = Rule.parse("c 510:0 rw")
GPU = Rule.parse("c 195:0 rw")
Drivers = frozenset[tuple[str, int, str]]


def drivers(*lines: str) -> Drivers:
    """Return drivers from lines such as "510 nvidia-uvm", "b 8 sd"."""
    found = set()
    for line in lines:
        *kind, major, name = line.split(" ")
        found.add((kind[0] if kind else CHAR, int(major), name))
    return frozenset(found)


def reason(rule: Rule, then: Drivers, now: Drivers) -> str:
    """Return why a rule is stale by its driver, "" when it is not."""
    return stale([rule], then, Majors(now), {}, {}).get(rule, "")


class TestDrivers:
    """By the drivers of the majors."""

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        ("now", "why"),
        [
            (("510 vfio", "511 nvidia-uvm"), "c 510:0 was nvidia-uvm's, which now has major 511; 510 is vfio's"),
            (("510 vfio",), "c 510:0 was nvidia-uvm's; 510 is vfio's"),
            (("511 nvidia-uvm",), "c 510:0 was nvidia-uvm's, which now has major 511"),
            (("b 510 nvidia-uvm", "510 vfio"), "c 510:0 was nvidia-uvm's; 510 is vfio's"),
        ],
    )
    def test_another_driver_has_it(self, now: tuple[str, ...], why: str) -> None:
        """Or its own has gone to another one."""
        expected = f"{why}: a restart of the container gives it the new numbers"
        assert reason(UVM, drivers("510 nvidia-uvm"), drivers(*now)) == expected

    @pytest.mark.parametrize(
        "now",
        [
            (),
            ("195 nvidia",),
            ("510 nvidia-uvm",),
            ("510 nvidia-uvm", "510 vfio"),
            ("510 nvidia-uvm", "511 nvidia-uvm"),
            ("b 511 nvidia-uvm",),
        ],
    )
    def test_still_its_own_or_nobodys(self, now: tuple[str, ...]) -> None:
        """A driver that is not loaded has not moved."""
        assert reason(UVM, drivers("510 nvidia-uvm"), drivers(*now)) == ""

    @pytest.mark.parametrize(
        ("then", "now"),
        [
            (("195 nvidia-frontend",), ("195 nvidia", "195 nvidiactl", "195 nvidia-modeset")),
            (("195 nvidia", "195 nvidiactl"), ("195 nvidia-frontend",)),
        ],
    )
    def test_the_names_of_nvidias_driver(self, then: tuple[str, ...], now: tuple[str, ...]) -> None:
        """An upgrade over 550.40 changes the name and nothing else."""
        assert reason(GPU, drivers(*then), drivers(*now)) == ""

    def test_without_a_note_of_then(self) -> None:
        """Nothing is said of a driver that was not known."""
        assert reason(UVM, frozenset(), drivers("510 vfio")) == ""
        assert reason(UVM, drivers("195 nvidia"), drivers("510 vfio")) == ""

    def test_a_wildcard(self) -> None:
        """A rule for a whole major is stale with it; one for all majors never is."""
        then, now = drivers("510 nvidia-uvm"), drivers("510 vfio")
        assert reason(Rule.parse("c 510:* rw"), then, now).startswith("c 510:* was nvidia-uvm's; 510 is vfio's")
        assert reason(Rule.parse("c *:* rw"), then, now) == ""

    def test_blocks_are_others(self) -> None:
        """A block major is not a character major."""
        rule = Rule.parse("b 8:0 rw")
        assert reason(rule, drivers("8 sg", "b 8 sd"), drivers("8 other", "b 8 sd")) == ""
        assert "b 8:0 was sd's" in reason(rule, drivers("b 8 sd"), drivers("b 8 other"))


class TestNodes:
    """By the nodes under which they were given."""

    GIVEN = DeviceNumber(CHAR, 510, 0)

    def why(self, now: dict[str, DeviceNumber], path: str = "/dev/nvidia-uvm") -> str:
        """Return why the rule is stale on a host with these nodes."""
        return stale([UVM], (), Majors(), {path: self.GIVEN}, now).get(UVM, "")

    @pytest.mark.invariant(1)
    def test_another_number(self) -> None:
        """The driver has made its node anew."""
        why = self.why({"/dev/nvidia-uvm": DeviceNumber(CHAR, 511, 0)})
        assert why.startswith("/dev/nvidia-uvm was c 510:0, and is c 511:0 now: a restart")
        assert "is b 510:0 now" in self.why({"/dev/nvidia-uvm": DeviceNumber(BLOCK, 510, 0)})

    @pytest.mark.parametrize("now", [{}, {"/dev/nvidia-uvm": GIVEN}, {"/dev/other": DeviceNumber(CHAR, 511, 0)}])
    def test_the_same_or_none(self, now: dict[str, DeviceNumber]) -> None:
        """A node that is not there has not changed."""
        assert self.why(now) == ""

    def test_under_another_name(self) -> None:
        """`--device /dev/nvidia1:/dev/nvidia0` gives a node another name than it has on the host."""
        now = {"/dev/nvidia0": DeviceNumber(CHAR, 510, 9), "/dev/nvidia1": self.GIVEN}
        assert self.why(now, "/dev/nvidia0") == ""

    def test_under_the_name_of_another_drivers(self) -> None:
        """One of the two has a major of its own: no driver's node has moved between them."""
        host = {"/dev/nvidia-uvm": self.GIVEN, "/dev/nvidia0": DeviceNumber(CHAR, 195, 0)}
        assert self.why(host, "/dev/nvidia0") == ""
        given = {"/dev/nvidia-uvm": DeviceNumber(CHAR, 195, 0)}
        assert not stale([GPU], (), Majors(), given, host)

    @pytest.mark.invariant(1)
    def test_another_drivers_device_has_just_this_number(self) -> None:
        """nvidia-uvm and nvidia-caps have changed places: what opened the one opens a MIG capability now."""
        now = {"/dev/nvidia-uvm": DeviceNumber(CHAR, 511, 0), "/dev/nvidia-caps/nvidia-cap0": self.GIVEN}
        assert self.why(now).startswith("/dev/nvidia-uvm was c 510:0, and is c 511:0 now: a restart")

    @pytest.mark.parametrize("line", ["c 510:1 rw", "c 510:* rw"])
    def test_all_of_a_driver_that_has_moved(self, line: str) -> None:
        """Not only the number of the node that tells of it."""
        rule, now = Rule.parse(line), {"/dev/nvidia-uvm": DeviceNumber(CHAR, 511, 0)}
        assert set(stale([rule], (), Majors(), {"/dev/nvidia-uvm": self.GIVEN}, now)) == {rule}

    def test_other_rules(self) -> None:
        """Of a driver that has the same major only the rule for that very number is."""
        others = [Rule.parse("c 510:1 rw"), Rule.parse("c 510:* rw"), Rule.parse("b 510:0 rw")]
        now = {"/dev/nvidia-uvm": DeviceNumber(CHAR, 510, 7)}
        assert not stale(others, (), Majors(), {"/dev/nvidia-uvm": self.GIVEN}, now)

    def test_a_block_device_of_the_same_major(self) -> None:
        """It does not move with the character device."""
        block, now = Rule.parse("b 510:0 rw"), {"/dev/nvidia-uvm": DeviceNumber(CHAR, 511, 0)}
        assert set(stale([UVM, block], (), Majors(), {"/dev/nvidia-uvm": self.GIVEN}, now)) == {UVM}


_DRIVERS = st.frozensets(
    st.tuples(
        st.sampled_from([CHAR, BLOCK]), st.integers(1, 3), st.sampled_from(["nvidia", "nvidia-frontend", "a", "b"])
    ),
    max_size=6,
)


def test_the_drivers_of_rules() -> None:
    """Those of their majors alone, of the same type."""
    majors = Majors(drivers("195 nvidia", "195 nvidiactl", "510 nvidia-uvm", "b 195 other"))
    assert drivers_of([GPU], majors) == drivers("195 nvidia", "195 nvidiactl")
    assert drivers_of([], majors) == frozenset()


@pytest.mark.invariant(1)
def test_a_driver_that_nobody_guards() -> None:
    """Its rules are another one's only where it was not known whose they are: a class may leave the settings."""
    majors = Majors(drivers("195 nvidia"))
    assert set(unguarded([GPU], (), majors, lambda _: False)) == {GPU}
    assert unguarded([GPU], (), majors, lambda _: True) == {}
    assert unguarded([GPU], drivers("195 nvidia"), majors, lambda _: False) == {}


@given(rules=st.frozensets(RULES, max_size=5), majors=_DRIVERS)
def test_nothing_is_stale_at_once(rules: frozenset[Rule], majors: Drivers) -> None:
    """With the drivers of when the rules were given none is."""
    then = drivers_of(rules, Majors(majors))
    assert then <= majors
    assert not stale(rules, then, Majors(majors), {}, {})
    assert not stale(rules, then, Majors(), {}, {})
