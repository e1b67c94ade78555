"""Prompts through the dispatcher: registering, listing, filling in, refusing."""

from __future__ import annotations

import base64
import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from weft import Context, Server
from weft.eras.client import StatelessClient
from weft.eras.stateless import NEWEST, STATELESS
from weft.errors import InvalidParams, ProtocolError, RegistrationError, UsageError
from weft.jsonrpc import decode, encode_request
from weft.server.calls.call import Call
from weft.server.calls.changes import Change
from weft.server.calls.connection import Connection
from weft.server.features.content import Audio, File, Image
from weft.server.features.prompts import AssistantMessage, UserMessage
from weft.server.runtime.dispatch import Next
from weft.types.base import Icon, Implementation
from weft.types.features import GetPromptResult, PromptMessage, ResourceLink, TextContent
from weft.types.interaction import InputRequiredResult
from weft.types.lifecycle import ClientCapabilities, RootsCapability


class Silent:
    async def notify(self, message: bytes) -> None: ...


async def send(
    server: Server, method: str, capabilities: ClientCapabilities | None = None, **params: Any
) -> dict[str, Any]:
    declared = capabilities or ClientCapabilities()
    stamped = StatelessClient().stamp(method, params, info=Implementation("t", "1"), capabilities=declared)
    frame = decode(encode_request(1, method, stamped))
    envelope = STATELESS.open(frame, None, server.engine.offer, None)
    connection = Connection.from_envelope(NEWEST.version, None, declared)
    _, body = await server.engine.dispatcher.run(Call(server.engine, 1, envelope, STATELESS, connection, Silent()))
    return json.loads(body)


async def get(server: Server, name: str, **arguments: str) -> dict[str, Any]:
    return await send(server, "prompts/get", name=name, arguments=arguments)


async def returned(value: Any) -> list[dict[str, Any]]:
    server = Server("s")
    server.add_prompt(lambda: value, name="p")
    return (await get(server, "p"))["result"]["messages"]


async def test_the_content_of_a_message_becomes_a_block() -> None:
    """A struct takes whatever it is given; what clients get is a message all the same."""
    picture = PromptMessage("assistant", Image(b"GIF89a"))  # type: ignore[arg-type]
    assert await returned([PromptMessage("user", "hi"), picture]) == [  # type: ignore[arg-type]
        {"role": "user", "content": {"type": "text", "text": "hi"}},
        {"role": "assistant", "content": {"type": "image", "data": "R0lGODlh", "mimeType": "image/gif"}},
    ]
    block = {"type": "text", "text": "as it stands"}
    assert await returned(PromptMessage("user", block)) == [{"role": "user", "content": block}]  # type: ignore[arg-type]


async def test_a_message_maker_taken_for_a_type_says_what_to_write() -> None:
    sentence = r"is not a type; annotate with PromptMessage, such as `-> list\[PromptMessage\]`"
    with pytest.raises(TypeError, match=sentence):
        UserMessage | AssistantMessage  # as it is evaluated where annotations are not text
    with pytest.raises(TypeError, match=sentence):
        None | UserMessage

    def chat() -> list[UserMessage | AssistantMessage]: ...  # pyright: ignore[reportInvalidTypeForm] - the mistake

    with pytest.raises(RegistrationError, match=sentence):
        Server("s").add_prompt(chat)


async def test_a_message_maker_alone_is_taken_for_what_it_makes() -> None:
    def chat() -> list[UserMessage]:  # pyright: ignore[reportInvalidTypeForm] - as it is written by mistake
        return [UserMessage("Hi.")]

    server = Server("s")
    server.add_prompt(chat)
    assert (await get(server, "chat"))["result"]["messages"] == [says("user", "Hi.")]


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": text}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hi", [says("user", "hi")]),
        (AssistantMessage("yes"), [says("assistant", "yes")]),
        (
            ["a", AssistantMessage("b"), TextContent("c")],
            [says("user", "a"), says("assistant", "b"), says("user", "c")],
        ),
        (("a", UserMessage({"b": 1})), [says("user", "a"), says("user", '{"b":1}')]),
        ([], []),
    ],
)
async def test_what_a_function_returns_becomes_messages(value: Any, expected: Any) -> None:
    assert await returned(value) == expected


