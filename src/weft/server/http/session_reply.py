"""Write the responses to requests of a session. What a client has not received is stored, so that it can read it later.

If the backend fails, the events of a call wait for it here. There is a bound for all of them together.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.protocol.sse import encode as encode_event
from weft.server.calls.pending import SendMessage
from weft.server.http.reply import Accepts, HttpReply
from weft.server.sessions.session import Session
from weft.server.sessions.sessions import Sessions
from weft.types.base import RequestId

_LATE_SECONDS = 1.0  # between two attempts to store events for a client that has disconnected
_PAUSE_SECONDS = 10.0  # after a failed attempt to store an event of a call, its events are sent without being stored


@dataclass(slots=True, eq=False)
class _UnstoredEvent:
    """An event that is neither stored nor sent."""

    message: bytes
    is_last: bool
    was_tried: bool = False  # whether there was an attempt to store it: it may be stored even if that seemed to fail
    is_gap: bool = False  # whether it stands for events that were dropped, because there were too many


class SessionReply(HttpReply):
    """Writes the response to one request. If the client disconnects, the call continues, and its output is stored."""

    def __init__(
        self,
        origin: HttpReply,
        session: Session | None,
        sessions: Sessions,
        requests: Sequence[RequestId],
        *,
        polling: bool,
    ) -> None:
        super().__init__(origin.send, origin.limits)  # replaces `origin`, which was made before the era was known
        self.receive = origin.receive
        self.accepts = origin.accepts
        self.metadata_url = origin.metadata_url
        # Done when the HTTP response is over. The result is True if the end of its stream still has to be written.
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._session = session
        self._sessions = sessions
        self._streams = sessions.streams
        self._requests = requests  # ids of the requests that are answered here
        self._polling = polling  # whether the client reconnects if the server closes a stream early
        self._last_event: str | None = None  # id of the last event that was stored
        self._stream = ""  # name of the stream; empty before the stream begins, and without a session
        self._answered = False
        self._unstored: list[_UnstoredEvent] = []  # oldest first
        self._is_failing = False  # whether events were not stored, and none was stored since
        self._store_after = -math.inf  # there was a failed attempt to store an event; the next one is after this time
        self._storing_late = False  # whether a background task stores events for a client that has disconnected
        self._end_stored = False  # whether the last event of the stream is stored

    @property
    def is_stream(self) -> bool:
        """Whether the response has become a stream. Stays True if the client disconnects."""
        return bool(self._stream) or self.streaming

    @property
    def answered(self) -> bool:
        """Whether the answer was sent, or stored for a client that has disconnected."""
        return self._answered

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer, and end the response. On a stream, also store the answer: the client may reconnect."""
        try:
            async with self._held:
                self._answered = True
                if self.is_stream or (self.accepts is Accepts.STREAM and status == 200):
                    await self._write(body, last=True)
                elif not self.finished:
                    await self._answer_json(status, body)
        finally:
            self._conclude()

    async def give_up(self) -> None:
        """End the response without an answer, because the call was cancelled."""
        try:
            async with self._held:
                self._answered = True
                if self.is_stream:
                    await self._write(b"", last=True)
                elif not self.finished:
                    await self.accept()
        finally:
            self._conclude()

    async def close_stream(self, retry_seconds: float) -> None:
        """Close the stream before the answer. The client reconnects after `retry_seconds` to read the rest.

        Do nothing if the client cannot resume the stream, or if the Backend cannot be reached.
        """
        session = self._session
        if session is None or not self._polling or not self.can_stream:
            return
        async with self._held:
            retry = round(retry_seconds * 1000)
            last_event = b"retry: %d\n\n" % retry
            if not self._stream and not self.finished and not self._answered:
                await self._begin_stream(session, retry)
                last_event = b""
            if self._answered or self._storing_late:
                return
            if self._is_failing:  # the client could not get events that are not stored: look if they are stored again
                stored = await self._store(session, b"", at_once=True)
                if stored is None:
                    return
                last_event = encode_event(b"", id=stored, retry=retry)
            if not self.finished:
                await self._event(last_event, last=True)
            else:  # the client has reconnected before
                await self._sessions.end_readers(session, self._stream, retry=retry)
        self.release()

    def release(self, *, is_resumed: bool = False) -> None:
        """End the HTTP response. The call may continue.

        `is_resumed` is True if the client reads the rest of the stream in another response.
        """
        must_end = is_resumed and self.streaming and not self.finished
        self.close()
        if not self.over.done():
            self.over.set_result(must_end)

    async def wait_until_over(self) -> None:
        """Wait until the HTTP response is over, and write the end of its stream if that is still missing."""
        if await self.over:
            await self._event(b"", last=True)

    def _conclude(self) -> None:
        """End the response and its stream, because the call has ended.

        If the last event is not stored, and is not going to be, also end the response in which the client has resumed
        the stream. Otherwise that response might wait forever for the last event.
        """
        self.release()
        session = self._session
        if session is not None and self._stream:
            session.open_streams.pop(self._stream, None)
            if self._unstored:
                self._store_later(session)
            elif not self._end_stored:
                self._end_reader(session)

    def _end_reader(self, session: Session) -> None:
        """End the response that sends the rest of the stream: the last event is not stored, so it would never end."""
        self._streams.close(session.id, self._stream)
        if (reader := session.resumed.pop(self._stream, None)) is not None:
            reader.end()

    async def _write(self, message: bytes, *, last: bool) -> None:
        """Send a message as an SSE event, and store the event if there is a session. If `last` is True, end the stream.

        An empty message is used only to end a stream.
        """
        session, stored = self._session, None
        if session is not None and not session.ended:
            if not self._stream:
                await self._begin_stream(session)
            stored = await self._store(session, message, last=last)
            if self.finished and stored is not None:
                # The client may read it in another response: do not store faster than it reads.
                await self._streams.room(session.id, self._stream)
        if not self.finished:
            await self._deliver(encode_event(message, id=stored) if message else b"", last=last)
        if self.finished and session is not None:
            self._store_later(session)

    async def _deliver(self, event: bytes, *, last: bool) -> None:
        """Send one encoded event. If the client has disconnected, keep the events that could not be stored."""
        if self._unstored and await self.is_disconnected():
            self.release()
            return
        await self._event(event, last=last)
        if not self.finished:  # else the client has not received it
            self._forget_unstored()

    async def _store(
        self, session: Session, message: bytes, *, last: bool = False, at_once: bool = False
    ) -> str | None:
        """Store an event for a client that may reconnect, and return the id of the event.

        Return None if the Backend fails. The call continues then, and a client that is connected still gets the event.
        For other clients, it is stored later.

        An attempt may take as long as the Backend's timeout. So after a failed attempt, there is no further one for
        `_PAUSE_SECONDS`, unless `at_once` is True.
        """
        self._unstored.append(_UnstoredEvent(message, last))
        self._streams.unstored_bytes += len(message)
        if not self._storing_late and (at_once or time.monotonic() >= self._store_after):
            try:
                await self._store_all(session)
            except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                self._sessions.log_failure("The stream of a call could not be stored in the backend", error)
            else:
                return self._last_event
        self._is_failing = True
        too_many = len(self._unstored) > self.limits.replay_events
        if too_many or self._streams.unstored_bytes > self.limits.replay_bytes:
            self._forget_unstored()
            self._unstored.append(_UnstoredEvent(b"", last, is_gap=True))
        return None

    def _forget_unstored(self, count: int | None = None) -> None:
        """Remove the first `count` unstored events, or all: they are stored, sent or dropped."""
        for event in self._unstored[:count]:
            self._streams.unstored_bytes -= len(event.message)
        del self._unstored[:count]

    async def _store_all(self, session: Session) -> None:
        while self._unstored:
            event = self._unstored[0]
            is_repeated, event.was_tried = event.was_tried, True
            try:
                stored = None
                if event.is_gap:
                    stored = await self._streams.drop(session.id, self._stream, is_last=event.is_last)
                elif is_repeated:
                    stored = await self._streams.find_after(session.id, self._stream, self._last_event, event.message)
                self._last_event = stored or await self._streams.append(
                    session.id,
                    self._stream,
                    event.message,
                    is_last=event.is_last,
                    waiting=() if event.is_last else self._requests,
                )
            except Exception:
                self._store_after = time.monotonic() + _PAUSE_SECONDS
                raise
            self._end_stored = event.is_last
            if self._unstored and self._unstored[0] is event:  # else there were too many, and it was dropped
                self._forget_unstored(1)
        self._store_after = -math.inf
        self._is_failing = False

    def _store_later(self, session: Session) -> None:
        """Store the events that could not be stored in the background, for a client that has disconnected."""
        if self._unstored and not self._storing_late:
            self._storing_late = True
            self._sessions.in_background(self._store_late(session))

    async def _store_late(self, session: Session) -> None:
        until = time.monotonic() + self.limits.replay_seconds
        try:
            while self._unstored and time.monotonic() < until and not session.ended:
                try:
                    await self._store_all(session)
                except Exception:  # noqa: BLE001 - it is logged already
                    await asyncio.sleep(_LATE_SECONDS)
        finally:
            self._storing_late = False
            self._forget_unstored()
        if self._answered and not self._end_stored:
            self._end_reader(session)

    async def _begin_stream(self, session: Session, retry: int | None = None) -> None:
        """Begin the stream of this response. If the client may have to reconnect, send an empty event with an id first.

        `retry` is the time in milliseconds after which the client should reconnect.
        """
        self._stream = session.name_stream()
        session.open_streams[self._stream] = self
        self._streams.open(session.id, self._stream, self._requests)
        if self._polling:
            stored = await self._store(session, b"")
            if not self.finished:
                await self._deliver(encode_event(b"", id=stored, retry=retry), last=False)

    async def _cut(self, reason: str, *, last: bool) -> None:
        """End the response to a client that has disconnected or does not read. The call continues."""
        self.release()


