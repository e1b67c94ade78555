"""Define the interface of a transport, read messages from bytes, and connect to a server in this process.

A transport carries encoded messages to one server and decoded messages back. It matches an answer with its request by
the id, and passes the server's requests and notifications to `receive`. Its callers handle the meaning of messages,
retries, deadlines and cancellation.

Over HTTP every request has a separate stream. Over a pipe, all requests share one stream. Pipes are a child process, a
server in this process, and the HTTP+SSE transport of the first revision. `PipeTransport` is their common part. A new
kind of pipe implements `start`, `write` and `stop`. It calls `incoming` with each message that arrives, and `lost` when
the connection has ended.

A server in this process has a method `pipe` (see `Piped`). Messages are passed as bytes in both directions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import ConnectionFailed, InvalidAnswer, InvalidRequest, ProtocolError, RemoteError, WeftError
from weft.jsonrpc import Frame, check_bounds, decode
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits, Limits
from weft.net.logs import Seldom, masked_body
from weft.protocol.names import printable
from weft.types.base import RequestId

log = logging.getLogger("weft.client")
wire_log = logging.getLogger("weft.client.wire")  # at DEBUG: every message sent (>) or received (<), secrets masked

# A function that handles a notification or a request of the server. It never raises. The id is the id of the request on
# whose HTTP stream the message came, or None if the message came on a pipe or on the standalone stream.
Receive = Callable[[Frame, RequestId | None], None]
# A function that is called once, when the connection has ended and the client did not close it.
Lost = Callable[[ConnectionFailed], None]
NO_HEADERS: Mapping[str, str] = {}


class Answer(msgspec.Struct, gc=False):
    """A response of the server, with a result or an error. Over HTTP, `headers` are the HTTP response headers."""

    frame: Frame
    headers: Mapping[str, str] = NO_HEADERS

    @property
    def result(self) -> bytes:
        """The encoded result. Must not be used if the answer is an error."""
        assert self.frame.result is not UNSET
        return self.frame.result


class Refused(WeftError):
    """The error for an HTTP response with an unexpected status or media type.

    `error` is the JSON-RPC error in the body of the response, or None.
    """

    def __init__(self, where: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"{where} answered with the HTTP status {status}.")
        self.where = where
        self.status = status
        self.headers = headers
        self.body = body
        self.error = read_invalid(body)[1]
        self.was_seen = False  # True if the server accepted the request, and refused a later message about it
        self.what = ""  # what the server refused after it had accepted the request; "" if unknown

    @property
    def reason(self) -> str:
        """The server's explanation in the body, as one line, or "" if the body contains none."""
        try:
            fields = msgspec.json.decode(self.body, type=_ReasonFields)
        except (msgspec.DecodeError, RecursionError):
            return ""
        error = fields.error
        inner = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
        for text in (fields.error_description, fields.message, fields.detail, inner):
            if isinstance(text, str) and text.strip():
                return printable(text.strip()[:300])
        return ""


class _ReasonFields(msgspec.Struct):
    """The fields of a JSON body in which servers explain why they refused a request."""

    error: Any = None
    error_description: Any = None
    message: Any = None
    detail: Any = None


