"""A real server on a real socket, and a client that sends exactly the bytes a test wants.

Owns the building of requests (`message`, `headers_for`) and the raw client (`Live`). `ask` is the same request without
a socket, for tests of what lies behind the transport.
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
from typing import Any

import msgspec
import uvicorn

from weft import Server
from weft.eras.stateless import NEWEST
from weft.protocol.headers import encode_value
from weft.server.run import running
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, PROTOCOL_VERSION_KEY

VERSION = NEWEST.version
VERSIONS = [VERSION, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]  # of a server that serves both eras
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
ACCEPT_BOTH = "application/json, text/event-stream"


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
        if any(line.startswith("data:") and line[5:].strip() for line in event.split("\n"))  # else it primes the stream
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


class RawClient:
    """Sends requests to a server at a port of this machine, exactly as a test wants them."""

    port: int

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
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


class Live(RawClient):
    """A server that runs under uvicorn in a thread, and a client of it."""

    def __init__(self, app: Any, server: Any = None) -> None:
        self.server = server
        self.faults: list[str] = []  # what uvicorn had to say of exceptions that left the app
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, log_level="error", ws="none", timeout_graceful_shutdown=1)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._log = _Recorder(self.faults)

    def _run(self) -> None:
        """Serve; `uvicorn.Server.run` of older releases changes the default loop of the whole process."""
        with asyncio.Runner(loop_factory=running._new_loop) as runner:
            runner.run(self._uvicorn.serve([self._socket]))

    def start(self) -> None:
        logging.getLogger("uvicorn.error").addHandler(self._log)
        self._thread.start()
        until(lambda: self._uvicorn.started or not self._thread.is_alive())

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(30)
        self._socket.close()
        logging.getLogger("uvicorn.error").removeHandler(self._log)

    def healthy(self) -> bool:
        """Whether the server still answers, and nothing ever left the app."""
        return self.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5 and self.faults == []


class _Recorder(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        # All servers of this process log here: one that was stopped amid a request is not a fault of this one.
        if "timeout graceful shutdown exceeded" not in record.getMessage():
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


def until(condition: Any, seconds: float = 30) -> None:
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
