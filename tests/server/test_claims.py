"""What happens once: states that are accepted once, and functions that are called once per logical call."""

import asyncio
from typing import Any

import pytest

from support import Response, ask
from support.rounds import KEYS, call, text, word
from weft import Context, InvalidParams, Server, ToolError
from weft.backends.base import Backend
from weft.backends.memory import MemoryBackend
from weft.server import claims
from weft.server.claims import Claims


def shop(*, single_use: bool) -> Server:
    server = Server("shop", state_keys=["a secret of enough bytes"])

    @server.tool(single_use=single_use)
    async def buy(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", {"type": "object", "properties": {"ok": {"type": "boolean"}}}, key="sure")
        return answer.action

    return server


async def rounds(server: Server) -> list[dict]:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    first = await ask(server, "tools/call", {"name": "buy"}, meta=meta)
    params = {
        "name": "buy",
        "requestState": first.result["requestState"],
        "inputResponses": {"sure": {"action": "accept", "content": {"ok": True}}},
    }
    return [(await ask(server, "tools/call", params, meta=meta)).json for _ in range(2)]


@pytest.mark.spec("MRTR-14")
async def test_a_state_of_a_single_use_tool_is_accepted_once() -> None:
    once, again = await rounds(shop(single_use=True))
    assert once["result"]["content"][0]["text"] == "accept"
    assert again["error"]["code"] == -32602


async def test_other_tools_accept_a_state_again() -> None:
    once, again = await rounds(shop(single_use=False))
    assert once["result"]["content"] == again["result"]["content"]


async def test_what_is_over_is_forgotten_and_claims_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST", 3)
    monkeypatch.setattr(claims, "MOST_BYTES", 100)
    now = 0.0
    store = MemoryBackend(clock=lambda: now).store
    states = Claims(store, seconds=600, most_bytes=64)
    assert [await states.spend(name) for name in "aab"] == [True, False, True]
    for name in "cdef":
        assert await states.spend(name)
    assert await states.spend("a")  # forgotten: three newer ones were more important
    assert not await states.spend("f")
    now = 601.0
    assert await states.spend("f")

    async def large() -> bytes:
        return b"x" * 60

    assert await states.once("1", large) == await states.once("2", large)  # together more than is kept
    assert await states.once("2", unexpected) == b"x" * 60
    with pytest.raises(AssertionError, match="called again"):
        await states.once("1", unexpected)


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
    assert "`requestState` is not one" in (await retry(server, state, RIGHT)).error["message"]


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
    assert "`requestState` is not one" in (await retry(server, state, RIGHT)).error["message"]
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
            assert "`requestState` is not one" in (await retry(server, state, others)).error["message"]
        go.set()
        outcome = (await first).json
        assert ("error" in outcome) is (answers is WRONG)
    assert "`requestState` is not one" in (await retry(server, state, RIGHT)).error["message"]


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
    await asyncio.wait_for(ended.wait(), 5)
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
async def test_a_state_is_accepted_by_one_of_the_workers_that_share_a_backend() -> None:
    shared = MemoryBackend()

    def worker() -> Server:
        server = Server("shop", state_keys=KEYS, backend=shared)
        server.add_tool(sure, name="run", single_use=True)
        return server

    state = (await call(worker())).result["requestState"]
    outcomes = await asyncio.gather(*(retry(worker(), state, RIGHT) for _ in range(5)))
    assert sorted("error" in outcome.json for outcome in outcomes) == [False, True, True, True, True]


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
    server.claims._store = Failing()  # type: ignore[assignment] - for the tests alone
    assert (await retry(server, state, RIGHT)).result["isError"]  # what the handler called has failed
    refused = await call(server, {"requestState": single, "inputResponses": RIGHT}, name="single")
    assert refused.error["code"] == -32603
    assert "the store is gone" not in refused.error["message"]
    server.claims._store = store
    assert text((await retry(server, state, RIGHT)).result) == "yes 1"

    class Forgetful(Claims):
        async def give_back(self, state: str) -> None:
            raise ConnectionError("the store is gone")

    server.claims = Forgetful(store, seconds=600, most_bytes=64)
    refused = await call(server, {"requestState": single, "inputResponses": WRONG}, name="single")
    assert refused.error["code"] == -32602  # as if it had been given back
    assert "a `requestState` stays used up" in caplog.text


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
async def test_rounds_that_come_twice_charge_once(are_workers: bool) -> None:
    till, shared = Till(), MemoryBackend()
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
    forgotten = Claims(MemoryBackend().store, seconds=600, most_bytes=64)
    dead = asyncio.create_task(forgotten.once("x", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    for task in asyncio.all_tasks() - {asyncio.current_task(), dead}:
        task.cancel()  # what renews it: this worker does nothing any more

    async def make() -> bytes:
        return b"mine"

    assert await asyncio.wait_for(forgotten.once("x", make), 5) == b"mine"
    dead.cancel()
