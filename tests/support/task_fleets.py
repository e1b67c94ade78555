"""Workers that share a backend and run tasks, and a client of any of them.

fleet = TaskFleet(build)                 # build(worker) adds the tools of a worker
one, two = await fleet.add(2)
id = await one.start("render", scene="attic")
await fleet.kill(one)                    # as SIGKILL does: from now on it changes nothing
await two.until(id, "completed")
await fleet.close()
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from support.wire import Response, ask
from weft import Limits, Server
from weft.backends import Backend
from weft.backends.memory import MemoryBackend
from weft.backends.scoped import ScopedBackend
from weft.server.runtime.fleet import LEASE_SECONDS
from weft.server.tasks.runner import TaskRunner
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY
from weft.types.tasks import TASKS_EXTENSION

__all__ = ["FINAL", "Tap", "TaskFleet", "TaskWorker", "accept", "entries"]

FINAL = ("completed", "failed", "cancelled")
ABLE = {"elicitation": {"form": {}, "url": {}}, "sampling": {}}
NAME = "studio"

Hook = Callable[[str], Awaitable[None]]  # is called with an operation, such as "store.swap"


def accept(**content: Any) -> dict[str, Any]:
    """The answer of a user who fills in a form."""
    return {"action": "accept", "content": content}


class _Part:
    def __init__(self, tap: "Tap", name: str, inner: Any) -> None:
        self._tap, self._name, self._inner = tap, name, inner

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)

        async def call(*args: Any, **options: Any) -> Any:
            tap, what = self._tap, f"{self._name}.{name}"
            await tap.before(what)
            result = await function(*args, **options)
            await tap.after(what)
            return result

        return call


class Tap:
    """The connection of one worker to the backend. A test can look at each operation, let it fail, or hold it."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.is_local = inner.is_local
        self.is_cut = False  # whether nothing that this worker does has an effect any more
        self.failure: Exception | None = None  # raised by every operation
        self.on_before: Hook | None = None
        self.on_after: Hook | None = None
        self.store, self.log, self.sets, self.bus = (
            _Part(self, name, getattr(inner, name)) for name in ("store", "log", "sets", "bus")
        )

    async def before(self, what: str) -> None:
        await asyncio.sleep(0)
        if self.on_before is not None:
            await self.on_before(what)
        await self._check()

    async def after(self, what: str) -> None:
        await self._check()
        if self.on_after is not None:
            await self.on_after(what)
        await asyncio.sleep(0)
        await self._check()

    async def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.is_cut:
            await asyncio.Event().wait()

    async def start(self) -> None:
        await self.inner.start()

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        await self.inner.close()


class TaskWorker:
    """One worker, and a client of it that declares the extension."""

    def __init__(self, tap: Tap, limits: Limits, **options: Any) -> None:
        self.tap = tap
        self.server = Server(NAME, backend=tap, limits=limits, state_keys=["only for these tests " * 2], **options)
        self.app: Any = None  # made with the first request, when all tools are there

    @property
    def runner(self) -> TaskRunner:
        return self.server.engine.tasks.runner

    @property
    def is_dead(self) -> bool:
        return self.tap.is_cut

    async def send(self, method: str, params: Mapping[str, Any], **scope: Any) -> Response:
        self.app = self.app or self.server.asgi()
        meta = {CLIENT_CAPABILITIES_KEY: {**ABLE, "extensions": {TASKS_EXTENSION: {}}}}
        return await ask(self.app, method, params, meta=meta, scope=scope)

    async def call(self, tool: str, **arguments: Any) -> Response:
        return await self.send("tools/call", {"name": tool, "arguments": arguments})

    async def start(self, tool: str, **arguments: Any) -> str:
        """Call a tool. The id of the task."""
        return (await self.call(tool, **arguments)).result["taskId"]

    async def get(self, id: str) -> Any:
        return (await self.send("tasks/get", {"taskId": id})).result

    async def cancel(self, id: str) -> Response:
        return await self.send("tasks/cancel", {"taskId": id})

    async def update(self, id: str, answers: Mapping[str, Any]) -> Response:
        return await self.send("tasks/update", {"taskId": id, "inputResponses": answers})

    async def until(self, id: str, *statuses: str, seconds: float = 30) -> Any:
        """The state of a task when it has one of these statuses (default: a final one)."""
        async with asyncio.timeout(seconds):
            while (state := await self.get(id))["status"] not in (statuses or FINAL):
                assert state["status"] not in FINAL, state
                await asyncio.sleep(0.002)
        return state

    async def answer(self, id: str, **content: Any) -> None:
        """Answer the question of a task as soon as it has one."""
        asked = (await self.until(id, "input_required"))["inputRequests"]
        response = await self.update(id, dict.fromkeys(asked, accept(**content)))
        assert response.status == 200, response.json

    async def text(self, id: str) -> str:
        """The text that a completed task has returned."""
        state = await self.until(id)
        assert state["status"] == "completed", state
        return state["result"]["content"][0]["text"]


