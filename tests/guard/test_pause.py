"""A container that nothing is given back to for now says so, and until when."""

from __future__ import annotations

import re
import time
from typing import Optional

import pytest

from gpuguard.guard import pause
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus
from tests.guard.made import GROUP, ID, UNIT, scope


def status(state: State, reason: Optional[str] = None) -> ContainerStatus:
    """Return a container's status."""
    return ContainerStatus(UNIT, GROUP, ID, "docker", state, reason=reason)


def at(local: str) -> float:
    """Return a moment of the node's own time, in seconds since the epoch."""
    return time.mktime(time.strptime(local, "%Y-%m-%d %H:%M:%S"))


@pytest.fixture
def _noon(monkeypatch: pytest.MonkeyPatch) -> None:
    noon = at("2030-05-17 12:00:00")
    monkeypatch.setattr("gpuguard.guard.pause.time.time", lambda: noon)


@pytest.mark.usefixtures("_noon")
class TestReason:
    """What the reason of a container's state says."""

    @pytest.mark.parametrize("state", [State.LOST, State.PARTIAL, State.AT_RISK])
    def test_has_the_pause(self, state: State) -> None:
        """Beside what else hinders."""
        paused = {GROUP: at("2030-05-17 12:00:43")}
        text = "repairs are paused until 12:00:43: what they gave back was taken away again, or could not be given"
        assert pause.noted(status(state), paused).reason == text
        assert pause.noted(status(state, "why"), paused).reason == f"why; {text}"

    @pytest.mark.parametrize("passed", [0.0, 0.3, 30.0])
    def test_stays_the_same_while_it_lasts(self, monkeypatch: pytest.MonkeyPatch, passed: float) -> None:
        """Who compares two answers finds news only where there are some; clocks differ a little."""
        now = time.time()
        until = at("2030-05-17 12:00:43")
        monkeypatch.setattr("gpuguard.guard.pause.time.time", lambda: now + passed)
        for jitter in (-0.0001, 0.0, 0.0001):
            assert "12:00:43" in (pause.noted(status(State.LOST), {GROUP: until + jitter}).reason or "")

    def test_has_the_date_where_it_is_another_one(self) -> None:
        """A pause can be a day long."""
        found = pause.noted(status(State.LOST), {GROUP: at("2030-05-18 11:00:00")})
        assert "until 2030-05-18 11:00:00:" in (found.reason or "")

    @pytest.mark.parametrize("state", [State.PROTECTED, State.STALE, State.OPAQUE, State.UNRESTRICTED, State.SETTLING])
    def test_is_left_alone_where_nothing_is_to_be_mended(self, state: State) -> None:
        """What was given back last may stay."""
        assert pause.noted(status(state, "why"), {GROUP: at("2030-05-17 13:00:00")}) == status(state, "why")

    def test_is_another_container_s(self) -> None:
        """Only who is paused is told to be."""
        assert pause.noted(status(State.LOST), {"/other": at("2030-05-17 13:00:00")}) == status(State.LOST)


def test_who_is_paused() -> None:
    """Only those whose back-off forbids a repair now, with the end of the pause by the wall clock."""
    resting, free = scope(), scope()
    resting.backoff.until = time.monotonic() + 100.0
    free.backoff.until = time.monotonic() - 0.1
    assert pause.pauses([free]) == {}
    assert pause.pauses([free, resting]) == {GROUP: pytest.approx(time.time() + 100.0, abs=5.0)}


def test_an_end_is_a_time_of_the_day() -> None:
    """Of this day, as long as there is some of it left."""
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", pause._moment(time.time() + 1.0))
