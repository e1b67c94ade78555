"""Send messages to a server over Streamable HTTP, with or without authorization.

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
from typing import Any, TypeVar

from weft.client.callbacks import TURN_SECONDS, Attempts, StreamWatchdog, pause
from weft.client.connection.transport import (
    NO_HEADERS,
    Answer,
    Auth,
    Lost,
    Receive,
    Refused,
    as_sent,
    bounds_of,
    decode_messages,
    ignore,
    is_nameless,
    pieces,
    read_invalid,
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

T = TypeVar("T")

_POST = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_GET = {"Accept": "text/event-stream"}
_NO_STREAMS = 405  # status of servers that have no GET streams
_TAKEN = 409  # status if the server has not noticed yet that the earlier standalone stream has ended
_SAME_REQUEST = (307, 308)  # redirects that keep the method and the body


class HttpTransport:
    """A connection to a server over Streamable HTTP."""

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
        self.url = url  # changes if the server redirects to another URL of the same origin
        self._limits = limits
        self._bounds = bounds_of(limits)
        self.hold: Callable[[], AbstractContextManager[Any]] = nullcontext  # pauses deadlines while the user logs in
        self._wire = wire if auth is None else AuthorizedWire(wire, auth, limits.connect_seconds, self._holding)
        self._posted = {**_POST, **headers}  # headers of every POST
        self._gotten = {**_GET, **headers}  # headers of every GET and DELETE
        self._receive: Receive = ignore
        self._seldom = Seldom(log)  # rate-limited, because the server can cause these log lines at will

    async def open(self, receive: Receive, lost: Lost) -> None:
        """Prepare for requests. `lost` is never called, because each request is a separate HTTP exchange."""
        self._receive = receive
        await self._wire.open()

    async def reopen(self) -> None:
        """Do nothing, because each request is a separate HTTP exchange."""

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
            frame = self._sort(await reply.body(self._limits.message_bytes), request_id)
            if frame is None:
                raise InvalidAnswer(f"{self.where} answered, but not the request with the id {request_id!r}.")
            return Answer(frame, reply.headers)
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
            # It does no harm if the server gets a notification or a response twice (RFC 9110, 9.2.2).
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

        Raises ConnectionFailed if there are too many redirects, or if a redirect leads to another origin or would
        change the HTTP method.
        """
        exchange = self._shown_exchange if wire_log.isEnabledFor(logging.DEBUG) else self._wire.exchange
        for left in reversed(range(self._limits.redirects + 1)):
            reply = await exchange(method, self.url, headers, body)
            if not 300 <= reply.status < 400:
                return reply
            reply.done()
            if left:
                self.url = self._redirected(reply)
        raise ConnectionFailed(f"{self.where} redirects again and again; check the URL.")

    async def _shown_exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpResponse:
        shown = masked_body(body or b"", from_client=True)
        wire_log.debug("> %s %s [%s] %s", method, masked_url(url), masked_headers(headers), shown)
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

    async def _refusal(self, reply: HttpResponse, *, was_seen: bool = False) -> Refused:
        refusal = await read_refusal(reply, self.where, self._limits.connect_seconds)
        refusal.was_seen = was_seen
        if wire_log.isEnabledFor(logging.DEBUG):
            wire_log.debug("< %s", masked_body(refusal.body))
        return refusal

    def _sort(self, data: bytes, request_id: RequestId | None, failures: list[WeftError] | None = None) -> Frame | None:
        """Decode the messages in `data`. Return the answer to the request `request_id`, or None if it is not there.

        Requests and notifications of the server are passed to `self._receive`.

        Without `failures`, an invalid message raises InvalidAnswer. With `failures` (on a stream), it does so only if
        it has the id of the request. The error of any other invalid message is logged, and becomes the only item of
        `failures`.
        """

        def unreadable(part: bytes, error: ProtocolError) -> None:
            failure = InvalidAnswer(f"{self.where} sent something that is not a message: {error}")
            if failures is None or (request_id is not None and read_invalid(part)[0] == request_id):
                raise failure from None
            self._seldom.warning("%s", failure)
            failures[:] = [failure]

        answer: Frame | None = None
        for frame in decode_messages(data, self._bounds, unreadable):
            if not frame.is_response:
                self._receive(frame, request_id)
            elif request_id is not None and (as_sent(frame.id) == request_id or is_nameless(frame)):
                answer = frame
            else:
                self._seldom.warning("%s answered a request that does not wait for it.", self.where)
        return answer

    # --- streams

    async def _follow(
        self, reply: HttpResponse, request_id: RequestId, headers: Mapping[str, str], *, resumable: bool
    ) -> Frame:
        """Read a stream until the answer to the request `request_id` arrives, and return the answer.

        With `resumable`, a broken stream is resumed. Raises WeftError if the stream ends without the answer and cannot
        be resumed.
        """
        events = sse.Decoder(max_event_bytes=self._limits.event_bytes)
        # Contains at most one error, the latest. `raise failures.pop()` makes no reference cycle with this frame.
        failures: list[WeftError] = []
        attempt = 0
        while True:
            before = events.last_event_id
            try:
                frame = await self._read(reply, events, request_id, failures)
                if frame is not None:
                    return frame
                if not failures:
                    ended = f"{self.where} ended the stream before its answer was complete"
                    failures.append(ConnectionFailed(f"{ended}; ask again, or look into its log."))
            except ConnectionFailed as error:
                failures[:] = [error]  # instead of an unreadable event, which need not have been the answer
            attempt = 0 if events.last_event_id != before else attempt + 1
            events = self._next_decoder(events)
            if not resumable or events.last_event_id is None:
                raise failures.pop()
            reply = await self._resume(events, headers, attempt, failures)

    async def _resume(
        self, events: sse.Decoder, headers: Mapping[str, str], attempt: int, failures: list[WeftError]
    ) -> HttpResponse:
        """Resume a stream with the Last-Event-ID header, and return the response with the remaining events.

        `attempt` is the number of attempts so far that brought no new event. When no attempt is left, raises the latest
        error, which is the item of `failures`. Raises ConnectionFailed if the server cannot resume streams (HTTP 405),
        and Refused if the server answers with another status.
        """
        sent = {**self._gotten, **headers, "Last-Event-ID": events.last_event_id or ""}
        for number in range(attempt, self._limits.resumptions + 1):
            await asyncio.sleep(pause(number, events.retry))
            try:
                reply = await self._exchange("GET", sent, None)
            except ConnectionFailed as error:
                failures[:] = [error]
                continue
            if is_event_stream(reply):
                return reply
            if reply.status != _NO_STREAMS:
                raise await self._refusal(reply, was_seen=True)
            reply.done()
            raise ConnectionFailed(
                f"{self.where} ended the stream before its answer was complete, and does not let the client resume it "
                "(HTTP 405). It is not known whether the request was executed."
            )
        raise failures.pop()

    def _next_decoder(self, events: sse.Decoder) -> sse.Decoder:
        """Return a new decoder for a resumed stream, with the last event id and the retry time of `events`."""
        fresh = sse.Decoder(max_event_bytes=self._limits.event_bytes)
        fresh.last_event_id, fresh.retry = events.last_event_id, events.retry
        return fresh

    async def _read(
        self, reply: HttpResponse, events: sse.Decoder, request_id: RequestId | None, failures: list[WeftError]
    ) -> Frame | None:
        """Read a stream until the answer arrives or the stream ends. Return the answer, or None if it did not arrive.

        The error of an invalid event is put into `failures`, or raised if the event has the id of the request. Raises
        ConnectionFailed if the connection breaks, or if the server stops sending its keep-alive comments.
        """

        def handle(event: sse.Event) -> Frame | None:
            is_message = event.data and event.event == "message"
            return self._sort(event.data.encode(), request_id, failures) if is_message else None

        frame = None
        try:
            frame = await read_events(reply, events, self._limits, self.where, handle)
        except TimeoutError:
            self._wire.renew()  # idle connections to the same server are probably lost, too
            raise fallen_silent(self.where) from None
        finally:
            reply.done() if frame is None else reply.finish()
        return frame

    async def open_standalone_stream(self, headers: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Open the standalone stream, and open it again whenever it is lost.

        Calls `opened` each time the stream has been opened. Returns if the server has no standalone stream. Raises
        Refused if the server refuses to open the stream again, and ConnectionFailed after several failed attempts in a
        row.
        """
        events = sse.Decoder(max_event_bytes=self._limits.event_bytes)
        now = asyncio.get_running_loop().time
        attempts, was_open = Attempts(), False
        while True:
            sent = {**self._gotten, **headers}
            if events.last_event_id is not None:
                sent["Last-Event-ID"] = events.last_event_id
            try:
                reply = await self._exchange("GET", sent, None)
                if not is_event_stream(reply):
                    if was_open:
                        raise await self._not_again(reply)
                    reply.done()
                    opened()
                    return
                was_open, since = True, now()
                opened()
                try:
                    await self._read(reply, events, None, [])
                finally:
                    attempts.took(now() - since)
            except ConnectionFailed as error:
                log.debug("The standalone stream of %s was lost: %s", self.where, error)
                if attempts.failed >= self._limits.resumptions:
                    raise
            events = self._next_decoder(events)
            await asyncio.sleep(attempts.pause(events.retry))

    async def _not_again(self, reply: HttpResponse) -> WeftError:
        """Return the error for a standalone stream that could not be opened again.

        The error is ConnectionFailed if a later attempt may succeed, otherwise Refused.
        """
        if reply.status != _TAKEN and reply.status < 500:
            return await self._refusal(reply)
        reply.done()
        if reply.status == _TAKEN:
            return ConnectionFailed(f"{self.where} has not noticed yet that its stream was lost.")
        # The server, or a proxy before it, may be restarting.
        return ConnectionFailed(f"{self.where} answered with the HTTP status {reply.status}.")


async def read_events(
    reply: HttpResponse, events: sse.Decoder, limits: ClientLimits, where: str, handle: Callable[[sse.Event], T | None]
) -> T | None:
    """Call `handle` with each event of a stream until it returns a value. Return that value, or None if it never does.

    Raises TimeoutError if the server stops sending its keep-alive comments, InvalidAnswer if an event is too large, and
    ConnectionFailed if the connection breaks.
    """
    now = asyncio.get_running_loop().time
    watchdog = StreamWatchdog(limits.silence_seconds, now())
    async with asyncio.timeout(None) as silence:
        async for chunk in reply.chunks():
            began = now()
            for piece in pieces(chunk):
                try:
                    complete = events.feed(piece)
                except ValueError as error:
                    raise InvalidAnswer(f"{where}: {error}") from None
                for event in complete:
                    if (found := handle(event)) is not None:
                        return found
                if now() - began > TURN_SECONDS:
                    await asyncio.sleep(0)
                    began = now()
            silence.reschedule(watchdog.received(chunk, now()))
    return None


def fallen_silent(where: str) -> ConnectionFailed:
    """Return the error for a stream on which the server's keep-alive comments no longer arrive."""
    return ConnectionFailed(f"{where} sends nothing any more, on a stream that it did not end.")


_MOST_AUTHORIZATIONS = 3  # how often one request is sent again after a 401 or 403
_REFUSAL_BYTES = 1024 * 1024  # maximum size of the body of a refusal; a larger body is ignored


class AuthorizedWire:
    """A `Wire` that adds authorization headers to each request, and sends the request through another `Wire`.

    `hold` pauses deadlines while the user logs in. The token is the one for the URL `server` or, if `server` is None,
    for the URL of the request.
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
        """Open the wrapped wire."""
        await self._wire.open()

    def renew(self) -> None:
        """Let the wrapped wire use new connections from now on."""
        self._wire.renew()

    async def close(self) -> None:
        """Close the wrapped wire."""
        await self._wire.close()

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request with a token. After the status 401 or 403, log in and send the request again.

        Raises Refused if the login is not possible. If the server still refuses after several attempts, its response is
        returned.
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
    """Read the body of a refused request's response, close the response, and return it as a `Refused`.

    The body of the result is empty if the response body is too large, breaks off, or takes longer than `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await reply.body(_REFUSAL_BYTES)
    except (ConnectionFailed, InvalidAnswer, TimeoutError):
        body = b""
    finally:
        reply.done()
    return Refused(where, reply.status, reply.headers, body)
