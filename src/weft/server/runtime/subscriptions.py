"""Serve listen streams, which notify clients of changes, and end streams when their token expires.

A listen stream is one `subscriptions/listen` call that stays open. Its inbox stores equal changes only once, so that
the size of a client's filter limits the memory for unsent changes. A slow client does not delay other clients.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Protocol, TypeAlias, cast

from weft.backends import Unsubscribe
from weft.errors import InvalidParams, InvalidRequest
from weft.jsonrpc import encode_notification
from weft.limits import Limits
from weft.server.calls.call import Call
from weft.server.calls.changes import Change, ChangeInbox, encode_change
from weft.server.calls.connection import TokenInfo
from weft.server.calls.services import Services
from weft.server.runtime.admission import Busy
from weft.types.base import SUBSCRIPTION_ID_KEY, EmptyResult, Meta, RequestId
from weft.types.interaction import AcknowledgedParams, ListenParams, SubscriptionFilter
from weft.types.lifecycle import CancelledParams

_LISTS = {"tools": "tools_list_changed", "prompts": "prompts_list_changed", "resources": "resources_list_changed"}


def check_uris(uris: Collection[str], limits: Limits) -> None:
    """Raise InvalidParams if a client subscribes to too many URIs, or if the URIs are too long."""
    sizes = [len(uri.encode()) for uri in uris]
    if (
        len(sizes) > limits.listen_uris
        or max(sizes, default=0) > limits.uri_bytes
        or sum(sizes) > limits.listen_uris_bytes
    ):
        raise InvalidParams(
            f"Invalid params: subscribe to at most {limits.listen_uris} resources. A URI has at most "
            f"{limits.uri_bytes} bytes, and all URIs together have at most {limits.listen_uris_bytes} bytes."
        )


def check_task_ids(ids: Collection[str], limits: Limits) -> None:
    """Raise InvalidParams if a client subscribes to too many tasks."""
    if len(ids) > limits.listen_tasks:
        raise InvalidParams(f"Invalid params: subscribe to at most {limits.listen_tasks} tasks on one stream.")


class TaskFeed(Protocol):
    """Tells listen streams of changes of tasks."""

    @property
    def is_offered(self) -> bool:
        """Whether the server has tasks."""
        ...

    async def readable(self, call: Call, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that are tasks of the caller.

        Raises an error if the client does not know tasks, or if its token lacks a scope for one of its tasks.
        """
        ...

    async def watch(self, id: str, wake: Callable[[], object]) -> Unsubscribe:
        """Call `wake` whenever a task changes. Return a function that ends this."""
        ...

    async def notification(self, call: Call, id: str, meta: Meta) -> bytes | None:
        """Return the encoded notification with the present state of a task, or None if it has expired."""
        ...


class ListenStream:
    """One open listen stream: its filter, and the changes that were not sent yet."""

    __slots__ = ("ended", "expired", "filter", "id", "inbox", "peer", "tasks", "uris", "wake")

    def __init__(self, id: RequestId, filter: SubscriptionFilter, peer: str) -> None:
        self.id = id  # id of the request
        self.filter = filter  # the part of the client's filter that the server offers
        self.peer = peer
        self.uris = frozenset(filter.resource_subscriptions or ())
        self.tasks: frozenset[str] = frozenset()  # see `add_tasks`
        self.wake = asyncio.Event()
        self.inbox = ChangeInbox(self.accepts, self.uris, self.wake.set)
        self.ended = False  # whether the server is ending the stream
        self.expired = False  # whether the stream ends because the client's token has expired

    def add_tasks(self, ids: Sequence[str]) -> None:
        """Add tasks to the filter of this stream. Until then, it has none."""
        self.filter.task_ids = list(ids)
        self.tasks = frozenset(ids)

    def accepts(self, change: Change) -> bool:
        """Return whether a change matches the filter of this stream."""
        if change.kind == "resource":
            return change.concerns(self.uris)
        if change.kind == "task":
            return change.uri in self.tasks
        return bool(getattr(self.filter, _LISTS[change.kind]))

    def end(self) -> None:
        """End the stream after the pending changes are sent."""
        self.ended = True
        self.wake.set()

    def expire(self) -> None:
        """End the stream because the client's token has expired."""
        self.expired = True
        self.end()


