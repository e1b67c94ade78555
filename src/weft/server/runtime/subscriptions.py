"""Subscriptions: the listen streams by which clients hear of changes.

A stream is one `subscriptions/listen` call that stays open. What it waits to send is a set, not a list: a change that
was not yet told is not told twice, so a client that reads slowly costs no more than its filter is long, and hurts
nobody else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias, cast

from weft.errors import InvalidParams, InvalidRequest
from weft.jsonrpc import encode_notification
from weft.server.calls.call import Call
from weft.server.calls.changes import Change, encode_change, note
from weft.server.calls.connection import TokenInfo
from weft.server.calls.services import Services
from weft.server.runtime.load import Busy
from weft.types.base import SUBSCRIPTION_ID_KEY, EmptyResult, RequestId
from weft.types.interaction import AcknowledgedParams, ListenParams, SubscriptionFilter
from weft.types.lifecycle import CancelledParams

_LISTS = {"tools": "tools_list_changed", "prompts": "prompts_list_changed", "resources": "resources_list_changed"}


class Listener:
    """One open stream: what it wants to hear, and what it has not yet been told."""

    __slots__ = ("ended", "expired", "filter", "id", "peer", "pending", "uris", "wake")

    def __init__(self, id: RequestId, filter: SubscriptionFilter, peer: str) -> None:
        self.id = id
        self.filter = filter
        self.peer = peer
        self.uris = frozenset(filter.resource_subscriptions or ())
        self.pending: dict[Change, None] = {}  # an ordered set
        self.ended = False  # the server wants to end it
        self.expired = False  # … because of the client's token
        self.wake: asyncio.Future[None] | None = None  # there while it sleeps

    def wants(self, change: Change) -> bool:
        """Whether a change is in the filter (SUB-02)."""
        if change.kind == "resource":
            return change.concerns(self.uris)
        return bool(getattr(self.filter, _LISTS[change.kind]))

    def tell(self, change: Change) -> None:
        """Have it told, once."""
        note(self.pending, change, self.uris)
        self.rouse()

    def expire(self) -> None:
        """End it: its client may not listen any more."""
        self.ended = self.expired = True
        self.rouse()

    def rouse(self) -> None:
        """Wake the stream up."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class ListenStreams:
    """All listen streams of a server."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._listeners: dict[Listener, None] = {}
        self._per_peer: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed: asyncio.AbstractEventLoop | None = None  # where all streams end, those to come as well
        services.changes.subscribe(self._heard)

    def __len__(self) -> int:
        return len(self._listeners)

    async def listen(self, call: Call) -> EmptyResult:
        """`subscriptions/listen`: acknowledge, then tell, until either side ends it."""
        wanted = cast("ListenParams", call.envelope.params).notifications
        self._check(call, wanted)
        listener = Listener(call.id, self._honoured(wanted), call.peer)
        listener.ended = self._closed is asyncio.get_running_loop()  # it comes too late, and is told so by its end
        self._add(listener)
        try:
            await call.reply.notify(
                encode_notification(
                    "notifications/subscriptions/acknowledged",
                    AcknowledgedParams(notifications=listener.filter, meta={SUBSCRIPTION_ID_KEY: listener.id}),
                )
            )
            with at_expiry(self._services, call.token_info, listener.expire):
                await self._tell(listener, call)
        finally:
            self._remove(listener)
        if listener.expired:
            await call.reply.end()  # and no result: the client is to come back, with another token (SUB-15)
        # The server ends it (SUB-12, SUB-13): the result, and where the stream does not end with it, a cancellation.
        call.reply.epilogue(encode_notification("notifications/cancelled", CancelledParams(request_id=call.id)))
        return EmptyResult(meta={SUBSCRIPTION_ID_KEY: listener.id})

    def close(self, peer: str | None = None) -> int:
        """End the open streams gracefully, all or those of one peer, as one of the ends goes away. How many it were.

        All of them means those to come, too: a stream that is opened after that, in the same loop, ends at once.
        """
        if peer is None:
            self._closed = asyncio.get_running_loop()
        ending = [one for one in self._listeners if not one.ended and (peer is None or one.peer == peer)]
        for listener in ending:
            listener.ended = True
            listener.rouse()
        return len(ending)

    def reopen(self) -> None:
        """All has ended that was to end: who serves the same server again has streams again."""
        self._closed = None

    def close_soon(self) -> None:
        """The same for all streams, from anywhere: a signal handler, another thread."""
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:  # another thread: the loop is that of the streams, if there are any
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.close)

    async def _tell(self, listener: Listener, call: Call) -> None:
        loop = asyncio.get_running_loop()
        meta = {SUBSCRIPTION_ID_KEY: listener.id}  # in its own JSON type (SUB-07, SUB-08)
        while True:
            while listener.pending:
                change = next(iter(listener.pending))
                del listener.pending[change]
                await call.reply.notify(encode_change(change, meta))
            if listener.ended:
                return
            listener.wake = loop.create_future()
            await listener.wake
            listener.wake = None

    def _check(self, call: Call, wanted: SubscriptionFilter) -> None:
        if not call.reply.can_stream:  # SUB-20
            raise InvalidRequest("Invalid request: what changes is told on a stream; send Accept: text/event-stream.")
        limits = self._services.limits
        uris = wanted.resource_subscriptions or []
        if len(uris) > limits.listen_uris or any(len(uri.encode()) > limits.uri_bytes for uri in uris):
            raise InvalidParams(
                f"Invalid params: a stream listens to at most {limits.listen_uris} URIs of {limits.uri_bytes} bytes."
            )
        if sum(len(uri.encode()) for uri in uris) > limits.listen_uris_bytes:
            raise InvalidParams(
                f"Invalid params: the URIs that a stream listens to have at most {limits.listen_uris_bytes} bytes "
                "together. Open another stream for the rest."
            )
        if len(self._listeners) >= limits.listen_streams:
            raise Busy(
                f"{limits.listen_streams} streams are open already, the most this server has. Try again when one ends."
            )
        if self._per_peer.get(call.peer, 0) >= limits.listen_streams_per_peer:
            raise Busy(
                f"You have {limits.listen_streams_per_peer} streams open already, the most there may be. Close one."
            )

    def _honoured(self, wanted: SubscriptionFilter) -> SubscriptionFilter:
        """What is both wished for and offered (SUB-05)."""
        has = self._services.capabilities
        return SubscriptionFilter(
            tools_list_changed=True if wanted.tools_list_changed and has.tools else None,
            prompts_list_changed=True if wanted.prompts_list_changed and has.prompts else None,
            resources_list_changed=True if wanted.resources_list_changed and has.resources else None,
            resource_subscriptions=wanted.resource_subscriptions if has.resources else None,
        )

    def _add(self, listener: Listener) -> None:
        self._listeners[listener] = None
        self._per_peer[listener.peer] = self._per_peer.get(listener.peer, 0) + 1
        self._loop = asyncio.get_running_loop()

    def _remove(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)
        left = self._per_peer.get(listener.peer, 1) - 1
        if left:
            self._per_peer[listener.peer] = left
        else:
            self._per_peer.pop(listener.peer, None)

    def _heard(self, change: Change) -> None:
        """A change, in the thread of whoever made it."""
        if self._listeners and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, change)

    def _spread(self, change: Change) -> None:
        for listener in self._listeners:
            if listener.wants(change):
                listener.tell(change)


# A stream ends when its token expires: the client opens another one, with a token that is still good.

Show: TypeAlias = (
    "Callable[[TokenInfo | None], None]"  # takes a newer token of the client; the one that expires last counts
)

AGAIN_SECONDS = 1.0


def at_expiry(
    services: Services, info: TokenInfo | None, end: Callable[[], bool | None]
) -> AbstractContextManager[Show]:
    """Call `end` when the token expires while this context is open, and soon again if it returns True.

    It is not called where another app verifies the tokens, or where they do not say when they expire.
    """
    return _NEVER if services.auth is None else _expiring(services, info, end)


_NEVER: AbstractContextManager[Show] = nullcontext(lambda _: None)  # one for all: there may be many streams


@contextmanager
def _expiring(services: Services, info: TokenInfo | None, end: Callable[[], bool | None]) -> Generator[Show]:
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def expire() -> None:
        nonlocal timer
        timer = loop.call_later(AGAIN_SECONDS, expire) if end() else None

    def show(info: TokenInfo | None) -> None:
        nonlocal timer
        left = _left(services, info)
        if timer is not None and (left is None or loop.time() + left > timer.when()):
            timer.cancel()
            timer = None
        if timer is None and left is not None:
            timer = loop.call_later(left, expire)

    show(info)
    try:
        yield show
    finally:
        if timer is not None:
            timer.cancel()


def _left(services: Services, info: TokenInfo | None) -> float | None:
    """Return for how many seconds a token is still accepted: a stream that ended sooner would be opened again."""
    expires = None if info is None else info.expires
    return None if expires is None or services.auth is None else max(expires + services.auth.leeway - time.time(), 0.0)
