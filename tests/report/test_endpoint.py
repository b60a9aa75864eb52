"""The endpoint as the settings want it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuguard.config import Metrics, Settings
from gpuguard.errors import ConfigError
from gpuguard.report import endpoint as module
from gpuguard.report.endpoint import Endpoint
from tests.guard.log import capturing_log
from tests.report.support import until
from tests.report.test_tls import Authority


def metrics(listen: str, **more: str) -> Metrics:
    """Return settings for an address."""
    return Settings.from_mapping({"metrics": {"listen": listen, **more}}).metrics


class Subject:
    """An endpoint and what it has told."""

    def __init__(self) -> None:
        log, self.log = capturing_log()
        self.endpoint = Endpoint(log, lambda _: ("text/plain", b"metric 1\n"), lambda: None)

    def kinds(self) -> list[str]:
        """Return the kinds of events."""
        return [entry["kind"] for entry in self.log]


@pytest.fixture
async def subject() -> AsyncIterator[Subject]:
    """Yield an endpoint that nobody has told where to listen."""
    subject = Subject()
    yield subject
    await subject.endpoint.close()


async def ask(path: Path) -> bytes:
    """Scrape over a Unix socket."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_the_same_settings_leave_no_gap(subject: Subject, tmp_path: Path) -> None:
    """The socket of before goes on, also for a client that is connected already."""
    path = tmp_path / "a"
    await subject.endpoint.use(metrics(f"unix:{path}"))
    await until(path.exists)
    inode = path.stat().st_ino
    reader, writer = await asyncio.open_unix_connection(str(path))
    await subject.endpoint.use(metrics(f"unix:{path}", textfile="/srv/x.prom"))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"metric 1" in await asyncio.wait_for(reader.read(), 20)
    assert path.stat().st_ino == inode
    writer.close()


async def test_other_settings_hold_at_once(subject: Subject, tmp_path: Path) -> None:
    """Another address takes the place of the one before, and no address is none."""
    old, new = tmp_path / "a", tmp_path / "b"
    await subject.endpoint.use(metrics(f"unix:{old}"))
    await until(old.exists)
    await subject.endpoint.use(metrics(f"unix:{new}"))
    await until(new.exists)
    assert not old.exists()
    await subject.endpoint.use(metrics(""))
    assert not new.exists()
    await subject.endpoint.renew()


async def test_an_address_in_use_is_told_once_and_tried_again(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has the address keeps it, and when it is free it is taken."""
    monkeypatch.setattr(module, "_RETRY", 0.02)
    path = tmp_path / "late" / "a"
    await subject.endpoint.use(metrics(f"unix:{path}"))
    waiting = asyncio.ensure_future(subject.endpoint.run())
    await until(lambda: bool(subject.log))
    await asyncio.sleep(0.1)
    assert subject.kinds() == ["endpoint_failed"]
    assert str(path) in (subject.endpoint.trouble or "")
    path.parent.mkdir()
    await until(path.exists)
    await until(lambda: subject.endpoint.trouble is None)
    assert b"metric 1" in await ask(path)
    assert not waiting.done()
    waiting.cancel()


async def test_new_certificates_are_taken_without_a_gap(subject: Subject, tmp_path: Path) -> None:
    """Renewed files hold for the next connection; broken ones are refused, and the old ones stay."""
    authority = Authority(tmp_path / "ca")
    first, second = authority.issue("one"), authority.issue("two")
    path, cert, key = tmp_path / "a", tmp_path / "tls.crt", tmp_path / "tls.key"
    client = ssl.create_default_context(cafile=str(authority.certificate))

    def install(cert_from: str, key_from: str) -> None:
        shutil.copy(cert_from, cert)
        shutil.copy(key_from, key)

    async def name() -> str:
        _, writer = await asyncio.open_unix_connection(str(path), ssl=client, server_hostname="127.0.0.1")
        subject_ = writer.get_extra_info("peercert")["subject"]
        writer.close()
        return str(subject_[0][0][1])

    install(first.cert, first.key)
    await subject.endpoint.use(metrics(f"unix:{path}", tls_cert=str(cert), tls_key=str(key)))
    await until(path.exists)
    assert await name() == "one"
    install(second.cert, second.key)
    await subject.endpoint.renew()
    assert await name() == "two"
    cert.write_text("broken")
    with pytest.raises(ConfigError, match="tls_cert"):
        await subject.endpoint.renew()
    assert await name() == "two"
