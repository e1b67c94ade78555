"""The one session that a pipe can have, beside requests that need none: both on the same lines."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import VERSION, message
from support.hotel import LOBBY, make_hotel
from support.peers import ENVIRONMENT, SESSION_VERSIONS, Peer, StdioWay
from support.sessions import NEWEST, introduction, rpc
from weft import Connection, Context, Server
from weft.errors import RemoteError, RequestTimeout
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, LOG_LEVEL_KEY, PROTOCOL_VERSION_KEY

PIPELINED = (
    rpc("initialize", introduction(NEWEST), id=1),
    rpc("notifications/initialized", id=None),
    rpc("tools/list", id=2),
)
HOTEL = Path(__file__).parent.parent / "support" / "hotel.py"


class Lines:
    """The client's end of a pipe in this process."""

    def __init__(self, server: Server) -> None:
        self.got: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self._news = asyncio.Event()
        self.pipe = server.pipe(self._deliver)

    def send(self, body: Any) -> None:
        self.pipe.send(body if isinstance(body, bytes) else json.dumps(body).encode())

    async def find(self, match: Callable[[dict[str, Any]], Any], *, since: int = 0) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while True:
                found = next((one for one in self.got[since:] if match(one)), None)
                if found is not None:
                    return found
                self._news.clear()
                await self._news.wait()

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        since = len(self.got)
        self.send(body)
        return await self.find(lambda one: one.get("id") == body["id"] and "method" not in one, since=since)

    async def greet(self, version: str = NEWEST, *, ready: bool = True, capabilities: Any = None) -> dict[str, Any]:
        answer = await self.ask(rpc("initialize", introduction(version, capabilities), id="greet"))
        if ready:
            self.send(rpc("notifications/initialized", id=None))
        return answer["result"]

    async def call(self, tool: str, *, id: Any = 1, **arguments: Any) -> dict[str, Any]:
        return await self.ask(rpc("tools/call", {"name": tool, "arguments": arguments}, id=id))

    async def call_alone(self, tool: str, meta: Any = None, *, id: Any = 1, **arguments: Any) -> dict[str, Any]:
        return await self.ask(message("tools/call", {"name": tool, "arguments": arguments}, id=id, meta=meta))

    def _deliver(self, line: bytes) -> None:
        self.raw.append(line)
        self.got.append(json.loads(line))
        self._news.set()


@asynccontextmanager
async def lines(server: Server | None = None, **options: Any) -> AsyncIterator[Lines]:
    server = server or make_hotel(**options)
    opened = Lines(server)
    try:
        yield opened
    finally:
        await opened.pipe.close()
        await server.stop()


def code(answer: dict[str, Any]) -> int:
    return answer["error"]["code"]


async def settle() -> None:
    """Let everything happen that is about to."""
    for _ in range(20):
        await asyncio.sleep(0)


# The two eras on one pipe.


@pytest.mark.spec("COMPAT-01", "COMPAT-02", "STATE-01")
async def test_nothing_of_the_session_bleeds_into_a_request_that_stands_alone() -> None:
    async with lines() as pipe:
        await pipe.greet("2025-06-18")
        await pipe.ask(rpc("logging/setLevel", {"level": "debug"}))
        since = len(pipe.got)
        alone = (await pipe.call_alone("who"))["result"]["structuredContent"]
        assert alone == {"version": VERSION, "name": "t", "elicits": False, "stateless": True}
        assert "result" in await pipe.call_alone("gossip")
        assert not any(one.get("method") == "notifications/message" for one in pipe.got[since:])
        assert code(await pipe.call_alone("book")) == -32021  # it declared nothing, whatever the session did
        assert code(await pipe.ask(message("resources/read", {"uri": "hotel://x"}))) == -32602
        assert code(await pipe.ask(message("ping"))) == -32601


