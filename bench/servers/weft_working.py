"""Weft: one tool that takes about a millisecond of a processor, served by one or more workers."""

from __future__ import annotations

import argparse

from work import work

from weft import Server

server = Server("bench", version="1.0")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers, slowly."""
    work()
    return a + b


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    server.run("http", host="127.0.0.1", port=arguments.http, workers=arguments.workers, log_level="warning")


if __name__ == "__main__":
    main()
