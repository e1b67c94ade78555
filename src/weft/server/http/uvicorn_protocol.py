"""Guard uvicorn's HTTP connections, answer in one write, and write its access log.

Our side of uvicorn's HTTP connections: heads come whole, soon and small (D5, D6), and answers are read (D10).

uvicorn waits for ever for the end of a head. This ends such a connection, and one that goes on sending after it was
answered. A connection whose requests come in one piece, as nearly all do, never needs the timer. And uvicorn waits for
ever for a peer to read what was written, also when it has closed the connection; this cuts it off.

A peer may send its next requests before the first is answered. uvicorn then reads no further, so it would not notice
that the peer has gone; this goes on reading, within bounds, and tells the request that is being served. Of one
connection at most `pipelined_requests` wait to be served; what comes beyond them is left unread until it is their turn.

Write uvicorn's access log, quicker where it is as uvicorn sets it up.

A log record and its formatting take half as long as a short call. uvicorn's own handler makes a line of the request
alone, so where nothing was changed, that line is written without a record. With a filter, another handler or formatter,
colours, or a changed `logging`, the logger is called as uvicorn calls it. In both cases control characters in the
client's address, which may come from a forwarded header, are replaced.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any, cast
from urllib.parse import quote

from weft.limits import DEFAULT_LIMITS, Limits
from weft.net.asgi import Send
from weft.net.hosts import target_host
from weft.protocol.names import printable


def guarded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol class, the quickest that is installed, with the guard in front."""
    if find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        return type("GuardedProtocol", (_HttptoolsGuard, HttpToolsProtocol), {"limits": limits})
    from uvicorn.protocols.http.h11_impl import H11Protocol

    return type("GuardedProtocol", (_HeadGuard, H11Protocol), {"limits": limits})


def hang_up_on_flood(send: Send, most: int) -> None:
    """Where uvicorn's own protocol has read too many requests ahead of their turn, let this answer be the last.

    It reads 256 KB at once, which may be fifteen thousand requests, and as much again with each answer. Those that are
    dropped are not answered, and a client may send them again (RFC 9112, 9.3.2). Our own protocol leaves them unread.
    """
    cycle: Any = getattr(send, "__self__", None)
    protocol: Any = getattr(getattr(cycle, "on_response", None), "__self__", None)
    if type(protocol).__module__ == _HTTPTOOLS and len(getattr(protocol, "pipeline", ())) > most:
        protocol.pipeline.clear()
        cycle.keep_alive = False


def respond_at_once(send: Send, status: int, body: bytes, most: int = DEFAULT_LIMITS.pipelined_requests) -> bool:
    """Write a whole JSON response in one go, past the two messages that ASGI makes of it; False where that cannot be.

    `send` is a method of uvicorn's exchange, also where it is not our runner that has started uvicorn. An app around
    ours that wants to see the response has put a function of its own in its place, and is sent the messages. What is
    done here is what uvicorn would do with them, for the plain case: nothing sent yet, a peer that reads, a connection
    that stays, with at most `most` requests ahead of their turn.
    """
    cycle: Any = getattr(send, "__self__", None)
    if cycle is None or type(cycle).__module__ != _HTTPTOOLS:
        return False
    try:
        if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
            return False
        if (field := _closing_field(cycle.__class__)) is not None and field in cycle.scope["headers"]:
            return False
        head, write, set_event = _head(status, cycle.default_headers), cycle.transport.write, cycle.message_event.set
        on_response, logger, scope = cycle.on_response, cycle.access_log and cycle.access_logger, cycle.scope
        if len(on_response.__self__.pipeline) > most:
            return False
    except AttributeError:  # a uvicorn that is made otherwise: nothing was done yet, so the messages still can be sent
        return False
    if logger:
        log_access(logger, scope, status)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
    set_event()
    on_response()
    return True


_HTTPTOOLS = "uvicorn.protocols.http.httptools_impl"


@cache
def _closing_field(cycle_class: Any) -> tuple[bytes, bytes] | None:
    """The field by which older releases of uvicorn know a connection that is to be closed; newer ones have `keep_alive`
    say it, and none.
    """
    return getattr(sys.modules[cycle_class.__module__], "CLOSE_HEADER", None)


_heads: dict[int, tuple[Any, bytes]] = {}  # by status: the fields that it was made with, and the head


def _head(status: int, fields: list[tuple[bytes, bytes]]) -> bytes:
    """The head of a JSON response, up to its length. uvicorn makes a new list of its fields when the date changes."""
    known, head = _heads.get(status, (None, b""))
    if known is not fields:
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        phrase = HTTPStatus(status).phrase.encode()
        head = b"HTTP/1.1 %d %b\r\n%bcontent-type: application/json\r\ncontent-length: " % (status, phrase, lines)
        _heads[status] = fields, head
    return head


class _Trailers(list[Any]):
    """Takes the place of the headers once the head is complete: uvicorn would keep trailers without end."""

    def append(self, object: Any, /) -> None:
        """Drop it."""


