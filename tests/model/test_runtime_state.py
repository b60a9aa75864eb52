"""What low-level runtimes note, as runc 1.1.5 and crun 1.8.1 wrote it (runc's shortened), and made texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import SpecError
from gpuguard.model.runtime_state import RuntimeState, parse_crun_status, parse_pid, parse_runc_state

DATA = Path(__file__).parent.parent / "runtimes" / "data"


def test_runc_s_with_docker() -> None:
    """The bundle lies where containerd has it."""
    noted = parse_runc_state((DATA / "docker-state.json").read_text(encoding="utf-8"))
    assert noted.bundle.startswith("/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/160861ef8db2")
    assert (noted.pid, noted.ticks) == (142, 4065596)


def test_runc_s_with_podman() -> None:
    """The bundle lies in Podman's storage."""
    noted = parse_runc_state((DATA / "podman-state.json").read_text(encoding="utf-8"))
    assert noted.bundle.startswith("/var/lib/lab-podman/vfs-containers/1bbc037dc661")
    assert noted.bundle.endswith("/userdata")


def test_crun_s() -> None:
    """The same of crun's."""
    noted = parse_crun_status((DATA / "crun-status.json").read_text(encoding="utf-8"))
    assert noted.bundle.endswith("/userdata")
    assert (noted.pid, noted.ticks) == (92, 4177247)


def test_the_last_label_counts() -> None:
    """Annotations are labels, too, and come first; other labels are none."""
    labels = ["bundle=/evil", "x=bundle=/evil", "bundle=/good", "later=/evil"]
    text = json.dumps({"config": {"labels": labels}, "init_process_pid": 7, "init_process_start": 0})
    assert parse_runc_state(text) == RuntimeState("/good", 7, None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"bundle": "/x"}', '{"bundle": "x", "pid": 1}', '{"bundle": "/x", "pid": 0}']
)
def test_what_makes_no_sense(text: str) -> None:
    """Without a bundle or a process nothing is known."""
    for parse in (parse_crun_status, parse_runc_state):
        with pytest.raises(SpecError):
            parse(text)


@given(st.text() | st.integers().map(str))
def test_pid_files(text: str) -> None:
    """Any text is a positive number, or refused."""
    try:
        pid = parse_pid(text)
    except SpecError:
        return
    assert pid > 0
    assert text in {f"{pid}", f"{pid}\n"}
