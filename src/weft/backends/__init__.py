"""Define the interface of a Backend, which the workers of a deployment share: a store, a log, sets and a bus.

A backend stores bytes and does not interpret them. Every entry expires, so that nothing is kept forever.

A key is text. Keys such as `stream/abc/1` and `session/abc` belong to the group `abc`, the part between the first and
the second slash. A backend of several nodes keeps a group on one node. No key is used by two of store, log and sets.

If a backend cannot be reached, its methods try again for some seconds, and then raise BackendUnavailable. An attempt
whose reply was lost may have had its effect. A method that was repeated for this reason has the same result as if it
had run once, with these exceptions:

- `delete` and `remove` may return False, though the first attempt deleted the value or removed the name.
- If others have written the same key between two attempts, these methods have their effect once more: `put` replaces
  their value, `touch` sets the time again, `delete` deletes their value, `add` and `remove` add or remove the name
  again, and `take` takes a second permit.
- `swap` and `append` recognise their first attempt by what it has stored, also after others have written. Only if that
  was deleted or replaced by `put` meanwhile, they write again, or `swap` returns False.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from weft.errors import StartError, UsageError

__all__ = [
    "Backend",
    "Bus",
    "Hear",
    "Log",
    "Sets",
    "Store",
    "Unsubscribe",
    "check_backend",
    "default_backend",
    "open_backend",
    "set_default",
]

Hear: TypeAlias = Callable[[bytes], None]  # is called with each message, on the subscriber's event loop; must not block
Unsubscribe: TypeAlias = Callable[[], Awaitable[None]]  # ends a subscription


class Store(Protocol):
    """A key-value store. Each value has a time to live."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of `key`, or None if `key` has no value or the value has expired."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Store `value` for `ttl` seconds, and replace the old value of `key`, if there is one."""
        ...

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Store `value` only if the current value of `key` is `expected`. Return whether `value` was stored.

        If `expected` is None, `value` is stored only if there is no current value.
        """
        ...

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Let the current value of `key` expire `ttl` seconds from now. Return False if there is no value."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete the value of `key`. Return False if there was no value."""
        ...

    async def take(self, key: str, *, count: int, seconds: float) -> float:
        """Take one of `count` permits, which come back evenly, all of them within `seconds`.

        Return 0 if a permit was taken, else the number of seconds after which to try again. Permits of one key are
        always taken with the same `count` and `seconds`, and the key is not used by the other methods.
        """
        ...


