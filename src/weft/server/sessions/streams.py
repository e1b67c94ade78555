"""Store the events of session streams, so that a client that lost its connection can resume a stream.

An event is written to the Backend's log and announced on its bus; readers read it from the log. So one worker can
write a stream and another worker can read it, and a resumed stream is read like a new one. An event id names its
stream, so that only that stream is replayed. This module neither interprets messages nor writes to sockets.

Each entry of the log names the requests that wait for an answer on the stream. If the worker that serves a request
dies, the reader of the stream writes an error in its place, so that the client does not wait forever.

The log of a stream expires. As long as a request waits for its answer, the worker that serves it writes notes, which
are not sent, to keep the log: the client can resume the stream at any worker, however long the call is quiet.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from weft.backends import Backend, Store
from weft.backends.memory import ExpiringKeys
from weft.errors import InternalError
from weft.jsonrpc import encode_error
from weft.limits import Limits
from weft.net.logs import Seldom
from weft.server.runtime.fleet import LEASE_SECONDS, Fleet, is_worker_id
from weft.types.base import RequestId

log = logging.getLogger("weft.sessions")
_seldom = Seldom(log)

STANDALONE = "0"  # the stream that belongs to no request

# Memory for a stream and for an event, besides the bytes of the event: measured, and rounded up.
_STREAM_COST = 1024
_EVENT_COST = 256

_CHECK_SECONDS = LEASE_SECONDS / 3  # time between two checks whether the writer of a quiet stream is alive
_RECHECK_SECONDS = 0.5  # the same for a writer that has lost its connection to the backend: it may have been killed
_DIED = (
    "The worker that served this call has died. The call may have taken effect in part: check before you call again."
)
_NO_READER = b""  # instead of the position of a reader, after it has ended
_PAGE = 16  # entries that are read from the log at once
_RENEWALS = 3  # how often the log of a quiet stream is renewed within `replay_seconds`
_LONGEST_PAUSE = 0.5  # longest pause, in seconds, between two looks at how far a reader at another worker is


class _Head(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The first line of a log entry. The rest of the entry is the data of one event.

    In the stream of a request, `waiting` has the ids of the requests that are answered on it, usually one. The
    standalone stream of HTTP+SSE has the answers of all requests. There an entry with a `worker` and without data says
    that the worker has begun to serve the requests in `waiting`. An entry with a `worker` and data is the answer to the
    first of them. An entry that `is_cancelled` stands for the answer to a request that was cancelled, and has no data.

    An entry that `is_note` is not an event, and is not sent. It keeps the log from expiring, or replaces events that
    were dropped.
    """

    is_last: bool = False  # whether the stream ends with this event
    waiting: list[RequestId] = []
    worker: str = ""
    is_cancelled: bool = False
    is_note: bool = False


_encode_head = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode


def _decode(entry: bytes) -> tuple[_Head, bytes]:
    head, _, data = entry.partition(b"\n")
    return _decode_head(head), data


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
    unread: int  # if the reader has not come to the end of the log yet: at least as many as there are
    _near: asyncio.Event = field(default_factory=asyncio.Event)  # set while the reader is not too far behind

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
    """The sizes of the entries of one stream in the Backend's log. Only entries of this process are counted."""

    session: str
    sizes: list[int] = field(default_factory=list[int])  # bytes of each entry, oldest first; of a note: negative
    bytes: int = 0  # sum of the sizes
    notes: int = 0  # number of entries that are notes
    numbers: list[int] | None = None  # of the newest events; None if no other worker reads streams
    unchecked: int = 0  # events written since the position of a reader at another worker was looked up

    def add(self, size: int, *, is_note: bool) -> None:
        """Count a new entry."""
        self.sizes.append(-size if is_note else size)
        self.bytes += size
        self.notes += is_note

    def remove(self, index: int) -> None:
        """Do not count an entry any more: the oldest (0), or the newest (-1)."""
        size = self.sizes.pop(index)
        self.bytes -= abs(size)
        self.notes -= size < 0


