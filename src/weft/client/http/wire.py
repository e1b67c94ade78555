"""Send single HTTP requests with aiohttp, choose the proxy, and explain why a connection failed.

An error message says what happened and what to do. The credentials of a proxy are sent to the proxy only, never to a
server. They appear in no error, log or repr.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import select
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote, urljoin, urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractCookieJar

from weft.client.argument_checks import kind_of
from weft.client.connection.transport import NO_HEADERS
from weft.errors import ConnectionFailed, InvalidAnswer, UsageError
from weft.limits import ClientLimits

_MOST_CONNECTIONS = 100
_MOST_COOKIES = 100  # if a server sets more, all are deleted
_UNASKED = getattr(select, "POLLIN", 0)  # what to poll an idle connection for: unexpected data or its end
_LEAST_IDLE = 0.1  # seconds that an idle connection is kept, even if the server asks for less
_MOST_RETIRED = 3  # old pools that are kept until their requests end
_END_SECONDS = 1.0  # how long to wait for the end of a stream after its answer was read
# Size of the buffer for one read of a socket. The default of asyncio is 256 KiB. In some layouts of the heap, glibc
# returns a buffer of that size to the system after each read, which makes a call up to 20 % slower.
_READ_BYTES = 64 * 1024
# TCP keep-alive: seconds of silence before the first probe, seconds between probes, probes without an answer.
_PROBING = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}


class HttpResponse(Protocol):
    """An HTTP response whose head has arrived, and whose body can be read."""

    status: int
    headers: Mapping[str, str]  # case-insensitive

    async def body(self, limit: int) -> bytes:
        """Return the whole body, decompressed. Raises InvalidAnswer if it has more than `limit` bytes."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the body as they arrive. Raises ConnectionFailed if the connection breaks."""
        ...

    def done(self) -> None:
        """Release the response. If its body was not read completely, close the connection."""
        ...

    def finish(self) -> None:
        """Wait in the background for the end of the body, and then keep the connection for later requests.

        Call this instead of `done` when the answer was read and only the end of the body is missing.
        """
        ...


