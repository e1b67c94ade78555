"""Protect uvicorn against slow and flooding peers, send a short response in one write, and write the access log.

The *head* of a request or response is its first line and its headers. uvicorn waits without limit for the end of a
request's head, and for a peer to read what was written. The guard, a mixin for uvicorn's protocol classes, closes a
connection if a head is late or too large, if the peer still sends a body after the answer, or if the peer does not
read. If a request arrives in one piece, as nearly all do, no timer is needed for its head.

A peer may send its next requests before the first is answered (pipelining). uvicorn then stops reading, and would not
notice that the peer has disconnected. The guard continues to read: up to `pipelined_requests` requests of a connection
wait to be served, and later bytes stay unread.

Making and formatting a log record takes half as long as a short call. So if the access log has uvicorn's default
configuration, its line is written without a log record. With a filter, another handler or formatter, colours, or a
patched `logging`, the logger is called as uvicorn calls it.

All names of uvicorn that are not public are listed in docs/design.md. If a release of uvicorn lacks one of these names,
the public interface is used instead.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, cast
from urllib.parse import quote

from weft.limits import DEFAULT_LIMITS, Limits
from weft.net.asgi import Send
from weft.net.hosts import target_host
from weft.protocol.names import printable

CLOSE_FIELD = (b"connection", b"close")  # in a response, the last on its connection

_HTTPTOOLS = "uvicorn.protocols.http.httptools_impl"
_H11 = "uvicorn.protocols.http.h11_impl"

# Attributes of uvicorn's protocol classes, and of the cycle that serves one request, that the guards need.
GUARDED_NAMES = frozenset({"loop", "transport", "cycle", "response_complete", "more_body"})
HTTPTOOLS_NAMES = GUARDED_NAMES | {
    *("flow", "headers", "parser", "scope", "url", "on_response", "disconnected", "message_event"),
    *("on_headers_complete", "on_response_complete", "_should_upgrade", "handle_websocket_upgrade"),
}


def guarded_protocol(limits: Limits) -> type[asyncio.Protocol] | None:
    """Return a subclass of uvicorn's fastest installed protocol class that enforces `limits`.

    Return None if this release of uvicorn lacks attributes that the subclass needs. uvicorn then uses its own class.
    """
    kinds = [(_H11, "H11Protocol", _HeadGuard, GUARDED_NAMES)]
    if find_spec("httptools") is not None:
        kinds.insert(0, (_HTTPTOOLS, "HttpToolsProtocol", _HttptoolsGuard, HTTPTOOLS_NAMES))
    for module, name, guard, needed in kinds:
        with suppress(ImportError, AttributeError):
            found = import_module(module)
            protocol = getattr(found, name)
            if needed <= _names_of(protocol) | _names_of(found.RequestResponseCycle):
                return type("GuardedProtocol", (guard, protocol), {"limits": limits})
    return None


def _names_of(kind: type) -> set[str]:
    """Return the names of the methods of a class, and of all attributes that these methods use."""
    methods = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    return {name for method in methods for name in (method.__name__, *method.__code__.co_names)}


def hang_up_on_flood(send: Send, most: int) -> None:
    """Close the connection after this response if more than `most` pipelined requests wait on it.

    The waiting requests are dropped without an answer, and the client may send them again (RFC 9112, 9.3.2). This is
    only done for uvicorn's own protocol class, which reads 256 KB at once: this may be fifteen thousand requests. The
    class from `guarded_protocol` limits the waiting requests itself.
    """
    cycle: Any = getattr(send, "__self__", None)
    protocol: Any = getattr(getattr(cycle, "on_response", None), "__self__", None)
    if type(protocol).__module__ == _HTTPTOOLS and len(getattr(protocol, "pipeline", ())) > most:
        protocol.pipeline.clear()
        cycle.keep_alive = False


def respond_at_once(send: Send, status: int, body: bytes, most: int = DEFAULT_LIMITS.pipelined_requests) -> bool:
    """Write a whole JSON response directly to uvicorn's transport. Return False if this is not possible.

    It is possible only if `send` is uvicorn's own method. If another app has replaced `send`, that app must get the
    response as ASGI messages. It is also possible only in the simple case: no part of the response is sent yet, the
    peer reads, the connection stays open, and at most `most` pipelined requests wait.
    """
    cycle: Any = getattr(send, "__self__", None)
    if cycle is None or type(cycle).__module__ != _HTTPTOOLS:
        return False
    try:
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        if (field := _closing_field(cycle.__class__)) is not None and field in cycle.scope["headers"]:
            return False
        if CLOSE_FIELD in cycle.default_headers:  # the server stops
            return False
        head, write, set_event = _head(status, cycle.default_headers), cycle.transport.write, cycle.message_event.set
        on_response, logger, scope = cycle.on_response, cycle.access_log and cycle.access_logger, cycle.scope
        _ = cycle.response_complete, cycle.waiting_for_100_continue  # set below
        if len(on_response.__self__.pipeline) > most:
            return False
    except AttributeError:  # another release of uvicorn; nothing is written yet, so the messages can be sent
        return False
    if logger:
        log_access(logger, scope, status)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
    set_event()
    on_response()
    return True


@cache
def _closing_field(cycle_class: Any) -> tuple[bytes, bytes] | None:
    """Return the header with which older releases of uvicorn close a connection; None for newer releases."""
    return getattr(sys.modules[cycle_class.__module__], "CLOSE_HEADER", None)


_heads: dict[int, tuple[Any, bytes]] = {}  # cache of response heads, by status: the default headers and the head


def _head(status: int, fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return the first line and the headers of a JSON response, up to "content-length: ".

    `fields` are uvicorn's default headers. The result is cached while `fields` is the same list object. uvicorn makes a
    new list when the date in it changes.
    """
    known, head = _heads.get(status, (None, b""))
    if known is not fields:
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        phrase = HTTPStatus(status).phrase.encode()
        head = b"HTTP/1.1 %d %b\r\n%bcontent-type: application/json\r\ncontent-length: " % (status, phrase, lines)
        _heads[status] = fields, head
    return head


