"""`tasks/get`: the state of a task as it is now, in each status, from its first moment until it has expired."""

import asyncio
import json
import re
import time
from typing import Any

import pytest

from support.task_clients import ACK, TaskClient, accept, serving
from weft import Context, Limits, ProtocolError, Server, Task, ToolError
from weft.backends.memory import MemoryBackend

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAAAA"
NO_TASK = "Invalid params: there is no task with this id. It may have expired."
RELATED = "io.modelcontextprotocol/related-task"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
COMMON = {"_meta", "resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}


class Studio:
    """A server whose tools end in each possible way, when they are allowed to."""

    def __init__(self, **options: Any) -> None:
        self.go_on = asyncio.Event()
        self.server = server = Server("studio", **options)

        @server.tool(task="optional")
        async def count(ctx: Context, words: int) -> dict[str, int]:
            await self.go_on.wait()
            return {"words": words}

        @server.tool(task="optional")
        async def ask(ctx: Context) -> str:
            one, two = await asyncio.gather(
                ctx.elicit("First?", FORM, key="one"), ctx.elicit("Second?", FORM, key="two")
            )
            three = await ctx.sample("A word?", max_tokens=5, key="three")
            return f"{one.value['name']} {two.value['name']} {three.content.text}"

        @server.tool(task="optional")
        async def spill(how: str) -> dict[str, int]:
            match how:
                case "tool error":
                    raise ToolError("There is no red any more.")
                case "arguments":
                    raise ValueError("SECRET")
                case "refusal":
                    raise ProtocolError("The sheet is torn.", code=1001, data={"sheet": 1})
                case "bug":
                    raise ProtocolError("It broke.", code=-32603)
                case _:
                    return "no object"  # type: ignore[return-value] - that is the point

        @server.tool(task="optional")
        async def paint(ctx: Context) -> str:
            await ctx.report_progress(1, 2, "painting")
            await self.go_on.wait()
            return "painted"

        @server.tool(task=Task(ttl=1))
        async def forever() -> None:
            await asyncio.sleep(3600)


@pytest.fixture
def studio() -> Studio:
    return Studio()


@pytest.fixture
async def client(studio: Studio) -> Any:
    async with serving(studio.server) as one:
        yield one


@pytest.mark.spec("TASK-11", "TASK-12d", "TASK-35")
async def test_a_task_that_works(client: TaskClient) -> None:
    handle = await client.call("count", {"words": 3})
    first = await client.get(handle["taskId"])
    assert first.keys() == COMMON
    assert first == {**handle, "resultType": "complete", "lastUpdatedAt": first["lastUpdatedAt"]}
    assert [await client.get(handle["taskId"]) for _ in range(3)] == [first] * 3  # reading changes nothing


@pytest.mark.spec("TASK-12b", "TASK-07", "TASK-35")
async def test_a_completed_task_has_what_the_call_would_have_returned(client: TaskClient, studio: Studio) -> None:
    studio.go_on.set()
    plain = await client.undeclaring().call("count", {"words": 3})
    done = await client.until(await client.start("count", {"words": 3}))
    assert done.keys() == COMMON | {"result"}
    assert (done["resultType"], done["status"]) == ("complete", "completed")
    assert done["result"] == plain
    assert done["result"]["content"]
    assert RELATED not in json.dumps(done)


@pytest.mark.spec("TASK-12a", "TASK-11", "TASK-35")
async def test_a_task_that_asks_has_all_unanswered_questions(client: TaskClient) -> None:
    id = await client.start("ask")
    assert (await client.asked(id, 2)).keys() == {"one", "two"}
    state = await client.get(id)
    assert state.keys() == COMMON | {"inputRequests"}
    assert (state["resultType"], state["status"]) == ("complete", "input_required")
    question = state["inputRequests"]["one"]
    assert question["method"] == "elicitation/create"
    assert (question["params"]["message"], question["params"]["requestedSchema"]) == ("First?", FORM)
    assert "id" not in question
    await client.update(id, {"one": accept(name="Ada"), "two": accept(name="Bob")})
    assert {key: one["method"] for key, one in (await client.asked(id)).items()} == {"three": "sampling/createMessage"}
    said = {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"}
    await client.update(id, {"three": said})
    done = await client.until(id)
    assert ("inputRequests" in done, done["result"]["content"][0]["text"]) == (False, "Ada Bob yes")


@pytest.mark.spec("TASK-13", "TASK-14")
@pytest.mark.parametrize(
    ("how", "text"), [("tool error", "There is no red any more."), ("arguments", None), ("value", None)]
)
async def test_a_tool_that_fails_has_completed(client: TaskClient, how: str, text: str | None) -> None:
    """The text for the model is the status message, too."""
    plain = await client.undeclaring().call("spill", {"how": how})
    done = await client.until(await client.start("spill", {"how": how}))
    assert done.keys() == COMMON | {"result", "statusMessage"}
    assert (done["status"], done["result"]["isError"]) == ("completed", True)
    assert _numbers_aside(done["result"]) == _numbers_aside(plain)
    assert "SECRET" not in json.dumps(done)
    assert done["statusMessage"] == (text or done["result"]["content"][0]["text"])


@pytest.mark.spec("TASK-13")
async def test_wrong_arguments_are_a_failure_of_the_tool_in_a_task_too(client: TaskClient) -> None:
    done = await client.until(await client.start("count", {"words": "many"}))
    assert (done["status"], done["result"]["isError"]) == ("completed", True)


@pytest.mark.spec("TASK-12c", "TASK-13", "TASK-14")
async def test_a_json_rpc_error_makes_a_task_fail(client: TaskClient) -> None:
    plain = await client.undeclaring().error("tools/call", {"name": "spill", "arguments": {"how": "refusal"}})
    failed = await client.until(await client.start("spill", {"how": "refusal"}))
    assert failed.keys() == COMMON | {"error", "statusMessage"}
    assert (failed["resultType"], failed["status"]) == ("complete", "failed")
    assert failed["error"] == plain == {"code": 1001, "message": "The sheet is torn.", "data": {"sheet": 1}}
    assert failed["statusMessage"] == "The sheet is torn."


@pytest.mark.spec("TASK-12c", "TASK-14", "new-24")
async def test_a_result_that_cannot_be_kept_is_an_internal_error() -> None:
    server = Server("studio", limits=Limits(task_bytes=2000))
    server.add_tool(lambda: "x" * 3000, name="draw", task="optional")
    async with serving(server) as client:
        failed = await client.until(await client.start("draw"))
        assert failed["error"]["code"] == -32603
        assert failed["statusMessage"] == failed["error"]["message"]
        assert "result" not in failed


@pytest.mark.spec("TASK-12d", "TASK-15")
async def test_a_cancelled_task_is_plain(client: TaskClient, studio: Studio) -> None:
    id = await client.start("count", {"words": 3})
    assert await client.cancel(id) == ACK
    state = await client.get(id)
    assert state.keys() == COMMON | {"statusMessage"}
    assert (state["resultType"], state["status"]) == ("complete", "cancelled")
    studio.go_on.set()
    assert await client.get(id) == state


@pytest.mark.spec("TASK-15")
@pytest.mark.parametrize("tool", ["count", "spill", "ask"])
async def test_a_task_that_has_ended_does_not_change(client: TaskClient, studio: Studio, tool: str) -> None:
    studio.go_on.set()
    arguments: dict[str, Any] = {"count": {"words": 1}, "spill": {"how": "refusal"}, "ask": {}}[tool]
    id = await client.start(tool, arguments)
    if tool == "ask":
        await client.asked(id, 2)
        await client.cancel(id)
    state = await client.until(id)
    assert state["status"] == {"count": "completed", "spill": "failed", "ask": "cancelled"}[tool]
    assert await client.cancel(id) == ACK
    assert await client.update(id, {"one": accept(name="Ada"), "two": 7}) == ACK
    for _ in range(20):
        assert await client.get(id) == state
        await asyncio.sleep(0)


@pytest.mark.spec("new-10")
async def test_a_client_that_polls_too_often_is_served(client: TaskClient) -> None:
    id = await client.start("count", {"words": 1})
    assert (await client.get(id))["pollIntervalMs"] == 1000
    assert {(await client.get(id))["status"] for _ in range(100)} == {"working"}


# Progress.


@pytest.mark.spec("TASK-27", "TASK-11")
async def test_progress_is_the_status_message_and_moves_the_time_of_the_last_update(
    client: TaskClient, studio: Studio
) -> None:
    """The client has asked for progress and log messages: a call that is a task gets none all the same."""
    params = {"name": "paint", "arguments": {}}
    meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    response = await client.send("tools/call", params, meta=meta)
    assert not response.is_stream
    handle = await response.result()
    state = await client.until(handle["taskId"], "working", says="painting (1/2)")
    assert state["lastUpdatedAt"] >= handle["createdAt"] == state["createdAt"]
    studio.go_on.set()
    done = await client.until(handle["taskId"])
    assert done["lastUpdatedAt"] >= state["lastUpdatedAt"]
    assert not {"progress", "total"} & done.keys()


# Time to live.


@pytest.mark.spec("new-13")
async def test_a_task_that_has_ended_can_be_read_until_its_time_is_over(studio: Studio) -> None:
    """The clock of the backend goes forward here, without any waiting."""
    clock = [0.0]
    studio = Studio(backend=MemoryBackend(lambda: clock[0]))
    studio.go_on.set()
    async with serving(studio.server) as client:
        done = await client.until(await client.start("count", {"words": 1}))
        for seconds in (0.5, 60, 3590):
            clock[0] = seconds
            assert await client.get(done["taskId"]) == done


@pytest.mark.spec("new-12", "TASK-23a")
async def test_a_task_that_has_expired_is_unknown(studio: Studio) -> None:
    clock = [0.0]
    studio = Studio(backend=MemoryBackend(lambda: clock[0]))
    studio.go_on.set()
    async with serving(studio.server) as client:
        id = (await client.until(await client.start("count", {"words": 1})))["taskId"]
        asking = await client.start("ask")
        await client.asked(asking, 2)
        clock[0] = 3661.0
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for one in (id, asking):
                assert await client.error(method, {"taskId": one}) == {"code": -32602, "message": NO_TASK}


@pytest.mark.spec("new-12", "new-14", "TASK-14")
async def test_a_task_that_takes_longer_than_its_time_is_stopped_and_has_failed(client: TaskClient) -> None:
    """It is kept a little longer, so that its client can read why."""
    began = time.time()
    handle = await client.call("forever")
    assert handle["ttlMs"] == 1000
    failed = await client.until(handle["taskId"])
    assert time.time() - began > 0.99
    assert (failed["status"], failed["error"]["code"]) == ("failed", -32603)
    assert failed["statusMessage"] == "The task took longer than its time to live, and was stopped."
    assert failed["ttlMs"] > 60_000
    assert await client.get(handle["taskId"]) == failed


# Ids and failures.


@pytest.mark.spec("TASK-23a", "TASK-23b", "TASK-23c", "new-23")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("id", [UNKNOWN, "1", "", "../else", "task:*", "x" * 5000, "Grüße und so weiter", "a b" * 8])
async def test_an_unknown_id(client: TaskClient, method: str, id: str) -> None:
    await client.start("count", {"words": 1})
    params = {"taskId": id, "inputResponses": {"one": accept(name="Ada")}}
    assert await client.error(method, params) == {"code": -32602, "message": NO_TASK}


@pytest.mark.spec("TASK-23a", "new-23")
@pytest.mark.parametrize("params", [{}, {"taskId": None}, {"taskId": 7}, {"taskId": ["a"]}])
async def test_an_id_that_is_no_text(client: TaskClient, params: Any) -> None:
    error = await client.error("tasks/get", params)
    assert error["code"] == -32602
    assert "taskId" in error["message"]


@pytest.mark.spec("new-24")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_bug_is_an_internal_error_without_its_text(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = MemoryBackend()
    async with serving(Studio(backend=backend).server) as client:
        id = await client.start("ask")
        await client.asked(id, 2)

        async def broken(key: str) -> bytes | None:
            raise RuntimeError("SECRET /etc/passwd")

        monkeypatch.setattr(backend.store, "get", broken)
        response = await client.send(method, {"taskId": id, "inputResponses": {"one": accept(name="Ada")}})
        error = (await response.json())["error"]
        monkeypatch.undo()
        assert error["code"] == -32603
        assert not [word for word in ("SECRET", "Traceback", ".py", "RuntimeError") if word in json.dumps(error)]
        assert "SECRET" in caplog.text  # the operator learns it
        assert (await client.get(id))["status"] == "input_required"


def _numbers_aside(result: Any) -> Any:
    """A result without the numbers of failures, which are in the log, too."""
    content = [{**part, "text": re.sub("error [0-9a-f]{8}", "error", part["text"])} for part in result["content"]]
    return {**result, "content": content}
