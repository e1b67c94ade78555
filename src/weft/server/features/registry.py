"""Register, find and list features: what tools, resources and prompts have in common.

This module checks definitions, and owns the order of a list, its pages and cursors, which features each caller may see,
and how long clients may cache a list. Each page is encoded once. Nothing here calls the user's code.

A cursor contains the name and the serial number of the last item of a page. Every worker that registered the same
features understands it. The next page begins after the item of that name, so items may be added or removed in between,
and workers may have registered features in another order. If the item was removed, or was removed and added again at
the end, the next page begins after its old serial number.
"""

from __future__ import annotations

import base64
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, get_args

import msgspec

from weft.errors import InvalidParams, InvalidRequest, RegistrationError, UsageError
from weft.protocol.names import check_meta_key, closest
from weft.server.calls.call import Call
from weft.server.calls.changes import Change, ChangeKind, Changes
from weft.server.diagnostics import caller, did_you_mean
from weft.types.base import CacheScope, Implementation, Meta, Result, Struct
from weft.types.lifecycle import PaginatedParams

DEFAULT_PAGE_SIZE = 250

_MAX_CURSOR = 16 * 1024  # Enough for the longest URI, escaped and in base64.
_MAX_KEYS = 8  # Protocol versions whose pages are cached; for more, pages are encoded each time.
_MAX_VIEWS = 64  # Filtered lists that are cached; more are computed each time.
_MAX_REMOVED = 1000  # Removed names that are remembered.
_MOST_NAMED = 10  # Names that the error for an unknown name lists.
_NONE: frozenset[str] = frozenset()

_encode = msgspec.json.Encoder().encode


class Feature(Protocol):
    """A registered tool, resource, template or prompt."""

    where: str  # Source location of the function.
    scopes: tuple[str, ...]  # Scopes that a token must have.
    needs: tuple[str, ...]  # Capabilities that the client must have.
    hide: bool  # Whether the lists for clients without these capabilities omit the feature.

    @property
    def definition(self) -> Struct:
        """The description of the feature that clients get in a list."""
        ...


T = TypeVar("T")
F = TypeVar("F", bound=Feature)


def check_definition(definition: Struct, what: str, where: str) -> None:
    """Raise RegistrationError if a definition is not JSON, or has a malformed key in `_meta`."""
    try:
        for key in cast("Meta", getattr(definition, "meta", None) or {}):
            check_meta_key(str(key))
    except ValueError as error:
        raise RegistrationError(f"{what} cannot be registered ({where}): meta= has a wrong key. {error}") from None
    if fault := _fault(definition):
        raise RegistrationError(f"{what} cannot be registered ({where}): {fault}")


def check_info(info: Implementation) -> None:
    """Raise UsageError if the name, version or other information of a server cannot be encoded as JSON."""
    if fault := _fault(info):
        raise UsageError(f"Server({info.name!r}) is not possible ({caller()}): {fault}")


def _fault(definition: Struct) -> str | None:
    try:
        msgspec.json.decode(_encode(definition), type=type(definition))
    except (TypeError, ValueError, RecursionError) as error:
        return (
            f"its definition is not JSON of the right types: {str(error).rstrip('.')}. "
            "Use strings, numbers, booleans, None, lists and dictionaries with string keys in it."
        )
    return None


def meant_or_known(name: str, known: Sequence[str]) -> str:
    """Return a hint for a developer: the most similar known name, else some of the known names."""
    return did_you_mean(name, known).rstrip() or f"There are: {', '.join(known[:_MOST_NAMED]) or 'none'}."


def unknown(kind: str, name: str, known: Sequence[str]) -> InvalidParams:
    """Return the error for an unknown tool or prompt. `known` are the names that the caller may see."""
    near = closest(name, known)
    if near:
        hint = f"Did you mean {near!r}?"
    elif known:
        rest = len(known) - _MOST_NAMED
        more = f", and {rest} more; {kind}s/list names them all" if rest > 0 else ""
        hint = f"The {kind}s are: {', '.join(known[:_MOST_NAMED])}{more}."
    else:
        hint = f"There are no {kind}s."
    return InvalidParams(f"Unknown {kind}. {hint}")


