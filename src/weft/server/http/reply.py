"""Write the response to one HTTP request: a JSON body, or an SSE stream if notifications come before the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from enum import Flag

from weft.eras.base import ServerEra
from weft.errors import ProtocolError
from weft.jsonrpc import Frame, encode_error
from weft.limits import Limits
from weft.net.asgi import RawHeaders, Receive, Refusal, Send
from weft.protocol.sse import COMMENT
from weft.protocol.sse import encode as encode_event
from weft.server.auth.tokens import challenge
from weft.server.calls.connection import Cancellation
from weft.server.diagnostics import note_refusal
from weft.server.http.uvicorn_protocol import hang_up_on_flood, respond_at_once
from weft.server.runtime.dispatch import Answer
from weft.server.runtime.request_log import refused
from weft.types.base import RequestId

log = logging.getLogger("weft.http")

_JSON = (b"content-type", b"application/json")
_BUSY = 503
_RETRY = (b"retry-after", b"1")  # one second; added to each 503 that has no Retry-After header
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),  # else nginx would buffer events
]


class Accepts(Flag):
    """The response formats that a client accepts: JSON, an event stream, or both."""

    JSON = 1
    STREAM = 2
    BOTH = 3


def read_accept(value: bytes | None) -> Accepts:
    """Return the response formats that an Accept header allows. If `value` is None, both formats are allowed.

    Raises `Refusal` if the header allows neither JSON nor event streams.
    """
    accepted = Accepts(0)
    for entry in (value or b"*/*").split(b","):
        media, *parameters = (part.strip().lower() for part in entry.split(b";"))
        if any(part.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000") for part in parameters):
            continue
        if media in (b"application/json", b"application/*", b"*/*"):
            accepted |= Accepts.JSON
        if media in (b"text/event-stream", b"text/*", b"*/*"):
            accepted |= Accepts.STREAM
    if not accepted:
        raise Refusal(406, "Answers are JSON or event streams: accept application/json and text/event-stream.")
    return accepted


class HttpReply:
    """Writes one HTTP response.

    Nothing is sent before the first notification or the answer, so an early error can still set the HTTP status. If the
    client has disconnected, the methods that send raise no exception. Instead, the call is cancelled.
    """

    receive: Receive  # the receive function of the request; set by the app

    # Defaults of attributes that most responses never set.
    frame: Frame | None = None  # the message that is answered; None until the message is decoded
    extra: RawHeaders = ()  # response headers that do not describe the body
    metadata_url: str | None = None  # URL of the protected resource metadata, to send in a challenge
    cancellation: Cancellation | None = None  # cancels the call that is answered; set when its handler first waits
    accepts = Accepts.BOTH
    streaming = False  # whether the response is an event stream
    finished = False  # whether nothing more is sent
    _lock: asyncio.Lock | None = None  # held while writing, so that the answer cannot overtake a notification
    _beat: asyncio.TimerHandle | None = None  # timer of keep-alive comments while a stream is open
    _silent = False  # True if nothing was sent since the timer last fired
    _comment: asyncio.Task[None] | None = None  # the keep-alive comment that is being sent

    def __init__(self, send: Send, limits: Limits) -> None:
        self.send = send
        self.limits = limits

    @property
    def request_id(self) -> RequestId | None:
        """The id for an error response; None if the message is not decoded yet, or has no id."""
        return None if self.frame is None else self.frame.reply_id

    @property
    def can_stream(self) -> bool:
        """Whether the client accepts an event stream."""
        return Accepts.STREAM in self.accepts

    @property
    def answered(self) -> bool:
        """Whether the response is complete, so that nothing more is sent."""
        return self.finished

    async def notify(self, message: bytes) -> None:
        """Send a notification of the call. Do nothing if the client accepts no stream, or if the call is answered."""
        if self.answered or Accepts.STREAM not in self.accepts:
            return
        async with self._held:
            if not self.answered:
                await self._write(message, last=False)

    @property
    def _held(self) -> asyncio.Lock:
        """The lock for writing on the stream, created on first use."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def _send_comment(self) -> None:
        """Send an SSE comment, so that proxies and clients see that the stream is alive."""
        if self._lock is None:  # a stream that the client opened with GET: `_send_events` sends its comments
            return
        async with self._lock:
            if not self.finished:
                await self._event(COMMENT, last=False)
                self._silent = True  # a comment does not count as output

    def close(self) -> None:
        """Mark the response as finished, and stop its keep-alive comments. Nothing more is sent."""
        self.finished = True
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def epilogue(self, message: bytes) -> None:
        """Do nothing: the stream ends with the answer, so no message can be sent after it."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Add a `WWW-Authenticate` header with this scheme and these parameters to the response."""
        if parameters.get("resource_metadata") is not None and self.metadata_url is not None:
            parameters = {**parameters, "resource_metadata": self.metadata_url}
        self.extra = [*self.extra, (b"www-authenticate", challenge(scheme, **parameters))]

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer, and end the response. Do nothing if the response has already ended."""
        if self.finished:  # the client was disconnected
            return
        self.close()
        if self.streaming or (self.accepts is Accepts.STREAM and status == 200):
            async with self._held:
                await self._event(encode_event(body), last=True)
            return
        await self._answer_json(status, body)

    async def answer_cancelled(self, status: int, body: bytes) -> None:
        """Send the answer, and end the response, after the ASGI server has cancelled the request.

        Without an answer, the ASGI server would send its own error. Exceptions are ignored, because the process stops,
        or the client has disconnected.
        """
        with suppress(Exception):
            async with asyncio.timeout(self.limits.write_seconds):
                await HttpReply.answer(self, status, body)

    async def _answer_json(self, status: int, body: bytes) -> None:
        most = self.limits.pipelined_requests
        if not self.extra and status != _BUSY and respond_at_once(self.send, status, body, most):
            return
        await self._whole(status, [_JSON, (b"content-length", b"%d" % len(body)), *self.extra], body)

    async def is_disconnected(self) -> bool:
        """Return whether the client has disconnected, as far as the ASGI server knows."""
        try:
            async with asyncio.timeout(0):
                await self.wait_for_disconnect()
        except TimeoutError:
            return False
        return True

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def accept(self, status: int = 202) -> None:
        """Send a response without a body: status 202 for a message that needs no answer, 204 for an ended session."""
        self.finished = True
        await self._whole(status, [(b"content-length", b"0")] if status == 202 else [], b"")

    async def send_event(self, event: bytes) -> None:
        """Send an encoded SSE event on a stream that the client has opened with GET."""
        if not self.finished:
            await self._event(event, last=False)

    async def end(self) -> None:
        """End the stream without an answer. Do nothing if the response is not a stream, or has already ended."""
        if self.streaming and not self.finished:
            self.close()
            async with self._held:  # a comment may be on its way
                await self._event(b"", last=True)

    async def close_stream(self, retry_seconds: float) -> None:
        """Do nothing: without a session, the client could not reconnect to get the rest of the stream."""

    async def refuse(self, refusal: Refusal) -> None:
        """Send a response with the HTTP status of `refusal`, and a JSON-RPC error without an id.

        If the response has begun, only end it: it has a status already.
        """
        if self.streaming or self.finished:
            await self.end()
            return
        body = encode_error(None, refusal.code, str(refusal))
        self.finished = True
        await self._whole(refusal.status, [_JSON, (b"content-length", b"%d" % len(body)), *refusal.headers], body)

    async def _whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        if status == _BUSY and _RETRY[0] not in dict(headers):
            headers = [*headers, _RETRY]
        hang_up_on_flood(self.send, self.limits.pipelined_requests)
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        except OSError:  # some ASGI servers raise it if the client has gone
            pass

    async def _write(self, message: bytes, *, last: bool) -> None:
        """Send one message as an SSE event. If `last` is True, end the stream."""
        await self._event(encode_event(message), last=last)

    async def _event(self, event: bytes, *, last: bool) -> None:
        """Send one encoded SSE event. If `last` is True, end the stream.

        If the client has disconnected, or does not read the event in time, end the response and, without a session,
        cancel the call.
        """
        start = not self.streaming
        self.streaming = True
        self._silent = False
        if start and not last:
            self._beat = asyncio.get_running_loop().call_later(self.limits.keep_alive_seconds, self._on_beat)
        try:
            async with asyncio.timeout(self.limits.write_seconds):
                if start:
                    hang_up_on_flood(self.send, self.limits.pipelined_requests)
                    headers = [*_STREAM, *self.extra]
                    await self.send({"type": "http.response.start", "status": 200, "headers": headers})
                await self.send({"type": "http.response.body", "body": event, "more_body": not last})
        except TimeoutError:
            log.warning("A stream is cut: its client has read nothing for %g s.", self.limits.write_seconds)
            await self._cut("the client does not read", last=last)
        except OSError:  # some ASGI servers raise it if the client has gone
            await self._cut("the client disconnected", last=last)

    async def _cut(self, reason: str, *, last: bool) -> None:
        self.close()
        if last:  # there is nothing left to cancel
            return
        if self.cancellation is not None:
            self.cancellation.cancel(reason)
        await asyncio.sleep(0)  # the cancellation is raised here, because the handler may never wait elsewhere

    def _on_beat(self) -> None:
        """Send a keep-alive comment if nothing was sent since the timer last fired. Start the timer again."""
        loop = asyncio.get_running_loop()
        if self._silent and (self._comment is None or self._comment.done()):
            self._comment = loop.create_task(self._send_comment(), name="weft-keep-alive")
        self._silent = True
        self._beat = loop.call_later(self.limits.keep_alive_seconds, self._on_beat)


def refusal_of(error: ProtocolError, frame: Frame, era: ServerEra) -> Answer:
    """Log that a request is refused, and return the answer: an HTTP status and an encoded JSON-RPC error."""
    note_refusal(error)
    wire = era.refuse(error, opened=False)
    refused(frame.method, era.name, f"{wire.status}/{wire.code}", wire.message)
    return wire.status, encode_error(frame.reply_id, wire.code, wire.message, wire.data)
