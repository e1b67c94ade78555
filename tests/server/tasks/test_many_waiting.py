"""A task that waits for an answer is an entry in the backend: no coroutine, no timer, and less than 4 KiB."""

import asyncio
import gc
import tracemalloc
from typing import Any

from support.raw_sessions import Reply, eventually
from support.task_clients import accept, serving
from weft import Context, Limits, Server

MANY = 10_000
WEIGHED = 1000  # of them; to trace memory takes much time
MOST_BYTES = 4096  # of one that waits
AT_ONCE = 50  # calls


async def test_ten_thousand_that_wait_cost_no_coroutine_and_less_than_4_kib_each() -> None:
    server = Server("studio", limits=Limits(tasks=100 * MANY, tasks_per_peer=2 * MANY, tasks_bytes=2**40))

    @server.tool(task="required")
    async def ask(ctx: Context, scene: str) -> str:
        answer = await ctx.elicit(f"Which colour has {scene}?", Reply)
        return answer.value.value

    async with serving(server) as client:

        async def start(scenes: list[str]) -> list[str]:
            return [await client.start("ask", {"scene": scene}) for scene in scenes]

        async def start_many(count: int) -> list[str]:
            scenes = [f"scene {number}" for number in range(count)]
            started = await asyncio.gather(*(start(scenes[first::AT_ONCE]) for first in range(AT_ONCE)))
            await eventually(lambda: len(server.engine.tasks.runner) == 0, seconds=120)
            client.peer.exchanges.clear()
            return [id for ids in started for id in ids]

        await start_many(AT_ONCE)
        tasks, timers = asyncio.all_tasks(), count_timers()
        ids = await start_many(MANY - WEIGHED)
        gc.collect()
        tracemalloc.start()
        try:
            ids += await start_many(WEIGHED)
            gc.collect()
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert asyncio.all_tasks() == tasks
        assert count_timers() <= timers + 5  # other parts of the server have some
        assert size / WEIGHED < MOST_BYTES
        assert {(await client.get(id))["status"] for id in ids[:: MANY // 20]} == {"input_required"}

        [key] = await client.asked(ids[0])
        await client.update(ids[0], {key: accept(value="blue")})
        assert (await client.until(ids[0]))["result"]["content"][0]["text"] == "blue"


def count_timers() -> int:
    """Return the number of timers of this event loop."""
    loop: Any = asyncio.get_running_loop()
    return len(loop._scheduled)
