"""The tests for backends of users: they need no plugin, and each finds a backend that breaks its rule."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.backends import Backend
from weft.backends.memory import MemoryBackend
from weft.testing import BackendContract

PROGRAM = """
from weft.backends.memory import MemoryBackend
from weft.testing import BackendContract

class TestMine(BackendContract):
    backend = None

    async def make_backend(self):
        self.backend = self.backend or MemoryBackend()
        return self.backend
"""


def run_pytest(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text(program)
    (folder / "empty.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "empty.ini", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_it_needs_no_plugin_and_no_configuration(tmp_path: Path) -> None:
    plugins = ("-p", "no:asyncio", "-p", "no:hypothesispytest", "-p", "no:timeout", "-p", "no:xdist")
    done = run_pytest(tmp_path, PROGRAM, *plugins)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_without_hypothesis_only_the_random_calls_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not installed')")
    done = run_pytest(tmp_path, PROGRAM, "-p", "no:hypothesispytest", "-W", "ignore")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


def test_import_weft_loads_no_test_tools() -> None:
    program = "import sys, weft, weft.testing\nassert not {'pytest', 'hypothesis'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_class_without_make_backend_says_what_is_missing() -> None:
    class TestNothing(BackendContract):
        pass

    with pytest.raises(NotImplementedError, match="make_backend"):
        TestNothing().test_store_returns_what_was_put()


def test_backends_that_do_not_share_their_data_are_told_so() -> None:
    class TestApart(BackendContract):
        async def make_backend(self) -> Backend:
            return MemoryBackend()

    with pytest.raises(AssertionError, match="called several times in a test, like several workers"):
        TestApart().test_all_backends_of_a_test_see_the_same_data()


# --- backends with one mistake each


class Part:
    """Passes every call on to a part of a backend. Subclasses change one method."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


class ForgetsTheOrder(Part):
    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        found = await self.part.get(key)
        await asyncio.sleep(0)
        if found != expected:
            return False
        await self.part.put(key, value, ttl=ttl)
        return True


class TakesEmptyForNone(Part):
    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        return await self.part.swap(key, expected or None, value, ttl=ttl)


class NeverExpires(Part):
    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        await self.part.put(key, value, ttl=3600)


class KeepsTheOldTime(Part):
    async def touch(self, key: str, *, ttl: float) -> bool:
        return await self.part.get(key) is not None


class MixesGroups(Part):
    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        await self.part.put(key.replace("{", "").replace("}", ""), value, ttl=ttl)

    async def get(self, key: str) -> bytes | None:
        return await self.part.get(key.replace("{", "").replace("}", ""))


class GivesPermitsFreely(Part):
    async def take(self, key: str, *, count: int, seconds: float) -> float:
        return await self.part.take(key, count=2 * count, seconds=seconds)


class WaitsTooLong(Part):
    async def take(self, key: str, *, count: int, seconds: float) -> float:
        return 5 * await self.part.take(key, count=count, seconds=seconds)


class KeepsPermits(Part):
    async def take(self, key: str, *, count: int, seconds: float) -> float:
        return await self.part.take(key, count=count, seconds=1000 * seconds) and 0.01


class HidesGaps(Part):
    async def read(self, key: str, after: int, *, most: int | None = None) -> Any:
        return await self.part.read(key, after, most=most) or await self.part.read(key, 0, most=most)


class SeesGapsAtZero(Part):
    async def read(self, key: str, after: int, *, most: int | None = None) -> Any:
        return await self.part.read(key, after or 1, most=most)


class IgnoresMost(Part):
    async def read(self, key: str, after: int, *, most: int | None = None) -> Any:
        return await self.part.read(key, after)


class ReadsTheNewest(Part):
    async def read(self, key: str, after: int, *, most: int | None = None) -> Any:
        found = await self.part.read(key, after)
        return found if most is None or found is None else found[-most:]


