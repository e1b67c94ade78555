"""A real server on a real socket, and a client that sends exactly the bytes a test wants.

Owns the building of requests (`message`, `headers_for`), the raw client (`Live`), and the feature-rich server that most
tests talk to (`make_server`). `ask` is the same request without a socket, for tests of what lies behind the transport.
"""

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import uvicorn
from pydantic import BaseModel

from weft import (
    CallToolResult,
    Context,
    Image,
    Limits,
    MirroredHeader,
    ProtocolError,
    ResourceContents,
    ResourceNotFound,
    Server,
    TextContent,
    ToolError,
)
from weft.eras.stateless import NEWEST
from weft.protocol.headers import encode_value
from weft.types.request import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, PROTOCOL_VERSION_KEY

VERSION = NEWEST.version
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
ACCEPT_BOTH = "application/json, text/event-stream"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)

__all__ = [
    "ACCEPT_BOTH", "CLIENT_CAPABILITIES_KEY", "CLIENT_INFO_KEY", "LOG_LEVEL_KEY", "PNG", "PROTOCOL_VERSION_KEY",
    "SERVER_INFO", "VERSION", "Live", "Response", "ask", "encode", "headers_for", "make_server", "message", "parse_sse",
    "serve", "start_request", "until",
]  # fmt: skip

encode = msgspec.json.encode


def message(
    method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A request of the stateless era. In `meta`, None takes a key out."""
    envelope = {
        PROTOCOL_VERSION_KEY: VERSION,
        CLIENT_CAPABILITIES_KEY: {},
        CLIENT_INFO_KEY: {"name": "t", "version": "1"},
    }
    merged = {key: value for key, value in {**envelope, **(meta or {})}.items() if value is not None}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": merged}}


def headers_for(body: Mapping[str, Any], overrides: Mapping[str, str | None] | None = None) -> list[tuple[str, str]]:
    """The headers that go with a request. In `overrides`, None takes a header out."""
    headers: dict[str, str | None] = {
        "Content-Type": "application/json",
        "Accept": ACCEPT_BOTH,
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": str(body.get("method")),
    }
    params = body.get("params") or {}
    name = params.get("uri" if body.get("method") == "resources/read" else "name") if isinstance(params, dict) else None
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_value(name)
    names = {key.lower(): key for key in headers}
    for key, value in (overrides or {}).items():
        headers[names.get(key.lower(), key)] = value
    return [(key, value) for key, value in headers.items() if value is not None]


def parse_sse(body: bytes) -> list[Any]:
    """The messages of an event stream."""
    events = [chunk for chunk in body.decode().replace("\r\n", "\n").split("\n\n") if chunk.strip()]
    return [
        json.loads("\n".join(line[5:].strip() for line in event.split("\n") if line.startswith("data:")))
        for event in events
        if any(line.startswith("data:") for line in event.split("\n"))
    ]


@dataclass
class Response:
    """What came back."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def messages(self) -> list[Any]:
        """All messages: the events of a stream, or the one of a body."""
        return parse_sse(self.body) if self.is_stream else [json.loads(self.body)]

    @property
    def json(self) -> Any:
        """The answer: the last message."""
        return self.messages[-1]

    @property
    def result(self) -> Any:
        assert "result" in self.json, f"{self.status}: {self.json}"
        return self.json["result"]

    @property
    def error(self) -> Any:
        assert "error" in self.json, f"{self.status}: {self.json}"
        return self.json["error"]

    @property
    def refusal(self) -> tuple[int, int]:
        """The HTTP status and the JSON-RPC code."""
        return self.status, self.error["code"]


class Live:
    """A server that runs under uvicorn in a thread, and a client of it."""

    def __init__(self, app: Any, server: Any = None) -> None:
        self.server = server
        self.faults: list[str] = []  # what uvicorn had to say of exceptions that left the app
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, log_level="error", ws="none", timeout_graceful_shutdown=1)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, args=([self._socket],), daemon=True)
        self._log = _Recorder(self.faults)

    def start(self) -> None:
        logging.getLogger("uvicorn.error").addHandler(self._log)
        self._thread.start()
        until(lambda: self._uvicorn.started or not self._thread.is_alive())

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(10)
        self._socket.close()
        logging.getLogger("uvicorn.error").removeHandler(self._log)

    def connect(self, timeout: float = 10) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def send(
        self,
        body: bytes,
        headers: Iterable[tuple[str, str | bytes]],
        *,
        verb: str = "POST",
        path: str = "/mcp",
        connection: http.client.HTTPConnection | None = None,
        length: bool = True,
    ) -> Response:
        """Send exactly this; on a connection of its own, unless one is given."""
        used = connection or self.connect()
        try:
            start_request(used, body, headers, verb=verb, path=path, length=length)
            return finish(used.getresponse())
        finally:
            if connection is None:
                used.close()

    def post(
        self,
        body: Any,
        headers: Mapping[str, str | None] | None = None,
        *,
        connection: http.client.HTTPConnection | None = None,
    ) -> Response:
        """Send a message with the headers that belong to it, some changed."""
        return self.send(encode(body), headers_for(body, headers), connection=connection)

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = 1,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Response:
        """A request of the stateless era."""
        return self.post(message(method, params, id=id, meta=meta), headers, connection=connection)

    def tool(self, name: str, arguments: Any = None, **options: Any) -> Response:
        """A `tools/call`."""
        params = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
        return self.call("tools/call", params, **options)

    def healthy(self) -> bool:
        """Whether the server still answers, and nothing ever left the app."""
        return self.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5 and self.faults == []


