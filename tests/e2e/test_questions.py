"""Elicitation, sampling and roots as a client sees them over a real socket: what is asked, of whom, and what is not."""

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from support import CLIENT_CAPABILITIES_KEY, Live, Response, serve
from weft import Context, InputRequired, Server, ask_form, ask_model, ask_url
from weft.errors import UsageError
from weft.forms import EMAIL, Titles
from weft.types import TextContent
from weft.types.features import Tool
from weft.types.interaction import SamplingMessage, ToolResultContent, ToolUseContent

EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
Question = Callable[[Context], Awaitable[Any]]
QUESTIONS: dict[str, Question] = {}
WORD = {"type": "object", "properties": {"word": {"type": "string"}}}


def question(asks: Question) -> Question:
    QUESTIONS[asks.__name__] = asks
    return asks


class Booking(BaseModel):
    name: str = Field(min_length=1, title="Your name")
    mail: Annotated[str, EMAIL]
    seats: int = Field(default=1, ge=1, le=9)
    price: float | None = None
    window: bool = False
    meal: Literal["meat", "fish"] = "fish"
    extras: list[Annotated[Literal["wifi", "bag"], Titles({"wifi": "Wi-Fi", "bag": "A bag"})]] = []


@question
async def form(ctx: Context) -> Any:
    return (await ctx.elicit("Who travels?", Booking)).value


@question
async def page(ctx: Context) -> Any:
    return (await ctx.elicit_url("Pay there", "https://pay.example/1")).action


@question
async def action(ctx: Context) -> Any:
    answer = await ctx.elicit("Sure?", {"type": "object", "properties": {"sure": {"type": "boolean"}}})
    return [answer.accepted, answer.declined, answer.cancelled, answer.value]


@question
async def model(ctx: Context) -> Any:
    return (await ctx.sample("Hello", max_tokens=5)).model


@question
async def model_with_tools(ctx: Context) -> Any:
    tool = Tool("look", {"type": "object"})
    return (await ctx.sample("Hello", max_tokens=5, tools=[tool])).stop_reason


@question
async def model_with_choice(ctx: Context) -> Any:
    return await ctx.sample_raw({"messages": [], "maxTokens": 5, "toolChoice": {"mode": "none"}})


@question
async def model_with_context(ctx: Context) -> Any:
    return await ctx.sample_raw({"messages": [], "maxTokens": 5, "includeContext": "thisServer"})


@question
async def roots(ctx: Context) -> Any:
    return [root.uri for root in await ctx.list_roots()]


@question
async def page_by_hand(ctx: Context) -> Any:
    return InputRequired({"k": ask_url("Pay there", "https://pay.example/1")})


@question
async def model_by_hand(ctx: Context) -> Any:
    return InputRequired({"k": ask_model("Hello", max_tokens=1, tools=[Tool("look", {"type": "object"})])})


def make_asking() -> Server:
    server = Server("asking")

    @server.tool
    async def run(ctx: Context, kind: str) -> Any:
        return await QUESTIONS[kind](ctx)

    return server


@pytest.fixture(scope="module")
def asking() -> Iterator[Live]:
    with serve(make_asking()) as live:
        yield live


def ask(live: Live, kind: str, declared: dict[str, Any] = EVERYTHING, **retry: Any) -> Response:
    params = {"name": "run", "arguments": {"kind": kind}, **retry}
    return live.call("tools/call", params, meta={CLIENT_CAPABILITIES_KEY: declared})


def asked(live: Live, kind: str) -> tuple[str, dict[str, Any], str]:
    """Key, question and state."""
    result = ask(live, kind).result
    assert result["resultType"] == "input_required"
    ((key, request),) = result["inputRequests"].items()
    return key, request, result["requestState"]


def answered(live: Live, kind: str, answer: Any) -> Response:
    key, _, state = asked(live, kind)
    return ask(live, kind, inputResponses={key: answer}, requestState=state)


def text(response: Response) -> str:
    return response.result["content"][0]["text"]


# --- only what was declared


