"""A task's handler runs again from its journal: what it finds there, and what it is warned of in debug mode."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.raw_sessions import Reply, eventually
from support.task_fleets import TaskFleet, TaskWorker, entries
from weft import Context, InputRequired, Limits, Task, ask_form
from weft.errors import BackendUnavailable

LIMITS = Limits(drain_seconds=0.2)


class Shop:
    """What handlers did. `number` differs in each run."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.number = 0
        self.is_waiting = False
        self.go = asyncio.Event()

    def act(self, key: str) -> str:
        self.done[key] += 1
        return f"{key}{self.done[key]}"

    async def deliver(self) -> None:
        self.done["delivered"] += 1

    def build(self, worker: TaskWorker) -> None:
        server = worker.server

        @server.tool(task="optional")
        async def book(ctx: Context) -> str:
            """What a handler should do."""
            price = await ctx.once("price", self.act, "price")
            first = await ctx.elicit(f"Pay {price}?", Reply)
            second = await ctx.elicit("Window?", Reply)
            paid = await ctx.once("pay", self.act, "pay")
            return f"{price} {first.value.value} {second.value.value} {paid}"  # type: ignore[union-attr] - accepted

        @server.tool(task="optional")
        async def drifting_question(ctx: Context) -> str:
            self.number += 1
            await ctx.elicit(f"Number {self.number if self.number < 3 else 2}?", Reply)
            return "done"

        @server.tool(task="optional")
        async def forgotten_question(ctx: Context) -> str:
            self.number += 1
            if self.number == 1:
                await ctx.elicit("Only once?", Reply)
            return "done"

        @server.tool(task="optional")
        async def drifting_key(ctx: Context) -> str:
            self.number += 1
            await ctx.once(f"step at {self.number}", self.act, "step")
            await ctx.elicit("Go on?", Reply)
            return "done"

        @server.tool(task="optional")
        async def missing_key(ctx: Context) -> str:
            self.number += 1
            if self.number == 1:
                await ctx.once("only now", self.act, "step")
            await ctx.elicit("Go on?", Reply)
            return "done"

        @server.tool(task="optional")
        async def effect_before_question(ctx: Context) -> str:
            await self.deliver()
            await ctx.elicit("Was it good?", Reply)
            return "done"

        self.build_others(worker)

    def build_others(self, worker: TaskWorker) -> None:
        server = worker.server

        @server.tool(task="optional")
        async def late(ctx: Context) -> str:
            self.is_waiting = True
            await self.go.wait()
            return await ctx.once("late", self.act, "late")

        @server.tool(task=Task(poll=0.01))
        async def count(ctx: Context, to: int) -> Any:
            """Keep an own state."""
            now = 0 if ctx.request_state is None else ctx.request_state
            return InputRequired(state=now + 1) if now < to else f"counted to {now}"

        @server.tool(task="optional")
        async def by_hand(ctx: Context) -> Any:
            """Return the question, with a state."""
            if not ctx.has_input_response("name"):
                return InputRequired({"name": ask_form("Name?", Reply)}, state={"seen": [1, 2]})
            return f"{ctx.input_responses['name']['content']} {ctx.request_state}"


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def fleet(shop: Shop) -> AsyncIterator[TaskFleet]:
    made = TaskFleet(shop.build, limits=LIMITS, debug=True)
    yield made
    await made.close()


async def test_answers_and_results_of_once_are_there_in_each_run(
    fleet: TaskFleet, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """At any worker; and a handler that keeps the rules is warned of nothing."""
    with caplog.at_level(logging.WARNING):
        one, two, three = await fleet.add(3)
        id = await one.start("book")
        await two.answer(id, value="yes")
        await two.until(id, "input_required")
        await three.answer(id, value="no")
        assert await one.text(id) == "price1 yes no pay1"
    assert shop.done == {"price": 1, "pay": 1}
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("drifting_question", "asked other questions than in the round before: ask-"),
        ("forgotten_question", "asked other questions than in the round before: ask-"),
        ("drifting_key", "did not call ctx.once with keys of an earlier run: step at 1."),
        ("missing_key", "did not call ctx.once with keys of an earlier run: only now."),
        ("effect_before_question", "awaits deliver(...) at"),
    ],
)
async def test_a_handler_that_does_not_repeat_itself_is_warned_of(
    fleet: TaskFleet, caplog: pytest.LogCaptureFixture, tool: str, text: str
) -> None:
    (one,) = await fleet.add(1)
    with caplog.at_level(logging.WARNING):
        id = await one.start(tool)
        while (await one.until(id, "input_required", "completed"))["status"] == "input_required":
            await one.answer(id, value="yes")
            await eventually(lambda: not len(one.runner))
    assert text in caplog.text
    assert tool in caplog.text


async def test_without_debug_nothing_is_warned_of(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    fleet = TaskFleet(shop.build, limits=LIMITS)
    (one,) = await fleet.add(1)
    with caplog.at_level(logging.WARNING):
        id = await one.start("drifting_key")
        await one.answer(id, value="yes")
        await one.text(id)
    assert caplog.text == ""
    await fleet.close()


async def test_a_state_goes_through_many_runs_and_takes_no_room(fleet: TaskFleet) -> None:
    """Only the newest is kept, however often the handler runs."""
    (one,) = await fleet.add(1)
    id = await one.start("count", to=20)
    values = fleet.memory.store._values  # type: ignore[attr-defined] - of the memory one
    sizes: list[int] = []
    async with asyncio.timeout(30):
        while (await one.get(id))["status"] == "working":
            assert entries(fleet.memory)["log"] == []
            sizes.append(sum(len(value) for key, value in values.items() if id in key))
    assert await one.text(id) == "counted to 20"
    assert len(set(sizes)) > 1
    assert max(sizes) - min(sizes) < 300  # the newest state, and who works on it


async def test_questions_by_hand_and_their_state_survive_the_worker(fleet: TaskFleet) -> None:
    one, two = await fleet.add(2)
    id = await one.start("by_hand")
    await one.until(id, "input_required")
    await eventually(lambda: not len(one.runner))
    await fleet.kill(one)
    await two.answer(id, value="Ann")
    assert await two.text(id) == "{'value': 'Ann'} {'seen': [1, 2]}"


async def test_once_waits_while_the_backend_is_away_for_longer_than_the_lease(fleet: TaskFleet, shop: Shop) -> None:
    """The worker cannot know whether the task is still its own, so it neither goes on nor fails."""
    (one,) = await fleet.add(1)
    id = await one.start("late")
    await eventually(lambda: shop.is_waiting)
    attempts = 0

    async def count(what: str) -> None:
        nonlocal attempts
        attempts += what == "store.get"

    one.server.engine.fleet._renewed = -math.inf
    one.tap.failure, one.tap.on_before = BackendUnavailable("The backend is away."), count
    shop.go.set()
    await eventually(lambda: attempts > 3)
    assert not shop.done
    one.tap.failure = None
    assert await one.text(id) == "late1"
