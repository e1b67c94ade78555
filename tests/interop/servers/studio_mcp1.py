"""The studio on the official Python SDK 1.x with its experimental tasks: those of 2025-11-25.

    python studio_mcp1.py stdio
    python studio_mcp1.py http PORT

It also sends questions as tasks to the client (`ask_as_task`, `ask_as_task_in_a_task`). A tool that fails completes its
task, a cancelled task is not stopped, and a task that has failed with an exception has a result without content.
"""

import asyncio
import sys
import warnings
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from mcp.shared.experimental.tasks.in_memory_task_store import InMemoryTaskStore
from mcp.types import (
    CallToolResult,
    ErrorData,
    SamplingMessage,
    Task,
    TaskMetadata,
    TextContent,
    Tool,
    ToolExecution,
)

warnings.simplefilter("ignore")


class PollStore(InMemoryTaskStore):
    """Tells clients how often to poll."""

    poll = 50  # milliseconds, for the next task that is created

    async def create_task(self, metadata: TaskMetadata, task_id: str | None = None) -> Task:
        task = await super().create_task(metadata, task_id)
        self._tasks[task.taskId].task.pollInterval = self.poll
        return task.model_copy(update={"pollInterval": self.poll})


server: Server[Any, Any] = Server("studio", version="1.0")
store = PollStore()
server.experimental.enable_tasks(store=store)
signals: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))
Work = Callable[[ServerTaskContext, dict[str, Any]], Awaitable[CallToolResult]]
WOOD = {"type": "object", "properties": {"wood": {"type": "string", "enum": ["oak", "pine"]}}, "required": ["wood"]}


def said(text: str, structured: dict[str, Any] | None = None) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], structuredContent=structured)


def prompt(text: str) -> list[SamplingMessage]:
    return [SamplingMessage(role="user", content=TextContent(type="text", text=text))]


async def develop(_task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    return said(f"{given['photo']}, 10x15", {"photo": given["photo"], "size": "10x15"})


async def render(task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    layers = []
    for number in (1, 2):
        await task.update_status(f"painting ({number}/2)")
        await signals[given["picture"]].acquire()
        layers.append(f"{given['picture']} {number}")
    return said(", ".join(layers))


async def dry(task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    for number, word in enumerate(("drying", "cooling"), start=1):
        await task.update_status(f"{word} ({number}/2)")
        await signals[given["picture"]].acquire()
    return said(f"{given['picture']} is dry.")


async def frame(task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    answer = await task.elicit(f"Which wood for {given['picture']}?", WOOD)
    content = answer.content or {}
    accepted = answer.action == "accept"
    return said(f"{given['picture']} in {content['wood']}" if accepted else f"{given['picture']} without a frame")


async def hang(task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    height = {"type": "object", "properties": {"height": {"type": "integer"}}, "required": ["height"]}
    wall = {"type": "object", "properties": {"wall": {"type": "string"}}, "required": ["wall"]}
    answers: Any = [await task.elicit("At which height?", height), await task.elicit("On which wall?", wall)]
    if any(answer.action != "accept" for answer in answers):
        return said(f"{given['picture']} stays in its box")
    at, on = (answer.content for answer in answers)
    return said(f"{given['picture']} at {at['height']} cm on the {on['wall']} wall")


async def name_it(task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    answer: Any = await task.create_message(prompt(f"Name {given['picture']}."), max_tokens=20)
    return said(answer.content.text)


async def spill(_task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    return said(f"There is no {given['colour']} any more.").model_copy(update={"isError": True})


async def tear(_task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    raise McpError(ErrorData(code=1001, message=f"The {given['paper']} is torn."))


async def engrave(_task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    return said(f"{given['text']}, in copper")


async def ask_as_task_in_a_task(task: ServerTaskContext, given: dict[str, Any]) -> CallToolResult:
    """Ask the user and the model of the client, each as a task of the client, from within a task of the server."""
    form: Any = await task.elicit_as_task(f"Which wood for {given['picture']}?", WOOD)
    answer: Any = await task.create_message_as_task(prompt(f"Name {given['picture']}."), max_tokens=20)
    return said(f"{answer.content.text} in {form.content['wood']}")


TASKS: dict[str, Work] = {
    work.__name__: work
    for work in (develop, render, dry, frame, hang, name_it, spill, tear, engrave, ask_as_task_in_a_task)
}
PARAMETERS = {"develop": "photo", "spill": "colour", "tear": "paper", "engrave": "text"}  # the others have "picture"
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def schema(parameter: str) -> dict[str, Any]:
    return {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}


@server.list_tools()
async def list_tools() -> list[Tool]:
    tools = [
        Tool(name="add", inputSchema=NUMBERS),
        Tool(name="go_on", inputSchema=schema("picture")),
        Tool(name="ask_as_task", inputSchema=schema("picture")),
    ]
    for name in TASKS:
        support = "required" if name in ("engrave", "ask_as_task_in_a_task") else "optional"
        execution = ToolExecution(taskSupport=support)
        tools.append(Tool(name=name, inputSchema=schema(PARAMETERS.get(name, "picture")), execution=execution))
    return tools


@server.call_tool(validate_input=False)
async def call_tool(name: str, given: dict[str, Any]) -> Any:
    context = server.request_context
    if name == "ask_as_task":
        return await ask_as_task(context.session.experimental, given["picture"])
    if name in TASKS:
        support = "required" if name in ("engrave", "ask_as_task_in_a_task") else "optional"
        context.experimental.validate_task_mode(support)
        work = TASKS[name]
        if not context.experimental.is_task:
            return await work(PlainTask(), given)  # type: ignore[arg-type]
        answer = "The photo is still wet." if name == "develop" else None
        store.poll = 600_000 if name == "dry" else 50
        return await context.experimental.run_task(lambda task: work(task, given), model_immediate_response=answer)
    context.experimental.validate_task_mode("forbidden")
    if name == "go_on":
        signals[given["picture"]].release()
        return said("It goes on.")
    return said(str(given["a"] + given["b"]))


async def ask_as_task(client: Any, picture: str) -> CallToolResult:
    """Ask the user and the model of the client, each as a task of the client, within a plain call."""
    form: Any = await client.elicit_as_task(f"Which wood for {picture}?", WOOD)
    answer: Any = await client.create_message_as_task(prompt(f"Name {picture}."), max_tokens=20)
    return said(f"{answer.content.text} in {form.content['wood']}")


class PlainTask:
    """Stands for the task of a plain call."""

    async def update_status(self, _message: str) -> None:
        pass

    async def elicit(self, message: str, requested: dict[str, Any]) -> Any:
        context = server.request_context
        return await context.session.elicit(message, requested, related_request_id=context.request_id)


async def serve_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def serve_http(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    manager = StreamableHTTPSessionManager(server)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncGenerator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Mount("/", app=manager.handle_request)], lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    if sys.argv[1] == "http":
        serve_http(int(sys.argv[2]))
    else:
        anyio.run(serve_stdio)
