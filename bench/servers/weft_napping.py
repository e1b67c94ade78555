"""Weft: a tool whose calls become tasks that work for an hour, and one that asks a question in its task."""

from __future__ import annotations

import argparse
import asyncio

from weft import Context, Limits, Server

MANY = 1_000_000  # so that no limit of one caller is met: all tasks are of one address
limits = Limits(tasks=MANY, tasks_per_peer=MANY, tasks_bytes=2**40)
server = Server("bench", version="1.0", limits=limits)


@server.tool(task="required")
async def nap() -> str:
    """Work for an hour."""
    await asyncio.sleep(3600)
    return "done"


@server.tool(task="required")
async def ask(ctx: Context) -> str:
    """Wait for an answer."""
    schema = {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}
    answer = await ctx.elicit("Which seat?", schema)
    return str(answer.action)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    server.run("http", host="127.0.0.1", port=parser.parse_args().http, log_level="warning")
