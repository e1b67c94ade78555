"""Serve one message of the stateless era over HTTP.

A client that disconnects cancels its request. A task watches whether the client disconnects. This task starts when the
handler first waits, so a handler that never waits needs no such task.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from msgspec import UNSET

from weft.eras.base import ServerEra
from weft.errors import InvalidRequest, ProtocolError
from weft.jsonrpc import Frame, encode_error
from weft.net.asgi import Scope
from weft.protocol.headers import Headers
from weft.server.calls.call import Call
from weft.server.calls.connection import Cancellation
from weft.server.calls.execution import PendingCoroutine, take_back
from weft.server.http.reply import HttpReply, refusal_of
from weft.server.http.request import read_caller
from weft.server.runtime.admission import stopped
from weft.server.runtime.dispatch import Answer
from weft.server.runtime.runtime import Runtime


class StatelessExchange:
    """Serves messages of the stateless era over HTTP."""

    def __init__(self, runtime: Runtime, era: ServerEra) -> None:
        self._runtime = runtime
        self.era = era

    async def serve(self, frame: Frame, headers: Headers, scope: Scope, reply: HttpReply) -> None:
        """Serve one message, and write the HTTP response. If the client disconnects, cancel the request."""
        runtime, era, request_id = self._runtime, self.era, frame.id
        if frame.method is UNSET or not isinstance(request_id, (int, str)):
            await _serve_no_request(frame, reply)
            return
        try:
            envelope = era.open(frame, headers, runtime.offer, None)
        except ProtocolError as error:
            await reply.answer(*refusal_of(error, frame, era))
            return
        caller = read_caller(scope)
        call = Call(runtime, request_id, envelope, era, reply, headers, caller.address, token_info=caller.token_info)
        running = runtime.dispatcher.run(call)
        try:
            awaited = running.send(None)
        except StopIteration as done:
            await reply.answer(*done.value)
            return
        rest = PendingCoroutine(running, awaited, task=asyncio.current_task())
        answer = await _watched(runtime, call, rest, reply)
        if answer is not None:
            await reply.answer(*answer)


async def _watched(runtime: Runtime, call: Call, running: PendingCoroutine[Answer], reply: HttpReply) -> Answer | None:
    """Wait for the answer to a call, and return the answer. Cancel the call if its client disconnects.

    Return None if the client has disconnected or does not read.
    """
    cancellation = reply.cancellation = call.cancellation
    task = cancellation.task = asyncio.current_task()
    assert task is not None
    if reply.finished:  # the client disconnected before the call could be cancelled
        cancellation.cancel("the client disconnected")
    watcher = asyncio.get_running_loop().create_task(_watch(cancellation, reply))
    answer = None
    open_calls = runtime.open_calls
    open_calls.add(call)
    try:
        answer = await running
    except asyncio.CancelledError as error:
        if not cancellation.cancelled:
            if not running.cancelled_itself:  # the ASGI server has cancelled it
                await reply.answer_cancelled(*runtime.dispatcher.refuse(call, stopped()))
                raise
            await take_back(task)
            answer = runtime.dispatcher.fail(call, error)
    finally:
        watcher.cancel()
        open_calls.remove(call)
        told = cancellation.told
        if told is None and (answer is None or cancellation.cancelled):
            reply.close()
    if not cancellation.cancelled:
        return answer
    await _absorb(task)
    return None if told is None else answer or runtime.dispatcher.refuse(call, told)


async def _absorb(task: asyncio.Task[Any]) -> None:
    """Undo the cancellation of the task that served a call, so that the task can send the answer.

    Python raises CancelledError at the next `await` of a cancelled task. If the handler ended before that, the error is
    raised here, and ignored. Raises CancelledError if the task was also cancelled for another reason.
    """
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if task.uncancel():  # the task was also cancelled for another reason
        raise asyncio.CancelledError


async def _watch(cancellation: Cancellation, reply: HttpReply) -> None:
    await reply.wait_for_disconnect()
    reply.close()  # no more keep-alive comments, though the handler may go on for long
    cancellation.cancel("the client disconnected")


async def _serve_no_request(frame: Frame, reply: HttpReply) -> None:
    """Serve a message that is not a request: accept and ignore a notification, refuse a response.

    Without a session, notifications of a client have no effect.
    """
    if frame.is_notification:
        await reply.accept()
        return
    error = InvalidRequest("Invalid request: a client sends requests and notifications, not responses.")
    await reply.answer(400, encode_error(None, error.code, error.message))
