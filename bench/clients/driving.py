"""What the clients under measurement have in common: calls of `add(2, 3)`, by so many tasks, for so long."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

__all__ = ["main"]

WARM_UP = 100  # calls before the clock starts: negotiation, the list of tools, the connections
SERVERS = Path(__file__).resolve().parent.parent / "servers"

Call = Callable[[], Awaitable[Any]]


async def caller(call: Call, until: float) -> int:
    """Call again and again; how often that went well."""
    calls = 0
    while time.perf_counter() < until:
        if await call() != 5:
            raise RuntimeError("A call was answered wrongly; there is no point in measuring that.")
        calls += 1
    return calls


async def measure(call: Call, tasks: int, seconds: float) -> float:
    """Calls per second."""
    await asyncio.gather(*(caller(call, 0) for _ in range(tasks)))
    for _ in range(max(1, WARM_UP // tasks)):
        await asyncio.gather(*(call() for _ in range(tasks)))
    started = time.perf_counter()
    calls = await asyncio.gather(*(caller(call, started + seconds) for _ in range(tasks)))
    return sum(calls) / (time.perf_counter() - started)


async def run(open_client: Callable[[Any], AbstractAsyncContextManager[Call]], arguments: list[str]) -> None:
    target, tasks, seconds = arguments
    if target == "here":
        sys.path.insert(0, str(SERVERS))
    async with open_client(target) as call:
        if tasks == "0":  # only the first answer is wanted, and the time is taken outside
            assert await call() == 5
            return
        print(json.dumps({"per_second": await measure(call, int(tasks), float(seconds))}))


def main(open_client: Callable[[Any], AbstractAsyncContextManager[Call]]) -> None:
    """`script.py URL|here TASKS SECONDS`: prints the calls per second as JSON."""
    asyncio.run(run(open_client, sys.argv[1:]))
