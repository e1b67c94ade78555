"""A Redis that is gone, slow, replaced or moved: what is repeated, what is told, and that nothing happens twice."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from support.cutting import CuttingProxy
from support.redis_servers import Cluster, RedisServer, redis_cluster, redis_sentinel, redis_server, started, until
from weft.backends.redis import RedisBackend, bus, commands
from weft.backends.redis.store import Keys
from weft.errors import BackendUnavailable


@asynccontextmanager
async def proxied(redis: RedisServer, **options: Any) -> AsyncIterator[tuple[RedisBackend, CuttingProxy]]:
    """A backend whose connections go through a proxy that can lose replies."""
    async with (
        CuttingProxy(redis.port).running() as proxy,
        started(f"redis://127.0.0.1:{proxy.port}", **options) as backend,
    ):
        yield backend, proxy


async def eventually(condition: Callable[[], Any], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions have no event
            await asyncio.sleep(0.01)


KEY = iter(range(10**6))


def key() -> str:
    """A key that no other test has."""
    return f"failures/{next(KEY)}/x"


def stored(name: str) -> bytes:
    return Keys("weft:")(name)


# --- values of others


@pytest.mark.parametrize("value", ["", "\x05garbage"])
async def test_a_value_that_others_have_written_is_ignored(
    shared_redis: RedisServer, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind = f"others-{len(value)}"
    name, permits = f"{kind}/secret", key()
    async with started(shared_redis.url) as backend:
        shared_redis.run("SET", stored(name), value)
        shared_redis.run("SET", stored(permits), value)
        assert await backend.store.get(name) is None
        assert f"A value of {kind}/… in Redis was not written by Weft, and is ignored." in caplog.text
        assert not await backend.store.swap(name, b"1", b"2", ttl=60)
        assert await backend.store.swap(name, None, b"2", ttl=60)
        assert await backend.store.get(name) == b"2"
        assert await backend.store.take(permits, count=1, seconds=60) == 0
        assert await backend.store.take(permits, count=1, seconds=60) > 0


# --- lost replies


async def test_a_swap_whose_reply_was_lost_recognises_itself(shared_redis: RedisServer) -> None:
    name = key()
    async with proxied(shared_redis) as (backend, proxy):
        proxy.lose_reply(b"EVAL")
        assert await backend.store.swap(name, None, b"1", ttl=60)
        proxy.lose_reply(b"EVAL")
        assert await backend.store.swap(name, b"1", b"2", ttl=60)
        proxy.lose_reply(b"EVAL")
        assert not await backend.store.swap(name, b"1", b"3", ttl=60)
        assert await backend.store.get(name) == b"2"
        assert proxy.cuts == 3


async def test_a_swap_whose_reply_was_lost_recognises_itself_after_others_have_written(
    shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "FIRST_PAUSE", 0.5)
    name = key()
    async with proxied(shared_redis) as (backend, proxy), started(shared_redis.url) as other:
        proxy.lose_reply(b"EVAL")
        swap = asyncio.create_task(backend.store.swap(name, None, b"0", ttl=60))
        await eventually(lambda: proxy.cuts == 1)
        for number in range(15):
            assert await other.store.swap(name, b"%d" % number, b"%d" % (number + 1), ttl=60)
        assert await swap
        assert await other.store.get(name) == b"15"


async def test_an_append_whose_reply_was_lost_is_not_repeated(shared_redis: RedisServer) -> None:
    name = key()
    async with proxied(shared_redis) as (backend, proxy):
        first = await backend.log.append(name, b"same", ttl=60, most=10)
        proxy.lose_reply(b"EVAL", times=2)
        second = await backend.log.append(name, b"same", ttl=60, most=10)
        assert await backend.log.read(name, 0) == [(first, b"same"), (second, b"same")]
        assert proxy.cuts == 2


async def test_a_permit_whose_reply_was_lost_is_taken_once(shared_redis: RedisServer) -> None:
    name = key()
    async with proxied(shared_redis) as (backend, proxy):
        proxy.lose_reply(b"EVAL")
        assert await backend.store.take(name, count=2, seconds=600) == 0
        assert await backend.store.take(name, count=2, seconds=600) == 0
        assert await backend.store.take(name, count=2, seconds=600) > 0
        assert proxy.cuts == 1


async def test_other_calls_whose_reply_was_lost_have_the_same_result(shared_redis: RedisServer) -> None:
    name, names = key(), key()
    async with proxied(shared_redis) as (backend, proxy):
        proxy.lose_reply(b"SET")
        await backend.store.put(name, b"1", ttl=60)
        proxy.lose_reply(b"PEXPIRE")
        assert await backend.store.touch(name, ttl=60)
        proxy.lose_reply(b"GET")
        assert await backend.store.get(name) == b"1"
        proxy.lose_reply(b"EVAL")
        assert await backend.sets.add(names, "a", ttl=60, most=1)
        proxy.lose_reply(b"EVAL")
        assert await backend.sets.names(names) == ["a"]
        proxy.lose_reply(b"DEL")
        await backend.store.delete(name)  # may return False
        assert await backend.store.get(name) is None
        assert proxy.cuts == 6


async def test_a_message_whose_publication_was_repeated_is_heard_once(shared_redis: RedisServer) -> None:
    topic, heard = key(), []
    async with proxied(shared_redis) as (backend, proxy), started(shared_redis.url) as other:
        await other.bus.subscribe(topic, heard.append)
        proxy.lose_reply(b"PUBLISH")
        assert await backend.bus.publish(topic, b"1") == 1
        assert await backend.bus.publish(topic, b"1") == 1
        assert await backend.bus.publish(topic, b"2") == 1
        await eventually(lambda: len(heard) >= 3)
        assert heard == [b"1", b"1", b"2"]
        assert proxy.cuts == 1


async def test_a_batch_whose_replies_were_lost_is_repeated_as_a_whole(shared_redis: RedisServer) -> None:
    name = key()
    async with proxied(shared_redis) as (backend, proxy):
        proxy.lose_reply(b"EVAL", times=4)
        numbers = await asyncio.gather(*(backend.log.append(name, b"%d" % n, ttl=60, most=999) for n in range(300)))
        read = await backend.log.read(name, 0)
        assert read is not None
        assert sorted(read) == sorted((number, b"%d" % n) for n, number in enumerate(numbers))
        assert proxy.cuts >= 1


# --- one caller among others


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others(shared_redis: RedisServer) -> None:
    names = [key() for _ in range(50)]
    async with proxied(shared_redis, connections=1) as (backend, proxy):
        await asyncio.gather(*(backend.store.put(name, name.encode(), ttl=60) for name in names))
        proxy.is_frozen = True
        calls = [asyncio.create_task(backend.store.get(name)) for name in names]
        await asyncio.sleep(0.1)  # the first are sent, the others wait
        more = [asyncio.create_task(backend.store.get(name)) for name in names]
        await asyncio.sleep(0)
        for call in (*calls[::2], *more[::2]):
            call.cancel()
        await asyncio.sleep(0.05)
        proxy.is_frozen = False
        assert await asyncio.gather(*calls[1::2]) == [name.encode() for name in names[1::2]]
        assert await asyncio.gather(*more[1::2]) == [name.encode() for name in names[1::2]]
        assert proxy.cuts == 0


async def test_a_value_of_the_wrong_type_fails_alone(shared_redis: RedisServer) -> None:
    wrong: Any = None
    async with started(shared_redis.url) as backend:
        calls: list[Any] = [backend.store.put(key(), b"1", ttl=60) for _ in range(5)]
        calls += [backend.store.put(key(), wrong, ttl=60), backend.log.append(key(), wrong, ttl=60, most=1)]
        calls += [backend.bus.publish(key(), wrong), backend.store.swap(key(), None, wrong, ttl=60)]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:5] == [None] * 5
    assert [type(result) for result in results[5:]] == [TypeError] * 4


async def test_too_many_commands_that_wait_are_refused(
    shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MOST_WAITING", 20)
    async with proxied(shared_redis, connections=1) as (backend, proxy):
        await backend.store.get("a")
        proxy.is_frozen = True
        first = asyncio.create_task(backend.store.get("a"))
        await asyncio.sleep(0.05)
        calls = [asyncio.create_task(backend.store.get("a")) for _ in range(21)]
        await asyncio.sleep(0.05)
        with pytest.raises(BackendUnavailable, match="20 commands wait for Redis already"):
            await calls[20]
        proxy.is_frozen = False
        assert await asyncio.gather(first, *calls[:20]) == [None] * 21


# --- a server that is gone, or hangs


async def test_calls_wait_for_a_server_that_restarts(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            await backend.store.put("a/b", b"1", ttl=60)
            redis.kill()
            calls = [asyncio.create_task(backend.store.get("a/b")) for _ in range(20)]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(redis.start)
            assert await asyncio.gather(*calls) == [b"1"] * 20
            await backend.ping()
            redis.stop()
            redis.start(empty=True)
            assert await backend.store.get("a/b") is None


async def test_a_server_that_stays_away_is_told_at_the_deadline(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url, timeout=0.6) as backend:
            redis.kill()
            for call in (
                lambda: backend.store.get("a"),
                lambda: backend.log.append("a", b"", ttl=1, most=1),
                lambda: backend.sets.names("a"),
                lambda: backend.bus.publish("a", b""),
                lambda: backend.bus.subscribe("a", lambda _: None),
            ):
                began = time.monotonic()
                with pytest.raises(BackendUnavailable, match=rf"127\.0\.0\.1:{redis.port} cannot be reached"):
                    await call()
                assert 0.4 < time.monotonic() - began < 6  # ten seconds are the default
            waits: list[float] = []
            for _ in range(5):
                began = time.monotonic()
                with pytest.raises(BackendUnavailable, match="Check that it runs"):
                    await backend.ping()
                waits.append(time.monotonic() - began)
            assert min(waits) < 0.4  # it does not try again


async def test_a_server_that_hangs_is_told_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ATTEMPT_SECONDS", 0.3)
    with redis_server(tmp_path) as redis:
        async with started(redis.url, timeout=1) as backend:
            redis.pause()
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match=r"no answer in time\), tried for 1 s"):
                await backend.store.get("a")
            assert time.monotonic() - began < 6  # ten seconds are the default
            with pytest.raises(BackendUnavailable, match="no answer in time"):
                await backend.ping()
            redis.resume()
            assert await backend.store.get("a") is None


async def test_nothing_happens_twice_in_a_server_that_hangs_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempts wait in the buffers of the server, and are executed together with their repetitions."""
    monkeypatch.setattr(commands, "ATTEMPT_SECONDS", 0.3)
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            heard: list[bytes] = []
            await backend.bus.subscribe("a/b", heard.append)
            redis.pause()
            appends = [asyncio.create_task(backend.log.append("l/b", b"%d" % n, ttl=60, most=999)) for n in range(50)]
            swap = asyncio.create_task(backend.store.swap("s/b", None, b"1", ttl=60))
            take = asyncio.create_task(backend.store.take("t/b", count=2, seconds=600))
            publish = asyncio.create_task(backend.bus.publish("a/b", b"1"))
            await asyncio.sleep(1)
            redis.resume()
            numbers = await asyncio.gather(*appends)
            assert (await swap, await take, await publish) == (True, 0, 1)
            read = await backend.log.read("l/b", 0)
            assert sorted(read or ()) == sorted((number, b"%d" % n) for n, number in enumerate(numbers))
            assert await backend.store.take("t/b", count=2, seconds=600) == 0
            await backend.bus.publish("a/b", b"2")
            await eventually(lambda: b"2" in heard)
            assert heard == [b"1", b"2"]