@dataclass(slots=True)
class _OpenStream:
    """A stream that this process writes: requests are answered on it, and its last event is not written yet."""

    session: str
    waiting: list[RequestId]  # the requests
    written: float = math.inf  # when an entry was last stored; before the first one: infinite

    @property
    def note(self) -> _Head:
        """The head of an entry that is not an event."""
        return _Head(waiting=self.waiting, is_note=True)


@dataclass(slots=True)
class _ServedRequests:
    """The requests that are answered on a stream, as far as the reader of the stream knows, with their workers."""

    writer: str | None  # the worker that writes the stream; None for the standalone stream, which all workers write
    by_id: dict[RequestId, str] = field(default_factory=dict[RequestId, str])
    check_at: float = -math.inf  # when to check the next time if the workers are alive

    def note(self, head: _Head, data: bytes) -> None:
        """Take from an entry of the log which requests wait for an answer after it."""
        if self.writer is not None:
            self.by_id = dict.fromkeys(head.waiting, self.writer)
        elif head.worker and not data and not head.is_cancelled:
            self.by_id.update(dict.fromkeys(head.waiting, head.worker))
        elif head.worker:
            for id in head.waiting[:1]:
                self.by_id.pop(id, None)


class _Position:
    """Shows in the store how far a reader has read a stream, so that writers at other workers can wait for it.

    The value is a number, and a mark of the reader: a reader that ends must not hide the position of its successor.
    """

    def __init__(self, store: Store | None, key: str, limits: Limits, often: int) -> None:
        self._store = store  # None: there are no other workers
        self._key = _reader(key)
        self._often = often  # number of events after which the position is shown again
        self._seconds = limits.keep_alive_seconds
        self._unshown = math.inf
        self._shown = 0.0  # when the position was last shown
        self._mark = secrets.token_hex(8).encode()
        self._value = _NO_READER  # the value that was last stored

    async def show(self, number: int, *, is_quiet: bool = False) -> None:
        """Note that the events up to `number` were read. `is_quiet`: whether there are no further events now."""
        if self._store is None:
            return
        self._unshown += not is_quiet
        is_old = is_quiet and time.monotonic() - self._shown > self._seconds
        if self._unshown >= self._often or is_old:
            self._unshown, self._shown = 0, time.monotonic()
            self._value = b"%d %b" % (number, self._mark)
            await self._store.put(self._key, self._value, ttl=3 * self._seconds)

    async def hide(self) -> None:
        """Note that this reader does not read the stream any more. Do nothing if another reader has replaced it."""
        if self._store is not None and self._value:
            with suppress(Exception):  # it expires by itself
                await self._store.swap(self._key, self._value, _NO_READER, ttl=self._seconds)


