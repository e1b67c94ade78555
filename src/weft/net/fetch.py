"""Send single HTTP requests, limited in time and size, without cookies and redirects; and fetch JSON documents.

A URL that another party chose may point to a machine in a private network (SSRF). So connections to some addresses can
be forbidden (barred). An address is checked when the connection is made, so that a name cannot resolve to another
address between check and use (DNS rebinding).
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlencode

import msgspec

from weft.errors import WeftError
from weft.net.hosts import is_loopback, is_public_address

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

_MOST = 512 * 1024
_SECONDS = 5.0
_NO_REUSE = ("no-store", "no-cache", "private")
_SHORT_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){0,2}")  # such as 127.1, which resolvers read as 127.0.0.1

Barred: TypeAlias = Callable[[str], bool]
"""A function that returns whether connections to an IP address are forbidden. It raises ValueError for a host name."""


class FetchFailed(WeftError):
    """The error for a request without a usable response. The message never contains headers or body of the request."""


class AddressBarred(FetchFailed):
    """The error for a URL that points to an address to which connections are forbidden."""

    def __init__(self) -> None:
        super().__init__("it has a private address")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request. The repr shows only method and URL, because headers and body may contain secrets."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response to an HTTP request. Header names are not case-sensitive."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes = field(default=b"", repr=False)

    def json(self) -> dict[str, Any] | None:
        """Return the JSON object in the body, or None if the body is something else."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None
        return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def get(url: str, headers: Mapping[str, str] | None = None) -> HttpRequest:
    """Return a GET request for a JSON document."""
    return HttpRequest("GET", url, {"Accept": "application/json", **(headers or {})})


def post_form(url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> HttpRequest:
    """Return a POST request that sends a form and accepts JSON."""
    sent = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
    return HttpRequest("POST", url, sent, urlencode(form).encode())


def post_json(url: str, document: Mapping[str, Any]) -> HttpRequest:
    """Return a POST request that sends a JSON document and accepts JSON."""
    sent = {"Accept": "application/json", "Content-Type": "application/json"}
    return HttpRequest("POST", url, sent, msgspec.json.encode(document))


def is_private(address: str) -> bool:
    """Return whether an IP address is not public; raise ValueError if `address` is not an IP address.

    >>> is_private("10.0.0.8"), is_private("169.254.169.254"), is_private("::ffff:127.0.0.1"), is_private("8.8.8.8")
    (True, True, True, False)
    """
    return not is_public_address(address)


def is_barred_host(host: str, barred: Barred) -> bool:
    """Return whether connections to a host are forbidden.

    `localhost`, names that end with `.localhost`, and loopback addresses are always forbidden. Other IP addresses are
    forbidden if `barred` returns True. The result for all other names is False, because their addresses are checked
    when the names are resolved.
    """
    if is_loopback(host) or host.lower().endswith(".localhost"):
        return True
    try:
        return barred(host)
    except ValueError:
        return False


def open_session(
    seconds: float,
    barred: Barred | None = None,
    *,
    exempt: frozenset[str] = frozenset(),
    tls: ssl.SSLContext | None = None,
) -> aiohttp.ClientSession:
    """Return an HTTP client session without cookies. The timeout of each request is `seconds`.

    A request fails if its host name resolves to an address that `barred` forbids. Hosts in `exempt` are not checked.
    """
    import aiohttp

    resolver = None if barred is None else _guarded_resolver(barred, exempt)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls or True, resolver=resolver),
        timeout=aiohttp.ClientTimeout(total=seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "weft"},
    )


