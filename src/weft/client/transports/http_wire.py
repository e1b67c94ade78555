"""One HTTP exchange, over the network with aiohttp; and the interface that any other way of doing it has.

Owns connections, TLS, proxies, and what a failed connection is called. It knows nothing of the protocol that travels in
the bodies, follows no redirect, and reads no more than it is told to.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractCookieJar

from weft.errors import ConnectionFailed, InvalidAnswer
from weft.limits import ClientLimits

__all__ = ["AiohttpWire", "HttpReply", "Wire", "media_type", "place"]

_MOST_CONNECTIONS = 100
_IDLE_SECONDS = 30.0
_MOST_RETIRED = 3  # pools that are not used any more
_END_SECONDS = 1.0  # for the end of a stream whose answer was read
# When the system asks whether the other end of a silent stream is still there, how often (s), and when it gives up.
_PROBING = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}


class HttpReply(Protocol):
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

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpReply:
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
            raise ConnectionFailed(_broken_off(self._where, error)) from None
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
            raise ConnectionFailed(_broken_off(self._where, error)) from None

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


class AiohttpWire:
    """Exchanges over the network. Connections are kept and used again."""

    def __init__(
        self,
        limits: ClientLimits,
        *,
        proxy: str | None = None,
        tls: ssl.SSLContext | None = None,
        trust_env: bool = False,
    ) -> None:
        self._limits = limits
        self._proxy = proxy
        self._tls = tls
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._retired: list[aiohttp.ClientSession] = []  # what is under way there may still end well
        self._ends: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Make the pool; connections come with the requests."""
        if self._session is None or self._session.closed:
            self._session = self._pool(aiohttp.CookieJar())

    def _pool(self, cookies: AbstractCookieJar) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_MOST_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS, ssl=self._tls or True
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds),
            trust_env=self._trust_env,
            cookie_jar=cookies,
            auto_decompress=True,
        )

    def renew(self) -> None:
        """Begin another pool. Of the old one, what is idle goes by itself; but few are kept."""
        if self._session is not None:
            self._retired.append(self._session)
            self._session = self._pool(self._session.cookie_jar)
        while len(self._retired) > _MOST_RETIRED:
            task = asyncio.create_task(self._retired.pop(0).close())
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpReply:
        """Send a request."""
        session = self._session
        if session is None or session.closed:
            raise ConnectionFailed(f"The connection to {place(url)} was closed.")
        try:
            response = await session.request(
                method, url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ConnectionFailed(self._why(url, error)) from None
        return _Reply(response, place(url), self._ends)

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        for task in self._ends:
            task.cancel()
        if self._ends:
            await asyncio.wait(self._ends)
        retired, self._retired = self._retired, []
        for old in retired:
            await old.close()
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # lets transports that were closed call back before the loop may end

    def _why(self, url: str, error: Exception) -> str:
        parts = urlsplit(url)
        address = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        cause = getattr(error, "os_error", error)
        where = place(url)
        if self._proxy is not None and isinstance(error, aiohttp.ClientProxyConnectionError):
            return f"{where} cannot be reached: the proxy {place(self._proxy)} cannot be connected to; check `proxy`."
        if isinstance(cause, ConnectionRefusedError):
            return f"No server is running at {where}: {address} refused the connection. Start it, or check the address."
        if isinstance(cause, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
            return f"No server was found at {where}: the name {parts.hostname!r} is unknown; check it."
        if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
            return f"{where} cannot be reached over TLS: {error}. Is it an http:// address, or its certificate private?"
        if isinstance(error, TimeoutError):
            seconds = self._limits.connect_seconds
            return f"{where} did not take a connection within {seconds:g} s. Is it up, and let through by firewalls?"
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return f"{where} closed the connection without an answer; look into its log, or that of a proxy before it."
        return f"{where} cannot be reached: {type(error).__name__}: {error}."


def media_type(reply: HttpReply) -> str:
    """What the body is, in lower case: servers may write it as they like."""
    return reply.headers.get("Content-Type", "").lower()


def place(url: str) -> str:
    """A URL for error texts: without a query, which may be a key."""
    return url.partition("?")[0]


def _broken_off(where: str, error: Any) -> str:
    """The sentence for an answer that did not end."""
    return (
        f"The connection to {where} broke off before its answer was complete ({type(error).__name__}). The server, or "
        "a proxy before it, went away; whether it did what was asked is not known."
    )
