"""Provide the part of a server that a call needs, so that no package below `api` depends on `Server`.

One object is used by all layers, through three classes: `Services` has what a single call needs, its subclass `Runtime`
adds what transports need, and `Engine` adds what running a server needs. Each `Server` creates one `Engine`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from weft.backends import Backend
from weft.eras.base import Offer
from weft.limits import Limits
from weft.protocol.request_state import KeyRing
from weft.server.calls.changes import Changes
from weft.server.calls.execution import Threads
from weft.server.calls.once_store import OnceStore
from weft.types.base import Implementation
from weft.types.lifecycle import ServerCapabilities

if TYPE_CHECKING:
    from weft.server.calls.call import Call

T = TypeVar("T")


class CachedValue(Generic[T]):
    """A cached property that is thread-safe and can be invalidated.

    It uses a lock. Without a lock, as in `functools.cached_property`, a thread could store an old value after another
    thread has invalidated the value.

    >>> class Shop:
    ...     prices = [3, 4]
    ...     @CachedValue
    ...     def total(self):
    ...         return sum(self.prices)
    >>> shop = Shop()
    >>> shop.total, shop.prices.append(5), shop.total
    (7, None, 7)
    >>> Shop.total.forget(shop)
    >>> shop.total
    12
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self._lock = threading.RLock()
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> CachedValue[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> CachedValue[T] | T:
        if owner is None:
            return self
        with self._lock:
            kept = owner.__dict__  # Python looks here first, so that reading a cached value costs no call
            if self._name not in kept:
                kept[self._name] = self._make(owner)
            value: T = kept[self._name]
            return value

    def forget(self, owner: object) -> None:
        """Delete the cached value of the object `owner`, so that the next read computes the value again."""
        with self._lock:
            owner.__dict__.pop(self._name, None)


class TokenRules(Protocol):
    """The server's rules for access tokens, as far as a call needs them."""

    scopes: tuple[str, ...]  # Scopes that every token must have.
    leeway: float  # Seconds by which clocks may differ. A token is accepted for this time after its expiry.

    @property
    def metadata_url(self) -> str | None:
        """URL of the metadata document of the protected resource (RFC 9728); None if there is none."""
        ...


@dataclass(eq=False, repr=False)  # the keys are secret
class Services:
    """The values and objects of a server that a call needs."""

    owner: Any  # The `Server`, for handlers and lifespans.
    info: Implementation
    instructions: str | None
    _: KW_ONLY
    limits: Limits
    debug: bool
    backend: Backend
    state_keys: KeyRing  # Keys that encrypt and decrypt `requestState`.
    auth: TokenRules | None  # None: HTTP requests need no token.

    def __post_init__(self) -> None:
        self.changes = Changes()
        self.threads = Threads(self.limits.threads)
        store, limits = self.backend.store, self.limits
        self.once_store = OnceStore(store, seconds=limits.ask_seconds, most_bytes=limits.state_bytes)
        self.in_flight = 0  # Number of calls that are being served in this process, on all transports.

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.info.name

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declares."""
        raise NotImplementedError

    def capabilities_for(self, call: Call) -> ServerCapabilities:
        """Return the capabilities that the server declares to the client of a call."""
        raise NotImplementedError

    @CachedValue
    def offer(self) -> Offer:
        """Return the server's capabilities and methods, as the eras need them to read and write messages."""
        return self.make_offer()

    def make_offer(self) -> Offer:
        """Compute and return the current `offer` of the server."""
        raise NotImplementedError
