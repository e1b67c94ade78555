"""Calls that become tasks in a session: the answer, the id, the time to live, progress."""

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.raw_sessions import AppPeer, message
from support.session_tasks import RELATED, STATUS, AppTaskPeer, Workshop
from weft import Limits

IMMEDIATE = "io.modelcontextprotocol/model-immediate-response"
PROGRESS = "notifications/progress"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def client(shop: Workshop) -> AppTaskPeer:
    return await shop.client()


# The answer.


@pytest.mark.spec("L11-44a", "L11-44b", "L11-45a", "L11-u2")
async def test_the_answer_is_the_task(client: AppTaskPeer) -> None:
    """It is nested, and there is nothing of the result in it."""
    result = await (await client.call("photo", {})).result()
    assert result.keys() == {"task"}
    task = result["task"]
    assert task.keys() == {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
    assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", 120_000, 50)
    assert task["lastUpdatedAt"] == task["createdAt"]
    assert TIME.fullmatch(task["createdAt"])


@pytest.mark.spec("L11-44b", "L11-u2")
async def test_the_answer_does_not_wait_for_the_work(shop: Workshop, client: AppTaskPeer) -> None:
    answer = await client.call("hold", {})
    assert not answer.is_stream
    id = (await answer.result())["task"]["taskId"]
    assert shop.said == []
    assert (await client.state(id))["status"] == "working"


@pytest.mark.spec("L11-44b")
async def test_also_a_tool_that_becomes_a_task_later_is_one_at_once(client: AppTaskPeer) -> None:
    """`Task(after=60)`: here the client decides."""
    task = await client.start("sketch")
    assert (await client.outcome(task["taskId"]))["result"]["content"][0]["text"] == "sketched"


@pytest.mark.spec("L11-44c")
async def test_the_model_may_be_told_something_meanwhile(client: AppTaskPeer) -> None:
    result = await (await client.call("engrave", {}, name="Ada")).result()
    assert result["_meta"] == {IMMEDIATE: "The plate is being engraved."}
    state = await client.state(result["task"]["taskId"])
    assert "_meta" not in state


@pytest.mark.spec("L11-u2", "L11-49", "TASK-34a")
async def test_ids_cannot_be_guessed(client: AppTaskPeer) -> None:
    """18 random bytes, in 24 characters."""
    ids = [(await client.start("photo"))["taskId"] for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{24}", id) for id in ids)
    for place in range(24):  # no character is always the same
        assert len({id[place] for id in ids}) > 10


@pytest.mark.spec("L11-u2")
async def test_a_client_cannot_choose_the_id(client: AppTaskPeer) -> None:
    chosen = "a" * 24
    task = await client.start("photo", {"taskId": chosen}, meta={RELATED: {"taskId": chosen}})
    assert task["taskId"] != chosen


async def test_bad_arguments_make_a_task_that_fails(client: AppTaskPeer) -> None:
    """As the plain call would be answered."""
    plain = await (await client.call("frame")).json()
    task = await client.start("frame")
    await client.reach(task["taskId"], "failed")
    outcome = await client.outcome(task["taskId"])
    assert outcome["result"].pop("_meta") == {RELATED: {"taskId": task["taskId"]}}
    assert outcome["result"] == plain["result"]


async def test_cancelling_the_request_does_not_cancel_the_task(shop: Workshop, client: AppTaskPeer) -> None:
    """The request is answered. `tasks/cancel` cancels the task."""
    answer = await client.call("hold", {})
    created = await answer.json()
    await client.post(message("notifications/cancelled", {"requestId": created["id"]}))
    id = created["result"]["task"]["taskId"]
    assert (await client.state(id))["status"] == "working"
    shop.released.set()
    assert (await client.reach(id, "completed"))["status"] == "completed"


# The time to live.


@pytest.mark.spec("L11-44a", "L11-45a", "L11-u7")
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"ttl": 90_000}, 90_000),
        ({"ttl": 90_000.5}, 90_000),
        ({}, 300_000),
        ({"ttl": None}, 300_000),
        ({"ttl": 1}, 1000),  # shorter ones are of no use
        ({"ttl": 300_000}, 300_000),
        ({"ttl": 300_001}, 300_000),  # `Limits.task_seconds`
        ({"ttl": 1e300}, 300_000),
        ({"ttl": 90_000, "unknown": 1}, 90_000),
    ],
)
async def test_the_server_may_change_the_time_to_live(asked: Any, given: int) -> None:
    async with Workshop(limits=Limits(task_seconds=300)) as shop:
        client = await shop.client()
        task = await client.start("hold", asked)
        assert task["ttl"] == given
        assert (await client.state(task["taskId"]))["ttl"] == given


