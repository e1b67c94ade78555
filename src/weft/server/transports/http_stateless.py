"""One message of the stateless era over HTTP: opened, dispatched, answered.

A request lives and dies with its HTTP exchange: when the client goes away, it has given the request up (HTTP-24).
Nobody watches for that while the handler does not wait; from when it first waits, a watcher does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from weft.errors import InvalidRequest, ProtocolError
from weft.jsonrpc import Frame, encode_error
from weft.protocol.headers import Headers
from weft.server.call import Call
from weft.server.connection import Connection
from weft.server.inline import Inline
from weft.server.transports.asgi import Receive
from weft.server.transports.http_reply import HttpReply

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["exchange"]


async def exchange(server: Server, frame: Frame, headers: Headers, receive: Receive, reply: HttpReply) -> None:
    """Serve one message."""
    era = server.choose_era(frame, headers)
    if not frame.is_request:
        await _take(frame, reply)
        return
    request_id = frame.reply_id
    assert request_id is not None
    try:
        envelope = era.open(frame, headers, server.offer, None)
    except ProtocolError as error:
        wire = era.refuse(error, opened=False)
        await reply.answer(wire.status, encode_error(request_id, wire.code, wire.message, wire.data))
        return
    connection = Connection.from_envelope(envelope.revision.version, envelope.client_info, envelope.client_capabilities)
    call = Call(server, request_id, envelope, era, connection, reply, headers)
    watch = _Watch(call, receive)
    try:
        status, body = await Inline(server.dispatcher.run(call), watch.start)
    except asyncio.CancelledError:
        if not call.cancellation.cancelled:
            raise
        watch.absorb()  # the client is gone: nothing is sent, and the task goes on to its end
        return
    finally:
        watch.stop()
    if not call.cancellation.cancelled:
        await reply.answer(status, body)


async def _take(frame: Frame, reply: HttpReply) -> None:
    """A notification is taken and, there being none that means anything here, dropped. A response is not expected."""
    if frame.is_notification:
        await reply.accept()
        return
    error = InvalidRequest("Invalid request: a client sends requests and notifications, not responses.")
    await reply.answer(400, encode_error(None, error.code, error.message))


class _Watch:
    """Cancels a call when its client disconnects."""

    __slots__ = ("_call", "_receive", "_task", "_watcher")

    def __init__(self, call: Call, receive: Receive) -> None:
        self._call = call
        self._receive = receive
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._call.cancellation.task = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    def absorb(self) -> None:
        if self._task is not None:
            self._task.uncancel()

    async def _run(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._call.cancellation.cancel("the client disconnected")
