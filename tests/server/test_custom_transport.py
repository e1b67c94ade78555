"""A transport of one's own: the same lines over a socket, by the same entry that serves pipes (TRN-03)."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY, SERVER_INFO, VERSION, make_server, message
from weft import Server
from weft.server.stdio.stdio import serve_stdio

CAN_ASK = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}


class Peer:
    """The other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *messages: Any) -> None:
        self.writer.write(b"".join(json.dumps(one).encode() + b"\n" for one in messages))
        await self.writer.drain()

    async def read(self) -> Any:
        line = await asyncio.wait_for(self.reader.readline(), 30)
        assert line.endswith(b"\n")
        received = json.loads(line)
        assert received["jsonrpc"] == "2.0"
        return received

    async def call(self, method: str, params: Any = None, **options: Any) -> Any:
        await self.send(message(method, params, **options))
        return await self.read()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Peer]:
    """A server that serves one end of a socket pair, and the peer at the other."""
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(serve_stdio(server.engine, ours.fileno(), ours.fileno()))
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
        await asyncio.wait_for(serving, 30)
        ours.close()
        await server.engine.lifespan.stop()


@pytest.mark.spec("TRN-03")
async def test_the_same_format_and_metadata() -> None:
    async with connected(make_server()) as peer:
        answer = await peer.call("tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}}, id="x")
        assert (answer["id"], answer["result"]["structuredContent"]) == ("x", 5)
        assert answer["result"]["resultType"] == "complete"
        assert answer["result"]["_meta"][SERVER_INFO]["name"] == "everything"


@pytest.mark.spec("TRN-03")
@pytest.mark.parametrize(
    ("meta", "code"), [({PROTOCOL_VERSION_KEY: None}, -32602), ({PROTOCOL_VERSION_KEY: "1999-01-01"}, -32022)]
)
async def test_metadata_is_required_of_each_request(meta: dict[str, Any], code: int) -> None:
    async with connected(make_server()) as peer:
        assert "result" in await peer.call("tools/list")
        assert (await peer.call("tools/list", meta=meta))["error"]["code"] == code  # the one before does not count
        assert "result" in await peer.call("tools/list")


@pytest.mark.spec("TRN-03")
async def test_what_a_request_says_of_its_client_counts_for_it_alone() -> None:
    async with connected(make_server()) as peer:
        params = {"name": "ask_user"}
        assert (await peer.call("tools/call", params))["error"]["code"] == -32021
        assert (await peer.call("tools/call", params, meta=CAN_ASK))["result"]["resultType"] == "input_required"
        assert (await peer.call("tools/call", params))["error"]["code"] == -32021
        who = (await peer.call("tools/call", {"name": "who"}, id=7))["result"]["structuredContent"]
        assert who == {"version": VERSION, "capabilities": {}, "client": "t", "id": 7}


@pytest.mark.spec("TRN-03")
async def test_the_same_patterns() -> None:
    """Progress before the answer, requests side by side, cancellation, a question and its answer."""
    server = make_server()
    async with connected(server) as peer:
        steps = {"name": "steps", "arguments": {"values": [1, 2]}}
        await peer.send(message("tools/call", steps, meta={"progressToken": "p"}))
        heard = [await peer.read() for _ in range(3)]
        assert [one.get("method", "answer") for one in heard] == ["notifications/progress"] * 2 + ["answer"]
        await peer.send(
            message("tools/call", {"name": "wait", "arguments": {"token": "t"}}, id=1), message("tools/list", id=2)
        )
        assert (await peer.read())["id"] == 2
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        asked = (await peer.call("tools/call", {"name": "ask_user"}, id=3, meta=CAN_ASK))["result"]
        reply = {"action": "accept", "content": {"number": "12A"}}
        retry = {"inputResponses": dict.fromkeys(asked["inputRequests"], reply), "requestState": asked["requestState"]}
        done = await peer.call("tools/call", {"name": "ask_user", **retry}, id=4, meta=CAN_ASK)
        assert (done["id"], done["result"]["content"][0]["text"]) == (4, "accept")
        assert server.log.of("t") == ["started", "cancelled"]  # type: ignore[attr-defined] - of make_server
