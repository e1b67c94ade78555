"""Session: the live part of a session, in one process.

It holds what cannot be in a record: the connection that handlers see, the requests under way, the questions that the
client has not answered yet, and what wakes the streams that are open here. It finds and ends nothing by itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from weft.server.changes import Change
from weft.server.connection import Connection
from weft.server.sessions.outstanding import Outstanding, Way
from weft.server.sessions.records import Record

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
    """The live part of one session in this process."""

    __slots__ = (
        "_outstanding",
        "connection",
        "ended",
        "farewell",
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
        "streams",
        "wake",
        "worker",
    )

    def __init__(
        self, id: str, connection: Connection, principal: str | None, peer: str, worker: str, farewell: Way
    ) -> None:
        self.id = id
        self.farewell = farewell  # a message on the standalone stream
        self.connection = connection
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
        self.record = Record("", None, connection.client_capabilities, principal, peer)
        self.open_streams: dict[str, OpenStream] = {}  # of requests, by name
        self.resumed: dict[str, TakenUp] = {}  # streams of requests that were taken up again: what wakes them
        self.streams = 0  # streams begun here; their names
        self._outstanding: Outstanding | None = None

    @property
    def outstanding(self) -> Outstanding:
        """Requests to the client that it has not answered."""
        if self._outstanding is None:
            self._outstanding = Outstanding(self.worker, self.farewell)
            if self.ended:
                self._outstanding.close()
        return self._outstanding

    @property
    def asked(self) -> Outstanding | None:
        """The same, if there ever was one."""
        return self._outstanding

    def name_stream(self) -> str:
        """A name for a stream of this session that no other has, in any worker (L11-18)."""
        self.streams += 1
        return f"{self.worker}-{self.streams}"

    @property
    def has_listened(self) -> bool:
        """Whether the client has opened the standalone stream once, at whatever worker."""
        return self.pending is not None or self.record.has_listened

    def wants(self, change: Change) -> bool:
        """Whether the client is to hear of a change: of any list, of a resource it subscribed to (L11-34, L11-36).

        Not before it has confirmed the handshake (L11-05).
        """
        connection = self.connection
        return connection.is_ready and change.concerns(connection.subscribed_uris)

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
