"""Which calls become tasks: the server decides for each call, and asks only what that call has declared."""

import asyncio
import re
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY
from support.raw_sessions import AppPeer, called, message
from support.task_clients import ACK, TASKS, TaskClient, accept, serving
from weft import Context, Server, Task, UsageError

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAAAA"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
LEGACY = {CLIENT_CAPABILITIES_KEY: {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}}


class Studio:
    """A server with tools of each kind, and how often they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.server = server = Server("studio")

        @server.tool
        def add(a: int, b: int) -> int:
            return a + b

        @server.tool(task="optional")
        async def paint(picture: str) -> str:
            self.ran.append("paint")
            return f"{picture} is painted"

        @server.tool(task="required")
        async def engrave(text: str) -> str:
            self.ran.append("engrave")
            return f"{text}, in copper"

        @server.tool(task=Task(after=60))
        async def sketch(model: str) -> str:
            return f"{model}, in pencil"

        @server.prompt
        async def greet(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", FORM, key="who")
            return f"Greet {answer.value['name']}"

        server.add_resource("note://a", "A")


@pytest.fixture
def studio() -> Studio:
    return Studio()


@pytest.fixture
async def client(studio: Studio) -> Any:
    async with serving(studio.server) as one:
        yield one


@pytest.mark.spec("TASK-01", "TASK-31", "new-1")
async def test_a_server_with_tasks_declares_the_extension_and_no_capability(client: TaskClient) -> None:
    for asking in (client, client.undeclaring()):
        declared = (await asking.result("server/discover"))["capabilities"]
        assert declared["extensions"] == {TASKS: {}}
        assert "tasks" not in declared
    tools = (await client.result("tools/list"))["tools"]
    assert not [tool for tool in tools if "execution" in tool]  # nothing on the wire says which calls become tasks


@pytest.mark.spec("new-2", "new-9")
async def test_the_server_alone_decides_what_becomes_a_task(client: TaskClient) -> None:
    assert (await client.call("paint", {"picture": "attic"}))["resultType"] == "task"
    plain = await client.call("add", {"a": 2, "b": 3})
    assert (plain["resultType"], plain["structuredContent"]) == ("complete", 5)
    quick = await client.call("sketch", {"model": "cat"})
    assert (quick["resultType"], quick["content"][0]["text"]) == ("complete", "cat, in pencil")


@pytest.mark.spec("TASK-02", "new-3")
async def test_each_request_declares_for_itself(client: TaskClient, studio: Studio) -> None:
    plain = client.undeclaring()
    for _ in range(2):
        assert (await client.call("paint", {"picture": "attic"}))["resultType"] == "task"
        result = await plain.call("paint", {"picture": "attic"})
        assert (result["resultType"], "taskId" in result) == ("complete", False)
        assert result["content"][0]["text"] == "attic is painted"


@pytest.mark.spec("TASK-02", "TASK-31")
@pytest.mark.parametrize(
    "declared",
    [
        LEGACY[CLIENT_CAPABILITIES_KEY],
        {"extensions": {}},
        {"extensions": {"com.example/tasks": {}}},
        {"experimental": {TASKS: {}}},
    ],
)
async def test_what_only_resembles_the_extension_declares_nothing(client: TaskClient, declared: Any) -> None:
    meta = {CLIENT_CAPABILITIES_KEY: declared}
    result = await client.result("tools/call", {"name": "paint", "arguments": {"picture": "a"}}, meta=meta)
    assert (result["resultType"], "taskId" in result) == ("complete", False)
    assert (await client.error("tasks/get", {"taskId": UNKNOWN}, meta=meta))["code"] == -32021


@pytest.mark.spec("TASK-01")
async def test_settings_of_the_extension_are_no_matter(client: TaskClient) -> None:
    """The settings are `{}` today. A later client may have some."""
    meta = {CLIENT_CAPABILITIES_KEY: {"extensions": {TASKS: {"later": True}}}}
    result = await client.result("tools/call", {"name": "engrave", "arguments": {"text": "Ada"}}, meta=meta)
    assert result["resultType"] == "task"


@pytest.mark.spec("TASK-05", "new-23")
@pytest.mark.parametrize("meta", [{}, LEGACY])
async def test_a_tool_that_must_be_a_task_is_refused_before_it_runs(
    client: TaskClient, studio: Studio, meta: Any
) -> None:
    plain = client.undeclaring()
    response = await plain.send("tools/call", {"name": "engrave", "arguments": {"text": "Ada"}}, meta=meta)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (400, -32021)
    assert error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert "'engrave'" in error["message"]
    assert TASKS in error["message"]
    assert studio.ran == []
    id = await client.start("engrave", {"text": "Ada"})
    assert (await client.until(id))["result"]["content"][0]["text"] == "Ada, in copper"


@pytest.mark.spec("TASK-24", "new-23")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_the_capability_is_checked_before_the_id(client: TaskClient, method: str) -> None:
    real = await client.start("paint", {"picture": "attic"})
    answers = []
    for id in (real, UNKNOWN, "no id", ""):
        response = await client.undeclaring().send(method, {"taskId": id, "inputResponses": {}})
        answers.append((response.status, (await response.json())["error"]))
    assert answers == [answers[0]] * 4  # the answer does not say whether there is such a task
    status, error = answers[0]
    assert (status, error["code"]) == (400, -32021)
    assert error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert TASKS in error["message"]


@pytest.mark.spec("TASK-29", "new-22")
@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
@pytest.mark.parametrize("declares", [True, False])
async def test_methods_of_the_other_generation_do_not_exist(client: TaskClient, method: str, declares: bool) -> None:
    id = await client.start("paint", {"picture": "attic"})
    response = await (client if declares else client.undeclaring()).send(method, {"taskId": id})
    assert await response.refusal() == (404, -32601)


@pytest.mark.spec("TASK-30")
@pytest.mark.parametrize("task", [{"ttl": 60000}, {}, {"ttl": "never"}, None, 7, "soon"])
async def test_the_param_of_the_other_generation_is_ignored(client: TaskClient, task: Any) -> None:
    plain = client.undeclaring()
    for tool, arguments in (("add", {"a": 2, "b": 3}), ("paint", {"picture": "a"})):
        result = await plain.call(tool, arguments, task=task)
        assert (result["resultType"], "taskId" in result) == ("complete", False)
    assert (await client.call("add", {"a": 2, "b": 3}, task=task))["structuredContent"] == 5
    handle = await client.call("paint", {"picture": "a"}, task=task)
    assert (handle["resultType"], handle["ttlMs"]) == ("task", 3_600_000)  # not the one that it asks for


@pytest.mark.spec("TASK-07")
async def test_only_calls_of_tools_become_tasks(client: TaskClient) -> None:
    for method, params in (("resources/read", {"uri": "note://a"}), ("prompts/list", None)):
        assert (await client.result(method, params))["resultType"] == "complete"
    asked = await client.result("prompts/get", {"name": "greet"})
    assert asked["resultType"] == "input_required"
    answers = {"inputResponses": {"who": accept(name="Ada")}, "requestState": asked["requestState"]}
    assert (await client.result("prompts/get", {"name": "greet", **answers}))["resultType"] == "complete"


@pytest.mark.spec("TASK-32")
async def test_in_a_session_the_key_of_the_extension_enables_nothing() -> None:
    studio = Studio()
    peer = AppPeer(studio.server.asgi())
    opened = await peer.open(capabilities={"extensions": {TASKS: {}}})
    assert "extensions" not in opened["capabilities"]
    result = await (await peer.post(called("paint", picture="attic"))).result()
    assert (result["content"][0]["text"], "taskId" in result, "task" in result) == ("attic is painted", False, False)
    assert (await (await peer.post(called("engrave", text="Ada"))).refusal())[1] == -32601
    assert (await (await peer.post(message("tasks/update", {"taskId": UNKNOWN}, 1))).refusal())[1] == -32601
    await peer.leave()
    await studio.server.stop()


@pytest.mark.spec("TASK-33", "TASK-24")
async def test_a_task_of_one_generation_is_read_and_cancelled_in_the_other() -> None:
    """Each client gets the messages of its own generation."""
    server, go_on = Server("studio"), asyncio.Event()

    @server.tool(task="optional")
    async def dry() -> str:
        await go_on.wait()
        return "dry"

    async with serving(server) as client:
        session = client.peer
        await session.open()
        params = {"name": "dry", "arguments": {}, "task": {"ttl": 60_000}}
        task = (await (await session.post(message("tools/call", params, 1))).result())["task"]
        own = await (await session.post(message("tasks/get", {"taskId": task["taskId"]}, 2))).result()
        assert (own["status"], own["ttl"], "ttlMs" in own) == ("working", 60_000, False)
        there = await client.get(task["taskId"])
        assert (there["status"], there["ttlMs"], "ttl" in there) == ("working", 60_000, False)
        refused = await client.undeclaring().send("tasks/get", {"taskId": task["taskId"]})
        assert await refused.refusal() == (400, -32021)
        assert await client.cancel(task["taskId"]) == ACK
        assert (await client.get(task["taskId"]))["status"] == "cancelled"
        second = await client.start("dry")
        cancelled = await (await session.post(message("tasks/cancel", {"taskId": second}, 3))).result()
        assert cancelled["status"] == "cancelled"
        assert (await client.get(second))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"support": "maybe"}, "it is 'optional' or 'required'"),
        ({"restart": "always"}, "it is 'resume' or 'never'"),
        ({"after": -1}, "give seconds, 0 or more"),
        ({"after": "1"}, "give seconds, 0 or more"),
        ({"ttl": 0.5}, "give seconds, 1 or more"),
        ({"ttl": float("inf")}, "give seconds, 1 or more"),
        ({"poll": None}, "give seconds, 0.01 or more"),
        ({"immediate_response": 5}, "give a text"),
    ],
)
def test_options_of_a_task_are_checked(options: dict[str, Any], said: str) -> None:
    [(name, value)] = options.items()
    with pytest.raises(UsageError, match=re.escape(f"Task({name}={value!r}) is not possible: {said}")):
        Task(**options)