@pytest.mark.spec("PRM-05", "PRM-06")
async def test_pictures_sounds_and_files_are_base64_with_their_type_or_embedded_with_uri() -> None:
    image, audio, file, link = await returned(
        [Image(b"GIF89a"), Audio(b"OggS"), File(b"a,b", uri="a://b.csv"), ResourceLink("a://b", "b")]
    )
    assert image["content"] == {"type": "image", "data": base64.b64encode(b"GIF89a").decode(), "mimeType": "image/gif"}
    assert audio["content"] == {"type": "audio", "data": base64.b64encode(b"OggS").decode(), "mimeType": "audio/ogg"}
    assert file["content"]["resource"] == {"uri": "a://b.csv", "mimeType": "text/csv", "text": "a,b"}
    assert link["content"] == {"type": "resource_link", "uri": "a://b", "name": "b"}


async def test_a_result_that_a_prompt_made_is_held_to_the_same_rules() -> None:
    server = Server("s", debug=True)
    server.add_prompt(lambda: GetPromptResult(messages=["x"]), name="text")  # type: ignore[list-item]
    server.add_prompt(lambda: GetPromptResult(messages="xy"), name="alone")  # type: ignore[arg-type]
    assert (await get(server, "alone"))["result"]["messages"] == [says("user", "xy")]
    server.add_prompt(lambda: GetPromptResult(messages=[5]), name="number")  # type: ignore[list-item]
    assert (await get(server, "text"))["result"]["messages"] == [says("user", "x")]
    assert "content blocks, or a list of these, not int" in (await get(server, "number"))["error"]["message"]


async def test_a_full_result_is_sent_as_it_is_and_not_written_into() -> None:
    server = Server("s")
    shared = GetPromptResult(messages=[PromptMessage("assistant", TextContent("x"))], description="mine")
    server.add_prompt(lambda: shared, name="p")
    result = (await get(server, "p"))["result"]
    assert (result["description"], result["messages"]) == ("mine", [says("assistant", "x")])
    assert shared.meta is None


@pytest.mark.spec("PRM-12")
async def test_a_prompt_may_ask_first_and_is_never_cacheable() -> None:
    server = Server("s")
    server.add_prompt(lambda: InputRequiredResult(result_type="input_required", request_state="s"), name="asks")
    server.add_prompt(lambda: "x", name="plain")
    assert (await get(server, "asks"))["result"]["resultType"] == "input_required"
    assert "ttlMs" not in (await get(server, "plain"))["result"]


@dataclass
class Place:
    city: str


@pytest.mark.spec("PRM-12")
async def test_strings_become_the_types_of_the_parameters() -> None:
    server, seen = Server("s"), []

    @server.prompt
    async def typed(
        ctx: Context,
        text: str,
        count: int,
        flag: bool,
        tags: list[str],
        place: Place,
        either: int | str,
        maybe: int | None = None,
        size: Literal["s", "m"] = "m",
    ) -> str:
        seen.append((ctx.method, text, count, flag, tags, place, either, maybe, size))
        return "ok"

    filled = {"count": "3", "flag": "true", "tags": '["a"]', "place": '{"city":"Bern"}', "either": "7"}
    assert (await get(server, "typed", text="5", **filled))["result"]["messages"] == [says("user", "ok")]
    assert (await get(server, "typed", text='["x"]', maybe="9", size="s", **filled))["result"]
    assert seen == [
        ("prompts/get", "5", 3, True, ["a"], Place("Bern"), "7", None, "m"),
        ("prompts/get", '["x"]', 3, True, ["a"], Place("Bern"), "7", 9, "s"),
    ]


class Level(enum.Enum):
    LOW = "1"
    HIGH = "2"


async def test_a_choice_that_two_arguments_have_is_a_text_in_both() -> None:
    server = Server("s")

    @server.prompt
    def compare(one: Level, other: Level | None = None) -> str:
        return f"{one.name} {other and other.name}"

    assert (await get(server, "compare", one="1", other="2"))["result"]["messages"] == [says("user", "LOW HIGH")]


