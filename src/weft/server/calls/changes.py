"""Publish changes of feature lists and resources, and keep them for each peer until they are sent.

`Changes` is the hub of one server. A `ChangeInbox` holds the changes that one peer was not notified of yet; sessions,
listen streams and pipes each have one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from weft.jsonrpc import encode_notification
from weft.types.base import NotificationParams
from weft.types.features import ResourceUpdatedParams

log = logging.getLogger("weft.changes")

ChangeKind = Literal["tools", "prompts", "resources", "resource"]
MOST_UNTOLD = 1024  # pending changes of one peer; with more, a changed part is reported as a change of the whole


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One change of a list, or, if `kind` is `resource`, of the contents of the resource `uri`.

    `part_of` is the URI of a resource that contains the changed one. Its subscribers are notified too.

    >>> Change("resource", "repo://x/readme", part_of="repo://x").concerns({"repo://x"})
    True
    """

    kind: ChangeKind
    uri: str | None = None
    part_of: str | None = None  # the resource that contains this one: its subscribers are notified too

    def concerns(self, uris: Container[str | None]) -> bool:
        """Return whether a subscriber of `uris` must be notified. The change of a list concerns every peer."""
        return self.kind != "resource" or self.uri in uris or (self.part_of is not None and self.part_of in uris)


@dataclass(slots=True, eq=False)
class ChangeInbox:
    """The changes that one peer was not notified of yet, each once, in the order they came.

    It is used in one event loop: `Changes` puts changes into the inbox, and `wake` is called after each.
    """

    _accepts: Callable[[Change], bool]
    _uris: Container[str | None]  # resources that the peer subscribed to
    _wake: Callable[[], object]
    _pending: dict[Change, None] = field(default_factory=dict[Change, None])  # an ordered set

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, change: Change) -> None:
        """Add a change, if this peer has to be notified of it.

        The inbox of a slow reader stays small: when it has `MOST_UNTOLD` changes, the change of a part of a resource is
        added as a change of the whole resource, unless the peer subscribed to the part itself.
        """
        if not self._accepts(change):
            return
        if change.part_of is not None:
            is_one_too_many = len(self._pending) >= MOST_UNTOLD and change.uri not in self._uris
            change = Change("resource", change.part_of if is_one_too_many else change.uri)
        self._pending[change] = None
        self._wake()

    def take(self) -> Change | None:
        """Remove and return the oldest change; None if there is none."""
        for change in self._pending:
            del self._pending[change]
            return change
        return None


class Changes:
    """Publishes every change to all listeners and inboxes.

    Listeners are called in the thread that publishes, in the order they subscribed. They must not block and must not
    expect an event loop. Inboxes get the change in their event loop.

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
        """Put every change from now on into an inbox, in the event loop that is running now."""
        with self._lock:
            self._inboxes[inbox] = asyncio.get_running_loop()

    def close_inbox(self, inbox: ChangeInbox) -> None:
        """Stop putting changes into an inbox."""
        with self._lock:
            self._inboxes.pop(inbox, None)

    def publish(self, change: Change) -> None:
        """Pass a change to all listeners and inboxes, from any thread. Exceptions of listeners are logged."""
        with self._lock:
            loops = set(self._inboxes.values())
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:
                log.exception("a listener failed on a change of %s", change.kind)
        for loop in loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._put, loop, change)

    def _put(self, loop: asyncio.AbstractEventLoop, change: Change) -> None:
        for inbox, home in list(self._inboxes.items()):
            if home is loop:
                inbox.put(change)


def encode_change(change: Change, meta: dict[str, Any] | None = None) -> bytes:
    """Encode the notification of a change.

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
