"""What is large of a task is stored beside its record, so that requests which do not need it do not load it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from support.raw_sessions import eventually
from support.session_tasks import AppTaskPeer, Workshop
from support.task_clients import TaskClient, accept, serving, task_client
from weft import Context, InputRequired, Limits, ProtocolError, Server, Task, TaskStore, ask_form
from weft.backends.memory import MemoryBackend
from weft.server.tasks.parts import APART, MOST_INLINE, pack, unpack
from weft.server.tasks.records import AskedQuestion, GivenAnswer, TaskRecord, TaskRecords, new_task_id

LARGE = "x" * 50_000
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def record(**more: Any) -> TaskRecord:
    fields = {"status": "working", "created": 0.0, "updated": 0.0, "ttl": 60.0, "poll": 1.0, "tool": "t"}
    fields |= {"version": "2026-07-28", "owner": "o", "principal": None, "scopes": ()}
    return TaskRecord(id=new_task_id(), **{**fields, **more})


# One record.


def test_small_values_stay_in_the_record() -> None:
    one = record(result=Raw(b'"small"'), questions={"q": Raw(b"{}")})
    stored, contents = pack(one)
    assert stored is one
    assert (one.apart, contents) == ({}, {})


def test_each_large_value_is_stored_by_its_digest() -> None:
    large = Raw(b'"' + b"x" * MOST_INLINE + b'"')
    one = record(
        result=large, error=Raw(b"{}"), questions={"q": large, "small": Raw(b"1")}, answers={"a": GivenAnswer(large)}
    )
    stored, contents = pack(one)
    digest = hashlib.sha256(bytes(large)).hexdigest()[:32]
    assert contents == {digest: bytes(large)}
    assert set(one.apart) == {"result", "question q", "answer a"}
    assert one.result is one.questions["q"] is one.answers["a"].value is large  # the caller goes on with them
    assert len(msgspec.json.encode(stored)) < 1500
    read = unpack(msgspec.json.decode(msgspec.json.encode(stored), type=TaskRecord))
    assert read.result is read.questions["q"] is read.answers["a"].value is APART
    assert bytes(read.questions["small"]) == b"1"
    assert read.size == one.size
    assert read.answers_size == len(bytes(large))
    assert pack(read)[1] == {}


@pytest.mark.parametrize("value", [b'"apart"', b"null", b"0"])
def test_a_value_that_looks_like_a_mark_is_a_value(value: bytes) -> None:
    one = record(state=Raw(value))
    stored, _ = pack(one)
    read = unpack(msgspec.json.decode(msgspec.json.encode(stored), type=TaskRecord))
    assert bytes(read.state) == value
    assert read.state is not APART


async def test_what_is_replaced_or_removed_is_deleted() -> None:
    memory = MemoryBackend()
    records = TaskRecords(memory)
    one = record(created=2e9, state=Raw(b'"' + b"a" * 5000 + b'"'))
    one.ask("q", AskedQuestion("q", "d"), Raw(b'{"question":"' + b"b" * 5000 + b'"}'))
    await records.add(one)
    assert len(parts_of(memory)) == 2

    def answer(now: TaskRecord) -> bool:
        return now.accept("q", GivenAnswer(Raw(b'"' + b"c" * 5000 + b'"')))

    await records.change(one.id, answer)
    assert len(parts_of(memory)) == 2  # the state, and the answer instead of the question
    whole = await records.fill(await records.read(one.id), "state", "answer")
    assert whole is not None
    assert (len(bytes(whole.state)), len(bytes(whole.answers["q"].value))) == (5002, 5002)

    def end(now: TaskRecord) -> bool:
        now.end("completed", kept_seconds=60)
        return True

    await records.change(one.id, end)
    assert parts_of(memory) == []


async def test_a_task_whose_values_are_lost_does_not_exist() -> None:
    memory = MemoryBackend()
    records = TaskRecords(memory)
    one = record(created=2e9, state=Raw(b'"' + b"a" * 5000 + b'"'))
    await records.add(one)
    await memory.store.delete(parts_of(memory)[0])
    read = await records.read(one.id)
    assert await records.fill(read, "result") is read
    assert await records.fill(read, "state") is None


def parts_of(memory: MemoryBackend) -> list[str]:
    return [key for key in memory.store._values if "task-part/" in key]  # type: ignore[attr-defined] - of the memory one


# On the wire.


class Reads:
    """Counts how often a large value is read from the backend of a server."""

    def __init__(self, server: Server) -> None:
        self.count = 0
        store: Any = server.backend.store
        get = store.get

        async def counted(key: str) -> Any:
            self.count += "task-part/" in key
            return await get(key)

        store.get = counted


def shop() -> Server:
    server = Server("shop")

    @server.tool(task="optional")
    async def write() -> str:
        return LARGE

    @server.tool(task="optional")
    async def tear() -> str:
        raise ProtocolError("torn", code=1001, data=LARGE)

    @server.tool(task="optional")
    async def ask(ctx: Context) -> str:
        one, two = await asyncio.gather(
            ctx.elicit(f"One? {LARGE}", FORM, key="one"), ctx.elicit(f"Two? {LARGE}", FORM, key="two")
        )
        return f"{len(one.value['name'])} {len(two.value['name'])}"

    @server.tool(task=Task(poll=0.01))
    async def count(ctx: Context) -> Any:
        state = ctx.request_state or {"runs": 0, "ballast": LARGE}
        if state["runs"] == 5:
            assert state["ballast"] == LARGE
            return "counted"
        return InputRequired(state={**state, "runs": state["runs"] + 1})

    @server.tool(task="optional")
    async def by_hand(ctx: Context) -> Any:
        if not ctx.has_input_response("who"):
            return InputRequired({"who": ask_form(f"Who? {LARGE}", FORM)}, state=LARGE)
        assert ctx.request_state == LARGE
        return str(len(ctx.input_responses["who"]["content"]["name"]))

    return server


@pytest.fixture
async def client() -> AsyncIterator[TaskClient]:
    server = shop()
    async with serving(server) as made:
        made.reads = Reads(server)  # type: ignore[attr-defined] - for these tests
        yield made


@pytest.mark.spec("TASK-12b")
async def test_a_large_result_is_whole(client: TaskClient) -> None:
    id = await client.start("write")
    assert (await client.until(id))["result"]["content"][0]["text"] == LARGE


@pytest.mark.spec("TASK-12c")
async def test_a_large_error_is_whole(client: TaskClient) -> None:
    id = await client.start("tear")
    assert (await client.until(id))["error"]["data"] == LARGE


@pytest.mark.spec("TASK-12a", "TASK-20b")
async def test_large_questions_and_answers_are_whole(client: TaskClient) -> None:
    id = await client.start("ask")
    asked = await client.asked(id, 2)
    assert asked["one"]["params"]["message"] == f"One? {LARGE}"
    await client.update(id, {"one": accept(name=LARGE)})
    asked = await client.asked(id, 1)
    assert asked["two"]["params"]["message"] == f"Two? {LARGE}"
    await client.update(id, {"two": accept(name=LARGE + "y")})
    assert (await client.until(id))["result"]["content"][0]["text"] == "50000 50001"


@pytest.mark.parametrize("tool", ["count", "by_hand"])
async def test_a_large_state_is_whole_and_takes_its_room_once(client: TaskClient, tool: str) -> None:
    id = await client.start(tool)
    if tool == "by_hand":
        assert (await client.asked(id))["who"]["params"]["message"] == f"Who? {LARGE}"
        await client.update(id, {"who": accept(name=LARGE)})
    expected = {"count": "counted", "by_hand": "50000"}[tool]
    assert (await client.until(id))["result"]["content"][0]["text"] == expected


@pytest.mark.spec("TASK-26b")
async def test_a_large_result_is_pushed_whole(client: TaskClient) -> None:
    id = await client.start("ask")
    stream = await client.listen(id)
    await stream.message()
    while (state := (await stream.message())["params"])["status"] == "working":
        pass
    assert state["inputRequests"]["two"]["params"]["message"] == f"Two? {LARGE}"
    await client.update(id, {"one": accept(name=LARGE), "two": accept(name="")})
    while (state := (await stream.message())["params"])["status"] != "completed":
        pass
    assert state["result"]["content"][0]["text"] == "50000 0"


async def test_requests_that_need_only_the_status_load_nothing_else(client: TaskClient) -> None:
    done, asking = await client.start("write"), await client.start("ask")
    await client.until(done)
    await client.asked(asking, 2)
    reads: Any = client.reads  # type: ignore[attr-defined] - see the fixture
    reads.count = 0
    await client.cancel(done)
    await client.cancel(asking)
    assert (await client.get(asking))["status"] == "cancelled"
    await client.error("tasks/update", {"taskId": new_task_id(), "inputResponses": {"one": accept(name="x")}})
    assert reads.count == 0


async def test_in_a_session_only_the_result_itself_is_loaded() -> None:
    async with Workshop(backend=MemoryBackend()) as workshop:

        @workshop.server.tool(task="optional")
        async def write(ctx: Context) -> str:
            return LARGE

        @workshop.server.tool(task="optional")
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit(f"One? {LARGE}", FORM)
            return str(len(answer.value["name"]))

        client: AppTaskPeer = await workshop.client()
        reads = Reads(workshop.server)
        task = await client.start("write")
        await client.reach(task["taskId"], "completed")
        assert reads.count == 0
        assert (await client.outcome(task["taskId"]))["result"]["content"][0]["text"] == LARGE
        assert reads.count == 1


async def test_a_program_outside_reads_what_is_large() -> None:
    server = Server("shop", limits=Limits())
    ids: list[str] = []

    @server.tool(task="required")
    async def farm(ctx: Context) -> Any:
        return ctx.task.external(ids.append)

    async with serving(server) as client:
        id = await client.start("farm")
        await eventually(lambda: ids)
        store = TaskStore(server.backend)
        asking = asyncio.create_task(store.ask(id, f"One? {LARGE}", FORM, key="one"))
        assert (await client.asked(id))["one"]["params"]["message"] == f"One? {LARGE}"
        await client.update(id, {"one": accept(name=LARGE)})
        assert (await asking).value == {"name": LARGE}
        assert await store.complete(id, LARGE)
        state = await store.status(id)
        assert state is not None
        assert state.status == "completed"
        assert (await client.until(id))["result"]["content"][0]["text"] == LARGE


async def test_questions_count_as_bytes_of_tasks_as_long_as_they_are_there() -> None:
    server = Server("shop", limits=Limits(tasks_bytes=200_000))

    @server.tool(task="required")
    async def chat(ctx: Context) -> str:
        for number in range(20):
            await ctx.elicit(f"{number}? {LARGE}", FORM, key=f"q{number}")
        return "enough"

    ann, bob = task_client(server, "ann"), task_client(server, "bob")
    shares = server.engine.tasks.shares
    id = await ann.start("chat")
    for number in range(20):
        asked = await ann.asked(id, after=[f"q{number - 1}"])
        assert 50_000 < shares._all_bytes < 60_000
        await ann.update(id, dict.fromkeys(asked, accept(name="")))
    assert (await ann.until(id))["status"] == "completed"
    await ann.start("chat")
    refused = await ann.until(await ann.start("chat"), "failed")
    assert refused["statusMessage"] == "The task has asked, but the server has no room for its questions."
    assert len(await bob.asked(await bob.start("chat"))) == 1
    for client in (ann, bob):
        await client.peer.leave()
    await server.stop()


async def test_a_value_that_is_replaced_while_it_is_loaded_is_loaded_anew() -> None:
    """Such as a question that is answered meanwhile: the task is still there."""
    records = TaskRecords(MemoryBackend())
    one = record(created=2e9)
    one.ask("q", AskedQuestion("q", "d"), Raw(b'{"question":"' + b"b" * 5000 + b'"}'))
    await records.add(one)
    seen = await records.read(one.id)
    await records.change(one.id, lambda now: now.accept("q", GivenAnswer(Raw(b"{}"))))
    filled = await records.fill(seen, "question")
    assert filled is not None
    assert (filled.questions, filled.status) == ({}, "working")


async def test_a_task_whose_value_has_expired_does_not_exist() -> None:
    memory = MemoryBackend()
    records = TaskRecords(memory)
    one = record(created=2e9, state=Raw(b'"' + b"a" * 5000 + b'"'))
    await records.add(one)
    for key in parts_of(memory):
        await memory.store.delete(key)
    assert await records.fill(await records.read(one.id), "state") is None


async def test_a_program_can_ask_how_a_task_has_ended_although_its_schema_has_expired() -> None:
    memory = MemoryBackend()
    one = record(created=2e9, work="external", is_handed_over=True, output_schema=Raw(b'"' + b"a" * 5000 + b'"'))
    await TaskRecords(memory).add(one)
    for key in parts_of(memory):
        await memory.store.delete(key)
    state = await TaskStore(memory).status(one.id)
    assert state is not None
    assert state.status == "working"
