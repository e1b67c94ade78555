"""The lines of stdio over a real TCP connection, as docs/how-to/custom-transport.md has it (TRN-04, TRN-05)."""

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support import VERSION, make_server, message
from support.raw_sessions import eventually
from support.sessions import NEWEST, introduction, rpc
from weft import Limits, Server
from weft.server.stdio.stdio import serve_stdio

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "custom-transport.md"


class Peer:
    """A client that writes bytes to a TCP connection, and reads lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, *messages: dict[str, Any]) -> None:
        self.writer.write(b"".join(json.dumps(one).encode() + b"\n" for one in messages))

    async def read(self) -> Any:
        line = await asyncio.wait_for(self._reader.readline(), 30)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        return json.loads(line)

    async def call(self, method: str, params: Any = None, **options: Any) -> Any:
        self.send(message(method, params, **options))
        return await self.read()

    async def ended(self) -> bool:
        return await asyncio.wait_for(self._reader.read(), 30) == b""

    def break_off(self) -> None:
        """Reset the connection, as a machine does that went down."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


class Place:
    """A server that listens on TCP."""

    def __init__(self, server: Server, listener: socket.socket) -> None:
        self.server = server
        self._listener = listener
        self.serving: set[asyncio.Task[None]] = set()
        self._peers: list[Peer] = []

    async def accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            self.serving.add(asyncio.create_task(self._serve(connection)))

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            await serve_stdio(self.server.engine, connection.fileno(), connection.fileno())

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection(*self._listener.getsockname()))
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        for peer in self._peers:
            peer.writer.close()
        await asyncio.wait_for(asyncio.gather(*self.serving), 30)
        await self.server.stop()

    def saw(self, token: str) -> list[str]:
        return self.server.log.of(token)  # type: ignore[attr-defined] - of make_server


@contextlib.asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        place = Place(make_server(**options), listener)
        accepting = asyncio.create_task(place.accept())
        try:
            yield place
            await place.close()
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])


def wait(token: str, id: Any) -> dict[str, Any]:
    return message("tools/call", {"name": "wait", "arguments": {"token": token}}, id=id)


@pytest.mark.spec("TRN-05")
async def test_nothing_comes_before_the_first_line_which_tells_the_era() -> None:
    async with listening() as place:
        stateless, session = await place.connect(), await place.connect()
        assert VERSION in (await stateless.call("server/discover"))["result"]["supportedVersions"]
        session.send(rpc("initialize", introduction()))
        assert (await session.read())["result"]["protocolVersion"] == NEWEST


@pytest.mark.spec("TRN-05")
async def test_a_message_is_a_line_however_its_bytes_come() -> None:
    async with listening() as place:
        peer = await place.connect()
        text = "".join(f"{json.dumps(message('tools/list', id=id))}\n" for id in (1, 2, 3))
        for piece in re.findall(".{1,97}", text, re.DOTALL):  # in packets of its own each
            peer.writer.write(piece.encode())
            await peer.writer.drain()
        assert sorted([(await peer.read())["id"] for _ in range(3)]) == [1, 2, 3]
        peer.send(*(message("tools/list", id=id) for id in (4, 5)))  # and several in one
        assert sorted([(await peer.read())["id"] for _ in range(2)]) == [4, 5]
        text = "two\nlines, \u2028 and ünïcode"
        echoed = await peer.call("tools/call", {"name": "echo", "arguments": {"value": text}}, id=6)
        assert echoed["result"]["structuredContent"] == text


@pytest.mark.spec("TRN-05")
@pytest.mark.security("R12")
async def test_the_bounds_are_those_of_lines() -> None:
    async with listening(limits=Limits(line_bytes=2000)) as place:
        peer = await place.connect()
        peer.writer.write(b"x" * 5000 + b"\n")
        assert (await peer.read())["error"]["code"] == -32700
        assert "result" in await peer.call("tools/list", id=2)


@pytest.mark.spec("TRN-04", "TRN-05")
@pytest.mark.security("R6")
async def test_a_request_is_cancelled_by_a_notification_on_its_own_connection() -> None:
    async with listening() as place:
        one, other = await place.connect(), await place.connect()
        one.send(wait("one", 7))
        other.send(wait("other", 7))  # the same id
        await eventually(lambda: place.saw("one") == place.saw("other") == ["started"])
        one.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        await eventually(lambda: place.saw("one") == ["started", "cancelled"])
        assert (await one.call("tools/list", id=8))["id"] == 8  # 7 is not answered, and the connection is as before
        assert place.saw("other") == ["started"]


@pytest.mark.spec("TRN-04", "TRN-05")
@pytest.mark.security("R1")
@pytest.mark.parametrize("broken", [False, True], ids=["closed", "reset"])
async def test_the_end_of_a_connection_cancels_what_was_under_way_there_and_nothing_else(broken: bool) -> None:
    async with listening() as place:
        leaving, staying = await place.connect(), await place.connect()
        leaving.send(wait("leaving", 1))
        staying.send(wait("staying", 1))
        await eventually(lambda: place.saw("leaving") == place.saw("staying") == ["started"])
        if broken:
            leaving.break_off()
        else:
            leaving.writer.close()
        await eventually(lambda: place.saw("leaving") == ["started", "cancelled"])
        assert place.saw("staying") == ["started"]
        assert "result" in await staying.call("tools/list", id=2)
        await eventually(lambda: sum(task.done() for task in place.serving) == 1)


@pytest.mark.spec("TRN-05")
async def test_the_server_hangs_up_when_its_client_has() -> None:
    async with listening() as place:
        peer = await place.connect()
        assert "result" in await peer.call("tools/list")
        peer.writer.write_eof()  # it reads on
        assert await peer.ended()


@pytest.mark.spec("TRN-04")
def test_the_page_says_how_a_connection_is_set_up_framed_and_cancelled() -> None:
    """Its code, which is run by the tests of all pages, does it over TCP; cancellation is in what it prints."""
    rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|", PAGE.read_text(), re.MULTILINE))
    assert rows.keys() == {"connection set-up", "framing", "cancellation"}
    assert "server/discover" in rows["connection set-up"]
    assert "one JSON-RPC message per line" in rows["framing"]
    assert "notifications/cancelled" in rows["cancellation"]
