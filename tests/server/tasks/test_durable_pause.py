"""A worker is paused for longer than its lease, and goes on: another one has its tasks, and must not be disturbed."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process
from support.raw_sessions import Reply, eventually
from support.redis_servers import redis_server, until
from support.task_fleets import FINAL, TaskFleet, TaskWorker, entries
from support.wire import RawClient
from weft import Context, Limits, Server
from weft.server.tasks.records import TaskRecords
from weft.server.tasks.runs import TaskRun
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY
from weft.types.tasks import TASKS_EXTENSION

LIMITS = Limits(drain_seconds=0.2)


class Mountain:
    """What each worker did, by its number, and which of its gates are open."""

    def __init__(self) -> None:
        self.workers: list[TaskWorker] = []
        self.did: list[tuple[int, str]] = []
        self.at: set[tuple[int, str]] = set()
        self.open: set[tuple[int, str]] = set()
        self.lifted = threading.Event()  # set when steps in threads may end

    async def gate(self, number: int, name: str) -> None:
        """Stand here until the gate is opened."""
        self.at.add((number, name))
        while (number, name) not in self.open and (number, "all") not in self.open:  # noqa: ASYNC110 - the test opens it
            await asyncio.sleep(0.002)

    async def until_at(self, number: int, name: str) -> None:
        await eventually(lambda: (number, name) in self.at)

    def build(self, worker: TaskWorker) -> None:
        number, server = len(self.workers), worker.server
        self.workers.append(worker)

        async def step(name: str) -> str:
            self.did.append((number, name))
            return f"{name} by {number}"

        async def slow(name: str) -> str:
            self.did.append((number, name))
            await self.gate(number, name)
            return f"{name} by {number}"

        @server.tool(task="optional")
        async def climb(ctx: Context) -> str:
            """Three steps, with a gate after each."""
            for name in ("one", "two", "three"):
                await ctx.once(name, step, name)
                await self.gate(number, f"after {name}")
            return f"up with {number}"

        @server.tool(task="optional")
        async def carry(ctx: Context) -> str:
            """A step that takes long, one that depends on it, and a question."""
            first = await ctx.once("first", slow, "first")
            second = await ctx.once("second", step, f"second after {first}")
            await ctx.elicit("Go on?", Reply)
            return f"{first}, {second}"

        @server.tool(task="optional")
        async def end(ctx: Context, asks: bool) -> str:
            """A step, a gate, and then a question or a result."""
            await ctx.once("one", step, "one")
            await self.gate(number, "end")
            return (await ctx.elicit("Who?", Reply)).value.value if asks else f"ended by {number}"  # type: ignore[union-attr]

        def lift(name: str) -> str:
            self.did.append((number, name))
            self.lifted.wait(30)
            return f"{name} by {number}"

        @server.tool(task="optional")
        async def haul(ctx: Context) -> str:
            """A step in a thread."""
            return await ctx.once("load", lift, "load")


@pytest.fixture
def mountain() -> Mountain:
    return Mountain()


@pytest.fixture
async def fleet(mountain: Mountain) -> AsyncIterator[TaskFleet]:
    made = TaskFleet(mountain.build, limits=LIMITS)
    yield made
    mountain.open |= {(number, "all") for number in range(len(made.workers))}
    mountain.lifted.set()
    await made.close()


def ignore_missed(worker: TaskWorker) -> None:
    """Let a worker not look at its runs when its lease comes back: only the next step can notice that one is lost."""
    worker.server.engine.fleet._on_missed.clear()


# The next step.


@pytest.mark.parametrize("moment", ["before", "during", "after", "long after"])
async def test_it_does_no_further_step_whenever_its_lease_is_renewed(
    fleet: TaskFleet, mountain: Mountain, moment: str
) -> None:
    """`moment`: when it wants to do the next step, in relation to the renewal of its lease."""
    one, two = await fleet.add(2)
    ignore_missed(one)
    id = await one.start("climb")
    await mountain.until_at(0, "after one")
    await fleet.lose_lease(one)
    await mountain.until_at(1, "after one")
    is_held, waking = asyncio.Event(), None
    if moment == "during":

        async def hold(what: str) -> None:
            if what == "store.put":
                is_held.set()
                await asyncio.Event().wait()

        one.tap.on_before = hold
        waking = asyncio.create_task(fleet.wake(one))
        await is_held.wait()
    elif moment != "before":
        await fleet.wake(one, long_ago=moment == "long after")
    mountain.open.add((0, "all"))
    await eventually(lambda: not len(one.runner))
    mountain.open.add((1, "all"))
    assert await two.text(id) == "up with 1"
    assert mountain.did == [(0, "one"), (1, "two"), (1, "three")]
    if waking is not None:
        waking.cancel()


async def test_it_notices_that_a_task_was_taken_over_some_time_after_its_lease_came_back(
    fleet: TaskFleet, mountain: Mountain
) -> None:
    """The other one had found the lease missing, and acts on that later."""
    one, two = await fleet.add(2)
    id = await one.start("climb")
    await mountain.until_at(0, "after one")
    one.server.engine.fleet._renewed -= 1000
    await fleet.wake(one, long_ago=False)
    mountain.open |= {(0, "after one"), (1, "after one")}
    await mountain.until_at(0, "after two")  # the task was its own until here
    await two.runner.take_over._take(id, one.runner.worker)
    await mountain.until_at(1, "after two")
    await fleet.wake(one)
    mountain.open.add((0, "all"))
    await eventually(lambda: not len(one.runner))
    mountain.open.add((1, "all"))
    assert await two.text(id) == "up with 1"
    assert mountain.did == [(0, "one"), (0, "two"), (1, "three")]


async def test_a_run_that_lost_its_task_is_stopped_when_the_lease_comes_back(
    fleet: TaskFleet, mountain: Mountain
) -> None:
    """It would not call `once` for long."""
    one, two = await fleet.add(2)
    id = await one.start("climb")
    await mountain.until_at(0, "after one")
    await fleet.lose_lease(one)
    await mountain.until_at(1, "after one")
    await fleet.wake(one)
    await eventually(lambda: not len(one.runner))
    mountain.open.add((1, "all"))
    assert await two.text(id) == "up with 1"


async def test_it_goes_on_if_no_other_worker_was_there(fleet: TaskFleet, mountain: Mountain) -> None:
    (one,) = await fleet.add(1)
    id = await one.start("climb")
    await mountain.until_at(0, "after one")
    await fleet.lose_lease(one)
    mountain.open.add((0, "after one"))
    await mountain.until_at(0, "after two")
    await fleet.wake(one)
    mountain.open.add((0, "all"))
    assert await one.text(id) == "up with 0"
    assert mountain.did == [(0, "one"), (0, "two"), (0, "three")]


@pytest.mark.parametrize("kind", ["fleet", "alone"])
async def test_a_worker_that_was_not_paused_reads_no_record_before_a_step(
    fleet: TaskFleet, mountain: Mountain, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "fleet":
        (worker,) = await fleet.add(1)
    else:
        worker = TaskWorker.__new__(TaskWorker)
        worker.server, worker.app = Server("alone", limits=LIMITS), None
        mountain.build(worker)
    id = await worker.start("climb")
    await mountain.until_at(0, "after one")

    async def read(self: Any, id: str) -> Any:
        raise AssertionError("a record was read")

    with monkeypatch.context() as patch:
        patch.setattr(TaskRecords, "read", read)
        mountain.open |= {(0, "after one"), (0, "after two")}
        await mountain.until_at(0, "after three")
    mountain.open.add((0, "all"))
    assert await worker.text(id) == "up with 0"
    await worker.server.stop()


# What it stores after the pause.


async def test_the_result_of_its_step_does_not_replace_that_of_the_other_worker(
    fleet: TaskFleet, mountain: Mountain
) -> None:
    """Both do the step, and its own ends first. The other one goes on with its own result, also in a later run."""
    one, two = await fleet.add(2)
    ignore_missed(one)
    id = await one.start("carry")
    await mountain.until_at(0, "first")
    await fleet.lose_lease(one)
    await mountain.until_at(1, "first")
    await fleet.wake(one)
    mountain.open.add((0, "first"))
    await eventually(lambda: not len(one.runner))
    mountain.open.add((1, "first"))
    await two.answer(id, value="yes")
    assert await two.text(id) == "first by 1, second after first by 1 by 1"
    assert mountain.did == [(0, "first"), (1, "first"), (1, "second after first by 1")]


async def test_the_result_of_its_step_is_stored_if_the_task_is_still_its_own(
    fleet: TaskFleet, mountain: Mountain
) -> None:
    (one,) = await fleet.add(1)
    id = await one.start("carry")
    await mountain.until_at(0, "first")
    await fleet.lose_lease(one)
    mountain.open.add((0, "first"))
    await one.answer(id, value="yes")  # the handler runs again
    assert await one.text(id) == "first by 0, second after first by 0 by 0"
    assert mountain.did == [(0, "first"), (0, "second after first by 0")]


async def test_the_result_of_a_step_in_a_thread_is_dropped_if_the_task_was_lost_meanwhile(
    fleet: TaskFleet, mountain: Mountain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is over, and the step cannot be stopped."""
    kept, keep = asyncio.Event(), TaskRun.keep

    async def observe(self: TaskRun, key: str, value: Any) -> None:
        await keep(self, key, value)
        kept.set()

    monkeypatch.setattr(TaskRun, "keep", observe)
    (one,) = await fleet.add(1)
    id = await one.start("haul")
    await eventually(lambda: mountain.did)
    one.runner._runs[id].stop("lost")
    await eventually(lambda: not one.runner._running)
    mountain.lifted.set()
    await eventually(kept.is_set)
    assert entries(fleet.memory)["log"] == []


