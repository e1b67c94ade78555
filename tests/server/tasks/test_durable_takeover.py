"""A worker dies or stops while it runs tasks: others go on with them, from the journal."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process
from support.raw_sessions import Reply, eventually
from support.redis_servers import RedisServer, redis_server
from support.task_fleets import TaskFleet, TaskWorker, entries
from support.wire import RawClient, message
from weft import Context, InputRequired, Limits, Server, Task
from weft.backends import Backend
from weft.backends.memory import MemoryBackend
from weft.backends.redis import RedisBackend
from weft.server.tasks import runner as runner_module
from weft.server.tasks import takeover
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY
from weft.types.tasks import TASKS_EXTENSION

LIMITS = Limits(drain_seconds=0.2, task_restarts=2)


class Studio:
    """What the workers of a fleet did, and when their handlers may go on."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()  # side effects
        self.runs: list[TaskWorker] = []  # which workers have run a handler
        self.open: set[str] = set()  # gates that handlers may pass
        self.at: set[str] = set()  # gates at which handlers stand
        self.shut_down: list[str] = []

    async def gate(self, name: str) -> None:
        """Stand here until the gate is opened."""
        self.at.add(name)
        while name not in self.open:  # noqa: ASYNC110 - the test opens it
            await asyncio.sleep(0.002)

    async def paint(self, key: str) -> str:
        self.done[key] += 1
        return f"{key} no. {self.done[key]}"

    async def slow(self, key: str) -> str:
        self.done[key] += 1
        await self.gate(key)
        return f"{key} no. {self.done[key]}"

    def build(self, worker: TaskWorker) -> None:
        server = worker.server

        @server.tool(task="optional")
        async def render(ctx: Context, stop: str = "middle") -> str:
            """Two steps, with a gate between them."""
            self.runs.append(worker)
            first = await ctx.once("first", self.paint, "first")
            await self.gate(stop)
            return f"{first}, {await ctx.once('second', self.paint, 'second')}"

        @server.tool(task="optional")
        async def ask(ctx: Context) -> str:
            """A step, a question, and a gate."""
            self.runs.append(worker)
            first = await ctx.once("first", self.paint, "first")
            answer = await ctx.elicit("Which?", Reply)
            await self.gate("answered")
            return f"{first} {answer.value.value}"  # type: ignore[union-attr] - accepted

        @server.tool(task="optional")
        async def long(ctx: Context) -> str:
            """One step that takes long."""
            self.runs.append(worker)
            step = await ctx.once("step", self.slow, "step")
            return f"{step}, {await ctx.once('after', self.paint, 'after')}"

        @server.tool(task=Task(restart="never"))
        async def fragile(ctx: Context) -> str:
            self.runs.append(worker)
            await self.gate("fragile")
            return "whole"

        @server.tool(task="optional")
        async def climb(ctx: Context) -> str:
            """Two steps, with a gate after each."""
            self.runs.append(worker)
            for number in range(2):
                await ctx.once(f"step {number}", self.paint, f"step {number}")
                await self.gate(f"gate {number}")
            return "up"

        @server.on_shutdown
        async def leave() -> None:
            self.shut_down.append(f"{len(worker.runner)} running")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def studio() -> Studio:
    return Studio()


@pytest.fixture(params=["memory", "redis"])
async def fleet(request: pytest.FixtureRequest, studio: Studio) -> AsyncIterator[TaskFleet]:
    shared = MemoryBackend()

    def backend() -> Backend:
        if request.param == "memory":
            return shared
        return RedisBackend(request.getfixturevalue("redis").url)

    if request.param == "redis":
        request.getfixturevalue("redis").run("FLUSHALL")
    made = TaskFleet(studio.build, backend=backend, limits=LIMITS)
    made.memory = shared
    yield made
    studio.open |= {"middle", "answered", "step", "fragile"}
    await made.close()


# A worker dies.