class CacheHint(msgspec.Struct, frozen=True):
    """How long a client may cache a result, and whether its users may share the cached result.

    `public` means that every user may see the result, even if it was fetched with a token. By default, lists are
    public, because they are the same for all callers. Contents of resources are private, because they may depend on
    the caller.

    >>> CacheHint(ttl_ms=60_000, scope="private").ttl_ms
    60000
    """

    ttl_ms: int = 0
    scope: CacheScope | None = None

    def __post_init__(self) -> None:
        if type(self.ttl_ms) is not int or self.ttl_ms < 0:
            raise UsageError(
                f"CacheHint(ttl_ms={self.ttl_ms!r}) is not possible: ttl_ms is a whole number of milliseconds, "
                "0 (do not keep) or more."
            )
        if self.scope is not None and self.scope not in get_args(CacheScope):
            raise UsageError(
                f"CacheHint(scope={self.scope!r}) is not possible: use 'public' if all users may see the "
                "result, or 'private' if it belongs to one user."
            )

    @property
    def list_scope(self) -> CacheScope:
        """The cache scope of a list: `scope`, or public if it is None."""
        return self.scope or "public"

    @property
    def read_scope(self) -> CacheScope:
        """The cache scope of the contents of a resource: `scope`, or private if it is None."""
        return self.scope or "private"


def read_cache_hints(
    cache_hint: CacheHint | None, list_cache_hints: Mapping[Any, CacheHint] | None, lists: Sequence[str]
) -> tuple[CacheHint, dict[str, CacheHint]]:
    """Return the cache hint of a server, and the cache hint of each of its `lists`.

    Raises UsageError if `list_cache_hints` names a list that does not exist.
    """
    hint = cache_hint or CacheHint()
    hints = dict(list_cache_hints or {})
    for name in hints:
        if name not in lists:
            raise UsageError(
                f"list_cache_hints= has {name!r}, which is not a list. {did_you_mean(name, lists)}"
                f"The lists are: {', '.join(lists)}."
            )
    return hint, {name: hints.get(name, hint) for name in lists}


class Encoded:
    """A result in the form of one protocol version, together with its encoded bytes."""

    __slots__ = ("body", "result")

    def __init__(self, result: Result, body: msgspec.Raw) -> None:
        self.result = result
        self.body = body


