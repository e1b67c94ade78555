"""Clients of the session era that send exactly what a test wants: over a socket (`SocketPeer`) and without (`AppPeer`).

Both have one `Exchange` per HTTP request, whose response is read as it comes. Many of them run in one event loop.
"""

import asyncio
import contextlib
import copy
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from support.wire import ACCEPT_BOTH, encode, headers_for
from support.wire import message as stateless_message
from weft.auth import TokenInfo
from weft.eras.session import NEWEST

__all__ = [
    "FORM",
    "AppPeer",
    "Connection",
    "Event",
    "Exchange",
    "Peer",
    "Reply",
    "SocketPeer",
    "accept",
    "answer_to",
    "called",
    "eventually",
    "message",
    "open_sse",
]

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

FORM = {"elicitation": {}}  # the capability

SESSION = "mcp-session-id"


def message(method: str, params: Any = None, id: Any = None) -> dict[str, Any]:
    """A request, or a notification where it has no id."""
    rest = {} if params is None else {"params": params}
    return {"jsonrpc": "2.0", **({} if id is None else {"id": id}), "method": method, **rest}


def called(tool: str, id: Any = 1, progress: Any = None, **arguments: Any) -> dict[str, Any]:
    """A call of a tool."""
    meta = {} if progress is None else {"_meta": {"progressToken": progress}}
    return message("tools/call", {"name": tool, "arguments": arguments, **meta}, id)


