"""What a client does not do by itself, and how often it does the rest."""

import asyncio
import contextlib
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fakes import DISCOVERED, LEGACY, Exchange, FakePipe, http_server, initialized, reply, sse
from weft import Client, ClientLimits, ConnectionFailed
from weft.client import auth
from weft.client import callbacks as calls
from weft.client.handlers import ServerRequestHandlers
from weft.client.requests import subscriptions
from weft.errors import WeftError
from weft.types.lifecycle import ProgressParams

TEXT = {"content": [{"type": "text", "text": "done"}]}
META = "io.modelcontextprotocol/"
# What can be switched on.
SWITCHES = [one.name for one in inspect.signature(Client).parameters.values() if isinstance(one.default, bool)]


def serve(answer: Any = TEXT, *, is_session: bool = False) -> FakePipe:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "server/discover" if is_session:
                pipe.answer(message, error={"code": -32601, "message": "Method not found"})
            case "server/discover":
                pipe.answer(message, {**DISCOVERED, "ttlMs": 1})
            case "initialize":
                pipe.answer(message, initialized(LEGACY))
            case _ if "id" in message:
                answer(pipe, message) if callable(answer) else pipe.answer(message, answer)

    return FakePipe(handle)


# --- asking again


@pytest.mark.spec("CACHE-10")
async def test_nothing_is_asked_again_because_it_has_gone_stale() -> None:
    page = {"tools": [], "prompts": [], "resources": [], "contents": [], "ttlMs": 1, "cacheScope": "public"}
    server = serve(page)
    async with Client(server) as client:
        for fetch in (client.list_tools, client.list_prompts, client.list_resources):
            await fetch()
        await client.read_resource("x://a")
        heard = len(server.heard)
        await asyncio.sleep(0.3)  # three hundred times as long as all of it was fresh
        assert len(server.heard) == heard