class _Snapshot(Generic[T]):
    """The items of a list between two changes, and their encoded pages.

    A change replaces the whole snapshot, so a page that is being encoded meanwhile belongs to the old snapshot.
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
        """Return the part of the list for which `sees` is true. Callers with an equal `view` see the same part."""
        seen = self.views.get(view)
        if seen is None:
            whole = zip(self.names, self.serials, self.items, strict=True)
            seen = _Snapshot({name: (serial, item) for name, serial, item in whole if sees(item)})
            if len(self.views) < _MAX_VIEWS:
                self.views[view] = seen
        return seen

    def pages_of(self, key: Hashable) -> dict[int, Encoded] | None:
        """Return the cached pages of a key (a protocol version), by the position of their first item.

        The caller adds pages to this dictionary. Returns None if the key is new and too many keys are cached.
        """
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

    __slots__ = ("_entries", "_kind", "_lock", "_next", "_page_size", "_removed", "_snapshot")

    def __init__(self, kind: str, page_size: int = DEFAULT_PAGE_SIZE) -> None:
        if page_size < 1:
            raise UsageError(f"page_size={page_size!r} is not possible: a page has at least 1 item.")
        self._kind = kind  # Name of the list. It is part of every cursor, so that cursors of other lists are refused.
        self._page_size = page_size
        self._entries: dict[str, tuple[int, T]] = {}
        self._next = 0  # Serial number of the next item.
        self._removed: dict[str, int] = {}  # Serial numbers of removed items, for cursors that still name them.
        self._lock = threading.Lock()  # Features are added and removed by worker threads as well.
        self._snapshot: _Snapshot[T] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._current().items)

    def get(self, name: str) -> T | None:
        """Return the item with this name, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry[1]

    def names(self) -> list[str]:
        """Return all names, in order."""
        return list(self._current().names)

    def add(self, name: str, item: T) -> None:
        """Add an item at the end, or replace the item with the same name."""
        with self._lock:
            if name in self._entries:
                self._entries[name] = (self._entries[name][0], item)
            else:
                self._entries[name] = (self._next, item)
                self._next += 1
            self._snapshot = None

    def remove(self, name: str) -> T | None:
        """Remove an item and return it; None if no item has this name."""
        with self._lock:
            entry = self._entries.pop(name, None)
            if entry is None:
                return None
            serial, item = entry
            self._removed.pop(name, None)
            self._removed[name] = serial
            if len(self._removed) > _MAX_REMOVED:
                del self._removed[next(iter(self._removed))]
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
        """Return one page, sealed and encoded. Pages are cached by `key`, the protocol version.

        `build` makes a result from the items of the page and the cursor of the next page. `seal` puts the result into
        the form of the protocol version.

        If `sees` is given, the list has only the items for which `sees` returns True. Then only callers that see the
        same items may have an equal `view`, because they share the cached pages.
        """
        snapshot = self._current()
        if sees is not None:
            snapshot = snapshot.seen_by(view, sees)
        start = 0 if cursor is None else self._start(snapshot, cursor)
        # Only pages that begin at a multiple of the page size are cached. So the cache holds the list once per key,
        # whatever cursors a client sends.
        kept = snapshot.pages_of(key) if start % self._page_size == 0 else None
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
        """Return the position after the item that the cursor names, or after its former position if it was removed."""
        name, serial = self._read(cursor)
        place = snapshot.position.get(name)
        if place is None or self._removed.get(name) == serial:
            return bisect_right(snapshot.serials, serial)
        return place + 1

    def _read(self, cursor: str) -> tuple[str, int]:
        try:
            if len(cursor) > _MAX_CURSOR:
                raise ValueError("too long")
            payload = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            kind, name, serial = msgspec.json.decode(payload, type=tuple[str, str, int])
            if kind != self._kind or serial < 0:
                raise ValueError("of another list")
        except ValueError:  # base64 and msgspec raise subclasses of it
            raise InvalidParams(
                f"Invalid params: `cursor` is not from the list of {self._kind}. "
                "Leave it out to begin at the first page."
            ) from None
        return name, serial


class Audience:
    """The scopes and capabilities that decide which features of one registry a caller sees in a list."""

    __slots__ = ("hiding", "scopes")

    def __init__(self) -> None:
        self.scopes: frozenset[str] = _NONE  # All scopes that features of the registry need.
        self.hiding: frozenset[str] = _NONE  # Capabilities without which some feature is hidden.

    def add(self, item: Feature) -> None:
        """Add the scopes that a feature requires, and the capabilities without which it is hidden."""
        self.scopes |= frozenset(item.scopes)
        if item.hide:
            self.hiding |= frozenset(item.needs)

    def scope(self, otherwise: CacheScope) -> CacheScope:
        """Return the cache scope of a list: private if callers get different lists, else `otherwise`."""
        return "private" if self.scopes or self.hiding else otherwise

    def page(self, call: Call, pages: Pages[F], build: Callable[[list[F], str | None], Result]) -> Encoded:
        """Return one page of the features that the caller may use and that its client supports."""
        cursor = cast("PaginatedParams", call.envelope.params).cursor
        version = call.envelope.revision.version
        granted = _granted_to(call) if self.scopes else None
        if granted is None and not self.hiding:
            return pages.page(cursor, build, call.seal, version)
        # Other scopes of the token and other capabilities of the client do not change the list.
        useful = None if granted is None else granted & self.scopes
        lacking = frozenset(need for need in self.hiding if not call.client_supports(need))

        def sees(item: F) -> bool:
            return (useful is None or useful.issuperset(item.scopes)) and not (
                item.hide and not lacking.isdisjoint(item.needs)
            )

        return pages.page(cursor, build, call.seal, version, view=(useful, lacking), sees=sees)


def usable(call: Call, items: Iterable[F]) -> list[F]:
    """Return the features that the caller may use and see."""
    granted = _granted_to(call)
    return [
        item
        for item in items
        if (granted is None or granted.issuperset(item.scopes))
        and not (item.hide and any(not call.client_supports(need) for need in item.needs))
    ]


