"""Do the I/O of a login: send HTTP requests, open the browser, use the storage, call functions of the program.

The other modules of `weft.client.auth` do their I/O through a `LoginContext`. The local listener accepts only one
request from the browser: the request with the expected `state`. URLs are passed to the browser without a shell.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import inspect
import logging
import socket
import ssl
import sys
import webbrowser
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec

from weft.client.argument_checks import check_tls
from weft.client.auth.storage import Storage
from weft.client.callbacks import Functions
from weft.client.connection.transport import wire_log
from weft.client.http import wire
from weft.errors import AuthorizationFailed, ConnectionFailed, UsageError, WeftError
from weft.net.fetch import (
    AddressBarred,
    Barred,
    FetchFailed,
    HttpAnswer,
    HttpRequest,
    exchange,
    is_barred_host,
    is_private,
    open_session,
)
from weft.net.logs import masked_body, masked_headers, masked_url
from weft.net.urls import UrlRefused, read_url

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("weft.client.auth")

R = TypeVar("R")
Fetch: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""A function that sends one HTTP request and returns the response. It raises FetchFailed if there is no response."""

_REDIRECTS = (301, 302, 303, 307, 308)
_PRIVATE = (
    "it has a private address, which a server on another machine should not name; if this is intended, give "
    "Fetcher(allow_private=True)"
)
_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="font: 1.1em/1.5 system-ui, sans-serif; max-width: 32em; margin: 20vh auto; padding: 0 1em">
<h1>{title}</h1><p>{text}</p></body></html>
"""


# --- one login


@dataclass(frozen=True, slots=True)
class AuthPorts:
    """The objects that do the I/O of logins: a fetcher for HTTP, a storage, and a redirect for the browser."""

    fetcher: Fetcher | None  # None: use a fetcher with the settings of the client's connection
    storage: Storage
    redirect: FunctionRedirect | LoopbackRedirect | None = None
    # Values that could not be written to the storage, by key. They are used instead of the values in the storage,
    # because an old refresh token may not be valid any more.
    unkept: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None], repr=False)


class LoginContext(AsyncExitStack):
    """The I/O of one login: HTTP requests, the browser, the storage. Leaving the context closes its connections.

    If AuthorizationFailed is raised in the context, the steps of the login (`tried`) are added to the error, unless the
    cause of the error is an exception of the program's own code.
    """

    def __init__(self, ports: AuthPorts, server_url: str, tried: list[str] | None = None) -> None:
        super().__init__()
        self.server_url = server_url
        self.tried = [] if tried is None else tried  # the steps of the login so far, for error messages
        self._ports = ports
        self._fetch: Fetch | None = None
        self._listener: FunctionRedirect | _BrowserListener | None = None
        self._is_warned = False  # whether a failure of the storage was logged

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await super().__aexit__(kind, error, trace)
        if isinstance(error, AuthorizationFailed) and error.__cause__ is None:
            raise AuthorizationFailed(error.message, self.tried) from None
        return False

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Send an HTTP request and return the response; raise FetchFailed if there is no response."""
        if self._fetch is None:
            fetcher = self._ports.fetcher or Fetcher()
            self._fetch = await self.enter_async_context(fetcher.open(self.server_url))
        return await self._fetch(request)

    async def listen(self, known: Sequence[str]) -> str:
        """Start to listen for the browser's redirect, and return the redirect URI.

        If possible, this URI is one of `known`, the redirect URIs that the client has already registered.
        """
        redirect = self._ports.redirect
        assert redirect is not None, "each login of a person has one"
        listening: Any = redirect.listening(known)
        listener: FunctionRedirect | _BrowserListener = await self.enter_async_context(listening)
        self._listener = listener
        return listener.uri

    async def visit(self, url: str, state: str) -> str:
        """Open `url` in the person's browser; return the URL that the browser is redirected to after the login.

        `state` is the OAuth `state` parameter of this login.
        """
        assert self._listener is not None, "call listen before visit"
        with _explained("The login was cancelled: the redirect failed"):
            return await self._listener.visit(url, state)

    async def load(self, key: str, kind: type[R]) -> R | None:
        """Return the value stored under a key, decoded as `kind`; None if there is no value or it cannot be decoded."""
        storage, unkept = self._ports.storage, self._ports.unkept
        if key in unkept:
            raw = unkept[key]
        else:
            with _explained(f"Stored logins cannot be read: {type(storage).__name__} failed"):
                raw = await storage.get(key)
        try:
            return None if raw is None else msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, RecursionError):
            return None

    async def keep(self, key: str, value: object) -> None:
        """Store a value under a key, or delete the key if `value` is None. If the storage fails, use memory instead."""
        storage, unkept = self._ports.storage, self._ports.unkept
        raw = None if value is None else msgspec.json.encode(value)
        try:
            await storage.put(key, raw)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - each storage has its own exceptions
            unkept[key] = raw
            if not self._is_warned:
                self._is_warned = True
                log.warning(
                    "The login cannot be stored, and will be lost when this program ends: %s failed (%s). Repair it, "
                    "or give another `storage=`.",
                    type(storage).__name__,
                    _named(error),
                )
        else:
            unkept.pop(key, None)

    @asynccontextmanager
    async def claimed(self, key: str) -> AsyncGenerator[None]:
        """Lock a storage key until the `async with` block ends. Do nothing if the storage does not support locks."""
        claimed: Any = getattr(self._ports.storage, "claimed", None)
        what = f"Stored logins cannot be locked: {type(self._ports.storage).__name__} failed"
        stack = AsyncExitStack()
        with _explained(what):
            if claimed is not None:
                await stack.enter_async_context(claimed(key))
        try:
            yield
        finally:
            with _explained(what):
                await stack.aclose()

    async def call(self, function: Callable[[], Any], name: str) -> Any:
        """Call a sync or async function of the program, and return its result. `name` is its name in error messages."""
        with _explained(f"The function given as `{name}` failed"):
            result = function()
            return await result if inspect.isawaitable(result) else result


