"""The server that tools/soak.py calls thousands of times; `census` tells what its process holds."""

import sys
from pathlib import Path

from weft import Context, Limits, Server, ToolError

sys.path.insert(0, str(Path(__file__).parent))  # it may be started from anywhere
from census import held

limits = Limits(replay_bytes=int(sys.argv[1])) if len(sys.argv) > 1 else Limits()
server = Server("soak", limits=limits)


@server.tool
def echo(text: str) -> str:
    return text


@server.tool
def weigh(grams: list[int]) -> dict[str, int]:
    return {"total": sum(grams), "pieces": len(grams)}


@server.tool
def fail(reason: str) -> str:
    raise ToolError(reason)


@server.tool
async def steps(ctx: Context, count: int = 1) -> str:
    for step in range(count):
        await ctx.report_progress(step + 1, count)
        await ctx.info(f"step {step}")
    return "done"


@server.resource("note://{name}")
def note(name: str) -> str:
    return f"note of {name}"


@server.prompt
def ask(topic: str) -> str:
    return f"Tell me about {topic}."


@server.tool
async def census() -> dict[str, int]:
    return held()
