"""A studio, whose tools run as tasks. It uses public names of Weft only.

    weft run studio.py [--http --port PORT]

The servers beside this one (studio_*) have the same tools, as far as their SDKs can do it. No tool of the studio takes
time by itself: `render` and `dry` wait for `go_on`, which the client calls.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from weft import Context, ProtocolError, Server, Task, ToolError
from weft.types import TextContent

server = Server("studio", version="1.0")
signals: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(0))  # by picture: when to go on
stopped: list[str] = []  # pictures whose tasks were cancelled while their handler ran


@dataclass
class Print:
    photo: str
    size: str


@dataclass
class Wood:
    wood: Literal["oak", "pine"]


@dataclass
class Height:
    height: int


@dataclass
class Wall:
    wall: str


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


@server.tool(task=Task(ttl=600, poll=0.05, immediate_response="The photo is still wet."))
async def develop(photo: str) -> Print:
    """Develop a photo at once."""
    return Print(photo, "10x15")


@server.tool(task=Task(poll=0.05))
async def render(ctx: Context, picture: str) -> list[str]:
    """Paint two layers. Each waits for a signal."""
    layers: list[str] = []
    for number in (1, 2):
        await ctx.report_progress(number, 2, "painting")
        await wait_for_signal(picture)
        layers.append(f"{picture} {number}")
    return layers


@server.tool(task=Task(poll=600))
async def dry(ctx: Context, picture: str) -> str:
    """Dry a picture until the signal. A client that polls as it is told to sees the end after ten minutes."""
    await ctx.report_progress(1, 2, "drying")
    await wait_for_signal(picture)
    await ctx.report_progress(2, 2, "cooling")
    await wait_for_signal(picture)
    return f"{picture} is dry."


@server.tool(task=Task(poll=0.05))
async def frame(ctx: Context, picture: str) -> str:
    """Frame a picture. The client is asked for the wood."""
    answer = await ctx.elicit(f"Which wood for {picture}?", Wood)
    return f"{picture} in {answer.value.wood}" if answer.action == "accept" else f"{picture} without a frame"


@server.tool(task=Task(poll=0.05))
async def hang(ctx: Context, picture: str) -> str:
    """Hang a picture. The client is asked two questions at the same time."""
    height, wall = await asyncio.gather(ctx.elicit("At which height?", Height), ctx.elicit("On which wall?", Wall))
    if height.action != "accept" or wall.action != "accept":
        return f"{picture} stays in its box"
    return f"{picture} at {height.value.height} cm on the {wall.value.wall} wall"


@server.tool(task=Task(poll=0.05))
async def name_it(ctx: Context, picture: str) -> str:
    """Let the model of the client name a picture."""
    said = await ctx.sample(f"Name {picture}.", max_tokens=20)
    return said.content.text if isinstance(said.content, TextContent) else "It has no name."


@server.tool(task=Task(poll=0.05))
async def spill(colour: str) -> str:
    """Fail, with a text for the model."""
    raise ToolError(f"There is no {colour} any more.")


@server.tool(task=Task(poll=0.05))
async def tear(paper: str) -> str:
    """Fail with a JSON-RPC error."""
    raise ProtocolError(f"The {paper} is torn.", code=1001, data={"paper": paper})


@server.tool(task=Task("required", poll=0.05))
async def engrave(text: str) -> str:
    """Engrave a text. This tool runs only as a task."""
    return f"{text}, in copper"


@server.tool(task=Task(after=60))
async def sketch(model: str) -> str:
    """Draw a model, in less time than it takes to become a task."""
    return f"{model}, in pencil"


@server.tool(task=Task(after=0.3, poll=0.05))
async def restore(ctx: Context, picture: str) -> str:
    """Restore a picture. The client is asked while this is a call, and then it takes until it is a task."""
    answer = await ctx.elicit(f"Which wood for {picture}?", Wood)
    while ctx.task.id is None:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.02)
    return f"{picture} in {answer.value.wood}" if answer.action == "accept" else picture
