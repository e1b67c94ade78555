"""Clients that go away without a word leave nothing in Redis, and nothing at the workers, when their time is over."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.raw_sessions import FORM, AppPeer, Exchange, Reply, called, eventually, message
from support.redis_servers import RedisServer, redis_server
from weft import Context, Limits, Server
from weft.backends.redis import RedisBackend

ABANDONED = 2000
AT_ONCE = 50
SECONDS = 6.0  # every time of a session; long enough for a busy machine
OWN_KEYS = 3  # of two workers that are alive: two leases, and the set of workers

# One client has one address, so the limits per address are those of all.
LIMITS = Limits(
    sessions=2 * ABANDONED,
    sessions_per_peer=2 * ABANDONED,
    in_flight=ABANDONED,
    session_unused_seconds=SECONDS,
    session_idle_seconds=SECONDS,
    replay_seconds=SECONDS,
    ask_seconds=SECONDS,
    keep_alive_seconds=SECONDS / 4,
    drain_seconds=0.5,
)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def workers(redis: RedisServer) -> AsyncIterator[list[Server]]:
    made = [make_worker(redis.url) for _ in range(2)]
    for server in made:
        await server.start()
    yield made
    for server in made:
        await server.stop()
    assert redis.run("DBSIZE") == len(made)  # that each has left
    assert without_expiry(redis) == []


def make_worker(url: str) -> Server:
    server = Server("fleet", backend=RedisBackend(url), state_keys=["only for this test " * 2], limits=LIMITS)
    server.add_resource("a://1", "one")

    @server.tool
    async def steps(ctx: Context) -> str:
        for number in range(3):
            await ctx.report_progress(number)
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("go on?", Reply)
        return "done"

    return server


# What a client does before it goes away. It has opened its session at one worker; `other` is the client at the other.


async def opens(client: AppPeer, other: AppPeer) -> None:
    pass


async def reads_a_stream(client: AppPeer, other: AppPeer) -> None:
    assert await (await client.post(called("steps", progress="p"))).text() == "done"
    assert await (await other.post(called("steps", progress="p"))).text() == "done"


async def leaves_a_stream(client: AppPeer, other: AppPeer) -> None:
    call = await other.post(called("steps", progress="p"))
    assert (await call.message())["method"] == "notifications/progress"


async def subscribes(client: AppPeer, other: AppPeer) -> None:
    assert (await client.post(message("resources/subscribe", {"uri": "a://1"}, 1))).status == 200
    assert (await other.post(message("logging/setLevel", {"level": "error"}, 2))).status == 200


async def listens(client: AppPeer, other: AppPeer) -> None:
    await subscribes(client, other)
    stream = await other.get()
    assert stream.status == 200
    await stream.first()


async def hears_of_a_change(client: AppPeer, other: AppPeer) -> None:
    stream = await other.get()
    await stream.first()
    assert (await client.post(message("resources/subscribe", {"uri": "a://1"}, 1))).status == 200
    await updated(client, stream)


async def updated(client: AppPeer, stream: Exchange) -> None:
    """Change the resource until the stream has heard of it: the worker of the stream learns of a subscription soon."""
    server: Any = client.app.runtime.owner
    async with asyncio.timeout(30):
        while True:
            server.notify_resource_updated("a://1")
            try:
                assert (await stream.message(0.2))["method"] == "notifications/resources/updated"
            except TimeoutError:
                continue
            return


async def is_asked(client: AppPeer, other: AppPeer) -> None:
    call = await client.post(called("ask"))
    assert (await call.question())["params"]["message"] == "go on?"


async def is_asked_while_it_listens(client: AppPeer, other: AppPeer) -> None:
    await listens(client, other)
    await is_asked(client, other)


KINDS = (
    opens,
    reads_a_stream,
    leaves_a_stream,
    subscribes,
    listens,
    hears_of_a_change,
    is_asked,
    is_asked_while_it_listens,
)


async def abandon(number: int, apps: list[Any]) -> str:
    """Open a session, do something in it, and go away."""
    first, second = apps if number % 2 else reversed(apps)
    client = AppPeer(first)
    await client.open(capabilities=FORM, ready=number % len(KINDS) != 0)
    await KINDS[number % len(KINDS)](client, client.on(second))
    for exchange in client.exchanges:
        await exchange.close()
    assert client.session is not None
    return client.session


def without_expiry(redis: RedisServer) -> list[bytes]:
    """The keys that would stay if all workers were killed now."""
    with redis.client() as client:
        return [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]


def left_at(worker: Server) -> dict[str, int]:
    """What a worker still has of sessions."""
    engine = worker.engine
    streams = engine.sessions.streams
    counts = {
        "sessions": len(engine.sessions), "tasks": len(engine.sessions._background), "calls": engine.in_flight,
        "streams": len(streams._kept), "keys": len(streams._keys), "bytes": streams._bytes,
        "readers": len(streams._readers),
    }  # fmt: skip
    return {what: count for what, count in counts.items() if count}


async def test_two_thousand_abandoned_sessions_leave_nothing(redis: RedisServer, workers: list[Server]) -> None:
    apps = [server.asgi() for server in workers]
    channels = len(redis.run("PUBSUB", "CHANNELS"))
    sessions: set[str] = set()
    most_keys = 0
    for start in range(0, ABANDONED, AT_ONCE):
        sessions |= set(await asyncio.gather(*(abandon(number, apps) for number in range(start, start + AT_ONCE))))
        most_keys = max(most_keys, redis.run("DBSIZE"))
        if start == ABANDONED // 2:
            assert without_expiry(redis) == []
    assert len(sessions) == ABANDONED
    assert most_keys > 2 * AT_ONCE  # they were there

    await eventually(lambda: redis.run("DBSIZE") == OWN_KEYS and not any(map(left_at, workers)), 10 * SECONDS)
    assert len(redis.run("PUBSUB", "CHANNELS")) == channels
