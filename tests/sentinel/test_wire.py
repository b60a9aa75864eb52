"""What the daemon and its sentinel say to each other arrives as it was; anything else is an error of ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import GpuguardError
from gpuguard.model.process import Process
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import ProgramsChanged, Standing, Watched, Write
from gpuguard.sentinel.wire import Awake, Blind, Forget, Message, Overflow, Ping, Pong, decode, encode
from tests.model.strategies import RULES as ANY_RULE

TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)
NUMBERS = st.integers(0, 1 << 64)
TIMES = st.floats(0, 1e12)
RULES = st.frozensets(ANY_RULE, max_size=5)
LISTS = st.builds(RuleSet, RULES) | st.just(RuleSet(unrestricted=True))
PROCESSES = st.builds(
    Process,
    pid=NUMBERS,
    name=TEXT,
    exe=TEXT,
    command=st.lists(TEXT, max_size=3).map(tuple),
    control_group=TEXT,
    started=st.none() | TIMES,
    parent=NUMBERS,
    native=st.booleans(),
)
CHAINS = st.lists(PROCESSES, max_size=3).map(tuple)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Watched, TEXT, NUMBERS, RULES, RULES, st.booleans(), st.booleans()),
    st.builds(Forget, TEXT),
    st.builds(Awake, TIMES),
    st.builds(Ping, NUMBERS),
    st.builds(Pong, NUMBERS),
    st.builds(Standing, TEXT, st.none() | TEXT),
    st.builds(
        Write,
        control_group=TEXT,
        inode=NUMBERS,
        at=TIMES,
        denied=st.booleans(),
        writer=st.none() | PROCESSES,
        requester=CHAINS,
        before=st.none() | LISTS,
        after=st.none() | LISTS,
        restored=RULES,
        whole_at=st.none() | TIMES,
        refused=st.booleans(),
        error=st.none() | TEXT,
    ),
    st.builds(ProgramsChanged, TIMES, TEXT, st.none() | PROCESSES, CHAINS),
    st.just(Overflow()),
    st.builds(Blind, TEXT),
)


@given(MESSAGES)
def test_there_and_back(message: Message) -> None:
    """One line, without another line's end in it, and the same again."""
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_bytes_that_are_no_text_survive() -> None:
    """A process may give itself any name, which /proc hands over as it is."""
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    message = ProgramsChanged(1.0, name, Process(7, name))
    assert decode(encode(message)) == message


@given(st.binary(max_size=60))
def test_garbage(line: bytes) -> None:
    """Bytes from nobody knows where."""
    with pytest.raises(GpuguardError):
        decode(line)


@given(MESSAGES, st.data())
def test_a_field_that_is_not_what_it_should_be(message: Message, data: st.DataObject) -> None:
    """Missing, or of another kind."""
    made = json.loads(encode(message))
    field = data.draw(st.sampled_from(sorted(made)))
    if data.draw(st.booleans()):
        del made[field]
    else:
        made[field] = {"odd": []}
    with pytest.raises(GpuguardError):
        decode(json.dumps(made).encode())


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"null", b'{"is":["Ping"]}', b'{"is":"Ping","number":true}', b'{"is":"Write"}', b"[" * 100_000],
)
def test_what_is_no_message(line: bytes) -> None:
    """JSON, or nearly, and still nothing that either of them says."""
    with pytest.raises(GpuguardError, match="not a message"):
        decode(line)