async def test_a_call_that_is_repeated_ends_when_the_backend_is_closed(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        backend = RedisBackend(redis.url)
        await backend.start()
        redis.kill()
        calls: list[Any] = [backend.store.get("a"), backend.bus.publish("a", b""), backend.log.last("a")]
        calls = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.3)
        await backend.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [BackendUnavailable] * 3
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_ping_does_not_take_an_old_connection_for_a_server_that_is_gone(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            await asyncio.gather(*(backend.store.get("a") for _ in range(1000)))
            redis.kill()
            redis.start()
            await backend.ping()


async def test_a_replica_is_waited_for_until_it_is_a_master(tmp_path: Path) -> None:
    with redis_server(tmp_path / "1") as redis, redis_server(tmp_path / "2") as other:
        async with started(redis.url) as backend:
            redis.run("REPLICAOF", "127.0.0.1", other.port)
            call = asyncio.create_task(backend.store.swap("a/b", None, b"1", ttl=60))
            await asyncio.sleep(0.3)
            assert not call.done()
            redis.run("REPLICAOF", "NO", "ONE")
            assert await call


async def test_a_server_that_is_busy_with_a_script_is_waited_for(tmp_path: Path) -> None:
    with redis_server(tmp_path, options={"busy-reply-threshold": 50}) as redis:
        async with started(redis.url) as backend:

            def block() -> None:
                with contextlib.suppress(Exception):
                    redis.run("EVAL", "while true do end", 0)

            blocking = threading.Thread(target=block)
            blocking.start()
            await asyncio.sleep(0.3)
            call = asyncio.create_task(backend.store.put("a/b", b"1", ttl=60))
            await asyncio.sleep(0.2)
            assert not call.done()
            redis.run("SCRIPT", "KILL")
            await call
            blocking.join()


async def test_a_server_without_memory_refuses_at_once(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            redis.run("CONFIG", "SET", "maxmemory", "1")
            began = time.monotonic()
            with pytest.raises(BackendUnavailable, match=r"is full: .*memory"):
                await backend.store.put("a", b"1", ttl=60)
            with pytest.raises(BackendUnavailable, match=r"is full: .*memory"):
                await backend.log.append("a", b"1", ttl=60, most=1)
            assert time.monotonic() - began < 6  # it does not try again for ten seconds


async def test_an_error_does_not_show_arguments() -> None:
    error = commands.redis_errors.ResponseError("unknown command 'SPUBLISH', with args beginning with: 'weft:{secret}'")
    assert commands.reason_of(error) == "unknown command 'SPUBLISH'"


# --- the bus


class Listener:
    """What a subscriber hears and misses."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.missed = 0

    def miss(self) -> None:
        self.missed += 1


async def test_a_subscriber_is_told_that_it_missed_messages_and_gets_the_next(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend, started(redis.url) as other:
            listeners = [Listener() for _ in range(5)]
            for number, listener in enumerate(listeners):
                await backend.bus.subscribe(f"topic/{number % 3}", listener.heard.append, listener.miss)
            unconcerned: list[bytes] = []
            await backend.bus.subscribe("topic/0", unconcerned.append)
            redis.kill()
            await asyncio.sleep(0.3)
            assert [listener.missed for listener in listeners] == [0] * 5  # there is no new connection yet
            await asyncio.to_thread(redis.start)
            await eventually(lambda: all(listener.missed for listener in listeners))
            for number in range(20):
                for topic in range(3):
                    assert await other.bus.publish(f"topic/{topic}", b"%d" % number) == 1
            messages = [b"%d" % number for number in range(20)]
            await eventually(lambda: all(len(listener.heard) == 20 for listener in listeners))
            assert [listener.heard for listener in listeners] == [messages] * 5
            assert [listener.missed for listener in listeners] == [1] * 5
            assert unconcerned == messages


async def test_a_subscription_during_an_outage_is_made_afterwards(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            first, second = Listener(), Listener()
            await backend.bus.subscribe("a/b", first.heard.append, first.miss)
            redis.kill()
            await asyncio.sleep(0.1)
            subscribing = asyncio.create_task(backend.bus.subscribe("a/b", second.heard.append, second.miss))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(redis.start)
            await subscribing
            await backend.bus.publish("a/b", b"1")
            await eventually(lambda: first.heard == second.heard == [b"1"])
            assert (first.missed, second.missed) == (1, 0)  # the second had nothing to miss


async def test_a_connection_that_is_dead_is_noticed(shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "PING_SECONDS", 0.2)
    monkeypatch.setattr(bus, "DEAD_SECONDS", 0.6)
    topic, listener = key(), Listener()
    async with proxied(shared_redis) as (backend, proxy), started(shared_redis.url) as other:
        await backend.bus.subscribe(topic, listener.heard.append, listener.miss)
        await asyncio.sleep(1.5)
        assert not listener.missed  # a quiet connection is no dead one
        proxy.is_frozen = True
        await asyncio.sleep(1.8)
        proxy.is_frozen = False
        await eventually(lambda: listener.missed)
        await other.bus.publish(topic, b"1")
        await eventually(lambda: listener.heard == [b"1"])


def test_a_dead_connection_is_noticed_within_15_seconds() -> None:
    assert bus.DEAD_SECONDS + 1 + commands.LONGEST_PAUSE < 15


async def test_a_subscriber_that_raises_disturbs_nobody(
    shared_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic, heard = key(), []

    def raises(*_: Any) -> None:
        raise ValueError("of the subscriber")

    async with proxied(shared_redis) as (backend, proxy):
        for _ in range(2):
            await backend.bus.subscribe(topic, raises, raises)
            await backend.bus.subscribe(topic, heard.append)
        await backend.bus.publish(topic, b"1")
        await eventually(lambda: heard == [b"1", b"1"])
        await proxy.cut_all()
        await eventually(lambda: "`missed`" in caplog.text)
        await backend.bus.publish(topic, b"2")
        await eventually(lambda: heard[2:] == [b"2", b"2"])
    assert "The function `hear` of a subscriber raised an exception." in caplog.text
    assert "of the subscriber" in caplog.text


async def test_a_subscription_that_is_cancelled_leaves_nothing(shared_redis: RedisServer) -> None:
    topic = key()
    async with proxied(shared_redis) as (backend, proxy):
        await backend.bus.subscribe("other/x", lambda _: None)
        proxy.is_frozen = True
        subscribing = asyncio.create_task(backend.bus.subscribe(topic, lambda _: None))
        await asyncio.sleep(0.05)
        subscribing.cancel()
        await asyncio.wait([subscribing])
        proxy.is_frozen = False
        await asyncio.sleep(0.1)
        assert await backend.bus.publish(topic, b"1") == 0
        heard: list[bytes] = []
        await backend.bus.subscribe(topic, heard.append)
        assert await backend.bus.publish(topic, b"2") == 1
        await eventually(lambda: heard == [b"2"])


async def test_unsubscribing_does_not_wait_for_a_server_that_is_gone(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            ends = [await backend.bus.subscribe(f"a/{number}", lambda _: None) for number in range(3)]
            redis.pause()
            began = time.monotonic()
            await asyncio.gather(*(end() for end in ends[:2]))
            redis.resume()
            redis.kill()
            await ends[2]()
            assert time.monotonic() - began < 6  # it does not try for ten seconds


# --- what is in Redis


async def test_nothing_is_left_when_everything_has_expired(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            for number in range(20):
                await backend.store.put(f"a/{number}", b"1", ttl=0.3)
                await backend.store.swap(f"b/{number}", None, b"1", ttl=0.3)
                await backend.store.take(f"c/{number}", count=5, seconds=0.3)
                await backend.log.append(f"d/{number}", b"1", ttl=0.3, most=5)
                await backend.sets.add(f"e/{number}", "x", ttl=0.3)
                await backend.sets.add(f"e/{number}", "y", ttl=600)
                await backend.sets.remove(f"e/{number}", "y")
            assert redis.run("DBSIZE") > 0
            for name in redis.run("KEYS", "*"):
                assert redis.run("PTTL", name) != -1  # -1: it does not expire
            await eventually(lambda: redis.run("DBSIZE") == 0, 8)  # the entries of the start expire after 5 s


async def test_prefixes_and_databases_are_separate(shared_redis: RedisServer) -> None:
    name, heard = key(), []
    async with (
        started(shared_redis.url, prefix="one:") as one,
        started(shared_redis.url, prefix="two:") as two,
        started(f"{shared_redis.url}/3", prefix="one:") as third,
    ):
        for number, backend in enumerate((one, two, third)):
            await backend.store.put(name, b"%d" % number, ttl=60)
            await backend.bus.subscribe(name, lambda message, number=number: heard.append((number, message)))
        assert [await backend.store.get(name) for backend in (one, two, third)] == [b"0", b"1", b"2"]
        for backend in (one, two, third):
            assert await backend.bus.publish(name, b"x") == 1
        await eventually(lambda: len(heard) == 3)
        assert heard == [(0, b"x"), (1, b"x"), (2, b"x")]
        assert shared_redis.run("EXISTS", Keys("one:")(name)) == 1


# --- Sentinel


async def test_a_failover_by_sentinel_takes_seconds(tmp_path: Path) -> None:
    with redis_sentinel(tmp_path) as sentinel:
        async with started(sentinel.url, timeout=30) as backend, started(sentinel.url, timeout=30) as other:
            listener = Listener()
            await backend.bus.subscribe("a/b", listener.heard.append, listener.miss)
            await backend.store.put("a/b", b"1", ttl=600)
            number = await backend.log.append("l/b", b"1", ttl=600, most=5)
            sentinel.first.until_replicated()
            sentinel.first.kill()
            assert await backend.store.swap("a/b", b"1", b"2", ttl=600)
            assert await other.store.get("a/b") == b"2"
            assert await backend.log.append("l/b", b"2", ttl=600, most=5) > number
            await eventually(lambda: listener.missed)
            assert await other.bus.publish("a/b", b"3") == 1
            await eventually(lambda: listener.heard == [b"3"])


async def test_a_planned_failover_is_followed(tmp_path: Path) -> None:
    with redis_sentinel(tmp_path) as sentinel:
        async with started(sentinel.url) as backend:
            listener = Listener()
            await backend.bus.subscribe("a/b", listener.heard.append, listener.miss)
            await backend.store.put("a/b", b"1", ttl=600)
            sentinel.first.until_replicated()
            until(lambda: sentinel.sentinel.run("SENTINEL", "FAILOVER", sentinel.name), "the replica is good")
            await asyncio.to_thread(until, lambda: sentinel.second.run("ROLE")[0] == b"master", "it is promoted")
            began, count = time.monotonic(), 0
            while (sentinel.second.run("GET", stored("c/d")) or b"")[9:] != b"%d" % count:
                assert time.monotonic() - began < 8  # the old master accepts writes for ten seconds
                count += 1
                await backend.store.put("c/d", b"%d" % count, ttl=600)
                await asyncio.sleep(0.02)
            await eventually(lambda: listener.missed)
            await backend.bus.publish("a/b", b"3")
            await eventually(lambda: listener.heard == [b"3"])


# --- cluster


def in_slot_of(node: RedisServer, cluster: Cluster, begin: int = 0) -> str:
    """A key of a node."""
    for number in range(begin, 10**6):
        name = f"k/{number}/x"
        if cluster.owner(key_slot(stored(name))) is node:
            return name
    raise AssertionError


async def test_keys_of_a_group_are_on_one_node_and_groups_on_all(shared_cluster: Cluster) -> None:
    async with started(shared_cluster.url) as backend:
        for number in range(60):
            await backend.store.put(f"session/{number}", b"1", ttl=60)
            await backend.log.append(f"stream/{number}/1", b"1", ttl=60, most=5)
    for node in shared_cluster.masters:
        sessions, streams = (
            {name.decode().partition("{")[2].partition("}")[0] for name in node.run("KEYS", f"weft:{kind}/*")}
            for kind in ("session", "stream")
        )
        assert sessions
        assert sessions == streams


async def test_a_slot_that_moves_is_followed(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as cluster:
        source, target = cluster.masters[0], cluster.masters[1]
        async with started(cluster.url) as backend, started(cluster.url) as other:
            name = in_slot_of(source, cluster)
            slot = key_slot(stored(name))
            listener, bystander = Listener(), Listener()
            await backend.bus.subscribe(name, listener.heard.append, listener.miss)
            await backend.bus.subscribe(in_slot_of(source, cluster, 1000), bystander.heard.append, bystander.miss)
            await backend.store.put(name, b"1", ttl=600)
            ids = {node.port: cluster.id_of(node) for node in cluster.masters}

            target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
            source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
            assert await backend.store.get(name) == b"1"
            new = f"{name}/new"
            await backend.store.put(new, b"2", ttl=600)  # ASK: it is not there yet, so it is created at the target
            assert target.run("CLUSTER", "GETKEYSINSLOT", slot, 10) == [stored(new)]
            assert await backend.store.get(new) == b"2"
            cluster.move_keys(slot, source, target)
            assert await backend.store.get(name) == b"1"
            for node in (target, source, cluster.masters[2]):
                node.run("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])

            assert await backend.store.swap(name, b"1", b"3", ttl=600)  # MOVED
            assert await other.store.get(name) == b"3"
            await eventually(lambda: listener.missed == 1)
            assert await other.bus.publish(name, b"4") == 1
            await eventually(lambda: listener.heard == [b"4"])
            assert bystander.missed == 0


async def test_a_node_of_a_cluster_that_dies_is_replaced_by_its_replica(tmp_path: Path) -> None:
    with redis_cluster(tmp_path, replicas=1) as cluster:
        first = cluster.masters[0]
        async with started(cluster.url, timeout=30) as backend, started(cluster.url, timeout=30) as other:
            name, elsewhere = in_slot_of(first, cluster), in_slot_of(cluster.masters[1], cluster)
            listener, bystander = Listener(), Listener()
            await backend.bus.subscribe(name, listener.heard.append, listener.miss)
            await backend.bus.subscribe(elsewhere, bystander.heard.append, bystander.miss)
            await backend.store.put(name, b"1", ttl=600)
            first.until_replicated()
            first.kill()
            await backend.ping()  # the other nodes answer
            assert await backend.store.swap(name, b"1", b"2", ttl=600)
            assert await other.store.get(name) == b"2"
            await eventually(lambda: listener.missed == 1)
            assert await other.bus.publish(name, b"3") == 1
            await eventually(lambda: listener.heard == [b"3"])
            assert bystander.missed == 0
            assert await other.bus.publish(elsewhere, b"4") == 1
            await eventually(lambda: bystander.heard == [b"4"])


async def test_a_new_master_is_found_before_the_connection_to_the_old_one_is_opened(
    shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[bus._Link] = []
    join = bus._Link.join

    def join_and_renew(link: bus._Link, topic: Any) -> None:
        join(link, topic)
        joined.append(link)
        if len(joined) == 1:
            link._bus.renew()  # the task of the link has not begun yet

    monkeypatch.setattr(bus._Link, "join", join_and_renew)
    heard: list[bytes] = []
    backend = RedisBackend(shared_redis.url)  # without a start, it has no link yet
    try:
        await backend.bus.subscribe("renewed", heard.append)
        assert len(joined) == len(set(joined)) == 2
        await backend.bus.publish("renewed", b"1")
        await eventually(lambda: heard == [b"1"])
    finally:
        await backend.close()


async def test_a_node_of_a_cluster_that_is_down_stops_only_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_cluster(tmp_path) as cluster:
        for node in cluster.masters:
            node.run("CONFIG", "SET", "cluster-require-full-coverage", "no")
        async with started(cluster.url, timeout=1) as backend:
            names = [in_slot_of(node, cluster) for node in cluster.masters]
            for name in names:
                await backend.store.put(name, b"1", ttl=600)
            cluster.masters[0].kill()
            with pytest.raises(BackendUnavailable):
                await backend.store.get(names[0])
            assert [await backend.store.get(name) for name in names[1:]] == [b"1", b"1"]
            await backend.ping()
            fresh = RedisBackend(cluster.url)
            await fresh.ping()  # without a start, it does not know the nodes yet
            await fresh.close()
            for node in cluster.masters[1:]:
                node.pause()
            with pytest.raises(BackendUnavailable):
                await backend.ping()
            cluster.masters[2].resume()
            with monkeypatch.context() as patches:
                patches.setattr(commands, "ATTEMPT_SECONDS", 600)
                async with asyncio.timeout(30):  # a node that hangs does not delay it
                    await backend.ping()
            cluster.masters[1].resume()
            cluster.masters[0].start()
            cluster.until_ok()
            assert await backend.store.get(names[0]) == b"1"


async def test_a_cluster_with_a_password(tmp_path: Path) -> None:
    with redis_cluster(tmp_path, password="hunter2") as cluster:
        async with started(cluster.url) as backend:
            await asyncio.gather(*(backend.store.put(f"a/{number}", b"1", ttl=60) for number in range(50)))


@pytest.fixture(autouse=True)
def _few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


async def test_every_outage_is_logged_once_and_its_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "weft.redis")
    monkeypatch.setattr(bus, "STEADY_SECONDS", 0.2)
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            missed: list[int] = []
            await backend.bus.subscribe("topic", lambda _: None, lambda: missed.append(1))
            caplog.clear()
            for number in (1, 2):
                redis.kill()
                await asyncio.sleep(0.5)  # some attempts fail
                await asyncio.to_thread(redis.start)
                await eventually(lambda number=number: len(missed) == number)
                await asyncio.sleep(0.3)
    told = [message.partition(" (")[0] for message in caplog.messages]
    broke, back = "The connection to Redis for messages broke", "The connection to Redis for messages is open again."
    assert told == [broke, back] * 2


async def test_a_password_that_stops_to_work_is_told_as_at_the_start(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        redis.run("ACL", "SETUSER", "shop", "on", ">hunter2", "~*", "&*", "+@all")
        async with started(f"redis://shop:hunter2@127.0.0.1:{redis.port}", timeout=1) as backend:
            redis.run("ACL", "SETUSER", "shop", "resetpass", ">another")
            redis.run("CLIENT", "KILL", "USER", "shop")
            for call in (backend.store.get("a"), backend.ping(), backend.bus.subscribe("a", print)):
                with pytest.raises(BackendUnavailable, match="refused the user or the password of the URL"):
                    await call
