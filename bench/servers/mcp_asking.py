"""The official SDK, by its own run(): a tool that asks one question, and a resource whose change is told."""

from __future__ import annotations

import argparse
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from pydantic import BaseModel

server = MCPServer("bench", log_level="WARNING")


class Seat(BaseModel):
    number: str


def which_seat() -> Elicit[Seat]:
    return Elicit("Which seat?", Seat)


@server.tool()
async def book(flight: str, seat: Annotated[Seat, Resolve(which_seat)]) -> str:
    """Book a seat."""
    return f"{flight} {seat.number}"


@server.resource("bench://board")
def board() -> str:
    """The departure board."""
    return "nothing leaves"


@server.tool()
async def change(ctx: Context) -> str:
    """Change the board."""
    await ctx.notify_resource_updated("bench://board")
    return "changed"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    server.run("streamable-http", host="127.0.0.1", port=parser.parse_args().http, stateless_http=True)


if __name__ == "__main__":
    main()
