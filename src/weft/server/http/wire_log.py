"""Log every HTTP message in and out at `debug`, with its secrets masked.

The logging app is made in place of the plain one: where the level is off, nothing of this runs. Messages in are marked
`<`, messages out `>`.
"""

from __future__ import annotations

from weft.net.asgi import Message, Receive, Scope, Send
from weft.net.logs import masked_body, masked_headers, masked_url
from weft.server.http.app import HttpApp
from weft.server.runtime.request_log import is_wire_logged, log

_MOST_KEPT = 64 * 1024  # bytes of a request's body that are kept for the log


def app_class() -> type[HttpApp]:
    """The class of HTTP apps: the one that logs the wire, if somebody reads that."""
    return _LoggedApp if is_wire_logged() else HttpApp


class _LoggedApp(HttpApp):
    """An HTTP app that logs what it receives and sends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            exchange = _Exchange(scope, receive, send)
            receive, send = exchange.receive, exchange.send
        await super().__call__(scope, receive, send)


class _Exchange:
    """One HTTP request and its response, logged when each is complete; events of a stream one by one."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = "?" if scope.get("query_string") else ""
        self._request = f"{scope['method']} {masked_url(scope['path'] + query)} [{masked_headers(scope['headers'])}]"
        self._has_body = scope["method"] == "POST"
        self._receive = receive
        self._send = send
        self._body = bytearray()
        self._is_read = False
        self._response = ""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not self._is_read:
            self._body += message.get("body", b"")[: _MOST_KEPT - len(self._body)]
            if not message.get("more_body", False):
                self._tell_request()
        return message

    async def send(self, message: Message) -> None:
        if not self._is_read:  # refused by its head, or of a verb without a body
            self._tell_request()
        if message["type"] == "http.response.start":
            self._response = f"{message['status']} [{masked_headers(message.get('headers', ()))}]"
        elif body := message.get("body", b""):
            log.debug("> %s %s", self._response, _masked_event(body))
            self._response = "stream"
        elif self._response and not message.get("more_body", False):
            log.debug("> %s", self._response)
        await self._send(message)

    def _tell_request(self) -> None:
        self._is_read = True
        log.debug("< %s %s", self._request, masked_body(bytes(self._body), from_client=True) if self._body else "")


def _masked_event(body: bytes) -> str:
    """A body, or events of a stream: of those, what each line of data says."""
    lines = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith((b"data:", b":"))]
    return " ".join(masked_body(line) for line in lines) if lines else masked_body(body)
