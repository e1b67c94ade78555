"""Notifications of a client that has introduced itself: what each of them does to its connection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from weft.eras.session import READY
from weft.jsonrpc import Frame
from weft.server.connection import Connection
from weft.server.sessions.outstanding import Outstanding
from weft.types.lifecycle import CancelledParams, ProgressParams

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["take_notification"]

log = logging.getLogger("weft.sessions")

_read_cancelled = msgspec.json.Decoder(CancelledParams).decode
_read_progress = msgspec.json.Decoder(ProgressParams).decode


def take_notification(server: Server, connection: Connection, outstanding: Outstanding | None, frame: Frame) -> bool:
    """Do what a notification asks for. Unknown and malformed ones are nothing to speak of (JRPC-23, CAN-10).

    False if it is about a request that is not known here.
    """
    params = b"{}" if frame.params is UNSET else bytes(frame.params)
    try:
        if frame.method == READY:
            connection.set_initialized()
        elif frame.method == "notifications/cancelled":
            cancelled = _read_cancelled(params)
            cancellation = connection.in_flight.get(cancelled.request_id)
            if cancellation is None:
                return False
            cancellation.cancel(cancelled.reason)
        elif frame.method == "notifications/progress":
            return outstanding is not None and outstanding.progressed(_read_progress(params))
        elif frame.method == "notifications/roots/list_changed":
            server.roots_changed(connection)
    except msgspec.DecodeError:
        log.debug("a malformed notification was dropped")
    return True
