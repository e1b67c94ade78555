"""Check, compare and print URLs. Only https URLs, and http URLs of this machine, may be used.

Host names are not resolved here.
"""

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
_HOST = re.compile(r"[0-9a-z._-]+|[0-9a-f:.]+")  # a name or an address; programs read other characters differently
_UNSAFE = frozenset('"\\<>^`{|} ')  # characters that a URI may not have, or that end a quoted string

UrlFault: TypeAlias = Literal["malformed", "credentials", "scheme", "host", "insecure"]


class UrlRefused(WeftError):
    """The error for a URL that must not be used. `fault` names the rule that the URL breaks."""

    def __init__(self, fault: UrlFault, message: str, parts: SplitResult | None = None) -> None:
        super().__init__(message)
        self.fault: UrlFault = fault
        self.scheme = parts.scheme if parts else ""
        self.host = (parts.hostname or "") if parts else ""


def read_url(url: str, *, allow_insecure: bool = False) -> SplitResult:
    """Return the parts of a URL. Raises UrlRefused if the URL must not be used.

    Only https URLs, and http URLs of this machine, may be used. They must not have a user name or a password. If
    `allow_insecure` is True, http URLs of other machines may be used too.

    >>> read_url("javascript:alert(1)")
    Traceback (most recent call last):
    ...
    weft.net.urls.UrlRefused: javascript:alert(1) is neither https nor http on this machine
    """
    if len(url) > _LONGEST or _NOT_IN_URLS.search(url):
        raise UrlRefused("malformed", f"{shown_url(url)!r} has characters that a URL cannot have, or is too long")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UrlRefused("malformed", f"{shown_url(url)!r} is not a URL") from None
    if "@" in parts.netloc:
        raise UrlRefused("credentials", "a URL with a user name or password in it is not accepted", parts)
    if parts.scheme not in ("http", "https"):
        raise UrlRefused("scheme", f"{shown_url(url)} is neither https nor http on this machine", parts)
    if not parts.hostname or port == 0:
        raise UrlRefused("host", f"{shown_url(url)} is neither https nor http on this machine: it has no host", parts)
    if parts.scheme == "http" and not is_loopback(parts.hostname) and not allow_insecure:
        raise UrlRefused("insecure", f"{shown_url(url)} is not encrypted", parts)
    return parts


def is_safe_url(url: str) -> bool:
    """Return whether `read_url` accepts a URL, and all programs parse the URL in the same way.

    The URL must not have a fragment, or characters that programs interpret differently.

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
    """Return the parts of a URL; raise UsageError if it is not safe to send tokens there.

    `what` is the name of the URL in the error message.
    """
    if not isinstance(url, str) or not is_safe_url(url):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise UsageError(
            f"{what} is {str(url)[:200]!r}, which is not safe for sending tokens. Give a full https:// URL without "
            "user and fragment; http:// is only for this machine, such as http://localhost:8000/mcp."
        )
    return urlsplit(url)


def shown_url(url: str) -> str:
    """Return a URL for error messages: short, without its query, and without control characters."""
    return printable(url.partition("?")[0].partition("#")[0][:200], "?")


def origin_of(url: str) -> str:
    """Return the origin of a URL (its scheme, host and port) in lower case.

    >>> origin_of("HTTPS://Mcp.Example.com/mcp?x=1")
    'https://mcp.example.com'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def spell(url: str) -> str:
    """Return a URL with its scheme and host in lower case, and its other parts unchanged.

    >>> spell("HTTPS://Mcp.Example.com/Mcp"), spell("https://mcp.example.com")
    ('https://mcp.example.com/Mcp', 'https://mcp.example.com')
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.lower(), *parts[2:]))


def same_url(one: str, other: str) -> bool:
    """Return whether two URLs are equal by the rules of RFC 3986, 6.2.3.

    The case of letters in scheme and host is ignored. An empty path is equal to the path `/`.

    >>> same_url("https://a.example", "https://A.example/"), same_url("https://a.example/x", "https://a.example/x/")
    (True, False)
    """
    try:
        whole = [urlsplit(spell(url)) for url in (one, other)]
    except ValueError:
        return False
    first, second = (parts if parts.path else parts._replace(path="/") for parts in whole)
    return first == second
