"""The table of kinds: its ids, and what its messages say."""

from __future__ import annotations

import re

import pytest
import structlog
from structlog.testing import capture_logs

from gpuguard.report.kinds import KINDS, emit

TRAINER = {
    "scope": "docker-3f2a.scope",
    "name": "trainer",
    "runtime": "docker",
    "container": "3f2a9c81b2d4" + "0" * 52,
    "devices": ("/dev/nvidia0", "/dev/nvidiactl"),
    "writer": "systemd",
    "writer_pid": 1,
    "cause": "reload",
}
WHO = "trainer (docker 3f2a9c81b2d4)"
WHAT = "/dev/nvidia0, /dev/nvidiactl"
UPGRADE = "systemctl daemon-reload ← dpkg postinst of telegraf ← apt-get ← unattended-upgrade.service"
BASH = {"writer": "bash", "writer_pid": 4711, "writer_unit": "session-3.scope", "cause": "manual"}
BY_BASH = "by bash (pid 4711, by hand) in session-3.scope"
SENTINEL = "the sentinel, which answers to a write at once, runs"

# A literal copy: people's filters hold these ids, so none of them may ever change.
IDS = {
    "started": "e0bbfad66a5f48d59ac4816d395781f3",
    "stopped": "ff62d99d3eb34699a4b7de9d141cf33f",
    "config_reloaded": "0f59419f1e74436ba7c5d4bc08bb6523",
    "config_rejected": "c526418d45d941deac913fe320635113",
    "needs_restart": "31d6f2a85c0b4d27a8e69a4c1ff0b7d3",
    "found": "4ea1164626f543bcac86b4162088f57f",
    "gone": "9c71d35544524ce1996536d60f3d9fec",
    "lost": "e3365244e0a945beb287b1643e4efd3a",
    "repaired": "28f0251adf0b43eabcc26f8d8fa48a2d",
    "repair_failed": "9638a8f66d684c218d79e52161898130",
    "declared": "49f088808dd844bc9fd0f52c88954a68",
    "declare_failed": "aac19b1db6fb47a489fb53f0395aef34",
    "at_risk": "63e3b7eab0e040a4a1c1da1111506194",
    "excess": "044b718b749841739e8c9f23f24584f5",
    "fight": "f12d0a0755a3493f8cd79600ae38442c",
    "fight_over": "572e4515abdc48ac8f69f27f1e5ba794",
    "released": "6ba32e6678e84b22a0bc624f96271aa2",
    "source_down": "501d93d29de94f9da6f08b21b5c8f766",
    "source_up": "402b408420774034858a9761a87e276d",
    "ledger_damaged": "4f16d958e03b4132ab060f7e8f58083a",
    "stale": "db6b56072c6643a6a712a7605f665e2f",
    "unclear": "f7b4899201b743e6b6aa64bb053069c6",
    "blind": "2d4167e63f1e4853940820595f9ee27e",
    "observed": "b9e9866cdb82493c82b0786c0a1c0669",
    "shield_removed": "72e2d14ddaf040b5b51ac978d96a8ec0",
    "trouble": "8825885578f4494eadb76ae64232f6bb",
    "fault": "234e9d069a184f26b9c482a0cd9cda68",
    "endpoint_failed": "7cb590d442514a789104c05cba9d8201",
    "textfile_failed": "6baeb33ffbc54645869f4192c0e5c5c1",
    "no_effect": "fd644c9fdcd14ca0aae88ffdad80482c",
    "revoked": "3f5998bdcaac42109787f95156028ab9",
    "granted": "d529a468e07546c9b7bbe060919b6482",
    "shielded": "2f60edf26c724c3789bd913e09aac54c",
    "unshielded": "96105453f06a41d28a367282b9d2021d",
    "shield_keeps": "916f770caba11f9890a9d94448daa413",
    "sentinel_standing": "e1f945e2c5f0404d9cce0096261dd101",
    "events_lost": "c1c90ff17f834182972a08b2f77e95f5",
    "device_event": "9d87428df02e4a4584507cad57cc8e5c",
    "restored_below": "5ef0279c85904cd3a783d3b3454e9b02",
}


