"""Connecting, reconnecting, agreeing anew and closing, at the same time and from whatever tasks.

However these meet: nothing hangs, nobody is cancelled who was not, and nothing is open after a close.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.fakes import DISCOVERED, LEGACY, Exchange, FakePipe, http_server, initialized
from weft import Client, ClientLimits, ConnectionFailed
from weft.client.connection.connect_lock import ConnectLock
from weft.client.connection.connection import ClientConnection
from weft.client.connection.transport import MemoryTransport
from weft.client.handlers import ServerRequestHandlers
from weft.eras.client import StatelessClient
from weft.errors import UsageError
from weft.limits import DEFAULT_CLIENT_LIMITS
from weft.types.base import Implementation

KINDS = [
    pytest.param("stdio", marks=pytest.mark.skipif(sys.platform == "win32", reason="looks for processes")),
    "http",
    "memory",
]
CLOSED = "The client was closed meanwhile."
OVER = {"code": -32022, "message": "no", "data": {"supported": [LEGACY]}}  # what was agreed on is not so any more
QUICK = ClientLimits(close_seconds=0.3)

CHILD = """
import json, os, sys
folder, greetings, greeted, over = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
open(f"{folder}/{os.getpid()}", "w").close()
for line in sys.stdin:
    message = json.loads(line)
    said = {"error": over}
    if message.get("method") == "server/discover":
        with open(f"{folder}/greetings", "a+") as file:
            print(file=file)
            file.seek(0)
            if len(file.readlines()) > greetings:
                continue
        said = {"result": greeted}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""


class Peer:
    """A server that can be greeted so many times, then it is silent; any other request says that all is over."""

    def __init__(self, target: Any, is_gone: Callable[[], bool]) -> None:
        self.target = target
        self.is_gone = is_gone  # whether no child or pipe of it is left


