"""Serve HTTP requests of the session era: messages, batches, and responses that a client can resume.

Each request runs in its own task, because it continues if the client disconnects. Only `notifications/cancelled` and
the end of the session cancel a request. All events of a stream are stored, so that the client can reconnect and read
the rest. From revision 2025-11-25 on, the server may also close a stream early, and the client reconnects later.
Revision 2025-03-26 has batches: several messages in one array.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

from weft.eras.base import Envelope, Peer, ServerEra, choose
from weft.eras.session import HANDSHAKE, SESSION, HeaderPeer
from weft.errors import InvalidParams, ProtocolError
from weft.jsonrpc import Frame, decode, encode_error
from weft.net.asgi import Refusal, Scope
from weft.protocol.headers import Headers
from weft.server.calls.call import Call, Reply
from weft.server.calls.execution import take_back
from weft.server.diagnostics import report
from weft.server.http.reply import HttpReply, refusal_of
from weft.server.http.request import Caller, read_caller
from weft.server.http.session_reply import Answering, Batch, SessionReply, SharedStreamReply
from weft.server.http.session_streams import RESUMABLE, SessionStreams
from weft.server.runtime.admission import busy, still_served, stopped
from weft.server.runtime.dispatch import Answer
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.session import Session, read_batch
from weft.server.sessions.sessions import SessionGone, Sessions, SessionsFull
from weft.server.sessions.streams import STANDALONE, read_event_id
from weft.types.base import RequestId

log = logging.getLogger("weft.sessions")

SESSION_HEADER = b"mcp-session-id"
LAST_EVENT_HEADER = b"last-event-id"

# Prefix of session ids of the HTTP+SSE transport. This endpoint does not accept these ids. Other ids have no dot.
SSE_PREFIX = "sse."

_MOST_ID_BYTES = 128


@cache  # once in a process: a client can send any number of session ids
def _warn_of_sessions(*, is_shared: bool) -> None:
    if is_shared:
        log.warning(
            "A client named a session that is not in the backend. The session has expired or was ended, or the backend "
            "has lost its data."
        )
        return
    log.warning(
        "A client named a session that this process does not know: it has expired, or it was opened before a restart, "
        "or in another process. If several processes serve the same clients (`uvicorn --workers`), each has its own "
        "sessions: pass sessions=False to asgi(), give the Server a backend= that they share, or use `weft run "
        "--workers`."
    )


def _no_session() -> Refusal:
    return Refusal(404, f"There is no such session (any more); begin again with `{HANDSHAKE}`.")


def _no_room() -> Refusal:
    return Refusal(503, "The server has as many sessions as it allows, and all are in use. Try later.")


class Sender(NamedTuple):
    """The sender of an HTTP request: its session (None if the endpoint stores no sessions), headers and identity."""

    session: Session | None
    headers: Headers
    caller: Caller

    @property
    def peer(self) -> Peer:
        """The facts about the client: from the handshake of its session or, without a session, from the headers."""
        return HeaderPeer(self.headers) if self.session is None else self.session.connection


class SessionExchange:
    """Serves messages of the session era at one endpoint. If `keeps_sessions` is False, no sessions are stored."""

    era = SESSION

    def __init__(self, runtime: Runtime, sessions: Sessions, *, keeps_sessions: bool = True) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self.keeps_sessions = keeps_sessions
        self.streams = SessionStreams(runtime, sessions)
        self.verbs: Sequence[str] = ("POST", "GET", "DELETE") if keeps_sessions else ("POST",)

    # POST: one message, or several at once.

    async def serve(self, frame: Frame, headers: Headers, scope: Scope, reply: HttpReply) -> None:
        """Serve one message of a POST request, and write the HTTP response."""
        caller = read_caller(scope)
        async with self.hold(caller, [frame]) as calls:
            if frame.method == HANDSHAKE and SESSION_HEADER not in headers.known:
                await self._serve_handshake(frame, headers, caller, reply, calls)
                return
            sender = Sender(await self._find(headers, caller), headers, caller)
            if frame.is_request:
                await self._serve_request(sender, frame, reply, calls)
                return
            self.era.check_version(headers)  # for a request, `era.open` does that
            await self._receive(sender.session, frame)
            await reply.accept()

    async def serve_batch(self, body: bytes, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """Serve an array of messages, and write the HTTP response.

        Raises `ProtocolError` if the client's revision has no batches.
        """
        sender = Sender(await self._find(headers, caller), headers, caller)
        self.era.check_version(headers)
        if not self.era.takes_batches(sender.peer):
            decode(body, self._runtime.limits)  # raises the error
        messages = read_batch(body, self._runtime.limits)
        async with self.hold(caller, messages) as calls:
            if sender.session is not None and sender.session.ended:  # while the batch was counted
                raise _no_session()
            answerable: list[Frame | bytes] = []  # started last: if a notification fails, no request is running
            for one in messages:
                if isinstance(one, bytes) or one.is_request:
                    answerable.append(one)
                else:
                    await self._receive(sender.session, one)
            if not answerable:
                await reply.accept()
                return
            requests = [one.id for one in answerable if isinstance(one, Frame) and isinstance(one.id, int | str)]
            whole = self._reply(sender.session, reply, requests)
            # If a request gets no answer, the response of the whole batch ends: it would wait forever.
            add = Batch(whole, len(answerable)).add
            await self.serve_several(
                sender,
                answerable,
                lambda _: SharedStreamReply(whole.notify, add, whole.release, whole.can_stream),
                calls,
            )
            await self._wait_for_response(whole, None, None)

    def hold(
        self, caller: Caller, messages: Sequence[Frame | bytes]
    ) -> AbstractAsyncContextManager[list[asyncio.Task[None]]]:
        """Count an HTTP request while it is being served, and until the calls in the returned list have ended.

        Raises `TooMany` if the caller has reached a limit. If there is no limit, do nothing. See `PeerLimits.hold`.
        """
        limits = self._runtime.peer_limits
        return nullcontext([]) if limits is None else limits.hold(caller.peer, messages)

    async def serve_several(
        self,
        sender: Sender,
        messages: Sequence[Frame | bytes],
        new_reply: Callable[[RequestId | None], Answering],
        calls: list[asyncio.Task[None]],
    ) -> None:
        """Serve the messages of one HTTP request, and add the tasks of its calls to `calls`.

        An item of `messages` that is bytes is an encoded error, which is sent as it is.

        Each error and each request is answered with a reply from `new_reply`, which gets the id of the request. The
        requests may be of different eras. A request of the stateless era is served without the session, and only if the
        HTTP headers repeat its fields.
        """
        runtime = self._runtime
        for frame in messages:
            if isinstance(frame, bytes):
                await new_reply(None).answer(400, frame)
            elif not frame.is_request:
                await self._receive(sender.session, frame)
            else:
                era, _ = choose(runtime.eras, frame, sender.headers)
                reply = new_reply(frame.reply_id)
                if runtime.is_full(own=1):  # the HTTP request itself is counted
                    await reply.answer(*refusal_of(busy(runtime.limits.in_flight), frame, era))
                elif (task := await self._start(sender, frame, reply, era)) is not None:
                    calls.append(task)
                    self._count_in(task)

    async def _serve_handshake(
        self, frame: Frame, headers: Headers, caller: Caller, reply: HttpReply, calls: list[asyncio.Task[None]]
    ) -> None:
        """Serve a handshake. If it succeeds and the endpoint stores sessions, store a new session."""
        if not isinstance(frame.id, int | str):
            raise Refusal(400, "A handshake is a request: give it an id.")
        if not self.keeps_sessions:
            await self._serve_request(Sender(None, headers, caller), frame, reply, calls)
            return
        session = self.new_session(caller)
        try:
            envelope = self.era.open(frame, headers, self._runtime.offer, session.connection)
        except ProtocolError as error:
            await reply.answer(*refusal_of(error, frame, self.era))
            return
        call = self._call(Sender(session, headers, caller), frame.id, envelope, reply)
        try:
            status, response = await self._runtime.dispatcher.run(call)
            if session.connection.handshake_done:
                await self.keep_session(session)
                reply.extra = [(SESSION_HEADER, session.id.encode())]
        finally:
            if not reply.extra:
                await session.connection.close()
        await reply.answer(status, response)

    def new_session(self, caller: Caller, *, prefix: str = "") -> Session:
        """Return a new session for a caller. The id of the session begins with `prefix`.

        Raises `Refusal` if the limit of sessions is reached and all sessions are in use.
        """
        try:
            self._sessions.check_room(caller.peer)
        except SessionsFull:
            raise _no_room() from None
        return self._sessions.new(caller.principal, caller.peer, prefix=prefix)

    async def keep_session(self, session: Session) -> None:
        """Store a new session. Raises `Refusal` if there is no room for it any more, or if it has ended meanwhile."""
        try:
            await self._sessions.keep(session)
        except SessionsFull:
            raise _no_room() from None
        except SessionGone:
            raise Refusal(503, "The session has ended before it was stored. Try again.") from None

    async def _serve_request(
        self, sender: Sender, frame: Frame, reply: HttpReply, calls: list[asyncio.Task[None]]
    ) -> None:
        """Serve a request in a task, which is added to `calls`, and write the HTTP response."""
        answer = self._reply(sender.session, reply, [] if frame.reply_id is None else [frame.reply_id])
        task = await self._start(sender, frame, answer)
        if task is not None:
            calls.append(task)
            await self._wait_for_response(answer, task, frame.reply_id)

    async def _wait_for_response(
        self, reply: SessionReply, task: asyncio.Task[None] | None, request_id: RequestId | None
    ) -> None:
        """Wait until the HTTP response is over. If `task` continues after that, count it as in flight until it ends.

        If the ASGI server cancels the wait, the request `request_id` is answered with an error.
        """
        try:
            await reply.wait_until_over()
        except asyncio.CancelledError:  # an ASGI server that stops, or that cancels when the client disconnects
            wire = self.era.refuse(stopped(), opened=True)
            await reply.answer_cancelled(wire.status, encode_error(request_id, wire.code, wire.message, wire.data))
            reply.release()
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
        self, sender: Sender, frame: Frame, reply: Answering, era: ServerEra = SESSION
    ) -> asyncio.Task[None] | None:
        """Create and return the task that serves a request. If the request is refused, answer it and return None."""
        session, request_id = sender.session, frame.id
        assert isinstance(request_id, int | str)
        try:
            in_flight = {} if session is None else session.connection.in_flight
            if request_id in in_flight:
                raise still_served()
            if len(in_flight) >= self._runtime.limits.in_flight_per_connection:
                raise busy(self._runtime.limits.in_flight_per_connection)
            first = session is None and frame.method == HANDSHAKE
            envelope = era.open(frame, sender.headers, self._runtime.offer, None if first else sender.peer)
        except ProtocolError as error:
            await reply.answer(*refusal_of(error, frame, era))
            return None
        call = self._call(sender, request_id, envelope, reply, era)
        if session is not None:
            session.in_use += 1
            session.connection.in_flight[request_id] = call.cancellation
        task = asyncio.get_running_loop().create_task(self._run(call, session, reply))
        task.add_done_callback(lambda _: reply.release())
        return task

    async def _run(self, call: Call, session: Session | None, reply: Answering) -> None:
        """Run a call, and send its answer."""
        cancellation = call.cancellation
        # Not set before: a task that is cancelled before it starts would never clean up.
        task = cancellation.task = asyncio.current_task()
        assert task is not None
        answer = None
        open_calls = self._runtime.open_calls
        open_calls.add(call)
        try:
            if not cancellation.cancelled:
                answer = await self._answer(call, session)
        finally:
            open_calls.remove(call)
            if session is not None:
                session.in_use -= 1
                in_flight = session.connection.in_flight
                if in_flight.get(call.id) is cancellation:  # else another request has the same id by now
                    del in_flight[call.id]
        if task.cancelling():
            await take_back(task)  # the cancellation was for the handler, not for the rest of this function
        if cancellation.cancelled:
            told = cancellation.told
            answer = None if told is None else answer or self._runtime.dispatcher.refuse(call, told)
        try:
            await (reply.give_up() if answer is None else reply.answer(*answer))
        except Exception as error:  # noqa: BLE001 - of the Backend: there is no way left to answer
            report(f"Answering {call.method}", error, debug=self._runtime.debug)

    async def _answer(self, call: Call, session: Session | None) -> Answer | None:
        """Run a call, save its session if something in it was changed, and return the answer.

        Return None if the call was cancelled.
        """
        unsaved = None  # the record, if another call has changed it and could not save it
        if session is not None and session.connection.is_changed:
            unsaved = session.to_record(version=0)
        try:
            answer = await self._runtime.dispatcher.run(call)
        except asyncio.CancelledError as error:
            # If the call was not cancelled, its handler has cancelled the task.
            return None if call.cancellation.cancelled else self._runtime.dispatcher.fail(call, error)
        try:
            if session is not None and session.connection.is_changed:
                await self._sessions.save(session)
        except InvalidParams as error:
            return self._runtime.dispatcher.refuse(call, error)
        except asyncio.CancelledError:
            if not call.cancellation.cancelled:
                raise
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything
            if session is not None and unsaved != session.to_record(version=0):
                return self._runtime.dispatcher.fail(call, error)
            report("Remembering a session", error, debug=self._runtime.debug)
        return answer

    # GET: the standalone stream of a session, or the rest of an interrupted stream.

    async def listen(self, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """Serve a GET request: send the standalone stream, or the rest of the stream that `Last-Event-ID` names."""
        session = await self._find_named(headers, caller)
        if not session.connection.handshake_done:
            raise Refusal(400, "The handshake comes first.")
        stream, after = STANDALONE, None
        if (last_event := headers.get(LAST_EVENT_HEADER)) is not None:
            found = read_event_id(last_event)
            if found is None:
                raise Refusal(400, "The Last-Event-ID is not one of this server's.")
            stream, after = found
        session.in_use += 1
        try:
            if stream == STANDALONE:
                await self.streams.standalone(session, after, reply, RESUMABLE, caller.token_info)
            else:
                await self.streams.resume(session, stream, after or 0, reply)
        except SessionGone:
            raise _no_session() from None
        finally:
            session.in_use -= 1

    # DELETE: the end of a session.

    async def end(self, headers: Headers, caller: Caller, reply: HttpReply) -> None:
        """Serve a DELETE request: end the session that the headers name."""
        await self._sessions.end(await self._find_named(headers, caller))
        await reply.accept(204)

    # Shared by POST, GET and DELETE.

    async def _find_named(self, headers: Headers, caller: Caller) -> Session:
        """Return the session that the headers of a GET or DELETE request name. The endpoint must store sessions.

        Raises `Refusal` if there is no such session for this caller.
        """
        session = await self._find(headers, caller)
        assert session is not None
        self.era.check_version(headers)
        return session

    async def _find(self, headers: Headers, caller: Caller) -> Session | None:
        """Return the session that the headers name; None if the endpoint stores no sessions.

        Raises `Refusal` if the headers name no session, or a session that does not exist for this caller.
        """
        if not self.keeps_sessions:
            return None
        id = headers.get(SESSION_HEADER)
        if id is None:
            raise Refusal(
                400,
                f"The Mcp-Session-Id header is missing; a session begins with `{HANDSHAKE}`, whose response has it.",
            )
        session = None
        if 0 < len(id) <= _MOST_ID_BYTES and not id.startswith(SSE_PREFIX):
            session = await self.find_session(id, caller.principal)
        if session is None:
            _warn_of_sessions(is_shared=not self._runtime.backend.is_local)
            raise _no_session()
        return session

    async def find_session(self, id: str, principal: str | None) -> Session | None:
        """Return the session with this id and principal, or None. Raises `Refusal` if there is no room for it here."""
        try:
            return await self._sessions.find(id, principal)
        except SessionsFull:
            raise _no_room() from None

    def _reply(self, session: Session | None, reply: HttpReply, requests: Sequence[RequestId]) -> SessionReply:
        polling = session is not None and self.era.may_close_early(session.connection)
        return SessionReply(reply, session, self._sessions, requests, polling=polling)

    def _call(self, sender: Sender, id: int | str, envelope: Envelope, reply: Reply, era: ServerEra = SESSION) -> Call:
        session, headers, caller = sender
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

    async def _receive(self, session: Session | None, frame: Frame) -> None:
        """Handle a message that gets no answer: a notification, or the response to a request of the server.

        Without a session, ignore the message. Raises `Busy` if too many responses wait to be passed to other workers.
        """
        if session is None:
            return
        if frame.is_notification:
            await self._sessions.notified(session, frame)
            return
        self._runtime.in_flight -= 1  # while this HTTP request waits for another worker, it does not keep others out
        try:
            await self._sessions.answered(session, frame)
        finally:
            self._runtime.in_flight += 1
