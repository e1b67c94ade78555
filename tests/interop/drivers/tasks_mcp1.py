"""Drives the studio with the experimental client of tasks of the official Python SDK 1.x, and prints facts as JSON.

    python tasks_mcp1.py STEPS http URL
    python tasks_mcp1.py STEPS stdio COMMAND ARGUMENT...

Its tasks are those of 2025-11-25. Runs in the virtual environment `mcp1`.
"""

import asyncio
import warnings
from typing import Any

from mcp import ClientSession
from mcp.types import (
    CallToolResult,
    ClientRequest,
    CreateMessageResult,
    ElicitResult,
    GetTaskPayloadRequest,
    GetTaskPayloadRequestParams,
    ServerNotification,
    TextContent,
)
from mcp1_client import streams
from tasks_steps import Person, error_of, plain, reach, report, take, text_of, until


class Peer:
    """The client's task methods, with what it hears."""

    def __init__(self, session: ClientSession, heard: list[dict[str, Any]], support: dict[str, str | None]) -> None:
        self.session = session
        self.tasks = session.experimental
        self.heard = heard  # params of `notifications/tasks/status`
        self.support = support  # by tool: `taskSupport`

    def told(self, id: str) -> list[dict[str, Any]]:
        """Return what was heard of a task."""
        return [params for params in self.heard if params["taskId"] == id]

    def was_told(self, id: str, beginning: str) -> bool:
        """Return whether a status message with this beginning was heard."""
        return any(params.get("statusMessage", "").startswith(beginning) for params in self.told(id))

    async def call(self, name: str, **arguments: Any) -> str:
        return text_of(plain(await self.session.call_tool(name, arguments)))

    async def start(self, name: str, ttl: int = 60_000, **arguments: Any) -> Any:
        return plain(await self.tasks.call_tool_as_task(name, arguments, ttl=ttl))

    async def started(self, name: str, **arguments: Any) -> str:
        """Start a task, and return its id."""
        return (await self.start(name, **arguments))["task"]["taskId"]

    async def state(self, id: str) -> Any:
        return plain(await self.tasks.get_task(id))

    async def ends(self, id: str) -> Any:
        """Poll as the server wants, and return the final state."""
        return [plain(state) async for state in self.tasks.poll_task(id)][-1]

    async def result(self, id: str) -> Any:
        return plain(await self.tasks.get_task_result(id, CallToolResult))

    async def paints(self, id: str, number: int) -> Any:
        return await reach(lambda: self.state(id), lambda state: state.get("statusMessage") == f"painting ({number}/2)")


async def quick(peer: Peer, _person: Person) -> dict[str, Any]:
    created = await peer.start("develop", ttl=90_000, photo="attic")
    id = created["task"]["taskId"]
    return {"created": created, "final": await peer.ends(id), "result": await peer.result(id)}


async def slow(peer: Peer, _person: Person) -> dict[str, Any]:
    id = await peer.started("render", picture="attic")
    states = []
    for number in (1, 2):
        states.append(await peer.paints(id, number))
        await peer.call("go_on", picture="attic")
    return {"states": states, "result": await peer.result(id)}


async def ask(peer: Peer, person: Person) -> dict[str, Any]:
    id = await peer.started("frame", picture="attic")
    waiting = await reach(lambda: peer.state(id), lambda state: state["status"] == "input_required")
    facts: dict[str, Any] = {"waiting": waiting, "accept": text_of(await peer.result(id))}
    person.action = "decline"
    facts["decline"] = text_of(await peer.result(await peer.started("frame", picture="cellar")))
    person.action = "accept"
    facts["two"] = text_of(await peer.result(await peer.started("hang", picture="attic")))
    facts["sample"] = text_of(await peer.result(await peer.started("name_it", picture="attic")))
    return {**facts, "asked": list(person.asked), "related": list(person.related)}