class Transport(Protocol):
    """The interface of a connection to one server. Any task of the event loop that opened it may call its methods."""

    kind: str  # "http", "stdio", "memory" or "sse"; for error messages and logs
    where: str  # the URL, or the command, of the server; for error messages
    stream_per_request: bool  # True if each request has a stream that the client can close (HTTP)

    async def open(self, receive: Receive, lost: Lost) -> None:
        """Connect to the server. Raises ConnectionFailed on failure.

        Over HTTP, no connection is made before the first request. `receive` is called with each request and
        notification of the server, and `lost` if the connection is lost.
        """
        ...

    async def reopen(self) -> None:
        """Close the connection and connect again. A child process is restarted. Over HTTP, this does nothing."""
        ...

    async def request(
        self, message: bytes, request_id: RequestId, headers: Mapping[str, str] = NO_HEADERS, *, resumable: bool = False
    ) -> Answer:
        """Send a request and return its answer.

        If the waiting task is cancelled, the request's stream is closed, but the server is not notified. `headers` and
        `resumable` are used over HTTP only. With `resumable`, a broken stream is resumed with the Last-Event-ID header.
        Raises Refused if the HTTP status is not a success, ConnectionFailed if the connection breaks, and InvalidAnswer
        if the answer cannot be read.
        """
        ...

    async def send(self, message: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send a notification or a response. Raises Refused or ConnectionFailed, as `request` does."""
        ...

    async def open_standalone_stream(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Open the stream for messages that belong to no request (the HTTP GET stream), and keep it open.

        Calls `opened` each time the stream has been opened, and runs until it is cancelled. If the server or the
        transport has no standalone stream, calls `opened` once and returns. Raises Refused if the server refuses to
        open the stream again, and ConnectionFailed after several failed attempts in a row.
        """
        ...

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """Ask the server to end the session. The server's answer is ignored."""
        ...

    async def close(self) -> None:
        """Close the connection. Pending requests raise ConnectionFailed. May be called more than once."""
        ...


class Auth(Protocol):
    """The interface for authorization over HTTP: returns request headers, and handles the statuses 401 and 403."""

    async def headers(self, url: str, method: str) -> Mapping[str, str]:
        """Return the authorization headers for a request with this URL and HTTP method."""
        ...

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Handle a response with the status 401 or 403, for example by a login. Return True to send the request again.

        `given` are the headers that `headers` returned for the request. `request` are the other headers of the request.
        """
        ...


class PipeTransport:
    """Base class of the transports that send and receive all messages over one connection (a pipe)."""

    kind = "pipe"
    stream_per_request = False

    def __init__(self, where: str, limits: ClientLimits = DEFAULT_CLIENT_LIMITS) -> None:
        self.where = where
        self.limits = limits
        self._bounds = bounds_of(limits)
        # Requests that are not answered yet. The result of the future is the answer, or the error to raise.
        self._waiting: dict[RequestId, _Waiting] = {}
        self._receive: Receive = ignore
        self._tell_lost: Lost = ignore
        self._failure: ConnectionFailed | None = None  # why the connection cannot be used any more
        self._open = False
        self._stopping: asyncio.Task[None] | None = None  # task of the latest call of `stop`
        self._has_answered = False  # whether the server has answered any request since `open`
        self._seldom = Seldom(log)  # rate-limited, because the server can cause these log lines at will

    # --- methods that a pipe implements

    async def start(self) -> None:
        """Connect to the server. The subclass may call `incoming` before `start` has returned."""
        raise NotImplementedError

    def write(self, message: bytes) -> Awaitable[None] | None:
        """Send one message. Return None, or an awaitable if sending takes time.

        The awaitable completes when the message was sent. Raises ConnectionFailed if the message cannot be sent.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Close the connection and free its resources. `close` and `reopen` call this method."""
        raise NotImplementedError

    # --- methods that a pipe calls

    def incoming(self, data: bytes) -> None:
        """Handle one encoded message from the server.

        If the data is an invalid answer, its request fails. Other invalid data is logged and dropped.
        """
        if not self._open:
            return
        for frame in decode_messages(data, self._bounds, self._unreadable):
            if frame.method is not UNSET:
                self._receive(frame, None)
                continue
            request_id = frame.id if type(frame.id) is int else as_sent(frame.reply_id)
            if not self._settle(request_id, Answer(frame), is_error=frame.error is not UNSET):
                log.debug("%s answered a request that does not wait for it.", self.where)

    def lost(self, failure: ConnectionFailed) -> None:
        """Mark the connection as lost. All pending requests raise ConnectionFailed with the message of `failure`."""
        if self._failure is not None or not self._open:
            return
        self._fail(failure)
        self._tell_lost(failure)

    # --- Transport

    async def open(self, receive: Receive, lost: Lost) -> None:
        """Connect to the server. Call `receive` with its requests and notifications, and `lost` if the pipe is lost."""
        self._receive = receive
        self._tell_lost = lost
        await self._begin()

    async def reopen(self) -> None:
        """Close the connection and connect again."""
        await self._end(ConnectionFailed(f"The connection to {self.where} is started again."))
        await self._begin()

    async def request(
        self, message: bytes, request_id: RequestId, headers: Mapping[str, str] = NO_HEADERS, *, resumable: bool = False
    ) -> Answer:
        """Send a request and return its answer. `headers` and `resumable` are ignored."""
        if self._failure is not None:
            raise self._gone()
        waiting = self._waiting[request_id] = _Waiting()
        try:
            if (writing := self._out(message)) is not None:
                await writing
            if waiting.outcome is None:
                waiting.woken = asyncio.get_running_loop().create_future()
                await waiting.woken
        finally:
            self._waiting.pop(request_id, None)
            waiting.woken = None  # breaks the reference cycle of a cancelled future, its exception and this frame
        if isinstance(waiting.outcome, Answer):
            return waiting.outcome
        assert waiting.outcome is not None
        try:
            raise waiting.outcome
        finally:
            del waiting  # breaks the reference cycle between the exception and this frame

    async def send(self, message: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send a notification or a response. `headers` are ignored."""
        if self._failure is not None:
            raise self._gone()
        if (writing := self._out(message)) is not None:
            await writing

    async def open_standalone_stream(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Call `opened` and return, because a pipe needs no standalone stream."""
        opened()

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """Do nothing, because the session ends when the pipe is closed."""

    async def close(self) -> None:
        """Close the connection. Pending requests raise ConnectionFailed."""
        await self._end(ConnectionFailed(f"The connection to {self.where} was closed."))

    # --- internal

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
            await asyncio.shield(self._stopping)  # goes on if this task is cancelled; the next `close` waits for it

    def _fail(self, failure: ConnectionFailed) -> None:
        if self._failure is None:
            self._failure = failure
        for waiting in self._waiting.values():
            if waiting.outcome is None:
                waiting.settle(self._gone())

    def _gone(self) -> ConnectionFailed:
        """Return a copy of the connection's failure, because each task must raise a separate exception."""
        return ConnectionFailed(str(self._failure))

    def _unreadable(self, data: bytes, error: ProtocolError) -> None:
        """Handle an invalid message. If it was meant as an answer, its request fails; otherwise a warning is logged."""
        request_id, remote = read_invalid(data)
        failure = remote or InvalidAnswer(f"{self.where} sent an answer that cannot be read: {error}")
        if not self._settle(request_id, failure, is_error=remote is not None):
            self._seldom.warning("%s sent something that is not a message: %s", self.where, error)

    def _settle(self, request_id: RequestId | None, outcome: Answer | WeftError, *, is_error: bool) -> bool:
        """Complete the pending request `request_id` with `outcome`. Return False if that request is not pending.

        If exactly one request is pending, an error without an id completes that request.
        """
        waiting = None if request_id is None else self._waiting.get(request_id)
        if request_id is None and is_error and len(self._waiting) == 1:
            waiting = next(iter(self._waiting.values()))
        if waiting is None or waiting.outcome is not None:
            return False
        self._has_answered = True
        waiting.settle(outcome)
        return True


class _Waiting:
    """A request that is not answered yet.

    `woken` is the future that the requesting task awaits. It is None while the request is being sent: a server in this
    process may answer during that time, and then no future is needed.
    """

    __slots__ = ("outcome", "woken")

    def __init__(self) -> None:
        self.outcome: Answer | WeftError | None = None
        self.woken: asyncio.Future[None] | None = None

    def settle(self, outcome: Answer | WeftError) -> None:
        self.outcome = outcome
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


def ignore(*_: Any) -> None:
    """Do nothing. This function is the default for callbacks."""


_MOST_MESSAGES = 1000  # messages in one array (a JSON-RPC batch)
_PIECE = 16 * 1024  # bytes of a stream that are decoded before the time is checked


def bounds_of(limits: ClientLimits) -> Limits:
    """Return the limits for decoding one message, from the limits of a client."""
    return Limits(json_values=limits.json_values)


def decode_messages(data: bytes, bounds: Limits, unreadable: Callable[[bytes, ProtocolError], None]) -> Sequence[Frame]:
    """Decode an HTTP body, an SSE event or a line, which contains one message or an array of messages (a batch).

    `unreadable` is called with each invalid message and its error.
    """
    if wire_log.isEnabledFor(logging.DEBUG):
        wire_log.debug("< %s", masked_body(data))
    frames: list[Frame] = []
    try:
        if data[:1] == b"{":  # the usual case, without a loop
            return (decode(data, bounds),)
        parts = _split(data, bounds)
    except ProtocolError as error:
        unreadable(data, error)
        return frames
    for part in parts:
        try:
            frames.append(decode(part, bounds))
        except ProtocolError as error:
            unreadable(part, error)
    return frames


class _Object(msgspec.Struct, gc=False):
    """Any JSON object. Its members are not decoded."""


def _split(data: bytes, bounds: Limits) -> Sequence[bytes]:
    """Split a JSON array into its messages. Return data that is not an array unchanged, as the only item.

    Raises InvalidRequest if the array is too long, because other tasks cannot run while its messages are handled.
    """
    if data.lstrip()[:1] != b"[":
        return (data,)
    check_bounds(data, bounds)
    try:
        # Count before decoding, because each item becomes an object. Items without a comma cannot be that many.
        if data.count(b",") >= _MOST_MESSAGES and len(msgspec.json.decode(data, type=list[_Object])) > _MOST_MESSAGES:
            raise InvalidRequest(f"Invalid request: an array has at most {_MOST_MESSAGES} messages.")
        return [bytes(part) for part in msgspec.json.decode(data, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, RecursionError):
        return (data,)  # `decode` raises the error


def pieces(chunk: bytes) -> Sequence[bytes]:
    """Cut a chunk into small pieces, so that the caller can let other tasks run between two pieces."""
    if len(chunk) <= _PIECE:
        return (chunk,)
    return [chunk[start : start + _PIECE] for start in range(0, len(chunk), _PIECE)]


def as_sent(named: Any) -> Any:
    """Convert an id such as "2" to the number 2, because some servers send ids as strings. Return other ids unchanged.

    >>> as_sent("2"), as_sent(2), as_sent("two"), as_sent("02")
    (2, 2, 'two', '02')
    """
    return int(named) if isinstance(named, str) and _NUMBER.fullmatch(named) else named


_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


def is_nameless(frame: Frame) -> bool:
    """Return whether an answer is an error without an id."""
    return frame.reply_id is None and frame.error is not UNSET


class _ServerError(msgspec.Struct):
    code: int
    message: str = "no message"
    data: Any = None


_read_error = msgspec.json.Decoder(_ServerError).decode


def remote_error(raw: msgspec.Raw | UnsetType) -> RemoteError:
    """Decode the member `error` of a response. Raises InvalidAnswer if the member is missing or invalid."""
    try:
        error = _read_error(b"" if raw is UNSET else raw)
    except msgspec.DecodeError:
        raise InvalidAnswer("The server answered with an error that cannot be read.") from None
    return RemoteError(error.code, error.message, error.data)


class _Members(msgspec.Struct):
    """The members of an answer that may be invalid, not decoded yet. Other members are ignored."""

    id: msgspec.Raw | UnsetType = UNSET
    jsonrpc: msgspec.Raw | UnsetType = UNSET
    method: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


def read_invalid(data: bytes) -> tuple[RequestId | None, RemoteError | None]:
    """Return the request id and the error from an answer that may be invalid. Each is None if it cannot be found.

    Both are None if the data is not an answer, for example if it is a line of a program's log.

    >>> read_invalid(b'{"id": 7, "result": {}}'), read_invalid(b'{"id": 7, "level": "info"}'), read_invalid(b"Hello")
    ((7, None), (None, None), (None, None))
    """
    try:
        found = _read_members(data)
    except (msgspec.DecodeError, RecursionError):
        return _id_of_python(data), None
    if found.method is not UNSET or (found.jsonrpc is UNSET and found.result is UNSET and found.error is UNSET):
        return None, None
    request_id = error = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        request_id = as_sent(msgspec.json.decode(b"null" if found.id is UNSET else found.id, type=RequestId | float))
    if found.error is not UNSET:
        with suppress(ProtocolError, InvalidAnswer, UnicodeDecodeError):
            check_bounds(bytes(found.error))
            error = remote_error(found.error)
    return request_id, error


_read_members = msgspec.json.Decoder(_Members).decode


def _id_of_python(data: bytes) -> RequestId | None:
    """Return the id of a short answer that has NaN or half a character, which many servers in Python send."""
    if len(data) > _MOST_BYTES_OF_PYTHON:
        return None
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        if isinstance(found, dict) and "method" not in found and {"jsonrpc", "result", "error"} & found.keys():
            id = cast("dict[str, Any]", found).get("id")
            return as_sent(id) if type(id) in (int, float, str) else None
    return None


_MOST_BYTES_OF_PYTHON = 256 * 1024  # Python's decoder makes an object of each value, so it gets no larger answers


_TURN = 128  # messages that are sent before other tasks of the event loop may run


class LinePipe(Protocol):
    """The server's end of a connection to a client in the same process."""

    def send(self, line: bytes) -> None:
        """Handle one message from the client."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


@runtime_checkable
class Piped(Protocol):
    """A server that a client in the same process can connect to."""

    def pipe(self, deliver: Callable[[bytes], None]) -> LinePipe:
        """Connect a client, and return the server's end. The server calls `deliver` with its messages to the client."""
        ...


class MemoryTransport(PipeTransport):
    """A connection to a server in the same process, without a network."""

    kind = "memory"

    def __init__(self, server: Piped, where: str, limits: ClientLimits = DEFAULT_CLIENT_LIMITS) -> None:
        super().__init__(where, limits)
        self._server = server
        self._pipe: LinePipe | None = None
        self._sent = 0

    async def start(self) -> None:
        """Connect to the server."""
        self._pipe = self._server.pipe(self.incoming)

    def write(self, message: bytes) -> Awaitable[None] | None:
        """Pass one message to the server. Sometimes return an awaitable that lets other tasks run."""
        assert self._pipe is not None
        self._pipe.send(message)
        self._sent += 1
        if self._sent % _TURN == 0:  # a server that answers at once would keep other tasks from running
            return asyncio.sleep(0)
        return None

    async def stop(self) -> None:
        """Close the connection to the server."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            await pipe.close()