class Log(Protocol):
    """A numbered list of entries for each key.

    A new entry has a greater number than all earlier entries, even if the earlier entries have expired. Numbers begin
    at 2, and have at most 15 digits. So the number of an entry minus 1 is never 0, and can be passed to `read`, for
    which 0 means all entries.
    """

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry to the list of `key`, and return the number of the entry.

        Only the last `most` entries are kept. The whole list expires `ttl` seconds from now.
        """
        ...

    async def read(self, key: str, after: int, *, most: int | None = None) -> Sequence[tuple[int, bytes]] | None:
        """Return the entries of `key` with numbers above `after`. If `after` is 0, return all entries that still exist.

        If `most` is given (at least 1), return only the first `most` of these entries.

        Return None if `append` has dropped an entry above `after`, and `after` is not 0: the result would have a gap.
        """
        ...

    async def last(self, key: str) -> int:
        """Return the number of the newest entry of `key`, or 0 if there is no entry."""
        ...

    async def delete(self, key: str) -> None:
        """Delete all entries of `key`."""
        ...


class Sets(Protocol):
    """A set of names for each key. Each name has a time to live."""

    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        """Add a name to the set of `key` for `ttl` seconds from now, also if the name is in the set already.

        If `most` is given, and the set has `most` other names or more, add nothing and return False. Otherwise return
        True.
        """
        ...

    async def remove(self, key: str, name: str) -> bool:
        """Remove a name from the set of `key`. Return False if it was not in the set."""
        ...

    async def names(self, key: str) -> Sequence[str]:
        """Return the names in the set of `key`, sorted."""
        ...


class Bus(Protocol):
    """Sends messages to the current subscribers of a topic. Messages are not stored."""

    async def publish(self, topic: str, message: bytes) -> int:
        """Send a message to all current subscribers of `topic`, and return the number of subscribers it was sent to.

        When this method returns, the message is on its way. A subscriber gets messages of one topic in the order in
        which one publisher has sent them, one after another. There is no order between topics, nor between a message
        and what the publisher does later: a subscriber may read a new value, or get a request that the publisher has
        caused, before it gets the message. Several subscriptions in one process may count as one.
        """
        ...

    async def subscribe(self, topic: str, hear: Hear, missed: Callable[[], None] | None = None) -> Unsubscribe:
        """Call `hear` with every message of `topic` from now on. Return a function that ends the subscription.

        If the connection to the backend breaks, messages may be lost until there is a new one. Then `missed` is called.
        """
        ...


class Backend(Protocol):
    """The shared state of all workers of one deployment.

    A backend is used in one event loop at a time. Each user calls `start` before, and `close` after. A new backend
    works without `start` as well, but nothing is checked. After the last `close`, its methods may raise
    BackendUnavailable until the next `start`.
    """

    store: Store
    log: Log
    sets: Sets
    bus: Bus
    is_local: bool  # whether only this process can use the backend

    async def start(self) -> None:
        """Connect, and check that the backend can be used. Raises StartError with the remedy if it cannot."""
        ...

    async def ping(self) -> None:
        """Return if the backend can be reached now. Raises BackendUnavailable if not; does not wait and try again."""
        ...

    async def close(self) -> None:
        """Close the connections of the backend, if it has any, after the last user has called this method."""
        ...


def check_backend(given: object) -> None:
    """Raise UsageError if an object is not a backend. The message names what is missing.

    >>> check_backend(object)
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: backend= was given the class object. Create an object: backend=object(...).
    """
    if isinstance(given, type):
        name = given.__name__
        raise UsageError(f"backend= was given the class {name}. Create an object: backend={name}(...).")
    missing = [name for name in (*_PARTS, "is_local") if not hasattr(given, name)]
    owners = [("", Backend, given), *((f"{name}.", cls, getattr(given, name, None)) for name, cls in _PARTS.items())]
    for prefix, cls, owner in owners:
        names = [name for name in vars(cls) if not name.startswith("_")]
        missing += [f"{prefix}{name}()" for name in names if owner is not None and not _has_method(owner, name)]
    if missing:
        raise UsageError(
            f"backend= was given an object of {type(given).__name__}, which is not a backend. It lacks "
            f"{', '.join(missing)}. The class weft.backends.Backend says what each must do."
        )


def _has_method(owner: object, name: str) -> bool:
    return callable(getattr(owner, name, None))


_PARTS: Mapping[str, type] = {"store": Store, "log": Log, "sets": Sets, "bus": Bus}

_default: Backend | str | None = None  # set by `set_default`


def set_default(backend: Backend | str) -> None:
    """Set the backend of all servers in this process that are created later without `backend=`.

    The `weft` command does this with the URL of `--backend`, and in its worker processes.
    """
    global _default  # noqa: PLW0603 - a setting of the process
    _default = backend


def default_backend() -> Backend | None:
    """Return the backend for a server without `backend=`, or None if it gets the memory of this process.

    It is the backend that was passed to `set_default`, or else the backend whose URL is in the environment variable
    WEFT_BACKEND. Raises StartError if this URL names no backend.
    """
    global _default  # noqa: PLW0603 - all servers of the process share one backend
    if _default is None and (url := os.environ.get("WEFT_BACKEND")):
        try:
            _default = open_backend(url)
        except UsageError as error:
            raise StartError(f"The environment variable WEFT_BACKEND cannot be used. {error}") from None
    if isinstance(_default, str):
        _default = open_backend(_default)
    return _default


def open_backend(url: str, *, prefix: str = "weft:") -> Backend:
    """Return the backend that a URL names, such as `redis://localhost:6379`. This does not connect yet.

    All keys and channels in Redis begin with `prefix`. Other backends do not use it.

    Raises UsageError if the URL names no backend, or if a package is missing.
    """
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if scheme == "memory":
        from weft.backends.memory import MemoryBackend

        return MemoryBackend()
    if scheme not in _REDIS_SCHEMES:
        # What is not surely a scheme can be a password, and is not shown.
        is_shown = scheme.isalpha() and "://" in url
        what = f"no backend for URLs that begin with {scheme[:20]}://" if is_shown else "no scheme in this URL"
        raise UsageError(
            f"There is {what}. Write redis://localhost:6379 (or rediss:// for TLS), or pass a backend of your own."
        )
    from weft.backends.redis import RedisBackend

    return RedisBackend(url, prefix=prefix)


_REDIS_SCHEMES = frozenset(
    f"{name}{tls}{kind}" for name in ("redis", "valkey") for tls in ("", "s") for kind in ("", "+sentinel", "+cluster")
) | {"unix"}
