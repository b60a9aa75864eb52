"""The ledger on disk: what it keeps, what it believes, and what garbage does to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import LedgerError
from gpuguard.guard.ledger import Ledger, decode
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.nested import Nested
from tests.guard.made import GPU0, GPU1, entitled
from tests.model.looks import ENTITLEMENTS

BOOT = "5a5a"
ENTRY = entitled(GPU0, GPU1)


def opened(run: Path, boot: str = BOOT, *, writable: bool = True) -> Ledger:
    """Return an open ledger."""
    ledger = Ledger(run, boot, writable=writable)
    ledger.open()
    return ledger


def document(run: Path, inode: int = 7) -> dict[str, Any]:
    """Return what the file of an entry says."""
    found: dict[str, Any] = json.loads((run / "ledger" / f"{inode}.json").read_text())
    return found


def put(run: Path, name: str, data: bytes) -> Path:
    """Put a file into the ledger."""
    (run / "ledger").mkdir(mode=0o700, parents=True, exist_ok=True)
    path = run / "ledger" / name
    path.write_bytes(data)
    return path


@contextmanager
def fresh() -> Iterator[Path]:
    """Give hypothesis a directory for each example."""
    with TemporaryDirectory() as name:
        yield Path(name)


class TestRoundTrip:
    """What is saved is loaded."""

    @pytest.mark.invariant(7)
    @given(ENTITLEMENTS, st.integers(1, 1 << 63))
    def test_everything_is_kept(self, entry: Entitlement, inode: int) -> None:
        """Another ledger on the same directory, as after a restart, knows every field of an entry."""
        entry = replace(entry, inode=inode, quiet_since=0.25)
        with fresh() as run:
            opened(run).save(entry)
            assert opened(run).load() == ([entry], [])

    def test_groups_inside_the_container_are_kept(self, tmp_path: Path) -> None:
        """Whatever they are called; a file of an older version tells of none."""
        odd = b"docker/\xff".decode(errors="surrogateescape")
        groups = (Nested("docker", 8, ENTRY.rules), Nested(odd, 9, frozenset(), ENTRY.rules))
        opened(tmp_path).save(replace(ENTRY, nested=groups))
        assert opened(tmp_path).load() == ([replace(ENTRY, nested=groups)], [])
        older = document(tmp_path)
        del older["nested"]
        put(tmp_path, "7.json", json.dumps(older).encode())
        assert opened(tmp_path).load() == ([ENTRY], [])

    @pytest.mark.invariant(10)
    def test_too_many_groups_cost_only_themselves(self, tmp_path: Path) -> None:
        """An entry that would be too large to be read again is kept without them."""
        groups = tuple(Nested(f"{number}/" + "x" * 2000, number, ENTRY.rules) for number in range(600))
        opened(tmp_path).save(replace(ENTRY, nested=groups))
        assert opened(tmp_path).load() == ([ENTRY], [])

    def test_the_last_one_counts(self, tmp_path: Path) -> None:
        """An entry takes the place of an older one of the same inode."""
        ledger = opened(tmp_path)
        ledger.save(ENTRY)
        ledger.save(replace(ENTRY, settled=False))
        assert ledger.load() == ([replace(ENTRY, settled=False)], [])

    def test_forgotten_is_gone(self, tmp_path: Path) -> None:
        """What is forgotten is gone from the disk too, and forgetting it again is no error."""
        ledger = opened(tmp_path)
        ledger.save(ENTRY)
        ledger.forget(7)
        ledger.forget(7)
        assert ledger.load() == ([], [])
        assert list((tmp_path / "ledger").iterdir()) == []

    def test_a_crash_in_the_middle_leaves_the_older_one(self, tmp_path: Path) -> None:
        """What was half written when the daemon died is not believed, and is swept away."""
        opened(tmp_path).save(ENTRY)
        left = put(tmp_path, "7.new", b'{"version": 1, "bo')
        assert opened(tmp_path).load() == ([ENTRY], [])
        assert not left.exists()

    def test_without_a_directory_there_is_nothing(self, tmp_path: Path) -> None:
        """A ledger that is only read need not be there."""
        assert opened(tmp_path, writable=False).load() == ([], [])
        assert list(tmp_path.iterdir()) == []


class TestReadOnly:
    """A ledger that a command only reads."""

    def test_changes_nothing_on_disk(self, tmp_path: Path) -> None:
        """Saving, forgetting and loading, also garbage and other boots, leave all files as they were."""
        opened(tmp_path).save(ENTRY)
        put(tmp_path, "8.json", b"garbage")
        put(tmp_path, "9.json", json.dumps({**document(tmp_path), "boot": "other", "inode": 9}).encode())
        put(tmp_path, "9.new", b"half")
        before = {path: path.read_bytes() for path in (tmp_path / "ledger").iterdir()}
        ledger = opened(tmp_path, writable=False)
        ledger.save(replace(ENTRY, inode=10))
        ledger.forget(7)
        entries, complaints = ledger.load()
        assert (entries, len(complaints)) == ([ENTRY], 1)
        assert {path: path.read_bytes() for path in (tmp_path / "ledger").iterdir()} == before


class TestDisbelief:
    """What is not believed grants nothing."""

    def test_another_boot(self, tmp_path: Path) -> None:
        """Inodes and device numbers mean nothing after a reboot: entries of another one are removed in silence."""
        opened(tmp_path, "other").save(ENTRY)
        assert opened(tmp_path).load() == ([], [])
        assert list((tmp_path / "ledger").iterdir()) == []

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\0" * 4096,
            b"\xff\xfe",
            b"null",
            b"[]",
            b"{}",
            b'{"version": 2}',
            b"[" * 100_000,
            b" " * (2 << 20),
        ],
        ids=["empty", "zeros", "not-utf-8", "null", "list", "no-version", "version-2", "deep", "large"],
    )
    def test_garbage_is_put_aside_and_told(self, tmp_path: Path, data: bytes) -> None:
        """A file that makes no sense is renamed, named in a complaint, and the others still count."""
        opened(tmp_path).save(ENTRY)
        path = put(tmp_path, "8.json", data)
        entries, complaints = opened(tmp_path).load()
        assert entries == [ENTRY]
        assert [where for where, _ in complaints] == [str(path)]
        assert not path.exists()
        assert path.with_suffix(".damaged").exists()
        assert opened(tmp_path).load() == ([ENTRY], [])

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("version", 2),
            ("unit", 5),
            ("inode", "7"),
            ("inode", True),
            ("inode", 8),
            ("rules", ["a *:* rwm"]),
            ("rules", ["c 195:0 rw", "nonsense"]),
            ("rules", [["c 195:0 rw"]]),
            ("rules", [5]),
            ("rules", "c 195:0 rw"),
            ("nested", 5),
            ("nested", [["a", 8, ["c 195:0 rw"]]]),
            ("nested", [["a", "8", [], []]]),
            ("nested", [["a", 8, ["a *:* rwm"], []]]),
            ("nested", [["a", 8, [], [5]]]),
            ("released", {}),
            ("settled", 1),
            ("struck", None),
            ("quiet_since", "1"),
            ("quiet_since", float("nan")),
            ("quiet_since", float("inf")),
            ("first_seen", float("-inf")),
        ],
    )
    def test_one_odd_value_is_enough(self, tmp_path: Path, key: str, value: object) -> None:
        """An entry with a value of the wrong type or form, or in another's place, is not believed in any part."""
        opened(tmp_path).save(ENTRY)
        put(tmp_path, "7.json", json.dumps({**document(tmp_path), key: value}).encode())
        entries, complaints = opened(tmp_path).load()
        assert (entries, len(complaints)) == ([], 1)

    @pytest.mark.parametrize("key", ["unit", "inode", "rules", "settled", "quiet_since", "boot", "version"])
    def test_one_missing_key_is_enough(self, tmp_path: Path, key: str) -> None:
        """An entry that lacks something is not believed."""
        opened(tmp_path).save(ENTRY)
        entry = document(tmp_path)
        del entry[key]
        put(tmp_path, "7.json", json.dumps(entry).encode())
        assert opened(tmp_path).load()[0] == []

    @pytest.mark.invariant(7)
    @given(st.binary(max_size=300))
    def test_random_bytes_grant_nothing(self, data: bytes) -> None:
        """Whatever a file holds, loading neither fails nor believes it."""
        with fresh() as run:
            put(run, "7.json", data)
            entries, complaints = opened(run).load()
            assert entries == []
            assert len(complaints) == 1 or b"boot" in data

    @given(
        st.dictionaries(
            st.sampled_from(["unit", "control_group", "inode", "invocation", "rules", "released", "settled", "struck"]),
            st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5),
        )
    )
    def test_random_documents_are_errors_of_ours(self, values: dict[str, object]) -> None:
        """A document of any form is an entry or a LedgerError, nothing else."""
        with pytest.raises(LedgerError):
            decode(values)


