"""Test that a backend does everything that the interface in `weft.backends` says.

Subclass BackendContract in a test module of yours, and run pytest:

    from weft.testing import BackendContract

    class TestMyBackend(BackendContract):
        async def make_backend(self):
            return MyBackend("address of the backend")

The tests are plain functions, which run an event loop themselves, so pytest needs no plugin and no configuration. The
keys are random, so the backend may contain other entries. If hypothesis is installed, one test makes random concurrent
calls and compares the results with a model.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from weft.backends import Backend

__all__ = ["BackendContract"]

_TEST_SECONDS = 240.0  # timeout of one test
_WAIT_SECONDS = 30.0  # how long a test waits for a message of the bus
# Times to live of entries that must expire, and times in which permits come back. A test repeats its steps with the
# next of them if the steps were not done in time: the backend is slow, or the machine was busy.
_TIMES = (0.3, 3.0, 20.0)
_LATE = 0.1  # how much later than its time to live an entry may be returned
_LONG = 2 * _TEST_SECONDS  # time to live of entries that must not expire during a test
_WRITERS = 6  # concurrent writers on each of the two backends
_WRITES = 8  # writes of each writer

_T = TypeVar("_T")
_AsyncTest = Callable[["BackendContract", Backend, Backend], Awaitable[None]]


def _test(test: _AsyncTest) -> Callable[[BackendContract], None]:
    """Return a plain function for pytest that runs an asynchronous test with two backends."""

    def run(self: BackendContract) -> None:
        asyncio.run(self.run_test(test))

    # Not functools.wraps: pytest would take the parameters of the wrapped function for fixtures.
    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return run


class BackendContract:
    """Tests of a backend. Subclasses define `make_backend`, and have a name that begins with `Test`."""

    async def make_backend(self) -> Backend:
        """Return a backend that is not started yet.

        It is called several times in a test, like several workers. All backends of one test must see the same data and
        the messages of each other. Return the same object each time if there can be only one.
        """
        raise NotImplementedError("Define `async def make_backend(self)` in the subclass.")

    async def run_test(self, test: _AsyncTest) -> None:
        """Run one test with two started backends, and close them afterwards."""
        one, two = await self.make_backend(), await self.make_backend()
        async with asyncio.timeout(_TEST_SECONDS):
            await one.start()
            try:
                await two.start()
                try:
                    await test(self, one, two)
                finally:
                    await two.close()
            finally:
                await one.close()

    @_test
    async def test_all_backends_of_a_test_see_the_same_data(self, one: Backend, two: Backend) -> None:
        """Check that `make_backend` returns backends that share their data. All other tests need this."""
        key = _key()
        await one.store.put(key, b"1", ttl=_LONG)
        _same(
            await two.store.get(key),
            b"1",
            "make_backend is called several times in a test, like several workers, and each backend must see the same "
            "data. Return the same object each time if there can be only one",
        )

    # --- Store

    @_test
    async def test_store_returns_what_was_put(self, one: Backend, two: Backend) -> None:
        """Check `Store.get` and `Store.put`."""
        key = _key()
        _same(await one.store.get(key), None, "Store.get returns None if the key has no value")
        for value in (b"1", b"2", b"", bytes(range(256)), b"x" * 1_000_000):
            await one.store.put(key, value, ttl=_LONG)
            for backend in (one, two):
                _same(await backend.store.get(key), value, "Store.get returns the value that was put last")
        await one.store.put(key, b"forever", ttl=math.inf)
        _same(await two.store.get(key), b"forever", "Store.put takes an infinite ttl")

    @_test
    async def test_store_keeps_keys_apart(self, one: Backend, two: Backend) -> None:
        """Check that keys with similar names and unusual characters have values of their own."""
        group = secrets.token_hex(8)
        keys = [
            f"a/{group}", f"a/{group}/", f"a/{group}/1", f"a/{group}/1/2", f"b/{group}/1", f"a/{{{group}}}/1",
            f"a/{group}}}/1", f"{{a}}/{group}/1", f"{{a/{group}/1", f"a//{group}", f"//{group}", group, f"{group}/",
            f"%7Ba/{group}/1", f"a/%7B{group}/1", f"a/{group} x\n\0*?[é🙂]", f"a/{group}/{'x' * 1000}",
        ]  # fmt: skip
        for number, key in enumerate(keys):
            await one.store.put(key, b"%d" % number, ttl=_LONG)
        values = [await two.store.get(key) for key in keys]
        _same(values, [b"%d" % number for number in range(len(keys))], "each key has a value of its own")
        for key in keys:
            _same(await one.store.delete(key), True, "each key has a value of its own")

    @_test
    async def test_store_swaps_only_what_is_expected(self, one: Backend, two: Backend) -> None:
        """Check `Store.swap`."""
        key, store = _key(), one.store
        other = "Store.swap stores nothing and returns False if the current value is not the expected one"
        _same(await store.swap(key, b"0", b"1", ttl=_LONG), False, other)
        _same(await store.swap(key, b"", b"1", ttl=_LONG), False, f"{other} (b'' is not the same as no value)")
        _same(await store.get(key), None, other)
        _same(await store.swap(key, None, b"", ttl=_LONG), True, "Store.swap(key, None, …) stores the first value")
        _same(await store.swap(key, None, b"2", ttl=_LONG), False, f"{other} (None: there is no value)")
        _same(await store.swap(key, b"0", b"2", ttl=_LONG), False, other)
        _same(await two.store.get(key), b"", other)
        stored = "Store.swap stores the value and returns True if the current value is the expected one"
        _same(await two.store.swap(key, b"", b"2", ttl=_LONG), True, stored)
        _same(await store.swap(key, b"2", b"2", ttl=_LONG), True, f"{stored} (also if both are the same)")
        _same(await store.get(key), b"2", stored)

    @_test
    async def test_store_deletes_values(self, one: Backend, two: Backend) -> None:
        """Check `Store.delete`."""
        key = _key()
        _same(await one.store.delete(key), False, "Store.delete returns False if there was no value")
        await one.store.put(key, b"1", ttl=_LONG)
        _same(await two.store.delete(key), True, "Store.delete returns True if there was a value")
        _same(await one.store.get(key), None, "Store.delete deletes the value")
        _same(await one.store.touch(key, ttl=_LONG), False, "Store.touch returns False if there is no value")
        _same(await one.store.swap(key, None, b"2", ttl=_LONG), True, "there is no value after Store.delete")

    @_test
    async def test_store_forgets_expired_values(self, one: Backend, two: Backend) -> None:
        """Check the time to live of values."""

        async def write(ttl: float) -> tuple[list[str], bool, list[bytes | None]]:
            put, touched, shortened, swapped, kept = keys = [_key() for _ in range(5)]
            for key in (put, touched, kept):
                await one.store.put(key, b"1", ttl=ttl)
            await one.store.put(shortened, b"1", ttl=_LONG)
            _same(await one.store.touch(shortened, ttl=ttl), True, "Store.touch returns True if there is a value")
            _same(await one.store.swap(swapped, None, b"1", ttl=ttl), True, "Store.swap stores the first value")
            is_touched = await two.store.touch(touched, ttl=_LONG)
            await one.store.put(kept, b"2", ttl=_LONG)
            return keys, is_touched, [await two.store.get(key) for key in (put, shortened, swapped)]

        ttl, ((put, touched, shortened, swapped, kept), is_touched, values) = await _in_time(write)
        _same(is_touched, True, "Store.touch returns True if there is a value")
        _same(values, [b"1"] * 3, "a value is returned until its time to live is over")
        await asyncio.sleep(ttl + _LATE)
        for key, rule in (
            (put, "Store.get returns None if the value has expired"),
            (shortened, "after Store.touch, a value expires at the new time"),
            (swapped, "the value of Store.swap expires after its ttl"),
        ):
            _same(await two.store.get(key), None, rule)
            _same(await two.store.touch(key, ttl=_LONG), False, "Store.touch does not restore an expired value")
            _same(await two.store.delete(key), False, "Store.delete returns False if the value has expired")
        _same(await one.store.get(touched), b"1", "after Store.touch, a value expires at the new time")
        _same(await one.store.get(kept), b"2", "Store.put replaces the time to live of the old value")
        _same(await one.store.swap(put, None, b"2", ttl=_LONG), True, "an expired value is no value for Store.swap")

    @_test
    async def test_store_loses_no_concurrent_swap(self, one: Backend, two: Backend) -> None:
        """Check that concurrent writers can count with `Store.swap`."""
        key = _key()
        first = await asyncio.gather(
            *(backend.store.swap(key, None, b"0", ttl=_LONG) for backend in (one, two) for _ in range(_WRITERS))
        )
        _same(sum(first), 1, "only one of several concurrent calls of Store.swap(key, None, …) succeeds")

        async def count(backend: Backend) -> None:
            for _ in range(_WRITES):
                while (value := await backend.store.get(key)) is not None:
                    if await backend.store.swap(key, value, b"%d" % (int(value) + 1), ttl=_LONG):
                        break

        await asyncio.gather(*(count(backend) for backend in (one, two) for _ in range(_WRITERS)))
        expected = b"%d" % (2 * _WRITERS * _WRITES)
        _same(await one.store.get(key), expected, "no concurrent Store.swap is lost, and none is done twice")

    @_test
    async def test_permits_come_back_evenly(self, one: Backend, two: Backend) -> None:
        """Check `Store.take`."""
        count = 5

        async def take_all(permit_seconds: float) -> tuple[str, float]:
            key, seconds = _key(), count * permit_seconds
            backends = (one, two, one, two, one)
            waits = [await backend.store.take(key, count=count, seconds=seconds) for backend in backends]
            _same(waits, [0] * count, f"Store.take returns 0 for the first {count} of {count} permits")
            return key, await two.store.take(key, count=count, seconds=seconds)

        permit_seconds, (key, wait) = await _in_time(take_all)
        _true(wait > 0, "Store.take returns the seconds to wait if all permits are taken", wait)
        _true(wait <= 2 * permit_seconds, "Store.take returns the seconds until the next permit comes back", wait)
        _same(await one.store.take(_key(), count=1, seconds=_LONG), 0, "the permits of each key are separate")
        await asyncio.sleep(wait)
        again = await one.store.take(key, count=count, seconds=count * permit_seconds)
        _same(again, 0, "after that wait, Store.take returns 0")

    @_test
    async def test_permits_come_back_while_others_try(self, one: Backend, two: Backend) -> None:
        """Check that as many permits come back as `Store.take` says, though it is called all the time."""
        count = 5
        for seconds in _TIMES:
            key, taken, slowest = _key(), 0, 0.0
            began = now = time.monotonic()
            while now - began < seconds:
                wait = await (one if taken % 2 else two).store.take(key, count=count, seconds=seconds)
                taken += not wait
                _true(0 <= wait <= seconds, "Store.take never returns a longer wait than `seconds`", wait)
                await asyncio.sleep(0.005)
                before, now = now, time.monotonic()
                slowest = max(slowest, now - before)
            rule, got = f"{count} permits come back in {seconds:g} s", f"{taken} were taken"
            _true(taken <= count + 1 + (now - began) / seconds * count, rule, got)
            if slowest < seconds / count / 2:  # otherwise permits may have come back that were not taken
                _true(taken >= 2 * count - 2, rule, got)
                return
        _skip_slow()

    @_test
    async def test_permits_are_not_taken_twice(self, one: Backend, two: Backend) -> None:
        """Check concurrent calls of `Store.take`."""
        key, count = _key(), 7
        backends = [one, two] * (2 * count)
        waits = await asyncio.gather(*(backend.store.take(key, count=count, seconds=86_400) for backend in backends))
        _same(waits.count(0), count, f"concurrent calls of Store.take get {count} of {count} permits")

    # --- Log

    @_test
    async def test_log_numbers_entries_upwards(self, one: Backend, two: Backend) -> None:
        """Check `Log.append`, `Log.read` and `Log.last`."""
        key = _key()
        _same(list(await one.log.read(key, 0) or ()), [], "Log.read returns nothing if there are no entries")
        _same(await one.log.last(key), 0, "Log.last returns 0 if there is no entry")
        entries = [b"0", b"", bytes(range(256)), b"x" * 100_000, b"4"]
        numbers = [await one.log.append(key, entry, ttl=_LONG, most=100) for entry in entries]
        _true(numbers == sorted(set(numbers)), "a new entry has a greater number than all earlier entries", numbers)
        _true(numbers[0] >= 2 and numbers[-1] < 10**15, "numbers begin at 2, and have at most 15 digits", numbers)
        _same(await two.log.last(key), numbers[-1], "Log.last returns the number of the newest entry")
        expected = list(zip(numbers, entries, strict=True))
        read = "Log.read returns the entries with numbers above `after`"
        _same(list(await two.log.read(key, 0) or ()), expected, f"{read}, all of them if it is 0")
        _same(list(await two.log.read(key, 1) or ()), expected, f"{read} (1 is before the first)")
        _same(list(await two.log.read(key, numbers[0] - 1) or ()), expected, f"{read} (one below the first)")
        _same(list(await two.log.read(key, numbers[2]) or ()), expected[3:], read)
        _same(list(await two.log.read(key, numbers[4]) or ()), [], f"{read} (there is none)")
        _same(list(await two.log.read(key, numbers[4] + 10**6) or ()), [], f"{read} (there is none)")
        _same(list(await two.log.read(_key(), numbers[0]) or ()), [], "the entries of each key are separate")
        first = "Log.read with `most` returns the first `most` of the entries"
        _same(list(await two.log.read(key, 0, most=2) or ()), expected[:2], first)
        _same(list(await two.log.read(key, numbers[1], most=1) or ()), expected[2:3], first)
        _same(list(await two.log.read(key, numbers[2], most=100) or ()), expected[3:], f"{first} (there are fewer)")
        _same(list(await two.log.read(key, numbers[4], most=1) or ()), [], f"{first} (there is none)")
        await one.log.append(key, b"forever", ttl=math.inf, most=100)
        _same(len(await two.log.read(key, 0) or ()), 6, "Log.append takes an infinite ttl")

    @_test
    async def test_log_keeps_the_last_entries_and_tells_gaps(self, one: Backend, two: Backend) -> None:
        """Check `most` of `Log.append`, and the gaps that `Log.read` must tell."""
        key = _key()
        numbers = [await one.log.append(key, b"%d" % number, ttl=_LONG, most=3) for number in range(5)]
        kept = [(numbers[number], b"%d" % number) for number in (2, 3, 4)]
        gap = "Log.read returns None if an entry above `after` was dropped"
        _same(await two.log.read(key, numbers[0]), None, gap)
        _same(await two.log.read(key, numbers[1] - 1), None, gap)
        _same(await two.log.read(key, 1), None, f"{gap} (1 is before all entries)")
        _same(await two.log.read(key, numbers[0], most=1), None, f"{gap}, also with `most`")
        no_gap = "Log.read returns the entries if no entry above `after` was dropped"
        _same(list(await two.log.read(key, 0) or ()), kept, "Log.read(key, 0) returns all entries that still exist")
        _same(list(await two.log.read(key, numbers[1]) or ()), kept, no_gap)
        _same(list(await two.log.read(key, numbers[1], most=1) or ()), kept[:1], f"{no_gap}, also with `most`")
        _same(list(await two.log.read(key, 0, most=1) or ()), kept[:1], "Log.read(key, 0, most=1) returns the oldest")
        _same(list(await two.log.read(key, numbers[2]) or ()), kept[1:], no_gap)
        _same(list(await two.log.read(key, numbers[4]) or ()), [], no_gap)
        last = await two.log.append(key, b"5", ttl=_LONG, most=1)
        _same(list(await one.log.read(key, 0) or ()), [(last, b"5")], "only the last `most` entries are kept")
        _same(await one.log.read(key, numbers[3]), None, gap)
        _same(list(await one.log.read(key, numbers[4]) or ()), [(last, b"5")], no_gap)

    @_test
    async def test_log_deletes_entries(self, one: Backend, two: Backend) -> None:
        """Check `Log.delete`."""
        key = _key()
        await one.log.delete(key)
        number = await one.log.append(key, b"1", ttl=_LONG, most=1)
        await one.log.append(key, b"2", ttl=_LONG, most=1)
        await two.log.delete(key)
        _same(list(await one.log.read(key, 0) or ()), [], "Log.delete deletes all entries")
        _same(list(await one.log.read(key, number) or ()), [], "there is no gap after Log.delete")
        _same(await one.log.last(key), 0, "Log.last returns 0 after Log.delete")

    @_test
    async def test_log_expires_as_a_whole(self, one: Backend, two: Backend) -> None:
        """Check the time to live of a log."""

        async def write(ttl: float) -> tuple[list[str], list[int], list[tuple[int, bytes]]]:
            key, prolonged = keys = [_key(), _key()]
            first = await one.log.append(key, b"1", ttl=ttl, most=1)
            await one.log.append(prolonged, b"1", ttl=ttl, most=1)
            second = await one.log.append(key, b"2", ttl=ttl, most=1)
            await one.log.append(prolonged, b"2", ttl=_LONG, most=5)
            return keys, [first, second], list(await two.log.read(key, 0) or ())

        ttl, ((key, prolonged), (first, second), entries) = await _in_time(write)
        _same(entries, [(second, b"2")], "entries are returned until the time to live is over")
        await asyncio.sleep(ttl + _LATE)
        _same(list(await two.log.read(key, 0) or ()), [], "the list expires `ttl` seconds after the last Log.append")
        _same(list(await two.log.read(key, first) or ()), [], "there is no gap after the list has expired")
        _same(await two.log.last(key), 0, "Log.last returns 0 after the list has expired")
        whole = [entry for _, entry in await two.log.read(prolonged, 0) or ()]
        _same(whole, [b"1", b"2"], "the whole list expires `ttl` seconds after the last Log.append")
        third = await two.log.append(key, b"3", ttl=_LONG, most=1)
        _true(third > second, "a new entry has a greater number than all entries that have expired", (second, third))
        _same(list(await one.log.read(key, second) or ()), [(third, b"3")], "there is no gap after a list has expired")
        _same(list(await one.log.read(key, 1) or ()), [(third, b"3")], "there is no gap after a list has expired")

    @_test
    async def test_log_has_one_order_for_all_writers(self, one: Backend, two: Backend) -> None:
        """Check concurrent calls of `Log.append`."""
        key = _key()

        async def write(backend: Backend, writer: int) -> list[tuple[int, bytes]]:
            entries = [b"%d of %d" % (number, writer) for number in range(_WRITES)]
            return [(await backend.log.append(key, entry, ttl=_LONG, most=1000), entry) for entry in entries]

        written = await asyncio.gather(
            *(write((one, two)[writer % 2], writer) for writer in range(2 * _WRITERS)),
        )
        for own in written:
            _true(own == sorted(own), "a new entry has a greater number than all earlier entries", own)
        everything = sorted(entry for own in written for entry in own)
        numbers = {number for number, _ in everything}
        _same(len(numbers), len(everything), "no two entries have the same number")
        for backend in (one, two):
            read = list(await backend.log.read(key, 0) or ())
            _same(read, everything, "Log.read returns every entry once, with its number, in order")

    # --- Sets

    @_test
    async def test_sets_add_and_remove_names(self, one: Backend, two: Backend) -> None:
        """Check `Sets.add`, `Sets.remove` and `Sets.names`."""
        key = _key()
        _same(list(await one.sets.names(key)), [], "Sets.names returns nothing for an unknown key")
        _same(await one.sets.remove(key, "a"), False, "Sets.remove returns False if the name was not in the set")
        names = ["b", "a", "", "é 🙂\n\0", "B", "a" * 1000]
        for name in names:
            _same(await one.sets.add(key, name, ttl=_LONG), True, "Sets.add returns True")
        _same(await one.sets.add(key, "a", ttl=math.inf), True, "Sets.add returns True if the name is in the set")
        _same(list(await two.sets.names(key)), sorted(names), "Sets.names returns each name once, sorted")
        _same(await two.sets.remove(key, "a"), True, "Sets.remove returns True if the name was in the set")
        _same(await two.sets.remove(key, "a"), False, "Sets.remove removes the name")
        _same(list(await one.sets.names(key)), sorted(set(names) - {"a"}), "Sets.remove removes only this name")
        _same(list(await one.sets.names(_key())), [], "the names of each key are separate")

    @_test
    async def test_sets_have_a_limit(self, one: Backend, two: Backend) -> None:
        """Check `most` of `Sets.add`."""
        key = _key()
        for name in ("a", "b"):
            _same(await one.sets.add(key, name, ttl=_LONG, most=2), True, "Sets.add returns True below `most`")
        full = "Sets.add adds nothing and returns False if the set has `most` other names"
        _same(await two.sets.add(key, "c", ttl=_LONG, most=2), False, full)
        _same(await two.sets.add(key, "c", ttl=_LONG, most=1), False, full)
        _same(await two.sets.add(key, "a", ttl=_LONG, most=2), True, "Sets.add counts only the other names")
        _same(await two.sets.add(key, "a", ttl=_LONG, most=1), False, full)
        _same(list(await one.sets.names(key)), ["a", "b"], full)
        _same(await one.sets.add(key, "c", ttl=_LONG), True, "Sets.add without `most` has no limit")
        await one.sets.remove(key, "a")
        await one.sets.remove(key, "b")
        _same(await two.sets.add(key, "d", ttl=_LONG, most=2), True, "removed names do not count")

    @_test
    async def test_sets_forget_expired_names(self, one: Backend, two: Backend) -> None:
        """Check the time to live of names."""

        async def write(ttl: float) -> tuple[str, list[str]]:
            key = _key()
            await one.sets.add(key, "long", ttl=_LONG)
            for name in ("short", "prolonged"):
                await one.sets.add(key, name, ttl=ttl)
            await one.sets.add(key, "prolonged", ttl=_LONG)
            await one.sets.add(key, "shortened", ttl=_LONG)
            await one.sets.add(key, "shortened", ttl=ttl)
            return key, list(await two.sets.names(key))

        ttl, (key, names) = await _in_time(write)
        expected = ["long", "prolonged", "short", "shortened"]
        _same(names, expected, "a name is in the set until its time to live is over")
        await asyncio.sleep(ttl + _LATE)
        left = ["long", "prolonged"]
        _same(list(await two.sets.names(key)), left, "a name expires `ttl` seconds after the last Sets.add")
        _same(await two.sets.remove(key, "short"), False, "Sets.remove returns False if the name has expired")
        _same(await two.sets.add(key, "new", ttl=_LONG, most=3), True, "expired names do not count")

    @_test
    async def test_sets_never_exceed_the_limit(self, one: Backend, two: Backend) -> None:
        """Check concurrent calls of `Sets.add` and `Sets.remove`."""
        key, most = _key(), 5
        names = [f"{number:02}" for number in range(4 * most)]
        adds = ((one, two)[place % 2].sets.add(key, name, ttl=_LONG, most=most) for place, name in enumerate(2 * names))
        added = await asyncio.gather(*adds)
        found = list(await one.sets.names(key))
        _same(len(found), most, f"a set with most={most} has at most {most} names")
        accepted = sorted({name for name, is_added in zip(2 * names, added, strict=True) if is_added})
        _same(found, accepted, "the set has exactly the names for which Sets.add returned True")
        removes = ((one, two)[place % 2].sets.remove(key, name) for place, name in enumerate(2 * names))
        removed = sum(await asyncio.gather(*removes))
        _same(removed, most, "only one of several concurrent calls of Sets.remove returns True")

    # --- Bus

    @_test
    async def test_bus_sends_to_current_subscribers(self, one: Backend, two: Backend) -> None:
        """Check `Bus.publish` and `Bus.subscribe`."""
        topic, other = _key(), _key()
        _same(await one.bus.publish(topic, b"0"), 0, "Bus.publish returns 0 if there are no subscribers")
        heard: list[tuple[str, bytes]] = []
        await one.bus.subscribe(topic, lambda message: heard.append(("one", message)))
        await two.bus.subscribe(topic, lambda message: heard.append(("two", message)), lambda: None)
        await two.bus.subscribe(topic, lambda message: heard.append(("three", message)))
        await two.bus.subscribe(other, lambda message: heard.append(("other", message)))
        for message in (b"1", b"", bytes(range(256)), b"x" * 1_000_000):
            heard.clear()
            count = await one.bus.publish(topic, message)
            _true(1 <= count <= 3, "Bus.publish returns the number of subscribers", count)
            await _until(lambda: len(heard) >= 3, "every current subscriber gets the message", heard)
            expected = sorted((name, message) for name in ("one", "two", "three"))
            _same(sorted(heard), expected, "each subscriber gets each message of its topic once, and no older message")

    @_test
    async def test_bus_subscriptions_begin_at_once(self, one: Backend, two: Backend) -> None:
        """Check that a subscription gets every message that is published after `Bus.subscribe` has returned."""
        group = secrets.token_hex(8)
        heard: list[bytes] = []
        for number in range(20):
            topic = f"topic/{group}/{number}"
            await one.bus.subscribe(topic, heard.append)
            _true(await two.bus.publish(topic, b"%d" % number) >= 1, "a subscription exists when subscribe returns", 0)
        await _until(lambda: len(heard) >= 20, "a subscription exists when Bus.subscribe returns", heard)
        _same(sorted(heard, key=int), [b"%d" % number for number in range(20)], "each message arrives once")

    @_test
    async def test_bus_keeps_the_order(self, one: Backend, two: Backend) -> None:
        """Check that a subscriber gets the messages of a topic in the order in which a publisher has published them."""
        group = secrets.token_hex(8)
        heard: dict[str, list[bytes]] = {f"topic/{group}/{number}": [] for number in range(3)}
        for topic, messages in heard.items():
            await two.bus.subscribe(topic, messages.append)
        published = [b"%d" % number for number in range(100)]
        for message in published:
            for topic in heard:
                await one.bus.publish(topic, message)
        await _until(lambda: all(len(got) >= len(published) for got in heard.values()), "every message arrives", heard)
        for messages in heard.values():
            _same(messages, published, "a subscriber gets the messages of one topic and one publisher in their order")

    @_test
    async def test_bus_ends_subscriptions(self, one: Backend, two: Backend) -> None:
        """Check the function that ends a subscription."""
        group = secrets.token_hex(8)
        topic, last = f"topic/{group}/1", f"topic/{group}/2"
        heard: list[bytes] = []
        kept: list[bytes] = []
        ends = [await one.bus.subscribe(topic, heard.append) for _ in range(2)]  # the same function, twice
        end_kept = await one.bus.subscribe(topic, kept.append)
        await one.bus.subscribe(last, kept.append)
        await two.bus.publish(topic, b"1")
        await _until(lambda: len(heard) >= 2 and kept == [b"1"], "each subscription gets each message", (heard, kept))
        await ends[0]()
        await two.bus.publish(topic, b"2")
        await _until(lambda: len(heard) >= 3 and len(kept) >= 2, "the end of one subscription ends no other", heard)
        await ends[0]()  # does nothing
        await ends[1]()
        await two.bus.publish(topic, b"3")
        await _until(lambda: len(kept) >= 3, "the end of one subscription ends no other", kept)
        _same(heard, [b"1", b"1", b"2"], "a subscription that has ended gets no messages")
        await end_kept()
        await _until_unheard(two, [topic])
        again = await one.bus.subscribe(topic, heard.append)
        await two.bus.publish(topic, b"5")
        await _until(lambda: len(heard) >= 4, "a topic can be subscribed to again", heard)
        await again()
        await two.bus.publish(last, b"6")
        await _until(lambda: len(kept) >= 4, "the end of one subscription ends no other", kept)
        _same((heard[3:], kept[3:]), ([b"5"], [b"6"]), "a subscription that has ended gets no messages")

    @_test
    async def test_bus_serves_many_subscribers_at_once(self, one: Backend, two: Backend) -> None:
        """Check concurrent calls of `Bus.subscribe` and of the functions that end subscriptions."""
        topics = [_key() for _ in range(25)]
        heard: list[bytes] = []
        for _ in range(2):
            heard.clear()
            ends = await asyncio.gather(*(two.bus.subscribe(topic, heard.append) for topic in topics for _ in range(2)))
            await asyncio.gather(*(end() for end in ends[::2]))
            counts = await asyncio.gather(*(one.bus.publish(topic, topic.encode()) for topic in topics))
            _true(min(counts) >= 1, "the end of one subscription ends no other", counts)
            await _until(lambda: len(heard) >= len(topics), "each subscription gets its messages", len(heard))
            expected = sorted(topic.encode() for topic in topics)
            _same(sorted(heard), expected, "each subscription gets its messages once")
            await asyncio.gather(*(end() for end in ends))
            await _until_unheard(one, topics)

    # --- Backend

    @_test
    async def test_backend_counts_its_users(self, one: Backend, two: Backend) -> None:
        """Check `Backend.start`, `Backend.ping` and `Backend.close`."""
        key = _key()
        for user in range(2):
            await one.start()
            await one.store.put(key, b"%d" % user, ttl=_LONG)
            await one.close()
            _same(await one.store.get(key), b"%d" % user, "a backend stays open until its last user has closed it")
        await one.ping()
        _true(one.is_local in (True, False), "Backend.is_local is True or False", one.is_local)

    def test_backend_can_be_started_again(self) -> None:
        """Check that a backend can be closed, and started again in another event loop."""
        kept: list[Backend] = []

        async def use() -> None:
            if not kept:
                kept.append(await self.make_backend())
            (backend,) = kept
            await backend.start()
            try:
                key = _key()
                heard: list[bytes] = []
                await backend.store.put(key, b"1", ttl=_LONG)
                _same(await backend.store.get(key), b"1", "a backend can be used again in another event loop")
                await backend.bus.subscribe(key, heard.append)
                await backend.bus.publish(key, b"2")
                await _until(lambda: heard == [b"2"], "a backend can be used again in another event loop", heard)
            finally:
                await backend.close()

        for _ in range(2):
            asyncio.run(asyncio.wait_for(use(), _TEST_SECONDS))

    def test_backend_behaves_like_the_model(self) -> None:
        """Check random calls of concurrent writers against a model. This needs the package hypothesis."""
        try:
            from weft.testing.backend_model import run_random_calls
        except ImportError:
            import pytest

            pytest.skip("random calls need the package hypothesis")
        run_random_calls(self.make_backend)


def _key() -> str:
    """Return a key, or a topic, that no other test has used."""
    return f"test/{secrets.token_hex(8)}/x"


async def _in_time(steps: Callable[[float], Awaitable[_T]]) -> tuple[float, _T]:
    """Run `steps` with a number of seconds. If it needs longer than that, run it again with more seconds.

    Return the seconds, and what `steps` has returned. A slow backend, or a busy machine, breaks no rule.
    """
    for seconds in _TIMES:
        began = time.monotonic()
        result = await steps(seconds)
        if time.monotonic() - began < seconds:
            return seconds, result
    return _skip_slow()


def _skip_slow() -> NoReturn:
    import pytest

    pytest.skip(f"this backend, or this machine, is so slow that a few calls take more than {_TIMES[-1]:g} s")


def _same(actual: object, expected: object, rule: str) -> None:
    if actual != expected:
        raise AssertionError(f"Broken rule: {rule}.\nExpected: {_shown(expected)}\nGot: {_shown(actual)}")


def _true(condition: bool, rule: str, got: object) -> None:  # noqa: FBT001 - it is the condition of an assertion
    if not condition:
        raise AssertionError(f"Broken rule: {rule}.\nGot: {_shown(got)}")


async def _until(condition: Callable[[], bool], rule: str, got: object) -> None:
    """Wait until `condition` is true, for some seconds."""
    end = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"Broken rule: {rule}.\nGot after {_WAIT_SECONDS:.0f} s: {_shown(got)}")
        await asyncio.sleep(0.005)


async def _until_unheard(backend: Backend, topics: Sequence[str]) -> None:
    """Wait until messages of these topics are sent to no subscriber, for some seconds: the backend may be busy."""
    end = time.monotonic() + _WAIT_SECONDS
    while sum(counts := await asyncio.gather(*(backend.bus.publish(topic, b"4") for topic in topics))):
        if time.monotonic() > end:
            raise AssertionError(
                "Broken rule: Bus.publish returns 0 after all subscriptions have ended.\n"
                f"Got after {_WAIT_SECONDS:.0f} s: {_shown(counts)}"
            )
        await asyncio.sleep(0.005)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}…"
