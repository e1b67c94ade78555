"""Register, find and list features (tools, resources and prompts).

This module checks definitions. It owns the order of each list, its pages and cursors, which features a caller may see,
and how long clients may cache a list. Each page is encoded once. This module never calls the user's code.

A cursor contains the name and the serial number of the last item of a page. The next page begins after the item with
this name. So items may be added or removed between two pages, and a cursor is valid on every worker that has the same
features, even if their serial numbers differ. If the item was removed, or was removed and added again at the end, the
next page begins after its old serial number.
"""

from __future__ import annotations

import base64
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast, get_args

import msgspec

from weft.errors import InvalidParams, InvalidRequest, RegistrationError, UsageError
from weft.protocol.names import check_meta_key
from weft.server.calls.call import Call, check_hide, check_needs
from weft.server.calls.changes import Change, ChangeKind, Changes
from weft.server.diagnostics import caller, check_scopes, did_you_mean
from weft.types.base import CacheScope, Icon, Implementation, Meta, Result, Struct
from weft.types.lifecycle import PaginatedParams

DEFAULT_PAGE_SIZE = 250

_MAX_CURSOR = 16 * 1024  # Maximum length of a cursor: enough for the longest URI, escaped and in base64.
_MAX_KEYS = 8  # Maximum number of protocol versions whose pages are cached.
_MAX_VIEWS = 64  # Maximum number of filtered lists that are cached.
_MAX_REMOVED = 1000  # Maximum number of removed items whose serial numbers are kept.
_MOST_NAMED = 10  # Maximum number of names in the error for an unknown name.
_NONE: frozenset[str] = frozenset()

_encode = msgspec.json.Encoder().encode


class FeatureOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The options that tools, resources and prompts have in common."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = None
    needs: Sequence[str] = ()  # Capabilities that the client must have declared.
    hide: bool = False  # Whether to hide the feature from clients that lack a capability in `needs`.
    scopes: Sequence[str] = ()  # Scopes that a token must have to use and to list the feature.
    replace: bool = False  # Whether to replace a feature of the same name.


class Feature:
    """A registered tool, resource, template or prompt."""

    kind: ClassVar[str]  # "Tool", "Resource" or "Prompt", for messages.
    definition: Any  # The struct that describes the feature in a list.

    def __init__(self, name: str, where: str, options: FeatureOptions) -> None:
        self.name = name  # For a resource, its URI. For a resource template, its URI template.
        self.where = where  # Source location of the function.
        self.described = f"{self.kind} {name!r} ({where})"  # For messages to the developer.
        self.scopes = check_scopes(options.scopes, self.described)
        self.needs = check_needs(options.needs, self.described)
        self.hide = check_hide(options.hide, self.needs, self.described)

    def refusal(self, problem: object) -> RegistrationError:
        """Return the error for a feature that cannot be registered; `problem` says why."""
        return RegistrationError(f"{self.kind} {self.name[:256]!r} cannot be registered ({self.where}): {problem}")


_Build: TypeAlias = Callable[[Sequence[Any], str | None], Result]  # Makes a result from items and the next cursor.

T = TypeVar("T")
F = TypeVar("F", bound=Feature)


def check_definition(definition: Struct, what: str, where: str) -> None:
    """Raise RegistrationError if a definition cannot be encoded as JSON, or has a malformed key in `_meta`.

    `what` names the feature in the error, and `where` is the source location of its function.
    """
    try:
        for key in cast("Meta", getattr(definition, "meta", None) or {}):
            check_meta_key(str(key))
    except ValueError as error:
        raise RegistrationError(f"{what} cannot be registered ({where}): meta= has a wrong key. {error}") from None
    if fault := _fault(definition):
        raise RegistrationError(f"{what} cannot be registered ({where}): {fault}")


def check_info(info: Implementation) -> None:
    """Raise UsageError if the server's information (name, version and so on) cannot be encoded as JSON."""
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
    """Return a hint about a wrong name: the most similar name in `known`, or else the first names in `known`."""
    return did_you_mean(name, known).rstrip() or f"There are: {', '.join(known[:_MOST_NAMED]) or 'none'}."


