"""The textfile is kept as long as somebody writes it, and no longer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gpuguard.report import textfile as module
from gpuguard.report.textfile import Textfile
from tests.guard.log import capturing_log
from tests.report.support import until
from tests.systemd.recorder import running


class Subject:
    """A textfile, what it has told, and how often it was counted."""

    def __init__(self) -> None:
        log, self.log = capturing_log()
        self.counted = 0
        self.gate = threading.Event()
        self.gate.set()
        self.at_work = threading.Event()
        self.textfile = Textfile(log, self._count, self._write)

    def _count(self) -> None:
        self.counted += 1

    def _write(self, path: Path) -> None:
        self.at_work.set()
        self.gate.wait(20)
        path.write_text("gpuguard_build_info 1\n")


async def test_it_goes_with_its_writer(tmp_path: Path) -> None:
    """Figures are counted and written; after the end none is left to be taken for true."""
    subject, path = Subject(), tmp_path / "gpuguard.prom"
    await subject.textfile.use(str(path))
    async with running(subject.textfile.run):
        await until(path.exists)
    assert subject.counted == 1
    await subject.textfile.close()
    assert not path.exists()
    assert subject.log == []


async def test_one_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and for as long as it lasts to whoever asks."""
    monkeypatch.setattr(module, "_INTERVAL", 0.02)
    subject, path = Subject(), tmp_path / "nowhere" / "gpuguard.prom"
    await subject.textfile.use(str(path))
    async with running(subject.textfile.run):
        await until(lambda: subject.counted > 2)
        assert [entry["kind"] for entry in subject.log] == ["textfile_failed"]
        assert str(path) in (subject.textfile.trouble or "")
        path.parent.mkdir()
        await until(lambda: subject.textfile.trouble is None)


async def test_a_changed_setting_takes_the_old_one_away(tmp_path: Path) -> None:
    """The same name leaves no gap; another one, or none, leaves no file behind."""
    subject, old, new = Subject(), tmp_path / "old.prom", tmp_path / "new.prom"
    await subject.textfile.use(str(old))
    async with running(subject.textfile.run):
        await until(old.exists)
    await subject.textfile.use(str(old))
    assert old.exists()
    await subject.textfile.use(str(new))
    assert not old.exists()
    async with running(subject.textfile.run):
        await until(new.exists)
    await subject.textfile.use("")
    assert not new.exists()


async def test_a_write_that_is_not_done_yet(tmp_path: Path) -> None:
    """What a thread still writes does not come after the removal."""
    subject, path = Subject(), tmp_path / "gpuguard.prom"
    subject.gate.clear()
    await subject.textfile.use(str(path))
    async with running(subject.textfile.run):
        await until(subject.at_work.is_set)
    asyncio.get_running_loop().call_later(0.2, subject.gate.set)
    await subject.textfile.close()
    assert not path.exists()


async def test_one_that_comes_when_nobody_wants_it_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was away does not bring old figures back."""
    monkeypatch.setattr(module, "_PATIENCE", 0.02)
    subject, old, new = Subject(), tmp_path / "old.prom", tmp_path / "new.prom"
    subject.gate.clear()
    await subject.textfile.use(str(old))
    async with running(subject.textfile.run):
        await until(subject.at_work.is_set)
    writing = subject.textfile._writing
    assert writing is not None
    await subject.textfile.use(str(new))
    subject.gate.set()
    await asyncio.wait_for(writing, 20)
    assert not old.exists()
    await subject.textfile.close()
    assert subject.log == []


@pytest.mark.invariant(10)
def test_a_disk_that_hangs_hinders_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is not kept by a thread that waits for it."""
    monkeypatch.setattr(module, "_PATIENCE", 0.02)
    subject, path = Subject(), tmp_path / "gpuguard.prom"
    subject.gate.clear()

    async def live() -> None:
        await subject.textfile.use(str(path))
        async with running(subject.textfile.run):
            await until(subject.at_work.is_set)
        await subject.textfile.close()

    asyncio.run(live())
    assert not path.exists()  # nobody has waited until it was there
    subject.gate.set()


async def test_somebody_elses_file_is_left(tmp_path: Path) -> None:
    """Only what was written is removed."""
    subject, path = Subject(), tmp_path / "other.prom"
    path.write_text("other 1\n")
    await subject.textfile.use(str(path))
    await subject.textfile.close()
    assert path.exists()


async def test_one_that_cannot_be_removed(tmp_path: Path) -> None:
    """It is told, and ends nothing."""
    subject, path = Subject(), tmp_path / "gpuguard.prom"
    await subject.textfile.use(str(path))
    async with running(subject.textfile.run):
        await until(path.exists)
    path.unlink()
    path.mkdir()
    await subject.textfile.close()
    (entry,) = subject.log
    assert entry["kind"] == "trouble"
    assert entry["event"] == f"the textfile {path} cannot be removed: Is a directory"