@contextmanager
def _explained(what: str) -> Generator[None]:
    """Turn an exception of the program's own code into AuthorizationFailed. `what` is the start of the message."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:
        raise AuthorizationFailed(f"{what} ({_named(error)}). Repair it, and try again.") from error


def _named(error: Exception) -> str:
    """Return a description of an exception: usually only its type, because its text may contain a code or a token."""
    if isinstance(error, AuthorizationFailed):
        return error.message.rstrip(".")
    if isinstance(error, OSError) and error.strerror is not None:
        where = "" if error.filename is None else f": {error.filename}"
        return f"{type(error).__name__}: {error.strerror}{where}"
    return type(error).__name__


# --- HTTP


@dataclass(kw_only=True)
class Fetcher:
    """The HTTP client for logins. GET requests follow redirects; POST requests, which contain secrets, do not.

    `allow_insecure` permits http (without TLS) to other machines. `allow_private` permits private addresses in the
    metadata of a public server. Use both only in trusted networks. `tls`, `proxy` and `trust_env` mean the same as in
    `Client`.
    """

    allow_insecure: bool = False
    allow_private: bool = False
    tls: ssl.SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)  # may contain a password
    trust_env: bool = False
    seconds: float = 30.0  # timeout of each request
    most_bytes: int = 1024 * 1024  # maximum size of a response
    redirects: int = 3  # maximum number of redirects that a GET request follows
    _proxy: wire.Proxy | None = field(init=False)

    def __post_init__(self) -> None:
        check_tls(self.tls)
        self._proxy = None if self.proxy is None else wire.read_proxy(self.proxy)

    @asynccontextmanager
    async def open(self, server_url: str) -> AsyncGenerator[Fetch]:
        """Open an HTTP session for logins to one MCP server; yield a function that sends requests in this session."""
        barred = None if self.allow_private else await _barred_for(server_url)
        proxies: frozenset[str] = frozenset()  # a proxy may have a private address, because the user chose it
        if self._proxy is not None:
            proxies = frozenset({self._proxy.address[0]})
        elif self.trust_env:
            proxies = wire.environment_proxy_hosts()
        async with open_session(self.seconds, barred, exempt=proxies, tls=self.tls) as session:

            async def fetch(request: HttpRequest) -> HttpAnswer:
                return await self._fetch(session, request, barred)

            yield fetch

    async def _fetch(self, session: aiohttp.ClientSession, request: HttpRequest, barred: Barred | None) -> HttpAnswer:
        """Send a request and return the response. For a GET request, follow redirects."""
        hops = self.redirects if request.method == "GET" else 0
        for _ in range(hops + 1):
            try:
                read_url(request.url, allow_insecure=self.allow_insecure)
                answer = await self._exchange(session, request, barred)
            except UrlRefused as refused:
                raise FetchFailed(str(refused)) from None
            except AddressBarred:
                raise FetchFailed(_PRIVATE) from None
            target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
            if target is None or hops == 0:
                return answer
            target = urljoin(request.url, target)
            if urlsplit(request.url).scheme == "https" and urlsplit(target).scheme != "https":
                raise FetchFailed("it redirects to a URL without TLS")
            request = replace(request, url=target)
        raise FetchFailed("it redirects again and again")

    async def _exchange(
        self, session: aiohttp.ClientSession, request: HttpRequest, barred: Barred | None
    ) -> HttpAnswer:
        proxy = await self._proxy_for(request.url)
        options: dict[str, Any] = {}
        if proxy is not None:
            options = {"proxy": proxy.url, "proxy_headers": proxy.headers}
            request = replace(request, headers={**request.headers, **proxy.headers_through(request.url)})
        shows = wire_log.isEnabledFor(logging.DEBUG)
        if shows:
            sent = masked_headers(request.headers), masked_body(request.body or b"")
            wire_log.debug("> %s %s [%s] %s", request.method, masked_url(request.url), *sent)
        try:
            answer = await exchange(session, request, self.most_bytes, barred, **options)
        except FetchFailed as failed:
            cause = failed.__cause__
            fault = wire.proxy_fault(cause, proxy) or wire.tls_fault(cause) if isinstance(cause, Exception) else None
            raise (failed if fault is None else FetchFailed(fault)) from None
        if proxy is not None and answer.status == wire.PROXY_REFUSES:
            raise FetchFailed(wire.proxy_refusal(answer.status, answer.headers, proxy))
        if shows:
            wire_log.debug("< %d [%s] %s", answer.status, masked_headers(answer.headers), masked_body(answer.body))
        return answer

    async def _proxy_for(self, url: str) -> wire.Proxy | None:
        if self._proxy is not None or not self.trust_env:
            return self._proxy
        try:
            return await asyncio.to_thread(wire.environment_proxy, url)
        except ConnectionFailed as failed:
            raise FetchFailed(str(failed).rstrip(".")) from None


async def _barred_for(server_url: str) -> Barred | None:
    """Return a function that recognises forbidden addresses in a server's metadata, or None if all are allowed.

    - If the host in the URL is a private address or localhost, all addresses are allowed.
    - If the host is a name that resolves to a public address, or that cannot be resolved, private addresses are
      forbidden.
    - If the name resolves to private addresses only, loopback addresses are forbidden. Otherwise an attacker could let
      the name of a public server resolve to a private address (DNS rebinding), and then reach local services, which
      often trust every local caller.
    """
    host = urlsplit(server_url).hostname or ""
    if is_barred_host(host, is_private):
        return None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return is_private
    return _is_this_machine if all(is_private(str(entry[4][0])) for entry in found) else is_private


def _is_this_machine(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


# --- the browser


class FunctionRedirect:
    """Opens the login page with a function of the program.

    The function receives the URL to open, and returns the URL that the browser is redirected to after the login. Use
    this class in tests, in programs with a built-in browser, and in web applications.

    >>> redirect = FunctionRedirect(lambda url: url, "http://localhost:3000/callback")
    """

    def __init__(self, function: Callable[[str], Any], redirect_uri: str) -> None:
        try:
            read_url(redirect_uri)
        except UrlRefused as refused:
            raise UsageError(f"redirect_uri={redirect_uri!r} is not possible: {refused}.") from None
        self.uri = redirect_uri
        self._function = function

    @asynccontextmanager
    async def listening(self, known: Sequence[str]) -> AsyncGenerator[FunctionRedirect]:
        """Yield this object, because there is no listener to start. `known` is not used."""
        yield self

    async def visit(self, url: str, state: str) -> str:
        """Call the program's function with `url`, and return the URL that the browser was redirected to."""
        came_back = self._function(url)
        if inspect.isawaitable(came_back):
            came_back = await came_back
        if not isinstance(came_back, str):
            raise UsageError("The redirect function must return the URL that the browser was redirected to, as text.")
        return came_back