@pytest.mark.spec("COMPAT-02")
async def test_nothing_of_a_request_that_stands_alone_bleeds_into_the_session() -> None:
    async with lines() as pipe:
        await pipe.greet("2025-06-18", capabilities={})
        rich = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}, "roots": {}}, LOG_LEVEL_KEY: "debug"}
        await pipe.call_alone("gossip", rich)
        since = len(pipe.got)
        known = (await pipe.call("who"))["result"]["structuredContent"]
        assert known == {"version": "2025-06-18", "name": "guest", "elicits": False, "stateless": False}
        assert (await pipe.call("luggage"))["result"]["isError"] is True
        assert code(await pipe.ask(rpc("resources/read", {"uri": "hotel://x"}))) == -32002
        await pipe.call("gossip")
        heard = [one["params"]["level"] for one in pipe.got[since:] if one.get("method") == "notifications/message"]
        assert heard == ["info", "error"]  # as before anybody has said otherwise


@pytest.mark.spec("COMPAT-02")
async def test_a_request_that_stands_alone_begins_no_session() -> None:
    async with lines() as pipe:
        assert "result" in await pipe.call_alone("who")
        refused = await pipe.ask(rpc("tools/list"))
        assert code(refused) == -32600
        assert all(version in refused["error"]["message"] for version in (VERSION, *SESSION_VERSIONS))
        assert (await pipe.ask(rpc("ping")))["result"] == {}
        assert (await pipe.greet())["protocolVersion"] == NEWEST


@pytest.mark.spec("COMPAT-02")
async def test_a_handshake_in_the_words_of_the_other_era_begins_no_session() -> None:
    async with lines() as pipe:
        assert code(await pipe.ask(message("initialize", introduction()))) == -32601
        assert code(await pipe.ask(rpc("tools/list"))) == -32600
        assert (await pipe.greet())["protocolVersion"] == NEWEST


@pytest.mark.spec("COMPAT-02")
async def test_ids_are_shared_and_so_are_cancellations() -> None:
    async with lines() as pipe:
        await pipe.greet()
        pipe.send(message("tools/call", {"name": "hold", "arguments": {"label": "a"}}, id=7))
        await settle()
        assert code(await pipe.ask(rpc("ping", id=7))) == -32600
        pipe.send(rpc("notifications/cancelled", {"requestId": 7}, id=None))
        assert (await pipe.ask(rpc("ping", id=7)))["result"] == {}


@pytest.mark.spec("STDIO-01")
async def test_what_is_said_outside_any_call_is_one_line_too() -> None:
    server, formatted = Server("formatted"), msgspec.Raw(b"[\n]")

    @server.tool
    async def say(ctx: Context) -> None:
        await ctx.connection.notify("notifications/x", {"x": formatted})
        await ctx.connection.send_raw_request("x/ask", {"x": formatted}, timeout=0.01)

    async with lines(server) as pipe:
        await pipe.greet()
        assert "result" in await pipe.call("say")
    said = [one.get("method") for one in pipe.got]
    assert said == [None, "notifications/x", "x/ask", "notifications/cancelled", None]
    assert not any(b"\n" in line for line in pipe.raw)


# The handshake.


@pytest.mark.spec("L11-01", "L11-02", "COMPAT-22", "L24-07")
@pytest.mark.parametrize("asked", [*SESSION_VERSIONS, VERSION, "1999-01-01", "2031-01-01", "x", ""])
async def test_the_version_that_is_agreed_on(asked: str) -> None:
    async with lines() as pipe:
        agreed = (await pipe.greet(asked))["protocolVersion"]
        assert agreed == (asked if asked in SESSION_VERSIONS else NEWEST)
        assert f'"{agreed}"' in (await pipe.call("who"))["result"]["content"][0]["text"]


