"""Servers as the tutorial has them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from weft import CacheHint, Context, Image, Limits, Server, ToolError
from weft.types import Icon, ToolAnnotations


class Database:
    async def count(self) -> int:
        return 3


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[Database]:
    yield Database()


server = Server(
    "flights",
    version="1.0",
    lifespan=lifespan,
    limits=Limits(body_bytes=1_000),
    cache_hint=CacheHint(ttl_ms=1000),
    icons=[Icon("https://example.com/icon.png")],
)


class Flight(BaseModel):
    number: str
    seats: int = Field(ge=0)


@dataclass
class Wish:
    airport: str


@server.tool
def search(airport: Annotated[str, Field(description="IATA code")], min_seats: int = 1) -> list[Flight]:
    """Find flights."""
    if not airport:
        raise ToolError("Name an airport.")
    return [Flight(number="LX38", seats=min_seats)]


@server.tool(title="Count", annotations=ToolAnnotations(read_only_hint=True), timeout=5.0, needs=["elicitation.form"])
async def count(ctx: Context) -> int:
    database: Database = ctx.lifespan
    await ctx.report_progress(1, 2, "half")
    await ctx.info({"step": 1})
    return await database.count()


@server.tool(tittle="Count")  # expect error
async def misspelt() -> int:
    return 1


@server.tool
def picture() -> Image:
    return Image(b"...", "image/png")


@server.resource("config://app", mime_type="application/json")
def config() -> dict[str, Any]:
    return {"debug": False}


@server.resource("user://{id}/profile")
async def profile(id: str, ctx: Context) -> str:
    return id + ctx.protocol_version


@server.resource  # expect error
def without_uri() -> str:
    return ""


@server.prompt
def review(code: str) -> str:
    return f"Review {code}"


@server.completion(prompt="review", argument="code")
def complete_code(value: str) -> list[str]:
    return [value]


# The decorators leave the functions what they were.
found: list[Flight] = search("ZRH", 2)
wrong: list[str] = search("ZRH", 2)  # expect error
search(5)  # expect error
text: str = config()["x"]

server.add_tool(search, name="search2")
server.remove_tool("search2")
server.notify_resource_updated("config://app")
Server()  # expect error
Server("x", versoin="1")  # expect error
Server("x", limits=Limits(body_byte=1))  # expect error