class HidesGapsWithMost(Part):
    async def read(self, key: str, after: int, *, most: int | None = None) -> Any:
        found = await self.part.read(key, after, most=most)
        return await self.part.read(key, 0, most=most) if found is None and most is not None else found


class KeepsOneTooMany(Part):
    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        return await self.part.append(key, entry, ttl=ttl, most=most + 1)


class CountsFromTwo(Part):
    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        number = max(await self.part.last(key) + 1, 2)
        self.part._clock = lambda: number / 1000 + 0.0001
        return await self.part.append(key, entry, ttl=ttl, most=most)


class CountsTheNameItself(Part):
    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        if most is not None and len(await self.part.names(key)) >= most:
            return False
        return await self.part.add(key, name, ttl=ttl)


class RacesForTheLastPlace(Part):
    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        names = set(await self.part.names(key)) - {name}
        await asyncio.sleep(0)
        if most is not None and len(names) >= most:
            return False
        return await self.part.add(key, name, ttl=ttl)


class ReversesNames(Part):
    async def names(self, key: str) -> list[str]:
        return list(reversed(await self.part.names(key)))


class SubscribesLate(Part):
    async def subscribe(self, topic: str, hear: Any, missed: Any = None) -> Any:
        async def later() -> None:
            await asyncio.sleep(0.05)
            await self.part.subscribe(topic, hear, missed)

        self.later = asyncio.create_task(later())

        async def unsubscribe() -> None:
            pass

        return unsubscribe


class NeverUnsubscribes(Part):
    async def subscribe(self, topic: str, hear: Any, missed: Any = None) -> Any:
        await self.part.subscribe(topic, hear, missed)

        async def unsubscribe() -> None:
            pass

        return unsubscribe


class CountsForever(Part):
    async def publish(self, topic: str, message: bytes) -> int:
        return await self.part.publish(topic, message) or 1


class EndsAllSubscriptions(Part):
    async def subscribe(self, topic: str, hear: Any, missed: Any = None) -> Any:
        await self.part.subscribe(topic, hear, missed)

        async def unsubscribe() -> None:
            self.part._topics.pop(topic, None)

        return unsubscribe


class MixesTheOrder(Part):
    async def publish(self, topic: str, message: bytes) -> int:
        if message.endswith(b"7"):
            self.later = asyncio.get_running_loop().call_later(
                0.01, lambda: asyncio.ensure_future(self.part.publish(topic, message))
            )
            return 1
        return await self.part.publish(topic, message)


class ClosesForAll(MemoryBackend):
    """Is not usable after the first user has closed it."""

    async def close(self) -> None:
        self.store = MemoryBackend().store


