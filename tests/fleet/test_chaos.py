"""Workers and Redis are killed under load from both eras, and no client notices more than it has to."""

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from chaos import (
    Changer,
    Chaos,
    Client,
    GetListener,
    Killed,
    Listener,
    ListenListener,
    SessionAsker,
    SessionCaller,
    StatelessAsker,
    StatelessCaller,
    Streamer,
)

from support.deployments import Deployment, NginxDeployment, WorkersDeployment, behind_nginx, with_workers
from support.notes import Notes
from support.redis_servers import until

SERVER = Path(__file__).parent / "servers" / "chaos.py"
KINDS: dict[type[Client], int] = {
    StatelessCaller: 3,
    StatelessAsker: 3,
    SessionCaller: 3,
    SessionAsker: 3,
    Streamer: 4,
    GetListener: 2,
    ListenListener: 2,
    Changer: 1,
}
WITH_SESSIONS = sum(KINDS[kind] for kind in (SessionCaller, SessionAsker, Streamer, GetListener))  # clients
MOST_SECONDS = 90  # of chaos; these tests run alone, see the Makefile
ROWS = [
    "workers killed", "sessions opened", "sessions told gone (404)", "stateless calls", "stateless calls in rounds",
    "session calls", "session calls that ask", "streamed calls", "questions answered", "changes", "events",
    "progress events", "streams resumed", "streams cut and resumed", "GET streams resumed",
    "listen streams that broke", "calls of killed workers", "503 with Retry-After", "retries",
    "states for one use that were used", "charges", "charges repeated after a kill", "changes of killed workers",
    "changes not told", "events lost or told twice", "answers to the wrong asker", "unexplained errors",
]  # fmt: skip


async def go_on(chaos: Chaos, harm: Callable[[], Awaitable[None]]) -> list[Client]:
    """Let clients of all kinds go on while harm is done."""
    clients = [kind(chaos, f"{kind.__name__} {number}") for kind, count in KINDS.items() for number in range(count)]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    try:
        async with asyncio.timeout(MOST_SECONDS):
            await harm()
            chaos.enter("end")
            chaos.is_over = True
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return clients


async def kill_workers(chaos: Chaos, deployment: NginxDeployment, count: int, seconds: float) -> None:
    """Kill workers one after another. Each is replaced at its port."""
    order = random.Random(13)
    for number in range(count):
        until = time.monotonic() + seconds * order.uniform(0.8, 1.2)
        worker = deployment.workers[number % len(deployment.workers)]
        chaos.killed.append(Killed(worker.pid, time.monotonic()))
        worker.kill()
        chaos.note("workers killed")
        await asyncio.to_thread(worker.start)
        await asyncio.sleep(max(until - time.monotonic(), 0))


async def kill_children(chaos: Chaos, deployment: WorkersDeployment, count: int, seconds: float) -> None:
    """Kill the oldest worker, again and again. The parent starts another one."""
    for _ in range(count):
        oldest = deployment.worker_ids[0]
        chaos.killed.append(Killed(oldest, time.monotonic()))
        os.kill(oldest, signal.SIGKILL)
        chaos.note("workers killed")
        await asyncio.sleep(seconds)


def judge_charges(chaos: Chaos, notes: Notes) -> None:
    """A charge is made once. It may be repeated only if its process was killed before it could say so."""
    made: dict[str, list[int]] = defaultdict(list)
    for line in notes.of("charges"):
        order, process = line.split()
        made[order].append(int(process))
    killed = {one.process for one in chaos.killed}
    chaos.note("charges", len(made))
    for order, processes in made.items():
        if len(processes) > 1:
            if killed.issuperset(processes[:-1]):
                chaos.note("charges repeated after a kill", len(processes) - 1)
            else:
                chaos.fail("charges", f"{order} by {processes}")
    signed = [line.split()[0] for line in notes.of("signatures")]
    if len(signed) != len(set(signed)):
        chaos.fail("signatures", "a state for one use was used twice")


