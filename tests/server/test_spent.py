"""States that are accepted once."""

import asyncio
from typing import Any

import pytest

from support import Response, ask
from support.rounds import call, text, word
from weft import Context, InvalidParams, Server
from weft.server import spent
from weft.server.spent import SpentStates


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


def test_what_has_expired_is_forgotten_and_the_set_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spent, "MOST", 3)
    states = SpentStates(600)
    assert [states.spend(name) for name in "aab"] == [True, False, True]
    for name in "cdef":
        assert states.spend(name)
    assert states.spend("a")  # forgotten: three newer ones were more important
    assert SpentStates(-1).spend("x")
    expired = SpentStates(-1)
    assert [expired.spend("x"), expired.spend("x")] == [True, True]


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
