"""Middleware sees what a handler raises and changes what it gets; `server.on_error` translates exceptions."""

import asyncio
import logging
from typing import Any

import pytest

from support import ask
from support.blending import Blending
from weft import Client, Context, InputRequired, ProtocolError, Server, ToolError, ask_form
from weft.errors import RemoteError, UsageError
from weft.types import CallToolResult, TextContent


class SoldOut(Exception):
    def __init__(self, tea: str) -> None:
        super().__init__(f"no {tea}")
        self.tea = tea


class SoldOutForGood(SoldOut): ...


def shop(**options: Any) -> Server:
    server = Server("shop", **options)

    @server.tool
    async def buy(tea: str, pounds: int = 1) -> str:
        if tea == "gone":
            raise SoldOutForGood(tea)
        if tea == "none":
            raise SoldOut(tea)
        if tea == "told":
            raise ToolError("Ask for another.")
        if tea == "refused":
            raise ProtocolError("closed", code=1001)
        if tea == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(fail(tea))
        if tea == "exit":
            raise SystemExit(3)
        return f"{pounds} x {tea}"

    @server.resource("tea://{name}")
    def read(name: str) -> str:
        raise SoldOut(name)

    @server.prompt
    def order(tea: str) -> str:
        raise SoldOut(tea)

    @server.completion(prompt="order", argument="tea")
    def suggest(value: str) -> list[str]:
        raise SoldOut(value)

    return server


async def fail(tea: str) -> None:
    raise SoldOut(tea)


async def call(server: Server, tea: str, **arguments: Any) -> Any:
    return (await ask(server, "tools/call", {"name": "buy", "arguments": {"tea": tea, **arguments}})).json


# --- what middleware sees


@pytest.mark.parametrize(
    ("tea", "seen"),
    [
        ("none", SoldOut),
        ("told", ToolError),
        ("refused", ProtocolError),
        ("group", ExceptionGroup),
        ("exit", SystemExit),
    ],
)
async def test_middleware_sees_the_exception_of_a_tool(tea: str, seen: type[BaseException]) -> None:
    server, caught = shop(), list[BaseException]()

    @server.middleware
    async def watch(ctx: Context, next: Any) -> Any:
        try:
            return await next()
        except BaseException as error:
            caught.append(error)
            raise

    await call(server, tea)
    assert [type(error) for error in caught] == [seen]


async def test_middleware_sees_arguments_that_do_not_fit() -> None:
    server, caught = shop(), list[ToolError]()

    @server.middleware
    async def watch(ctx: Context, next: Any) -> Any:
        try:
            return await next()
        except ToolError as error:
            caught.append(error)
            raise

    answer = await call(server, "mint", pounds="many")
    assert answer["result"]["isError"]
    assert "pounds" in str(caught[0])
    assert answer["result"]["content"][0]["text"] == str(caught[0])


async def test_middleware_translates_in_one_place() -> None:
    server = shop()

    @server.middleware
    async def translate(ctx: Context, next: Any) -> Any:
        try:
            return await next()
        except SoldOut as error:
            raise ToolError(f"There is no {error.tea} left.") from error

    answer = await call(server, "none")
    assert (answer["result"]["isError"], answer["result"]["content"][0]["text"]) == (True, "There is no none left.")


async def test_what_nothing_translates_is_masked_as_before(caplog: pytest.LogCaptureFixture) -> None:
    server = shop()

    @server.middleware
    async def watch(ctx: Context, next: Any) -> Any:
        return await next()

    answer = await call(server, "none")
    assert answer["result"]["isError"]
    assert answer["result"]["content"][0]["text"].startswith("Internal error.")
    assert "Tool 'buy'" in caplog.text
    assert "SoldOut: no none" in caplog.text


# --- what it changes


@pytest.mark.parametrize("how", ["key", "dict"])
async def test_middleware_changes_arguments_and_they_are_validated(how: str) -> None:
    server = shop()

    @server.middleware
    async def change(ctx: Context, next: Any) -> Any:
        assert ctx.params.arguments == {"tea": "mint", "pounds": 2}
        if how == "key":
            ctx.params.arguments["pounds"] = 3
        else:
            ctx.params.arguments = {"tea": "assam", "pounds": "a lot"}
        return await next()

    text = (await call(server, "mint", pounds=2))["result"]["content"][0]["text"]
    assert text == "3 x mint" if how == "key" else "pounds" in text


async def test_a_call_without_arguments_has_an_empty_dictionary_to_fill() -> None:
    server = shop()

    @server.middleware
    async def fill(ctx: Context, next: Any) -> Any:
        ctx.params.arguments["tea"] = "mint"
        return await next()

    answer = await ask(server, "tools/call", {"name": "buy"})
    assert answer.result["content"][0]["text"] == "1 x mint"


