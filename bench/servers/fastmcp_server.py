"""FastMCP, stateless: by its own run(), or tuned (JSON answers, no access log)."""

from __future__ import annotations

import argparse
from typing import Any

from fastmcp import FastMCP

server = FastMCP("bench")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def make_app() -> Any:
    """The app that `uvicorn --factory` serves."""
    return server.http_app(path="/mcp", stateless_http=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--tuned", action="store_true")
    arguments = parser.parse_args()
    if not arguments.http:
        server.run(show_banner=False)
        return
    if not arguments.tuned:
        server.run(
            "http",
            host="127.0.0.1",
            port=arguments.http,
            stateless_http=True,
            show_banner=False,
            log_level="WARNING",
        )
        return
    import uvicorn

    app = server.http_app(path="/mcp", stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=arguments.http, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
