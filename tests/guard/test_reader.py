"""What may hang is read in a thread, and not waited for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gpuguard.errors import RuntimeFileError, SpecError
from gpuguard.guard.reader import Reader
from tests.report.support import until

PATIENCE = 0.4  # seconds


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Return one that is patient."""
    made = Reader("test", patience=20.0)
    yield made
    made.close()


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Return what a read waits for."""
    event = threading.Event()
    yield event
    event.set()


async def test_another_thread_reads(reader: Reader) -> None:
    """One and the same for all."""
    threads = [await reader.read("it", threading.get_ident) for _ in range(3)]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_what_it_raises(reader: Reader) -> None:
    """It is raised where it was asked for, and the next read works."""

    def refuse() -> None:
        raise SpecError("not JSON")

    with pytest.raises(SpecError, match="not JSON"):
        await reader.read("it", refuse)
    assert await reader.read("it", lambda: 1) == 1


@pytest.mark.invariant(10)
async def test_one_that_hangs(reader: Reader, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up; what comes behind it is refused at once and never done; it works again when it is over."""
    done = []
    await reader.read("it", lambda: None)
    monkeypatch.setattr(reader, "_patience", PATIENCE)
    with pytest.raises(RuntimeFileError, match="the disk: no answer in 0 s"):
        await asyncio.gather(
            reader.read("the disk", hanging.wait),
            reader.read("the disk", lambda: done.append("behind it")),
        )
    # The thread began a little after whoever asked it.
    await until(lambda: reader._since is not None and time.monotonic() - reader._since >= PATIENCE)
    before = time.monotonic()
    for _ in range(100):
        with pytest.raises(RuntimeFileError, match="not read"):
            await reader.read("a file", lambda: done.append("later"))
    assert time.monotonic() - before < 25 * PATIENCE
    assert reader._todo.qsize() <= 1
    hanging.set()
    await until(lambda: reader._since is None)
    monkeypatch.undo()
    assert await reader.read("a file", lambda: 1) == 1
    assert done == []


async def test_closed() -> None:
    """Nothing is read any more, and the thread ends, also one that never began."""
    reader = Reader("test")
    assert await reader.read("it", lambda: 1) == 1
    reader.close()
    with pytest.raises(RuntimeFileError, match="not read"):  # at once
        await reader.read("it", lambda: 1)
    reader._thread.join(20.0)
    assert not reader._thread.is_alive()
    Reader("test").close()


@pytest.mark.invariant(7)
def test_the_process_ends_all_the_same() -> None:
    """A read that hangs keeps nobody from ending."""
    program = (
        "import asyncio, time\n"
        "from gpuguard.errors import RuntimeFileError\n"
        "from gpuguard.guard.reader import Reader\n"
        "async def main():\n"
        "    try:\n"
        "        await Reader('test', patience=0.1).read('it', lambda: time.sleep(1000))\n"
        "    except RuntimeFileError:\n"
        "        print('given up')\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert (ended.stdout, ended.stderr) == ("given up\n", "")
