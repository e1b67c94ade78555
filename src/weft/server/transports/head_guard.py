"""A guard on uvicorn's HTTP connections: the head of a request comes whole, soon and small, or not at all (D5, D6).

uvicorn waits for ever for the end of a head. This ends such a connection, and one that goes on sending after it was
answered. A connection whose requests come in one piece, as nearly all do, never needs the timer.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any

from weft.limits import Limits

__all__ = ["guarded_protocol"]


def guarded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's protocol class, the quickest that is installed, with the guard in front."""
    if find_spec("httptools") is not None:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Plain
    else:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Plain

    return type("GuardedProtocol", (_HeadGuard, Plain), {"limits": limits})


class _Trailers(list[Any]):
    """Takes the place of the headers once the head is complete: uvicorn would keep trailers without end."""

    def append(self, object: Any, /) -> None:
        """Drop it."""


_TRAILERS = _Trailers()


class _HeadGuard(asyncio.Protocol):
    """Mixed in before one of uvicorn's two protocol classes. What both have: `cycle`, the request that came last."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    transport: Any
    cycle: Any
    headers: Any

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # received of a head that is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # a head is complete, and its request is being served
            self.headers = _TRAILERS
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


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    fields = f"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + body


_TOO_LARGE = _response("431 Request Header Fields Too Large", "The head of the request is too large.\n")
