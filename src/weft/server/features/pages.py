"""Pages: a list of features in a stable order, given out page by page, each page encoded once.

This module owns the order, the cursors, the encoded bytes, and what is said of how long they may be kept. It knows
nothing of what is listed: a registry hands in the function that makes a result of some items. It never calls user code
and never awaits.

A cursor names the item after which the next page begins, and that item's serial number. It means the same to every
worker that registered the same features, and goes on at the right place when items came or went in between (PAG-04): as
a rule after the item of that name, for a worker that registered in another order has other numbers. Where the item
went, or went and came again at the end, it goes on by the number.
"""

from __future__ import annotations

import base64
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_args

import msgspec

from weft.errors import InvalidParams, UsageError
from weft.protocol.names import closest
from weft.types.base import CacheScope, Result

DEFAULT_PAGE_SIZE = 250

_MAX_CURSOR = 16 * 1024  # a URI of the longest kind, escaped and in base64, fits
_MAX_KEYS = 8  # eras and revisions that have pages of their own; more are served without a cache
_MAX_VIEWS = 64  # kinds of callers whose view of the list is kept; for more it is made each time
_MAX_WENT = 1000  # names that were taken out and are remembered

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class CacheHint(msgspec.Struct, frozen=True):
    """How long a client may keep a result, and whether it may share it between users.

    `public` says that anybody may be shown it, also when it was fetched with a token (CACHE-16). If no scope is given,
    lists are public, for they are the same for all callers; what is read from a resource is private, for it may depend
    on who reads it.

    >>> CacheHint(ttl_ms=60_000, scope="private").ttl_ms
    60000
    """

    ttl_ms: int = 0
    scope: CacheScope | None = None

    def __post_init__(self) -> None:
        # CACHE-02, CACHE-03: told where it is written, not where it is sent.
        if type(self.ttl_ms) is not int or self.ttl_ms < 0:
            raise UsageError(
                f"CacheHint(ttl_ms={self.ttl_ms!r}) is not possible: ttl_ms is a whole number of milliseconds, "
                "0 (do not keep) or more."
            )
        if self.scope is not None and self.scope not in get_args(CacheScope):
            raise UsageError(
                f"CacheHint(scope={self.scope!r}) is not possible: use 'public' for what all users may see, "
                "or 'private' for what belongs to one."
            )

    @property
    def list_scope(self) -> CacheScope:
        """The scope of a list."""
        return self.scope or "public"

    @property
    def read_scope(self) -> CacheScope:
        """The scope of what is read from a resource."""
        return self.scope or "private"


class Encoded:
    """A sealed result together with its bytes, which are written to the wire as they are."""

    __slots__ = ("body", "result")

    def __init__(self, result: Result, body: msgspec.Raw) -> None:
        self.result = result
        self.body = body


class _Snapshot(Generic[T]):
    """The list as it is between two changes, and the pages made of it.

    A change replaces the whole snapshot, so a page that was being made meanwhile stays with the old one, forgotten.
    """

    __slots__ = ("items", "names", "pages", "position", "serials", "views")

    def __init__(self, entries: dict[str, tuple[int, T]]) -> None:
        self.items = [item for _, item in entries.values()]
        self.serials = [serial for serial, _ in entries.values()]
        self.names = list(entries)
        self.position = {name: place for place, name in enumerate(self.names)}
        self.pages: dict[Hashable, dict[int, Encoded]] = {}
        self.views: dict[Hashable, _Snapshot[T]] = {}

    def seen_by(self, view: Hashable, sees: Callable[[T], bool]) -> _Snapshot[T]:
        """The list as callers see it who may see only some of it; `view` names what they may."""
        seen = self.views.get(view)
        if seen is None:
            whole = zip(self.names, self.serials, self.items, strict=True)
            seen = _Snapshot({name: (serial, item) for name, serial, item in whole if sees(item)})
            if len(self.views) < _MAX_VIEWS:
                self.views[view] = seen
        return seen

    def remembered(self, key: Hashable) -> dict[int, Encoded] | None:
        pages = self.pages.get(key)
        if pages is None and len(self.pages) < _MAX_KEYS:
            pages = self.pages.setdefault(key, {})
        return pages