class TestTrust:
    """Who may write what would be believed."""

    def test_a_directory_that_others_may_write(self, tmp_path: Path) -> None:
        """A ledger that a group or everybody may write is refused, with what it must be."""
        (tmp_path / "ledger").mkdir()
        (tmp_path / "ledger").chmod(0o770)
        with pytest.raises(LedgerError, match="must be a directory that nobody but root or this user can write"):
            opened(tmp_path)

    def test_a_link_to_a_directory(self, tmp_path: Path) -> None:
        """A link in the ledger's place is refused."""
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "ledger").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LedgerError, match="must be a directory"):
            opened(tmp_path)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
    def test_a_directory_of_somebody_else(self, tmp_path: Path) -> None:
        """A ledger of another user is refused."""
        (tmp_path / "ledger").mkdir(mode=0o700)
        os.chown(tmp_path / "ledger", 65534, 65534)
        with pytest.raises(LedgerError, match="must be a directory that nobody but root or this user can write"):
            opened(tmp_path)

    def test_its_own_directory(self, tmp_path: Path) -> None:
        """What the ledger makes itself only its owner may enter."""
        opened(tmp_path)
        assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o700


class TestFailure:
    """A disk that does not do its part."""

    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        """A file where the run directory should be is told."""
        (tmp_path / "run").touch()
        with pytest.raises(LedgerError, match="cannot make the ledger: Not a directory"):
            opened(tmp_path / "run")

    def test_an_entry_that_cannot_be_written(self, tmp_path: Path) -> None:
        """When an entry cannot be written the error says which, and what was there before stays."""
        ledger = opened(tmp_path)
        ledger.save(ENTRY)
        (tmp_path / "ledger" / "7.new").mkdir()
        with pytest.raises(LedgerError, match=r"7\.json: cannot write the ledger: Is a directory"):
            ledger.save(replace(ENTRY, settled=False))
        assert document(tmp_path)["settled"] is True

    def test_an_entry_that_cannot_be_removed(self, tmp_path: Path) -> None:
        """When an entry cannot be removed the error says which."""
        ledger = opened(tmp_path)
        (tmp_path / "ledger" / "7.json").mkdir()
        with pytest.raises(LedgerError, match=r"7\.json: cannot remove"):
            ledger.forget(7)

    def test_a_directory_in_an_entry_s_place(self, tmp_path: Path) -> None:
        """A directory named like an entry is put aside like garbage."""
        ledger = opened(tmp_path)
        (tmp_path / "ledger" / "7.json").mkdir()
        entries, complaints = ledger.load()
        assert (entries, len(complaints)) == ([], 1)
        assert (tmp_path / "ledger" / "7.damaged").is_dir()

    def test_a_ledger_that_vanishes(self, tmp_path: Path) -> None:
        """Without its directory the ledger is empty to read, and an error to write."""
        ledger = opened(tmp_path)
        (tmp_path / "ledger").rmdir()
        assert ledger.load() == ([], [])
        with pytest.raises(LedgerError, match="cannot write the ledger: No such file"):
            ledger.save(ENTRY)
