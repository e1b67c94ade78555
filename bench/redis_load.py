"""A Redis for the servers under measurement; and what takes two of them: a question, and sessions that lie idle."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import redis as redis_py
from listen_load import connect, http, send
from processes import free_port, here, http_server, resident_mib
from session_load import WARM_UP, client
from subjects import Subject, with_redis
from wire import INITIALIZED, SESSION_HEADER, SESSION_HEADERS, handshake, session_answer, session_booking

__all__ = [
    "KEPT",
    "Kept",
    "Redis",
    "asking_milliseconds",
    "measure_kept",
    "redis_server",
    "redis_version",
    "two_workers",
]

KEPT = 10_000  # sessions
CHECKED = 20  # each session with a number that this divides is called at the end


class Redis:
    """A running Redis: its URL, and what it says of itself."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        self._client = redis_py.Redis(port=port)

    def used_kib(self) -> float:
        return self._client.info("memory")["used_memory"] / 1024

    def sessions(self) -> int:
        return sum(1 for _ in self._client.scan_iter("*:session/*", count=1000))

    def close(self) -> None:
        self._client.close()


@contextmanager
def redis_server() -> Iterator[Redis]:
    """An empty Redis on the load generator's core, that writes nothing to disk."""
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    with http_server(command, port, load=True):
        redis = Redis(port)
        try:
            yield redis
        finally:
            redis.close()


def redis_version() -> str:
    """The version of the installed Redis."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else said.strip()


@dataclass(frozen=True)
class Worker:
    """One of several processes that serve the same."""

    port: int
    pid: int


@contextmanager
def two_workers(subject: Subject) -> Iterator[tuple[Redis, Worker, Worker]]:
    """Two processes on ports of their own that share a Redis, as behind a load balancer."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        shared = with_redis(subject, redis.url)
        workers: list[Worker] = []
        for _ in range(2):
            port = free_port()
            process = stack.enter_context(http_server(shared.command("--http", str(port)), port, shared.environment))
            workers.append(Worker(port, process.pid))
        yield redis, workers[0], workers[1]


# A call in a session that asks: the question comes in the stream of the call, the answer in a request of its own.


async def booked(calling: int, answering: int, times: int) -> float:
    caller, other = await connect(calling), await connect(answering)
    opening = http(calling, SESSION_HEADERS, handshake(1, {"elicitation": {}}))
    answer = await send(caller, opening, b"serverInfo")
    found = re.search(rb"(?i)\r\nmcp-session-id: (\S+)", answer)
    assert found is not None, answer
    headers = {**SESSION_HEADERS, SESSION_HEADER: found[1].decode()}
    await send(caller, http(calling, headers, INITIALIZED), b"202")
    taken: list[float] = []
    for id in range(times):
        started = time.perf_counter()
        asked = await send(caller, http(calling, headers, session_booking(id)), b"elicitation/create")
        question = re.search(rb'"id":\s*"([^"]+)"', asked)
        assert question is not None, asked
        result = caller.expect(b"LX38 12A")
        await send(other, http(answering, headers, session_answer(question[1].decode())), b"202")
        await result
        taken.append(1000 * (time.perf_counter() - started))
    for one in (caller, other):
        one.abort()
    return median(taken)


def asking_milliseconds(calling: int, answering: int, times: int) -> float:
    """Milliseconds of a call that asks one question, which is answered at the server `answering`; the median."""
    with here(load=True):
        return asyncio.run(booked(calling, answering, times))


# Sessions that lie idle.


@dataclass(frozen=True)
class Kept:
    """What a session weighs, in KiB: in Redis, at the worker that opened it, and at one that never heard of it."""

    in_redis: float
    at_its_worker: float
    elsewhere: float


def measure_kept(subject: Subject) -> Kept:
    """Opens sessions at one of two workers, and weighs them."""
    with (
        two_workers(subject) as (redis, one, other),
        here(load=True),
        client(one.port) as here_,
        client(other.port) as there,
    ):
        for _ in range(WARM_UP):
            session = here_.open()
            here_.check(session)
            there.check(session)
        before = redis.used_kib(), resident_mib(one.pid), resident_mib(other.pid)
        sessions = [here_.open() for _ in range(KEPT)]
        time.sleep(0.5)  # what was only needed to open them is gone
        in_redis = (redis.used_kib() - before[0]) / KEPT
        at_its_worker, elsewhere = (
            (resident_mib(pid) - megabytes) * 1024 / KEPT
            for pid, megabytes in ((one.pid, before[1]), (other.pid, before[2]))
        )
        if (found := redis.sessions()) != KEPT + WARM_UP:
            raise RuntimeError(f"Of {KEPT + WARM_UP} sessions, {found} are in Redis.")
        for session in sessions[::CHECKED]:  # the other worker finds them
            there.check(session)
        return Kept(in_redis, at_its_worker, elsewhere)
