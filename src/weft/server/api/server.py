"""Register features and options of a server: `Server`. It holds nothing of any client."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from weft.backends import Backend
from weft.eras.base import EraName
from weft.errors import UsageError
from weft.foreign import attribute_of
from weft.limits import DEFAULT_LIMITS, Limits
from weft.server.api.context import Middleware
from weft.server.auth.protected_resource import ResourceServer
from weft.server.auth.tokens import Verifier
from weft.server.calls.changes import Change
from weft.server.diagnostics import caller, check_limits, check_options, decorate
from weft.server.features.registry import DEFAULT_PAGE_SIZE, CacheHint, check_info
from weft.server.features.tools import ToolOptions
from weft.server.run.engine import CacheList, Engine, EngineOptions, RootsChanged, Servable
from weft.server.runtime.dispatch import Extension, Translation, check_exceptions, check_middleware
from weft.server.runtime.runtime import LifespanFactory
from weft.types.base import Annotations, Icon, Implementation
from weft.types.features import ToolAnnotations
from weft.types.lifecycle import ServerCapabilities

if TYPE_CHECKING:
    from weft.server.http.app import HttpApp
    from weft.server.run.listening import HttpKeywords
    from weft.server.stdio.pipe import MemoryPipe

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Exception)
PROMPT_OPTIONS = ("name", "title", "description", "icons", "meta", "needs", "hide", "scopes", "replace")
RESOURCE_OPTIONS = (*PROMPT_OPTIONS, "mime_type", "size", "annotations", "cache_hint")


class Server(Servable):
    """An MCP server: what it is called and what it offers.

    >>> server = Server("adder", version="1.0")
    >>> @server.tool
    ... def add(a: int, b: int) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b

    `server.run()` serves it on stdio, `server.run("http")` over HTTP, `server.asgi()` is an ASGI app to mount.
    """

    def __init__(
        self,
        name: str,
        version: str = "0.0.0",
        *,
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        website_url: str | None = None,
        icons: list[Icon] | None = None,
        lifespan: LifespanFactory | None = None,
        middleware: Sequence[Middleware] = (),
        extensions: Sequence[Extension] = (),
        cache_hint: CacheHint | None = None,
        list_cache_hints: Mapping[CacheList, CacheHint] | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        schema_refs: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        state_keys: Sequence[str | bytes] | None = None,
        eras: Sequence[EraName] = ("stateless", "session"),
        require_initialized: bool = False,
        backend: Backend | None = None,
        auth: ResourceServer | Verifier | None = None,
        debug: bool | None = None,
    ) -> None:
        """Make a server without features.

        Args:
            name: What programs call it.
            version: Its version.
            title: What people call it.
            description: What it is.
            instructions: How a model should use it.
            website_url: Where to read more.
            icons: Pictures a client may show.
            lifespan: `lifespan(server)` is an async context manager, entered once per process; handlers find what it
                yields in `ctx.lifespan`.
            middleware: Called around every call, the first outermost.
            extensions: Additions to the protocol.
            cache_hint: How long clients may keep what they read or list; default: not at all. Lists may be shared
                between users and what is read may not, unless its scope says otherwise.
            list_cache_hints: The same for single lists.
            page_size: How many entries a page of a list has.
            limits: The bounds it lives in.
            state_keys: Secrets that seal what a question carries from one round to the next; the first seals, all open.
                Workers that serve the same clients need the same. The environment variable WEFT_STATE_KEY, comma
                separated, is the default; without it a key is made that dies with the process.
            eras: Which clients are served: those that say everything with each request ("stateless"), those that open
                with a handshake ("session"), or both.
            require_initialized: Serve a session only from when its client has confirmed the handshake.
            backend: What workers share; a memory of this process's own if not said.
            auth: What protects it over HTTP. A `ResourceServer` says who issues tokens and who verifies them; a
                verifier alone, such as `StaticTokens({...})`, lets those in who have one. Default: everybody is served.
            debug: Tell clients what went wrong inside, and warn of more: of short calls that block, of side effects
                before a question. The environment variable WEFT_DEBUG=1 is the default.
        """
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UsageError("A server needs a name: Server('my-server').")
        check_limits(limits)
        for layer in middleware:
            check_middleware(layer)
        info = Implementation(name, version, title, description, website_url, icons)
        check_info(info)
        is_debug = os.environ.get("WEFT_DEBUG", "") not in ("", "0") if debug is None else debug
        options = EngineOptions(
            lifespan=lifespan,
            middleware=middleware,
            extensions=extensions,
            cache_hint=cache_hint,
            list_cache_hints=list_cache_hints,
            page_size=page_size,
            schema_refs=schema_refs,
            limits=limits,
            state_keys=state_keys,
            eras=eras,
            require_initialized=require_initialized,
            backend=backend,
            auth=auth,
            debug=is_debug,
        )
        self.engine = Engine(self, info, instructions, options)  # what serves; not part of the public API

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.engine.info.name

    @property
    def info(self) -> Implementation:
        """Name, version and what else the server says of itself."""
        return self.engine.info

    @property
    def limits(self) -> Limits:
        """The bounds of this server."""
        return self.engine.limits

    @property
    def backend(self) -> Backend:
        """What workers share."""
        return self.engine.backend

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declares now."""
        return self.engine.capabilities

    @property
    def debug(self) -> bool:
        """Whether clients are told what went wrong inside."""
        return self.engine.debug

    @debug.setter
    def debug(self, value: bool) -> None:
        self.engine.debug = value

    # Registering features. All of it can be done while serving; open listeners hear of it.

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        timeout: float | None = None,
        single_use: bool = False,
        needs: Sequence[str] = (),
        hide: bool = False,
        scopes: Sequence[str] = (),
        replace: bool = False,
    ) -> Callable[[F], F]: ...
    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool: `@server.tool`, or `@server.tool(title=...)`.

        The input schema comes from the signature, the output schema from the return annotation, the description from
        the docstring. Plain functions run in a thread.
        """
        return decorate(fn, lambda function: self.add_tool(function, **options), "tool")

    def add_tool(self, fn: Callable[..., Any], **options: Any) -> None:
        """Register a tool by a call. The options are those of `tool`."""
        check_options("A tool", options, ToolOptions.__struct_fields__)
        self.engine.tools.add(fn, ToolOptions(**options))

    def remove_tool(self, name: str) -> None:
        """Take a tool out."""
        self.engine.tools.remove(name)

    def resource(
        self,
        uri: str,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        cache_hint: CacheHint | None = None,
        needs: Sequence[str] = (),
        hide: bool = False,
        scopes: Sequence[str] = (),
        replace: bool = False,
    ) -> Callable[[F], F]:
        """Register a function that reads a resource, or all resources of an RFC 6570 template.

        `@server.resource("config://app")`, `@server.resource("user://{id}/profile")`. The variables of a template are
        parameters of the function.
        """
        options = {
            "name": name,
            "title": title,
            "description": description,
            "mime_type": mime_type,
            "size": size,
            "annotations": annotations,
            "icons": icons,
            "meta": meta,
            "cache_hint": cache_hint,
            "needs": needs,
            "hide": hide,
            "scopes": scopes,
            "replace": replace,
        }
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the decorator without arguments
            raise UsageError(f"@server.resource needs the URI ({caller()}). Write @server.resource('scheme://path').")
        return lambda fn: decorate(fn, lambda function: self.add_resource(uri, function, **options), "resource")

    def add_resource(self, uri: str, content: Callable[..., Any] | str | bytes, **options: Any) -> None:
        """Register a resource by a call: a function that reads it, or what is in it."""
        check_options("A resource", options, RESOURCE_OPTIONS)
        self.engine.resources.add(uri, content, **options)

    def remove_resource(self, uri: str) -> None:
        """Take a resource or a template out."""
        self.engine.resources.remove(uri)

    @overload
    def prompt(self, fn: F, /) -> F: ...
    @overload
    def prompt(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        needs: Sequence[str] = (),
        hide: bool = False,
        scopes: Sequence[str] = (),
        replace: bool = False,
    ) -> Callable[[F], F]: ...
    def prompt(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt: `@server.prompt`, or `@server.prompt(title=...)`."""
        return decorate(fn, lambda function: self.add_prompt(function, **options), "prompt")

    def add_prompt(self, fn: Callable[..., Any], **options: Any) -> None:
        """Register a prompt by a call. The options are those of `prompt`."""
        check_options("A prompt", options, PROMPT_OPTIONS)
        self.engine.prompts.add(fn, **options)

    def remove_prompt(self, name: str) -> None:
        """Take a prompt out."""
        self.engine.prompts.remove(name)

    def completion(self, *, prompt: str | None = None, template: str | None = None, argument: str) -> Callable[[F], F]:
        """Register a function that suggests values for an argument of a prompt or of a resource template.

        `@server.completion(prompt="review", argument="language")`; the function gets what was typed so far.
        """

        def register(fn: F) -> F:
            self.engine.completions.add(fn, prompt=prompt, template=template, argument=argument)
            self.engine.forget_offer()
            return fn

        return register

    @overload
    def middleware(self, fn: Middleware, /) -> Middleware: ...
    @overload
    def middleware(self, /) -> Callable[[Middleware], Middleware]: ...
    def middleware(self, fn: Any = None, /) -> Any:
        """Register a function around every call: `async def timing(ctx, next): return await next()`."""

        return decorate(fn, self.engine.add_middleware, "middleware")

    @overload
    def on_error(self, kind: type[E], /) -> Callable[[F], F]: ...
    @overload
    def on_error(self, kind: type[E], fn: Translation[E], /) -> None: ...
    def on_error(self, kind: Any = None, fn: Any = None, /) -> Any:
        """Turn exceptions of this class, of whatever feature, into what the model or the client reads.

        `@server.on_error(SoldOut)`, or `server.on_error(SoldOut, fn)`. The function gets the exception, and the
        `Context` if it takes two parameters; async, or plain. It returns a text, a `ToolError`, a `ProtocolError` or a
        result. The most specific class wins.
        """
        check_exceptions(kind)

        return decorate(fn, partial(self.engine.add_translation, kind), "on_error(ExceptionType)")

    def on_roots_changed(self, fn: RootsChanged) -> RootsChanged:
        """Have a function called when a client with a session says that its roots changed: `async def f(connection)`.

        `await connection.list_roots()` asks for the new ones.
        """
        decorate(fn, self.engine.add_roots_callback, "on_roots_changed")
        return fn

    # Saying that something changed. From anywhere: also outside a call, also from a thread. Adding and removing
    # features says so by itself.

    def notify_resource_updated(self, uri: str, part_of: str | None = None) -> None:
        """A resource holds something else now. Those hear of it who subscribed to it, or to what it is `part_of`."""
        self.engine.changes.publish(Change("resource", uri, part_of))

    def notify_tools_changed(self) -> None:
        """The list of tools is not what it was."""
        self.engine.changes.publish(Change("tools"))

    def notify_resources_changed(self) -> None:
        """The list of resources is not what it was."""
        self.engine.changes.publish(Change("resources"))

    def notify_prompts_changed(self) -> None:
        """The list of prompts is not what it was."""
        self.engine.changes.publish(Change("prompts"))

    # Serving.

    def asgi(
        self,
        path: str = "/mcp",
        *,
        allowed_hosts: Sequence[str] | None = None,
        allowed_origins: Sequence[str] | None = None,
        sessions: bool = True,
        sse_path: str | None = None,
        trusted_proxies: Sequence[str] = (),
        cors: Sequence[str] = (),
    ) -> HttpApp:
        """An ASGI app, to run under any ASGI server or to mount in another app.

        Only requests that name this machine's loopback as their host are served, or the host of the resource where
        `auth` protects one, unless `allowed_hosts` says otherwise.
        `sessions=False` serves clients that open with a handshake without remembering them: they can be asked nothing
        and told nothing on its own, but any worker serves them. `sse_path="/sse"` also serves clients of the oldest
        revision's transport, which was replaced by this endpoint. Of requests that come from one of `trusted_proxies`
        (addresses or networks), the sender is the one that the proxy names. Web pages of the origins in `cors` may call
        and read the answers.
        """
        return self.engine.app(
            path,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            sessions=sessions,
            sse_path=sse_path,
            trusted_proxies=trusted_proxies,
            cors=cors,
        )

    def pipe(self, deliver: Callable[[bytes], None]) -> MemoryPipe:
        """Serve a client in this process: `deliver` gets the messages to it, `pipe.send` takes those from it."""
        return self.engine.pipe(deliver)

    async def serve_pipe(self, source: int, sink: int) -> None:
        """Serve one client on two file descriptors, a JSON message per line, until `source` ends.

        A connected socket is both at once: `await server.serve_pipe(sock.fileno(), sock.fileno())`.
        """
        from weft.server.stdio.stdio import serve_stdio

        await serve_stdio(self.engine, source, sink)

    def close_streams(self) -> None:
        """End the streams that never end by themselves, because the process is about to stop; new ones end at once."""
        self.engine.close_streams()

    async def start(self) -> None:
        """Enter the lifespan now, and raise what it raises. Without this, the first request enters it."""
        await self.engine.lifespan.start()

    async def stop(self) -> None:
        """Release everything, at the end of the process: sessions, what runs beside calls, threads, the lifespan."""
        await self.engine.stop()

    @overload
    def run(self, transport: Literal["stdio"] = "stdio", *, log_level: str | None = ...) -> None: ...
    @overload
    def run(self, transport: Literal["http"], **options: Unpack[HttpKeywords]) -> None: ...
    def run(self, transport: Literal["stdio", "http"] = "stdio", **options: Any) -> None:
        """Serve until stopped: on stdio, or over HTTP with `host`, `port`, `path`, `workers`, `sessions`, ..."""
        from weft.server.run.running import run

        run(self.engine, transport, **options)

    @overload
    async def serve(self, transport: Literal["stdio"] = "stdio", *, log_level: str | None = ...) -> None: ...
    @overload
    async def serve(self, transport: Literal["http"], **options: Unpack[HttpKeywords]) -> None: ...
    async def serve(self, transport: Literal["stdio", "http"] = "stdio", **options: Any) -> None:
        """The same within a loop that runs already, until cancelled. It takes no signals, and has one worker."""
        from weft.server.run.running import serve

        await serve(self.engine, transport, **options)

    if not TYPE_CHECKING:  # a type checker knows that a Server is no ASGI app; whoever uses none is told

        def __getattr__(self, name: str) -> Any:
            """Say what is called otherwise elsewhere."""
            return attribute_of(self, name)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            """Refuse to be mounted in place of what `asgi` returns."""
            from weft.server.http.app import refuse_in_place_of_app

            await refuse_in_place_of_app(self, scope, receive, send)
