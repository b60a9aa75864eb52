"""The ledger on disk: one file per scope, so that what was learnt outlives the daemon.

It lies in /run: it must not outlive the boot, as inodes and device numbers do not. A file is
written beside its place and renamed; one that makes no sense is put aside and reported, and
grants nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from gpuguard.errors import LedgerError, RuleError
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.nested import Nested
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import parse_rules

VERSION = 1
_MAX_BYTES = 1 << 20


class Ledger:
    """Entitlements by cgroup inode, in the directory `run`/ledger. `boot` is this boot's id.

    Unless `writable` it changes nothing on disk, and what is saved is lost.
    """

    def __init__(self, run: Path, boot: str, *, writable: bool) -> None:
        self._directory = run / "ledger"
        self._boot = boot
        self._writable = writable

    def open(self) -> None:
        """Make the directory; one that is only read need not be there.

        Raises LedgerError where anybody else could write what we would believe.
        """
        try:
            if self._writable:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._directory.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise LedgerError(f"{self._directory}: cannot make the ledger: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022:
            raise LedgerError(f"{self._directory}: must be a directory that nobody but root or this user can write")

    def load(self) -> tuple[list[Entitlement], list[tuple[str, str]]]:
        """Return all entitlements of this boot, and (path, reason) of each file that was put aside.

        A ledger that is not there is empty. Raises LedgerError when the directory cannot be read.
        """
        complaints: list[tuple[str, str]] = []
        entries = [self._believe(path, complaints) for path in self._files()]
        return [entry for entry in entries if entry is not None], complaints

    def save(self, entry: Entitlement) -> None:
        """Write one entitlement in the place of an older one. Raises LedgerError."""
        if not self._writable:
            return
        path = self._path(entry.inode)
        beside = path.with_suffix(".new")
        try:
            beside.write_text(self._written(entry), encoding="utf-8")
            beside.replace(path)
        except OSError as error:
            raise LedgerError(f"{path}: cannot write the ledger: {error.strerror}") from error

    def forget(self, inode: int) -> None:
        """Remove what is known of a scope that is gone. Raises LedgerError."""
        if not self._writable:
            return
        try:
            self._path(inode).unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"{self._path(inode)}: cannot remove: {error.strerror}") from error

    def _path(self, inode: int) -> Path:
        return self._directory / f"{inode}.json"

    def _files(self) -> Iterator[Path]:
        try:
            paths = sorted(self._directory.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise LedgerError(f"{self._directory}: cannot read the ledger: {error.strerror}; are you root?") from error
        for path in paths:
            if path.suffix == ".json":
                yield path
            elif path.suffix == ".new" and self._writable:
                with contextlib.suppress(OSError):  # what a crash left half written says nothing
                    path.unlink()

    def _believe(self, path: Path, complaints: list[tuple[str, str]]) -> Optional[Entitlement]:
        try:
            return self._read(path)
        except (OSError, ValueError, RecursionError, LedgerError) as error:
            complaints.append((str(path), str(error)))
            if self._writable:
                with contextlib.suppress(OSError):  # it is not believed, wherever it lies
                    path.replace(path.with_suffix(".damaged"))
            return None

    def _written(self, entry: Entitlement) -> str:
        text = json.dumps(self._encode(entry), indent=1) + "\n"
        if len(text) > _MAX_BYTES:  # a container can have groups with long names: they are known until a restart
            text = json.dumps(self._encode(replace(entry, nested=())), indent=1) + "\n"
        return text

    def _encode(self, entry: Entitlement) -> dict[str, Any]:
        return {
            "version": VERSION,
            "boot": self._boot,
            "unit": entry.unit,
            "control_group": entry.control_group,
            "inode": entry.inode,
            "invocation": entry.invocation,
            "rules": sorted(str(rule) for rule in entry.rules),
            "released": sorted(entry.released),
            "settled": entry.settled,
            "struck": entry.struck,
            "quiet_since": entry.quiet_since,
            "first_seen": entry.first_seen,
            "by_spec": sorted(str(rule) for rule in entry.by_spec),
            "by_request": sorted(str(rule) for rule in entry.by_request),
            "drivers": sorted(entry.drivers),
            "nested": [_nested(group) for group in entry.nested],
        }

    def _read(self, path: Path) -> Optional[Entitlement]:
        """Return the entry; remove one of another boot and return None."""
        document = json.loads(_text(path))
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise LedgerError(f"want a version {VERSION} entry")
        if document.get("boot") != self._boot:
            if self._writable:
                path.unlink()
            return None
        entry = decode(document)
        if path.name != f"{entry.inode}.json":
            raise LedgerError("its name is not its inode")
        return entry


def _text(path: Path) -> str:
    """Read a plain file: not what a link leads to, nor a pipe, whose writer one would wait for."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise LedgerError("not a plain file")
        if status.st_size > _MAX_BYTES:
            raise LedgerError("too large")
        return os.read(file, _MAX_BYTES + 1).decode()
    finally:
        os.close(file)


def decode(document: dict[str, Any]) -> Entitlement:
    """Turn a version 1 document into an entitlement. Raises LedgerError on anything odd."""

    def get(key: str, kind: type[Any]) -> Any:  # noqa: ANN401 - the kind is checked here
        value = document.get(key)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise LedgerError(f"{key}: want {kind.__name__}")
        if kind is float and not math.isfinite(value):
            raise LedgerError(f"{key}: want a time, not {value}")
        return value

    def rules(key: str, default: Optional[list[str]] = None) -> frozenset[Rule]:
        lines = document.get(key, default)
        if not isinstance(lines, list):
            raise LedgerError(f"{key}: want list")
        return parse_rules(lines) if lines else frozenset()

    try:
        return Entitlement(
            unit=get("unit", str),
            control_group=get("control_group", str),
            inode=get("inode", int),
            invocation=get("invocation", str),
            rules=rules("rules"),
            released=frozenset(Rule.parse(f"{device} rwm").device for device in get("released", list)),
            settled=get("settled", bool),
            struck=get("struck", bool),
            quiet_since=get("quiet_since", float),
            first_seen=get("first_seen", float),
            # Not in what older versions wrote.
            by_spec=rules("by_spec", []),
            by_request=rules("by_request", []),
            drivers=frozenset(_driver(driver) for driver in document.get("drivers", [])),
            nested=tuple(_group(group) for group in document.get("nested", [])),
        )
    except (RuleError, TypeError) as error:
        raise LedgerError(str(error)) from error


def _driver(made: object) -> tuple[str, int, str]:
    if not isinstance(made, list) or list(map(type, made)) != [str, int, str]:
        raise LedgerError("drivers: want [type, major, name]")
    kind, major, name = made
    return kind, major, name


def _nested(group: Nested) -> list[Any]:
    return [group.path, group.inode, *(sorted(map(str, rules)) for rules in (group.rules, group.owed))]


def _group(made: object) -> Nested:
    if not isinstance(made, list) or list(map(type, made)) != [str, int, list, list]:
        raise LedgerError("nested: want [path, inode, rules, owed]")
    path, inode, rules, owed = made
    return Nested(path, inode, *(parse_rules(lines) if lines else frozenset() for lines in (rules, owed)))
