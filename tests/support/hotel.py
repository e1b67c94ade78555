"""The one server that clients of every revision talk to, over every transport: run as a program it serves stdio."""

import asyncio
from typing import Any, Literal

from pydantic import BaseModel

from support.notes import Notes
from weft import (
    Audio,
    Context,
    InputRequired,
    Server,
    ToolError,
    UrlElicitationRequired,
    ask_form,
    ask_model,
    ask_roots,
)
from weft.types import Icon, ResourceLink, TextContent, ToolAnnotations
from weft.types.features import Tool
from weft.types.interaction import SamplingMessage, ToolResultContent

ICONS = [Icon("https://hotel.example/bed.png", "image/png")]
LOBBY = "hotel://lobby"
PAGE = "https://hotel.example/pay"


class Room(BaseModel):
    number: int
    view: str


class Guest(BaseModel):
    name: str
    nights: int = 1


def make_hotel(notes: Notes | None = None, **options: Any) -> Server:
    """The hotel. Its processes, if there are several, share `notes`."""
    server = Server(
        "hotel",
        version="1.0",
        title="The hotel",
        description="A small hotel",
        website_url="https://hotel.example",
        icons=ICONS,
        instructions="Be polite.",
        **options,
    )
    _add_plain_tools(server)
    _add_telling_tools(server, Notes() if notes is None else notes)
    _add_asking_tools(server)
    _add_questions_to_clients(server)
    _add_changing_tools(server)
    _add_the_rest(server)
    return server


def _add_plain_tools(server: Server) -> None:
    @server.tool
    async def add(a: int, b: int) -> int:
        """Add up a bill."""
        return a + b

    @server.tool(title="A room", icons=ICONS, annotations=ToolAnnotations(title="Look", read_only_hint=True))
    async def room(number: int) -> Room:
        """Look at a room."""
        return Room(number=number, view="the sea")

    @server.tool
    async def complain() -> str:
        """Complain in vain."""
        raise ToolError("The sea is wet.")

    @server.tool
    async def brochure() -> list[Any]:
        """A sound and a link."""
        return [Audio(b"waves", "audio/wav"), ResourceLink("lobby", LOBBY)]

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        """What is known of the guest."""
        return {
            "version": ctx.protocol_version,
            "name": ctx.client_info.name if ctx.client_info else None,
            "elicits": ctx.client_supports("elicitation"),
            "stateless": ctx.is_stateless,
        }


def _add_telling_tools(server: Server, notes: Notes) -> None:
    @server.tool
    async def clean(ctx: Context, rooms: int) -> str:
        """Clean, and say how far it is."""
        for number in range(rooms):
            await ctx.report_progress(number + 1, rooms, f"room {number + 1}")
        return "clean"

    @server.tool
    async def gossip(ctx: Context) -> str:
        """Log at three levels."""
        for level in ("debug", "info", "error"):
            await ctx.log(level, f"{level} of the day", logger="porter")
        return "told"

    @server.tool
    async def wait(ctx: Context, label: str) -> str:
        """Wait for ever, after one sign of life."""
        notes.add(label, "waiting")
        try:
            await ctx.report_progress(1)
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            notes.add(label, "given up")
            await ctx.report_progress(2)
            raise
        return "done"

    @server.tool
    async def hold(ctx: Context, label: str, leave: bool = False) -> str:
        """Report progress, wait to be released, report again; the client may be sent away meanwhile."""
        notes.add(label, "waiting")
        try:
            await ctx.report_progress(1)
            if leave:
                await ctx.close_stream(0.05)
            await notes.until(f"released {label}")
            await ctx.report_progress(2)
        except asyncio.CancelledError:
            notes.add(label, "given up")
            raise
        notes.add(label, "done")
        return f"held {label}"

    @server.tool
    async def release(label: str) -> str:
        """Let a hold go on."""
        notes.add(f"released {label}", "now")
        return "released"

    @server.tool
    async def wait_of(label: str) -> str:
        """How a wait goes."""
        return ["unknown", *notes.of(label)][-1]


