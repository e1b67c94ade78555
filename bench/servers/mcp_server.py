"""The official SDK, stateless: by its own run(), or tuned (JSON answers, no access log)."""

from __future__ import annotations

import argparse
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench", log_level="WARNING")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def make_app() -> Any:
    """The app that `uvicorn --factory` serves."""
    return server.streamable_http_app(stateless_http=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--tuned", action="store_true")
    arguments = parser.parse_args()
    if not arguments.http:
        server.run()
        return
    if not arguments.tuned:
        server.run("streamable-http", host="127.0.0.1", port=arguments.http, stateless_http=True)
        return
    import uvicorn

    app = server.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=arguments.http, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
