"""A session over HTTP in the hands of a test, message by message: nothing is answered, opened or closed by itself."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from support.peers import CAPABILITIES, read_events
from support.wire import ACCEPT_BOTH, Live, Response, encode, start_request

__all__ = ["NEWEST", "OpenSession", "Stream", "introduction", "rpc"]

NEWEST = "2025-11-25"


def rpc(method: str, params: Any = None, *, id: Any = 1) -> dict[str, Any]:
    """A request of a session; a notification if `id` is None."""
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return {key: value for key, value in message.items() if value is not None}


def introduction(version: str = NEWEST, capabilities: Any = None) -> dict[str, Any]:
    """The params of a handshake."""
    info = {"name": "guest", "version": "1"}
    declared = CAPABILITIES if capabilities is None else capabilities
    return {"protocolVersion": version, "capabilities": declared, "clientInfo": info}


class Stream:
    """One response that is a stream, read event by event."""

    def __init__(self, live: Live, verb: str, body: bytes, headers: list[tuple[str, str]]) -> None:
        self._connection = live.connect(timeout=30)
        start_request(self._connection, body, headers, verb=verb)
        self._socket = self._connection.sock
        self.response = self._connection.getresponse()
        self.status = self.response.status
        self._events = read_events(self.response)

    @property
    def is_stream(self) -> bool:
        return self.response.getheader("content-type", "").startswith("text/event-stream")

    def next(self) -> dict[str, Any]:
        """The next event that holds a message, with the message as `data`."""
        while True:
            event = self.event()
            if event["data"]:
                return {**event, "data": json.loads(event["data"])}

    def event(self) -> dict[str, str]:
        return next(self._events)

    def rest(self) -> list[dict[str, str]]:
        """What comes until the stream ends."""
        return list(self._events)

    def messages(self) -> list[Any]:
        return [json.loads(event["data"]) for event in self.rest() if event["data"]]

    def cut(self) -> None:
        """The connection breaks."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class OpenSession:
    """A session, from its handshake on."""

    def __init__(self, live: Live, version: str = NEWEST, *, capabilities: Any = None, ready: bool = True) -> None:
        self.live = live
        self.version = version
        self.id: str | None = None
        self.opened = self.post(rpc("initialize", introduction(version, capabilities), id=0))
        self.id = self.opened.headers.get("mcp-session-id")
        if ready:
            assert self.post(rpc("notifications/initialized", id=None)).status == 202

    def headers(self, changed: Mapping[str, str | None] | None = None) -> list[tuple[str, str]]:
        headers: dict[str, str | None] = {"Accept": ACCEPT_BOTH, "Content-Type": "application/json"}
        if self.id is not None:
            headers["Mcp-Session-Id"] = self.id
            headers["MCP-Protocol-Version"] = self.version if self.version >= "2025-06-18" else None
        return [(name, value) for name, value in {**headers, **(changed or {})}.items() if value is not None]

    def post(self, body: Any, changed: Mapping[str, str | None] | None = None) -> Response:
        return self.live.send(encode(body), self.headers(changed))

    def verb(self, verb: str, changed: Mapping[str, str | None] | None = None, body: bytes = b"") -> Response:
        """An exchange that is over at once."""
        return self.live.send(body, self.headers(changed), verb=verb)

    def request(self, method: str, params: Any = None, *, id: Any = 1) -> Response:
        return self.post(rpc(method, params, id=id))

    def call(self, tool: str, *, id: Any = 1, **arguments: Any) -> Response:
        return self.request("tools/call", {"name": tool, "arguments": arguments}, id=id)

    def text(self, tool: str, **arguments: Any) -> str:
        return self.call(tool, id="text", **arguments).result["content"][0]["text"]

    @contextlib.contextmanager
    def stream(self, tool: str, *, id: Any = 1, token: Any = None, **arguments: Any) -> Iterator[Stream]:
        """A call whose answer is a stream."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        with self._opened("POST", encode(rpc("tools/call", params, id=id)), {}) as stream:
            yield stream

    @contextlib.contextmanager
    def listen(self, last: str | None = None) -> Iterator[Stream]:
        """The stream that belongs to no request; or the rest of any, after the event `last`."""
        with self._opened("GET", b"", {"Accept": "text/event-stream", "Last-Event-ID": last}) as stream:
            assert stream.status == 200, stream.response.read()
            yield stream

    @contextlib.contextmanager
    def _opened(self, verb: str, body: bytes, changed: Mapping[str, str | None]) -> Iterator[Stream]:
        stream = Stream(self.live, verb, body, self.headers(changed))
        try:
            yield stream
        except http.client.HTTPException as error:
            raise AssertionError("the stream broke off") from error
        finally:
            stream.cut()
