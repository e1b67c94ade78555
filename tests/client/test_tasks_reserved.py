"""Names that belong to the tasks extension mean tasks, whatever other extensions a client declares."""

import asyncio

import pytest

from support.task_servers import TASKS, TaskServer, done, state
from weft import Client, InvalidAnswer

LONG = 30
OWN = "com.example/own"


@pytest.mark.spec("new-21")
async def test_settings_of_the_program_for_tasks_are_those_of_the_extension() -> None:
    """The identifier cannot be used for something else: the client follows tasks as ever."""
    server = TaskServer(done())
    async with asyncio.timeout(LONG), Client(server, extensions={TASKS: {"later": True}, OWN: {}}) as client:
        assert (await client.call_tool("t")).text == "done"
    declared = server.calls("tools/call")[0]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert declared["extensions"] == {TASKS: {"later": True}, OWN: {}}


@pytest.mark.spec("new-21")
@pytest.mark.parametrize("method", ["own/do", "tasks/get", "tasks/own"])
async def test_a_result_of_the_type_task_is_none_of_another_extension(method: str) -> None:
    server = TaskServer()
    server.on[method] = lambda _: {**state(), "resultType": "task"}
    async with asyncio.timeout(LONG), Client(server, extensions={OWN: {}}) as client:
        with pytest.raises(InvalidAnswer, match="is a task, which only calls of tools can be"):
            await client.request(method, {"taskId": "task-1"})