class Wire(Protocol):
    """The interface for sending HTTP requests and receiving their responses."""

    async def open(self) -> None:
        """Prepare for sending requests."""
        ...

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request, and return the response when its head has arrived. Raises ConnectionFailed on failure."""
        ...

    def renew(self) -> None:
        """Use new connections from now on, because the open connections may be broken."""
        ...

    async def close(self) -> None:
        """Close all connections, including those of requests in flight."""
        ...


class _Reply:
    """An `HttpResponse` that wraps a response of aiohttp."""

    __slots__ = ("_ends", "_response", "_where", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, where: str, ends: set[asyncio.Task[None]]) -> None:
        self._response = response
        self._where = where
        self._ends = ends  # the wire's set of tasks that wait for the end of a stream
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def body(self, limit: int) -> bytes:
        """Return the whole body, decompressed. Raises InvalidAnswer if this is more than `limit` bytes."""
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
        """Yield the chunks of the body as they arrive. Raises ConnectionFailed if the connection is lost."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(broken_off(self._where, error)) from None

    def done(self) -> None:
        """Return the connection to the pool, or close the connection if the response has not ended."""
        self._response.release()

    def finish(self) -> None:
        """Wait a short time, in a background task, for the end of the body. Then return the connection to the pool."""
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
    """A connection pool of aiohttp that checks whether an idle connection is still open before it is used again.

    The server may have closed the connection, and the event loop may not have noticed this yet. A request on a closed
    connection fails, and then it is unknown whether the server has read the request (RFC 9110, 9.2.2). New connections
    read with a small buffer (`_READ_BYTES`).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType] - of a type of sockets
        self._used: WeakSet[Any] = WeakSet()  # connections that were used before

    async def connect(self, *args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        """Return a new connection, or an idle connection that is still open."""
        while True:
            connection = await super().connect(*args, **kwargs)
            protocol = getattr(connection, "protocol", None)
            if protocol is not None and protocol not in self._used:
                self._used.add(protocol)
                _prepare(protocol)
            elif protocol is not None and _is_over(protocol):
                connection.close()
                continue
            return connection


def _socket_of(protocol: Any) -> socket.socket | None:
    transport = getattr(protocol, "transport", None)
    return None if transport is None else transport.get_extra_info("socket")


def _prepare(protocol: Any) -> None:
    """Set the options of a new connection: a small read buffer, and TCP keep-alive.

    Keep-alive detects a broken connection even if a stream sends nothing for a long time.
    """
    transport: Any = getattr(protocol, "transport", None)
    if hasattr(transport, "max_size"):  # not with TLS or uvloop
        transport.max_size = _READ_BYTES
    end = _socket_of(protocol)
    if end is not None:
        with suppress(OSError):  # the socket is closed, or not TCP
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBING.items():
                if hasattr(socket, option):
                    end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _is_over(protocol: Any) -> bool:
    """Return whether an idle connection has ended, or has received data although no request was sent."""
    if getattr(protocol, "should_close", False):
        return True
    end = _socket_of(protocol)
    if end is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(end.fileno(), _UNASKED)
    return bool(poll.poll(0))


class AiohttpWire:
    """Sends HTTP requests over the network with aiohttp. Connections are kept in a pool and used again."""

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
        self._trust_env = trust_env  # look for a proxy in the environment if `proxy` is None
        self._session: aiohttp.ClientSession | None = None  # the current pool
        self._retired: list[aiohttp.ClientSession] = []  # old pools, whose requests may still be in flight
        self._ends: set[asyncio.Task[None]] = set()  # tasks that wait for the end of a stream
        self._closings: set[asyncio.Task[None]] = set()  # tasks that close a pool
        self._found: dict[tuple[str, ...], Proxy | None] = {}  # proxies from the environment, by origin
        self._was_reached = False  # whether any response has arrived; used to explain failures
        self._idle_seconds = limits.idle_seconds  # how long connections are kept; the server can shorten it

    async def open(self) -> None:
        """Create an empty pool of connections. Requests open connections when they need them."""
        if self._session is None or self._session.closed:
            self._session = self._pool(aiohttp.CookieJar())

    def _pool(self, cookies: AbstractCookieJar) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(limit=_MOST_CONNECTIONS, keepalive_timeout=self._idle_seconds, ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds),
            cookie_jar=cookies,
        )

    def renew(self) -> None:
        """Create a new pool for later requests. The oldest pool is closed if there are too many pools."""
        if self._session is not None:
            self._retired.append(self._session)
            self._session = self._pool(self._session.cookie_jar)
        while len(self._retired) > _MOST_RETIRED:
            self._close_pool(self._retired.pop(0))

    def _close_pool(self, pool: aiohttp.ClientSession) -> None:
        """Close a pool in a background task, which continues even if the caller is cancelled."""
        task = asyncio.create_task(pool.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request, and return the response when its head has arrived. Raises ConnectionFailed on failure."""
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
            task = asyncio.current_task()
            if session.closed and task is not None and not task.cancelling():
                raise _was_closed(url) from None  # closing a pool cancels tasks that wait for a free connection
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if session.closed:  # by `close` or `renew`
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
        """Keep idle connections for a shorter time than the server, whose time is in its Keep-Alive header `kept`.

        Then the client closes an idle connection before the server does, and sends no request on a closed connection.
        """
        said = _KEPT_FOR.search(kept)
        if said is not None:
            seconds = max(int(said[1]) - 1.0, int(said[1]) / 2, _LEAST_IDLE)
            if seconds < self._idle_seconds:
                self._idle_seconds = seconds
                self.renew()

    async def _find_proxy(self, url: str) -> Proxy | None:
        """Return the proxy for a URL from the environment, or None. The slow look-up is done once per origin."""
        origin = urlsplit(url)[:2]
        if origin not in self._found:
            self._found[origin] = await asyncio.to_thread(environment_proxy, url)
        return self._found[origin]

    async def close(self) -> None:
        """Close all connections."""
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


