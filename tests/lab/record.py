"""What is written down about a node, so that any later process can find it and remove it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from tests.lab.cgroups import Hierarchy
from tests.lab.errors import LabError
from tests.lab.process import Process

BASE = Path(os.environ.get("GPUGUARD_LAB_DIR", "/run/gpuguard-lab"))


@dataclass(frozen=True)
class Record:
    """One node: its name, its cgroup mode ("v1" or "v2"), its groups, and the process that watches over it."""

    name: str
    mode: str
    keeper: Process
    hierarchies: tuple[Hierarchy, ...]

    @property
    def directory(self) -> Path:
        """Where the node's files are."""
        return BASE / self.name

    @property
    def console(self) -> Path:
        """What the node's systemd printed."""
        return self.directory / "console.log"

    def console_tail(self, size: int = 4000) -> str:
        """Return the last `size` characters of the console."""
        try:
            return self.console.read_text(encoding="utf-8", errors="replace")[-size:]
        except FileNotFoundError:
            return "(no console)"

    @property
    def mounts(self) -> Path:
        """The mount point of the node's file systems, which are mounted in private namespaces only."""
        return self.directory / "fs"

    def save(self) -> None:
        """Take the name and write the record, in one step. Raises LabError when the name is taken or none at all."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,40}", self.name):
            raise LabError(f"{self.name!r} cannot name a node: up to 41 letters, digits and hyphens can")
        with exclusive():
            if self.directory.exists():
                raise LabError(f"the name {self.name!r} is taken: there is a directory {self.directory}")
            fresh = BASE / f".new-{self.name}"
            shutil.rmtree(fresh, ignore_errors=True)
            (fresh / "fs").mkdir(parents=True)
            (fresh / "record.json").write_text(json.dumps(asdict(self)), encoding="ascii")
            fresh.rename(self.directory)

    def note_init(self, init: Process) -> None:
        """Write down the node's PID 1, by its number outside."""
        file = self.directory / "init.new"
        file.write_text(json.dumps(asdict(init)), encoding="ascii")
        file.rename(self.directory / "init")

    def init(self) -> Optional[Process]:
        """Return the node's PID 1, or None while it is not there (yet, or any more)."""
        try:
            init = Process(**json.loads((self.directory / "init").read_text(encoding="ascii")))
        except FileNotFoundError:
            return None
        return init if init.alive() else None

    def forget(self) -> None:
        """Remove the node's files; the name is free again."""
        shutil.rmtree(self.directory)
        with suppress(OSError):  # other nodes' files are in it
            BASE.rmdir()


@contextmanager
def exclusive() -> Iterator[None]:
    """Keep other processes from making or reaping nodes meanwhile."""
    BASE.mkdir(mode=0o755, exist_ok=True)
    lock = os.open(BASE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def load(name: str) -> Optional[Record]:
    """Return the record of the node `name`, or None when there is no such node."""
    try:
        data: dict[str, Any] = json.loads((BASE / name / "record.json").read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    hierarchies = tuple(Hierarchy(**item) for item in data["hierarchies"])
    return Record(data["name"], data["mode"], Process(**data["keeper"]), hierarchies)


def load_all() -> list[Record]:
    """Return the records of all nodes, by name."""
    names = sorted(path.name for path in BASE.glob("[!.]*")) if BASE.exists() else []
    return [record for record in map(load, names) if record is not None]
