"""What systemd-machined notes, as version 252 wrote it, and made texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import SpecError
from gpuguard.model.machine import Machine

REAL = r"""# This is private data. Do not parse.
NAME=my-gpu.box1
SCOPE=machine-my\\x2dgpu.box1.scope
SERVICE=systemd-nspawn
ROOT=/var/lib/machines/my-gpu.box1
ID=91505c412ff94cd3b9a2882a1b7ce3a0
LEADER=67
CLASS=container
REALTIME=1796049314497102
MONOTONIC=41635952747
"""


def test_a_real_one() -> None:
    """The unit's name is escaped twice in the file."""
    assert Machine.parse(REAL) == Machine(
        "my-gpu.box1", r"machine-my\x2dgpu.box1.scope", "systemd-nspawn", container=True
    )


def test_a_virtual_machine() -> None:
    """It has another class."""
    assert not Machine.parse(REAL.replace("CLASS=container", "CLASS=vm")).container


def test_a_service_that_holds_it() -> None:
    """Since systemd 256 the unit of one without a scope is told under another key."""
    text = REAL.replace("SCOPE=", "UNIT=")
    assert Machine.parse(text).unit == r"machine-my\x2dgpu.box1.scope"
    assert Machine.parse(f"{REAL}UNIT=other.service\n").unit == r"machine-my\x2dgpu.box1.scope"


@pytest.mark.parametrize("text", ["", "NAME", "name=x", "\n" * 100 + "NAME=x"])
def test_no_name(text: str) -> None:
    """Without a name it is no machine's file."""
    with pytest.raises(SpecError):
        Machine.parse(text)


@given(st.text())
def test_any_text(text: str) -> None:
    """Any text is read or refused."""
    assert Machine.parse(f"NAME=x\n{text}").name is not None
