"""What is kept of streams so that it can be had again: no more memory than `replay_bytes`, whatever it is made of."""

import json
import re
import socket

import pytest

from support.attacks import MB, attacked_server

CALLS = 20_000
AHEAD = 16  # calls under way on the one connection

SOURCE = """
from weft import Context, Limits, Server

server = Server("streaming", limits=Limits(replay_bytes=8 * 1024 * 1024))


@server.tool
async def work(ctx: Context) -> str:
    await ctx.report_progress(1, 2)
    await ctx.info("half of it is done")
    return "done"
"""


def post(body: dict, fields: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\n{fields}Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def stream(port: int) -> None:
    """A session, and many calls in it whose answers are streams of four events."""
    with socket.create_connection(("127.0.0.1", port), 30) as peer:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        peer.sendall(post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}))
        found = re.search(rb"mcp-session-id: (\S+)", peer.recv(65536))
        assert found is not None
        fields = f"Mcp-Session-Id: {found[1].decode()}\r\nMCP-Protocol-Version: 2025-11-25\r\n"
        peer.sendall(post({"jsonrpc": "2.0", "method": "notifications/initialized"}, fields))
        assert peer.recv(65536).startswith(b"HTTP/1.1 202")
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        call["params"] = {"name": "work", "_meta": {"progressToken": 1}}
        request = post(call, fields)
        ended = sent = 0
        rest = b""
        while ended < CALLS:
            more = min(AHEAD - (sent - ended), CALLS - sent)
            if more > AHEAD // 2 or sent == ended:
                peer.sendall(request * more)
                sent += more
            said = rest + peer.recv(1 << 20)
            ended += said.count(b"\r\n0\r\n\r\n")
            rest = said[-6:] if not said.endswith(b"\r\n0\r\n\r\n") else b""


@pytest.mark.security("R12")
def test_many_short_streams_keep_no_more_memory_than_they_may() -> None:
    with attacked_server(SOURCE) as target:
        report = target.attack(lambda: stream(target.port), linger=0.1)
        print(report)
        assert report.after - report.before <= 8 * MB + 8 * MB, report
