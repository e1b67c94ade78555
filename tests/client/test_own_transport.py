"""A transport that somebody else writes: over TCP, in the lines of stdio; that of docs/how-to/custom-transport.md."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support import VERSION
from weft import Client, ConnectionFailed, Context, Server
from weft.client.connection.transport import PipeTransport

PAGE = Path(__file__).parents[2] / "docs/how-to/custom-transport.md"


def tcp_transport() -> type[PipeTransport]:
    """The transport of the page, so that what is proven here is what is written there."""
    section = PAGE.read_text().partition("## A client on the same socket")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"asyncio": asyncio}
    exec(code, names)
    return names["TcpTransport"]


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[tuple[int, list[bytes], list[asyncio.StreamWriter]]]:
    """A server behind a TCP port, its messages in lines; yields what it was sent, and its connections."""
    heard: list[bytes] = []
    connections: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[Any] | None] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        tasks.add(asyncio.current_task())
        pipe = server.pipe(lambda message: writer.write(message + b"\n"))
        with contextlib.suppress(ConnectionError):
            async for line in reader:
                heard.append(line)
                pipe.send(line)
        await pipe.close()
        writer.close()

    tcp = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with tcp:
        yield tcp.sockets[0].getsockname()[1], heard, connections
        await asyncio.gather(*filter(None, tasks))


def flights() -> tuple[Server, asyncio.Event]:
    server = Server("flights")
    was_cancelled = asyncio.Event()

    @server.tool
    async def book(flight: str) -> str:
        """Book."""
        return flight

    @server.tool
    async def wait(ctx: Context) -> str:
        """Wait for ever."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise
        return ""

    return server, was_cancelled


@pytest.mark.spec("TRN-04", "TRN-05")
@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_byte_stream_carries_the_lines_of_stdio(mode: Any) -> None:
    server, _ = flights()
    async with listening(server) as (port, heard, connections):
        async with Client(tcp_transport()("127.0.0.1", port), eras=[mode]) as client:
            assert (await client.call_tool("book", {"flight": "LX\n38 \u2028"})).text == "LX\n38 \u2028"
            texts = [(await client.call_tool("book", {"flight": str(number)})).text for number in range(5)]
        assert texts == ["0", "1", "2", "3", "4"]
        assert len(connections) == 1  # set up once, for as long as the client is connected
    assert all(line.endswith(b"\n") and json.loads(line)["jsonrpc"] == "2.0" for line in heard)


@pytest.mark.spec("TRN-04")
async def test_a_request_is_cancelled_by_its_notification() -> None:
    server, was_cancelled = flights()
    async with listening(server) as (port, heard, _), Client(tcp_transport()("127.0.0.1", port)) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait_for(was_cancelled.wait(), 30)
        assert [line for line in heard if b"notifications/cancelled" in line]
        assert (await client.call_tool("book", {"flight": "x"})).text == "x"  # the others go on


@pytest.mark.spec("TRN-04")
async def test_a_stream_that_ends_ends_what_waits_on_it() -> None:
    server, _ = flights()
    async with listening(server) as (port, _, connections), Client(tcp_transport()("127.0.0.1", port)) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await asyncio.sleep(0.05)
        connections[0].transport.abort()
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
            await asyncio.wait_for(call, 30)
        await client.reconnect()
        assert (await client.call_tool("book", {"flight": "x"})).text == "x"


@pytest.mark.spec("TRN-04")
async def test_where_nobody_listens_there_is_a_sentence() -> None:
    with pytest.raises(ConnectionFailed, match="Start the server"):
        await Client(tcp_transport()("127.0.0.1", 1)).connect()


@pytest.mark.spec("TRN-03")
async def test_what_it_carries_is_json_rpc_and_introduces_itself() -> None:
    server, _ = flights()
    async with (
        listening(server) as (port, heard, _),
        Client(tcp_transport()("127.0.0.1", port), eras=["stateless"]) as client,
    ):
        assert (await client.call_tool("book", {"flight": "LX38"})).text == "LX38"
    messages = [json.loads(line) for line in heard]
    assert [message["method"] for message in messages] == ["server/discover", "tools/call"]
    for message in messages:
        assert (message["jsonrpc"], type(message["id"])) == ("2.0", int)
        meta = message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == VERSION
        assert meta.keys() >= {"io.modelcontextprotocol/clientCapabilities", "io.modelcontextprotocol/clientInfo"}
    assert messages[1]["params"]["name"] == "book"
