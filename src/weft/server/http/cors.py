"""CORS: web pages of other origins that may call a server and read its answers (the Fetch standard, 3.2).

A browser asks first (a preflight: OPTIONS, without a token), then sends, and shows its page the answer if that says so.
Which origins may is decided in one place, the `HostPolicy`: an origin in `cors=` is an origin that is served. Cookies
are never asked for: a page sends its token itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.net.asgi import Message, RawHeaders, Scope, Send
from weft.net.hosts import HostPolicy, shown
from weft.protocol.headers import Headers

_MOST_SECONDS = 600  # for which a browser need not ask again
_ASKED = b"access-control-request-headers"
_NAMES = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z, \t]*")  # a list of header names
_SENT = (  # what clients of either era send
    b"Accept, Authorization, Content-Type, DPoP, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    b"Mcp-Session-Id, traceparent, tracestate"
)
_READ = b"Mcp-Session-Id, WWW-Authenticate, DPoP-Nonce, Retry-After, Allow"  # what they read in an answer


def is_preflight(headers: Headers) -> bool:
    """Whether the OPTIONS of a request is a browser's question if its page may send another."""
    return b"access-control-request-method" in headers.known


def preflight_refusal(origin: bytes | None) -> str:
    """The sentence for a preflight of a page that may not call.

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
    """Tells browsers which pages may call."""

    def __init__(self, policy: HostPolicy) -> None:
        self._policy = policy

    def share(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that lets the page read the answer, where its origin may."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if origin is None and scope["method"] == "POST":  # no page, and nothing that a cache would keep
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
        """Tell a browser what its page may send; `send` says already to whom."""
        asked = headers.known.get(_ASKED, b"")
        allowed = b", ".join([_SENT, asked]) if asked.strip() and _NAMES.fullmatch(asked) else _SENT
        told: RawHeaders = [
            (b"access-control-allow-methods", ", ".join(verbs).encode()),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", b"%d" % _MOST_SECONDS),
            (b"vary", _ASKED),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": told})
        await send({"type": "http.response.body", "body": b""})
