"""The server of `tests/fleet/test_chaos_tasks.py`: a tool whose task has many steps, each with an effect."""

import asyncio
import os
import random
import time

from support.remote import shared_notes
from weft import Context, Limits, Server, Task

# All clients of the test have one address, so half of the places are theirs.
server = Server("chaos tasks", limits=Limits(tasks_at_once=16, listen_streams_per_peer=1000, sessions_per_peer=1000))
notes = shared_notes()
MIN_SECONDS, MAX_SECONDS = 0.04, 0.12  # of a step; they differ, so that tasks do not go on in step with each other


@server.tool(task=Task("required", poll=0.5))
async def render(ctx: Context, scene: str, frames: int) -> list[str]:
    """Paint the frames of a scene, one after another."""
    painted: list[str] = []
    for number in range(frames):
        painted.append(await ctx.once(f"frame {number}", paint, scene, number))
        await ctx.report_progress(number + 1, frames, f"painting {scene}")
    return painted


async def paint(scene: str, number: int) -> str:
    """Paint one frame: a row in a file. The rest of the function could not be shorter."""
    await asyncio.sleep(random.uniform(MIN_SECONDS, MAX_SECONDS))
    notes.add("frames", f"{scene} {number} {os.getpid()} {time.time()}")
    return f"{scene} {number}"