class Pages(Generic[T]):
    """Named items in the order in which they were added.

    >>> pages = Pages[str]("tools", page_size=2)
    >>> for name in ("a", "b", "c"):
    ...     pages.add(name, name.upper())
    >>> list(pages), pages.get("b")
    (['A', 'B', 'C'], 'B')
    """

    __slots__ = ("_entries", "_kind", "_lock", "_next", "_page_size", "_snapshot", "_went")

    def __init__(self, kind: str, page_size: int = DEFAULT_PAGE_SIZE) -> None:
        if type(page_size) is not int or page_size < 1:
            raise UsageError(f"page_size={page_size!r} is not possible: a page has at least 1 item.")
        self._kind = kind  # is in every cursor: one list's cursor is no other's
        self._page_size = page_size
        self._entries: dict[str, tuple[int, T]] = {}
        self._next = 0
        self._went: dict[str, int] = {}  # the serials of what was taken out, for cursors that still name it
        self._lock = threading.Lock()  # features come and go from worker threads as well
        self._snapshot: _Snapshot[T] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._current().items)

    def get(self, name: str) -> T | None:
        """The item of this name."""
        entry = self._entries.get(name)
        return None if entry is None else entry[1]

    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._current().names)

    def add(self, name: str, item: T) -> None:
        """Put an item at the end, or in the place of the one that has its name: registries decide if it may."""
        with self._lock:
            if name in self._entries:
                self._entries[name] = (self._entries[name][0], item)
            else:
                self._entries[name] = (self._next, item)
                self._next += 1
            self._snapshot = None

    def remove(self, name: str) -> T | None:
        """Take an item out and return it; None when there is none."""
        with self._lock:
            entry = self._entries.pop(name, None)
            if entry is None:
                return None
            serial, item = entry
            self._went.pop(name, None)
            self._went[name] = serial
            if len(self._went) > _MAX_WENT:
                del self._went[next(iter(self._went))]
            self._snapshot = None
        return item

    def page(
        self,
        cursor: str | None,
        build: Callable[[list[T], str | None], Result],
        seal: Callable[[Result], Result],
        key: Hashable,
        *,
        view: Hashable = None,
        sees: Callable[[T], bool] | None = None,
    ) -> Encoded:
        """One page, sealed and encoded. `key` is what else than the items the sealed bytes depend on.

        With `sees`, the list has only what that says; `view` names it: what is equal sees the same.
        """
        snapshot = self._current()
        if sees is not None:
            snapshot = snapshot.seen_by(view, sees)
        start = 0 if cursor is None else self._start(snapshot, cursor)
        # Only pages that follow one another from the start are kept, so the cache holds the list once per key,
        # whatever cursors a peer makes up.
        kept = snapshot.remembered(key) if start % self._page_size == 0 else None
        if kept is not None and start in kept:
            return kept[start]
        items = snapshot.items[start : start + self._page_size]
        result = seal(build(items, self._cursor_after(snapshot, start + len(items))))
        page = Encoded(result, msgspec.Raw(_encode(result)))
        if kept is not None:
            kept[start] = page
        return page

    def _current(self) -> _Snapshot[T]:
        snapshot = self._snapshot
        if snapshot is None:
            with self._lock:
                snapshot = self._snapshot = self._snapshot or _Snapshot(self._entries)
        return snapshot

    def _cursor_after(self, snapshot: _Snapshot[T], end: int) -> str | None:
        if end >= len(snapshot.items):
            return None
        payload = _encode([self._kind, snapshot.names[end - 1], snapshot.serials[end - 1]])
        return base64.urlsafe_b64encode(payload).decode().rstrip("=")

    def _start(self, snapshot: _Snapshot[T], cursor: str) -> int:
        """Where the page begins: after the item that the cursor names, or where that item was."""
        name, serial = self._read(cursor)
        place = snapshot.position.get(name)
        if place is None or self._went.get(name) == serial:
            return bisect_right(snapshot.serials, serial)
        return place + 1

    def _read(self, cursor: str) -> tuple[str, int]:
        try:
            if len(cursor) > _MAX_CURSOR:
                raise ValueError("too long")
            payload = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            kind, name, serial = msgspec.json.decode(payload, type=tuple[str, str, int])
        except ValueError:  # also what base64 and msgspec raise
            raise self._unknown() from None
        if kind != self._kind or serial < 0:
            raise self._unknown()
        return name, serial

    def _unknown(self) -> InvalidParams:
        return InvalidParams(
            f"Invalid params: `cursor` is not one that the list of {self._kind} gave out. "
            "Leave it out to begin at the first page."
        )


def read_cache_hints(
    cache_hint: CacheHint | None, list_cache_hints: Mapping[Any, CacheHint] | None, lists: Sequence[str]
) -> tuple[CacheHint, dict[str, CacheHint]]:
    """Return the hint of a server and those of its lists; UsageError for what is no hint, or no list."""
    hint = CacheHint() if cache_hint is None else cache_hint
    if list_cache_hints is not None and not isinstance(list_cache_hints, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise UsageError(
            f"list_cache_hints= has a CacheHint for each list, not {type(list_cache_hints).__name__}. "
            "Write list_cache_hints={'tools': CacheHint(ttl_ms=60_000)}."
        )
    hints = dict(list_cache_hints or {})
    for name in hints:
        if name not in lists:
            near = closest(str(name), lists)
            meant = f"Did you mean {near!r}? " if near else ""
            raise UsageError(f"list_cache_hints= knows no list {name!r}. {meant}The lists are: {', '.join(lists)}.")
    for option, value in [
        ("cache_hint=", hint),
        *((f"list_cache_hints[{name!r}]", one) for name, one in hints.items()),
    ]:
        if not isinstance(value, CacheHint):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            kind = type(value).__name__
            raise UsageError(f"{option} is a CacheHint, not {kind}. Write CacheHint(ttl_ms=60_000).")
    return hint, {name: hints.get(name, hint) for name in lists}
