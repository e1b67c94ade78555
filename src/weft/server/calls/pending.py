"""Keep the requests that the server has sent to a peer and that the peer has not answered yet.

Whoever sends one gives the way it goes out; the answer comes back in whatever way the peer's messages come in. A
request that is given up, by its time or by whoever waits for it, is cancelled at the peer too (CAN-02).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from weft.errors import InternalError, RemoteError, RequestTimeout
from weft.jsonrpc import Frame, encode_notification, encode_request
from weft.types.base import ProgressToken
from weft.types.lifecycle import CancelledParams, ProgressParams

log = logging.getLogger("weft.outstanding")

Way: TypeAlias = Callable[[bytes], Awaitable[None]]  # how an encoded message gets to the peer
OnProgress: TypeAlias = Callable[[ProgressParams], None]


class _PeerError(msgspec.Struct):
    code: int = InternalError.code
    message: str = "The client gave no reason."
    data: Any = None


class _PendingRequest:
    """One request, and who waits for its answer."""

    __slots__ = ("answer", "at_most", "deadline", "on_progress")

    def __init__(self, on_progress: OnProgress | None, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Frame] = loop.create_future()
        self.at_most = loop.time() + max(timeout, TOTAL_SECONDS)  # progress puts the deadline off until then
        self.on_progress = on_progress
        self.deadline: asyncio.Timeout | None = None


class PendingRequests:
    """The requests to one peer. Their ids begin with `name`, by which one worker's are told from another's."""

    def __init__(self, name: str, farewell: Way) -> None:
        self._name = name
        self.farewell = farewell  # how to say that a request is not needed any more, when its own way is closed
        self._numbers = count(1)
        self._waiting: dict[str, _PendingRequest] = {}
        self._closed: str | None = None  # why no answer can come

    def __len__(self) -> int:
        return len(self._waiting)

    async def request(
        self,
        way: Way,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        timeout: float,
        on_progress: OnProgress | None = None,
        withdraw: Way | None = None,
    ) -> Any:
        """Send a request and wait for its result. `RemoteError` if the peer refuses, `RequestTimeout` if it is late.

        `withdraw` is how the peer is told that nobody waits any more; the farewell, where it is not said.
        """
        if self._closed is not None:
            raise RemoteError(InternalError.code, self._closed)
        request_id = f"{self._name}-{next(self._numbers)}"
        waiting = self._waiting[request_id] = _PendingRequest(on_progress, timeout)
        if on_progress is not None:
            params = {**(params or {}), "_meta": {**(params or {}).get("_meta", {}), "progressToken": request_id}}
        try:
            async with asyncio.timeout(timeout) as waiting.deadline:
                await way(encode_request(request_id, method, UNSET if params is None else params))
                frame = await waiting.answer
        except TimeoutError:
            await _give_up(way, request_id, "no answer in time")
            raise RequestTimeout(f"The client did not answer {method!r} within {timeout:g} s.") from None
        except asyncio.CancelledError:
            if not waiting.answer.done() or waiting.answer.cancelled():
                await _give_up(withdraw or self.farewell, request_id, "no longer needed")
            raise
        finally:
            del self._waiting[request_id]
        return _result(frame)

    def answered(self, frame: Frame) -> bool:
        """Take an answer. False if nobody waits for it."""
        waiting = self._waiting.get(frame.id) if isinstance(frame.id, str) else None
        if waiting is None or waiting.answer.done():
            log.debug("an answer that nobody waits for was dropped")
            return False
        waiting.answer.set_result(frame)
        return True

    def progressed(self, params: ProgressParams) -> bool:
        """A request comes along: whoever waits for it may hear of that, and it gets more time. False if nobody does."""
        token: ProgressToken = params.progress_token
        waiting = self._waiting.get(token) if isinstance(token, str) else None
        if waiting is None or waiting.on_progress is None:
            return False
        if waiting.deadline is not None and not waiting.deadline.expired() and (when := waiting.deadline.when()):
            wanted = max(when, asyncio.get_running_loop().time() + PROGRESS_SECONDS)
            waiting.deadline.reschedule(min(wanted, waiting.at_most))  # CAN-14
        try:
            waiting.on_progress(params)
        except BaseException:  # R1: it is the user's code, and whoever brought the news has no part in it
            log.exception("hearing of the progress of a request failed")
        return True

    def close(self, reason: str = "The client is gone.") -> None:
        """No answer will come: end what waits for one, and what asks later."""
        self._closed = reason
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(RemoteError(InternalError.code, reason))
                waiting.answer.exception()  # seen: whoever waits may be cancelled before it gets to look


PROGRESS_SECONDS = 60.0  # that a request gets at least from when its progress was last heard of
TOTAL_SECONDS = 600.0  # whatever progress there is, unless it was given more from the beginning
FAREWELL_SECONDS = 1.0  # that the peer gets to take in that a request is given up


async def _give_up(way: Way, request_id: str, reason: str) -> None:
    """Tell the peer. One that does not read is not waited for: it may be why the request was late."""
    params = CancelledParams(request_id=request_id, reason=reason)
    try:
        async with asyncio.timeout(FAREWELL_SECONDS):
            await way(encode_notification("notifications/cancelled", params))
    except Exception as error:  # noqa: BLE001 - it is given up in any case
        log.debug("the client could not be told that a request is cancelled: %s", type(error).__name__)


def _result(frame: Frame) -> Any:
    if frame.error is not UNSET:
        try:
            error = msgspec.json.decode(frame.error, type=_PeerError)
        except msgspec.ValidationError:
            error = _PeerError()
        raise RemoteError(error.code, error.message[:1000], error.data)
    return msgspec.json.decode(frame.result) if isinstance(frame.result, msgspec.Raw) else {}
