"""HTTP/1.1 messages: the head of a request read, a response spelt. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

_REQUEST_LINE = re.compile(r"([!-~]+) ([!-~]+) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """A request without a body. The names of the headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """Read the head, up to and without the empty line. Raises ValueError, also for a request with a body."""
        line, *lines = head.decode("latin-1").replace("\r\n", "\n").rstrip("\n").split("\n")
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            raise ValueError("not an HTTP/1.1 request line")
        headers = {}
        for text in lines:
            header = _HEADER.fullmatch(text)
            if header is None:
                raise ValueError("not a header line")
            headers[header[1].lower()] = header[2]
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            raise ValueError("a request body is not expected")
        return cls(match[1], match[2].partition("?")[0], headers)


@dataclass(frozen=True)
class Response:
    """A response; the connection is closed after it."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    extra: tuple[str, ...] = ()

    @classmethod
    def text(cls, status: HTTPStatus, text: str, *extra: str) -> Response:
        """Answer in plain text, with extra header lines where needed."""
        return cls(status, f"{text}\n".encode(), TEXT, extra)

    def encode(self, *, head_only: bool = False) -> bytes:
        """Return it as it goes over the wire."""
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *self.extra,
        )
        head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
        return head.encode("latin-1") + (b"" if head_only else self.body)
