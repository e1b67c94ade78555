"""Clients of every revision over every transport, that send and read exactly what stands on the wire.

A `Peer` speaks a revision: it introduces itself, numbers its requests, answers what it is asked. A `Way` is how its
messages get there: lines of a child process, lines in this process, HTTP, HTTP with two endpoints. They know nothing of
Weft but its headers and keys, and are written with threads, for what they talk to is written with tasks.
"""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from support.wire import ACCEPT_BOTH, VERSION, Live, headers_for, start_request
from weft import Server
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, PROTOCOL_VERSION_KEY

__all__ = [
    "ENVIRONMENT",
    "SESSION_VERSIONS",
    "HttpWay",
    "MemoryWay",
    "Message",
    "Peer",
    "SseWay",
    "StdioWay",
    "read_events",
]

Message = dict[str, Any]
SESSION_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
CAPABILITIES = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}
PATIENCE = 30.0  # seconds; nothing here takes so long
# For a program of this folder, which imports others of it.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


class Way(Protocol):
    """How messages get there and back."""

    def start(self, receive: Callable[[Message], None]) -> None: ...
    def send(self, message: Any) -> None: ...
    def give_up(self, id: int) -> bool:
        """Let go of a request, where that says that it is not wanted; False where a message has to say so."""
        ...

    def agreed(self, version: str) -> None:
        """The handshake is over."""
        ...

    def close(self) -> None: ...


