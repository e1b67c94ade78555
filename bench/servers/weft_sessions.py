"""Weft: one tool, for clients that open with a handshake."""

from __future__ import annotations

import argparse

from weft import Limits, Server

# All sessions of the measurement come from one address; by default it may have a hundred.
server = Server("bench", version="1.0", limits=Limits(sessions=200_000, sessions_per_peer=200_000))


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    server.run("http", host="127.0.0.1", port=parser.parse_args().http, log_level="warning")


if __name__ == "__main__":
    main()
