"""Workers are killed every second until 200 tasks are done: no task is lost, and no step is repeated without reason."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support.deployments import NginxDeployment, ServerProcess, behind_nginx
from support.notes import Notes
from weft import Client
from weft.client import TaskHandle
from weft.eras.base import EraName

SERVER = Path(__file__).parent / "servers" / "chaos_tasks.py"
WORKERS = 8
TASKS = 200
FRAMES = 20  # steps of each task
CLIENTS = 10  # of each era
MOST_SECONDS = 150  # until all tasks are done
RECORD_SECONDS = 1.0  # a worker on a busy machine has stored the result of a step by then


class Painted(NamedTuple):
    """One effect of a step: which one, by which process, and when (Unix time)."""

    scene: str
    frame: int
    process: int
    at: float


@dataclass
class Tally:
    """What happened to the workers and to the clients."""

    killed: dict[int, float] = field(default_factory=dict[int, float])  # Unix time, by process
    completed: int = 0
    messages: int = 0  # status messages that clients were shown
    errors: list[str] = field(default_factory=list[str])


async def kill_workers(deployment: NginxDeployment, tally: Tally) -> None:
    """Kill a worker every second, any of those that serve. Each is replaced at its port."""
    order = random.Random(14)
    starting: set[asyncio.Task[None]] = set()
    serving = list(deployment.workers)

    async def replace(worker: ServerProcess) -> None:
        await asyncio.to_thread(worker.start)
        serving.append(worker)

    try:
        while True:
            began = time.monotonic()
            worker = serving.pop(order.randrange(len(serving)))
            tally.killed[worker.pid] = time.time()
            worker.kill()
            starting.add(asyncio.create_task(replace(worker)))
            await asyncio.sleep(max(began + 1 - time.monotonic(), 0))
    finally:
        await asyncio.gather(*starting)


async def watch(handle: TaskHandle, scene: str, tally: Tally) -> None:
    """Wait for the result of one task, as a user of the client does."""

    def show(_: object) -> None:
        tally.messages += 1

    try:
        result = await handle.result(progress=show)
        assert json.loads(result.text) == [f"{scene} {frame}" for frame in range(FRAMES)], result
        tally.completed += 1
    except Exception as error:
        tally.errors.append(f"{scene}: {error!r}")


def judge(painted: Sequence[Painted], tally: Tally) -> dict[str, int]:
    """Count the effects. A second one is explained only if the worker of the first died before its record.

    That can only be the last effect of this worker in the task: it has stored all earlier ones before the next step.
    """
    by_step: dict[tuple[str, int], list[Painted]] = {}
    last: dict[tuple[str, int], Painted] = {}  # effect of each process in each task
    for one in painted:
        by_step.setdefault((one.scene, one.frame), []).append(one)
        last[one.scene, one.process] = one
    blamed: Counter[int] = Counter()
    for step, effects in by_step.items():
        for one in effects[:-1]:
            died = tally.killed.get(one.process)
            is_last = last[one.scene, one.process] is one
            if died is None or not is_last or not 0 <= died - one.at < RECORD_SECONDS:
                tally.errors.append(f"{step} happened twice: {effects}, died {died}")
            blamed[one.process] += 1
    return {
        "workers killed": len(tally.killed),
        "kills while a worker ran steps": len(tally.killed.keys() & {one.process for one in painted}),
        "tasks completed": tally.completed,
        "steps": len(by_step),
        "steps that happened twice: killed between effect and record": blamed.total(),
        "most of them by one kill": max(blamed.values(), default=0),
        "tasks that ran at several workers": sum(
            len({one.process for one in painted if one.scene == scene}) > 1 for scene in {one.scene for one in painted}
        ),
        "status messages shown": tally.messages,
        "unexplained errors": len(tally.errors),
    }


def painted_of(notes: Notes) -> list[Painted]:
    rows = (line.split() for line in notes.of("frames"))
    return [Painted(scene, int(frame), int(process), float(at)) for scene, frame, process, at in rows]


async def test_workers_die_every_second_and_each_step_of_each_task_happens_once(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    with behind_nginx(SERVER, tmp_path / "chaos", count=WORKERS) as deployment:
        tally = Tally()
        eras: tuple[EraName, ...] = ("stateless", "session")
        clients = [Client(deployment.url, eras=[era]) for era in eras for _ in range(CLIENTS)]
        for client in clients:
            await client.connect()
        handles: dict[str, TaskHandle] = {}
        for number in range(TASKS):
            client = clients[number % len(clients)]
            scene = f"scene{number}"
            handles[scene] = await client.start_tool("render", {"scene": scene, "frames": FRAMES})
        began = time.monotonic()
        killing = asyncio.create_task(kill_workers(deployment, tally))
        watching = [asyncio.create_task(watch(handle, scene, tally)) for scene, handle in handles.items()]
        _, left = await asyncio.wait(watching, timeout=MOST_SECONDS)
        killing.cancel()
        await asyncio.wait([killing])
        seconds = time.monotonic() - began
        for client in clients:
            await client.close()
        rows = judge(painted_of(deployment.server.log), tally)
        table = "\n".join(f"{what:62} {count:6,}" for what, count in rows.items())
        record_property("table", f"{table}\n\nin {seconds:.0f} s")
        assert tally.errors == [], "\n".join(tally.errors[:20])
        assert not left, f"{len(left)} tasks are not done after {MOST_SECONDS} s\n{table}"
        assert deployment.faults == []
    assert rows["tasks completed"] == TASKS
    assert rows["steps"] == TASKS * FRAMES
    assert rows["steps that happened twice: killed between effect and record"] <= rows["workers killed"]
    assert rows["kills while a worker ran steps"] >= 5
