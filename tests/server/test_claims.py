"""What happens once: states that are accepted once, and functions that are called once per logical call."""

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from support import Response, ask, serve
from support.backends import Yielding, YieldingBackend
from support.protected import Peer, make_protected
from support.raw_sessions import FORM, AppPeer, answer_to, message
from support.rounds import KEYS, WORD, call, text, word
from support.tokens import token_for
from weft import Context, InputRequired, InvalidParams, Server, ToolError, ask_form
from weft.backends import Backend
from weft.backends.memory import MemoryBackend
from weft.middleware import Next
from weft.server.calls import once_store as claims
from weft.server.calls import shares
from weft.server.calls.once_store import ClaimsFull, OnceStore


def shop(*, single_use: bool) -> Server:
    server = Server("shop", state_keys=["a secret of enough bytes"])

    @server.tool(single_use=single_use)
    async def buy(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", {"type": "object", "properties": {"ok": {"type": "boolean"}}}, key="sure")
        return answer.action

    return server


async def rounds(server: Server, name: str = "buy") -> list[dict]:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    first = await ask(server, "tools/call", {"name": name}, meta=meta)
    params = {
        "name": name,
        "requestState": first.result["requestState"],
        "inputResponses": {"sure": {"action": "accept", "content": {"ok": True}}},
    }
    return [(await ask(server, "tools/call", params, meta=meta)).json for _ in range(2)]


@pytest.mark.spec("MRTR-14")
async def test_a_state_of_a_single_use_tool_is_accepted_once() -> None:
    once, again = await rounds(shop(single_use=True))
    assert once["result"]["content"][0]["text"] == "accept"
    assert again["error"]["code"] == -32602


@pytest.mark.spec("MRTR-14")
async def test_a_state_is_accepted_once_by_the_single_use_tool_that_middleware_chose() -> None:
    server = shop(single_use=True)
    buy = server.engine.tools.get("buy")
    assert buy is not None
    server.add_tool(buy.fn, name="old")

    @server.middleware
    async def rename(ctx: Context, next: Next) -> Any:
        if ctx.params.request_state is not None:
            ctx.params.name = "buy"
        return await next()

    once, again = await rounds(server, "old")
    assert once["result"]["content"][0]["text"] == "accept"
    assert again["error"]["code"] == -32602


async def test_other_tools_accept_a_state_again() -> None:
    once, again = await rounds(shop(single_use=False))
    assert once["result"]["content"] == again["result"]["content"]


async def large() -> bytes:
    return b"x" * 60


@pytest.mark.security("R12")
async def test_a_used_state_stays_used_however_many_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST", 8)
    monkeypatch.setattr(claims, "MOST_BYTES", 100)
    states = OnceStore(MemoryBackend().store, seconds=600, most_bytes=64)
    assert [await states.spend(name, peer="ann") for name in "aa"] == [True, False]
    for number in range(20):
        with suppress(ClaimsFull):
            await states.spend(f"state {number}", peer="eve")
        with suppress(ClaimsFull):
            await states.once(f"call {number}", large, peer="eve")
    assert not await states.spend("a", peer="ann")
    assert await states.spend("b", peer="ann")  # there is room for another client
    assert len(states._claims) <= 8


@pytest.mark.security("R12")
async def test_a_client_with_too_many_claims_is_refused_until_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST", 4)
    now = 0.0
    monkeypatch.setattr(shares, "time", SimpleNamespace(monotonic=lambda: now))
    states = OnceStore(MemoryBackend(clock=lambda: now).store, seconds=600, most_bytes=64)
    assert await states.spend("a")
    assert await states.once("1", mine) == b"mine"
    for _ in range(2):
        with pytest.raises(ClaimsFull, match="too many answers to questions in the last 600 seconds"):
            await states.spend("b")
        with pytest.raises(ClaimsFull):
            await states.once("2", unexpected)
    assert not await states.spend("a")
    assert await states.once("1", unexpected) == b"mine"  # a stored result needs no room
    await states.give_back("a")
    assert await states.spend("b")  # its refusal did not use it up
    now = 601.0
    assert await states.spend("a")
    assert await states.once("2", mine) == b"mine"
    assert len(states._claims) == 2


async def test_a_function_that_fails_needs_no_room_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST", 2)
    states = OnceStore(MemoryBackend().store, seconds=600, most_bytes=64)

    async def fail() -> bytes:
        raise ToolError("The till is stuck.")

    for _ in range(3):
        with pytest.raises(ToolError):
            await states.once("1", fail)
    assert await states.once("2", mine) == b"mine"


@pytest.mark.security("R12")
async def test_a_result_that_is_dropped_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST_BYTES", 3 * 61)
    store = MemoryBackend().store
    one, other = (OnceStore(store, seconds=600, most_bytes=64) for _ in range(2))
    assert await one.once("ann's", large, peer="ann") == b"x" * 60
    for number in range(5):
        await one.once(str(number), large, peer="eve")
    for worker in (one, other):
        assert await worker.once("ann's", unexpected, peer="ann") == b"x" * 60  # the results of others are kept
        assert await worker.once("4", unexpected, peer="eve") == b"x" * 60
        for number in range(3):
            with pytest.raises(InvalidParams, match="done already, but the server has not kept the result"):
                await worker.once(str(number), unexpected, peer="eve")
    assert one._results.bytes == 3 * 61


async def test_results_that_have_expired_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(shares, "time", SimpleNamespace(monotonic=lambda: now))
    states = OnceStore(MemoryBackend(clock=lambda: now).store, seconds=600, most_bytes=64)
    for name in "abc":
        await states.once(name, large, peer=name)
    now = 601.0
    assert await states.spend("d")
    assert (len(states._claims), states._results.bytes) == (1, 0)
    assert not states._results._peers
    assert not states._results._peer_of
    assert not states._results._used


@pytest.mark.security("R12")
async def test_a_round_that_finds_no_room_is_refused_and_can_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both where its state is marked as used, and where it calls a function once."""
    till = Till()
    server = till.server()
    server.add_tool(sure, name="single", single_use=True)
    server.add_tool(till.run, name="both", single_use=True)
    states = {name: (await call(server, name=name)).result["requestState"] for name in ("run", "single", "both")}
    for name, most in (("run", 0), ("single", 0), ("both", 3)):
        given = {"requestState": states[name], "inputResponses": RIGHT}
        with monkeypatch.context() as patch:
            patch.setattr(claims, "MOST", most)
            refused = await call(server, given, name=name)
        assert (refused.status, refused.error["code"]) == (503, -32603)
        assert "Try again later" in refused.error["message"]
        assert till.charged == 0
    for name, state in states.items():
        given = {"requestState": state, "inputResponses": RIGHT}
        assert text((await call(server, given, name=name)).result).startswith("yes")
    assert till.charged == 2


async def unexpected() -> bytes:
    raise AssertionError("called again")


RIGHT = {"sure": {"action": "accept", "content": {"word": "yes"}}}
WRONG = {"sure": {"action": "perhaps"}}


async def retry(server: Server, state: str, answers: dict[str, Any]) -> Response:
    return await call(server, {"requestState": state, "inputResponses": answers})


def asking(handler: Any) -> Server:
    server = Server("asking")
    server.add_tool(handler, name="run", single_use=True)
    return server


@pytest.mark.spec("MRTR-14")
async def test_answers_that_are_refused_do_not_use_a_state_up() -> None:
    async def run(ctx: Context) -> str:
        await ctx.once("draw", lambda: 1)  # in the journal already when the answers come
        return await word(ctx, "Sure?", key="sure")

    server = asking(run)
    state = (await call(server)).result["requestState"]
    for _ in range(2):
        assert "`requestState`" not in (await retry(server, state, WRONG)).error["message"]
    assert text((await retry(server, state, RIGHT)).result) == "yes"
    assert "`requestState` was not issued" in (await retry(server, state, RIGHT)).error["message"]


@pytest.mark.spec("MRTR-14")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_happened_before_the_refusal_uses_a_state_up(fails: bool) -> None:
    charged: list[int] = []

    def charge() -> None:
        charged.append(1)
        if fails:
            raise InvalidParams("no")

    async def run(ctx: Context) -> str:
        if ctx.is_retry:
            await ctx.once("charge", charge)
        return await word(ctx, "Sure?", key="sure")

    server = asking(run)
    state = (await call(server)).result["requestState"]
    assert (await retry(server, state, WRONG)).error["code"] == -32602
    assert "`requestState` was not issued" in (await retry(server, state, RIGHT)).error["message"]
    assert charged == [1]


@pytest.mark.spec("MRTR-14")
async def test_of_retries_at_the_same_time_one_is_served_whatever_becomes_of_the_others() -> None:
    go = asyncio.Event()

    async def run(ctx: Context) -> str:
        if ctx.is_retry:
            await go.wait()
        return await word(ctx, "Sure?", key="sure")

    server = asking(run)
    state = (await call(server)).result["requestState"]
    for answers in (WRONG, RIGHT):
        go.clear()
        first = asyncio.create_task(retry(server, state, answers))
        await asyncio.sleep(0.01)
        for others in (RIGHT, WRONG, RIGHT):  # being refused gives nothing back that another one spent
            assert "`requestState` was not issued" in (await retry(server, state, others)).error["message"]
        go.set()
        outcome = (await first).json
        assert ("error" in outcome) is (answers is WRONG)
    assert "`requestState` was not issued" in (await retry(server, state, RIGHT)).error["message"]


async def test_what_still_runs_when_the_answers_are_refused_begins_nothing_more() -> None:
    charged: list[int] = []
    ended = asyncio.Event()

    async def later(ctx: Context) -> None:
        try:
            await asyncio.sleep(0.02)
            await ctx.once("charge", charged.append, 1)
        finally:
            ended.set()

    async def run(ctx: Context) -> str:
        if not ctx.is_retry:
            return await word(ctx, "Sure?", key="sure")
        answer, _, _ = await asyncio.gather(word(ctx, "Sure?", key="sure"), later(ctx), word(ctx, "And this?"))
        return answer

    server = asking(run)
    state = (await call(server)).result["requestState"]
    assert "error" in (await retry(server, state, WRONG)).json
    await asyncio.wait_for(ended.wait(), 30)
    assert charged == []
    assert asyncio.all_tasks() == {asyncio.current_task()}  # nobody waits for an answer that will not come


@pytest.mark.spec("MRTR-14")
async def test_a_state_that_a_missing_capability_left_unused_is_not_used_up() -> None:
    async def run(ctx: Context) -> str:
        sure = await word(ctx, "Sure?", key="sure")
        if sure == "yes":
            await ctx.list_roots()
        return sure

    server = asking(run)
    state = (await call(server)).result["requestState"]
    params = {"name": "run", "requestState": state, "inputResponses": RIGHT}
    only_forms = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    assert (await ask(server, "tools/call", params, meta=only_forms)).error["code"] == -32021
    assert (await retry(server, state, RIGHT)).result["resultType"] == "input_required"


@pytest.mark.spec("MRTR-14")
@pytest.mark.parametrize("backend", [MemoryBackend, YieldingBackend])
async def test_a_state_is_accepted_by_one_of_the_workers_that_share_a_backend(backend: Any) -> None:
    shared = backend()

    def worker() -> Server:
        server = Server("shop", state_keys=KEYS, backend=shared)
        server.add_tool(sure, name="run", single_use=True)
        return server

    state = (await call(worker())).result["requestState"]
    outcomes = await asyncio.gather(*(retry(worker(), state, RIGHT) for _ in range(5)))
    assert sorted("error" in outcome.json for outcome in outcomes) == [False, True, True, True, True]


@pytest.mark.spec("MRTR-14")
async def test_a_client_with_a_session_has_no_state_to_use_up() -> None:
    async def run(ctx: Context) -> str | InputRequired:
        if not ctx.has_input_response("sure"):
            return InputRequired({"sure": ask_form("Sure?", WORD)})
        return ctx.input_responses["sure"]["content"]["word"]

    server = asking(run)
    client = AppPeer(server.asgi())
    await client.open(capabilities=FORM)
    for _ in range(2):
        stream = await client.post(message("tools/call", {"name": "run", "requestState": "made up"}, 1))
        question = await stream.question()
        await client.post(answer_to(question, {"action": "accept", "content": {"word": "yes"}}))
        assert text((await stream.message())["result"]) == "yes"
    assert len(server.engine.once_store._claims) == 0
    await client.leave()
    await server.stop()


async def sure(ctx: Context) -> str:
    return await word(ctx, "Sure?", key="sure")


class Failing:
    """A store that is gone, as one on another machine may be."""

    def __getattr__(self, _: str) -> Any:
        raise ConnectionError("the store is gone")


async def test_a_store_that_fails_fails_its_calls_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    backend = MemoryBackend()
    till, store = Till(), backend.store
    server = till.server(backend)
    server.add_tool(sure, name="single", single_use=True)
    state = (await call(server)).result["requestState"]
    single = (await call(server, name="single")).result["requestState"]
    server.engine.once_store._store = Failing()  # type: ignore[assignment] - for the tests alone
    assert (await retry(server, state, RIGHT)).result["isError"]  # what the handler called has failed
    refused = await call(server, {"requestState": single, "inputResponses": RIGHT}, name="single")
    assert refused.error["code"] == -32603
    assert "the store is gone" not in refused.error["message"]
    server.engine.once_store._store = store
    assert text((await retry(server, state, RIGHT)).result) == "yes 1"

    class Forgetful(OnceStore):
        async def give_back(self, state: str) -> None:
            raise ConnectionError("the store is gone")

    server.engine.once_store = Forgetful(store, seconds=600, most_bytes=64)
    refused = await call(server, {"requestState": single, "inputResponses": WRONG}, name="single")
    assert refused.error["code"] == -32602  # as if it had been given back
    assert "a `requestState` stays marked as used" in caplog.text


@pytest.mark.security("R12")
@pytest.mark.parametrize("single_use", [False, True])
def test_a_client_with_too_many_claims_keeps_nobody_else_out(
    single_use: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "MOST", 8)
    server, till = make_protected(), Till()
    server.add_tool(sure if single_use else till.run, name="run", single_use=single_use)
    with serve(server) as live:

        def buy(peer: Peer) -> int:
            state = peer.tool("run").result["requestState"]
            return peer.send("tools/call", {"name": "run", "requestState": state, "inputResponses": RIGHT}).status

        name = "eve" if single_use else "mallory"  # the log names each client once a minute
        eve, ann = (Peer(live, "stateless", token_for(subject)) for subject in (name, "ann"))
        assert [buy(eve) for _ in range(6)] == [200] * 4 + [503] * 2
        assert buy(ann) == 200
    assert till.charged == (0 if single_use else 5)
    assert f"{name}' has too many claims" in caplog.text


class Till:
    """A handler that asks, then charges; and how often it did."""

    def __init__(self, *, seconds: float = 0.02, fails: int = 0, size: int = 1) -> None:
        self.charged = 0
        self.seconds = seconds
        self.fails = fails
        self.size = size

    async def charge(self) -> str:
        self.charged += 1
        await asyncio.sleep(self.seconds)
        if self.charged <= self.fails:
            raise ToolError("The till is stuck.")
        return "x" * self.size

    async def run(self, ctx: Context) -> str:
        answer = await word(ctx, "Sure?", key="sure")
        receipt = await ctx.once("charge", self.charge)
        return f"{answer} {len(receipt)}"

    def server(self, backend: Backend | None = None) -> Server:
        server = Server("shop", state_keys=KEYS, backend=backend)
        server.add_tool(self.run, name="run")
        return server


@pytest.mark.parametrize("are_workers", [False, True])
@pytest.mark.parametrize("backend", [MemoryBackend, YieldingBackend])
async def test_rounds_that_come_twice_charge_once(are_workers: bool, backend: Any) -> None:
    till, shared = Till(), backend()
    one = till.server()
    state = (await call(till.server(shared) if are_workers else one)).result["requestState"]
    racing = (retry(till.server(shared) if are_workers else one, state, RIGHT) for _ in range(5))
    outcomes = [text(outcome.result) for outcome in await asyncio.gather(*racing)]
    outcomes.append(text((await retry(till.server(shared) if are_workers else one, state, RIGHT)).result))
    assert outcomes == ["yes 1"] * 6
    assert till.charged == 1


async def test_calls_that_only_look_the_same_each_charge() -> None:
    till = Till()
    server = till.server()
    states = [(await call(server)).result["requestState"] for _ in range(3)]
    await asyncio.gather(*(retry(server, state, RIGHT) for state in states))
    assert till.charged == 3


async def test_a_charge_that_failed_is_tried_by_the_next() -> None:
    till = Till(fails=1)
    server = till.server()
    state = (await call(server)).result["requestState"]
    outcomes = await asyncio.gather(*(retry(server, state, RIGHT) for _ in range(3)))
    assert sorted(text(outcome.result) for outcome in outcomes) == ["The till is stuck.", "yes 1", "yes 1"]
    assert till.charged == 2


async def test_a_charge_whose_call_was_given_up_is_tried_by_the_next() -> None:
    till = Till(seconds=0.2)
    server = till.server()
    state = (await call(server)).result["requestState"]
    first = asyncio.create_task(retry(server, state, RIGHT))
    await asyncio.sleep(0.05)
    first.cancel()
    till.seconds = 0
    assert text((await retry(server, state, RIGHT)).result) == "yes 1"
    assert till.charged == 2
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)  # what was cancelled ends
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_result_too_large_to_keep_is_not_made_again() -> None:
    till = Till(size=20_000)
    server = till.server()
    state = (await call(server)).result["requestState"]
    assert text((await retry(server, state, RIGHT)).result) == "yes 20000"
    assert "done already" in (await retry(server, state, RIGHT)).error["message"]
    assert till.charged == 1


async def test_a_claim_of_the_dead_ends_and_one_of_the_living_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HELD_SECONDS", 0.15)
    till, shared = Till(seconds=0.5), MemoryBackend()
    server = till.server(shared)
    state = (await call(server)).result["requestState"]
    await asyncio.gather(*(retry(till.server(shared), state, RIGHT) for _ in range(2)))
    assert till.charged == 1  # though it took longer than a claim lasts
    forgotten = OnceStore(MemoryBackend().store, seconds=600, most_bytes=64)
    dead = asyncio.create_task(forgotten.once("x", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    for task in forgotten._under_way:
        task.cancel()  # what renews it: this worker does nothing any more
    assert await asyncio.wait_for(forgotten.once("x", mine), 30) == b"mine"
    dead.cancel()


async def mine() -> bytes:
    return b"mine"


class Counted:
    """A function that takes a few turns of the loop: how often it was called, and how often it came to its end."""

    def __init__(self, store: Any = None) -> None:
        self.began = self.ended = 0
        self.store = Yielding(MemoryBackend().store) if store is None else store
        self.claims = OnceStore(self.store, seconds=600, most_bytes=64)

    async def make(self) -> bytes:
        self.began += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.ended += 1
        return b"done"


@pytest.mark.parametrize("turns", range(14))
async def test_whenever_a_call_is_given_up_what_was_done_is_not_done_again(turns: int) -> None:
    counted = Counted()
    first = asyncio.create_task(counted.claims.once("x", counted.make))
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    outcome = (await asyncio.gather(first, return_exceptions=True))[0]
    assert outcome == b"done" or isinstance(outcome, asyncio.CancelledError)
    async with asyncio.timeout(15):  # and nobody waits for a claim that was left behind
        assert await counted.claims.once("x", counted.make) == b"done"
    assert counted.ended == 1
    assert counted.began <= 2  # of which one was stopped in the middle


@pytest.mark.parametrize("turns", range(14))
async def test_whenever_the_store_goes_away_a_function_that_was_called_has_its_result(
    turns: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "HELD_SECONDS", 0.1)
    counted = Counted()
    first = asyncio.create_task(counted.claims.once("x", counted.make))
    for _ in range(turns):
        await asyncio.sleep(0)
    counted.store.is_gone = True
    outcome = (await asyncio.gather(first, return_exceptions=True))[0]
    assert outcome == b"done" if counted.began else isinstance(outcome, ConnectionError)
    if counted.began and turns < 7:
        assert "a result of ctx.once was not stored, so a repeated round may call" in caplog.text
    counted.store.is_gone = False
    async with asyncio.timeout(15):
        assert await counted.claims.once("x", counted.make) == b"done"


async def test_a_store_that_is_gone_for_a_while_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "HELD_SECONDS", 0.15)
    counted = Counted()

    async def make() -> bytes:
        counted.store.is_gone = True
        await asyncio.sleep(0.3)  # its claim is over, and nobody else came
        counted.store.is_gone = False
        return await counted.make()

    assert await counted.claims.once("x", make) == b"done"
    assert await counted.claims.once("x", unexpected) == b"done"
    assert "a claim of ctx.once was not renewed" in caplog.text


async def test_a_failure_is_told_though_the_store_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted()

    async def fail() -> bytes:
        counted.store.is_gone = True
        raise ToolError("The till is stuck.")

    with pytest.raises(ToolError, match="stuck"):
        await counted.claims.once("x", fail)
    assert "the next call of a ctx.once function may wait 30 seconds for it" in caplog.text


@pytest.mark.security("R1")
async def test_a_function_that_wants_to_exit_ends_no_process() -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def leave_soon() -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    for fn in (leave, leave_soon):

        async def run(ctx: Context, fn: Any = fn) -> str:
            answer = await word(ctx, "Sure?", key="sure")
            await ctx.once("leave", fn)
            return answer

        server = Server("leaving")
        server.add_tool(run, input_schema={"type": "object"})
        state = (await call(server)).result["requestState"]
        assert "result" in (await retry(server, state, RIGHT)).json


async def test_a_plain_function_whose_call_was_given_up_is_done_and_not_done_again() -> None:
    charged: list[int] = []

    def charge() -> int:
        time.sleep(0.2)
        charged.append(1)
        return len(charged)

    async def run(ctx: Context) -> str:
        answer = await word(ctx, "Sure?", key="sure")
        return f"{answer} {await ctx.once('charge', charge)}"

    server = Server("shop", backend=YieldingBackend())
    server.add_tool(run)
    state = (await call(server)).result["requestState"]
    before = asyncio.all_tasks()
    first = asyncio.create_task(retry(server, state, RIGHT))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first])
    assert charged == []  # who gives up does not wait for a thread
    assert text((await retry(server, state, RIGHT)).result) == "yes 1"
    assert charged == [1]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
    await server.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_result_that_cannot_be_dropped_fails_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Keeping(Yielding):
        async def put(self, key: str, value: bytes, *, ttl: float) -> None:
            raise ConnectionError("the store is gone")

    monkeypatch.setattr(claims, "MOST_BYTES", 100)
    results = OnceStore(Keeping(MemoryBackend().store), seconds=600, most_bytes=64)
    assert [await results.once(name, large) for name in "ab"] == [b"x" * 60] * 2
    assert "a result beyond the bound stays until it expires" in caplog.text


async def test_what_is_made_again_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST_BYTES", 100)
    store = MemoryBackend().store
    lossy = OnceStore(store, seconds=600, most_bytes=64)

    for _ in range(5):
        await lossy.once("x", mine)
        await store.delete(claims._key("once", "x"))  # as a store that was restarted
    await lossy.once("y", mine)
    assert await lossy.once("y", unexpected) == b"mine"
    assert (len(lossy._claims), lossy._results.bytes) == (2, 2 * 5)


class Odd(Yielding):
    """A store on a bad line: its first answer to `swap` is lost, the operation repeated; and it may fall silent."""

    answers = 0
    is_silent = False

    async def swap(self, *args: Any, **options: Any) -> bool:
        if self.is_silent:
            await asyncio.Event().wait()
        self.answers += 1
        if self.answers == 1:
            await self._inner.swap(*args, **options)
        return await self._inner.swap(*args, **options)


async def test_a_claim_that_was_made_twice_is_ones_own() -> None:
    counted = Counted(Odd(MemoryBackend().store))
    async with asyncio.timeout(15):
        assert await counted.claims.once("x", counted.make) == b"done"
    assert counted.began == 1


async def test_a_store_that_does_not_answer_holds_up_no_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "HELD_SECONDS", 0.15)
    counted = Counted(Odd(MemoryBackend().store))

    async def make() -> bytes:
        counted.store.is_silent = True
        return await counted.make()

    async with asyncio.timeout(15):
        assert await counted.claims.once("x", make) == b"done"
    assert "The backend failed: a result of ctx.once was not stored" in caplog.text