@asynccontextmanager
async def peer(kind: str, folder: Path, greetings: int) -> AsyncIterator[Peer]:
    """One of each kind."""
    greeted = 0

    def answers(message: dict[str, Any]) -> bool:
        nonlocal greeted
        greeted += message["method"] == "server/discover"
        return greeted <= greetings

    def in_process(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            if answers(message):
                pipe.answer(message, DISCOVERED)
        elif "id" in message:
            pipe.answer(message, error=OVER)

    async def over_http(exchange: Exchange) -> None:
        if exchange.rpc != "server/discover":
            await exchange.error(400, OVER["code"], OVER["data"])
        else:
            await (exchange.result(DISCOVERED) if answers(exchange.message) else exchange.hang())

    if kind == "memory":
        server = FakePipe(in_process)
        yield Peer(server, lambda: server.is_closed or not server.heard)
    elif kind == "http":
        async with http_server(over_http) as url:
            yield Peer(url, lambda: True)
    else:
        command = [sys.executable, "-c", CHILD, str(folder), str(greetings), json.dumps(DISCOVERED), json.dumps(OVER)]
        yield Peer(command, lambda: not children(folder))


def started(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdigit()]


def children(folder: Path) -> list[int]:
    """Those that were started and still run."""
    return [pid for pid in started(folder) if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def left() -> list[str]:
    """The tasks that are there beside the test's own and those of its server."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    return [name for task in tasks if "http_server" not in (name := getattr(task.get_coro(), "__qualname__", "?"))]


async def assert_closed(client: Client, server: Peer | None = None) -> None:
    with pytest.raises(UsageError, match="not connected"):
        _ = client.era
    await asyncio.sleep(0)
    assert left() == []
    assert server is None or server.is_gone()


async def assert_overtaken(task: asyncio.Task[Any]) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        await asyncio.wait_for(task, 15)
    assert str(caught.value) == CLOSED
    assert task.cancelling() == 0


# --- a close that overtakes


@pytest.mark.parametrize("seconds", [0, 0.001, 0.02, 0.3])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_close_ends_the_connecting(kind: str, seconds: float, tmp_path: Path) -> None:
    async with peer(kind, tmp_path, greetings=0) as server:
        client = Client(server.target)
        connecting = asyncio.create_task(client.connect())
        await asyncio.sleep(seconds)
        await asyncio.wait_for(client.close(), 30)
        await assert_overtaken(connecting)
        await assert_closed(client, server)


@pytest.mark.parametrize("seconds", [0, 0.001, 0.02, 0.3])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_close_ends_the_reconnecting(kind: str, seconds: float, tmp_path: Path) -> None:
    async with peer(kind, tmp_path, greetings=1) as server:
        client = Client(server.target)
        await client.connect()
        reconnecting = asyncio.create_task(client.reconnect())
        await asyncio.sleep(seconds)
        await asyncio.wait_for(client.close(), 30)
        await assert_overtaken(reconnecting)
        await assert_closed(client, server)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_close_ends_the_agreeing_anew(kind: str, tmp_path: Path) -> None:
    async with peer(kind, tmp_path, greetings=1) as server:
        client = Client(server.target)
        await client.connect()
        calls = [asyncio.create_task(client.call_tool("t")) for _ in range(3)]  # the first does it for all
        await asyncio.sleep(0.2)
        await asyncio.wait_for(client.close(), 30)
        for call in calls:
            await assert_overtaken(call)
        await assert_closed(client, server)


async def test_a_close_ends_the_agreeing_on_a_session_anew() -> None:
    sessions = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal sessions
        if exchange.rpc == "initialize":
            sessions += 1
            await (exchange.result(initialized(), mcp_session_id="one") if sessions == 1 else exchange.hang())
        elif exchange.method == "DELETE":
            await exchange.respond(200)
        else:
            await exchange.respond(405 if exchange.method == "GET" else 404 if "id" in exchange.message else 202)

    async with http_server(handle) as url:
        client = Client(url, eras=["session"])
        await client.connect()
        call = asyncio.create_task(client.call_tool("t"))
        await asyncio.sleep(0.2)
        await asyncio.wait_for(client.close(), 30)
        await assert_overtaken(call)
        await assert_closed(client)
    assert sessions == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_was_closed_while_it_reconnected_can_be_connected_again(kind: str, tmp_path: Path) -> None:
    async with peer(kind, tmp_path, greetings=5) as server:
        client = Client(server.target)
        await client.connect()
        reconnecting = asyncio.create_task(client.reconnect())
        await asyncio.sleep(0)
        await client.close()
        await assert_overtaken(reconnecting)
        async with client:
            assert client.era == "stateless"
        await assert_closed(client, server)


async def test_all_who_wait_to_connect_are_overtaken() -> None:
    client = Client(FakePipe(lambda pipe, message: None))
    connecting = [asyncio.create_task(client.connect()) for _ in range(3)]
    await asyncio.sleep(0.02)
    await asyncio.wait_for(client.close(), 15)
    for one in connecting:
        await assert_overtaken(one)
    await assert_closed(client)


async def test_what_was_agreed_on_before_a_close_is_not_agreed_on_again_after_it() -> None:
    """A call that finds out late must not touch the next connection."""
    server = FakePipe(lambda pipe, message: pipe.answer(message, DISCOVERED))
    client = Client(server)
    await client.connect()
    renew, generation = client._exchange.renew, client._connected().generation
    await client.close()
    async with client:
        with pytest.raises(ConnectionFailed) as caught:
            await renew(generation)
        assert str(caught.value) == CLOSED
        assert len(server.calls("server/discover")) == 2


# --- what comes after a close


async def test_connecting_waits_for_the_close_before_it() -> None:
    sessions, ended = 0, []

    async def handle(exchange: Exchange) -> None:
        nonlocal sessions
        if exchange.method == "DELETE":
            await asyncio.sleep(0.2)
            ended.append(exchange.headers["mcp-session-id"])
            await exchange.respond(200)
        elif exchange.rpc == "initialize":
            sessions += 1
            await exchange.result(initialized(), mcp_session_id=f"s{sessions}")
        elif "id" in exchange.message:
            await exchange.result({"content": [{"type": "text", "text": "done"}]})
        else:
            await exchange.respond(405 if exchange.method == "GET" else 202)

    async with http_server(handle) as url:
        client = Client(url, eras=["session"])
        await client.connect()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(client.connect(), 15)
        assert closing.done()
        assert (await client.call_tool("t")).text == "done"
        await client.close()
        await assert_closed(client)
    assert ended == ["s1", "s2"]


async def test_several_closes_at_once_return_when_it_is_closed() -> None:
    class Slow(FakePipe):
        async def close(self) -> None:
            await asyncio.sleep(0.05)
            await super().close()

    server = Slow(lambda pipe, message: pipe.answer(message, DISCOVERED))
    client = Client(server)
    await client.connect()

    async def close() -> bool:
        await client.close()
        return server.is_closed

    assert await asyncio.wait_for(asyncio.gather(close(), close(), close()), 15) == [True, True, True]
    await assert_closed(client)


async def test_connecting_twice_at_once_is_one_connection() -> None:
    server = FakePipe(lambda pipe, message: pipe.answer(message, DISCOVERED))
    client = Client(server)
    await asyncio.gather(client.connect(), client.connect())
    assert len(server.calls("server/discover")) == 1
    await client.close()
    await assert_closed(client)


# --- who is cancelled


@pytest.mark.parametrize("is_closed_too", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_one_who_is_cancelled_while_connecting_stays_so(kind: str, is_closed_too: bool, tmp_path: Path) -> None:
    async with peer(kind, tmp_path, greetings=0) as server:
        client = Client(server.target)
        connecting = asyncio.create_task(client.connect())
        await asyncio.sleep(0.1)
        connecting.cancel()
        if is_closed_too:
            await client.close()
        await asyncio.wait([connecting])
        assert connecting.cancelled()
        await assert_closed(client, server)


@pytest.mark.skipif(sys.platform == "win32", reason="looks for processes")
@pytest.mark.parametrize("verb", ["reconnect", "close"])
async def test_a_close_waits_for_the_child_that_a_cancelled_task_was_ending(verb: str, tmp_path: Path) -> None:
    stubborn = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{CHILD}\ntime.sleep(60)"
    async with peer("stdio", tmp_path, greetings=1) as server:
        command = [*server.target[:2], stubborn, *server.target[3:]]
        client = Client(command, limits=QUICK)
        await client.connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await getattr(client, verb)()
        assert not server.is_gone()
        await asyncio.wait_for(client.close(), 30)
        await assert_closed(client, server)


async def test_connecting_after_one_who_gave_up_to_close() -> None:
    closed: list[bool] = []

    class Slow(FakePipe):
        async def close(self) -> None:
            await asyncio.sleep(0.05)
            closed.append(True)

    server = Slow(lambda pipe, message: pipe.answer(message, DISCOVERED))
    client = Client(server)
    await client.connect()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await client.close()
    assert closed == []
    await client.connect()
    assert closed == [True]
    assert client.era == "stateless"
    await client.close()
    await assert_closed(client)
    assert closed == [True, True]


@pytest.mark.skipif(sys.platform == "win32", reason="looks for processes")
async def test_calls_wait_for_the_reconnecting(tmp_path: Path) -> None:
    done = {"content": [{"type": "text", "text": "done"}]}
    command = [sys.executable, "-c", CHILD.replace('{"error": over}', '{"result": over}'), str(tmp_path), "2"]
    async with Client([*command, json.dumps(DISCOVERED), json.dumps(done)]) as client:
        reconnecting = asyncio.create_task(client.reconnect())
        await asyncio.sleep(0)
        calls: list[asyncio.Task[Any]] = []
        while not reconnecting.done():
            calls.append(asyncio.create_task(client.call_tool("t")))
            await asyncio.sleep(0.005)
        await reconnecting
        assert {result.text for result in await asyncio.gather(*calls)} == {"done"}
    assert children(tmp_path) == []
    assert len(started(tmp_path)) == 2


@pytest.mark.parametrize("verb", ["connect", "reconnect"])
async def test_one_who_gives_up_to_close_has_overtaken_all_the_same(verb: str) -> None:
    class Slow(FakePipe):
        async def close(self) -> None:
            await asyncio.sleep(0.05)
            await super().close()

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if len(pipe.heard) == 1 and verb == "reconnect":
            pipe.answer(message, DISCOVERED)

    server = Slow(handle)
    client = Client(server)
    if verb == "reconnect":
        await client.connect()
    connecting = asyncio.create_task(getattr(client, verb)())
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await client.close()
    await assert_overtaken(connecting)
    await assert_closed(client)
    assert server.is_closed


async def nothing() -> None:
    """There is no connection to end."""


async def test_a_failure_that_is_none_of_ours_comes_out_as_it_is() -> None:
    life = ConnectLock(nothing)

    async def fail() -> None:
        async with life.change():
            try:
                await asyncio.sleep(60)
            finally:
                _ = 1 / 0

    failing = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await life.close()
    with pytest.raises(ZeroDivisionError):
        await failing
    assert failing.cancelling() == 0


async def test_a_change_that_was_done_in_spite_of_a_close_is_overtaken_all_the_same() -> None:
    life = ConnectLock(nothing)

    async def go_on() -> None:
        async with life.change():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    going_on = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    await life.close()
    await assert_overtaken(going_on)


# --- the user's functions


def asking(question: dict[str, Any]) -> FakePipe:
    """A server of the session era that asks while it is called, and never answers."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message.get("method") == "initialize":
            pipe.answer(message, initialized())
        elif message.get("method") == "tools/call":
            pipe.say(question)

    return FakePipe(handle)


FORM = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
ELICIT = {"id": 1, "method": "elicitation/create", "params": FORM}
LOG = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}


@pytest.mark.parametrize(("option", "question"), [("elicit", ELICIT), ("on_log", LOG), ("on_notification", LOG)])
async def test_a_function_may_close_the_client_and_goes_on(option: str, question: dict[str, Any]) -> None:
    went_on = asyncio.Event()

    async def close(*_: Any) -> None:
        await client.close()
        went_on.set()

    client = Client(asking(question), eras=["session"], **{option: close})
    await client.connect()
    with pytest.raises(ConnectionFailed):
        await asyncio.wait_for(client.call_tool("t"), 15)
    await asyncio.wait_for(went_on.wait(), 15)
    await asyncio.sleep(0.01)
    await assert_closed(client)


async def test_a_function_may_close_the_client_between_two_rounds() -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        asks = {"a": {"method": "elicitation/create", "params": FORM}}
        asked = {"resultType": "input_required", "inputRequests": asks}
        pipe.answer(message, DISCOVERED if message["method"] == "server/discover" else asked)

    async def elicit(_: Any) -> dict[str, Any]:
        await client.close()
        return {}

    server = FakePipe(handle)
    client = Client(server, elicit=elicit)
    await client.connect()
    with pytest.raises(ConnectionFailed, match="was closed"):
        await asyncio.wait_for(client.call_tool("t"), 15)
    assert len(server.calls("tools/call")) == 1
    await assert_closed(client)


@pytest.mark.parametrize(("option", "question"), [("elicit", ELICIT), ("on_log", LOG), ("on_notification", LOG)])
async def test_a_function_that_closes_at_its_end_does_not_wait_for_the_one_who_ends_it(
    option: str, question: dict[str, Any]
) -> None:
    began = asyncio.Event()

    async def function(*_: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await client.close()

    client = Client(asking(question), eras=["session"], **{option: function})
    await client.connect()
    call = asyncio.create_task(client.call_tool("t"))
    await began.wait()
    await asyncio.wait_for(client.close(), 0.5)
    with pytest.raises(ConnectionFailed):
        await call
    await assert_closed(client)


@pytest.mark.parametrize(("option", "question"), [("elicit", ELICIT), ("on_log", LOG)])
async def test_a_function_may_close_the_client_while_it_connects(option: str, question: dict[str, Any]) -> None:
    async def close(*_: Any) -> None:
        await client.close()

    client = Client(FakePipe(lambda pipe, message: pipe.say(question)), eras=["session"], **{option: close})
    await assert_overtaken(asyncio.create_task(client.connect()))
    await assert_closed(client)


async def test_a_login_may_close_the_client_that_it_is_for() -> None:
    class Undecided:
        async def headers(self, url: str, method: str) -> Mapping[str, str]:
            await client.close()
            return {}

        async def refused(self, *_: Any) -> bool:
            return False

    async with peer("http", Path(), greetings=1) as server:
        client = Client(server.target, auth=Undecided())
        await assert_overtaken(asyncio.create_task(client.connect()))
        await assert_closed(client)


@pytest.mark.parametrize("option", ["elicit", "on_log"])
async def test_a_function_that_does_not_end_is_not_waited_for(
    option: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weft.client.callbacks._END_SECONDS", 0.1)
    may_end = asyncio.Event()

    async def deaf(*_: Any) -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    client = Client(asking(ELICIT if option == "elicit" else LOG), eras=["session"], limits=QUICK, **{option: deaf})
    await client.connect()
    call = asyncio.create_task(client.call_tool("t"))
    await asyncio.sleep(0.02)
    with caplog.at_level(logging.WARNING, "weft.client"):
        await asyncio.wait_for(client.close(), 15)
    with pytest.raises(ConnectionFailed):
        await call
    may_end.set()
    await asyncio.sleep(0.01)
    await assert_closed(client)
    if option == "elicit":
        assert "A function that answers the server 'FakePipe' in this process goes on although" in caplog.text


# --- a link that is closed


async def test_nothing_begins_on_a_link_that_is_closed() -> None:
    server = FakePipe(lambda pipe, message: None)
    limits = DEFAULT_CLIENT_LIMITS
    link = ClientConnection(
        MemoryTransport(server, "here"), StatelessClient(), ServerRequestHandlers(), Implementation("x", "1"), limits
    )
    await link.open()
    await link.close()
    for begin in (
        link.open,
        link.reopen,
        lambda: link.change(MemoryTransport(server, "there")),
        lambda: link.roundtrip("tools/call", {}),
        lambda: link.exchange(1, "tools/call", {}),
    ):
        with pytest.raises(ConnectionFailed, match=r"^The connection to here was closed\.$"):
            await asyncio.wait_for(begin(), 15)
    assert server.heard == []


# --- one loop


@pytest.mark.parametrize("verb", ["connect", "reconnect", "close", "call", "notify", "listen"])
def test_a_client_that_is_taken_into_another_loop_says_so(verb: str) -> None:
    server = FakePipe(lambda pipe, message: pipe.answer(message, DISCOVERED))
    client = Client(server)

    async def go_on() -> None:
        match verb:
            case "call":
                await client.call_tool("t")
            case "notify":
                await client.notify("notifications/x")
            case "listen":
                await client.listen().start()
            case _:
                await getattr(client, verb)()

    asyncio.run(client.connect())
    with pytest.raises(UsageError) as caught:
        asyncio.run(asyncio.wait_for(go_on(), 30))
    assert str(caught.value) == (
        "The client was connected in another event loop; use it within one asyncio.run(...), or use weft.sync.Client."
    )


def test_a_client_that_was_closed_can_be_connected_in_another_loop() -> None:
    client = Client(FakePipe(lambda pipe, message: pipe.answer(message, DISCOVERED)))

    async def connect_and_close() -> str:
        async with client:
            return client.era

    assert [asyncio.run(connect_and_close()), asyncio.run(connect_and_close())] == ["stateless"] * 2