@pytest.mark.parametrize("asks", [False, True])
async def test_its_result_and_its_questions_are_dropped(fleet: TaskFleet, mountain: Mountain, asks: bool) -> None:
    one, two = await fleet.add(2)
    ignore_missed(one)
    id = await one.start("end", asks=asks)
    await mountain.until_at(0, "end")
    await fleet.lose_lease(one)
    await mountain.until_at(1, "end")
    await fleet.wake(one)
    mountain.open.add((0, "end"))
    await eventually(lambda: not len(one.runner))
    assert (await two.get(id))["status"] == "working"
    mountain.open.add((1, "end"))
    if asks:
        await two.answer(id, value="Ann")
    assert await two.text(id) == ("Ann" if asks else "ended by 1")
    assert mountain.did == [(0, "one")]


# A process that is stopped by a signal.

SCRIPT = """
import asyncio, os
from pathlib import Path
from weft import Context, Server
from weft.server.runtime import fleet
from weft.server.tasks import takeover

fleet.LEASE_SECONDS, takeover.LOOK_SECONDS = 3.0, 0.2
folder = Path({folder!r})
server = Server("paused", backend={url!r}, state_keys=["only for this test " * 2])

async def step(number: int) -> int:
    with (folder / "steps").open("a") as file:
        file.write(f"{{number}} {{os.getpid()}}\\n")
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return number

@server.tool(task="required")
async def work(ctx: Context) -> str:
    for number in range(4):
        await ctx.once(f"step {{number}}", step, number)
    return str(os.getpid())

server.run("http", port=0)
"""
ABLE = {CLIENT_CAPABILITIES_KEY: {"extensions": {TASKS_EXTENSION: {}}}}