@pytest.mark.spec("PRM-01", "PRM-02", "CACHE-01", "PAG-06")
async def test_prompts_are_listed_with_their_arguments() -> None:
    server = Server("s")
    assert server.capabilities.prompts is None

    @server.prompt(title="Review", icons=[Icon("https://a.example/i.png")], meta={"com.example/x": 1})
    def review(
        code: str, ctx: Context, style: Annotated[str, Field(title="Style", description="How.")] = "kind"
    ) -> str:
        """Review some code.

        Args:
            code: What to review.
        """
        return code + style

    server.add_prompt(lambda: "x", name="bare")
    assert server.capabilities.prompts is not None
    result = (await send(server, "prompts/list"))["result"]
    assert result["prompts"] == [
        {
            "name": "review",
            "title": "Review",
            "description": "Review some code.",
            "arguments": [
                {"name": "code", "description": "What to review.", "required": True},
                {"name": "style", "title": "Style", "description": "How.", "required": False},
            ],
            "icons": [{"src": "https://a.example/i.png"}],
            "_meta": {"com.example/x": 1},
        },
        {"name": "bare"},
    ]
    assert (result["ttlMs"], result["cacheScope"]) == (0, "public")
    assert (await get(server, "review", code="x"))["result"]["description"] == "Review some code."


@pytest.mark.spec("PRM-03")
async def test_the_list_is_the_same_whoever_asks_and_whatever_came_before() -> None:
    server = Server("s")
    server.add_prompt(lambda: "x", name="p")
    before = await send(server, "prompts/list")
    await get(server, "p")
    assert await send(server, "prompts/list", ClientCapabilities(roots=RootsCapability())) == before


def reviewing() -> tuple[Server, list[Any]]:
    server, seen = Server("s"), []

    @server.prompt
    def review(code: str, lines: int = 3) -> str:
        seen.append((code, lines))
        return code

    return server, seen


@pytest.mark.spec("PRM-08")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'words' is missing; expected the text of an integer, such as '3'."),
        ({"words": "x"}, "'words': expected the text of an integer, such as '3'."),
        ({"words": "3.5"}, "'words': expected the text of an integer, such as '3'."),
        ({"words": "3", "warm": "maybe"}, "'warm': expected the text of true or false, such as 'true'."),
        ({"words": "3", "cups": "x"}, "'cups': expected the text of a number, such as '1.5'."),
        ({"words": "3", "days": "1"}, "'days': expected the text of an array in JSON, '[…]'."),
        ({"words": "3", "days": '["x"]'}, "'days[0]': expected an integer, got a string."),
        ({"words": "3", "kind": "x"}, "'kind': expected 'green' or 'black', got another text."),
        ({"words": "3", "most": "0"}, "'most': it should be greater than 0."),
    ],
)
async def test_what_an_argument_should_be_the_text_of_is_told(arguments: dict[str, str], said: str) -> None:
    server = Server("s")

    @server.prompt
    def poem(
        words: int,
        warm: bool = True,
        cups: float = 1,
        days: list[int] | None = None,
        kind: Literal["green", "black"] = "green",
        most: Annotated[int, Field(gt=0)] = 1,
    ) -> str:
        return f"{words} {warm} {cups} {days} {kind} {most}"

    message = (await get(server, "poem", **arguments))["error"]["message"]
    assert message == f"Invalid params: The arguments of prompt 'poem' do not fit:\n- {said}"


@pytest.mark.spec("PRM-07")
async def test_an_unknown_prompt_is_minus_32602_with_a_hint_and_without_the_name() -> None:
    server, _ = reviewing()
    error = (await get(server, "reviev"))["error"]
    assert error == {"code": -32602, "message": "Unknown prompt. Did you mean 'review'?"}
    far = (await get(server, "zzz" * 1000))["error"]
    assert far == {"code": -32602, "message": "Unknown prompt. The prompts are: review."}


@pytest.mark.spec("PRM-07", "PRM-08", "PRM-11")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, ["'code' is missing"]),
        ({"code": "x", "colour": "y"}, ["'colour' is not known"]),
        ({"code": "x", "lines": "SECRET"}, ["'lines'", "integer"]),
        ({"code": "x", "lines": "1e5000"}, ["'lines'", "integer"]),
        ({"code": "x", "lines": "9" * 5000}, ["'lines'", "integer"]),
        ({"code": "x", "lines": "[" * 500}, ["'lines'", "integer"]),
        ({"lines": "x"}, ["'code' is missing", "'lines'"]),
    ],
)
async def test_arguments_that_do_not_fit_are_named_before_the_function_runs(
    arguments: dict[str, str], named: list[str]
) -> None:
    server, seen = reviewing()
    error = (await get(server, "review", **arguments))["error"]
    assert error["code"] == -32602
    assert all(part in error["message"] for part in named)
    assert "SECRET" not in error["message"]
    assert seen == []