@pytest.mark.spec("L11-01")
@pytest.mark.parametrize(
    "params", [{}, {"protocolVersion": 7, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}, None]
)
async def test_a_handshake_that_cannot_be_read_begins_no_session(params: Any) -> None:
    async with lines() as pipe:
        assert code(await pipe.ask(rpc("initialize", params))) == -32602
        assert code(await pipe.ask(rpc("tools/list"))) == -32600
        assert (await pipe.greet())["protocolVersion"] == NEWEST


@pytest.mark.spec("L11-01")
async def test_a_second_handshake_is_refused() -> None:
    async with lines() as pipe:
        await pipe.greet()
        assert code(await pipe.ask(rpc("initialize", introduction("2024-11-05")))) == -32600
        assert (await pipe.call("who"))["result"]["structuredContent"]["version"] == NEWEST


@pytest.mark.spec("L11-01")
async def test_a_second_handshake_is_refused_also_when_it_does_not_wait_for_the_first() -> None:
    async with lines() as pipe:
        pipe.send(rpc("initialize", introduction("2024-11-05"), id=1))
        assert code(await pipe.ask(rpc("initialize", introduction(), id=2))) == -32600
        assert '"2024-11-05"' in (await pipe.call("who"))["result"]["content"][0]["text"]


@pytest.mark.spec("L11-05")
async def test_who_must_confirm_the_handshake_is_not_served_before() -> None:
    async with lines(require_initialized=True) as pipe:
        await pipe.greet(ready=False)
        assert code(await pipe.ask(rpc("tools/list"))) == -32600
        assert (await pipe.ask(rpc("ping")))["result"] == {}
        assert "result" in await pipe.call_alone("who")  # it has nothing to do with the session
        pipe.send(rpc("notifications/initialized", id=None))
        assert "result" in await pipe.ask(rpc("tools/list"))


@pytest.mark.spec("L11-05", "L11-36")
async def test_nothing_is_told_before_the_handshake_is_confirmed() -> None:
    server = make_hotel()
    async with lines(server) as pipe:
        await pipe.greet(ready=False)
        server.notify_tools_changed()
        await settle()
        pipe.send(rpc("notifications/initialized", id=None))
        server.notify_prompts_changed()
        await settle()
        assert [one["method"] for one in pipe.got if "method" in one] == ["notifications/prompts/list_changed"]


async def test_who_confirms_a_handshake_that_was_none_is_told_nothing() -> None:
    server = make_hotel()
    async with lines(server) as pipe:
        pipe.send(rpc("notifications/initialized", id=None))
        await pipe.call_alone("who")
        server.notify_tools_changed()
        await settle()
        assert not any("method" in one for one in pipe.got)


# Only one of the eras.


@pytest.mark.spec("COMPAT-03")
async def test_a_server_without_sessions_names_its_versions() -> None:
    async with lines(eras=("stateless",)) as pipe:
        refused = await pipe.ask(rpc("initialize", introduction()))
        assert refused["error"]["code"] == -32022
        assert refused["error"]["data"] == {"supported": [VERSION], "requested": NEWEST}
        assert "result" in await pipe.call_alone("who")
        pipe.send([rpc("ping")])
        assert code(await pipe.find(lambda one: "id" not in one)) == -32600


async def test_a_server_of_sessions_only() -> None:
    async with lines(eras=("session",)) as pipe:
        assert code(await pipe.ask(message("server/discover"))) == -32600  # a code that makes clients fall back
        assert (await pipe.greet())["protocolVersion"] == NEWEST
        alone = await pipe.ask(message("tools/call", {"name": "who"}, meta={PROTOCOL_VERSION_KEY: VERSION}))
        assert alone["result"]["structuredContent"]["version"] == NEWEST
        assert "resultType" not in alone["result"]


# Batches.


