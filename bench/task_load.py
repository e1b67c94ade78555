"""Tasks: how often the state of one is read, and what many weigh that wait for an answer."""

from __future__ import annotations

from contextlib import ExitStack

from http_load import CONNECTIONS, check, post, throughput, wrk
from measures import ROUNDS, SECONDS, Floor, Measure, interleave
from processes import free_port, http_server
from redis_load import redis_server
from subjects import BARE, FASTMCP, WEFT, Subject, napping, tuned, with_redis
from wire import TASKS, call_of, headers_of, status_lua

__all__ = ["measure_tasks"]

LEAST = 8000  # of Weft, calls/s


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
    ]
