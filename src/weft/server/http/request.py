"""Find the sender of an HTTP request, also behind a proxy, and tell browsers which pages may call the server (CORS).

Any client can send the headers `X-Forwarded-For` and `Forwarded`. They are used only if the connection comes from a
trusted proxy. The client is then the last address in the headers that is not a trusted proxy. The `HostPolicy` decides
which origins may call. Cookies are not used: a web page sends its token in a header.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from weft.errors import UsageError
from weft.limits import Limits
from weft.net.asgi import TOKEN_INFO, Message, RawHeaders, Scope, Send
from weft.net.hosts import HostPolicy, shown
from weft.protocol.headers import Headers
from weft.server.calls.connection import TokenInfo, peer_of


class Caller(NamedTuple):
    """The sender of an HTTP request: its address and, if a token was verified, the facts about the token."""

    address: str
    token_info: TokenInfo | None

    @property
    def principal(self) -> str | None:
        """The verified identity of the caller; None if no token was verified."""
        return None if self.token_info is None else self.token_info.principal

    @property
    def peer(self) -> str:
        """The key for limits per peer: the principal, or the address if no token was verified."""
        return peer_of(self.address, self.token_info)


def read_caller(scope: Scope) -> Caller:
    """Return the sender of a request. Raise `UsageError` if another app has put an invalid TokenInfo into the scope."""
    client, token_info = scope.get("client"), scope.get(TOKEN_INFO)
    if token_info is not None:
        subject: object = token_info.subject if isinstance(token_info, TokenInfo) else None
        if not isinstance(subject, str) or not subject:
            raise UsageError(
                f"scope[{TOKEN_INFO!r}] holds a {type(token_info).__name__} that names no subject. Put "
                "weft.auth.TokenInfo(subject=...) there for a verified caller, and nothing for any other."
            )
    return Caller(client[0] if client else "", token_info)


log = logging.getLogger("weft.advice")

_Address = IPv4Address | IPv6Address

_FOR = re.compile(r'(?:^|;)\s*for="?([^";]*)"?', re.IGNORECASE)  # matches the address in one element of `Forwarded`

_MOST = 32  # largest number of addresses that are read in a forwarded header, from its end


def shared_limits(limits: Limits) -> str:
    """Return a text for a warning: the limits that all clients with the same address share."""
    return (
        f"sessions_per_peer={limits.sessions_per_peer}, listen_streams_per_peer={limits.listen_streams_per_peer}: "
        "beyond that, one client's handshake ends another's session"
    )


class TrustedProxies:
    """The proxies whose forwarded headers are used: addresses and networks, such as `"10.0.0.7"`, `"10.0.0.0/8"`.

    Two parameters are texts for a warning: `shared` names the limits that all clients with the same address share, and
    `flag` is the command-line option that adds a trusted proxy (empty: there is no such option).

    >>> proxies = TrustedProxies(["10.0.0.0/8"])
    >>> proxies.client("10.0.0.1", ["203.0.113.9, 10.0.0.2"], [])
    '203.0.113.9'
    """

    def __init__(self, proxies: Sequence[str], shared: str = "", flag: str = "") -> None:
        if isinstance(proxies, str):
            raise UsageError(f"trusted_proxies= is a list of addresses; write trusted_proxies=[{proxies!r}].")
        self._networks = [_network(entry) for entry in proxies]
        self._shared = shared
        self._flag = flag
        self._has_warned = False

    def resolve(self, scope: Scope, headers: Headers) -> None:
        """If a trusted proxy sent the request, replace the proxy's address in the scope by that of the client."""
        peer = scope.get("client")
        if peer and self.trusts(peer[0]):
            said = [(name, value.decode("latin-1")) for name, value in headers.raw if name in _NAMES]
            chains = [[value for name, value in said if name == wanted] for wanted in _NAMES]
            if said:
                scope["client"] = (self.client(peer[0], *chains), 0)

    def warn(self, scope: Scope, headers: Headers) -> None:
        """Log a warning if a request has forwarded headers but does not come from a trusted proxy. Warn only once.

        Call `resolve` before this method.
        """
        if self._has_warned or not any(name in headers.known for name in _NAMES):
            return
        address, port = scope.get("client") or ("an unknown address", 0)
        if self._networks and (not port or self.trusts(address)):  # `resolve` sets the port to 0
            return
        self._has_warned = True
        log.warning(
            "A request from %s has forwarded headers. They are ignored, because that address is not in "
            "trusted_proxies=. If it is your proxy, all of its clients share the limits of one client (%s). Set "
            "trusted_proxies=[%r]%s. If not, there is nothing to do.",
            address,
            self._shared,
            address,
            f" ({self._flag} {address})" if self._flag else "",
        )

    def trusts(self, peer: str) -> bool:
        """Return whether `peer` is the address of a trusted proxy."""
        return bool(self._networks) and self._trusts(_read(peer))

    def client(self, peer: str, forwarded_for: Sequence[str], forwarded: Sequence[str]) -> str:
        """Return the address of the client, from the values of `X-Forwarded-For` and `Forwarded`.

        This is the last address in the headers that is not a trusted proxy. Return `peer`, the address of the
        connection, if `peer` is not a trusted proxy, if the headers have no valid address of a client, or if the two
        headers name different clients.
        """
        if not self._trusts(_read(peer)):
            return peer
        named = [_FOR.search(element) for element in _split(forwarded)]
        chains = [_split(forwarded_for), [one[1] if one else "" for one in named]]
        found = {self._last_foreign(chain) or peer for chain in chains if chain}
        # A proxy writes one of the two headers and passes on the other unchanged. If they differ, one may be forged.
        return found.pop() if len(found) == 1 else peer

    def _last_foreign(self, chain: Sequence[str]) -> str | None:
        for entry in reversed(chain[-_MOST:]):
            address = _read(entry)
            if address is None:
                return None
            if not self._trusts(address):
                return str(address)
        return None

    def _trusts(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


_NAMES = (b"x-forwarded-for", b"forwarded")


def _network(entry: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        raise UsageError(
            f"trusted_proxies= has the entry {entry!r}, which is not an address; write addresses or networks, such as "
            "'127.0.0.1' or '10.0.0.0/8'."
        ) from None


def _split(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",")]


def _read(entry: str) -> _Address | None:
    """Return the IP address in `entry`, which may have a port and brackets; None if there is no valid address."""
    if entry.startswith("["):
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:
        entry = entry.partition(":")[0]
    try:
        address = ip_address(entry)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


_MOST_SECONDS = 600  # how long a browser may cache the answer to a preflight

_ASKED = b"access-control-request-headers"

_HEADER_LIST = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z, \t]*")  # a list of header names

