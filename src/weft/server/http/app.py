"""Serve one MCP endpoint as an ASGI app: check a request, read its body, pass the message to the exchange of its era.

An exchange is the object that serves the messages of one era: a `SessionExchange` or a `StatelessExchange`.

The checks read the raw ASGI scope, in a fixed order: the path, host and origin of the request, its token, its HTTP
method, its body. The answer to a refused request is an HTTP status and a JSON-RPC error without an id. Only
`HttpApp.__call__` turns errors into responses. At the log level `debug`, a subclass logs every message, with its
secrets masked.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from weft.eras.base import choose
from weft.errors import BackendUnavailable, InternalError, ProtocolError, UsageError
from weft.jsonrpc import Frame, decode, encode_error
from weft.limits import DEFAULT_LIMITS
from weft.net.asgi import TOKEN_INFO, Message, Receive, Refusal, Scope, Send
from weft.net.hosts import HostPolicy
from weft.net.hosts import refusal as refused
from weft.net.logs import Seldom, masked_body, masked_headers, masked_url
from weft.protocol.headers import HeaderFault, Headers, read
from weft.server.auth.bearer_auth import BearerAuth
from weft.server.auth.protected_resource import Protection
from weft.server.calls.execution import Deadline, PendingCoroutine
from weft.server.diagnostics import report
from weft.server.http.health import Health, HealthAudience
from weft.server.http.host_signals import follow_host_signals
from weft.server.http.reply import Accepts, HttpReply, read_accept
from weft.server.http.request import Cors, TrustedProxies, is_preflight, preflight_refusal, read_caller, shared_limits
from weft.server.http.session import SessionExchange
from weft.server.http.sse_transport import SseExchange
from weft.server.http.stateless import StatelessExchange
from weft.server.runtime.admission import BodyMemory, Busy, HeldBody, LargeMessageQueue, busy
from weft.server.runtime.peer_limits import TooMany
from weft.server.runtime.request_log import is_wire_logged, log, refused_http
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.sessions import Sessions

_seldom = Seldom(logging.getLogger("weft.http"))  # a logger that skips repeated lines

_NO_APP = "A Server is not an ASGI app. Use server.asgi() instead: app.mount('/', server.asgi('/mcp'))."

_NO_APP_ALONE = (
    "A Server is not an ASGI app. Write `app = server.asgi()` and start that, such as `uvicorn {module}:app`."
)

_ALLOW_HOST = "On the command line, this is --allow-host NAME."

_METADATA_VERBS = ("GET", "HEAD")  # the HTTP server sends only the head of the answer to HEAD

_CACHEABLE = (b"cache-control", b"public, max-age=300")

_LARGE = 64 * 1024  # messages with at least this many bytes are served one after the other

_MOST_PASSES = 1024  # largest number of header combinations in the cache

_MOST_BYTES = 512  # largest total size of the headers in one of these combinations


_Serve: TypeAlias = Callable[[Scope, Headers, HttpReply], Coroutine[Any, Any, None]]


class HttpApp:
    """The ASGI app of one MCP endpoint, to run under any ASGI server or to mount in another app.

    Many parent apps send no lifespan events to a mounted app. Then the first request starts the server's lifespan.

    With `Route("/tools", server.asgi())`, the endpoint is at `/tools`, whatever `path` is. With `app.mount("/tools",
    server.asgi())`, it is at `/tools`, and also at `path` below `/tools`. With `app.mount("/", server.asgi())`, it is
    at `path`.
    """

    def __init__(
        self,
        runtime: Runtime,
        sessions: Sessions,
        auth: Protection | None = None,
        path: str = "/mcp",
        *,
        allowed_hosts: Sequence[str] | None = None,
        allowed_origins: Sequence[str] | None = None,
        keeps_sessions: bool = True,
        sse_path: str | None = None,
        trusted_proxies: Sequence[str] = (),
        cors: Sequence[str] = (),
        health: HealthAudience = "private",
    ) -> None:
        if not path.startswith("/"):
            raise UsageError(f"path={path!r} is not possible: a path begins with a slash, like '/mcp'.")
        self.runtime = runtime
        self._sessions = sessions
        self._turns = LargeMessageQueue(runtime.limits)
        self._bodies = BodyMemory(runtime.limits)
        self._most_at_once = min(runtime.limits.body_bytes, _LARGE - 1)  # size of the largest body that is never queued
        self.path = path
        self._paths = frozenset({path, path.rstrip("/"), path.rstrip("/") + "/"})
        public = None if auth is None else auth.host
        self._policy = HostPolicy(allowed_hosts, allowed_origins, public, cors=cors)
        self._cors = Cors(self._policy) if cors else None
        self._proxies = TrustedProxies(trusted_proxies, shared_limits(runtime.limits), "--trust-proxy")
        self._gate = None if auth is None else BearerAuth(auth, runtime)
        self._is_plain = not trusted_proxies and self._gate is None  # whether the sender is not checked
        self._session: SessionExchange | None = None
        self._stateless: StatelessExchange | None = None
        self._verbs: Sequence[str] = ("POST",)
        for era in runtime.eras:
            if era.remembers:
                self._session = SessionExchange(runtime, sessions, keeps_sessions=keeps_sessions)
                self._verbs = self._session.verbs
            else:
                self._stateless = StatelessExchange(runtime, era)
        self._sse = None if sse_path is None else SseExchange(runtime, sessions, self._session, sse_path, self._paths)
        self._health = Health(runtime, health)
        self._peer_limits = runtime.peer_limits
        self.follows_host = True  # whether to handle signals of the process; False under Weft's own runner
        # Cache of header combinations that passed the checks, each with the response formats that it accepts. Clients
        # send the same headers again and again.
        self._passes: dict[tuple[bytes | None, ...], Accepts] = {}

    # The parameters have the type `Any`, because Starlette, asgiref and uvicorn have different types for them, and the
    # app must work with all three.
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one ASGI connection: an HTTP request or the lifespan. Refuse a WebSocket."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        runtime = self.runtime
        reply = HttpReply(send if self._cors is None else self._cors.share(scope, send), runtime.limits)
        reply.receive = receive
        try:
            headers = read(
                scope["headers"], max_fields=runtime.limits.header_fields, max_bytes=runtime.limits.header_bytes
            )
            if scope["method"] in _METADATA_VERBS and await self._health.answer(
                scope, headers, _inner_path(scope), reply
            ):
                return
            if self._is_plain and scope["method"] != "OPTIONS":
                reply.accepts = self._guard(scope, headers)
            elif await self._admit(scope, headers, reply):
                return
            if runtime.in_flight >= runtime.limits.in_flight and runtime.is_full():  # before a body takes up memory
                raise busy(runtime.limits.in_flight)
            serve: _Serve = self._serve_post if scope["method"] == "POST" else self._serve_verb
            if self._sse is not None and _inner_path(scope) in self._sse.verbs:
                serve = self._serve_sse
            await serve(scope, headers, reply)
        except (Refusal, HeaderFault, Busy, BackendUnavailable) as fault:
            refusal = fault if isinstance(fault, Refusal) else _refusal_for(fault)
            refused_http(scope, refusal.status, str(refusal))
            await reply.refuse(refusal)
        except ProtocolError as error:
            refused_http(scope, 400, error.message)
            await reply.answer(400, encode_error(error.request_id, error.code, error.message, error.data))
        except Exception as error:  # noqa: BLE001 - such as a fault in a Backend; the next request is served
            await self._answer_failure(error, reply)

    async def _answer_preflight(self, scope: Scope, headers: Headers, send: Send) -> None:
        """Answer a CORS preflight request. Raise `Refusal` if its host or origin is not allowed.

        Tokens are not checked, because browsers send a preflight without a token.
        """
        is_metadata = self._gate is not None and self._gate.is_metadata(_inner_path(scope))
        verbs = _METADATA_VERBS if is_metadata else self._verbs_at(scope)
        host, origin = headers.known.get(b"host"), headers.known.get(b"origin")
        if not self._policy.host_ok(host):
            raise Refusal(421, f"{refused('host', host)} {_ALLOW_HOST}")
        if self._cors is None or not self._policy.shares_with(origin):
            raise Refusal(403, preflight_refusal(origin))
        await self._cors.answer_preflight(headers, verbs, send)

    async def _admit(self, scope: Scope, headers: Headers, reply: HttpReply) -> bool:
        """Check a request and its sender. Return True if the request is already answered.

        Two kinds of requests are answered here: CORS preflights, and requests for the protected resource metadata. Also
        answered is a request whose sender cannot be checked, because the server cannot start.
        """
        if scope["method"] == "OPTIONS" and is_preflight(headers):
            await self._answer_preflight(scope, headers, reply.send)
            return True
        self._proxies.resolve(scope, headers)
        gate = self._gate
        if gate is None:
            reply.accepts = self._guard(scope, headers)
            return False
        accepts = self._known_pass(scope, headers)
        if accepts is not None and gate.accept_known(scope, headers):  # the fast path
            reply.accepts = accepts
            return False
        if accepts is None and gate.is_metadata(_inner_path(scope)):
            self._check_source(headers)
            _check_verb(scope, _METADATA_VERBS)
            reply.extra = [_CACHEABLE]
            await reply.answer(200, gate.metadata)
            return True
        verbs = self._check_place(scope, headers) if accepts is None else ()
        reply.metadata_url = gate.metadata_url(scope)
        try:
            await gate.accept(scope, headers, reply.metadata_url)
        except BackendUnavailable:
            if self.runtime.lifespan.started:
                raise
            # The backend is closed since the server has stopped, and only a start opens it again.
            if not await self._start(reply):
                return True
            await gate.accept(scope, headers, reply.metadata_url)
        reply.accepts = self._check_form(scope, headers, verbs) if accepts is None else accepts
        return False

    async def _serve_post(self, scope: Scope, headers: Headers, reply: HttpReply) -> None:
        """Serve a POST request. Its body is one message, or an array of messages."""
        runtime = self.runtime
        body = self._take_body(scope, headers, reply.receive)
        if not isinstance(body, bytes):
            body = await body
        runtime.in_flight += 1
        try:
            if body[:1] != b"{" and body.lstrip()[:1] == b"[" and choose(runtime.eras, Frame(), headers)[0].remembers:
                # Only the session era has arrays of messages.
                if runtime.lifespan.started or await self._start(reply):
                    assert self._session is not None
                    await self._session.serve_batch(body, headers, read_caller(scope), reply)
                return
            frame = reply.frame = decode(body, runtime.limits)
            if runtime.lifespan.started or await self._start(reply):
                era, _ = choose(runtime.eras, frame, headers)
                exchange = self._session if era.remembers else self._stateless
                assert exchange is not None
                if self._peer_limits is None or era.remembers:  # a session counts its requests itself
                    await exchange.serve(frame, headers, scope, reply)
                    return
                async with self._peer_limits.hold(read_caller(scope).peer, [frame]):
                    await exchange.serve(frame, headers, scope, reply)
        finally:
            runtime.in_flight -= 1

    async def _answer_failure(self, error: Exception, reply: HttpReply) -> None:
        """Log an unexpected error, and answer with HTTP status 500.

        A UsageError can only come from `read_caller`. It means that the app that verifies the callers has failed, and
        the log says so.
        """
        what = "The app that verifies the callers" if isinstance(error, UsageError) else "Serving an HTTP request"
        text = report(what, error, debug=self.runtime.debug)
        await reply.answer(500, encode_error(reply.request_id, InternalError.code, text))

    async def _serve_verb(self, scope: Scope, headers: Headers, reply: HttpReply) -> None:
        """Serve a GET request, which opens a stream of a session, or a DELETE request, which ends a session."""
        assert self._session is not None  # else the request was refused
        if not self.runtime.lifespan.started and not await self._start(reply):
            return
        caller = read_caller(scope)
        if scope["method"] == "GET":
            await self._session.listen(headers, caller, reply)
        else:
            await self._session.end(headers, caller, reply)

    async def _serve_sse(self, scope: Scope, headers: Headers, reply: HttpReply) -> None:
        """Serve a request at one of the two paths of HTTP+SSE, the transport of the oldest revision."""
        runtime, sse = self.runtime, self._sse
        assert sse is not None
        if not runtime.lifespan.started and not await self._start(reply):
            return
        if scope["method"] == "GET":
            await sse.open(scope, reply)
            return
        session = await sse.find(scope)
        body = self._take_body(scope, headers, reply.receive)
        if not isinstance(body, bytes):
            body = await body
        runtime.in_flight += 1
        try:
            await sse.serve(session, body, headers, scope, reply)
        finally:
            runtime.in_flight -= 1

    def close_streams(self) -> None:
        """Close all long-lived streams, because the process is about to stop. Streams that open later close at once.

        Many ASGI servers wait for open responses before they stop the app. They would wait for these streams forever.
        This method may be called from a signal handler and from any thread.
        """
        self.runtime.close_streams()

    async def _start(self, reply: HttpReply) -> bool:
        """Start the lifespan, if it is not started, and return True.

        If the lifespan fails to start, answer the request with an error, and return False. Raises BackendUnavailable.
        """
        try:
            await self.runtime.lifespan.start()
        except BackendUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the next request tries again
            text = self.runtime.lifespan.report(error)
            await reply.answer(500, encode_error(reply.request_id, InternalError.code, text))
            return False
        return True

    def _guard(self, scope: Scope, headers: Headers) -> Accepts:
        """Check the path and the headers of a request, and return the response formats that the client accepts."""
        accepts = self._known_pass(scope, headers)
        return self._check_form(scope, headers, self._check_place(scope, headers)) if accepts is None else accepts

    def _known_pass(self, scope: Scope, headers: Headers) -> Accepts | None:
        """Return the accepted response formats, if a request with the same headers has passed the checks before.

        Otherwise return None: then all checks must be made. Also return None if the request is not a POST to the path
        of the endpoint, if it has a `Content-Encoding`, or if the app is mounted.
        """
        is_usual = scope["method"] == "POST" and scope["path"] == self.path and not scope.get("root_path")
        return self._passes.get(_facts(headers)) if is_usual and b"content-encoding" not in headers.known else None

    def _check_place(self, scope: Scope, headers: Headers) -> Sequence[str]:
        """Check the path, host and origin of a request, and return the HTTP methods that are served at the path."""
        if self._gate is None and TOKEN_INFO not in scope:  # with tokens, clients are counted by their principal
            self._proxies.warn(scope, headers)
        if self.follows_host:  # called here, because the first request always gets here, and few others do
            self.follows_host = False
            follow_host_signals(self.runtime)
        verbs = self._verbs_at(scope)
        self._check_source(headers)
        return verbs

    def _shown_path(self, scope: Scope) -> str:
        """Return the full path of the endpoint, for an error message.

        This is the path of the mount, followed by the path of the endpoint. If the path of the mount already ends with
        the path of the endpoint, return the path of the mount with a slash at the end.
        """
        root: str = scope.get("root_path", "").rstrip("/")
        path = self.path.rstrip("/")
        return f"{root}/" if root.endswith(path) and root else f"{root}{self.path}"

    def _check_source(self, headers: Headers) -> None:
        host, origin = headers.known.get(b"host"), headers.known.get(b"origin")
        if not self._policy.host_ok(host):
            raise Refusal(421, f"{refused('host', host)} {_ALLOW_HOST}")
        if not self._policy.origin_ok(origin):
            raise Refusal(403, refused("origin", origin))

    def _check_form(self, scope: Scope, headers: Headers, verbs: Sequence[str]) -> Accepts:
        """Check the HTTP method and the content headers. Return the response formats that the client accepts."""
        _check_verb(scope, verbs)
        facts = _facts(headers)
        _, _, content_type, accept = facts
        is_post = scope["method"] == "POST"
        if is_post:
            _check_content_type(content_type)
            if headers.known.get(b"content-encoding", b"identity").strip().lower() != b"identity":
                raise Refusal(415, "The body must not be compressed: leave Content-Encoding out.")
        accepts = read_accept(accept)
        if scope["method"] == "GET" and Accepts.STREAM not in accepts:
            raise Refusal(406, "GET returns an event stream only: send Accept: text/event-stream.")
        if is_post and len(self._passes) < _MOST_PASSES and sum(len(fact or b"") for fact in facts) < _MOST_BYTES:
            self._passes[facts] = accepts
        return accepts

    def _verbs_at(self, scope: Scope) -> Sequence[str]:
        """Return the HTTP methods that are served at the path of a request. Raise `Refusal` if there are none."""
        inner = _inner_path(scope)
        if self._sse is not None and inner in self._sse.verbs:
            return self._sse.verbs[inner]
        if not self._is_endpoint(scope, inner):
            raise Refusal(404, f"There is nothing at this path: the MCP endpoint is {self._shown_path(scope)}.")
        return self._verbs

    def _is_endpoint(self, scope: Scope, inner: str) -> bool:
        """Return whether a request is for the MCP endpoint. `inner` is its path below the mount.

        Return True if `inner` is the path of the endpoint or the root of a mount, or if Starlette has found the app by
        a `Route`.
        """
        # A `Mount` of Starlette sets "endpoint" too, for every path below the mount, so there the path decides. A
        # `Mount` at "/" does not change the root path, so it is recognised by another key that it sets in the scope.
        routed = scope.get("endpoint") is self and "app_root_path" not in scope
        return inner in self._paths or (bool(scope.get("root_path")) and inner in ("", "/")) or routed

    def _take_body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes | Coroutine[Any, Any, bytes]:
        """Return the request body if it is small and has arrived. Otherwise return a coroutine that reads the body.

        Raises `Refusal` if the `Content-Length` is above the limit. The coroutine raises `Refusal` if the body is too
        large or arrives too slowly.
        """
        limits = self.runtime.limits
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
                if len(body) <= self._most_at_once:
                    return body
            return self._await_body(scope, receive, message)
        return self._await_body(scope, receive, PendingCoroutine(receiving, awaited))

    async def _await_body(self, scope: Scope, receive: Receive, first: Message | PendingCoroutine[Message]) -> bytes:
        """Read and return a body that is large or has not arrived. If it is large, wait until it may be served.

        While its body is read, the request is not counted as in flight. Otherwise slow peers could use up the limit of
        requests in flight. Instead, the bytes of large bodies are counted.
        """
        runtime, peer = self.runtime, read_caller(scope).peer
        held = self._bodies.hold(peer)
        try:
            body = await self._read_rest(receive, first, held)
            if len(body) >= _LARGE:
                await self._turns.wait(peer, len(body))
        finally:
            held.release()
        if runtime.in_flight >= runtime.limits.in_flight and runtime.is_full():
            raise busy(runtime.limits.in_flight)
        return body

    async def _read_rest(self, receive: Receive, first: Message | PendingCoroutine[Message], held: HeldBody) -> bytes:
        """Read and return the body that begins with the ASGI message `first`.

        The bytes of a large body are counted in `held`. Raises `Refusal` if the body is too large, too slow or
        incomplete.
        """
        limits = self.runtime.limits
        deadline = Deadline(limits.body_seconds)
        deadline.start()
        try:
            message = await first if isinstance(first, PendingCoroutine) else first
            body = bytearray(message.get("body", b""))  # a bytearray, because bytes would be copied with each message
            while True:
                if len(body) >= _LARGE:
                    held.grow(len(body))
                if not message.get("more_body", False) or len(body) > limits.body_bytes:
                    break
                message = await receive()
                body.extend(message.get("body", b""))
        except asyncio.CancelledError:
            if deadline.absorb():
                raise Refusal(408, f"The body did not arrive within {limits.body_seconds:g} s.") from None
            raise
        finally:
            deadline.stop()
        if message["type"] == "http.disconnect":  # incomplete, even if the received part looks like a message
            raise Refusal(400, "The body ended before it was complete.")
        if len(body) > limits.body_bytes:
            raise Refusal(413, f"A request body has at most {limits.body_bytes} bytes.")
        return bytes(body)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection that is not HTTP: refuse a WebSocket; start and stop the server on lifespan events."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1002})
        elif scope["type"] == "lifespan":
            for event, work in (("startup", self.runtime.lifespan.start), ("shutdown", self.runtime.stop)):
                await receive()
                try:
                    await work()
                except Exception as error:  # noqa: BLE001 - reported to the ASGI server, which stops
                    await send({"type": f"lifespan.{event}.failed", "message": f"{type(error).__name__}: {error}"})
                    return
                await send({"type": f"lifespan.{event}.complete"})


async def refuse_in_place_of_app(server: object, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error, because the program uses a `Server` as an ASGI app instead of `server.asgi()`."""
    is_mounted = "app" in scope  # set by Starlette
    text = _NO_APP if is_mounted else _NO_APP_ALONE.format(module=_module_of(server))
    if scope["type"] == "lifespan":  # the ASGI server then does not start
        await receive()
        await send({"type": "lifespan.startup.failed", "message": text})
        return
    _seldom.error("%s", text, about=text)
    if scope["type"] == "http":
        await HttpReply(send, DEFAULT_LIMITS).refuse(Refusal(500, text, code=InternalError.code))


