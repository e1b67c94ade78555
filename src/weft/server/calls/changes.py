"""Changes: what is told when a list of features, or one resource, is no longer what it was.

It owns the list of listeners and nothing else: which peer hears of a change, and how, is decided by those who listen.
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
MOST_UNTOLD = 1024  # changes that wait for one peer, after which parts are not told one by one


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One change: of a whole list, or (`resource`, with its `uri`) of what one resource holds.

    >>> Change("resource", "repo://x/readme", part_of="repo://x").concerns({"repo://x"})
    True
    """

    kind: ChangeKind
    uri: str | None = None
    part_of: str | None = None  # a resource that this one is within: who subscribed to the whole hears of it (SUB-19)

    def concerns(self, uris: Container[str | None]) -> bool:
        """Whether whoever subscribed to these resources is to hear of it; of a list, everybody is."""
        return self.kind != "resource" or self.uri in uris or (self.part_of is not None and self.part_of in uris)


Listener = Callable[[Change], None]


class Changes:
    """Tells every listener of every change.

    Listeners are called in the thread that publishes, one after the other, in the order they came. They must not block
    and must not expect an event loop; whoever needs one hops over with `loop.call_soon_threadsafe`.

    >>> changes, heard = Changes(), []
    >>> unsubscribe = changes.subscribe(heard.append)
    >>> changes.publish(Change("tools"))
    >>> unsubscribe()
    >>> heard
    [Change(kind='tools', uri=None, part_of=None)]
    """

    __slots__ = ("_listeners", "_lock", "_next")

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}  # by subscription, so that one function may listen twice
        self._lock = threading.Lock()
        self._next = 0

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear of every change from now on. Call what is returned to stop; twice does no harm."""
        with self._lock:
            if len(self._listeners) >= MOST_LISTENERS:
                raise UsageError(
                    f"{MOST_LISTENERS} listeners hear of changes already, which is the most there may be. "
                    "Unsubscribe those that are done, or let one listener tell the others."
                )
            number = self._next
            self._next += 1
            self._listeners[number] = listener

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(number, None)

        return unsubscribe

    def publish(self, change: Change) -> None:
        """Tell all listeners. One that raises is logged and keeps it from no other."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            try:
                listener(change)
            except Exception:
                log.exception("a listener failed on a change of %s", change.kind)


def note(pending: dict[Change, None], change: Change, uris: Container[str | None]) -> None:
    """Have a peer that subscribed to `uris` told of a change, once.

    Where more parts change than it has read of, the whole is told in their place: a slow reader stays cheap.
    """
    if change.part_of is not None:
        is_one_too_many = len(pending) >= MOST_UNTOLD and change.uri not in uris
        change = Change("resource", change.part_of if is_one_too_many else change.uri)
    pending[change] = None


def encode_change(change: Change, meta: dict[str, Any] | None = None) -> bytes:
    """The notification that tells of a change.

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
