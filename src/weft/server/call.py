"""Call and Reply: one request that is being served, and where its output goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from weft.eras.base import Envelope, ServerEra
from weft.protocol.headers import Headers
from weft.server.connection import Cancellation, Connection
from weft.types.base import RequestId

if TYPE_CHECKING:
    from weft.server.app import Server
    from weft.server.context import Context

__all__ = ["Call", "Reply"]


class Reply(Protocol):
    """Where the output of one call goes: a JSON body that becomes a stream, a stream, a line."""

    async def notify(self, message: bytes) -> None:
        """Send one encoded notification that belongs to this call, before its answer."""
        ...


class Call:
    """One request, opened: what it says, who sent it, where the answer goes."""

    __slots__ = ("_context", "cancellation", "connection", "envelope", "era", "headers", "id", "reply", "server")

    def __init__(
        self,
        server: Server,
        id: RequestId,
        envelope: Envelope,
        era: ServerEra,
        connection: Connection,
        reply: Reply,
        headers: Headers | None = None,
    ) -> None:
        self.server = server
        self.id = id
        self.envelope = envelope
        self.era = era
        self.connection = connection
        self.reply = reply
        self.headers = headers  # None where there are none: stdio
        self.cancellation = Cancellation()
        self._context: Context | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.envelope.method.name

    @property
    def context(self) -> Context:
        """The context of this call: one, shared by middleware and handler."""
        if self._context is None:
            from weft.server.context import Context

            self._context = Context(self)
        return self._context
