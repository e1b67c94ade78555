"""The session of a pipe: what is remembered of the one client there, from its handshake on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from weft.eras.session import SESSION
from weft.jsonrpc import Frame, encode_notification
from weft.server.changes import Change, encode_change, note
from weft.server.connection import Cancellation, Connection
from weft.server.sessions.notices import take_notification
from weft.server.sessions.outstanding import OnProgress, Outstanding, Way
from weft.types.base import RequestId

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["PipeSession"]


class PipeSession:
    """The connection of a pipe's client, its unanswered questions, and the changes it has to be told.

    It is the `Outbound` too: what the server says on its own is a line like any other.
    """

    is_heard = True

    def __init__(self, server: Server, send: Way, in_flight: dict[RequestId, Cancellation]) -> None:
        self._server = server
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Change, None] = {}  # changes not yet told; told once, however often they happened
        self._telling: asyncio.Task[None] | None = None
        self.outstanding = Outstanding("s", send)
        self.connection = Connection.for_loop(self, protocol_version_hint="", in_flight=in_flight)
        self._unsubscribe = server.changes.subscribe(self._heard)

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Ask the client, outside any call."""
        limit = self._server.limits.ask_seconds if timeout is None else timeout
        return await self.outstanding.request(self._send, method, params, timeout=limit, on_progress=on_progress)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the client something, outside any call."""
        await self._send(encode_notification(method, UNSET if params is None else params))

    def take(self, frame: Frame) -> None:
        """A notification, or the answer to a question."""
        if frame.is_response:
            self.outstanding.answered(frame)
        else:
            take_notification(self._server, self.connection, self.outstanding, frame)

    def takes_batch(self, line: bytes) -> bool:
        """Whether this line is an array of messages, and the client's revision has them (L03-01)."""
        return line.lstrip()[:1] == b"[" and SESSION.takes_batches(self.connection)

    def read_batch(self, line: bytes) -> list[Frame | bytes]:
        """The messages of an array; in place of one that is none, the refusal of it."""
        from weft.server.transports.http_batch import Batch  # here, because nearly no client sends one

        return Batch.read(line, self._server.limits)

    async def close(self) -> None:
        """The client is gone: release everything."""
        self._unsubscribe()
        self.outstanding.close()
        if self._telling is not None:
            self._telling.cancel()
        await self.connection.close()

    # Changes.

    def _heard(self, change: Change) -> None:
        """A change, in the thread of whoever made it."""
        connection = self.connection
        if connection.handshake_done and connection.is_ready and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, change)

    def _tell(self, change: Change) -> None:
        uris = self.connection.subscribed_uris
        if not change.concerns(uris):
            return
        note(self._pending, change, uris)
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._tell_all(), name="weft-pipe-changes")

    async def _tell_all(self) -> None:
        while self._pending:
            change = next(iter(self._pending))
            del self._pending[change]
            await self._send(encode_change(change))
