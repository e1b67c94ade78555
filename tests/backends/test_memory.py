"""The contract of a Backend, as the one in memory keeps it."""

import asyncio
import math
from typing import Any

import pytest

from weft.backends.memory import MemoryBackend


class Clock:
    """Time as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(clock: Clock) -> MemoryBackend:
    return MemoryBackend(clock)


def held(backend: Any) -> tuple[int, int, int]:
    """Entries of the store, the log and the bus that take up memory, asked for or not."""
    return len(backend.store._values), len(backend.log._logs), len(backend.bus._topics)


async def test_a_value_is_kept_until_its_time_is_over(backend: MemoryBackend, clock: Clock) -> None:
    store = backend.store
    assert await store.get("a") is None
    await store.put("a", b"1", ttl=10)
    await store.put("a", b"2", ttl=10)
    clock.now += 9.9
    assert await store.get("a") == b"2"
    clock.now += 0.1
    assert await store.get("a") is None
    assert held(backend) == (0, 0, 0)


async def test_a_touch_gives_a_value_more_time_but_does_not_bring_it_back(backend: MemoryBackend, clock: Clock) -> None:
    store = backend.store
    await store.put("a", b"1", ttl=10)
    clock.now += 9
    assert await store.touch("a", ttl=10)
    clock.now += 9
    assert await store.get("a") == b"1"
    clock.now += 1
    assert not await store.touch("a", ttl=10)
    assert await store.get("a") is None
    assert not await store.touch("never", ttl=10)


async def test_a_swap_needs_what_is_expected(backend: MemoryBackend, clock: Clock) -> None:
    store = backend.store
    assert not await store.swap("a", b"0", b"1", ttl=10)
    assert await store.swap("a", None, b"1", ttl=10)
    assert not await store.swap("a", None, b"2", ttl=10)
    assert not await store.swap("a", b"0", b"2", ttl=10)
    assert await store.get("a") == b"1"
    assert await store.swap("a", b"1", b"2", ttl=20)
    clock.now += 15
    assert await store.get("a") == b"2"
    clock.now += 5
    assert await store.swap("a", None, b"3", ttl=1)  # what is over is not there


async def test_a_deletion_says_whether_there_was_anything(backend: MemoryBackend, clock: Clock) -> None:
    store = backend.store
    assert not await store.delete("a")
    await store.put("a", b"1", ttl=10)
    assert await store.delete("a")
    assert await store.get("a") is None
    await store.put("a", b"1", ttl=10)
    clock.now += 10
    assert not await store.delete("a")
    assert held(backend) == (0, 0, 0)


async def test_what_is_over_does_not_pile_up_behind_what_lasts(backend: MemoryBackend, clock: Clock) -> None:
    for number in range(50):
        await backend.store.put(f"long {number}", b"", ttl=10_000)
    for number in range(2000):
        await backend.store.put(f"short {number}", b"", ttl=1)
        await backend.log.append(f"short {number}", b"", ttl=1, most=5)
        clock.now += 0.1
    values, logs, _ = held(backend)
    assert 50 <= values < 50 + 100
    assert logs < 100


async def test_entries_are_numbered_upwards_and_read_after_a_number(backend: MemoryBackend) -> None:
    log = backend.log
    numbers = [await log.append("a", b"%d" % n, ttl=10, most=100) for n in range(5)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 1
    assert await log.last("a") == numbers[-1]
    assert list(await log.read("a", 0) or ()) == [(number, b"%d" % n) for n, number in enumerate(numbers)]
    assert list(await log.read("a", numbers[2]) or ()) == [(numbers[3], b"3"), (numbers[4], b"4")]
    assert list(await log.read("a", numbers[4]) or ()) == []
    assert list(await log.read("b", 0) or ()) == []
    assert await log.last("b") == 0


async def test_only_the_last_entries_are_kept_and_a_reader_behind_them_is_told(backend: MemoryBackend) -> None:
    log = backend.log
    numbers = [await log.append("a", b"%d" % n, ttl=10, most=3) for n in range(5)]
    assert await log.read("a", numbers[0]) is None  # entry 1 is missing
    assert await log.read("a", 1) is None  # 1 is before all entries there ever were
    assert [entry for _, entry in await log.read("a", numbers[1]) or ()] == [b"2", b"3", b"4"]
    assert [entry for _, entry in await log.read("a", 0) or ()] == [b"2", b"3", b"4"]
    await log.append("a", b"5", ttl=10, most=1)
    assert [entry for _, entry in await log.read("a", 0) or ()] == [b"5"]


async def test_a_log_is_over_when_nothing_was_added_for_long_and_its_numbers_still_grow(
    backend: MemoryBackend, clock: Clock
) -> None:
    log = backend.log
    first = await log.append("a", b"1", ttl=10, most=3)
    clock.now += 9
    second = await log.append("a", b"2", ttl=10, most=3)
    clock.now += 9
    assert len(await log.read("a", 0) or ()) == 2
    clock.now += 1
    assert (list(await log.read("a", 0) or ()), await log.last("a")) == ([], 0)
    assert held(backend) == (0, 0, 0)
    third = await log.append("a", b"3", ttl=10, most=3)
    assert first < second < third
    await log.delete("a")
    assert list(await log.read("a", 0) or ()) == []
    clock.now += 0.001
    assert await log.append("a", b"4", ttl=10, most=3) > third


async def test_the_bus_tells_those_who_listen_and_keeps_nothing(backend: MemoryBackend) -> None:
    bus, heard = backend.bus, []
    await bus.publish("a", b"nobody")
    quit_one = await bus.subscribe("a", heard.append)
    quit_two = await bus.subscribe("a", heard.append)  # the same function, twice
    quit_other = await bus.subscribe("b", lambda message: heard.append(b"b " + message))
    await bus.publish("a", b"1")
    assert heard == [b"1", b"1"]
    await quit_one()
    await quit_one()
    await bus.publish("a", b"2")
    await bus.publish("b", b"3")
    assert heard == [b"1", b"1", b"2", b"b 3"]
    await quit_two()
    await quit_other()
    assert held(backend) == (0, 0, 0)


async def test_whoever_quits_while_being_told_disturbs_nobody(backend: MemoryBackend) -> None:
    bus, heard = backend.bus, []
    quits: list[Any] = []

    def hear(message: bytes) -> None:
        heard.append(message)
        for quit_one in quits:
            with pytest.raises(StopIteration):  # it has nothing to wait for
                quit_one().send(None)

    quits.extend([await bus.subscribe("a", hear), await bus.subscribe("a", hear)])
    await bus.publish("a", b"1")
    assert heard == [b"1", b"1"]
    await bus.publish("a", b"2")
    assert heard == [b"1", b"1"]


async def test_what_ends_sooner_is_forgotten_sooner_though_it_came_later() -> None:
    """By a timer: nothing is asked for or written meanwhile."""
    backend = MemoryBackend()
    await backend.store.put("long", b"1", ttl=3600)
    await backend.store.put("short", b"2", ttl=0.2)
    assert held(backend)[0] == 2
    async with asyncio.timeout(5):
        while held(backend)[0] == 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    assert await backend.store.get("long") == b"1"


async def test_permits_that_are_kept_for_longer_do_not_disturb_the_others(backend: MemoryBackend, clock: Clock) -> None:
    async def take(key: str) -> float:
        return await backend.store.take(key, count=2, seconds=10)

    assert await take("a") == 0  # may be forgotten after 10 s
    clock.now += 1
    assert await take("b") == 0  # after 11 s
    clock.now += 8.5
    assert [await take("a") for _ in range(2)] == [0, 0]  # not before 19.5 s
    clock.now += 2
    assert await take("c") == 0  # now those that are over are forgotten
    assert await take("a") > 0
    clock.now += 20
    assert await take("d") == 0
    assert list(backend.store._permits) == ["d"]  # type: ignore[attr-defined] - of the memory one


def test_what_is_over_is_forgotten_also_in_another_event_loop() -> None:
    backend = MemoryBackend()
    asyncio.run(backend.store.put("first", b"1", ttl=0.2))

    async def go_on() -> None:
        await backend.store.put("second", b"2", ttl=3600)
        async with asyncio.timeout(5):
            while held(backend)[0] == 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)

    asyncio.run(go_on())
    assert held(backend)[0] == 1


@pytest.mark.security("R12")
@pytest.mark.parametrize("seconds", [math.nan, "60", None])
async def test_a_time_to_live_that_is_no_number_changes_nothing(seconds: Any) -> None:
    backend = MemoryBackend()
    for call in (
        lambda: backend.store.put("key", b"1", ttl=seconds),
        lambda: backend.store.take("permits", count=1, seconds=seconds),
        lambda: backend.log.append("log", b"1", ttl=seconds, most=1),
        lambda: backend.log.append("log", b"1", ttl=60, most=0),
        lambda: backend.sets.add("set", "name", ttl=seconds),
    ):
        with pytest.raises((ValueError, TypeError)):
            await call()
    assert await backend.store.get("key") is None
    assert await backend.sets.names("set") == []
    await backend.store.put("key", b"2", ttl=60)
    with pytest.raises((ValueError, TypeError)):
        await backend.store.touch("key", ttl=seconds)
    assert await backend.store.get("key") == b"2"
    assert await backend.store.take("permits", count=1, seconds=60) == 0
    assert await backend.log.read("log", 0) == ()
    assert await backend.log.append("log", b"2", ttl=60, most=1) > 0
    assert await backend.sets.add("set", "name", ttl=60)