def answer_to(question: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """An answer to a request of the server."""
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


@dataclass
class Reply:
    """A form with one field."""

    value: str


def accept(question: Mapping[str, Any], value: str) -> dict[str, Any]:
    """The answer of a user who fills in that form."""
    return answer_to(question, {"action": "accept", "content": {"value": value}})


async def eventually(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for something that will be so."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.005)


class Event(NamedTuple):
    """One event of a stream; `data` is None where it is empty."""

    id: str | None
    data: Any
    retry: str | None


class Exchange:
    """One HTTP request and its response, as far as it has come."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[Event] = []  # all that were read
        self._head = asyncio.Event()
        self._buffer = b""
        self._more = asyncio.Event()
        self.ended = False

    # What a response is made of, as it comes.

    def took_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, dict(headers)
        self._head.set()

    def took(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def took_end(self) -> None:
        self.ended = True
        self._head.set()
        self._more.set()

    # What a test asks.

    async def head(self, seconds: float = 30) -> "Exchange":
        async with asyncio.timeout(seconds):
            await self._head.wait()
        return self

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def body(self, seconds: float = 30) -> bytes:
        """All that is not read yet, when the response is over."""
        async with asyncio.timeout(seconds):
            while not self.ended:
                self._more.clear()
                await self._more.wait()
        return self._buffer

    async def json(self) -> Any:
        """The answer: the body, or the last event of a stream."""
        await self.head()
        if self.is_stream:
            return [event.data async for event in self.rest() if event.data is not None][-1]
        return json.loads(await self.body())

    async def result(self) -> Any:
        answer = await self.json()
        assert "result" in answer, (self.status, answer)
        return answer["result"]

    async def text(self) -> str:
        """The text that a tool returned."""
        return (await self.result())["content"][0]["text"]

    async def refusal(self) -> tuple[int, int]:
        """The HTTP status and the JSON-RPC code."""
        return self.status, (await self.json())["error"]["code"]

    async def next(self, seconds: float = 30) -> Event:
        """The next event that is no comment. Raises EOFError at the end."""
        async with asyncio.timeout(seconds):
            while True:
                while b"\n\n" in self._buffer.replace(b"\r\n", b"\n"):
                    block, _, self._buffer = self._buffer.replace(b"\r\n", b"\n").partition(b"\n\n")
                    if (event := _read(block.decode())) is not None:
                        self.events.append(event)
                        return event
                if self.ended:
                    raise EOFError
                self._more.clear()
                await self._more.wait()

    async def message(self, seconds: float = 30) -> Any:
        """The next message of a stream."""
        while (event := await self.next(seconds)).data is None:
            pass
        return event.data

    async def question(self, method: str = "elicitation/create") -> Any:
        """The next request of the server on a stream."""
        while (found := await self.message()).get("method") != method:
            pass
        return found

    async def first(self) -> bytes:
        """What came so far and is not read; waits until there is something."""
        while not self._buffer and not self.ended:
            self._more.clear()
            await self._more.wait()
        self._buffer, first = b"", self._buffer
        return first

    async def rest(self) -> Any:
        """The events until the end."""
        with contextlib.suppress(EOFError):
            while True:
                yield await self.next()

    async def close(self) -> None:
        """The client goes away."""


def _read(block: str) -> Event | None:
    fields = [line.partition(":") for line in block.split("\n") if line and not line.startswith(":")]
    if not fields:
        return None
    values = {name: value.removeprefix(" ") for name, _, value in fields}
    data = values.get("data")
    return Event(values.get("id"), json.loads(data) if data else None, values.get("retry"))


class Peer:
    """A client with at most one session. The kinds differ in `send`."""

    session: str | None = None
    version = NEWEST.version

    async def send(self, verb: str, headers: list[tuple[str, str]], body: bytes) -> Exchange:
        raise NotImplementedError

    async def request(
        self, verb: str, body: Any = None, headers: Mapping[str, str | None] | None = None, *, session: Any = ...
    ) -> Exchange:
        """Send one HTTP request and wait for the head of its response."""
        given = self.session if session is ... else session
        fields: dict[str, str | None] = {
            "Host": "localhost",
            "Accept": ACCEPT_BOTH,
            "Content-Type": "application/json" if verb == "POST" else None,
            "MCP-Protocol-Version": self.version if given else None,
            "Mcp-Session-Id": given,
            **(headers or {}),
        }
        data = body if isinstance(body, bytes) else b"" if body is None else encode(body)
        exchange = await self.send(verb, [(name, value) for name, value in fields.items() if value is not None], data)
        return await exchange.head()

    async def open(
        self, version: str = NEWEST.version, capabilities: Any = None, *, name: str = "t", ready: bool = True
    ) -> Any:
        """The handshake."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": name, "version": "1"},
        }
        exchange = await self.request("POST", message("initialize", params, 0), session=None)
        assert exchange.status == 200, await exchange.body()
        self.session, self.version = exchange.headers[SESSION], version
        result = await exchange.result()
        if ready:
            assert (await self.post(message("notifications/initialized"))).status == 202
        return result

    async def post(self, body: Any, **headers: str | None) -> Exchange:
        return await self.request("POST", body, {name.replace("_", "-"): value for name, value in headers.items()})

    async def begin(self, body: Any) -> "asyncio.Task[Exchange]":
        """A POST whose response may be long in coming: it is on its way when this returns."""
        task = asyncio.create_task(self.post(body))
        await asyncio.sleep(0.02)
        return task

    async def get(self, last: str | None = None) -> Exchange:
        return await self.request("GET", headers={"Last-Event-ID": last, "Accept": "text/event-stream"})

    async def delete(self) -> Exchange:
        return await self.request("DELETE")

    async def stateless(
        self, method: str, params: Any = None, *, id: Any = 1, meta: Mapping[str, Any] | None = None
    ) -> Exchange:
        """A request of the other era, beside the session."""
        body = stateless_message(method, params, id=id, meta=meta)
        return await self.request("POST", body, dict(headers_for(body)), session=None)


class _AppExchange(Exchange):
    task: "asyncio.Task[None]"

    def __init__(self) -> None:
        super().__init__()
        self._gone = asyncio.Event()
        self._stalled = asyncio.Event()
        self._stalled.set()

    async def receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def stall(self) -> None:
        """Read nothing more: who writes has to wait."""
        self._stalled.clear()

    async def close(self) -> None:
        self._gone.set()
        self._stalled.set()
        await asyncio.sleep(0)


