"""Context: what a handler knows of its call, and can do besides answering it."""

import asyncio
import dataclasses
from decimal import Decimal
from fractions import Fraction
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from support import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, VERSION, ask
from support.raw_sessions import AppPeer, called
from weft import Client, Context, Server
from weft.auth import TokenInfo
from weft.errors import UsageError
from weft.server.asking.questions import ask_roots
from weft.server.asking.rounds import InputRequired
from weft.types.base import LogLevel


async def facts(look: Any, *, params: dict | None = None, meta: dict | None = None, headers: dict | None = None) -> Any:
    """What a tool finds in its context: `look(ctx)`."""
    server = Server("looking")

    @server.tool
    async def looked(ctx: Context) -> Any:
        return look(ctx)

    response = await ask(server, "tools/call", {"name": "looked", **(params or {})}, meta=meta, headers=headers)
    return response.error if "error" in response.json else response.result["content"][0]["text"]


async def test_what_the_call_is() -> None:
    assert (
        await facts(lambda ctx: f"{ctx.method} {ctx.request_id} {ctx.protocol_version} {ctx.is_stateless}")
        == f"tools/call 1 {VERSION} True"
    )
    assert await facts(lambda ctx: ctx.server.name + ctx.params.name) == "lookinglooked"
    assert await facts(lambda ctx: str(ctx.lifespan)) == "None"
    assert len(await facts(lambda ctx: ctx.connection_id)) == 32
    assert await facts(lambda ctx: str(ctx.connection.initialize_accepted)) == "True"
    assert await facts(lambda ctx: str(ctx.token_info)) == "None"


async def test_who_sent_it() -> None:
    assert await facts(lambda ctx: ctx.client_info.name) == "t"
    assert await facts(lambda ctx: str(ctx.client_info), meta={CLIENT_INFO_KEY: None}) == "None"


@pytest.mark.parametrize(
    ("declared", "capability", "supported"),
    [
        ({}, "roots", False),
        ({"roots": {}}, "roots", True),
        ({"elicitation": {}}, "elicitation", True),
        ({"elicitation": {}}, "elicitation.form", True),
        ({"elicitation": {}}, "elicitation.url", False),
        ({"elicitation": {"url": {}}}, "elicitation.url", True),
        ({"elicitation": {"url": {}}}, "elicitation.form", False),
        ({"roots": {"listChanged": True}}, "roots.listChanged", True),
        ({"roots": {"listChanged": False}}, "roots.listChanged", False),
        ({"sampling": {"tools": {}}}, "sampling.tools", True),
        ({"sampling": {}}, "sampling.tools", False),
        ({"extensions": {"com.example/x": {}}}, "extensions.com.example/x", True),
        ({}, "extensions.com.example/x", False),
        ({}, "unheardOf", False),
    ],
)
@pytest.mark.spec("META-05", "VER-08")
async def test_client_supports(declared: dict, capability: str, supported: bool) -> None:
    meta = {CLIENT_CAPABILITIES_KEY: declared}
    assert await facts(lambda ctx: str(ctx.client_supports(capability)), meta=meta) == str(supported)


async def test_headers_are_there_without_credentials_and_read_only() -> None:
    sent = {"X-Thing": "a", "Authorization": "Bearer secret", "Cookie": "secret"}
    found = await facts(lambda ctx: str(dict(ctx.headers)), headers=sent)
    assert "'x-thing': 'a'" in found
    assert "secret" not in found
    with pytest.raises(TypeError):
        (await _context()).headers["x"] = "y"  # type: ignore[index] - that is the point


async def _context() -> Context:
    kept: list[Context] = []
    await facts(lambda ctx: kept.append(ctx) or "")
    return kept[0]


async def test_state_is_shared_by_middleware_and_handler_and_by_nobody_else() -> None:
    server = Server("sharing")

    @server.middleware
    async def before(ctx: Context, next: Any) -> Any:
        ctx.state.setdefault("seen", []).append("middleware")
        return await next()

    @server.tool
    async def look(ctx: Context) -> list[str]:
        return ctx.state["seen"]

    for _ in range(2):
        assert (await ask(server, "tools/call", {"name": "look"})).result["structuredContent"] == ["middleware"]


