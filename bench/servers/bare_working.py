"""The limit for several workers: uvicorn and msgspec with no protocol in between, and some work in each call."""

from __future__ import annotations

from typing import Any

from bare_server import app as answer
from work import work


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    work()
    await answer(scope, receive, send)


def make_app() -> Any:
    """The app that `uvicorn --factory` serves."""
    return app
