"""Publish changes of feature lists and resources, and store them for each peer until they are sent.

`Changes` distributes the changes of one server. A `ChangeInbox` holds the changes that one peer was not notified of
yet. Each session, listen stream and pipe has an inbox.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from weft.jsonrpc import encode_notification
from weft.types.base import NotificationParams
from weft.types.features import ResourceUpdatedParams

log = logging.getLogger("weft.changes")

ChangeKind = Literal["tools", "prompts", "resources", "resource", "task"]
# Pending changes of one peer. If there are more, the change of a part is reported as a change of the whole resource.
MOST_UNTOLD = 1024


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A change of a feature list, or of one resource.

    If `kind` is "task", `uri` is the id of a task; only inboxes of listen streams get such changes. If `kind` is
    "resource", the contents of the resource `uri` have changed. `part_of` is the URI of a larger resource
    that contains this resource. Subscribers of the larger resource are notified too.

    >>> Change("resource", "repo://x/readme", part_of="repo://x").concerns({"repo://x"})
    True
    """

    kind: ChangeKind
    uri: str | None = None
    part_of: str | None = None  # URI of a larger resource that contains this resource

    def concerns(self, uris: Container[str | None]) -> bool:
        """Return whether a client that subscribed to `uris` must be notified. Always True for the change of a list."""
        return self.kind != "resource" or self.uri in uris or (self.part_of is not None and self.part_of in uris)


@dataclass(slots=True, eq=False)
class ChangeInbox:
    """The changes that one peer was not notified of yet, without duplicates, oldest first.

    An inbox is used in only one event loop. It calls `wake` after each change that was added.
    """

    _accepts: Callable[[Change], bool]
    _uris: Collection[str]  # resources that the peer subscribed to
    _wake: Callable[[], object]
    _pending: dict[Change, None] = field(default_factory=dict[Change, None])  # an ordered set

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, change: Change) -> None:
        """Add a change, if this peer has to be notified of the change.

        The inbox of a slow peer stays small: when it has `MOST_UNTOLD` changes, the change of a part of a resource is
        added as a change of the whole resource, unless the peer subscribed to the part itself.
        """
        if not self._accepts(change):
            return
        if change.part_of is not None:
            is_one_too_many = len(self._pending) >= MOST_UNTOLD and change.uri not in self._uris
            change = Change("resource", change.part_of if is_one_too_many else change.uri)
        self._pending[change] = None
        self._wake()

    def put_all(self) -> None:
        """Add every change that the peer can be notified of, because some changes may have been missed."""
        for kind in ("tools", "prompts", "resources"):
            self.put(Change(kind))
        for uri in list(self._uris):
            self.put(Change("resource", uri))

    def take(self) -> Change | None:
        """Remove and return the oldest change; return None if the inbox is empty."""
        for change in self._pending:
            del self._pending[change]
            return change
        return None


class Changes:
    """Publishes every change to all listeners and inboxes.

    Listeners are called in the thread that publishes the change, in the order they subscribed. They must not block, and
    must work without an event loop. Each inbox gets the change in the event loop of the inbox.

    >>> changes, published = Changes(), []
    >>> changes.subscribe(published.append)
    >>> changes.publish(Change("tools"))
    >>> published
    [Change(kind='tools', uri=None, part_of=None)]
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[Change], None]] = []
        self._inboxes: dict[ChangeInbox, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with every change from now on."""
        self._listeners.append(listener)

    def open_inbox(self, inbox: ChangeInbox) -> None:
        """Put every change from now on into an inbox. The inbox belongs to the current event loop."""
        with self._lock:
            self._inboxes[inbox] = asyncio.get_running_loop()

    def close_inbox(self, inbox: ChangeInbox) -> None:
        """Stop putting changes into an inbox."""
        with self._lock:
            self._inboxes.pop(inbox, None)

    def publish(self, change: Change) -> None:
        """Pass a change to all listeners and inboxes, from any thread. Exceptions of listeners are logged."""
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:
                log.exception("a listener failed on a change of %s", change.kind)
        self.receive(change)

    def receive(self, change: Change) -> None:
        """Pass a change, which may come from another worker, to all inboxes, but not to listeners. From any thread."""
        self._for_each_inbox(lambda inbox: inbox.put(change))

    def receive_all(self) -> None:
        """Pass every possible change to all inboxes, because changes of other workers may have been missed."""
        self._for_each_inbox(ChangeInbox.put_all)

    def _for_each_inbox(self, act: Callable[[ChangeInbox], None]) -> None:
        """Call `act` with each inbox, in the event loop of the inbox."""
        with self._lock:
            loops = set(self._inboxes.values())
        for loop in loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._act_in, loop, act)

    def _act_in(self, loop: asyncio.AbstractEventLoop, act: Callable[[ChangeInbox], None]) -> None:
        for inbox, home in list(self._inboxes.items()):
            if home is loop:
                act(inbox)


def encode_change(change: Change, meta: dict[str, Any] | None = None) -> bytes:
    """Return the encoded notification of a change, with `meta` as its `_meta`.

    >>> encode_change(Change("tools"))
    b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    """
    if change.kind == "resource":
        assert change.uri is not None
        params = ResourceUpdatedParams(uri=change.uri, meta=meta)
        return encode_notification("notifications/resources/updated", params)
    return encode_notification(
        f"notifications/{change.kind}/list_changed", msgspec.UNSET if meta is None else NotificationParams(meta=meta)
    )
