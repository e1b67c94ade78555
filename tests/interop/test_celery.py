"""A server whose tool hands its work to Celery: examples/celery_farm, with real workers and a real Redis.

The server and the jobs are those of the example. Only `paint` is another one (servers/farm.py): it takes no time, but
waits at the frame that the test has not permitted yet. So jobs can be cancelled, killed and left alone in the middle.
"""

import asyncio
import os
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import pytest
from processes import ROOT, python_of

from support.deployments import ServerProcess
from support.ports import find_port
from support.redis_servers import RedisServer, redis_server, until
from weft import Client, RemoteError, ToolResult

EXAMPLE = ROOT / "examples" / "celery_farm"
PATIENCE = 30.0  # seconds
ERAS = ("stateless", "session")
Era: TypeAlias = Literal["stateless", "session"]


class Worker:
    """A worker of Celery, which has two processes for jobs."""

    def __init__(self, python: Path, folder: Path, env: dict[str, str]) -> None:
        self._command = [str(python), "-m", "celery", "--app", "farm", "worker", "--concurrency", "2", "-l", "INFO"]
        self._env = env
        self._log = folder / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **env: str) -> None:
        """Start the worker, and wait until it takes jobs."""
        self._log.write_bytes(b"")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**self._env, **env}, start_new_session=True,
            )  # fmt: skip
        until(lambda: " ready." in self._log.read_text(), "the worker is ready")

    def end(self, sign: signal.Signals) -> None:
        """Send a signal to the worker, and wait until it has ended. SIGKILL ends its children, too: a power failure."""
        if self._process is not None:
            if sign == signal.SIGKILL:
                os.killpg(self._process.pid, sign)
            else:
                self._process.send_signal(sign)
            self._process.wait(PATIENCE)
            self._process = None


class Farm:
    """The server, the worker, and the folder with the frames of the films."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        python, port = python_of("celery"), find_port()
        self.frames = folder / "frames"
        self.frames.mkdir()
        self.url = f"http://127.0.0.1:{port}/mcp"
        paths = (ROOT / "src", EXAMPLE, ROOT / "tests" / "interop" / "servers")
        env = {
            **os.environ,
            "REDIS_URL": redis.url,
            "FRAMES": str(self.frames),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "WEFT_STATE_KEY": secrets.token_urlsafe(32),
        }
        command = [str(python), "-m", "weft", "run", str(EXAMPLE / "server.py"), "--http", "--port", str(port)]
        self.server = ServerProcess(command, port, folder / "server.log", env)
        self.worker = Worker(python, folder, env)

    def permit(self, film: str, frames: int) -> None:
        """Let jobs paint the first frames of a film."""
        (self.frames / f"{film}.permits").write_text(str(frames))

    def noted(self, id: str, what: str) -> list[str]:
        """The processes that have begun or ended jobs of a task, or the frames that were painted for it."""
        log = self.frames / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [line[2] for line in lines if line[:2] == [what, id]]

    def ids(self) -> set[str]:
        """The tasks whose jobs have begun."""
        return {line.split()[1] for line in (self.frames / "log").read_text().splitlines()}

    async def until_noted(self, id: str, what: str, count: int = 1) -> list[str]:
        return await wait_for(lambda: len(found := self.noted(id, what)) >= count and found, f"{count} {what} of {id}")


async def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition` returns something true, and return that."""
    return await asyncio.to_thread(until, condition, what, PATIENCE)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("celery")
    with redis_server(folder / "redis") as redis:
        running = Farm(redis, folder)
        try:
            running.server.start()
            running.worker.start()
            yield running
        finally:
            running.worker.end(signal.SIGKILL)
            running.server.kill()


class Audience:
    """A client of the server, and what it was asked and told. It answers questions from when `may_answer` is set."""

    def __init__(self, farm: Farm, era: str, answer: Any = MappingProxyType({"style": "grey"})) -> None:
        self.asked: list[str] = []
        self.told: list[str | None] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._answer = answer
        self.client = Client(farm.url, eras=(era,), elicit=self._elicit)

    async def _elicit(self, question: Any) -> Any:
        self.asked.append(question.message)
        await self.may_answer.wait()
        return self._answer

    async def call(self, film: str, frames: int) -> ToolResult:
        arguments = {"film": film, "frames": frames}
        return await self.client.call_tool("render_film", arguments, progress=lambda one: self.told.append(one.message))

    async def until_told(self, message: str) -> None:
        await wait_for(lambda: message in self.told, f"the client is told {message!r}, beside {self.told}")

    async def start(self, film: str, frames: int) -> tuple[str, "asyncio.Task[ToolResult]"]:
        """Start a task, and return its id, and what waits for its result."""
        handle = await self.client.start_tool("render_film", {"film": film, "frames": frames})
        assert handle.id is not None
        return handle.id, asyncio.create_task(handle.result())


