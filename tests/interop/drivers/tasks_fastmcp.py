"""Drives the studio with FastMCP's client of tasks (fastmcp-tasks), of the stateless era, and prints facts as JSON.

    python tasks_fastmcp.py STEPS http URL
    python tasks_fastmcp.py STEPS stdio COMMAND ARGUMENT...

FastMCP's own client of tasks polls. Its SDK lets an extension of the user hear `notifications/tasks`; `listen` in this
file opens the stream. Runs in the virtual environment `fastmcp`.
"""

import asyncio
import warnings
from typing import Any, Literal

import mcp_types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp_tasks import ToolTask, call_tool_task
from fastmcp_tasks.client_models import GetTaskRequest, GetTaskRequestParams
from mcp import StdioServerParameters
from mcp.client import Client as PlainClient
from mcp.client.extension import ClientExtension, NotificationBinding
from pydantic import BaseModel, ConfigDict
from tasks_steps import Person, error_of, plain, reach, report, take, until


class TaskNotification(BaseModel):
    model_config = ConfigDict(extra="allow")


class ListenParams(mcp_types.RequestParams):
    notifications: dict[str, Any]


class ListenRequest(mcp_types.Request[ListenParams, Literal["subscriptions/listen"]]):
    method: Literal["subscriptions/listen"] = "subscriptions/listen"
    params: ListenParams


class Hearing(ClientExtension):
    """An extension of the user that stores each `notifications/tasks`."""

    identifier = "example.studio/hearing"

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=TaskNotification, handler=self.hear)]

    async def hear(self, params: TaskNotification) -> None:
        self.heard.append(params.model_dump())


class Peer:
    """The client's methods under short names, and what it hears."""

    def __init__(self, client: Client, hearing: Hearing, target: Any) -> None:
        self.client = client
        self.hearing = hearing
        self.target = target  # the URL, or how the server is started

    async def call(self, name: str, **arguments: Any) -> str:
        """Call a tool, follow its task if there is one, and return the text of its result."""
        return (await self.client.call_tool(name, arguments)).content[0].text

    async def start(self, name: str, **arguments: Any) -> ToolTask:
        return await call_tool_task(self.client, name, arguments)


async def quick(peer: Peer, _person: Person) -> dict[str, Any]:
    task = await peer.start("develop", photo="attic")
    final = await task.wait()
    result = await task.result()
    transparent = await peer.client.call_tool("develop", {"photo": "cellar"})
    return {
        "handle": plain(task.create_result),
        "final": plain(final),
        "result": result.structured_content,
        "transparent": transparent.structured_content,
    }


async def slow(peer: Peer, _person: Person) -> dict[str, Any]:
    task = await peer.start("render", picture="attic")
    states = []
    for number in (1, 2):
        states.append(await paints(task, number))
        await peer.call("go_on", picture="attic")
    return {"states": states, "result": (await task).structured_content}


async def paints(task: ToolTask, number: int) -> Any:
    return plain(await reach(task.status, lambda state: state.status_message == f"painting ({number}/2)"))


async def ask(peer: Peer, person: Person) -> dict[str, Any]:
    task = await peer.start("frame", picture="attic")
    waiting = await task.wait(state="input_required")
    facts: dict[str, Any] = {"waiting": plain(waiting), "accept": (await task).content[0].text}
    person.action = "decline"
    facts["decline"] = await peer.call("frame", picture="cellar")
    person.action = "accept"
    facts["two"] = await peer.call("hang", picture="attic")
    return {**facts, "asked": list(person.asked)}


async def late(peer: Peer, person: Person) -> dict[str, Any]:
    """Call a tool that asks, and becomes a task some time after the answer."""
    return {"text": await peer.call("restore", picture="tower"), "asked": person.asked.count(RESTORED)}


RESTORED = ["Which wood for tower?", ["wood"]]


