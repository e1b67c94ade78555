"""A client of the tasks extension: it sends raw messages to a server in this process, and reads what they say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from support.raw_sessions import AppPeer, Exchange
from support.wire import SERVER_INFO, headers_for, message
from weft import Server
from weft.protocol.headers import encode_value
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY

__all__ = ["ACK", "TASKS", "TaskClient", "accept", "serving", "task_client"]

TASKS = "io.modelcontextprotocol/tasks"
FINAL = ("completed", "failed", "cancelled")
ABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


ACK = {"resultType": "complete"}


def accept(**content: Any) -> dict[str, Any]:
    """The answer of a user who fills in a form."""
    return {"action": "accept", "content": content}


class TaskClient:
    """A client of the stateless era. With `declares`, it declares the extension in every request."""

    def __init__(self, peer: AppPeer, *, declares: bool = True) -> None:
        self.peer = peer
        self.declares = declares

    def on(self, app: Any) -> "TaskClient":
        """The same client at another worker."""
        return TaskClient(self.peer.on(app), declares=self.declares)

    def undeclaring(self) -> "TaskClient":
        """The same client, without the extension."""
        return TaskClient(self.peer, declares=False)

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Exchange:
        """Send a request and wait for the head of its response. `meta` and `headers` replace what it would have."""
        declared = {**ABLE, "extensions": {TASKS: {}}} if self.declares else ABLE
        body = message(method, params, meta={CLIENT_CAPABILITIES_KEY: declared, **(meta or {})})
        id = (params or {}).get("taskId")
        named = {"Mcp-Name": encode_value(id)} if method.startswith("tasks/") and isinstance(id, str) else {}
        return await self.peer.request(
            "POST", body, dict(headers_for(body, {**named, **(headers or {})})), session=None
        )

    async def result(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        return await (await self.send(method, params, **options)).result()

    async def error(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
        answer = await (await self.send(method, params, **options)).json()
        assert "error" in answer, answer
        return answer["error"]

    async def call(self, tool: str, arguments: Any = None, **params: Any) -> Any:
        """The result of a call: a task, an answer, or questions."""
        return await self.result("tools/call", {"name": tool, "arguments": arguments or {}, **params})

    async def start(self, tool: str, arguments: Any = None) -> str:
        """Call a tool. The id of the task that the call has become."""
        handle = await self.call(tool, arguments)
        assert handle["resultType"] == "task", handle
        return handle["taskId"]

    async def get(self, id: str) -> Any:
        return await self.result("tasks/get", {"taskId": id})

    async def update(self, id: str, answers: Mapping[str, Any]) -> Any:
        return _bare(await self.result("tasks/update", {"taskId": id, "inputResponses": answers}))

    async def cancel(self, id: str) -> Any:
        return _bare(await self.result("tasks/cancel", {"taskId": id}))

    async def listen(self, *ids: str, **filter: Any) -> Exchange:
        """Subscribe to tasks. The stream of the subscription."""
        return await self.send("subscriptions/listen", {"notifications": {"taskIds": list(ids), **filter}})

    async def until(self, id: str, *statuses: str, says: str | None = None, seconds: float = 30) -> Any:
        """The state of a task as soon as it has one of these statuses (default: a final one), or such a message."""
        async with asyncio.timeout(seconds):
            while True:
                state = await self.get(id)
                if state["status"] in (statuses or FINAL) and says in (None, state.get("statusMessage")):
                    return state
                await asyncio.sleep(0.005)

    async def asked(self, id: str, count: int = 1) -> dict[str, Any]:
        """The questions of a task, as soon as there are as many."""
        async with asyncio.timeout(30):
            while len(asked := (await self.get(id)).get("inputRequests", {})) != count:  # noqa: ASYNC110 - as a client does
                await asyncio.sleep(0.005)
        return asked


def _bare(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the name of the server, which is in every result."""
    assert result["_meta"].keys() == {SERVER_INFO}
    return {name: value for name, value in result.items() if name != "_meta"}


def task_client(server: Server, subject: str | None = None) -> TaskClient:
    """A client of a server in this event loop."""
    return TaskClient(AppPeer(server.asgi(), subject))


@contextlib.asynccontextmanager
async def serving(*servers: Server) -> AsyncIterator[TaskClient]:
    """A client of the first of some workers. All are stopped at the end."""
    client = task_client(servers[0])
    try:
        yield client
    finally:
        await client.peer.leave()
        for server in servers:
            await server.stop()