@pytest.mark.spec("CACHE-10")
async def test_a_stream_that_breaks_is_asked_for_again_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
            return
        params = {"_meta": {f"{META}subscriptionId": exchange.message["id"]}, "notifications": {}}
        message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        if not pauses:
            await exchange.stream(sse(json.dumps(message)))
        exchange.cut()

    runs: list[list[float]] = []
    async with http_server(handle) as url, Client(url) as client:
        monkeypatch.setattr(subscriptions, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": noted}))
        for _ in range(2):
            pauses.clear()
            async with client.listen(tools=True) as changes:
                with pytest.raises(ConnectionFailed):
                    await asyncio.wait_for(anext(changes), 30)
            runs.append(pauses.copy())
    first, second = runs
    assert len(first) == len(second) == ClientLimits().resumptions
    assert first == sorted(first)  # they grow
    assert first[-1] > 4 * first[0]
    assert not set(first) & set(second)  # and no two clients keep step


@pytest.mark.spec("CACHE-10")
async def test_so_it_is_with_a_standing_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    pause = calls.pause

    def noted(attempt: int, asked: int | None = None) -> float:
        attempts.append(attempt)
        assert pause(attempt) != pause(attempt)
        return 0.0

    monkeypatch.setattr("weft.client.callbacks.pause", noted)
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.method == "GET":
            streams += 1
            await (exchange.stream() if streams == 1 else exchange.respond(503))
        elif "id" in exchange.message:
            await exchange.respond(200, reply(exchange.message, initialized()))
        else:
            await exchange.respond(202)

    async with http_server(handle) as url, Client(url, eras=["session"]) as client:
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(anext(client.listen()), 30)
    assert attempts == sorted(attempts)
    assert len(set(attempts)) >= 4


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_so_it_is_with_one_that_is_taken_and_lost_at_once_every_time(
    monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    attempts: list[int] = []
    enough = asyncio.Event()

    def noted(attempt: int, asked: int | None = None) -> float:
        attempts.append(attempt)
        if len(attempts) == 12:
            enough.set()
        return 0.0 if len(attempts) < 12 else 60.0

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.stream(b": hello\n\n")
        elif exchange.rpc == "subscriptions/listen":
            params = {"_meta": {f"{META}subscriptionId": exchange.message["id"]}, "notifications": {}}
            message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
            await exchange.stream(sse(json.dumps(message)))
        elif "id" in exchange.message:
            await exchange.result(DISCOVERED if mode == "stateless" else initialized())
        else:
            await exchange.respond(202)

    monkeypatch.setattr("weft.client.callbacks.pause", noted)
    async with http_server(handle) as url, Client(url, eras=[mode]) as client, client.listen():
        await asyncio.wait_for(enough.wait(), 30)
    assert attempts == [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4]  # it is not given up


def test_one_that_stood_for_a_while_is_asked_for_soon_again() -> None:
    attempts = calls.Attempts()
    for _ in range(5):
        attempts.took(stood=0.1)
    assert attempts.pause() > 2
    attempts.took(stood=6)
    assert attempts.pause() < 0.5


# --- progress


@pytest.mark.security("D12")
async def test_what_a_function_has_not_taken_yet_is_bound_by_its_size_too() -> None:
    """A thousand messages of 16 MiB each would wait otherwise; the newest is kept, whatever its size."""
    taken: list[int] = []
    gate = asyncio.Event()

    async def take(number: int) -> None:
        await gate.wait()
        taken.append(number)

    courier = calls.CallbackQueue(take, 1000, "take(number)")
    courier.call(0)
    for number in range(1, 6):
        courier.call(number, size=calls._WAITING_BYTES // 2)
    gate.set()
    await courier.drain(5)
    assert taken == [0, 4, 5]
    taken.clear()
    gate.clear()
    courier.call(0)
    courier.call(1)
    courier.call(2, size=calls._WAITING_BYTES + 1)
    gate.set()
    await courier.drain(5)
    assert taken == [0, 2]


@pytest.mark.security("D12")
async def test_a_large_log_message_a_large_notification_and_large_progress_count_as_such() -> None:
    gate = asyncio.Event()
    heard: list[str] = []

    async def take(*_: Any) -> None:
        await gate.wait()
        heard.append("one")

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
            return
        big = "x" * (calls._WAITING_BYTES // 2)
        token = message["params"]["_meta"]["progressToken"]
        for number in range(5):
            pipe.say({"method": "notifications/message", "params": {"level": "info", "data": big}})
            told = {"progressToken": token, "progress": number, "message": big}
            pipe.say({"method": "notifications/progress", "params": told})
        pipe.answer(message, {"content": []})

    async with Client(FakePipe(handle), on_log=take, on_notification=take) as client:
        asyncio.get_running_loop().call_later(0.3, gate.set)
        await client.call_tool("t", progress=take)
        await asyncio.sleep(0.1)
    assert len(heard) == 6  # of each, the first and the last: all others are half of what may wait, and a little


@pytest.mark.spec("PROG-07")
@pytest.mark.security("D12")
async def test_progress_that_nobody_asked_for_is_dropped_and_a_flood_of_it_bounded() -> None:
    told: list[float] = []
    go = asyncio.Event()

    async def slowly(progress: ProgressParams) -> None:
        told.append(progress.progress)
        await go.wait()

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        token = message["params"].get("_meta", {}).get("progressToken")
        tokens = ["nobody", 10**6, *([] if token is None else [token])]
        for number in range(2000):
            for one in tokens:
                params = {"progressToken": one, "progress": number}
                pipe.say({"method": "notifications/progress", "params": params})
        asyncio.get_running_loop().call_soon(go.set)
        pipe.answer(message, TEXT)

    server = serve(answer)
    async with Client(server, limits=ClientLimits(changes_kept=10)) as client:
        assert (await client.call_tool("t", progress=slowly)).text == "done"
        assert len(told) == 11  # the first, and the last ten: what came in between was not kept
        assert told == [0, *range(1990, 2000)]
        token = server.calls("tools/call")[0]["params"]["_meta"]["progressToken"]
        server.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 9999}})
        assert (await client.call_tool("t")).text == "done"  # which has no token, so none of that is its own
    assert len(told) == 11


# --- what is old


@pytest.mark.spec("DEP-01", "LOG-08")
@pytest.mark.parametrize("is_session", [False, True])
async def test_a_plain_client_uses_nothing_that_is_going_away(is_session: bool) -> None:
    server = serve(is_session=is_session)
    async with Client(server, elicit=lambda _: {}) as client:
        await client.call_tool("t")
    if is_session:
        declared = [server.calls("initialize")[0]["params"]["capabilities"]]
    else:
        metas = [message["params"]["_meta"] for message in server.heard]
        assert not [meta for meta in metas if f"{META}logLevel" in meta]
        declared = [meta[f"{META}clientCapabilities"] for meta in metas]
    tasks = "tasks" if is_session else "extensions"
    assert all(set(one) == {"elicitation", tasks} for one in declared)  # neither roots nor sampling
    assert server.calls("logging/setLevel") == []


@pytest.mark.spec("DEP-01")
def test_who_samples_does_not_offer_the_context_of_servers() -> None:
    for functions in ({"sample": print}, {"sample_with_tools": print}):
        sampling = ServerRequestHandlers(**functions).capabilities.sampling
        assert sampling is not None
        assert sampling.context is None


@pytest.mark.spec("DEP-01")
async def test_the_oldest_transport_is_tried_last() -> None:
    tried: list[str] = []

    async def handle(exchange: Exchange) -> None:
        tried.append(f"{exchange.method} {exchange.rpc}".strip())
        await exchange.respond(405)

    async with http_server(handle) as url:
        with pytest.raises(ConnectionFailed):
            await Client(url).connect()
    assert tried == ["POST server/discover", "POST initialize", "GET"]


@pytest.mark.spec("L03-04")
@pytest.mark.parametrize(
    ("version", "has_header"),
    [("2025-11-25", True), ("2025-06-18", True), ("2025-03-26", False), ("2024-11-05", False)],
)
async def test_a_revision_without_a_version_header_is_sent_none(version: str, has_header: bool) -> None:
    seen: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        seen.append(exchange)
        if exchange.rpc == "initialize":
            await exchange.result(initialized(version), mcp_session_id="s1")
        elif "id" in exchange.message:
            await exchange.result(TEXT)
        else:
            await exchange.respond(405 if exchange.method == "GET" else 202)

    async with http_server(handle) as url, Client(url, eras=["session"]) as client:
        assert client.protocol_version == version
        await client.call_tool("t")
    later = [exchange for exchange in seen if exchange.rpc != "initialize"]
    assert {exchange.method for exchange in later} == {"POST", "GET", "DELETE"}
    assert {exchange.headers.get("mcp-protocol-version") for exchange in later} == {version if has_header else None}
    assert {exchange.headers["mcp-session-id"] for exchange in later} == {"s1"}


# --- names


@pytest.mark.spec("META-12")
async def test_prefixes_of_keys_are_domains_read_backwards() -> None:
    server = serve({**TEXT, "tools": []})
    async with Client(server, log_level="info", elicit=lambda _: {}) as client:
        await client.call_tool("t", progress=lambda _: None)
        await client.list_tools()
    keys = {key for message in server.heard for key in message["params"]["_meta"]}
    prefixes = {key.partition("/")[0] for key in keys if "/" in key}
    ways = [getattr(auth, name) for name in auth.__all__]
    prefixes |= {way.extension.partition("/")[0] for way in ways if getattr(way, "extension", None)}
    assert len(keys) >= 4
    assert prefixes == {"io.modelcontextprotocol"}  # the domain is modelcontextprotocol.io


@pytest.mark.spec("VER-07")
@pytest.mark.parametrize("way", [auth.ClientCredentials, auth.EnterpriseManaged])
def test_what_happens_without_an_extension_is_written_down(way: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/extensions.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| `{way.extension}`")]
    assert len(rows) == 1
    assert f"auth={way.__name__}(" in rows[0]
    assert "`AuthorizationFailed`" in rows[0]
    assert "`auth=OAuth(...)`" in rows[0]  # what to fall back to


def test_no_extension_is_forgotten() -> None:
    ways = {getattr(auth, name) for name in auth.__all__}
    declared = {way for way in ways if isinstance(way, type) and getattr(way, "extension", None)}
    assert declared == {auth.ClientCredentials, auth.EnterpriseManaged}


@pytest.mark.spec("JSCH-07")
@pytest.mark.parametrize("option", [None, *SWITCHES])
async def test_there_is_no_mode_in_which_references_are_fetched(option: str | None) -> None:
    visits: list[str] = []

    async def visited(exchange: Exchange) -> None:
        visits.append(exchange.path)
        await exchange.respond(200, b'{"type": "integer"}')

    async with http_server(visited) as url:
        schema = {"type": "object", "properties": {"a": {"$ref": url}}}
        tools = [{"name": "t", "inputSchema": schema, "outputSchema": schema}]
        form = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}
        asking = {"resultType": "input_required", "inputRequests": {"k": form}}
        result = {**TEXT, "structuredContent": {"a": 1}}

        def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
            asks = message["method"] == "prompts/get"
            pipe.answer(message, {"tools": tools} if message["method"] == "tools/list" else asking if asks else result)

        options = {} if option is None else {option: True}
        async with Client(serve(answer), elicit=lambda _: {"a": 1}, **options) as client:
            assert (await client.list_tools())[0].output_schema == schema
            for call in (client.call_tool("t"), client.get_prompt("p")):
                with contextlib.suppress(WeftError):
                    await call
    assert visits == []


# --- one process for all


@pytest.mark.spec("STATE-04")
async def test_one_child_serves_all_conversations(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "import sys, json, os\n"
        "for line in sys.stdin:\n"
        "    message = json.loads(line)\n"
        "    if 'id' in message and message.get('params', {}).get('name') != 'never':\n"
        f"        result = {DISCOVERED!r} if message['method'] == 'server/discover' else \\\n"
        "            {'content': [{'type': 'text', 'text': str(os.getpid())}]}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result}), flush=True)\n"
    )
    client = Client([sys.executable, str(program)])
    await asyncio.create_task(client.connect())

    async def converse() -> set[str]:
        return {(await client.call_tool("t")).text for _ in range(3)}

    pids = [await asyncio.create_task(converse()) for _ in range(3)]  # one after the other
    pids += await asyncio.gather(*(converse() for _ in range(10)))  # and at once
    given_up = asyncio.create_task(client.call_tool("never"))
    await asyncio.sleep(0.05)
    given_up.cancel()  # one that ends badly takes nothing with it
    await asyncio.wait([given_up])
    pids.append(await converse())
    assert set.union(*pids) == {str(client.transport.pid)}  # type: ignore[attr-defined]  # of a child process
    await asyncio.create_task(client.close())
