"""Calls a server many thousand times, and looks at what both sides hold: `make soak`.

Per era and transport, 20,000 mixed calls (at most 60 s; fails where the first 5,000 or half of the rest are not made):
memory of client and server stays within 10 % of what it was after the first 5,000, tasks and descriptors are the same.
What a session keeps for clients that ask again is bounded there by 1 MB (`REPLAYED`), which is full by the first look:
what grows after it is a leak.

Then 240,000 streamed calls in one session (at most 200 s; half of them at least): the server's memory stays within
`replay_bytes` and 32 MB of where it began.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from census import held, memory_of

from weft import Client, Limits

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
SERVER = [str(Path(sys.executable).parent / "weft"), "run", str(HERE / "soak_server.py"), "--log-level", "error"]
CALLS, FIRST, SECONDS, AT_ONCE = 20_000, 5_000, 60.0, 8
STREAMED, STREAMED_SECONDS, CONNECTIONS = 240_000, 200.0, 8
GROWTH, SPARE_KIB = 0.10, 32 * 1024
REPLAYED = 1_000_000  # bytes, of mixed calls


@contextlib.contextmanager
def serving(replay_bytes: int = Limits().replay_bytes) -> Iterator[tuple[str, int]]:
    """A server process over HTTP: its URL and its pid."""
    command = [*SERVER, "--http", "--port", "0", "--", str(replay_bytes)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if " at http" in line)
        yield next(word for word in line.split() if word.startswith("http")).rstrip(".,"), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


# --- mixed calls


async def one_call(client: Client, number: int) -> None:
    """One of seven calls, and a look at its answer."""
    match number % 7:
        case 0:
            assert (await client.call_tool("echo", {"text": f"t{number}"})).text == f"t{number}"
        case 1:
            found = (await client.call_tool("weigh", {"grams": [number, 1]})).structured_content
            assert found == {"total": number + 1, "pieces": 2}
        case 2:
            assert (await client.call_tool("fail", {"reason": "no tea"})).is_error
        case 3:
            assert (await client.call_tool("steps", {"count": 2}, progress=lambda *_: None)).text == "done"
        case 4:
            assert str(number) in str(await client.read_resource(f"note://{number}"))
        case 5:
            await client.get_prompt("ask", {"topic": str(number)})
        case _:
            assert await client.list_tools()


async def look(client: Client) -> dict[str, dict[str, int]]:
    """What both sides hold, when nothing is under way."""
    await asyncio.sleep(0.5)
    server = (await client.call_tool("census")).structured_content
    return {"client": held(), "server": server}


async def call_many(client: Client, numbers: Iterator[int], until: float) -> int:
    """Make calls, some at once, while there are numbers and time; returns how many were made."""
    made = 0

    async def one_after_another() -> None:
        nonlocal made
        for number in numbers:
            await one_call(client, number)
            made += 1
            if time.monotonic() > until:
                return

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return made


async def mixed(mode: Any, target: Any) -> list[str]:
    """Soak one era on one transport; returns what was wrong."""
    began = time.monotonic()
    async with Client(target, eras=[mode], log_level="info", on_log=lambda _: None) as client:
        made = await call_many(client, iter(range(FIRST)), began + SECONDS / 2)
        first = await look(client)
        more = await call_many(client, iter(range(FIRST, CALLS)), began + SECONDS)
        last = await look(client)
    seconds = time.monotonic() - began
    say(f"  {made + more} calls in {seconds:.0f} s; after the first {FIRST}: {first}; at the end: {last}")
    few = too_few("first calls", made, FIRST) + too_few("calls after the first", more, (CALLS - FIRST) // 2)
    return few + compare(first, last)


def too_few(what: str, made: int, least: int) -> list[str]:
    """What is wrong with calls of which so few were made that nothing could be seen."""
    return [] if made >= least else [f"only {made} {what} in the time, and {least} are the least that shows something"]


def compare(first: dict[str, dict[str, int]], last: dict[str, dict[str, int]]) -> list[str]:
    """What grew."""
    wrong = []
    for side in ("client", "server"):
        before, after = first[side], last[side]
        if after["kib"] > before["kib"] * (1 + GROWTH):
            wrong.append(f"memory of the {side}: {before['kib']} to {after['kib']} KiB")
        wrong += [
            f"{what} of the {side}: {before[what]} to {after[what]}"
            for what in ("tasks", "descriptors")
            if after[what] != before[what]
        ]
    return wrong


# --- streamed calls of one session


def handshake(url: str) -> str:
    """Open a session; returns its id."""

    def send(body: dict[str, Any], session: dict[str, str]) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} | session
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            answer.read()
            return answer.headers

    info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
    found = send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info}, {})["Mcp-Session-Id"]
    send({"jsonrpc": "2.0", "method": "notifications/initialized"}, {"Mcp-Session-Id": found})
    level = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "info"}}
    send(level, {"Mcp-Session-Id": found})
    return found


async def stream_calls(url: str, session: str, numbers: Iterator[int], until: float) -> int:
    """Calls with progress and a log message each, one after the other on one connection; returns how many."""
    host, _, path = url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    head = (
        f"POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n"
        "MCP-Protocol-Version: 2025-11-25\r\nContent-Length: "
    ).encode()
    made = 0
    for number in numbers:
        params = {"name": "steps", "arguments": {"count": 1}, "_meta": {"progressToken": number}}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
        writer.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"0\r\n\r\n")
        assert b'"done"' in answer, answer
        made += 1
        if time.monotonic() > until:
            break
    writer.close()
    return made


async def streamed(count: int) -> list[str]:
    """Soak the memory that is kept for those who ask again; returns what was wrong."""
    with serving() as (url, pid):
        session = handshake(url)
        numbers = iter(range(10, count + 10))
        began = time.monotonic()
        await stream_calls(url, session, iter(range(10**6, 10**6 + 200)), began + 10)
        start = memory_of(pid)
        highest = start
        tasks = [
            asyncio.create_task(stream_calls(url, session, numbers, began + STREAMED_SECONDS))
            for _ in range(CONNECTIONS)
        ]
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=1)
            highest = max(highest, memory_of(pid))
        made = sum([await task for task in tasks])
    room = Limits().replay_bytes // 1024 + SPARE_KIB
    say(f"  {made} streamed calls in {time.monotonic() - began:.0f} s; memory of the server: {start} to {highest} KiB")
    grown = [] if highest - start <= room else [f"memory of the server grew by {highest - start} KiB, over {room}"]
    return too_few("streamed calls", made, count // 2) + grown


# --- all of it


def say(text: str) -> None:
    print(text, flush=True)


async def soak(arguments: argparse.Namespace) -> list[str]:
    """Run what was asked for; returns what was wrong."""
    wrong: list[str] = []

    async def one(name: str, work: Callable[[], Awaitable[list[str]]]) -> None:
        say(f"{name}:")
        found = await work()
        for each in found:
            say(f"  WRONG: {each}")
        wrong.extend(f"{name}: {each}" for each in found)

    if arguments.one:
        era, transport = arguments.one
        if transport == "stdio":
            await one(f"{era} era, stdio", lambda: mixed(era, SERVER))
        else:
            with serving(REPLAYED) as (url, _):
                await one(f"{era} era, HTTP", lambda: mixed(era, url))
    if arguments.streamed:
        await one("streamed calls of one session", lambda: streamed(arguments.streamed))
    return wrong


def main() -> int:
    """Soak each combination in a process of its own; the exit code is 1 when something grew."""
    parser = argparse.ArgumentParser(description="Look at memory, tasks and descriptors over thousands of calls.")
    parser.add_argument("--one", nargs=2, metavar=("ERA", "TRANSPORT"), help="stateless or session; http or stdio")
    parser.add_argument("--streamed", type=int, default=0, metavar="CALLS")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.one or arguments.streamed:
        return int(bool(asyncio.run(soak(arguments))))
    runs = [["--one", era, transport] for era in ("stateless", "session") for transport in ("http", "stdio")]
    runs.append(["--streamed", str(STREAMED)])
    failed = [run for run in runs if subprocess.run([sys.executable, __file__, *run], check=False).returncode]
    say("soak: nothing grew" if not failed else f"soak: FAILED: {'; '.join(' '.join(run) for run in failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
