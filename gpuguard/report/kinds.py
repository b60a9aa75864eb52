"""The kinds of event that gpuguard tells of, each with its fixed MESSAGE_ID.

systemd/gpuguard.catalog explains each of them to `journalctl -x`. An id stays for ever: people's filters hold it.
The end of a trouble has the level of its beginning, so that no filter shows the one without the other.
"""

from __future__ import annotations

import enum
from typing import Any

from structlog.typing import FilteringBoundLogger

from gpuguard.report.phrases import Phrases


class KINDS(enum.Enum):
    """One kind of event: MESSAGE_ID, level, and the template of its message (see phrases.Phrases)."""

    started = (
        "e0bbfad66a5f48d59ac4816d395781f3",
        "info",
        "gpuguard {version} started in {mode} mode: cgroup {cgroup}, systemd {systemd}",
    )
    stopped = (
        "ff62d99d3eb34699a4b7de9d141cf33f",
        "info",
        "gpuguard stopped: containers keep the devices they have, but nobody gives back what is taken from now on",
    )
    config_reloaded = (
        "0f59419f1e74436ba7c5d4bc08bb6523",
        "info",
        "configuration {path} was read again and is in force, in {mode} mode",
    )
    config_rejected = (
        "c526418d45d941deac913fe320635113",
        "error",
        "configuration not taken, the one before stays in force: {reason}",
    )
    needs_restart = (
        "31d6f2a85c0b4d27a8e69a4c1ff0b7d3",
        "warning",
        "the setting {setting} has changed: that takes a restart of gpuguard, until then the one before stays in force",
    )
    found = (
        "4ea1164626f543bcac86b4162088f57f",
        "info",
        "{who}: guarded from now on: {devices}; state: {state}",
    )
    gone = (
        "9c71d35544524ce1996536d60f3d9fec",
        "info",
        "{who}: has ended and is no longer guarded",
    )
    lost = (
        "e3365244e0a945beb287b1643e4efd3a",
        "warning",
        "{who}: GPU access lost: {devices} taken away {by}",
    )
    repaired = (
        "28f0251adf0b43eabcc26f8d8fa48a2d",
        "warning",
        "{who}: GPU access restored{after}: {devices} had been taken away {by}",
    )
    repair_failed = (
        "9638a8f66d684c218d79e52161898130",
        "error",
        "{who}: GPU access could not be restored: {devices}: {reason}",
    )
    declared = (
        "49f088808dd844bc9fd0f52c88954a68",
        "info",
        "{who}: safe from reloads: systemd knows {devices} now",
    )
    declare_failed = (
        "aac19b1db6fb47a489fb53f0395aef34",
        "warning",
        "{who}: systemd cannot be made to remember {devices}, its next rewrite takes them away: {reason}",
    )
    at_risk = (
        "63e3b7eab0e040a4a1c1da1111506194",
        "warning",
        "{who}: the next daemon-reload would take away {devices}: {reason}",
    )
    excess = (
        "044b718b749841739e8c9f23f24584f5",
        "warning",
        "{who}: may use {devices}, which its runtime did not give it; left as it is",
    )
    fight = (
        "f12d0a0755a3493f8cd79600ae38442c",
        "error",
        "{who}: {devices} taken away again and again {by}: no repair for {pause}",
    )
    fight_over = (
        "572e4515abdc48ac8f69f27f1e5ba794",
        "error",
        "{who}: repairs are made again after the pause",
    )
    released = (
        "6ba32e6678e84b22a0bc624f96271aa2",
        "warning",
        "{who}: {devices} released on request, not given back from now on",
    )
    source_down = (
        "501d93d29de94f9da6f08b21b5c8f766",
        "warning",
        "event source {source} is down, losses are found all the same, if later or without their cause: {reason}",
    )
    source_up = (
        "402b408420774034858a9761a87e276d",
        "warning",
        "event source {source} works again",
    )
    ledger_damaged = (
        "4f16d958e03b4132ab060f7e8f58083a",
        "error",
        "ledger {path} cannot be used, what containers were given is learnt afresh: {reason}",
    )
    blind = (
        "2d4167e63f1e4853940820595f9ee27e",
        "warning",
        "{who}: what it may open cannot be told, nothing is concluded or done until it can: {reason}",
    )
    observed = (
        "b9e9866cdb82493c82b0786c0a1c0669",
        "warning",
        "{who}: observe mode, nothing was done: would have {deed} {devices}",
    )
    shield_removed = (
        "72e2d14ddaf040b5b51ac978d96a8ec0",
        "info",
        "{who}: a shield that was left behind is removed",
    )
    trouble = (
        "8825885578f4494eadb76ae64232f6bb",
        "warning",
        "{reason}",
    )
    fault = (
        "234e9d069a184f26b9c482a0cd9cda68",
        "error",
        "internal error while looking at {scope}: the next round tries again",
    )
    endpoint_failed = (
        "7cb590d442514a789104c05cba9d8201",
        "error",
        "no metrics endpoint, trying again: {reason}",
    )
    textfile_failed = (
        "6baeb33ffbc54645869f4192c0e5c5c1",
        "error",
        "cannot write the textfile {path}, trying again: {reason}",
    )
    no_effect = (
        "fd644c9fdcd14ca0aae88ffdad80482c",
        "warning",
        "the setting {setting} has no effect {where}",
    )

    revoked = (
        "3f5998bdcaac42109787f95156028ab9",
        "warning",
        "{who}: {devices} taken away on purpose {by}: gpuguard does not give it back, a reload may",
    )
    granted = (
        "d529a468e07546c9b7bbe060919b6482",
        "warning",
        "{who}: {devices} added {by}: guarded from now on",
    )
    shielded = (
        "2f60edf26c724c3789bd913e09aac54c",
        "info",
        "{who}: shielded for good: what systemd writes anew takes nothing away",
    )
    unshielded = (
        "96105453f06a41d28a367282b9d2021d",
        "info",
        "{who}: no longer shielded: systemd can take away again what it does not know",
    )
    shield_keeps = (
        "916f770caba11f9890a9d94448daa413",
        "warning",
        "{who}: systemd does not know {devices}: {reason}",
    )
    sentinel_standing = (
        "e1f945e2c5f0404d9cce0096261dd101",
        "info",
        "the sentinel, which answers to a write at once, runs {standing}{why}",
    )
    events_lost = (
        "c1c90ff17f834182972a08b2f77e95f5",
        "warning",
        "kernel events of the source {source} were lost: everything is looked at again",
    )
    device_event = (
        "9d87428df02e4a4584507cad57cc8e5c",
        "info",
        "{subject} {happened}: what device numbers mean is looked up again",
    )
    stale = (
        "db6b56072c6643a6a712a7605f665e2f",
        "error",
        "{who}: {devices} given to it is another device now, and is not given back: {reason}",
    )
    unclear = (
        "f7b4899201b743e6b6aa64bb053069c6",
        "warning",
        "{who}: asked for GPUs, and what it was given cannot be told, so nothing is given back: {reason}",
    )

    restored_below = (
        "5ef0279c85904cd3a783d3b3454e9b02",
        "warning",
        "{who}: GPU access restored in control groups that it has made, {groups}: {devices}",
    )

    def __init__(self, message_id: str, level: str, template: str) -> None:
        self.message_id = message_id
        self.level = level
        self.template = template

    def message(self, fields: dict[str, Any]) -> str:
        """Return the sentence that tells a tired engineer what happened, to whom and by whom."""
        return self.template.format_map(Phrases(fields))


def emit(log: FilteringBoundLogger, kind: KINDS, **fields: Any) -> None:  # noqa: ANN401 - a log takes anything
    """Log one event with its fields; those that are None are left out."""
    given = {key: value for key, value in fields.items() if value is not None}
    getattr(log, kind.level)(kind.message(given), kind=kind.name, **given)