def _granted_to(call: Call) -> frozenset[str] | None:
    """Return the scopes of a call's token; None on stdio and in memory, where every scope is granted."""
    if call.headers is None:
        return None
    return _NONE if call.token_info is None else call.token_info.scopes


class InsufficientScope(InvalidRequest):
    """The caller's token is valid, but lacks a scope."""

    status = 403


def require_scopes(call: Call, scopes: Iterable[str]) -> None:
    """Raise InsufficientScope if the token of a call lacks one of `scopes`.

    The challenge in the HTTP response then names all scopes that are needed, also those that every token must have.
    """
    needed, granted = tuple(scopes), _granted_to(call)
    if granted is None or granted.issuperset(needed):
        return
    auth = call.services.auth
    whole = dict.fromkeys((*(() if auth is None else auth.scopes), *needed))
    text = f"The token does not have the scopes that {call.described} needs."
    if call.token_info is None:
        text = f"{call.described} needs a token with scopes, and the request has no token."
    bound = call.token_info is not None and "cnf" in call.token_info.claims
    call.reply.challenge(
        "DPoP" if bound else "Bearer",
        {
            "error": "insufficient_scope",
            "error_description": text,
            "scope": " ".join(whole),
            "resource_metadata": None if auth is None else auth.metadata_url,
        },
    )
    raise InsufficientScope(f"{text} Needed: {', '.join(whole)}.")


class Registry(Generic[F]):
    """All features of one kind."""

    def __init__(self, kind: ChangeKind, changes: Changes, page_size: int) -> None:
        self._kind: ChangeKind = kind
        self._changes = changes
        self._pages: Pages[F] = Pages(kind, page_size)
        self._lock = threading.Lock()  # Features are added and removed by worker threads as well.
        self.audience = Audience()
        self.used = False  # Whether there ever was a feature: then the capability stays declared.

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[F]:
        return iter(self._pages)

    def get(self, name: str) -> F | None:
        """Return the feature with this name, or None."""
        return self._pages.get(name)

    def remove(self, name: str) -> None:
        """Remove a feature and notify subscribers; raise UsageError if no feature has this name."""
        with self._lock:
            if not self._take_out(name):
                known = self._names()
                raise UsageError(f"There is no {self._kind[:-1]} {name!r} to remove. {meant_or_known(name, known)}")
        self._changes.publish(Change(self._kind))

    def _take_out(self, name: str) -> bool:
        return self._pages.remove(name) is not None

    def _names(self) -> list[str]:
        return self._pages.names()

    def _add(self, pages: Pages[Any], name: str, item: F, *, replace: bool) -> None:
        """Add a checked feature and notify subscribers.

        Raises RegistrationError if the name is taken and `replace` is False.
        """
        with self._lock:
            taken = pages.get(name)
            if taken is not None and not replace:
                kind = self._kind[:-1]
                other = "URI" if kind == "resource" else f"name with @server.{kind}(name=...)"
                raise RegistrationError(
                    f"{kind.capitalize()} {name!r} is registered twice: at {taken.where} and at {item.where}. "
                    "Clients find it by this, so one of the two could never be called. "
                    f"Give one of them another {other}, or the second replace=True."
                )
            self._prepare(item, taken)
            self.audience.add(item)  # Before the feature can be found.
            pages.add(name, item)
            self.used = True
        self._changes.publish(Change(self._kind))

    def _prepare(self, item: F, taken: F | None) -> None:
        """Prepare to add `item`, which replaces `taken` if that is not None. Subclasses override this."""

    def _builder(
        self, result: Callable[..., Result], field: str, hint: CacheHint
    ) -> Callable[[list[Any], str | None], Result]:
        """Return the function that creates the result for one page.

        `result` is the class of the result, `field` is its field for the items, and `hint` says how long clients may
        cache it.
        """

        def build(items: list[F], next_cursor: str | None) -> Result:
            entries = {field: [item.definition for item in items]}
            scope = self.audience.scope(hint.list_scope)
            return result(**entries, next_cursor=next_cursor, ttl_ms=hint.ttl_ms, cache_scope=scope)

        return build