def _add_asking_tools(server: Server) -> None:
    @server.tool
    async def book(ctx: Context) -> str:
        """Book a room: the handler waits for the answer."""
        guest = await ctx.elicit("Who is coming?", Guest)
        return f"{guest.value.name} for {guest.value.nights}" if guest.accepted else guest.action

    @server.tool
    async def book_by_hand(ctx: Context) -> str | InputRequired:
        """The same: the handler is called again with the answer."""
        if not ctx.has_input_response("guest"):
            return InputRequired({"guest": ask_form("Who is coming?", Guest)}, state={"floor": 3})
        return f"{ctx.input_responses['guest']['content']['name']} on floor {ctx.request_state['floor']}"

    @server.tool
    async def survey_by_hand(ctx: Context) -> str | InputRequired:
        """Two questions that every revision has, at once."""
        if not ctx.input_responses:
            return InputRequired({"words": ask_model("Say hello.", max_tokens=9), "roots": ask_roots()})
        words, roots = ctx.input_responses["words"], ctx.input_responses["roots"]
        return f"{words['content']['text']} {roots['roots'][0]['uri']}"


def _add_questions_to_clients(server: Server) -> None:
    @server.tool
    async def welcome_text(ctx: Context) -> str:
        """Ask the client's model."""
        answer = await ctx.sample("Say hello.", max_tokens=9)
        return f"{answer.model}: {answer.content.text}"

    @server.tool
    async def advise(ctx: Context) -> str:
        """Ask the model, which may look out of the window."""
        talk = [SamplingMessage("user", TextContent("Swim, or not?"))]
        tools = [Tool("look_out", {"type": "object"})]
        answer = await ctx.sample(talk, max_tokens=9, tools=tools)
        talk.append(SamplingMessage("assistant", answer.content))
        talk.append(SamplingMessage("user", [ToolResultContent("u1", [TextContent("It is warm.")])]))
        return (await ctx.sample(talk, max_tokens=9, tools=tools)).content.text

    @server.tool
    async def knock(ctx: Context) -> str:
        """Ask whether anybody is there."""
        await ctx.connection.ping()
        return "There is."

    @server.tool
    async def luggage(ctx: Context) -> str:
        """Ask for the roots."""
        return ", ".join(root.uri for root in await ctx.list_roots())

    @server.tool
    async def pay(ctx: Context) -> str:
        """Send the guest to a page, and say when that is done."""
        paid = await ctx.elicit_url("Pay here.", PAGE)
        await paid.notify_complete()
        return paid.action

    @server.tool
    async def pay_first(ctx: Context) -> str:
        """Demand that the guest has been to a page."""
        if not ctx.input_responses:
            raise UrlElicitationRequired(("Pay here.", PAGE))
        return "paid"


def _add_changing_tools(server: Server) -> None:
    @server.tool
    async def repaint(uri: str) -> str:
        """Change what a resource holds."""
        server.notify_resource_updated(uri)
        return "painted"

    @server.tool
    async def rename() -> str:
        """Say that the prompts have changed."""
        server.notify_prompts_changed()
        return "renamed"

    async def swim() -> str:
        """Swim."""
        return "wet"

    @server.tool
    async def renovate(what: Literal["open", "close"]) -> str:
        """Open the pool, or close it."""
        if what == "open":
            server.add_tool(swim)
        else:
            server.remove_tool("swim")
        return "done"


def _add_the_rest(server: Server) -> None:
    server.add_resource(LOBBY, "Welcome.", name="lobby", title="The lobby", icons=ICONS, mime_type="text/plain")

    @server.resource("hotel://rooms/{number}", title="A room", icons=ICONS)
    async def rooms(number: int) -> str:
        return f"Room {number}"

    @server.prompt(title="A letter", icons=ICONS)
    async def letter(name: str) -> str:
        """Write to a guest."""
        return f"Write to {name}."

    @server.prompt
    async def letter_to_all(ctx: Context) -> str:
        """Write to all: asks first."""
        return f"Write to all of {', '.join(root.uri for root in await ctx.list_roots())}."

    @server.completion(prompt="letter", argument="name")
    async def names(value: str, arguments: dict[str, str]) -> list[str]:
        return [name + arguments.get("ending", "") for name in ("Ada", "Alan", "Grace") if name.startswith(value)]


server = make_hotel()

if __name__ == "__main__":
    server.run()