class AppPeer(Peer):
    """A client of an ASGI app in this event loop."""

    def __init__(self, app: Any, subject: str | None = None, address: str = "127.0.0.1") -> None:
        self.app = app
        self.scope: dict[str, Any] = {"client": (address, 1)}
        if subject is not None:
            self.scope["weft.token_info"] = TokenInfo(subject)
        self.exchanges: list[_AppExchange] = []

    def on(self, app: Any) -> "AppPeer":
        """The same client at another worker."""
        other = AppPeer(app)
        other.scope, other.session, other.version = self.scope, self.session, self.version
        other.exchanges = self.exchanges
        return other

    async def send(self, verb: str, headers: list[tuple[str, str]], body: bytes) -> Exchange:
        exchange = _AppExchange()
        scope = {
            "type": "http", "method": verb, "path": "/mcp", "root_path": "", "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers], **self.scope,
        }  # fmt: skip
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else await exchange.receive()

        async def send(part: Any) -> None:
            await exchange._stalled.wait()
            if part["type"] == "http.response.start":
                exchange.took_head(part["status"], {name.decode(): value.decode() for name, value in part["headers"]})
            else:
                exchange.took(part.get("body", b""))
                if not part.get("more_body"):
                    exchange.took_end()

        async def run() -> None:
            try:
                await self.app(scope, receive, send)
            finally:
                exchange.took_end()

        exchange.task = asyncio.create_task(run())
        self.exchanges.append(exchange)
        return exchange

    async def leave(self) -> None:
        """Drop all connections."""
        for exchange in self.exchanges:
            await exchange.close()
        await asyncio.gather(*(exchange.task for exchange in self.exchanges), return_exceptions=True)
        self.exchanges.clear()


async def open_sse(here: AppPeer, version: str = "2024-11-05") -> tuple[Any, Any]:
    """Open a session of HTTP+SSE: its stream, and a function that sends a message with a peer of any worker."""
    here.scope["path"] = "/sse"
    stream = await here.request("GET", session=None)
    address = re.search(rb"data: (\S+)\?(\S+)", await stream.first())
    assert address is not None

    async def post(peer: AppPeer, body: Any) -> Any:
        peer.scope |= {"path": address[1].decode(), "query_string": address[2]}
        return await peer.request("POST", body, session=None)

    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    assert (await post(here, message("initialize", hello, 0))).status == 202
    assert "result" in await stream.message()
    return stream, post


class _SocketExchange(Exchange):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self.writer = writer
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            start, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self.took_head(int(start.split(" ")[1]), headers)
            if headers.get("transfer-encoding") == "chunked":
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    self.took((await self._reader.readexactly(size + 2))[:-2])
            else:
                self.took(await self._reader.readexactly(int(headers.get("content-length", 0))))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.took_end()
            self.writer.close()

    async def close(self) -> None:
        self._task.cancel()
        self.writer.transport.abort()


class SocketPeer(Peer):
    """A client with a connection per request."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self._headers = list((headers or {}).items())
        self._connect: Callable[[], Awaitable[Connection]] = lambda: asyncio.open_connection("127.0.0.1", port)
        self.exchanges: list[_SocketExchange] = []

    def over(self, connect: Callable[[], Awaitable[Connection]]) -> Self:
        """The same client, with a function that opens the connection of each request."""
        other = copy.copy(self)
        other._connect = connect
        return other

    async def send(self, verb: str, headers: list[tuple[str, str]], body: bytes) -> Exchange:
        reader, writer = await self._connect()
        head = "".join(f"{name}: {value}\r\n" for name, value in [*headers, *self._headers])
        writer.write(f"{verb} /mcp HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)
        self.exchanges.append(_SocketExchange(reader, writer))
        return self.exchanges[-1]
