"""Send the streams that a client requests with GET: the standalone stream, or the rest of an interrupted stream.

Both are read from the stored events (`weft.server.sessions.streams`) while the client is connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from weft.net.asgi import Refusal
from weft.protocol.sse import COMMENT
from weft.protocol.sse import encode as encode_event
from weft.server.calls.connection import TokenInfo
from weft.server.http.reply import HttpReply
from weft.server.runtime.runtime import Runtime
from weft.server.runtime.subscriptions import at_expiry
from weft.server.sessions.session import ResumedReader, Session, StreamTurn
from weft.server.sessions.sessions import SessionGone, Sessions
from weft.server.sessions.streams import STANDALONE, StoredEvent

_TAKEN = "This session has its stream open already."


class StreamForm(NamedTuple):
    """The format of a stream: its first bytes (`opening`), and a function that encodes an event.

    When the server stops, the stream stays open as long as `lasts` returns True.
    """

    opening: bytes
    encode: Callable[[StoredEvent], bytes]
    lasts: Callable[[], bool] = lambda: False


def _encode_resumable(event: StoredEvent) -> bytes:
    return encode_event(event.data, id=event.id)


RESUMABLE = StreamForm(COMMENT, _encode_resumable)


class SessionStreams:
    """Sends the streams that clients of one endpoint request with GET."""

    def __init__(self, runtime: Runtime, sessions: Sessions) -> None:
        self._runtime = runtime
        self._sessions = sessions

    async def standalone(
        self, session: Session, after: int | None, reply: HttpReply, form: StreamForm, token_info: TokenInfo | None
    ) -> None:
        """Send the standalone stream of a session until the stream ends. A session has only one such stream.

        If the client resumes the stream, `after` is the number of the last event that the client received; otherwise
        `after` is None. If the client resumes the stream while an earlier response still sends it, the earlier response
        ends. If the client does not resume the stream in this case, raises `Refusal`. Raises `SessionGone` if the
        session is not stored any more.

        The stream ends when the token of `token_info` expires.
        """
        if session.wake is not None:
            if after is None:
                raise Refusal(409, _TAKEN)
            session.wake.set()
        news = session.wake = asyncio.Event()
        is_last_look = False

        async def prepare() -> bool:
            nonlocal is_last_look
            if reply.finished or session.ended or is_last_look:
                return False
            if not await self._sessions.hold_stream(session):
                return False
            if self._sessions.closing and not form.lasts():
                is_last_look = True  # send what was stored until now
                news.set()
            if session.wake is news:
                await self._sessions.send_changes(session)
            return session.wake is news

        def expire() -> None:
            if session.wake is news:
                session.wake = None
                news.set()

        try:
            async with self._turn(session, STANDALONE):
                if not await self._sessions.open_stream(session, takes_over=after is not None):
                    raise Refusal(409, _TAKEN)
                start = await self._start_of(session, after)
                await self._sessions.collect_changes(session)  # now others may write what they have collected
                with at_expiry(self._runtime, token_info, expire):
                    events = self._sessions.streams.follow(session.id, STANDALONE, start, wake=news, prepare=prepare)
                    await _send_events(events, news, reply, form, lambda: session.wake is not news)
        finally:
            if session.wake in (news, None):  # else another request has taken it over
                session.wake = None
                await self._sessions.records.drop_stream(session)

    async def resume(self, session: Session, stream: str, after: int, reply: HttpReply) -> None:
        """Send the events of a request's stream after number `after`. End the response that sent the stream before.

        Raises `Refusal` if some of these events are not stored any more, or if too many streams are resumed, and
        `SessionGone` if the session is not stored any more.
        """
        most = self._runtime.limits.in_flight_per_connection
        if len(session.turns.keys() - {stream, STANDALONE}) >= most:
            raise Refusal(503, f"This session has resumed {most} streams: wait until one ends.")
        if (older := session.resumed.get(stream)) is not None:
            older.set()  # it sees that its turn is wanted
        async with self._turn(session, stream) as turn:
            await self._resume(session, stream, after, reply, turn)

    async def _resume(self, session: Session, stream: str, after: int, reply: HttpReply, turn: StreamTurn) -> None:
        if not await self._has_rest(session, stream, after):
            if not await self._sessions.exists(session):  # the Backend has lost its data
                raise SessionGone
            raise Refusal(400, "The events after this one are not stored any more.")
        await self._sessions.end_readers(session, stream)
        news = session.resumed[stream] = ResumedReader()

        async def prepare() -> bool:
            if news.retry is not None:
                await reply.send_event(b"retry: %d\n\n" % news.retry)
            is_over = reply.finished or session.ended or self._sessions.closing
            return session.resumed.get(stream) is news and not is_over and not turn.is_wanted

        events = self._sessions.streams.follow(session.id, stream, after, wake=news, prepare=prepare)
        try:
            await _send_events(events, news, reply, RESUMABLE, lambda: turn.is_wanted)
        finally:
            if session.resumed.get(stream) is news:
                del session.resumed[stream]

    @asynccontextmanager
    async def _turn(self, session: Session, stream: str) -> AsyncGenerator[StreamTurn]:
        """Wait until no other response of this process sends a stream. Nothing of the stream is read before.

        Raises `Refusal` if a newer request for the same stream comes first.
        """
        turn = session.turns.setdefault(stream, StreamTurn())
        try:
            if not await turn.take():
                raise Refusal(409, "A newer request resumes this stream.")
            try:
                yield turn
            finally:
                turn.pass_on()
        finally:
            if not turn.is_taken and session.turns.get(stream) is turn:
                del session.turns[stream]

    async def _has_rest(self, session: Session, stream: str, after: int) -> bool:
        """Return whether a request's stream exists, and all its events after number `after` are still stored."""
        streams = self._sessions.streams
        newest = await streams.newest(session.id, stream)
        return 0 < newest >= after and await streams.is_whole(session.id, stream, after)

    async def _start_of(self, session: Session, after: int | None) -> int:
        """Return the number of the event after which the standalone stream begins.

        If `after` is None, return the number of the newest event: the client gets only events that are stored from now
        on. If no event is stored, return 1: all events have higher numbers.

        Return 0 if events after `after` were dropped, because the client was too slow, or if all numbers are below
        `after`, because the clock of the backend was set back: the client gets all events that are still stored.
        """
        streams = self._sessions.streams
        newest = await streams.newest(session.id, STANDALONE)
        if after is None:
            return newest or 1
        return after if newest >= after and await streams.is_whole(session.id, STANDALONE, after) else 0


async def _send_events(
    events: AsyncGenerator[StoredEvent | None],
    news: asyncio.Event,
    reply: HttpReply,
    form: StreamForm,
    is_replaced: Callable[[], bool],
) -> None:
    """Send the events of a stream until the stream ends, the client disconnects, or another response sends the stream.

    If `events` yields None, send a keep-alive comment.
    """
    watch = asyncio.get_running_loop().create_task(_watch(reply, news), name="weft-stream-watch")
    try:
        await reply.send_event(form.opening)  # the client sees at once that the stream is open
        async with aclosing(events):
            async for event in events:
                if reply.finished or is_replaced():
                    break
                if event is None:
                    await reply.send_event(COMMENT)
                elif event.data or not event.is_last:
                    await reply.send_event(form.encode(event))
    finally:
        watch.cancel()
        await reply.end()


async def _watch(reply: HttpReply, news: asyncio.Event) -> None:
    await reply.wait_for_disconnect()
    reply.close()
    news.set()
