"""Define what a transport is, read messages from bytes, and reach a server in this process.

A transport carries encoded messages to one server and decoded messages back. It matches an answer with its request by
the id, and hands everything else to `receive` unread. Its callers decide what a message means, how often something is
tried, how long it may take and how it is cancelled.

Over HTTP every request has a stream of its own. Over a pipe — a child process, a server in this process, the HTTP+SSE
transport of the first revision — all share one stream: `PipeTransport` is their common part. A new pipe implements
`start`, `write` and `stop`, and calls `incoming` with what arrives and `lost` when nothing will.

A server in this process is recognised by its method `pipe`. Every message crosses as bytes, both ways.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import ConnectionFailed, InvalidAnswer, InvalidRequest, ParseError, ProtocolError, WeftError
from weft.jsonrpc import Frame, check_bounds, decode
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits, Limits
from weft.net.logs import Seldom, masked_body
from weft.protocol.names import printable
from weft.types.base import RequestId

log = logging.getLogger("weft.client")
wire_log = logging.getLogger("weft.client.wire")  # with DEBUG, all that is sent (>) and received (<), secrets masked

Receive = Callable[[Frame, RequestId | None], None]
"""Takes a notification or a request of the server, with the id of the request on whose stream it came (HTTP), or None.
Never awaits, never raises."""

Lost = Callable[[ConnectionFailed], None]
"""Called once, when the connection has ended by itself."""

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
        """Start over after the connection was lost: a child process is started again. HTTP has nothing to do."""
        ...

    async def request(
        self, message: bytes, request_id: RequestId, headers: Mapping[str, str] = NO_HEADERS, *, resumable: bool = False
    ) -> Answer:
        """Send a request and wait for its answer. Cancelling the wait gives up the stream, and sends nothing.

        `headers` mean something over HTTP only; so does `resumable`: a stream that breaks off is taken up again where
        it was, by Last-Event-ID. Raises Refused, ConnectionFailed or InvalidAnswer.
        """
        ...

    async def send(self, message: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send a notification or a response. Raises as `request` does."""
        ...

    async def open_standalone_stream(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Keep the stream open on which the server speaks up by itself, where it is one of its own (HTTP).

        Calls `opened` when it is open, or when the server has none; returns then, and where there is nothing to open.
        Runs until it is cancelled. Raises Refused when the server does not take it any more, and ConnectionFailed when
        it is lost and could not be opened again several times in a row.
        """
        ...

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """End the session at the server. Its answer is ignored."""
        ...

    async def close(self) -> None:
        """End the connection; whatever still waits on it gets a ConnectionFailed. May be called twice."""
        ...


class Auth(Protocol):
    """The authorization of a client over HTTP: what goes along with a request, and what to do if that is refused."""

    async def headers(self, url: str, method: str) -> Mapping[str, str]:
        """Return the headers of the next request."""
        ...

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Look at a 401 or a 403; return True when it is worth while to try again.

        `given` is what `headers` returned for this request, `request` are its other headers.
        """
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

    async def start(self) -> None:
        """Connect. From now on `incoming` may be called."""
        raise NotImplementedError

    def write(self, message: bytes) -> Awaitable[None] | None:
        """Send one message, without the newline; None where there is nothing to wait for.

        Raises ConnectionFailed when it cannot be sent.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """End the connection and free what it holds. Called for every `start` but one that failed by itself."""
        raise NotImplementedError

    # --- what a pipe calls

    def incoming(self, data: bytes) -> None:
        """Take one message as it arrived. What cannot be read is logged and dropped."""
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

    def lost(self, failure: ConnectionFailed) -> None:
        """End the connection: all requests that wait fail with this."""
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
        await self._end(ConnectionFailed(f"The connection to {self.where} is started again."))
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

    async def open_standalone_stream(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Nothing to do: the pipe itself is that stream."""
        opened()

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """Nothing to do: the end of the pipe says it."""

    async def close(self) -> None:
        """End the connection."""
        await self._end(ConnectionFailed(f"The connection to {self.where} was closed."))

    # --- inside

    def _out(self, message: bytes) -> Awaitable[None] | None:
        if wire_log.isEnabledFor(logging.DEBUG):
            wire_log.debug("> %s", masked_body(message, from_client=True))
        return self.write(message)

    async def _begin(self) -> None:
        self._failure = None
        self._has_answered = False
        self._open = True
        try:
            await self.start()
        except BaseException:
            self._open = False
            self._fail(ConnectionFailed(f"There is no connection to {self.where}."))
            raise

    async def _end(self, failure: ConnectionFailed) -> None:
        was_open, self._open = self._open, False
        self._fail(failure)
        if was_open:
            self._stopping = asyncio.create_task(self.stop())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)  # one who gives up does not stop it, and the next one waits for it

    def _fail(self, failure: ConnectionFailed) -> None:
        if self._failure is None:
            self._failure = failure
        for waiting in self._waiting.values():
            if waiting.outcome is None:
                waiting.settle(self._gone())

    def _gone(self) -> ConnectionFailed:
        """Return why nothing can be sent: a new exception each time, for many tasks may raise it."""
        return ConnectionFailed(str(self._failure))

    def _unreadable(self, data: bytes, error: ProtocolError) -> None:
        """Handle what is no message. Where it was meant as an answer, the request that waits for it fails."""
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
        """Return the only request that an answer without an id can be about."""
        return next(iter(self._waiting.values())) if len(self._waiting) == 1 else None

    def _settle(self, frame: Frame) -> None:
        """Give an answer to its request. One that no request waits for is dropped."""
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
    """A request that is not answered yet.

    A server in this process may answer while it is being asked: then there is no future to wake up.
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
    """Ignore what comes while the transport is not open."""


_MOST_MESSAGES = 1000  # in one array: a client sends none, so few come back in one
_PIECE = 16 * 1024  # of a stream: what is read without looking at the time


def bounds_of(limits: ClientLimits) -> Limits:
    """Return the bounds of one message to a client."""
    return Limits(json_values=limits.json_values)


def split_messages(data: bytes, bounds: Limits) -> Sequence[bytes]:
    """Split a body, an event or a line into messages: one, or in one revision an array of them.

    InvalidRequest when an array has too many: all of them are taken in one go.
    """
    if data[:1] != b"{" and data.lstrip()[:1] == b"[":
        try:
            check_bounds(data, bounds)
            if data.count(b",") >= _MOST_MESSAGES and _count_objects(data) > _MOST_MESSAGES:
                raise InvalidRequest(f"Invalid request: an array has at most {_MOST_MESSAGES} messages.")
            return [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
        except (ParseError, msgspec.DecodeError, RecursionError):
            pass  # decoding it fails later
    return (data,)


class _Object(msgspec.Struct, gc=False):
    """Any object."""


def _count_objects(data: bytes) -> int:
    """Count what an array has, in little memory; a DecodeError at the first of it that is no object."""
    return len(msgspec.json.decode(data, type=list[_Object]))


def pieces(chunk: bytes) -> Sequence[bytes]:
    """Cut a chunk into pieces, between which other tasks can get their turn."""
    if len(chunk) <= _PIECE:
        return (chunk,)
    return [chunk[start : start + _PIECE] for start in range(0, len(chunk), _PIECE)]


def as_sent(named: Any) -> Any:
    """Return the id of an answer as it was sent: a number, which some servers write back as text.

    >>> as_sent("2"), as_sent(2), as_sent("two"), as_sent("02")
    (2, 2, 'two', '02')
    """
    return int(named) if isinstance(named, str) and _NUMBER.fullmatch(named) else named


_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


def is_nameless(frame: Frame) -> bool:
    """Return whether an answer is an error without an id."""
    return frame.reply_id is None and frame.error is not UNSET


class _Coded(msgspec.Struct):
    """What makes an error one of JSON-RPC: programs also write lines, and bodies, with an `error` of another kind."""

    code: int


class _Nameless(msgspec.Struct):
    """An error without an id, or with a null one: the peer could not read whom it answers."""

    error: msgspec.Raw
    id: None = None


def error_in(data: bytes) -> Frame | None:
    """Return the error response in some bytes, whether or not it has an id; None when there is none."""
    try:
        frame = decode(data)
        return frame if frame.is_response and isinstance(frame.error, msgspec.Raw) else None
    except ProtocolError:
        pass
    try:
        error = msgspec.json.decode(data, type=_Nameless).error
        msgspec.json.decode(error, type=_Coded)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Frame("2.0", error=error)


class _MessageParts(msgspec.Struct):
    """The members by which an answer is known, whatever they hold."""

    jsonrpc: msgspec.Raw | UnsetType = UNSET
    id: msgspec.Raw | UnsetType = UNSET
    method: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


# The same, by how an answer begins and ends, where a parser does not get through what lies between.
_WINDOW = 512
_NULL = msgspec.Raw(b"null")
_VERSION = rb'"jsonrpc"\s*:\s*"[^"\\]{0,16}"'
_ID = rb'"id"\s*:\s*(-?[0-9]{1,16}|"[^"\\]{0,256}")'
_BEGINNING = re.compile(rb'\s*\{\s*(?:(?:%b|%b)\s*,\s*){0,2}"(?:result|error)"\s*:' % (_VERSION, _ID))
_END = re.compile(rb",\s*(?:%b\s*,\s*)?%b\s*(?:,\s*%b\s*)?\}\s*\Z" % (_VERSION, _ID, _VERSION))


def whom_it_answers(data: bytes) -> tuple[bool, RequestId | None]:
    """Return whether something that cannot be read was meant as an answer, and its id if that can be read.

    >>> whom_it_answers(b'{"result": {"n": NaN}, "jsonrpc": "2.0", "id": 7}')
    (True, 7)
    >>> whom_it_answers(b'{"level": "error", "error": "no such file"}')
    (False, None)
    """
    try:
        parts = msgspec.json.decode(data, type=_MessageParts)
    except (msgspec.DecodeError, RecursionError):
        return _by_its_ends(data)
    if parts.method is not UNSET or parts.id is UNSET or parts.id == _NULL:
        return False, None
    named = _id_in(parts.id)
    has_outcome = parts.result is not UNSET or parts.error is not UNSET
    if parts.jsonrpc is UNSET:  # a line of a log may have an id, or an error; hardly ever both
        return has_outcome and named is not None, named
    return True, named


def _id_in(raw: msgspec.Raw) -> RequestId | None:
    """Return the id that is written there; None where it is none, or too long to be one of ours."""
    value: Any = msgspec.json.decode(raw) if len(raw) <= _WINDOW else None
    return as_sent(value) if type(value) in (int, str) else None


def _by_its_ends(data: bytes) -> tuple[bool, RequestId | None]:
    beginning = _BEGINNING.match(data[:_WINDOW])
    if beginning is None:
        return False, None
    end = _END.search(data[-_WINDOW:])
    found = beginning[1] or (None if end is None else end[1])
    try:
        return (False, None) if found is None else (True, as_sent(msgspec.json.decode(found)))
    except msgspec.DecodeError:
        return False, None


_TURN = 128  # messages after which the loop gets its turn


class Pipe(Protocol):
    """The server's end."""

    def send(self, line: bytes) -> None:
        """Take one message of the client."""
        ...

    async def close(self) -> None:
        """End the connection of the client."""
        ...


@runtime_checkable
class Piped(Protocol):
    """Anything that can be talked to in this process."""

    def pipe(self, deliver: Callable[[bytes], None]) -> Pipe:
        """Connect a client; each message for it is given to `deliver`."""
        ...


class MemoryTransport(PipeTransport):
    """A connection to a server in this process."""

    kind = "memory"

    def __init__(self, server: Piped, where: str, limits: ClientLimits = DEFAULT_CLIENT_LIMITS) -> None:
        super().__init__(where, limits)
        self._server = server
        self._pipe: Pipe | None = None
        self._sent = 0

    async def start(self) -> None:
        """Connect to the server."""
        self._pipe = self._server.pipe(self.incoming)

    def write(self, message: bytes) -> Awaitable[None] | None:
        """Hand one message to the server."""
        assert self._pipe is not None
        self._pipe.send(message)
        self._sent += 1
        if self._sent % _TURN == 0:  # a server that answers at once would keep all others from having theirs
            return asyncio.sleep(0)
        return None

    async def stop(self) -> None:
        """Leave the server."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            await pipe.close()
