"""Publish changes of feature lists and resources to listeners.

The listeners decide which clients are notified of a change, and how.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container
from typing import Any, Literal

import msgspec

from weft.errors import UsageError
from weft.jsonrpc import encode_notification
from weft.types.base import NotificationParams
from weft.types.features import ResourceUpdatedParams

log = logging.getLogger("weft.changes")

ChangeKind = Literal["tools", "prompts", "resources", "resource"]
MOST_LISTENERS = 4096
MOST_UNTOLD = 1024  # Pending changes of one client; beyond that, parts of a resource are merged into the whole.


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One change: of a list of features, or (`resource`, with its `uri`) of the content of one resource.

    >>> Change("resource", "repo://x/readme", part_of="repo://x").concerns({"repo://x"})
    True
    """

    kind: ChangeKind
    uri: str | None = None
    part_of: str | None = None  # A resource that contains this one; its subscribers are notified too.

    def concerns(self, uris: Container[str | None]) -> bool:
        """Return whether subscribers of these resources are notified. Changes of lists concern every client."""
        return self.kind != "resource" or self.uri in uris or (self.part_of is not None and self.part_of in uris)


Listener = Callable[[Change], None]


class Changes:
    """Calls every listener for every change.

    Listeners are called in the thread that publishes, in the order of their subscription. They must not block, and
    must not expect an event loop; use `loop.call_soon_threadsafe` if you need one.

    >>> changes, received = Changes(), []
    >>> unsubscribe = changes.subscribe(received.append)
    >>> changes.publish(Change("tools"))
    >>> unsubscribe()
    >>> received
    [Change(kind='tools', uri=None, part_of=None)]
    """

    __slots__ = ("_listeners", "_lock", "_next")

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}  # By number, so that one function can be subscribed twice.
        self._lock = threading.Lock()
        self._next = 0

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change from now on. Returns a function that ends this; calling it twice is fine."""
        with self._lock:
            if len(self._listeners) >= MOST_LISTENERS:
                raise UsageError(
                    f"There are {MOST_LISTENERS} listeners for changes already, which is the maximum. "
                    "Unsubscribe those that are done, or let one listener pass changes to the others."
                )
            number = self._next
            self._next += 1
            self._listeners[number] = listener

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(number, None)

        return unsubscribe

    def publish(self, change: Change) -> None:
        """Call all listeners. If one raises, that is logged and the others are still called."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            try:
                listener(change)
            except Exception:
                log.exception("a listener failed on a change of %s", change.kind)


def note(pending: dict[Change, None], change: Change, uris: Container[str | None]) -> None:
    """Add a change to those that a client subscribed to `uris` is to be notified of, once.

    If too many parts of a resource are pending, the whole resource takes their place: this bounds the memory of a slow
    reader.
    """
    if change.part_of is not None:
        is_one_too_many = len(pending) >= MOST_UNTOLD and change.uri not in uris
        change = Change("resource", change.part_of if is_one_too_many else change.uri)
    pending[change] = None


def encode_change(change: Change, meta: dict[str, Any] | None = None) -> bytes:
    """Return the notification of a change, encoded.

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
