"""FastMCP with fastmcp-tasks, in memory and tuned: a tool whose calls become tasks that work for an hour."""

from __future__ import annotations

import argparse
import asyncio

import uvicorn
from fastmcp import FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension

server = FastMCP("bench")
server.add_extension(TasksExtension())


@server.tool(task=TaskConfig(mode="required"))
async def nap() -> str:
    """Work for an hour."""
    await asyncio.sleep(3600)
    return "done"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    parser.add_argument("--tuned", action="store_true")  # always
    app = server.http_app(path="/mcp", stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().http, log_level="warning", access_log=False)
