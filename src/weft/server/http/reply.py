"""Write the answer to one HTTP request: a JSON body that becomes an SSE stream at the first notification."""

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
_RETRY = (b"retry-after", b"1")  # one second; added to each 503 that has no such header
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-store"),
    (b"x-accel-buffering", b"no"),  # else nginx would buffer events
]


class Accepts(Flag):
    """The forms of answer that a client accepts."""

    JSON = 1
    STREAM = 2
    BOTH = 3


def read_accept(value: bytes | None) -> Accepts:
    """Return whether an Accept header accepts JSON, event streams, or both. Without a header, both are accepted.

    Raises `Refusal` if the header accepts neither.
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
    """Writes one HTTP response. Nothing is sent before the first notification or the answer.

    So an early error can still set the HTTP status. If the client has gone, methods that send raise no exception;
    instead, the call is cancelled.
    """

    receive: Receive  # the receive function of the request; set by the app

    # Defaults of attributes that most responses never set.
    frame: Frame | None = None  # the message that is answered, once it is decoded
    extra: RawHeaders = ()  # headers besides those about the body
    metadata_url: str | None = None  # URL of the protected resource metadata, if it is not the usual one
    cancellation: Cancellation | None = None  # of the call that is answered; set when its handler first waits
    accepts = Accepts.BOTH
    streaming = False
    finished = False
    _lock: asyncio.Lock | None = None  # made with the stream: the answer must not overtake a notification
    _beat: asyncio.TimerHandle | None = None  # timer of keep-alive comments while a stream is open
    _silent = False  # True if nothing was sent since the last beat
    _comment: asyncio.Task[None] | None = None  # the keep-alive comment that is being sent

    def __init__(self, send: Send, limits: Limits) -> None:
        self.send = send
        self.limits = limits

    @property
    def request_id(self) -> RequestId | None:
        """The id for an error response; None if the request is not decoded yet, or has no id."""
        return None if self.frame is None else self.frame.reply_id

    @property
    def can_stream(self) -> bool:
        """Whether the client accepts a stream."""
        return Accepts.STREAM in self.accepts

    @property
    def answered(self) -> bool:
        """Whether the response is complete, so that nothing more is sent."""
        return self.finished

    async def notify(self, message: bytes) -> None:
        """Send a message that belongs to the call, if the client accepts a stream and there is no answer yet."""
        if self.answered or Accepts.STREAM not in self.accepts:
            return
        async with self._held:
            if not self.answered:
                await self._write(message, last=False)

    @property
    def _held(self) -> asyncio.Lock:
        """The lock for writing on the stream."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def _send_comment(self) -> None:
        """Send a comment, so that proxies and clients see that the stream is alive."""
        if self._lock is None:  # a stream that answers no request: its sender sends the comments
            return
        async with self._lock:
            if not self.finished:
                await self._event(COMMENT, last=False)
                self._silent = True  # a comment does not count as output

    def close(self) -> None:
        """Stop sending, because the call is over, with or without an answer."""
        self.finished = True
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def epilogue(self, message: bytes) -> None:
        """Do nothing: the stream ends with the answer, so no message can follow."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Add a `WWW-Authenticate` challenge to the response."""
        if parameters.get("resource_metadata") is not None and self.metadata_url is not None:
            parameters = {**parameters, "resource_metadata": self.metadata_url}
        self.extra = [*self.extra, (b"www-authenticate", challenge(scheme, **parameters))]

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer, and end the response."""
        if self.finished:  # the client was disconnected
            return
        self.close()
        if self.streaming or (self.accepts is Accepts.STREAM and status == 200):
            async with self._held:
                await self._event(encode_event(body), last=True)
            return
        await self._answer_json(status, body)

    async def answer_cancelled(self, status: int, body: bytes) -> None:
        """Send the answer to a call that the ASGI server cancels. Otherwise the ASGI server would send its own answer.

        Errors are ignored, because the process stops, or the client has gone.
        """
        with suppress(Exception):
            async with asyncio.timeout(self.limits.write_seconds):
                await HttpReply.answer(self, status, body)

    async def _answer_json(self, status: int, body: bytes) -> None:
        most = self.limits.pipelined_requests
        if not self.extra and status != _BUSY and respond_at_once(self.send, status, body, most):
            return
        await self._whole(status, [_JSON, (b"content-length", b"%d" % len(body)), *self.extra], body)

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def accept(self, status: int = 202) -> None:
        """Answer without a body: 202 if a message is accepted and gets no response, 204 if a session has ended."""
        self.finished = True
        await self._whole(status, [(b"content-length", b"0")] if status == 202 else [], b"")

    async def send_event(self, event: bytes) -> None:
        """Send an encoded event of a stream that answers no request."""
        if not self.finished:
            await self._event(event, last=False)

    async def end(self) -> None:
        """End the stream, if there is one, without an answer."""
        if self.streaming and not self.finished:
            self.close()
            async with self._held:  # a comment may be on its way
                await self._event(b"", last=True)

    async def close_stream(self, retry_seconds: float) -> None:
        """Do nothing: without a session, the client could not reconnect to get the rest of the stream."""

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal: its HTTP status, and a JSON-RPC error without an id."""
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
        """Send one message as an SSE event."""
        await self._event(encode_event(message), last=last)

    async def _event(self, event: bytes, *, last: bool) -> None:
        """Send one SSE event. If the client has gone, or does not read the event in time, call `_cut`."""
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
        """Send a comment if nothing was sent on the stream since the last beat of the timer."""
        loop = asyncio.get_running_loop()
        if self._silent and (self._comment is None or self._comment.done()):
            self._comment = loop.create_task(self._send_comment(), name="weft-keep-alive")
        self._silent = True
        self._beat = loop.call_later(self.limits.keep_alive_seconds, self._on_beat)


def refusal_of(error: ProtocolError, frame: Frame, era: ServerEra) -> Answer:
    """Return the answer to a request that cannot be served, in the form of its era, and log the refusal."""
    note_refusal(error)
    wire = era.refuse(error, opened=False)
    refused(frame.method, era.name, f"{wire.status}/{wire.code}", wire.message)
    return wire.status, encode_error(frame.reply_id, wire.code, wire.message, wire.data)
