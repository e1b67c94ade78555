"""Store the events of session streams, so that a client that lost its connection can resume a stream.

An event is written to the Backend's log and announced on its bus; readers read it from the log. So one worker can
write a stream and another worker can read it, and a resumed stream is read like a new one. An event id names its
stream, so that only that stream is replayed. This module neither interprets messages nor writes to sockets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.backends import Backend
from weft.backends.memory import ExpiringKeys
from weft.limits import Limits

log = logging.getLogger("weft.sessions")

STANDALONE = "0"  # the stream that belongs to no request

# Memory for a stream and for an event, besides the bytes of the event: measured, and rounded up.
_STREAM_COST = 1024
_EVENT_COST = 256

_GOES_ON, _ENDS = b"+", b"."  # first byte of a log entry: the stream continues after it, or ends with it


class StoredEvent(NamedTuple):
    """One stored event of a stream. If the event has no message, `data` is empty."""

    id: str
    data: bytes
    is_last: bool


@dataclass(slots=True, eq=False)
class _StreamReader:
    """Counts the events of a stream that its reader in this process has not read yet.

    If there are `_most` or more such events, writers wait for the reader.
    """

    _most: int
    _near: asyncio.Event = field(default_factory=asyncio.Event)  # set while the reader is not too far behind
    unread: int = 0
    missed: bool = False  # whether events were dropped before they were read

    def set_unread(self, unread: int) -> None:
        """Set the number of unread events. If it is small enough, wake the writers that wait for the reader."""
        self.unread = unread
        if unread <= self._most // 2:
            self._near.set()

    async def catch_up(self) -> None:
        """Wait until the reader has read enough events. Return at once if it is not too far behind."""
        if self.unread >= self._most:
            self._near.clear()
            await self._near.wait()


@dataclass(slots=True)
class _StoredStream:
    """The sizes of the events of one stream in the Backend's log. Only events that this process wrote are counted."""

    session: str
    sizes: list[int] = field(default_factory=list[int])  # bytes of each event, oldest first
    bytes: int = 0  # sum of the sizes


