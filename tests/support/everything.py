"""The server that most tests talk to: something of everything."""

import asyncio
import time
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel

from support.notes import Notes
from weft import Context, Image, Limits, MirroredHeader, ProtocolError, ResourceNotFound, Server, ToolError
from weft.types import CallToolResult, ResourceContents, TextContent

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


class Seat(BaseModel):
    number: str
    window: bool = False


def make_server(*, limits: Limits | None = None, notes: Notes | None = None, **options: Any) -> Server:
    """A server with something of everything. `server.log` has what its handlers saw, by tokens of the tests."""
    server = Server(
        "everything", version="2.0", title="Everything", instructions="Try it.", limits=limits or Limits(), **options
    )
    server.log = Notes() if notes is None else notes  # type: ignore[attr-defined] - for the tests alone
    _add_plain_tools(server)
    _add_failing_tools(server)
    _add_waiting_tools(server, server.log)  # type: ignore[attr-defined] - as above
    _add_telling_tools(server, server.log)  # type: ignore[attr-defined] - as above
    _add_asking_tools(server)
    _add_resources(server)
    _add_prompts(server)
    return server


def _add_plain_tools(server: Server) -> None:
    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(output_schema={"type": ["object", "array", "number", "boolean", "string", "null"]})
    async def echo(value: Any) -> Any:
        """Give back what was given."""
        return value

    @server.tool
    async def seat(number: str) -> Seat:
        """A seat."""
        return Seat(number=number)

    @server.tool
    async def picture() -> Image:
        """A picture."""
        return Image(PNG)

    @server.tool
    async def region(
        region: Annotated[str | None, MirroredHeader("Region")] = None,
        count: Annotated[int, MirroredHeader("Count")] = 0,
    ) -> str:
        """Say which region."""
        return f"{region} {count}"

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        """What this request says about its sender."""
        return {
            "version": ctx.protocol_version,
            "capabilities": msgspec.to_builtins(ctx.client_capabilities),
            "client": None if ctx.client_info is None else ctx.client_info.name,
            "id": ctx.request_id,
        }

    @server.tool(
        input_schema={"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}, "required": ["n"]}
    )
    async def bounded(arguments: dict[str, Any]) -> str:
        """Takes a small number."""
        return str(arguments["n"])


def _add_failing_tools(server: Server) -> None:
    @server.tool
    async def fail(
        how: Literal["tool", "error", "exit", "interrupt", "base", "cancelled", "stop", "generator", "reserved"],
    ) -> str:
        """Fail in one of many ways."""
        raise _failures()[how]

    @server.tool
    def fail_in_thread(how: Literal["error", "exit", "interrupt", "base", "stop"]) -> str:
        """Fail in one of many ways, in a thread."""
        raise _failures()[how]

    @server.tool(output_schema={"type": "integer"})
    async def liar() -> Any:
        """Promises a number."""
        return "none"


def _failures() -> dict[str, BaseException]:
    return {
        "tool": ToolError("There is no seat 12A."),
        "error": RuntimeError("secret-password"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "base": BaseException("secret-password"),
        "cancelled": asyncio.CancelledError(),
        "stop": StopIteration(7),
        "generator": GeneratorExit(),
        "reserved": ProtocolError("mine", code=-32050),
    }


def _add_waiting_tools(server: Server, log: Notes) -> None:
    @server.tool
    async def wait(ctx: Context, token: str, progress: int = 0) -> str:
        """Wait for ever, after so many steps of progress."""
        log.add(token, "started")
        try:
            for step in range(progress):
                await ctx.report_progress(step + 1)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.add(token, "cancelled")
            await ctx.report_progress(99)
            await ctx.error("too late")
            raise
        return "done"

    @server.tool
    def wait_in_thread(ctx: Context, token: str) -> str:
        """Look whether the caller is still there."""
        log.add(token, "started")
        for _ in range(1000):
            if ctx.cancelled:
                log.add(token, "saw cancelled")
                return "gave up"
            time.sleep(0.005)
        return "done"


def _add_telling_tools(server: Server, log: Notes) -> None:
    @server.tool
    async def steps(ctx: Context, values: list[float]) -> str:
        """Report this progress."""
        for value in values:
            await ctx.report_progress(value, max(values), "on it")
        return "done"

    @server.tool
    async def chatter(ctx: Context, token: str = "") -> str:
        """Log at every level."""
        for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
            await ctx.log(level, f"{level} {token}", logger="chatter")
        return "done"

    @server.tool
    async def late(ctx: Context, token: str) -> str:
        """Go on reporting after the answer."""

        async def afterwards() -> None:
            await asyncio.sleep(0.05)
            await ctx.report_progress(2)
            await ctx.error("late")
            log.add(token, "reported late")

        await ctx.report_progress(1)
        log.add(token, "started")
        ctx.server.engine.background = asyncio.create_task(afterwards())  # type: ignore[attr-defined] - kept from the collector
        return "done"


def _add_asking_tools(server: Server) -> None:
    @server.tool
    async def ask_user(ctx: Context) -> str:
        """Ask the user."""
        return (await ctx.elicit("Which seat?", Seat)).action

    @server.tool
    async def ask_page(ctx: Context) -> str:
        """Send the user to a page."""
        return (await ctx.elicit_url("Log in", "https://example.com")).action

    @server.tool
    async def ask_model(ctx: Context) -> str:
        """Ask the model."""
        return (await ctx.sample("Hello", max_tokens=5)).model

    @server.tool
    async def ask_roots(ctx: Context) -> str:
        """Ask for roots, after saying so."""
        return str(await ctx.list_roots())

    @server.tool
    async def whole() -> CallToolResult:
        """A result made by hand."""
        return CallToolResult(content=[TextContent("by hand")], meta={"com.example/k": 1})


def _add_resources(server: Server) -> None:
    server.add_resource("note://plain", "Hello", name="plain")
    server.add_resource("note://binary", bytes([0, 255]), name="binary")

    @server.resource("note://moody")
    async def moody() -> str:
        raise RuntimeError("secret-password")

    @server.resource("user://{name}/profile", mime_type="application/json")
    async def profile(name: str) -> dict[str, str]:
        if name == "nobody":
            raise ResourceNotFound(f"user://{name}/profile")
        return {"name": name}

    @server.resource("both://of/them")
    async def both() -> list[Any]:
        return [ResourceContents("both://1", text="one"), ResourceContents("both://2", blob="dHdv")]


def _add_prompts(server: Server) -> None:
    @server.prompt
    async def greet(name: str, tone: Literal["warm", "cold"] = "warm") -> str:
        """Greet somebody."""
        return f"Greet {name} in a {tone} tone."

    @server.prompt
    async def broken() -> str:
        raise RuntimeError("secret-password")

    @server.completion(prompt="greet", argument="name")
    async def names(value: str) -> list[str]:
        return [f"{value}{number}" for number in range(150)]
