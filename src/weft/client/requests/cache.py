"""Cache results for as long as the server says they are fresh, and remember what its tools declare.

A `ResponseCache` may be shared by many clients; each uses it through a `CacheView` for its server and authorization.
Results are kept as they came, in bytes, so that no reader can change them for the next.

    public    one answer for everybody who asks that server
    private   one answer for each authorization: another token, another cache

Freshness is looked at when an answer is needed; nothing is fetched in the background. The pages of a list are kept one
by one, and read from the scope of their first page alone: a shared page never continues a private list.

`Toolbox` learns from the lists that pass by which arguments go into headers, and checks results by their schemas.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET

from weft.client.argument_checks import kind_of
from weft.client.results import ToolResult
from weft.errors import InvalidAnswer, UsageError
from weft.limits import ClientLimits
from weft.net.logs import Seldom
from weft.protocol.headers import Mirror, find_mirrors, mirror_values
from weft.protocol.schema import SchemaError, Validator, compile_schema
from weft.types.features import Tool

log = logging.getLogger("weft.client")

CACHEABLE = frozenset(
    {
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "tools/list",
    }
)
"""The methods whose results may be kept."""

_READ = "resources/read"
_CHANGES: Mapping[str, tuple[str, ...]] = {
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/resources/updated": (_READ,),
    "notifications/tools/list_changed": ("tools/list",),
}
_NOT_IN_KEY = ("_meta", "cursor")
_ROUNDS = ("inputResponses", "requestState")
_MAX_SECONDS = 24 * 3600.0  # a server cannot make an answer last longer: some day it will be wrong
_MAX_PARENTS = 64
_MAX_CHANGES = 4096
_MAX_STALE = 1024  # params that wait to be taken out of a store; beyond that, all of the method are


class CacheKey(NamedTuple):
    """What an answer answers: two questions share one only if all of this is equal."""

    server: str
    partition: str | None  # None: public
    method: str
    params: bytes  # as JSON with sorted keys, without `_meta` and the cursor
    cursor: str | None


class CacheEntry(NamedTuple):
    """An answer, and until when it is fresh by the clock of the cache."""

    result: bytes
    fresh_until: float


class CacheStore(Protocol):
    """Where entries are. One that several processes share needs `ResponseCache(store, clock=time.time)`.

    What a store raises is logged, and costs what it keeps: the server is asked then.
    """

    async def get(self, key: CacheKey) -> CacheEntry | None:
        """Return the entry, fresh or not; None when there is none."""
        ...

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        """Keep an entry, or do not: a store may forget whatever it likes."""
        ...

    async def drop(self, server: str, method: str, params: Collection[bytes] | None = None) -> None:
        """Forget the answers of a server to a method, in every partition; with `params`, only to one of those."""
        ...


class MemoryCacheStore:
    """Entries in this process, at most so many and so many bytes; those longest unused go first."""

    def __init__(self, *, max_entries: int = 1024, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, CacheEntry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: CacheKey) -> CacheEntry | None:
        """Return the entry, and mark it as used last."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        """Keep an entry, and forget others until it fits; one that never would is not kept."""
        self._remove(key)
        size = _size(key, entry)
        if size > self._max_bytes:
            return
        self._entries[key] = entry
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    async def drop(self, server: str, method: str, params: Collection[bytes] | None = None) -> None:
        """Forget what matches."""
        for key in list(self._entries):
            if key.server == server and key.method == method and (params is None or key.params in params):
                self._remove(key)

    def _remove(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry)


class ResponseCache:
    """A store, a clock, and what changed when.

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
        self._count = 0  # of the changes heard, by all views
        self._changed: dict[tuple[str, str], int] = {}  # at which count a server's method last changed
        self._floor = 0  # the same for all that is not in there any more

    def view(self, server: str, partition: str = "") -> CacheView:
        """Return the cache as one client sees it.

        `server` is what makes it another server to ask, such as its URL. `partition` stands for the caller's
        authorization (`authorization_partition`); callers without any share one.
        """
        return CacheView(self, server, partition)

    def mark(self) -> int:
        """Return the number of changes so far."""
        return self._count

    def note_change(self, server: str, method: str) -> None:
        """Note a change: answers to requests sent before it are not kept."""
        if len(self._changed) >= _MAX_CHANGES:
            self._changed.clear()
            self._floor = self._count + 1
        self._count += 1
        self._changed[server, method] = self._count

    def has_changed(self, server: str, method: str, mark: int) -> bool:
        """Return whether a server's method has changed since a mark."""
        return max(self._changed.get((server, method), 0), self._floor) > mark