_TRAILERS = _Trailers()


class _Outlet:
    """A transport that writes the head of a response with the beginning of its body, for a peer that reads.

    uvicorn writes them one after the other, each by a call to the kernel, which is a good part of what a short answer
    costs. Our app sends the beginning of a body right after the head, if there is one; to HEAD there is none, so a head
    waits for the end of this turn of the loop at most.

    One timer runs while there is something to write, and at most every `patience` seconds. A peer that has taken
    nothing between two looks, though something waited for it, is cut off.
    """

    __slots__ = ("_head", "_is_held", "_loop", "_patience", "_taken", "_timer", "_transport", "_written", "is_closing")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # asked with every response
        self._loop = loop
        self._patience = patience
        self._head: bytes | None = None
        self._written = 0  # bytes, ever
        self._taken = 0  # of them, at the last look
        self._timer: asyncio.TimerHandle | None = None  # until the next look
        self._is_held = False  # nothing more is read, whatever uvicorn wants

    def hold_reading(self) -> None:
        """Read nothing more until `release_reading`: uvicorn reads on with every response."""
        self._is_held = True
        self._transport.pause_reading()

    def release_reading(self) -> None:
        """Read on."""
        if self._is_held:
            self._is_held = False
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        """What uvicorn calls when it wants more."""
        if not self._is_held:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Keep a head; write anything else, after the head that was kept."""
        if self._head is not None:
            data, self._head = self._head + data, None
        elif data[:5] == b"HTTP/" and data[-4:] == b"\r\n\r\n":
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._put(data)

    def _flush(self) -> None:
        """Write a head that no body came after."""
        if self._head is not None and not self.is_closing():
            self.write(b"")

    def close(self) -> None:
        """Close, once everything is written."""
        self._flush()
        self._transport.close()

    def lost(self) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _put(self, data: bytes) -> None:
        self._transport.write(data)
        if self._timer is None and not self.is_closing():
            self._taken = self._written
            self._timer = self._loop.call_later(self._patience, self._look)
        self._written += len(data)

    def _look(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting:
            self._timer = None
        elif taken == self._taken:
            self._timer = None
            self._transport.abort()
        else:
            self._taken = taken
            self._timer = self._loop.call_later(self._patience, self._look)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _HeadGuard(asyncio.Protocol):
    """Mixed in before one of uvicorn's two protocol classes. What both have: `cycle`, the request that came last."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    transport: Any
    cycle: Any

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # received of a head that is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        outlet = _Outlet(transport, self.loop, self.limits.write_seconds)
        super().connection_made(cast("asyncio.BaseTransport", outlet))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.transport.lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look_at(data)

    def _look_at(self, data: bytes) -> None:
        """How far has the peer got with its request, now that there is more of it?"""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # a head is complete, and its request is being served
            if self._timer is not None:
                self._stop_timer()
        elif not self.transport.is_closing():
            self._wait_for_more(len(data), answered=cycle is not None and cycle.more_body)

    def _wait_for_more(self, size: int, *, answered: bool) -> None:
        """The rest of a head, or of a body that was refused: its sender is given the time to notice, no more."""
        self._head_bytes += size
        if self._head_bytes > self.limits.header_bytes + (self.limits.body_bytes if answered else 0):
            if not answered:
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


# Bytes that are parsed at a time. A request has at least 16 of them, so that is how many may come beyond the limit.
_SLICE = 8192


