"""The HTTP exchanges of a login, over the network, within bounds.

Owns what may be fetched (https, or http on this machine; nothing private on behalf of a public server, judged by the
addresses that a name really leads to), how much of it (size, time, redirects), and that nothing goes along that was not
asked for (no cookies, no credentials of other places).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import urljoin, urlsplit

from weft.client.argument_checks import check_tls
from weft.client.auth import urls
from weft.client.auth.steps import FetchFailed, HttpAnswer, HttpRequest
from weft.client.connection.transport import wire_log
from weft.client.http.wire import PROXY_REFUSES, Proxy, environment_proxy, environment_proxy_hosts, read_proxy
from weft.errors import ConnectionFailed
from weft.net.hosts import is_loopback
from weft.net.logs import masked_body, masked_headers, masked_url

if TYPE_CHECKING:
    import aiohttp


_Barred: TypeAlias = Callable[[str], bool]  # whether an address is not fetched from

_REDIRECTS = (301, 302, 303, 307, 308)


class Fetch(Protocol):
    """Does one exchange; FetchFailed when there is no response."""

    async def __call__(self, request: HttpRequest) -> HttpAnswer:
        """Do it."""
        ...


class Fetching(Protocol):
    """A way to do the exchanges of a login."""

    def open(self, server_url: str) -> AbstractAsyncContextManager[Fetch]:
        """Be ready to fetch on behalf of one server."""
        ...


class Fetcher:
    """Exchanges over the network, with aiohttp.

    `allow_insecure` lets http leave this machine, `allow_private` lets a public server name private addresses: both for
    networks that are trusted. `tls`, `proxy` and `trust_env` are as those of the client.
    """

    def __init__(
        self,
        *,
        allow_insecure: bool = False,
        allow_private: bool = False,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        trust_env: bool = False,
        seconds: float = 30.0,
        most_bytes: int = 1024 * 1024,
        redirects: int = 3,
    ) -> None:
        self._allow_insecure = allow_insecure
        self._allow_private = allow_private
        check_tls(tls)
        self._tls = tls
        self._proxy = None if proxy is None else read_proxy(proxy)
        self._trust_env = trust_env
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._redirects = redirects

    @asynccontextmanager
    async def open(self, server_url: str) -> AsyncGenerator[Fetch]:
        """Ready to fetch on behalf of one server."""
        import aiohttp

        barred = None if self._allow_private else await _barred_for(server_url)
        resolver = None if barred is None else _guarded_resolver(barred, self._proxies())
        connector = aiohttp.TCPConnector(ssl=self._tls or True, resolver=resolver)
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "weft"},
        )
        async with session:

            async def fetch(request: HttpRequest) -> HttpAnswer:
                return await self._fetch(session, request, barred)

            yield fetch

    def _proxies(self) -> frozenset[str]:
        """The hosts of the proxies that may be used: those were chosen here, and may be private."""
        if self._proxy is not None:
            return frozenset({self._proxy.address[0]})
        return environment_proxy_hosts() if self._trust_env else frozenset()

    async def _fetch(self, session: aiohttp.ClientSession, request: HttpRequest, barred: _Barred | None) -> HttpAnswer:
        """One exchange. Only a GET goes where it is sent: a POST has secrets in it."""
        url = request.url
        hops = self._redirects if request.method == "GET" else 0
        for _ in range(hops + 1):
            self._check(url, barred)
            response, target = await self._exchange(session, request, url)
            if target is None or hops == 0:
                return response
            if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
                raise FetchFailed("it redirects to a place without encryption")
            url = target
        raise FetchFailed("it redirects again and again")

    def _check(self, url: str, barred: _Barred | None) -> None:
        from yarl import URL

        try:
            urls.check(url, allow_insecure=self._allow_insecure)
            host = URL(url).raw_host or ""  # as it is connected to: digits of other scripts are digits there
        except urls.UrlRefused as refused:
            raise FetchFailed(str(refused)) from None
        except ValueError:
            raise FetchFailed(f"{urls.shown(url)} is no URL") from None
        if barred is not None and _is_written(host, barred):
            raise FetchFailed(_PRIVATE)

    async def _proxy_for(self, url: str) -> Proxy | None:
        if self._proxy is not None or not self._trust_env:
            return self._proxy
        try:
            return await asyncio.to_thread(environment_proxy, url)
        except ConnectionFailed as failed:
            raise FetchFailed(str(failed).rstrip(".")) from None

    async def _exchange(
        self, session: aiohttp.ClientSession, request: HttpRequest, url: str
    ) -> tuple[HttpAnswer, str | None]:
        import aiohttp

        from weft.client.http.wire import proxy_fault, proxy_refusal, tls_fault

        proxy = await self._proxy_for(url)
        shows = wire_log.isEnabledFor(logging.DEBUG)
        if shows:
            sent = masked_headers(request.headers), masked_body(request.body or b"")
            wire_log.debug("> %s %s [%s] %s", request.method, masked_url(url), *sent)
        try:
            async with session.request(
                request.method,
                url,
                headers=request.headers if proxy is None else {**request.headers, **proxy.headers_through(url)},
                data=request.body,
                allow_redirects=False,
                proxy=None if proxy is None else proxy.url,
                proxy_headers=None if proxy is None else proxy.headers,
            ) as reply:
                if proxy is not None and reply.status == PROXY_REFUSES:
                    raise FetchFailed(proxy_refusal(reply.status, reply.headers, proxy))
                if reply.status in _REDIRECTS and "Location" in reply.headers:
                    return HttpAnswer(reply.status), urljoin(url, reply.headers["Location"])
                body = bytearray()
                async for chunk in reply.content.iter_any():
                    body += chunk
                    if len(body) > self._most_bytes:
                        raise FetchFailed(f"it sent more than {self._most_bytes} bytes")
                if shows:
                    wire_log.debug(
                        "< %d [%s] %s", reply.status, masked_headers(reply.headers), masked_body(bytes(body))
                    )
                headers = {name.lower(): value for name, value in reply.headers.items()}
                return HttpAnswer(reply.status, headers, bytes(body)), None
        except TimeoutError:
            raise FetchFailed(f"no answer within {self._seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(getattr(error, "os_error", error), _PrivateAddress):
                raise FetchFailed(_PRIVATE) from None
            fault = proxy_fault(error, proxy) or tls_fault(error) or f"it cannot be reached ({type(error).__name__})"
            raise FetchFailed(fault) from None


_PRIVATE = (
    "it leads to a private address, which a server elsewhere has no business to name; if it is meant so, give "
    "Fetcher(allow_private=True)"
)


class _PrivateAddress(OSError):
    """A name leads to an address that is not fetched from."""


def _is_written(host: str, barred: _Barred) -> bool:
    """Whether a host is one of those by how it is written. Where a name leads is looked at when it is resolved."""
    if is_loopback(host) or host.lower().endswith(".localhost"):
        return True
    try:
        return barred(host)
    except ValueError:
        return False


async def _barred_for(server_url: str) -> _Barred | None:
    """Which addresses are not fetched from on behalf of a server; None where it is written as a private one itself.

    For public servers these are the private ones; one public address is enough to be public, and so is a name that
    cannot be resolved. A name that leads to private addresses alone may have led elsewhere a moment ago, as those who
    own it like: on its behalf this machine is not asked, where services trust whoever reaches them.
    """
    host = urlsplit(server_url).hostname or ""
    if _is_written(host, urls.is_private):
        return None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return urls.is_private
    return _is_here if all(urls.is_private(str(entry[4][0])) for entry in found) else urls.is_private


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine, as seen from itself; ValueError if it is none."""
    found = ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


def _guarded_resolver(barred: _Barred, proxies: frozenset[str]) -> Any:
    """A resolver that refuses names of barred addresses: what was checked is what is connected to.

    Where a proxy is asked to connect, the resolver sees the name of the proxy alone.
    """
    from aiohttp.abc import AbstractResolver, ResolveResult
    from aiohttp.resolver import DefaultResolver

    class GuardedResolver(AbstractResolver):
        def __init__(self) -> None:
            self._inner = DefaultResolver()

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = await self._inner.resolve(host, port, family)
            if host not in proxies and any(barred(entry["host"]) for entry in found):
                raise _PrivateAddress(_PRIVATE)
            return found

        async def close(self) -> None:
            await self._inner.close()

    return GuardedResolver()
