"""What a server makes when it is first asked for, and anew once that of which it was made has changed.

`functools.cached_property` would lose a change that another thread makes meanwhile: it stores what it made of the state
before, after it was told to forget it. Here the two wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["Kept"]

T = TypeVar("T")


class Kept(Generic[T]):
    """Decorates a method without parameters: read as an attribute, it is called once.

    >>> class Shop:
    ...     prices = [3, 4]
    ...     @Kept
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
    def __get__(self, owner: None, kind: type) -> Kept[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> Kept[T] | T:
        if owner is None:
            return self
        with self._lock:
            kept = owner.__dict__  # where Python looks first: what is kept costs no call
            if self._name not in kept:
                kept[self._name] = self._make(owner)
            value: T = kept[self._name]
            return value

    def forget(self, owner: object) -> None:
        """Have it made anew when it is next asked for."""
        with self._lock:
            owner.__dict__.pop(self._name, None)
