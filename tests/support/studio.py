"""A server whose tools become tasks, which wait until the test lets them end."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.wire import serve
from weft import Context, ProtocolError, Server, Task, ToolError

__all__ = ["Studio", "studio_of"]

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Studio:
    """The server of one era over HTTP, and what its tasks wait for and tell."""

    def __init__(self, era: Any) -> None:
        self.era = era
        self.url = ""
        self.opened: dict[str, threading.Event] = defaultdict(threading.Event)  # lets `paint` end, by its name
        self.cancelled: list[str] = []  # names of the calls of `paint` that were cancelled
        self.server = Server("studio", eras=(era,))
        self._add_tools(Task(poll=0.05))

    def _add_tools(self, quick: Task) -> None:
        @self.server.tool(task=quick)
        async def paint(ctx: Context, name: str) -> str:
            await ctx.report_progress(1, 2, f"mixing {name}")
            try:
                while not self.opened[name].is_set():  # noqa: ASYNC110 - the test sets it in another thread
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return f"painted {name}"

        @self.server.tool(task=quick)
        async def sign(ctx: Context, number: int = 0) -> str:
            answer = await ctx.elicit(f"Who signs {number}?", NAME)
            return f"{number} signed by {answer.value['name']}" if answer.action == "accept" else answer.action

        @self.server.tool(task=quick)
        async def spill() -> str:
            raise ToolError("The paint is on the floor.\nMop it up.")

        @self.server.tool(task=quick)
        async def close() -> str:
            raise ProtocolError("The studio is closed.", code=1001)

        @self.server.tool
        async def look() -> str:
            return "seen"


@contextmanager
def studio_of(era: Any) -> Iterator[Studio]:
    """A studio that is served."""
    studio = Studio(era)
    with serve(studio.server) as live:
        studio.url = f"http://127.0.0.1:{live.port}/mcp"
        yield studio