async def exchange(
    session: aiohttp.ClientSession, request: HttpRequest, most_bytes: int, barred: Barred | None = None, **options: Any
) -> HttpAnswer:
    """Send an HTTP request and return the response. Redirects are not followed. `options` are passed to aiohttp.

    Raises AddressBarred if `barred` or the session forbids the address. Raises FetchFailed if there is no complete
    response, or if its body is longer than `most_bytes`.
    """
    import aiohttp
    from yarl import URL

    try:
        host = URL(request.url).raw_host or ""  # as aiohttp reads it, which converts digits of other scripts
        if barred is not None and (is_barred_host(host, barred) or _SHORT_ADDRESS.fullmatch(host)):
            raise AddressBarred
        async with session.request(
            request.method, request.url, headers=request.headers, data=request.body, allow_redirects=False, **options
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    raise FetchFailed(f"it sent more than {most_bytes} bytes")
            return HttpAnswer(response.status, response.headers, bytes(body))
    except TimeoutError:
        raise FetchFailed(f"no answer within {session.timeout.total:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(getattr(error, "os_error", error), _BarredAddress):
            raise AddressBarred from None
        raise FetchFailed(f"it cannot be reached ({type(error).__name__})") from error


async def fetch_json(
    url: str, *, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Send a GET request to a URL, or a POST request with `form`; return the JSON object in the response.

    Raises FetchFailed if the status of the response is not 200, or if its body is not a JSON object.
    """
    document, _ = await fetch_document(url, form=form, headers=headers)
    return document


async def fetch_document(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    public_only: bool = False,
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Send a GET request to a URL, or a POST request with `form`; return the JSON object and the response headers.

    `public_only` is for URLs that another party chose: it forbids addresses of this machine and of private networks.
    Raises FetchFailed if the status of the response is not 200, or if its body is not a JSON object.
    """
    request = get(url, headers) if form is None else post_form(url, form, headers)
    barred = is_private if public_only else None
    try:
        async with open_session(_SECONDS, barred) as session:
            answer = await exchange(session, request, _MOST, barred)
    except FetchFailed as failure:
        raise FetchFailed(f"{url} was not fetched: {failure}.") from None
    if answer.status != 200:
        raise FetchFailed(f"{url} answered with status {answer.status}.")
    document = answer.json()
    if document is None:
        raise FetchFailed(f"{url} answered with something that is not a JSON object.")
    return document, answer.headers


def fresh_seconds(headers: Mapping[str, str], *, default: float, most: float) -> float:
    """Return how many seconds a response may still be cached (RFC 9111), at most `most`.

    The result is the lifetime that `headers` allow, minus the age of the response. If `headers` do not name a lifetime,
    the result is `default`. If the response must not be cached, the result is 0.

    >>> fresh_seconds({"Cache-Control": "public, max-age=60", "Age": "20"}, default=300, most=3600)
    40.0
    """
    parts = (part.partition("=") for part in headers.get("Cache-Control", "").lower().split(","))
    said = {name.strip(): value.strip(' "') for name, _, value in parts}
    if any(word in said for word in _NO_REUSE):
        return 0.0
    try:
        if "max-age" in said or "s-maxage" in said:
            fresh: float = int(said.get("s-maxage", said.get("max-age", ""))) - int(headers.get("Age", "0"))
        elif "Expires" in headers:
            expires, date = (parsedate_to_datetime(headers[name]) for name in ("Expires", "Date"))
            fresh = (expires - date).total_seconds()
        else:
            fresh = default
    except (KeyError, TypeError, ValueError):  # invalid values count as stale (RFC 9111, 4.2.1)
        return 0.0
    return float(max(0, min(fresh, most)))


class _BarredAddress(OSError):
    """The error for a host name that resolves to a forbidden address."""


def _guarded_resolver(barred: Barred, exempt: frozenset[str]) -> AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult
    from aiohttp.resolver import DefaultResolver

    class GuardedResolver(AbstractResolver):
        """A resolver that raises `_BarredAddress` if a host name resolves to a forbidden address."""

        def __init__(self) -> None:
            self._inner = DefaultResolver()

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = await self._inner.resolve(host, port, family)
            if host not in exempt and any(barred(entry["host"]) for entry in found):
                raise _BarredAddress(host)
            return found

        async def close(self) -> None:
            await self._inner.close()

    return GuardedResolver()
