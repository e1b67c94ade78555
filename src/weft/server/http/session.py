"""Serve HTTP requests that belong to a session: messages, batches, and replies that outlive a connection.

The answer to one request of a session: JSON, or a stream that outlives its connection.

Unlike in the stateless era, a client that goes away has not given its request up (L11-13). What is sent on a stream is
kept, so that the client can come back and have the rest; the call goes on meanwhile. From 2025-11-25 on the server may
also send the client away itself, to be asked later (L11-15, L11-16).

Batches: several messages in one array, of the one revision that has them (L03-01, L03-03).

Messages of the session era over HTTP: found their session, dispatched, answered; its streams; its end.

A request is served in a task of its own, because it may outlive its HTTP exchange: a client that disconnects has not
given it up (L11-13). Only `notifications/cancelled` and the end of the session do that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from weft.eras.base import Envelope, Peer, ServerEra, choose
from weft.eras.session import HANDSHAKE, SESSION, HeaderPeer
from weft.errors import ProtocolError
from weft.jsonrpc import Frame, decode, encode_error
from weft.net.asgi import Receive, Refusal, Scope
from weft.protocol.headers import Headers
from weft.protocol.sse import encode as encode_event
from weft.server.calls.call import Call, Reply
from weft.server.calls.connection import Cancellation
from weft.server.calls.tasks import take_back
from weft.server.diagnostics import note_refusal, report
from weft.server.http.reply import Accepts, HttpReply
from weft.server.http.request import Caller, read_caller
from weft.server.http.session_streams import SessionStreams, check_takes_stream
from weft.server.runtime.dispatch import Answer
from weft.server.runtime.load import busy, still_served, stopped
from weft.server.runtime.request_log import refused
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.session import Session, read_batch
from weft.server.sessions.sessions import Sessions, SessionsFull
from weft.server.sessions.streams import Streams
from weft.types.base import RequestId


class Answering(Reply, Protocol):
    """Where the output of one request of a session goes, and its answer too."""

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer."""
        ...

    async def give_up(self) -> None:
        """There will be no answer."""
        ...

    def drop(self) -> None:
        """Whoever was to do one of the two has ended: nobody need wait, if it has done neither."""
        ...


