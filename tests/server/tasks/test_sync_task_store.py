"""The task store for programs that do not await: the same methods, waiting; processes that fork; how it ends."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.sync
from support.redis_servers import RedisServer, redis_server
from weft import Client, Context, Server, TaskEnded, UsageError
from weft.backends.memory import MemoryBackend
from weft.server.tasks.records import new_task_id


@dataclass
class Colour:
    name: str


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


def run(folder: Path, url: str, code: str) -> list[str]:
    """Run a program that has a task store, and return the lines that it prints. It must not warn."""
    path = folder / "program.py"
    head = f"import os\nfrom weft.sync import TaskStore\ntasks = TaskStore({url!r})\nid = {new_task_id()!r}\n"
    path.write_text(head + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_every_method_is_there_with_its_parameters() -> None:
    for name, member in vars(weft.TaskStore).items():
        if name.startswith("_"):
            continue
        mine = inspect.getattr_static(weft.sync.TaskStore, name)
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(member).parameters), name
        assert not inspect.iscoroutinefunction(mine), name
        assert mine.__doc__, name
    assert inspect.signature(weft.sync.TaskStore) == inspect.signature(weft.TaskStore)


async def test_a_program_asks_reports_and_completes(redis: RedisServer) -> None:
    handed: asyncio.Queue[str] = asyncio.Queue()
    heard: list[str] = []
    server = Server("studio", backend=redis.url)

    @server.tool(task="required")
    async def paint(ctx: Context) -> dict[str, int]:
        async def hand_over(id: str) -> None:
            await handed.put(id)

        return ctx.task.external(hand_over)

    def elicit(question: Any) -> dict[str, str]:
        heard.append(question.message)
        return {"name": "red"}

    def work(id: str) -> None:
        with weft.sync.TaskStore(redis.url) as tasks:
            assert tasks.tell(id, "mixing")
            for _ in range(2):  # the second time as a program that was restarted
                answer = tasks.ask(id, "Which colour?", Colour)
                assert (answer.action, answer.value) == ("accept", Colour("red"))
            assert tasks.progress(id, 1, 2, "painting")
            state = tasks.status(id)
            assert state is not None
            assert (state.status, state.message) == ("working", "painting (1/2)")
            with pytest.raises(UsageError, match="does not fit the output schema of the tool 'paint'"):
                tasks.complete(id, {"layers": "two"})
            assert tasks.complete(id, {"layers": 2})
            assert not tasks.complete(id, {"layers": 3})
            assert not tasks.fail(id, "too late")
            assert not tasks.progress(id, 2)
            with pytest.raises(TaskEnded):
                tasks.ask(id, "Which colour?", Colour)

    async with Client(server, elicit=elicit) as client:
        handle = await client.start_tool("paint")
        working = asyncio.create_task(asyncio.to_thread(work, await handed.get()))
        assert (await handle.result()).structured == {"layers": 2}
        await working
    assert heard == ["Which colour?"]


def test_an_answer_is_not_waited_for_longer_than_wanted(redis: RedisServer) -> None:
    """The timeout is for the whole wait. A task that does not exist is told before."""
    tasks = weft.sync.TaskStore(redis.url)
    with pytest.raises(TaskEnded):
        tasks.ask(new_task_id(), "Which colour?", Colour, timeout=30)
    with pytest.raises(UsageError, match="This is not the id of a task"):
        tasks.tell("nothing", "mixing")
    tasks.close()
    with pytest.raises(UsageError, match=r"The task store is closed, or its process was forked; make a new one\."):
        tasks.tell(new_task_id(), "mixing")


def test_the_memory_of_a_server_is_refused() -> None:
    """It belongs to the event loop of the server, and may not be used in another thread."""
    for backend in (MemoryBackend(), "memory:"):
        with pytest.raises(UsageError, match="cannot use the memory of a server"):
            weft.sync.TaskStore(backend)


def test_nothing_stays_behind(tmp_path: Path, redis: RedisServer) -> None:
    """Neither a warning nor a hanging process, though the program does not close the store."""
    assert run(tmp_path, redis.url, "print(tasks.status(id), tasks.progress(id, 1))") == ["None False"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_store_that_was_made_before_a_fork_works_after_it(tmp_path: Path, redis: RedisServer) -> None:
    """So a worker of Celery may have it in a module. A store that was used before works in the parent only."""
    code = """
    import warnings
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # by Python 3.12 and up
    for use in range(2):
        if os.fork() == 0:
            try:
                print(tasks.status(id), flush=True)
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        print(tasks.status(id), flush=True)
    """
    told = "The task store is closed, or its process was forked; make a new one."
    assert run(tmp_path, redis.url, code) == ["None", "None", told, "None"]
