"""What a client keeps, for whom, and for how long."""

from __future__ import annotations

import asyncio
import json

import pytest

from weft.client.requests.cache import (
    CACHEABLE,
    CacheEntry,
    CacheKey,
    MemoryCacheStore,
    ResponseCache,
    authorization_partition,
)

SERVER = "https://a.example/mcp"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> ResponseCache:
    return ResponseCache(clock=clock)


def result(mark: str = "x", **hints) -> bytes:
    return json.dumps({"resultType": "complete", "mark": mark, **hints}).encode()


def public(mark: str = "x", ttl: object = 1000) -> bytes:
    return result(mark, ttlMs=ttl, cacheScope="public")


def private(mark: str = "x", ttl: object = 1000) -> bytes:
    return result(mark, ttlMs=ttl, cacheScope="private")


async def put(view, method: str, params, kept: bytes) -> None:
    await view.put(method, params, kept, view.mark())


async def changed(view, notification: str, params=None) -> None:
    if view.receive(notification, json.dumps(params or {}).encode()):
        await view.drop_stale()


@pytest.mark.spec("CACHE-07", "CACHE-08")
async def test_fresh_until_the_very_millisecond(cache, clock):
    view = cache.view(SERVER)
    await put(view, "tools/list", {}, public(ttl=1000))
    clock.now += 0.999
    assert await view.get("tools/list", {}) == public(ttl=1000)
    clock.now += 0.001
    assert await view.get("tools/list", {}) is None


@pytest.mark.spec("CACHE-07")
@pytest.mark.parametrize("ttl", [0, -1, -5.5, None, "1000", True, [], {}])
async def test_nothing_without_a_positive_ttl(cache, ttl):
    view = cache.view(SERVER)
    await put(view, "tools/list", {}, public(ttl=ttl))
    assert await view.get("tools/list", {}) is None
    assert len(cache.store) == 0


@pytest.mark.spec("CACHE-07")
async def test_absent_hints_keep_nothing(cache):
    view = cache.view(SERVER)
    await put(view, "tools/list", {}, b'{"tools":[]}')
    await put(view, "prompts/list", {}, b"not json")
    assert len(cache.store) == 0


async def test_no_server_makes_an_answer_last_for_ever(cache, clock):
    view = cache.view(SERVER)
    await put(view, "tools/list", {}, public(ttl=10**30))
    clock.now += 24 * 3600 - 1
    assert await view.get("tools/list", {}) is not None
    clock.now += 1
    assert await view.get("tools/list", {}) is None


@pytest.mark.spec("CACHE-05")
async def test_another_question_gets_no_kept_answer(cache):
    view = cache.view(SERVER)
    await put(view, "resources/read", {"uri": "x://a"}, public("a"))
    assert await view.get("resources/read", {"uri": "x://a", "_meta": {"progressToken": 1}}) == public("a")
    assert await view.get("resources/read", {"uri": "x://b"}) is None
    assert await view.get("resources/read", {"uri": "x://a", "part": 2}) is None
    assert await view.get("resources/list", {"uri": "x://a"}) is None
    assert await cache.view("https://b.example/mcp").get("resources/read", {"uri": "x://a"}) is None


@pytest.mark.spec("CACHE-05")
async def test_the_order_of_params_is_no_difference(cache):
    view = cache.view(SERVER)
    await put(view, "resources/read", {"uri": "x://a", "part": 2}, public())
    assert await view.get("resources/read", {"part": 2, "uri": "x://a"}) == public()


async def test_only_what_the_protocol_lets_be_kept(cache):
    view = cache.view(SERVER)
    for method in ("tools/call", "prompts/get", "completion/complete"):
        assert method not in CACHEABLE
        await put(view, method, {"name": "n"}, public())
        assert await view.get(method, {"name": "n"}) is None
    assert len(cache.store) == 0


