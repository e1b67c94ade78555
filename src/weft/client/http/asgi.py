"""Send HTTP requests to an ASGI application in this process, and run its lifespan (startup and shutdown)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from multidict import CIMultiDict

from weft.client.http.wire import HttpResponse
from weft.errors import ConnectionFailed, InvalidAnswer
from weft.limits import ClientLimits
from weft.net.asgi import Message, Receive, Scope, Send

log = logging.getLogger("weft.client")

_App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MOST_WAITING = 16  # maximum number of unread pieces of a body; then the application has to wait


class _AsgiReply:
    """The response of an ASGI application to one request."""

    def __init__(self, body: bytes | None, where: str) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.started = asyncio.Event()  # set when the head has arrived, or the application has ended without one
        self._where = where
        self._request: Message | None = {"type": "http.request", "body": body or b"", "more_body": False}
        self._gone = asyncio.Event()  # set when the client has disconnected
        self._pieces: deque[bytes] = deque()
        self._arrived = asyncio.Event()  # set when there is something to read, or the response has ended
        self._room = asyncio.Event()  # set while the application may send more
        self._room.set()
        self._is_complete = False  # the whole body has arrived
        self._is_over = False  # the body is complete, or the application has ended

    async def receive(self) -> Message:
        """Return the request as an ASGI message. Later calls wait until the client disconnects, and report it."""
        request, self._request = self._request, None
        if request is not None:
            return request
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Store an ASGI message of the application. If too many pieces of the body are unread, wait for the client."""
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = CIMultiDict(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())
            )
            self.started.set()
        elif message["type"] == "http.response.body":
            if piece := message.get("body", b""):
                self._pieces.append(piece)
            self._is_complete = self._is_over = not message.get("more_body", False)
            self._arrived.set()
            if len(self._pieces) >= _MOST_WAITING:
                self._room.clear()
                await self._room.wait()

    def ended(self, task: asyncio.Task[None]) -> None:
        """Mark the response as ended. If the application's task failed, log its exception."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("The application at %s failed.", self._where, exc_info=error)
        self._is_over = True
        self.started.set()
        self._arrived.set()

    async def body(self, limit: int) -> bytes:
        """Return the whole body. Raises InvalidAnswer if it has more than `limit` bytes."""
        whole = bytearray()
        async for piece in self.chunks():
            whole += piece
            if len(whole) > limit:
                raise InvalidAnswer(f"{self._where} sent more than {limit} bytes in one answer; raise `message_bytes`.")
        return bytes(whole)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece.

        Raises ConnectionFailed if the application ends before the body is complete.
        """
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            self._room.set()
            if self._is_over:
                break
            self._arrived.clear()
            await self._arrived.wait()
        if not self._is_complete:
            raise ConnectionFailed(f"The application at {self._where} broke off its answer; look into its log.")

    def done(self) -> None:
        """Mark the client as disconnected. Later messages of the application are dropped."""
        self._gone.set()
        self._room.set()

    finish = done  # there is no connection to keep for later requests


class AsgiWire:
    """Sends HTTP requests to an ASGI application in this process, each in a separate task, and runs its lifespan."""

    def __init__(self, app: _App, limits: ClientLimits) -> None:
        self._app = app
        self._limits = limits
        self._replies: dict[asyncio.Task[None], _AsgiReply] = {}  # responses that have not ended
        self._lifespan: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()  # set when the application should shut down
        self._open = False

    async def open(self) -> None:
        """Run the application's startup, if it has a lifespan. Raises ConnectionFailed if the startup fails."""
        if self._open:
            return
        self._open = True
        self._closing = asyncio.Event()
        started: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._lifespan = asyncio.create_task(self._live(started))
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                failure = await started
        except TimeoutError:
            failure = "its startup did not end within `request_seconds`"
        if failure is not None:
            await self.close()
            raise ConnectionFailed(f"The application could not start: {failure}; look into its startup.")

    async def _live(self, started: asyncio.Future[str | None]) -> None:
        messages: list[Message] = [{"type": "lifespan.startup"}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await self._closing.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Message) -> None:
            if not started.done() and message["type"].startswith("lifespan.startup"):
                failed = message["type"].endswith("failed")
                started.set_result((message.get("message") or "it did not say why") if failed else None)

        try:
            await self._app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        except Exception:
            if started.done():
                log.exception("The lifespan of the application failed.")
            else:  # an application without a lifespan raises
                log.debug("The application has no lifespan.", exc_info=True)
        finally:
            if not started.done():
                started.set_result(None)

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpResponse:
        """Send a request to the application, and return the response when its status and headers have arrived.

        Raises ConnectionFailed if the application ends without a response.
        """
        if not self._open:
            raise ConnectionFailed(f"The connection to {url} was closed.")
        reply = _AsgiReply(body, url)
        task = asyncio.create_task(self._call(_scope(method, url, headers, body), reply))
        self._replies[task] = reply
        task.add_done_callback(reply.ended)
        task.add_done_callback(self._replies.pop)
        try:
            await reply.started.wait()
        except BaseException:
            reply.done()
            raise
        if not reply.status:
            raise ConnectionFailed(f"The application at {url} ended without a response; look into its log.")
        return reply

    async def _call(self, scope: Message, reply: _AsgiReply) -> None:
        await self._app(scope, reply.receive, reply.send)

    def renew(self) -> None:
        """Do nothing, because there are no network connections."""

    async def close(self) -> None:
        """Disconnect all requests and shut the application down. Tasks that do not end in time are cancelled."""
        self._open = False
        tasks = [] if self._lifespan is None else [self._lifespan]
        for task, reply in self._replies.items():
            reply.done()
            tasks.append(task)
        self._closing.set()
        seconds = self._limits.close_seconds
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=seconds)
        finally:  # also when the closing task is cancelled
            late = [task for task in tasks if not task.done()]
            for task in late:
                task.cancel()
        if late and (await asyncio.wait(late, timeout=seconds))[1]:
            log.warning("The application goes on although it was cancelled.")
        self._lifespan = None


def _scope(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> dict[str, Any]:
    parts = urlsplit(url)
    fields = [(b"host", parts.netloc.encode())]
    fields += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    if body is not None:
        fields.append((b"content-length", b"%d" % len(body)))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(parts.path or "/"),
        "raw_path": (parts.path or "/").encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": fields,
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname or "localhost", parts.port or 80),
        "state": {},
    }