class CacheHint(msgspec.Struct, frozen=True):
    """How long clients may cache a result (in milliseconds), and who may see the cached result.

    The scope "public" means that every user may see the result, even if it was fetched with a token. By default, lists
    are public, because they are the same for all callers. Contents of resources are private by default, because they
    may depend on the caller.

    >>> CacheHint(ttl_ms=60_000, scope="private").ttl_ms
    60000
    """

    ttl_ms: int = 0
    scope: CacheScope | None = None

    def __post_init__(self) -> None:
        is_time = type(self.ttl_ms) is int and self.ttl_ms >= 0
        if not is_time or self.scope not in (None, *get_args(CacheScope)):
            raise UsageError(
                f"CacheHint(ttl_ms={self.ttl_ms!r}, scope={self.scope!r}) is not possible: ttl_ms is a whole number of "
                "milliseconds, 0 (do not keep) or more; scope is 'public' if all users may see the result, or "
                "'private' if it belongs to one user."
            )

    @property
    def list_scope(self) -> CacheScope:
        """The cache scope of a list: `scope`, or "public" if `scope` is None."""
        return self.scope or "public"

    @property
    def read_scope(self) -> CacheScope:
        """The cache scope of the contents of a resource: `scope`, or "private" if `scope` is None."""
        return self.scope or "private"


def read_cache_hints(
    cache_hint: CacheHint | None, list_cache_hints: Mapping[Any, CacheHint] | None, lists: Sequence[str]
) -> tuple[CacheHint, dict[str, CacheHint]]:
    """Return the default cache hint of a server, and the cache hint of each list by name.

    `lists` has the names of all lists. Raises UsageError if `list_cache_hints` has another name.
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


class Encoded(msgspec.Struct):
    """A result as one protocol version defines it, and the same result encoded as JSON."""

    result: Result
    body: msgspec.Raw


class _Snapshot(Generic[T]):
    """A fixed copy of a list, and its encoded pages. After a change of the list, a new snapshot is made.

    If the list changes while a page is being encoded, the page is cached in the old snapshot.
    """

    def __init__(self, entries: list[tuple[int, str, T]]) -> None:
        self.entries = entries  # Serial numbers, names and items.
        self.items = [item for _, _, item in entries]
        self.serials = {name: serial for serial, name, _ in entries}
        self.pages: dict[Hashable, dict[int, Encoded]] = {}  # By protocol version, then by index of the first item.
        self.views: dict[Hashable, _Snapshot[T]] = {}  # Filtered lists.

    def seen_by(self, view: Hashable, sees: Callable[[T], bool]) -> _Snapshot[T]:
        """Return a snapshot with only the items for which `sees` returns True.

        The snapshot is cached by `view`, so callers with an equal `view` must see the same items.
        """
        seen = self.views.get(view)
        if seen is None:
            seen = _Snapshot([entry for entry in self.entries if sees(entry[2])])
            if len(self.views) < _MAX_VIEWS:
                self.views[view] = seen
        return seen


class Pages(Generic[T]):
    """A list of named items that clients get page by page. New items are added at the end.

    >>> pages = Pages[str]("tools", page_size=2)
    >>> for name in ("a", "b", "c"):
    ...     pages.add(name, name.upper())
    >>> list(pages), pages.get("b")
    (['A', 'B', 'C'], 'B')
    """

    def __init__(self, kind: str, page_size: int = DEFAULT_PAGE_SIZE) -> None:
        if page_size < 1:
            raise UsageError(f"page_size={page_size!r} is not possible: a page has at least 1 item.")
        self.items: dict[str, T] = {}  # By name.
        self._kind = kind  # Name of the list. It is part of every cursor, so that cursors of other lists are refused.
        self._page_size = page_size
        self._serials: dict[str, int] = {}  # By name.
        self._new_serials = count()
        self._removed: dict[str, int] = {}  # Last serial numbers of removed items, for cursors with their names.
        self._lock = threading.Lock()  # Features are added and removed by worker threads as well.
        self._snapshot: _Snapshot[T] | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._current().items)

    def get(self, name: str) -> T | None:
        """Return the item with this name, or None."""
        return self.items.get(name)

    def add(self, name: str, item: T) -> None:
        """Add an item at the end, or replace the item with the same name."""
        with self._lock:
            if name not in self.items:
                self._serials[name] = next(self._new_serials)
            self.items[name] = item
            self._snapshot = None

    def remove(self, name: str) -> T | None:
        """Remove an item and return it; None if no item has this name."""
        with self._lock:
            if name not in self.items:
                return None
            self._removed.pop(name, None)  # So that the name is the newest.
            self._removed[name] = self._serials.pop(name)
            if len(self._removed) > _MAX_REMOVED:
                del self._removed[next(iter(self._removed))]
            self._snapshot = None
            return self.items.pop(name)

    def page(
        self,
        cursor: str | None,
        build: _Build,
        seal: Callable[[Result], Result],
        key: Hashable,
        *,
        view: Hashable = None,
        sees: Callable[[T], bool] | None = None,
    ) -> Encoded:
        """Return the encoded page that follows `cursor`, or the first page if `cursor` is None.

        `build` makes a result from the items of the page and the cursor of the next page. `seal` changes the result to
        the form that the protocol version defines. Pages are cached by `key`, which is the protocol version.

        If `sees` is given, the list has only the items for which `sees` returns True. Callers with an equal `view`
        share the cached pages, so they must see the same items. Raises InvalidParams if the cursor is not valid.
        """
        snapshot = self._current()
        if sees is not None:
            snapshot = snapshot.seen_by(view, sees)
        start = 0 if cursor is None else self._start(snapshot, cursor)
        # Only pages that begin at a multiple of the page size are cached. So the cache holds the list once per key,
        # whatever cursors a client sends.
        is_cached = start % self._page_size == 0 and (key in snapshot.pages or len(snapshot.pages) < _MAX_KEYS)
        kept = snapshot.pages.setdefault(key, {}) if is_cached else {}
        if start not in kept:
            end = start + self._page_size
            following = self._cursor(*snapshot.entries[end - 1][:2]) if end < len(snapshot.items) else None
            result = seal(build(snapshot.items[start:end], following))
            kept[start] = Encoded(result, msgspec.Raw(_encode(result)))
        return kept[start]

    def _current(self) -> _Snapshot[T]:
        snapshot = self._snapshot
        if snapshot is None:
            with self._lock:
                entries = [(self._serials[name], name, item) for name, item in self.items.items()]
                snapshot = self._snapshot = self._snapshot or _Snapshot(entries)
        return snapshot

    def _cursor(self, serial: int, name: str) -> str:
        return base64.urlsafe_b64encode(_encode((self._kind, name, serial))).decode().rstrip("=")

    def _start(self, snapshot: _Snapshot[T], cursor: str) -> int:
        """Return the index of the first item after a cursor."""
        name, serial = self._read(cursor)
        if self._removed.get(name) != serial:  # Another worker may have given the item another serial number.
            serial = snapshot.serials.get(name, serial)
        return bisect_right(snapshot.entries, serial, key=itemgetter(0))

    def _read(self, cursor: str) -> tuple[str, int]:
        """Return the name and the serial number in a cursor; raise InvalidParams if it is not from this list."""
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


def _is_visible(call: Call, item: Feature) -> bool:
    """Return whether the caller's token has the scopes of a feature, and the feature is not hidden from the client."""
    return has_scopes(call, item.scopes) and not (
        item.hide and any(not call.client_supports(need) for need in item.needs)
    )