class Streams:
    """Writes streams to the Backend's log, and reads them. A stream that one worker writes can be read at another."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._kept: OrderedDict[str, _StoredStream] = OrderedDict()  # by key; last written at the end
        self._keys: dict[str, set[str]] = {}  # keys of the kept streams, by session
        self._bytes = 0  # size of all kept streams
        self._expiring = ExpiringKeys(time.monotonic, self._discount)  # the keys expire as in the Backend's log
        self._bus_failed = False  # the last event could not be announced on the bus, and this was logged
        self._readers: dict[str, _StreamReader] = {}  # the newest reader of each log
        self.most_unread = max(limits.replay_events // 2, 1)  # with more unread events in a stream, its writers wait

    async def append(self, session: str, stream: str, data: bytes, *, is_last: bool = False) -> str:
        """Write one event to a stream, and return the id of the event."""
        key = _key(session, stream)
        entry = (_ENDS if is_last else _GOES_ON) + data
        most = self._account(session, key, len(entry))
        number = await self._backend.log.append(key, entry, ttl=self._limits.replay_seconds, most=most)
        if (reader := self._readers.get(key)) is not None:
            reader.unread += 1
        while self._bytes > self._limits.replay_bytes and len(self._kept) > 1:
            oldest = next(iter(self._kept))  # the stream that was written least recently
            if (reader := self._readers.get(oldest)) is not None and reader.unread:
                reader.missed = True
            await self._drop(oldest)
        try:
            await self._backend.bus.publish(key, b"")
            self._bus_failed = False
        except Exception as error:  # noqa: BLE001 - the event is in the log, which readers also read at intervals
            if not self._bus_failed:
                kind = type(error).__name__
                log.warning("The Backend's bus fails (%s): events of resumed streams are sent late.", kind)
            self._bus_failed = True
        return event_id(stream, number)

    async def room(self, session: str, stream: str) -> None:
        """Wait until the reader of a stream has read enough events. Otherwise unread events could be dropped."""
        reader = self._readers.get(_key(session, stream))
        if reader is not None:
            await reader.catch_up()

    async def follow(
        self,
        session: str,
        stream: str,
        after: int,
        *,
        wake: asyncio.Event,
        prepare: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncGenerator[StoredEvent | None]:
        """Yield the events of a stream after number `after` as they are written. Yield None if a comment is due.

        A comment is due if there was no event for `keep_alive_seconds`. The log is read again whenever `wake` is set.
        `prepare` is called before the log is read. It may write events, which are then read as well. If `prepare`
        returns False, the stream ends.

        The stream also ends after its last event, and if events were dropped because the reader was too slow. Then the
        client can notice that events are missing.
        """
        key = _key(session, stream)
        unsubscribe = await self._backend.bus.subscribe(key, lambda _: wake.set())
        reader = self._readers[key] = _StreamReader(self.most_unread)  # from here on, writers may wait for it
        try:
            if after and await self._ends_with(key, after):
                return
            while prepare is None or await prepare():
                entries = await self._backend.log.read(key, after)
                if entries is None or reader.missed:
                    return
                reader.set_unread(len(entries))
                for number, entry in entries:
                    after = number
                    yield StoredEvent(event_id(stream, number), entry[1:], entry[:1] == _ENDS)
                    reader.set_unread(reader.unread - 1)
                    if entry[:1] == _ENDS:
                        return
                try:
                    async with asyncio.timeout(self._limits.keep_alive_seconds):
                        await wake.wait()
                except TimeoutError:
                    yield None
                wake.clear()  # before `prepare`, which may set it again by writing
        finally:
            reader.set_unread(0)
            if self._readers.get(key) is reader:
                del self._readers[key]
            await unsubscribe()

    async def _ends_with(self, key: str, number: int) -> bool:
        """Return whether the event with this number is the last event of the stream."""
        for found, entry in await self._backend.log.read(key, number - 1) or ():
            return found == number and entry[:1] == _ENDS
        return False

    async def newest(self, session: str, stream: str) -> int:
        """Return the number of the newest event of a stream; 0 if the stream has no events."""
        return await self._backend.log.last(_key(session, stream))

    async def is_whole(self, session: str, stream: str, after: int) -> bool:
        """Return whether all events of a stream after number `after` are still stored."""
        return await self._backend.log.read(_key(session, stream), after) is not None

    async def forget(self, session: str) -> None:
        """Delete the streams of a session."""
        for key in [_key(session, STANDALONE), *self._keys.get(session, ())]:
            await self._drop(key)

    def _account(self, session: str, key: str, size: int) -> int:
        """Add the size of a new entry to the totals, and return how many entries of the stream may be stored.

        This is `replay_events`, or fewer if the entries of this stream alone would have more than `replay_bytes`. Then
        the oldest entries are subtracted from the totals, and the log drops them.
        """
        while self._kept and not self._expiring.is_kept(oldest := next(iter(self._kept))):
            self._discount(oldest)  # `keep` may have ended its own key, before the key was in `_kept`
        self._expiring.keep(key, self._limits.replay_seconds)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _StoredStream(session)
            self._bytes += _STREAM_COST
            self._keys.setdefault(session, set()).add(key)
        self._kept.move_to_end(key)
        size += _EVENT_COST
        kept.sizes.append(size)
        before, kept.bytes = kept.bytes, kept.bytes + size
        most = self._limits.replay_events
        while len(kept.sizes) > most:
            kept.bytes -= kept.sizes.pop(0)
        while kept.bytes > self._limits.replay_bytes and len(kept.sizes) > 1:
            kept.bytes -= kept.sizes.pop(0)
            most = len(kept.sizes)
        self._bytes += kept.bytes - before
        return most

    def _discount(self, key: str) -> None:
        """Subtract the size of a stream from the totals, because the stream has expired or is being deleted."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.bytes + _STREAM_COST
            keys = self._keys[kept.session]
            keys.discard(key)
            if not keys:
                del self._keys[kept.session]

    async def _drop(self, key: str) -> None:
        self._expiring.end(key)
        await self._backend.log.delete(key)


def event_id(stream: str, number: int) -> str:
    """Return the id of an event: the name of its stream, and its number in the stream."""
    return f"{stream}.{number}"


def read_event_id(text: str) -> tuple[str, int] | None:
    """Return the stream and the number that an event id names; None if the id is malformed.

    >>> read_event_id("3.14"), read_event_id("nonsense")
    (('3', 14), None)
    """
    stream, dot, number = text.rpartition(".")
    if not dot or not number.isdigit() or not number.isascii() or len(number) > 15:
        return None
    return stream, int(number)


def _key(session: str, stream: str) -> str:
    return f"stream/{session}/{stream}"
