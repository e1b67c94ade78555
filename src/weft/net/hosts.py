"""Check `Host` and `Origin` headers, to protect against DNS rebinding; find out which IP addresses are public.

Both headers are parsed and compared exactly, never by prefix. Names are not resolved: only the text of a header decides
if it is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Literal

from weft.errors import UsageError
from weft.protocol.names import printable

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#@]+)")
_TARGET = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_BYTES = 512  # longest header that is parsed; a DNS name has at most 253 characters
_MAX_REMEMBERED = 1024
_SITE_BITS = 64  # length of an IPv6 prefix; one machine may have all addresses with the same prefix
# IPv6 networks in which the last 32 bits are an IPv4 address: NAT64 (RFC 6052), SIIT, and obsolete ones.
_TRANSLATED = tuple(IPv6Network(net) for net in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96"))
# IPv6 networks that are private, but that some Python releases count as public: local NAT64, site-local addresses.
_OF_A_SITE = tuple(IPv6Network(net) for net in ("64:ff9b:1::/48", "fec0::/10"))


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address. Names are not resolved.

    >>> is_loopback("localhost"), is_loopback("[::1]"), is_loopback("127.0.0.1.example.com")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return False
    # `::ffff:127.0.0.1` is loopback in Python 3.13, but not in 3.11. Weft does not accept it.
    return found.is_loopback and getattr(found, "ipv4_mapped", None) is None


def is_public_address(address: str) -> bool:
    """Return whether an IP address is public. An IPv6 address that contains an IPv4 address is checked as IPv4.

    Raises ValueError if `address` is not an IP address.

    >>> [is_public_address(one) for one in ("8.8.8.8", "10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::10.0.0.1")]
    [True, False, False, False]
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        within = found.ipv4_mapped or found.sixtofour
        if within is None and any(found in network for network in _TRANSLATED):
            within = IPv4Address(int(found) & 0xFFFF_FFFF)
        found = within or found
    return found.is_global and not found.is_multicast and not any(found in network for network in _OF_A_SITE)


def target_host(target: bytes) -> bytes | None:
    """Return the host and port of an HTTP request target that is a full URL, or None for any other target.

    >>> target_host(b"http://evil.example:80/mcp"), target_host(b"/mcp")
    (b'evil.example:80', None)
    """
    found = _TARGET.match(target)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class _Place:
    """A parsed `Host` header or origin, or a rule for them. The host is in lower case, and an IPv6 address compressed.

    A name with a final dot is a different name: for browsers, `localhost.` and `localhost` are different origins, and
    some resolvers ask the network for `localhost.`. To accept such a name, list it with its dot.
    """

    host: str
    port: int | None = None  # in a rule for hosts, None means any port
    scheme: str | None = None  # only for an origin
    subdomains: bool = False  # whether a rule is for all subdomains of the host, but not for the host itself

    def covers(self, host: str) -> bool:
        return host.endswith("." + self.host) if self.subdomains else host == self.host


def _parse_host(text: str) -> _Place | None:
    found = _AUTHORITY.fullmatch(text) if len(text) <= _MAX_BYTES else None
    if found is None:
        return None
    host, port = found[1].lower(), None if found[2] is None else int(found[2])
    if port is not None and port > 65535:
        return None
    if host.startswith("["):
        try:
            host = IPv6Address(host[1:-1]).compressed
        except ValueError:
            return None
    elif not all(host.removesuffix(".").split(".")):  # an empty label: "", "..", "a..b"
        return None
    return _Place(host, port)


def _parse_origin(text: str) -> _Place | None:
    """Parse an origin; return None if it is malformed. An origin without a port gets the default port of its scheme."""
    found = _ORIGIN.fullmatch(text) if len(text) <= _MAX_BYTES else None
    place = _parse_host(found[2]) if found else None
    if found is None or place is None:
        return None
    scheme = found[1].lower()
    return _Place(place.host, _DEFAULT_PORTS.get(scheme) if place.port is None else place.port, scheme)


