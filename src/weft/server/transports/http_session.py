"""Messages of the session era over HTTP: found their session, dispatched, answered; its streams; its end.

A request is served in a task of its own, because it may outlive its HTTP exchange: a client that disconnects has not
given it up (L11-13). Only `notifications/cancelled` and the end of the session do that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from weft.eras.base import Envelope, Peer
from weft.eras.session import HANDSHAKE, SESSION, Unacquainted
from weft.errors import InvalidRequest, ProtocolError
from weft.jsonrpc import Frame, decode, encode_error
from weft.protocol.headers import Headers
from weft.protocol.sse import COMMENT
from weft.protocol.sse import encode as encode_event
from weft.server.call import Call
from weft.server.connection import Cancellation
from weft.server.faults import note_refusal
from weft.server.session import Session
from weft.server.sessions import SessionsFull
from weft.server.streams import STANDALONE, Event, event_id, read_event_id
from weft.server.transports.asgi import Receive, Scope
from weft.server.transports.caller import Caller, read_caller
from weft.server.transports.http_batch import Batch
from weft.server.transports.http_reply import HttpReply, Refusal
from weft.server.transports.http_session_reply import Answering, SessionReply
from weft.server.transports.load import busy, is_full

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["SESSION_HEADER", "SessionExchange", "StreamForm"]

SESSION_HEADER = b"mcp-session-id"
LAST_EVENT_HEADER = b"last-event-id"

_MOST_ID_BYTES = 128
_TAKEN = "This session has its stream open already."


class StreamForm(NamedTuple):
    """What a stream begins with, and how its events are written."""

    opening: bytes
    encode: Callable[[Event], bytes]


def _encode_resumable(event: Event) -> bytes:
    return encode_event(event.data, id=event.id)


RESUMABLE = StreamForm(COMMENT, _encode_resumable)


class SessionExchange:
    """Serves sessions at one endpoint; or, where `keeps_sessions` is false, clients of that era without any."""

    era = SESSION

    def __init__(self, server: Server, *, keeps_sessions: bool = True) -> None:
        self._server = server
        self._sessions = server.sessions
        self._keeps_sessions = keeps_sessions
        self.verbs: Sequence[str] = ("POST", "GET", "DELETE") if keeps_sessions else ("POST",)

    # POST: one message, or several at once.

    async def serve(
        self, frame: Frame, body: bytes, headers: Headers, scope: Scope, receive: Receive, reply: HttpReply
    ) -> None:
        """Serve one message."""
        caller = read_caller(scope)
        if frame.method == HANDSHAKE and SESSION_HEADER not in headers.known:
            await self._greet(frame, headers, caller, reply)
            return
        session = await self._find(headers, caller)
        if not frame.is_request:  # those are checked when they are opened
            self.era.check_version(headers)
        if not isinstance(frame.method, str):
            if session is not None:
                await self._sessions.answered(session, frame, body)
            await reply.accept()
        elif not isinstance(frame.id, int | str):
            await self._notified(session, frame)
            await reply.accept()
        else:
            await self._request(session, frame, headers, caller, reply)

    async def take(self, session: Session, frame: Frame, headers: Headers, caller: Caller, reply: Answering) -> None:
        """Take one message whose answer goes another way than the HTTP response."""
        if frame.is_response:
            await self._sessions.answered(session, frame, msgspec.json.encode(frame))
        elif frame.is_notification:
            await self._notified(session, frame)
        else:
            await self._take_next(session, frame, headers, caller, reply)

    async def _take_next(
        self, session: Session | None, frame: Frame, headers: Headers, caller: Caller, reply: Answering
    ) -> None:
        """Begin to serve a request of several that came at once: each of them counts (D9)."""
        if is_full(self._server, own=1):  # the HTTP request that they came in
            await self._refuse(busy(self._server.limits.in_flight), frame, reply)
        elif (task := await self._start(session, frame, headers, caller, reply)) is not None:
            self._count_in(task)

    async def serve_batch(self, body: bytes, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """Serve an array of messages, of a client whose revision has them (L03-01); of another it is no message."""
        session = await self._find(headers, caller)
        self.era.check_version(headers)
        peer: Peer = Unacquainted(headers) if session is None else session.connection
        if not self.era.takes_batches(peer):
            decode(body, self._server.limits)  # says why
        frames = Batch.read(body, self._server.limits, forbidden=HANDSHAKE)
        requests = [frame for frame in frames if isinstance(frame, Frame) and frame.is_request]
        for frame in frames:
            if isinstance(frame, Frame) and frame.is_notification:
                await self._notified(session, frame)
            elif isinstance(frame, Frame) and frame.is_response and session is not None:
                await self._sessions.answered(session, frame, msgspec.json.encode(frame))
        wrong = [frame for frame in frames if isinstance(frame, bytes)]
        if not requests and not wrong:
            await reply.accept()  # L03-03
            return
        whole = self._reply(session, reply)
        batch = Batch(whole, len(requests) + len(wrong))
        for refusal in wrong:
            await batch.add(refusal)
        for frame in requests:
            await self._take_next(session, frame, headers, caller, batch.part())
        await self._until_over(whole, None)

    async def _greet(self, frame: Frame, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """The handshake. If it succeeds there is a session from now on."""
        if not isinstance(frame.id, int | str):
            raise Refusal(400, "A handshake is a request: give it an id.")
        if not self._keeps_sessions:
            await self._request(None, frame, headers, caller, reply)
            return
        try:
            session = self._sessions.new(caller.principal, caller.peer)
        except SessionsFull:
            raise Refusal(503, "There are as many sessions as there may be, and all are in use. Try later.") from None
        answer = self._reply(None, reply)
        try:
            envelope = self.era.open(frame, headers, self._server.offer, session.connection)
        except ProtocolError as error:
            await self._refuse(error, frame, answer)
            return
        call = self._call(frame.id, envelope, headers, caller, answer, session)
        status, response = await self._server.dispatcher.run(call)
        if session.connection.handshake_done:
            await self._sessions.keep(session)
            answer.extra = [(SESSION_HEADER, session.id.encode())]
        else:
            await session.connection.close()
        await answer.answer(status, response)

    async def _request(
        self, session: Session | None, frame: Frame, headers: Headers, caller: Caller, reply: HttpReply
    ) -> None:
        answer = self._reply(session, reply)
        task = await self._start(session, frame, headers, caller, answer)
        if task is not None:
            await self._until_over(answer, task)

    async def _until_over(self, reply: SessionReply, task: asyncio.Task[None] | None) -> None:
        """Wait for the end of the HTTP response; a task that goes on after it still counts as being served."""
        try:
            await reply.over
            await reply.end()
        except asyncio.CancelledError:  # an ASGI server that cancels when the client disconnects
            reply.let_go()
            raise
        finally:
            if task is not None and not task.done():
                self._count_in(task)

    def _count_in(self, task: asyncio.Task[None]) -> None:
        self._server.in_flight += 1
        task.add_done_callback(self._count_out)

    def _count_out(self, _: asyncio.Task[Any]) -> None:
        self._server.in_flight -= 1

    async def _start(
        self, session: Session | None, frame: Frame, headers: Headers, caller: Caller, reply: Answering
    ) -> asyncio.Task[None] | None:
        """Begin to serve a request; None if it was refused."""
        request_id = frame.id
        assert isinstance(request_id, int | str)
        peer: Peer = Unacquainted(headers) if session is None else session.connection
        try:
            if session is not None:
                self._check_in_flight(session, request_id)
            first = session is None and frame.method == HANDSHAKE
            envelope = self.era.open(frame, headers, self._server.offer, None if first else peer)
        except ProtocolError as error:
            await self._refuse(error, frame, reply)
            return None
        call = self._call(request_id, envelope, headers, caller, reply, session)
        cancellation = call.cancellation
        if session is not None:
            session.in_use += 1
            session.connection.in_flight[request_id] = cancellation
        return asyncio.get_running_loop().create_task(self._run(call, session, reply))

    async def _run(self, call: Call, session: Session | None, reply: Answering) -> None:
        cancellation = call.cancellation
        cancellation.task = asyncio.current_task()  # not before: cancelled then, it would never clean up
        answer = None
        try:
            if not cancellation.cancelled:
                answer = await self._server.dispatcher.run(call)
        except asyncio.CancelledError:
            if not cancellation.cancelled:
                raise
        finally:
            if session is not None:
                session.in_use -= 1
                _forget(session, call.id, cancellation)
                if session.connection.is_changed:
                    await self._sessions.save(session)
        if answer is None or cancellation.cancelled:
            await reply.give_up()
        else:
            await reply.answer(*answer)

    # GET: the stream of a session, or the rest of one that was lost.

    async def listen(self, headers: Headers, caller: Caller, receive: Receive, reply: HttpReply) -> None:
        """Open the standalone stream, or go on with any stream after an event."""
        if not reply.can_stream:
            raise Refusal(406, "A stream is all there is to GET: accept text/event-stream.")
        session = await self._find(headers, caller)
        assert session is not None
        self.era.check_version(headers)
        if not session.connection.handshake_done:
            raise Refusal(400, "The handshake comes first.")
        stream, after = STANDALONE, None
        if (last := headers.get(LAST_EVENT_HEADER)) is not None:
            found = read_event_id(last)
            if found is None:
                raise Refusal(400, "The Last-Event-ID is not one of this server's.")
            stream, after = found
        session.in_use += 1
        try:
            if stream == STANDALONE:
                await self.stream(session, after, receive, reply)
            else:
                await self._resume(session, stream, after or 0, receive, reply)
        finally:
            session.in_use -= 1

    async def stream(
        self, session: Session, after: int | None, receive: Receive, reply: HttpReply, form: StreamForm | None = None
    ) -> None:
        """The stream that belongs to no request; one per session (R4). Who resumes it takes it over."""
        if session.wake is not None:
            if after is None:
                raise Refusal(409, _TAKEN)
            session.wake.set()
        news = session.wake = asyncio.Event()

        async def prepare() -> bool:
            if session.ended or self._sessions.closing or not await self._sessions.listens(session):
                return False
            if session.wake is news:
                await self._sessions.tell_changes(session)
            return session.wake is news

        try:
            if not await self._sessions.listen(session, takes_over=after is not None):
                raise Refusal(409, _TAKEN)
            start = await self._start_of(session, after)
            await self._send_stream(session, STANDALONE, start, news, receive, reply, prepare, form or RESUMABLE)
        finally:
            if session.wake in (news, None):  # else somebody has taken it over
                session.wake = None
                await self._sessions.stop_listening(session)

    async def _resume(self, session: Session, stream: str, after: int, receive: Receive, reply: HttpReply) -> None:
        """The rest of the stream of a request (L11-17, L11-19). Whoever held it before is let go."""
        most = self._server.limits.in_flight_per_connection
        if not await self._has_rest(session, stream, after):
            raise Refusal(400, "What came after this event is not kept any more.")
        if (held := session.open_streams.get(stream)) is not None:
            held.hand_over()
        if (other := session.resumed.pop(stream, None)) is not None:
            other.set()
        if len(session.resumed) >= most:
            raise Refusal(503, f"This session has taken up {most} streams again: let one end first.")
        news = session.resumed[stream] = asyncio.Event()

        async def prepare() -> bool:
            return session.resumed.get(stream) is news and not session.ended and not self._sessions.closing

        try:
            await self._send_stream(session, stream, after, news, receive, reply, prepare, RESUMABLE)
        finally:
            if session.resumed.get(stream) is news:
                del session.resumed[stream]

    async def _has_rest(self, session: Session, stream: str, after: int) -> bool:
        """Whether all that came after an event of a request's stream, or will come, is there to be read."""
        held, streams = session.open_streams.get(stream), self._sessions.streams
        if held is not None and held.last_event == event_id(stream, after):
            return True  # nothing came, however long ago that event was
        newest = await streams.newest(session.id, stream)
        return 0 < newest >= after and await streams.is_whole(session.id, stream, after)

    async def _start_of(self, session: Session, after: int | None) -> int:
        """After which event the standalone stream begins.

        A new one begins now: 1 is before all that will come. One whose reader was too slow, and who knows that, goes on
        with what is kept: to refuse it would take from the client all that it could still hear.
        """
        streams = self._sessions.streams
        if after is None:
            return await streams.newest(session.id, STANDALONE) or 1
        return after if await streams.is_whole(session.id, STANDALONE, after) else 0

    async def _send_stream(
        self,
        session: Session,
        stream: str,
        after: int,
        news: asyncio.Event,
        receive: Receive,
        reply: HttpReply,
        prepare: Callable[[], Awaitable[bool]],
        form: StreamForm,
    ) -> None:
        gone = asyncio.get_running_loop().create_task(_gone(receive, news), name="weft-stream-watch")

        async def look() -> bool:
            return not gone.done() and await prepare()

        try:
            await reply.send_event(form.opening)  # the client sees at once that the stream is open
            async with aclosing(
                self._sessions.streams.follow(session.id, stream, after, news=news, prepare=look)
            ) as events:
                async for event in events:
                    if gone.done() or reply.finished:
                        break
                    if event is None:
                        await reply.send_event(COMMENT)
                    elif event.data or not event.is_last:
                        await reply.send_event(form.encode(event))
        finally:
            gone.cancel()
            await reply.end_stream()

    # DELETE: the end.

    async def end(self, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """End a session, because its client says so (L11-26)."""
        session = await self._find(headers, caller)
        assert session is not None
        self.era.check_version(headers)
        await self._sessions.end(session)
        await reply.done()

    # What they share.

    async def _find(self, headers: Headers, caller: Caller) -> Session | None:
        """The session that a message names; None where none are kept."""
        if not self._keeps_sessions:
            return None
        id = headers.get(SESSION_HEADER)
        if id is None:
            raise Refusal(
                400,
                f"The Mcp-Session-Id header is missing; a session begins with `{HANDSHAKE}`, which answers with it.",
            )
        session = None
        if 0 < len(id) <= _MOST_ID_BYTES:
            session = await self._sessions.find(id, caller.principal)
        if session is None:
            raise Refusal(404, f"There is no such session (any more); begin again with `{HANDSHAKE}`.")  # L11-24
        return session

    def _check_in_flight(self, session: Session, request_id: int | str) -> None:
        in_flight = session.connection.in_flight
        if request_id in in_flight:  # D9, L11-07
            raise InvalidRequest("Invalid request: a request with this id is still being served.")
        most = self._server.limits.in_flight_per_connection
        if len(in_flight) >= most:
            raise busy(most)

    def _reply(self, session: Session | None, reply: HttpReply) -> SessionReply:
        polling = session is not None and self.era.may_close_early(session.connection)
        return SessionReply(reply, session, self._sessions.streams, polling=polling)

    def _call(
        self,
        id: int | str,
        envelope: Envelope,
        headers: Headers,
        caller: Caller,
        reply: Answering,
        session: Session | None,
    ) -> Call:
        connection = None if session is None else session.connection
        call = Call(
            self._server,
            id,
            envelope,
            self.era,
            reply,
            headers,
            caller.address,
            connection=connection,
            token_info=caller.token_info,
        )
        call.session = session
        return call

    async def _notified(self, session: Session | None, frame: Frame) -> None:
        if session is not None:
            await self._sessions.notified(session, frame)

    async def _refuse(self, error: ProtocolError, frame: Frame, reply: Answering) -> None:
        note_refusal(error)
        wire = self.era.refuse(error, opened=False)
        await reply.answer(wire.status, encode_error(frame.reply_id, wire.code, wire.message, wire.data))


def _forget(session: Session, request_id: int | str, cancellation: Cancellation) -> None:
    """The id is free again, unless it was given up and given to another request meanwhile."""
    if session.connection.in_flight.get(request_id) is cancellation:
        del session.connection.in_flight[request_id]


async def _gone(receive: Receive, news: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    news.set()