async def cancel(peer: Peer, _person: Person) -> dict[str, Any]:
    counts = "count_stopped" in peer.support
    before = int(await peer.call("count_stopped")) if counts else 0
    id = await peer.started("render", picture="cellar")
    await peer.paints(id, 1)
    cancelled = plain(await peer.tasks.cancel_task(id))
    if counts:
        await reach(lambda: peer.call("count_stopped"), lambda count: int(count) > before)
    return {
        "cancelled": cancelled,
        "final": await peer.state(id),
        "again": await error_of(peer.tasks.cancel_task(id)),
        "result": await error_of(peer.tasks.get_task_result(id, CallToolResult)),
    }


async def fail(peer: Peer, _person: Person) -> dict[str, Any]:
    spilt = await peer.started("spill", colour="red")
    torn = await peer.started("tear", paper="sheet")
    return {
        "spill": {"final": await peer.ends(spilt), "result": await peer.result(spilt)},
        "tear": {
            "final": await peer.ends(torn),
            "result": await error_of(peer.tasks.get_task_result(torn, CallToolResult)),
        },
    }


async def refused(peer: Peer, _person: Person) -> dict[str, Any]:
    return {
        "required": await error_of(peer.session.call_tool("engrave", {"text": "Ada"})),
        "forbidden": await error_of(peer.tasks.call_tool_as_task("add", {"a": 2, "b": 3})),
        "unknown": await error_of(peer.tasks.get_task("no-such-task-in-this-studio")),
        "list": await error_of(peer.tasks.list_tasks()),
    }


async def listen(peer: Peer, _person: Person) -> dict[str, Any]:
    """Follow a task by its notifications alone, on the stream of `tasks/result`."""
    progress: list[Any] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        progress.append([done, total, message])

    id = await peer.started("dry", picture="attic")
    request = ClientRequest(GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(taskId=id)))
    waiting = asyncio.create_task(peer.session.send_request(request, CallToolResult, progress_callback=hear))
    for message in ("drying", "cooling"):
        await until(lambda wanted=message: peer.was_told(id, wanted))
        await peer.call("go_on", picture="attic")
    return {"task": id, "result": plain(await waiting), "heard": peer.told(id), "progress": progress}


async def plainly(peer: Peer, person: Person) -> dict[str, Any]:
    """Call tools without asking for a task."""
    frame = await peer.call("frame", picture="hall")
    return {"sum": await peer.call("add", a=2, b=3), "frame": frame, "related": person.related[-1]}


async def required(peer: Peer, _person: Person) -> str:
    return text_of(await peer.result(await peer.started("engrave", text="Ada")))


STEPS = {
    "quick": quick,
    "slow": slow,
    "ask": ask,
    "cancel": cancel,
    "fail": fail,
    "required": required,
    "plainly": plainly,
    "refused": refused,
    "push": listen,
}


def callbacks(person: Person) -> dict[str, Any]:
    async def elicit(_context: Any, params: Any) -> ElicitResult:
        person.relate(params.meta)
        return ElicitResult(action=person.action, content=person.answer_form(params.message, params.requestedSchema))

    async def sample(_context: Any, params: Any) -> CreateMessageResult:
        person.relate(params.meta)
        text = person.answer_prompt(params.messages[0].content.text)
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text=text), model="interop")

    return {"elicitation_callback": elicit, "sampling_callback": sample}


async def run(kind: str, target: list[str], person: Person) -> dict[str, Any]:
    heard: list[dict[str, Any]] = []

    async def hear(message: Any) -> None:
        if isinstance(message, ServerNotification) and message.root.method == "notifications/tasks/status":
            heard.append(plain(message.root.params))

    async with (
        streams(kind, target) as (read, write),
        ClientSession(read, write, message_handler=hear, **callbacks(person)) as session,
    ):
        opened = plain(await session.initialize())
        tools = plain(await session.list_tools())["tools"]
        peer = Peer(session, heard, {tool["name"]: tool.get("execution", {}).get("taskSupport") for tool in tools})
        return {
            "version": opened["protocolVersion"],
            "capabilities": opened["capabilities"],
            "support": peer.support,
            "steps": await take(STEPS, peer, person),
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    report(run)
