"""Load over HTTP: one checked request, then wrk."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from processes import pinned
from wire import HEADERS, LIST_HEADERS, call, is_right, listing, lua

__all__ = ["check", "list_milliseconds", "throughput"]

CONNECTIONS = 32
WORK = Path(__file__).resolve().parent.parent / ".cache" / "bench"


def post(port: int, body: bytes, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def check(port: int, name: str) -> None:
    """Refuses to measure a server whose answer is wrong."""
    answer = post(port, call(1), HEADERS)
    if not is_right(answer):
        raise RuntimeError(f"{name} answers {answer}; there is no point in measuring that.")


def throughput(port: int, seconds: float) -> dict[str, float]:
    """Requests per second that were answered with 2xx, the latencies, and what went wrong."""
    WORK.mkdir(parents=True, exist_ok=True)
    script = WORK / "call.lua"
    script.write_text(lua())
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
    done = subprocess.run(
        pinned([*command, f"http://127.0.0.1:{port}/mcp"], load=True), capture_output=True, text=True, check=True
    )
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    facts["per_second"] = (facts["requests"] - facts["refused"]) / facts["seconds"]
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
