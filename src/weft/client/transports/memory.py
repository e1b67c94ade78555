"""A server in this process: no socket, no child, yet every message crosses as bytes, both ways.

Owns the two ends of that pipe on the client's side. A server is recognised by what it can do: it has a method `pipe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from weft.client.transports.base import PipeTransport
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits

__all__ = ["MemoryTransport", "Pipe", "Piped"]

_TURN = 128  # messages after which the loop gets its turn


class Pipe(Protocol):
    """The server's end."""

    def send(self, line: bytes) -> None:
        """Take one message of the client."""
        ...

    async def close(self) -> None:
        """The client is gone."""
        ...


@runtime_checkable
class Piped(Protocol):
    """Anything that can be talked to in this process."""

    def pipe(self, deliver: Callable[[bytes], None]) -> Pipe:
        """Connect a client; each message for it is given to `deliver`."""
        ...


class MemoryTransport(PipeTransport):
    """A connection to a server in this process."""

    kind = "memory"

    def __init__(self, server: Piped, where: str, limits: ClientLimits = DEFAULT_CLIENT_LIMITS) -> None:
        super().__init__(where, limits)
        self._server = server
        self._pipe: Pipe | None = None
        self._sent = 0

    async def _start(self) -> None:
        self._pipe = self._server.pipe(self._incoming)

    def _write(self, message: bytes) -> Awaitable[None] | None:
        assert self._pipe is not None
        self._pipe.send(message)
        self._sent += 1
        if self._sent % _TURN == 0:  # a server that answers at once would keep all others from having theirs
            return asyncio.sleep(0)
        return None

    async def _stop(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            await pipe.close()
