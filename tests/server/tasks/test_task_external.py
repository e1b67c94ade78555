"""A handler hands its work to a program outside: what middleware sees of it, and what happens if it goes wrong."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.raw_sessions import Reply, eventually
from support.task_clients import TaskClient, serving
from weft import Context, Server, Task, TaskStore, ToolError, UsageError
from weft.types import CallToolResult

KINDS = ["task", "late task", "plain"]


class Farm:
    """A server whose tools hand over their work, and the ids that were handed over."""

    def __init__(self) -> None:
        self.server = Server("farm")
        self.ids: list[str] = []
        self.seen: list[str] = []

    def tool(self, kind: str, handler: Callable[[Context], Any], **options: Any) -> None:
        async def work(ctx: Context) -> Any:
            if kind == "late task":
                while ctx.task.id is None:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.005)
            return handler(ctx)

        self.server.tool(task=Task(after=0.01) if kind == "late task" else "optional", **options)(work)

    async def outcome(self, client: TaskClient, kind: str) -> Any:
        """The result of the tool, of its task or of the call."""
        if kind == "plain":
            return await client.undeclaring().call("work")
        state = await client.until(await client.start("work"))
        assert state["status"] == "completed", state
        return state["result"]


@pytest.fixture
def farm() -> Farm:
    return Farm()


@pytest.mark.parametrize("kind", KINDS)
async def test_middleware_gets_a_result_without_content(farm: Farm, kind: str) -> None:
    @farm.server.middleware
    async def look(ctx: Context, following: Any) -> Any:
        result = await following()
        if ctx.method == "tools/call":
            assert type(result) is CallToolResult
            farm.seen.append(str(result.content))
        return result

    farm.tool(kind, lambda ctx: ctx.task.external(farm.ids.append))
    async with serving(farm.server) as client:
        outcome = asyncio.create_task(farm.outcome(client, kind))
        await eventually(lambda: farm.ids)
        assert await TaskStore(farm.server.backend).complete(farm.ids[0], "ground")
        assert (await outcome)["content"][0]["text"] == "ground"
        assert farm.seen == ["[]"]


@pytest.mark.parametrize("kind", KINDS)
async def test_work_is_not_handed_over_if_middleware_makes_a_failure_of_it(farm: Farm, kind: str) -> None:
    @farm.server.middleware
    async def refuse(ctx: Context, following: Any) -> Any:
        result = await following()
        if ctx.method == "tools/call":
            raise ToolError("The farm is full.")
        return result

    farm.tool(kind, lambda ctx: ctx.task.external(farm.ids.append))
    async with serving(farm.server) as client:
        result = await farm.outcome(client, kind)
        assert (result["isError"], result["content"][0]["text"]) == (True, "The farm is full.")
        assert farm.ids == []


@pytest.mark.parametrize("kind", KINDS)
async def test_work_that_the_function_refuses_fails_with_its_text(farm: Farm, kind: str) -> None:
    def refuse(_: str) -> None:
        raise ToolError("The farm is closed on Sundays.")

    farm.tool(kind, lambda ctx: ctx.task.external(refuse))
    async with serving(farm.server) as client:
        result = await farm.outcome(client, kind)
        assert (result["isError"], result["content"][0]["text"]) == (True, "The farm is closed on Sundays.")
        await eventually(lambda: len(farm.server.engine.tasks.runner) == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_work_that_cannot_be_passed_on_fails_with_a_reference(
    farm: Farm, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str) -> None:
        raise ConnectionError("no broker")

    farm.tool(kind, lambda ctx: ctx.task.external(fail))
    async with serving(farm.server) as client:
        with caplog.at_level(logging.ERROR):
            result = await farm.outcome(client, kind)
        text = result["content"][0]["text"]
        reference = text.removesuffix(".").rpartition(" ")[2]
        assert (result["isError"], text[:15]) == (True, "Internal error.")
        assert f"raised ConnectionError: no broker [error {reference}]" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_plain_function_hands_over_its_work(farm: Farm, kind: str) -> None:
    @farm.server.tool(task=Task(after=0.01) if kind == "late task" else "optional")
    def work(ctx: Context) -> str:
        while kind == "late task" and ctx.task.id is None:
            time.sleep(0.005)
        return ctx.task.external(farm.ids.append)

    async with serving(farm.server) as client:
        outcome = asyncio.create_task(farm.outcome(client, kind))
        await eventually(lambda: farm.ids)
        assert await TaskStore(farm.server.backend).complete(farm.ids[0], "painted")
        assert (await outcome)["content"][0]["text"] == "painted"


@pytest.mark.parametrize("kind", KINDS)
async def test_work_that_is_not_returned_is_a_mistake(farm: Farm, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def forget(ctx: Context) -> None:
        ctx.task.external(farm.ids.append)

    farm.tool(kind, forget)
    async with serving(farm.server) as client:
        with caplog.at_level(logging.ERROR):
            assert (await farm.outcome(client, kind))["isError"]
        assert "test_task_external.py" in caplog.text
        assert (
            "was not returned, so its work was not handed over. Write `return ctx.task.external(...)`." in caplog.text
        )
        assert farm.ids == []


async def test_work_is_not_awaited() -> None:
    server = Server("farm")
    mistakes: list[str] = []

    @server.tool(task="optional")
    async def work(ctx: Context) -> str:
        try:
            await ctx.task.external(print)
        except UsageError as error:
            mistakes.append(str(error))
        return ""

    async with serving(server) as client:
        await client.until(await client.start("work"))
        assert mistakes == ["ctx.task.external(...) cannot be awaited. Write `return ctx.task.external(...)`."]


@pytest.mark.parametrize("after", [0, 0.05])
async def test_a_function_that_hangs_is_given_up_when_the_task_expires(
    farm: Farm, caplog: pytest.LogCaptureFixture, after: float
) -> None:
    async def hang(_: str) -> None:
        await asyncio.Event().wait()

    @farm.server.tool(name=f"work{after}", task=Task(ttl=1, after=after))
    async def work(ctx: Context) -> Any:
        return ctx.task.external(hang)

    async with serving(farm.server) as client:
        with caplog.at_level(logging.WARNING):
            state = await client.until(await client.start(f"work{after}"))
        assert (state["status"], state["statusMessage"]) == (
            "failed",
            "The task took longer than its time to live, and was stopped.",
        )
        assert "as a task, took longer than its time to live: Task(ttl=...)" in caplog.text
        await eventually(lambda: len(farm.server.engine.tasks.runner) == 0)


async def test_a_call_that_has_asked_stays_plain_if_its_time_comes_while_it_is_answered() -> None:
    """Its connection is closed before it is answered, which takes longer here than `after`."""
    server = Server("farm")

    @server.tool(task=Task(after=0.05))
    async def work(ctx: Context) -> str:
        ctx.connection.exit_stack.push_async_callback(asyncio.sleep, 0.2)
        await ctx.elicit("Who?", Reply)
        return ""

    async with serving(server) as client:
        answer = await client.call("work")
        assert answer["resultType"] == "input_required"
        assert answer["inputRequests"]
