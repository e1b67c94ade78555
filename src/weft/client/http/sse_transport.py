"""Connect by HTTP+SSE, the transport of the first revision: one event stream from the server, POSTs to the server.

A GET opens the stream. Its first event names the URL for the POSTs. All answers arrive on the stream, so this
transport is a `PipeTransport`. It is used only for servers that refuse the newer transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from weft.client.connection.negotiate import explained
from weft.client.connection.transport import NO_HEADERS, Auth, PipeTransport, Refused
from weft.client.http.transport import AuthorizedWire, fallen_silent, read_events, read_refusal
from weft.client.http.wire import HttpResponse, Wire, is_event_stream, place, resolved
from weft.errors import AuthorizationFailed, ConnectionFailed, InvalidAnswer
from weft.limits import ClientLimits
from weft.protocol import sse


class SseTransport(PipeTransport):
    """A connection to a server over HTTP+SSE, the transport of the first protocol version."""

    kind = "sse"

    def __init__(
        self,
        url: str,
        wire: Wire,
        limits: ClientLimits,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        auth: Auth | None = None,
    ) -> None:
        super().__init__(place(url), limits)
        self._url = url
        self.hold: Callable[[], AbstractContextManager[Any]] = nullcontext  # pauses deadlines while the user logs in
        self._opening: asyncio.Timeout | None = None  # deadline for opening the stream, while it is being opened
        # Tokens belong to the URL of the server, even if messages are sent to another URL of the same origin.
        self._wire = (
            wire if auth is None else AuthorizedWire(wire, auth, limits.connect_seconds, self._holding, server=url)
        )
        self._headers = headers
        self._endpoint = ""  # URL for the POSTs
        self._reply: HttpResponse | None = None  # the stream
        self._reader: asyncio.Task[None] | None = None  # reads the stream

    async def start(self) -> None:
        """Open the stream, and wait for its first event, which names the URL for the POSTs."""
        await self._wire.open()
        try:
            async with asyncio.timeout(self.limits.connect_seconds) as self._opening:
                self._endpoint = await self._find_endpoint()
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise ConnectionFailed(f"no endpoint was named within {self.limits.connect_seconds:g} s") from None
            raise
        finally:
            self._opening = None

    async def _find_endpoint(self) -> str:
        """Open the stream, and return the URL for the POSTs, which its first event names.

        Raises AuthorizationFailed if the server requires a login. Raises ConnectionFailed if the response is not an
        event stream, or if the URL has another origin than the stream.
        """
        sent = {"Accept": "text/event-stream", **self._headers}
        try:
            reply = self._reply = await self._wire.exchange("GET", self._url, sent, None)
            if reply.status == 401:
                raise await read_refusal(reply, self.where, self.limits.connect_seconds)
        except Refused as refused:
            failure = explained(refused)
            if not isinstance(failure, AuthorizationFailed):
                failure = ConnectionFailed(f"HTTP {refused.status}; check the token and its scopes")
            raise failure from None
        if not is_event_stream(reply):
            raise ConnectionFailed(f"HTTP {reply.status} without a stream of events")
        named: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(reply, named))
        target, is_within = resolved(self._url, await named)
        if not is_within:
            raise ConnectionFailed(f"it names an endpoint of another origin, {place(target)[:200]}")
        return target

    @contextmanager
    def _holding(self) -> Generator[None]:
        """Pause all deadlines during a `with` block, in which the user logs in."""
        clock = self._opening
        if clock is not None:
            clock.reschedule(None)
        try:
            with self.hold():
                yield
        finally:
            if clock is not None:
                clock.reschedule(asyncio.get_running_loop().time() + self.limits.connect_seconds)

    async def _read(self, reply: HttpResponse, named: asyncio.Future[str]) -> None:
        def handle(event: sse.Event) -> None:
            if event.event == "endpoint" and not named.done():
                named.set_result(event.data)
            elif event.event == "message" and event.data:
                self.incoming(event.data.encode())

        events = sse.Decoder(max_event_bytes=self.limits.event_bytes)
        failure = ConnectionFailed(f"{self.where} ended its stream.")
        try:
            await read_events(reply, events, self.limits, self.where, handle)
        except ConnectionFailed as error:
            failure = error
        except TimeoutError:
            failure = fallen_silent(self.where)
        except InvalidAnswer as error:
            failure = ConnectionFailed(str(error))
        finally:
            reply.done()
            if not named.done():
                named.set_exception(ConnectionFailed("the stream ended before it named an endpoint"))
                named.exception()  # marks the exception as read, because the waiting task may have been cancelled
        self.lost(failure)

    async def write(self, message: bytes) -> None:
        """Send one message with a POST request. Raises Refused if the status is not 2xx."""
        reply = await self._wire.exchange(
            "POST", self._endpoint, {"Content-Type": "application/json", **self._headers}, message
        )
        try:
            if not 200 <= reply.status < 300:
                raise Refused(self.where, reply.status, reply.headers, b"")
        finally:
            reply.done()

    async def stop(self) -> None:
        """Close the stream and all connections."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])
        if self._reply is not None:
            self._reply.done()
        await self._wire.close()