@pytest.mark.spec("L03-01", "L03-03")
async def test_a_batch_is_answered_message_by_message() -> None:
    async with lines() as pipe:
        await pipe.greet("2025-03-26")
        since = len(pipe.got)
        pipe.send([rpc("ping", id=1), rpc("notifications/x", id=None), rpc("ping", id=2), 5, [rpc("ping", id=3)]])
        pipe.send([rpc("initialize", introduction(), id=4)])
        pipe.send([])
        pipe.send(b"[1,")
        await pipe.ask(rpc("ping", id="last"))
        answers = [one.get("id") if "result" in one else code(one) for one in pipe.got[since:]]
        assert sorted(map(str, answers)) == sorted(["1", "2", "last", *["-32600"] * 4, "-32700"])


@pytest.mark.spec("L06-01")
@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-06-18", "2025-11-25"])
async def test_others_have_no_batches(version: str | None) -> None:
    async with lines() as pipe:
        if version is not None:
            await pipe.greet(version)
        since = len(pipe.got)
        pipe.send([rpc("ping", id=1)])
        assert code(await pipe.find(lambda one: "id" not in one, since=since)) == -32600
        assert len(pipe.got) == since + 1


@pytest.mark.spec("L03-01", "L06-01")
def test_batches_of_a_child_process() -> None:
    way = StdioWay(HOTEL)
    peer = Peer(way, "2025-03-26")
    peer.open()
    way.send([rpc("ping", id="a"), rpc("ping", id="b")])
    assert all(peer.answer_to(id)["result"] == {} for id in ("a", "b"))
    peer.close()


# What the server says by itself.


@pytest.mark.spec("L11-31")
async def test_the_client_is_pinged() -> None:
    async with lines() as pipe:
        await pipe.greet()
        pipe.send(rpc("tools/call", {"name": "knock"}, id=1))
        question = await pipe.find(lambda one: one.get("method") == "ping")
        assert not any(one.get("id") == 1 for one in pipe.got)
        pipe.send({"jsonrpc": "2.0", "id": question["id"], "result": {}})
        answer = await pipe.find(lambda one: one.get("id") == 1)
        assert answer["result"]["content"][0]["text"] == "There is."


@pytest.mark.spec("L11-37")
async def test_roots_that_changed_are_asked_for() -> None:
    server, found = make_hotel(), asyncio.Queue[Any]()

    @server.on_roots_changed
    async def look(connection: Connection) -> None:
        try:
            found.put_nowait(await connection.send_raw_request("roots/list"))
        except RemoteError as error:
            found.put_nowait(error.code)

    async with lines(server) as pipe:
        await pipe.greet()
        for said in ({"result": {"roots": [{"uri": "file:///b"}]}}, {"error": {"code": -32601, "message": "no"}}):
            since = len(pipe.got)
            pipe.send(rpc("notifications/roots/list_changed", id=None))
            question = await pipe.find(lambda one: one.get("method") == "roots/list", since=since)
            pipe.send({"jsonrpc": "2.0", "id": question["id"], **said})
            assert await found.get() in ({"roots": [{"uri": "file:///b"}]}, -32601)


@pytest.mark.spec("L11-32", "L24-07")
async def test_a_question_that_is_not_answered_in_time_is_cancelled() -> None:
    server, ended = make_hotel(), asyncio.Queue[Any]()

    @server.on_roots_changed
    async def look(connection: Connection) -> None:
        try:
            await connection.send_raw_request("roots/list", timeout=0.02)
        except RequestTimeout as error:
            ended.put_nowait(error)

    async with lines(server) as pipe:
        await pipe.greet()
        pipe.send(rpc("notifications/roots/list_changed", id=None))
        await ended.get()
        asked, told = (one for one in pipe.got if "method" in one)
        assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", asked["id"])


