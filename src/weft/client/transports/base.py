"""What a transport is to the client, and what those that are one line in, one line out have in common.

A transport carries encoded messages to one server and decoded messages back. It matches an answer with its request by
the id; all else that comes it hands to `receive`, and does not look into it: what a message means, how often
something is tried, how long it may take and how it is cancelled is decided by its callers.

Two families exist. Over HTTP every request has a stream of its own, which ends with it. Over a pipe — a child process,
a server in this process, the HTTP+SSE transport of the first revision — all share one stream: `PipeTransport` is
their common part. A new pipe needs `_start`, `_write` and `_stop`, and calls `_incoming` with what arrives and `_lost`
when nothing will.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import msgspec
from msgspec import UNSET

from weft.client.transports.reading import as_sent, bounds_of, error_in, is_nameless, split_messages, whom_it_answers
from weft.errors import ConnectionFailed, InvalidAnswer, ProtocolError, WeftError
from weft.jsonrpc import Frame, decode
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits
from weft.protocol.logs import Seldom, masked_body, printable
from weft.types.base import RequestId

__all__ = ["NO_HEADERS", "Answer", "Lost", "PipeTransport", "Receive", "Refused", "Transport", "wire_log"]

log = logging.getLogger("weft.client")
wire_log = logging.getLogger("weft.client.wire")  # with DEBUG, all that is sent (>) and received (<), secrets masked

Receive = Callable[[Frame, RequestId | None], None]
"""Takes a notification or a request of the server, with the id of the request on whose stream it came (HTTP), or None.
Never awaits, never raises."""

Lost = Callable[[ConnectionFailed], None]
"""Told once, when the connection has ended by itself."""

NO_HEADERS: Mapping[str, str] = {}


class Answer(msgspec.Struct, gc=False):
    """A response, with a result or an error; and the headers it came with, over HTTP (looked up in any case)."""

    frame: Frame
    headers: Mapping[str, str] = NO_HEADERS

    @property
    def result(self) -> bytes:
        """The result, of an answer that has one; a decoder reads Raw as it reads bytes."""
        assert self.frame.result is not UNSET
        return self.frame.result


class Refused(WeftError):
    """An HTTP status that is no success, as it came. The body may hold a JSON-RPC error: `frame` is that, if so."""

    def __init__(self, where: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"{where} answered with the HTTP status {status}.")
        self.where = where
        self.status = status
        self.headers = headers
        self.body = body
        self.frame = error_in(body)
        self.was_seen = False  # the request itself had been accepted: something that came later was refused
        self.what = ""  # that other thing

    @property
    def reason(self) -> str:
        """Why, in the server's own words: one line, where its body has a sentence in a place known for that."""
        try:
            told = msgspec.json.decode(self.body, type=_Told)
        except (msgspec.DecodeError, RecursionError):
            return ""
        error = told.error
        inner = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
        for text in (told.error_description, told.message, told.detail, inner):
            if isinstance(text, str) and text.strip():
                return printable(text.strip()[:300])
        return ""


class _Told(msgspec.Struct):
    """Where refusals have their sentence: in JSON-RPC, in OAuth, and by custom."""

    error: Any = None
    error_description: Any = None
    message: Any = None
    detail: Any = None


