"""Listen for changes, in either era: by one request that stays open, or by subscriptions and the shared stream.

A stream that was lost is opened again, with longer and longer pauses; after every loss the listener gets a
`StreamReopened`, for changes may have been missed. The era's plan says how listening is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from weft.client.callbacks import Attempts
from weft.client.connection.connection import ClientConnection
from weft.client.connection.negotiate import explained
from weft.client.connection.transport import Refused
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


class _Ask(Protocol):
    """Makes a request, as a verb does."""

    async def __call__(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result."""
        ...


class _Meta(msgspec.Struct):
    subscription_id: int | str | None = msgspec.field(name=SUBSCRIPTION_ID_KEY, default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    uri: str = ""
    notifications: SubscriptionFilter | None = None


_read = msgspec.json.Decoder(_Params).decode

_LONGEST_URI = 8 * 1024  # characters, of a resource that has changed: many changes may wait to be read
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LISTS: Mapping[str, tuple[Change, str]] = {
    "notifications/tools/list_changed": (ToolsChanged(), "tools_list_changed"),
    "notifications/prompts/list_changed": (PromptsChanged(), "prompts_list_changed"),
    "notifications/resources/list_changed": (ResourcesChanged(), "resources_list_changed"),
}
_UPDATED = "notifications/resources/updated"


def wish_for(uris: list[str], *, tools: bool, prompts: bool, resources: bool) -> SubscriptionFilter:
    """Return the filter for lists and single resources; all lists by default."""
    everything = not (tools or prompts or resources or uris)
    return SubscriptionFilter(
        tools or everything or None, prompts or everything or None, resources or everything or None, uris or None
    )


class Subscriptions:
    """All that listen on one connection."""

    def __init__(
        self, link: ClientConnection, limits: ClientLimits, ask: _Ask, facts: Callable[[], ServerHello]
    ) -> None:
        self.link = link
        self.limits = limits
        self._ask = ask
        self._facts = facts  # what the server says of itself
        self._open: set[Listening] = set()

    async def begin(self, plan: ListenPlan) -> None:
        """Make the requests with which listening begins; UsageError where the server takes none of them."""
        resources = self._facts().capabilities.resources
        if plan.begin and not (resources is not None and resources.subscribe):
            raise UsageError(
                f"{self.link.transport.where} takes no subscriptions to resources: it did not declare "
                "`resources.subscribe`, so listen(uris=...) would never hear of a change. Leave uris= out, or read the "
                "resources again from time to time."
            )
        await self.ask_all(plan.begin)

    async def ask_all(self, steps: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Make requests, one after the other."""
        for method, params in steps:
            await self._ask(method, params)

    def add(self, listening: Listening) -> None:
        """Add one that listens."""
        self._open.add(listening)

    def discard(self, listening: Listening) -> None:
        """Remove one that listens."""
        self._open.discard(listening)

    def heard(self, method: str, params: bytes, origin: RequestId | None) -> None:
        """Give a notification to those whose stream it names in its `_meta`, or came on."""
        if method != _ACKNOWLEDGED and method != _UPDATED and method not in _LISTS:
            return
        told = _read(params)
        stream = told.meta.subscription_id if told.meta is not None else None
        stream = origin if stream is None else stream
        for listening in tuple(self._open):
            if listening.stream_id is not None and stream is not None and listening.stream_id != stream:
                continue
            if method == _ACKNOWLEDGED:
                listening.acknowledged(told.notifications or SubscriptionFilter())
            elif (change := _change(method, told.uri, listening.wish)) is not None:
                listening.push(change)

    def reopened(self) -> None:
        """Notify those on the standing stream that it was lost and is open again."""
        for listening in tuple(self._open):
            if listening.stream_id is None:
                listening.push(StreamReopened())

    def silenced(self, failure: ConnectionFailed) -> None:
        """End those on the shared stream, which was lost for good."""
        for listening in tuple(self._open):
            if listening.stream_id is None:
                listening.end(failure)

    async def renewed(self) -> None:
        """Subscribe again in a new session."""
        for listening in tuple(self._open):
            try:
                await listening.subscribe_again()
            except WeftError as error:  # the others hear on
                listening.end(error)

    def is_wanted(self, uri: str) -> bool:
        """Return whether anything listens to a resource."""
        return any(uri in (listening.wish.resource_subscriptions or ()) for listening in self._open)

    def close(self) -> None:
        """End all listening."""
        for listening in tuple(self._open):
            listening.end(None)


def _change(method: str, uri: str, wish: SubscriptionFilter) -> Change | None:
    """Return the change, if it was asked for. A resource may also be below the one that was named."""
    if method in _LISTS:
        change, wished = _LISTS[method]
        return change if getattr(wish, wished) else None
    for wanted in wish.resource_subscriptions or ():
        if uri == wanted or uri.startswith(wanted.rstrip("/") + "/"):
            return ResourceUpdated(uri) if len(uri) <= _LONGEST_URI else None
    return None


class Listening:
    """Changes as they come: iterate over it. `async with` waits until the server listens, and ends it for sure.

    When the stream is lost, it is opened again, and a `StreamReopened` tells that changes may have been missed; when
    that does not succeed several times in a row, the iteration ends with a ConnectionFailed. It ends without one when
    the server ends it, or the client is closed. Unread changes are kept up to a limit, then the oldest are
    lost.
    """

    def __init__(self, subscriptions: Subscriptions, wish: SubscriptionFilter) -> None:
        self.wish = wish
        self.honoured: SubscriptionFilter | None = None  # what the server will tell of, where it said so
        self.stream_id: RequestId | None = None  # of the request that stays open
        self._subscriptions = subscriptions
        self._changes: deque[Change] = deque(maxlen=subscriptions.limits.changes_kept)
        self._news = asyncio.Event()  # something to read, or the end
        self._ready = asyncio.Event()  # the server listens, or never will
        self._task: asyncio.Task[Any] | None = None
        self._patience: asyncio.Timeout | None = None  # while the server has not said yet that it listens
        self._is_over = False
        self._is_started = False
        self._failure: WeftError | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    # --- beginning and end

    async def start(self) -> None:
        """Begin to listen; returns when the server does. Raises what the server says to it."""
        if self._is_started or self._is_over:
            return
        self._is_started = True
        subscriptions = self._subscriptions
        subscriptions.add(self)
        plan = subscriptions.link.era.listen(self.wish)
        if plan.stream is None:
            try:
                await subscriptions.link.reopen_stream()
                await subscriptions.begin(plan)
            except BaseException:
                self.end(None)
                raise
            return
        self._task = subscriptions.link.spawn(self._keep(*plan.stream))
        try:
            async with asyncio.timeout(subscriptions.limits.request_seconds):
                await self._ready.wait()
        except TimeoutError:
            await self.close()
            raise RequestTimeout(f"{subscriptions.link.transport.where} did not begin to listen in time.") from None
        except asyncio.CancelledError:  # no task is left that could close it
            self.end(None)
            self._task.cancel()
            raise
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop to listen, and tell the server so."""
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
        plan = subscriptions.link.era.listen(self.wish)
        try:
            await subscriptions.ask_all([step for step in plan.end if not subscriptions.is_wanted(step[1]["uri"])])
        except WeftError as error:
            log.debug("A subscription could not be ended: %s", error)

    def end(self, failure: WeftError | None) -> None:
        """End the iteration, with this failure or without one."""
        if not self._is_over:
            self._is_over = True
            self._failure = failure
            self._subscriptions.discard(self)
        self._news.set()
        self._ready.set()

    # --- what comes

    def push(self, change: Change) -> None:
        """Add a change."""
        self._changes.append(change)
        self._be_patient()
        self._news.set()
        self._ready.set()

    def acknowledged(self, honoured: SubscriptionFilter) -> None:
        """Note that the server listens, and to what."""
        self.honoured = honoured
        self._be_patient()
        if self._ready.is_set():
            self.push(StreamReopened())
        self._ready.set()

    def _be_patient(self) -> None:
        """End the time limit for the first answer: a server may be silent as long as nothing changes."""
        patience, self._patience = self._patience, None
        if patience is not None and not patience.expired():
            patience.reschedule(None)

    async def subscribe_again(self) -> None:
        """In a new session, ask for everything again; in the way of another era, if it is another now."""
        if self._task is not None:  # it finds out by itself
            return
        link = self._subscriptions.link
        plan = link.era.listen(self.wish)
        if plan.stream is None:
            await self._subscriptions.begin(plan)
        else:
            self._task = link.spawn(self._keep(*plan.stream))
        self.push(StreamReopened())

    # --- the stream

    async def _keep(self, method: str, params: Mapping[str, Any]) -> None:
        """Keep the stream open, through every loss of it, up to so many in a row."""
        link, limits = self._subscriptions.link, self._subscriptions.limits
        now = asyncio.get_running_loop().time
        most = limits.resumptions
        attempts = Attempts()
        while True:
            self.honoured = None
            since = now()
            self.stream_id = link.next_id()  # a new one each time: the old request is lost
            try:
                async with asyncio.timeout(limits.request_seconds) as self._patience:
                    await link.exchange(self.stream_id, method, params)
            except asyncio.CancelledError:
                link.give_up(self.stream_id)
                raise
            except TimeoutError:
                link.give_up(self.stream_id)
                failure: WeftError = RequestTimeout(f"{link.transport.where} did not begin to listen in time.")
            except (ConnectionFailed, InvalidAnswer) as error:
                failure = error
            except Refused as refused:
                failure = explained(refused)
                attempts.failed = attempts.failed if refused.status >= 500 else most  # it will say the same again
            except WeftError as error:
                self.end(error)
                return
            else:
                self.end(None)  # the server has answered: it is over, in good order
                return
            self._patience = None
            if self.honoured is not None:
                attempts.took(now() - since)
            if attempts.failed >= most or not self._ready.is_set():
                self.end(failure)
                return
            await asyncio.sleep(attempts.pause())