class ListenStreams:
    """All open listen streams of a server."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.feed: TaskFeed | None = None  # set by the server
        self._streams: dict[ListenStream, None] = {}
        self._per_peer: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None  # event loop of the streams
        self._closed: asyncio.AbstractEventLoop | None = None  # event loop in which `close` has ended all streams

    def __len__(self) -> int:
        return len(self._streams)

    async def listen(self, call: Call) -> EmptyResult:
        """Serve `subscriptions/listen`: acknowledge the request, then send changes until one side ends the stream."""
        wanted = cast("ListenParams", call.envelope.params).notifications
        self._check(call, wanted)
        stream = ListenStream(call.id, self._offered(wanted), call.peer)
        stream.ended = self._closed is asyncio.get_running_loop()
        meta = {SUBSCRIPTION_ID_KEY: stream.id}
        self._add(stream)  # before the first `await`, so that streams that are opened at the same time find the limit
        try:
            if wanted.task_ids is not None and (feed := self._offered_feed) is not None:
                stream.add_tasks(await feed.readable(call, wanted.task_ids))
            acknowledged = AcknowledgedParams(notifications=stream.filter, meta=meta)
            await call.reply.notify(encode_notification("notifications/subscriptions/acknowledged", acknowledged))
            async with self._watching(stream):
                with at_expiry(self._services, call.token_info, stream.expire):
                    await self._send_changes(call, stream, meta)
        finally:
            self._remove(stream)
        if stream.expired:
            await call.reply.end()  # without a result, so that the client listens again with another token
        # The server ends the stream with the result. If the connection continues (stdio), a cancellation follows.
        call.reply.epilogue(encode_notification("notifications/cancelled", CancelledParams(request_id=call.id)))
        return EmptyResult(meta=meta)

    async def _send_changes(self, call: Call, stream: ListenStream, meta: Meta) -> None:
        """Send changes until one side ends the stream."""
        while not stream.ended or stream.inbox:
            while (change := stream.inbox.take()) is not None:
                if change.kind != "task":
                    await call.reply.notify(encode_change(change, meta))
                elif self.feed is not None and change.uri is not None:
                    message = await self.feed.notification(call, change.uri, meta)
                    if message is not None:
                        await call.reply.notify(message)
            if not stream.ended:
                await stream.wake.wait()
                stream.wake.clear()

    @asynccontextmanager
    async def _watching(self, stream: ListenStream) -> AsyncGenerator[None]:
        """Add each change of the stream's tasks to its inbox within the `async with` block, and their present state."""
        async with AsyncExitStack() as watching:
            for id in sorted(stream.tasks):
                assert self.feed is not None
                change = Change("task", id)
                watching.push_async_callback(await self.feed.watch(id, partial(stream.inbox.put, change)))
                stream.inbox.put(change)  # it may have changed since the client has read it
            yield

    def close(self, peer: str | None = None) -> int:
        """End all streams, or only the streams of `peer`, after their pending changes are sent. Return how many ended.

        After `close()` without a peer, a stream that is opened later in the same event loop ends at once.
        """
        if peer is None:
            self._closed = asyncio.get_running_loop()
        ending = [one for one in self._streams if not one.ended and (peer is None or one.peer == peer)]
        for stream in ending:
            stream.end()
        return len(ending)

    def reopen(self) -> None:
        """Accept new streams again after `close()`, for a program that runs the same server a second time."""
        self._closed = None

    def close_soon(self) -> None:
        """Schedule `close()` in the event loop of the streams. Can be called from any thread or a signal handler."""
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:  # another thread
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.close)

    def _check(self, call: Call, wanted: SubscriptionFilter) -> None:
        if not call.reply.can_stream:
            raise InvalidRequest("Invalid request: changes are sent on a stream; send Accept: text/event-stream.")
        limits = self._services.limits
        check_uris(wanted.resource_subscriptions or (), limits)
        if wanted.task_ids is not None and self._offered_feed is not None:
            call.era.tasks.require(call.envelope)
            check_task_ids(wanted.task_ids, limits)
        if len(self._streams) >= limits.listen_streams:
            raise Busy(f"{limits.listen_streams} streams are open already. Try again when one has ended.")
        if self._per_peer[call.peer] >= limits.listen_streams_per_peer:
            raise Busy(f"You have {limits.listen_streams_per_peer} streams open already. Close one first.")

    @property
    def _offered_feed(self) -> TaskFeed | None:
        """The changes of tasks; None if the server has no tasks, so that it does not know the field `taskIds`."""
        return self.feed if self.feed is not None and self.feed.is_offered else None

    def _offered(self, wanted: SubscriptionFilter) -> SubscriptionFilter:
        """Return the part of a filter that the server offers."""
        has = self._services.capabilities
        return SubscriptionFilter(
            tools_list_changed=True if wanted.tools_list_changed and has.tools else None,
            prompts_list_changed=True if wanted.prompts_list_changed and has.prompts else None,
            resources_list_changed=True if wanted.resources_list_changed and has.resources else None,
            resource_subscriptions=wanted.resource_subscriptions if has.resources else None,
        )

    def _add(self, stream: ListenStream) -> None:
        self._streams[stream] = None
        self._per_peer[stream.peer] += 1
        self._loop = asyncio.get_running_loop()
        self._services.changes.open_inbox(stream.inbox)

    def _remove(self, stream: ListenStream) -> None:
        self._services.changes.close_inbox(stream.inbox)
        del self._streams[stream]
        self._per_peer[stream.peer] -= 1
        if not self._per_peer[stream.peer]:
            del self._per_peer[stream.peer]


Show: TypeAlias = Callable[[TokenInfo | None], None]  # takes a newer token of the client

AGAIN_SECONDS = 1.0  # seconds until `end` is called again, if it returned True
_EARLY_SECONDS = 0.01  # timers fire at most this much too early


def at_expiry(
    services: Services, info: TokenInfo | None, end: Callable[[], bool | None]
) -> AbstractContextManager[Show]:
    """Return a context manager that calls `end` when the token `info` expires.

    If `end` returns True, it is called again after a second.

    The context manager yields a function. Call this function with each newer token of the client, so that `end` is
    called only when all tokens have expired. `end` is never called if the server does not verify tokens, or if the
    token has no expiry.
    """
    return _NEVER if services.auth is None else _expiring(services.auth.leeway, info, end)


_NEVER: AbstractContextManager[Show] = nullcontext(lambda _: None)  # shared by all streams, because there may be many


@contextmanager
def _expiring(leeway: float, info: TokenInfo | None, end: Callable[[], bool | None]) -> Generator[Show]:
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def expire() -> None:
        nonlocal timer
        timer = loop.call_later(AGAIN_SECONDS, expire) if end() else None

    def show(info: TokenInfo | None) -> None:
        nonlocal timer
        left = None  # seconds for which the token is still accepted; None if it does not expire
        if info is not None and info.expires is not None:
            # A timer may fire a moment too early, and then a client that comes back would be let in once more.
            left = max(info.expires + leeway - time.time(), 0.0) + _EARLY_SECONDS
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
