"""Which URLs authorization is done over: https, or http to this machine (ASEC-05, R11). Pure; resolves no name."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

from weft.errors import UsageError
from weft.net.hosts import is_loopback

_MOST = 2048
_HOST = re.compile(r"[0-9a-z._-]+|[0-9a-f:.]+")  # a name or an address; other characters mean something elsewhere
_UNSAFE = frozenset('"\\<>^`{|} ')  # what no URI has, and what would end a quoted string


def is_safe_url(url: str) -> bool:
    """Whether a URL is https with a host, or http to this machine; without user, fragment or stray characters.

    >>> is_safe_url("https://auth.example.com/t"), is_safe_url("http://auth.example.com"), is_safe_url("http://[::1]:9/")
    (True, False, True)
    """
    if len(url) > _MOST or not url.isascii() or not url.isprintable() or _UNSAFE & set(url):
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or not _HOST.fullmatch(host) or "@" in parts.netloc or "#" in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def check_url(url: str, what: str) -> SplitResult:
    """The parts of a URL; UsageError where tokens must not travel over it."""
    if not isinstance(url, str) or not is_safe_url(url):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise UsageError(
            f"{what} is {str(url)[:200]!r}, over which no token may travel. Give a full https:// URL without user and "
            "fragment; http:// is for this machine alone, such as http://localhost:8000/mcp."
        )
    return urlsplit(url)


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, in the one spelling (lower case).

    >>> origin_of("HTTPS://Mcp.Example.com/mcp?x=1")
    'https://mcp.example.com'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def spell(url: str) -> str:
    """A URL with its origin in the one spelling; the rest of it stays as it is.

    >>> spell("HTTPS://Mcp.Example.com/Mcp"), spell("https://mcp.example.com")
    ('https://mcp.example.com/Mcp', 'https://mcp.example.com')
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.lower(), *parts[2:]))


def same_url(one: str, other: str) -> bool:
    """Whether two URLs name the same: however the host is spelled, and with an empty path or a slash (RFC 3986, 6.2.3).

    >>> same_url("https://a.example", "https://A.example/"), same_url("https://a.example/x", "https://a.example/x/")
    (True, False)
    """
    try:
        return _whole(one) == _whole(other)
    except ValueError:
        return False


def _whole(url: str) -> str:
    parts = urlsplit(url)
    return spell(urlunsplit(parts if parts.path else parts._replace(path="/")))