class TaskFleet:
    """Workers that share a backend: one in memory, unless `backend` makes one for each worker."""

    def __init__(
        self,
        build: Callable[[TaskWorker], Any],
        *,
        backend: Callable[[], Backend] | None = None,
        limits: Limits | None = None,
        **options: Any,
    ) -> None:
        self.memory = MemoryBackend()
        self.workers: list[TaskWorker] = []
        self._build = build
        self._backend: Callable[[], Backend] = backend or (lambda: self.memory)
        self._limits = limits or Limits(drain_seconds=0.2)
        self._options = options

    async def add(self, count: int) -> list[TaskWorker]:
        """Start further workers."""
        for _ in range(count):
            worker = TaskWorker(Tap(self._backend()), self._limits, **self._options)
            self._build(worker)
            self.workers.append(worker)
            await self.begin(worker)
        return self.workers[-count:]

    async def begin(self, worker: TaskWorker) -> None:
        """Start a worker, or start it again. It takes over work of dead workers at once."""
        await worker.server.start()
        worker.server.engine.fleet._unsure_until = -math.inf  # as if it had joined long ago

    def look(self) -> None:
        """Let all living workers look for tasks of dead ones now."""
        for worker in self.workers:
            if not worker.is_dead:
                worker.runner.take_over.look()

    async def kill(self, worker: TaskWorker) -> None:
        """Kill a worker: its functions end, nothing that it does has an effect, and its lease has expired."""
        worker.tap.is_cut = True
        for task in worker.runner._running.values():
            task.cancel()
        one = worker.server.engine.fleet
        if one._renewing is not None:
            one._renewing.cancel()
        while one._leave_bus:
            await one._leave_bus.pop()()
        await ScopedBackend(worker.tap.inner, NAME).store.delete(f"worker/{one.worker}")
        self.look()

    async def lose_lease(self, worker: TaskWorker) -> None:
        """Let a worker look dead to the others, as if it was paused. It goes on, and `wake` renews its lease."""
        one = worker.server.engine.fleet
        one._renewed -= 2 * LEASE_SECONDS
        if one._renewing is not None:
            one._renewing.cancel()
        while one._leave_bus:
            await one._leave_bus.pop()()
        await ScopedBackend(worker.tap.inner, NAME).store.delete(f"worker/{one.worker}")
        self.look()

    async def wake(self, worker: TaskWorker, *, long_ago: bool = True) -> None:
        """Renew the lease of a worker that has lost it."""
        one = worker.server.engine.fleet
        await one._renew_once()
        if long_ago:
            one._doubted_until = -math.inf

    async def close(self) -> None:
        """Stop all workers. What a dead one had begun is cancelled."""
        for worker in self.workers:
            if worker.is_dead:
                worker.tap.failure = ConnectionError("this worker is dead")
        left = asyncio.all_tasks() - {asyncio.current_task()} if any(one.is_dead for one in self.workers) else set()
        for worker in self.workers:
            if not worker.is_dead:
                await worker.server.stop()
        for task in left:
            task.cancel()
        with suppress(Exception):
            await asyncio.gather(*left, return_exceptions=True)


def entries(memory: MemoryBackend) -> dict[str, list[str]]:
    """The keys of what a memory backend has about tasks, by kind. Only those that have not expired."""
    parts: Any = (memory.store._values, memory.log._logs, memory.sets._sets, memory.bus._topics)  # type: ignore[attr-defined] - of the memory one
    names = ("store", "log", "sets", "bus")
    return {
        name: sorted(key for key in part if "worker/" not in key and not key.endswith((":workers", ":all")))
        for name, part in zip(names, parts, strict=True)
    }
