"""HTTP: an ASGI app with one endpoint. It guards, reads the body, and hands the message to its era's exchange.

Everything is decided on the raw ASGI scope. What is refused here was not read: the answer is an HTTP status with a
JSON-RPC error that has no id. The order is fixed (ledger 0.2): where the request comes from, the verb, the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InternalError, ProtocolError, UsageError
from weft.jsonrpc import Frame, decode, encode_error
from weft.protocol.headers import HeaderFault, Headers, read
from weft.protocol.hosts import HostPolicy
from weft.protocol.hosts import refusal as refused
from weft.server.faults import report
from weft.server.inline import Deadline, Suspended
from weft.server.transports.asgi import Message, Receive, Respond, Scope, Send
from weft.server.transports.http_reply import Accepts, HttpReply, Refusal, read_accept
from weft.server.transports.http_stateless import exchange
from weft.server.transports.load import busy, is_full

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["HttpApp"]

_LARGE = 256 * 1024
_MOST_PASSES = 1024
_MOST_BYTES = 512  # of the headers in one of them


class HttpApp:
    """One MCP endpoint. Run it under any ASGI server, or mount it: the parent's lifespan is not needed.

    `app.mount("/mcp", server.asgi())` and `Route("/mcp", server.asgi())` both work, whatever `path` says; below
    `app.mount("/", ...)` and below a prefix, `path` is where it is found.
    """

    def __init__(
        self,
        server: Server,
        path: str = "/mcp",
        *,
        allowed_hosts: Sequence[str] | None = None,
        allowed_origins: Sequence[str] | None = None,
    ) -> None:
        if not path.startswith("/"):
            raise UsageError(f"path={path!r} is not possible: a path begins with a slash, like '/mcp'.")
        self.server = server
        self.path = path
        self._paths = frozenset({path, path.rstrip("/"), path.rstrip("/") + "/"})
        self._policy = HostPolicy(allowed_hosts, allowed_origins)
        self.respond: Respond | None = None  # a quicker way out, set by whoever runs us and has one
        # What the guards found of headers that came before. Clients repeat themselves: the next check is one look-up.
        self._passes: dict[tuple[bytes | None, ...], Accepts] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        server = self.server
        reply = HttpReply(send, server.limits)
        if self.respond is not None:
            reply.respond = self.respond
        try:
            headers = read(
                scope["headers"], max_fields=server.limits.header_fields, max_bytes=server.limits.header_bytes
            )
            reply.accepts = self._guard(scope, headers)
            if server.in_flight >= server.limits.in_flight and is_full(server):  # before a body takes up memory
                error = busy(server.limits.in_flight)
                raise Refusal(503, error.message, code=error.code)
        except Refusal as refusal:
            await reply.refuse(refusal)
            return
        except HeaderFault as fault:
            await reply.refuse(Refusal(fault.status, str(fault)))
            return
        server.in_flight += 1
        try:
            body = self._take_body(receive, headers)
            if not isinstance(body, bytes):
                body = await body
            # Reading a large message takes long enough that others would notice: it is done beside the loop.
            frame = (
                decode(body, server.limits)
                if len(body) < _LARGE
                else await asyncio.to_thread(decode, body, server.limits)
            )
            if server.lifespan.started or await self._start(frame, reply):
                await exchange(server, frame, headers, receive, reply, scope.get("client"))
        except Refusal as refusal:
            await reply.refuse(refusal)
        except ProtocolError as error:
            await reply.answer(400, encode_error(error.request_id, error.code, error.message, error.data))
        finally:
            server.in_flight -= 1

    async def _start(self, frame: Frame, reply: HttpReply) -> bool:
        """Enter the lifespan where nobody did at start-up. If it fails, so does this request; the next tries again."""
        try:
            await self.server.lifespan.start()
        except Exception as error:  # noqa: BLE001 - R1: whatever a lifespan raises, the app goes on
            text = report("The lifespan", error, debug=self.server.debug)
            await reply.answer(503, encode_error(frame.reply_id, InternalError.code, text))
            return False
        return True

    def _guard(self, scope: Scope, headers: Headers) -> Accepts:
        """Everything that can be said of a request before its body is read."""
        known = headers.known
        facts = (known.get(b"host"), known.get(b"origin"), known.get(b"content-type"), known.get(b"accept"))
        accepts = self._passes.get(facts)
        if (
            accepts is not None
            and scope["method"] == "POST"
            and scope["path"] == self.path
            and not scope.get("root_path")
        ):
            if b"content-encoding" in known:
                self._check_encoding(known[b"content-encoding"])
            return accepts
        if not self._is_endpoint(scope):
            raise Refusal(404, "There is nothing at this path.")
        host, origin, content_type, accept = facts
        if not self._policy.host_ok(host):
            raise Refusal(421, refused("host", host))
        if not self._policy.origin_ok(origin):
            raise Refusal(403, refused("origin", origin))
        if scope["method"] != "POST":
            raise Refusal(405, "Only POST is served here.", headers=[(b"allow", b"POST")])
        self._check_content_type(content_type)
        self._check_encoding(known.get(b"content-encoding", b"identity"))
        accepts = read_accept(accept)
        if len(self._passes) < _MOST_PASSES and sum(len(fact or b"") for fact in facts) < _MOST_BYTES:
            self._passes[facts] = accepts
        return accepts

    def _is_endpoint(self, scope: Scope) -> bool:
        """Whether the request is for us: by path, by the place we are mounted at, or because a router said so."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        inner = path[len(root) :] if root and path.startswith(root) else path
        # A Mount names us as the endpoint too, for every path below it: there the path decides. It is told from a Route
        # by what it leaves in the scope, for one at "/" adds nothing to the root.
        routed = scope.get("endpoint") is self and "app_root_path" not in scope
        return inner in self._paths or (bool(root) and inner in ("", "/")) or routed

    def _check_content_type(self, value: bytes | None) -> None:
        essence, *parameters = (part.strip().lower() for part in (value or b"").split(b";"))
        if essence != b"application/json":
            raise Refusal(415, "The body must be JSON: send Content-Type: application/json.")
        for parameter in parameters:
            name, _, charset = parameter.partition(b"=")
            if name == b"charset" and charset.strip(b'"') not in (b"utf-8", b"utf8"):
                raise Refusal(415, "The body must be in UTF-8.")

    def _check_encoding(self, value: bytes) -> None:
        if value.strip().lower() != b"identity":
            raise Refusal(415, "The body must not be compressed: leave Content-Encoding out.")

    def _take_body(self, receive: Receive, headers: Headers) -> bytes | Coroutine[Any, Any, bytes]:
        """The whole body, within its bounds of size and time; to be awaited if it is not there at once."""
        limits = self.server.limits
        declared = headers.known.get(b"content-length")
        if declared is not None and (not declared.isdigit() or len(declared) > 15 or int(declared) > limits.body_bytes):
            raise Refusal(413, f"A request body has at most {limits.body_bytes} bytes.")
        receiving = receive()
        try:
            awaited = receiving.send(None)
        except StopIteration as done:
            message: Message = done.value
            if not message.get("more_body", False) and message["type"] == "http.request":
                body: bytes = message.get("body", b"")
                if len(body) <= limits.body_bytes:
                    return body
            return self._read_rest(receive, message)
        return self._read_rest(receive, Suspended(receiving, awaited))

    async def _read_rest(self, receive: Receive, first: Message | Suspended[Message]) -> bytes:
        """A body that does not come at once, or not in one piece."""
        limits = self.server.limits
        deadline = Deadline(limits.body_seconds)
        deadline.start()
        try:
            message = await first if isinstance(first, Suspended) else first
            body: bytes = message.get("body", b"")
            while message.get("more_body", False) and len(body) <= limits.body_bytes:
                message = await receive()
                body += message.get("body", b"")
        except asyncio.CancelledError:
            if deadline.absorb():
                raise Refusal(408, f"The body did not arrive within {limits.body_seconds:g} s.") from None
            raise
        finally:
            deadline.stop()
        if message["type"] == "http.disconnect":  # cut short: what came may look whole, but was not sent whole
            raise Refusal(400, "The body ended before it was complete.")
        if len(body) > limits.body_bytes:
            raise Refusal(413, f"A request body has at most {limits.body_bytes} bytes.")
        return body

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1002})

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        lifespan = self.server.lifespan
        await receive()
        try:
            await lifespan.start()
        except Exception as error:  # noqa: BLE001 - told to the ASGI server, which stops
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await lifespan.stop()
        except Exception as error:  # noqa: BLE001 - as above
            await send({"type": "lifespan.shutdown.failed", "message": f"{type(error).__name__}: {error}"})
            return
        await send({"type": "lifespan.shutdown.complete"})
