"""What an era is asked, and the one chooser.

The protocol has two families of revisions. In the *session era* a peer introduces itself once and the connection
remembers; in the *stateless era* every request introduces itself. All that follows from this difference is answered by
an era object: it never awaits, does no I/O, and is chosen once per message. Its callers ask and do as told; none of
them compares versions.

A request is opened into an `Envelope`: what it says about itself, checked. Where those facts come from — the request's
own `_meta`, or the handshake that came before it — is the era's secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from weft.errors import ProtocolError
from weft.jsonrpc import Frame
from weft.protocol.headers import Headers
from weft.protocol.revisions import Method, Revision
from weft.types.base import Implementation, LogLevel, Meta, ProgressToken, Result
from weft.types.capabilities import ClientCapabilities
from weft.types.request import RequestParams

__all__ = ["ClientEra", "Envelope", "Offer", "Peer", "ServerEra", "WireError", "choose", "log_level_reached"]

_LEVELS = {
    level: rank
    for rank, level in enumerate(("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"))
}


def log_level_reached(level: LogLevel, minimum: LogLevel) -> bool:
    """Whether `level` is at least as severe as `minimum`, in the order of RFC 5424.

    >>> log_level_reached("error", "warning")
    True
    """
    return _LEVELS[level] >= _LEVELS[minimum]


class Envelope(msgspec.Struct, gc=False):
    """What one request says about itself, checked by its era."""

    revision: Revision
    method: Method
    params: RequestParams
    client_capabilities: ClientCapabilities
    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    progress_token: ProgressToken | None = None


class WireError(msgspec.Struct):
    """An error as a peer gets it; `status` is for HTTP."""

    code: int
    message: str
    data: Any
    status: int


class Peer(Protocol):
    """What an era may know of the other side from before: facts of a handshake. Absent in the stateless era."""

    @property
    def protocol_version(self) -> str:
        """The version agreed on."""
        ...

    @property
    def client_capabilities(self) -> ClientCapabilities:
        """What the client declared."""
        ...

    @property
    def initialize_accepted(self) -> bool:
        """Whether requests may come in."""
        ...


class Offer(msgspec.Struct):
    """What a server offers, as far as reading and sealing messages needs to know."""

    methods: Mapping[str, Method]  # those whose capability is declared, and those of extensions
    result_meta: Meta  # goes on every result of the stateless era
    versions: Sequence[str]  # all versions served, newest first


class ServerEra(Protocol):
    """The questions a server asks about a message."""

    name: str
    is_stateless: bool
    asks_by_rounds: bool  # a question ends the call and is answered with the next; else it is sent and awaited
    methods: frozenset[str]  # what its revisions have, extensions aside

    def speaks(self, frame: Frame, headers: Headers | None, peer: Peer | None) -> bool:
        """Whether this message belongs to this era."""
        ...

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Check a request and read it. Raises the `ProtocolError` the ledger names."""
        ...

    def seal(self, result: Result, offer: Offer) -> Result:
        """Complete a fresh result for the wire, or take out what the revision does not have."""
        ...

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Whether a message of this level goes out, given what the client asked for."""
        ...

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """The error as this era's peers get it. `opened`: it came from a handler, not from reading the request."""
        ...


class ClientEra(Protocol):
    """The questions a client asks about a message."""

    name: str

    def stamp(
        self, method: str, params: Mapping[str, Any], *, info: Implementation, capabilities: ClientCapabilities
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The params and the HTTP headers of a request."""
        ...


def choose(eras: Sequence[ServerEra], frame: Frame, headers: Headers | None, peer: Peer | None = None) -> ServerEra:
    """The era of a message: the first that speaks it, else the last, whose refusal names what is served."""
    return next((era for era in eras if era.speaks(frame, headers, peer)), eras[-1])
