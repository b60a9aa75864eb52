"""Who wrote last, there and back as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.explanation import LastWriter
from gpuguard.model.last_writer import from_document, to_document
from gpuguard.model.process import Process

_TEXT = st.text(max_size=20)
# Quarters of a second pass through a time of microseconds unchanged.
_TIMES = st.integers(0, 4 * 10**10).map(lambda quarters: quarters / 4)
_PROCESSES = st.builds(
    Process,
    pid=st.integers(1, 1 << 22),
    name=st.text("abcdefgh-", min_size=1, max_size=15),
    control_group=_TEXT,
    started=st.none() | _TIMES,
)
_LISTS = st.lists(_TEXT, max_size=5).map(tuple)
_LAST = st.builds(
    LastWriter, at=_TIMES, cause=_TEXT, properties=_LISTS, writer=st.none() | _PROCESSES, requester=_LISTS
)
GOOD = to_document(LastWriter(1.0, writer=Process(7, "agent", "/opt/agent", started=0.5)))


@given(_LAST)
def test_there_and_back(last: LastWriter) -> None:
    """What the daemon tells is what the command gets."""
    assert from_document(json.loads(json.dumps(to_document(last)))) == last


def test_the_container_of_a_writer() -> None:
    """A writer in a container is told with the container's id."""
    writer = Process(7, "agent", "/agent", control_group=f"/system.slice/docker-{'a' * 64}.scope/x")
    document = to_document(LastWriter(0.0, writer=writer))
    assert document["writer"]["container"] == "a" * 64
    assert document["writer"]["unit"] == f"docker-{'a' * 64}.scope"
    found = from_document(document).writer
    assert found is not None
    assert (found.program, found.container, found.unit) == (writer.program, writer.container, writer.unit)


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        None,
        "x",
        {**GOOD, "at": 1.0},
        {**GOOD, "at": "yesterday"},
        {**GOOD, "at": "2026-11-30T11:32:17"},
        {**GOOD, "writer": "agent"},
        {**GOOD, "writer": {**GOOD["writer"], "pid": None}},
        {**GOOD, "requester": "systemctl"},
    ],
)
def test_another_daemon_s_answer_is_refused(document: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """What is no last writer is one error, whatever is wrong with it."""
    with pytest.raises(ValueError, match=r"."):
        from_document(document)


def test_an_example_is_good() -> None:
    """What the refused ones differ from is taken."""
    assert from_document(GOOD).at == 1.0
