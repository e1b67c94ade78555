"""`subscriptions/listen` with `taskIds`: each change of a task is sent, with all that `tasks/get` would say."""

import asyncio
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import Exchange
from support.task_clients import TASKS, TaskClient, accept, serving, task_client
from weft import Context, Limits, ProtocolError, Server, Task
from weft.backends.memory import MemoryBackend

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAAAA"
TAG = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


class Studio:
    """A server with tools that report, ask, end and fail when they are allowed to."""

    def __init__(self, **options: Any) -> None:
        self.steps = asyncio.Semaphore(0)
        self.server = server = Server("studio", **options)

        @server.tool(task="optional")
        async def paint(ctx: Context) -> str:
            for layer in (1, 2):
                await self.steps.acquire()
                await ctx.report_progress(layer, 2, "painting")
                await ctx.info("a layer")
            await self.steps.acquire()
            answer = await ctx.elicit("Who signs?", FORM, key="who")
            return f"painted by {answer.value['name']}"

        @server.tool(task=Task(after=0.02))
        async def tear() -> str:
            await self.steps.acquire()
            raise ProtocolError("It is torn.", code=1001)

        @server.tool
        async def plain() -> str:
            return "plain"


@pytest.fixture
def studio() -> Studio:
    return Studio()


@pytest.fixture
async def client(studio: Studio) -> Any:
    async with serving(studio.server) as one:
        yield one


async def accepted(stream: Exchange) -> list[str]:
    """The ids in the acknowledgement, which is the first message."""
    first = await stream.message()
    assert first["method"] == ACKNOWLEDGED
    assert first["params"]["_meta"] == {TAG: 1}
    return first["params"]["notifications"]["taskIds"]


async def pushed(stream: Exchange) -> dict[str, Any]:
    """The next message, which must be a notification of a task: its params."""
    told = await stream.message()
    assert (told["method"], told["params"]["_meta"], "id" in told) == ("notifications/tasks", {TAG: 1}, False)
    return told["params"]


async def pushed_until(stream: Exchange, status: str, says: str | None = None) -> dict[str, Any]:
    """The params of the first notification with this status and message. Others may come before."""
    while True:
        state = await pushed(stream)
        if state["status"] == status and says in (None, state.get("statusMessage")):
            return state