class _HttptoolsGuard(_HeadGuard):
    """What is amiss with httptools alone: trailers, requests that come ahead of their turn, and wishes to upgrade."""

    flow: Any
    headers: Any
    on_response_complete: Callable[[], None]  # of the class that this is mixed in before
    parser: Any
    scope: Any
    url: bytes

    _received = 0  # bytes, in all
    _upgrade_at: int | None = None  # where the bytes begin that httptools left to another protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Requests that are not answered yet, in their order, each with what had been received before it. Mostly one: a
        # deque would take ten times the memory, on each connection.
        self._waiting: list[tuple[Any, int]] = []
        self._unread = bytearray()  # received and not parsed: there are enough requests ahead of their turn
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle, _ in self._waiting:  # uvicorn tells only the last one
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        if len(data) <= _SLICE and not self._unread:  # as nearly all do: a request or two
            self._take(data)
        else:
            self._unread += data
            self._read_on()

    def _read_on(self) -> None:
        """Parse what was received, slice by slice, while there is room for requests ahead of their turn."""
        unread, most = self._unread, self.limits.pipelined_requests
        self._forget_answered()
        while unread and len(self._waiting) <= most and not self.transport.is_closing():
            part = bytes(unread[:_SLICE])
            del unread[:_SLICE]
            self._take(part)
        if self.transport.is_closing():
            unread.clear()
        elif not unread:
            self.transport.release_reading()
        else:
            self.transport.hold_reading()
            middle, _ = self._waiting[len(self._waiting) // 2]
            middle.on_response = self._on_turn

    def _on_turn(self) -> None:
        """Half of the requests that were read ahead are answered: read on."""
        self.on_response_complete()
        self._read_on()

    def _take(self, data: bytes) -> None:
        """Parse some bytes."""
        super(_HeadGuard, self).data_received(data)
        while self._upgrade_at is not None:
            data = self._without_upgrade(data[self._upgrade_at :])
            super(_HeadGuard, self).data_received(data)
        self._look_at(data)
        self._received += len(data)
        self._forget_answered()
        # A body that does not end, or requests ahead of their turn: uvicorn and httptools would keep it all.
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
        """The next chunk: what one may have is counted anew. Whoever reads the body counts them all."""
        if self._waiting and self._waiting[-1][0] is self.cycle:
            self._waiting[-1] = (self.cycle, self._received)

    def on_headers_complete(self) -> None:
        if self.url[:1] != b"/":
            self._take_host_of_target()
        before = self.cycle
        super().on_headers_complete()  # type: ignore[misc] # of the class that this is mixed in before
        self.headers = _TRAILERS
        if self.cycle is not before:
            self._waiting.append((self.cycle, self._received))

    def _take_host_of_target(self) -> None:
        """The host of a target in absolute form counts, whatever the Host header says (RFC 9112, 3.2.2)."""
        if (host := target_host(self.url)) is not None:
            self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]

    # An upgrade may be ignored (RFC 9110, 7.8), and Java's HttpClient asks for one by default. httptools takes the body
    # for the other protocol. So the head is read once more, without the wish.

    def _should_upgrade(self) -> bool:
        return True  # uvicorn then leaves the request to the next method

    def handle_websocket_upgrade(self) -> None:
        if self.scope["method"] == "CONNECT":  # it asks for a tunnel, with or without the header
            self.transport.write(_NO_TUNNEL)
            self.transport.close()
        else:
            left: Any = sys.exception()
            self._upgrade_at = left.args[0]

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request that came last, and what follows it, for a parser that begins anew."""
        from httptools import HttpRequestParser

        self._upgrade_at = None
        self.parser = HttpRequestParser(self)
        fields = [b"%b: %b\r\n" % field for field in self.scope["headers"] if field[0] != b"upgrade"]
        method, version = self.scope["method"].encode(), self.scope["http_version"].encode()
        return b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, self.url, version, b"".join(fields), rest)


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    fields = f"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + body


_TOO_LARGE = _response("431 Request Header Fields Too Large", "The head of the request is too large.\n")
_NO_TUNNEL = _response("405 Method Not Allowed", "This server opens no tunnels.\n")

_PATHS = 16  # remembered, with what cannot stand in a URL quoted: a peer can make them long
_quote = lru_cache(_PATHS)(quote)
_handle, _call_handlers = logging.Logger.handle, logging.Logger.callHandlers  # error trackers put theirs in their place


def log_access(logger: logging.Logger, scope: Any, status: int) -> None:
    """Log one response to a request of uvicorn's."""
    if not logger.isEnabledFor(logging.INFO):
        return
    method, version, path, query = scope["method"], scope["http_version"], _quote(scope["path"]), scope["query_string"]
    if query:
        path = f"{path}?{query.decode('ascii')}"
    peer = scope.get("client")
    client = f"{peer[0]}:{peer[1]}" if peer else ""
    if not client.isprintable():  # uvicorn takes it as it stands in a forwarded header
        client = printable(client, "?")
    handler = _stock_handler(logger)
    if handler is not None:
        line = f'INFO:     {client} - "{method} {path} HTTP/{version}" {_status_text(status)}\n'
        try:
            with handler.lock:
                handler.stream.write(line)
                handler.flush()
        except Exception:  # noqa: BLE001 - told as logging tells of it, below
            handler = None
    if handler is None:
        logger.info('%s - "%s %s HTTP/%s" %d', client, method, path, version, status)


def _stock_handler(logger: logging.Logger) -> Any:
    """The handler of uvicorn's default configuration, if it is the only one and nothing around it was changed."""
    handlers = logger.handlers
    if len(handlers) != 1 or logger.propagate or logger.filters:
        return None
    handler: Any = handlers[0]
    if handler.__class__ is not logging.StreamHandler or handler.filters or handler.level > logging.INFO:
        return None
    formatter: Any = handler.formatter
    kind, format = _stock_formatter()
    if type(formatter) is not kind or formatter.use_colors or formatter._fmt != format:
        return None
    changed = (
        type(logger) is not logging.Logger
        or logging.getLogRecordFactory() is not logging.LogRecord
        or logging.Logger.handle is not _handle
        or logging.Logger.callHandlers is not _call_handlers
        or handler.terminator != "\n"
    )
    return None if changed else handler


@cache
def _stock_formatter() -> tuple[Any, str]:
    """Import late, for another ASGI server may be in use."""
    from uvicorn.config import LOGGING_CONFIG
    from uvicorn.logging import AccessFormatter

    return AccessFormatter, LOGGING_CONFIG["formatters"]["access"]["fmt"]


@cache
def _status_text(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}"