@pytest.mark.spec("CACHE-06")
@pytest.mark.parametrize("extra", [{"inputResponses": {}}, {"requestState": "s"}])
async def test_an_answer_to_a_later_round_is_not_kept(cache, extra):
    view = cache.view(SERVER)
    await put(view, "resources/read", {"uri": "x://a", **extra}, public())
    assert len(cache.store) == 0
    await put(view, "resources/read", {"uri": "x://a"}, public())
    assert await view.get("resources/read", {"uri": "x://a", **extra}) is None


async def test_a_result_that_asks_back_is_not_kept(cache):
    view = cache.view(SERVER)
    await put(view, "resources/read", {"uri": "x://a"}, public().replace(b'"complete"', b'"input_required"'))
    assert len(cache.store) == 0


@pytest.mark.spec("CACHE-11")
async def test_private_answers_stay_with_their_authorization(cache):
    ann = cache.view(SERVER, authorization_partition({"Authorization": "Bearer ann"}))
    bob = cache.view(SERVER, authorization_partition({"Authorization": "Bearer bob"}))
    await put(ann, "tools/list", {}, private("ann"))
    assert await bob.get("tools/list", {}) is None
    assert await cache.view(SERVER).get("tools/list", {}) is None
    await put(bob, "tools/list", {}, private("bob"))
    assert await ann.get("tools/list", {}) == private("ann")
    again = cache.view(SERVER, authorization_partition({"authorization": "Bearer ann"}))
    assert await again.get("tools/list", {}) == private("ann")


@pytest.mark.spec("CACHE-11")
@pytest.mark.parametrize("scope", [None, "Public", "shared", 1])
async def test_an_unknown_scope_is_private(cache, scope):
    ann, bob = cache.view(SERVER, "ann"), cache.view(SERVER, "bob")
    await put(ann, "tools/list", {}, result(ttlMs=1000, cacheScope=scope))
    assert await ann.get("tools/list", {}) is not None
    assert await bob.get("tools/list", {}) is None


async def test_public_answers_are_for_everybody(cache):
    await put(cache.view(SERVER, "ann"), "tools/list", {}, public("all"))
    assert await cache.view(SERVER, "bob").get("tools/list", {}) == public("all")


@pytest.mark.spec("CACHE-11")
async def test_a_public_answer_does_not_stand_in_for_ones_own(cache, clock):
    ann, bob = cache.view(SERVER, "ann"), cache.view(SERVER, "bob")
    await put(ann, "tools/list", {}, private("ann", ttl=10))
    await put(bob, "tools/list", {}, public("bob", ttl=1000))
    clock.now += 0.5
    assert await ann.get("tools/list", {}) is None  # her own is stale: the server is asked, not Bob's entry
    assert await bob.get("tools/list", {}) == public("bob", ttl=1000)


def test_a_partition_does_not_tell_the_token():
    assert "secret" not in authorization_partition({"Authorization": "Bearer secret"})
    assert authorization_partition({"X-Key": "1"}) != authorization_partition({"X-Key": "2"})


@pytest.mark.spec("CACHE-12")
@pytest.mark.parametrize(
    ("notification", "stale", "kept"),
    [
        ("notifications/tools/list_changed", ["tools/list"], ["prompts/list", "resources/list"]),
        ("notifications/prompts/list_changed", ["prompts/list"], ["tools/list"]),
        (
            "notifications/resources/list_changed",
            ["resources/list", "resources/templates/list"],
            ["tools/list", "server/discover"],
        ),
        ("notifications/message", [], ["tools/list"]),
    ],
)
async def test_a_change_makes_its_list_stale(cache, notification, stale, kept):
    view = cache.view(SERVER, "ann")
    elsewhere = cache.view("https://b.example/mcp", "ann")
    for method in stale + kept:
        await put(view, method, {}, private())
        await put(elsewhere, method, {}, private())
    await changed(view, notification)
    assert [await view.get(method, {}) for method in stale] == [None] * len(stale)
    assert None not in [await view.get(method, {}) for method in kept]
    assert None not in [await elsewhere.get(method, {}) for method in stale]


