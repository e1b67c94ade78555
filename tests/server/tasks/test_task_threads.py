"""Plain functions as tasks: what they wait for finds a thread."""

import threading

from support.task_clients import serving
from weft import Context, Limits, Server


async def test_tasks_that_take_all_threads_and_need_one_more_are_done() -> None:
    server, both = Server("crowded", limits=Limits(task_threads=2)), threading.Barrier(2)

    @server.tool(task="optional")
    def work(ctx: Context) -> str:
        both.wait(30)
        return "".join(ctx.wait(ctx.once(f"step {number}", str, number)) for number in range(3))

    async with serving(server) as client:
        ids = [await client.start("work") for _ in range(2)]
        for id in ids:
            assert (await client.until(id, seconds=20))["result"]["content"][0]["text"] == "012"
