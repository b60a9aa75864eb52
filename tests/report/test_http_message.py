"""Heads of requests, good and bad, and responses."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.report.http_message import Request, Response


def test_request() -> None:
    """Method, path without the query, and headers by small letters; a line may end in LF alone."""
    request = Request.parse(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\nACCEPT:  text/plain \r\n")
    assert request == Request("GET", "/metrics", {"host": "a", "accept": "text/plain"})


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /\r\n",
        b"GET / HTTP/2.0\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET /\xff HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n",
        b"GET / HTTP/1.1\r\n folded: x\r\n",
        b"GET / HTTP/1.1\r\nname : x\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_bad_request(head: bytes) -> None:
    """What is no plain request without a body is refused."""
    with pytest.raises(ValueError, match=r"request|header"):
        Request.parse(head)


@given(st.binary())
def test_any_head(head: bytes) -> None:
    """Whatever comes over the wire is a request or a ValueError, nothing else."""
    try:
        Request.parse(head)
    except ValueError:
        return


def test_response() -> None:
    """A response has its length and says that the connection ends; that to a HEAD has no body."""
    response = Response.text(HTTPStatus.METHOD_NOT_ALLOWED, "no", "Allow: GET")
    head = (
        b"HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
        b"Connection: close\r\nAllow: GET\r\n\r\n"
    )
    assert response.encode() == head + b"no\n"
    assert response.encode(head_only=True) == head
