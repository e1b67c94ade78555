"""Divide a maximum number of entries between peers, so that one peer cannot use up the room of all others.

For entries that must not be deleted before they expire. If there is no room, a new entry is refused.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from weft.backends.memory import ExpiringKeys


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


class SizedShares:
    """Counts the entries of each peer and their bytes until they expire. Each entry has its own lifetime.

    A peer may have at most half of the entries, and of the bytes, that other peers leave free. `forget` is called with
    the key of each entry that has expired or was released.

    >>> import asyncio
    >>> async def example():
    ...     shares = SizedShares(most=4, most_bytes=100)
    ...     return [shares.take("a", "ann", 40, 60), shares.take("b", "ann", 40, 60), shares.take("a", "ann", 5, 60)]
    >>> asyncio.run(example())
    [True, False, True]
    """

    def __init__(self, most: int, most_bytes: int, forget: Callable[[str], object] | None = None) -> None:
        self._on_forget = forget
        self._most = most
        self._most_bytes = most_bytes
        self._entries: dict[str, tuple[str, int]] = {}  # Peer and bytes by key.
        self._counts: dict[str, int] = {}  # Number of entries of each peer.
        self._bytes: dict[str, int] = {}  # Bytes of each peer.
        self._all_bytes = 0
        self._expiring = ExpiringKeys(time.monotonic, self._forget)

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, key: str, peer: str, size: int, seconds: float) -> bool:
        """Count an entry for some seconds. Return False if the peer has no room for it.

        For an entry that is counted already, count `size` more bytes, and ignore `peer`.
        """
        known = self._entries.get(key)
        if known is not None:
            peer = known[0]
        elif self._counts.get(peer, 0) + 1 > self._most - len(self._entries) - 1:
            return False
        own_bytes = self._bytes.get(peer, 0) + size
        if own_bytes > self._most_bytes - self._all_bytes - size:
            return False
        if known is None:
            self._counts[peer] = self._counts.get(peer, 0) + 1
        self._entries[key] = peer, size + (0 if known is None else known[1])
        self._bytes[peer] = own_bytes
        self._all_bytes += size
        self._expiring.keep(key, seconds)
        return True

    def replace(self, key: str, peer: str, size: int, seconds: float) -> bool:
        """Count `size` bytes instead of those that an entry had. Return False if the peer has no room for more."""
        peer, counted = self._entries.get(key, (peer, 0))
        return self.take(key, peer, size - counted, seconds)

    def shrink(self, key: str, size: int, seconds: float) -> None:
        """Count at most `size` bytes of an entry, and let it expire in some seconds.

        Does nothing if it is not counted.
        """
        if (known := self._entries.get(key)) is not None:
            peer, counted = known
            dropped = max(counted - size, 0)
            self._entries[key] = peer, counted - dropped
            self._bytes[peer] -= dropped
            self._all_bytes -= dropped
            self._expiring.keep(key, seconds)

    def give_back(self, key: str, size: int) -> None:
        """Count `size` bytes less of an entry. Does nothing if it is not counted."""
        if (known := self._entries.get(key)) is not None:
            peer, counted = known
            self._entries[key] = peer, counted - size
            self._bytes[peer] -= size
            self._all_bytes -= size

    def release(self, key: str) -> None:
        """Do not count an entry any longer. Does nothing if it is not counted."""
        if key in self._entries:
            self._expiring.end(key)

    def _forget(self, key: str) -> None:
        peer, size = self._entries.pop(key)
        self._all_bytes -= size
        self._counts[peer] -= 1
        self._bytes[peer] -= size
        if not self._counts[peer]:
            del self._counts[peer], self._bytes[peer]
        if self._on_forget is not None:
            self._on_forget(key)