async def test_arguments_survive_being_read() -> None:
    server = Server("s")

    @server.tool
    def count(big: int, exact: float) -> str:
        return f"{big} {exact}"

    @server.middleware
    async def look(ctx: Context, next: Any) -> Any:
        assert ctx.params.arguments
        return await next()

    arguments = {"big": 10**30, "exact": 0.1}
    answer = await ask(server, "tools/call", {"name": "count", "arguments": arguments})
    assert answer.result["content"][0]["text"] == f"{10**30} 0.1"


@pytest.mark.spec("TOOL-14")
async def test_arguments_that_are_no_object_are_refused_also_where_middleware_reads_them() -> None:
    server = shop()

    @server.middleware
    async def look(ctx: Context, next: Any) -> Any:
        _ = ctx.params.arguments
        return await next()

    answer = await ask(server, "tools/call", {"name": "buy", "arguments": [1]})
    assert answer.error["code"] == -32602


@pytest.mark.mistake("middleware assigns no dictionary")
async def test_what_is_no_dictionary_is_the_middlewares_mistake(caplog: pytest.LogCaptureFixture) -> None:
    server = shop()

    @server.middleware
    async def change(ctx: Context, next: Any) -> Any:
        ctx.params.arguments = [1]
        return await next()

    answer = await call(server, "mint")
    assert answer["error"]["code"] == -32603
    assert "Assign a dictionary" in caplog.text


async def test_a_handler_that_is_run_again_gets_each_change_once() -> None:
    server, seen = Server("s"), list[int]()

    @server.tool
    async def choose(ctx: Context, number: int) -> Any:
        seen.append(number)
        if not ctx.has_input_response("name"):
            return InputRequired({"name": ask_form("Which?", {"type": "object", "properties": {}})})
        return "done"

    @server.middleware
    async def more(ctx: Context, next: Any) -> Any:
        if ctx.method == "tools/call":
            ctx.params.arguments["number"] += 1
        return await next()

    for mode in ("session", "stateless"):
        async with Client(server, eras=[mode], elicit=lambda question: {}) as client:
            assert (await client.call_tool("choose", {"number": 1})).text == "done"
    assert seen == [2, 2, 2, 2]


# --- on_error


async def test_a_text_is_what_the_model_reads_or_the_message_of_the_error(caplog: pytest.LogCaptureFixture) -> None:
    server = shop()

    @server.on_error(SoldOut)
    def sold_out(error: SoldOut) -> str:
        return f"There is no {error.tea} left."

    result = (await call(server, "none"))["result"]
    assert (result["isError"], result["content"][0]["text"]) == (True, "There is no none left.")
    assert (await call(server, "group"))["result"]["content"][0]["text"] == "There is no group left."
    for method, params in (
        ("resources/read", {"uri": "tea://mint"}),
        ("prompts/get", {"name": "order", "arguments": {"tea": "mint"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "order"}, "argument": {"name": "tea", "value": "mint"}},
        ),
    ):
        error = (await ask(server, method, params)).error
        assert (error["code"], error["message"]) == (-32603, "There is no mint left.")
    assert caplog.text == ""


async def test_several_exceptions_at_once_are_not_one() -> None:
    """A task group with one failure has wrapped it; one with several says more than any single one of them."""
    server = shop()

    @server.tool
    async def both() -> str:
        raise ExceptionGroup("two", [SoldOut("mint"), KeyError("rack")])

    @server.on_error(SoldOut)
    def sold_out(error: SoldOut) -> str:
        return f"There is no {error.tea} left."

    result = (await ask(server, "tools/call", {"name": "both", "arguments": {}})).result
    assert result["isError"]
    assert "There is no" not in result["content"][0]["text"]


async def test_exceptions_of_extension_methods_are_translated() -> None:
    class Broken(Blending):
        async def create(self, call: Any) -> Any:
            raise SoldOut("blend")

    server = Server("s", extensions=[Broken()])
    server.on_error(SoldOut, lambda error: ProtocolError("none left", code=7, data={"tea": error.tea}))
    async with Client(server, extensions={Broken.id: {}}) as client:
        with pytest.raises(RemoteError) as refused:
            await client.request("blend/plain", {"name": "x"})
    assert (refused.value.code, refused.value.message, refused.value.data) == (7, "none left", {"tea": "blend"})


async def test_the_most_specific_class_wins_and_answers_are_left_alone() -> None:
    server = shop()
    server.on_error(Exception, lambda error: "Something went wrong.")
    server.on_error(SoldOutForGood, lambda error: "It is gone for good.")
    server.on_error(SoldOut, lambda error: "It is sold out.")

    async def text(tea: str) -> str:
        return (await call(server, tea))["result"]["content"][0]["text"]

    assert await text("gone") == "It is gone for good."
    assert await text("none") == "It is sold out."
    assert await text("told") == "Ask for another."
    assert (await call(server, "refused"))["error"]["code"] == 1001
    assert (await call(server, "mint", pounds="many"))["result"]["content"][0]["text"].startswith("The arguments")
    server.on_error(ToolError, lambda error: f"Told: {error}")
    assert await text("told") == "Told: Ask for another."