async def cancel(peer: Peer, _person: Person) -> dict[str, Any]:
    before = int(await peer.call("count_stopped"))
    task = await peer.start("render", picture="cellar")
    await paints(task, 1)
    await task.cancel()
    final = await task.wait()
    await reach(lambda: peer.call("count_stopped"), lambda count: int(count) > before)
    await task.cancel()  # of a task that has ended
    return {"final": plain(final), "raised": await raised_by(task)}


async def raised_by(task: ToolTask) -> str:
    try:
        await task.result()
    except ToolError as error:
        return str(error)
    return ""


async def fail(peer: Peer, _person: Person) -> dict[str, Any]:
    facts = {}
    for name, arguments in (("spill", {"colour": "red"}), ("tear", {"paper": "sheet"})):
        task = await peer.start(name, **arguments)
        facts[name] = {"final": plain(await task.wait()), "raised": await raised_by(task)}
    return facts


async def immediate(peer: Peer, _person: Person) -> dict[str, Any]:
    """Call a tool that ends before it becomes a task, with and without asking for a handle."""
    text = await peer.call("sketch", model="cat")
    try:
        await peer.start("sketch", model="dog")
    except ToolError as error:
        return {"text": text, "no_handle": str(error)}
    return {"text": text}


async def plainly(peer: Peer, _person: Person) -> dict[str, Any]:
    """Call a tool without tasks; and call others with the client of the SDK beneath, which does not know of tasks."""
    async with PlainClient(peer.target) as client:
        return {
            "sum": await peer.call("add", a=2, b=3),
            "optional": plain(await client.call_tool("develop", {"photo": "attic"})),
            "required": await error_of(client.call_tool("engrave", {"text": "Ada"})),
        }


async def required(peer: Peer, _person: Person) -> str:
    return await peer.call("engrave", text="Ada")


async def unknown(peer: Peer, _person: Person) -> Any:
    request = GetTaskRequest(params=GetTaskRequestParams(task_id="no-such-task-in-this-studio"))
    return await error_of(peer.client.session.send_request(request, mcp_types.Result))


async def listen(peer: Peer, _person: Person) -> dict[str, Any]:
    """Follow a task by its notifications alone: its poll interval is ten minutes."""
    heard = peer.hearing.heard
    task = await peer.start("dry", picture="attic")
    params = ListenParams(notifications={"taskIds": [task.task_id]})
    stream = asyncio.create_task(peer.client.session.send_request(ListenRequest(params=params), mcp_types.Result))
    for message in ("drying", "cooling"):
        await until(lambda wanted=message: any(one.get("statusMessage", "").startswith(wanted) for one in heard))
        await peer.call("go_on", picture="attic")
    await until(lambda: heard[-1]["status"] == "completed")
    stream.cancel()
    await asyncio.wait([stream])
    return {"task": task.task_id, "heard": heard}


STEPS = {
    "quick": quick,
    "slow": slow,
    "ask": ask,
    "late": late,
    "cancel": cancel,
    "fail": fail,
    "required": required,
    "immediate": immediate,
    "plainly": plainly,
    "unknown": unknown,
    "push": listen,
}


async def run(kind: str, target: list[str], person: Person) -> dict[str, Any]:
    async def elicit(message: str, _type: Any, params: Any, _context: Any) -> ElicitResult:
        content = person.answer_form(message, params.requested_schema)
        return ElicitResult(action=person.action, content=content)

    if kind == "http":
        where, plain_where = target[0], target[0]
    else:
        where = StdioTransport(target[0], target[1:], keep_alive=False)
        plain_where = StdioServerParameters(command=target[0], args=target[1:])
    hearing = Hearing()
    async with Client(where, elicitation_handler=elicit, extensions=[hearing]) as client:
        return {
            "version": client.protocol_version,
            "capabilities": plain(client.server_capabilities),
            "steps": await take(STEPS, Peer(client, hearing, plain_where), person),
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    report(run)
