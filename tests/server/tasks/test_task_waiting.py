"""`tasks/result` of a session: what a client is told as soon as it begins to wait."""

import asyncio
from typing import Any

from support.raw_sessions import AppPeer, Exchange, message
from weft import Context, Server

STATUS = "notifications/tasks/status"
PROGRESS = "notifications/progress"


class Painter:
    """A server with one tool, which reports its progress and then waits; and a client with a session."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        server = Server("studio")

        @server.tool(task="optional")
        async def paint(ctx: Context, layers: int) -> str:
            for layer in range(1, layers + 1):
                await ctx.report_progress(layer, 2, "painting")
            await self.done.wait()
            return "It is painted."

        self.client = AppPeer(server.asgi())

    async def start(self, layers: int) -> str:
        params = {"name": "paint", "arguments": {"layers": layers}, "task": {}, "_meta": {"progressToken": "p"}}
        created = await (await self.client.post(message("tools/call", params, 1))).result()
        return created["task"]["taskId"]

    async def state(self, id: str) -> Any:
        return await (await self.client.post(message("tasks/get", {"taskId": id}, 2))).result()

    async def wait(self, id: str) -> "asyncio.Task[Exchange]":
        return await self.client.begin(message("tasks/result", {"taskId": id}, 3))


async def test_a_client_that_begins_to_wait_is_told_the_present_state() -> None:
    """Else a client that does not poll would see nothing of a task that has reported before."""
    painter = Painter()
    await painter.client.open()
    id = await painter.start(layers=1)
    async with asyncio.timeout(30):
        while "statusMessage" not in (state := await painter.state(id)):  # noqa: ASYNC110 - as a client does
            await asyncio.sleep(0.01)
    waiting = await (await painter.wait(id))
    told = [await waiting.message(), await waiting.message()]
    assert [one["method"] for one in told] == [PROGRESS, STATUS]
    assert (told[0]["params"]["progressToken"], told[0]["params"]["progress"]) == ("p", 1)
    assert told[1]["params"] == state
    painter.done.set()
    rest = [event.data async for event in waiting.rest() if event.data is not None]
    assert [one.get("method", "answer") for one in rest] == ["answer"]  # nothing is told twice
    await painter.client.leave()


async def test_a_client_is_not_told_what_the_handle_has_said() -> None:
    """So the answer needs no stream."""
    painter = Painter()
    await painter.client.open()
    waiting = await painter.wait(await painter.start(layers=0))
    painter.done.set()
    answer = await waiting
    assert (await answer.text(), answer.is_stream) == ("It is painted.", False)
    await painter.client.leave()