def judge_changes(chaos: Chaos, clients: list[Client]) -> None:
    """Every listener has heard of every change, unless its worker was killed before it could tell the others."""
    listeners = [client for client in clients if isinstance(client, Listener)]
    checked = 0
    for change in chaos.changes:
        for listener in listeners:
            if not listener.must_hear(change):
                continue
            checked += 1
            if not listener.has_heard(change):
                if any(one.process == change.process and one.at < change.confirmed + 0.5 for one in chaos.killed):
                    chaos.note("changes of killed workers")
                else:
                    chaos.note("changes not told")
                    chaos.fail(listener.name, f"was not told of {change}")
    assert checked > len(chaos.changes) / 2


# What must have happened, or the test has shown nothing.
HAPPENED = [
    "workers killed", "streams resumed", "streams cut and resumed", "GET streams resumed", "listen streams that broke",
    "calls of killed workers", "questions answered", "charges", "changes",
]  # fmt: skip


def report(chaos: Chaos, deployment: Deployment, seconds: float, show: Callable[[str, str], None]) -> None:
    """Show the table, and check that no error is unexplained."""
    show("table", f"{chaos.table(ROWS)}\n\nin {seconds:.0f} s")
    assert chaos.errors == [], "\n".join([*chaos.errors[:20], f"({len(chaos.errors)} in all)"])
    assert deployment.faults == []
    assert [what for what in HAPPENED if chaos.total(what) == 0] == []


async def test_workers_and_redis_die_and_no_client_notices_more_than_it_has_to(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    with behind_nginx(SERVER, tmp_path / "chaos") as deployment:
        chaos, started = Chaos(deployment.port), time.monotonic()

        async def harm() -> None:
            await asyncio.sleep(2)
            chaos.enter("workers killed")
            await kill_workers(chaos, deployment, 6, 2.5)
            chaos.enter("workers back")
            await asyncio.sleep(13)  # until calls of those that were killed last are answered
            chaos.enter("Redis stopped")
            await asyncio.to_thread(deployment.redis.stop)
            await asyncio.sleep(5)
            await asyncio.to_thread(deployment.redis.start)
            chaos.enter("Redis back")
            await asyncio.sleep(6)
            chaos.enter("Redis emptied")
            chaos.may_lose_sessions = True
            await asyncio.to_thread(deployment.redis.kill)
            await asyncio.to_thread(lambda: deployment.redis.start(empty=True))
            await asyncio.sleep(8)
            await asyncio.to_thread(
                until,
                lambda: chaos.total("sessions told gone (404)") == WITH_SESSIONS,
                "all are told that their session is gone",
                MOST_SECONDS,
            )

        clients = await go_on(chaos, harm)
        judge_charges(chaos, deployment.server.log)
        judge_changes(chaos, clients)
        report(chaos, deployment, time.monotonic() - started, record_property)
    assert chaos.tally["stateless calls", "Redis stopped"] > 20  # they need no backend
    assert chaos.total("sessions told gone (404)") == WITH_SESSIONS


async def test_workers_of_one_machine_die_and_no_client_notices_more_than_it_has_to(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    with with_workers(SERVER, tmp_path / "chaos") as deployment:
        chaos, started = Chaos(deployment.port), time.monotonic()

        async def harm() -> None:
            await asyncio.sleep(2)
            chaos.enter("workers killed")
            await kill_children(chaos, deployment, 4, 2.5)
            chaos.enter("calm again")
            await asyncio.sleep(9)

        clients = await go_on(chaos, harm)
        assert len(deployment.worker_ids) == 3
        judge_charges(chaos, deployment.server.log)
        judge_changes(chaos, clients)
        report(chaos, deployment, time.monotonic() - started, record_property)
    assert chaos.total("sessions opened") == WITH_SESSIONS
