"""Weft: a tool that asks one question, and a resource whose change is told to listen streams."""

from __future__ import annotations

import argparse

from pydantic import BaseModel

from weft import Context, Limits, Server

# All streams of the measurement come from one address.
server = Server("bench", version="1.0", limits=Limits(listen_streams=5000, listen_streams_per_peer=5000))


class Seat(BaseModel):
    number: str


@server.tool
async def book(ctx: Context, flight: str) -> str:
    """Book a seat."""
    seat = await ctx.elicit("Which seat?", Seat)
    return f"{flight} {seat.value.number}"


@server.resource("bench://board")
def board() -> str:
    """The departure board."""
    return "nothing leaves"


@server.tool
async def change() -> str:
    """Change the board."""
    server.notify_resource_updated("bench://board")
    return "changed"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    server.run("http", host="127.0.0.1", port=parser.parse_args().http, log_level="warning")


if __name__ == "__main__":
    main()
