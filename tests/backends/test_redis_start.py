"""How a Redis backend starts: what it checks, and what it tells people to do."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.certificates import Authority
from support.ports import find_port
from support.redis_servers import Cluster, RedisServer, redis_sentinel, redis_server, started
from support.resp import scripted_redis
from weft.backends.redis import Finding, RedisBackend, checks
from weft.errors import BackendUnavailable, StartError

SECRET = "hunter2"


async def refusal(url: str, **options: Any) -> str:
    """The sentence with which a backend does not start. It comes soon, and without the password."""
    began = time.monotonic()
    with pytest.raises(StartError) as caught:
        async with started(url, **options):
            pass
    assert time.monotonic() - began < 5
    assert SECRET not in str(caught.value)
    return str(caught.value)


async def works(backend: RedisBackend) -> bool:
    await backend.store.put("a/b", b"1", ttl=10)
    return await backend.store.get("a/b") == b"1"


# --- ways to a server


@pytest.mark.parametrize("is_unix", [False, True])
async def test_a_password_and_a_unix_socket(tmp_path: Path, is_unix: bool) -> None:
    with redis_server(tmp_path, password=SECRET, is_unix=is_unix) as redis:
        async with started(redis.url) as backend:
            assert await works(backend)
        assert "refused the user or the password" in await refusal(redis.url.replace(SECRET, "wrong"))
        assert "requires a password, and the URL has none" in await refusal(redis.url.replace(f":{SECRET}@", ""))


async def test_a_password_that_is_not_needed(shared_redis: RedisServer) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{shared_redis.port}"
    assert "Remove the password from the URL" in await refusal(url)


async def test_tls(tmp_path: Path) -> None:
    with redis_server(tmp_path, authority=Authority(tmp_path, "ours")) as redis:
        async with started(redis.url) as backend:
            assert await works(backend)
        plain, _, query = redis.url.partition("?")
        assert "add ?ssl_ca_certs=FILE to the URL" in await refusal(plain)
        async with started(f"{plain}?ssl_cert_reqs=none") as backend:
            assert await works(backend)
        assert "rediss" in await refusal(f"redis://127.0.0.1:{redis.port}", timeout=0.3)
        other = redis_server(tmp_path / "other", authority=Authority(tmp_path, "ours"))
        with other as elsewhere:
            assert "TLS connection" in await refusal(f"{elsewhere.url.partition('?')[0]}?{query}")


async def test_tls_with_a_certificate_for_another_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    certificate = authority.issue("redis.example")
    files = {"tls-cert-file": certificate, "tls-key-file": certificate}
    with redis_server(tmp_path, authority=authority, options=files) as redis:
        assert "TLS connection" in await refusal(redis.url)
        async with started(f"{redis.url}&ssl_check_hostname=false") as backend:
            assert await works(backend)


async def test_a_plain_server_with_a_url_for_tls(shared_redis: RedisServer) -> None:
    told = await refusal(f"rediss://127.0.0.1:{shared_redis.port}", timeout=0.3)
    assert "If it does not use TLS, begin the URL with redis." in told


async def test_a_server_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    port = find_port()
    told = await refusal(f"redis://127.0.0.1:{port}", timeout=0.3)
    assert f"127.0.0.1:{port} cannot be reached" in told
    assert "Check that it runs" in told
    assert f"Redis at redis://127.0.0.1:{port} cannot be reached yet" in caplog.messages[0]
    assert caplog.messages[0].endswith("Trying for 0.3 s.")
    assert len(caplog.messages) == 1
    with pytest.raises(BackendUnavailable):  # so that a request that starts the server is told to come again
        await RedisBackend(f"redis://127.0.0.1:{port}", timeout=0.3).start()


async def test_a_unix_socket_that_is_not_there(tmp_path: Path) -> None:
    told = await refusal(f"unix://{tmp_path}/nothing", timeout=0.1)
    assert "Check that it runs, that the URL names its socket, and that this user may open the socket." in told
    assert "rediss" not in told


async def test_a_database_that_is_not_there(shared_redis: RedisServer) -> None:
    told = await refusal(f"{shared_redis.url}/99")
    assert "/99 has no database 99. Write a smaller number in the URL (the default is 0), or raise `databases`" in told
    assert "cannot be reached" not in told


async def test_a_server_that_comes_later(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    backend = RedisBackend(redis.url)
    starting = asyncio.create_task(backend.start())
    await asyncio.sleep(0.3)
    try:
        await asyncio.to_thread(redis.start)
        await starting
        assert await works(backend)
        await backend.close()
    finally:
        redis.kill()


async def test_a_server_that_accepts_and_says_nothing(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        redis.pause()
        began = time.monotonic()
        with pytest.raises(StartError, match="no answer in time"):
            await RedisBackend(redis.url, timeout=0.5).start()
        assert time.monotonic() - began < 5


# --- rights

RIGHTS = checks._RIGHTS


@asynccontextmanager
async def user(redis: RedisServer, *rules: str) -> AsyncIterator[str]:
    """The URL of a user with these rights only."""
    redis.run("ACL", "SETUSER", "shop", "reset", "on", f">{SECRET}", *rules)
    try:
        yield f"redis://shop:{SECRET}@127.0.0.1:{redis.port}"
    finally:
        redis.run("ACL", "DELUSER", "shop")


async def test_the_rights_that_the_remedy_names_suffice(shared_redis: RedisServer) -> None:
    async with (
        user(shared_redis, "~weft:*", "&weft:*", *RIGHTS.split()) as url,
        started(url) as backend,
    ):
        assert await works(backend)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        *(
            (("~weft:*", "&weft:*", "+@all", f"-{name}"), f"may not run the command {told} in Redis")
            for name, told in {
                "xadd": "XADD",
                "zadd": "ZADD",
                "zrem": "ZREM",
                "zcard": "ZCARD or ZSCORE",
                "zscore": "ZCARD or ZSCORE",
                "zrevrange": "ZREVRANGE",
                "zrangebyscore": "ZRANGEBYSCORE",
                "zremrangebyscore": "ZREMRANGEBYSCORE",
                "pexpireat": "PEXPIREAT",
                "xrevrange": "TIME or XREVRANGE",
            }.items()
        ),
        (("~weft:*", "&weft:*", "+@all", "-eval"), "EVAL"),
        (("~weft:*", "&weft:*", "+@all", "-get"), "GET"),
        (("~weft:*", "&weft:*", "+@all", "-publish"), "PUBLISH"),
        (("~weft:*", "&weft:*", "+@all", "-subscribe"), "SUBSCRIBE"),
        (("~weft:*", "&weft:*", "+@all", "-time"), "TIME"),
        (("~weft:*", "&weft:*", "+@all", "-ping"), "PING"),
        (("~other:*", "&weft:*", "+@all"), "use keys that begin with the prefix"),
        (("~weft:*", "+@all"), "use channels (topics) that begin with the prefix"),
    ],
)
async def test_a_right_that_is_missing_is_named(shared_redis: RedisServer, rules: tuple[str, ...], told: str) -> None:
    async with user(shared_redis, *rules) as url:
        sentence = await refusal(url)
    assert told in sentence
    assert "The user of the URL may not" in sentence
    assert "redis-cli ACL SETUSER shop '~weft:*' '&weft:*' +get " in sentence
    assert sentence.endswith(" +select '+client|setname' '+cluster|slots' +asking")


async def test_the_remedy_is_told_once(shared_redis: RedisServer) -> None:
    async with user(shared_redis, "~weft:*", "&weft:*", "+@all", "-eval") as url:
        found = await RedisBackend(url).diagnose()
    errors = [finding for finding in found if finding.level == "error"]
    assert len(errors) == 3
    assert [bool(finding.remedy) for finding in errors] == [True, False, False]


async def test_a_command_that_a_newer_redis_names_is_told() -> None:
    error = b"-ERR ACL failure in script: User shop has no permissions to run the 'xadd' command script: 0, on @x:1\r\n"
    answers = info(redis_version="7.2.4", role="master", used_memory_human="1M") | {"EVAL": error, "SET": b"+OK\r\n"}
    async with scripted_redis(answers) as port:
        found = await RedisBackend(f"redis://127.0.0.1:{port}", timeout=0.3).diagnose()
    assert any("may not run the command XADD" in finding.sentence for finding in found)


async def test_info_and_config_may_be_forbidden(shared_redis: RedisServer) -> None:
    async with user(shared_redis, "~weft:*", "&weft:*", "+@all", "-info", "-config") as url, started(url) as backend:
        assert await works(backend)
        found = await backend.diagnose()
    assert any("is Redis 7" in finding.sentence for finding in found)
    (warning,) = [finding for finding in found if finding.level == "warning"]
    assert warning.sentence.endswith("and whether it saves its data, could not be checked: +info is missing.")
    assert warning.remedy == "Allow the command INFO: redis-cli ACL SETUSER shop +info"


async def test_diagnose_tells_that_persistence_could_not_be_checked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server(tmp_path, options={"appendonly": "no"}) as redis:
        async with user(redis, "~weft:*", "&weft:*", *RIGHTS.split()) as url, started(url) as backend:
            found = await backend.diagnose()
    (warning,) = [finding for finding in found if finding.level == "warning"]
    assert warning.sentence.endswith("saves its data to disk could not be checked: +config|get is missing.")
    assert warning.remedy.endswith("allow the command CONFIG GET: redis-cli ACL SETUSER shop '+config|get'")
    assert "could not be checked" not in caplog.text  # these are the rights that are recommended


# --- versions and settings

TIME = b"*2\r\n$10\r\n%d\r\n$1\r\n0\r\n"


def info(**facts: str) -> dict[str, bytes]:
    text = "".join(f"{name}:{value}\r\n" for name, value in facts.items()).encode()
    return {
        "INFO": b"$%d\r\n%s\r\n" % (len(text), text), "PING": b"+PONG\r\n", "TIME": TIME % int(time.time()),
        "CONFIG": b"-NOPERM no\r\n", "EVAL": b"-ERR not here\r\n", "SET": b"-ERR not here\r\n",
    }  # fmt: skip


async def test_an_old_version_is_refused() -> None:
    async with scripted_redis(info(redis_version="6.2.14", role="master")) as port:
        told = await refusal(f"redis://127.0.0.1:{port}")
    assert "is Redis 6.2.14, which is too old" in told
    assert "Install Redis 7 or newer, or Valkey" in told


async def test_valkey_reports_a_version_of_redis_and_its_own() -> None:
    async with scripted_redis(info(redis_version="7.2.4", valkey_version="8.1.0", role="master")) as port:
        found = await RedisBackend(f"valkey://127.0.0.1:{port}", timeout=0.3).diagnose()
    assert any(finding.level == "ok" and "is Valkey 8.1.0" in finding.sentence for finding in found)


async def test_a_server_that_deletes_entries_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(tmp_path, options={"maxmemory-policy": "allkeys-lru"}) as redis:
        async with started(redis.url):
            pass
    assert "may delete entries that are in use" in caplog.text
    assert "Set maxmemory-policy to noeviction" in caplog.text


@pytest.mark.parametrize(("ahead", "order"), [(5, "behind"), (-5, "ahead of")])
async def test_a_clock_that_differs_is_warned_of(
    shared_redis: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    order: str,
) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + ahead, monotonic=time.monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(checks, "time", clock)
    async with started(shared_redis.url):
        pass
    assert f"5.0 s {order} the clock of this machine" in caplog.text
    assert "NTP" in caplog.text


async def test_a_replica_is_refused(tmp_path: Path, shared_redis: RedisServer) -> None:
    with redis_server(tmp_path, options={"replicaof": f"127.0.0.1 {shared_redis.port}"}) as redis:
        assert "is a replica, which accepts no writes" in await refusal(redis.url)


async def test_a_cluster_needs_the_url_of_a_cluster(shared_cluster: Cluster, shared_redis: RedisServer) -> None:
    port = shared_cluster.masters[0].port
    told = await refusal(f"redis://127.0.0.1:{port}")
    assert f"Begin the URL with redis+cluster://127.0.0.1:{port}" in told
    told = await refusal(f"redis+cluster://127.0.0.1:{shared_redis.port}")
    assert "is not a cluster. Begin the URL with redis://" in told


async def test_sentinels_need_the_url_of_sentinels(tmp_path: Path, shared_redis: RedisServer) -> None:
    with redis_sentinel(tmp_path, password=SECRET, sentinel_password=f"{SECRET}s") as sentinel:
        async with started(sentinel.url) as backend:
            assert await works(backend)
        port = sentinel.sentinel.port
        told = await refusal(f"redis://:{SECRET}s@127.0.0.1:{port}")
        assert f"Write redis+sentinel://127.0.0.1:{port}/mymaster" in told
        found = await RedisBackend(f"redis://:{SECRET}s@127.0.0.1:{port}").diagnose()
        assert not any("is missing" in finding.sentence for finding in found)
        assert "sentinel_password" in await refusal(sentinel.url.partition("?")[0])
        told = await refusal(sentinel.url.replace("/mymaster", "/other"), timeout=0.3)
        assert "No Sentinel knows a master named 'other'. Write the name of a master in the URL." in told
        assert told.endswith("The Sentinels know: mymaster.")
    told = await refusal(f"redis+sentinel://127.0.0.1:{shared_redis.port}/mymaster")
    assert "is not a Sentinel" in told


# --- diagnose


async def test_diagnose_tells_everything(shared_redis: RedisServer) -> None:
    backend = RedisBackend(shared_redis.url)
    found = await backend.diagnose()  # without a start
    assert {finding.level for finding in found} == {"ok"}
    text = " ".join(finding.sentence for finding in found)
    for part in (
        "answers",
        "is Redis 7",
        "of memory (limit: none)",
        "clocks",
        "round trip",
        "store",
        "log",
        "sets",
        "bus",
    ):
        assert part in text
    assert "does not save its data" not in text


@pytest.mark.parametrize("kind", ["shared_redis", "shared_cluster"])
async def test_a_backend_works_without_a_start(kind: str, request: pytest.FixtureRequest) -> None:
    backend = RedisBackend(request.getfixturevalue(kind).url)
    assert await works(backend)
    heard: list[bytes] = []
    unsubscribe = await backend.bus.subscribe("topic", heard.append)
    assert await backend.bus.publish("topic", b"hello") == 1
    await unsubscribe()
    await backend.ping()
    await backend.close()


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_closed_backend_is_refused_until_it_is_started_again(
    shared_redis: RedisServer, is_started: bool
) -> None:
    backend = RedisBackend(shared_redis.url)
    if is_started:
        await backend.start()
    assert await works(backend)
    await backend.close()
    for use in (backend.ping(), backend.store.get("a"), backend.bus.publish("topic", b"1")):
        with pytest.raises(BackendUnavailable, match="was closed"):
            await use
    assert backend._running is None
    await backend.start()
    assert await works(backend)
    await backend.close()


async def test_diagnose_notes_a_server_that_saves_nothing(tmp_path: Path) -> None:
    with redis_server(tmp_path, options={"appendonly": "no"}) as redis:
        found = await RedisBackend(redis.url).diagnose()
    (warning,) = [finding for finding in found if finding.level != "ok"]
    assert warning.level == "warning"
    assert "does not save its data to disk" in warning.sentence
    assert warning.remedy == "If sessions shall survive a restart of Redis, set appendonly yes."


@pytest.mark.parametrize(
    ("limit", "policy", "level"),
    [
        ("500kb", "noeviction", "error"),
        ("500kb", "allkeys-lru", "ok"),  # it always uses all its memory
        ("500mb", "noeviction", "ok"),
    ],
)
async def test_a_server_without_free_memory(tmp_path: Path, limit: str, policy: str, level: str) -> None:
    with redis_server(tmp_path, options={"maxmemory": limit, "maxmemory-policy": policy}) as redis:
        found = await RedisBackend(redis.url).diagnose()
        (memory,) = [finding for finding in found if "of memory (limit: 500.00" in finding.sentence]
        assert memory.level == level
        if level == "error":
            assert "It is full, and refuses to store anything: raise maxmemory" in memory.remedy
            with pytest.raises(BackendUnavailable):  # a later start may succeed
                await RedisBackend(redis.url).start()


async def test_a_server_with_little_free_memory_is_warned_of() -> None:
    facts = {"used_memory": "95", "used_memory_human": "95B", "maxmemory": "100", "maxmemory_human": "100B"}
    async with scripted_redis(info(redis_version="7.2.4", maxmemory_policy="noeviction", **facts)) as port:
        found = await RedisBackend(f"redis://127.0.0.1:{port}", timeout=0.3).diagnose()
    (warning,) = [finding for finding in found if finding.level == "warning"]
    assert "uses 95B of memory (limit: 100B)" in warning.sentence
    assert "raise maxmemory" in warning.remedy


async def test_a_server_that_gets_full_is_told(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with started(redis.url) as backend:
            redis.run("CONFIG", "SET", "maxmemory", "500kb")
            with pytest.raises(BackendUnavailable, match=r"is full: .* Raise maxmemory\.$"):
                await backend.store.put("k", b"x", ttl=10)


async def test_diagnose_looks_at_each_node_of_a_cluster(shared_cluster: Cluster) -> None:
    found = await RedisBackend(shared_cluster.url).diagnose()
    assert {finding.level for finding in found} == {"ok"}
    for node in shared_cluster.masters:
        assert any(f"127.0.0.1:{node.port} is Redis 7" in finding.sentence for finding in found)


async def test_diagnose_returns_what_start_raises() -> None:
    (finding,) = await RedisBackend(f"redis://:{SECRET}@127.0.0.1:{find_port()}", timeout=0.1).diagnose()
    assert finding.level == "error"
    assert "cannot be reached" in finding.sentence
    assert "Check that it runs" in finding.remedy
    assert str(finding) == f"{finding.sentence} {finding.remedy}"
    assert str(Finding("ok", "It works.")) == "It works."


async def test_diagnose_warns_of_a_long_way(shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_LATENCY", 0.0)
    found = await RedisBackend(shared_redis.url).diagnose()
    (warning,) = [finding for finding in found if finding.level == "warning"]
    assert "run Redis near the workers" in warning.remedy


# --- users of one backend


async def test_a_start_that_fails_can_be_repeated(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    backend = RedisBackend(redis.url, timeout=0.2)
    results = await asyncio.gather(backend.start(), backend.start(), return_exceptions=True)
    assert all(isinstance(result, StartError) for result in results)
    try:
        await asyncio.to_thread(redis.start)
        await backend.start()
        assert await works(backend)
        await backend.close()
        await backend.close()  # one more than starts
        assert backend._running is None
    finally:
        redis.kill()


async def test_one_of_two_users_gives_up_while_the_backend_starts(shared_redis: RedisServer) -> None:
    backend = RedisBackend(shared_redis.url)
    first, second = asyncio.create_task(backend.start()), asyncio.create_task(backend.start())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    assert await works(backend)
    await backend.close()


async def test_the_last_user_gives_up_while_the_backend_starts() -> None:
    backend = RedisBackend(f"redis://127.0.0.1:{find_port()}")
    starting = asyncio.create_task(backend.start())
    await asyncio.sleep(0.1)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def test_a_backend_whose_event_loop_ended_can_be_started_again(shared_redis: RedisServer) -> None:
    backend = RedisBackend(shared_redis.url)

    async def forget_to_close() -> None:
        await backend.start()

    async def use() -> None:
        await backend.start()
        assert await works(backend)
        await backend.close()

    asyncio.run(forget_to_close())
    asyncio.run(use())


async def test_nothing_is_left_after_close(shared_redis: RedisServer) -> None:
    def connections() -> int:
        with shared_redis.client() as client:
            return len(client.client_list())

    before = connections()
    async with started(shared_redis.url) as backend:
        await asyncio.gather(*(backend.store.get(f"{number}") for number in range(1000)))
        await backend.bus.subscribe("a/b", lambda _: None)
        assert connections() <= before + 5  # four for commands, one for messages
    for _ in range(100):
        if connections() == before:
            break
        await asyncio.sleep(0.02)
    assert connections() == before
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# --- secrets, and the package redis


async def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with redis_server(tmp_path, password=SECRET) as redis:
        async with started(redis.url, timeout=3) as backend:
            await backend.bus.subscribe("a/b", lambda _: None)
            redis.kill()
            with pytest.raises(BackendUnavailable) as caught:
                await backend.store.get("a")
            assert SECRET not in str(caught.value)
            redis.password = None
            redis.lines["requirepass"] = "other"
            redis.start()
            with pytest.raises(BackendUnavailable) as caught:
                await backend.store.get("a")
            assert "refused the user or the password of the URL" in str(caught.value)
            await asyncio.sleep(0.2)
        await refusal(f"redis://:{SECRET}@127.0.0.1:{redis.port}")
    assert "connection to Redis for messages broke" in caplog.text
    assert SECRET not in caplog.text


def test_without_the_package_the_remedy_is_told() -> None:
    program = """
import sys
sys.modules["redis"] = None
from weft.backends import open_backend
from weft.errors import UsageError
try:
    open_backend("redis://h")
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == 'A backend in Redis needs the package redis. Install it: pip install "weft-mcp[redis]"\n'


def test_weft_imports_redis_only_for_a_backend_in_redis() -> None:
    program = (
        "import sys, weft.server, weft.testing\nfrom weft import Server\nServer('s')\nassert 'redis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
