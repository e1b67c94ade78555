"""Which proxy a client goes through, and what it tells the proxy of itself.

Owns how a proxy is written, in `proxy=` and in the environment, and that its credentials go to the proxy alone: they
are in no error text, no log and no repr, and never among what a server gets.
"""

from __future__ import annotations

import base64
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from weft.client.mistakes import kind_of
from weft.client.transports.base import NO_HEADERS
from weft.errors import ConnectionFailed, UsageError

__all__ = ["PROXY_REFUSES", "Proxy", "environment_proxy", "environment_proxy_hosts", "read_proxy"]

PROXY_REFUSES = 407  # without credentials that it knows

_PORTS = {"http": 80, "https": 443}
_FORM = "http://host:port, or http://name:password@host:port"
_NO_PROXY = f"is no URL of a proxy; write it as {_FORM}, with %40 and its like for the @ : / # ? % of a password."


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. Its credentials are a header, which is not shown."""

    url: str  # without credentials
    said_in: str = "`proxy`"  # where a person finds it
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]

    def headers_through(self, url: str) -> Mapping[str, str]:
        """What goes along with a request to a URL: the proxy reads it, where no tunnel leads past it."""
        return NO_HEADERS if url[:6].lower() == "https:" else self.headers


def read_proxy(given: object) -> Proxy:
    """The proxy that a program names.

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
    """The proxy that the environment, or else the system, has for a URL; None where it has none. May take a moment."""
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
    """The hosts of all proxies that the environment may lead to."""
    found: set[str] = set()
    for given in urllib.request.getproxies().values():
        try:
            found.add(urlsplit(_with_scheme(given)).hostname or "")
        except ValueError:
            continue  # it is told of when it is to be used
    return frozenset(found)


def _with_scheme(given: str) -> str:
    """A proxy as the environment has it, where many leave out how it is spoken to."""
    return given if "://" in given else f"http://{given}"


def _read(text: str, said_in: str) -> Proxy:
    """Read a proxy; ValueError with the rest of a sentence. Nothing is quoted that may be a part of a password."""
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