_SENT = (  # headers that clients of both eras send
    b"Accept, Authorization, Content-Type, DPoP, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    b"Mcp-Session-Id, traceparent, tracestate"
)

_READ = b"Mcp-Session-Id, WWW-Authenticate, DPoP-Nonce, Retry-After, Allow"  # headers of a response that clients read


def is_preflight(headers: Headers) -> bool:
    """Return whether an OPTIONS request is a CORS preflight: a browser asks if a page may send its actual request."""
    return b"access-control-request-method" in headers.known


def preflight_refusal(origin: bytes | None) -> str:
    """Return the error message for the preflight request of a web page that may not call this server.

    >>> preflight_refusal(b"https://app.example")
    "A web page of 'https://app.example' may not call this server. To allow it, set cors=['https://app.example'] in \
asgi() or run(), or start with --cors https://app.example."
    """
    page = shown(origin or b"null")
    return (
        f"A web page of {page!r} may not call this server. To allow it, set cors=[{page!r}] in asgi() or run(), or "
        f"start with --cors {page}."
    )


class Cors:
    """Adds the CORS headers that tell browsers which web pages may call the server."""

    def __init__(self, policy: HostPolicy) -> None:
        self._policy = policy

    def share(self, scope: Scope, send: Send) -> Send:
        """Return a `send` function that adds CORS headers, so that pages of allowed origins can read the response."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if origin is None and scope["method"] == "POST":  # not from a web page, and the response is not cached
            return send
        added = [(b"vary", b"Origin")]
        if self._policy.shares_with(origin):
            assert origin is not None
            added += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _READ)]

        async def send_shared(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return send_shared

    async def answer_preflight(self, headers: Headers, verbs: Sequence[str], send: Send) -> None:
        """Answer a preflight request with the allowed HTTP methods (`verbs`) and headers.

        `send` must be a function that `share` returned. It adds the allowed origin.
        """
        asked = headers.known.get(_ASKED, b"")
        allowed = b", ".join([_SENT, asked]) if asked.strip() and _HEADER_LIST.fullmatch(asked) else _SENT
        added: RawHeaders = [
            (b"access-control-allow-methods", ", ".join(verbs).encode()),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", b"%d" % _MOST_SECONDS),
            (b"vary", _ASKED),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": added})
        await send({"type": "http.response.body", "body": b""})
