"""Streams: what is kept of them is counted exactly, and given up in order."""

import asyncio
import math
import os
import tracemalloc
from contextlib import aclosing
from typing import Any

import pytest

from weft.backends.memory import MemoryBackend
from weft.limits import Limits
from weft.server.sessions.streams import _EVENT_COST, _STREAM_COST, Streams, read_event_id


def make(**limits: Any) -> tuple[Any, Streams]:
    backend = MemoryBackend()
    return backend, Streams(backend, Limits(**limits))


def kept(backend: Any) -> int:
    return sum(len(entry) for entries in backend.log._logs.values() for _, entry in entries.kept)


def cost(backend: Any) -> int:
    """What is kept, with what keeping it takes."""
    events = sum(len(entries.kept) for entries in backend.log._logs.values())
    return kept(backend) + events * _EVENT_COST + len(backend.log._logs) * _STREAM_COST


async def test_what_is_counted_is_what_is_kept() -> None:
    backend, streams = make(replay_events=5, replay_bytes=20_000)
    for number in range(200):
        await streams.append(f"session {number % 7}", f"{number % 3}", b"x" * (number * 37 % 300))
        assert streams._bytes == cost(backend) <= 20_000
    for number in range(7):
        await streams.forget(f"session {number}")
    assert (streams._bytes, kept(backend), streams._kept, streams._keys) == (0, 0, {}, {})
    assert backend.log._logs == {}


@pytest.mark.security("R12")
async def test_what_is_counted_is_no_less_than_it_takes() -> None:
    _, streams = make(replay_bytes=10**9)
    await streams.append("warm", "up", b"")
    tracemalloc.start()
    try:
        for size, events in ((20, 1), (150, 4), (20, 20), (1000, 4)):
            before, counted = tracemalloc.get_traced_memory()[0], streams._bytes
            for number in range(500):
                for _ in range(events):
                    await streams.append("session", f"{size} {number}", os.urandom(size))
            assert tracemalloc.get_traced_memory()[0] - before <= streams._bytes - counted, (size, events)
    finally:
        tracemalloc.stop()


@pytest.mark.security("R12")
async def test_what_nobody_can_ask_for_any_more_is_forgotten_though_nothing_is_written() -> None:
    backend, streams = make(replay_seconds=0.2)
    for number in range(50):
        await streams.append(f"session {number % 5}", f"{number}", b"x" * 100)
    assert len(backend.log._logs) == 50
    await asyncio.sleep(1.5)
    assert (streams._bytes, streams._kept, streams._keys) == (0, {}, {})
    assert (backend.log._logs, backend.log._expiring._until, backend.log._expiring._due) == ({}, {}, {})
    await streams.append("session", "next", b"x")  # and the timer is set again
    await asyncio.sleep(1.5)
    assert (streams._bytes, backend.log._logs) == (0, {})


async def test_a_stream_that_has_expired_before_it_is_counted_holds_up_nobody() -> None:
    """The clock passes a full second within `keep`, which then forgets the key before the stream is counted."""
    _, streams = make(replay_seconds=0)
    times = iter([100.9, 101.1])
    streams._expiring._clock = lambda: next(times, 102.0)
    await streams.append("s", "1", b"x")
    assert list(streams._kept) == ["stream/s/1"]
    assert not streams._expiring._until
    await streams.append("s", "2", b"x")  # would loop forever
    assert "stream/s/1" not in streams._kept


async def test_an_entry_larger_than_all_may_be_is_kept_until_the_next() -> None:
    backend, streams = make(replay_bytes=100)
    await streams.append("s", "1", b"x" * 1000)
    assert len(backend.log._logs) == 1  # or it could not be read at all
    await streams.append("s", "2", b"y")
    assert list(backend.log._logs) == ["stream/s/2"]


@pytest.mark.security("R12")
async def test_what_is_kept_of_open_streams_without_events_is_counted() -> None:
    backend, streams = make(replay_events=5, replay_bytes=10_000)
    names = [f"open {number}" for number in range(4)]
    for number, name in enumerate(names):
        streams.open("s", name, [number])
    for number in range(100):
        await streams.append("s", names[number * 7 % 4], b"x" * (number * 37 % 300))
        assert streams._bytes == cost(backend) <= 10_000
        assert len(backend.log._logs) == min(number + 1, 4)
    for name in names:
        await streams.append("s", name, b"", is_last=True)
    assert streams._open == {}
    await streams.append("s", "other", b"x" * 10_000)
    assert list(backend.log._logs) == ["stream/s/other"]


async def test_if_there_is_no_room_for_all_open_streams_the_newest_has_its_event() -> None:
    backend, streams = make(replay_bytes=100)
    for name in ("1", "2", "3", "1"):
        streams.open("s", name, [])
        await streams.append("s", name, b"event")
    entries = {key: [entry.partition(b"\n")[2] for _, entry in one.kept] for key, one in backend.log._logs.items()}
    assert entries == {"stream/s/1": [b"event"], "stream/s/2": [b""], "stream/s/3": [b""]}


