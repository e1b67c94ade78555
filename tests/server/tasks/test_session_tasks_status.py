"""`tasks/get` and `notifications/tasks/status` in a session: the state of a task, in one form and in every status."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.raw_sessions import accept
from support.session_tasks import DECLARED, STATUS, AppTaskPeer, Workshop
from weft import Server

KEYS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
UNKNOWN = "Invalid params: there is no task with this id. It may have expired."


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def client(shop: Workshop) -> AppTaskPeer:
    return await shop.client()


# The form.


@pytest.mark.spec("L11-45a", "L11-47b")
@pytest.mark.parametrize(
    ("tool", "status", "more"),
    [
        ("hold", "working", set[str]()),
        ("hang", "input_required", set[str]()),
        ("photo", "completed", set[str]()),
        ("spill", "failed", {"statusMessage"}),
        ("tear", "failed", {"statusMessage"}),
    ],
)
async def test_the_state_is_flat(client: AppTaskPeer, tool: str, status: str, more: set[str]) -> None:
    """Without questions, result, error and `_meta`, whatever the status is."""
    task = await client.start(tool)
    state = await client.reach(task["taskId"], status)
    assert state.keys() == KEYS | more
    assert [state[name] for name in ("taskId", "createdAt", "ttl")] == [
        task[name] for name in ("taskId", "createdAt", "ttl")
    ]


@pytest.mark.spec("L11-u4")
async def test_the_answer_is_no_stream(client: AppTaskPeer) -> None:
    """Also while there are questions, and though the client would take a stream."""
    task = await client.start("frame", photo="attic")
    for _ in range(3):
        answer = await client.ask("tasks/get", {"taskId": task["taskId"]})
        assert answer.headers["content-type"] == "application/json"
        assert (await answer.result())["taskId"] == task["taskId"]
    await client.reach(task["taskId"], "input_required")
    assert not (await client.ask("tasks/get", {"taskId": task["taskId"]})).is_stream


@pytest.mark.spec("L11-45a")
async def test_changes_move_the_time_of_the_last_one(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("stages")
    drying = await client.reach(task["taskId"], "working", "drying (1/2)")
    assert await client.state(task["taskId"]) == drying  # reading changes nothing
    shop.released.set()
    cooled = await client.reach(task["taskId"], "completed")
    assert task["lastUpdatedAt"] <= drying["lastUpdatedAt"] <= cooled["lastUpdatedAt"]
    assert task["lastUpdatedAt"] < cooled["lastUpdatedAt"]
    assert {task["createdAt"], drying["createdAt"], cooled["createdAt"]} == {task["createdAt"]}


# Statuses.


@pytest.mark.spec("L11-u2")
async def test_only_the_transitions_that_there_are(client: AppTaskPeer) -> None:
    task = await client.start("chain")
    reading = await (await client.wait(task["taskId"]))
    await client.post(accept(await reading.question(), "a"))
    await client.post(accept(await reading.question(), "b"))
    assert await reading.text() == "a b"
    told = [event.data["params"]["status"] for event in reading.events if (event.data or {}).get("method") == STATUS]
    assert [task["status"], *told] == ["working", "input_required", "working", "input_required", "working"]
    assert (await client.state(task["taskId"]))["status"] == "completed"


@pytest.mark.spec("L11-48")
async def test_a_result_that_is_an_error_makes_the_task_fail(client: AppTaskPeer) -> None:
    """In the extension such a task has completed."""
    task = await client.start("spill")
    assert (await client.reach(task["taskId"], "failed"))["statusMessage"] == "There is no red any more."
    other = await (await client.stateless("tasks/get", {"taskId": task["taskId"]}, meta=DECLARED)).result()
    assert (other["status"], other["result"]["isError"]) == ("completed", True)


@pytest.mark.spec("L11-48")
async def test_an_error_makes_the_task_fail(client: AppTaskPeer) -> None:
    task = await client.start("tear")
    assert (await client.reach(task["taskId"], "failed"))["statusMessage"] == "The sheet is torn."


@pytest.mark.spec("L11-u2", "L11-46a")
@pytest.mark.parametrize(("tool", "status"), [("photo", "completed"), ("spill", "failed"), ("tear", "failed")])
async def test_a_final_state_stays_as_it_is(client: AppTaskPeer, tool: str, status: str) -> None:
    task = await client.start(tool)
    final = await client.reach(task["taskId"], status)
    await client.cancel(task["taskId"])
    await client.outcome(task["taskId"])
    await (await client.stateless("tasks/cancel", {"taskId": task["taskId"]}, meta=DECLARED)).json()
    await (
        await client.stateless("tasks/update", {"taskId": task["taskId"], "inputResponses": {}}, meta=DECLARED)
    ).json()
    assert await client.state(task["taskId"]) == final


# Notifications.


@pytest.mark.spec("L11-u5", "L11-47b")
async def test_the_notification_has_the_whole_state(client: AppTaskPeer) -> None:
    task = await client.start("frame", photo="attic")
    state = await client.reach(task["taskId"], "input_required")
    told = await (await (await client.wait(task["taskId"]))).message()
    assert told == {"jsonrpc": "2.0", "method": STATUS, "params": state}


# Ids that are none.


@pytest.mark.spec("L11-49")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("id", ["x" * 24, "", "../task", "ü" * 24, "x" * 10_000, "\0" * 24])
async def test_an_unknown_id_is_refused(client: AppTaskPeer, method: str, id: str) -> None:
    await client.start("photo")
    answer = await (await client.ask(method, {"taskId": id})).json()
    assert answer["error"] == {"code": -32602, "message": UNKNOWN}


@pytest.mark.spec("L11-49")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("params", [{}, {"taskId": 5}, {"taskId": None}, {"task_id": "x" * 24}, None])
async def test_params_without_an_id_are_refused(client: AppTaskPeer, method: str, params: Any) -> None:
    assert (await (await client.ask(method, params)).json())["error"]["code"] == -32602


# Tasks of both generations.


@pytest.mark.spec("TASK-33")
async def test_a_task_of_a_session_can_be_read_and_cancelled_in_the_stateless_era(client: AppTaskPeer) -> None:
    """As a client does that was updated while its task ran. The session keeps both, too."""
    task = await client.start("hold")
    id = {"taskId": task["taskId"]}
    other = await (await client.stateless("tasks/get", id, meta=DECLARED)).result()
    assert (other["status"], other["ttlMs"], other["resultType"]) == ("working", task["ttl"], "complete")
    assert (await client.state(task["taskId"]))["status"] == "working"
    assert (await (await client.stateless("tasks/cancel", id, meta=DECLARED)).result())["resultType"] == "complete"
    assert (await client.state(task["taskId"]))["status"] == "cancelled"
    assert (await client.cancel(task["taskId"]))["error"]["code"] == -32602


@pytest.mark.spec("TASK-33")
async def test_the_result_has_the_form_that_its_reader_knows(client: AppTaskPeer) -> None:
    task = await client.start("photo")
    outcome = await client.outcome(task["taskId"])
    other = await (await client.stateless("tasks/get", {"taskId": task["taskId"]}, meta=DECLARED)).result()
    assert other["result"].pop("resultType") == "complete"
    outcome["result"].pop("_meta")
    other["result"].pop("_meta", None)
    assert other["result"] == outcome["result"]


@pytest.mark.spec("TASK-33", "L11-u3")
async def test_a_task_of_the_stateless_era_can_be_followed_in_a_session(client: AppTaskPeer) -> None:
    meta = DECLARED | {
        "io.modelcontextprotocol/clientCapabilities": {
            **DECLARED["io.modelcontextprotocol/clientCapabilities"],
            "elicitation": {"form": {}},
        }
    }
    call = {"name": "frame", "arguments": {"photo": "attic"}}
    handle = await (await client.stateless("tools/call", call, meta=meta)).result()
    assert handle["resultType"] == "task"
    await client.reach(handle["taskId"], "input_required")
    reading = await (await client.wait(handle["taskId"]))
    await client.post(accept(await reading.question(), "oak"))
    assert await reading.text() == "attic in oak"


# Without sessions.


async def test_tasks_need_no_session(shop: Workshop) -> None:
    """An endpoint that stores no sessions serves them, too: the id is all that is needed. It cannot ask questions."""
    client = AppTaskPeer(shop.server.asgi(sessions=False))
    client.session = "none"  # so that it sends its version
    task = await client.start("photo")
    assert (await client.reach(task["taskId"], "completed")).keys() == KEYS
    assert (await client.outcome(task["taskId"]))["result"]["structuredContent"] == {"size": "10x15"}


async def test_a_server_without_tasks_does_not_know_the_methods() -> None:
    server = Server("plain")
    server.tool(lambda: 1, name="one")
    client = AppTaskPeer(server.asgi())
    await client.open()
    for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
        assert (await (await client.ask(method, {"taskId": "x" * 24})).json())["error"]["code"] == -32601
    await server.stop()