def same(pushed: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether a notification says what `tasks/get` has said."""
    aside = ("_meta", "resultType")
    return {**pushed, "_meta": None} == {**{key: got[key] for key in got if key not in aside}, "_meta": None}


@pytest.mark.spec("new-18", "TASK-26a", "TASK-26b")
async def test_a_client_hears_a_whole_life(client: TaskClient, studio: Studio) -> None:
    """Each notification is compared with the answer to `tasks/get` at that moment, while nothing changes."""
    id = await client.start("paint")
    stream = await client.listen(id)
    assert await accepted(stream) == [id]
    assert same(await pushed_until(stream, "working"), await client.get(id))
    for layer in (1, 2):
        studio.steps.release()
        text = f"painting ({layer}/2)"
        assert same(await pushed_until(stream, "working", says=text), await client.get(id))
    studio.steps.release()
    assert same(await pushed_until(stream, "input_required"), await client.get(id))
    for _ in range(3):
        studio.steps.release()  # for the second run of the handler
    await client.update(id, {"who": accept(name="Ada")})
    done = await pushed_until(stream, "completed")
    assert same(done, await client.get(id))
    assert done["result"]["content"][0]["text"] == "painted by Ada"
    await stream.close()


@pytest.mark.spec("TASK-26b", "TASK-12c")
async def test_a_failure_is_pushed_with_its_error(client: TaskClient, studio: Studio) -> None:
    id = await client.start("tear")
    stream = await client.listen(id)
    await accepted(stream)
    studio.steps.release()
    failed = await pushed_until(stream, "failed")
    assert (failed["error"], failed["statusMessage"]) == ({"code": 1001, "message": "It is torn."}, "It is torn.")
    assert same(failed, await client.get(id))
    await stream.close()


@pytest.mark.spec("TASK-26b")
async def test_a_cancellation_is_pushed(client: TaskClient) -> None:
    id = await client.start("paint")
    stream = await client.listen(id)
    await accepted(stream)
    await client.cancel(id)
    assert same(await pushed_until(stream, "cancelled"), await client.get(id))
    await stream.close()


@pytest.mark.spec("TASK-26b")
async def test_the_present_state_comes_first(client: TaskClient, studio: Studio) -> None:
    """So a client that listens too late misses nothing."""
    id = await client.start("tear")
    studio.steps.release()
    failed = await client.until(id)
    stream = await client.listen(id)
    await accepted(stream)
    assert same(await pushed(stream), failed)
    await stream.close()


@pytest.mark.spec("TASK-26a", "new-22")
async def test_the_acknowledgement_lists_the_tasks_of_the_caller_only(studio: Studio) -> None:
    ann, bob = task_client(studio.server, "ann"), task_client(studio.server, "bob")
    hers, his = await ann.start("paint"), await bob.start("paint")
    stream = await ann.listen(UNKNOWN, his, hers, hers, "../else", "")
    assert await accepted(stream) == [hers]
    assert (await pushed(stream))["taskId"] == hers
    await bob.cancel(his)
    await ann.cancel(hers)
    assert (await pushed_until(stream, "cancelled"))["taskId"] == hers
    nothing = await bob.listen(hers)
    assert await accepted(nothing) == []
    for one in (ann, bob):
        await one.peer.leave()
    await studio.server.stop()


@pytest.mark.spec("TASK-26a", "TASK-26b")
async def test_several_tasks_and_other_changes_on_one_stream(client: TaskClient, studio: Studio) -> None:
    one, two = await client.start("paint"), await client.start("paint")
    stream = await client.listen(two, one, toolsListChanged=True, promptsListChanged=True)
    first = await stream.message()
    assert first["params"]["notifications"] == {"toolsListChanged": True, "taskIds": [two, one]}
    assert {(await pushed(stream))["taskId"] for _ in range(2)} == {one, two}
    studio.server.notify_tools_changed()
    told = await stream.message()
    assert (told["method"], told["params"]["_meta"]) == ("notifications/tools/list_changed", {TAG: 1})
    await client.cancel(one)
    assert (await pushed_until(stream, "cancelled"))["taskId"] == one
    await client.cancel(two)
    assert (await pushed_until(stream, "cancelled"))["taskId"] == two
    await stream.close()


@pytest.mark.spec("TASK-25", "new-23")
@pytest.mark.parametrize("ids", [[], [UNKNOWN], None])
async def test_an_undeclaring_client_is_refused(client: TaskClient, ids: Any) -> None:
    real = await client.start("paint")
    wanted = {"taskIds": [real] if ids is None else ids, "toolsListChanged": True}
    response = await client.undeclaring().send("subscriptions/listen", {"notifications": wanted})
    error = (await response.json())["error"]
    assert (response.status, response.is_stream, error["code"]) == (400, False, -32021)
    assert error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    stream = await client.undeclaring().send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert (await stream.message())["params"]["notifications"] == {"toolsListChanged": True}
    await stream.close()


@pytest.mark.spec("TASK-27")
async def test_no_progress_and_no_log_messages_are_sent(client: TaskClient, studio: Studio) -> None:
    """Although both requests ask for them, and the handler reports and logs."""
    meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    called = await client.send("tools/call", {"name": "paint", "arguments": {}}, meta=meta)
    assert not called.is_stream
    id = (await called.result())["taskId"]
    stream = await client.send("subscriptions/listen", {"notifications": {"taskIds": [id]}}, meta=meta)
    for _ in range(6):
        studio.steps.release()
    await client.asked(id)
    await client.update(id, {"who": accept(name="Ada")})
    await client.until(id)
    heard = [await stream.message()]
    while heard[-1]["params"].get("status") != "completed":
        heard.append(await stream.message())
    assert {one["method"] for one in heard[1:]} == {"notifications/tasks"}
    await stream.close()


@pytest.mark.spec("TASK-26b", "TASK-09")
@pytest.mark.parametrize("backend", [MemoryBackend, YieldingBackend])
async def test_changes_at_another_worker_are_pushed(backend: Any) -> None:
    shared = backend()
    here, there = Studio(backend=shared), Studio(backend=shared)
    async with serving(here.server, there.server) as client:
        id = await client.start("paint")
        stream = await client.on(there.server.asgi()).listen(id)
        assert await accepted(stream) == [id]
        for _ in range(3):
            here.steps.release()
        state = await pushed_until(stream, "input_required")
        assert state["inputRequests"]["who"]["params"]["message"] == "Who signs?"
        await client.cancel(id)
        assert (await pushed_until(stream, "cancelled"))["taskId"] == id


async def test_a_slow_reader_gets_the_newest_state_and_not_each(client: TaskClient, studio: Studio) -> None:
    """What is not sent yet is one mark for each task, however often it changes."""
    id = await client.start("paint")
    stream = await client.listen(id)
    await accepted(stream)
    await pushed(stream)
    stream.stall()  # type: ignore[attr-defined] - of a peer of an app
    for _ in range(3):
        studio.steps.release()
    await client.asked(id)
    [open_stream] = studio.server.engine.subscriptions._streams
    assert len(open_stream.inbox) <= 1
    stream._stalled.set()  # type: ignore[attr-defined] - as above
    heard = [await pushed_until(stream, "input_required")]
    assert len(heard) == 1
    await stream.close()


async def test_too_many_tasks_on_a_stream_are_refused() -> None:
    studio = Studio(limits=Limits(listen_tasks=2))
    async with serving(studio.server) as client:
        ids = [await client.start("paint") for _ in range(3)]
        stream = await client.listen(*ids[:2])
        assert await accepted(stream) == ids[:2]
        error = await client.error("subscriptions/listen", {"notifications": {"taskIds": ids}})
        assert (error["code"], "at most 2 tasks" in error["message"]) == (-32602, True)


@pytest.mark.parametrize(
    ("limits", "count"),
    [(Limits(listen_streams_per_peer=2), 2), (Limits(listen_streams=3), 3), (Limits(), 16)],
)
async def test_streams_that_open_at_the_same_time_find_the_limit(limits: Limits, count: int) -> None:
    """Also while the server reads the tasks that each of them names."""
    studio = Studio(limits=limits, backend=YieldingBackend())
    async with serving(studio.server) as client:
        id = await client.start("paint")
        streams = await asyncio.gather(*(client.listen(id) for _ in range(count + 5)))
        assert sorted(stream.status for stream in streams) == [200] * count + [503] * 5
        assert len(studio.server.engine.subscriptions) == count
        for stream in streams:
            if stream.status == 200:
                assert await accepted(stream) == [id]
                await stream.close()


async def test_a_stream_that_fails_or_is_given_up_before_it_begins_leaves_its_place() -> None:
    backend = YieldingBackend()
    studio = Studio(limits=Limits(listen_streams_per_peer=1), backend=backend)
    async with serving(studio.server) as client:
        id = await client.start("paint")
        get, reads = backend.store.get, asyncio.Event()

        async def hang(_: str) -> bytes | None:
            reads.set()
            return await asyncio.get_running_loop().create_future()

        backend.store.get = hang
        waiting = asyncio.create_task(client.listen(id))
        await reads.wait()
        assert len(studio.server.engine.subscriptions) == 1
        await client.peer.exchanges[-1].close()
        await waiting
        backend.store.get = get
        assert len(studio.server.engine.subscriptions) == 0

        backend.store.is_gone = True
        error = await client.error("subscriptions/listen", {"notifications": {"taskIds": [id]}})
        assert error["code"] == -32603
        backend.store.is_gone = False
        stream = await client.listen(id)
        assert await accepted(stream) == [id]
        await stream.close()


async def test_a_stream_that_is_opened_while_the_server_ends_all_is_ended_with_its_result() -> None:
    backend = YieldingBackend()
    studio = Studio(backend=backend)
    async with serving(studio.server) as client:
        id = await client.start("paint")
        get, reads, go_on = backend.store.get, asyncio.Event(), asyncio.Event()

        async def slow(key: str) -> bytes | None:
            reads.set()
            await go_on.wait()
            return await get(key)

        backend.store.get = slow
        opening = asyncio.create_task(client.listen(id))
        await reads.wait()
        assert studio.server.engine.subscriptions.close("127.0.0.1") == 1
        go_on.set()
        stream = await opening
        assert await accepted(stream) == [id]
        assert (await stream.json())["result"]["_meta"][TAG] == 1


async def test_nothing_is_watched_any_more_when_the_stream_is_over(client: TaskClient, studio: Studio) -> None:
    id = await client.start("paint")
    topics = studio.server.engine.backend.bus._topics  # type: ignore[attr-defined] - of the memory
    before = set(topics)
    streams = [await client.listen(id) for _ in range(3)]
    for stream in streams:
        await accepted(stream)
        await pushed(stream)
    assert set(topics) - before == {f"task/{id}"}
    for stream in streams:
        await stream.close()
        await asyncio.wait([stream.task])  # type: ignore[attr-defined] - of a peer of an app
    assert set(topics) == before