MISTAKES = [
    ("store", ForgetsTheOrder, "test_store_loses_no_concurrent_swap", "only one of several concurrent"),
    ("store", ForgetsTheOrder, "test_backend_behaves_like_the_model", "as if they were executed one after another"),
    ("store", TakesEmptyForNone, "test_store_swaps_only_what_is_expected", "not the expected one"),
    ("store", NeverExpires, "test_store_forgets_expired_values", "returns None if the value has expired"),
    ("store", KeepsTheOldTime, "test_store_forgets_expired_values", "expires at the new time"),
    ("store", MixesGroups, "test_store_keeps_keys_apart", "each key has a value of its own"),
    ("store", GivesPermitsFreely, "test_permits_are_not_taken_twice", "7 of 7 permits"),
    ("store", GivesPermitsFreely, "test_permits_come_back_while_others_try", "5 permits come back"),
    ("store", KeepsPermits, "test_permits_come_back_while_others_try", "5 permits come back"),
    ("store", WaitsTooLong, "test_permits_come_back_evenly", "until the next permit"),
    ("log", HidesGaps, "test_log_keeps_the_last_entries_and_tells_gaps", "returns None if an entry above"),
    ("log", SeesGapsAtZero, "test_log_keeps_the_last_entries_and_tells_gaps", "all entries that still exist"),
    ("log", SeesGapsAtZero, "test_backend_behaves_like_the_model", "as if they were executed one after another"),
    ("log", IgnoresMost, "test_log_numbers_entries_upwards", "the first `most` of the entries"),
    ("log", ReadsTheNewest, "test_log_numbers_entries_upwards", "the first `most` of the entries"),
    ("log", HidesGapsWithMost, "test_log_keeps_the_last_entries_and_tells_gaps", "also with `most`"),
    ("log", KeepsOneTooMany, "test_log_keeps_the_last_entries_and_tells_gaps", "returns None if an entry above"),
    ("log", CountsFromTwo, "test_log_expires_as_a_whole", "greater number than all entries that have expired"),
    ("sets", CountsTheNameItself, "test_sets_have_a_limit", "counts only the other names"),
    ("sets", RacesForTheLastPlace, "test_sets_never_exceed_the_limit", "at most 5 names"),
    ("sets", ReversesNames, "test_sets_add_and_remove_names", "sorted"),
    ("bus", SubscribesLate, "test_bus_subscriptions_begin_at_once", "a subscription exists when subscribe returns"),
    ("bus", NeverUnsubscribes, "test_bus_ends_subscriptions", "a subscription that has ended gets no messages"),
    ("bus", CountsForever, "test_bus_ends_subscriptions", "returns 0 after all subscriptions have ended"),
    ("bus", EndsAllSubscriptions, "test_bus_ends_subscriptions", "ends no other"),
    ("bus", MixesTheOrder, "test_bus_keeps_the_order", "in their order"),
]


@pytest.mark.parametrize(
    ("part", "mistake", "test", "rule"), MISTAKES, ids=[f"{m[1].__name__}-{m[2]}" for m in MISTAKES]
)
def test_a_mistake_is_found_and_its_rule_is_named(
    part: str, mistake: Any, test: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.testing.backend_contract._WAIT_SECONDS", 0.3)
    backend = MemoryBackend()
    setattr(backend, part, mistake(getattr(backend, part)))

    class TestMistake(BackendContract):
        async def make_backend(self) -> Backend:
            return backend

    with pytest.raises(AssertionError, match=rf"(?s)Broken rule: .*{rule}"):
        getattr(TestMistake(), test)()


def test_a_backend_that_the_first_user_closes_is_found() -> None:
    backend = ClosesForAll()

    class TestMistake(BackendContract):
        async def make_backend(self) -> Backend:
            return backend

    with pytest.raises(AssertionError, match="stays open until its last user"):
        TestMistake().test_backend_counts_its_users()


# --- slow backends


class Slow(Part):
    """Takes some time for every call."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.part, name)

        async def call(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0.02)
            return await method(*args, **options)

        return call


class SlowBackend(MemoryBackend):
    """Does everything right, but slowly."""

    def __init__(self) -> None:
        super().__init__()
        for part in ("store", "log", "sets"):
            setattr(self, part, Slow(getattr(self, part)))


class TestSlow(BackendContract):
    backend = SlowBackend()

    async def make_backend(self) -> Backend:
        return self.backend

    def test_backend_behaves_like_the_model(self) -> None:
        """Leave it out: it has no times, and makes thousands of calls."""


TIMED = [
    "test_store_forgets_expired_values",
    "test_permits_come_back_evenly",
    "test_permits_come_back_while_others_try",
    "test_log_expires_as_a_whole",
    "test_sets_forget_expired_names",
]


@pytest.mark.parametrize("test", TIMED)
def test_a_backend_that_is_slow_is_given_more_time(test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.testing.backend_contract._TIMES", (0.05, 1.0, 20.0))
    getattr(TestSlow(), test)()


@pytest.mark.parametrize("test", TIMED)
def test_if_a_backend_is_too_slow_for_every_time_the_test_is_skipped(
    test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.testing.backend_contract._TIMES", (0.001, 0.01))
    with pytest.raises(pytest.skip.Exception, match="so slow that a few calls take more than"):
        getattr(TestSlow(), test)()
