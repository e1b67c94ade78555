"""Weft: one tool (or many, to see that it does not matter), over stdio or HTTP."""

from __future__ import annotations

import argparse

from weft import Server

server = Server("bench", version="1.0")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def other(a: int, b: int) -> int:
    """Add two numbers, under another name."""
    return a + b


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--tools", type=int, default=1)
    arguments = parser.parse_args()
    for number in range(1, arguments.tools):
        server.add_tool(other, name=f"other_{number}")
    if arguments.http:
        server.run("http", host="127.0.0.1", port=arguments.http)
    else:
        server.run()


if __name__ == "__main__":
    main()