@pytest.mark.security("D2", "D3")
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("[" * 128 + "]" * 128, True),
        ("[" * 129 + "]" * 129, False),
        (f"[{'9' * 1000}]", True),
        (f"[{'9' * 1001}]", False),
        ("[NaN]", False),
        ("[1,]", False),
    ],
)
async def test_json_inside_an_argument_keeps_the_bounds_of_all_json(text: str, fits: bool) -> None:
    server = Server("s")

    @server.prompt
    def many(items: list[Any]) -> str:
        return str(len(items))

    answer = await get(server, "many", items=text)
    assert ("result" in answer) is fits
    assert fits or answer["error"]["code"] == -32602


@pytest.mark.spec("PRM-07", "PRM-11")
@pytest.mark.parametrize("value", [None, 3, object(), [object()], "\ud800"])
async def test_what_is_no_message_is_a_fault_of_ours(value: Any) -> None:
    server = Server("s", debug=False)
    server.add_prompt(lambda: value, name="p")
    assert (await get(server, "p"))["error"]["code"] == -32603


@pytest.mark.spec("PRM-07")
async def test_a_prompt_that_raises_is_masked_unless_it_says_what_to_answer() -> None:
    server = Server("s", debug=False)

    @server.prompt
    def broken() -> str:
        raise RuntimeError("password")

    @server.prompt
    def choosy() -> str:
        raise InvalidParams("Not on Sundays.")

    masked = (await get(server, "broken"))["error"]
    assert masked["code"] == -32603
    assert "password" not in json.dumps(masked)
    assert (await get(server, "choosy"))["error"] == {"code": -32602, "message": "Not on Sundays."}


@pytest.mark.spec("PRM-11")
async def test_a_prompt_can_be_kept_from_whoever_may_not_see_it() -> None:
    server, seen = reviewing()

    @server.middleware
    async def guard(ctx: Context, following: Next) -> Any:
        if ctx.method == "prompts/get" and not ctx.client_supports("roots"):
            raise ProtocolError("Not yours.", code=1001)
        return await following()

    params = {"name": "review", "arguments": {"code": "x"}}
    assert (await send(server, "prompts/get", **params))["error"]["code"] == 1001
    assert seen == []
    assert "result" in await send(server, "prompts/get", ClientCapabilities(roots=RootsCapability()), **params)


async def test_prompts_come_and_go_while_serving_and_listeners_hear_it() -> None:
    server, heard = Server("s", page_size=1), []
    server.engine.changes.subscribe(heard.append)
    server.add_prompt(lambda: "x", name="a")
    server.add_prompt(lambda: "x", name="b")
    page = (await send(server, "prompts/list"))["result"]
    assert [prompt["name"] for prompt in page["prompts"]] == ["a"]
    server.remove_prompt("a")
    after = (await send(server, "prompts/list", cursor=page["nextCursor"]))["result"]
    assert [prompt["name"] for prompt in after["prompts"]] == ["b"]
    assert heard == [Change("prompts")] * 3
    with pytest.raises(UsageError, match=r"There is no prompt 'a' to remove. There are: b\."):
        server.remove_prompt("a")


@pytest.mark.mistake("duplicate names")
def test_a_name_registered_twice_is_refused_with_both_places() -> None:
    server, _ = reviewing()
    with pytest.raises(RegistrationError, match=r"twice: at .*test_prompts\.py:\d+ and at .*test_prompts\.py:\d+"):
        server.add_prompt(lambda: "x", name="review")


@pytest.mark.parametrize("name", ["a\nb", "x" * 257])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="1 to 256 printable"):
        Server("s").add_prompt(lambda: "x", name=name)


def test_metadata_that_is_not_json_is_refused() -> None:
    with pytest.raises(RegistrationError, match="definition is not JSON"):
        Server("s").add_prompt(lambda: "x", name="a", meta={"a": object()})
