"""The way of a call: the method table, the middleware, and the sole error boundary."""

import asyncio
import functools
import logging
from collections.abc import Awaitable
from typing import Annotated, Any

import pytest

from support import SERVER_INFO, ask, make_server
from weft import Context, MirroredHeader, ProtocolError, Server, ToolError
from weft.middleware import Next
from weft.server.run import engine as app
from weft.types import CallToolResult, TextContent


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "find_tracing", lambda: None)


def tracing(trace: list[str], name: str) -> Any:
    async def layer(ctx: Context, next: Any) -> Any:
        trace.append(f"{name} before")
        result = await next()
        trace.append(f"{name} after")
        return result

    return layer


async def test_middleware_goes_around_the_first_outermost() -> None:
    trace: list[str] = []
    server = make_server(middleware=[tracing(trace, "a"), tracing(trace, "b")])
    server.middleware(tracing(trace, "c"))
    assert (await ask(server, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})).status == 200
    assert trace == ["a before", "b before", "c before", "c after", "b after", "a after"]


async def test_middleware_added_while_serving_counts_from_then_on() -> None:
    trace: list[str] = []
    server = make_server()
    app = server.asgi()
    await ask(app, "tools/list")
    server.middleware(tracing(trace, "late"))
    await ask(app, "tools/list")
    assert trace == ["late before", "late after"]


async def test_middleware_may_answer_in_place_of_the_handler() -> None:
    server = make_server()

    @server.middleware
    async def instead(ctx: Context, next: Any) -> Any:
        return CallToolResult(content=[TextContent("cached")])

    result = (await ask(server, "tools/call", {"name": "fail", "arguments": {"how": "error"}})).result
    assert result["content"] == [{"type": "text", "text": "cached"}]
    assert result["resultType"] == "complete"
    assert SERVER_INFO in result["_meta"]


async def test_middleware_may_change_a_list_without_changing_it_for_others() -> None:
    server = make_server()
    hide = True

    @server.middleware
    async def fewer(ctx: Context, next: Any) -> Any:
        result = await next()
        if ctx.method == "tools/list" and hide:
            result.tools = result.tools[:1]
        return result

    assert len((await ask(server, "tools/list")).result["tools"]) == 1
    hide = False
    assert len((await ask(server, "tools/list")).result["tools"]) > 1


async def test_middleware_may_refuse() -> None:
    server = make_server()

    @server.middleware
    async def closed(ctx: Context, next: Any) -> Any:
        raise ProtocolError("Closed.", code=1001, data={"opens": 8})

    response = await ask(server, "tools/list")
    assert response.error == {"code": 1001, "message": "Closed.", "data": {"opens": 8}}


@pytest.mark.security("R1", "D4")
@pytest.mark.spec("JRPC-12", "RES-07")
async def test_the_boundary_masks_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = await ask(make_server(), "resources/read", {"uri": "note://moody"})
    assert response.refusal == (200, -32603)
    (record,) = caplog.records
    reference = response.error["message"].rpartition(" ")[2].rstrip(".")
    assert reference in record.getMessage()
    assert "secret-password" in record.getMessage()
    assert b"secret-password" not in response.body


async def test_in_debug_mode_the_peer_is_told() -> None:
    response = await ask(make_server(debug=True), "resources/read", {"uri": "note://moody"})
    assert "RuntimeError: secret-password" in response.error["message"]


@pytest.mark.security("R1")
async def test_error_data_that_is_no_json() -> None:
    server = make_server()

    @server.tool
    async def odd() -> str:
        raise ProtocolError("Odd.", code=7, data=object())

    response = await ask(server, "tools/call", {"name": "odd"})
    assert (response.error["code"], response.error["message"]) == (7, "Odd.")


class _Wordless(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("There is no text.")


def _nested(depth: int) -> list[Any]:
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


@pytest.mark.security("R1")
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no file \udcff.png"), "no file \ufffd.png"),
        (ProtocolError("no file \udcff.png", code=7), "no file \ufffd.png"),
        (ProtocolError("no file \udcff.png", code=7, data="\udcff.png"), "no file \ufffd.png"),
        (ProtocolError("Too deep.", code=7, data=_nested(100_000)), "Too deep."),
        (ProtocolError(object(), code=7), "rror"),  # type: ignore[arg-type] - that is the point
        (_Wordless(), "rror"),
        (ValueError("no file \udcff.png"), "rror"),
    ],
)
async def test_a_call_that_fails_with_what_json_cannot_have_is_answered(
    error: Exception, text: str, *, debug: bool
) -> None:
    """A text gets U+FFFD instead of what is not Unicode: names of files can have that."""
    server = make_server(debug=debug)

    @server.tool
    async def odd() -> str:
        raise error

    response = await ask(server, "tools/call", {"name": "odd"})
    assert response.status == 200
    said = response.json["error"]["message"] if "error" in response.json else response.result["content"][0]["text"]
    assert text in said