async def test_a_note_takes_the_place_of_no_event() -> None:
    backend, streams = make(replay_events=3, replay_bytes=5_000)
    streams.open("s", "1", [7])
    last = [read_event_id(await streams.append("s", "1", b"dropped")) for _ in range(3)][-1]
    assert last is not None
    await streams.append("s", "2", b"x" * 3_000)
    for number in range(3):
        await streams.append("s", "1", b"%d" % number)
    async with aclosing(streams.follow("s", "1", last[1], wake=asyncio.Event())) as events:
        assert [(await anext(events)).data for _ in range(3)] == [b"0", b"1", b"2"]  # type: ignore[union-attr]
    await streams.append("s", "1", b"3")
    assert not await streams.is_whole("s", "1", last[1])  # 0 is dropped, and the note before it
    assert [entry.partition(b"\n")[2] for _, entry in backend.log._logs["stream/s/1"].kept] == [b"1", b"2", b"3"]


async def test_a_note_is_not_taken_for_an_event_that_is_stored_again() -> None:
    _, streams = make(replay_bytes=3_000)
    streams.open("s", "1", [7])
    before = await streams.append("s", "1", b"event")
    await streams.append("s", "2", b"x" * 2_000)
    assert await streams.find_after("s", "1", before, b"") is None
    empty = await streams.append("s", "1", b"")
    assert await streams.find_after("s", "1", before, b"") == empty


# Streams whose requests are not answered are kept.


async def test_a_quiet_stream_is_kept_until_its_last_event() -> None:
    backend, streams = make(replay_seconds=1.5, replay_events=3)
    streams.open("s", "1", [7])
    first = read_event_id(await streams.append("s", "1", b"0"))
    assert first is not None
    for number in range(1, 4):
        await streams.append("s", "1", b"%d" % number)
    await asyncio.sleep(3)
    entries = backend.log._logs["stream/s/1"].kept
    assert [entry.partition(b"\n")[2] for _, entry in entries[:3]] == [b"1", b"2", b"3"]
    assert len(entries) > 4  # notes
    assert streams._bytes == cost(backend)
    async with aclosing(streams.follow("s", "1", first[1], wake=asyncio.Event())) as events:
        assert [(await anext(events)).data for _ in range(3)] == [b"1", b"2", b"3"]  # type: ignore[union-attr]
        await streams.append("s", "1", b"4", is_last=True)
        assert (await anext(events)).data == b"4"  # type: ignore[union-attr]
    assert len(entries) - streams._kept["stream/s/1"].notes == 3
    assert streams._bytes == cost(backend)
    await asyncio.sleep(4)
    assert (streams._bytes, streams._kept, backend.log._logs, streams._renewing_in) == (0, {}, {}, None)


async def test_a_stream_that_is_closed_without_a_last_event_expires() -> None:
    backend, streams = make(replay_seconds=1.5)
    streams.open("s", "1", [7])
    await streams.append("s", "1", b"event")
    await asyncio.sleep(2.5)
    assert await streams.newest("s", "1")
    streams.close("s", "1")
    await asyncio.sleep(4)
    assert (streams._open, backend.log._logs) == ({}, {})


async def test_a_stream_without_events_is_not_stored() -> None:
    backend, streams = make(replay_seconds=0.3)
    streams.open("s", "1", [7])
    await asyncio.sleep(0.5)
    assert backend.log._logs == {}


async def test_a_renewal_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, streams = make(replay_seconds=1.5)
    for name in ("1", "2"):
        streams.open("s", name, [7])
        await streams.append("s", name, b"event")
    append, failures = backend.log.append, ["stream/s/1"]

    async def fail_once(key: str, *args: Any, **options: Any) -> Any:
        if key in failures:
            failures.remove(key)
            raise ConnectionError("the log is down")
        return await append(key, *args, **options)

    monkeypatch.setattr(backend.log, "append", fail_once)
    await asyncio.sleep(3)
    assert [len(entries.kept) > 1 for entries in backend.log._logs.values()] == [True, True]
    assert [record.getMessage() for record in caplog.records] == [
        "The log of a stream was not renewed: the log is down"
    ]
    assert streams._bytes == cost(backend)


async def test_calls_that_end_quickly_have_one_timer_and_no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, streams = make()
    timers: list[float] = []
    later = asyncio.get_running_loop().call_later
    monkeypatch.setattr(
        asyncio.get_running_loop(), "call_later", lambda delay, *rest: timers.append(delay) or later(delay, *rest)
    )
    for number in range(100):
        streams.open("s", f"{number}", [number])
        await streams.append("s", f"{number}", b"event")
        await streams.append("s", f"{number}", b"answer", is_last=True)
    assert timers.count(streams._renewal_seconds) == 1
    assert {len(entries.kept) for entries in backend.log._logs.values()} == {2}


