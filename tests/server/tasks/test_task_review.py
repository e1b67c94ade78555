"""Faults of tasks that were found by reading the source: each test was red before."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.raw_sessions import FORM, AppPeer, answer_to, eventually, message
from weft import Context, InputRequired, Limits, Server, Task, TaskStore, ask_form
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY

FORMS = {"elicitation": {"form": {}}}
TASKS = {**FORMS, "extensions": {"io.modelcontextprotocol/tasks": {}}}
ANN = {"action": "accept", "content": {"name": "Ann"}}


@dataclass
class Name:
    name: str


class Client(AppPeer):
    """A client of the stateless era, which sends what a test wants."""

    def __init__(self, server: Server, capabilities: Mapping[str, Any] = TASKS, subject: str | None = None) -> None:
        super().__init__(server.asgi(), subject)
        self.capabilities = capabilities

    async def ask(self, method: str, **params: Any) -> Any:
        """The answer to one request: its result, or its error."""
        meta = {CLIENT_CAPABILITIES_KEY: self.capabilities}
        answer = await (await self.stateless(method, params, meta=meta)).json()
        return answer.get("result", answer.get("error"))

    async def call(self, tool: str, **more: Any) -> Any:
        return await self.ask("tools/call", name=tool, arguments={}, **more)

    async def until(self, id: str, *statuses: str) -> Any:
        """The state of a task as soon as its status is one of these."""
        async with asyncio.timeout(30):
            while (state := await self.ask("tasks/get", taskId=id)).get("status") not in statuses:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return state


# --- calls that stay plain


async def test_a_single_use_state_is_used_once_although_the_tool_can_be_a_task() -> None:
    server = Server("shop")
    paid: list[str] = []

    @server.tool(task="optional", single_use=True)
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Who pays?", Name, key="who")
        paid.append("once")
        return "paid"

    client = Client(server, FORMS)
    state = (await client.call("pay"))["requestState"]
    answered = {"requestState": state, "inputResponses": {"who": ANN}}
    assert (await client.call("pay", **answered))["content"][0]["text"] == "paid"
    assert (await client.call("pay", **answered))["code"] == -32602
    assert paid == ["once"]
    await client.leave()


async def test_a_single_use_state_is_not_used_up_by_middleware_that_reads_the_params() -> None:
    """The call is checked again after middleware, also if it is a call that may become a task."""
    server = Server("shop")

    @server.middleware
    async def look(ctx: Context, following: Any) -> Any:
        assert ctx.params is not None
        return await following()

    @server.tool(task=Task(after=20), single_use=True)
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Who pays?", Name, key="who")
        return "paid"

    client = Client(server)
    state = (await client.call("pay"))["requestState"]
    answered = {"requestState": state, "inputResponses": {"who": ANN}}
    assert (await client.call("pay", **answered))["content"][0]["text"] == "paid"
    assert (await client.call("pay", **answered))["code"] == -32602
    await client.leave()


async def test_a_single_use_state_is_used_once_although_there_is_no_room_for_the_task() -> None:
    """The call is answered when it is done."""
    server = Server("shop", limits=Limits(tasks_per_peer=0))

    @server.tool(task="optional", single_use=True)
    async def pay(ctx: Context) -> str:
        return (await ctx.elicit("Who pays?", Name, key="who")).action

    client = Client(server, FORMS)
    state = (await client.call("pay"))["requestState"]
    answered = {"requestState": state, "inputResponses": {"who": ANN}}
    client.capabilities = TASKS
    assert (await client.call("pay", **answered))["content"][0]["text"] == "accept"
    assert (await client.call("pay", **answered))["code"] == -32602
    await client.leave()


async def test_a_plain_call_that_has_asked_first_can_pass_its_work_on() -> None:
    """In a session, the handler runs a second time within the call. Then it still is a plain call."""
    server = Server("shop")
    jobs: list[str] = []

    @server.tool(task="optional")
    async def pay(ctx: Context) -> Any:
        if "who" not in ctx.input_responses:
            return InputRequired({"who": ask_form("Who pays?", Name)})
        return ctx.task.external(jobs.append)

    client = AppPeer(server.asgi())
    await client.open(capabilities=FORM)
    waiting = await (await client.begin(message("tools/call", {"name": "pay", "arguments": {}}, 1)))
    question = await waiting.question()
    await client.post(answer_to(question, ANN))
    await eventually(lambda: jobs)
    assert await TaskStore(server.backend).complete(jobs[0], "paid")
    assert (await waiting.text()) == "paid"
    await client.leave()


async def test_a_call_whose_work_is_passed_on_is_refused_if_it_cannot_become_a_task() -> None:
    """Else the client would get an empty result, and the work would never begin."""
    server = Server("shop", limits=Limits(tasks_per_peer=1))
    jobs: list[str] = []

    @server.tool(task=Task(after=20))
    async def pay(ctx: Context) -> Any:
        return ctx.task.external(jobs.append)

    client = Client(server)
    first = await client.call("pay")
    assert first["resultType"] == "task"
    refused = await client.call("pay")
    assert (refused["code"], refused["message"]) == (
        -32603,
        "The server has no room for this task now. Try again later.",
    )
    assert jobs == [first["taskId"]]
    await client.leave()
