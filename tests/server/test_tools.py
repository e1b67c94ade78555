"""Tools: what is registered, listed once, called, and refused."""

import asyncio
import dataclasses
from typing import Annotated, Any

import msgspec
import pytest

from support import CLIENT_CAPABILITIES_KEY, ask, encode, make_server, message
from weft import MirroredHeader, RegistrationError, Server, ToolError
from weft.errors import UsageError
from weft.server.asking.questions import ask_roots
from weft.server.asking.rounds import InputRequired
from weft.types import CallToolResult, Icon, TextContent, ToolAnnotations


async def test_the_list_is_encoded_once_and_again_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    server, pages = make_server(), []
    listed = server.engine.tools.list

    async def recorded(call: Any) -> Any:
        pages.append(await listed(call))
        return pages[-1]

    async def another() -> str:
        """One more."""
        return "x"

    monkeypatch.setattr(server.engine.tools, "list", recorded)
    app = server.asgi()
    for _ in range(2):
        assert (await ask(app, "tools/list")).status == 200
    assert isinstance(pages[0].body, msgspec.Raw)
    assert pages[1].body is pages[0].body
    server.add_tool(another)
    assert (await ask(app, "tools/list")).result["tools"][-1]["name"] == "another"
    assert pages[2].body is not pages[0].body
    server.remove_tool("another")
    assert (await ask(app, "tools/list")).result["tools"][-1]["name"] != "another"


@pytest.mark.spec("TOOL-21", "ICON-05", "TOOL-06")
async def test_everything_that_can_be_said_of_a_tool_is_listed() -> None:
    server = Server("said")

    @server.tool(
        name="other.name",
        title="Title",
        description="What it does",
        annotations=ToolAnnotations(title="Shown", read_only_hint=True),
        icons=[Icon("https://example.com/i.png", "image/png")],
        meta={"com.example/x": 1},
    )
    async def named(a: int = 3) -> None:
        """Not this."""

    (tool,) = (await ask(server, "tools/list")).result["tools"]
    assert tool["inputSchema"]["properties"] == {"a": {"type": "integer", "default": 3}}
    tool.pop("inputSchema")
    tool.pop("outputSchema", None)
    assert tool == {
        "name": "other.name",
        "title": "Title",
        "description": "What it does",
        "annotations": {"title": "Shown", "readOnlyHint": True},
        "icons": [{"src": "https://example.com/i.png", "mimeType": "image/png"}],
        "_meta": {"com.example/x": 1},
    }


@pytest.mark.spec("TOOL-07")
@pytest.mark.parametrize("name", ["a b", "a,b", "", "é", "x" * 129, "a/b"])
def test_names_that_are_none(name: str) -> None:
    server = Server("names")

    async def tool() -> str:
        return ""

    if name == "":
        server.add_tool(tool, name=name)  # nothing said: the function's own name
        assert server.engine.tools.get("tool") is not None
        return
    with pytest.raises(RegistrationError, match="cannot be registered"):
        server.add_tool(tool, name=name)


@pytest.mark.spec("TOOL-07")
@pytest.mark.mistake("duplicate names")
def test_a_name_is_taken_once_and_both_places_are_told() -> None:
    server = make_server()
    with pytest.raises(
        RegistrationError, match=r"registered twice: at tests.*everything\.py:\d+ and at tests.*test_tools\.py:\d+"
    ):

        @server.tool
        async def add() -> str:
            return ""


@pytest.mark.spec("HDR-15", "HDR-16", "HDR-17")
@pytest.mark.parametrize("header", ["", "a b", "é", "a\nb", "a:b", "a\x00"])
def test_a_header_that_is_none(header: str) -> None:
    server = Server("headers")
    with pytest.raises(RegistrationError, match="x-mcp-header"):

        @server.tool
        async def tool(a: Annotated[str, MirroredHeader(header)]) -> str:
            return a


async def test_a_number_that_no_header_could_be_compared_with_is_refused() -> None:
    server = Server("headers")

    @server.tool
    async def tool(a: Annotated[int, MirroredHeader("A")]) -> int:
        return a

    request = message("tools/call", {"name": "tool", "arguments": {"a": 1}})
    body = encode(request).replace(b'"a":1', b'"a":1e400').replace(b'"a": 1', b'"a":1e400')
    answer = await ask(
        server, "tools/call", {"name": "tool", "arguments": {"a": 1}}, headers={"Mcp-Param-A": "1"}, body=body
    )
    assert b"1e400" in body
    assert answer.error == {"code": -32602, "message": "Invalid params: a number in `arguments` is too large."}


