"""The answer to a call that has become a task: its handle."""

import asyncio
import base64
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.task_clients import ACK, TaskClient, accept, serving
from weft import Context, Limits, Server, Task
from weft.backends.memory import MemoryBackend

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def make(**options: Any) -> Server:
    server = Server("studio", **options)
    server.go_on = asyncio.Event()  # type: ignore[attr-defined] - for the tests alone

    @server.tool(task=Task(ttl=600, poll=0.25))
    async def develop(photo: str) -> str:
        return f"{photo} is developed"

    @server.tool(task=Task(after=0.02))
    async def dry() -> str:
        await server.go_on.wait()  # type: ignore[attr-defined] - as above
        return "dry"

    @server.tool(task=Task(after=0.02))
    async def restore(ctx: Context) -> str:
        first = await ctx.elicit("Who in the call?", FORM, key="who")
        while ctx.task.id is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        second = await ctx.elicit("Who in the task?", FORM, key="whom")
        return f"{first.value['name']} and {second.value['name']}"

    return server


@pytest.fixture
async def client() -> Any:
    async with serving(make()) as one:
        yield one


@pytest.mark.spec("TASK-06", "TASK-08", "new-6", "new-7")
async def test_the_handle_is_flat_and_has_nothing_else(client: TaskClient) -> None:
    handle = await client.call("develop", {"photo": "attic"})
    del handle["_meta"]
    assert handle == {
        "resultType": "task",
        "taskId": handle["taskId"],
        "status": "working",
        "createdAt": handle["createdAt"],
        "lastUpdatedAt": handle["createdAt"],
        "ttlMs": 600_000,
        "pollIntervalMs": 250,
    }
    assert (type(handle["taskId"]), type(handle["ttlMs"]), type(handle["pollIntervalMs"])) == (str, int, int)


@pytest.mark.spec("TASK-06", "TASK-08", "TASK-35")
async def test_a_handle_that_comes_late_is_the_same(client: TaskClient) -> None:
    handle = await client.call("dry")
    assert handle.keys() == {
        "_meta", "resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs",
    }  # fmt: skip
    assert (handle["resultType"], handle["status"]) == ("task", "working")


@pytest.mark.spec("new-5")
async def test_times_are_iso_8601_in_utc(client: TaskClient) -> None:
    before = time.time()
    id = await client.start("develop", {"photo": "attic"})
    state = await client.until(id)
    assert TIME.fullmatch(state["createdAt"])
    assert TIME.fullmatch(state["lastUpdatedAt"])
    created, updated = (datetime.fromisoformat(state[name]) for name in ("createdAt", "lastUpdatedAt"))
    assert before - 0.002 <= created.timestamp() <= updated.timestamp() <= time.time()


@pytest.mark.spec("new-6")
@pytest.mark.parametrize(
    ("ttl", "poll", "limit", "sent"),
    [
        (1, 0.01, 86_400, (1000, 10)),
        (3600, 1, 60, (60_000, 1000)),  # the server's limit is shorter
        (1.0004, 2.0006, 86_400, (1000, 2001)),
        (10**7, 10**6, 10**9, (10**10, 10**9)),
    ],
)
async def test_durations_are_positive_whole_milliseconds(
    ttl: float, poll: float, limit: float, sent: tuple[int, int]
) -> None:
    server = Server("studio", limits=Limits(task_seconds=limit))
    server.add_tool(lambda: "done", name="work", task=Task(ttl=ttl, poll=poll))
    async with serving(server) as client:
        handle = await client.call("work")
        for found in (handle, await client.get(handle["taskId"])):
            assert (found["ttlMs"], found["pollIntervalMs"]) == sent
            assert (type(found["ttlMs"]), type(found["pollIntervalMs"])) == (int, int)
            assert not {"ttl", "pollInterval"} & found.keys()