class Batch:
    """Collects the answers to all requests of a batch, then sends them as a JSON array or as events of a stream."""

    def __init__(self, reply: SessionReply, size: int) -> None:
        self._reply = reply
        self._missing = size
        self._answers: list[bytes] = []

    async def add(self, answer: bytes | None) -> None:
        """Add the answer to one request (None if it was cancelled). After the last request, send all answers."""
        self._missing -= 1
        if answer is not None:
            self._answers.append(answer)
        if self._missing:
            return
        if not self._answers:
            await self._reply.give_up()
        elif self._reply.is_stream:
            *others, last = self._answers
            for one in others:
                await self._reply.notify(one)
            await self._reply.answer(200, last)
        else:
            await self._reply.answer(200, b"[" + b",".join(self._answers) + b"]")


@dataclass(eq=False)
class SharedStreamReply:
    """The reply to a request that shares its stream with other requests, so it cannot end or change the stream.

    `send` sends a notification. `finish` is called with the answer, or with None if the request was cancelled.
    `abandon` is called if the task that serves the request ends without an answer.
    """

    send: SendMessage
    finish: Callable[[bytes | None], Awaitable[None]]
    abandon: Callable[[], None]
    can_stream: bool = True
    answered: bool = False

    async def notify(self, message: bytes) -> None:
        """Send a notification, unless the request is answered."""
        if not self.answered:
            await self.send(message)

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer."""
        self.answered = True
        await self.finish(body)

    async def give_up(self) -> None:
        """Send no answer, because the request was cancelled."""
        self.answered = True
        await self.finish(None)

    def release(self) -> None:
        """Call `abandon` if the request has no answer. Called when the task that serves the request has ended."""
        if not self.answered:
            self.answered = True
            self.abandon()

    def epilogue(self, message: bytes) -> None:
        """Do nothing: no method of the session era sends a message after its answer."""

    async def end(self) -> None:
        """Do nothing: other requests still use the stream."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Do nothing: an answer on the stream has no headers."""

    async def close_stream(self, retry_seconds: float) -> None:
        """Do nothing: other requests still use the stream."""


Answering: TypeAlias = SessionReply | SharedStreamReply
