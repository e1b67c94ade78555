"""Questions to the other side: gated by what this request declared, and answered in the next round."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from support import CLIENT_CAPABILITIES_KEY, Response, ask
from weft import (
    AcceptedElicitation,
    CancelledElicitation,
    Context,
    DeclinedElicitation,
    InputRequired,
    Server,
    ask_form,
    ask_url,
)
from weft.errors import UsageError

EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}


class Seat(BaseModel):
    number: str
    window: bool = False


def asking(question: Any) -> Server:
    """A server whose tool asks, and tells what it was answered."""
    server = Server("asking")

    @server.tool
    async def asks(ctx: Context) -> str:
        return repr(await question(ctx))

    return server


async def answered(question: Any, answer: Any, declared: dict = EVERYTHING) -> tuple[dict, Response]:
    """The question as it went out, and what came of the answer."""
    server, meta = asking(question), {CLIENT_CAPABILITIES_KEY: declared}
    first = (await ask(server, "tools/call", {"name": "asks"}, meta=meta)).result
    assert first["resultType"] == "input_required"
    ((key, request),) = first["inputRequests"].items()
    params = {"name": "asks", "inputResponses": {key: answer}, "requestState": first["requestState"]}
    return request, await ask(server, "tools/call", params, id=2, meta=meta)


def text(response: Response) -> str:
    return response.result["content"][0]["text"]


async def seat(ctx: Context) -> tuple[str, bool, Any]:
    answer = await ctx.elicit("Which seat?", Seat)
    return answer.action, answer.accepted, answer.value


@pytest.mark.spec("ELI-01", "META-16")
@pytest.mark.parametrize("declared", [{"elicitation": {}}, {"elicitation": {"form": {}}}, EVERYTHING])
async def test_a_form_typed_by_a_model(declared: dict) -> None:
    request, response = await answered(seat, {"action": "accept", "content": {"number": "12A"}}, declared)
    assert request.keys() == {"method", "params"}
    assert (request["method"], request["params"]["message"]) == ("elicitation/create", "Which seat?")
    assert request["params"]["requestedSchema"]["properties"].keys() == {"number", "window"}
    assert text(response) == "('accept', True, Seat(number='12A', window=False))"


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_that_was_not_filled_in(action: str) -> None:
    _, response = await answered(seat, {"action": action})
    assert text(response) == f"('{action}', False, None)"


async def test_a_form_by_raw_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    async def question(ctx: Context) -> Any:
        return (await ctx.elicit("How many?", schema)).value

    request, response = await answered(question, {"action": "accept", "content": {"n": 3}})
    assert request["params"]["requestedSchema"]["properties"] == schema["properties"]
    assert text(response) == "{'n': 3}"


async def test_a_page() -> None:
    async def question(ctx: Context) -> Any:
        return (await ctx.elicit_url("Log in", "https://example.com/in")).accepted

    request, response = await answered(question, {"action": "accept"})
    assert request["params"] == {"message": "Log in", "mode": "url", "url": "https://example.com/in"}
    assert text(response) == "True"


async def test_the_model() -> None:
    async def question(ctx: Context) -> Any:
        answer = await ctx.sample("Hello", max_tokens=5, system_prompt="Be kind.", temperature=0.5)
        return answer.model, answer.content.text  # type: ignore[union-attr] - text is sent

    said = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}
    request, response = await answered(question, said)
    assert request == {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Hello"}}],
            "maxTokens": 5,
            "systemPrompt": "Be kind.",
            "temperature": 0.5,
        },
    }
    assert text(response) == "('m', 'Hi')"


@pytest.mark.spec("META-16")
async def test_roots() -> None:
    async def question(ctx: Context) -> Any:
        return [root.uri for root in await ctx.list_roots()]

    request, response = await answered(question, {"roots": [{"uri": "file:///a", "name": "a"}]})
    assert request == {"method": "roots/list"}
    assert text(response) == "['file:///a']"


@pytest.mark.parametrize("answer", [{}, {"action": "maybe"}, 3, {"action": "accept", "content": {"number": 3}}])
async def test_an_answer_that_does_not_fit_is_the_clients_fault(answer: Any) -> None:
    _, response = await answered(seat, answer)
    assert response.error["code"] == -32602


@pytest.mark.mistake("an ask the client cannot answer")
@pytest.mark.spec("META-05", "META-06")
@pytest.mark.parametrize(
    ("declared", "question", "required"),
    [
        ({}, lambda ctx: ctx.elicit("?", Seat), {"elicitation": {"form": {}}}),
        ({"elicitation": {"url": {}}}, lambda ctx: ctx.elicit("?", Seat), {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, lambda ctx: ctx.elicit_url("?", "https://x"), {"elicitation": {"url": {}}}),
        ({"roots": {}}, lambda ctx: ctx.sample("?", max_tokens=1), {"sampling": {}}),
        (
            {"sampling": {}},
            lambda ctx: ctx.sample_raw({"messages": [], "maxTokens": 1, "tools": [{"name": "t", "inputSchema": {}}]}),
            {"sampling": {"tools": {}}},
        ),
        ({"sampling": {}}, lambda ctx: ctx.list_roots(), {"roots": {}}),
    ],
)
async def test_what_was_not_declared_is_not_asked(declared: dict, question: Any, required: dict) -> None:
    response = await ask(asking(question), "tools/call", {"name": "asks"}, meta={CLIENT_CAPABILITIES_KEY: declared})
    assert response.refusal == (400, -32021)
    assert response.error["data"] == {"requiredCapabilities": required}
    assert f"must declare the capability `{next(iter(required))}" in response.error["message"]


@pytest.mark.spec("SAM-05", "SAM-06", "SAM-07")
@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"messages": "Hi", "maxTokens": 5}, "Expected `array`, got `str` - at `$.messages`."),
        ({"messages": []}, "Object missing required field `maxTokens`."),
        (
            {
                "messages": [{"role": "user", "content": {"type": "tool_result", "toolUseId": "1", "content": []}}],
                "maxTokens": 5,
            },
            "each tool use needs exactly one result, in the next message.",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": {"type": "tool_use", "id": "1", "name": "t", "input": {}}}
                ],
                "maxTokens": 5,
            },
            "the last message uses tools, but no message with their results follows.",
        ),
    ],
)
async def test_what_is_asked_as_it_stands_on_the_wire_is_checked_too(
    params: dict, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = asking(lambda ctx: ctx.sample_raw(params))
    meta = {CLIENT_CAPABILITIES_KEY: {"sampling": {"tools": {}}}}
    assert (await ask(server, "tools/call", {"name": "asks"}, meta=meta)).result["isError"]
    assert f"The model cannot be asked this: {said}" in caplog.text


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (
            lambda ctx: ctx.elicit("?", Seat, key=3),
            "key=3 is not possible: a key is a text, not a value of the type int.",
        ),
        (
            lambda ctx: ctx.list_roots(key=b"a"),
            "key=b'a' is not possible: a key is a text, not a value of the type bytes.",
        ),
        (
            lambda ctx: ctx.once(3, lambda: 1),
            "ctx.once(3, ...) is not possible: a key is a text, not a value of the type int.",
        ),
        (
            lambda ctx: ctx.once(Row, "an argument"),  # the key was forgotten
            "test_asks.Row'>, ...) is not possible: a key is a text, not a value of the type type.",
        ),
        (
            lambda ctx: ctx.elicit("?", Seat, key="\udcff"),
            r"key='\udcff' is not possible: the key is not Unicode. Give ascii(key), or another text.",
        ),
        (
            lambda ctx: ctx.once("\udcff", lambda: 1),
            r"ctx.once('\udcff', ...) is not possible: the key is not Unicode. Give ascii(key), or another text.",
        ),
    ],
)
async def test_a_key_that_would_not_be_found_again_is_refused(
    question: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    meta = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}, "roots": {}}}
    assert (await ask(asking(question), "tools/call", {"name": "asks"}, meta=meta)).result["isError"]
    assert said in caplog.text


@dataclass
class Row:
    number: int = 1


@pytest.mark.parametrize(
    ("message", "form", "said"),
    [
        ("Which?", Row(), "give the class of the form, not a value (Row)"),
        ("Which?", 5, "give the class of the form, not a value (int)"),
        (Row, "Which?", "the first argument, the message, must be a text"),
    ],
)
def test_a_form_is_asked_by_its_class_and_a_text(message: Any, form: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        ask_form(message, form)
    assert ask_form("Which?", Annotated[Row, "documented"])  # type: ignore[arg-type] - a type all the same


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (lambda ctx: ctx.elicit("Which of \udcff.png?", Seat), "message"),
        (lambda ctx: ctx.elicit_url("Which of \udcff.png?", "https://shop.example/"), "message"),
        (lambda ctx: ctx.sample("Which of \udcff.png?", max_tokens=5), "messages"),
    ],
)
async def test_a_question_that_is_not_unicode_is_asked_with_a_replacement(question: Any, name: str) -> None:
    """The names of files can have lone surrogates, which JSON has not."""
    meta = {CLIENT_CAPABILITIES_KEY: EVERYTHING}
    (asked,) = (await ask(asking(question), "tools/call", {"name": "asks"}, meta=meta)).result["inputRequests"].values()
    said = asked["params"][name]
    assert (said if name == "message" else said[0]["content"]["text"]) == "Which of \ufffd.png?"


def test_a_key_of_a_returned_question_is_unicode() -> None:
    with pytest.raises(UsageError, match="the key is not Unicode"):
        InputRequired({"\udcff": ask_form("?", Row)})


def test_a_page_is_asked_for_with_a_text() -> None:
    with pytest.raises(UsageError, match="the message must be a text, not an int"):
        ask_url(5, "https://shop.example/")  # type: ignore[arg-type] - that is the point


@pytest.mark.parametrize("requests", [{"a": {"method": "roots/list"}}, {1: ask_form("?", Row)}, {"a": None}])
def test_questions_by_hand_are_questions(requests: Any) -> None:
    with pytest.raises(UsageError, match=re.escape("InputRequired({'name': ask_form(...)})")):
        InputRequired(requests)


def test_a_bad_key_in_the_environment_is_told_of_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STATE_KEY", "short")
    with pytest.raises(UsageError, match=r"The variable WEFT_STATE_KEY cannot be used\. Key 1 of 1 has 5 bytes"):
        Server("s")


def test_only_an_accepted_answer_is_true() -> None:
    assert AcceptedElicitation({})
    assert not DeclinedElicitation()
    assert not CancelledElicitation()
