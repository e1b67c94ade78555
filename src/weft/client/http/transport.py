"""Send messages by Streamable HTTP, with authorization.

Every message is sent by a POST. The answer to a request is a JSON body or an event stream. This module handles
responses (status, media type, size, redirects), resumes streams that broke off, and keeps the standalone stream (by
GET) open. It raises `Refused` if the status is not a success. Its callers pass the headers and decide what the
status means.

With authorization, each request carries a token. A refusal (401 or 403) is passed to the `Auth` object
(`weft.client.auth`), which may log in. Then the request is sent again, a limited number of times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weft.client.callbacks import TURN_SECONDS, Attempts, StreamWatchdog, pause
from weft.client.connection.transport import (
    NO_HEADERS,
    Answer,
    Auth,
    Lost,
    Receive,
    Refused,
    answered_id,
    as_sent,
    bounds_of,
    decode_messages,
    is_nameless,
    pieces,
    wire_log,
)
from weft.client.http.wire import HttpResponse, Wire, is_event_stream, media_type, place, resolved
from weft.errors import ConnectionFailed, InvalidAnswer, ProtocolError, WeftError
from weft.jsonrpc import Frame
from weft.limits import ClientLimits
from weft.net.logs import Seldom, masked_body, masked_headers, masked_url
from weft.protocol import sse
from weft.types.base import RequestId

log = logging.getLogger("weft.client")

_POST = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_GET = {"Accept": "text/event-stream"}
_NO_STREAMS = 405  # status of servers that have no GET streams
_TAKEN = 409  # status for a second standalone stream, while the server has not noticed the end of the first
_SAME_REQUEST = (307, 308)  # redirects that keep the method and the body


class HttpTransport:
    """A connection by Streamable HTTP to the server at a URL."""

    kind = "http"
    stream_per_request = True

    def __init__(
        self,
        url: str,
        wire: Wire,
        limits: ClientLimits,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        auth: Auth | None = None,
    ) -> None:
        self.where = place(url)
        self.url = url  # changes with redirects within the origin
        self._limits = limits
        self._bounds = bounds_of(limits)
        self.hold: Callable[[], AbstractContextManager[Any]] = nullcontext  # pauses deadlines while the user logs in
        self._wire = wire if auth is None else AuthorizedWire(wire, auth, limits.connect_seconds, self._holding)
        self._posted = {**_POST, **headers}  # headers of every POST
        self._gotten = {**_GET, **headers}  # headers of every GET and DELETE
        self._receive: Receive = _ignore
        self._seldom = Seldom(log)  # rate-limited, because the server can cause these log lines at will

    async def open(self, receive: Receive, lost: Lost) -> None:
        """Prepare for requests. `lost` is never called, because each request has a separate connection."""
        self._receive = receive
        await self._wire.open()

    async def reopen(self) -> None:
        """Do nothing, because each request has a separate connection."""

    async def close(self) -> None:
        """Close all connections, including those of requests in flight."""
        await self._wire.close()

    async def request(
        self, message: bytes, request_id: RequestId, headers: Mapping[str, str] = NO_HEADERS, *, resumable: bool = False
    ) -> Answer:
        """Send a request, and return its answer from a JSON body or an event stream."""
        reply = await self._exchange("POST", {**self._posted, **headers}, message)
        form = media_type(reply) if 200 <= reply.status < 300 else ""
        if form.startswith("text/event-stream"):
            return Answer(await self._follow(reply, request_id, headers, resumable=resumable), reply.headers)
        try:
            if not form.startswith("application/json"):
                raise await self._refusal(reply)
            body = await reply.body(self._limits.message_bytes)
            return Answer(self._answer_in(body, request_id), reply.headers)
        finally:
            reply.done()

    async def send(self, message: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Send a notification or a response. Raises Refused if the status is not 2xx."""
        sent = {**self._posted, **headers}
        try:
            reply = await self._exchange("POST", sent, message)
        except ConnectionFailed as error:
            if not error.is_unanswered:
                raise
            # Neither does harm if the server gets it twice (RFC 9110, 9.2.2).
            reply = await self._exchange("POST", sent, message)
        try:
            if not 200 <= reply.status < 300:
                raise await self._refusal(reply)
        finally:
            reply.done()

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """Ask the server to end the session (DELETE). A failure is only logged, because servers may refuse this."""
        try:
            async with asyncio.timeout(self._limits.close_seconds):
                reply = await self._exchange("DELETE", {**self._gotten, **headers}, None)
                reply.done()
        except Exception as error:  # noqa: BLE001 - the program's function for tokens may raise anything
            log.debug("The session at %s could not be ended (%s).", self.where, type(error).__name__)

    # --- exchanges

    def _holding(self) -> AbstractContextManager[Any]:
        return self.hold()  # read for each login, because the connection sets `hold` later

    async def _exchange(self, method: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send an HTTP request and return its response. Follow redirects within the origin.

        Raises ConnectionFailed if there are too many redirects, or a redirect leads to another origin.
        """
        exchange = self._shown_exchange if wire_log.isEnabledFor(logging.DEBUG) else self._wire.exchange
        reply = await exchange(method, self.url, headers, body)
        if not 300 <= reply.status < 400:
            return reply
        for _ in range(self._limits.redirects):
            reply.done()
            self.url = self._redirected(reply)
            reply = await exchange(method, self.url, headers, body)
            if not 300 <= reply.status < 400:
                return reply
        reply.done()
        raise ConnectionFailed(f"{self.where} redirects again and again; check the URL.")

    async def _shown_exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpResponse:
        wire_log.debug(
            "> %s %s [%s] %s",
            method,
            masked_url(url),
            masked_headers(headers),
            masked_body(body or b"", from_client=True),
        )
        reply = await self._wire.exchange(method, url, headers, body)
        wire_log.debug("< %d [%s]", reply.status, masked_headers(reply.headers))
        return reply

    def _redirected(self, reply: HttpResponse) -> str:
        target, is_within = resolved(self.url, reply.headers.get("Location", ""))
        if is_within and reply.status in _SAME_REQUEST:
            return target
        raise ConnectionFailed(
            f"{self.where} answered {reply.status}: it sends you to {place(target)[:300]}. If you trust that place, "
            "use its URL."
        )

    async def _refusal(self, reply: HttpResponse) -> Refused:
        refusal = await read_refusal(reply, self.where, self._limits.connect_seconds)
        if wire_log.isEnabledFor(logging.DEBUG):
            wire_log.debug("< %s", masked_body(refusal.body))
        return refusal

    def _answer_in(self, body: bytes, request_id: RequestId) -> Frame:
        """Return the answer in a JSON body. Raises InvalidAnswer if it has no answer to the request `request_id`."""
        frame = self._sort(body, request_id)
        if frame is None:
            raise InvalidAnswer(f"{self.where} answered, but not the request with the id {request_id!r}.")
        return frame

    def _sort(
        self, data: bytes, request_id: RequestId | None, faults: list[InvalidAnswer] | None = None
    ) -> Frame | None:
        """Return the answer to the request `request_id` from the messages in `data`, or None if it is not there.

        Requests and notifications of the server are passed to `receive`.

        Raises InvalidAnswer if a message cannot be read. If `faults` is given (on a stream), that error is raised only
        if the message was meant as the answer. Otherwise the error is logged and stored in `faults`.
        """

        def unreadable(part: bytes, error: ProtocolError) -> None:
            fault = InvalidAnswer(f"{self.where} sent something that is not a message: {error}")
            if faults is None or answered_id(part) == request_id is not None:
                raise fault from None
            self._seldom.warning("%s", fault)
            faults[:] = [fault]

        answer: Frame | None = None
        for frame in decode_messages(data, self._bounds, unreadable):
            if not frame.is_response:
                self._receive(frame, request_id)
            elif request_id is not None and (
                frame.id == request_id or is_nameless(frame) or as_sent(frame.id) == request_id
            ):
                answer = frame
            else:
                self._seldom.warning("%s answered a request that does not wait for it.", self.where)
        return answer

    # --- streams

    async def _follow(
        self, reply: HttpResponse, request_id: RequestId, headers: Mapping[str, str], *, resumable: bool
    ) -> Frame:
        """Read a stream until the answer arrives, and return the answer.

        If the stream breaks off, it is resumed, but only with `resumable`.
        """
        events = sse.Decoder(max_event_bytes=self._limits.event_bytes)
        faults: list[InvalidAnswer] = []
        attempt = 0
        while True:
            before = events.last_event_id
            failure = ConnectionFailed(
                f"{self.where} ended the stream before its answer was complete; ask again, or look into its log."
            )
            frame = None
            try:
                frame = await self._read(reply, events, request_id, faults)
            except ConnectionFailed as error:
                faults.clear()  # the stream broke off, so the unreadable event need not have been the answer
                failure = error
            finally:
                if frame is None:
                    reply.done()
            if frame is not None:
                reply.finish()
                return frame
            attempt = 0 if events.last_event_id != before else attempt + 1
            events = self._next_decoder(events)
            if not resumable or events.last_event_id is None or attempt > self._limits.resumptions:
                try:
                    raise faults[0] if faults else failure
                finally:
                    del faults, failure  # breaks the reference cycle between the exceptions and this frame
            reply = await self._resume(events, headers, attempt, failure)

    async def _resume(
        self, events: sse.Decoder, headers: Mapping[str, str], attempt: int, failure: ConnectionFailed
    ) -> HttpResponse:
        """Ask for the rest of a stream by Last-Event-ID, and return the response that has the rest.

        `failure` is the error with which the stream broke off. `attempt` is the number of attempts so far that brought
        no new event. Raises the latest failure if no attempt is left, ConnectionFailed if the server cannot resume
        streams, and Refused if it refuses for another reason.
        """
        sent = {**self._gotten, **headers, "Last-Event-ID": events.last_event_id or ""}
        while attempt <= self._limits.resumptions:
            await asyncio.sleep(pause(attempt, events.retry))
            attempt += 1
            try:
                reply = await self._exchange("GET", sent, None)
            except ConnectionFailed as error:
                failure = error
                continue
            if is_event_stream(reply):
                return reply
            if reply.status == _NO_STREAMS:
                reply.done()
                raise ConnectionFailed(
                    f"{self.where} ended the stream before its answer was complete, and does not let the client resume "
                    "it (HTTP 405). It is not known whether the request was executed."
                )
            refusal = await self._refusal(reply)
            refusal.was_seen = True
            try:
                raise refusal
            finally:
                del refusal, failure
        try:
            raise failure
        finally:
            del failure

    def _next_decoder(self, events: sse.Decoder) -> sse.Decoder:
        """Return a decoder for the next connection of a stream. It has the last event id and retry time of `events`."""
        fresh = sse.Decoder(max_event_bytes=self._limits.event_bytes)
        fresh.last_event_id, fresh.retry = events.last_event_id, events.retry
        return fresh

    async def _read(
        self, reply: HttpResponse, events: sse.Decoder, request_id: RequestId | None, faults: list[InvalidAnswer]
    ) -> Frame | None:
        """Read a stream until the answer arrives. Return the answer, or None if the stream ends without one.

        If an event cannot be read and was not the answer, its error replaces the error in `faults`. Raises
        ConnectionFailed if the connection breaks, or if the server stops sending its keep-alive comments.
        """
        now = asyncio.get_running_loop().time
        pulse = StreamWatchdog(self._limits.silence_seconds, now())
        try:
            async with asyncio.timeout(None) as silence:
                async for chunk in reply.chunks():
                    began = now()
                    for piece in pieces(chunk):
                        if (frame := self._read_piece(piece, events, request_id, faults)) is not None:
                            return frame
                        if now() - began > TURN_SECONDS:
                            await asyncio.sleep(0)
                            began = now()
                    silence.reschedule(pulse.received(chunk, now()))
        except TimeoutError:
            self._wire.renew()  # idle connections to the same server are probably lost, too
            raise ConnectionFailed(f"{self.where} sends nothing any more, on a stream that it did not end.") from None
        return None

    def _read_piece(
        self, piece: bytes, events: sse.Decoder, request_id: RequestId | None, faults: list[InvalidAnswer]
    ) -> Frame | None:
        try:
            complete = events.feed(piece)
        except ValueError as error:
            raise InvalidAnswer(f"{self.where}: {error}") from None
        for event in complete:
            if event.data and event.event == "message":
                frame = self._sort(event.data.encode(), request_id, faults)
                if frame is not None:
                    return frame
        return None

    async def open_standalone_stream(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Open the standalone stream, and open it again whenever it is lost.

        Returns if the server has no such stream. Raises Refused if the server refuses to open it again, and
        ConnectionFailed after several failed attempts in a row.
        """
        events = sse.Decoder(max_event_bytes=self._limits.event_bytes)
        now = asyncio.get_running_loop().time
        attempts, stood = Attempts(), False
        while True:
            since: float | None = None
            lost: ConnectionFailed | None = None
            sent = {**self._gotten, **headers}
            if events.last_event_id is not None:
                sent["Last-Event-ID"] = events.last_event_id
            try:
                reply = await self._exchange("GET", sent, None)
                try:
                    is_stream = is_event_stream(reply)
                    if stood and not is_stream:
                        raise await self._not_again(reply)
                    opened()
                    if not is_stream:  # servers need not have a standalone stream
                        return
                    stood, since = True, now()
                    await self._read(reply, events, None, [])
                finally:
                    reply.done()
            except ConnectionFailed as error:
                log.debug("The standalone stream of %s was lost: %s", self.where, error)
                lost = error
            if since is not None:
                attempts.took(now() - since)
            if lost is not None and attempts.failed >= self._limits.resumptions:
                try:
                    raise lost
                finally:
                    del lost
            events = self._next_decoder(events)
            await asyncio.sleep(attempts.pause(events.retry))

    async def _not_again(self, reply: HttpResponse) -> WeftError:
        """Return the error for a standalone stream that could not be opened again.

        The error is ConnectionFailed if a later attempt may succeed, and Refused if not.
        """
        if reply.status == _TAKEN:
            return ConnectionFailed(f"{self.where} has not noticed yet that its stream was lost.")
        if reply.status >= 500:  # the server, or a proxy before it, may be restarting
            return ConnectionFailed(f"{self.where} answered with the HTTP status {reply.status}.")
        return await self._refusal(reply)


def _ignore(frame: Frame, request_id: RequestId | None) -> None:
    """Do nothing. Used until `open` sets the callback."""


_MOST_AUTHORIZATIONS = 3  # how often one request is sent again after a refusal
_REFUSAL_BYTES = 1024 * 1024  # how much of the body of a refusal is read


class AuthorizedWire:
    """Adds authorization to the exchanges of another wire. `hold` pauses deadlines while the user logs in.

    Each request is sent with the token for its own URL, or for the URL `server` if that is given.
    """

    def __init__(
        self,
        wire: Wire,
        auth: Auth,
        seconds: float,
        hold: Callable[[], AbstractContextManager[Any]],
        server: str | None = None,
    ) -> None:
        self._wire = wire
        self._auth = auth
        self._seconds = seconds  # how long the body of a refusal may take to arrive
        self._hold = hold
        self._server = server

    async def open(self) -> None:
        """Open the wire that this object wraps."""
        await self._wire.open()

    def renew(self) -> None:
        """Use new connections of the wrapped wire from now on."""
        self._wire.renew()

    async def close(self) -> None:
        """Close the wire that this object wraps."""
        await self._wire.close()

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request with a token. After a 401 or 403, let `auth` log in and send the request again.

        Raises Refused if `auth` cannot log in. After several attempts, the response 401 or 403 is returned.
        """
        auth, whose = self._auth, self._server or url
        attempt = 0
        while True:
            given = await auth.headers(whose, method)
            reply = await self._wire.exchange(method, url, {**headers, **given}, body)
            if reply.status not in (401, 403) or attempt == _MOST_AUTHORIZATIONS:
                return reply
            attempt += 1
            refusal = await read_refusal(reply, place(url), self._seconds)
            with self._hold():
                if not await auth.refused(refusal, given, headers):
                    raise refusal


async def read_refusal(reply: HttpResponse, where: str, seconds: float) -> Refused:
    """Read the body of a refusal, end the response, and return the refusal.

    Its body is empty if the body is too large, or takes longer than `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await reply.body(_REFUSAL_BYTES)
    except (ConnectionFailed, InvalidAnswer, TimeoutError):
        body = b""
    finally:
        reply.done()
    return Refused(where, reply.status, reply.headers, body)