def media_type(reply: HttpResponse) -> str:
    """Return the Content-Type header of a response, in lower case."""
    return reply.headers.get("Content-Type", "").lower()


def is_event_stream(reply: HttpResponse) -> bool:
    """Return whether a response has the status 200 and is an event stream."""
    return reply.status == 200 and media_type(reply).startswith("text/event-stream")


def resolved(url: str, named: str) -> tuple[str, bool]:
    """Return the absolute URL of `named`, which may be relative to `url`, and whether both have the same origin.

    If `named` is not a valid URL, return `named` and False.

    >>> resolved("https://a.example/mcp", "/post?n=1"), resolved("https://a.example/mcp", "//[")
    (('https://a.example/post?n=1', True), ('//[', False))
    """
    try:
        target = urljoin(url, named)
        here, there = urlsplit(url), urlsplit(target)
    except ValueError:
        return named, False
    return target, (here.scheme, here.netloc) == (there.scheme, there.netloc)


_PORTS = {"http": 80, "https": 443}

# OpenSSL's codes for an invalid certificate (X509_V_ERR_…).
_OTHER_HOST = (62, 64)
_PRIVATE_ISSUER = "if its issuer is a private one, give tls=ssl.create_default_context(cafile='…')"
_REMEDIES: Mapping[int | None, str] = {
    10: "have it renewed, or correct the clock of this machine",
    **dict.fromkeys((2, 18, 19, 20, 21), _PRIVATE_ISSUER),
}

_GIVE_CLIENT_CERTIFICATE = "load one with load_cert_chain() into an ssl.SSLContext, and give that as `tls`"


def place(url: str) -> str:
    """Return a URL without its query, for error messages, because the query may contain a secret."""
    return url.partition("?")[0]


