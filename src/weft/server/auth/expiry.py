"""Streams end with the token that they were opened with: who holds one open hears no longer than it may ask.

The client opens another, and has to show a token for that which is still good. Requests that are being served go on.
Where all answers come on one stream, a newer token that is shown with a request lets the stream go on as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from weft.server.auth.verifying import expiry_of

if TYPE_CHECKING:
    from weft.server.app import Server
    from weft.server.context import TokenInfo

__all__ = ["Show", "at_expiry"]

Show: TypeAlias = "Callable[[TokenInfo | None], None]"  # takes another token that was shown; what lasts longer counts

AGAIN_SECONDS = 1.0


def at_expiry(server: Server, info: TokenInfo | None, end: Callable[[], bool | None]) -> AbstractContextManager[Show]:
    """While this is open, have `end` called when the token is not let in any more; soon again, if it returns True.

    Where tokens are another app's to judge, or do not say when they end, it is not called.
    """
    return _NEVER if server.auth is None else _expiring(server, info, end)


_NEVER: AbstractContextManager[Show] = nullcontext(lambda _: None)  # one for all: there may be many streams


@contextmanager
def _expiring(server: Server, info: TokenInfo | None, end: Callable[[], bool | None]) -> Generator[Show]:
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def expire() -> None:
        nonlocal timer
        timer = loop.call_later(AGAIN_SECONDS, expire) if end() else None

    def show(info: TokenInfo | None) -> None:
        nonlocal timer
        left = _left(server, info)
        if timer is not None and (left is None or loop.time() + left > timer.when()):
            timer.cancel()
            timer = None
        if timer is None and left is not None:
            timer = loop.call_later(left, expire)

    show(info)
    try:
        yield show
    finally:
        if timer is not None:
            timer.cancel()


def _left(server: Server, info: TokenInfo | None) -> float | None:
    """The seconds that a token is let in for: one that was ended sooner would be shown again, over and over."""
    expires = None if info is None else expiry_of(info)
    return None if expires is None or server.auth is None else max(expires + server.auth.leeway - time.time(), 0.0)