class _Recorder(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def start_request(
    connection: http.client.HTTPConnection,
    body: bytes,
    headers: Iterable[tuple[str, str | bytes]],
    *,
    verb: str = "POST",
    path: str = "/mcp",
    length: bool = True,
) -> None:
    """Put a request on the wire without waiting for the answer."""
    pairs = list(headers)
    names = {name.lower() for name, _ in pairs}
    connection.putrequest(verb, path, skip_host="host" in names, skip_accept_encoding=True)
    for name, value in pairs:
        connection.putheader(name, value)
    if length and "content-length" not in names:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)


def finish(response: http.client.HTTPResponse) -> Response:
    return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


@contextlib.contextmanager
def serve(server: Any, path: str = "/mcp", **options: Any) -> Iterator[Live]:
    """Run a Server, or any ASGI app, behind a socket."""
    app = server.asgi(path, **options) if isinstance(server, Server) else server
    running = Live(app, server)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def until(condition: Any, seconds: float = 5) -> None:
    """Wait for something that will be so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


async def ask(
    app: Any,
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    id: Any = 1,
    meta: Mapping[str, Any] | None = None,
    headers: Mapping[str, str | None] | None = None,
    scope: Mapping[str, Any] | None = None,
    body: bytes | None = None,
) -> Response:
    """The same request, handed to the ASGI app without a socket."""
    app = app.asgi() if isinstance(app, Server) else app
    request = message(method, params, id=id, meta=meta)
    pairs = [("host", "127.0.0.1"), *headers_for(request, headers)]
    full = {
        "type": "http", "method": "POST", "path": "/mcp", "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs], **(scope or {}),
    }  # fmt: skip
    sent: list[Any] = []
    incoming = [{"type": "http.request", "body": encode(request) if body is None else body, "more_body": False}]

    async def receive() -> Any:
        return incoming.pop(0) if incoming else await asyncio.Event().wait()

    async def send(part: Any) -> None:
        sent.append(part)

    await app(full, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Response(sent[0]["status"], head, b"".join(part.get("body", b"") for part in sent[1:]))


# The server most tests talk to.


class Seat(BaseModel):
    number: str
    window: bool = False


class Log:
    """What handlers saw, for a test to read: by a token that the test makes up."""

    def __init__(self) -> None:
        self.events: dict[str, list[str]] = {}

    def add(self, token: str, event: str) -> None:
        self.events.setdefault(token, []).append(event)

    def of(self, token: str) -> list[str]:
        return self.events.get(token, [])


def make_server(*, limits: Limits | None = None, **options: Any) -> Server:
    """A server with something of everything. `server.log` holds what its handlers saw."""
    server = Server(
        "everything", version="2.0", title="Everything", instructions="Try it.", limits=limits or Limits(), **options
    )
    server.log = Log()  # type: ignore[attr-defined] - for the tests alone
    _add_plain_tools(server)
    _add_failing_tools(server)
    _add_waiting_tools(server, server.log)  # type: ignore[attr-defined] - as above
    _add_asking_tools(server)
    _add_resources(server)
    _add_prompts(server)
    return server


def _add_plain_tools(server: Server) -> None:
    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(output_schema={"type": ["object", "array", "number", "boolean", "string", "null"]})
    async def echo(value: Any) -> Any:
        """Give back what was given."""
        return value

    @server.tool
    async def seat(number: str) -> Seat:
        """A seat."""
        return Seat(number=number)

    @server.tool
    async def picture() -> Image:
        """A picture."""
        return Image(PNG)

    @server.tool
    async def region(region: Annotated[str | None, MirroredHeader("Region")] = None, count: Annotated[int, MirroredHeader("Count")] = 0) -> str:  # fmt: skip
        """Say which region."""
        return f"{region} {count}"

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        """What this request says about its sender."""
        return {
            "version": ctx.protocol_version,
            "capabilities": msgspec.to_builtins(ctx.client_capabilities),
            "client": None if ctx.client_info is None else ctx.client_info.name,
            "id": ctx.request_id,
        }

    @server.tool(
        input_schema={"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}, "required": ["n"]}
    )
    async def bounded(arguments: dict[str, Any]) -> str:
        """Takes a small number."""
        return str(arguments["n"])


def _add_failing_tools(server: Server) -> None:
    @server.tool
    async def fail(how: Literal["tool", "error", "exit", "interrupt", "base", "cancelled", "stop", "generator", "reserved"]) -> str:  # fmt: skip
        """Fail in one of many ways."""
        raise _failures()[how]

    @server.tool
    def fail_in_thread(how: Literal["error", "exit", "interrupt", "base", "stop"]) -> str:
        """Fail in one of many ways, in a thread."""
        raise _failures()[how]

    @server.tool(output_schema={"type": "integer"})
    async def liar() -> Any:
        """Promises a number."""
        return "none"


def _failures() -> dict[str, BaseException]:
    return {
        "tool": ToolError("There is no seat 12A."),
        "error": RuntimeError("secret-password"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "base": BaseException("secret-password"),
        "cancelled": asyncio.CancelledError(),
        "stop": StopIteration(7),
        "generator": GeneratorExit(),
        "reserved": ProtocolError("mine", code=-32050),
    }


def _add_waiting_tools(server: Server, log: Log) -> None:
    @server.tool
    async def wait(ctx: Context, token: str, progress: int = 0) -> str:
        """Wait for ever, after so many steps of progress."""
        log.add(token, "started")
        try:
            for step in range(progress):
                await ctx.report_progress(step + 1)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.add(token, "cancelled")
            await ctx.report_progress(99)
            await ctx.error("too late")
            raise
        return "done"

    @server.tool
    def wait_in_thread(ctx: Context, token: str) -> str:
        """Look whether the caller is still there."""
        log.add(token, "started")
        for _ in range(1000):
            if ctx.cancelled:
                log.add(token, "saw cancelled")
                return "gave up"
            time.sleep(0.005)
        return "done"

    @server.tool
    async def steps(ctx: Context, values: list[float]) -> str:
        """Report this progress."""
        for value in values:
            await ctx.report_progress(value, max(values), "on it")
        return "done"

    @server.tool
    async def chatter(ctx: Context, token: str = "") -> str:
        """Log at every level."""
        for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
            await ctx.log(level, f"{level} {token}", logger="chatter")
        return "done"

    @server.tool
    async def late(ctx: Context, token: str) -> str:
        """Go on reporting after the answer."""

        async def afterwards() -> None:
            await asyncio.sleep(0.05)
            await ctx.report_progress(2)
            await ctx.error("late")
            log.add(token, "reported late")

        await ctx.report_progress(1)
        log.add(token, "started")
        ctx.server.background = asyncio.create_task(afterwards())  # type: ignore[attr-defined] - kept from the collector
        return "done"


def _add_asking_tools(server: Server) -> None:
    @server.tool
    async def ask_user(ctx: Context) -> str:
        """Ask the user."""
        return (await ctx.elicit("Which seat?", Seat)).action

    @server.tool
    async def ask_page(ctx: Context) -> str:
        """Send the user to a page."""
        return (await ctx.elicit_url("Log in", "https://example.com")).action

    @server.tool
    async def ask_model(ctx: Context) -> str:
        """Ask the model."""
        return (await ctx.sample("Hello", max_tokens=5)).model

    @server.tool
    async def ask_roots(ctx: Context) -> str:
        """Ask for roots, after saying so."""
        return str(await ctx.list_roots())

    @server.tool
    async def whole() -> CallToolResult:
        """A result made by hand."""
        return CallToolResult(content=[TextContent("by hand")], meta={"com.example/k": 1})


def _add_resources(server: Server) -> None:
    server.add_resource("note://plain", "Hello", name="plain")
    server.add_resource("note://binary", bytes([0, 255]), name="binary")

    @server.resource("note://moody")
    async def moody() -> str:
        raise RuntimeError("secret-password")

    @server.resource("user://{name}/profile", mime_type="application/json")
    async def profile(name: str) -> dict[str, str]:
        if name == "nobody":
            raise ResourceNotFound(f"user://{name}/profile")
        return {"name": name}

    @server.resource("both://of/them")
    async def both() -> list[Any]:
        return [ResourceContents("both://1", text="one"), ResourceContents("both://2", blob="dHdv")]


def _add_prompts(server: Server) -> None:
    @server.prompt
    async def greet(name: str, tone: Literal["warm", "cold"] = "warm") -> str:
        """Greet somebody."""
        return f"Greet {name} in a {tone} tone."

    @server.prompt
    async def broken() -> str:
        raise RuntimeError("secret-password")

    @server.completion(prompt="greet", argument="name")
    async def names(value: str) -> list[str]:
        return [f"{value}{number}" for number in range(150)]