@pytest.mark.spec("CACHE-12")
async def test_an_update_makes_the_resource_and_what_holds_it_stale(cache):
    view = cache.view(SERVER)
    uris = ["x://a/b/c", "x://a/b", "x://a/", "x://a/b/c/d", "x://a/other"]
    for uri in uris:
        await put(view, "resources/read", {"uri": uri}, public(uri))
    await changed(view, "notifications/resources/updated", {"uri": "x://a/b/c"})
    fresh = [uri for uri in uris if await view.get("resources/read", {"uri": uri})]
    assert fresh == ["x://a/b/c/d", "x://a/other"]


@pytest.mark.spec("CACHE-12")
@pytest.mark.parametrize("params", [None, {}, {"uri": 5}, {"uri": "x:" + "/" * 10_000}])
async def test_an_update_of_who_knows_what_makes_all_of_them_stale(cache, params):
    view = cache.view(SERVER)
    await put(view, "resources/read", {"uri": "x://a"}, public())
    await changed(view, "notifications/resources/updated", params)
    assert await view.get("resources/read", {"uri": "x://a"}) is None


@pytest.mark.spec("CACHE-12")
async def test_an_answer_that_a_change_overtook_is_not_kept(cache):
    view = cache.view(SERVER)
    before = view.mark()
    await changed(view, "notifications/tools/list_changed")
    await view.put("tools/list", {}, public(), before)
    assert await view.get("tools/list", {}) is None
    await view.put("prompts/list", {}, public(), before)
    assert await view.get("prompts/list", {}) is not None
    await put(view, "tools/list", {}, public())
    assert await view.get("tools/list", {}) is not None


@pytest.mark.spec("CACHE-13")
async def test_pages_are_kept_one_by_one(cache, clock):
    view = cache.view(SERVER)
    await put(view, "tools/list", {}, public("1", ttl=1000))
    await put(view, "tools/list", {"cursor": "2"}, public("2", ttl=5000))
    assert await view.get("tools/list", {"cursor": "3"}) is None
    clock.now += 2
    assert await view.get("tools/list", {}) is None
    assert await view.get("tools/list", {"cursor": "2"}) == public("2", ttl=5000)
    await put(view, "tools/list", {}, public("1 again"))
    assert await view.get("tools/list", {"cursor": "2"}) == public("2", ttl=5000)


@pytest.mark.spec("CACHE-11")
async def test_a_shared_page_never_continues_a_private_list(cache):
    ann, bob = cache.view(SERVER, "ann"), cache.view(SERVER, "bob")
    await put(bob, "tools/list", {}, public("bob 1"))
    await put(bob, "tools/list", {"cursor": "2"}, public("bob 2"))
    await put(ann, "tools/list", {}, private("ann 1"))
    assert await ann.get("tools/list", {"cursor": "2"}) is None
    await put(ann, "tools/list", {"cursor": "2"}, public("mixed"))
    assert await ann.get("tools/list", {"cursor": "2"}) is None
    await put(ann, "tools/list", {"cursor": "2"}, private("ann 2"))
    assert await ann.get("tools/list", {"cursor": "2"}) == private("ann 2")


async def test_a_page_without_its_first_is_not_kept(cache):
    view = cache.view(SERVER)
    await put(view, "tools/list", {"cursor": "2"}, public())
    assert len(cache.store) == 0


async def test_a_list_that_changes_its_scope_begins_anew(cache):
    view = cache.view(SERVER, "ann")
    await put(view, "tools/list", {}, private("1"))
    await put(view, "tools/list", {"cursor": "2"}, private("2"))
    await put(view, "tools/list", {}, public("1"))
    assert await view.get("tools/list", {}) == public("1")
    assert await view.get("tools/list", {"cursor": "2"}) is None
    assert len(cache.store) == 1