@dataclass(kw_only=True)
class LoopbackRedirect:
    """Opens the login page in the browser, and listens on a port of 127.0.0.1 for the redirect after the login.

    With `port=0`, any free port is used. Authorization servers should accept that (RFC 8252). If yours accepts only a
    registered port, give that port. `open_browser` is called with the URL of the login page. If `open_browser` returns
    False, `tell` is called with the same URL; by default, `tell` prints the URL. The person has `seconds` to log in.
    """

    port: int = 0
    path: str = "/callback"
    seconds: float = 300.0
    open_browser: Callable[[str], Any] = webbrowser.open
    tell: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise UsageError(f"path={self.path!r} is not possible: a path begins with a slash, like '/callback'.")

    @asynccontextmanager
    async def listening(self, known: Sequence[str]) -> AsyncGenerator[_BrowserListener]:
        """Listen on a local port until the `async with` block ends, and yield the listener.

        If possible, the port is that of a redirect URI in `known`, the redirect URIs that the client has registered.
        """
        listener = _BrowserListener(self)
        server = await self._bind(listener, known)
        listener.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{self.path}"
        try:
            yield listener
        finally:
            server.close()
            await listener.finished()
            await server.wait_closed()

    async def _bind(self, listener: _BrowserListener, known: Sequence[str]) -> asyncio.Server:
        """Listen on the configured port, and on no other port.

        If no port is configured, listen on the port of a redirect URI in `known`, or on any free port if there is no
        such port or it is in use. Raises AuthorizationFailed if it cannot listen.
        """
        uris = [urlsplit(uri) for uri in known]
        usual = [uri.port for uri in uris if uri.hostname == "127.0.0.1" and uri.path == self.path and uri.port]
        reason: str | None = None
        for port in [self.port] if self.port else [*usual[:1], 0]:
            try:
                return await asyncio.start_server(listener.connected, "127.0.0.1", port, limit=_HEAD_BYTES)
            except OSError as error:
                reason = error.strerror
        what = f"The login cannot listen for the browser on port {self.port}: {reason}"
        raise AuthorizationFailed(f"{what}. Free the port, or give another with LoopbackRedirect(port=...).")


