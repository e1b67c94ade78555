"""Cache results for as long as the server allows, and store the descriptions of its tools.

A `ResponseCache` can be shared by many clients. Each client uses it through a `CacheView` for its server and
authorization. Results are stored as bytes, so that a caller cannot change them for the next caller.

    public    one result for all clients of the server
    private   one result per authorization: each token has its own results

A result is checked for freshness when it is needed. Nothing is fetched in the background. The pages of a list are
stored separately. All pages are read from the scope (public or private) of the first page, so that a public page never
continues a private list.

`Toolbox` remembers from the tool lists which arguments are repeated in headers, and checks the results of tools against
their output schemas.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET

from weft.client.results import ToolResult
from weft.errors import InvalidAnswer, UsageError
from weft.protocol.headers import Mirror, find_mirrors, mirror_values
from weft.protocol.schema import SchemaError, Validator, compile_schema
from weft.types.features import Tool
from weft.types.tasks import TaskSupport

log = logging.getLogger("weft.client")

_READ = "resources/read"
_CHANGES: Mapping[str, tuple[str, ...]] = {  # by notification: the methods whose results have changed
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/resources/updated": (_READ,),
    "notifications/tools/list_changed": ("tools/list",),
}

CACHEABLE = frozenset({"server/discover", *(method for methods in _CHANGES.values() for method in methods)})
"""The methods whose results may be cached."""

_NOT_IN_KEY = ("_meta", "cursor")  # params that are not part of `CacheKey.params`
_ROUNDS = ("inputResponses", "requestState")  # params of later rounds; their results are not cached
_MAX_SECONDS = 24 * 3600.0  # longest lifetime of an entry, also if the server allows more
_MAX_PARENTS = 64  # maximum slashes in the URI of a changed resource; with more, all entries are dropped
_MAX_STALE = 1024  # maximum params that wait to be dropped; with more, all entries of the method are dropped


class CacheKey(NamedTuple):
    """The key of a cached result. Two requests share a cached result only if all these fields are equal."""

    server: str
    partition: str | None  # identifies the caller's authorization; None if the result is public
    method: str
    params: bytes  # as JSON with sorted keys, without `_meta` and the cursor
    cursor: str | None


class CacheEntry(NamedTuple):
    """A cached result, and the time until which it is fresh."""

    result: bytes
    fresh_until: float  # time on the clock of the cache


class CacheStore(Protocol):
    """The interface of a store for cached results.

    If several processes share a store, use `ResponseCache(store, clock=time.time)`. If a method of the store raises an
    exception, the client logs the exception and sends the request to the server.
    """

    async def get(self, key: CacheKey) -> CacheEntry | None:
        """Return the entry with this key, or None if there is no such entry. The entry may be out of date."""
        ...

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        """Store an entry under this key. The store may drop entries at any time."""
        ...

    async def drop(self, server: str, method: str, params: Collection[bytes] | None = None) -> None:
        """Drop all entries of a server and a method, in every partition.

        If `params` is given, drop only the entries with one of these params.
        """
        ...


class MemoryCacheStore:
    """A cache store in the memory of this process. If it is full, the least recently used entries are dropped."""

    def __init__(self, *, max_entries: int = 1024, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, CacheEntry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: CacheKey) -> CacheEntry | None:
        """Return the entry with this key, and mark it as recently used. Return None if there is no such entry."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        """Store an entry, unless it is too large for the store.

        If the store is full, drop the least recently used entries.
        """
        self._remove(key)
        size = _size(key, entry)
        if size > self._max_bytes:
            return
        self._entries[key] = entry
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    async def drop(self, server: str, method: str, params: Collection[bytes] | None = None) -> None:
        """Drop all entries of a server and a method, in every partition.

        If `params` is given, drop only the entries with one of these params.
        """
        for key in list(self._entries):
            if key.server == server and key.method == method and (params is None or key.params in params):
                self._remove(key)

    def _remove(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry)


class ResponseCache:
    """A cache for the results of requests. Several clients can share one cache.

    >>> cache = ResponseCache(clock=time.monotonic)
    >>> view = cache.view("https://flights.example/mcp", authorization_partition({"Authorization": "Bearer abc"}))
    """

    def __init__(
        self,
        store: CacheStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_seconds: float = _MAX_SECONDS,
    ) -> None:
        self.store: CacheStore = MemoryCacheStore() if store is None else store
        self.clock = clock
        self.max_seconds = max_seconds
        self.changes = 0  # number of changes so far, of all servers
        self._changed: dict[str, int] = {}  # by method: value of `changes` at its last change

    def view(self, server: str, partition: str = "") -> CacheView:
        """Return the part of the cache that one client uses.

        `server` identifies the server, for example by its URL. `partition` identifies the caller's authorization
        (see `authorization_partition`). Callers without authorization share the partition "".
        """
        return CacheView(self, server, partition)

    def note_change(self, method: str) -> None:
        """Record that the server's results for `method` have changed.

        Results of requests that are in flight now will not be cached.
        """
        self.changes += 1
        self._changed[method] = self.changes

    def has_changed(self, method: str, mark: int) -> bool:
        """Return whether `note_change` was called for this method since `changes` had the value `mark`."""
        return self._changed.get(method, 0) > mark


@dataclass(eq=False)
class CacheView:
    """The part of a cache for one server and one authorization."""

    cache: ResponseCache
    server: str
    partition: str
    # Params of changed entries that are still in the store, by method. An empty set stands for all entries.
    _stale: dict[str, set[bytes]] = field(default_factory=dict[str, set[bytes]])
    _is_dropping: bool = False  # True while `drop_stale` runs

    def mark(self) -> int:
        """Return the number of changes so far. Call this before sending a request, and pass the number to `put`."""
        return self.cache.changes

    async def get(self, method: str, params: Mapping[str, Any] | None = None) -> bytes | None:
        """Return the cached result for a request, or None if the cache has no fresh result."""
        key = self._key(method, params)
        if key is None:
            return None
        with _spared():
            partition = await self._scope(key)
            entry = None if partition is _NOWHERE else await self.cache.store.get(key._replace(partition=partition))
            return entry.result if entry is not None and self.cache.clock() < entry.fresh_until else None
        return None

    async def put(self, method: str, params: Mapping[str, Any] | None, result: bytes, mark: int) -> None:
        """Store a result, if the server allows caching and the result is not out of date.

        `mark` is the number that `mark()` returned before the request was sent. If a change was recorded since then,
        the result is not stored.
        """
        key = self._key(method, params)
        if key is None or self.cache.has_changed(method, mark):
            return
        seconds, is_public = _hints(result)
        if seconds <= 0:
            return
        partition = None if is_public else self.partition
        with _spared():
            held = await self._scope(key)
            if key.cursor is not None and held != partition:
                return  # the first page has another scope, or is not in the store
            if held not in (_NOWHERE, partition):  # the scope of the list has changed, so drop its pages
                await self.cache.store.drop(self.server, method, {key.params})
            fresh_until = self.cache.clock() + min(seconds, self.cache.max_seconds)
            await self.cache.store.set(key._replace(partition=partition), CacheEntry(result, fresh_until))
            if self.cache.has_changed(method, mark):  # there was a change while the store was busy
                await self.cache.store.drop(self.server, method, {key.params})

    def receive(self, method: str, params: bytes) -> bool:
        """Mark cached results as stale if the notification says that they have changed. Ignore other notifications.

        Returns whether the caller must run `drop_stale`. If `drop_stale` is already running, the caller need not run it
        again, because that run drops these results, too.
        """
        for stale in _CHANGES.get(method, ()):
            self.cache.note_change(stale)
            changed = _with_parents(params) if stale == _READ else set[bytes]()
            waiting = self._stale.setdefault(stale, changed)
            if waiting:
                waiting |= changed
            if not changed or len(waiting) > _MAX_STALE:
                waiting.clear()
        return bool(self._stale) and not self._is_dropping

    async def drop_stale(self) -> None:
        """Drop all stale entries from the store."""
        self._is_dropping = True
        try:
            while self._stale:
                method, params = self._stale.popitem()
                await self._drop(method, params or None)
        finally:
            self._is_dropping = False

    async def drop(self, method: str) -> None:
        """Drop all cached results of a method, for example because the server refused a cursor."""
        self.cache.note_change(method)
        await self._drop(method)

    async def _drop(self, method: str, params: Collection[bytes] | None = None) -> None:
        with _spared():
            await self.cache.store.drop(self.server, method, params)

    async def _scope(self, key: CacheKey) -> str | None:
        """Return the partition that has the result with this key, or `_NOWHERE` if no partition has it.

        For a page of a list, return the partition of the first page. The private partition is searched first, then the
        public partition (None).
        """
        for partition in (self.partition, None):
            if await self.cache.store.get(key._replace(partition=partition, cursor=None)) is not None:
                return partition
        return _NOWHERE

    def _key(self, method: str, params: Mapping[str, Any] | None) -> CacheKey | None:
        """Return the key of a request, or None if its result must not be cached."""
        given = params or {}
        if method not in CACHEABLE or any(name in given for name in _ROUNDS):
            return None
        try:
            canonical = _canonical(given)
        except (TypeError, ValueError, RecursionError):
            return None  # the request cannot be sent either, and raises an error then
        return CacheKey(self.server, self.partition, method, canonical, given.get("cursor"))


@contextmanager
def _spared() -> Generator[None]:
    """Log exceptions of the store instead of raising them, so that no request fails because of the store."""
    try:
        yield
    except Exception:
        log.warning("The store of the cache failed; the client goes on without it.", exc_info=True)


def authorization_partition(headers: Mapping[str, str]) -> str:
    """Return the partition for requests with these headers: a hash of the headers, or "" if there are none.

    >>> authorization_partition({}), len(authorization_partition({"Authorization": "Bearer abc"}))
    ('', 64)
    """
    if not headers:
        return ""
    named = sorted((name.lower(), value) for name, value in headers.items())
    return hashlib.sha256(msgspec.json.encode(named)).hexdigest()


_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def unique_name(owner: object) -> str:
    """Return a name that is unique to this object. The same object gets the same name in every call.

    Only an object that cannot be hashed or weakly referenced gets a new name in every call.
    """
    try:
        if owner not in _names:
            _names[owner] = str(next(_numbers))
        return _names[owner]
    except TypeError:  # not hashable, or without weak references: a new name each time, so it shares nothing
        return str(next(_numbers))


def identify_login(auth: Any) -> dict[str, str]:
    """Return headers that identify `auth`, a token or a login, for `authorization_partition`.

    These headers are not sent to the server.
    """
    if auth is None:
        return {}
    return {"Authorization": auth} if isinstance(auth, str) else {"": unique_name(auth)}


_NOWHERE = "\0nowhere"  # returned by `_scope` if no partition has the result


class _Hints(msgspec.Struct, rename="camel"):
    ttl_ms: float = 0.0
    cache_scope: Any = None
    result_type: Any = "complete"


_read_hints = msgspec.json.Decoder(_Hints).decode


def _hints(result: bytes) -> tuple[float, bool]:
    """Return for how many seconds a result is fresh (0 or less: not at all), and whether all clients may share it."""
    try:
        hints = _read_hints(result)
    except (msgspec.DecodeError, RecursionError):
        return 0, False
    return hints.ttl_ms / 1000 if hints.result_type == "complete" else 0, hints.cache_scope == "public"


def _canonical(params: Mapping[str, Any]) -> bytes:
    said = {name: value for name, value in params.items() if name not in _NOT_IN_KEY and value is not None}
    return msgspec.json.encode(said, order="sorted")


class _Updated(msgspec.Struct):
    uri: Any = None


def _with_parents(params: bytes) -> set[bytes]:
    """Return the `CacheKey.params` of a changed resource and of all its parents.

    `params` are the params of the notification. Returns an empty set if their URI is missing or has too many slashes.
    """
    uri = msgspec.json.decode(params, type=_Updated).uri
    if not isinstance(uri, str) or uri.count("/") > _MAX_PARENTS:
        return set()
    parts = uri.split("/")
    parents = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return {_canonical({"uri": one}) for one in (uri, *parents, *(f"{parent}/" for parent in parents))}


def _size(key: CacheKey, entry: CacheEntry) -> int:
    return len(entry.result) + len(key.params) + len(key.server) + len(key.cursor or "") + 512


_MOST_TOLD = 20  # maximum number of tools for which a warning is logged
_ACCEPT = "This is an error of the server; `check_output=False` accepts such results."


@dataclass(slots=True)
class _Known:
    """The parts of a tool's description that are needed to call the tool and to check its results."""

    mirrors: tuple[Mirror, ...]
    output_schema: Mapping[str, Any] | None
    task_support: TaskSupport | None
    validator: Validator | None = None  # created when it is first needed