def why_unreached(
    url: str, error: Exception, *, proxy: Proxy | None, connect_seconds: float, was_reached: bool = False
) -> str:
    """Return the error message for a request that got no response.

    `connect_seconds` is how long connecting may take. `was_reached` says whether an earlier request to the server got
    a response. If False, the message may suggest that the server wants a client certificate.
    """
    parts, where = urlsplit(url), place(url)
    if fault := proxy_fault(error, proxy) or tls_fault(error):
        return f"{where} cannot be reached: {fault}."
    cause = _cause(error)
    if isinstance(cause, ConnectionRefusedError):
        address = f"{parts.hostname}:{parts.port or _PORTS.get(parts.scheme)}"
        return f"No server is running at {where}: {address} refused the connection. Start it, or check the address."
    if isinstance(cause, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"No server was found at {where}: the name {parts.hostname!r} is unknown; check it."
    if isinstance(error, TimeoutError):
        way = "" if proxy is None else f" through the proxy {proxy.url}"
        return (
            f"{where} did not accept a connection{way} within {connect_seconds:g} s. Is it running, or does a firewall "
            "block it?"
        )
    if isinstance(error, aiohttp.ServerDisconnectedError) or isinstance(cause, ConnectionError):
        is_guess = parts.scheme == "https" and not was_reached
        guess = f" If it wants a client certificate, {_GIVE_CLIENT_CERTIFICATE}." if is_guess else ""
        return (
            f"{where} closed the connection without an answer. It is not known whether the request was executed. Look "
            f"into its log, or that of a proxy before it.{guess}"
        )
    if isinstance(error, aiohttp.ClientResponseError):  # its text is not shown, because it has the whole URL
        return f"{where} answered with something that is not HTTP; check the address, and what runs there."
    return f"{where} cannot be reached: {type(error).__name__}: {error}."


def is_unanswered(error: Exception) -> bool:
    """Return whether `error` means that an open connection ended before any byte of the answer arrived."""
    is_lost = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return is_lost and not isinstance(error, aiohttp.ClientConnectorError)


def _cause(error: BaseException) -> BaseException:
    """Return the exception that an error of aiohttp wraps, or else the error itself."""
    return getattr(error, "os_error", None) or error.__cause__ or error


def broken_off(where: str, error: Exception) -> str:
    """Return the error message for a connection that broke before the response was complete."""
    return (
        f"The connection to {where} broke off before its answer was complete ({type(error).__name__}). The server, or "
        "a proxy before it, has stopped. It is not known whether the request was executed."
    )


# --- proxies


def proxy_fault(error: Exception, proxy: Proxy | None) -> str | None:
    """Return a message about the proxy failure that caused `error`, or None if the proxy was not the cause."""
    if proxy is None:
        return None
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return proxy_refusal(error.status, error.headers or {}, proxy)
    if not isinstance(error, aiohttp.ClientConnectorError) or (error.host, error.port) != proxy.address:
        return None
    if (fault := tls_fault(error)) is not None:
        return f"the proxy {proxy.url} cannot be used: {fault}"
    return f"the proxy {proxy.url} cannot be connected to; check {proxy.said_in}"


def proxy_refusal(status: int, headers: Mapping[str, str], proxy: Proxy) -> str:
    """Return a message that says why a proxy refused a request. `status` and `headers` are from its response."""
    if status != PROXY_REFUSES:
        return (
            f"the proxy {proxy.url} answered with the HTTP status {status}: it does not get there, or does not allow it"
        )
    if "basic" not in headers.get("Proxy-Authenticate", "basic").lower():
        return f"the proxy {proxy.url} requires another authentication scheme than Basic, which is not supported"
    if proxy.headers:
        return f"the proxy {proxy.url} does not accept the name and password in {proxy.said_in}; check them"
    return (
        f"the proxy {proxy.url} wants credentials; write them into {proxy.said_in}, as http://name:password@host:port"
    )


# --- TLS


def tls_fault(error: BaseException) -> str | None:
    """Return a message about the TLS failure that caused `error`, or None if TLS was not the cause."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _untrusted(error.certificate_error)
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _untrusted(cause)
    if isinstance(cause, ssl.SSLError):
        return _refused(cause)
    # While a connection is opened, only the TLS handshake can be broken off by the other side.
    is_early = isinstance(error, aiohttp.ClientConnectorError) and getattr(error.args[0], "is_ssl", False)
    if is_early and isinstance(cause, ConnectionError) and not isinstance(cause, ConnectionRefusedError):
        return (
            "it broke off the TLS handshake without a reason. If it wants a client certificate, "
            f"{_GIVE_CLIENT_CERTIFICATE}"
        )
    return None


def _untrusted(error: Exception) -> str:
    """Return a message that says why the server's certificate is not accepted, and what to do."""
    code = getattr(error, "verify_code", None)
    said = str(getattr(error, "verify_message", "") or error).rstrip(". ")
    if code in _OTHER_HOST:
        return f"its certificate is not for this host ({said}); use a name that it is for"
    return f"its certificate is not trusted ({said}); {_REMEDIES.get(code, 'ask its operator for a valid one')}"


def _refused(error: ssl.SSLError) -> str:
    """Return a message that says why the TLS handshake failed, and what to do."""
    reason = str(error.reason or "")
    shown = reason.lower().replace("_", " ")
    if reason.endswith("ALERT_CERTIFICATE_REQUIRED"):
        return f"it wants a client certificate: {_GIVE_CLIENT_CERTIFICATE}"
    if reason.endswith("ALERT_HANDSHAKE_FAILURE"):
        return (
            "it refused the TLS handshake; the two have no version or cipher in common, or it wants a client "
            f"certificate: {_GIVE_CLIENT_CERTIFICATE}"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or reason.endswith("UNKNOWN_CA")):
        return f"it does not accept the client certificate in `tls` ({shown}); give one that it accepts"
    if reason in _NO_TLS:
        return "it does not speak TLS there; use http:// if that is meant, or check the port"
    return f"TLS failed ({shown or error})"


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})


