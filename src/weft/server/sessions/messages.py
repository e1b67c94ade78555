"""Handle a client's notifications, and define the messages of workers to each other about sessions."""

from __future__ import annotations

import logging

import msgspec
from msgspec import UNSET

from weft.eras.session import READY
from weft.jsonrpc import Frame
from weft.server.calls.pending import ClientChannel
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.session import Record, Session
from weft.types.lifecycle import CancelledParams, ProgressParams

log = logging.getLogger("weft.sessions")

_MOST_RELAYED = 1024  # bytes of a text in a notification that is passed to all workers


class WorkerMessage(msgspec.Struct, array_like=True, omit_defaults=True):
    """A message to other workers about a session: one of the fields after `session` is set."""

    session: str
    frame: Frame | None = None  # a message of the client about a request that another worker may have
    record: Record | None = None  # the record, after the sender has changed it
    has_ended: bool = False
    stream: str | None = None  # a stream of a request, which the client reads in a new response
    retry: int | None = None  # milliseconds after which it does
    has_missed: bool = False  # whether the sender should have collected changes of the session, but has missed some
    version: int = 0  # instead of a large record: its version. The receiver reads it when it needs it
    is_replaced: bool = False  # with `record`: whether its listener replaces the receiver, which reports missed changes


encode_message = msgspec.json.Encoder().encode
read_message = msgspec.json.Decoder(WorkerMessage).decode
_read_cancelled = msgspec.json.Decoder(CancelledParams).decode
_read_progress = msgspec.json.Decoder(ProgressParams).decode


def relayed(session: Session, frame: Frame, most_id: int) -> Frame | None:
    """Return what other workers need of a notification about a request, with short texts. All workers get it.

    Return None if no other worker can have the request.
    """
    params: CancelledParams | ProgressParams
    try:
        if frame.method == "notifications/cancelled":
            cancelled = _read_cancelled(_params_of(frame))
            id = cancelled.request_id
            if isinstance(id, str) and len(id.encode()) > most_id:
                return None
            params = CancelledParams(request_id=id, reason=_cut(cancelled.reason))
        else:
            read = _read_progress(_params_of(frame))
            if session.asker_of(read.progress_token) in (None, session.worker):
                return None
            params = ProgressParams(
                progress_token=read.progress_token,
                progress=read.progress,
                total=read.total,
                message=_cut(read.message),
            )
        return Frame(frame.jsonrpc, method=frame.method, params=msgspec.Raw(msgspec.json.encode(params)))
    except (msgspec.DecodeError, OverflowError):  # a number that cannot be encoded again
        return None


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_MOST_RELAYED].encode()[:_MOST_RELAYED].decode(errors="ignore")


def _params_of(frame: Frame) -> bytes:
    return b"{}" if frame.params is UNSET else bytes(frame.params)


def take_notification(runtime: Runtime, session: ClientChannel, frame: Frame) -> bool:
    """Handle a notification of the client. Unknown and malformed notifications are ignored.

    Return False if the notification is about a request that this worker does not have.
    """
    connection, params = session.connection, _params_of(frame)
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
            return session.outstanding.progressed(_read_progress(params))
        elif frame.method == "notifications/roots/list_changed":
            runtime.roots_changed(connection)
    except msgspec.DecodeError:
        log.debug("a malformed notification was dropped")
    return True
