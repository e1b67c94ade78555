"""What a server of 2025-11-25 declares of tasks, and which calls it accepts as tasks or without."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.session_tasks import CAPABILITIES, DECLARED, AppTaskPeer, Workshop
from weft.types.tasks import TASKS_EXTENSION

OLDER = ("2025-06-18", "2025-03-26", "2024-11-05")
METHODS = ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list", "tasks/update")


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def client(shop: Workshop) -> AppTaskPeer:
    return await shop.client()


async def support_of(client: AppTaskPeer) -> dict[str, Any]:
    """What `tools/list` says of tasks, by the name of the tool."""
    tools = (await (await client.ask("tools/list")).result())["tools"]
    return {tool["name"]: tool.get("execution") for tool in tools}


# The capability.


@pytest.mark.spec("L11-42a", "L11-49")
async def test_the_capability_names_all_that_there_is(shop: Workshop) -> None:
    """Without authorization, nobody knows whose tasks to list."""
    declared = (await shop.stranger().open("2025-11-25"))["capabilities"]
    assert declared["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}


@pytest.mark.spec("L11-42a", "L11-45c", "L11-49")
async def test_tasks_can_be_listed_where_the_caller_is_known(shop: Workshop) -> None:
    declared = (await shop.stranger("ann").open("2025-11-25"))["capabilities"]
    assert declared["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


@pytest.mark.spec("L11-42a", "L11-u1")
@pytest.mark.parametrize("version", OLDER)
async def test_older_versions_know_of_no_tasks(shop: Workshop, version: str) -> None:
    client = shop.stranger()
    assert "tasks" not in (await client.open(version))["capabilities"]
    assert set((await support_of(client)).values()) == {None}
    for method in METHODS:
        answer = await (await client.ask(method, {"taskId": "x" * 24})).json()
        assert answer["error"]["code"] == -32601, method


@pytest.mark.spec("TASK-31", "new-1")
async def test_the_stateless_era_has_the_extension_instead(shop: Workshop) -> None:
    found = await (await shop.stranger().stateless("server/discover", meta=DECLARED)).result()
    assert "tasks" not in found["capabilities"]
    assert found["capabilities"]["extensions"] == {TASKS_EXTENSION: {}}
    listed = await (await shop.stranger().stateless("tools/list", meta=DECLARED)).result()
    assert not any("execution" in tool for tool in listed["tools"])


@pytest.mark.spec("TASK-32")
@pytest.mark.parametrize("where", ["session", "request"])
async def test_the_key_of_the_extension_enables_nothing(shop: Workshop, where: str) -> None:
    extension = {"extensions": {TASKS_EXTENSION: {}}}
    client = shop.stranger()
    hello = await client.open("2025-11-25", {**CAPABILITIES, **(extension if where == "session" else {})})
    assert TASKS_EXTENSION not in hello["capabilities"].get("extensions", {})
    meta = DECLARED if where == "request" else None
    result = await (await client.call("photo", meta=meta)).result()
    assert result["structuredContent"] == {"size": "10x15"}
    assert await (await client.call("engrave", meta=meta, name="Ada")).refusal() == (200, -32601)
    update = {"taskId": "x" * 24, "inputResponses": {}, **({} if meta is None else {"_meta": meta})}
    assert await (await client.ask("tasks/update", update)).refusal() == (200, -32601)


# Tools.


@pytest.mark.spec("L11-42a", "L11-43a")
async def test_tools_say_how_they_can_be_called(client: AppTaskPeer) -> None:
    """Those that say nothing cannot be tasks."""
    support = await support_of(client)
    assert support["add"] is None
    assert support["engrave"] == {"taskSupport": "required"}
    assert support["photo"] == support["sketch"] == {"taskSupport": "optional"}


@pytest.mark.spec("L11-43b")
async def test_a_tool_that_cannot_be_a_task(client: AppTaskPeer) -> None:
    answer = await (await client.call("add", {"ttl": 1000}, a=2, b=3)).json()
    assert answer["error"]["code"] == -32601
    assert answer["error"]["message"] == "Method not found: this tool cannot be called as a task. Leave out `task`."


@pytest.mark.spec("L11-43c", "L11-u1")
async def test_a_tool_that_can_only_be_a_task(shop: Workshop, client: AppTaskPeer) -> None:
    answer = await (await client.call("engrave", name="Ada")).json()
    assert answer["error"]["code"] == -32601
    assert answer["error"]["message"] == "Method not found: this tool can only be called as a task. Send `task`."
    assert shop.said == []  # it did not run
    task = await client.start("engrave", name="Ada")
    assert (await client.outcome(task["taskId"]))["result"]["content"][0]["text"] == "Ada, in copper"


@pytest.mark.spec("L11-43b")
async def test_a_tool_that_may_be_a_task_is_called_plainly_without_the_param(client: AppTaskPeer) -> None:
    result = await (await client.call("photo", size="20x30")).result()
    assert result["structuredContent"] == {"size": "20x30"}
    assert "task" not in result


@pytest.mark.parametrize("task", [None, {}])
async def test_a_tool_that_does_not_exist(client: AppTaskPeer, task: Any) -> None:
    """The error names the tool, not the task."""
    answer = await (await client.call("erase", task)).json()
    assert answer["error"]["code"] == -32602
    assert answer["error"]["message"].startswith("Unknown tool.")


@pytest.mark.spec("L11-42a", "L11-u1")
@pytest.mark.parametrize(("method", "params"), [("resources/read", {"uri": "note://desk"}), ("tools/list", {})])
async def test_other_requests_are_served_as_if_they_asked_for_no_task(
    client: AppTaskPeer, method: str, params: Any
) -> None:
    plain = await (await client.ask(method, params)).result()
    assert await (await client.ask(method, {**params, "task": {"ttl": 1000}})).result() == plain


# Older versions.


@pytest.mark.spec("L11-u1")
@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("task", [{"ttl": 1000}, "nonsense"])
async def test_the_param_means_nothing_in_older_versions(shop: Workshop, version: str, task: Any) -> None:
    client = await shop.client(version=version)
    for tool, arguments in (("add", {"a": 2, "b": 3}), ("photo", {})):
        plain = await (await client.call(tool, **arguments)).result()
        assert await (await client.call(tool, task, **arguments)).result() == plain


@pytest.mark.parametrize("version", OLDER)
async def test_a_client_of_an_older_version_waits(shop: Workshop, version: str) -> None:
    client = await shop.client(version=version)
    shop.released.set()
    assert await (await client.call("hold")).text() == "It is done."


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("task", [None, {}])
async def test_in_an_older_version_the_model_reads_why_a_tool_cannot_be_called(
    shop: Workshop, version: str, task: Any
) -> None:
    client = await shop.client(version=version)
    result = await (await client.call("engrave", task, name="Ada")).result()
    assert result["isError"] is True
    assert "The tool 'engrave' can only be called as a task" in result["content"][0]["text"]
    assert shop.said == []