def assert_rendered(farm: Farm, id: str, result: ToolResult, film: str, frames: int) -> None:
    """The result is that of the job, and each frame was painted once, as the user has answered."""
    folder = farm.frames / id
    assert (result.is_error, result.structured) == (False, {"folder": str(folder), "frames": frames})
    assert Counter(farm.noted(id, "paint")) == {str(number): 1 for number in range(1, frames + 1)}
    for number in range(1, frames + 1):
        assert (folder / f"{number}.txt").read_text() == f"frame {number} of {film}, in grey"


@pytest.mark.parametrize("era", ERAS)
async def test_a_job_asks_reports_and_completes(farm: Farm, era: Era) -> None:
    film = f"attic-{era}"
    farm.permit(film, 1)
    audience = Audience(farm, era)
    async with audience.client:
        calling = asyncio.create_task(audience.call(film, 3))
        await audience.until_told("painting (1/3)")
        farm.permit(film, 2)
        await audience.until_told("painting (2/3)")
        farm.permit(film, 3)
        result = await calling
    assert audience.asked == [f"Which style for {film}?"]
    assert_rendered(farm, Path(result.structured["folder"]).name, result, film, 3)


@pytest.mark.parametrize("era", ERAS)
async def test_a_job_fails(farm: Farm, era: Era) -> None:
    """A ToolError is for the model. Of other exceptions, the client learns only the class."""
    audience, refusing = Audience(farm, era), Audience(farm, era, "decline")
    async with audience.client, refusing.client:
        for one, film, told in (
            (audience, "torn", "The film is torn."),
            (audience, "torn-badly", "The work failed: OSError."),
            (refusing, "plain", "Without a style, the film cannot be rendered."),
        ):
            result = await one.call(film, 2)
            assert (result.is_error, result.text) == (True, told)


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_reaches_a_job_that_works(farm: Farm, era: Era) -> None:
    """It learns it with its next report, and paints no further frame."""
    film = f"cellar-{era}"
    farm.permit(film, 1)
    audience = Audience(farm, era)
    async with audience.client:
        handle = await audience.client.start_tool("render_film", {"film": film, "frames": 240})
        assert handle.id is not None
        async with asyncio.timeout(PATIENCE), aclosing(aiter(handle)) as states:
            async for state in states:
                if state.message == "painting (1/240)":
                    break
        await handle.cancel()
        assert (await handle.status()).status == "cancelled"
        farm.permit(film, 240)
        await farm.until_noted(handle.id, "end")
    assert farm.noted(handle.id, "paint") == ["1", "2"]


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_reaches_a_job_that_waits_for_an_answer(farm: Farm, era: Era) -> None:
    audience = Audience(farm, era)
    audience.may_answer.clear()
    async with audience.client:
        calling = asyncio.create_task(audience.call("hall", 2))
        await wait_for(lambda: audience.asked, "the client is asked")
        [id] = [id for id in farm.ids() if not farm.noted(id, "end")]
        calling.cancel()
        await farm.until_noted(id, "end")
    assert farm.noted(id, "paint") == []


async def test_a_killed_process_is_replaced_while_it_asks_and_while_it_works(farm: Farm) -> None:
    """The job runs again. The user is asked once, no frame is painted twice, and the task is completed once."""
    farm.permit("tower", 1)
    audience = Audience(farm, "stateless")
    audience.may_answer.clear()
    async with audience.client:
        id, result = await audience.start("tower", 3)
        await wait_for(lambda: audience.asked, "the client is asked")
        for run, permits in ((1, 1), (2, 3)):
            process = int((await farm.until_noted(id, "begin", run))[-1])
            if run == 2:
                await farm.until_noted(id, "paint")
            os.kill(process, signal.SIGKILL)
            await farm.until_noted(id, "begin", run + 1)
            audience.may_answer.set()
            farm.permit("tower", permits)
        rendered = await result
    assert audience.asked == ["Which style for tower?"]
    assert_rendered(farm, id, rendered, "tower", 3)
    begun = farm.noted(id, "begin")
    assert (len(begun), len(set(begun))) == (3, 3)
    assert await farm.until_noted(id, "end") == begun[2:]