async def test_the_context_may_stand_anywhere_in_a_signature() -> None:
    server = Server("anywhere")

    @server.tool
    async def last(a: int, *, ctx: Context) -> str:
        return f"{a} {ctx.method}"

    @server.resource("x://{name}")
    async def resource(name: str, ctx: Context) -> str:
        return f"{name} {ctx.method}"

    @server.prompt
    def prompt(ctx: Context) -> str:
        return ctx.method

    called = await ask(server, "tools/call", {"name": "last", "arguments": {"a": 1}})
    assert called.result["content"][0]["text"] == "1 tools/call"
    assert (await ask(server, "resources/read", {"uri": "x://a"})).result["contents"][0]["text"] == "a resources/read"
    got = await ask(server, "prompts/get", {"name": "prompt"})
    assert got.result["messages"][0]["content"]["text"] == "prompts/get"
    listed = (await ask(server, "tools/list")).result["tools"][0]["inputSchema"]
    assert list(listed["properties"]) == ["a"]


@pytest.mark.spec("PROG-03", "PROG-08", "LOG-03")
async def test_a_plain_function_reports_with_wait() -> None:
    server = Server("plain")

    @server.tool
    def plain(ctx: Context) -> str:
        for step in (1, 2, 2):
            ctx.wait(ctx.report_progress(step, 2))
        ctx.wait(ctx.warning("careful"))
        return "done"

    response = await ask(server, "tools/call", {"name": "plain"}, meta={"progressToken": 5, LOG_LEVEL_KEY: "info"})
    sent = [
        (note["method"].rpartition("/")[2], note["params"].get("progress", note["params"].get("data")))
        for note in response.messages[:-1]
    ]
    assert sent == [("progress", 1), ("progress", 2), ("message", "careful")]
    assert type(response.messages[0]["params"]["progress"]) is int


@pytest.mark.spec("LOG-03")
@pytest.mark.parametrize("level", get_args(LogLevel))
async def test_one_method_per_level(level: str) -> None:
    server = Server("levels")

    @server.tool
    async def say(ctx: Context) -> str:
        await getattr(ctx, level)({"a": 1}, logger="me")
        return "done"

    response = await ask(server, "tools/call", {"name": "say"}, meta={LOG_LEVEL_KEY: "debug"})
    assert response.messages[0]["params"] == {"level": level, "data": {"a": 1}, "logger": "me"}


async def mistake(do: Any, meta: dict | None = None) -> str:
    """The sentence of the UsageError that `await do(ctx)` raises in a tool."""
    server, caught = Server("mistaken"), []

    @server.tool
    async def wrong(ctx: Context) -> str:
        with pytest.raises(UsageError) as raised:
            await do(ctx)
        caught.append(str(raised.value))
        return "told"

    assert (await ask(server, "tools/call", {"name": "wrong"}, meta=meta)).result["content"][0]["text"] == "told"
    return caught[0]


async def _wait(ctx: Context) -> None:
    ctx.wait(ctx.report_progress(1))


@pytest.mark.security("R1")
async def test_wait_in_an_async_function_is_refused_before_it_stops_the_loop() -> None:
    async with asyncio.timeout(30):
        assert await mistake(_wait) == (
            "ctx.wait(...) is for plain functions; in an async function write `await ...` instead."
        )


@pytest.mark.spec("PROG-03")
@pytest.mark.parametrize("meta", [None, {"progressToken": 1}])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_progress_that_json_cannot_say_is_refused(number: float, meta: dict | None) -> None:
    assert "progress=" in await mistake(lambda ctx: ctx.report_progress(number), meta)
    assert "total=" in await mistake(lambda ctx: ctx.report_progress(1, number), meta)