@pytest.mark.spec("MRTR-07", "ELI-03", "SAM-02", "SAM-04", "ROOT-05", "META-06")
@pytest.mark.parametrize(
    ("kind", "declared", "required"),
    [
        ("form", {}, {"elicitation": {"form": {}}}),
        ("form", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("page", {}, {"elicitation": {"url": {}}}),
        ("page", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("page", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ("page_by_hand", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ("model", {"elicitation": {}}, {"sampling": {}}),
        ("model_with_tools", {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("model_with_tools", {"sampling": {"context": {}}}, {"sampling": {"tools": {}}}),
        ("model_with_choice", {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("model_with_context", {"sampling": {"tools": {}}}, {"sampling": {"context": {}}}),
        ("model_by_hand", {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("roots", {"sampling": {}}, {"roots": {}}),
    ],
)
def test_what_was_not_declared_is_refused_before_a_stream_begins(
    asking: Live, kind: str, declared: dict[str, Any], required: dict[str, Any]
) -> None:
    response = ask(asking, kind, declared)
    assert response.refusal == (400, -32021)
    assert response.headers["content-type"] == "application/json"
    assert response.error["data"] == {"requiredCapabilities": required}


@pytest.mark.spec("MRTR-07", "META-06")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "book"}),
        ("prompts/get", {"name": "book"}),
        ("resources/read", {"uri": "book://form"}),
        ("resources/read", {"uri": "book://form/1"}),
    ],
)
def test_what_is_said_to_be_needed_is_refused_before_progress_makes_it_a_stream(
    method: str, params: dict[str, Any]
) -> None:
    server, begun = Server("s"), list[str]()

    async def book(ctx: Context, number: str = "") -> str:
        begun.append(number)
        await ctx.report_progress(1, 3)
        return (await ctx.elicit("Sure?", WORD)).action

    @server.middleware
    async def chatty(ctx: Context, next: Any) -> Any:
        await ctx.info("a call")
        return await next()

    async def page(ctx: Context) -> str:
        return await book(ctx)

    server.add_tool(book, needs=["elicitation.form"])
    server.add_prompt(book, needs=["elicitation.form"])
    server.add_resource("book://form", page, needs=["elicitation.form"])
    server.add_resource("book://form/{number}", book, needs=["elicitation.form"])
    chatted = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": 1}
    with serve(server) as live:
        lacking = live.call(method, params, meta={**chatted, CLIENT_CAPABILITIES_KEY: {"roots": {}}})
        assert lacking.refusal == (400, -32021)
        assert lacking.headers["content-type"] == "application/json"
        assert lacking.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
        assert begun == []
        asked = live.call(method, params, meta={**chatted, CLIENT_CAPABILITIES_KEY: {"elicitation": {}}})
        assert asked.result["resultType"] == "input_required"


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (
            ["elicit"],
            "has needs=['elicit'], which is not a capability of clients. There are: elicitation, elicitation.form,",
        ),
        (["elicitation.page"], "which is not a capability of clients"),
        (["extensions"], "extensions.<id>"),
        ([7], "needs=[7]"),
        ("sampling", "needs=['sampling']"),
    ],
)
def test_a_need_that_no_client_can_meet_is_refused_when_it_is_registered(needs: Any, said: str) -> None:
    server = Server("s")
    for add in (server.add_tool, server.add_prompt, lambda fn, **options: server.add_resource("a://b", fn, **options)):
        with pytest.raises(UsageError, match=re.escape(said)):
            add(lambda: "", name="n", needs=needs)


@pytest.mark.spec("ELI-08")
@pytest.mark.parametrize(
    "url",
    ["https://exa mple.com/", "https://e.example/\nX", "https://e.example:99999/", "https://e.example/<x>", 5, None],
)
def test_a_url_that_is_none_is_not_sent(url: Any) -> None:
    with pytest.raises(UsageError, match="a URL that is malformed: use an https URL"):
        ask_url("Go there?", url)


@pytest.mark.spec("MRTR-06", "MRTR-07", "ELI-01")
@pytest.mark.parametrize(
    ("kind", "declared", "method"),
    [
        ("form", {"elicitation": {}}, "elicitation/create"),
        ("form", {"elicitation": {"form": {}}}, "elicitation/create"),
        ("page", {"elicitation": {"url": {}}}, "elicitation/create"),
        ("page_by_hand", {"elicitation": {"url": {}}}, "elicitation/create"),
        ("model", {"sampling": {}}, "sampling/createMessage"),
        ("model_with_tools", {"sampling": {"tools": {}}}, "sampling/createMessage"),
        ("model_with_context", {"sampling": {"context": {}}}, "sampling/createMessage"),
        ("roots", {"roots": {}}, "roots/list"),
    ],
)
def test_what_was_declared_is_asked(asking: Live, kind: str, declared: dict[str, Any], method: str) -> None:
    result = ask(asking, kind, declared).result
    assert result["resultType"] == "input_required"
    assert [request["method"] for request in result["inputRequests"].values()] == [method]
    assert all(request.keys() <= {"method", "params"} for request in result["inputRequests"].values())


@pytest.mark.spec("MRTR-07")
def test_what_an_earlier_round_declared_does_not_count(asking: Live) -> None:
    state = asked(asking, "form")[2]
    assert ask(asking, "form", {}, requestState=state).refusal == (400, -32021)


# --- elicitation


@pytest.mark.spec("ELI-04", "ELI-06")
def test_a_form_has_a_message_and_a_flat_schema(asking: Live) -> None:
    params = asked(asking, "form")[1]["params"]
    assert params.keys() == {"message", "mode", "requestedSchema"}
    assert (params["message"], params["mode"]) == ("Who travels?", "form")
    assert params["requestedSchema"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "title": "Your name"},
            "mail": {"type": "string", "format": "email"},
            "seats": {"type": "integer", "default": 1, "minimum": 1, "maximum": 9},
            "price": {"type": "number"},
            "window": {"type": "boolean", "default": False},
            "meal": {"type": "string", "enum": ["meat", "fish"], "default": "fish"},
            "extras": {
                "type": "array",
                "items": {"anyOf": [{"const": "wifi", "title": "Wi-Fi"}, {"const": "bag", "title": "A bag"}]},
                "default": [],
            },
        },
        "required": ["name", "mail"],
    }


@pytest.mark.spec("ELI-26", "ELI-14")
def test_an_accepted_form_is_checked_before_the_handler_sees_it(asking: Live) -> None:
    right = {"name": "Ann", "mail": "ann@example.com", "extras": ["bag"]}
    result = answered(asking, "form", {"action": "accept", "content": right}).result
    assert '"extras":["bag"]' in result["content"][0]["text"].replace(" ", "")
    for wrong in ({}, {**right, "seats": 10}, {**right, "meal": "soap"}, {**right, "extras": ["x"]}, {"name": 3}):
        response = answered(asking, "form", {"action": "accept", "content": wrong})
        assert response.error["code"] == -32602
        assert "does not fit" in response.error["message"]
        assert "soap" not in response.error["message"]


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ["SECRET"]),
        ("name", {"first": "SECRET"}),
        ("mail", "SECRET"),
        ("mail", None),
        ("seats", "5"),
        ("seats", True),
        ("price", "SECRET"),
        ("window", 1),
        ("extras", ["bag", "bag"]),
        ("extras", [{"SECRET": 1}]),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_by_its_field_and_not_quoted(
    asking: Live, field: str, value: Any
) -> None:
    content = {"name": "Ann", "mail": "ann@example.com", field: value}
    response = answered(asking, "form", {"action": "accept", "content": content})
    assert response.error["code"] == -32602
    assert f"does not fit the form. '{field}': it should " in response.error["message"]
    assert b"SECRET" not in response.body


@pytest.mark.spec("ELI-14")
@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ({"action": "accept", "content": {"sure": True}}, '[true,false,false,{"sure":true}]'),
        ({"action": "decline"}, "[false,true,false,null]"),
        ({"action": "cancel"}, "[false,false,true,null]"),
        ({"action": "decline", "content": {"sure": "anything"}}, "[false,true,false,null]"),
    ],
)
def test_declined_and_cancelled_are_told_apart(asking: Live, answer: dict[str, Any], seen: str) -> None:
    assert "".join(text(answered(asking, "action", answer)).split()) == seen


