"""Completions through the dispatcher: for prompts, for templates, of choices."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from typing_extensions import TypeAliasType

from weft import Context, Server
from weft.eras.client import StatelessClient
from weft.eras.stateless import NEWEST, STATELESS
from weft.errors import MethodNotFound, RegistrationError
from weft.jsonrpc import decode, encode_request
from weft.server.calls.call import Call
from weft.server.calls.connection import Connection
from weft.server.diagnostics import Unserialisable
from weft.server.features.prompts import to_completion
from weft.server.run.listening import HttpOptions
from weft.server.run.running import start
from weft.types import Completion
from weft.types.base import Implementation
from weft.types.lifecycle import ClientCapabilities


class Silent:
    async def notify(self, message: bytes) -> None: ...


async def complete(
    server: Server, ref: dict[str, str], argument: str, value: str = "", arguments: dict[str, str] | None = None
) -> dict[str, Any]:
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
    if arguments is not None:
        params["context"] = {"arguments": arguments}
    method, none = "completion/complete", ClientCapabilities()
    stamped = StatelessClient().stamp(method, params, info=Implementation("t", "1"), capabilities=none)
    frame = decode(encode_request(1, method, stamped))
    envelope = STATELESS.open(frame, None, server.engine.offer, None)
    connection = Connection.from_envelope(NEWEST.version, None, none)
    _, body = await server.engine.dispatcher.run(Call(server.engine, 1, envelope, STATELESS, connection, Silent()))
    return json.loads(body)


PROMPT = {"type": "ref/prompt", "name": "review"}
TEMPLATE = {"type": "ref/resource", "uri": "repo://{owner}/{name}"}


class Style(enum.Enum):
    KIND = "kind"
    STRICT = "strict"


def example() -> Server:
    server = Server("s", debug=False)

    @server.prompt
    def review(language: str, code: str, style: Style | None = None, size: Literal["s", "m"] = "m") -> str:
        return code

    @server.resource("repo://{owner}/{name}")
    def repo(owner: str, name: str) -> str:
        return name

    @server.completion(prompt="review", argument="language")
    def languages(value: str) -> list[str]:
        return [name for name in ("python", "perl", "rust") if name.startswith(value)]

    @server.completion(template="repo://{owner}/{name}", argument="name")
    async def names(value: str, ctx: Context, arguments: Mapping[str, str]) -> list[str]:
        return [f"{ctx.method} {value} {arguments.get('owner')}"]

    return server


@pytest.mark.security("R9")
@pytest.mark.parametrize(
    ("value", "owner"), [("../etc", "ann"), ("%2e%2e", "ann"), ("a\nb", "ann"), ("we", ".."), ("we", "a%2fb")]
)
async def test_a_value_that_no_resource_would_get_is_not_completed(value: str, owner: str) -> None:
    answer = await complete(example(), TEMPLATE, "name", value, {"owner": owner})
    assert answer["result"]["completion"]["values"] == []


@pytest.mark.spec("CMP-01")
async def test_the_capability_is_declared_once_something_can_be_completed() -> None:
    server = Server("s")

    @server.prompt
    def plain(a: str) -> str:
        return a

    assert server.capabilities.completions is None
    with pytest.raises(MethodNotFound):
        await complete(server, {"type": "ref/prompt", "name": "plain"}, "a")

    @server.prompt
    def chosen(a: Literal["x"]) -> str:
        return a

    assert server.capabilities.completions == {}
    assert example().capabilities.completions == {}


async def test_the_choices_of_a_type_that_two_arguments_have_are_suggested_for_both() -> None:
    server = Server("s")

    @server.prompt
    def compare(one: Style, other: Style | None = None) -> str:
        return f"{one} {other}"

    assert server.capabilities.completions == {}
    for argument in ("one", "other"):
        found = await complete(server, {"type": "ref/prompt", "name": "compare"}, argument, "st")
        assert found["result"]["completion"]["values"] == ["strict"]


Nested = TypeAliasType("Nested", "Literal['a'] | Deeper")
Deeper = TypeAliasType("Deeper", "Literal['b'] | Nested")


async def test_unions_that_are_members_of_each_other_have_an_end() -> None:
    server = Server("s")

    @server.prompt
    def compare(one: Nested, other: Nested) -> str:
        return f"{one} {other}"

    found = await complete(server, {"type": "ref/prompt", "name": "compare"}, "one")
    assert found["result"]["completion"]["values"] == ["a", "b"]


async def test_a_function_suggests_for_a_prompt_and_for_a_template() -> None:
    server = example()
    assert (await complete(server, PROMPT, "language", "p"))["result"]["completion"] == {
        "values": ["python", "perl"],
        "total": 2,
        "hasMore": False,
    }
    result = (await complete(server, TEMPLATE, "name", "w", {"owner": "ann"}))["result"]
    assert result["completion"]["values"] == ["completion/complete w ann"]
    assert (await complete(server, TEMPLATE, "name"))["result"]["completion"]["values"] == ["completion/complete  None"]


async def test_the_choices_of_a_type_are_suggested_by_themselves_the_best_first() -> None:
    server = example()
    assert (await complete(server, PROMPT, "style", "ST"))["result"]["completion"]["values"] == ["strict"]
    assert (await complete(server, PROMPT, "style", "i"))["result"]["completion"]["values"] == ["kind", "strict"]
    assert (await complete(server, PROMPT, "style", "k"))["result"]["completion"]["values"] == ["kind"]
    assert (await complete(server, PROMPT, "size"))["result"]["completion"]["values"] == ["s", "m"]


async def test_an_argument_without_suggestions_has_none() -> None:
    assert (await complete(example(), PROMPT, "code"))["result"]["completion"]["values"] == []
    assert (await complete(example(), TEMPLATE, "owner"))["result"]["completion"]["values"] == []


@pytest.mark.spec("CMP-02")
@pytest.mark.security("R12")
@pytest.mark.parametrize(
    ("value", "count", "total", "has_more"),
    [
        ([str(number) for number in range(100)], 100, 100, False),
        ([str(number) for number in range(101)], 100, 101, True),
        ((letter for letter in "ab"), 2, 2, False),
        (Completion([str(number) for number in range(101)]), 100, 101, True),
        (Completion(["a"], total=500, has_more=True), 1, 500, True),
        (Completion(["a"]), 1, None, None),
    ],
)
def test_at_most_100_values_are_sent(value: Any, count: int, total: int | None, has_more: bool | None) -> None:
    sent = to_completion(value)
    assert (len(sent.values), sent.total, sent.has_more) == (count, total, has_more)


@pytest.mark.parametrize("value", [None, "abc", b"abc", {"a": 1}, [1], ["\ud800"]])
def test_what_is_no_list_of_strings_is_refused(value: Any) -> None:
    with pytest.raises(Unserialisable):
        to_completion(value)


@pytest.mark.spec("CMP-03")
@pytest.mark.parametrize(
    ("ref", "argument", "says"),
    [
        ({"type": "ref/prompt", "name": "reviev"}, "language", "Did you mean 'review'?"),
        ({"type": "ref/prompt", "name": "SECRET"}, "language", "Unknown prompt."),
        ({"type": "ref/resource", "uri": "repo://{x}"}, "name", "Unknown resource template."),
        (PROMPT, "SECRET", "The prompt has: language, code, style, size."),
        (TEMPLATE, "SECRET", "The template has: owner, name."),
    ],
)
async def test_what_is_not_there_is_minus_32602(ref: dict[str, str], argument: str, says: str) -> None:
    error = (await complete(example(), ref, argument))["error"]
    assert error["code"] == -32602
    assert says in error["message"]
    assert "SECRET" not in error["message"]


@pytest.mark.spec("CMP-03")
async def test_a_function_that_fails_is_masked() -> None:
    server = example()

    @server.completion(prompt="review", argument="code")
    def broken(value: str) -> list[str]:
        raise RuntimeError("password")

    error = (await complete(server, PROMPT, "code"))["error"]
    assert error["code"] == -32603
    assert "password" not in json.dumps(error)


async def test_a_removed_prompt_is_no_longer_completed() -> None:
    server = example()
    server.remove_prompt("review")
    assert (await complete(server, PROMPT, "language"))["error"]["code"] == -32602


def one(value: str) -> list[str]:
    return [value]


def test_a_function_for_what_does_not_exist_is_refused_before_serving() -> None:
    server = example()
    server.engine.completions.check()
    server.completion(prompt="reviev", argument="language")(one)
    with pytest.raises(RegistrationError, match=r"test_completions\.py:\d+.*no prompt 'reviev'. Did you mean 'review'"):
        server.engine.completions.check()
    server = example()
    server.completion(template="repo://{owner}/{name}", argument="nam")(one)
    for serve in (server.engine.completions.check, server.asgi, lambda: start(server.engine, "stdio", HttpOptions())):
        with pytest.raises(RegistrationError, match=r"has no argument 'nam'. Did you mean 'name'"):
            serve()


def test_mistakes_are_told_at_registration() -> None:
    server = example()
    with pytest.raises(RegistrationError, match="either prompt= or template="):
        server.completion(argument="a")(one)
    with pytest.raises(RegistrationError, match="either prompt= or template="):
        server.completion(prompt="a", template="b://{c}", argument="a")(one)
    with pytest.raises(RegistrationError, match=r"twice: at .*test_completions\.py:\d+ and at .*test_completions\.py"):
        server.completion(prompt="review", argument="language")(one)

    def none() -> list[str]:
        return []

    with pytest.raises(RegistrationError, match="takes 0 parameters"):
        server.completion(prompt="review", argument="code")(none)