async def test_another_worker_goes_on_from_the_journal(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    id = await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    await fleet.kill(one)
    await eventually(lambda: studio.runs == [one, two])
    studio.open.add("middle")
    assert await two.text(id) == "first no. 1, second no. 1"
    assert studio.done == {"first": 1, "second": 1}


async def test_an_answer_survives_the_worker_that_took_it(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    id = await two.start("ask")
    await one.answer(id, value="blue")  # so that this worker runs it
    await eventually(lambda: "answered" in studio.at)
    assert studio.runs == [two, one]
    await fleet.kill(one)
    await eventually(lambda: studio.runs == [two, one, two])
    studio.open.add("answered")
    assert await two.text(id) == "first no. 1 blue"
    assert studio.done == {"first": 1}


async def test_a_worker_that_dies_before_it_has_stored_the_answer_in_the_journal_loses_nothing(
    fleet: TaskFleet, studio: Studio
) -> None:
    one, two = await fleet.add(2)
    id = await two.start("ask")
    await two.until(id, "input_required")

    async def hold(what: str) -> None:
        if what == "log.append":
            await asyncio.Event().wait()

    one.tap.on_before = hold
    await one.answer(id, value="blue")
    await fleet.kill(one)
    studio.open.add("answered")
    assert await two.text(id) == "first no. 1 blue"


async def test_a_task_that_waits_for_its_answer_needs_no_worker(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    id = await one.start("ask")
    await two.until(id, "input_required")
    await eventually(lambda: not len(one.runner))
    await fleet.kill(one)
    studio.open.add("answered")
    await two.answer(id, value="red")
    assert await two.text(id) == "first no. 1 red"


async def test_all_workers_die_and_a_new_one_goes_on(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    ids = [await worker.start("render") for worker in (one, two)]
    await eventually(lambda: len(studio.runs) == 2)
    await eventually(lambda: studio.done["first"] == 2)
    for worker in (one, two):
        await eventually(lambda worker=worker: len(worker.runner._runs) == 1)
        await fleet.kill(worker)
    studio.open.add("middle")
    (three,) = await fleet.add(1)
    for id in ids:
        assert (await three.text(id)).startswith("first no. ")
    assert studio.done == {"first": 2, "second": 2}


async def test_a_task_that_must_not_run_again_fails_with_the_reason(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    id = await one.start("fragile")
    await eventually(lambda: "fragile" in studio.at)
    await fleet.kill(one)
    state = await two.until(id)
    why = "The worker that ran this task has died, and the task is not run again."
    assert (state["status"], state["statusMessage"]) == ("failed", why)
    assert state["error"] == {"code": -32603, "message": why}
    assert studio.runs == [one]


async def test_a_task_that_must_not_run_again_may_begin_elsewhere(fleet: TaskFleet, studio: Studio) -> None:
    """It waits for room when its worker dies, so that its handler has not run."""
    fleet._limits = Limits(drain_seconds=0.2, tasks_at_once=1)
    one, two = await fleet.add(2)
    await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    id = await one.start("fragile")
    await fleet.kill(one)
    studio.open |= {"middle", "fragile"}
    assert await two.text(id) == "whole"


async def test_a_task_that_kills_its_workers_fails(fleet: TaskFleet, studio: Studio) -> None:
    """Without a new result of `once`, so many deaths in a row are too many, and one fewer is not."""
    workers = await fleet.add(LIMITS.task_restarts + 2)
    id = await workers[0].start("render")
    dead: list[TaskWorker] = []
    for number in range(1, LIMITS.task_restarts + 2):
        await eventually(lambda number=number: len(studio.runs) == number)
        await eventually(lambda: studio.runs[-1].runner._runs and "middle" in studio.at)  # the first step is stored
        dead.append(studio.runs[-1])
        await fleet.kill(dead[-1])
    (alive,) = set(workers) - set(dead)
    state = await alive.until(id)
    assert (state["status"], state["statusMessage"]) == (
        "failed",
        "3 workers in a row have died while they ran this task.",
    )
    assert len(studio.runs) == LIMITS.task_restarts + 1


async def test_a_new_result_of_once_starts_the_count_again(fleet: TaskFleet, studio: Studio) -> None:
    fleet._limits = Limits(drain_seconds=0.2, task_restarts=1)
    workers = await fleet.add(3)
    id = await workers[0].start("climb")
    for run, gate in enumerate(("gate 0", "gate 1"), 1):
        await eventually(lambda run=run, gate=gate: len(studio.runs) == run and gate in studio.at)
        await fleet.kill(studio.runs[-1])
        studio.open.add(gate)
    (alive,) = [worker for worker in workers if not worker.is_dead]
    assert await alive.text(id) == "up"
    assert studio.done == {"step 0": 1, "step 1": 1}


async def test_a_worker_that_looked_dead_stops_before_the_next_step(fleet: TaskFleet, studio: Studio) -> None:
    """It was cut off for longer than its lease, and another has the task."""
    one, two = await fleet.add(2)
    id = await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    await fleet.lose_lease(one)
    await eventually(lambda: studio.runs == [one, two])
    studio.open.add("middle")
    assert await two.text(id) == "first no. 1, second no. 1"
    await eventually(lambda: not len(one.runner))
    assert studio.done == {"first": 1, "second": 1}


async def test_a_worker_whose_tasks_were_looked_at_in_vain_is_found_later(fleet: TaskFleet, studio: Studio) -> None:
    """It looked dead while it had no tasks. Those that it creates later are found when it dies."""
    one, two = await fleet.add(2)
    records = two.server.engine.tasks._records
    studio.open |= {"fragile"}
    await one.text(await one.start("fragile"))
    studio.open.clear()
    one.runner.listed_until += 10_000  # an earlier task had a longer time to live
    await records.unlist_worker(one.server.engine.fleet.worker)  # what another one does
    id = await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    await fleet.kill(one)
    studio.open.add("middle")
    assert await two.text(id) == "first no. 1, second no. 1"


# A worker stops.


async def test_a_step_that_runs_may_end_and_the_next_one_goes_on_elsewhere(fleet: TaskFleet, studio: Studio) -> None:
    fleet._limits = Limits(drain_seconds=20)
    one, two = await fleet.add(2)
    id = await one.start("long")
    await eventually(lambda: "step" in studio.at)
    stopping = asyncio.create_task(one.server.stop())
    await eventually(lambda: one.runner.is_stopping)
    studio.open.add("step")
    await stopping
    assert await two.text(id) == "step no. 1, after no. 1"
    assert studio.runs == [one, two]
    assert studio.done == {"step": 1, "after": 1}
    assert studio.shut_down[0] == "1 running"  # before the task was handed over


async def test_a_step_that_takes_too_long_is_cancelled_and_called_again(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    id = await one.start("long")
    await eventually(lambda: "step" in studio.at)
    await one.server.stop()
    studio.open.add("step")
    assert await two.text(id) == "step no. 2, after no. 1"


async def test_a_stopping_worker_says_that_a_task_does_not_run_again(fleet: TaskFleet, studio: Studio) -> None:
    one, two = await fleet.add(2)
    id = await one.start("fragile")
    await eventually(lambda: "fragile" in studio.at)
    await one.server.stop()
    state = await two.until(id)
    assert (state["status"], state["statusMessage"]) == (
        "failed",
        "The server was stopped, and this task is not run again.",
    )


async def test_tasks_that_wait_for_room_go_on_elsewhere(fleet: TaskFleet, studio: Studio) -> None:
    fleet._limits = Limits(drain_seconds=0.2, tasks_at_once=1)
    one, two = await fleet.add(2)
    ids = [await one.start("render") for _ in range(3)]
    await one.server.stop()
    studio.open.add("middle")
    for id in ids:
        assert "second no. " in await two.text(id)
    assert studio.done["second"] == 3


async def test_a_stopped_worker_that_starts_again_goes_on_with_its_tasks(fleet: TaskFleet, studio: Studio) -> None:
    """There was no other worker in the meantime, and it has the same id."""
    (one,) = await fleet.add(1)
    id = await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    await one.server.stop()
    assert studio.done == {"first": 1}
    await fleet.begin(one)
    studio.open.add("middle")
    assert await one.text(id) == "first no. 1, second no. 1"


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_shutdown_function_that_fails_or_hangs_loses_no_task(
    fleet: TaskFleet, studio: Studio, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await fleet.add(2)

    @one.server.on_shutdown
    async def bad() -> None:
        if fault == "hangs":
            await asyncio.Event().wait()
        raise RuntimeError("no")

    id = await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    with caplog.at_level(logging.ERROR):
        await one.server.stop()
    assert "called at shutdown" in caplog.text
    studio.open.add("middle")
    assert await two.text(id) == "first no. 1, second no. 1"
    assert studio.shut_down == ["1 running"]


async def test_nothing_is_assigned_to_a_worker_any_more_when_its_tasks_have_ended(
    fleet: TaskFleet, studio: Studio
) -> None:
    one, two = await fleet.add(2)
    id = await one.start("render")
    await eventually(lambda: "middle" in studio.at)
    await fleet.kill(one)
    studio.open.add("middle")
    await two.text(id)
    records, workers = two.server.engine.tasks._records, [one, two]
    assigned = [records.assigned(worker.server.engine.fleet.worker) for worker in workers]
    await eventually(lambda: not len(two.runner))
    assert [list(await ids) for ids in assigned] == [[], []]


# The memory of one process.


@pytest.fixture
async def alone(studio: Studio) -> AsyncIterator[TaskWorker]:
    """A server without a backend."""
    worker = TaskWorker.__new__(TaskWorker)
    worker.server, worker.app = Server("alone", limits=LIMITS), None
    studio.build(worker)
    yield worker
    studio.open |= {"middle", "step", "fragile", "answered"}
    await worker.server.stop()


async def test_alone_running_and_waiting_tasks_fail_when_the_server_stops(
    alone: TaskWorker, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await alone.start(tool) for tool in ("render", "fragile", "long")]
    asking = await alone.start("ask")
    await alone.until(asking, "input_required")
    await eventually(lambda: {"middle", "fragile", "step"} <= studio.at)
    await alone.server.stop()
    for id in ids:
        state = await alone.get(id)
        assert (state["status"], state["statusMessage"]) == ("failed", runner_module.STOPPED)
    assert (await alone.get(asking))["status"] == "input_required"  # nothing of it ran
    studio.open.add("answered")
    await alone.answer(asking, value="blue")
    assert await alone.text(asking) == "first no. 2 blue"


async def test_alone_a_task_that_pauses_fails_when_the_server_stops(alone: TaskWorker) -> None:
    """Its handler has returned a state, and runs again after some time."""

    @alone.server.tool(task=Task(poll=50))
    async def poll(ctx: Context) -> Any:
        return InputRequired(state=1)

    id = await alone.start("poll")
    await eventually(lambda: alone.runner._delayed)
    await alone.server.stop()
    state = await alone.get(id)
    assert (state["status"], state["statusMessage"]) == ("failed", runner_module.STOPPED)
    assert not alone.runner._delayed


async def test_alone_tasks_that_wait_for_room_fail_when_the_server_stops(studio: Studio) -> None:
    worker = TaskWorker.__new__(TaskWorker)
    worker.server, worker.app = Server("alone", limits=Limits(drain_seconds=0.1, tasks_at_once=1)), None
    studio.build(worker)
    ids = [await worker.start("render") for _ in range(3)]
    await eventually(lambda: "middle" in studio.at)
    await worker.server.stop()
    assert {(await worker.get(id))["status"] for id in ids} == {"failed"}
    assert entries(worker.server.backend)["log"] == []  # type: ignore[arg-type] - of the memory one
    await worker.server.stop()


# A process that is stopped.

SCRIPT = """
import asyncio, os, signal, sys
from weft import Context, Limits, Server

server = Server("stopping", limits=Limits(drain_seconds=5.0))

def say(text):
    print(text, file=sys.stderr, flush=True)

@server.tool(task="required")
async def work(ctx: Context) -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        say("handler stopped")
        raise

@server.on_shutdown
def leave():
    say("shutdown function called")

server.run("http", port=0)
"""


def test_a_process_calls_the_shutdown_functions_before_it_hands_over_its_tasks(tmp_path: Path) -> None:
    process = Process(tmp_path, "", SCRIPT)
    body = message(
        "tools/call", {"name": "work"}, meta={CLIENT_CAPABILITIES_KEY: {"extensions": {TASKS_EXTENSION: {}}}}
    )
    peer = RawClient()
    peer.port = int(process.url().split(":")[2].partition("/")[0])
    assert peer.post(body).result["resultType"] == "task"
    _, said = process.end()
    wanted = ["shutdown function called", "handler stopped"]
    assert [line for line in said.splitlines() if line in wanted] == wanted


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_worker_looks_for_tasks_of_others_also_in_a_second_event_loop(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """Also if the first one has ended without `stop`."""
    monkeypatch.setattr(takeover, "LOOK_SECONDS", 0.01)
    server = Server("studio", backend=MemoryBackend(), state_keys=["only for these tests " * 2])
    looks: list[int] = []

    async def serve(number: int) -> None:
        async def look() -> None:
            looks.append(number)

        monkeypatch.setattr(server.engine.tasks.runner.take_over, "_look_after_others", look)
        await server.start()
        await eventually(lambda: looks.count(number) > 3)
        if is_stopped:
            await server.stop()

    asyncio.run(serve(1))
    asyncio.run(serve(2))