class Peer:
    """A client of one revision."""

    def __init__(self, way: Way, version: str, capabilities: Message | None = None) -> None:
        self.way = way
        self.version = version
        self.is_stateless = version >= VERSION
        self.capabilities = CAPABILITIES if capabilities is None else capabilities
        self.messages: list[Message] = []  # all that came, in order
        self.asked: list[Message] = []  # questions among them
        self.faults: list[str] = []  # what the revision does not have
        self.log_level: str | None = None
        self._news = threading.Condition()
        self._ids = itertools.count(1)
        self._listening: int | None = None

    def open(self) -> Message:
        """Introduce oneself. The answer."""
        self.way.start(self._receive)
        if self.is_stateless:
            return self.request("server/discover")
        answer = self.request("initialize", self.introduction)
        self.way.agreed(answer["result"]["protocolVersion"])
        self.notify("notifications/initialized")
        return answer

    @property
    def introduction(self) -> Message:
        info = {"name": "guest", "version": "1"}
        return {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": info}

    def close(self) -> None:
        self.way.close()

    # Asking.

    def begin(self, method: str, params: Message | None = None, *, token: Any = None) -> int:
        """Send a request. Its id."""
        id = next(self._ids)
        self.way.send({"jsonrpc": "2.0", "id": id, "method": method, "params": self._stamp(params, token)})
        return id

    def answer_to(self, id: Any) -> Message:
        return self.await_message(lambda message: message.get("id") == id and "method" not in message)

    def request(self, method: str, params: Message | None = None, *, token: Any = None) -> Message:
        return self.answer_to(self.begin(method, params, token=token))

    def result(self, method: str, params: Message | None = None, *, token: Any = None) -> Any:
        """The result of a request; where it comes with questions, of its last round."""
        result = self._result(self.request(method, params, token=token))
        while result.get("resultType") == "input_required":
            answers = {key: self._answer(question) for key, question in result.get("inputRequests", {}).items()}
            again = {**(params or {}), "inputResponses": answers, "requestState": result["requestState"]}
            result = self._result(self.request(method, again, token=token))
        return result

    def error(self, method: str, params: Message | None = None) -> Message:
        answer = self.request(method, params)
        assert "error" in answer, answer
        return answer["error"]

    def call(self, tool: str, *, token: Any = None, **arguments: Any) -> Any:
        return self.result("tools/call", {"name": tool, "arguments": arguments}, token=token)

    def text(self, tool: str, *, token: Any = None, **arguments: Any) -> str:
        result = self.call(tool, token=token, **arguments)
        assert not result.get("isError"), result
        return result["content"][0]["text"]

    def notify(self, method: str, params: Message | None = None) -> None:
        self.way.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def cancel(self, id: int) -> None:
        if not (self.is_stateless and self.way.give_up(id)):
            self.notify("notifications/cancelled", {"requestId": id, "reason": "enough"})

    def set_level(self, level: str) -> None:
        """Ask for log messages of this level and above."""
        self.log_level = level
        if not self.is_stateless:
            assert self.result("logging/setLevel", {"level": level}) == {}

    def hear_of(self, uri: str) -> None:
        """Ask to be told of changes: of a resource, and of the list of tools."""
        if not self.is_stateless:
            assert self.result("resources/subscribe", {"uri": uri}) == {}
            return
        wish = {"toolsListChanged": True, "resourceSubscriptions": [uri]}
        since = len(self.messages)
        self._listening = self.begin("subscriptions/listen", {"notifications": wish})
        ack = self.await_message(lambda m: m.get("method", "").endswith("acknowledged"), since=since)
        assert ack["params"]["notifications"] == wish

    def hear_no_more(self, uri: str) -> None:
        if not self.is_stateless:
            assert self.result("resources/unsubscribe", {"uri": uri}) == {}
        elif self._listening is not None:
            self.cancel(self._listening)

    # What came.

    def await_message(self, match: Callable[[Message], Any], *, since: int = 0) -> Message:
        """The first message that matches, of those from number `since` on."""
        end = time.monotonic() + PATIENCE
        with self._news:
            while True:
                found = next((message for message in self.messages[since:] if match(message)), None)
                if found is not None:
                    return found
                assert self._news.wait(end - time.monotonic()), f"it did not come: {self.messages[since:]}"

    def of_method(self, method: str, *, since: int = 0) -> list[Any]:
        """The params of all such messages."""
        with self._news:
            return [message.get("params") for message in self.messages[since:] if message.get("method") == method]

    def _receive(self, message: Message) -> None:
        with self._news:
            self.messages.append(message)
            self.faults.extend(strange(message, self.version))
            self._news.notify_all()
        if "method" in message and "id" in message:
            self.way.send({"jsonrpc": "2.0", "id": message["id"], "result": self._answer(message)})

    def _answer(self, question: Message) -> Any:
        """What this client's user, model and host say."""
        self.asked.append(question)
        method = question["method"]
        if method == "elicitation/create":
            is_form = "requestedSchema" in question["params"]
            return {"action": "accept", **({"content": {"name": "Ada", "nights": 2}} if is_form else {})}
        if method == "sampling/createMessage":
            return {"role": "assistant", "content": {"type": "text", "text": "Hello!"}, "model": "m-1"}
        return {"roots": [{"uri": "file:///luggage"}]} if method == "roots/list" else {}

    def _stamp(self, params: Message | None, token: Any) -> Message:
        meta: Message = {} if token is None else {"progressToken": token}
        if self.is_stateless:
            meta[PROTOCOL_VERSION_KEY] = self.version
            meta[CLIENT_CAPABILITIES_KEY] = self.capabilities
            meta[CLIENT_INFO_KEY] = {"name": "guest", "version": "1"}
            if self.log_level:
                meta[LOG_LEVEL_KEY] = self.log_level
        return {**(params or {}), **({"_meta": meta} if meta else {})}

    def _result(self, answer: Message) -> Any:
        assert "result" in answer, answer
        return answer["result"]


# What a revision does not have.

_SINCE = {
    "resultType": VERSION,
    "ttlMs": VERSION,
    "cacheScope": VERSION,
    "inputRequests": VERSION,
    "icons": "2025-11-25",
    "elicitationId": "2025-11-25",
    "websiteUrl": "2025-11-25",
    "mode": "2025-11-25",
    "title": "2025-06-18",
    "structuredContent": "2025-06-18",
    "outputSchema": "2025-06-18",
    "annotations": "2025-03-26",
    "completions": "2025-03-26",
}
_TYPES_SINCE = {"resource_link": "2025-06-18", "audio": "2025-03-26"}
_OPAQUE = frozenset({"inputSchema", "outputSchema", "requestedSchema", "structuredContent", "annotations", "data"})


def strange(message: Any, version: str) -> Iterator[str]:
    """What stands in a message that this revision does not have."""
    if isinstance(message, list):
        for item in message:
            yield from strange(item, version)
    elif isinstance(message, dict):
        if version < _TYPES_SINCE.get(message.get("type", ""), ""):
            yield f"content of type {message['type']}"
        for key, value in message.items():
            if version < _SINCE.get(key, ""):
                yield f"{key} in {message}"
            elif key.startswith("io.modelcontextprotocol/") and version < VERSION:
                yield key
            elif key not in _OPAQUE:
                yield from strange(value, version)


# Ways.


class StdioWay:
    """A child process."""

    def __init__(self, script: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self, receive: Callable[[Message], None]) -> None:
        self._received = receive
        self._reader.start()

    def send(self, message: Any) -> None:
        with self._lock:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def give_up(self, id: int) -> bool:
        return False

    def agreed(self, version: str) -> None:
        pass

    def close(self) -> None:
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._reader.join(30)
        self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._received(json.loads(line))


class MemoryWay:
    """A server in this process, in a loop of its own."""

    def __init__(self, make: Callable[[], Server]) -> None:
        self._make = make
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self, receive: Callable[[Message], None]) -> None:
        self._thread.start()
        self._receive = receive
        self._run(self._open())

    def send(self, message: Any) -> None:
        self._loop.call_soon_threadsafe(self._pipe.send, json.dumps(message).encode())

    def give_up(self, id: int) -> bool:
        return False

    def agreed(self, version: str) -> None:
        pass

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _open(self) -> None:
        self.server = self._make()
        self._pipe = self.server.pipe(lambda line: self._receive(json.loads(line)))

    async def _end(self) -> None:
        await self._pipe.close()
        await self.server.stop()

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class HttpWay:
    """One endpoint. `accept` is what the client takes as an answer to what it POSTs."""

    def __init__(self, live: Live, accept: str = ACCEPT_BOTH, path: str = "/mcp") -> None:
        self._live = live
        self._accept = accept
        self._path = path
        self._version: str | None = None
        self.session_id: str | None = None
        self.kinds: dict[Any, str] = {}  # of the answers, by the id of the request
        self._listening = threading.Event()  # the stream that belongs to no request is open
        self._sockets: dict[Any, socket.socket] = {}
        self._threads: list[threading.Thread] = []

    def start(self, receive: Callable[[Message], None]) -> None:
        self._receive = receive

    def send(self, message: Any) -> None:
        """Each message has a connection of its own. A notification is there when this returns."""
        posting = self._begin(self._post, message)
        if "id" not in message:
            posting.join(PATIENCE)

    def give_up(self, id: int) -> bool:
        _shut(self._sockets[id])
        return True

    def agreed(self, version: str) -> None:
        self._version = version if version >= "2025-06-18" else None  # L03-04: older ones have no such header
        if self.session_id is not None:
            self._begin(self._listen)
            assert self._listening.wait(PATIENCE)

    def close(self) -> None:
        if self.session_id is not None:
            status = self._exchange("DELETE", b"", self.headers, lambda response: response.status)
            assert status == 204
        for open_socket in list(self._sockets.values()):
            _shut(open_socket)
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    @property
    def headers(self) -> list[tuple[str, str]]:
        session = [] if self.session_id is None else [("Mcp-Session-Id", self.session_id)]
        return session if self._version is None else [*session, ("MCP-Protocol-Version", self._version)]

    def _begin(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _post(self, message: Message) -> None:
        headers = [("Content-Type", "application/json"), ("Accept", self._accept), *self.headers]
        if PROTOCOL_VERSION_KEY in message.get("params", {}).get("_meta", {}):
            headers = headers_for(message, {"Accept": self._accept})
        id = message.get("id") if "method" in message else None
        self._exchange("POST", json.dumps(message).encode(), headers, lambda response: self._read(id, response), id)

    def _listen(self) -> None:
        headers = [("Accept", "text/event-stream"), *self.headers]
        self._exchange("GET", b"", headers, lambda response: self._read("GET", response), "GET")

    def _exchange(self, verb: str, body: bytes, headers: Any, read: Callable[[Any], Any], name: Any = None) -> Any:
        connection = self._live.connect(timeout=60)
        try:
            connection.connect()
            if name is not None:
                self._sockets[name] = connection.sock
            start_request(connection, body, headers, verb=verb, path=self._path)
            return read(connection.getresponse())
        except (OSError, http.client.HTTPException):
            return None  # given up
        finally:
            self._sockets.pop(name, None)
            connection.close()

    def _read(self, id: Any, response: http.client.HTTPResponse) -> None:
        kind = response.getheader("content-type", "").partition(";")[0]
        self.kinds[id] = kind
        self.session_id = response.getheader("mcp-session-id") or self.session_id
        if kind == "text/event-stream":
            if id == "GET":
                self._listening.set()
            for event in read_events(response):
                if event["data"]:
                    self._receive(json.loads(event["data"]))
        elif body := response.read():
            self._receive(json.loads(body))


class SseWay:
    """Two endpoints: a stream on which everything comes, and where to POST, which the stream says first."""

    def __init__(self, live: Live, path: str = "/sse") -> None:
        self._live = live
        self._path = path
        self._statuses: set[int] = set()
        self._endpoint = ""
        self._ready = threading.Event()

    def start(self, receive: Callable[[Message], None]) -> None:
        self._received = receive
        self._connection = self._live.connect(timeout=60)
        headers = [("Accept", "text/event-stream")]
        start_request(self._connection, b"", headers, verb="GET", path=self._path, length=False)
        self._socket = self._connection.sock
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(PATIENCE)

    def send(self, message: Any) -> None:
        body = json.dumps(message).encode()
        response = self._live.send(body, [("Content-Type", "application/json")], path=self._endpoint)
        self._statuses.add(response.status)
        assert response.body == b"", response

    def give_up(self, id: int) -> bool:
        return False

    def agreed(self, version: str) -> None:
        pass

    def close(self) -> None:
        _shut(self._socket)
        self._reader.join(30)
        self._connection.close()
        assert self._statuses == {202}

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # closed
            for event in read_events(self._connection.getresponse()):
                if event.get("event") == "endpoint":
                    self._endpoint = event["data"]
                    self._ready.set()
                elif event["data"]:
                    self._received(json.loads(event["data"]))


def _shut(open_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed already
        open_socket.shutdown(socket.SHUT_RDWR)


def read_events(response: Any) -> Iterator[dict[str, str]]:
    """The events of a stream, as they come: their fields, `data` always among them."""
    event: dict[str, str] = {}
    while line := response.readline():
        text = line.decode().rstrip("\r\n")
        if text and not text.startswith(":"):
            field, _, value = text.partition(":")
            event[field] = value.removeprefix(" ")
        elif not text and event:
            yield {"data": "", **event}
            event = {}
