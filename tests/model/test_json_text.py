"""JSON with its types checked."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import SpecError
from gpuguard.model.json_text import MAX_CHARACTERS, parse_json


def test_values_are_found_by_name_and_number() -> None:
    """Members, items and what is not there; a null is as good as nothing."""
    value = parse_json('{"a": {"b": ["x", "y"], "n": -1, "f": true}, "none": null}')
    assert value.member("a").member("b").texts() == ("x", "y")
    assert value.member("a").member("n").number() == -1
    assert value.member("a").member("f").flag()
    for absent in (value.member("none"), value.member("none").member("deeper"), value.member("a").member("z")):
        assert absent.absent
        assert (absent.text(), absent.number(), absent.flag(), absent.texts()) == ("", None, False, ())
        assert not list(absent.members())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a": 1, "a": 1}', "an object has 'a' twice"),
        ('{"x": {"\\u0007": 1, "\\u0007": 2}}', r"an object has '\x07' twice"),
        ("NaN", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1" * 21, "a number of 21 digits"),
        ("1" * 5000, "a number of 5000 digits"),
        ("[" * 200_000, "not read: it is nested too deeply"),
        ('{"a":' * 200_000, "not read: it is nested too deeply"),
        (" " * (MAX_CHARACTERS + 1), "not read: it has more than 4194304 characters"),
    ],
)
def test_what_is_not_read(text: str, complaint: str) -> None:
    """Texts that readers take differently, or choke on, are refused with a reason."""
    with pytest.raises(SpecError) as raised:
        parse_json(text)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"a": [{"b": 1}]}', "a[0].b: want a string"),
        ('{"a": [{"b": {}}]}', "a[0].b: want a string"),
        ('{"a": {"b": "x"}}', "a: want a list"),
        ('{"a": "xyz"}', "a: want a list"),
        ("[]", "the text: want an object"),
    ],
)
def test_a_complaint_names_the_place(text: str, complaint: str) -> None:
    """What has another type than wanted is refused, with its place."""
    with pytest.raises(SpecError) as raised:
        [item.member("b").text() for item in parse_json(text).member("a").items()]
    assert str(raised.value) == complaint


@pytest.mark.parametrize(
    ("name", "shown"), [("b" * 40, "b" * 40), ("b" * 41, f"'{'b' * 40}'"), ("b\n", r"'b\n'"), ("\ud800", r"'\ud800'")]
)
def test_a_name_from_outside_is_told_in_short(name: str, shown: str) -> None:
    """Whoever wrote the text chose the name."""
    with pytest.raises(SpecError) as raised:
        parse_json(json.dumps({name: 1})).member(name).text()
    assert str(raised.value) == f"{shown}: want a string"


@pytest.mark.parametrize("text", ["0", "1", '"true"', "[]"])
def test_a_flag_is_true_or_false(text: str) -> None:
    """Nothing else is taken for one."""
    with pytest.raises(SpecError, match="want true or false"):
        parse_json(text).flag()


@pytest.mark.parametrize("text", ["true", "1.0", "1e3", '"1"', "[]"])
def test_numbers_are_whole(text: str) -> None:
    """Neither true nor 1.0 is a whole number."""
    with pytest.raises(SpecError, match="want a whole number"):
        parse_json(text).number()


def test_a_hostile_name_is_told_harmlessly() -> None:
    """A name in a complaint is short and holds no control characters."""
    value = parse_json(json.dumps({"\x1b[2J" + "x" * 1000: 1}))
    (_, member), *_ = value.members()
    with pytest.raises(SpecError) as raised:
        member.text()
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 100


def test_many_names_take_no_long_time() -> None:
    """An object of 300,000 names, the last of them twice, is refused at once."""
    text = "{" + "".join(f'"{number}":0,' for number in range(300_000)) + '"299999":0}'
    began = time.monotonic()
    with pytest.raises(SpecError, match="twice"):
        parse_json(text)
    assert time.monotonic() - began < 10


@given(st.text() | st.text(alphabet='{}[]":,0123456789.eE+-\\u tfn"'))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else than SpecError comes out of any text."""
    try:
        value = parse_json(text)
    except SpecError:
        return
    assert value.value == json.loads(text)