@pytest.mark.spec("CACHE-14")
async def test_a_refused_cursor_drops_every_page(cache):
    view = cache.view(SERVER, "ann")
    await put(view, "tools/list", {}, private("1"))
    await put(view, "tools/list", {"cursor": "2"}, private("2"))
    before = view.mark()
    await view.drop("tools/list")
    assert len(cache.store) == 0
    await view.put("tools/list", {"cursor": "3"}, private("3"), before)
    assert len(cache.store) == 0


@pytest.mark.security("R12")
async def test_entries_are_bounded(clock):
    store = MemoryCacheStore(max_entries=3)
    view = ResponseCache(store, clock=clock).view(SERVER)
    for number in range(3):
        await put(view, "resources/read", {"uri": f"x://{number}"}, public())
    assert len(store) == 3
    assert await view.get("resources/read", {"uri": "x://0"})  # used: not the next to go
    await put(view, "resources/read", {"uri": "x://3"}, public())
    assert len(store) == 3
    assert await view.get("resources/read", {"uri": "x://1"}) is None
    assert await view.get("resources/read", {"uri": "x://0"})


@pytest.mark.security("R12")
async def test_bytes_are_bounded(clock):
    store = MemoryCacheStore(max_bytes=10_000)
    view = ResponseCache(store, clock=clock).view(SERVER)
    await put(view, "resources/read", {"uri": "x://huge"}, public("x" * 10_000))
    assert len(store) == 0
    for number in range(20):
        await put(view, "resources/read", {"uri": f"x://{number}"}, public("x" * 3000))
    assert len(store) == 2
    for _ in range(5):  # the same again: counted once
        await put(view, "resources/read", {"uri": "x://19"}, public("x" * 3000))
    assert len(store) == 2


async def test_a_store_of_ones_own(clock):
    class Kept(dict):
        async def get(self, key):
            return dict.get(self, key)

        async def set(self, key, entry):
            self[key] = entry

        async def drop(self, server, method, params=None):
            self.clear()

    store = Kept()
    view = ResponseCache(store, clock=clock).view(SERVER)
    await put(view, "tools/list", {}, public())
    assert await view.get("tools/list", {}) == public()
    await changed(view, "notifications/tools/list_changed")
    assert not store


class BrokenStore:
    """A store whose machine is gone."""

    async def get(self, key: object) -> None:
        raise OSError("gone")

    async def set(self, key: object, entry: object) -> None:
        raise OSError("gone")

    async def drop(self, server: str, method: str, params: object = None) -> None:
        raise OSError("gone")


async def test_a_store_that_fails_is_told_of_and_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    view = ResponseCache(BrokenStore()).view(SERVER)
    assert await view.get("tools/list") is None
    await view.put("tools/list", None, public(), view.mark())
    await changed(view, "notifications/tools/list_changed")
    await view.drop("tools/list")
    assert caplog.messages == ["The store of the cache failed; the client goes on without it."] * 4


class SlowStore(MemoryCacheStore):
    """A store on another machine: what it keeps takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def set(self, key: CacheKey, entry: CacheEntry) -> None:
        self.asked.set()
        await self.go_on.wait()
        await super().set(key, entry)


@pytest.mark.spec("CACHE-12")
async def test_a_change_that_comes_while_an_answer_is_being_kept_is_not_missed() -> None:
    store = SlowStore()
    view = ResponseCache(store).view(SERVER)
    keeping = asyncio.create_task(put(view, "tools/list", {}, public()))
    await store.asked.wait()
    await changed(view, "notifications/tools/list_changed")
    store.go_on.set()
    await keeping
    assert await view.get("tools/list", {}) is None


async def test_what_is_nested_too_deeply_is_not_kept(cache: ResponseCache) -> None:
    view = cache.view(SERVER)
    await put(view, "tools/list", {}, b'{"ttlMs": 1000, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert await view.get("tools/list", {}) is None
