"""HTTP+SSE, the transport of the oldest revision: one stream for everything the server says, and a place to POST to.

A client opens the stream with GET. Its first event names the place where the client sends its messages; they are
acknowledged with 202, and all that comes of them, answers included, follows on the stream (L24-01 to L24-04). The
session lives as long as the stream: a client that loses it begins again.

Served for those who have such clients, next to the endpoint that replaced it, and only where asked for (COMPAT-20,
COMPAT-21). What the messages mean is the session exchange's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from urllib.parse import parse_qs, quote

from weft.eras.session import SESSION
from weft.errors import UsageError
from weft.jsonrpc import Frame, decode
from weft.limits import Limits
from weft.net.asgi import Receive, Refusal, Scope
from weft.protocol.headers import Headers
from weft.protocol.sse import encode as encode_event
from weft.server.http.reply import HttpReply
from weft.server.http.request import read_caller
from weft.server.http.session import SSE_PREFIX, SessionExchange
from weft.server.http.session_streams import StreamForm, check_takes_stream
from weft.server.runtime.runtime import Runtime
from weft.server.runtime.subscriptions import Show, at_expiry
from weft.server.sessions.session import Session, read_batch
from weft.server.sessions.sessions import Sessions
from weft.server.sessions.streams import StoredEvent

MESSAGES = "messages"  # the last part of the path to POST to

_MOST_QUERY_BYTES = 1024


class _Opened:
    """A stream that is open here, and what keeps it open."""

    def __init__(self, show: Show) -> None:
        self.show = show  # takes the token that came with a message
        self.unanswered = 0  # requests


class _StreamReply:
    """Everything that one request brings about goes on the stream of its session, whichever worker has it open."""

    can_stream = True

    def __init__(self, sessions: Sessions, session: Session, stream: _Opened | None) -> None:
        self._sessions = sessions
        self._session = session
        self._stream = stream  # which waits for the answer, where it is open here
        self.answered = False
        if stream is not None:
            stream.unanswered += 1

    async def notify(self, message: bytes) -> None:
        if not self.answered:
            await self._session.send(message)

    async def answer(self, status: int, body: bytes) -> None:
        self.answered = True
        try:
            await self._session.send(body)
        except BaseException:
            self._sessions.end_soon(self._session)  # a client that sees its stream end need not wait for the answer
            raise
        finally:
            self.drop()

    async def give_up(self) -> None:
        self.answered = True
        self.drop()

    def drop(self) -> None:
        """The stream need not wait for it any more."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.unanswered -= 1
            if self._sessions.closing and self._session.wake is not None:
                self._session.wake.set()

    async def close_stream(self, retry_seconds: float) -> None:
        """Not possible: the stream is the session."""

    def epilogue(self, message: bytes) -> None:
        """Do nothing: no method of sessions has an epilogue."""

    async def end(self) -> None:
        """Do nothing: the stream is the session."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Do nothing: an answer on the stream has no headers."""


class SseExchange:
    """The two places of the transport, next to an endpoint."""

    def __init__(
        self, runtime: Runtime, sessions: Sessions, exchange: SessionExchange, path: str, taken: AbstractSet[str]
    ) -> None:
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
        self._open: dict[str, _Opened] = {}  # by session

    # GET: a stream, and a session for as long as it is open.

    async def open(self, scope: Scope, receive: Receive, reply: HttpReply) -> None:
        """Open a session and send everything that is to be said in it."""
        check_takes_stream(reply)
        caller = read_caller(scope)
        session = self._exchange.new_session(caller, prefix=SSE_PREFIX)
        session.in_use += 1  # by the stream
        await self._sessions.keep(session)
        unused = asyncio.get_running_loop().call_later(
            self._runtime.limits.session_unused_seconds, self._end_if_unused, session
        )
        try:
            with at_expiry(self._runtime, caller.token_info, partial(self._expire, session)) as show:
                stream = self._open[session.id] = _Opened(show)
                form = StreamForm(self._address(scope, session), _encode, lambda: stream.unanswered > 0)
                await self._exchange.streams.standalone(session, 0, receive, reply, form)
        finally:
            self._open.pop(session.id, None)
            unused.cancel()
            self._sessions.end_soon(session)

    def _expire(self, session: Session) -> bool:
        """No token that was shown for this session is good any more. It ends, once what was asked is answered."""
        if self._open[session.id].unanswered:
            return True
        self._sessions.end_soon(session)
        return False

    def _address(self, scope: Scope, session: Session) -> bytes:
        """The first event: where to send messages to, as a path from the root of the host (L24-02)."""
        path = quote(scope.get("root_path", "") + self._messages)
        return encode_event(f"{path}?session_id={session.id}".encode(), event="endpoint")

    def _end_if_unused(self, session: Session) -> None:
        if not session.connection.handshake_done and not session.stale:
            self._sessions.end_soon(session)

    # POST: messages, whose answers go on the stream.

    async def find(self, scope: Scope) -> Session:
        """The session that a message is for."""
        query: bytes = scope["query_string"]
        if len(query) > _MOST_QUERY_BYTES:
            raise Refusal(400, f"The query has at most {_MOST_QUERY_BYTES} bytes: send to the address of the stream.")
        ids = parse_qs(query.decode("latin-1")).get("session_id", [])
        session = None
        if len(ids) == 1 and ids[0].startswith(SSE_PREFIX):
            session = await self._sessions.find(ids[0], read_caller(scope).principal)
        if session is None:
            raise _unknown()
        return session

    async def take(self, session: Session, body: bytes, headers: Headers, scope: Scope, reply: HttpReply) -> None:
        """Take one message, or an array of them of a client whose revision has that (L03-01)."""
        caller = read_caller(scope)
        batches = SESSION.takes_batches(session.connection)
        frames = _read(body, self._runtime.limits, batches=batches)
        if session.ended:  # meanwhile
            raise _unknown()
        stream = self._open.get(session.id)
        if stream is not None:
            stream.show(caller.token_info)
        for frame in frames:  # each is answered by itself (L03-03)
            is_asked = not isinstance(frame, Frame) or frame.is_request
            answer = _StreamReply(self._sessions, session, stream if is_asked else None)
            if isinstance(frame, Frame):
                await self._exchange.take(session, frame, headers, caller, answer)
            else:
                await answer.answer(400, frame)
        await reply.accept()


def _read(body: bytes, limits: Limits, *, batches: bool) -> list[Frame | bytes]:
    """The messages of a body; in place of one in an array that is none, the refusal of it."""
    if batches and body.lstrip()[:1] == b"[":
        return read_batch(body, limits)
    return [decode(body, limits)]


def _unknown() -> Refusal:
    return Refusal(404, "There is no such session (any more); open a new stream with GET.")


def _encode(event: StoredEvent) -> bytes:
    """No id: a stream that was lost is not taken up again."""
    return encode_event(event.data, event="message")