class SessionReply(HttpReply):
    """Writes the response of one request, and lets go of it when the client does."""

    def __init__(self, origin: HttpReply, session: Session | None, streams: Streams, *, polling: bool) -> None:
        super().__init__(origin.send, origin.limits)  # takes over from the one made before the era was known
        self.accepts = origin.accepts
        self.metadata_url = origin.metadata_url
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the HTTP response is
        self._session = session
        self._streams = streams
        self._polling = polling  # clients of its revision come back when they are sent away; never without a session
        self.last_event: str | None = None  # the id of what was written last
        self._stream: str | None = None  # its name, once there is one; never without a session
        self._answered = False
        self._handed_over = False
        self._lost = False  # something could not be kept, and that is in the log

    @property
    def is_stream(self) -> bool:
        """Whether it has become one, wherever the client is."""
        return self._stream is not None or self.streaming

    @property
    def answered(self) -> bool:
        """Whether the answer is written, wherever the client is."""
        return self._answered

    async def notify(self, message: bytes) -> None:
        """Send a message that belongs to the call, before its answer."""
        if self._answered or Accepts.STREAM not in self.accepts:
            return
        async with self._held:
            if not self._answered:
                await self._write(message, last=False)

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer. Where the client has gone from a stream, it is kept for when it comes back."""
        async with self._held:
            self._answered = True
            if self.is_stream or (self.accepts is Accepts.STREAM and status == 200):
                await self._write(body, last=True)
            elif not self.finished:
                await self._answer_json(status, body)
        self._conclude()

    async def give_up(self) -> None:
        """The call was cancelled: nothing more is said (CAN-09), but the response has to end."""
        async with self._held:
            self._answered = True
            if self._stream is not None and self._session is not None and not self._session.ended:
                await self._keep(b"", last=True)
            if self.streaming and not self.finished:
                await self._event(b"", last=True)
            elif not self.finished:
                await self.accept()
        self._conclude()

    async def close_stream(self, retry_seconds: float) -> None:
        """Send the client away for a while: it comes back for the rest (L11-16). Where it would not, do nothing."""
        if not self._polling or not self.can_stream:
            return
        async with self._held:
            retry = round(retry_seconds * 1000)
            last_words = b"retry: %d\n\n" % retry
            if self._stream is None and not self.finished and not self._answered:
                await self._prime(retry)
                last_words = b""
            if self._answered or self._lost:  # what is not kept is lost to who goes
                return
            if self.finished:
                self._send_on(retry)
            else:
                await self._event(last_words, last=True)
        self.let_go()

    def _send_on(self, retry: int) -> None:
        """The client has come back for this stream before: send it away from where it reads now."""
        assert self._session is not None
        taken_up = self._session.resumed.pop(self._stream or "", None)
        if taken_up is not None:
            taken_up.end(retry)

    def drop(self) -> None:
        """Nobody writes here any more."""
        self.let_go()

    def let_go(self) -> None:
        """The HTTP response is over, whoever ended it; the call may go on."""
        self.close()
        if not self.over.done():
            self.over.set_result(None)

    def hand_over(self) -> None:
        """The client reads the rest elsewhere: this response ends without it."""
        if not self.finished:
            self._handed_over = self.streaming
        self.let_go()

    async def finish(self) -> None:
        """Once the response is over: end it on the wire too, where that was not done with the last event."""
        if self._handed_over:
            await self._event(b"", last=True)

    def _conclude(self) -> None:
        """Nothing follows, here or wherever the client has gone."""
        self.let_go()
        if self._stream is not None and self._session is not None:
            self._session.open_streams.pop(self._stream, None)
            if self._lost and (taken_up := self._session.resumed.pop(self._stream, None)) is not None:
                taken_up.end()  # it may wait for an end that is not kept

    async def _write(self, message: bytes, *, last: bool) -> None:
        session = self._session
        if session is None or session.ended:  # nobody would come for what was kept: a plain stream
            if not self.finished:
                await self._event(encode_event(message), last=last)
            return
        if self._stream is None:
            await self._prime(None)
        assert self._stream is not None
        kept = await self._keep(message, last=last)
        if self.finished:  # the client may read it elsewhere, at its own pace
            await self._streams.room(session.id, self._stream)
        else:
            await self._event(encode_event(message, id=kept), last=last)

    async def _keep(self, message: bytes, *, last: bool = False) -> str | None:
        """Keep an event for a client that comes back; its id.

        None where that failed: the call has not, and who is still there hears of it all the same.
        """
        assert self._session is not None
        assert self._stream is not None
        try:
            self.last_event = await self._streams.append(self._session.id, self._stream, message, is_last=last)
        except Exception as error:  # noqa: BLE001 - whatever a Backend raises
            if not self._lost:
                report("Keeping the stream of a call in the Backend", error, debug=False)
            self._lost = True
            return None
        return self.last_event

    async def _prime(self, retry: int | None) -> None:
        """Begin a stream. Where clients know of it, with an event that holds nothing but an id to come back with."""
        assert self._session is not None
        self._stream = self._session.name_stream()
        self._session.open_streams[self._stream] = self
        if self._polling:
            kept = await self._keep(b"")
            if not self.finished:
                await self._event(encode_event(b"", id=kept, retry=retry), last=False)

    async def _cut(self, reason: str, *, last: bool) -> None:
        """A client that does not read has gone as far as this response is concerned."""
        self.let_go()


class Batch:
    """The answers to the requests of one array: a JSON array, or the events of a stream once there is one."""

    def __init__(self, reply: SessionReply, size: int) -> None:
        self._reply = reply
        self._missing = size
        self._answers: list[bytes] = []

    @property
    def can_stream(self) -> bool:
        """Whether messages before the answers get there."""
        return self._reply.can_stream

    def part(self) -> _Part:
        """Where the output of one of the requests goes."""
        return _Part(self)

    async def notify(self, message: bytes) -> None:
        """Send a message that belongs to one of the requests: the answers that are there follow it on the stream."""
        await self._reply.notify(message)
        await self._spill()

    async def add(self, answer: bytes | None) -> None:
        """One request is answered, or (None) never will be."""
        self._missing -= 1
        if answer is not None:
            self._answers.append(answer)
        if not self._missing:
            await self._finish()
        elif self._reply.is_stream:
            await self._spill()

    def drop(self) -> None:
        """Whoever was to answer one of the requests has ended without: the rest is not waited for."""
        self._reply.drop()

    async def _spill(self) -> None:
        while self._answers and self._reply.is_stream and self._missing:
            await self._reply.notify(self._answers.pop(0))

    async def _finish(self) -> None:
        if self._reply.is_stream:
            *others, last = self._answers or [b""]
            for answer in others:
                await self._reply.notify(answer)
            await (self._reply.answer(200, last) if last else self._reply.give_up())
        elif self._answers:
            await self._reply.answer(200, b"[" + b",".join(self._answers) + b"]")
        else:
            await self._reply.give_up()


class _Part:
    """The reply of one request of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.answered = False

    @property
    def can_stream(self) -> bool:
        return self._batch.can_stream

    async def notify(self, message: bytes) -> None:
        if not self.answered:
            await self._batch.notify(message)

    def epilogue(self, message: bytes) -> None:
        """Do nothing: the stream ends with the last answer."""

    async def end(self) -> None:
        """Do nothing: the stream is shared by all requests of the batch."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Do nothing: the headers are those of the whole batch."""

    async def close_stream(self, retry_seconds: float) -> None:
        """The stream is not this request's alone."""

    async def answer(self, status: int, body: bytes) -> None:
        self.answered = True
        await self._batch.add(body)

    async def give_up(self) -> None:
        self.answered = True
        await self._batch.add(None)

    def drop(self) -> None:
        if not self.answered:
            self.answered = True
            self._batch.drop()