class Float32:
    """Stands for numpy.float32, which is no float."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.spec("PROG-03")
@pytest.mark.parametrize(
    ("number", "sent"),
    [
        (Decimal("0.5"), 0.5), (Fraction(1, 2), 0.5), (Float32(), 0.5), (True, 1.0), (2**70, 2**70), (3, 3),
    ],
)  # fmt: skip
async def test_progress_can_be_any_number(number: Any, sent: float) -> None:
    server = Server("counting")

    @server.tool
    async def count(ctx: Context) -> str:
        await ctx.report_progress(number, number)
        return "done"

    note, _ = (await ask(server, "tools/call", {"name": "count"}, meta={"progressToken": 1})).messages
    assert (note["params"]["progress"], note["params"]["total"]) == (sent, sent)
    assert type(note["params"]["progress"]) is type(sent)


@pytest.mark.parametrize("meta", [None, {"progressToken": 1}])
@pytest.mark.parametrize("number", ["1", Decimal("sNaN"), pytest.param(10**5000, id="large"), 1j, object()])
async def test_progress_that_is_no_number_is_refused(number: Any, meta: dict | None) -> None:
    for name, do in (
        ("progress", lambda ctx: ctx.report_progress(number)),
        ("total", lambda ctx: ctx.report_progress(1, number)),
    ):
        assert await mistake(do, meta) == (
            f"report_progress({name}=<{type(number).__name__}>) is not possible: JSON has no such number. Give a "
            "finite number."
        )


@pytest.mark.parametrize("meta", [None, {"progressToken": 1}])
async def test_a_message_of_progress_that_is_no_text_is_refused(meta: dict | None) -> None:
    assert await mistake(lambda ctx: ctx.report_progress(1, 2, b"painting"), meta) == (
        "report_progress(...) is not possible: the message must be a text, not a bytes. Write str(...)."
    )


async def test_messages_that_are_not_unicode_are_sent_with_a_replacement() -> None:
    """The names of files can have lone surrogates, which JSON has not. Data with them is refused."""
    server = Server("files")

    @server.tool
    async def look(ctx: Context) -> str:
        await ctx.report_progress(1, message="painting \udcff.png")
        await ctx.error("no \udcff.png")
        with pytest.raises(UsageError, match="cannot be sent as JSON"):
            await ctx.error({"file": "\udcff.png"})
        return "done"

    answer = await ask(server, "tools/call", {"name": "look"}, meta={"progressToken": 1, LOG_LEVEL_KEY: "debug"})
    progress, log, result = answer.messages
    assert progress["params"]["message"] == "painting \ufffd.png"
    assert log["params"]["data"] == "no \ufffd.png"
    assert result["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("meta", [None, {LOG_LEVEL_KEY: "debug"}])
async def test_a_log_level_that_there_is_not_is_refused_whoever_listens(meta: dict | None) -> None:
    assert await mistake(lambda ctx: ctx.log("warn", "x"), meta) == (
        "There is no log level 'warn'; the levels are debug, info, notice, warning, error, critical, alert, emergency."
    )


@dataclasses.dataclass
class Point:
    x: int


class Note(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        (Point(1), {"x": 1}),
        (Note(text="a"), {"text": "a"}),
        ({"notes": [Note(text="b")]}, {"notes": [{"text": "b"}]}),
        ({"a": {1}}, {"a": [1]}),
        (None, None),
    ],
)
async def test_what_is_logged_may_be_anything_that_is_json(data: Any, sent: Any) -> None:
    server = Server("logging")

    @server.tool
    async def say(ctx: Context) -> str:
        await ctx.info(data)
        return "done"

    response = await ask(server, "tools/call", {"name": "say"}, meta={LOG_LEVEL_KEY: "debug"})
    assert response.messages[0]["params"]["data"] == sent


async def test_what_is_not_json_is_not_logged() -> None:
    sentence = await mistake(lambda ctx: ctx.info(object()), {LOG_LEVEL_KEY: "debug"})
    assert sentence.startswith("The logged value is of type object, which is not JSON.")


# The answers of an earlier round.


class Answer(BaseModel):
    action: str


class Roots(BaseModel):
    roots: list[dict[str, str]]


async def second_round(look: Any, answer: Any) -> Any:
    """What a tool finds in its context when it is called again, with an answer to the question `q` that it returned."""
    server = Server("rounds")

    @server.tool
    async def looked(ctx: Context) -> Any:
        return look(ctx) if ctx.is_retry else InputRequired({"q": ask_roots()}, state={"action": "kept"})

    meta = {CLIENT_CAPABILITIES_KEY: {"roots": {}}}
    first = (await ask(server, "tools/call", {"name": "looked"}, meta=meta)).result
    params = {"name": "looked", "inputResponses": {"q": answer}, "requestState": first["requestState"]}
    response = await ask(server, "tools/call", params, id=2, meta=meta)
    return response.error if "error" in response.json else response.result["content"][0]["text"]


async def test_the_answers_that_came_with_a_call() -> None:
    roots = {"roots": [{"uri": "file:///a"}]}
    assert await second_round(lambda ctx: str(dict(ctx.input_responses)), roots) == str({"q": roots})
    assert await second_round(lambda ctx: ctx.input_response("q", Roots).roots[0]["uri"], roots) == "file:///a"
    flags = await second_round(lambda ctx: f"{ctx.has_input_response('q')} {ctx.has_input_response('z')}", roots)
    assert flags == "True False"
    assert await second_round(lambda ctx: ctx.request_state_as(Answer).action, roots) == "kept"


async def test_a_first_round_has_none() -> None:
    look = await facts(lambda ctx: f"{dict(ctx.input_responses)} {ctx.is_retry} {ctx.request_state_as(Answer)}")
    assert look == "{} False None"


@pytest.mark.parametrize(
    "look",
    [
        lambda ctx: ctx.input_response("z", Roots),
        lambda ctx: ctx.input_response("q", Answer),
        lambda ctx: ctx.request_state_as(Roots),
    ],
)
async def test_an_answer_that_does_not_fit_is_the_clients_fault(look: Any) -> None:
    assert (await second_round(look, {"roots": []}))["code"] == -32602


async def test_nobody_can_say_later_who_is_calling() -> None:
    server = Server("s")

    @server.middleware
    async def pretend(ctx: Context, next: Any) -> Any:
        with pytest.raises(AttributeError):
            ctx.token_info = TokenInfo("ann")  # type: ignore[misc] - that is what is tried
        return await next()

    server.add_tool(lambda: "x", name="run")
    assert (await ask(server, "tools/call", {"name": "run"})).result["content"][0]["text"] == "x"


async def test_without_a_session_no_id_names_one() -> None:
    assert await facts(lambda ctx: str(ctx.session_id)) == "None"


async def test_the_id_of_a_session_is_the_same_for_all_of_its_calls() -> None:
    server = Server("looking")

    @server.tool
    async def ids(ctx: Context) -> str:
        ctx.connection.state["calls"] = ctx.connection.state.get("calls", 0) + 1
        return f"{ctx.session_id} {ctx.connection_id} {ctx.connection.state['calls']}"

    peer = AppPeer(server.asgi())
    await peer.open()
    texts = [await (await peer.post(called("ids", id))).text() for id in (7, 8)]
    assert texts == [f"{peer.session} {peer.session} {number}" for number in (1, 2)]
    await server.stop()

    without = AppPeer(server.asgi(sessions=False))
    without.version = peer.version
    assert (await (await without.post(called("ids", 9))).text()).startswith("None ")
    await server.stop()


async def test_a_session_over_a_pipe_has_an_id_too() -> None:
    server = Server("looking")

    @server.tool
    async def id(ctx: Context) -> str:
        return str(ctx.session_id)

    async with Client(server, version="2025-11-25") as client, Client(server, version="2025-11-25") as other:
        first, second = [(await client.call_tool("id")).text for _ in range(2)]
        assert first == second != "None"
        assert (await other.call_tool("id")).text != first


async def test_a_call_that_cannot_be_a_task() -> None:
    """`ctx.task` is there all the same, so that type checkers accept `ctx.task.id` and `ctx.task.external(...)`."""
    assert await facts(lambda ctx: str(ctx.task.id)) == "None"

    def hand_over(ctx: Context) -> str:
        with pytest.raises(UsageError, match=r"Register the tool with task='optional' or task='required'\."):
            ctx.task.external(print)
        return "refused"

    assert await facts(hand_over) == "refused"
