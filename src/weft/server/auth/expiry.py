"""Streams end with the token that they were opened with: who holds one open hears no longer than it may ask.

The client opens another, and has to show a token for that which is still good. Requests that are being served go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weft.server.auth.verifying import expiry_of

if TYPE_CHECKING:
    from weft.server.app import Server
    from weft.server.context import TokenInfo

__all__ = ["at_expiry"]


@contextmanager
def at_expiry(server: Server, info: TokenInfo | None, end: Callable[[], None]) -> Generator[None]:
    """While this is open, have `end` called when the token is not let in any more. Where tokens are another app's to
    judge, or do not say when they end, it is not.
    """
    expires = None if info is None or server.auth is None else expiry_of(info)
    if expires is None or server.auth is None:
        yield
        return
    # As late as it is let in: one that was ended sooner would be opened again with the same token, over and over.
    left = max(expires + server.auth.leeway - time.time(), 0.0)
    timer = asyncio.get_running_loop().call_later(left, end)
    try:
        yield
    finally:
        timer.cancel()
