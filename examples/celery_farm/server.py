"""A server whose tool hands its work to a render farm: jobs of Celery, in jobs.py.

weft run server.py --http     serves it at http://127.0.0.1:8000/mcp
"""

from typing import Annotated

from jobs import REDIS_URL, Film, render
from pydantic import Field

from weft import Context, Server, Task

server = Server("cinema", version="1.0", backend=REDIS_URL)


@server.tool(task=Task("required", ttl=6 * 3600))  # "required", because the job asks: only tasks can be asked then
async def render_film(ctx: Context, film: str, frames: Annotated[int, Field(ge=1, le=240)] = 24) -> Film:
    """Render a film on the farm."""
    return ctx.task.external(render.delay, film, frames, message="waiting for the farm")
