"""A server whose tools can be tasks, and clients of 2025-11-25 that send exactly what a test wants about them.

async with Workshop() as shop:
    client = await shop.client()
    task = await client.start("hold")          # the task that the server has made of the call
    shop.released.set()
    await client.reach(task["taskId"], "completed")
    result = await client.outcome(task["taskId"])
"""

import asyncio
import itertools
import time
from typing import Any, Self

from support.raw_sessions import AppPeer, Exchange, Peer, Reply, message
from weft import Context, Limits, ProtocolError, Server, Task, ToolError
from weft.types import CallToolResult, TextContent
from weft.types.tasks import TASKS_EXTENSION

__all__ = ["CAPABILITIES", "DECLARED", "RELATED", "STATUS", "AppTaskPeer", "TaskPeer", "Workshop", "add_tools"]

RELATED = "io.modelcontextprotocol/related-task"
STATUS = "notifications/tasks/status"
DECLARED = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}  # in the other era
CAPABILITIES = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


def add_tools(server: Server, released: asyncio.Event, said: list[str]) -> None:
    """Give a server tools that can be tasks. `hold` and `stages` wait until `released` is set; `said` tells of runs."""

    server.add_resource("note://desk", "empty")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Never a task."""
        return a + b

    @server.tool(task=Task("required", immediate_response="The plate is being engraved."))
    async def engrave(name: str) -> str:
        """Always a task."""
        said.append(f"engrave {name}")
        return f"{name}, in copper"

    @server.tool(task=Task(ttl=120, poll=0.05))
    async def photo(size: str = "10x15") -> dict[str, str]:
        """A result with structured content."""
        return {"size": size}

    @server.tool(task=Task(after=60))
    async def sketch() -> str:
        """A task only after a minute, where the server decides."""
        return "sketched"

    @server.tool(task="optional")
    async def marked() -> CallToolResult:
        """A result with `_meta`."""
        return CallToolResult(content=[TextContent("marked")], meta={"com.example/colour": "red"})

    _add_waiting_tools(server, released, said)
    _add_failing_tools(server)
    _add_asking_tools(server, released, said)


def _add_waiting_tools(server: Server, released: asyncio.Event, said: list[str]) -> None:
    @server.tool(task="optional")
    async def hold() -> str:
        """Wait."""
        try:
            await released.wait()
        except asyncio.CancelledError:
            said.append("stopped")
            raise
        said.append("done")
        return "It is done."

    @server.tool(task="optional")
    async def stubborn() -> str:
        """Wait, and not stop when the task is cancelled."""
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                said.append("goes on")
        said.append("done")
        return "It is done all the same."

    @server.tool(task="optional")
    def grind() -> str:
        """Wait in a thread, which cannot be stopped."""
        while not released.is_set():
            time.sleep(0.005)
        said.append("ground")
        return "ground"

    @server.tool(task="optional")
    async def stages(ctx: Context) -> str:
        """Report, wait, and report again."""
        await ctx.report_progress(1, 2, "drying")
        await released.wait()
        await ctx.report_progress(2, 2, "cooling")
        return "dry"


def _add_failing_tools(server: Server) -> None:
    @server.tool(task="optional")
    def spill() -> str:
        """Fail with a result."""
        raise ToolError("There is no red any more.")

    @server.tool(task="optional")
    def tear() -> str:
        """Fail with a JSON-RPC error."""
        raise ProtocolError("The sheet is torn.", code=1001, data={"paper": "sheet"})


def _add_asking_tools(server: Server, released: asyncio.Event, said: list[str]) -> None:
    @server.tool(task="optional")
    async def frame(ctx: Context, photo: str) -> str:
        """Ask one question."""
        wood = await ctx.elicit(f"Which wood for {photo}?", Reply)
        said.append(f"frame {photo}")
        return f"{photo} in {wood.value.value}" if wood.action == "accept" else f"{photo} without a frame"

    @server.tool(task="optional")
    async def frame_slowly(ctx: Context) -> str:
        """Ask, and wait."""
        wood = await ctx.elicit("Which wood?", Reply)
        await released.wait()
        return wood.value.value  # type: ignore[union-attr] - accepted

    @server.tool(task="optional")
    async def late(ctx: Context) -> str:
        """Wait, and ask."""
        await released.wait()
        return (await ctx.elicit("Now?", Reply)).value.value  # type: ignore[union-attr] - accepted

    @server.tool(task="optional")
    async def hang(ctx: Context) -> str:
        """Ask two questions at once."""
        height, wall = await asyncio.gather(ctx.elicit("At which height?", Reply), ctx.elicit("On which wall?", Reply))
        return f"{height.value.value} on {wall.value.value}"  # type: ignore[union-attr] - accepted

    @server.tool(task="optional")
    async def chain(ctx: Context, count: int = 2) -> str:
        """Ask one question after the other."""
        return " ".join([(await ctx.elicit(f"Number {n}?", Reply)).value.value for n in range(count)])  # type: ignore[union-attr] - accepted

    @server.tool(task="optional")
    async def title(ctx: Context) -> str:
        """Ask the client's model."""
        answer = await ctx.sample("Name it.", max_tokens=20)
        return answer.content.text if isinstance(answer.content, TextContent) else "no title"

    @server.tool(task="optional")
    async def where(ctx: Context) -> str:
        """Ask for the client's roots."""
        return (await ctx.list_roots())[0].uri

    @server.tool(task="optional")
    async def visit(ctx: Context) -> str:
        """Send the user to a page."""
        return (await ctx.elicit_url("Please pay.", "https://pay.example/1")).action


