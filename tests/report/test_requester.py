"""Requesters as labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.report.requester import kind_of_requester


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("session-3.scope", "session-*.scope"),
        ("session-c1.scope", "session-*.scope"),
        ("run-u412.service", "run-*.service"),
        ("run-r0123456789abcdef0123456789abcdef.scope", "run-*.scope"),
        ("run-p4711-i4712.service", "run-*.service"),
        ("user@1000.service", "user@*.service"),
        ("docker container 3f2a9c81b2d4", "docker container"),
        ("unattended-upgrade.service", "unattended-upgrade.service"),
        ("apt-daily-upgrade.service", "apt-daily-upgrade.service"),
        ("systemctl daemon-reload", "systemctl daemon-reload"),
        ("run-parts", "run-parts"),
        ("a container", "a container"),
        ("", ""),
    ],
)
def test_what_is_counted_as_one(name: str, kind: str) -> None:
    """Sessions, runs, instances and containers are counted by their kind, everything else by its name."""
    assert kind_of_requester(name) == kind


@given(st.text())
def test_any_name(name: str) -> None:
    """No name is too odd, and a kind is its own kind."""
    kind = kind_of_requester(name)
    assert kind_of_requester(kind) == kind
