"""How many handlers of tasks run at the same time, and who is next: no caller keeps all others waiting."""

import asyncio
import threading
from collections import Counter

import pytest

from support.raw_sessions import eventually
from support.task_clients import TaskClient, serving, task_client
from weft import Context, Limits, Server, Task
from weft.server.tasks.places import Places
from weft.server.tasks.records import owner_of


class Hall:
    """A server whose handlers run until the test lets them end."""

    def __init__(self, **limits: int) -> None:
        self.server = Server("hall", limits=Limits(**limits))  # type: ignore[arg-type] - whole numbers
        self.running: Counter[str] = Counter()  # by tool
        self.most = 0
        self.end = asyncio.Event()
        self.threads: list[str] = []
        self.thread_end = threading.Event()
        tool = self.server.tool

        @tool(task="optional")
        async def stand() -> str:
            return await self.stay("stand")

        @tool(task=Task(after=0.01))
        async def linger() -> str:
            return await self.stay("linger")

        @tool(task="optional")
        async def pass_by() -> str:
            return "passed"

        @tool(task=Task(after=0.01))
        def block() -> str:
            self.threads.append(threading.current_thread().name)
            self.thread_end.wait(30)
            return "unblocked"

        @tool
        def quick() -> str:
            return "quick"

    async def stay(self, tool: str) -> str:
        self.running[tool] += 1
        self.most = max(self.most, self.running.total())
        try:
            await self.end.wait()
        finally:
            self.running[tool] -= 1
        return "left"


async def test_one_caller_leaves_places_for_others() -> None:
    hall = Hall(tasks_at_once=4)
    ann, bob = task_client(hall.server, "ann"), task_client(hall.server, "bob")
    ids = [await ann.start("stand") for _ in range(5)]
    await eventually(lambda: hall.running["stand"] == 2)
    assert (await bob.until(await bob.start("pass_by")))["status"] == "completed"
    assert hall.most == 2
    hall.end.set()
    for id in ids:
        assert (await ann.until(id))["status"] == "completed"
    assert hall.most <= 3
    await leave(hall, ann, bob)


async def leave(hall: Hall, *clients: TaskClient) -> None:
    for client in clients:
        await client.peer.leave()
    await hall.server.stop()


async def test_the_only_client_has_all_places() -> None:
    """On stdio there are no others. The same holds for a client in the same process."""
    places = Places(3)
    begun: list[int] = []
    for number in range(4):
        places.take(str(number), owner_of(""), lambda number=number: begun.append(number))
    assert (begun, places.waiting) == ([0, 1, 2], ["3"])


def test_callers_take_turns() -> None:
    places = Places(2)
    begun: list[str] = []
    for task in ("a1", "a2", "a3", "b1", "b2"):
        places.take(task, task[0], lambda task=task: begun.append(task))
    assert begun == ["a1", "b1"]
    for task in ("a1", "b1", "b2", "a2"):
        places.leave(task)
    assert sorted(begun) == ["a1", "a2", "a3", "b1", "b2"]
    assert begun[2] == "a2"
    assert begun[3] == "b2"
    places.leave("a3")
    assert len(places) == 0


def test_with_a_single_place_everybody_gets_it_in_turn() -> None:
    places = Places(1)
    begun: list[str] = []
    for task in ("a1", "a2", "a3", "b1"):
        places.take(task, task[0], lambda task=task: begun.append(task))
    places.take("a1", "a", lambda: begun.append("twice"))
    for task in ("a1", "a2", "b1"):
        places.leave(task)
    assert begun == ["a1", "a2", "b1", "a3"]


def test_a_task_that_does_not_wait_any_more_gets_no_place() -> None:
    places = Places(1)
    begun: list[str] = []
    for task in ("a1", "b1", "c1"):
        places.take(task, task[0], lambda task=task: begun.append(task))
    assert "b1" in places
    places.leave("b1")
    assert "b1" not in places
    places.leave("a1")
    assert begun == ["a1", "c1"]
    places.clear()
    assert (len(places), places.waiting) == (1, [])