@pytest.mark.spec("HDR-18", "HDR-19", "HDR-21")
@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}},
        {
            "a": {"type": "string", "x-mcp-header": "X"},
            "b": {"type": "object", "properties": {"c": {"type": "string", "x-mcp-header": "x"}}},
        },
        {"a": {"type": "number", "x-mcp-header": "X"}},
        {"a": {"type": "object", "x-mcp-header": "X"}},
        {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "X"}}},
        {"a": {"oneOf": [{"type": "string", "x-mcp-header": "X"}]}},
    ],
)
def test_annotations_where_there_may_be_none(properties: dict) -> None:
    server = Server("headers")

    async def tool(arguments: dict[str, Any]) -> str:
        return ""

    with pytest.raises(RegistrationError, match="x-mcp-header"):
        server.add_tool(tool, input_schema={"type": "object", "properties": properties})
    assert len(server.engine.tools) == 0


@pytest.mark.spec("TOOL-06", "JSCH-02", "JSCH-03", "JSCH-05", "JSCH-08")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"}, {}, {"type": "object", "properties": {"a": {"type": "strnig"}}},
        {"type": "object", "$schema": "https://example.com/mine"}, {"type": "object", "$ref": "https://example.com/s.json"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_offered(schema: dict) -> None:
    async def tool(arguments: dict[str, Any]) -> str:
        return ""

    with pytest.raises(RegistrationError, match="its input_schema is wrong"):
        Server("schemas").add_tool(tool, input_schema=schema)


def test_a_schema_in_place_of_a_signature_wants_one_parameter() -> None:
    async def tool(a: int, b: int) -> str:
        return ""

    with pytest.raises(RegistrationError, match="all arguments in one dictionary"):
        Server("schemas").add_tool(tool, input_schema={"type": "object"})


@pytest.mark.parametrize("plain", [True, False])
async def test_a_tool_has_its_time(plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    server, stopped = Server("slow"), asyncio.Event()

    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    def slow_plain() -> str:
        import time

        time.sleep(0.2)
        return "never"

    server.add_tool(slow_plain if plain else slow, name="slow", timeout=0.02)
    result = (await ask(server, "tools/call", {"name": "slow"})).result
    assert result["isError"] is True
    end = "was given up" if plain else "was stopped"  # a thread cannot be stopped
    assert result["content"][0]["text"] == f"The tool took longer than its 0.02 s and {end}."
    assert stopped.is_set() is not plain
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "weft.tools"]
    assert warning.startswith("Tool 'slow' (tests/server/test_tools.py:")
    assert warning.endswith(f"took longer than its 0.02 s and {end}.")


@pytest.mark.security("D4")
async def test_a_client_does_not_fill_the_log_with_a_tool_that_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("x")

    async def slow() -> None:
        await asyncio.sleep(10)

    server.add_tool(slow, timeout=0.001)
    for _ in range(12):
        await ask(server, "tools/call", {"name": "slow"})
    assert [record.getMessage().partition("stopped.")[2] for record in caplog.records] == ["", " (10 times by now)"]


async def test_a_timeout_inside_a_tool_is_not_the_tools_own() -> None:
    server = Server("inner")

    @server.tool(timeout=30)
    async def inner() -> str:
        raise TimeoutError("the database was slow")

    result = (await ask(server, "tools/call", {"name": "inner"})).result
    assert result["isError"] is True
    assert "30 s" not in result["content"][0]["text"]


@pytest.mark.mistake("a return value that cannot be serialised")
@pytest.mark.parametrize("declared", [True, False])
async def test_what_cannot_be_serialised_is_an_error_never_its_repr(declared: bool) -> None:
    server = Server("odd", debug=True)

    async def odd() -> Any:
        return {"at": object()}

    server.add_tool(odd, output_schema={"type": "object"} if declared else None)
    result = (await ask(server, "tools/call", {"name": "odd"})).result
    assert result["isError"] is True
    text = result["content"][0]["text"]
    assert "is of type object" in text
    assert "object at 0x" not in text


async def test_a_result_that_is_kept_and_returned_twice_is_not_spoilt() -> None:
    server, kept = Server("kept"), CallToolResult(content=[TextContent("same")])

    @server.tool
    async def same() -> CallToolResult:
        return kept

    for _ in range(2):
        assert (await ask(server, "tools/call", {"name": "same"})).result["content"][0]["text"] == "same"
    assert kept.meta is None
    assert kept.result_type is None


@pytest.mark.spec("CACHE-04", "META-16", "RES-17")
async def test_a_handler_may_return_questions_itself() -> None:
    server = Server("asks")

    @server.tool
    async def asks() -> Any:
        return InputRequired({"r": ask_roots()})

    @server.resource("x://asks")
    async def resource() -> Any:
        return InputRequired({"r": ask_roots()})

    meta = {CLIENT_CAPABILITIES_KEY: {"roots": {}}}
    for method, params in (("tools/call", {"name": "asks"}), ("resources/read", {"uri": "x://asks"})):
        result = (await ask(server, method, params, meta=meta)).result
        assert result["resultType"] == "input_required"
        assert result["inputRequests"] == {"r": {"method": "roots/list"}}
        assert result.keys().isdisjoint({"ttlMs", "cacheScope"})


@dataclasses.dataclass
class Point:
    x: int
    y: int


@pytest.mark.spec("TOOL-12", "TOOL-11")
async def test_output_schemas_of_many_types() -> None:
    server = Server("typed")

    @server.tool
    async def point() -> Point:
        return Point(1, 2)

    @server.tool
    async def numbers() -> list[int]:
        return [1, 2]

    @server.tool
    async def maybe() -> int | None:
        return None

    expected = {"point": {"x": 1, "y": 2}, "numbers": [1, 2], "maybe": None}
    for name, value in expected.items():
        result = (await ask(server, "tools/call", {"name": name})).result
        assert result["structuredContent"] == value, name
    schemas = {tool["name"]: tool["outputSchema"] for tool in (await ask(server, "tools/list")).result["tools"]}
    assert (schemas["point"]["type"], schemas["numbers"]["type"]) == ("object", "array")


@pytest.mark.spec("TOOL-12")
async def test_a_value_that_breaks_its_annotation_is_not_sent() -> None:
    server = Server("lies")

    @server.tool
    async def number() -> int:
        return "x"  # type: ignore[return-value] - the lie under test

    result = (await ask(server, "tools/call", {"name": "number"})).result
    assert result["isError"] is True
    assert "structuredContent" not in result


@pytest.mark.mistake("a tool that raises")
async def test_a_tool_error_is_for_the_model_as_it_stands() -> None:
    server = Server("errs")

    @server.tool
    def errs() -> str:
        raise ToolError("Try LX38.")

    result = (await ask(server, "tools/call", {"name": "errs"})).result
    assert (result["isError"], result["content"]) == (True, [{"type": "text", "text": "Try LX38."}])


@pytest.mark.mistake("unknown tool")
async def test_an_unknown_tool_gets_a_hint() -> None:
    server = make_server()
    assert (await ask(server, "tools/call", {"name": "ecko"})).error["message"] == "Unknown tool. Did you mean 'echo'?"
    far = (await ask(server, "tools/call", {"name": "zzzzzzzz"})).error["message"]
    names = [tool.name for tool in server.engine.tools]
    more = f", and {len(names) - 10} more; tools/list names them all."
    assert far == f"Unknown tool. The tools are: {', '.join(names[:10])}{more}"
    assert len(far) < 300
    for tool in list(server.engine.tools):
        server.remove_tool(tool.name)
    assert (await ask(server, "tools/call", {"name": "echo"})).error["message"] == "Unknown tool. There are no tools."


def test_removing_what_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"There is no tool 'nothing' to remove. There are: none\."):
        Server("x").remove_tool("nothing")
    with pytest.raises(UsageError, match=r"There is no tool 'ecko' to remove. Did you mean 'echo'\?"):
        make_server().remove_tool("ecko")


