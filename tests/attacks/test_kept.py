"""What clients make a server keep, or say again: introductions, subscriptions, progress tokens of megabytes."""

import json
import re
import socket
from typing import Any

import pytest

from support.attacks import MB, assert_harmless, attacked_server
from weft.limits import DEFAULT_LIMITS

BIG = "x" * (DEFAULT_LIMITS.body_bytes - 1000)

SOURCE = """
import asyncio

from weft import Context, Server

server = Server("keeping", "1.0")
server.add_resource("note://a", "a")


@server.tool
async def steps(ctx: Context) -> str:
    for step in range(30):
        await ctx.report_progress(step)
        await asyncio.sleep(0.011)
    return "done"
"""


def post(peer: socket.socket, method: str, params: dict[str, Any], session: str = "") -> bytes:
    """Send a request of the session era; all of its answer, which the server ends the connection with."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    fields = f"Mcp-Session-Id: {session}\r\n" if session else ""
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Accept: application/json, text/event-stream\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    )
    peer.sendall(head.encode() + body)
    return b"".join(iter(lambda: peer.recv(1 << 20), b""))


def ask(port: int, method: str, params: dict[str, Any], session: str = "") -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as peer:
        return post(peer, method, params, session)


def introduce(port: int, **said: Any) -> bytes:
    info = {"name": "t", "version": "1"}
    return ask(port, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info, **said})


INTRODUCTIONS: dict[str, dict[str, Any]] = {
    "name": {"clientInfo": {"name": BIG, "version": "1"}},
    "capabilities": {"capabilities": {"experimental": {"a": {"b": BIG}}}},
}


@pytest.mark.security("D8", "R12")
@pytest.mark.parametrize("said", INTRODUCTIONS.values(), ids=INTRODUCTIONS)
def test_long_introductions_are_not_kept(said: dict[str, Any]) -> None:
    with attacked_server(SOURCE) as target:
        report = target.attack(lambda: [introduce(target.port, **said) for _ in range(10)], settle=1, linger=0)
        assert report.after - report.before <= 16 * MB, report


@pytest.mark.security("D10", "R12")
def test_long_subscriptions_are_few() -> None:
    def subscribe() -> int:
        found = re.search(rb"mcp-session-id: (\S+)", introduce(target.port))
        assert found is not None
        uris = [f"note://{number:03}{'x' * 8000}" for number in range(200)]
        answers = [ask(target.port, "resources/subscribe", {"uri": uri}, found[1].decode()) for uri in uris]
        return sum(b'"result"' in answer for answer in answers)

    with attacked_server(SOURCE) as target:
        done: list[int] = []
        assert_harmless(target.attack(lambda: done.append(subscribe())), memory=8 * MB)
        assert done == [8]


@pytest.mark.security("D2", "R12")
def test_a_long_progress_token_is_not_repeated() -> None:
    with attacked_server(SOURCE) as target:
        found = re.search(rb"mcp-session-id: (\S+)", introduce(target.port))
        assert found is not None
        call = {"name": "steps", "_meta": {"progressToken": BIG}}
        answers: list[bytes] = []
        report = target.attack(lambda: answers.append(ask(target.port, "tools/call", call, found[1].decode())))
        assert_harmless(report)
        assert len(answers[0]) < 2000
        assert b"-32602" in answers[0]