class Toolbox:
    """The tools that the server has listed so far. Creates headers for tool calls, and checks the results of tools."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}  # by name
        self.is_complete = False  # the client has fetched the whole list, or has tried to, since its last change
        self._logged: set[str] = set()  # names of the tools for which a warning was logged

    def learn(self, tools: Iterable[Tool], *, mirrors: bool, is_complete: bool = False) -> list[Tool]:
        """Store the descriptions of listed tools, and return the tools that can be used.

        If `mirrors` is True (arguments are repeated in HTTP headers), tools with invalid header annotations are left
        out. If `is_complete` is True (`tools` is the whole list), all tools that are not in `tools` are removed from
        the store.
        """
        usable: list[Tool] = []
        for tool in tools:
            try:
                found = find_mirrors(tool.input_schema) if mirrors else ()
            except ValueError as error:
                if tool.name not in self._logged and len(self._logged) < _MOST_TOLD:
                    self._logged.add(tool.name)
                    log.warning("The tool %r is left out: %s", tool.name[:200], error)
                self._known.pop(tool.name, None)
                continue
            known, support = self._known.get(tool.name), tool.execution.task_support if tool.execution else None
            if known is None or known.mirrors != found or known.output_schema != tool.output_schema:
                self._known[tool.name] = _Known(found, tool.output_schema, support)
            else:
                known.task_support = support
            usable.append(tool)
        if is_complete:
            listed = {tool.name for tool in usable}
            self._known = {name: known for name, known in self._known.items() if name in listed}
            self.is_complete = True
        return usable

    def knows(self, name: str) -> bool:
        """Return whether a usable tool with this name was in a list."""
        return name in self._known

    def task_support(self, name: str) -> TaskSupport | None:
        """Return whether a tool can be called as a task. Return None if its description does not say."""
        known = self._known.get(name)
        return None if known is None else known.task_support

    def headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the HTTP headers that repeat arguments of a tool call. Return {} for an unknown tool.

        Raises UsageError if an argument cannot be sent in a header.
        """
        known = self._known.get(name)
        if known is None or not known.mirrors:
            return {}
        try:
            return mirror_values(known.mirrors, arguments)
        except ValueError as error:
            raise UsageError(f"The arguments of {name!r} cannot be sent: {error}") from None

    def check(self, name: str, result: ToolResult) -> None:
        """Raise InvalidAnswer if a result does not match the output schema of the tool `name`.

        A result with `is_error`, or of an unknown tool, is not checked.
        """
        known = self._known.get(name)
        if known is None or known.output_schema is None or result.is_error:
            return
        if result.structured_content is UNSET:
            raise InvalidAnswer(f"The tool {name!r} has an outputSchema, but sent no structured content. {_ACCEPT}")
        try:
            known.validator = known.validator or compile_schema(known.output_schema)
        except SchemaError as error:
            raise InvalidAnswer(f"The result of {name!r} cannot be checked: {error} {_ACCEPT}") from None
        if problems := known.validator.problems(result.structured_content, 3):
            faults = " ".join(map(str, problems))
            raise InvalidAnswer(f"The result of {name!r} does not fit its outputSchema: {faults} {_ACCEPT}")