class Failing:
    """Tools that fail in a task group."""

    @staticmethod
    async def group(*errors: Exception) -> str:
        async def fail(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))
        return ""


@pytest.mark.spec("TOOL-15")
async def test_tool_errors_out_of_a_task_group_are_for_the_model_too(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("grouped")

    @server.tool
    async def one() -> str:
        return await Failing.group(ToolError("no flights"))

    @server.tool
    async def two() -> str:
        return await Failing.group(ToolError("no flights"), ToolError("no trains"))

    @server.tool
    async def nested() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(Failing.group(ToolError("no ships")))
        return ""

    @server.tool
    async def mixed() -> str:
        return await Failing.group(ToolError("no flights"), KeyError("secret"))

    said = {
        name: (await ask(server, "tools/call", {"name": name})).result for name in ("one", "two", "nested", "mixed")
    }
    assert all(result["isError"] for result in said.values())
    texts = {name: result["content"][0]["text"] for name, result in said.items()}
    assert (texts["one"], texts["two"], texts["nested"]) == ("no flights", "no flights\nno trains", "no ships")
    assert texts["mixed"].startswith("Internal error.")
    assert len(caplog.messages) == 1


@pytest.mark.spec("TOOL-12")
@pytest.mark.parametrize(
    ("declared", "content", "told"),
    [
        (
            False,
            {},
            "without structured_content, which clients expect because of its return type int. Put such a value",
        ),
        (False, {"structured_content": "x"}, "does not fit its return type int: The value is not of type"),
        (True, {}, "without structured_content, which clients expect because of its output_schema. Put a value"),
        (True, {"structured_content": "x"}, "does not fit its output_schema: The value is not of type"),
    ],
)
async def test_a_full_result_is_held_to_what_is_declared(
    declared: bool, content: dict, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("full")
    answers = [content, {"structured_content": 3}, {"is_error": True}]

    def tool() -> Any:
        return CallToolResult(content=[TextContent("x")], **answers.pop(0))

    tool.__annotations__["return"] = Any if declared else int
    server.add_tool(tool, **({"output_schema": {"type": "integer"}} if declared else {}))
    results = [(await ask(server, "tools/call", {"name": "tool"})).result for _ in range(3)]
    assert results[0]["isError"]
    assert results[0]["content"][0]["text"].startswith("Internal error.")
    assert told in caplog.text
    assert ("annotate `-> CallToolResult`, for no output schema" in caplog.text) is not declared
    assert results[1]["structuredContent"] == 3
    assert results[2]["content"] == [{"type": "text", "text": "x"}]


def nothing() -> str:
    return ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"timeout": -1}, "timeout= is a number of seconds above 0, not -1. Leave it out for no limit."),
        ({"timeout": 0}, "timeout= is a number of seconds above 0, not 0."),
        ({"timeout": float("inf")}, "timeout= is a number of seconds above 0, not inf."),
        (
            {"title": 5},
            "is not JSON of the right types: Expected `str | null`, got `int` - at `$.title`.",
        ),
        ({"meta": []}, "Expected `object | null`, got `array` - at `$._meta`."),
        (
            {"annotations": ToolAnnotations(read_only_hint="x")},  # type: ignore[arg-type]
            "Expected `bool | null`, got `str` - at `$.annotations.readOnlyHint`.",
        ),
    ],
)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        Server("x").add_tool(nothing, **options)
    assert str(caught.value).startswith("Tool 'nothing' cannot be registered (")
    assert sentence in str(caught.value)