log = logging.getLogger("weft.sessions")

SESSION_HEADER = b"mcp-session-id"
LAST_EVENT_HEADER = b"last-event-id"

# Of the ids of sessions that live as long as the one stream of another transport: nobody has them at this endpoint. No
# other id begins so, for none has a dot.
SSE_PREFIX = "sse."

_MOST_ID_BYTES = 128


@cache  # once in a process: a client can name as many sessions as it likes
def _warn_of_sessions() -> None:
    log.warning(
        "A client named a session that this process does not know: it has expired, or it was opened before a restart, "
        "or in another process. Where several processes serve the same clients (`uvicorn --workers`), each has its own "
        "sessions: pass sessions=False to asgi(), give the Server a backend= that they share, or use `weft run "
        "--workers`."
    )


class SessionExchange:
    """Serves sessions at one endpoint; or, where `keeps_sessions` is false, clients of that era without any."""

    era = SESSION

    def __init__(self, runtime: Runtime, sessions: Sessions, *, keeps_sessions: bool = True) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._keeps_sessions = keeps_sessions
        self.streams = SessionStreams(runtime, sessions)
        self.verbs: Sequence[str] = ("POST", "GET", "DELETE") if keeps_sessions else ("POST",)

    # POST: one message, or several at once.

    async def serve(self, frame: Frame, headers: Headers, scope: Scope, receive: Receive, reply: HttpReply) -> None:
        """Serve one message."""
        caller = read_caller(scope)
        if frame.method == HANDSHAKE and SESSION_HEADER not in headers.known:
            await self._greet(frame, headers, caller, reply)
            return
        session = await self._find(headers, caller)
        if frame.is_request:
            await self._request(session, frame, headers, caller, reply)
            return
        self.era.check_version(headers)  # of a request, that is checked when it is opened
        await self._hear(session, frame)
        await reply.accept()

    async def take(self, session: Session, frame: Frame, headers: Headers, caller: Caller, reply: Answering) -> None:
        """Take one message whose answer goes another way than the HTTP response."""
        if frame.is_request:
            await self._take_next(session, frame, headers, caller, reply)
        else:
            await self._hear(session, frame)

    async def _take_next(
        self, session: Session | None, frame: Frame, headers: Headers, caller: Caller, reply: Answering
    ) -> None:
        """Begin to serve a request of several that came at once: each of them counts (D9), and has an era of its own.

        One that says all about itself is not the session's (COMPAT-02). Like one that comes alone it needs the headers
        that repeat it, or it is refused.
        """
        era, _ = choose(self._runtime.eras, frame, headers)
        if self._runtime.is_full(own=1):  # the HTTP request that they came in
            await self._refuse(busy(self._runtime.limits.in_flight), frame, reply, era)
        elif (task := await self._start(session, frame, headers, caller, reply, era)) is not None:
            self._count_in(task)

    async def serve_batch(self, body: bytes, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """Serve an array of messages, of a client whose revision has them (L03-01); of another it is no message."""
        session = await self._find(headers, caller)
        self.era.check_version(headers)
        peer: Peer = HeaderPeer(headers) if session is None else session.connection
        if not self.era.takes_batches(peer):
            decode(body, self._runtime.limits)  # says why
        requests: list[Frame] = []
        wrong: list[bytes] = []
        for one in read_batch(body, self._runtime.limits):
            if isinstance(one, bytes):
                wrong.append(one)
            elif one.is_request:
                requests.append(one)
            else:
                await self._hear(session, one)
        if not requests and not wrong:
            await reply.accept()  # L03-03
            return
        whole = self._reply(session, reply)
        batch = Batch(whole, len(requests) + len(wrong))
        for refusal in wrong:
            await batch.add(refusal)
        for frame in requests:
            await self._take_next(session, frame, headers, caller, batch.part())
        await self._until_over(whole, None, None)

    async def _greet(self, frame: Frame, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """The handshake. If it succeeds there is a session from now on."""
        if not isinstance(frame.id, int | str):
            raise Refusal(400, "A handshake is a request: give it an id.")
        if not self._keeps_sessions:
            await self._request(None, frame, headers, caller, reply)
            return
        session = self.new_session(caller)
        answer = self._reply(None, reply)
        try:
            envelope = self.era.open(frame, headers, self._runtime.offer, session.connection)
        except ProtocolError as error:
            await self._refuse(error, frame, answer)
            return
        call = self._call(frame.id, envelope, headers, caller, answer, session)
        try:
            status, response = await self._runtime.dispatcher.run(call)
            if session.connection.handshake_done:
                await self._sessions.keep(session)
                answer.extra = [(SESSION_HEADER, session.id.encode())]
        finally:
            if not answer.extra:
                await session.connection.close()
        await answer.answer(status, response)

    def new_session(self, caller: Caller, *, prefix: str = "") -> Session:
        """A session for who begins one, if there is room."""
        try:
            return self._sessions.new(caller.principal, caller.peer, prefix=prefix)
        except SessionsFull:
            raise Refusal(503, "There are as many sessions as there may be, and all are in use. Try later.") from None

    async def _request(
        self, session: Session | None, frame: Frame, headers: Headers, caller: Caller, reply: HttpReply
    ) -> None:
        answer = self._reply(session, reply)
        task = await self._start(session, frame, headers, caller, answer)
        if task is not None:
            await self._until_over(answer, task, frame.reply_id)

    async def _until_over(
        self, reply: SessionReply, task: asyncio.Task[None] | None, request_id: RequestId | None
    ) -> None:
        """Wait for the end of the HTTP response; a task that goes on after it still counts as being served."""
        try:
            await reply.over
            await reply.finish()
        except asyncio.CancelledError:  # an ASGI server that stops, or that cancels when the client disconnects
            wire = self.era.refuse(stopped(), opened=True)
            await reply.part(wire.status, encode_error(request_id, wire.code, wire.message, wire.data))
            reply.let_go()
            raise
        finally:
            if task is not None and not task.done():
                self._count_in(task)

    def _count_in(self, task: asyncio.Task[None]) -> None:
        self._runtime.in_flight += 1
        task.add_done_callback(self._count_out)

    def _count_out(self, _: asyncio.Task[Any]) -> None:
        self._runtime.in_flight -= 1

    async def _start(
        self,
        session: Session | None,
        frame: Frame,
        headers: Headers,
        caller: Caller,
        reply: Answering,
        era: ServerEra = SESSION,
    ) -> asyncio.Task[None] | None:
        """Begin to serve a request; None if it was refused."""
        request_id = frame.id
        assert isinstance(request_id, int | str)
        peer: Peer = HeaderPeer(headers) if session is None else session.connection
        try:
            if session is not None:
                self._check_in_flight(session, request_id)
            first = session is None and frame.method == HANDSHAKE
            envelope = era.open(frame, headers, self._runtime.offer, None if first else peer)
        except ProtocolError as error:
            await self._refuse(error, frame, reply, era)
            return None
        call = self._call(request_id, envelope, headers, caller, reply, session, era)
        if session is None:
            self._sessions.sessionless_calls.add(call.cancellation)
        else:
            session.in_use += 1
            session.connection.in_flight[request_id] = call.cancellation
        task = asyncio.get_running_loop().create_task(self._run(call, session, reply))
        task.add_done_callback(lambda _: reply.drop())
        return task

    async def _run(self, call: Call, session: Session | None, reply: Answering) -> None:
        """Serve a call to its end. Whatever happens on the way, whoever waits for the answer is let go."""
        cancellation = call.cancellation
        task = cancellation.task = asyncio.current_task()  # not before: cancelled then, it would never clean up
        assert task is not None
        answer = None
        open_calls = self._runtime.open_calls
        open_calls.add(call)
        try:
            if not cancellation.cancelled:
                answer = await self._answer(call, session)
        finally:
            open_calls.remove(call)
            if session is None:
                self._sessions.sessionless_calls.discard(cancellation)
            else:
                session.in_use -= 1
                _forget(session, call.id, cancellation)
        if task.cancelling():
            await take_back(task)  # also ours: it was to stop the handler, not what is still to be done
        if cancellation.cancelled:
            told = cancellation.told
            answer = None if told is None else answer or self._runtime.dispatcher.refuse(call, told)
        try:
            await (reply.give_up() if answer is None else reply.answer(*answer))
        except Exception as error:  # noqa: BLE001 - a Backend that keeps no streams any more: nothing is left to say
            report(f"Answering {call.method}", error, debug=self._runtime.debug)

    async def _answer(self, call: Call, session: Session | None) -> Answer | None:
        """The answer to a call; None if it was given up."""
        unsaved = None  # what is remembered, where another call has changed that and could not save it
        if session is not None and session.connection.is_changed:
            unsaved = session.to_record()
        try:
            answer = await self._runtime.dispatcher.run(call)
        except asyncio.CancelledError as error:
            # The task is the call's own: where nobody has given the call up, its handler has cancelled it (R1).
            return None if call.cancellation.cancelled else self._runtime.dispatcher.fail(call, error)
        try:
            if session is not None and session.connection.is_changed:
                await self._sessions.save(session)
        except Exception as error:  # noqa: BLE001 - whatever a Backend raises
            if session is not None and unsaved != session.to_record():
                return self._runtime.dispatcher.fail(call, error)
            report("Remembering a session", error, debug=self._runtime.debug)
        return answer

    # GET: the stream of a session, or the rest of one that was lost.

    async def listen(self, headers: Headers, caller: Caller, receive: Receive, reply: HttpReply) -> None:
        """Open the standalone stream, or go on with any stream after an event."""
        check_takes_stream(reply)
        session = await self._find(headers, caller)
        assert session is not None
        self.era.check_version(headers)
        if not session.connection.handshake_done:
            raise Refusal(400, "The handshake comes first.")
        await self.streams.listen(session, headers.get(LAST_EVENT_HEADER), receive, reply, caller.token_info)

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
        if 0 < len(id) <= _MOST_ID_BYTES and not id.startswith(SSE_PREFIX):
            session = await self._sessions.find(id, caller.principal)
        if session is None:
            _warn_of_sessions()
            raise Refusal(404, f"There is no such session (any more); begin again with `{HANDSHAKE}`.")  # L11-24
        return session

    def _check_in_flight(self, session: Session, request_id: int | str) -> None:
        in_flight = session.connection.in_flight
        if request_id in in_flight:  # L11-07
            raise still_served()
        most = self._runtime.limits.in_flight_per_connection
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
        era: ServerEra = SESSION,
    ) -> Call:
        connection = None if session is None else session.connection
        call = Call(
            self._runtime,
            id,
            envelope,
            era,
            reply,
            headers,
            caller.address,
            connection=connection if era.remembers else None,
            in_flight=None if connection is None else connection.in_flight,
            token_info=caller.token_info,
        )
        call.session = session if era.remembers else None
        return call

    async def _hear(self, session: Session | None, frame: Frame) -> None:
        """Take a message that is not answered: a notification, or the answer to a question."""
        if session is None:
            return
        if frame.is_notification:
            await self._sessions.notified(session, frame)
        else:
            await self._sessions.answered(session, frame)

    async def _refuse(self, error: ProtocolError, frame: Frame, reply: Answering, era: ServerEra = SESSION) -> None:
        note_refusal(error)
        wire = era.refuse(error, opened=False)
        refused(frame.method, era.name, f"{wire.status}/{wire.code}", wire.message)
        await reply.answer(wire.status, encode_error(frame.reply_id, wire.code, wire.message, wire.data))


def _forget(session: Session, request_id: int | str, cancellation: Cancellation) -> None:
    """The id is free again, unless it was given up and given to another request meanwhile."""
    if session.connection.in_flight.get(request_id) is cancellation:
        del session.connection.in_flight[request_id]
