"""`tasks/result`: it waits for the end of a task, and is what the call would have been answered with."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.raw_sessions import Exchange, accept, eventually
from support.session_tasks import DECLARED, RELATED, STATUS, AppTaskPeer, Workshop
from weft import Context, Limits, TaskStore


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def client(shop: Workshop) -> AppTaskPeer:
    return await shop.client()


# What it is.


@pytest.mark.spec("L11-45b", "L11-47a", "L11-48")
@pytest.mark.parametrize("tool", ["photo", "marked", "spill", "tear", "sketch"])
@pytest.mark.parametrize("when", ["after the end", "before it"])
async def test_it_is_what_the_call_would_have_been_answered_with(client: AppTaskPeer, tool: str, when: str) -> None:
    """Its result has the id of the task besides. An error has no place for that."""
    plain = await (await client.call(tool)).json()
    task = await client.start(tool)
    if when == "after the end":
        await client.reach(task["taskId"], "failed" if tool in ("spill", "tear") else "completed")
    outcome = await client.outcome(task["taskId"])
    plain["id"] = outcome["id"]
    if tool == "tear":
        assert outcome["error"] == {"code": 1001, "message": "The sheet is torn.", "data": {"paper": "sheet"}}
    else:
        meta = plain["result"].get("_meta", {})
        plain["result"]["_meta"] = {**meta, RELATED: {"taskId": task["taskId"]}}
    assert outcome == plain


@pytest.mark.spec("L11-45b")
async def test_it_can_be_asked_for_again(client: AppTaskPeer) -> None:
    """Also in another session."""
    task = await client.start("photo")
    first, second = await client.outcome(task["taskId"]), await client.outcome(task["taskId"])
    assert first["result"] == second["result"]


# When it comes.


@pytest.mark.spec("L11-45b")
async def test_it_waits_for_the_end(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("hold")
    waiting = await client.wait(task["taskId"])
    assert (await client.state(task["taskId"]))["status"] == "working"  # polling goes on meanwhile
    assert not waiting.done()
    shop.released.set()
    answer = await waiting
    assert await answer.text() == "It is done."
    assert shop.said == ["done"]


@pytest.mark.spec("L11-45b")
async def test_it_waits_over_questions(client: AppTaskPeer) -> None:
    task = await client.start("frame", photo="attic")
    await client.reach(task["taskId"], "input_required")
    reading = await (await client.wait(task["taskId"]))
    question = await reading.question()
    assert not reading.ended
    await client.post(accept(question, "oak"))
    answers = [event.data async for event in reading.rest() if "result" in (event.data or {})]
    assert [answer["result"]["content"][0]["text"] for answer in answers] == ["attic in oak"]


@pytest.mark.spec("L11-45b")
async def test_all_that_wait_get_it(shop: Workshop, client: AppTaskPeer) -> None:
    other = await shop.client()
    task = await client.start("hold")
    waiting = [await peer.wait(task["taskId"]) for peer in (client, client, other)]
    shop.released.set()
    assert [await (await one).text() for one in waiting] == ["It is done."] * 3
    assert shop.said == ["done"]  # once


@pytest.mark.spec("L11-45b")
async def test_a_client_that_takes_no_stream_gets_it_in_the_body(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("stages", meta={"progressToken": 1})
    waiting = await client.wait(task["taskId"], Accept="application/json")
    shop.released.set()
    answer = await waiting
    assert (answer.is_stream, await answer.text()) == (False, "dry")


@pytest.mark.spec("L11-45b")
async def test_a_client_that_goes_away_does_not_end_the_task(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("stages")
    await client.reach(task["taskId"], "working", "drying (1/2)")
    reading = await (await client.wait(task["taskId"]))
    await reading.message()
    await reading.close()
    assert (await client.state(task["taskId"]))["status"] == "working"
    waiting = await client.wait(task["taskId"])
    shop.released.set()
    assert await (await waiting).text() == "dry"


@pytest.mark.spec("L11-45b")
async def test_a_client_that_gives_up_waiting_does_not_end_the_task(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("hold")
    waiting = await client.wait(task["taskId"])
    await client.give_up()
    assert (await waiting).status == 202
    assert (await client.state(task["taskId"]))["status"] == "working"
    shop.released.set()
    assert (await client.outcome(task["taskId"]))["result"]["content"][0]["text"] == "It is done."


@pytest.mark.spec("L11-45b", "L11-u3")
async def test_an_interrupted_stream_can_be_read_on(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("stages")
    await client.reach(task["taskId"], "working", "drying (1/2)")
    reading = await (await client.wait(task["taskId"]))
    await reading.message()
    last = reading.events[-1].id
    await reading.close()
    shop.released.set()
    resumed = await client.get(last)
    assert await resumed.text() == "dry"


@pytest.mark.spec("L11-45b", "L11-u5")
async def test_the_stream_tells_of_changes(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("stages")
    await client.reach(task["taskId"], "working", "drying (1/2)")
    reading = await (await client.wait(task["taskId"]))
    assert reading.is_stream
    told = await reading.message()
    assert (told["method"], told["params"]["statusMessage"]) == (STATUS, "drying (1/2)")
    shop.released.set()
    assert await reading.text() == "dry"


# The end of the session.


@pytest.mark.spec("L11-45b")
async def test_a_task_outlives_its_session(shop: Workshop, client: AppTaskPeer) -> None:
    """The request that waits in it ends without an answer."""
    task = await client.start("hold")
    waiting = await client.wait(task["taskId"])
    assert (await client.delete()).status == 204
    assert await (await waiting).body() == b""
    later = await shop.client()
    assert (await later.state(task["taskId"]))["status"] == "working"
    shop.released.set()
    assert (await later.outcome(task["taskId"]))["result"]["content"][0]["text"] == "It is done."


# Ends without a result.


@pytest.mark.spec("L11-45b", "L11-46b")
@pytest.mark.parametrize("tool", ["hold", "hang"])
@pytest.mark.parametrize("era", ["session", "stateless"])
async def test_who_waits_learns_that_the_task_was_cancelled(client: AppTaskPeer, tool: str, era: str) -> None:
    task = await client.start(tool)
    waiting = await client.wait(task["taskId"])
    if era == "session":
        await client.cancel(task["taskId"])
    else:
        await (await client.stateless("tasks/cancel", {"taskId": task["taskId"]}, meta=DECLARED)).result()
    answer = await (await waiting).json()
    assert answer["error"] == {
        "code": -32602,
        "message": "Invalid params: the task was cancelled, so it has no result.",
    }
    assert (await client.outcome(task["taskId"]))["error"] == answer["error"]


@pytest.mark.spec("L11-u7", "L11-45b")
async def test_who_waits_learns_that_the_task_has_expired(client: AppTaskPeer) -> None:
    """It has asked, and nobody has answered in time."""
    task = await client.start("frame", {"ttl": 1000}, photo="attic")
    reading = await (await client.wait(task["taskId"]))
    question = await reading.question()
    seen = [event.data async for event in reading.rest() if event.data]
    assert seen[0]["method"] == "notifications/cancelled"
    assert seen[0]["params"]["requestId"] == question["id"]
    assert seen[-1]["error"]["code"] == -32602
    assert "It may have expired" in seen[-1]["error"]["message"]


# Metadata.


@pytest.mark.spec("L11-47b")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_the_param_counts_not_the_metadata(client: AppTaskPeer, method: str) -> None:
    meant, other = await client.start("hold"), await client.start("photo")
    await client.reach(other["taskId"], "completed")
    if method == "tasks/result":
        meant, other = other, meant
    params = {"taskId": meant["taskId"], "_meta": {RELATED: {"taskId": other["taskId"]}}}
    result: Any = await (await client.ask(method, params)).result()
    if method == "tasks/result":
        assert result["_meta"] == {RELATED: {"taskId": meant["taskId"]}}
        assert result["structuredContent"] == {"size": "10x15"}
    else:
        assert result["taskId"] == meant["taskId"]
        assert "_meta" not in result
    untouched = await client.state(other["taskId"])
    assert untouched["status"] == ("working" if method == "tasks/result" else "completed")


@pytest.mark.spec("L11-47b")
@pytest.mark.parametrize("value", ["nonsense", {"taskId": 5}, None, [1]])
async def test_metadata_that_is_malformed_is_ignored(client: AppTaskPeer, value: Any) -> None:
    task = await client.start("photo", meta={RELATED: value})
    params = {"taskId": task["taskId"], "_meta": {RELATED: value}}
    assert (await (await client.ask("tasks/get", params)).result())["taskId"] == task["taskId"]


# How many wait.


async def begin(shop: Workshop, client: AppTaskPeer, id: str, count: int) -> list["asyncio.Task[Exchange]"]:
    """Let a client wait so many times for the result of a task that does not end."""
    before = len(shop.server.engine.task_waits)
    waiting = [await client.wait(id) for _ in range(count)]
    await eventually(lambda: len(shop.server.engine.task_waits) == before + count)
    return waiting


async def test_calls_that_wait_are_no_requests_in_flight() -> None:
    """Others are served, also when a client has closed its connections, and its calls go on."""
    async with Workshop(limits=Limits(in_flight=3, drain_seconds=0.2)) as shop:
        engine = shop.server.engine
        ann, bob = await shop.client("ann"), await shop.client("bob")
        task = await ann.start("hold")
        waiting = await begin(shop, ann, task["taskId"], 5)
        assert await (await bob.call("add", a=1, b=2)).text() == "3"
        for exchange in ann.exchanges[-5:]:
            exchange.task.cancel()  # as an ASGI server may do when the client disconnects
        await asyncio.gather(*waiting)
        assert (len(engine.task_waits), engine.in_flight) == (5, 5)
        assert await (await bob.call("add", a=1, b=2)).text() == "3"
        shop.released.set()
        await eventually(lambda: (len(engine.task_waits), engine.in_flight) == (0, 0))


async def test_other_calls_are_still_counted() -> None:
    async with Workshop(limits=Limits(in_flight=1, drain_seconds=0.2)) as shop:
        ann, bob = await shop.client("ann"), await shop.client("bob")
        task = await ann.start("hold")
        await begin(shop, ann, task["taskId"], 3)
        calling = asyncio.create_task(bob.call("late"))
        await eventually(lambda: shop.server.engine.in_flight == 4)
        assert (await ann.call("add", a=1, b=2)).status == 503
        calling.cancel()


@pytest.mark.security("R12")
async def test_one_call_too_many_that_waits_is_refused() -> None:
    """A caller may have half of what the others leave free. The result of a task that has ended needs no room."""
    async with Workshop(limits=Limits(task_waits=6, drain_seconds=0.2)) as shop:
        ann, bob = await shop.client("ann"), await shop.client("bob")
        task, ended = await ann.start("hold"), await ann.start("photo")
        his = (await bob.start("hold"))["taskId"]
        await ann.reach(ended["taskId"], "completed")
        await begin(shop, ann, task["taskId"], 3)
        other = await shop.client("ann")
        for client in (ann, other):  # counted by caller, not by session
            refused = await client.ask("tasks/result", {"taskId": task["taskId"]})
            assert refused.headers["retry-after"] == "1"
            assert await refused.refusal() == (503, -32603)
        assert "result" in await ann.outcome(ended["taskId"])
        await begin(shop, bob, his, 1)
        assert await (await bob.ask("tasks/result", {"taskId": his})).refusal() == (503, -32603)
        await ann.give_up()
        await eventually(lambda: len(shop.server.engine.task_waits) == 3)
        await begin(shop, bob, his, 1)
        assert Limits().task_waits == 1024


async def test_a_plain_call_that_waits_for_a_program_is_a_request_in_flight() -> None:
    async with Workshop(limits=Limits(in_flight=1, task_waits=0, drain_seconds=0.2)) as shop:
        jobs: list[str] = []

        @shop.server.tool(task="optional")
        async def print_it(ctx: Context) -> str:
            return ctx.task.external(jobs.append)

        client = await shop.client()
        calling = asyncio.create_task(client.call("print_it"))
        await eventually(lambda: jobs)
        assert len(shop.server.engine.task_waits) == 0
        assert (await client.call("add", a=1, b=2)).status == 503
        assert await TaskStore(shop.server.backend).complete(jobs[0], "printed")
        assert await (await calling).text() == "printed"