@pytest.mark.parametrize("seconds", [0, math.inf])
async def test_where_nothing_expires_or_all_at_once_there_are_no_renewals(seconds: float) -> None:
    _, streams = make(replay_seconds=seconds)
    streams.open("s", "1", [7])
    assert streams._renewing_in is None


def test_streams_are_renewed_in_the_event_loop_of_their_calls() -> None:
    backend, streams = make(replay_seconds=1.5)

    async def call(name: str, seconds: float) -> None:
        streams.open("s", name, [7])
        await streams.append("s", name, b"event")
        await asyncio.sleep(seconds)

    asyncio.run(call("1", 0))  # its timer is gone with its loop
    asyncio.run(call("2", 2.5))
    assert len(backend.log._logs["stream/s/2"].kept) > 1


async def test_streams_of_two_workers_are_kept_by_number() -> None:
    backend, one = make(replay_events=4)
    two = Streams(backend, Limits(replay_events=4))
    for number in range(3):
        await one.append("s", "0", b"one %d" % number)
    await two.append("s", "0", b"two")
    entries = await backend.log.read("stream/s/0", 0)
    assert [entry.partition(b"\n")[2] for _, entry in entries] == [b"one 0", b"one 1", b"one 2", b"two"]


async def test_a_reader_hears_what_comes_and_leaves_nothing() -> None:
    backend, streams = make()
    news = asyncio.Event()
    async with aclosing(streams.follow("s", "1", 1, wake=news)) as events:
        coming = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        first = await streams.append("s", "1", b"one")
        assert await coming == (first, b"one", False)
        assert read_event_id(first) == ("1", await streams.newest("s", "1"))
        last = await streams.append("s", "1", b"two", is_last=True)
        assert await anext(events) == (last, b"two", True)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert (backend.bus._topics, streams._readers) == ({}, {})


async def test_a_reader_that_is_too_far_behind_is_not_shown_the_rest() -> None:
    _, streams = make(replay_events=3)
    first = read_event_id(await streams.append("s", "1", b"0"))
    assert first is not None
    for _ in range(3):
        await streams.append("s", "1", b"more")
    assert await streams.is_whole("s", "1", first[1])
    await streams.append("s", "1", b"more")
    assert not await streams.is_whole("s", "1", first[1])
    assert [event async for event in streams.follow("s", "1", first[1], wake=asyncio.Event())] == []


async def test_a_reader_gets_signs_of_life() -> None:
    _, streams = make(keep_alive_seconds=0.01)
    async with aclosing(streams.follow("s", "1", 0, wake=asyncio.Event())) as events:
        assert [await anext(events), await anext(events)] == [None, None]


async def test_a_reader_that_could_not_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, streams = make(replay_events=4)

    async def fail(*_: Any) -> Any:
        raise ConnectionError("the bus is down")

    monkeypatch.setattr(backend.bus, "subscribe", fail)
    with pytest.raises(ConnectionError):
        await anext(streams.follow("s", "1", 0, wake=asyncio.Event()))
    async with asyncio.timeout(30):
        for _ in range(10):
            await streams.append("s", "1", b"event")
            await streams.room("s", "1")


class FakeFleet:
    is_alone = False


async def test_the_position_of_a_reader_elsewhere_is_compared_without_reading_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = MemoryBackend()
    streams: Any = Streams(backend, Limits(replay_events=16), FakeFleet())  # type: ignore[arg-type]

    async def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("events are read")

    monkeypatch.setattr(backend.log, "read", fail)
    numbers = [read_event_id(await streams.append("s", "1", b"x"))[1] for _ in range(12)]  # type: ignore[index]
    streams._kept["stream/s/1"].unchecked = 100
    await backend.store.put("reader/s/1", b"%d mark" % numbers[6], ttl=60)
    waiting = asyncio.create_task(streams.room("s", "1"))
    await asyncio.sleep(0.1)
    assert not waiting.done()  # five events are not read, and half of `most_unread` is four
    await backend.store.put("reader/s/1", b"%d mark" % numbers[8], ttl=60)
    await asyncio.wait_for(waiting, 5)


async def test_a_reader_gets_all_pages_in_order_and_its_writer_waits_meanwhile() -> None:
    _, streams = make(replay_events=100)
    for number in range(100):
        await streams.append("s", "1", b"%d" % number)
    async with aclosing(streams.follow("s", "1", 0, wake=asyncio.Event())) as events:
        seen = [(await anext(events)).data for _ in range(30)]  # type: ignore[union-attr]
        writing = asyncio.create_task(streams.room("s", "1"))
        await asyncio.sleep(0.01)
        assert not writing.done()  # 70 are unread
        seen += [(await anext(events)).data for _ in range(70)]  # type: ignore[union-attr]
        assert seen == [b"%d" % number for number in range(100)]
        await asyncio.wait_for(writing, 5)