def test_a_process_that_was_stopped_for_longer_than_its_lease_does_no_further_step(tmp_path: Path) -> None:
    (tmp_path / "steps").touch()

    def steps() -> list[list[int]]:
        return [[int(part) for part in line.split()] for line in (tmp_path / "steps").read_text().splitlines()]

    processes: list[Process] = []
    with redis_server(tmp_path / "redis") as redis:
        try:
            peers: list[RawClient] = []
            for number in range(2):
                folder = tmp_path / str(number)
                folder.mkdir()
                processes.append(Process(folder, "", SCRIPT.format(folder=str(tmp_path), url=redis.url)))
                peers.append(RawClient())
                peers[-1].port = int(processes[-1].url().split(":")[2].partition("/")[0])
            id = peers[0].tool("work", meta=ABLE).result["taskId"]
            until(steps, "the first step")
            processes[0].signal(signal.SIGSTOP)
            until(lambda: len(steps()) == 2, "another worker has the task")
            (_, paused), (_, other) = steps()
            processes[0].signal(signal.SIGCONT)
            until(lambda: len(redis.run("KEYS", "*worker/*")) == 2, "its lease is there again")
            (tmp_path / "go").touch()

            def ended() -> Any:
                state = peers[1].call("tasks/get", {"taskId": id}, meta=ABLE).result
                return state if state["status"] in FINAL else None

            state = until(ended, "the end of the task")
            assert state["result"]["content"][0]["text"] == str(other)
            assert steps() == [[0, paused], [0, other], [1, other], [2, other], [3, other]]
        finally:
            for process in processes:
                process.signal(signal.SIGCONT)
                process.kill()
