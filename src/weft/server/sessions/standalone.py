"""What a server says in a session on its own, outside any call: it goes on the stream that belongs to no request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.errors import NoBackChannelError
from weft.jsonrpc import encode_notification
from weft.limits import Limits
from weft.server.sessions.outstanding import OnProgress
from weft.server.sessions.session import Session
from weft.server.sessions.streams import STANDALONE, Streams

__all__ = ["StandaloneOutbound"]


class StandaloneOutbound:
    """What the server says on its own goes on the stream that belongs to no request (L11-10)."""

    __slots__ = ("_limits", "_session", "_streams")

    def __init__(self, streams: Streams, limits: Limits) -> None:
        self._streams = streams
        self._limits = limits
        self._session: Session | None = None

    def bind(self, session: Session) -> None:
        """Say whose it is: a session is made with it."""
        self._session = session

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Ask the client, if it has ever opened that stream."""
        session = self._session
        if session is None or not session.has_listened or session.ended:
            raise NoBackChannelError(method)
        limit = self._limits.ask_seconds if timeout is None else timeout
        return await session.outstanding.request(self.send, method, params, timeout=limit, on_progress=on_progress)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the client something, if it has ever opened that stream."""
        session = self._session
        if session is not None and session.has_listened:
            await self.send(encode_notification(method, msgspec.UNSET if params is None else params))

    async def send(self, message: bytes) -> None:
        """Write a message to the standalone stream."""
        assert self._session is not None
        if not self._session.ended:  # else it would be kept, and nobody would come for it
            await self._streams.append(self._session.id, STANDALONE, message)
            await self._streams.room(self._session.id, STANDALONE)
