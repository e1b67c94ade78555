"""One HTTP exchange, over the network with aiohttp; and the interface that any other way of doing it has.

Owns connections, and which proxy they lead through. It knows nothing of the protocol that travels in the bodies,
follows no redirect, and reads no more than it is told to. What a failed connection is called, `http_failures` knows.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractCookieJar

from weft.client.http.failures import (
    PROXY_REFUSES,
    Proxy,
    broken_off,
    environment_proxy,
    is_unanswered,
    place,
    proxy_refusal,
    why_unreached,
)
from weft.errors import ConnectionFailed, InvalidAnswer
from weft.limits import ClientLimits

_MOST_CONNECTIONS = 100
_MOST_COOKIES = 100  # then all are forgotten: who means one well sets it again
# Readable to the end, or broken: how a kept connection looks that the server has closed.
_UNASKED = getattr(select, "POLLIN", 0)  # bytes, or the end; that it was hung up is told always
_LEAST_IDLE = 0.1  # seconds, whatever a server says
_MOST_RETIRED = 3  # pools that are not used any more
_END_SECONDS = 1.0  # for the end of a stream whose answer was read
# When the system asks whether the other end of a silent stream is still there, how often (s), and when it gives up.
_PROBING = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}


class HttpResponse(Protocol):
    """The head of a response, and a way to its body."""

    status: int
    headers: Mapping[str, str]  # looked up in any case

    async def body(self, limit: int) -> bytes:
        """All of it, unpacked; InvalidAnswer when that is more than `limit` bytes."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """It piece by piece, as it comes; ConnectionFailed when it breaks off."""
        ...

    def done(self) -> None:
        """No more of it is wanted. What was not read to its end is cut off."""
        ...

    def finish(self) -> None:
        """All that matters was read: only the end should follow. Wait for it aside, so that the connection is kept."""
        ...


class Wire(Protocol):
    """A way to do HTTP exchanges."""

    async def open(self) -> None:
        """Make ready."""
        ...

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request and wait for the head of its response; ConnectionFailed when there is none."""
        ...

    def renew(self) -> None:
        """The connections that are there may lead nowhere: take others from now on."""
        ...

    async def close(self) -> None:
        """Cut off whatever is under way, and free everything."""
        ...


