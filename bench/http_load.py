"""Load over HTTP: one checked request, then wrk."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from processes import pinned
from wire import HEADERS, LIST_HEADERS, asking_lua, call, call_lua, is_right, listing

__all__ = ["CONNECTIONS", "bookings", "check", "list_milliseconds", "throughput", "wrk"]

CONNECTIONS = 32
WORK = Path(__file__).resolve().parent.parent / ".cache" / "bench"


def post(port: int, body: bytes, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def check(port: int, name: str, headers: dict[str, str] = HEADERS) -> None:
    """Refuses to measure a server whose answer is wrong."""
    answer = post(port, call(1), headers)
    if not is_right(answer):
        raise RuntimeError(f"{name} answers {answer}; there is no point in measuring that.")


def wrk(port: int, name: str, script: str, seconds: float, *, connections: int = CONNECTIONS) -> dict[str, float]:
    """What wrk counted with this script."""
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / f"{name}.lua"
    path.write_text(script)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(path)]
    done = subprocess.run(
        pinned([*command, f"http://127.0.0.1:{port}/mcp"], load=True), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def throughput(port: int, seconds: float, headers: dict[str, str] = HEADERS) -> dict[str, float]:
    """Calls per second that were answered rightly, by their ids and what they say; the latencies, and what failed."""
    facts = wrk(port, "call", call_lua(headers), seconds)
    wrong = facts["requests"] - facts["refused"] - facts["completed"]
    if wrong > 0:
        raise RuntimeError(f"{wrong:g} of {facts['requests']:g} answers had another id or another text.")
    facts["per_second"] = facts["completed"] / facts["seconds"]
    return facts


def bookings(port: int, seconds: float) -> dict[str, float]:
    """Calls per second that asked one question, were answered, and came to their right end."""
    facts = wrk(port, "book", asking_lua(), seconds)
    if facts["completed"] < 0.4 * facts["requests"]:
        raise RuntimeError(f"Of {facts['requests']} requests only {facts['completed']} ended a booking: expected half.")
    facts["per_second"] = facts["completed"] / facts["seconds"]
    return facts


def list_milliseconds(port: int, times: int) -> tuple[float, float]:
    """How long the first tools/list takes, and the median of the others."""
    taken: list[float] = []
    for number in range(times):
        started = time.perf_counter()
        answer = post(port, listing(number), LIST_HEADERS)
        taken.append((time.perf_counter() - started) * 1000)
        if "result" not in answer:
            raise RuntimeError(f"tools/list was answered {answer}.")
    first, *others = taken
    return first, sorted(others)[len(others) // 2]