@pytest.mark.spec("ELI-08", "ELI-04")
def test_a_page_has_a_message_and_a_url_and_no_id(asking: Live) -> None:
    params = asked(asking, "page")[1]["params"]
    assert params == {"mode": "url", "message": "Pay there", "url": "https://pay.example/1"}
    assert text(answered(asking, "page", {"action": "decline"})) == "decline"


@pytest.mark.spec("ELI-08", "ELI-21")
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/x",
        "http://localhost.evil.example/",
        "javascript:alert(1)",
        "/login",
        "",
        "https://",
        "ftp://x",
        "https://[",
        "http://example.com/SECRET?SECRET",
    ],
)
def test_a_page_that_is_not_safe_to_visit_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="https") as caught:
        ask_url("Go there", url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.spec("ELI-19")
@pytest.mark.parametrize(
    "url",
    [
        "https://ann:SECRET@example.com/",
        "https://SECRET@example.com/",
        "https://:SECRET@example.com/",
        "https://@example.com/",
        "http://ann:SECRET@127.0.0.1:8000/",
    ],
)
def test_a_page_that_a_url_logs_in_to_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="let the user log in on the page") as caught:
        ask_url("Go there", url)
    assert "SECRET" not in str(caught.value)
    assert ask_url("Go there", "https://example.com/@ann?to=a@b.c").params.url  # elsewhere it means nothing


