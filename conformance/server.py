"""The server under test, over HTTP: `python conformance/server.py --port 8000` serves http://127.0.0.1:8000/mcp."""

from __future__ import annotations

import argparse

import fixtures.asks
import fixtures.prompts
import fixtures.resources
import fixtures.tasks
import fixtures.tools  # noqa: F401 - importing a fixture module is what registers it
from fixtures.app import server

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the conformance fixtures over HTTP.")
    parser.add_argument("--port", type=int, default=8000)
    server.run("http", host="127.0.0.1", port=parser.parse_args().port)


if __name__ == "__main__":
    main()
