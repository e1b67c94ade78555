"""The studio on FastMCP 4.x with fastmcp-tasks: tasks of the stateless era, in memory.

    python studio_fastmcp.py stdio
    python studio_fastmcp.py http PORT

A handler asks by returning its questions, and runs again with the answers. Its tasks notify nobody, and clients of the
session era have none.
"""

import asyncio
import sys
import warnings
from collections import defaultdict
from datetime import timedelta
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

warnings.simplefilter("ignore")
server = FastMCP("studio", version="1.0")
server.add_extension(TasksExtension())
signals: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))
stopped: list[str] = []
POLL = timedelta(milliseconds=50)
OPTIONAL = TaskConfig(mode="optional", poll_interval=POLL)


class Print(BaseModel):
    photo: str
    size: str


def ask(ctx: Context, **questions: dict[str, Any]) -> Any:
    """Return the answers, or None and what the tool must return to ask."""
    answers = ctx.input_responses
    if answers is not None:
        return {name: answers[name].content if answers[name].action == "accept" else None for name in questions}, None
    requests = {
        name: ElicitRequest(
            params=ElicitRequestFormParams(
                message=question["message"],
                requested_schema={"type": "object", "properties": {name: question["schema"]}, "required": [name]},
            )
        )
        for name, question in questions.items()
    }
    return None, InputRequiredResult(input_requests=requests)


async def wait_for_signal(picture: str) -> None:
    try:
        await signals[picture].acquire()
    except asyncio.CancelledError:
        stopped.append(picture)
        raise


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers. This tool has no tasks."""
    return a + b


@server.tool
async def go_on(picture: str) -> str:
    """Let the work on a picture go on to its next step."""
    signals[picture].release()
    return "It goes on."


@server.tool
def count_stopped() -> int:
    """Return how many tasks were cancelled while their handler ran."""
    return len(stopped)


@server.tool(task=OPTIONAL)
async def develop(photo: str) -> Print:
    """Develop a photo at once."""
    return Print(photo=photo, size="10x15")


@server.tool(task=OPTIONAL)
async def render(ctx: Context, picture: str) -> list[str]:
    """Paint two layers. Each waits for a signal."""
    layers: list[str] = []
    for number in (1, 2):
        await ctx.report_progress(number, 2, f"painting ({number}/2)")
        await wait_for_signal(picture)
        layers.append(f"{picture} {number}")
    return layers


@server.tool(task=OPTIONAL, output_schema=None)
async def frame(ctx: Context, picture: str) -> str | InputRequiredResult:
    """Frame a picture. The client is asked for the wood."""
    wood = {"message": f"Which wood for {picture}?", "schema": {"type": "string", "enum": ["oak", "pine"]}}
    answers, questions = ask(ctx, wood=wood)
    if questions is not None:
        return questions
    return f"{picture} in {answers['wood']['wood']}" if answers["wood"] else f"{picture} without a frame"


@server.tool(task=OPTIONAL, output_schema=None)
async def hang(ctx: Context, picture: str) -> str | InputRequiredResult:
    """Hang a picture. The client is asked two questions at the same time."""
    height = {"message": "At which height?", "schema": {"type": "integer"}}
    wall = {"message": "On which wall?", "schema": {"type": "string"}}
    answers, questions = ask(ctx, height=height, wall=wall)
    if questions is not None:
        return questions
    return f"{picture} at {answers['height']['height']} cm on the {answers['wall']['wall']} wall"


@server.tool(task=OPTIONAL)
async def spill(colour: str) -> str:
    """Fail, with a text for the model."""
    raise ToolError(f"There is no {colour} any more.")


@server.tool(task=OPTIONAL)
async def tear(paper: str) -> str:
    """Fail with a JSON-RPC error."""
    raise MCPError(code=1001, message=f"The {paper} is torn.", data={"paper": paper})


@server.tool(task=TaskConfig(mode="required", poll_interval=POLL))
async def engrave(text: str) -> str:
    """Engrave a text. This tool runs only as a task."""
    return f"{text}, in copper"


if __name__ == "__main__":
    if sys.argv[1] == "http":
        server.run("http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False, log_level="ERROR")
    else:
        server.run("stdio", show_banner=False, log_level="ERROR")
