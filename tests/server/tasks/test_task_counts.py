"""What a worker counts of tasks: answers, and what is left of tasks that have ended, wherever they were answered."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

from support.raw_sessions import Reply, eventually
from support.session_tasks import AppTaskPeer, Workshop
from support.task_fleets import TaskFleet, TaskWorker, accept
from weft import Context, InvalidParams, Limits, TaskStore
from weft.backends.memory import MemoryBackend
from weft.server.calls.shares import SizedShares
from weft.server.tasks.records import GivenAnswer

LARGE = "x" * 100_000


def build(worker: TaskWorker) -> None:
    @worker.server.tool(task="optional")
    async def name(ctx: Context) -> str:
        asked = await ctx.elicit("Which name?", Reply)
        again = await ctx.elicit("Which other name?", Reply)
        return f"{asked.action} {again.action}"


@pytest.fixture
async def fleet() -> AsyncIterator[TaskFleet]:
    made = TaskFleet(build)
    yield made
    await made.close()


def shares(worker: TaskWorker) -> SizedShares:
    return worker.server.engine.tasks.shares


async def asked(worker: TaskWorker, id: str) -> str:
    """The key of the question of a task."""
    (key,) = (await worker.until(id, "input_required"))["inputRequests"]
    return key


@pytest.mark.parametrize("end", ["cancel", "complete"])
async def test_a_task_that_has_ended_is_counted_only_where_it_was_created(fleet: TaskFleet, end: str) -> None:
    one, two, three = await fleet.add(3)
    id = await one.start("name")
    await asked(one, id)
    await two.answer(id, value=LARGE)
    await asked(two, id)
    assert shares(two)._all_bytes > len(LARGE)
    if end == "cancel":
        await three.cancel(id)
    else:
        await three.answer(id, value="b")
        await three.until(id)
    await eventually(lambda: not len(shares(two)) and not len(shares(three)))
    assert (len(shares(one)), shares(one)._all_bytes < 1000) == (1, True)


async def test_answers_that_are_refused_are_not_counted(fleet: TaskFleet) -> None:
    fleet._limits = Limits(task_bytes=1000, drain_seconds=0.2)
    (one,) = await fleet.add(1)
    id = await one.start("name")
    key, before = await asked(one, id), shares(one)._all_bytes
    assert (await one.update(id, {key: accept(value=LARGE)})).error["code"] == -32602
    assert shares(one)._all_bytes == before


async def test_answers_that_came_too_late_are_not_counted(fleet: TaskFleet) -> None:
    """At a worker that has nothing else of the task, nothing is counted."""
    one, two = await fleet.add(2)
    id = await one.start("name")
    key = await asked(one, id)
    service = two.server.engine.tasks
    stale = await service._records.read(id)
    assert stale is not None
    await one.update(id, {key: accept(value="a")})
    await asked(one, id)
    await service.answer(stale, {key: GivenAnswer(Raw(b'"' + LARGE.encode() + b'"'))})
    assert (len(shares(two)), shares(two)._all_bytes) == (0, 0)


async def test_answers_that_come_at_once_are_limited_together(fleet: TaskFleet) -> None:
    """Each fits alone, and both are checked before the first is stored. The program outside has them until it ends."""
    fleet._limits = Limits(task_bytes=100, drain_seconds=0.2)
    (one,) = await fleet.add(1)
    worker, ids = one.server, list[str]()

    @worker.tool(task="required")
    async def farm(ctx: Context) -> str:
        return ctx.task.external(ids.append)

    id = await one.start("farm")
    await eventually(lambda: ids)
    asking = [asyncio.create_task(TaskStore(fleet.memory).ask(id, f"{n}?", Reply)) for n in range(2)]
    while len((await one.get(id)).get("inputRequests", ())) < 2:  # noqa: ASYNC110 - nobody tells a test
        await asyncio.sleep(0.01)
    service = worker.engine.tasks
    stale = await service._records.read(id)
    assert stale is not None
    answer = GivenAnswer(Raw(b'"' + b"a" * 80 + b'"'))
    first, second = stale.questions
    await service.answer(stale, {first: answer})
    before = shares(one)._all_bytes
    with pytest.raises(InvalidParams, match="164 bytes together"):
        await service.answer(stale, {second: answer})
    now = await service._records.read(id)
    assert now is not None
    assert (list(now.questions), shares(one)._all_bytes) == ([second], before)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_a_question_can_always_fail() -> None:
    """Also if the answers before it have taken all the room. The server must not try to store the failure for ever."""
    ids: list[str] = []
    async with Workshop(limits=Limits(task_bytes=324), backend=MemoryBackend()) as shop:

        @shop.server.tool(task="required")
        async def farm(ctx: Context) -> str:
            return ctx.task.external(ids.append)

        client: AppTaskPeer = await shop.client()
        id = (await client.start("farm"))["taskId"]
        await eventually(lambda: ids)
        store = TaskStore(shop.server.backend)
        failed: list[str] = []

        async def program() -> None:
            for number in range(3):
                try:
                    await store.ask(id, f"{number}?", Reply)
                except Exception as error:
                    failed.append(str(error))

        working = asyncio.create_task(program())
        reading = await (await client.wait(id))
        for _ in range(3):
            question = await reading.question()
            await client.post(answer_of(question, "a" * 120))
        async with asyncio.timeout(30):
            await working
        assert len(failed) == 1, failed
        assert "too long" in failed[0]
        await store.complete(id, "done")
        await reading.text()


def answer_of(question: Any, value: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "result": accept(value=value)}