async def test_a_worker_that_is_restarted_leaves_its_jobs_in_the_queue(farm: Farm) -> None:
    """SIGQUIT does not wait for jobs that run: they are in the queue again at once."""
    farm.permit("porch", 1)
    audience = Audience(farm, "stateless")
    async with audience.client:
        id, result = await audience.start("porch", 2)
        await farm.until_noted(id, "paint")
        await asyncio.to_thread(farm.worker.end, signal.SIGQUIT)
        await asyncio.to_thread(farm.worker.start)
        await farm.until_noted(id, "begin", 2)
        farm.permit("porch", 2)
        rendered = await result
    assert audience.asked == ["Which style for porch?"]
    assert_rendered(farm, id, rendered, "porch", 2)


async def test_jobs_of_a_worker_that_was_killed_come_back(farm: Farm) -> None:
    """After the visibility timeout, which is so short here that a job that still runs would come back as well."""
    farm.permit("stable", 1)
    audience = Audience(farm, "stateless")
    async with audience.client:
        id, result = await audience.start("stable", 2)
        await farm.until_noted(id, "paint")
        await asyncio.to_thread(farm.worker.end, signal.SIGKILL)
        farm.permit("stable", 2)
        await asyncio.to_thread(partial(farm.worker.start, VISIBILITY="1"))
        rendered = await result
        await asyncio.to_thread(farm.worker.end, signal.SIGTERM)
        await asyncio.to_thread(farm.worker.start)
    assert audience.asked == ["Which style for stable?"]
    assert_rendered(farm, id, rendered, "stable", 2)


@pytest.mark.parametrize(("era", "way"), [("stateless", "kill"), ("session", "stop_gently")])
async def test_the_server_ends_while_the_farm_works(farm: Farm, era: Era, way: str) -> None:
    """The job does not notice it. The client reaches the next server, and gets the result.

    In a session whose server was killed, it learns that only when the lease of the server is over. So one is stopped.
    """
    film = f"barn-{era}"
    farm.permit(film, 1)
    audience = Audience(farm, era)
    async with audience.client:
        id, result = await audience.start(film, 3)
        await farm.until_noted(id, "paint")
        await asyncio.to_thread(getattr(farm.server, way))
        farm.permit(film, 3)
        await farm.until_noted(id, "end")
        await asyncio.to_thread(farm.server.start)
        rendered = await result
    assert audience.asked == [f"Which style for {film}?"]
    assert_rendered(farm, id, rendered, film, 3)


async def test_the_server_is_stopped_while_a_job_waits_for_an_answer(farm: Farm) -> None:
    """The task is taken up by another process of the client, at the next server: it has the question."""
    audience, later = Audience(farm, "stateless"), Audience(farm, "stateless")
    audience.may_answer.clear()
    async with audience.client:
        id, result = await audience.start("gate", 1)
        await wait_for(lambda: audience.asked, "the client is asked")
        result.cancel()
        await asyncio.to_thread(farm.server.stop)
    await asyncio.to_thread(farm.server.start)
    async with later.client:
        rendered = await later.client.task(id).result()
    assert audience.asked == later.asked == ["Which style for gate?"]
    assert_rendered(farm, id, rendered, "gate", 1)


async def test_jobs_wait_for_a_worker(farm: Farm) -> None:
    """Until then, the client is told what the handler has said."""
    audience = Audience(farm, "session")
    await asyncio.to_thread(farm.worker.end, signal.SIGTERM)
    async with audience.client:
        handle = await audience.client.start_tool("render_film", {"film": "shed", "frames": 1})
        assert handle.id is not None
        async with asyncio.timeout(PATIENCE):
            while (state := await handle.status()).message is None:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        assert (state.status, state.message) == ("working", "waiting for the farm")
        await asyncio.to_thread(farm.worker.start)
        assert_rendered(farm, handle.id, await handle.result(), "shed", 1)


async def test_a_client_without_tasks_is_refused(farm: Farm) -> None:
    """The tool needs a task, because its job asks."""
    async with Client(farm.url, tasks=False) as client:
        with pytest.raises(RemoteError) as refused:
            await client.call_tool("render_film", {"film": "shop"})
    assert refused.value.code == -32021