class _BrowserListener:
    """The local HTTP server that receives the browser's redirect after one login."""

    def __init__(self, redirect: LoopbackRedirect) -> None:
        self.uri = ""
        self._redirect = redirect
        self._state = ""
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connections: set[asyncio.Task[Any]] = set()

    async def visit(self, url: str, state: str) -> str:
        """Open the browser, wait for its redirect, and return the URL of the redirect."""
        self._state = state
        opening = asyncio.create_task(self._open(url))
        try:
            async with asyncio.timeout(self._redirect.seconds):
                # Some browsers block until they are closed, so wait for the redirect at the same time.
                either: list[asyncio.Future[Any]] = [opening, self._answer]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not self._answer.done():
                    opening.result()
                return await self._answer
        except TimeoutError:
            what = f"The login was not finished within {self._redirect.seconds:g} s"
            raise AuthorizationFailed(f"{what}; try again, or raise LoopbackRedirect(seconds=...).") from None
        finally:
            opening.cancel()

    async def _open(self, url: str) -> None:
        opened = False
        with suppress(OSError, webbrowser.Error):
            opened = await Functions().call(self._redirect.open_browser, url)
        if opened is False:
            (self._redirect.tell or _tell)(url)

    async def finished(self) -> None:
        """Wait up to two seconds until the browser has received the final page, then close all connections."""
        if self._connections:
            await asyncio.wait(self._connections, timeout=2.0)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._answer.cancel()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection of the browser in a new task."""
        task = asyncio.create_task(self._serve(reader, writer))  # asyncio would log a traceback if it is cancelled
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request from a connection of the browser, and send the response."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._respond(head.decode("latin-1")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _respond(self, head: str) -> bytes:
        """Return the HTTP response to a request. A request with the expected path and state completes the login."""
        method, _, rest = head.partition("\r\n")[0].partition(" ")
        target = rest.partition(" ")[0]
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return _response(400, "Invalid address", "This address cannot be read.")
        if method != "GET" or parts.path != self._redirect.path:
            return _response(404, "Not found", "This address is only for the end of a login.")
        given = query.get("state", [""])
        is_ours = len(given) == 1 and hmac.compare_digest(given[0].encode(), self._state.encode())
        if not self._state or not is_ours or self._answer.done():
            return _response(400, "Not this login", "This page does not belong to a login that is in progress.")
        self._answer.set_result(f"{self.uri}?{parts.query}")
        title = "Not logged in" if "error" in query else "Done"
        return _response(200, title, "You may close this page and go back to the program.")


def _response(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    head = (
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _tell(url: str) -> None:
    """Print the URL on standard error, because standard output may carry the protocol."""
    sys.stderr.write(f"To log in, open this page in a browser on this machine:\n\n  {url}\n\n")
    sys.stderr.flush()
