"""Who, what, by whom and for how long, in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.report.phrases import Phrases, elapsed


@pytest.mark.parametrize(
    ("usec", "words"),
    [
        (0, "0 µs"),
        (850, "850 µs"),
        (3120, "3.1 ms"),
        (42_400, "42 ms"),
        (2_460_000, "2.5 s"),
        (59_000_000, "59 s"),
        (200_000_000, "3 min 20 s"),
        (7_500_000_000, "2 h 5 min"),
    ],
)
def test_elapsed(usec: int, words: str) -> None:
    """A time in the unit that people would choose, with as many digits as matter."""
    assert elapsed(usec) == words


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        (
            {"name": "trainer", "runtime": "docker", "container": "3f2a9c81b2d4" + "0" * 52},
            "trainer (docker 3f2a9c81b2d4)",
        ),
        (
            {"namespace": "ml", "pod": "train-0", "name": "main", "runtime": "containerd", "container": "ab"},
            "ml/train-0/main (containerd ab)",
        ),
        ({"runtime": "podman", "container": "ab", "name": None}, "podman ab"),
        ({"runtime": "systemd", "container": "text-generation.service"}, "systemd text-generation.service"),
        ({"scope": "ollama.service"}, "ollama.service"),
        ({}, "a container"),
    ],
)
def test_who(fields: dict[str, Any], who: str) -> None:
    """A container is called by its name, with runtime and the short id that docker ps shows; else by what is known."""
    assert Phrases(fields)["who"] == who


@pytest.mark.parametrize(
    ("fields", "by"),
    [
        ({"writer": "systemd", "writer_pid": 1, "cause": "reload"}, "by systemd (daemon-reload)"),
        ({"writer": "runc", "writer_pid": 4711, "cause": "runtime"}, "by runc (pid 4711, container update)"),
        ({"writer": "bash", "writer_pid": 99}, "by bash (pid 99)"),
        ({"cause": "property"}, "by an unknown program (set-property)"),
        ({"cause": "unknown", "writer": None}, "by an unknown program"),
        ({"writer": "systemd", "writer_pid": 1, "writer_unit": "init.scope"}, "by systemd"),
        (
            {"writer": "bash", "writer_pid": 4711, "writer_unit": "session-3.scope", "cause": "manual"},
            "by bash (pid 4711, by hand) in session-3.scope",
        ),
        (
            {"writer": "systemd", "cause": "reload", "requester": "systemctl daemon-reload ← apt-get"},
            "by systemd (daemon-reload) for systemctl daemon-reload ← apt-get",
        ),
        (
            {"writer": "systemd", "cause": "property", "property": ("CPUQuotaPerSecUSec", "MemoryMax")},
            "by systemd (set-property of CPUQuotaPerSecUSec, MemoryMax)",
        ),
        ({"writer": "systemd", "cause": "property", "property": ()}, "by systemd (set-property)"),
        (
            {"cause": "runtime", "writer": "runc", "writer_unit": "docker.service", "requester": "docker update"},
            "by runc (container update) in docker.service via docker update",
        ),
        (
            {"writer": "bash", "writer_unit": "session-3.scope", "requester": "bash ← sudo ← sshd ← session-3.scope"},
            "by bash in session-3.scope via sudo ← sshd",
        ),
        (
            {"writer": "bash", "writer_unit": "session-3.scope", "requester": "bash ← session-3.scope"},
            "by bash in session-3.scope",
        ),
        (
            {"writer": "bash", "requester": "unplug.sh ← bash ← a container"},
            "by bash via unplug.sh ← bash ← a container",
        ),
        ({"cause": "reload", "requester": "apt-get"}, "by an unknown program (daemon-reload) for apt-get"),
    ],
)
def test_by(fields: dict[str, Any], by: str) -> None:
    """The culprit with what is known of it; what is not known is said, not guessed."""
    assert Phrases(fields)["by"] == by


def test_a_long_request_keeps_both_ends() -> None:
    """Who asked stands in front, and what it all began with at the end: the middle is what is cut."""
    chain = "systemctl daemon-reload ← " + "sh ← " * 200 + "unattended-upgrade.service"
    by = Phrases({"writer": "systemd", "requester": chain})["by"]
    assert by.startswith("by systemd for systemctl daemon-reload ← sh ← ")
    assert " … " in by
    assert by.endswith(" ← unattended-upgrade.service")
    assert len(by) <= len("by systemd for ") + 300


@pytest.mark.parametrize(
    ("fields", "phrase", "words"),
    [
        ({"reason": "no budget"}, "why", ": no budget"),
        ({}, "why", ""),
        ({"action": "add"}, "happened", "has come"),
        ({"action": "dance\n"}, "happened", "dance\ufffd"),
        ({}, "happened", "did something"),
        ({"scheduling": "normal"}, "standing", "like any ordinary program"),
        ({"scheduling": "idle"}, "standing", "in an unknown way"),
    ],
)
def test_what_stands_for_a_word_of_the_kernel(fields: dict[str, Any], phrase: str, words: str) -> None:
    """People read a sentence; a word that is not known is shown as it is, or told as unknown."""
    assert Phrases(fields)[phrase] == words


def test_devices() -> None:
    """Devices are listed, rules as rules; of very many only the first, with the number of the others."""
    assert Phrases({"devices": ("/dev/nvidia0", Rule.parse("c 195:1 rw"))})["devices"] == "/dev/nvidia0, c 195:1 rw"
    assert Phrases({"devices": [f"/dev/nvidia{n}" for n in range(100)]})["devices"].endswith("/dev/nvidia15, 84 more")
    assert Phrases({"devices": ()})["devices"] == Phrases({})["devices"] == "its devices"


def test_after() -> None:
    """The length of an outage, or nothing where it is not known."""
    assert Phrases({"outage_usec": 3000})["after"] == " after 3.0 ms"
    assert Phrases({"outage_usec": None})["after"] == ""


def test_an_enumeration_is_its_value() -> None:
    """Python's own text of an enumeration's member is not for people."""
    assert Phrases({"state": State.AT_RISK})["state"] == "at-risk"


@given(st.text(st.characters(exclude_categories=[])))
def test_hostile_names(name: str) -> None:
    """A container's name cannot bring a newline, a terminal's control sequence or a template into a message."""
    writer = dict.fromkeys(("writer", "writer_pid", "writer_exe", "writer_unit", "requester", "action", "reason"), name)
    phrases = Phrases({"name": name, "devices": (name,), "property": (name,), "cause": "property", **writer})
    message = "{who} {devices} {by} {happened}{why}".format_map(phrases)
    assert message.isprintable()
