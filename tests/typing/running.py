"""Serving: `run`, `serve`, and what they take."""

import asyncio
from typing import Literal

from weft import Server

server = Server("flights")


def run(transport: Literal["stdio", "http"]) -> None:
    server.run()
    server.run("stdio")
    server.run(log_level="debug")
    server.run("http")
    server.run("http", host="127.0.0.1", port=3, path="/mcp", workers=2, sessions=False)
    server.run("http", allowed_hosts=["api.example.com"], trusted_proxies=["10.0.0.0/8"], log_level="info")
    server.run(transport)
    server.run("http", prot=3)  # expect error
    server.run("http", port="3")  # expect error
    server.run("stdio", port=3)  # expect error
    server.run(port=3)  # expect error
    server.run("htpp")  # expect error


async def main() -> None:
    await server.serve("http", port=0)
    await server.serve()
    await server.serve("http", prot=3)  # expect error
    await server.start()
    await server.stop()


asyncio.run(main())