async def test_it_may_return_a_result_and_have_the_context() -> None:
    server = shop()

    @server.on_error(SoldOut)
    async def sold_out(error: SoldOut, ctx: Context) -> CallToolResult:
        return CallToolResult(content=[TextContent(ctx.method)], structured_content={"tea": error.tea}, is_error=True)

    result = (await call(server, "none"))["result"]
    assert result["structuredContent"] == {"tea": "none"}
    assert result["content"][0]["text"] == "tools/call"
    assert result["resultType"] == "complete"


@pytest.mark.parametrize("answer", [ToolError("no"), ProtocolError("no", code=5)])
async def test_what_it_raises_counts_as_returned(answer: Exception) -> None:
    server = shop()

    @server.on_error(SoldOut)
    def sold_out(error: SoldOut) -> str:
        raise answer

    told = await call(server, "none")
    if isinstance(answer, ToolError):
        assert told["result"]["content"][0]["text"] == "no"
    else:
        assert told["error"]["code"] == 5


async def test_raised_again_it_is_masked_as_without() -> None:
    server = shop()

    @server.on_error(SoldOut)
    def sold_out(error: SoldOut) -> str:
        raise error

    assert (await call(server, "none"))["result"]["content"][0]["text"].startswith("Internal error.")
    assert (await ask(server, "resources/read", {"uri": "tea://x"})).error["message"].startswith("Internal error.")


@pytest.mark.mistake("on_error returns nothing")
@pytest.mark.parametrize(
    ("made", "said"),
    [(lambda error: 1 / 0, "ZeroDivisionError"), (lambda error: None, "Return a text, a ToolError, a ProtocolError")],
)
async def test_its_own_faults_are_masked_and_logged(made: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    server = shop()
    server.on_error(SoldOut, made)
    text = (await call(server, "none"))["result"]["content"][0]["text"]
    assert text.startswith("Internal error.")
    assert "on_error(SoldOut)" in caplog.text
    assert said in caplog.text
    assert (await ask(server, "resources/read", {"uri": "tea://x"})).error["message"].startswith("Internal error.")


async def test_a_tools_result_is_none_of_a_resource(caplog: pytest.LogCaptureFixture) -> None:
    server = shop()
    server.on_error(SoldOut, lambda error: CallToolResult(content=[]))
    assert (await ask(server, "resources/read", {"uri": "tea://x"})).error["code"] == -32603
    assert "which is no call of a tool" in caplog.text


async def test_a_result_that_is_no_json_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    server = shop()
    server.on_error(SoldOut, lambda error: CallToolResult(content=[], structured_content=object()))
    assert (await call(server, "none"))["error"]["message"].startswith("Internal error.")


async def test_questions_pass_a_function_for_every_exception() -> None:
    server = Server("s")

    @server.tool
    async def choose(ctx: Context) -> str:
        return (await ctx.elicit("Which?", {"type": "object", "properties": {}})).action

    server.on_error(Exception, lambda error: "never")
    for mode in ("session", "stateless"):
        async with Client(server, eras=[mode], elicit=lambda question: {}) as client:
            assert (await client.call_tool("choose")).text == "accept"


async def test_what_is_refused_before_a_feature_is_reached_is_not_translated() -> None:
    server = shop()
    server.on_error(ProtocolError, lambda error: "never")
    answer = await ask(server, "tools/call", {"name": "nothing"})
    assert answer.error["code"] == -32602
    assert (await call(server, "refused"))["result"]["content"][0]["text"] == "never"


async def test_an_exception_that_is_translated_leaves_no_cycle() -> None:
    import gc
    import weakref

    class Heavy(Exception): ...

    server, seen = Server("s"), list[Any]()

    @server.tool
    async def fall() -> str:
        error = Heavy()
        seen.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    @server.on_error(Heavy)
    async def again(error: Heavy) -> str:
        raise error

    logging.getLogger("weft.faults").disabled = True
    gc.disable()
    try:
        await ask(server, "tools/call", {"name": "fall"})
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()
        logging.getLogger("weft.faults").disabled = False


@pytest.mark.mistake("on_error of what is no exception")
@pytest.mark.parametrize(
    ("kind", "fn", "said"),
    [
        ("SoldOut", lambda error: "", "give a class of exceptions"),
        (BaseException, lambda error: "", "give a class of exceptions"),
        (InputRequired, lambda error: "", "give a class of exceptions"),
        (SoldOut, lambda: "", "def fn(error)"),
    ],
)
def test_what_cannot_be_one_is_refused(kind: Any, fn: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Server("s").on_error(kind, fn)
    assert said in str(refused.value)


def test_a_class_has_one_function() -> None:
    server = Server("s")
    server.on_error(SoldOut, str)
    with pytest.raises(UsageError, match="registered twice"):
        server.on_error(SoldOut, str)