class TaskPeer(Peer):
    """A client that starts tasks and asks about them."""

    _ids = itertools.count(1)  # of requests, in all sessions
    _latest = 0  # id of the newest request for a result

    async def ask(self, method: str, params: Any = None) -> Exchange:
        """Send a request, and wait for the head of its response."""
        return await self.post(message(method, params, next(self._ids)))

    async def call(self, tool: str, task: Any = None, *, meta: Any = None, **arguments: Any) -> Exchange:
        """Call a tool: as a task, if `task` is given."""
        more = {"task": task, "_meta": meta}
        given = {name: value for name, value in more.items() if value is not None}
        return await self.ask("tools/call", {"name": tool, "arguments": arguments, **given})

    async def start(self, tool: str, task: Any = None, *, meta: Any = None, **arguments: Any) -> dict[str, Any]:
        """Call a tool as a task, and return the task."""
        answer = await self.call(tool, {} if task is None else task, meta=meta, **arguments)
        return (await answer.result())["task"]

    async def state(self, id: str) -> dict[str, Any]:
        """The state of a task."""
        return await (await self.ask("tasks/get", {"taskId": id})).result()

    async def reach(self, id: str, status: str, text: str | None = None) -> dict[str, Any]:
        """The state of a task when it has this status, and this status message."""
        async with asyncio.timeout(30):
            while True:
                state = await self.state(id)
                if state["status"] == status and text in (None, state.get("statusMessage")):
                    return state
                await asyncio.sleep(0.005)

    async def outcome(self, id: str) -> Any:
        """The response to `tasks/result`."""
        return await (await self.ask("tasks/result", {"taskId": id})).json()

    async def wait(self, id: str, meta: Any = None, **headers: str) -> "asyncio.Task[Exchange]":
        """Begin to wait for the result. The head of the response comes with the first message."""
        params = {"taskId": id, **({} if meta is None else {"_meta": meta})}
        request = message("tasks/result", params, next(self._ids))
        waiting = asyncio.create_task(self.post(request, **headers))
        self._latest = request["id"]
        await asyncio.sleep(0.02)
        return waiting

    async def give_up(self) -> None:
        """Cancel the newest request for a result."""
        assert (await self.post(message("notifications/cancelled", {"requestId": self._latest}))).status == 202

    async def cancel(self, id: str) -> Any:
        """The response to `tasks/cancel`."""
        return await (await self.ask("tasks/cancel", {"taskId": id})).json()


class AppTaskPeer(TaskPeer, AppPeer):
    """The same, of an ASGI app in this event loop."""


class Workshop:
    """A server with these tools, and its clients."""

    def __init__(self, *, limits: Limits | None = None, **options: Any) -> None:
        self.released = asyncio.Event()
        self.said: list[str] = []
        self.server = Server("workshop", limits=limits or Limits(drain_seconds=0.2), **options)
        add_tools(self.server, self.released, self.said)
        self._app = self.server.asgi()
        self._clients: list[AppTaskPeer] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        for client in self._clients:
            await client.leave()

    def stranger(self, subject: str | None = None, **options: Any) -> AppTaskPeer:
        """A client without a session; `subject` is who it is."""
        client = AppTaskPeer(self._app, subject, **options)
        self._clients.append(client)
        return client

    async def client(
        self, subject: str | None = None, *, version: str = "2025-11-25", capabilities: Any = None
    ) -> AppTaskPeer:
        """A client with a session."""
        client = self.stranger(subject)
        await client.open(version, CAPABILITIES if capabilities is None else capabilities)
        return client