async def test_a_schema_in_place_of_a_signature_takes_a_parameter_without_a_type() -> None:
    server = Server("raw")

    @server.tool(input_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    def whole(arguments):  # type: ignore[no-untyped-def]
        return str(arguments)

    answer = await ask(server, "tools/call", {"name": "whole", "arguments": {"n": 1}})
    assert answer.result["content"][0]["text"] == "{'n': 1}"
    with pytest.raises(RegistrationError, match="if it is the call's context, annotate it `ctx: Context`"):
        server.add_tool(lambda arguments, ctx: "", name="other", input_schema={"type": "object"})


async def test_a_cancellation_of_the_tools_own_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("own")

    @server.tool
    async def give_up() -> str:
        raise asyncio.CancelledError

    assert (await ask(server, "tools/call", {"name": "give_up"})).error["code"] == -32603
    assert caplog.messages[0].startswith("Tool 'give_up' (")
    assert "raised CancelledError" in caplog.messages[0]


async def test_a_stop_iteration_of_a_plain_tool_is_logged_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("stopping")

    @server.tool
    def first() -> str:
        return next(iter([]))

    assert (await ask(server, "tools/call", {"name": "first"})).result["isError"]
    assert "raised RuntimeError: raised StopIteration(None)" in caplog.messages[0]
    assert "in first: return next(iter([]))" in caplog.messages[0]


async def test_a_text_in_place_of_a_list_of_blocks_is_one_block() -> None:
    server = Server("full")
    server.add_tool(lambda: CallToolResult(content="two words"), name="said")  # type: ignore[arg-type]
    answer = await ask(server, "tools/call", {"name": "said"})
    assert answer.result["content"] == [{"type": "text", "text": "two words"}]