def _module_of(server: object) -> str:
    """Return the name of the module that has `server` as a global variable; "module" if there is no such module."""
    for name, module in list(sys.modules.items()):
        if any(value is server for value in list(vars(module).values())):
            return name
    return "module"


def _refusal_for(fault: HeaderFault | Busy | BackendUnavailable) -> Refusal:
    """Return the HTTP refusal for an error that is not one itself."""
    if isinstance(fault, BackendUnavailable):
        _seldom.warning("A request was refused, because the backend is not available: %s", fault)
        text = "The server's backend is not available. Try again."
        return Refusal(503, text, code=InternalError.code, headers=[(b"retry-after", b"1")])
    retry = [(b"retry-after", b"%d" % fault.retry_after)] if isinstance(fault, TooMany) else []
    return Refusal(fault.status, str(fault), code=fault.code, headers=retry)


def _check_content_type(value: bytes | None) -> None:
    essence, *parameters = (part.strip().lower() for part in (value or b"").split(b";"))
    if essence != b"application/json":
        raise Refusal(415, "The body must be JSON: send Content-Type: application/json.")
    for parameter in parameters:
        name, _, charset = parameter.partition(b"=")
        if name == b"charset" and charset.strip(b'"') not in (b"utf-8", b"utf8"):
            raise Refusal(415, "The body must be in UTF-8.")


