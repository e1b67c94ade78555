"""A small server to deploy. Replace it with yours: the other files in this folder stay the same.

Its tools show what a fleet of workers shares. `worker` says which worker serves the call. `order` asks a question, and
another worker may get the answer. `count` sends progress, so its stream can be resumed at another worker. `announce`
notifies the clients of all workers.
"""

import asyncio
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime

from weft import Context, Limits, Server

# When a worker is told to stop, it accepts connections for 5 more seconds, in which load balancers choose others. Then
# running calls have 20 seconds to finish. kubernetes/deployment.yaml and compose.yaml wait for longer than both.
# Kubernetes needs the 5 seconds. nginx does not: if a worker refuses a connection, it asks the next one.
server = Server("teashop", version="1.0", limits=Limits(drain_notice_seconds=5, drain_seconds=20))


@dataclass
class Amount:
    grams: int


@server.tool
def worker() -> str:
    """Say which worker serves this call."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@server.tool
async def order(ctx: Context, tea: str) -> str:
    """Order some tea."""
    amount = await ctx.elicit(f"How much {tea}?", Amount)
    return f"{amount.value.grams} g of {tea}" if amount.action == "accept" else "Nothing was ordered."


@server.tool
async def count(ctx: Context, seconds: int = 10) -> str:
    """Count seconds, with progress."""
    for second in range(seconds):
        await ctx.report_progress(second, seconds)
        await asyncio.sleep(1)
    return f"{seconds} seconds are over."


@server.resource("shop://clock")
def clock() -> str:
    """The time in the shop."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@server.tool
def announce() -> str:
    """Notify all clients that subscribed to the clock."""
    server.notify_resource_updated("shop://clock")
    return "Announced."
