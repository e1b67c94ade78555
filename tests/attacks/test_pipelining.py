"""Requests ahead of their turn on one connection, from somebody who need not be known: their number is bounded."""

import contextlib
import socket
import time
from typing import Literal

import pytest

from support import encode, headers_for, message
from support.attacks import MB, SERVER, assert_harmless, attacked_server
from weft.limits import DEFAULT_LIMITS

MINIMAL = b"GET / HTTP/1.1\r\n\r\n" * 223_000  # 4 MB
WITH_HOST = b"GET / HTTP/1.1\r\nHost:a\r\n\r\n" * 150_000  # h11 reads no request without one

WITHOUT_HTTPTOOLS = """
import importlib.util, sys
sys.modules["httptools"] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "httptools" else found(name, *rest)
"""
PARSERS = pytest.mark.parametrize(
    ("without", "many"), [("", MINIMAL), (WITHOUT_HTTPTOOLS, WITH_HOST)], ids=["httptools", "h11"]
)


def raw_call(tool: str, arguments: dict, *, id: int = 1) -> bytes:
    body = message("tools/call", {"name": tool, "arguments": arguments}, id=id)
    raw = encode(body)
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers_for(body))
    return f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def flood(port: int, many: bytes, first: bytes = b"") -> socket.socket:
    """Send as much as the server takes within a few seconds, and read nothing."""
    peer = socket.create_connection(("127.0.0.1", port), 3)
    with contextlib.suppress(OSError):  # it does not take it all, or hangs up
        peer.sendall(first + many)
    return peer


@PARSERS
@pytest.mark.security("D5", "D9")
def test_many_small_requests_at_once_and_nothing_read(without: str, many: bytes) -> None:
    with attacked_server(without + SERVER) as target:
        report = target.attack(lambda: flood(target.port, many))
        assert_harmless(report, peak=64 * MB)


@pytest.mark.security("D5", "D9")
def test_many_small_requests_under_plain_uvicorn() -> None:
    """Without our runner, what uvicorn has read at once is the least that can be had; nothing more is read."""
    with attacked_server(SERVER + "app = server.asgi()\n", host="uvicorn") as target:
        report = target.attack(lambda: flood(target.port, MINIMAL))
        print(report)
        assert report.peak - report.before < 64 * MB
        assert report.meanwhile.worst < 1.0 * report.slow


@pytest.mark.parametrize("host", ["weft", "uvicorn"])
def test_a_few_requests_ahead_are_answered(host: Literal["weft", "uvicorn"]) -> None:
    most = DEFAULT_LIMITS.pipelined_requests
    with attacked_server(SERVER + "app = server.asgi()\n", host=host) as target:
        peer = socket.create_connection(("127.0.0.1", target.port), 30)
        peer.sendall(b"".join(raw_call("add", {"a": number, "b": 0}, id=number) for number in range(most + 1)))
        received = b""
        while received.count(b"HTTP/1.1 200") < most + 1:
            received += (chunk := peer.recv(65536))
            assert chunk, received[-300:]
        peer.close()


@pytest.mark.security("D5")
def test_one_more_ends_the_connection_under_plain_uvicorn() -> None:
    most = DEFAULT_LIMITS.pipelined_requests
    with attacked_server(SERVER + "app = server.asgi()\n", host="uvicorn") as target:
        peer = socket.create_connection(("127.0.0.1", target.port), 30)
        peer.sendall(b"".join(raw_call("add", {"a": number, "b": 0}, id=number) for number in range(most + 2)))
        received = b""
        while chunk := peer.recv(65536):
            received += chunk
        peer.close()
        assert received.count(b"HTTP/1.1 200") == 1
        assert target.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5


@PARSERS
@pytest.mark.security("D5", "D9")
def test_many_small_requests_behind_a_slow_call(without: str, many: bytes) -> None:
    with attacked_server(without + SERVER) as target:
        report = target.attack(lambda: [flood(target.port, many, raw_call("nap", {"seconds": 30})) for _ in range(3)])
        assert_harmless(report, peak=64 * MB)


@pytest.mark.parametrize("without", ["", WITHOUT_HTTPTOOLS], ids=["httptools", "h11"])
def test_who_sends_far_ahead_and_reads_is_answered_in_order(without: str) -> None:
    with attacked_server(without + SERVER) as target, socket.create_connection(("127.0.0.1", target.port), 30) as peer:
        calls = [raw_call("add", {"a": number, "b": 0}, id=number) for number in range(2000)]
        peer.sendall(raw_call("nap", {"seconds": 0.3}) + b"".join(calls))
        said = b""
        end = time.monotonic() + 60
        while said.count(b"HTTP/1.1 200") < 2001 and time.monotonic() < end:
            said += peer.recv(1 << 20)
        places = [said.index(b'"id":%d,' % number, 400) for number in (2, 20, 200, 1999)]
        assert places == sorted(places)