async def test_a_call_becomes_a_task_only_if_there_is_a_place() -> None:
    """Until then it goes on as a call: so no more handlers run as tasks than `tasks_at_once`."""
    hall = Hall(tasks_at_once=2)
    async with serving(hall.server) as client:
        id = await client.start("linger")
        waiting = [asyncio.create_task(client.call("linger")) for _ in range(3)]
        await eventually(lambda: hall.running["linger"] == 4)
        await asyncio.sleep(0.1)  # much longer than `after`
        assert not any(call.done() for call in waiting)
        assert len(hall.server.engine.tasks.runner._runs) == 1
        hall.end.set()
        assert [(await call)["content"][0]["text"] for call in waiting] == ["left"] * 3
        assert (await client.until(id))["status"] == "completed"
        await eventually(lambda: len(hall.server.engine.tasks.runner) == 0)


async def test_a_waiting_call_becomes_a_task_when_a_place_is_free() -> None:
    hall = Hall(tasks_at_once=1)
    async with serving(hall.server) as client:
        first = await client.start("stand")
        second = asyncio.create_task(client.call("linger"))
        await eventually(lambda: hall.running["linger"] == 1)
        await eventually(lambda: hall.server.engine.tasks.runner._places.waiting)
        await client.cancel(first)
        handle = await second
        assert (handle["resultType"], handle["status"]) == ("task", "working")
        hall.end.set()
        assert (await client.until(handle["taskId"]))["status"] == "completed"


@pytest.mark.parametrize("number", [1, 3])
async def test_a_call_that_is_cancelled_while_it_waits_for_a_place_gives_it_back(number: int) -> None:
    hall = Hall(tasks_at_once=1)
    async with serving(hall.server) as client:
        await client.start("stand")
        for _ in range(number):
            exchange = asyncio.create_task(client.send("tools/call", {"name": "linger", "arguments": {}}))
            await eventually(lambda: hall.server.engine.tasks.runner._places.waiting)
            await client.peer.exchanges[-1].close()
            await eventually(lambda: not hall.server.engine.tasks.runner._places.waiting)
            exchange.cancel()
        assert not hall.server.engine.tasks.runner._begun
        await eventually(lambda: hall.running["linger"] == 0)
        hall.end.set()


async def test_plain_functions_that_may_become_tasks_keep_no_other_call_waiting() -> None:
    hall = Hall(threads=1, task_threads=2)
    async with serving(hall.server) as client:
        ids = [await client.start("block") for _ in range(2)]
        assert (await client.call("quick"))["content"][0]["text"] == "quick"
        hall.thread_end.set()
        for id in ids:
            assert (await client.until(id))["status"] == "completed"
        assert {name.partition("_")[0] for name in hall.threads} == {"weft-task"}


async def test_a_cancelled_plain_function_keeps_its_place_until_it_ends() -> None:
    """It cannot be stopped. Else a caller could take all threads, by cancelling its tasks."""
    server = Server("hall", limits=Limits(tasks_at_once=4, task_threads=4))
    end, running = threading.Event(), threading.Semaphore(0)

    @server.tool(task="optional")
    def grind() -> str:
        running.release()
        end.wait(30)
        return "ground"

    ann, bob = task_client(server, "ann"), task_client(server, "bob")
    try:
        for _ in range(6):
            id = await ann.start("grind")
            await asyncio.sleep(0.02)
            await ann.cancel(id)
        await bob.start("grind")
        for _ in range(3):  # two of ann's, one of bob's
            assert await asyncio.to_thread(running.acquire, timeout=10)
        assert not running.acquire(blocking=False)
        runner = server.engine.tasks.runner
        assert len(runner._places._taken) == 3
    finally:
        end.set()
    await eventually(lambda: len(runner) == 0)
    await leave(Hall(), ann, bob)
    await server.stop()


