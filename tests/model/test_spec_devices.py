"""What linux.resources.devices comes down to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import SpecError
from gpuguard.model.json_text import parse_json
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.spec_devices import MAX_ENTRIES, SpecDevices, parse_devices

NONE: dict[str, Any] = {"allow": False, "access": "rwm"}
ALL: dict[str, Any] = {"allow": True, "access": "rwm"}


def entry(text: str, *, allow: bool = True) -> dict[str, Any]:
    """Return the entry for a line such as "c 195:0 rw"; `a` and `*` are left out of it, as Docker does."""
    kind, numbers, access = text.split()
    made: dict[str, Any] = {"allow": allow, "access": access}
    if kind != "a":
        made["type"] = kind
    for name, number in zip(("major", "minor"), numbers.split(":")):
        if number != "*":
            made[name] = int(number)
    return made


def deny(text: str) -> dict[str, Any]:
    """Return the entry that takes a line away."""
    return entry(text, allow=False)


def devices(*entries: dict[str, Any]) -> SpecDevices:
    """Apply entries."""
    return parse_devices(parse_json(json.dumps(entries)))


def rules(*lines: str) -> frozenset[Rule]:
    """Return these rules."""
    return frozenset(Rule.parse(line) for line in lines)


def test_no_list_allows_nothing() -> None:
    """Neither no list nor an empty one gives a device."""
    assert parse_devices(parse_json("null")) == devices() == SpecDevices()


def test_what_is_allowed_is_given() -> None:
    """Entries add up; one that clears comes first in what engines write."""
    assert devices(NONE, entry("c 195:0 rw"), entry("c 195:255 rwm"), entry("b 8:* r")) == SpecDevices(
        rules("c 195:0 rw", "c 195:255 rwm", "b 8:* r")
    )


def test_all_means_unrestricted() -> None:
    """An allow without type and numbers, or with "a" and -1, is a list without any filter."""
    assert devices(NONE, ALL).unrestricted
    assert devices({"allow": True, "type": "a", "major": -1, "minor": -1, "access": "rwm"}).unrestricted


def test_a_later_clear_takes_all() -> None:
    """Nothing survives a deny without type and numbers."""
    assert devices(ALL, entry("c 195:0 rw"), NONE) == SpecDevices()


@pytest.mark.parametrize(
    ("denied", "left"),
    [
        ("c 195:0 rwm", ()),
        ("c 195:0 m", ("c 195:0 rw",)),
        ("c 195:1 rwm", ("c 195:0 rw",)),
        ("b 195:0 rwm", ("c 195:0 rw",)),
        ("c 195:* w", ()),
        ("c *:* w", ()),
    ],
)
def test_a_deny_takes_what_it_meets(denied: str, left: tuple[str, ...]) -> None:
    """The same numbers lose exactly what is denied; a rule that is met otherwise is lost whole."""
    assert devices(NONE, entry("c 195:0 rw"), deny(denied)) == SpecDevices(rules(*left))


def test_a_hole_in_a_wildcard_takes_the_wildcard() -> None:
    """What is left of a wildcard with a hole has no rule: none of it is given."""
    assert devices(NONE, entry("c 195:* rw"), deny("c 195:1 rwm")) == SpecDevices()


def test_a_deny_after_all_leaves_only_what_was_named() -> None:
    """All but one device is no rule: what was allowed by name stays, unless it is that device."""
    named = (entry("c 195:0 rw"), ALL, entry("c 195:1 rw"))
    assert devices(*named, deny("c 195:1 rwm")) == SpecDevices(rules("c 195:0 rw"))


def test_type_a_with_numbers_gives_no_more_than_these() -> None:
    """For runc that is everything, for others it is these numbers of both types: the latter is what all give."""
    assert devices(NONE, entry("a 195:0 rw")) == SpecDevices(rules("c 195:0 rw", "b 195:0 rw"))
    assert devices(NONE, entry("c 195:0 rw"), deny("a 8:0 rw")) == SpecDevices()


@pytest.mark.invariant(1)
@pytest.mark.parametrize("text", ["195:* rwm", "*:0 rwm", "*:* rw"])
def test_type_a_with_less_than_all_is_no_list_without_a_filter(text: str) -> None:
    """Only what names no number and all access is: else a part would be taken for everything."""
    assert devices(NONE, entry(f"a {text}")) == SpecDevices(rules(f"c {text}", f"b {text}"))
    assert devices(ALL, deny(f"a {text}")) == SpecDevices()


def test_the_last_numbers_that_a_device_may_have() -> None:
    """12 bits for the major, and 20 for the minor."""
    assert devices(entry("c 4095:1048575 rw")).allowed == rules("c 4095:1048575 rw")


def test_minus_one_is_any() -> None:
    """-1 is the wildcard for the runtimes."""
    assert devices({"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rw"}).allowed == rules(
        "c 195:* rw"
    )


def test_no_access_gives_nothing_and_takes_all() -> None:
    """An empty access is refused by runc; nobody may gain by it."""
    none = {"type": "c", "major": 195, "minor": 0}
    assert devices(entry("c 195:1 rw"), {**none, "allow": True}).allowed == rules("c 195:1 rw")
    assert devices(entry("c 195:0 rw"), {**none, "allow": False}).allowed == frozenset()


@pytest.mark.parametrize("number", [4096, 1 << 40])
def test_numbers_that_no_device_has(number: int) -> None:
    """They give nothing, and take nothing."""
    made = {"type": "c", "major": number, "minor": 0, "access": "rwm"}
    high = {**made, "major": 195, "minor": number << 20, "allow": True}
    assert devices(entry("c 195:0 rw"), {**made, "allow": True}, high, {**made, "allow": False}) == SpecDevices(
        rules("c 195:0 rw")
    )


@pytest.mark.parametrize(
    ("odd", "complaint"),
    [
        ({"type": "x"}, '[0].type: want "a", "b" or "c"'),
        ({"type": "c", "major": -2}, "[0].major: want a device number, or -1 for any"),
        ({"type": "c", "minor": "0"}, "[0].minor: want a whole number"),
        ({"access": "rwx"}, "[0].access: want a combination of r, w and m"),
        ({"allow": "true"}, "[0].allow: want true or false"),
    ],
)
def test_what_no_runtime_takes(odd: dict[str, Any], complaint: str) -> None:
    """An entry that stops the runtime stops here, too."""
    with pytest.raises(SpecError) as raised:
        devices(odd)
    assert str(raised.value) == complaint


@pytest.mark.invariant(10)
def test_too_many_entries() -> None:
    """A list that takes long to compare is not read: some thousands took minutes."""
    rule = entry("c 195:0 rw")
    assert devices(*[rule] * MAX_ENTRIES).allowed
    with pytest.raises(SpecError, match="want no more than 1024 entries"):
        devices(*[rule] * (MAX_ENTRIES + 1))


_NUMBERS = st.sampled_from(["0", "1", "*"])
_LINES = st.builds("{} {}:{} {}".format, st.sampled_from("cb"), _NUMBERS, _NUMBERS, st.sampled_from(["r", "rw", "rwm"]))


@pytest.mark.invariant(1)
@given(st.lists(st.tuples(st.booleans(), _LINES | st.just("a *:* rwm")), max_size=8))
def test_never_more_than_the_last_entry_about_a_device_says(entries: list[tuple[bool, str]]) -> None:
    """What the last entry about a device denies is not given."""
    read = devices(*(entry(line, allow=allow) for allow, line in entries))
    given_ = RuleSet(read.allowed, unrestricted=read.unrestricted)
    for kind in "cb":
        for major in (0, 1, 2):
            for minor in (0, 1, 2):
                for access in (Access.READ, Access.WRITE, Access.MKNOD):
                    asked = Rule(kind, major, minor, access)
                    about = [allow for allow, line in entries if "a" in line or Rule.parse(line).covers(asked)]
                    allowed = bool(about) and about[-1]
                    assert allowed or not given_.covers(asked)
