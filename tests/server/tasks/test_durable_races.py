"""Two things happen to a task at the same moment: an answer, a cancellation, the end of a run or of a worker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from support.raw_sessions import Reply, eventually
from support.task_clients import task_client
from support.task_fleets import TaskFleet, TaskWorker, accept
from weft import Context, Limits, Task
from weft.errors import BackendUnavailable


class Yard:
    """What the handlers of a fleet have done."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.open = asyncio.Event()

    async def step(self, name: str) -> str:
        self.steps[name] += 1
        return name

    async def hold(self, name: str) -> str:
        """A step that takes until the gate is open, when it is done for the first time."""
        self.steps[name] += 1
        if self.steps[name] == 1:
            await self.open.wait()
        return name

    def build(self, worker: TaskWorker) -> None:
        tool = worker.server.tool

        @tool(task="optional")
        async def ask(ctx: Context) -> str:
            self.steps["run"] += 1
            answer = await ctx.elicit("Which?", Reply)
            return f"answered {answer.value.value}"  # type: ignore[union-attr] - accepted

        @tool(task="optional")
        async def stand(ctx: Context) -> str:
            await asyncio.Event().wait()
            return ""

        @tool(task="optional")
        async def walk(ctx: Context) -> str:
            for number in range(1000):
                await ctx.once(f"step {number}", self.step, f"step {number}")
                await asyncio.sleep(0.005)
            return "arrived"

        @tool(task=Task(restart="never"))
        async def fragile(ctx: Context) -> str:
            await asyncio.Event().wait()
            return ""

        @tool(task=Task(after=0.02))
        async def build_later(ctx: Context, asks: bool = False) -> str:
            if asks:
                await ctx.elicit("Which?", Reply)
            await ctx.once("first", self.hold, "first")
            await ctx.once("second", self.step, "second")
            return "built"

        @tool(task=Task(after=60))
        async def patient(ctx: Context) -> str:
            await ctx.once("first", self.hold, "first")
            await ctx.once("second", self.step, "second")
            return "patient"


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.fixture
async def fleet(yard: Yard) -> AsyncIterator[TaskFleet]:
    fleet = TaskFleet(yard.build)
    yield fleet
    yard.open.set()
    await fleet.close()


