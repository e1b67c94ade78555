"""What a client does when its server asks: what is declared, refused, shown, checked and sent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import json
import threading
from pathlib import Path

import msgspec
import pytest

from weft.client.handlers import ServerRequestHandlers
from weft.client.questions import FormQuestion, UrlQuestion, preferred_model
from weft.errors import InternalError, InvalidParams, MethodNotFound, ProtocolError, UsageError
from weft.types.features import TextContent
from weft.types.interaction import (
    CreateMessageResult,
    ElicitResult,
    ModelHint,
    ModelPreferences,
    Root,
    ToolUseContent,
)

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "Ann"},
        "age": {"type": "integer", "minimum": 18},
        "size": {"type": "string", "enum": ["S", "M"], "default": "M"},
        "fly": {"type": "boolean", "default": False},
    },
    "required": ["name", "age"],
}


def asked(schema: dict = FORM, **more) -> dict:
    return {"message": "Who?", "requestedSchema": schema, **more}


def page(url: object = "https://bank.example/pay?id=1", **more) -> dict:
    return {"mode": "url", "message": "Pay", "url": url, **more}


def declared(duties: ServerRequestHandlers) -> dict:
    return msgspec.to_builtins(duties.capabilities)


def returns(value: object):
    return lambda *_: value


# --- what is declared


@pytest.mark.spec("ELI-01", "ELI-02", "SAM-01")
@pytest.mark.parametrize(
    ("functions", "capabilities"),
    [
        ({}, {}),
        ({"log": print}, {}),
        ({"elicit": print}, {"elicitation": {"form": {}}}),
        ({"elicit_url": print}, {"elicitation": {"url": {}}}),
        ({"elicit": print, "elicit_url": print}, {"elicitation": {"form": {}, "url": {}}}),
        ({"sample": print}, {"sampling": {}}),
        ({"sample_with_tools": print}, {"sampling": {"tools": {}}}),
        ({"sample": print, "sample_with_tools": print}, {"sampling": {"tools": {}}}),
        ({"roots": []}, {"roots": {"listChanged": True}}),
        ({"roots": list}, {"roots": {"listChanged": True}}),
    ],
)
def test_a_capability_is_declared_because_its_function_is_there(functions, capabilities):
    assert declared(ServerRequestHandlers(**functions)) == capabilities


@pytest.mark.spec("L11-37")
@pytest.mark.parametrize(
    "method", ["roots/list", "sampling/createMessage", "elicitation/create", "tools/list", "x" * 999]
)
async def test_what_was_not_declared_is_not_there(method):
    with pytest.raises(MethodNotFound) as caught:
        await ServerRequestHandlers().answer(method, {})
    assert caught.value.code == -32601
    assert len(str(caught.value)) < 300


# --- forms


@pytest.mark.spec("ELI-07", "ELI-11")
async def test_the_function_sees_the_form_with_its_defaults():
    seen: list[FormQuestion] = []
    duties = ServerRequestHandlers(elicit=lambda question: seen.append(question) or {"age": 20})
    duties.server = "flights"
    assert await duties.answer("elicitation/create", asked(mode="form")) == {
        "action": "accept",
        "content": {"name": "Ann", "age": 20, "size": "M", "fly": False},
    }
    assert seen == [FormQuestion("Who?", FORM, {"name": "Ann", "size": "M", "fly": False}, "flights")]


@pytest.mark.spec("ELI-05")
async def test_no_mode_means_form_and_raw_json_will_do():
    duties = ServerRequestHandlers(elicit=returns({"age": 20, "name": "Bob"}))
    answer = await duties.answer("elicitation/create", msgspec.Raw(json.dumps(asked()).encode()))
    assert answer["content"]["name"] == "Bob"


@pytest.mark.spec("ELI-12")
@pytest.mark.parametrize(
    ("returned", "action"),
    [
        (None, "cancel"),
        ("cancel", "cancel"),
        ("decline", "decline"),
        (False, "decline"),
        (ElicitResult("decline"), "decline"),
        (ElicitResult("cancel", {"age": 20}), "cancel"),
    ],
)
async def test_content_is_sent_only_with_an_accepted_form(returned, action):
    assert await ServerRequestHandlers(elicit=returns(returned)).answer("elicitation/create", asked()) == {
        "action": action
    }


@pytest.mark.spec("ELI-12")
@pytest.mark.parametrize("returned", [True, "accept", {}, ElicitResult("accept"), ElicitResult("accept", {"a": "x"})])
async def test_accepted_as_it_stands(returned):
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}
    answer = await ServerRequestHandlers(elicit=returns(returned)).answer("elicitation/create", asked(schema))
    assert answer == {"action": "accept", "content": {"a": "x"}}


async def test_fields_that_were_not_asked_for_are_not_sent():
    answer = await ServerRequestHandlers(elicit=returns({"age": 20, "password": "s3cret"})).answer(
        "elicitation/create", asked()
    )
    assert "password" not in answer["content"]


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize(
    "returned",
    [
        {},
        {"age": 17},
        {"age": "20"},
        {"age": True},
        {"age": 20, "size": "XL"},
        {"age": 20, "name": None},
        5,
        "yes",
        [1],
    ],
)
async def test_an_answer_that_does_not_fit_is_not_sent(returned, caplog):
    with pytest.raises(InternalError) as caught:
        await ServerRequestHandlers(elicit=returns(returned)).answer("elicitation/create", asked())
    assert str(caught.value) == "Internal error: the client could not answer elicitation/create."
    assert isinstance(caught.value.__cause__, UsageError)
    assert "elicitation/create was not answered: " in caplog.text
    assert len(caplog.text.splitlines()) == 1  # a traceback of Weft's own says nothing more


async def test_a_mistake_in_what_the_function_calls_is_logged_with_its_place(caplog):
    def elicit(_):
        raise UsageError("mine")

    with pytest.raises(InternalError):
        await ServerRequestHandlers(elicit=elicit).answer("elicitation/create", asked())
    assert "The function that answers elicitation/create failed" in caplog.text
    assert "in elicit" in caplog.text


async def test_schemas_that_are_more_than_a_form_are_still_answered():
    schema = {
        "type": "object",
        "title": "Answer",
        "properties": {
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "code": {"type": "string", "pattern": "^[a-z]+$", "default": "abc"},
        },
        "required": ["code"],
    }
    answer = await ServerRequestHandlers(elicit=returns({"age": None, "x": 1})).answer(
        "elicitation/create", asked(schema)
    )
    assert answer["content"] == {"age": None, "code": "abc"}
    for wrong in ({"code": "A1"}, {"age": "x"}):
        with pytest.raises(InternalError):
            await ServerRequestHandlers(elicit=returns(wrong)).answer("elicitation/create", asked(schema))
    loose = {"type": "object", "properties": {"a": {}}}
    for nested in ({"a": {"b": 1}}, {"a": [1]}):
        with pytest.raises(InternalError):
            await ServerRequestHandlers(elicit=returns(nested)).answer("elicitation/create", asked(loose))


@pytest.mark.security("D14")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://evil.example/schema.json"}}},
        {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 300_000}}, "x": 1},
        {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}},
    ],
)
async def test_questions_that_nobody_is_asked(schema):
    seen = []
    with pytest.raises(InvalidParams) as caught:
        await ServerRequestHandlers(elicit=seen.append).answer("elicitation/create", asked(schema))
    assert caught.value.code == -32602
    assert seen == []


@pytest.mark.parametrize(
    "params", [None, {}, [], {"message": 5}, {"message": "x"}, {"message": "x", "mode": "vr"}, msgspec.Raw(b"{")]
)
async def test_params_that_are_none(params):
    duties = ServerRequestHandlers(elicit=print, elicit_url=print, sample=print)
    with pytest.raises(InvalidParams):
        await duties.answer("elicitation/create", params)
    with pytest.raises(InvalidParams):
        await duties.answer("sampling/createMessage", params)


@pytest.mark.spec("L11-39")
async def test_an_undeclared_mode_is_refused():
    with pytest.raises(InvalidParams, match="did not declare elicitation by URL") as caught:
        await ServerRequestHandlers(elicit=print).answer("elicitation/create", page())
    assert caught.value.code == -32602
    with pytest.raises(InvalidParams, match="did not declare elicitation by form"):
        await ServerRequestHandlers(elicit_url=print).answer("elicitation/create", asked())


# --- pages


@pytest.mark.spec("ELI-11", "ELI-12", "ELI-23")
async def test_the_function_sees_the_whole_url_and_its_host():
    seen: list[UrlQuestion] = []
    duties = ServerRequestHandlers(elicit_url=lambda question: seen.append(question) or True)
    duties.server = "bank"
    assert await duties.answer("elicitation/create", page(elicitationId="e1")) == {"action": "accept"}
    url = "https://bank.example/pay?id=1"
    assert seen == [UrlQuestion("Pay", url, "bank.example", (), "bank", "e1")]


@pytest.mark.spec("ELI-22")
async def test_a_page_is_not_visited():
    visits = []
    server = await asyncio.start_server(lambda _, writer: visits.append(writer.close()), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    for consent in (True, False):
        await ServerRequestHandlers(elicit_url=returns(consent)).answer("elicitation/create", page(url))
    await asyncio.sleep(0.05)
    server.close()
    assert visits == []


@pytest.mark.parametrize(
    ("returned", "action"),
    [
        (True, "accept"),
        (False, "decline"),
        (None, "cancel"),
        ("decline", "decline"),
        (ElicitResult("cancel"), "cancel"),
    ],
)
async def test_consent_is_the_functions_business(returned, action):
    assert await ServerRequestHandlers(elicit_url=returns(returned)).answer("elicitation/create", page()) == {
        "action": action
    }


@pytest.mark.spec("ELI-24")
@pytest.mark.parametrize(
    ("url", "warning"),
    [
        ("https://xn--bnk-0na.example/", "Punycode"),
        ("https://www.XN--bnk-0na.example/", "Punycode"),
        ("https://203.0.113.7/", "is an IP address, not a name"),
        ("https://[2001:db8::1]/", "is an IP address, not a name"),
        ("http://localhost:8000/", None),
    ],
)
async def test_odd_hosts_come_with_a_warning(url, warning):
    seen: list[UrlQuestion] = []
    await ServerRequestHandlers(elicit_url=seen.append).answer("elicitation/create", page(url))
    assert [warning in text for text in seen[0].warnings] == ([True] if warning else [])


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "bank.example",
        "http://bank.example/",
        "http://localhost.evil.example/",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "https://bank.example@evil.example/",
        "https://ann:pw@bank.example/",
        "https://bank.example\\@evil.example/",
        "https://bank.example/\nx",
        "https://bänk.example/",
        "https://bank.example:x/",
        "https:///x",
        "https://bank.example/" + "x" * 9000,
    ],
)
async def test_pages_that_nobody_is_sent_to(url):
    seen = []
    with pytest.raises(InvalidParams):
        await ServerRequestHandlers(elicit_url=seen.append).answer("elicitation/create", page(url))
    assert seen == []


# --- sampling


def text(role: str = "user", content: object = "hi") -> dict:
    return {"role": role, "content": {"type": "text", "text": content} if isinstance(content, str) else content}


def use(*ids: str) -> dict:
    return text("assistant", [{"type": "tool_use", "id": id, "name": "add", "input": {}} for id in ids])


def results(*ids: str) -> dict:
    return text("user", [{"type": "tool_result", "toolUseId": id, "content": []} for id in ids])


TOOLS = [{"name": "add", "inputSchema": {"type": "object"}}]


async def test_text_is_answer_enough():
    duties = ServerRequestHandlers(sample=lambda params: f"{params.messages[0].content.text}, {params.max_tokens}")
    assert await duties.answer("sampling/createMessage", {"messages": [text()], "maxTokens": 9}) == {
        "role": "assistant",
        "content": {"type": "text", "text": "hi, 9"},
        "model": "unknown",
        "stopReason": "endTurn",
    }


async def test_a_result_is_sent_as_it_is():
    result = CreateMessageResult("assistant", TextContent("yo"), "m-1", "maxTokens")
    answer = await ServerRequestHandlers(sample=returns(result)).answer(
        "sampling/createMessage", {"messages": [], "maxTokens": 9}
    )
    assert answer == {
        "role": "assistant",
        "content": {"type": "text", "text": "yo"},
        "model": "m-1",
        "stopReason": "maxTokens",
    }


@pytest.mark.spec("L11-38")
async def test_a_refusal_has_its_code():
    with pytest.raises(ProtocolError) as caught:
        await ServerRequestHandlers(sample=returns(None)).answer(
            "sampling/createMessage", {"messages": [text()], "maxTokens": 9}
        )
    assert (caught.value.code, caught.value.message) == (-1, "User rejected sampling request")


@pytest.mark.spec("SAM-03")
@pytest.mark.parametrize("extra", [{"tools": TOOLS}, {"tools": []}, {"toolChoice": {"mode": "auto"}}])
async def test_tools_that_were_not_declared_are_refused(extra):
    seen = []
    with pytest.raises(InvalidParams, match="did not declare sampling with tools"):
        await ServerRequestHandlers(sample=seen.append).answer(
            "sampling/createMessage", {"messages": [], "maxTokens": 9, **extra}
        )
    assert seen == []


@pytest.mark.spec("SAM-14")
async def test_tools_go_to_the_function_that_can_use_them():
    used = ToolUseContent("u1", "add", {"a": 1}, {"sig": "x"})
    duties = ServerRequestHandlers(
        sample=returns("plain"),
        sample_with_tools=returns(CreateMessageResult("assistant", [used], "m", "toolUse")),
    )
    answer = await duties.answer("sampling/createMessage", {"messages": [text()], "maxTokens": 9, "tools": TOOLS})
    assert answer["content"] == [
        {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1}, "_meta": {"sig": "x"}}
    ]
    plain = await duties.answer("sampling/createMessage", {"messages": [text()], "maxTokens": 9})
    assert plain["content"]["text"] == "plain"


async def test_one_function_for_both():
    duties = ServerRequestHandlers(sample_with_tools=returns("both"))
    assert (await duties.answer("sampling/createMessage", {"messages": [], "maxTokens": 9}))["content"][
        "text"
    ] == "both"


@pytest.mark.spec("L11-38")
@pytest.mark.parametrize(
    "messages",
    [
        [text(), use("1")],
        [text(), use("1"), text()],
        [text(), use("1", "2"), results("1")],
        [text(), use("1"), results("2")],
        [text(), use("1"), results("1", "1")],
        [text(), results("1")],
        [use("1"), text("user", [*results("1")["content"], {"type": "text", "text": "and"}])],
        [{**use("1"), "role": "user"}, results("1")],
        [use("1"), {**results("1"), "role": "assistant"}],
    ],
)
async def test_tool_results_that_do_not_pair_are_refused(messages):
    seen = []
    with pytest.raises(InvalidParams) as caught:
        await ServerRequestHandlers(sample_with_tools=seen.append).answer(
            "sampling/createMessage", {"messages": messages, "maxTokens": 9, "tools": TOOLS}
        )
    assert caught.value.code == -32602
    assert seen == []


async def test_tool_results_that_pair():
    messages = [text(), use("1", "2"), results("2", "1"), text("assistant"), use("3"), results("3")]
    duties = ServerRequestHandlers(sample_with_tools=returns("done"))
    assert await duties.answer("sampling/createMessage", {"messages": messages, "maxTokens": 9, "tools": TOOLS})


@pytest.mark.parametrize(
    "returned",
    [5, {"role": "assistant"}, CreateMessageResult("assistant", ToolUseContent("1", "rm", {}), "m")],
)
async def test_answers_of_a_model_that_cannot_be_sent(returned):
    with pytest.raises(InternalError) as caught:
        await ServerRequestHandlers(sample_with_tools=returns(returned)).answer(
            "sampling/createMessage", {"messages": [], "maxTokens": 9, "tools": TOOLS}
        )
    assert isinstance(caught.value.__cause__, UsageError)


@pytest.mark.spec("SAM-10")
def test_the_first_hint_that_fits_decides():
    models = ["claude-3-haiku", "claude-3-opus", "gpt-4"]
    assert preferred_model(ModelPreferences(hints=[ModelHint("Opus"), ModelHint("haiku")]), models) == "claude-3-opus"
    assert preferred_model(ModelPreferences(hints=[ModelHint("x"), ModelHint("claude")]), models) == "claude-3-haiku"
    assert preferred_model(ModelPreferences(hints=[ModelHint(None), ModelHint("x")]), models) is None
    assert preferred_model(ModelPreferences(cost_priority=1), models) is None
    assert preferred_model(None, models) is None


# --- roots


@pytest.mark.spec("ROOT-02")
async def test_roots_of_all_kinds(tmp_path):
    folder = tmp_path / "my notes"
    folder.mkdir()
    other = tmp_path.as_uri()
    expected = {"roots": [{"uri": folder.resolve().as_uri(), "name": "my notes"}, {"uri": other, "name": "B"}]}
    given = [folder, Root(other, "B")]
    assert await ServerRequestHandlers(roots=given).answer("roots/list") == expected
    assert await ServerRequestHandlers(roots=lambda: given).answer("roots/list", {}) == expected
    assert await ServerRequestHandlers(roots=(root for root in given)).answer("roots/list") == expected
    assert await ServerRequestHandlers(roots=[str(folder), other]).answer("roots/list") == {
        "roots": [expected["roots"][0], {"uri": other}]
    }
    assert Path("/").as_uri() == (await ServerRequestHandlers(roots=["/"]).answer("roots/list"))["roots"][0]["uri"]


async def test_roots_that_are_asked_for_each_time(tmp_path):
    roots = ["file:///"]
    duties = ServerRequestHandlers(roots=lambda: roots)
    await duties.answer("roots/list")
    roots.append(tmp_path.as_uri())
    assert len((await duties.answer("roots/list"))["roots"]) == 2


@pytest.mark.spec("ROOT-02")
@pytest.mark.parametrize(
    "root", ["https://a.example/", "file:///a/../../etc", "file:///a/%2e%2e/etc", "file:///a b", Root("notes")]
)
async def test_roots_that_are_never_sent(root):
    with pytest.raises(UsageError):
        ServerRequestHandlers(roots=[root])
    with pytest.raises(InternalError):
        await ServerRequestHandlers(roots=lambda: [root]).answer("roots/list")


@pytest.mark.parametrize("roots", ["/home", Path("/home"), 5])
def test_one_root_is_no_list(roots):
    with pytest.raises(UsageError, match="list of folders"):
        ServerRequestHandlers(roots=roots)


# --- functions


async def test_plain_functions_run_in_a_thread_with_the_callers_context():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    seen = []

    def elicit(_):
        seen.extend([threading.current_thread() is not threading.main_thread(), variable.get()])

    await ServerRequestHandlers(elicit=elicit).answer("elicitation/create", asked())
    assert seen == [True, "set"]


async def test_a_plain_function_that_blocks_stops_nobody_else():
    go = threading.Event()
    duties = ServerRequestHandlers(elicit=lambda _: go.wait(5) and None, sample=returns("quick"))
    slow = asyncio.ensure_future(duties.answer("elicitation/create", asked()))
    await duties.answer("sampling/createMessage", {"messages": [], "maxTokens": 9})
    assert not slow.done()
    go.set()
    assert await slow == {"action": "cancel"}


async def test_async_functions_of_all_kinds():
    async def elicit(question, extra="x"):
        await asyncio.sleep(0)
        return {"age": 30, "name": extra}

    class Callable:
        async def __call__(self, question):
            return await elicit(question)

    def wrapped(question):
        return elicit(question)

    for function in (elicit, functools.partial(elicit, extra="x"), wrapped, Callable()):
        answer = await ServerRequestHandlers(elicit=function).answer("elicitation/create", asked())
        assert answer["content"]["name"] == "x"


@pytest.mark.security("R1")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("s3cret"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(1),
        concurrent.futures.CancelledError(),
        BaseException("s3cret"),
    ],
)
async def test_what_a_function_raises_is_masked_and_logged(error, caplog):
    def fail(_):
        raise error

    with pytest.raises(InternalError) as caught:
        await ServerRequestHandlers(elicit=fail).answer("elicitation/create", asked())
    assert "s3cret" not in str(caught.value)
    assert caught.value.code == -32603
    assert caught.value.__cause__ is not None
    assert "failed" in caplog.text


@pytest.mark.security("R1")
@pytest.mark.parametrize("error", [ValueError("s3cret"), SystemExit(3)])
async def test_so_is_what_an_async_function_raises(error):
    async def fail(_):
        raise error

    with pytest.raises(InternalError):
        await ServerRequestHandlers(elicit=fail).answer("elicitation/create", asked())


async def cancelled_by_itself(*_):
    asyncio.get_running_loop().call_soon((inner := asyncio.ensure_future(asyncio.Event().wait())).cancel)
    await inner


@pytest.mark.parametrize("elicit", [cancelled_by_itself, lambda _: cancelled_by_itself()])
async def test_so_is_a_cancellation_that_nobody_asked_for(elicit, caplog):
    with pytest.raises(InternalError):
        await ServerRequestHandlers(elicit=elicit).answer("elicitation/create", asked())
    assert "The function that answers elicitation/create failed" in caplog.text


async def test_one_that_somebody_asked_for_stays_one():
    begun = asyncio.Event()

    async def elicit(_):
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(ServerRequestHandlers(elicit=elicit).answer("elicitation/create", asked()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_meant_for_the_server_is_told():
    def fail(_):
        raise ProtocolError("Closed", code=1001, data={"opens": 8})

    with pytest.raises(ProtocolError) as caught:
        await ServerRequestHandlers(sample=fail).answer("sampling/createMessage", {"messages": [], "maxTokens": 9})
    assert (caught.value.code, caught.value.data) == (1001, {"opens": 8})


async def test_threads_that_nobody_waits_for_are_counted():
    go = threading.Event()
    duties = ServerRequestHandlers(elicit=lambda _: go.wait(30) and None)
    for _ in range(16):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(duties.answer("elicitation/create", asked()), 0.01)
    with pytest.raises(InternalError):
        await duties.answer("elicitation/create", asked())
    go.set()
    join_answering()
    assert await duties.answer("elicitation/create", asked()) == {"action": "cancel"}


def join_answering() -> None:
    for thread in threading.enumerate():
        if thread.name == "weft-answer":
            thread.join(30)


def test_threads_that_outlive_their_loop_are_counted_only_as_long_as_they_run():
    go = threading.Event()
    duties = ServerRequestHandlers(elicit=lambda _: go.wait(30) and None)

    async def give_up() -> None:
        asking = [asyncio.ensure_future(duties.answer("elicitation/create", asked())) for _ in range(16)]
        await asyncio.sleep(0)
        for one in asking:
            one.cancel()

    asyncio.run(give_up())
    go.set()
    join_answering()
    assert asyncio.run(duties.answer("elicitation/create", asked())) == {"action": "cancel"}


async def test_a_thread_that_cannot_be_started_is_not_counted(monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    duties = ServerRequestHandlers(elicit=returns(None))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(17):
            with pytest.raises(InternalError):
                await duties.answer("elicitation/create", asked())
    assert await duties.answer("elicitation/create", asked()) == {"action": "cancel"}


# --- log messages


async def test_log_messages_are_heard_in_order():
    heard, later = [], []

    async def slowly(message):
        await asyncio.sleep(0)
        later.append(message.data)

    plain, with_async = (
        ServerRequestHandlers(log=lambda message: heard.append((message.level, message.logger, message.data))),
        ServerRequestHandlers(log=slowly),
    )
    for number in range(3):
        params = {"level": "info", "logger": "db", "data": number}
        plain.receive("notifications/message", params)
        with_async.receive("notifications/message", msgspec.Raw(json.dumps(params).encode()))
    assert heard == [("info", "db", 0), ("info", "db", 1), ("info", "db", 2)]
    await asyncio.sleep(0.01)
    assert later == [0, 1, 2]


@pytest.mark.security("R1")
async def test_a_listener_that_is_cancelled_by_itself_hears_the_rest_in_order(caplog):
    heard: list[int] = []
    done = asyncio.Event()

    async def listen(message):
        heard.append(message.data)
        if message.data == 4:
            done.set()
        await cancelled_by_itself()

    duties = ServerRequestHandlers(log=listen)
    for number in range(5):
        duties.receive("notifications/message", {"level": "info", "data": number})
    await asyncio.wait_for(done.wait(), 30)
    assert heard == [0, 1, 2, 3, 4]
    assert "The function that was given as on_log= failed." in caplog.text


async def test_bad_log_messages_and_bad_listeners_do_no_harm(caplog):
    def fail(_):
        raise ValueError("mine")

    async def fail_later(_):
        raise ValueError("mine too")

    ServerRequestHandlers(log=fail).receive("notifications/message", {"level": "info", "data": 1})
    ServerRequestHandlers(log=fail_later).receive("notifications/message", {"level": "info", "data": 1})
    ServerRequestHandlers(log=fail).receive("notifications/message", {"level": "loud"})
    ServerRequestHandlers(log=fail).receive("notifications/progress", {})
    ServerRequestHandlers().receive("notifications/message", {"level": "info", "data": 1})
    await asyncio.sleep(0)
    assert caplog.text.count("The function that was given as on_log= failed.") == 2


@pytest.mark.security("R12")
async def test_a_flood_of_log_messages_is_bounded():
    heard, go = [], asyncio.Event()

    async def slowly(message):
        await go.wait()
        heard.append(message.data)

    duties = ServerRequestHandlers(log=slowly)
    for number in range(1100):
        duties.receive("notifications/message", {"level": "info", "data": number})
    go.set()
    await asyncio.sleep(0.05)
    assert heard == [0, *range(100, 1100)]
    go.clear()
    duties.receive("notifications/message", {"level": "info", "data": "late"})
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    await duties.close()
    assert len(asyncio.all_tasks()) == len(before) - 1
    assert "late" not in heard