class CacheView:
    """One server's answers to one authorization."""

    def __init__(self, cache: ResponseCache, server: str, partition: str) -> None:
        self._cache = cache
        self._server = server
        self._partition = partition
        # What was told to have changed and is still in the store: by method the params, or None for all of them.
        self._stale: dict[str, set[bytes] | None] = {}
        self._is_dropping = False

    def mark(self) -> int:
        """Taken before a request is sent, and given to `put`: an answer that a change overtook is not kept."""
        return self._cache.mark()

    async def get(self, method: str, params: Mapping[str, Any] | None = None) -> bytes | None:
        """Return the fresh answer to a request, or None: then ask the server."""
        key = self._key(method, params)
        if key is None:
            return None
        with _spared():
            partition = await self._scope(key)
            entry = None if partition is _NOWHERE else await self._cache.store.get(key._replace(partition=partition))
            return entry.result if entry is not None and self._cache.clock() < entry.fresh_until else None
        return None

    async def put(self, method: str, params: Mapping[str, Any] | None, result: bytes, mark: int) -> None:
        """Keep an answer that has just come, if it may be kept at all."""
        key = self._key(method, params)
        if key is None or self._cache.has_changed(self._server, method, mark):
            return
        seconds, is_public = _hints(result)
        if seconds <= 0:
            return
        partition = None if is_public else self._partition
        with _spared():
            held = await self._scope(key)
            if key.cursor is not None and held != partition:
                return  # of another scope than its first page, or that is not kept
            if held not in (_NOWHERE, partition):  # the scope has changed, and that of all pages with it
                await self._cache.store.drop(self._server, method, {key.params})
            fresh_until = self._cache.clock() + min(seconds, self._cache.max_seconds)
            await self._cache.store.set(key._replace(partition=partition), CacheEntry(result, fresh_until))
            if self._cache.has_changed(self._server, method, mark):  # meanwhile, for a store may take its time
                await self._cache.store.drop(self._server, method, {key.params})

    def hear(self, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Mark as stale what a notification is about; other notifications are ignored.

        Return whether `drop_stale` is to be run: it is not, where it runs. A server may tell more than a store takes.
        """
        for stale in _CHANGES.get(method, ()):
            self._cache.note_change(self._server, stale)
            uri = (params or {}).get("uri")
            waiting = self._stale.setdefault(stale, set())
            if waiting is None:
                continue
            if stale == _READ and isinstance(uri, str) and uri.count("/") <= _MAX_PARENTS:
                waiting.update(_canonical({"uri": part}) for part in _with_parents(uri))
            if not waiting or len(waiting) > _MAX_STALE:
                self._stale[stale] = None
        return bool(self._stale) and not self._is_dropping

    async def drop_stale(self) -> None:
        """Take what was told to have changed out of the store."""
        self._is_dropping = True
        try:
            while self._stale:
                await self._drop(*self._stale.popitem())
        finally:
            self._is_dropping = False

    async def changed(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Take a notification, and wait until what it is about is out of the store."""
        if self.hear(method, params):
            await self.drop_stale()

    async def drop(self, method: str) -> None:
        """Forget every page: a cursor was refused, or a consistent snapshot is wanted."""
        self._cache.note_change(self._server, method)
        await self._drop(method)

    async def _drop(self, method: str, params: Collection[bytes] | None = None) -> None:
        with _spared():
            await self._cache.store.drop(self._server, method, params)

    async def _scope(self, key: CacheKey) -> str | None:
        """Return the partition that holds the answer, or the first page of its list; private before public."""
        for partition in (self._partition, None):
            if await self._cache.store.get(key._replace(partition=partition, cursor=None)) is not None:
                return partition
        return _NOWHERE

    def _key(self, method: str, params: Mapping[str, Any] | None) -> CacheKey | None:
        """Return the key of a request; None where nothing may be kept: other methods, and rounds with answers."""
        given = params or {}
        if method not in CACHEABLE or any(name in given for name in _ROUNDS):
            return None
        cursor = given.get("cursor")
        if not (cursor is None or isinstance(cursor, str)):
            return None
        try:
            canonical = _canonical(given)
        except (TypeError, ValueError, RecursionError):
            return None  # it cannot be sent either, which is said where it is to be
        return CacheKey(self._server, self._partition, method, canonical, cursor)


@contextmanager
def _spared() -> Generator[None]:
    """Log what a store raises: no request fails because of it."""
    try:
        yield
    except Exception:
        log.warning("The store of the cache failed; the client goes on without it.", exc_info=True)


def cache_from(given: Any, limits: ClientLimits) -> ResponseCache:
    """Return the cache that an option of a client names: the given one, or one in memory."""
    if isinstance(given, ResponseCache):
        return given
    if not isinstance(given, bool):
        raise UsageError(f"cache= was given {kind_of(given)}; give True, False, or a ResponseCache that clients share.")
    return ResponseCache(MemoryCacheStore(max_entries=limits.cache_entries, max_bytes=limits.cache_bytes))


def authorization_partition(headers: Mapping[str, str]) -> str:
    """Return a name for an authorization, made of a hash of all headers that the user gives.

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
    """Return a name that no other object has, also not one that later has the same address in memory."""
    try:
        if owner not in _names:
            _names[owner] = str(next(_numbers))
        return _names[owner]
    except TypeError:  # it cannot be looked up, so it shares nothing
        return str(next(_numbers))


def whose(auth: Any) -> dict[str, str]:
    """Return what stands for an authorization in the key of a partition: a token, or a name for a login."""
    if auth is None:
        return {}
    return {"Authorization": auth} if isinstance(auth, str) else {"": unique_name(auth)}


_NOWHERE = "\0nowhere"  # no partition is called so: it is the answer that there is none


class _Hints(msgspec.Struct, rename="camel"):
    """What a result says of itself; of any type, for a server that writes nonsense here is still understood."""

    ttl_ms: Any = None
    cache_scope: Any = None
    result_type: Any = "complete"


_read_hints = msgspec.json.Decoder(_Hints).decode


def _hints(result: bytes) -> tuple[float, bool]:
    """Return for how many seconds a result is fresh, 0 for one not to be kept; and whether it is public."""
    try:
        hints = _read_hints(result)
    except (msgspec.DecodeError, RecursionError):
        return 0, False
    ttl = hints.ttl_ms
    if hints.result_type != "complete" or isinstance(ttl, bool) or not isinstance(ttl, int | float):
        return 0, False
    return ttl / 1000 if ttl < _MAX_SECONDS * 1000 else _MAX_SECONDS, hints.cache_scope == "public"


def _canonical(params: Mapping[str, Any]) -> bytes:
    said = {name: value for name, value in params.items() if name not in _NOT_IN_KEY and value is not None}
    return msgspec.json.encode(said, order="sorted")


def _with_parents(uri: str) -> Iterator[str]:
    """Yield a URI and its parents: what has changed may be a part of what was read."""
    yield uri
    rest = uri
    while "/" in rest:
        rest = rest.rpartition("/")[0]
        yield rest
        yield f"{rest}/"


def _size(key: CacheKey, entry: CacheEntry) -> int:
    return len(entry.result) + len(key.params) + len(key.server) + len(key.cursor or "") + 512


_MOST_TOLD = 20  # tools that are left out, of which each has a line in the log


class _Known:
    """One tool."""

    __slots__ = ("mirrors", "output_schema", "validator")

    def __init__(self, mirrors: tuple[Mirror, ...], output_schema: Mapping[str, Any] | None) -> None:
        self.mirrors = mirrors
        self.output_schema = output_schema
        self.validator: Validator | None = None  # made when it is first needed


class Toolbox:
    """The tools that are known."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.is_complete = False  # all pages were seen since the last change
        self._told: set[str] = set()  # tools that the log says are left out
        self._seldom = Seldom(log)

    def learn_all(self, tools: Iterable[Tool], *, mirrors: bool) -> list[Tool]:
        """Take in the whole list: a tool that is not in it any more is not known any more."""
        usable = self.learn(tools, mirrors=mirrors)
        listed = {tool.name for tool in usable}
        self._known = {name: known for name, known in self._known.items() if name in listed}
        self.is_complete = True
        return usable

    def learn(self, tools: Iterable[Tool], *, mirrors: bool) -> list[Tool]:
        """Take in a page; returns the tools that can be used.

        Where arguments are mirrored in headers, a tool whose annotations are wrong is left out.
        """
        usable: list[Tool] = []
        for tool in tools:
            found: tuple[Mirror, ...] = ()
            try:
                if mirrors:
                    found = find_mirrors(tool.input_schema)
            except ValueError as error:
                self._leave_out(tool.name[:200], error)
                self._known.pop(tool.name, None)
                continue
            known = self._known.get(tool.name)
            if known is None or known.mirrors != found or known.output_schema != tool.output_schema:
                self._known[tool.name] = _Known(found, tool.output_schema)
            usable.append(tool)
        return usable

    def _leave_out(self, name: str, error: ValueError) -> None:
        """Log each tool that is left out once, as long as they are few."""
        if name in self._told:
            return
        if len(self._told) < _MOST_TOLD:
            self._told.add(name)
            log.warning("The tool %r is left out: %s", name, error)
        else:
            self._seldom.warning("More tools are left out, such as %r: %s", name, error)

    def forget(self) -> None:
        """Note that the list has changed; what is known of its tools is used until it is fetched again."""
        self.is_complete = False

    def knows(self, name: str) -> bool:
        """Return whether a tool has been seen."""
        return name in self._known

    def headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers that repeat arguments; none for a tool that mirrors none, or is not known."""
        known = self._known.get(name)
        if known is None or not known.mirrors:
            return {}
        try:
            return mirror_values(known.mirrors, arguments)
        except ValueError as error:
            raise UsageError(f"The arguments of {name!r} cannot be sent: {error}") from None

    def check(self, name: str, result: ToolResult) -> None:
        """Compare a result with the schema that its tool was published with; InvalidAnswer when it does not fit."""
        known = self._known.get(name)
        if known is None or known.output_schema is None or result.is_error:
            return
        if result.structured_content is UNSET:
            raise InvalidAnswer(
                f"The tool {name!r} promises structured content by its outputSchema, and sent none. That is the "
                "server's fault; `check_output=False` takes the result as it is."
            )
        if known.validator is None:
            try:
                known.validator = compile_schema(known.output_schema)
            except SchemaError as error:
                raise InvalidAnswer(
                    f"The result of {name!r} cannot be checked: {error} `check_output=False` takes it as it is."
                ) from None
        problems = known.validator.problems(result.structured_content, 3)
        if problems:
            raise InvalidAnswer(
                f"The result of {name!r} does not fit its outputSchema: {' '.join(map(str, problems))} That is the "
                "server's fault; `check_output=False` takes the result as it is."
            )