class Hold:
    """Holds the first operation of a kind, before it reaches the backend or after it is done there."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._go_on = asyncio.Event()
        self.is_held = asyncio.Event()

    async def __call__(self, what: str) -> None:
        if what == self._what and not self.is_held.is_set():
            self.is_held.set()
            await self._go_on.wait()

    def let_go(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_an_answer_that_comes_while_the_run_that_has_asked_is_ending_is_not_lost(
    fleet: TaskFleet, yard: Yard, end: str
) -> None:
    """The run that ends must not undo the assignment that came with the answer. There is no place for the next run."""
    fleet._limits = Limits(tasks_at_once=1, drain_seconds=0.2)
    one, two = await fleet.add(2)
    one.tap.on_before = hold = Hold("sets.remove")
    id = await one.start("ask")
    other = await one.start("stand")
    await hold.is_held.wait()
    asked = (await one.until(id, "input_required"))["inputRequests"]
    answering = asyncio.create_task(one.update(id, {key: accept(value="x") for key in asked}))
    await asyncio.sleep(0.02)
    hold.let_go()
    assert (await answering).status == 200
    await two.cancel(other)
    if end == "kill":
        await fleet.kill(one)
    else:
        await one.server.stop()
    fleet.look()
    assert await two.text(id) == "answered x"


@pytest.mark.spec("TASK-26b")
async def test_a_failure_at_a_takeover_is_told(fleet: TaskFleet) -> None:
    one, two = await fleet.add(2)
    id = await one.start("fragile")
    client = task_client(two.server)
    stream = await client.listen(id)
    await stream.message()  # the acknowledgement
    before = (await stream.message())["params"]
    assert before["status"] == "working"
    await fleet.kill(one)
    after = (await stream.message())["params"]
    assert (after["status"], after["taskId"]) == ("failed", id)
    assert after["lastUpdatedAt"] > before["lastUpdatedAt"]
    await client.peer.leave()


async def test_a_call_that_may_become_a_task_is_handed_over_when_its_worker_stops(fleet: TaskFleet, yard: Yard) -> None:
    """It becomes a task at once, and the step that runs may end first."""
    fleet._limits = Limits(drain_seconds=20)
    one, two = await fleet.add(2)
    calling = asyncio.create_task(one.call("patient"))
    await eventually(lambda: yard.steps["first"] == 1)
    stopping = asyncio.create_task(one.server.stop())
    handle = (await calling).result
    assert handle["resultType"] == "task"
    yard.open.set()
    await stopping
    assert await two.text(handle["taskId"]) == "patient"
    assert yard.steps == {"first": 1, "second": 1}


async def test_no_step_begins_when_a_call_has_become_a_task_at_a_worker_that_stops(
    fleet: TaskFleet, yard: Yard
) -> None:
    fleet._limits = Limits(drain_seconds=20)
    one, two = await fleet.add(2)
    handle = (await one.call("build_later")).result
    stopping = asyncio.create_task(one.server.stop())
    await eventually(lambda: one.runner.is_stopping)
    yard.open.set()
    await stopping
    assert await two.text(handle["taskId"]) == "built"
    assert yard.steps == {"first": 1, "second": 1}


async def test_a_worker_that_stops_makes_a_task_of_each_new_call_and_leaves_it_to_others(
    fleet: TaskFleet, yard: Yard
) -> None:
    fleet._limits = Limits(drain_seconds=20)
    yard.open.set()
    one, two = await fleet.add(2)
    one.runner.is_stopping = True
    handle = (await one.call("build_later")).result
    assert handle["resultType"] == "task"
    one.runner.is_stopping = False
    await one.server.stop()
    assert await two.text(handle["taskId"]) == "built"


async def test_a_cancellation_stops_the_handler_although_the_first_message_was_lost(
    fleet: TaskFleet, yard: Yard
) -> None:
    """The client repeats its request, because the first one has failed."""
    one, two = await fleet.add(2)
    id = await one.start("walk")
    await eventually(lambda: yard.steps["step 3"])

    async def fail(what: str) -> None:
        if what == "bus.publish":
            two.tap.on_before = None
            raise BackendUnavailable("away")

    two.tap.on_before = fail
    assert (await two.cancel(id)).status == 503
    assert len(one.runner)
    assert (await two.cancel(id)).status == 200
    await eventually(lambda: not len(one.runner), seconds=2)


async def test_a_cancellation_that_comes_while_a_run_begins_stops_it(fleet: TaskFleet, yard: Yard) -> None:
    one, two = await fleet.add(2)
    one.tap.on_after = hold = Hold("store.swap")  # with which the worker notes that the task runs
    id = await one.start("walk")
    await hold.is_held.wait()
    assert (await two.cancel(id)).status == 200
    hold.let_go()
    await eventually(lambda: not len(one.runner), seconds=2)
    assert not yard.steps
    assert (await two.get(id))["status"] == "cancelled"
    assert not one.runner._stopped_early


async def test_a_step_whose_worker_has_died_begins_again_at_once(fleet: TaskFleet, yard: Yard) -> None:
    """Also if the call had rounds before it became a task, whose functions are claimed for 30 seconds."""
    one, two = await fleet.add(2)
    first = (await one.call("build_later", asks=True)).result
    answers = {key: accept(value="x") for key in first["inputRequests"]}
    params = {"name": "build_later", "arguments": {"asks": True}, "requestState": first["requestState"]}
    handle = (await one.send("tools/call", {**params, "inputResponses": answers})).result
    assert handle["resultType"] == "task"
    assert yard.steps["first"] == 1
    await fleet.kill(one)
    async with asyncio.timeout(10):
        assert await two.text(handle["taskId"]) == "built"
    assert yard.steps == {"first": 2, "second": 1}


async def test_a_task_that_is_answered_while_its_worker_looks_around_stays_its_own(fleet: TaskFleet) -> None:
    """Two looks can be close together, while the backend is slow. Whoever dies later must leave the task to others."""
    (one,) = await fleet.add(1)
    id = await one.start("ask")
    await one.until(id, "input_required")
    look = one.runner.take_over

    async def look_twice(what: str) -> None:
        if what == "store.swap":
            one.tap.on_before = None
            await look._look_after_own()
            asyncio.get_running_loop().call_later(0.05, swapped.set)  # the second look goes on until then
            looking.append(asyncio.create_task(look._look_after_own()))
            await swapped.wait()

    swapped, looking, held = asyncio.Event(), list[asyncio.Task[None]](), asyncio.Event()

    async def hold(id: str, owner: str) -> None:
        await held.wait()

    one.runner._execute = hold  # type: ignore[method-assign] - the run must not end during the test
    one.tap.on_before = look_twice
    await one.answer(id, value="a")
    await asyncio.wait(looking)
    assert one.runner.knows(id)
    assert await one.server.engine.tasks._records.assigned(one.runner.worker) == [id]
    held.set()


@pytest.mark.parametrize("restart", ["resume", "never"])
async def test_a_worker_that_stops_while_a_task_is_handed_to_a_program_leaves_it_to_others(
    fleet: TaskFleet, restart: Literal["resume", "never"]
) -> None:
    """Also if the call has become a task only later."""
    fleet._limits = Limits(drain_seconds=0.05)
    one, two = await fleet.add(2)
    handed: list[int] = []

    def farm_at(worker: TaskWorker, number: int) -> None:
        async def submit(_: str) -> None:
            handed.append(number)
            if number == 0:
                await asyncio.Event().wait()

        @worker.server.tool(task=Task(after=0.01, restart=restart))
        async def farm(ctx: Context) -> str:
            return ctx.task.external(submit)

    for number, worker in enumerate((one, two)):
        farm_at(worker, number)
    id = await one.start("farm")
    await eventually(lambda: handed)
    await one.server.stop()
    if restart == "never":
        assert (await two.until(id))["statusMessage"] == "The server was stopped, and this task is not run again."
    else:
        await eventually(lambda: handed == [0, 1])
        record = await two.server.engine.tasks._records.read(id)
        assert record is not None
        assert record.deaths == 0