def test_a_kept_place_is_left_by_its_name() -> None:
    places = Places(1)
    begun: list[str] = []
    places.take("a1", "a", lambda: begun.append("a1"))
    name = places.keep("a1")
    places.take("a1", "a", lambda: begun.append("again"))
    assert begun == ["a1"]
    places.leave("a1 ")
    places.leave(name)
    assert begun == ["a1", "again"]
    places.leave(places.keep("unknown"))
    places.leave("a1")
    assert len(places) == 0


async def test_a_function_of_once_that_waits_for_a_thread_never_begins_after_its_task_was_cancelled() -> None:
    server = Server("hall", limits=Limits(task_threads=1))
    end, begun = threading.Event(), list[str]()

    def step(name: str) -> None:
        begun.append(name)
        end.wait(30)

    @server.tool(task="optional")
    async def walk(ctx: Context, name: str) -> str:
        await ctx.once("step", step, name)
        return name

    async with serving(server) as client:
        first = await client.start("walk", {"name": "first"})
        await eventually(lambda: begun)
        second = await client.start("walk", {"name": "second"})
        await eventually(lambda: len(server.engine.tasks.runner._runs) == 2)
        await asyncio.sleep(0.02)
        await client.cancel(second)
        await eventually(lambda: len(server.engine.tasks.runner) == 1)
        end.set()
        assert (await client.until(first))["status"] == "completed"
        assert begun == ["first"]


# No room in the server.


async def test_an_optional_tool_is_answered_plainly_if_there_is_no_room_for_a_task() -> None:
    hall = Hall(tasks_per_peer=1)
    async with serving(hall.server) as client:
        await client.until(await client.start("pass_by"))
        for _ in range(3):
            answer = await client.call("pass_by")
            assert (answer["resultType"], answer["content"][0]["text"]) == ("complete", "passed")


async def test_a_tool_that_needs_a_task_is_refused_if_there_is_no_room_for_one() -> None:
    server = Server("hall", limits=Limits(tasks_per_peer=1))

    @server.tool(task="required")
    async def serve(ctx: Context) -> str:
        return "served"

    async with serving(server) as client:
        await client.start("serve")
        refused = await client.send("tools/call", {"name": "serve", "arguments": {}})
        assert refused.status == 503
        assert "You have 1 tasks" in (await refused.json())["error"]["message"]


async def test_the_journal_of_a_task_that_has_ended_is_not_counted_any_more() -> None:
    server = Server("hall", limits=Limits(tasks_bytes=1_000_000, task_bytes=200_000))

    @server.tool(task="required")
    async def work(ctx: Context) -> str:
        await ctx.once("step", lambda: "x" * 100_000)
        return "done"

    async with serving(server) as client:
        for _ in range(20):
            state = await client.until(await client.start("work"))
            assert state["status"] == "completed", state
        await eventually(lambda: len(server.engine.tasks.runner) == 0)
        assert server.engine.tasks.shares._all_bytes < 20 * 1000


async def test_an_answer_for_which_there_is_no_room_may_be_sent_again() -> None:
    server = Server("hall", limits=Limits(tasks_bytes=100_000, task_bytes=50_000))

    @server.tool(task="required")
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}}, key="who")
        return str(len(answer.value["name"]))

    async with serving(server) as client:
        shares = server.engine.tasks.shares
        id = await client.start("ask")
        await client.asked(id)
        assert shares.take("other", owner_of("127.0.0.1"), 48_000, 60)
        answers = {"who": {"action": "accept", "content": {"name": "x" * 9000}}}
        refused = await client.send("tasks/update", {"taskId": id, "inputResponses": answers})
        assert refused.status == 503
        shares.release("other")
        await client.update(id, answers)
        assert (await client.until(id))["result"]["content"][0]["text"] == "9000"