class _Reply:
    """A response of aiohttp."""

    __slots__ = ("_ends", "_response", "_where", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, where: str, ends: set[asyncio.Task[None]]) -> None:
        self._response = response
        self._where = where
        self._ends = ends  # where those are kept that wait for an end
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def body(self, limit: int) -> bytes:
        """All of it, within a limit that also holds for what was packed."""
        stated = self._response.content_length
        try:
            if stated is not None and stated <= limit and "Content-Encoding" not in self.headers:
                return await self._response.read()
            whole = bytearray()
            async for chunk in self._response.content.iter_any():
                whole += chunk
                if len(whole) > limit:
                    break
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(broken_off(self._where, error)) from None
        if len(whole) > limit:
            self._response.close()
            raise InvalidAnswer(f"{self._where} sent more than {limit} bytes in one answer; raise `message_bytes`.")
        return bytes(whole)

    async def chunks(self) -> AsyncIterator[bytes]:
        """It piece by piece."""
        self._probe()
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(broken_off(self._where, error)) from None

    def _probe(self) -> None:
        """Let the system find out when the machine at the other end is gone, for a stream may be silent for long."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        end = None if transport is None else transport.get_extra_info("socket")
        if end is not None:
            with suppress(OSError):  # gone already, or no TCP
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _PROBING.items():
                    if hasattr(socket, option):
                        end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def done(self) -> None:
        """Give the connection back, or close it where the response did not end yet."""
        self._response.release()

    def finish(self) -> None:
        """Read on to the end, for a moment."""
        if self._response.content.at_eof():
            self._response.release()
            return
        task = asyncio.create_task(self._drain())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._response.content.readany()
        except (aiohttp.ClientError, OSError):
            pass
        finally:
            self._response.release()


class _Connector(aiohttp.TCPConnector):
    """A pool that does not hand out a kept connection which the server has closed.

    The loop may not have noticed: it was busy, or the end has only just arrived. What is sent on such a connection was
    read by nobody, but afterwards that cannot be told from a server that read it and then failed (RFC 9110, 9.2.2). So
    it is looked at before.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType] - of a type of sockets
        self._used: WeakSet[Any] = WeakSet()  # those that were handed out before

    async def connect(self, *args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        """Get a connection, kept or new."""
        while True:
            connection = await super().connect(*args, **kwargs)
            protocol = connection.protocol
            if protocol not in self._used:
                self._used.add(protocol)
                return connection
            if not _is_over(protocol):
                return connection
            connection.close()


def _is_over(protocol: Any) -> bool:
    """Return whether a kept connection has ended, or has bytes of an answer that nobody asked for."""
    if protocol.should_close:
        return True
    end = protocol.transport.get_extra_info("socket")
    if end is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(end.fileno(), _UNASKED)
    return bool(poll.poll(0))


class AiohttpWire:
    """Exchanges over the network. Connections are kept and used again."""

    def __init__(
        self,
        limits: ClientLimits,
        *,
        proxy: Proxy | None = None,
        tls: ssl.SSLContext | None = None,
        trust_env: bool = False,
    ) -> None:
        self._limits = limits
        self._proxy = proxy
        self._tls = tls
        self._trust_env = trust_env  # where no proxy is named
        self._session: aiohttp.ClientSession | None = None
        self._retired: list[aiohttp.ClientSession] = []  # what is under way there may still end well
        self._ends: set[asyncio.Task[None]] = set()  # those who wait for the end of a stream
        self._closings: set[asyncio.Task[None]] = set()  # of pools
        self._found: dict[tuple[str, ...], Proxy | None] = {}  # in the environment, by the origin
        self._was_reached = False  # once: how a failure is explained depends on it
        self._idle_seconds = limits.idle_seconds  # how long connections are kept; less where the server says so

    async def open(self) -> None:
        """Make the pool; connections come with the requests."""
        if self._session is None or self._session.closed:
            self._session = self._pool(aiohttp.CookieJar())

    def _pool(self, cookies: AbstractCookieJar) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(limit=_MOST_CONNECTIONS, keepalive_timeout=self._idle_seconds, ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds),
            cookie_jar=cookies,
        )

    def renew(self) -> None:
        """Begin another pool. Of the old one, what is idle goes by itself; but few are kept."""
        if self._session is not None:
            self._retired.append(self._session)
            self._session = self._pool(self._session.cookie_jar)
        while len(self._retired) > _MOST_RETIRED:
            self._close_pool(self._retired.pop(0))

    def _close_pool(self, pool: aiohttp.ClientSession) -> None:
        """Close it aside. Nobody stops that."""
        task = asyncio.create_task(pool.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request."""
        proxy = self._proxy
        if proxy is None and self._trust_env:
            proxy = await self._find_proxy(url)
        if proxy is not None:
            headers = {**headers, **proxy.headers_through(url)}
        session = self._session
        if session is None or session.closed:
            raise _was_closed(url)
        try:
            response = await session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=None if proxy is None else proxy.url,
                proxy_headers=None if proxy is None else proxy.headers,
            )
        except asyncio.CancelledError:
            if session.closed and not _is_cancelled():  # a pool that is closed cancels those who wait for room in it
                raise _was_closed(url) from None
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if session.closed:  # by us
                raise _was_closed(url) from None
            seconds = self._limits.connect_seconds
            failure = ConnectionFailed(
                why_unreached(url, error, proxy=proxy, connect_seconds=seconds, was_reached=self._was_reached)
            )
            failure.is_unanswered = is_unanswered(error)
            raise failure from None
        if proxy is not None and response.status == PROXY_REFUSES:
            response.release()
            refusal = proxy_refusal(response.status, response.headers, proxy)
            raise ConnectionFailed(f"{place(url)} cannot be reached: {refusal}.")
        self._was_reached = True
        if "Set-Cookie" in response.headers and len(session.cookie_jar) > _MOST_COOKIES:
            session.cookie_jar.clear()
        if (kept := response.headers.get("Keep-Alive")) is not None:
            self._obey(kept)
        return _Reply(response, place(url), self._ends)

    def _obey(self, kept: str) -> None:
        """Keep connections for less time than the server does, so that neither closes one that the other uses."""
        said = _KEPT_FOR.search(kept)
        if said is not None:
            seconds = max(int(said[1]) - 1.0, int(said[1]) / 2, _LEAST_IDLE)
            if seconds < self._idle_seconds:
                self._idle_seconds = seconds
                self.renew()

    async def _find_proxy(self, url: str) -> Proxy | None:
        """The proxy of the environment, looked up once for an origin: some systems take their time."""
        origin = urlsplit(url)[:2]
        if origin not in self._found:
            self._found[origin] = await asyncio.to_thread(environment_proxy, url)
        return self._found[origin]

    async def close(self) -> None:
        """Close every connection."""
        for task in self._ends:
            task.cancel()
        if self._session is not None:
            self._retired.append(self._session)
            self._session = None
        while self._retired:
            self._close_pool(self._retired.pop())
        if under_way := self._ends | self._closings:
            await asyncio.wait(under_way)


_KEPT_FOR = re.compile(r"(?i)\btimeout\s*=\s*([0-9]{1,9})\b")  # RFC 2068, 19.7.1


def _was_closed(url: str) -> ConnectionFailed:
    return ConnectionFailed(f"The connection to {place(url)} was closed.")


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that asks."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def media_type(reply: HttpResponse) -> str:
    """What the body is, in lower case: servers may write it as they like."""
    return reply.headers.get("Content-Type", "").lower()


def is_event_stream(reply: HttpResponse) -> bool:
    """Whether what was asked for with GET is there, and comes in events."""
    return reply.status == 200 and media_type(reply).startswith("text/event-stream")


def resolved(url: str, named: str) -> tuple[str, bool]:
    """Where a server at a URL leads to; and whether that is within its origin, as nothing is that is no URL (R11).

    >>> resolved("https://a.example/mcp", "/post?n=1"), resolved("https://a.example/mcp", "//[")
    (('https://a.example/post?n=1', True), ('//[', False))
    """
    try:
        target = urljoin(url, named)
        here, there = urlsplit(url), urlsplit(target)
    except ValueError:
        return named, False
    return target, (here.scheme, here.netloc) == (there.scheme, there.netloc)