class _Trailers(list[Any]):
    """A list that stays empty. It replaces uvicorn's list of headers when the head of a request is complete.

    Headers that come later are trailers. uvicorn would append them to its list without limit.
    """

    def append(self, object: Any, /) -> None:
        """Do nothing: a trailer is ignored."""


_TRAILERS = _Trailers()


class _Outlet:
    """A transport that writes the head of a response together with the beginning of its body.

    uvicorn writes head and body with two system calls, which take a large part of the time of a short answer. The app
    sends the beginning of a body right after the head. If no body follows (HEAD, 204), the head is written at the end
    of the current iteration of the event loop.

    While bytes are waiting to be written, the peer is checked every `write_seconds`. A peer that has read nothing
    between two checks is disconnected.
    """

    __slots__ = ("_head", "_is_held", "_loop", "_seconds", "_taken", "_timer", "_transport", "_written", "is_closing")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, write_seconds: float) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # copied for speed: it is called with every response
        self._loop = loop
        self._seconds = write_seconds  # time between two checks of the peer
        self._head: bytes | None = None  # a head that waits for the beginning of its body
        self._written = 0  # total bytes given to the transport
        self._taken = 0  # bytes that the peer had read at the last check
        self._timer: asyncio.TimerHandle | None = None  # timer of the next check
        self._is_held = False  # whether reading stays paused, even if uvicorn resumes it

    def hold_reading(self) -> None:
        """Stop reading until `release_reading` is called. Ignore that uvicorn resumes reading with every response."""
        self._is_held = True
        self._transport.pause_reading()

    def release_reading(self) -> None:
        """Resume reading after `hold_reading`."""
        if self._is_held:
            self._is_held = False
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        """Resume reading when uvicorn requests it, unless `hold_reading` was called."""
        if not self._is_held:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Write `data`. But if `data` is a response head, delay it, to write it together with the next data."""
        if self._head is not None:
            data, self._head = self._head + data, None
        elif data[:5] == b"HTTP/" and data[-4:] == b"\r\n\r\n":
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._put(data)

    def _flush(self) -> None:
        """Write a delayed response head now, without a body. Do nothing if no head is delayed."""
        if self._head is not None and not self.is_closing():
            self.write(b"")

    def close(self) -> None:
        """Close the connection after all data is written."""
        self._flush()
        self._transport.close()

    def stop_timer(self) -> None:
        """Stop checking whether the peer reads. Called when the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _put(self, data: bytes) -> None:
        self._transport.write(data)
        if self._timer is None and not self.is_closing():
            self._taken = self._written
            self._timer = self._loop.call_later(self._seconds, self._check_peer)
        self._written += len(data)

    def _check_peer(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting:
            self._timer = None
        elif taken == self._taken:
            self._timer = None
            self._transport.abort()
        else:
            self._taken = taken
            self._timer = self._loop.call_later(self._seconds, self._check_peer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _HeadGuard(asyncio.Protocol):
    """A mixin for uvicorn's two protocol classes that limits the time and the size of request heads.

    The attribute `cycle`, which uvicorn's class sets, is the request that arrived last.
    """

    limits: Limits
    loop: asyncio.AbstractEventLoop
    transport: Any
    cycle: Any

    _timer: asyncio.TimerHandle | None = None  # closes the connection if the head does not arrive in time
    _head_bytes = 0  # bytes received of a head that is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        outlet = _Outlet(transport, self.loop, self.limits.write_seconds)
        super().connection_made(cast("asyncio.BaseTransport", outlet))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.transport.stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._check_progress(data)

    def _check_progress(self, data: bytes) -> None:
        """Stop the timer if a request head is complete. Otherwise limit the time and the size of the head.

        If the request is already answered but its body is not complete, limit the rest of the body in the same way.
        """
        cycle, limits = self.cycle, self.limits
        if cycle is not None and not cycle.response_complete:  # a head is complete, and its request is being served
            if self._timer is not None:
                self._stop_timer()
        elif not self.transport.is_closing():
            is_body = cycle is not None and cycle.more_body
            self._head_bytes += len(data)
            if self._head_bytes > limits.header_bytes + (limits.body_bytes if is_body else 0):
                if not is_body:
                    self.transport.write(_TOO_LARGE)
                self.transport.close()
            elif self._timer is None:
                self._start_timer()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# Bytes that are parsed at a time. A request has at least 16 bytes, so at most 512 requests can exceed the limit.
_SLICE = 8192


class _HttptoolsGuard(_HeadGuard):
    """The guard for uvicorn's httptools class. It also limits trailers and pipelined requests, and ignores upgrades."""

    flow: Any
    headers: Any
    on_response_complete: Callable[[], None]  # method of uvicorn's class
    parser: Any
    scope: Any
    url: bytes

    _received = 0  # total bytes received
    _upgrade_at: int | None = None  # where the bytes begin that httptools did not parse because of an upgrade

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Requests without an answer, in order, each with the number of bytes received before it. Mostly one: a deque
        # would take ten times the memory, on each connection.
        self._waiting: list[tuple[Any, int]] = []
        self._unread = bytearray()  # bytes received but not parsed, because enough requests are waiting
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle, _ in self._waiting:  # uvicorn notifies only the last one
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        if len(data) <= _SLICE and not self._unread:  # the common case: a request or two
            self._parse(data)
        else:
            self._unread += data
            self._parse_unread()

    def _parse_unread(self) -> None:
        """Parse the unread bytes, slice by slice, until there are more than `pipelined_requests` waiting requests."""
        unread, most = self._unread, self.limits.pipelined_requests
        self._forget_answered()
        while unread and len(self._waiting) <= most and not self.transport.is_closing():
            part = bytes(unread[:_SLICE])
            del unread[:_SLICE]
            self._parse(part)
        if self.transport.is_closing():
            unread.clear()
        elif not unread:
            self.transport.release_reading()
        else:
            self.transport.hold_reading()
            middle, _ = self._waiting[len(self._waiting) // 2]
            middle.on_response = self._on_half_answered

    def _on_half_answered(self) -> None:
        self.on_response_complete()
        self._parse_unread()

    def _parse(self, data: bytes) -> None:
        super(_HeadGuard, self).data_received(data)
        while self._upgrade_at is not None:
            data = self._without_upgrade(data[self._upgrade_at :])
            super(_HeadGuard, self).data_received(data)
        self._check_progress(data)
        self._received += len(data)
        self._forget_answered()
        # An endless body, or many pipelined requests: uvicorn and httptools would store all of it.
        waiting = self._waiting
        if waiting and self._received - waiting[0][1] > self.limits.header_bytes + self.limits.body_bytes:
            self.transport.abort()
        elif len(waiting) > 1:
            self.flow.resume_reading()

    def _forget_answered(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0].response_complete:
            del waiting[0]

    def on_chunk_header(self) -> None:
        """Reset the count of received bytes at each chunk of a body. The app limits the size of the whole body."""
        if self._waiting and self._waiting[-1][0] is self.cycle:
            self._waiting[-1] = (self.cycle, self._received)

    def on_headers_complete(self) -> None:
        if self.url[:1] != b"/" and (host := target_host(self.url)) is not None:
            # The target is a full URL: its host replaces the Host header (RFC 9112, 3.2.2).
            self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]
        before = self.cycle
        super().on_headers_complete()  # type: ignore[misc] # a method of uvicorn's class
        self.headers = _TRAILERS
        if self.cycle is not before:
            self._waiting.append((self.cycle, self._received))

    # A server may ignore an upgrade (RFC 9110, 7.8), and Java's HttpClient requests one by default, to HTTP/2. But
    # httptools does not parse the body of such a request. So the head is parsed again, without the field.

    def _should_upgrade(self) -> bool:
        return True  # uvicorn then calls the next method

    def handle_websocket_upgrade(self) -> None:
        if self.scope["method"] == "CONNECT":  # a tunnel, with or without the header
            self.transport.write(_NO_TUNNEL)
            self.transport.close()
        else:
            upgrade: Any = sys.exception()
            self._upgrade_at = upgrade.args[0]

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Replace the parser by a new one, and return the bytes that the new parser must parse.

        These bytes are the head of the last request without its `Upgrade` header, and then `rest`. The old parser has
        not parsed `rest`, the bytes after the head.
        """
        self._upgrade_at = None
        self.parser = type(self.parser)(self)
        fields = [b"%b: %b\r\n" % field for field in self.scope["headers"] if field[0] != b"upgrade"]
        method, version = self.scope["method"].encode(), self.scope["http_version"].encode()
        return b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, self.url, version, b"".join(fields), rest)


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    fields = f"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + body


_TOO_LARGE = _response("431 Request Header Fields Too Large", "The head of the request is too large.\n")
_NO_TUNNEL = _response("405 Method Not Allowed", "This server opens no tunnels.\n")

_PATHS = 16  # paths whose quoted form is cached; few, because a peer can send long ones
_quote = lru_cache(_PATHS)(quote)
_Logger: Any = logging.Logger
# The original methods, to notice if an error tracker has replaced them.
_handle, _call_handlers = _Logger.handle, getattr(_Logger, "callHandlers", None)


def log_access(logger: logging.Logger, scope: Any, status: int) -> None:
    """Write one line about a response to uvicorn's access log.

    Control characters in the client's address, which may come from a forwarded header, are replaced.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    method, version, path, query = scope["method"], scope["http_version"], _quote(scope["path"]), scope["query_string"]
    if query:
        path = f"{path}?{query.decode('ascii')}"
    peer = scope.get("client")
    client = f"{peer[0]}:{peer[1]}" if peer else ""
    if not client.isprintable():
        client = printable(client, "?")
    handler = _stock_handler(logger)
    if handler is not None:
        try:
            with handler.lock:
                handler.stream.write(f'INFO:     {client} - "{method} {path} HTTP/{version}" {_status_text(status)}\n')
                handler.flush()
        except Exception:  # noqa: BLE001 - reported below, as logging reports it
            handler = None
    if handler is None:
        logger.info('%s - "%s %s HTTP/%s" %d', client, method, path, version, status)


def _stock_handler(logger: logging.Logger) -> Any:
    """Return the handler of a logger that has uvicorn's default configuration; None if the configuration differs."""
    if len(logger.handlers) != 1:
        return None
    handler: Any = logger.handlers[0]
    formatter: Any = handler.formatter
    kind, format = _stock_formatter()
    is_stock = (
        type(logger) is logging.Logger
        and handler.__class__ is logging.StreamHandler
        and not (logger.propagate or logger.filters or handler.filters or handler.level > logging.INFO)
        and type(formatter) is kind
        and getattr(formatter, "_fmt", None) == format
        and not getattr(formatter, "use_colors", True)
        and handler.terminator == "\n"
        and logging.getLogRecordFactory() is logging.LogRecord
        and _Logger.handle is _handle
        and getattr(_Logger, "callHandlers", None) is _call_handlers
    )
    return handler if is_stock else None


@cache
def _stock_formatter() -> tuple[type | None, str]:
    """Return the formatter class and the format of uvicorn's access log; None and "" if uvicorn is not installed."""
    try:
        from uvicorn.config import LOGGING_CONFIG
        from uvicorn.logging import AccessFormatter

        return AccessFormatter, LOGGING_CONFIG["formatters"]["access"]["fmt"]
    except (ImportError, KeyError):
        return None, ""


@cache
def _status_text(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}"
