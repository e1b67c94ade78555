"""Servers that behave as a test says: over a real socket, and in this process. They know nothing of Weft."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["DISCOVERED", "Exchange", "FakePipe", "http_server", "initialized", "reply", "sse"]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"

DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [MODERN],
    "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}},
}


def initialized(version: str = LEGACY) -> dict[str, Any]:
    """The result of a handshake."""
    return {
        "protocolVersion": version,
        "capabilities": {"tools": {}, "resources": {"subscribe": True}, "logging": {}},
        "serverInfo": {"name": "old fake", "version": "1"},
        "instructions": "Be kind.",
    }


def reply(request: dict[str, Any], result: Any = None, error: dict[str, Any] | None = None) -> bytes:
    """An answer to a request."""
    said = {"error": error} if error is not None else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}).encode()


def sse(data: bytes | str = b"", **fields: Any) -> bytes:
    """One event."""
    text = data.decode() if isinstance(data, bytes) else data
    return "".join(f"{name}: {value}\n" for name, value in [*fields.items(), ("data", text)]).encode() + b"\n"


class Exchange:
    """One HTTP request, and the ways to answer it."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter):
        self.method = method
        self.path = path
        self.headers = headers  # names in lower case
        self.body = body
        self.writer = writer
        self.is_stream = False  # it ends with the connection
        self.message: dict[str, Any] = json.loads(body) if body.startswith(b"{") else {}
        self.rpc: str = self.message.get("method", "")

    async def respond(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        fields = {"content-type": kind, "content-length": str(len(body)), **headers}
        await self.raw(head(status, fields) + body)

    async def result(self, result: Any, **headers: str) -> None:
        await self.respond(200, reply(self.message, result), **headers)

    async def error(self, status: int, code: int, data: Any = None) -> None:
        error = {"code": code, "message": "no", **({} if data is None else {"data": data})}
        await self.respond(status, reply(self.message, error=error))

    async def stream(self, *events: bytes) -> None:
        """Open a stream of events, which ends with the connection."""
        self.is_stream = True
        await self.raw(head(200, {"content-type": "text/event-stream", "connection": "close"}))
        for event in events:
            await self.raw(event)

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hang(self) -> None:
        await asyncio.sleep(60)

    def cut(self) -> None:
        """The connection breaks."""
        self.writer.transport.abort()


def head(status: int, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


Handler = Callable[[Exchange], Awaitable[None]]


@asynccontextmanager
async def http_server(handler: Handler, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server whose every request is answered by the handler; yields its URL, which with `tls` is at localhost."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            while not writer.is_closing():
                exchange = await read_exchange(reader, writer)
                await handler(exchange)
                if exchange.is_stream:
                    break
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=2**20, ssl=tls)
    place = "http://127.0.0.1" if tls is None else "https://localhost"
    try:
        yield f"{place}:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, path, _ = start.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Exchange(method, path, headers, body, writer)


class FakePipe:
    """A server in this process: what it is sent goes to `handler`, which answers with `say`."""

    def __init__(self, handler: Callable[["FakePipe", dict[str, Any]], Any]) -> None:
        self.handler = handler
        self.heard: list[dict[str, Any]] = []  # all messages, in order
        self.deliver: Callable[[bytes], None] = lambda _: None
        self.is_closed = False

    def pipe(self, deliver: Callable[[bytes], None]) -> "FakePipe":
        self.deliver = deliver
        self.is_closed = False
        return self

    def send(self, line: bytes) -> None:
        message = json.loads(line)
        self.heard.append(message)
        self.handler(self, message)

    def say(self, message: dict[str, Any] | bytes) -> None:
        """Send something to the client, soon."""
        data = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        asyncio.get_running_loop().call_soon(self.deliver, data)

    def answer(self, request: dict[str, Any], result: Any = None, error: dict[str, Any] | None = None) -> None:
        self.say(reply(request, result, error))

    def calls(self, method: str) -> list[dict[str, Any]]:
        """What was heard of one method."""
        return [message for message in self.heard if message.get("method") == method]

    async def close(self) -> None:
        self.is_closed = True
