"""Both eras at once at one endpoint: fifty clients of each, the same ids, questions under way; nothing gets mixed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from support import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, Live, serve
from support.notes import Notes
from support.raw_sessions import Exchange, Reply, SocketPeer, accept, called, eventually, message
from weft import Context, Server

CLIENTS = 50  # of each era


class Gate:
    """Calls that wait until they are let go, and what became of them."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    @property
    def waiting(self) -> set[str]:
        return set(self.notes.of("begun")).difference(self.notes.of("over"))

    @property
    def cancelled(self) -> set[str]:
        return set(self.notes.of("cancelled"))


def make_server(notes: Notes | None = None, **options: Any) -> Server:
    server = Server("both", **options)
    notes = Notes() if notes is None else notes
    server.gate = Gate(notes)

    @server.tool
    async def ask(ctx: Context, name: str) -> str:
        first = await ctx.elicit(f"{name}, tea?", Reply)
        second = await ctx.elicit(f"{name}, sugar?", Reply)
        return f"{name}: {first.value.value} {second.value.value}"

    @server.tool
    async def who(ctx: Context) -> str:
        await ctx.debug("quiet")
        await ctx.error("loud")
        capabilities = sorted(msgspec.to_builtins(ctx.client_capabilities))
        return f"{ctx.client_info.name} {' '.join(capabilities)}"

    @server.tool
    async def wait(name: str) -> str:
        notes.add("begun", name)
        try:
            await notes.until("released")
        except asyncio.CancelledError:
            notes.add("cancelled", name)
            raise
        finally:
            notes.add("over", name)
        return f"{name} waited"

    @server.tool
    async def release() -> None:
        notes.add("released", "now")

    return server


CAPABILITIES = [{"elicitation": {}}, {"elicitation": {}, "roots": {}}, {"elicitation": {}, "sampling": {}}]


class OfSession(SocketPeer):
    """A client with a session."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port)
        self.name = f"session {number}"
        self.capabilities = CAPABILITIES[number % 3]
        self.level = ["debug", "error"][number % 2]

    async def begin_all(self) -> None:
        await self.open(capabilities=self.capabilities, name=self.name)
        assert (await self.post(message("logging/setLevel", {"level": self.level}, 1))).status == 200

    async def call(self, tool: str, id: int, **arguments: Any) -> Exchange:
        return await self.post(called(tool, id, **arguments))

    async def chat(self, id: int) -> str:
        """Call a tool that asks twice, and answer."""
        asking = await self.call("ask", id, name=self.name)
        for word in ("yes", "no"):
            question = await asking.question()
            assert question["params"]["message"].startswith(f"{self.name}, ")
            await asyncio.sleep(0.01)  # meanwhile others ask and answer
            assert (await self.post(accept(question, f"{word} of {self.name}"))).status == 202
        return await asking.text()

    async def cancel(self, exchange: "asyncio.Task[Exchange]", id: int) -> None:
        assert (await self.post(message("notifications/cancelled", {"requestId": id}))).status == 202
        assert await (await exchange).body() == b""


class Stateless(SocketPeer):
    """A client that says everything with each request."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port)
        self.name = f"stateless {number}"
        self.capabilities = CAPABILITIES[(number + 1) % 3]
        self.level = ["error", "debug"][number % 2]

    async def begin_all(self) -> None:
        """There is nothing to begin."""

    async def call(self, tool: str, id: int, retry: Any = None, **arguments: Any) -> Exchange:
        meta = {
            CLIENT_CAPABILITIES_KEY: self.capabilities,
            CLIENT_INFO_KEY: {"name": self.name, "version": "1"},
            LOG_LEVEL_KEY: self.level,
        }
        return await self.stateless(
            "tools/call", {"name": tool, "arguments": arguments, **(retry or {})}, id=id, meta=meta
        )

    async def chat(self, id: int) -> str:
        retry: dict[str, Any] = {}
        for word in ("yes", "no"):
            result = await (await self.call("ask", id, retry, name=self.name)).result()
            [(key, question)] = result["inputRequests"].items()
            assert question["params"]["message"].startswith(f"{self.name}, ")
            await asyncio.sleep(0.01)
            answer = {"action": "accept", "content": {"value": f"{word} of {self.name}"}}
            retry = {"inputResponses": {key: answer}, "requestState": result["requestState"]}
        return await (await self.call("ask", id, retry, name=self.name)).text()

    async def cancel(self, exchange: "asyncio.Task[Exchange]", id: int) -> None:
        await self.exchanges[-1].close()
        exchange.cancel()


Client = OfSession | Stateless


@pytest.fixture
def live() -> Iterator[Live]:
    with serve(make_server()) as running:
        yield running


async def everybody(live: Live) -> list[Client]:
    """Clients of both eras, one after the other."""
    clients: list[Client] = [kind(live.port, number) for number in range(CLIENTS) for kind in (OfSession, Stateless)]
    await asyncio.gather(*(client.begin_all() for client in clients))
    return clients


@pytest.mark.security("R6", "R5")
@pytest.mark.spec("COMPAT-01")
async def test_every_answer_reaches_its_own_asker(live: Live) -> None:
    clients = await everybody(live)
    for id in (0, 1):
        said = await asyncio.gather(*(client.chat(id) for client in clients))
        assert said == [f"{client.name}: yes of {client.name} no of {client.name}" for client in clients]
    assert live.faults == []


@pytest.mark.security("R6")
async def test_no_capability_name_or_log_level_crosses(live: Live) -> None:
    clients = await everybody(live)
    for _ in range(3):
        answers = await asyncio.gather(*(client.call("who", 1) for client in clients))
        for client, answer in zip(clients, answers, strict=True):
            assert await answer.text() == " ".join([client.name, *sorted(client.capabilities)])
            logged = [event.data["params"]["level"] for event in answer.events if "method" in (event.data or {})]
            assert logged == (["debug", "error"] if client.level == "debug" else ["error"])


@pytest.mark.security("R6")
async def test_no_cancellation_crosses(live: Live) -> None:
    gate: Gate = live.server.gate
    clients = await everybody(live)
    calls = {client.name: asyncio.create_task(client.call("wait", 1, name=client.name)) for client in clients}
    await eventually(lambda: len(gate.waiting) == len(clients))
    given_up = [client for number, client in enumerate(clients) if number % 5 < 2]  # of both eras
    assert {type(client) for client in given_up} == {OfSession, Stateless}
    await asyncio.gather(*(client.cancel(calls[client.name], 1) for client in given_up))
    await eventually(lambda: len(gate.cancelled) == len(given_up))
    assert gate.cancelled == {client.name for client in given_up}
    await (await clients[0].call("release", 2)).body()
    for client in clients:
        if client not in given_up:
            assert await (await calls[client.name]).text() == f"{client.name} waited"
    assert gate.cancelled == {client.name for client in given_up}


@pytest.mark.security("R6")
async def test_a_disconnect_cancels_in_the_one_era_and_not_in_the_other(live: Live) -> None:
    gate: Gate = live.server.gate
    clients: list[Client] = [OfSession(live.port, 0), Stateless(live.port, 0)]
    for client in clients:
        await client.begin_all()
        calling = asyncio.create_task(client.call("wait", 1, name=client.name))
        await eventually(lambda client=client: client.name in gate.waiting)
        await client.exchanges[-1].close()
        calling.cancel()
    await eventually(lambda: gate.cancelled == {"stateless 0"})
    await asyncio.sleep(0.05)
    assert gate.waiting == {"session 0"}
    await clients[0].call("release", 2)
    await eventually(lambda: not gate.waiting and live.server.engine.in_flight == 0)
