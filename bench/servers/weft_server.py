"""Weft: one tool (or many, to see that it does not matter), over stdio or HTTP; its app for uvicorn."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from weft import Context, Limits, Server

NO_LINGER = "--no-linger"
server = Server("bench", version="1.0", limits=Limits(stdio_linger_seconds=0) if NO_LINGER in sys.argv else Limits())


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def other(a: int, b: int) -> int:
    """Add two numbers, under another name."""
    return a + b


async def look_on(ctx: Context, next: Any) -> Any:  # noqa: ARG001 - what middleware is given
    """Middleware that does nothing."""
    return await next()


def make_app() -> Any:
    """The app that `uvicorn --factory` serves."""
    return server.asgi()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--tools", type=int, default=1)
    parser.add_argument("--middleware", action="store_true")
    parser.add_argument(NO_LINGER, action="store_true")  # looked for above: limits are given when the server is made
    parser.add_argument("--workers", type=int, default=1)  # with more than one, each has the one tool only
    arguments = parser.parse_args()
    if arguments.middleware:
        server.middleware(look_on)
    for number in range(1, arguments.tools):
        server.add_tool(other, name=f"other_{number}")
    if arguments.http:
        server.run("http", host="127.0.0.1", port=arguments.http, workers=arguments.workers, log_level="warning")
    else:
        server.run()


if __name__ == "__main__":
    main()