@pytest.mark.spec("L24-07")
async def test_the_progress_of_a_question_is_heard() -> None:
    server, heard, ended = make_hotel(), [], asyncio.Event()

    @server.on_roots_changed
    async def look(connection: Connection) -> None:
        await connection.send_raw_request("roots/list", on_progress=heard.append)
        ended.set()

    async with lines(server) as pipe:
        await pipe.greet()
        pipe.send(rpc("notifications/roots/list_changed", id=None))
        question = await pipe.find(lambda one: one.get("method") == "roots/list")
        token = question["params"]["_meta"]["progressToken"]
        for stated in (token, "another", 5):
            pipe.send(rpc("notifications/progress", {"progressToken": stated, "progress": 1}, id=None))
        pipe.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
        await asyncio.wait_for(ended.wait(), 30)
    assert [one.progress for one in heard] == [1]


@pytest.mark.spec("L11-34")
async def test_a_pipe_hears_of_what_it_subscribed_to() -> None:
    server = make_hotel()
    async with lines(server) as pipe:
        await pipe.greet()
        await pipe.ask(rpc("resources/subscribe", {"uri": LOBBY}))
        await pipe.ask(rpc("resources/unsubscribe", {"uri": "hotel://never"}))
        for _ in range(3):
            server.notify_resource_updated(LOBBY)
        server.notify_resource_updated("hotel://never")
        await settle()
        told = [one for one in pipe.got if one.get("method") == "notifications/resources/updated"]
        assert told
        assert all(one["params"] == {"uri": LOBBY} for one in told)


@pytest.mark.spec("L11-13")
async def test_a_cancelled_call_is_not_answered_and_its_question_is_withdrawn() -> None:
    async with lines() as pipe:
        await pipe.greet()
        pipe.send(rpc("tools/call", {"name": "luggage"}, id=5))
        question = await pipe.find(lambda one: one.get("method") == "roots/list")
        pipe.send(rpc("notifications/cancelled", {"requestId": 5}, id=None))
        told = await pipe.find(lambda one: one.get("method") == "notifications/cancelled")
        assert told["params"]["requestId"] == question["id"]
        pipe.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
        await pipe.ask(rpc("ping", id="after"))
        assert not any(one.get("id") == 5 for one in pipe.got)


@pytest.mark.spec("L11-32")
async def test_when_one_of_several_questions_is_refused_the_others_are_withdrawn() -> None:
    async with lines() as pipe:
        await pipe.greet()
        pipe.send(rpc("tools/call", {"name": "survey_by_hand"}, id=5))
        model = await pipe.find(lambda one: one.get("method") == "sampling/createMessage")
        roots = await pipe.find(lambda one: one.get("method") == "roots/list")
        pipe.send({"jsonrpc": "2.0", "id": model["id"], "error": {"code": -1, "message": "No."}})
        answer = await pipe.find(lambda one: one.get("id") == 5)
        assert "The client refused: No." in answer["error"]["message"]
        told = await pipe.find(lambda one: one.get("method") == "notifications/cancelled")
        assert told["params"]["requestId"] == roots["id"]


async def test_what_the_connection_holds_is_released_with_the_pipe() -> None:
    server, released = make_hotel(), []

    @server.on_roots_changed
    async def enter(connection: Connection) -> None:
        connection.exit_stack.callback(released.append, "released")

    async with lines(server) as pipe:
        await pipe.greet()
        pipe.send(rpc("notifications/roots/list_changed", id=None))
        await settle()
        assert released == []
    assert released == ["released"]


@pytest.mark.parametrize("form", ["pipe", "file"])
def test_a_handshake_and_what_follows_may_be_sent_in_one_go(form: str, tmp_path: Path) -> None:
    """As a person does who tries a server in a shell: `printf ... | python server.py`."""
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in PIPELINED)
    file = tmp_path / "lines"
    file.write_bytes(lines)
    with file.open("rb") as source:
        given: dict[str, Any] = {"input": lines} if form == "pipe" else {"stdin": source}
        given |= {"capture_output": True, "env": ENVIRONMENT}
        done = subprocess.run([sys.executable, str(HOTEL)], timeout=30, check=True, **given)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(answer["id"], "result" in answer) for answer in answers] == [(1, True), (2, True)]