class Transport(Protocol):
    """One connection to one server. All of it may be called from any task of the loop that opened it."""

    kind: str  # "http", "stdio", "memory", "sse": for error texts and logs
    where: str  # the server, for error texts: a URL, a command
    stream_per_request: bool  # closing a request's stream is visible to the server (HTTP)

    async def open(self, receive: Receive, lost: Lost) -> None:
        """Connect; ConnectionFailed when that cannot be. HTTP connects with the first request."""
        ...

    async def reopen(self) -> None:
        """Start over after the connection was lost: a child process is started anew. HTTP has nothing to do."""
        ...

    async def request(
        self, message: bytes, request_id: RequestId, headers: Mapping[str, str] = NO_HEADERS, *, resumable: bool = False
    ) -> Answer:
        """Send a request and wait for its answer. Cancelling the wait gives up the stream, and tells nobody.

        `headers` mean something over HTTP only; so does `resumable`: a stream that breaks off is taken up again where
        it was, by Last-Event-ID. Raises Refused, ConnectionFailed or InvalidAnswer.
        """
        ...

    async def send(self, message: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send a notification or a response. Raises as `request` does."""
        ...

    async def stand(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Keep the stream open on which the server speaks up by itself, where it is one of its own (HTTP).

        Calls `opened` when it stands, or when the server has none; returns then, and where there is nothing to open.
        Runs until it is cancelled. Raises Refused when the server does not take it any more, and ConnectionFailed when
        it is lost and could not be opened again several times in a row.
        """
        ...

    async def dismiss(self, headers: Mapping[str, str]) -> None:
        """Tell the server that its session is over (L11-26). Whether it minds is of no interest."""
        ...

    async def close(self) -> None:
        """End the connection; whatever still waits on it gets a ConnectionFailed. May be called twice."""
        ...


class PipeTransport:
    """The common part of all transports on which messages follow each other in both directions."""

    kind = "pipe"
    stream_per_request = False
    has_read = True  # False where the server ended, and is known to have read nothing of what it was sent

    def __init__(self, where: str, limits: ClientLimits = DEFAULT_CLIENT_LIMITS) -> None:
        self.where = where
        self.limits = limits
        self._bounds = bounds_of(limits)
        self._waiting: dict[RequestId, _Waiting] = {}  # requests that are not answered yet
        self._receive: Receive = _ignore
        self._tell_lost: Lost = _ignore
        self._failure: ConnectionFailed | None = None  # why nothing can be sent any more
        self._open = False
        self._stopping: asyncio.Task[None] | None = None  # the last end, under way or done
        self._has_answered = False  # since it was opened
        self._seldom = Seldom(log)  # for what the server can cause at will

    # --- what a pipe implements

    async def _start(self) -> None:
        """Connect. From now on `_incoming` may be called."""
        raise NotImplementedError

    def _write(self, message: bytes) -> Awaitable[None] | None:
        """Send one message, without the newline; None where there is nothing to wait for.

        Raises ConnectionFailed when it cannot be sent.
        """
        raise NotImplementedError

    async def _stop(self) -> None:
        """End the connection and free what it holds. Called for every `_start` but one that failed by itself."""
        raise NotImplementedError

    # --- what a pipe calls

    def _incoming(self, data: bytes) -> None:
        """Take one message as it arrived. Whatever cannot be read is logged and left out (R1)."""
        if not self._open:
            return
        if wire_log.isEnabledFor(logging.DEBUG):
            wire_log.debug("< %s", masked_body(data))
        try:
            parts = (data,) if data[:1] == b"{" else split_messages(data, self._bounds)
        except ProtocolError as error:
            self._unreadable(data, error)
            return
        for part in parts:
            try:
                frame = decode(part, self._bounds)
            except ProtocolError as error:
                self._unreadable(part, error)
                continue
            if frame.is_response:
                self._settle(frame)
            else:
                self._receive(frame, None)

    def _lost(self, failure: ConnectionFailed) -> None:
        """Nothing more will come: everybody who waits is told why."""
        if self._failure is not None or not self._open:
            return
        self._fail(failure)
        self._tell_lost(failure)

    # --- Transport

    async def open(self, receive: Receive, lost: Lost) -> None:
        """Connect."""
        self._receive = receive
        self._tell_lost = lost
        await self._begin()

    async def reopen(self) -> None:
        """Start over."""
        await self._end(ConnectionFailed(f"The connection to {self.where} is started anew."))
        await self._begin()

    async def request(
        self, message: bytes, request_id: RequestId, headers: Mapping[str, str] = NO_HEADERS, *, resumable: bool = False
    ) -> Answer:
        """Send a request and wait for its answer."""
        if self._failure is not None:
            raise self._gone()
        waiting = self._waiting[request_id] = _Waiting()
        try:
            if (writing := self._out(message)) is not None:
                await writing
            while waiting.outcome is None:
                waiting.woken = asyncio.get_running_loop().create_future()
                await waiting.woken
        finally:
            self._waiting.pop(request_id, None)
            waiting.woken = None  # once cancelled it holds the cancellation, which holds this frame
        if isinstance(waiting.outcome, Answer):
            return waiting.outcome
        try:
            raise waiting.outcome
        finally:
            del waiting  # else the exception and this frame hold each other

    async def send(self, message: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send a notification or a response."""
        if self._failure is not None:
            raise self._gone()
        if (writing := self._out(message)) is not None:
            await writing

    async def stand(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Nothing to do: the pipe itself is that stream."""
        opened()

    async def dismiss(self, headers: Mapping[str, str]) -> None:
        """Nothing to do: the end of the pipe says it."""

    async def close(self) -> None:
        """End the connection."""
        await self._end(ConnectionFailed(f"The connection to {self.where} was closed."))

    # --- inside

    def _out(self, message: bytes) -> Awaitable[None] | None:
        if wire_log.isEnabledFor(logging.DEBUG):
            wire_log.debug("> %s", masked_body(message, from_client=True))
        return self._write(message)

    async def _begin(self) -> None:
        self._failure = None
        self._has_answered = False
        self._open = True
        try:
            await self._start()
        except BaseException:
            self._open = False
            self._fail(ConnectionFailed(f"There is no connection to {self.where}."))
            raise

    async def _end(self, failure: ConnectionFailed) -> None:
        was_open, self._open = self._open, False
        self._fail(failure)
        if was_open:
            self._stopping = asyncio.create_task(self._stop())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)  # one who gives up does not stop it, and the next one waits for it

    def _fail(self, failure: ConnectionFailed) -> None:
        if self._failure is None:
            self._failure = failure
        for waiting in self._waiting.values():
            if waiting.outcome is None:
                waiting.settle(self._gone())

    def _gone(self) -> ConnectionFailed:
        """Why nothing can be sent: a new exception each time, for many tasks may raise it."""
        return ConnectionFailed(str(self._failure))

    def _unreadable(self, data: bytes, error: ProtocolError) -> None:
        """What came is no message. Where it was meant as an answer, who waits for that need not wait any longer."""
        if (frame := error_in(data)) is not None:
            self._settle(frame)
            return
        is_answer, named = whom_it_answers(data)
        waiting = None
        if is_answer:
            waiting = self._only_one() if named is None else self._waiting.get(named)
        if waiting is None or waiting.outcome is not None:
            self._seldom.warning("%s sent something that is no message: %s", self.where, error)
        else:
            self._has_answered = True
            waiting.settle(InvalidAnswer(f"{self.where} sent an answer that cannot be read: {error}"))

    def _only_one(self) -> _Waiting | None:
        """The only one that an answer without an id can be about."""
        return next(iter(self._waiting.values())) if len(self._waiting) == 1 else None

    def _settle(self, frame: Frame) -> None:
        """Give an answer to whom it belongs. One that nobody waits for is late or made up: it is dropped (CAN-08)."""
        named: Any = frame.id
        waiting = self._waiting.get(named)
        if waiting is None:
            waiting = self._only_one() if is_nameless(frame) else self._waiting.get(as_sent(named))
        if waiting is None or waiting.outcome is not None:
            log.debug("%s answered a request that does not wait for it.", self.where)
        else:
            self._has_answered = True
            waiting.settle(Answer(frame))


class _Waiting:
    """A request that is not answered yet. A server in this process may answer while it is being asked: then nobody
    has to be woken up, and there is no future.
    """

    __slots__ = ("outcome", "woken")

    def __init__(self) -> None:
        self.outcome: Answer | WeftError | None = None
        self.woken: asyncio.Future[None] | None = None

    def settle(self, outcome: Answer | WeftError) -> None:
        self.outcome = outcome
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


def _ignore(*_: Any) -> None:
    """The receiver of a transport that is not open."""
