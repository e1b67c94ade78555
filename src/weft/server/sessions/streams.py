"""Event streams of sessions: what was sent on one, numbered, so that a client that lost it can have the rest.

An event is written to the Backend's log and announced on its bus; a reader takes it from there. So a stream can be
written by one worker and read from another, and a stream that is resumed is read like any other. An event id names its
stream, so that only that one is replayed (L11-18, L11-19).

Nothing here knows what the messages mean, or writes to a socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from weft.backends.base import Backend
from weft.limits import Limits

log = logging.getLogger("weft.sessions")

STANDALONE = "0"  # the stream that belongs to no request

# What keeping a stream and an event takes besides the event's bytes, in memory: measured, and rounded up.
_STREAM_COST = 1024
_EVENT_COST = 256

_GOES_ON, _ENDS = b"+", b"."  # the first byte of an entry: whether the stream ends with it


class StoredEvent(NamedTuple):
    """One event of a stream; the data of a priming event is empty (L11-15)."""

    id: str
    data: bytes
    is_last: bool


class _StreamReader:
    """How far behind the newest event somebody is who follows a stream in this process."""

    __slots__ = ("_most", "_near", "missed", "unread")

    def __init__(self, most: int) -> None:
        self._most = most
        self._near = asyncio.Event()
        self.unread = 0
        self.missed = False  # something was given up before it was read

    def left(self, unread: int) -> None:
        """So many are not read yet."""
        self.unread = unread
        if unread <= self._most // 2:
            self._near.set()

    async def near(self) -> None:
        """Wait while it is too far behind."""
        if self.unread >= self._most:
            self._near.clear()
            await self._near.wait()


class _StoredStream:
    """What this process has written to one log, as far as it can still be read."""

    __slots__ = ("bytes", "key", "session", "sizes", "until")

    def __init__(self, session: str, key: str) -> None:
        self.session = session
        self.key = key
        self.sizes: list[int] = []
        self.bytes = 0
        self.until = 0.0


class Streams:
    """The streams that this process writes, and reading those of all."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._kept: OrderedDict[str, _StoredStream] = (
            OrderedDict()
        )  # what was written here; the log that grew last at the end
        self._of: dict[str, set[str]] = {}  # their keys, by session
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None  # runs while anything is kept
        self._loop: asyncio.AbstractEventLoop | None = None  # whose timer it is
        self._is_mute = False  # events could not be announced, and that is in the log
        self._readers: dict[str, _StreamReader] = {}  # by log: the newest of them
        self.most_unread = max(limits.replay_events // 2, 1)  # of one stream, before its writers wait

    async def append(self, session: str, stream: str, data: bytes, *, is_last: bool = False) -> str:
        """Write one event. Its id."""
        key = _key(session, stream)
        entry = (_ENDS if is_last else _GOES_ON) + data
        most = self._account(session, key, len(entry))
        number = await self._backend.log.append(key, entry, ttl=self._limits.replay_seconds, most=most)
        if (reader := self._readers.get(key)) is not None:
            reader.unread += 1
        while self._bytes > self._limits.replay_bytes and len(self._kept) > 1:
            await self._give_up(next(iter(self._kept)))  # the one that grew longest ago
        try:
            await self._backend.bus.publish(key, b"")
            self._is_mute = False
        except Exception as error:  # noqa: BLE001 - whatever a Backend raises: it is kept, and readers look by themselves
            if not self._is_mute:
                log.warning("The Backend's bus fails (%s): who resumes a stream reads it late.", type(error).__name__)
            self._is_mute = True
        return event_id(stream, number)

    async def room(self, session: str, stream: str) -> None:
        """Wait while a reader is so far behind that more events would cost it some: for whoever writes many."""
        reader = self._readers.get(_key(session, stream))
        if reader is not None:
            await reader.near()

    async def follow(
        self,
        session: str,
        stream: str,
        after: int,
        *,
        news: asyncio.Event,
        prepare: Callable[[], Awaitable[bool]] | None = None,
    ) -> AsyncGenerator[StoredEvent | None]:
        """The events after number `after`, as they come; None for each sign of life that is due meanwhile.

        It looks again whenever `news` is set. `prepare` is called before each look, to write what is to be read, and
        ends it by returning False. It also ends after the last event, and where events are missing: a reader that is
        too slow is better told than shown half of what happened.
        """
        key = _key(session, stream)
        unsubscribe = await self._backend.bus.subscribe(key, lambda _: news.set())
        reader = self._readers[key] = _StreamReader(
            self.most_unread
        )  # not before: nobody waits for one that never reads
        try:
            if after and await self._ends_with(key, after):
                return
            while prepare is None or await prepare():
                entries = await self._backend.log.read(key, after)
                if entries is None or reader.missed:
                    return
                reader.left(len(entries))
                for number, entry in entries:
                    after = number
                    yield StoredEvent(event_id(stream, number), entry[1:], entry[:1] == _ENDS)
                    reader.left(reader.unread - 1)
                    if entry[:1] == _ENDS:
                        return
                try:
                    async with asyncio.timeout(self._limits.keep_alive_seconds):
                        await news.wait()
                except TimeoutError:
                    yield None
                news.clear()  # before `prepare`, whose own writing may be news: where it left some, it is asked again
        finally:
            reader.left(0)
            if self._readers.get(key) is reader:
                del self._readers[key]
            await unsubscribe()

    async def _ends_with(self, key: str, number: int) -> bool:
        """Whether the stream ended with this event: then nothing comes after it, ever."""
        entries = await self._backend.log.read(key, number - 1)
        return entries is not None and bool(entries) and entries[0][0] == number and entries[0][1][:1] == _ENDS

    async def newest(self, session: str, stream: str) -> int:
        """The number of the newest event; 0 if there is none."""
        return await self._backend.log.last(_key(session, stream))

    async def is_whole(self, session: str, stream: str, after: int) -> bool:
        """Whether all that came after number `after` is still kept."""
        return await self._backend.log.read(_key(session, stream), after) is not None

    async def forget(self, session: str) -> None:
        """Nobody will ask for the streams of a session any more."""
        for key in [_key(session, STANDALONE), *self._of.get(session, ())]:
            await self._drop(key)

    def _account(self, session: str, key: str, size: int) -> int:
        """Count an entry, so that all streams together keep a bounded number of bytes. How many the stream may keep.

        One that by itself has more bytes than all may have gives up its oldest entries.
        """
        now = time.monotonic()
        self._expire(now)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _StoredStream(session, key)
            self._bytes += _STREAM_COST
            self._of.setdefault(session, set()).add(key)
        else:
            self._kept.move_to_end(key)
        kept.until = now + self._limits.replay_seconds
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
        self._set_timer()
        return most

    def _expire(self, now: float) -> None:
        """Count no more what the logs have given up by themselves, since its time is over."""
        while self._kept and (oldest := next(iter(self._kept.values()))).until <= now:
            self._discount(oldest.key)

    def _set_timer(self) -> None:
        """Look again when the time of the oldest is over, also if nothing is written any more."""
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:
            oldest = next(iter(self._kept.values()))
            self._loop = loop
            self._timer = loop.call_later(max(oldest.until - time.monotonic(), 0.05), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._expire(time.monotonic())
        if self._kept:
            self._set_timer()

    def _discount(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.bytes + _STREAM_COST
            keys = self._of[kept.session]
            keys.discard(key)
            if not keys:
                del self._of[kept.session]

    async def _give_up(self, key: str) -> None:
        """Forget a log for the sake of others."""
        if (reader := self._readers.get(key)) is not None and reader.unread:
            reader.missed = True
        await self._drop(key)

    async def _drop(self, key: str) -> None:
        self._discount(key)
        await self._backend.log.delete(key)


def event_id(stream: str, number: int) -> str:
    """The id of an event: the name of its stream, and its number there."""
    return f"{stream}.{number}"


def read_event_id(text: str) -> tuple[str, int] | None:
    """The stream and the number that an event id names.

    >>> read_event_id("3.14"), read_event_id("nonsense")
    (('3', 14), None)
    """
    stream, dot, number = text.rpartition(".")
    if not dot or not number.isdigit() or not number.isascii() or len(number) > 15:
        return None
    return stream, int(number)


def _key(session: str, stream: str) -> str:
    return f"stream/{session}/{stream}"