class HostPolicy:
    """The `Host` and `Origin` headers that a server accepts.

    `allowed_hosts`: names such as `"api.example.com"` (any port), `"api.example.com:8443"` (that port), `"[::1]:80"`,
    `"*.example.com"` (all subdomains) or `"*"` (any). None means only this machine (localhost, 127.0.0.0/8, [::1]) and
    `own`, the host of the server.

    `allowed_origins`: origins such as `"https://app.example.com"` (exactly this scheme, host and port; without a port,
    the default port of the scheme), `"https://*.example.com"`, `"null"`, or `"*"` (any). None means any http(s) origin
    whose host is allowed. A request without an Origin does not come from a web page, and is accepted.

    `cors`: origins, written in the same way, whose pages may also read the answers. These origins are accepted in
    addition to `allowed_origins`.

    >>> policy = HostPolicy(None, None)
    >>> policy.host_ok(b"localhost:8000"), policy.host_ok(b"localhost.evil.example")
    (True, False)
    """

    def __init__(
        self,
        allowed_hosts: Sequence[str] | None,
        allowed_origins: Sequence[str] | None,
        own: str | None = None,
        *,
        cors: Sequence[str] = (),
    ) -> None:
        hosts = _entries("allowed_hosts", allowed_hosts)
        origins = _entries("allowed_origins", allowed_origins)
        self._any_host = "*" in (hosts or ())
        self._is_local = hosts is None
        named = [own] if hosts is None and own is not None else hosts or []
        self._host_rules = [_host_rule(entry) for entry in named if entry != "*"]
        self._origins = None if origins is None else _Origins("allowed_origins", origins)
        self._cors = _Origins("cors", _entries("cors", cors) or [])
        # A cache of accepted values. Refused values are not stored, so that they cannot fill the cache.
        self._served_hosts: set[bytes] = set()
        self._served_origins: set[bytes] = set()

    def host_ok(self, value: bytes | None) -> bool:
        """Return whether a Host header is accepted. A missing header is accepted only if `allowed_hosts` has `"*"`."""
        if value is None:
            return self._any_host
        if value in self._served_hosts:
            return True
        place = _parse_host(value.decode("latin-1"))
        return place is not None and self._allows(place) and _remember(self._served_hosts, value)

    def origin_ok(self, value: bytes | None) -> bool:
        """Return whether an Origin header is accepted. A missing header (None) is accepted."""
        if value is None or value in self._served_origins:
            return True
        if self._origins is not None:
            is_allowed = self._origins.have(value)
        else:
            place = _parse_origin(value.decode("latin-1"))
            is_allowed = place is not None and place.scheme in _DEFAULT_PORTS and self._allows(place)
        return (is_allowed or self.shares_with(value)) and _remember(self._served_origins, value)

    def shares_with(self, value: bytes | None) -> bool:
        """Return whether web pages of the origin `value` may read the answers of this server (CORS)."""
        return value is not None and self._cors.have(value)

    def _allows(self, place: _Place) -> bool:
        if self._any_host or (self._is_local and is_loopback(place.host)):
            return True
        # A Host without a port means the default port, but the scheme is not known here.
        ports = (None, *_DEFAULT_PORTS.values()) if place.port is None else (None, place.port)
        return any(rule.port in ports and rule.covers(place.host) for rule in self._host_rules)


def _remember(served: set[bytes], value: bytes) -> Literal[True]:
    if len(served) < _MAX_REMEMBERED:
        served.add(value)
    return True


def _entries(setting: str, entries: Sequence[str] | None) -> list[str] | None:
    if isinstance(entries, str):
        raise UsageError(f"{setting}= is a list of entries; write {setting}=[{entries!r}].")
    return None if entries is None else list(entries)


def _host_rule(entry: str) -> _Place:
    subdomains = entry.startswith("*.")
    text = entry[2:] if subdomains else entry
    if text.count(":") > 1 and not text.startswith("["):  # a bare IPv6 address
        text = f"[{text}]"
    place = _parse_host(text)
    if place is None:
        known = "'api.example.com', 'api.example.com:8443', '[::1]' or '*.example.com'"
        raise UsageError(f"allowed_hosts= has the entry {entry!r}, which is not a host; write one such as {known}.")
    return replace(place, subdomains=subdomains)


class _Origins:
    """The list of origins from the setting `allowed_origins` or `cors`."""

    def __init__(self, setting: str, entries: Sequence[str]) -> None:
        self._any = "*" in entries
        self._null = "null" in entries
        self._rules = [_origin_rule(entry, setting) for entry in entries if entry not in ("*", "null")]

    def have(self, value: bytes) -> bool:
        """Return whether the value of an Origin header is one of these origins."""
        if value == b"null":
            return self._any or self._null
        place = _parse_origin(value.decode("latin-1"))
        return place is not None and (
            self._any
            or any(
                (rule.scheme, rule.port) == (place.scheme, place.port) and rule.covers(place.host)
                for rule in self._rules
            )
        )


def _origin_rule(entry: str, setting: str) -> _Place:
    origin = _parse_origin(entry.replace("://*.", "://", 1))
    if origin is None:
        known = "'https://app.example.com' or 'http://localhost:3000', without a path"
        raise UsageError(f"{setting}= has the entry {entry!r}, which is not an origin; write one such as {known}.")
    return replace(origin, subdomains="://*." in entry)


def refusal(kind: Literal["host", "origin"], value: bytes | None) -> str:
    """Return the error message for a Host or Origin header that is not accepted.

    >>> refusal("host", b"evil.example")
    "The Host 'evil.example' is not served here; if it should be, add it to allowed_hosts=."
    """
    header, setting = ("Host", "allowed_hosts") if kind == "host" else ("Origin", "allowed_origins")
    if value is None:
        return f"The request has no {header} header; send one that is listed in {setting}=."
    more = "" if kind == "host" else ", or to cors= if its pages read the answers"
    return f"The {header} {shown(value)!r} is not served here; if it should be, add it to {setting}={more}."


def shown(value: bytes) -> str:
    """Return the value of a header for an error message: shortened, and in ASCII."""
    return printable(value[:100].decode("ascii", "replace").replace("\ufffd", "?"), "?")


@lru_cache(_MAX_REMEMBERED)
def network_of(address: str) -> str:
    """Return the address or network to which the limits for one peer apply.

    For an IPv6 address, this is its /64 network, because one machine may use all addresses of such a network. An IPv4
    address that is written as IPv6 is returned as IPv4. Values that are not IP addresses are returned unchanged.

    >>> network_of("10.0.0.1"), network_of("2001:db8::5:1"), network_of("::ffff:10.0.0.1")
    ('10.0.0.1', '2001:db8::', '10.0.0.1')
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> _SITE_BITS << _SITE_BITS))
