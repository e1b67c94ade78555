"""Session: the live part of a session, in one process.

It holds what cannot be in a record: the connection that handlers see, the requests under way, the questions that the
client has not answered yet, and what wakes the streams that are open here. What the server says in it on its own goes
on the stream that belongs to no request. It finds and ends nothing by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import UNSET

from weft.errors import NoBackChannelError
from weft.jsonrpc import encode_notification
from weft.limits import Limits
from weft.server.changes import Change
from weft.server.connection import Connection
from weft.server.sessions.outstanding import OnProgress, Outstanding
from weft.server.sessions.records import Record
from weft.server.sessions.streams import STANDALONE, Streams

__all__ = ["OpenStream", "Session", "TakenUp"]


class OpenStream(Protocol):
    """The stream of a request that is not answered yet, wherever its client is."""

    last_event: str | None  # the id of what was written last

    def hand_over(self) -> None:
        """The client reads the rest elsewhere."""
        ...


class TakenUp(asyncio.Event):
    """What wakes whoever reads the stream of a request that was taken up again."""

    retry: int | None = None  # the client is to go, and to come back after so many milliseconds

    def end(self, retry: int | None = None) -> None:
        """Let its reader go."""
        self.retry = retry
        self.set()


class Session:
    """The live part of one session in this process, and the way out to its client (an `Outbound`)."""

    __slots__ = (
        "_limits",
        "_outstanding",
        "_streams",
        "connection",
        "ended",
        "id",
        "in_use",
        "last_used",
        "open_streams",
        "peer",
        "pending",
        "principal",
        "record",
        "renewed",
        "resumed",
        "stale",
        "streams_begun",
        "wake",
        "worker",
    )

    def __init__(
        self, id: str, principal: str | None, peer: str, worker: str, streams: Streams, limits: Limits
    ) -> None:
        self.id = id
        self.connection = Connection.for_loop(self, protocol_version_hint="", connection_id=id)
        self._streams = streams
        self._limits = limits
        self.principal = principal
        self.peer = peer  # whom it is counted for
        self.worker = worker
        self.last_used = time.monotonic()
        self.renewed = self.last_used  # when the record's time was last extended
        self.in_use = 0  # requests and streams: while there are any, it is not idle
        self.ended = False
        self.stale = False  # another worker has changed the record
        self.pending: dict[Change, None] | None = None  # changes to tell on the standalone stream; None: there is none
        self.wake: asyncio.Event | None = None  # there while a standalone stream is open here
        # What other workers know of it, as far as this one has heard.
        self.record = Record("", None, self.connection.client_capabilities, principal, peer)
        self.open_streams: dict[str, OpenStream] = {}  # of requests, by name
        self.resumed: dict[str, TakenUp] = {}  # streams of requests that were taken up again: what wakes them
        self.streams_begun = 0  # here; their names
        self._outstanding: Outstanding | None = None

    @property
    def outstanding(self) -> Outstanding:
        """Requests to the client that it has not answered."""
        if self._outstanding is None:
            self._outstanding = Outstanding(self.worker, self.send)
            if self.ended:
                self._outstanding.close()
        return self._outstanding

    @property
    def asked(self) -> Outstanding | None:
        """The same, if there ever was one."""
        return self._outstanding

    def end_questions(self) -> None:
        """The server stops: what the client was asked cannot be answered any more, nor can it be asked."""
        self.outstanding.close("The server stops, and takes no answers any more.")

    def name_stream(self) -> str:
        """A name for a stream of this session that no other has, in any worker (L11-18)."""
        self.streams_begun += 1
        return f"{self.worker}-{self.streams_begun}"

    @property
    def has_listened(self) -> bool:
        """Whether the client has opened the standalone stream once, at whatever worker."""
        return self.pending is not None or self.record.has_listened

    @property
    def is_heard(self) -> bool:
        """Whether the client reads the standalone stream, or may come back for what is on it."""
        return self.has_listened and not self.ended

    def wants(self, change: Change) -> bool:
        """Whether the client is to hear of a change: of any list, of a resource it subscribed to (L11-34, L11-36).

        Not before it has confirmed the handshake (L11-05).
        """
        connection = self.connection
        return connection.is_ready and change.concerns(connection.subscribed_uris)

    # What is said outside any call, on the standalone stream (L11-10).

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Ask the client, if it has ever opened that stream."""
        if not self.has_listened or self.ended:
            raise NoBackChannelError(method)
        limit = self._limits.ask_seconds if timeout is None else timeout
        return await self.outstanding.request(self.send, method, params, timeout=limit, on_progress=on_progress)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the client something, if it has ever opened that stream."""
        if self.has_listened:
            await self.send(encode_notification(method, UNSET if params is None else params))

    async def send(self, message: bytes) -> None:
        """Write a message to that stream, at the pace of its reader."""
        if not self.ended:  # else it would be kept, and nobody would come for it
            await self._streams.append(self.id, STANDALONE, message)
            await self._streams.room(self.id, STANDALONE)

    # What it has in common with its live parts in other workers.

    def to_record(self) -> Record:
        """What this worker knows of it."""
        connection = self.connection
        return Record(
            connection.protocol_version,
            connection.client_info,
            connection.client_capabilities,
            self.principal,
            self.peer,
            connection.is_ready,
            connection.log_level,
            sorted(connection.subscribed_uris),
            connection.handshake_done,
            self.has_listened,
        )

    def learn(self, before: Record, now: Record) -> None:
        """Know what other workers have changed. What was changed here meanwhile stays, and stays to be saved."""
        connection = self.connection
        is_changed = connection.is_changed
        if now.handshake_done and not before.handshake_done:
            connection.greet(now.protocol_version, now.client_info, now.client_capabilities)
        if now.log_level != before.log_level:
            connection.log_level = now.log_level
        if now.subscribed_uris != before.subscribed_uris:
            connection.subscribed_uris.update(set(now.subscribed_uris).difference(before.subscribed_uris))
            connection.subscribed_uris.difference_update(set(before.subscribed_uris).difference(now.subscribed_uris))
        if now.is_ready:
            connection.set_initialized()
        connection.is_changed = is_changed
        self.record = now

    # Its end.

    def close(self) -> None:
        """End what is under way."""
        self.ended = True
        for cancellation in list(self.connection.in_flight.values()):
            cancellation.cancel("the session has ended")
        if self._outstanding is not None:
            self._outstanding.close()
        self.wake_streams()

    def wake_streams(self) -> None:
        """Have whoever sends a stream here look whether it goes on."""
        for news in (self.wake, *self.resumed.values()):
            if news is not None:
                news.set()