@pytest.mark.spec("ELI-21")
@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a?b=c",
        "http://localhost:8000/",
        "http://127.0.0.1/",
        "http://127.9.9.9/",
        "http://[::1]:1/",
    ],
)
def test_a_page_may_be_https_or_on_this_machine(url: str) -> None:
    assert ask_url("Go there", url).params.url == url


@pytest.mark.spec("ELI-09", "ELI-10")
def test_a_secret_is_not_asked_by_form_and_the_way_to_ask_it_is_named() -> None:
    from pydantic import SecretStr

    class Login(BaseModel):
        password: SecretStr

    for schema in (Login, {"type": "object", "properties": {"pin": {"type": "string", "format": "password"}}}):
        with pytest.raises(UsageError, match="elicit_url"):
            ask_form("Log in", schema)


# --- sampling


@pytest.mark.spec("SAM-07")
def test_a_sampling_message_has_a_role_and_content(asking: Live) -> None:
    params = asked(asking, "model")[1]["params"]
    assert params == {"maxTokens": 5, "messages": [{"role": "user", "content": {"type": "text", "text": "Hello"}}]}


@pytest.mark.spec("SAM-04")
def test_the_context_of_other_servers_is_not_asked_for_unless_wished(asking: Live) -> None:
    assert "includeContext" not in asked(asking, "model")[1]["params"]


@pytest.mark.spec("MRTR-23")
@pytest.mark.parametrize("answer", [{}, {"role": "assistant"}, {"role": "robot", "content": [], "model": "m"}, "Hi"])
def test_what_the_model_said_without_its_shape_is_refused(asking: Live, answer: Any) -> None:
    assert answered(asking, "model", answer).error["code"] == -32602


USE = ToolUseContent(id="1", name="look", input={})
USE_2 = ToolUseContent(id="2", name="look", input={})
RESULT = ToolResultContent(tool_use_id="1", content=[TextContent("seen")])
RESULT_2 = ToolResultContent(tool_use_id="2", content=[TextContent("seen")])


@pytest.mark.spec("SAM-05", "SAM-06", "SAM-11")
@pytest.mark.parametrize(
    "messages",
    [
        [("user", TextContent("Hi")), ("assistant", USE), ("user", RESULT)],
        [("assistant", [USE, USE_2]), ("user", [RESULT_2, RESULT]), ("assistant", TextContent("ok"))],
        [("assistant", [TextContent("hm"), USE]), ("user", [RESULT])],
    ],
)
def test_tool_uses_with_their_results(messages: list[Any]) -> None:
    request = ask_model([SamplingMessage(*message) for message in messages], max_tokens=1)
    assert len(request.params.messages) == len(messages)


@pytest.mark.spec("SAM-05", "SAM-06", "SAM-11")
@pytest.mark.parametrize(
    "messages",
    [
        [("assistant", USE)],
        [("assistant", USE), ("user", TextContent("well?"))],
        [("assistant", USE), ("user", [RESULT, TextContent("and?")])],
        [("assistant", [USE, USE_2]), ("user", RESULT)],
        [("assistant", USE), ("user", TextContent("wait")), ("user", RESULT)],
        [("assistant", USE), ("user", RESULT_2)],
        [("user", RESULT)],
    ],
)
def test_tool_uses_without_their_results_are_refused(messages: list[Any]) -> None:
    with pytest.raises(UsageError, match="tool"):
        ask_model([SamplingMessage(*message) for message in messages], max_tokens=1)


# --- roots


@pytest.mark.spec("ROOT-05")
@pytest.mark.parametrize("roots", [[], [{"uri": "file:///home/ann"}], [{"uri": "file:///a", "name": "A", "new": 1}]])
def test_roots_may_be_none_or_some(asking: Live, roots: list[Any]) -> None:
    key, request, state = asked(asking, "roots")
    assert request == {"method": "roots/list"}
    response = ask(asking, "roots", inputResponses={key: {"roots": roots}}, requestState=state)
    assert response.result["resultType"] == "complete"
    assert [root["uri"] in response.body.decode() for root in roots] == [True] * len(roots)