def _check_verb(scope: Scope, verbs: Sequence[str]) -> None:
    if scope["method"] not in verbs:
        allowed = ", ".join(verbs)
        raise Refusal(405, f"Served here: {allowed}.", headers=[(b"allow", allowed.encode())])


def _inner_path(scope: Scope) -> str:
    """Return the path of a request without the path at which the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _facts(headers: Headers) -> tuple[bytes | None, ...]:
    """Return the values of four headers that are checked: host, origin, content type, accept."""
    known = headers.known
    return known.get(b"host"), known.get(b"origin"), known.get(b"content-type"), known.get(b"accept")


_MOST_KEPT = 64 * 1024  # largest number of bytes of a request body that are logged


def app_class() -> type[HttpApp]:
    """Return `HttpApp`; or, if the log level is `debug`, its subclass that logs every message."""
    return _LoggedApp if is_wire_logged() else HttpApp


class _LoggedApp(HttpApp):
    """An HTTP app that logs every request and response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            exchange = _Exchange(scope, receive, send)
            receive, send = exchange.receive, exchange.send
        await super().__call__(scope, receive, send)


class _Exchange:
    """Logs one HTTP request, its response and each event of a stream. Wraps the ASGI functions `receive` and `send`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = "?" if scope.get("query_string") else ""
        self._request = f"{scope['method']} {masked_url(scope['path'] + query)} [{masked_headers(scope['headers'])}]"
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
                self._log_request()
        return message

    async def send(self, message: Message) -> None:
        if not self._is_read:  # refused before the body was read, or without a body
            self._log_request()
        if message["type"] == "http.response.start":
            self._response = f"{message['status']} [{masked_headers(message.get('headers', ()))}]"
        elif body := message.get("body", b""):
            log.debug("> %s %s", self._response, _masked_event(body))
            self._response = "stream"
        elif self._response and not message.get("more_body", False):
            log.debug("> %s", self._response)
        await self._send(message)

    def _log_request(self) -> None:
        self._is_read = True
        log.debug("< %s %s", self._request, masked_body(bytes(self._body), from_client=True) if self._body else "")


def _masked_event(body: bytes) -> str:
    """Return a response body with its secrets masked. If the body has SSE events, return only their data."""
    lines = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith((b"data:", b":"))]
    return " ".join(masked_body(line) for line in lines) if lines else masked_body(body)