def _granted_to(call: Call) -> frozenset[str] | None:
    """Return the scopes of the call's token, or None if the call did not come over HTTP and so needs no scopes."""
    if call.headers is None:
        return None
    return _NONE if call.token_info is None else call.token_info.scopes


def has_scopes(call: Call, scopes: Iterable[str]) -> bool:
    """Return whether the token of a call has all these scopes, or the call needs none."""
    granted = _granted_to(call)
    return granted is None or granted.issuperset(scopes)


class InsufficientScope(InvalidRequest):
    """The token of the request lacks a scope that is needed, or the request has no token."""

    status = 403


def require_scopes(call: Call, scopes: Iterable[str]) -> None:
    """Raise InsufficientScope if the token of a call lacks one of `scopes`.

    The `WWW-Authenticate` header of the response then names these scopes, and the scopes that every token must have.
    """
    needed = tuple(scopes)
    if has_scopes(call, needed):
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
    """All features of one kind (tools, resources or prompts) that a server has."""

    def __init__(
        self, kind: ChangeKind, changes: Changes, page_size: int, result: Callable[..., Result], hint: CacheHint
    ) -> None:
        self._kind: ChangeKind = kind
        self._changes = changes
        self._pages: Pages[F] = Pages(kind, page_size)
        self._build = self._builder(result, kind, hint)
        self._lock = threading.Lock()  # Features are added and removed by worker threads as well.
        self.scopes: frozenset[str] = _NONE  # All scopes that any feature needs.
        self._hiding: frozenset[str] = _NONE  # Clients that lack one of these capabilities do not see every feature.
        self.used = False  # Whether a feature was ever registered. If so, the server declares the capability.

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[F]:
        return iter(self._pages)

    def get(self, name: str) -> F | None:
        """Return the feature with this name, or None."""
        return self._pages.get(name)

    def remove(self, name: str) -> None:
        """Remove a feature and notify subscribers that the list has changed; raise UsageError for an unknown name."""
        with self._lock:
            if not self._take_out(name):
                known = [item.name for item in self]
                raise UsageError(f"There is no {self._kind[:-1]} {name!r} to remove. {meant_or_known(name, known)}")
        self._changes.publish(Change(self._kind))

    def _take_out(self, name: str) -> bool:
        return self._pages.remove(name) is not None

    def _add(self, pages: Pages[Any], item: F, *, replace: bool) -> None:
        """Add a feature to `pages` and notify subscribers that the list has changed.

        Raises RegistrationError if the definition is wrong, or if the name is taken and `replace` is False.
        """
        check_definition(item.definition, f"{item.kind} {item.name!r}", item.where)
        with self._lock:
            taken = pages.get(item.name)
            if taken is not None and not replace:
                kind = self._kind[:-1]
                other = "URI" if kind == "resource" else f"name with @server.{kind}(name=...)"
                raise RegistrationError(
                    f"{item.kind} {item.name!r} is registered twice: at {taken.where} and at {item.where}. "
                    "Clients find it by this, so one of the two could never be called. "
                    f"Give one of them another {other}, or the second replace=True."
                )
            self.scopes |= frozenset(item.scopes)  # Before the feature can be found.
            self._hiding |= frozenset(item.needs if item.hide else ())
            pages.add(item.name, item)
            self.used = True
        self._changes.publish(Change(self._kind))

    def _unknown(self, call: Call, name: str) -> InvalidParams:
        """Return the error for an unknown name. The error lists only features that the caller may see."""
        kind, known = self._kind[:-1], [item.name for item in self._pages if _is_visible(call, item)]
        hint = did_you_mean(name, known).rstrip()
        if not hint and known:
            rest = len(known) - _MOST_NAMED
            more = f", and {rest} more; {kind}s/list names them all" if rest > 0 else ""
            hint = f"The {kind}s are: {', '.join(known[:_MOST_NAMED])}{more}."
        return InvalidParams(f"Unknown {kind}. {hint or f'There are no {kind}s.'}")

    async def list(self, call: Call) -> Encoded:
        """Serve `tools/list`, `resources/list` or `prompts/list`."""
        return self._page(call, self._pages, self._build)

    def _page(self, call: Call, pages: Pages[Any], build: _Build) -> Encoded:
        """Return one page of the features that the caller may see."""
        cursor = cast("PaginatedParams", call.envelope.params).cursor
        version, granted = call.envelope.revision.version, _granted_to(call)
        if granted is None and not self._hiding:
            return pages.page(cursor, build, call.seal, version)
        # Other scopes of the token and other capabilities of the client do not change the list.
        useful = None if granted is None else granted & self.scopes
        lacking = frozenset(need for need in self._hiding if not call.client_supports(need))

        def sees(item: Feature) -> bool:
            # Use only the key of the view: a thread may have added a feature with other scopes since it was computed.
            return (useful is None or useful.issuperset(item.scopes)) and not (
                item.hide and not lacking.isdisjoint(item.needs)
            )

        return pages.page(cursor, build, call.seal, version, view=(useful, lacking), sees=sees)

    def _builder(self, result: Callable[..., Result], field: str, hint: CacheHint) -> _Build:
        """Return a function that creates the result for one page.

        `result` is the class of the result, `field` is the name of its field for the items, and `hint` says how long
        clients may cache the result. If callers may get different lists, the cache scope is private.
        """

        def build(items: Sequence[F], next_cursor: str | None) -> Result:
            entries = {field: [item.definition for item in items]}
            scope = "private" if self.scopes or self._hiding else hint.list_scope
            return result(**entries, next_cursor=next_cursor, ttl_ms=hint.ttl_ms, cache_scope=scope)

        return build
