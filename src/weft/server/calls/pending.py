"""Send requests from the server to a peer, and match the answers of the peer to these requests.

The caller passes the function that sends a request. The answer arrives with the other messages of the peer. When a
request times out, or the task that waits for its answer is cancelled, the server sends a cancellation to the peer. A
`ClientChannel` sends requests and notifications outside of calls, to a client that has a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from weft.errors import InternalError, NoBackChannelError, RemoteError, RequestTimeout
from weft.jsonrpc import Frame, encode_notification, encode_request
from weft.server.calls.changes import Change
from weft.server.calls.connection import Connection, OnProgress, Outbound, Params
from weft.types.lifecycle import CancelledParams, ProgressParams

log = logging.getLogger("weft.outstanding")

SendMessage: TypeAlias = Callable[[bytes], Awaitable[None]]  # sends an encoded message to the peer

PROGRESS_SECONDS = 60.0  # After a progress notification, a request has at least this time left.
TOTAL_SECONDS = 600.0  # Maximum total time of a request with progress, unless its timeout is longer.
CANCEL_SECONDS = 1.0  # Time limit for sending a cancellation.


class ChannelClosed(RemoteError):
    """A request will not be answered: the client is gone, or the server stops and accepts no more answers."""

    def __init__(self, reason: str) -> None:
        super().__init__(InternalError.code, reason)


class _PeerError(msgspec.Struct):
    code: int = InternalError.code
    message: str = "The client gave no reason."
    data: Any = None


@dataclass(slots=True)
class _PendingRequest:
    answer: asyncio.Future[Frame]
    on_progress: OnProgress | None
    at_most: float  # Latest possible deadline, in the time of the event loop; progress cannot extend it further.
    deadline: asyncio.Timeout | None = None


class PendingRequests:
    """The unanswered requests to one peer. Their ids begin with `name`, which is different in each worker."""

    __slots__ = ("_closed", "_name", "_numbers", "_waiting", "send")

    def __init__(self, name: str, send: SendMessage) -> None:
        self._name = name
        self.send = send  # Sends cancellations, unless `request` gets a `send_cancellation`.
        self._numbers = count(1)
        self._waiting: dict[str, _PendingRequest] = {}
        self._closed: str | None = None  # Why the peer can no longer answer; None if it can.

    def __len__(self) -> int:
        return len(self._waiting)

    async def request(
        self,
        send: SendMessage,
        method: str,
        params: Params,
        *,
        timeout: float,
        on_progress: OnProgress | None = None,
        send_cancellation: SendMessage | None = None,
    ) -> msgspec.Raw:
        """Send a request, wait for its result, and return the result as JSON.

        Raises `RemoteError` if the peer answers with an error, `ChannelClosed` if it is gone, and `RequestTimeout`
        after a timeout.

        After a timeout, a cancellation is sent with `send`. If the waiting task is cancelled, a cancellation is sent
        with `send_cancellation` (default: the `send` of the constructor).
        """
        if self._closed is not None:
            raise ChannelClosed(self._closed)
        request_id = f"{self._name}-{next(self._numbers)}"
        loop = asyncio.get_running_loop()
        at_most = loop.time() + max(timeout, TOTAL_SECONDS)
        waiting = self._waiting[request_id] = _PendingRequest(loop.create_future(), on_progress, at_most)
        if on_progress is not None:
            params = {**(params or {}), "_meta": {**(params or {}).get("_meta", {}), "progressToken": request_id}}
        try:
            async with asyncio.timeout(timeout) as waiting.deadline:
                await send(encode_request(request_id, method, UNSET if params is None else params))
                frame = await waiting.answer
        except TimeoutError:
            await _cancel_at_peer(send, request_id, "no answer in time")
            raise RequestTimeout(f"The client did not answer {method!r} within {timeout:g} s.") from None
        except asyncio.CancelledError:
            if not waiting.answer.done() or waiting.answer.cancelled():
                await _cancel_at_peer(send_cancellation or self.send, request_id, "no longer needed")
            raise
        finally:
            del self._waiting[request_id]
        return _result(frame)

    def answered(self, frame: Frame) -> bool:
        """Pass an answer to the task that waits for this answer. Return False if no task waits for it."""
        waiting = self._waiting.get(frame.id) if isinstance(frame.id, str) else None
        if waiting is None or waiting.answer.done():
            log.debug("an answer without a pending request was dropped")
            return False
        waiting.answer.set_result(frame)
        return True

    def progressed(self, params: ProgressParams) -> bool:
        """Pass a progress notification to `on_progress` of its request, and extend the deadline of the request.

        Return False if no pending request has this progress token, or if the request has no `on_progress`.
        """
        token = params.progress_token
        waiting = self._waiting.get(token) if isinstance(token, str) else None
        if waiting is None or waiting.on_progress is None:
            return False
        if waiting.deadline is not None and not waiting.deadline.expired() and (when := waiting.deadline.when()):
            wanted = max(when, asyncio.get_running_loop().time() + PROGRESS_SECONDS)
            waiting.deadline.reschedule(min(wanted, waiting.at_most))
        try:
            waiting.on_progress(params)
        except BaseException:  # The user's code must not end the task that reads messages.
            log.exception("the progress function of a request failed")
        return True

    def close(self, reason: str = "The client is gone.") -> None:
        """Fail all pending and later requests with ChannelClosed, because the peer can no longer answer."""
        self._closed = reason
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(ChannelClosed(reason))
                waiting.answer.exception()  # Mark it as retrieved: the waiting task may be cancelled first.


class ClientChannel(Outbound):
    """The channel to a client that has a session, with the unanswered requests to this client."""

    __slots__ = ("_ask_seconds", "_name", "_outstanding", "connection")

    def __init__(self, name: str, ask_seconds: float, connection: Connection) -> None:
        self._name = name
        self._ask_seconds = ask_seconds  # Default timeout of a request.
        self.connection = connection
        self._outstanding: PendingRequests | None = None

    @property
    def outstanding(self) -> PendingRequests:
        """The unanswered requests to the client. Created at the first use, because idle sessions need none."""
        if self._outstanding is None:
            self._outstanding = PendingRequests(self._name, self.send)
        return self._outstanding

    @property
    def is_readable(self) -> bool:
        """Whether the client reads messages from this channel."""
        return True

    def accepts(self, change: Change) -> bool:
        """Return whether the client has to be notified of a change."""
        connection = self.connection
        return connection.handshake_done and connection.is_ready and change.concerns(connection.subscribed_uris)

    async def send(self, message: bytes) -> None:
        """Send an encoded message to the client, outside of a call."""
        raise NotImplementedError

    async def send_raw_request(
        self, method: str, params: Params, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Any:
        """Send a request and return its result. Raises `NoBackChannelError` if the client does not read the channel."""
        if not self.is_readable:
            raise NoBackChannelError(method)
        limit = self._ask_seconds if timeout is None else timeout
        answer = await self.outstanding.request(self.send, method, params, timeout=limit, on_progress=on_progress)
        return msgspec.json.decode(answer)

    async def notify(self, method: str, params: Params = None) -> None:
        """Send a notification. Does nothing if the client does not read the channel."""
        if self.is_readable:
            await self.send(encode_notification(method, UNSET if params is None else params))


async def _cancel_at_peer(send: SendMessage, request_id: str, reason: str) -> None:
    """Send a cancellation to the peer. Uses a short timeout, because the peer may have stopped reading."""
    params = CancelledParams(request_id=request_id, reason=reason)
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await send(encode_notification("notifications/cancelled", params))
    except Exception as error:  # noqa: BLE001 - the request is over in any case
        log.debug("the cancellation of a request was not sent: %s", type(error).__name__)


def _result(frame: Frame) -> msgspec.Raw:
    if frame.error is not UNSET:
        try:
            error = msgspec.json.decode(frame.error, type=_PeerError)
        except msgspec.ValidationError:
            error = _PeerError()
        raise RemoteError(error.code, error.message[:1000], error.data)
    return frame.result if isinstance(frame.result, msgspec.Raw) else msgspec.Raw(b"{}")
