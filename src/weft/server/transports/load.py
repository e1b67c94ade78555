"""How much is served at once, on whatever transport: the count, and the sentences for one request too many (D9).

The same answer everywhere; only how it is sent differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import InternalError, InvalidRequest

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["busy", "is_full", "still_served"]


def is_full(server: Server, *, own: int = 0) -> bool:
    """Whether the process serves as many requests as it may. Listen streams have a limit of their own.

    `own` is how many of those that are counted are whoever asks.
    """
    most = server.limits.in_flight + own
    return server.in_flight >= most and server.in_flight - len(server.subscriptions) >= most


def busy(most: int) -> InternalError:
    """The refusal of one request more than `most`."""
    return InternalError(f"The server is busy with {most} requests. Send this one again when one of them is answered.")


def still_served() -> InvalidRequest:
    """The refusal of a request that has the id of another."""
    return InvalidRequest("Invalid request: a request with this id is still being served.")
