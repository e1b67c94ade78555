"""Listen for changes of a server: changed lists and updated resources.

In the stateless era, the client listens with one request that stays open. In the session era, it subscribes to
resources, and changes arrive on the standalone stream. The era decides how to listen (`ListenPlan`).

A stream that was lost is opened again, with growing pauses. Then the program gets a `StreamReopened`, because changes
may have been missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from weft.client.callbacks import Attempts
from weft.client.connection.connection import ClientConnection
from weft.client.connection.negotiate import explained
from weft.client.connection.transport import Refused, ignore
from weft.client.results import (
    Change,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated,
    StreamReopened,
    ToolsChanged,
)
from weft.eras.base import ListenPlan, ServerHello
from weft.errors import ConnectionFailed, InvalidAnswer, RequestTimeout, UsageError, WeftError
from weft.limits import ClientLimits
from weft.types.base import SUBSCRIPTION_ID_KEY, RequestId
from weft.types.interaction import SubscriptionFilter

log = logging.getLogger("weft.client")


class _Meta(msgspec.Struct):
    subscription_id: int | str | None = msgspec.field(name=SUBSCRIPTION_ID_KEY, default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    uri: str = ""
    notifications: SubscriptionFilter | None = None


_read = msgspec.json.Decoder(_Params).decode

_LONGEST_URI = 8 * 1024  # maximum characters in a URI; changes with a longer URI would take too much memory
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LISTS: Mapping[str, tuple[Change, str]] = {
    "notifications/tools/list_changed": (ToolsChanged(), "tools_list_changed"),
    "notifications/prompts/list_changed": (PromptsChanged(), "prompts_list_changed"),
    "notifications/resources/list_changed": (ResourcesChanged(), "resources_list_changed"),
}
_UPDATED = "notifications/resources/updated"


def filter_for(uris: list[str], *, tools: bool, prompts: bool, resources: bool) -> SubscriptionFilter:
    """Return a filter for changes of the chosen lists and of the resources in `uris`.

    If no list and no URI is chosen, the filter contains all lists.
    """
    everything = not (tools or prompts or resources or uris)
    return SubscriptionFilter(
        tools or everything or None, prompts or everything or None, resources or everything or None, uris or None
    )


@dataclass(eq=False)
class Subscriptions:
    """The open `Listening` objects of one connection."""

    link: ClientConnection
    limits: ClientLimits
    ask: Callable[[str, Mapping[str, Any]], Awaitable[Any]]  # sends a request, such as `Client.request`
    facts: Callable[[], ServerHello]  # returns the server's capabilities
    open: set[Listening] = field(default_factory=set["Listening"])

    async def begin(self, plan: ListenPlan) -> None:
        """Send the requests that subscribe to resources. Raises UsageError if the server has no subscriptions."""
        resources = self.facts().capabilities.resources
        if plan.begin and not (resources is not None and resources.subscribe):
            raise UsageError(
                f"{self.link.transport.where} accepts no subscriptions to resources: it did not declare "
                "`resources.subscribe`, so listen(uris=...) would never get a change. Leave uris= out, or read the "
                "resources again from time to time."
            )
        await self.ask_all(plan.begin)

    async def ask_all(self, steps: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Send requests, given as pairs of method and params, one after the other."""
        for method, params in steps:
            await self.ask(method, params)

    def receive(self, method: str, params: bytes, origin: RequestId | None) -> None:
        """Pass a change or an acknowledgement to the `Listening` objects of its stream. Ignore other notifications.

        The stream is named in the notification's `_meta`, or else it is the stream of the request with the id `origin`.
        If `origin` is None, too, all `Listening` objects get the notification. Objects on the standalone stream get the
        notifications of all streams. Each object gets only the changes that it has requested.
        """
        if method != _ACKNOWLEDGED and method != _UPDATED and method not in _LISTS:
            return
        decoded = _read(params)
        stream = decoded.meta.subscription_id if decoded.meta is not None else None
        stream = origin if stream is None else stream
        for listening in tuple(self.open):
            if listening.stream_id is not None and stream is not None and listening.stream_id != stream:
                continue
            if method == _ACKNOWLEDGED:
                listening.acknowledged(decoded.notifications or SubscriptionFilter())
            elif (change := _change(method, decoded.uri, listening.requested)) is not None:
                listening.push(change)

    def reopened(self) -> None:
        """Pass a `StreamReopened` to all `Listening` objects on the standalone stream.

        Called when the standalone stream was lost and is open again.
        """
        for listening in tuple(self.open):
            if listening.stream_id is None:
                listening.push(StreamReopened())

    def silenced(self, failure: ConnectionFailed) -> None:
        """End all `Listening` objects on the standalone stream with the error `failure`.

        Called when the standalone stream was lost and could not be opened again.
        """
        for listening in tuple(self.open):
            if listening.stream_id is None:
                listening.end(failure)

    async def renewed(self) -> None:
        """Subscribe again for all open `Listening` objects, after a new negotiation."""
        for listening in tuple(self.open):
            try:
                await listening.subscribe_again()
            except WeftError as error:  # the other listeners continue
                listening.end(error)

    def is_wanted(self, uri: str) -> bool:
        """Return whether an open `Listening` object has subscribed to the resource `uri`."""
        return any(uri in (listening.requested.resource_subscriptions or ()) for listening in self.open)

    def close(self) -> None:
        """End all open `Listening` objects without an error."""
        for listening in tuple(self.open):
            listening.end(None)


