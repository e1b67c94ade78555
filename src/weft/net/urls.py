"""Decide which URLs may be followed: https, or http on this machine; and compare and show URLs. Resolves no name."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit, urlunsplit

from weft.errors import UsageError, WeftError
from weft.net.hosts import is_loopback
from weft.protocol.names import printable

_LONGEST = 8 * 1024
_LONGEST_SAFE = 2048
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f\\]")
_HOST = re.compile(r"[0-9a-z._-]+|[0-9a-f:.]+")  # a name or an address; other characters mean something elsewhere
_UNSAFE = frozenset('"\\<>^`{|} ')  # not allowed in a URI, or the end of a quoted string

UrlFault: TypeAlias = Literal["malformed", "credentials", "scheme", "host", "insecure"]


class UrlRefused(WeftError):
    """A URL that must not be followed: `fault` is the rule that it breaks, the message explains it."""

    def __init__(self, fault: UrlFault, message: str, parts: SplitResult | None = None) -> None:
        super().__init__(message)
        self.fault: UrlFault = fault
        self.scheme = parts.scheme if parts else ""
        self.host = (parts.hostname or "") if parts else ""


def read_url(url: str, *, allow_insecure: bool = False) -> SplitResult:
    """Return the parts of a URL that may be followed: https, or http on this machine, and without a password.

    `allow_insecure` allows http everywhere.

    >>> read_url("javascript:alert(1)")
    Traceback (most recent call last):
    ...
    weft.net.urls.UrlRefused: javascript:alert(1) is neither https nor http on this machine
    """
    if len(url) > _LONGEST or _NOT_IN_URLS.search(url):
        raise UrlRefused("malformed", f"{shown_url(url)!r} has characters that no URL has, or is too long")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UrlRefused("malformed", f"{shown_url(url)!r} is no URL") from None
    if "@" in parts.netloc:
        raise UrlRefused("credentials", "a URL with a name or password inside is not followed", parts)
    if parts.scheme not in ("http", "https"):
        raise UrlRefused("scheme", f"{shown_url(url)} is neither https nor http on this machine", parts)
    if not parts.hostname or port == 0:
        raise UrlRefused("host", f"{shown_url(url)} is neither https nor http on this machine: it has no host", parts)
    if parts.scheme == "http" and not is_loopback(parts.hostname) and not allow_insecure:
        raise UrlRefused("insecure", f"{shown_url(url)} is not encrypted", parts)
    return parts


def is_safe_url(url: str) -> bool:
    """Return whether a URL may be followed, and has no fragment and only characters that are read in one way.

    >>> is_safe_url("https://auth.example.com/t"), is_safe_url("http://auth.example.com"), is_safe_url("http://[::1]:9/")
    (True, False, True)
    """
    if len(url) > _LONGEST_SAFE or not url.isascii() or not url.isprintable() or "#" in url or _UNSAFE & set(url):
        return False
    try:
        return _HOST.fullmatch(read_url(url).hostname or "") is not None
    except UrlRefused:
        return False


def check_url(url: str, what: str) -> SplitResult:
    """Return the parts of a URL that tokens may be sent to; UsageError for any other."""
    if not isinstance(url, str) or not is_safe_url(url):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise UsageError(
            f"{what} is {str(url)[:200]!r}, over which no token may travel. Give a full https:// URL without user and "
            "fragment; http:// is for this machine alone, such as http://localhost:8000/mcp."
        )
    return urlsplit(url)


def shown_url(url: str) -> str:
    """Return a URL for error messages: short, without its query, and without control characters."""
    return printable(url.partition("?")[0].partition("#")[0][:200], "?")


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, in lower case.

    >>> origin_of("HTTPS://Mcp.Example.com/mcp?x=1")
    'https://mcp.example.com'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def spell(url: str) -> str:
    """Return a URL with its origin in lower case; the rest of it stays.

    >>> spell("HTTPS://Mcp.Example.com/Mcp"), spell("https://mcp.example.com")
    ('https://mcp.example.com/Mcp', 'https://mcp.example.com')
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.lower(), *parts[2:]))


def same_url(one: str, other: str) -> bool:
    """Return whether two URLs are equal, with any spelling of the host, and an empty path or a slash (RFC 3986, 6.2.3).

    >>> same_url("https://a.example", "https://A.example/"), same_url("https://a.example/x", "https://a.example/x/")
    (True, False)
    """
    try:
        whole = [urlsplit(spell(url)) for url in (one, other)]
    except ValueError:
        return False
    first, second = (parts if parts.path else parts._replace(path="/") for parts in whole)
    return first == second
