"""The journal's native protocol, against a listener and against the real journald."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.report.journal import Journal, encode, field_name
from tests.report.journald import Journald, Listener, decode, journald

ANY_TEXT = st.text(st.characters(exclude_categories=[]))


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """Yield a socket in journald's place."""
    listener = Listener(tmp_path / "socket")
    yield listener
    listener.close()


@pytest.fixture
def journal(listener: Listener) -> Iterator[Journal]:
    """Yield a journal that goes to the listener."""
    journal = Journal(listener.path)
    yield journal
    journal.close()


@pytest.fixture(scope="module")
def real() -> Iterator[Journald]:
    """Yield a real journald."""
    with journald() as server:
        yield server


def test_wire_form() -> None:
    """A plain value is name=value, one with a newline has its length in front, little-endian in 64 bits."""
    assert encode([("MESSAGE", "hello"), ("TWO", "a\nb")]) == b"MESSAGE=hello\nTWO\n\3\0\0\0\0\0\0\0a\nb\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MESSAGE", "MESSAGE"),
        ("writer_pid", "WRITER_PID"),
        ("a.b-c d=e\nf", "A_B_C_D_E_F"),
        ("_TRANSPORT", "TRANSPORT"),
        ("9lives", "LIVES"),
        ("größe", "GR_SSE"),
        ("", "FIELD"),
        ("x" * 100, "X" * 64),
    ],
)
def test_field_name(text: str, name: str) -> None:
    """A name becomes one that journald accepts from clients; a trusted field (with _ in front) cannot be claimed."""
    assert field_name(text) == name


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT)))
def test_no_value_can_inject_a_field(fields: list[tuple[str, str]]) -> None:
    """Whatever names and values hold, the entry has as many fields as were given, with valid names and the values."""
    read = decode(encode(fields))
    assert [value for _, value in read] == [value.encode("utf-8", "backslashreplace").decode() for _, value in fields]
    assert all(re.fullmatch("[A-Z][A-Z0-9_]{0,63}", name) for name, _ in read)


def test_an_entry_arrives(listener: Listener, journal: Journal) -> None:
    """One datagram an entry; a name may be there twice."""
    fields = [("MESSAGE", "hello"), ("DEVICE", "/dev/nvidia0"), ("DEVICE", "/dev/nvidia1")]
    journal.send(fields)
    assert decode(listener.entry()[0]) == fields


def test_a_big_entry_is_a_memory_file(listener: Listener, journal: Journal) -> None:
    """What is too big for a datagram goes as a file descriptor."""
    fields = [("MESSAGE", "x" * (4 << 20))]
    journal.send(fields)
    entry, as_file = listener.entry()
    assert as_file
    assert decode(entry) == fields
    assert journal.dropped == 0


def test_a_restarted_journald_is_found_again(tmp_path: Path) -> None:
    """Entries in between are dropped and counted; the first that arrives tells how many, the next no more."""
    path = tmp_path / "socket"
    journal = Journal(str(path))
    journal.send([("MESSAGE", "nobody there yet")])
    before = Listener(path)
    journal.send([("MESSAGE", "first")])
    assert before.fields() == [("MESSAGE", "first"), ("GPUGUARD_DROPPED_ENTRIES", "1")]
    before.close()
    for _ in range(3):
        journal.send([("MESSAGE", "lost")])
    assert journal.dropped == 3
    path.unlink()
    after = Listener(path)
    journal.send([("MESSAGE", "second")])
    assert after.fields() == [("MESSAGE", "second"), ("GPUGUARD_DROPPED_ENTRIES", "3")]
    journal.send([("MESSAGE", "third")])
    assert after.fields() == [("MESSAGE", "third")]
    after.close()
    journal.close()


def test_a_journald_that_does_not_read(listener: Listener, journal: Journal) -> None:
    """A full queue costs entries, never a wait."""
    for number in range(5000):
        journal.send([("MESSAGE", str(number))])
    assert journal.dropped > 0
    assert listener.fields() == [("MESSAGE", "0")]


def test_real_journald(real: Journald) -> None:
    """The true journald reads what was sent: plain, with newlines, several values, bytes that are not UTF-8."""
    journal = Journal(real.socket)
    journal.send(
        [
            ("MESSAGE", "two\nlines"),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "gpuguard"),
            ("GPUGUARD_DEVICES", "/dev/nvidia0"),
            ("GPUGUARD_DEVICES", "/dev/nvidia1"),
            ("GPUGUARD_NAME", "bad \udc80\nPRIORITY=0"),
            ("_PID", "1"),
        ]
    )
    journal.close()
    entry = real.wait_for("SYSLOG_IDENTIFIER=gpuguard", "GPUGUARD_DEVICES=/dev/nvidia1")
    assert entry["MESSAGE"] == "two\nlines"
    assert entry["PRIORITY"] == "4"
    assert sorted(entry["GPUGUARD_DEVICES"]) == ["/dev/nvidia0", "/dev/nvidia1"]
    assert entry["GPUGUARD_NAME"] == "bad \\udc80\nPRIORITY=0"
    assert entry["_PID"] != "1"


def test_real_journald_takes_a_big_entry(real: Journald) -> None:
    """The memory file is accepted by journald: it is sealed as that demands."""
    journal = Journal(real.socket)
    journal.send([("MESSAGE", "big"), ("GPUGUARD_BIG", "x" * (4 << 20))])
    journal.close()
    assert journal.dropped == 0
    assert len(real.wait_for("MESSAGE=big")["GPUGUARD_BIG"]) == 4 << 20