class Streams:
    """Writes streams to the Backend's log, and reads them. A stream that one worker writes can be read at another."""

    def __init__(self, backend: Backend, limits: Limits, fleet: Fleet | None = None) -> None:
        self._backend = backend
        self._limits = limits
        self._fleet = None if fleet is None or fleet.is_alone else fleet  # None: no other worker reads or writes
        self._kept: OrderedDict[str, _StoredStream] = OrderedDict()  # by key; last written at the end
        self._keys: dict[str, set[str]] = {}  # keys of the kept streams, by session
        self._bytes = 0  # size of all kept streams
        self._expiring = ExpiringKeys(time.monotonic, self._discount)  # the keys expire as in the Backend's log
        self._bus_failed = False  # the last event could not be announced on the bus, and this was logged
        self._readers: dict[str, _StreamReader] = {}  # the newest reader of each log
        self._open: dict[str, _OpenStream] = {}  # by key
        self._renewal_seconds = max(limits.replay_seconds / _RENEWALS, 0.05)
        self._renewing_in: asyncio.AbstractEventLoop | None = None  # the event loop that has a timer for renewals
        self._renewing: asyncio.Task[None] | None = None  # renews them
        self.most_unread = max(limits.replay_events // 2, 1)  # with more unread events in a stream, its writers wait
        self._keep_alive = limits.keep_alive_seconds

    async def append(
        self,
        session: str,
        stream: str,
        data: bytes,
        *,
        is_last: bool = False,
        waiting: Sequence[RequestId] = (),
        worker: str = "",
        is_cancelled: bool = False,
    ) -> str:
        """Write one event to a stream, and return the id of the event. For the last parameters see `_Head`."""
        key = _key(session, stream)
        number = await self._store(session, key, _Head(is_last, list(waiting), worker, is_cancelled), data)
        if is_last:
            self._open.pop(key, None)
        if (reader := self._readers.get(key)) is not None:
            reader.unread += 1
        if self._fleet is not None and (kept := self._kept.get(key)) is not None:
            kept.numbers = kept.numbers or []
            insort(kept.numbers, number)
            del kept.numbers[: -self.most_unread]
        await self._make_room(key)
        try:
            await self._backend.bus.publish(key, b"")
            self._bus_failed = False
        except Exception as error:  # noqa: BLE001 - the event is in the log, which readers also read at intervals
            if not self._bus_failed:
                kind = type(error).__name__
                log.warning("The Backend's bus fails (%s): events of resumed streams are sent late.", kind)
            self._bus_failed = True
        return event_id(stream, number)

    def open(self, session: str, stream: str, waiting: Sequence[RequestId]) -> None:
        """Keep the log of a stream on which requests are answered, until the last event or `close`."""
        self._open[_key(session, stream)] = _OpenStream(session, list(waiting))
        loop = asyncio.get_running_loop()
        if self._renewing_in is not loop and 0 < self._limits.replay_seconds < math.inf:
            self._renewing_in, self._renewing = loop, None
            loop.call_later(self._renewal_seconds, self._renew_soon)

    def close(self, session: str, stream: str) -> None:
        """Keep the log of a stream no longer, although its last event could not be stored."""
        self._open.pop(_key(session, stream), None)

    def _renew_soon(self) -> None:
        """Renew the logs of quiet open streams in a task. If no stream is open, stop until one is opened."""
        if not self._open:
            self._renewing_in = None
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._renewal_seconds, self._renew_soon)
        if self._renewing is None or self._renewing.done():  # else the Backend is slow
            self._renewing = loop.create_task(self._renew(), name="weft-streams")

    async def _renew(self) -> None:
        """Write a note to each open stream that is quiet, so that its log does not expire."""
        quiet_since = time.monotonic() - self._renewal_seconds
        quiet = [(key, stream) for key, stream in self._open.items() if stream.written <= quiet_since]
        notes = [self._store(stream.session, key, stream.note) for key, stream in quiet]
        for result in await asyncio.gather(*notes, return_exceptions=True):
            if isinstance(result, Exception):
                _seldom.warning("The log of a stream was not renewed: %s", result)

    async def _store(self, session: str, key: str, head: _Head, data: bytes = b"", *, drops: bool = False) -> int:
        """Write an entry to the log of a stream, and return its number. `drops`: whether all others are dropped."""
        entry = b"%b\n%b" % (_encode_head(head), data)
        most = self._account(session, key, len(entry), is_note=head.is_note, drops=drops)
        try:
            number = await self._backend.log.append(key, entry, ttl=self._limits.replay_seconds, most=most)
        except BaseException:
            self._take_back(key)
            raise
        if (opened := self._open.get(key)) is not None:
            opened.written = time.monotonic()
        return number

    async def room(self, session: str, stream: str) -> None:
        """Wait until the reader of a stream has read enough events. Otherwise unread events could be dropped."""
        key = _key(session, stream)
        if (reader := self._readers.get(key)) is not None:
            await reader.catch_up()
        elif self._fleet is not None and (kept := self._kept.get(key)) is not None:
            kept.unchecked += 1
            if kept.unchecked > self.most_unread // 2:
                kept.unchecked = 0
                with suppress(Exception):  # a Backend that fails must not fail the call: its events are stored late
                    await self._wait_for_reader_elsewhere(key, kept)

    async def _wait_for_reader_elsewhere(self, key: str, kept: _StoredStream) -> None:
        """Wait until the reader of a stream at another worker, if there is one, has read enough events of this worker.

        Do not wait for a reader that makes no progress for `write_seconds`.
        """
        numbers, pause, before, since = kept.numbers or [], 0.02, b"", time.monotonic()
        while position := await self._backend.store.get(_reader(key)):  # else None or `_NO_READER`
            unread = len(numbers) - bisect_right(numbers, int(position.partition(b" ")[0]))
            if unread < self.most_unread // 2:
                return
            if position != before:
                before, since = position, time.monotonic()
            elif time.monotonic() - since > self._limits.write_seconds:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

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
        `prepare` is called before the log is read, but not before all events that it has written are read. If
        `prepare` returns False, the stream ends.

        The stream also ends after its last event, and if events were dropped before they were read here. Then the
        client can notice that events are missing.

        If a worker dies that serves a request of this stream, an error is written in the place of the answer.
        """
        key, loop = _key(session, stream), asyncio.get_running_loop()
        unsubscribe = await self._backend.bus.subscribe(key, lambda _: wake.set(), wake.set)
        # From here on, writers may wait for it.
        reader = self._readers[key] = _StreamReader(self.most_unread, self._limits.replay_events)
        shown_in = None if self._fleet is None else self._backend.store
        position = _Position(shown_in, key, self._limits, self.most_unread // 4)
        served = _ServedRequests(writer_of(stream))
        quiet_since = loop.time()
        try:
            if after and (found := await self._read_one(key, after)) is not None:
                served.note(*found)
                if found[0].is_last:
                    return
            is_end = True  # whether all entries of the log were read
            while not is_end or prepare is None or await prepare():
                entries = await self._backend.log.read(key, after, most=_PAGE)
                if entries is None:
                    return
                if not entries and served.writer is not None and not await self.newest(session, stream):
                    return  # the log has entries as long as events may follow: it was deleted
                is_end = len(entries) < _PAGE
                reader.set_unread(len(entries) if is_end else max(reader.unread, len(entries)))
                for after, entry in entries:
                    head, data = _decode(entry)
                    served.note(head, data)
                    if not head.is_note and (data or not head.worker):
                        yield StoredEvent(event_id(stream, after), data, head.is_last)
                        quiet_since = loop.time()
                    reader.set_unread(reader.unread - 1)
                    if head.is_last:
                        return
                    await position.show(after)
                if not is_end:
                    continue
                await position.show(after, is_quiet=True)
                await self._fail_dead(session, stream, served)
                if not await _is_set(wake, self._pause(served)) and loop.time() - quiet_since >= self._keep_alive:
                    quiet_since = loop.time()
                    yield None
                wake.clear()  # before `prepare`, which may set it again by writing
        finally:
            reader.set_unread(0)
            if self._readers.get(key) is reader:
                del self._readers[key]
            await unsubscribe()
            await position.hide()

    def _pause(self, served: _ServedRequests) -> float:
        """Return how long the reader of a quiet stream waits: until a comment or the next check of a worker is due."""
        if self._fleet is None or not served.by_id:
            return self._keep_alive
        return min(self._keep_alive, max(served.check_at - time.monotonic(), 0.0))

    async def _fail_dead(self, session: str, stream: str, served: _ServedRequests) -> None:
        """Write errors to a stream in the place of the answers of dead workers. Do nothing if no check is due."""
        now = time.monotonic()
        if self._fleet is None or now < served.check_at:
            return
        served.check_at = now + _CHECK_SECONDS
        for worker in set(served.by_id.values()):
            if await self._fleet.is_alive(worker):
                if not await self._fleet.is_listening(worker):
                    served.check_at = now + _RECHECK_SECONDS  # its lease may expire at any time
                continue
            ids = [id for id, by in served.by_id.items() if by == worker]
            for number, id in enumerate(ids, 1):
                is_last = stream != STANDALONE and number == len(ids)
                error = encode_error(id, InternalError.code, _DIED)
                mark = worker if stream == STANDALONE else ""
                await self.append(session, stream, error, is_last=is_last, waiting=ids[number - 1 :], worker=mark)

    async def _read_one(self, key: str, number: int) -> tuple[_Head, bytes] | None:
        """Return the head and the data of the entry with this number, or None."""
        for found, entry in await self._backend.log.read(key, number - 1, most=1) or ():
            return _decode(entry) if found == number else None
        return None

    async def find_after(self, session: str, stream: str, event: str | None, data: bytes) -> str | None:
        """Return the id of the event after `event`, if it has this data; else None. None stands for the beginning."""
        found = None if event is None else read_event_id(event)
        after = found[1] if found else 0
        for number, entry in await self._backend.log.read(_key(session, stream), after) or ():
            head, found_data = _decode(entry)
            if not head.is_note:
                return event_id(stream, number) if found_data == data else None
        return None

    async def newest(self, session: str, stream: str) -> int:
        """Return the number of the newest event of a stream; 0 if the stream has no events."""
        return await self._backend.log.last(_key(session, stream))

    async def is_whole(self, session: str, stream: str, after: int) -> bool:
        """Return whether all events of a stream after number `after` are still stored."""
        return await self._backend.log.read(_key(session, stream), after, most=1) is not None

    async def forget(self, session: str) -> None:
        """Delete the streams of a session."""
        for key in [_key(session, STANDALONE), *self._keys.get(session, ())]:
            await self._delete(key)

    async def _make_room(self, newest: str) -> None:
        """Drop the events of the streams that were written least recently, while all have more than `replay_bytes`.

        The events of `newest` stay.
        """
        for _ in range(len(self._kept)):
            if self._bytes <= self._limits.replay_bytes or not self._kept:
                return
            key, kept = next(iter(self._kept.items()))
            if key == newest or len(kept.sizes) == kept.notes:
                self._kept.move_to_end(key)
            elif key in self._open or key == _key(kept.session, STANDALONE):
                await self._drop(key, kept)
            else:
                await self._delete(key)

    async def _drop(self, key: str, kept: _StoredStream) -> None:
        """Drop all events of a stream to which events may be added.

        A note replaces them. So the log, which knows that it has dropped entries, tells readers of the gap.
        """
        opened = self._open.get(key)
        note = _Head(is_note=True) if opened is None else opened.note
        await self._store(kept.session, key, note, drops=True)

    def _account(self, session: str, key: str, size: int, *, is_note: bool, drops: bool) -> int:
        """Add the size of a new entry to the totals, and return how many entries of the stream may be stored.

        These are `replay_events` events and the notes between them, or fewer if the entries of this stream alone would
        have more than `replay_bytes`. Then the oldest entries are subtracted from the totals, and the log drops them.
        If `drops` is True, only the new entry may be stored.
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
        before = kept.bytes
        kept.add(size + _EVENT_COST, is_note=is_note)
        while len(kept.sizes) - kept.notes > self._limits.replay_events:
            kept.remove(0)
        most = self._limits.replay_events + kept.notes
        while len(kept.sizes) > 1 and (drops or kept.bytes > self._limits.replay_bytes):
            kept.remove(0)
            most = len(kept.sizes)
        self._bytes += kept.bytes - before
        return most

    def _take_back(self, key: str) -> None:
        """Subtract the size of the newest entry of a stream from the totals, because it was not stored."""
        if (kept := self._kept.get(key)) is not None and kept.sizes:
            before = kept.bytes
            kept.remove(-1)
            self._bytes += kept.bytes - before

    def _discount(self, key: str) -> None:
        """Subtract the size of a stream from the totals, because the stream has expired or is being deleted."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.bytes + _STREAM_COST
            keys = self._keys[kept.session]
            keys.discard(key)
            if not keys:
                del self._keys[kept.session]

    async def _delete(self, key: str) -> None:
        self._open.pop(key, None)
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


def writer_of(stream: str) -> str | None:
    """Return the worker that writes a stream; None for the standalone stream, which all workers write."""
    worker = stream.partition("-")[0]
    return worker if is_worker_id(worker) else None


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, for at most some seconds. Return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _reader(key: str) -> str:
    return f"reader/{key.partition('/')[2]}"


def _key(session: str, stream: str) -> str:
    return f"stream/{session}/{stream}"
