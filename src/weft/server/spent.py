"""Spent states: which `requestState` was used already, for tools that accept each only once (MRTR-14).

Remembered in this process, until the state would have expired anyway. Several workers each remember their own.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict

__all__ = ["SpentStates"]

MOST = 100_000  # states remembered; beyond that the oldest are forgotten


class SpentStates:
    """A set that forgets."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent: OrderedDict[bytes, float] = OrderedDict()  # by digest, until when

    def spend(self, state: str) -> bool:
        """Use a state. False if that was done before."""
        now = time.monotonic()
        while self._spent and (len(self._spent) >= MOST or next(iter(self._spent.values())) < now):
            self._spent.popitem(last=False)
        key = _digest(state)
        if key in self._spent:
            return False
        self._spent[key] = now + self._seconds
        return True

    def give_back(self, state: str) -> None:
        """Let a state that was spent be used again."""
        self._spent.pop(_digest(state), None)


def _digest(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()