PROXY_REFUSES = 407  # status of a proxy that requires credentials

_FORM = "http://host:port, or http://name:password@host:port"
_NO_PROXY = f"is not the URL of a proxy; write it as {_FORM}, with %40 for an @ in a password, and so on for : / # ? %."


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. Its credentials are in `headers`, which are not part of the repr."""

    url: str  # without credentials
    said_in: str = "`proxy`"  # where the proxy is configured, for error messages
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # Proxy-Authorization

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the proxy."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]

    def headers_through(self, url: str) -> Mapping[str, str]:
        """Return the headers with the proxy's credentials for a request to `url`, or no headers if `url` is https.

        With https, the proxy gets the credentials when the tunnel is opened.
        """
        return NO_HEADERS if url[:6].lower() == "https:" else self.headers


def read_proxy(given: object) -> Proxy:
    """Parse the URL of a proxy that the program has given. Raises UsageError if it is not the URL of an HTTP proxy.

    >>> read_proxy("http://ann:secret@proxy.example:3128")
    Proxy(url='http://proxy.example:3128', said_in='`proxy`')
    >>> read_proxy("socks5://proxy.example")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: `proxy` has the scheme 'socks5'; only HTTP proxies can be used: write it as \
http://host:port, or http://name:password@host:port.
    """
    if not isinstance(given, str):
        raise UsageError(f"proxy= was given {kind_of(given)}; write it as text: {_FORM}.")
    try:
        return _read(given, "`proxy`")
    except ValueError as error:
        raise UsageError(f"`proxy` {error}") from None


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy for a URL from the environment or the system's settings, or None. The look-up can be slow.

    Raises ConnectionFailed if the URL of the proxy is invalid.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    given = urllib.request.getproxies().get(parts.scheme)
    if not given or any(map(urllib.request.proxy_bypass, (host, f"{host}:{parts.port or _PORTS[parts.scheme]}"))):
        return None
    variable = f"{parts.scheme}_proxy"
    is_set = any(name.lower() == variable for name in os.environ)
    said_in = f"`{variable}` in the environment" if is_set else "the settings of the system"
    try:
        return _read(_with_scheme(given), said_in)
    except ValueError as error:
        raise ConnectionFailed(f"A proxy was found by trust_env=True, and cannot be used: {said_in} {error}") from None


def environment_proxy_hosts() -> frozenset[str]:
    """Return the host names of all proxies in the environment or the system's settings."""
    found: set[str] = set()
    for given in urllib.request.getproxies().values():
        try:
            found.add(urlsplit(_with_scheme(given)).hostname or "")
        except ValueError:
            continue  # `environment_proxy` raises the error when the proxy is needed
    return frozenset(found)


def _with_scheme(given: str) -> str:
    """Add http:// to the URL of a proxy if it has no scheme, because environment variables often omit the scheme."""
    return given if "://" in given else f"http://{given}"


def _read(text: str, said_in: str) -> Proxy:
    """Parse the URL of a proxy. Raises ValueError if `text` is not the URL of an HTTP proxy.

    `said_in` says where the proxy is configured. The message of the ValueError begins with a verb, so that the caller
    can write `said_in` before the message. The message contains no part of a password.
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_NO_PROXY) from None
    if parts.scheme not in _PORTS and "://" in text:
        raise ValueError(f"has the scheme {parts.scheme[:20]!r}; only HTTP proxies can be used: write it as {_FORM}.")
    is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in _PORTS or not host or not is_bare or any(char <= " " or char == "\x7f" for char in text):
        raise ValueError(_NO_PROXY)
    written = f"[{host}]" if ":" in host else host
    url = f"{parts.scheme}://{written}" + ("" if port is None else f":{port}")
    if "@" not in parts.netloc:
        return Proxy(url, said_in)
    credentials = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
    return Proxy(url, said_in, {"Proxy-Authorization": f"Basic {base64.b64encode(credentials).decode()}"})