@pytest.mark.spec("L11-44a")
@pytest.mark.parametrize("task", [{"ttl": 0}, {"ttl": -1}, {"ttl": "long"}, {"ttl": True}, [], "yes", 5])
async def test_a_param_that_is_malformed_is_refused(shop: Workshop, client: AppTaskPeer, task: Any) -> None:
    answer = await (await client.call("engrave", task, name="Ada")).json()
    assert answer["error"]["code"] == -32602
    assert "`task` is an object, and its `ttl` a number of milliseconds" in answer["error"]["message"]
    assert shop.said == []


@pytest.mark.spec("L11-u7", "L11-49")
async def test_a_task_that_takes_longer_than_its_life_is_stopped(shop: Workshop) -> None:
    client = await shop.client()
    task = await client.start("hold", {"ttl": 1000})
    state = await client.reach(task["taskId"], "failed")
    assert state["statusMessage"] == "The task took longer than its time to live, and was stopped."
    assert shop.said == ["stopped"]
    outcome = await client.outcome(task["taskId"])
    assert outcome["error"] == {"code": -32603, "message": state["statusMessage"]}


@pytest.mark.spec("L11-u7", "L11-u8", "L11-49")
@pytest.mark.parametrize("tool", ["photo", "frame"])
async def test_a_task_is_deleted_when_its_life_is_over(tool: str) -> None:
    """Whether it has ended or waits for an answer. `ttl` is how long it lives indeed."""
    async with Workshop(limits=Limits(task_kept_seconds=0)) as shop:
        client = await shop.client()
        began = time.monotonic()
        task = await client.start(tool, {"ttl": 1000}, **({"photo": "attic"} if tool == "frame" else {}))
        state = await client.reach(task["taskId"], "completed" if tool == "photo" else "input_required")
        assert state["ttl"] == 1000
        while "result" in (answer := await (await client.ask("tasks/get", {"taskId": task["taskId"]})).json()):
            await (await client.ask("ping")).result()
        assert answer["error"]["code"] == -32602
        assert "It may have expired" in answer["error"]["message"]
        assert time.monotonic() - began >= 0.99  # not before
        assert (await client.outcome(task["taskId"]))["error"]["code"] == -32602
        assert (await client.cancel(task["taskId"]))["error"]["code"] == -32602


@pytest.mark.spec("L11-u7", "L11-45a")
async def test_a_result_that_comes_late_can_still_be_read(shop: Workshop) -> None:
    """For `Limits.task_kept_seconds`; then `ttl` says so."""
    client = await shop.client()
    task = await client.start("photo", {"ttl": 1000})
    state = await client.reach(task["taskId"], "completed")
    assert task["ttl"] == 1000
    assert 60_000 <= state["ttl"] <= 62_000


# Progress.


@pytest.mark.spec("L11-u6", "L11-47a")
async def test_the_progress_token_of_the_call_stays_valid(shop: Workshop, client: AppTaskPeer) -> None:
    """Also for a client that begins to wait a second time."""
    task = await client.start("stages", meta={"progressToken": "mine"})
    await client.reach(task["taskId"], "working", "drying (1/2)")
    first = await (await client.wait(task["taskId"]))
    told = await first.message()
    related = {RELATED: {"taskId": task["taskId"]}}
    assert told["method"] == PROGRESS
    assert told["params"] == {
        "progressToken": "mine",
        "progress": 1,
        "total": 2,
        "message": "drying (1/2)",
        "_meta": related,
    }
    await first.close()
    second = await (await client.wait(task["taskId"]))
    assert (await second.message())["params"]["progress"] == 1
    shop.released.set()
    seen = [event.data async for event in second.rest() if event.data]
    assert [one["params"]["progress"] for one in seen if one.get("method") == PROGRESS] in ([2], [])
    assert seen[-1]["result"]["content"][0]["text"] == "dry"


@pytest.mark.spec("L11-u6")
async def test_a_token_of_the_request_for_the_result_comes_first(client: AppTaskPeer) -> None:
    task = await client.start("stages", meta={"progressToken": "mine"})
    await client.reach(task["taskId"], "working", "drying (1/2)")
    reading = await (await client.wait(task["taskId"], {"progressToken": 7}))
    assert (await reading.message())["params"]["progressToken"] == 7


@pytest.mark.spec("L11-u6")
async def test_without_a_token_there_are_no_progress_notifications(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("stages")
    await client.reach(task["taskId"], "working", "drying (1/2)")
    reading = await (await client.wait(task["taskId"]))
    shop.released.set()
    methods = {event.data.get("method", "answer") async for event in reading.rest() if event.data}
    assert methods == {STATUS, "answer"}


async def test_nothing_is_told_on_other_streams(shop: Workshop, client: AppTaskPeer) -> None:
    """Nor in other sessions."""
    streams = [await client.get(), await (other := await shop.client()).get()]
    task = await client.start("stages", meta={"progressToken": "mine"})
    shop.released.set()
    await client.reach(task["taskId"], "completed")
    for peer in (client, other):
        assert isinstance(peer, AppPeer)
        assert (await peer.delete()).status == 204
    assert [[event.data async for event in stream.rest() if event.data] for stream in streams] == [[], []]
