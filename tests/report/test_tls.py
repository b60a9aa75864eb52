"""TLS and client certificates, with certificates made by openssl for the test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

import pytest

from gpuguard.errors import ConfigError
from gpuguard.report import http
from gpuguard.report.tls import TlsFiles
from tests.report.support import PATIENCE, tool, until

_REQUEST = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self.certificate = directory / "ca.crt"
        (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        self._openssl(
            *(*_REQUEST, "-x509", "-days", "2", "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.crt"),
            # Without it Python 3.13's client does not take the CA.
            *("-addext", "keyUsage=critical,keyCertSign"),
        )

    def issue(self, name: str) -> TlsFiles:
        """Make a key and a certificate for 127.0.0.1."""
        self._openssl(*_REQUEST, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl(
            *("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", "extensions"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
        )
        return TlsFiles(str(self._directory / f"{name}.crt"), str(self._directory / f"{name}.key"))

    def _openssl(self, *arguments: str) -> None:
        subprocess.run([tool("openssl"), *arguments], cwd=self._directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that everybody trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "good")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "bad")


@contextlib.asynccontextmanager
async def serving(tls: TlsFiles) -> AsyncIterator[http.Server]:
    """Run a server; no error may reach the loop's handler."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    server = http.Server("127.0.0.1:0", lambda _: ("text/plain", b"metric 1\n"), lambda: None, tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
    assert complaints == []


async def get(server: http.Server, authority: Authority, own: Optional[TlsFiles] = None) -> tuple[bytes, bytes]:
    """Return the answer to a scrape and the server's certificate. Raises OSError where TLS fails."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[0], ssl=context)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        # With TLS 1.3 the client learns only here that its certificate is not accepted: a reset, or the end.
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        return answer, writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()


async def test_tls(authority: Authority) -> None:
    """A client that trusts the authority gets its answer; the server's certificate is checked by it."""
    async with serving(authority.issue("server")) as server:
        answer, _ = await get(server, authority)
    assert answer.endswith(b"metric 1\n")


async def test_client_certificates(authority: Authority, stranger: Authority) -> None:
    """With a client CA only clients with its certificate are served: not those with none, nor with another's."""
    own = authority.issue("server")
    tls = TlsFiles(own.cert, own.key, str(authority.certificate))
    async with serving(tls) as server:
        answer, _ = await get(server, authority, authority.issue("client"))
        assert answer.endswith(b"metric 1\n")
        for wrong in (None, stranger.issue("client")):
            with contextlib.suppress(OSError):
                answer, _ = await get(server, authority, wrong)
                assert answer == b""
        await until(lambda: not server._connections)


async def test_a_client_without_tls(authority: Authority) -> None:
    """Plain HTTP to a TLS port is no answer and no trouble."""
    async with serving(authority.issue("server")) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"metric" not in await asyncio.wait_for(reader.read(), PATIENCE)
        writer.transport.abort()
        await until(lambda: not server._connections)
        answer, _ = await get(server, authority)
    assert answer.endswith(b"metric 1\n")


async def test_a_handshake_that_never_comes(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects and says nothing is let go."""
    monkeypatch.setattr(http, "STEP_TIME", 0.2)
    async with serving(authority.issue("server")) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.transport.abort()
        await until(lambda: not server._connections)


async def test_stop_during_a_handshake(authority: Authority) -> None:
    """Stopping does not wait for a client that never finishes its handshake."""
    async with serving(authority.issue("server")) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.ports[0])
        await until(lambda: bool(server._connections))
    writer.transport.abort()


@pytest.mark.parametrize("missing", ["cert", "key", "client_ca"])
def test_missing_files_are_named(authority: Authority, missing: str) -> None:
    """The error says which file it is."""
    own = authority.issue("named")
    paths = {"cert": own.cert, "key": own.key, "client_ca": str(authority.certificate), missing: "/no/such.pem"}
    with pytest.raises(ConfigError, match=r"/no/such\.pem.*No such file"):
        TlsFiles(**paths).context()


def test_old_protocols_are_refused(authority: Authority) -> None:
    """TLS 1.2 is the oldest that is spoken, also where Python's own default is older."""
    assert authority.issue("server").context().minimum_version == ssl.TLSVersion.TLSv1_2
