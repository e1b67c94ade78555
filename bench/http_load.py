"""Load over HTTP: one checked request, then wrk."""

from __future__ import annotations

import json
import resource
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measures import interleave
from processes import free_port, http_server, pinned
from subjects import Subject
from wire import HEADERS, LIST_HEADERS, asking_lua, call, call_lua, is_right, listing

__all__ = ["CONNECTIONS", "bookings", "check", "list_milliseconds", "measure_pair", "throughput", "wrk"]

CONNECTIONS = 32
LOOKS = 6  # at each of two servers that are compared, for a second
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


def wrk(
    port: int, name: str, script: str, seconds: float, *, connections: int = CONNECTIONS, is_free: bool = False
) -> dict[str, float]:
    """What wrk counted with this script, and the processor time it took; on its core, or on all if `is_free`."""
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / f"{name}.lua"
    path.write_text(script)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(path)]
    command.append(f"http://127.0.0.1:{port}/mcp")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command if is_free else pinned(command, load=True), capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    facts["load_seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return facts


def throughput(
    port: int, seconds: float, headers: dict[str, str] = HEADERS, *, is_free: bool = False
) -> dict[str, float]:
    """Calls per second that were answered rightly, by their ids and what they say; the latencies, and what failed."""
    facts = wrk(port, "call", call_lua(headers), seconds, is_free=is_free)
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


def measure_pair(
    one: Subject, other: Subject, *, listed: Subject | None = None
) -> tuple[dict[str, float], tuple[float, float]]:
    """Calls per second of two servers; and how long the list of one takes, where that is asked for.

    The two differ by a few percent, and other work on the machine slows a second of either by more than that. It never
    makes one quicker, so the best of several seconds counts. And of two processes of the same program one is a few
    percent quicker, as chance has laid out its memory: so this is done with several pairs of them.
    """
    ports = {one.name: free_port(), other.name: free_port()}
    with ExitStack() as stack:
        for subject in (one, other):
            port = ports[subject.name]
            stack.enter_context(http_server(subject.command("--http", str(port)), port, subject.environment))
            check(port, subject.name)
            throughput(port, 1)  # warm
        times = (0.0, 0.0) if listed is None else list_milliseconds(ports[listed.name], 21)
        found = interleave([one, other], LOOKS, lambda subject: throughput(ports[subject.name], 1)["per_second"])
    return {name: max(values) for name, values in found.items()}, times