def _change(method: str, uri: str, requested: SubscriptionFilter) -> Change | None:
    """Convert a notification to a change. Return None if the filter `requested` does not contain the change.

    A URI in the filter includes the resources below it. A change with a very long URI is dropped (None).
    """
    if method in _LISTS:
        change, field = _LISTS[method]
        return change if getattr(requested, field) else None
    for wanted in requested.resource_subscriptions or ():
        if uri == wanted or uri.startswith(wanted.rstrip("/") + "/"):
            return ResourceUpdated(uri) if len(uri) <= _LONGEST_URI else None
    return None


class Listening:
    """An async iterator over the changes of a server.

    `async with` waits until the server has accepted the subscription. At the end of the block, the subscription is
    ended.

    If the stream is lost, it is opened again. Then a `StreamReopened` says that changes may have been missed. After
    several failed attempts in a row, the iteration raises ConnectionFailed. The iteration ends without an error if the
    server ends the stream or the client is closed. If there are too many unread changes, the oldest are dropped.
    """

    def __init__(self, subscriptions: Subscriptions, requested: SubscriptionFilter) -> None:
        self.requested = requested  # the changes that the program wants
        self.honoured: SubscriptionFilter | None = None  # the changes that the server has promised to send
        self.stream_id: RequestId | None = None  # id of the request that stays open; None on the standalone stream
        self.on_lost: Callable[[], None] = (
            ignore  # called when a stream is lost on which the server has promised changes
        )
        self._subscriptions = subscriptions
        self._changes: deque[Change] = deque(maxlen=subscriptions.limits.changes_kept)
        self._news = asyncio.Event()  # set when there is a change to read, or the iteration has ended
        self._ready = asyncio.Event()  # set when the server has accepted the subscription, or the iteration has ended
        self._task: asyncio.Task[Any] | None = None  # keeps the stream open
        self._patience: asyncio.Timeout | None = None  # deadline for the server's first message on the stream
        self._is_over = False
        self._is_started = False
        self._failure: WeftError | None = None  # why the iteration has ended, if it failed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        if not self._is_started:
            await self.start()
        while not self._changes:
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._changes.popleft()

    # --- start and end

    async def start(self) -> None:
        """Start listening, and wait until the server has accepted the subscription.

        Raises the server's error if the server refuses, and RequestTimeout if it does not accept in time.
        """
        if self._is_started or self._is_over:
            return
        self._is_started = True
        subscriptions, link = self._subscriptions, self._subscriptions.link
        subscriptions.open.add(self)
        plan = link.era.listen(self.requested)
        try:
            if plan.stream is None:
                await link.reopen_stream()
                await subscriptions.begin(plan)
                return
            self._task = link.spawn(self._keep(*plan.stream))
            await self._ready.wait()
        except BaseException:
            self.end(None)
            if self._task is not None:  # the caller cannot close the stream any more
                self._task.cancel()
            raise
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop listening, and end the subscription at the server."""
        if self._is_over:
            return
        self.end(None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            return
        if not self._is_started:
            return
        subscriptions = self._subscriptions
        plan = subscriptions.link.era.listen(self.requested)
        try:
            await subscriptions.ask_all([step for step in plan.end if not subscriptions.is_wanted(step[1]["uri"])])
        except WeftError as error:
            log.debug("A subscription could not be ended: %s", error)

    def end(self, failure: WeftError | None) -> None:
        """End the iteration. The iterator then raises `failure`, or stops without an error if `failure` is None."""
        if not self._is_over:
            self._is_over = True
            self._failure = failure
            self._subscriptions.open.discard(self)
        self._news.set()
        self._ready.set()

    # --- incoming changes

    def push(self, change: Change) -> None:
        """Add a change to the queue that the iterator reads."""
        self._changes.append(change)
        self._remove_deadline()
        self._news.set()
        self._ready.set()

    def acknowledged(self, honoured: SubscriptionFilter) -> None:
        """Record that the server has accepted the subscription and will send the changes in `honoured`.

        If the server had accepted an earlier attempt, too, a `StreamReopened` is added to the queue.
        """
        self.honoured = honoured
        self._remove_deadline()
        if self._ready.is_set():
            self.push(StreamReopened())
        self._ready.set()

    def _remove_deadline(self) -> None:
        """Remove the deadline for the server's first message, because a message has arrived."""
        patience, self._patience = self._patience, None
        if patience is not None and not patience.expired():
            patience.reschedule(None)

    async def subscribe_again(self) -> None:
        """Subscribe again after a new negotiation, which may have changed the era."""
        if self._task is not None:  # it opens its stream again when that fails
            return
        link = self._subscriptions.link
        plan = link.era.listen(self.requested)
        if plan.stream is None:
            await self._subscriptions.begin(plan)
        else:
            self._task = link.spawn(self._keep(*plan.stream))
        self.push(StreamReopened())

    # --- the stream

    async def _keep(self, method: str, params: Mapping[str, Any]) -> None:
        """Open the stream, and open it again whenever it is lost. After too many failures, end the iteration."""
        link, limits = self._subscriptions.link, self._subscriptions.limits
        now = asyncio.get_running_loop().time
        most = limits.resumptions
        attempts = Attempts()
        while True:
            since = now()
            self.stream_id = link.next_id()  # each attempt is a new request
            try:
                async with asyncio.timeout(limits.request_seconds) as self._patience:
                    await link.exchange(self.stream_id, method, params)
            except asyncio.CancelledError:
                link.give_up(self.stream_id)
                raise
            except TimeoutError:
                link.give_up(self.stream_id)
                failure: WeftError = RequestTimeout(f"{link.transport.where} did not confirm the subscription in time.")
            except (ConnectionFailed, InvalidAnswer) as error:
                failure = error
            except Refused as refused:
                failure = explained(refused)
                attempts.failed = attempts.failed if refused.status >= 500 else most  # a retry would be refused, too
            except WeftError as error:
                self.end(error)
                return
            except Exception as error:
                failure = ConnectionFailed(f"The stream of {link.transport.where} failed: {type(error).__name__}.")
                failure.__cause__ = error
                self.end(failure)
                raise
            else:
                self.end(None)  # a result means that the server has ended the stream
                return
            self._patience = None
            if self.honoured is not None:
                attempts.took(now() - since)
                self.honoured = None
                self.on_lost()
            if attempts.failed >= most or not self._ready.is_set():
                self.end(failure)
                return
            await asyncio.sleep(attempts.pause())
