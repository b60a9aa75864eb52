"""systemd/gpuguard.catalog and the table of kinds agree, and systemd can read it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from gpuguard.report.kinds import KINDS
from tests.report.support import tool

CATALOG = Path(__file__).parents[2] / "systemd/gpuguard.catalog"
ENTRY = re.compile(r"^-- ([0-9a-f]{32})\nSubject: (.+)\nDefined-By: gpuguard\n\n((?:(?!-- ).*\n)+)", re.MULTILINE)


def test_each_kind_has_an_entry_and_each_entry_a_kind() -> None:
    """Neither side has one that the other lacks, in the same order, with subjects that differ."""
    entries = ENTRY.findall(CATALOG.read_text())
    assert [message_id for message_id, _, _ in entries] == [kind.message_id for kind in KINDS]
    assert len({subject for _, subject, _ in entries}) == len(entries)
    assert all(len(text) > 80 for _, _, text in entries)


def test_entries_name_fields_that_are_there() -> None:
    """What is substituted is the scope, which each entry about a container has and which has one value."""
    assert set(re.findall(r"@(\w+)@", CATALOG.read_text())) == {"GPUGUARD_SCOPE"}


def test_systemd_reads_it(tmp_path: Path) -> None:
    """The real journalctl compiles it, in a root of its own, without complaint and shows each text."""
    journalctl = tool("journalctl")
    source = tmp_path / "usr/lib/systemd/catalog"
    source.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(CATALOG, source)
    update = subprocess.run(
        [journalctl, f"--root={tmp_path}", "--update-catalog"], capture_output=True, text=True, check=True
    )
    assert update.stderr == ""
    for kind in KINDS:
        shown = subprocess.run(
            [journalctl, f"--root={tmp_path}", "--dump-catalog", kind.message_id],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.startswith(f"-- {kind.message_id}\nSubject: ")


def test_commands_that_are_advised_exist() -> None:
    """An engineer at 3 a.m. is sent to no command that the command line does not have."""
    commands = {"status", "repair", "explain", "doctor", "release", "config check", "config show"}
    assert set(re.findall(r'"gpuguard ([a-z ]+)"', CATALOG.read_text())) == commands
