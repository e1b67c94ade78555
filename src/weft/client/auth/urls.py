"""Which URLs may be fetched, opened or believed in a login (R11, SBP-02, SBP-05).

Owns the rules alone: https, or http on this machine; no name and password inside; no private address where the server
itself is public; what a resource's own URL has to be. Names are not resolved here.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from weft.errors import WeftError
from weft.net.hosts import is_loopback, is_public_address
from weft.net.logs import printable

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST = 8 * 1024


class UrlRefused(WeftError):
    """A URL that is not followed; the message says why."""


def shown(url: str) -> str:
    """A URL for error texts: without its query, and with nothing that a terminal would act on."""
    return printable(url.partition("?")[0].partition("#")[0][:200], "?")


def check(url: str, *, allow_insecure: bool = False) -> SplitResult:
    """The parts of a URL that may be fetched or opened; UrlRefused for all others.

    >>> check("javascript:alert(1)")
    Traceback (most recent call last):
    ...
    weft.client.auth.urls.UrlRefused: javascript:alert(1) is neither https nor http on this machine
    """
    if len(url) > _LONGEST or any(ord(char) <= 0x20 or ord(char) == 0x7F for char in url) or "\\" in url:
        raise UrlRefused(f"{shown(url)!r} has characters that no URL has, or too many")
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise UrlRefused(f"{shown(url)!r} is no URL") from None
    host = parts.hostname
    if parts.scheme not in _DEFAULT_PORTS or not host or not port_is_fine:
        raise UrlRefused(f"{shown(url)} is neither https nor http on this machine")
    if parts.username is not None or parts.password is not None:
        raise UrlRefused("a URL with a name or password inside is not followed")
    if parts.scheme == "http" and not is_loopback(host) and not allow_insecure:
        raise UrlRefused(f"{shown(url)} is not encrypted")
    return parts


def is_private(address: str) -> bool:
    """Whether an IP address is one that the public internet does not lead to.

    >>> is_private("10.0.0.8"), is_private("169.254.169.254"), is_private("::ffff:127.0.0.1"), is_private("8.8.8.8")
    (True, True, True, False)
    """
    return not is_public_address(address)


def origin(url: str) -> tuple[str, str, int | None]:
    """The scheme, host and effective port."""
    parts = urlsplit(url)
    return parts.scheme.lower(), (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme.lower())


def base(url: str) -> str:
    """The origin as text, without a slash at its end."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}"


def canonical(url: str) -> str:
    """The URI by which a server is known that does not publish one itself (AUTH-25, AUTH-26).

    >>> canonical("HTTPS://Flights.example/mcp/#top")
    'https://flights.example/mcp'
    """
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{base(url)}{parts.path.rstrip('/')}{query}"


def resource_fits(resource: str, server_url: str) -> bool:
    """Whether a published resource is the server we talk to: its URL, or a part of the way to it (ASD-10).

    >>> resource_fits("https://a.example", "https://a.example/mcp")
    True
    >>> resource_fits("https://a.example/m", "https://a.example/mcp")
    False
    """
    try:
        if urlsplit(resource).fragment or origin(resource) != origin(server_url):
            return False
    except ValueError:
        return False
    wanted, asked = (urlsplit(one) for one in (resource, server_url))
    if wanted.query and wanted.query != asked.query:
        return False
    path = wanted.path.rstrip("/")
    return asked.path.rstrip("/") == path or asked.path.startswith(path + "/")
