"""Serve HTTP+SSE, the transport of the oldest revision, in addition to the MCP endpoint.

A client opens one stream with GET. The first event of the stream has the URL to which the client sends messages with
POST. Each POST is answered with 202, and the answers to the messages follow on the stream. The session ends with the
stream. The `SessionExchange` serves the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qs, quote

from weft.eras.session import SESSION
from weft.errors import UsageError
from weft.jsonrpc import Frame, decode
from weft.net.asgi import Refusal, Scope
from weft.protocol.headers import Headers
from weft.protocol.sse import encode as encode_event
from weft.server.http.reply import HttpReply
from weft.server.http.request import read_caller
from weft.server.http.session import SSE_PREFIX, Sender, SessionExchange
from weft.server.http.session_reply import SharedStreamReply
from weft.server.http.session_streams import StreamForm
from weft.server.runtime.runtime import Runtime
from weft.server.runtime.subscriptions import Show, at_expiry
from weft.server.sessions.session import Session, read_batch
from weft.server.sessions.sessions import SessionGone, Sessions
from weft.server.sessions.streams import StoredEvent
from weft.types.base import RequestId

MESSAGES = "messages"  # last segment of the path for POST requests

_MOST_QUERY_BYTES = 1024


@dataclass(eq=False)
class _OpenSseStream:
    """An HTTP+SSE stream that is open in this process."""

    show: Show  # called with the token of each message; the stream stays open until the last token expires
    unanswered: int = 0  # number of requests without an answer


class SseExchange:
    """Serves the two paths of HTTP+SSE: one for the stream, one for messages."""

    def __init__(
        self, runtime: Runtime, sessions: Sessions, exchange: SessionExchange | None, path: str, taken: AbstractSet[str]
    ) -> None:
        if exchange is None or not exchange.keeps_sessions:
            raise UsageError(
                f"sse_path={path!r} is not possible here: that transport has sessions. Leave sessions=False out, and "
                "have 'session' among the eras of the server."
            )
        folder, _, name = path.rpartition("/")
        self._messages = f"{folder}/{MESSAGES}"
        self.verbs: Mapping[str, Sequence[str]] = {path: ("GET",), self._messages: ("POST",)}
        if not path.startswith("/") or not name or len(self.verbs) < 2 or not taken.isdisjoint(self.verbs):
            raise UsageError(
                f"sse_path={path!r} is not possible: give a path like '/sse' that is not the endpoint's. Messages are "
                f"then sent to {MESSAGES!r} beside it, which must be free as well."
            )
        self._runtime = runtime
        self._sessions = sessions
        self._exchange = exchange
        self._open: dict[str, _OpenSseStream] = {}  # by session id

    # GET: a stream, and a session for as long as it is open.

    async def open(self, scope: Scope, reply: HttpReply) -> None:
        """Serve a GET request: create a session and send its stream. When the stream ends, end the session."""
        caller = read_caller(scope)
        session = self._exchange.new_session(caller, prefix=SSE_PREFIX)
        session.in_use += 1  # the stream uses it
        await self._exchange.keep_session(session)
        unused = asyncio.get_running_loop().call_later(
            self._runtime.limits.session_unused_seconds, self._end_if_unused, session
        )
        try:
            with at_expiry(self._runtime, caller.token_info, partial(self._expire, session)) as show:
                stream = self._open[session.id] = _OpenSseStream(show)
                form = StreamForm(self._address(scope, session), _encode, lambda: stream.unanswered > 0)
                await self._exchange.streams.standalone(session, 0, reply, form, None)
        except SessionGone:
            raise _unknown() from None
        finally:
            self._open.pop(session.id, None)
            unused.cancel()
            self._sessions.end_soon(session)

    def _expire(self, session: Session) -> bool:
        """End the session, because its tokens have expired, and return False.

        If the session has unanswered requests, do not end it, and return True. This method is then called again later.
        """
        if self._open[session.id].unanswered:
            return True
        self._sessions.end_soon(session)
        return False

    def _address(self, scope: Scope, session: Session) -> bytes:
        """Return the encoded first event of the stream. Its data is the path to which the client sends messages."""
        path = quote(scope.get("root_path", "") + self._messages)
        return encode_event(f"{path}?session_id={session.id}".encode(), event="endpoint")

    def _end_if_unused(self, session: Session) -> None:
        if not session.connection.handshake_done and not session.stale:
            self._sessions.end_soon(session)

    # POST: messages, whose answers go on the stream.

    async def find(self, scope: Scope) -> Session:
        """Return the session that the query string of a POST request names. Raise `Refusal` if it does not exist."""
        query: bytes = scope["query_string"]
        if len(query) > _MOST_QUERY_BYTES:
            raise Refusal(400, f"The query has at most {_MOST_QUERY_BYTES} bytes: send to the address of the stream.")
        ids = parse_qs(query.decode("latin-1")).get("session_id", [])
        session = None
        if len(ids) == 1 and ids[0].startswith(SSE_PREFIX):
            session = await self._exchange.find_session(ids[0], read_caller(scope).principal)
        if session is None:
            raise _unknown()
        return session

    async def serve(self, session: Session, body: bytes, headers: Headers, scope: Scope, reply: HttpReply) -> None:
        """Serve the body of a POST request: one message or, if the client's revision has batches, an array."""
        caller, limits = read_caller(scope), self._runtime.limits
        is_batch = body.lstrip()[:1] == b"[" and SESSION.takes_batches(session.connection)
        frames = read_batch(body, limits) if is_batch else [decode(body, limits)]
        async with self._exchange.hold(caller, frames) as calls:
            if session.ended:  # while the body was read, or while the request was counted
                raise _unknown()
            stream = self._open.get(session.id)
            if stream is not None:
                stream.show(caller.token_info)
            else:  # tell the worker that has the stream, in case this one dies
                requests = [frame.reply_id for frame in frames if isinstance(frame, Frame) and frame.is_request]
                await session.begin(requests)
            new_reply = partial(self._new_reply, session, stream)
            await self._exchange.serve_several(Sender(session, headers, caller), frames, new_reply, calls)
            await reply.accept()

    def _new_reply(self, session: Session, stream: _OpenSseStream | None, id: RequestId | None) -> SharedStreamReply:
        """Return a reply that sends notifications and the answer to a request on the stream of the session.

        `stream` is this stream, which stays open until the answer is sent. It is None if the client is connected to
        another worker.
        """

        def count_out() -> None:
            if stream is not None:
                stream.unanswered -= 1
                if self._sessions.closing and session.wake is not None:
                    session.wake.set()

        async def finish(answer: bytes | None) -> None:
            try:
                if answer is not None:
                    await (session.send(answer) if stream is not None else session.send_answer(answer, id))
                elif stream is None:  # tell the worker that has the stream that there is no answer to wait for
                    with suppress(Exception):
                        await session.send_answer(None, id)
            except BaseException:
                self._sessions.end_soon(session)  # ends the stream, so that the client does not wait for the answer
                raise
            finally:
                count_out()

        if stream is not None:
            stream.unanswered += 1
        return SharedStreamReply(session.send, finish, count_out)


def _unknown() -> Refusal:
    return Refusal(404, "There is no such session (any more); open a new stream with GET.")


def _encode(event: StoredEvent) -> bytes:
    """Encode an event without an id, because the stream cannot be resumed."""
    return encode_event(event.data, event="message")