@pytest.mark.spec("TASK-34a")
async def test_ids_are_random_texts_of_at_least_128_bits(client: TaskClient) -> None:
    ids = [await client.start("develop", {"photo": "attic"}) for _ in range(200)]
    assert len(set(ids)) == 200
    assert all(re.fullmatch("[A-Za-z0-9_-]+", id) for id in ids)
    raw = [base64.urlsafe_b64decode(id + "=" * (-len(id) % 4)) for id in ids]
    assert {len(one) for one in raw} == {18}
    for bit in range(18 * 8):  # no bit is constant, counts, or is a time
        ones = sum(one[bit // 8] >> (bit % 8) & 1 for one in raw)
        assert 30 < ones < 170, f"bit {bit} is hardly random"


# Consistency.


@pytest.mark.spec("TASK-09")
@pytest.mark.parametrize("tool", ["develop", "dry"])
@pytest.mark.parametrize("backend", [MemoryBackend, YieldingBackend])
async def test_the_task_is_there_at_once_at_each_worker(tool: str, backend: Callable[[], Any]) -> None:
    shared = backend()
    here, there = make(backend=shared), make(backend=shared)
    async with serving(here, there) as client:
        other = client.on(there.asgi())
        for _ in range(10):
            handle = await client.call(tool, {"photo": "attic"} if tool == "develop" else {})
            state = await other.get(handle["taskId"])
            assert state["createdAt"] == handle["createdAt"]
            assert state["status"] in ("working", "completed")
        here.go_on.set()  # type: ignore[attr-defined] - for the tests alone
        assert (await other.until(handle["taskId"]))["status"] == "completed"


@pytest.mark.spec("TASK-09")
@pytest.mark.parametrize("tool", ["develop", "dry"])
async def test_the_handle_waits_until_the_task_is_stored(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    stored, put = asyncio.Event(), backend.store.put
    reached = asyncio.Event()

    async def slow(key: str, value: bytes, **options: Any) -> None:
        if ":task/" in key:
            reached.set()
            await stored.wait()
        await put(key, value, **options)

    monkeypatch.setattr(backend.store, "put", slow)
    async with serving(make(backend=backend)) as client:
        calling = asyncio.create_task(client.call(tool, {"photo": "attic"} if tool == "develop" else {}))
        async with asyncio.timeout(30):
            await reached.wait()
        done, _ = await asyncio.wait([calling], timeout=0.05)
        assert not done
        stored.set()
        assert (await client.get((await calling)["taskId"]))["status"] in ("working", "completed")


# Rounds of the call before, and questions of the task after.


@pytest.mark.spec("TASK-10", "new-8", "TASK-35")
async def test_questions_before_the_task_are_rounds_of_the_call(client: TaskClient) -> None:
    asked = await client.call("restore")
    assert asked["resultType"] == "input_required"
    assert not {"taskId", "status", "ttlMs", "createdAt"} & asked.keys()
    assert [one["params"]["message"] for one in asked["inputRequests"].values()] == ["Who in the call?"]
    answers = {"who": accept(name="Ada")}
    handle = await client.call("restore", inputResponses=answers, requestState=asked["requestState"])
    assert handle["resultType"] == "task"
    assert not {"requestState", "inputRequests"} & handle.keys()

    id = handle["taskId"]
    questions = await client.asked(id)
    assert {key: one["params"]["message"] for key, one in questions.items()} == {"whom": "Who in the task?"}
    assert "requestState" not in await client.get(id)
    # The keys of the call's rounds mean nothing to the task, and its own keys nothing to a call.
    assert await client.update(id, {"who": accept(name="Eve")}) == ACK
    assert (await client.asked(id)).keys() == {"whom"}
    again = await client.call("restore", inputResponses={"whom": accept(name="Eve")})
    assert again["inputRequests"].keys() == {"who"}

    assert await client.update(id, {"whom": accept(name="Bob")}) == ACK
    done = await client.until(id)
    assert (done["result"]["content"][0]["text"], "requestState" in done) == ("Ada and Bob", False)


@pytest.mark.spec("new-8")
async def test_a_state_of_the_call_is_nothing_to_the_task(client: TaskClient) -> None:
    asked = await client.call("restore")
    state = {"requestState": asked["requestState"]}
    handle = await client.call("restore", inputResponses={"who": accept(name="Ada")}, **state)
    params = {"taskId": handle["taskId"], "inputResponses": {"whom": accept(name="Bob")}, "requestState": "no state"}
    await client.asked(handle["taskId"])
    await client.result("tasks/update", params)
    assert (await client.until(handle["taskId"]))["status"] == "completed"
