"""Nothing is left of tasks that were followed: no asyncio task, no entry, no subscription, no memory."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.raw_sessions import eventually
from support.task_servers import SILENCE, Refusal, TaskServer, form, result, state
from weft import Client, RequestTimeout, Server, Task
from weft.client.requests.tasks import TaskHandle

LONG = 60
TASKS = 300
ENDS = ("completed", "failed", "cancelled", "unknown", "asks", "called off", "given up", "left", "never looked at")


class Crowd(TaskServer):
    """A server with many tasks. The name of the tool says how a task ends."""

    def __init__(self, *, is_session: bool) -> None:
        super().__init__(is_session=is_session, pushes=not is_session)
        self._ends: list[str] = []
        self.on["tools/call"] = self._create
        self.on["tasks/get"] = lambda message: self._state(message["params"]["taskId"])
        self.on["tasks/update"] = self._update
        self.on["tasks/cancel"] = lambda message: self._cancel(message["params"]["taskId"])
        if is_session:
            tools = [
                {"name": end, "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
                for end in ENDS
            ]
            self.on["tools/list"] = lambda _: {"tools": tools}
            self.on["tasks/result"] = self._result

    def _create(self, message: dict[str, Any]) -> Any:
        self._ends.append(message["params"]["name"])
        begun = self._as_sent({**state(), "taskId": f"task-{len(self._ends)}"})
        return {"task": begun} if self.is_session else {**begun, "resultType": "task"}

    def _state(self, id: str) -> Any:
        end = self._ends[int(id.partition("-")[2]) - 1]
        match end:
            case "completed":
                found = state("completed", result=result())
            case "failed":
                found = state("failed", error={"code": 7, "message": "no"})
            case "cancelled":
                found = state("cancelled")
            case "asks":
                found = state("input_required", inputRequests={"a": form()})
            case "unknown":
                return Refusal(-32602, "gone")
            case _:
                found = state()
        return self._as_sent({**found, "taskId": id})

    def _as_sent(self, task: dict[str, Any]) -> dict[str, Any]:
        self.task = task
        return self._shown()

    def _update(self, message: dict[str, Any]) -> Any:
        self._ends[int(message["params"]["taskId"].partition("-")[2]) - 1] = "completed"
        return {"resultType": "complete"}

    def _cancel(self, id: str) -> Any:
        self._ends[int(id.partition("-")[2]) - 1] = "cancelled"
        return self._state(id) if self.is_session else {"resultType": "complete"}

    def _result(self, message: dict[str, Any]) -> Any:
        id = message["params"]["taskId"]
        status = "gone" if isinstance(found := self._state(id), Refusal) else found["status"]
        match status:
            case "completed":
                return result()
            case "failed":
                return Refusal(7, "no")
            case "cancelled" | "gone":
                return Refusal(-32602, "none")
        if status == "input_required" and self._ends[int(id.partition("-")[2]) - 1] == "asks":
            self.say({"id": f"q-{id}", "method": form()["method"], "params": form()["params"]})
            self._ends[int(id.partition("-")[2]) - 1] = "completed"
            return result()
        return SILENCE


async def use(client: Client, end: str) -> None:
    """Start a task and follow it to its end, or not."""
    match end:
        case "called off":
            calling = asyncio.create_task(client.call_tool(end, progress=lambda _: None))
            await asyncio.sleep(0.02)
            calling.cancel()
            await asyncio.wait([calling])
        case "given up":
            handle = await client.start_tool(end)
            waiting = asyncio.create_task(handle.result(progress=lambda _: None))
            await asyncio.sleep(0.02)
            waiting.cancel()
            await asyncio.wait([waiting])
        case "left":
            async for _ in await client.start_tool(end):
                break
        case "never looked at":
            await client.start_tool(end)
        case _:
            await asyncio.gather(client.call_tool(end, progress=lambda _: None), return_exceptions=True)


def handles() -> int:
    return sum(isinstance(one, TaskHandle) for one in gc.get_objects())


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_nothing_is_left_of_many_tasks(era: Any) -> None:
    server = Crowd(is_session=era == "session")
    async with asyncio.timeout(LONG), Client(server, eras=(era,), elicit=lambda _: {"name": "Ann"}) as client:
        link, tasks = client._connected(), client._tasks
        await use(client, "completed")
        before = len(link._tasks), len(asyncio.all_tasks())
        for _ in range(TASKS // (len(ENDS) * 10) + 1):
            await asyncio.gather(*(use(client, end) for end in ENDS for _ in range(10)))
        assert len(server._ends) > TASKS
        await eventually(lambda: (len(link._tasks), len(asyncio.all_tasks())) <= before)
        await eventually(lambda: not tasks._streams)
        assert not tasks._followed
        assert not client._subscriptions.open
        assert not link.task_progress
        assert not link._tokens
        assert not list(link._clocks.all())
        assert not link._asks
        gc.collect()
        assert handles() == 0
        assert not tasks.all


async def test_calls_of_a_server_of_weft_that_take_too_long_leave_nothing() -> None:
    server = Server("sleeper")

    @server.tool(task=Task(poll=0.05))
    async def wait() -> str:
        await asyncio.Event().wait()
        return ""

    async with asyncio.timeout(LONG), Client(server) as client:
        for _ in range(20):
            with pytest.raises(RequestTimeout, match=r"was not done|did not answer tools/call"):
                await client.call_tool("wait", timeout=0.01)
        await eventually(lambda: not client._tasks._followed)
    gc.collect()
    assert handles() == 0


LEFT_OPEN = {
    "break": "async for _ in handle: break",
    "open": "kept.append(aiter(handle)); await anext(kept[0])",
    "open in a cycle": "kept.append(aiter(handle)); await anext(kept[0]); kept.append(kept); del kept",
    "open, and the client is closed": "kept.append(aiter(handle)); await anext(kept[0]); await client.close()",
    "waiting": "kept.append(asyncio.ensure_future(last(handle))); await asyncio.sleep(0.1)",
    "an error": "async for _ in handle: raise SystemExit(0)",
}


@pytest.mark.parametrize("era", ["stateless", "session"])
@pytest.mark.parametrize("code", LEFT_OPEN.values(), ids=LEFT_OPEN)
def test_a_program_that_ends_while_it_iterates_over_a_task_is_told_nothing(code: str, era: str) -> None:
    """Neither of asyncio tasks that are pending, nor of generators that were not closed."""
    program = f"""
import asyncio, gc
from support.task_servers import TaskServer
from weft import Client

async def last(handle):
    return [state async for state in handle][-1]

async def main():
    kept = kept_by_program
    client = Client(TaskServer(is_session={era == "session"}, pushes={era == "stateless"}), eras=({era!r},))
    await client.connect()
    handle = await client.start_tool("t")
    {code}

kept_by_program = []
asyncio.run(main(), debug=True)
kept_by_program = None
gc.collect()
print("ended")
"""
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    complaints = [line for line in ended.stderr.splitlines() if not line.startswith("Executing <")]  # slow machines
    assert (ended.returncode, complaints) == (0, [])
    assert ended.stdout == ("" if "SystemExit" in code else "ended\n")
