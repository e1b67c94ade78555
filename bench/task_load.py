"""Tasks: how often the state of one is read, and what many weigh that wait for an answer."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

from http_load import CONNECTIONS, check, post, throughput, wrk
from measures import ROUNDS, SECONDS, Ceiling, Floor, Measure, interleave
from processes import free_port, here, http_server, resident_mib
from redis_load import redis_server
from subjects import BARE, FASTMCP, WEFT, Subject, napping, tuned, with_redis
from wire import TASKS, call_of, headers_of, request, status_lua

__all__ = ["measure_tasks"]

LEAST = 8000  # of Weft, calls/s
WAITING = 10_000  # tasks that wait for an answer
WARM_UP = 500  # such tasks before the first weighing: what a server makes once is not the price of a task
MOST_KIB = 4  # of a task that waits


def start(port: int) -> str:
    """Start a task that works for an hour. Its id."""
    answer = post(port, call_of("nap", {}, TASKS), headers_of("tools/call", "nap"))
    result = answer.get("result", {})
    if result.get("resultType") != "task":
        raise RuntimeError(f"The call was answered {answer}, not with a task.")
    return str(result["taskId"])


def reads(port: int, id: str, seconds: float) -> float:
    """How often per second the state of a task was answered rightly."""
    facts = wrk(port, "status", status_lua(id), seconds)
    if facts["completed"] < facts["requests"]:
        raise RuntimeError(f"{facts['requests'] - facts['completed']:g} of {facts['requests']:g} answers were wrong.")
    return facts["completed"] / facts["seconds"]


class Asker:
    """Starts tasks over one connection that stays, and reads their states."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes, headers: dict[str, str]) -> Any:
        self._connection.request("POST", "/mcp", body, headers)
        return json.loads(self._connection.getresponse().read())["result"]

    def start(self, count: int) -> str:
        """Start tasks that ask; the id of the last one, which waits for its answer."""
        last = ""
        for _ in range(count):
            last = str(self._post(call_of("ask", {}, TASKS), headers_of("tools/call", "ask"))["taskId"])
        body = request(1, "tasks/get", {"taskId": last}, TASKS)
        while (state := self._post(body, headers_of("tasks/get", last)))["status"] != "input_required":
            if state["status"] != "working":
                raise RuntimeError(f"A task that asks has ended: {state}")
            time.sleep(0.05)
        time.sleep(0.5)  # what was only needed to start them is gone
        return last


def measure_waiting() -> list[Measure]:
    """What a task weighs that waits for an answer: in the process, or in Redis and in the process beside it."""
    own: list[float] = []
    beside: list[float] = []
    shared: list[float] = []
    for _ in range(min(ROUNDS, 3)):
        with ExitStack() as stack:
            redis = stack.enter_context(redis_server())
            for subject, grown in (napping(WEFT), own), (with_redis(napping(WEFT), redis.url), beside):
                port = free_port()
                command = subject.command("--http", str(port))
                process = stack.enter_context(http_server(command, port, subject.environment))
                with here(load=True), closing(Asker(port)) as asker:
                    asker.start(WARM_UP)
                    before, before_in_redis = resident_mib(process.pid), redis.used_kib()
                    asker.start(WAITING)
                    grown.append((resident_mib(process.pid) - before) * 1024 / WAITING)
                    if grown is beside:
                        shared.append((redis.used_kib() - before_in_redis) / WAITING)
    title = f"memory of a task that waits for an answer, of {WAITING:,}"
    ceiling = [Ceiling(MOST_KIB, "KiB")]
    return [
        Measure(f"{title}, in the process", "KiB", {WEFT.name: own}, ceiling, digits=2),
        Measure(f"{title}, in Redis", "KiB", {WEFT.name: shared}, ceiling, digits=2),
        Measure(f"{title}, in the process beside Redis", "KiB", {WEFT.name: beside}, ceiling, digits=2),
    ]


def measure_tasks() -> list[Measure]:
    """How often the state of a task is read, beside calls of a server that does nothing else."""
    subjects = [napping(WEFT), napping(tuned(FASTMCP)), BARE]
    ports = {subject.name: free_port() for subject in subjects}
    ids: dict[str, str] = {}
    with ExitStack() as stack:
        shared = with_redis(napping(WEFT), stack.enter_context(redis_server()).url)
        subjects.append(shared)
        ports[shared.name] = free_port()
        for subject in subjects:
            port = ports[subject.name]
            stack.enter_context(http_server(subject.command("--http", str(port)), port, subject.environment))
            if subject is BARE:
                check(port, subject.name)
            else:
                ids[subject.name] = start(port)

        def sample(subject: Subject) -> float:
            port = ports[subject.name]
            if subject is BARE:
                return throughput(port, SECONDS)["per_second"]
            return reads(port, ids[subject.name], SECONDS)

        for subject in subjects:
            sample(subject)  # warm
        samples = interleave(subjects, ROUNDS, sample)
    title = f"HTTP tasks/get of a task that works, {CONNECTIONS} connections"
    everything = Measure(title, "calls/s", samples)
    peers = {tuned(FASTMCP).name: FASTMCP.name, BARE.name: BARE.name}
    return [
        everything.narrowed(f"{title}, peers tuned", {WEFT.name: WEFT.name, **peers}, [Floor(LEAST, "calls/s")]),
        everything.narrowed(f"{title}, Weft with Redis, peers in memory", {shared.name: WEFT.name, **peers}),
        *measure_waiting(),
    ]
