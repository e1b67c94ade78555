"""Divide a maximum number of entries between peers, so that one peer cannot use up the room of all others.

For entries that must not be deleted before they expire. If there is no room, a new entry is refused.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class Shares:
    """Counts the entries of each peer until they expire.

    A peer may have at most half of the entries that other peers leave free: the first peer up to half of all, the
    second up to a quarter, and so on. So there is always room for another peer. All entries have the same lifetime.
    `forget` is called with the key of each entry that has expired or was released.

    >>> shares = Shares()
    >>> [shares.take(key, "ann", most=4, seconds=60) for key in ("a", "b", "c")]
    [True, True, False]
    >>> shares.take("d", "bob", most=4, seconds=60)
    True
    """

    def __init__(self, forget: Callable[[str], object] | None = None) -> None:
        self._forget = forget
        self._entries: OrderedDict[str, tuple[float, str]] = OrderedDict()  # Expiry and peer by key, oldest first.
        self._used: dict[str, int] = {}  # Number of entries of each peer.

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry[0] > time.monotonic()

    def take(self, key: str, peer: str, *, most: int, seconds: float) -> bool:
        """Count an entry of a peer for some seconds. Return False if the peer has no room for it.

        An entry that is counted already gets a new lifetime. `most` is the maximum number of entries of all peers.
        """
        now = time.monotonic()
        self._release_expired(now)
        if key in self._entries:
            self._remove(key)
        elif self._used.get(peer, 0) + 1 > most - len(self._entries) - 1:
            return False
        self._entries[key] = now + seconds, peer
        self._used[peer] = self._used.get(peer, 0) + 1
        return True

    def release(self, key: str) -> None:
        """Do not count this entry any longer. Does nothing if it is not counted."""
        if key in self._entries:
            self._remove(key)
            if self._forget is not None:
                self._forget(key)

    def _release_expired(self, now: float) -> None:
        for _ in range(100):  # No more at a time, because other requests wait.
            key = next(iter(self._entries), None)
            if key is None or self._entries[key][0] > now:
                return
            self.release(key)

    def _remove(self, key: str) -> None:
        peer = self._entries.pop(key)[1]
        self._used[peer] -= 1
        if not self._used[peer]:
            del self._used[peer]