@pytest.mark.security("R1")
async def test_a_cancellation_that_is_not_ours_is_a_failure() -> None:
    server = make_server()

    @server.prompt
    async def cancels() -> str:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task
        return "never"

    assert (await ask(server, "prompts/get", {"name": "cancels"})).refusal == (200, -32603)


async def test_a_plain_tool_does_not_block_the_loop() -> None:
    import threading

    server, gate = Server("blocking"), threading.Event()

    @server.tool
    def blocks() -> str:
        assert gate.wait(30)
        return threading.current_thread().name

    @server.tool
    async def opens() -> str:
        gate.set()
        return "open"

    app = server.asgi()
    first, _ = await asyncio.gather(
        ask(app, "tools/call", {"name": "blocks"}), ask(app, "tools/call", {"name": "opens"})
    )
    assert first.result["content"][0]["text"].startswith("weft")


async def test_a_tool_error_of_middleware_is_for_the_model(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()

    @server.middleware
    async def closed(ctx: Context, next: Any) -> Any:
        raise ToolError("The shop is closed.")

    result = (await ask(server, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})).result
    assert (result["isError"], result["content"]) == (True, [{"type": "text", "text": "The shop is closed."}])
    assert result["resultType"] == "complete"
    assert not caplog.messages
    assert (await ask(server, "tools/list")).error["message"].startswith("Internal error.")  # no model reads a list


@pytest.mark.spec("JRPC-19")
async def test_a_code_that_may_not_be_sent_is_logged_and_masked(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("coded")

    @server.tool
    async def lock() -> str:
        raise ProtocolError("The vault is closed.", code=-32002)

    @server.resource("vault://gold")
    async def gold() -> str:
        raise ProtocolError("The vault is closed.", code=-32002)

    for method, params in (("tools/call", {"name": "lock"}), ("resources/read", {"uri": "vault://gold"})):
        error = (await ask(server, method, params)).error
        assert error["code"] == -32603
        reference = error["message"].removeprefix("Internal error. The server's log has it under error ").rstrip(".")
        logged = caplog.messages[-1]
        assert f"[error {reference}]" in logged
        assert "raised ProtocolError: The vault is closed. Its code -32002 is not sent: the protocol reserves" in logged
        assert "test_dispatch.py" in logged
    assert caplog.messages[0].startswith("Tool 'lock' (")
    assert caplog.messages[1].startswith("Resource 'vault://gold' (")


# What middleware makes of a call


async def test_what_a_tool_needs_is_checked_for_the_tool_that_middleware_chose() -> None:
    server, ran = Server("s"), []
    server.add_tool(lambda: "old", name="old")
    server.add_tool(lambda: ran.append("new"), name="new", needs=["elicitation.url"])

    @server.middleware
    async def rename(ctx: Context, next: Next) -> Any:
        ctx.params.name = "new"
        return await next()

    refused = await ask(server, "tools/call", {"name": "old"})
    assert (refused.status, refused.error["code"], ran) == (400, -32021, [])


async def test_the_headers_of_a_call_repeat_what_its_client_sent() -> None:
    """Not what middleware makes of it, be it other arguments or another tool."""
    server = Server("s")

    @server.tool
    def run(region: Annotated[str, MirroredHeader("Region")]) -> str:
        return region

    server.add_tool(lambda region: region, name="old", input_schema={"type": "object"})

    @server.middleware
    async def change(ctx: Context, next: Next) -> Any:
        ctx.params.name = "run"
        ctx.params.arguments["region"] = "us"
        return await next()

    given = {"name": "run", "arguments": {"region": "eu"}}
    changed = await ask(server, "tools/call", given, headers={"Mcp-Param-Region": "eu"})
    assert changed.result["content"][0]["text"] == "us"
    renamed = await ask(server, "tools/call", {"name": "old", "arguments": {"region": "eu"}})
    assert renamed.result["content"][0]["text"] == "us"
    assert (await ask(server, "tools/call", given)).error["code"] == -32020


# Middleware that is written otherwise


class Layer:
    async def __call__(self, ctx: Context, next: Next) -> Any:
        return await next()

    async def method(self, ctx: Context, next: Next) -> Any:
        return await next()


async def plain_async(ctx: Context, next: Next) -> Any:
    return await next()


@functools.wraps(plain_async)
def wrapped(ctx: Context, next: Next) -> Any:
    return plain_async(ctx, next)


def says_so(ctx: Context, next: Next) -> Awaitable[Any]:
    return next()


async def bound(more: str, ctx: Context, next: Next) -> Any:
    return await next()


@pytest.mark.parametrize(
    "layer",
    [
        plain_async,
        wrapped,
        says_so,
        Layer(),
        Layer().method,
        functools.partial(bound, "more"),
        lambda ctx, following: plain_async(ctx, next=following),
    ],
    ids=["async def", "wrapper", "annotated", "object", "method", "partial", "lambda"],
)
async def test_all_that_returns_an_awaitable_can_be_middleware(layer: Any) -> None:
    server = make_server(middleware=[layer])
    server.middleware()(layer)
    added = await ask(server, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    assert added.result["structuredContent"] == 3