def test_ids() -> None:
    """Each kind has its own id of 128 bits, and the one that it always had."""
    assert {kind.name: kind.message_id for kind in KINDS} == IDS
    assert all(re.fullmatch("[0-9a-f]{32}", message_id) for message_id in IDS.values())
    assert len(set(IDS.values())) == len(IDS)


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        (
            KINDS.lost,
            {},
            f"{WHO}: GPU access lost: {WHAT} taken away by systemd (daemon-reload)",
        ),
        (
            KINDS.repaired,
            {"outage_usec": 3000},
            f"{WHO}: GPU access restored after 3.0 ms: {WHAT} had been taken away by systemd (daemon-reload)",
        ),
        (
            KINDS.repair_failed,
            {"reason": "kubepods.slice denies c 195:0"},
            f"{WHO}: GPU access could not be restored: {WHAT}: kubepods.slice denies c 195:0",
        ),
        (
            KINDS.fight,
            {"writer": "agent", "writer_pid": 77, "cause": "unknown", "pause": "30 s"},
            f"{WHO}: {WHAT} taken away again and again by agent (pid 77): no repair for 30 s",
        ),
        (
            KINDS.started,
            {"version": "1.0", "mode": "enforce", "cgroup": "v1", "systemd": 252},
            "gpuguard 1.0 started in enforce mode: cgroup v1, systemd 252",
        ),
        (
            KINDS.lost,
            {"writer_unit": "init.scope", "requester": UPGRADE},
            f"{WHO}: GPU access lost: {WHAT} taken away by systemd (daemon-reload) for {UPGRADE}",
        ),
        (
            KINDS.revoked,
            BASH,
            f"{WHO}: {WHAT} taken away on purpose {BY_BASH}: gpuguard does not give it back, a reload may",
        ),
        (
            KINDS.granted,
            BASH,
            f"{WHO}: {WHAT} added {BY_BASH}: guarded from now on",
        ),
        (
            KINDS.restored_below,
            {"groups": ("docker", "docker/4f6a")},
            f"{WHO}: GPU access restored in control groups that it has made, docker, docker/4f6a: {WHAT}",
        ),
        (
            KINDS.sentinel_standing,
            {"scheduling": "rr"},
            f"{SENTINEL} in the real-time class (SCHED_RR)",
        ),
        (
            KINDS.sentinel_standing,
            {"scheduling": "nice", "reason": "no real-time class: not permitted"},
            f"{SENTINEL} ahead of ordinary programs by its nice level: no real-time class: not permitted",
        ),
        (
            KINDS.events_lost,
            {"source": "fanotify"},
            "kernel events of the source fanotify were lost: everything is looked at again",
        ),
        (
            KINDS.device_event,
            {"subject": "driver nvidia", "action": "remove"},
            "driver nvidia has gone: what device numbers mean is looked up again",
        ),
    ],
)
def test_messages(kind: KINDS, more: dict[str, object], message: str) -> None:
    """The message alone tells what happened, to whom, by whom, and that it is over."""
    assert kind.message({**TRAINER, **more}) == message


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_speaks(kind: KINDS) -> None:
    """No kind fails for want of a field, and its level is one that a logger has."""
    message = kind.message({})
    assert message.isprintable()
    assert kind.level in {"info", "warning", "error"}


@pytest.mark.parametrize(
    ("trouble", "end"),
    [
        (KINDS.lost, KINDS.repaired),
        (KINDS.fight, KINDS.fight_over),
        (KINDS.source_down, KINDS.source_up),
        (KINDS.revoked, KINDS.granted),
        (KINDS.shielded, KINDS.unshielded),
    ],
)
def test_no_filter_shows_a_trouble_without_its_end(trouble: KINDS, end: KINDS) -> None:
    """The end of a trouble is told at the level of its beginning."""
    assert trouble.level == end.level


def test_emit() -> None:
    """An event goes to the log at its kind's level, with its kind and its fields; those that are None are left out."""
    with capture_logs() as logs:
        emit(structlog.get_logger(), KINDS.gone, name="trainer", pod=None)
    assert logs == [
        {
            "event": "trainer: has ended and is no longer guarded",
            "kind": "gone",
            "name": "trainer",
            "log_level": "info",
        }
    ]
