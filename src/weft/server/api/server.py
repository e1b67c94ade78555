"""The class `Server`: the features and options of one server. It stores nothing about clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

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
from weft.server.features.registry import DEFAULT_PAGE_SIZE, CacheHint, FeatureOptions, check_info
from weft.server.features.resources import ResourceOptions
from weft.server.features.tools import Task, ToolOptions
from weft.server.run.engine import CacheList, Engine, EngineOptions, RootsChanged, Servable
from weft.server.runtime.dispatch import Extension, Translation, check_exceptions, check_middleware
from weft.server.runtime.runtime import LifespanFactory
from weft.types.base import Annotations, Icon, Implementation
from weft.types.features import ToolAnnotations
from weft.types.lifecycle import ServerCapabilities

if TYPE_CHECKING:
    from weft.server.http.app import HttpApp
    from weft.server.http.health import HealthAudience
    from weft.server.run.listening import HttpKeywords
    from weft.server.stdio.pipe import MemoryPipe

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Exception)
Options = TypeVar("Options", bound=FeatureOptions)


class PromptKeywords(TypedDict, total=False):
    """The keyword arguments of `server.prompt(...)`, for type checkers: the fields of `FeatureOptions`."""

    name: str | None
    title: str | None
    description: str | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    needs: Sequence[str]
    hide: bool
    scopes: Sequence[str]
    replace: bool


class ResourceKeywords(PromptKeywords, total=False):
    """The keyword arguments of `server.resource(...)`, for type checkers: the fields of `ResourceOptions`."""

    mime_type: str | None
    size: int | None
    annotations: Annotations | None
    cache_hint: CacheHint | None


class ToolKeywords(PromptKeywords, total=False):
    """The keyword arguments of `server.tool(...)`, for type checkers: the fields of `ToolOptions`."""

    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    annotations: ToolAnnotations | None
    timeout: float | None
    single_use: bool
    task: Task | Literal["optional", "required"] | None


def _read_options(what: str, kind: type[Options], options: dict[str, Any]) -> Options:
    """Return `options` as an object of the class `kind`. Raise UsageError if an option does not exist."""
    check_options(what, options, kind.__struct_fields__)
    return kind(**options)


class Server(Servable):
    """An MCP server: its name, its features and its options.

    >>> server = Server("adder", version="1.0")
    >>> @server.tool
    ... def add(a: int, b: int) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b

    `server.run()` serves on stdio, `server.run("http")` over HTTP. `server.asgi()` returns an ASGI app to mount.
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
        backend: Backend | str | None = None,
        auth: ResourceServer | Verifier | None = None,
        debug: bool | None = None,
    ) -> None:
        """Create a server without features.

        Args:
            name: The name of the server, for programs.
            version: The version of the server.
            title: The name of the server, for people.
            description: A description of the server, for people.
            instructions: A text for the model: how to use the server.
            website_url: The URL of a page about the server.
            icons: Icons that a client may show.
            lifespan: A function that takes the server and returns an async context manager. The context manager is
                entered once per process. Handlers find the value that it yields in `ctx.lifespan`.
            middleware: Functions that wrap every call. The first function is the outermost.
            extensions: Extensions of the protocol that the server supports.
            cache_hint: How long clients may cache lists and contents of resources. Default: not at all. If the hint
                has no scope, a cache may share lists between users, but not contents of resources.
            list_cache_hints: Cache hints for individual lists, by the name of the list. Default: `cache_hint`.
            page_size: The number of entries on one page of a list.
            schema_refs: Keep `$defs` and `$ref` in the schemas of tools. Default: models are written inline, because
                many clients do not follow a `$ref`.
            limits: The limits of the server, such as sizes and timeouts.
            state_keys: Keys that encrypt `requestState`, the state of a call between rounds. The first key encrypts,
                all keys decrypt. Workers that serve the same clients need the same keys. Default: the environment
                variable WEFT_STATE_KEY (comma-separated), or else a random key that is lost when the process ends.
            eras: The families of protocol versions to serve: "stateless" (2026-07-28), "session" (older versions, which
                begin with a handshake), or both.
            require_initialized: Reject requests in a session until the client has confirmed the handshake.
            backend: What workers share, as a URL such as "redis://localhost:6379" or as an object. Default: the URL in
                the environment variable WEFT_BACKEND, or else the memory of this process. The workers of `weft run
                --workers N` share the memory of their parent process by default.
            auth: How HTTP requests are authorized. A `ResourceServer` names the issuers of tokens and the verifier. A
                verifier alone, such as `StaticTokens({...})`, is enough for clients that already have a token. Default:
                every request is accepted.
            debug: Send the text of internal errors to clients, and log more warnings: about short calls that block the
                event loop, and about side effects before a question. Default: True if the environment variable
                WEFT_DEBUG is set and is not 0.
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
        self.engine = Engine(self, info, instructions, options)  # serves the requests; not part of the public API

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.engine.info.name

    @property
    def info(self) -> Implementation:
        """The name, version, title and other facts that clients get about the server."""
        return self.engine.info

    @property
    def limits(self) -> Limits:
        """The limits of this server."""
        return self.engine.limits

    @property
    def backend(self) -> Backend:
        """What workers share: a store, a log, sets and a bus."""
        return self.engine.whole_backend

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declares now."""
        return self.engine.capabilities

    @property
    def debug(self) -> bool:
        """Whether debug mode is on: clients get the text of internal errors, and more warnings are logged."""
        return self.engine.debug

    @debug.setter
    def debug(self, value: bool) -> None:
        self.engine.debug = value

    # Registering features. This also works while the server runs: subscribed clients are notified.

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolKeywords]) -> Callable[[F], F]: ...
    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool: `@server.tool`, or `@server.tool(title=...)`.

        The input schema comes from the signature, the output schema from the return annotation, the description from
        the docstring. Sync functions run in a thread.

        `needs` names the capabilities that a client must declare to call the tool. With `hide`, clients without these
        capabilities do not see the tool in the list. `scopes` are the scopes that a token must have to call and to list
        the tool. With `single_use`, a `requestState` of the tool is accepted only once. With `replace`, the tool
        replaces a tool of the same name.

        With `task="optional"`, `task="required"` or `task=Task(...)`, calls become tasks, which go on after the call is
        answered: the client asks for their state, and gets the result later.
        """
        return decorate(fn, lambda function: self.add_tool(function, **options), "tool")

    def add_tool(self, fn: Callable[..., Any], **options: Any) -> None:
        """Register a function as a tool, without a decorator. The options are those of `tool`."""
        self.engine.tools.add(fn, _read_options("A tool", ToolOptions, options))

    def remove_tool(self, name: str) -> None:
        """Remove the tool with this name."""
        self.engine.tools.remove(name)

    def resource(self, uri: str, /, **options: Unpack[ResourceKeywords]) -> Callable[[F], F]:
        """Register a function that returns the content of a resource, or of all resources that match a URI template.

        Examples: `@server.resource("config://app")`, `@server.resource("user://{id}/profile")`. The variables of a
        template (RFC 6570) are parameters of the function.

        `needs` names the capabilities that a client must declare to read the resource. With `hide`, clients without
        these capabilities do not see the resource in the list. `scopes` are the scopes that a token must have to read
        and to list the resource. With `replace`, the resource replaces a resource or template of the same URI.
        """
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the decorator without arguments
            raise UsageError(f"@server.resource needs the URI ({caller()}). Write @server.resource('scheme://path').")
        return lambda fn: decorate(fn, lambda function: self.add_resource(uri, function, **options), "resource")

    def add_resource(self, uri: str, content: Callable[..., Any] | str | bytes, **options: Any) -> None:
        """Register a resource without a decorator.

        `content` is the fixed content of the resource, or a function that returns the content. The options are those of
        `resource`.
        """
        self.engine.resources.add(uri, content, _read_options("A resource", ResourceOptions, options))

    def remove_resource(self, uri: str) -> None:
        """Remove the resource or the resource template with this URI."""
        self.engine.resources.remove(uri)

    @overload
    def prompt(self, fn: F, /) -> F: ...
    @overload
    def prompt(self, /, **options: Unpack[PromptKeywords]) -> Callable[[F], F]: ...
    def prompt(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt: `@server.prompt`, or `@server.prompt(title=...)`.

        The options `needs`, `hide`, `scopes` and `replace` mean the same as for `tool`.
        """
        return decorate(fn, lambda function: self.add_prompt(function, **options), "prompt")

    def add_prompt(self, fn: Callable[..., Any], **options: Any) -> None:
        """Register a function as a prompt, without a decorator. The options are those of `prompt`."""
        self.engine.prompts.add(fn, _read_options("A prompt", FeatureOptions, options))

    def remove_prompt(self, name: str) -> None:
        """Remove the prompt with this name."""
        self.engine.prompts.remove(name)

    def completion(self, *, prompt: str | None = None, template: str | None = None, argument: str) -> Callable[[F], F]:
        """Register a function that suggests values for an argument of a prompt or of a resource template.

        Example: `@server.completion(prompt="review", argument="language")`. The function gets the text that the user
        has typed so far.
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
        """Register a middleware function to wrap every call: `async def timing(ctx, next): return await next()`."""

        return decorate(fn, self.engine.add_middleware, "middleware")

    @overload
    def on_error(self, kind: type[E], /) -> Callable[[F], F]: ...
    @overload
    def on_error(self, kind: type[E], fn: Translation[E], /) -> None: ...
    def on_error(self, kind: Any = None, fn: Any = None, /) -> Any:
        """Register a function that converts exceptions of the class `kind` into a response.

        Write `@server.on_error(SoldOut)`, or `server.on_error(SoldOut, fn)`. The function is called for exceptions of
        all tools, resources and prompts. It may be sync or async. It gets the exception, and also the `Context` if it
        has two parameters. It returns a text, a `ToolError`, a `ProtocolError` or a result. If several registered
        classes match an exception, the function for the most specific class is called.
        """
        check_exceptions(kind)

        return decorate(fn, partial(self.engine.add_translation, kind), "on_error(ExceptionType)")

    def on_roots_changed(self, fn: RootsChanged) -> RootsChanged:
        """Register a function that is called when a client in a session reports that its roots have changed.

        The function must be async. It gets the connection of the client: `await connection.list_roots()` returns the
        new roots.
        """
        decorate(fn, self.engine.add_roots_callback, "on_roots_changed")
        return fn

    def on_shutdown(self, fn: F) -> F:
        """Register a function that is called when the server stops: `@server.on_shutdown`.

        It may be sync or async, and takes no arguments. It is called while everything still works: before running tasks
        are handed over to other workers, before open calls are cancelled, and before the lifespan is left.
        """
        decorate(fn, self.engine.add_shutdown_callback, "on_shutdown")
        return fn

    # Notifying clients of changes. These methods may be called from any thread, inside and outside of calls. Adding and
    # removing features notifies clients automatically.

    def notify_resource_updated(self, uri: str, part_of: str | None = None) -> None:
        """Notify the subscribers of the resource `uri` that the resource has changed.

        If the resource is a part of a larger resource, `part_of` is the URI of the larger resource, whose subscribers
        are notified too.
        """
        self.engine.changes.publish(Change("resource", uri, part_of))

    def notify_tools_changed(self) -> None:
        """Notify clients that the list of tools has changed."""
        self.engine.changes.publish(Change("tools"))

    def notify_resources_changed(self) -> None:
        """Notify clients that the list of resources has changed."""
        self.engine.changes.publish(Change("resources"))

    def notify_prompts_changed(self) -> None:
        """Notify clients that the list of prompts has changed."""
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
        health: HealthAudience = "private",
    ) -> HttpApp:
        """Return an ASGI app, to run under any ASGI server or to mount in another app.

        Args:
            path: The path of the MCP endpoint.
            allowed_hosts: The values of the Host header to accept. Default: the loopback names and, if `auth` protects
                a resource, the host of that resource.
            allowed_origins: The values of the Origin header to accept. Default: web pages of an allowed host.
            sessions: Store sessions for clients that begin with a handshake. With False, any worker can serve these
                clients, but the server cannot ask them anything or notify them of changes.
            sse_path: A path such as "/sse", to serve clients of the old HTTP+SSE transport as well.
            trusted_proxies: Addresses or networks of proxies. For a request from such a proxy, the address of the
                client is read from the proxy's headers.
            cors: Origins of web pages that may call the server and read its answers.
            health: Who gets an answer at `/healthz` and `/readyz`: callers in private networks ("private"), everybody
                ("public"), or nobody ("off").
        """
        from weft.server.run.listening import HttpOptions

        options = HttpOptions(
            path=path,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            sessions=sessions,
            sse_path=sse_path,
            trusted_proxies=trusted_proxies,
            cors=cors,
            health=health,
        )
        return self.engine.app(options)

    def pipe(self, deliver: Callable[[bytes], None]) -> MemoryPipe:
        """Return a pipe that serves one client in this process.

        Pass the client's messages to the `send` method of the pipe. The pipe passes the messages for the client to
        `deliver`.
        """
        return self.engine.pipe(deliver)

    async def serve_pipe(self, source: int, sink: int) -> None:
        """Serve one client on two file descriptors, with one JSON message per line, until the end of `source`.

        Messages are read from `source` and written to `sink`. A connected socket can be used for both:
        `await server.serve_pipe(sock.fileno(), sock.fileno())`.
        """
        from weft.server.stdio.stdio import serve_stdio

        await serve_stdio(self.engine, source, sink)

    def close_streams(self) -> None:
        """Close all listen streams and standalone streams, because the process will stop soon.

        Streams that clients open later are closed at once.
        """
        self.engine.close_streams()

    async def start(self) -> None:
        """Enter the server's lifespan now. Without this call, the first request enters the lifespan.

        Exceptions of the lifespan are raised to the caller of `start`.
        """
        await self.engine.lifespan.start()

    async def stop(self) -> None:
        """Stop the server: cancel open calls, close sessions, end background tasks and threads, exit the lifespan."""
        await self.engine.stop()

    @overload
    def run(self, transport: Literal["stdio"] = "stdio", *, log_level: str | None = ...) -> None: ...
    @overload
    def run(self, transport: Literal["http"], **options: Unpack[HttpKeywords]) -> None: ...
    def run(self, transport: Literal["stdio", "http"] = "stdio", **options: Any) -> None:
        """Serve until the process is stopped: on stdio, or over HTTP with options such as `host` and `port`."""
        from weft.server.run.running import run

        run(self.engine, transport, **options)

    @overload
    async def serve(self, transport: Literal["stdio"] = "stdio", *, log_level: str | None = ...) -> None: ...
    @overload
    async def serve(self, transport: Literal["http"], **options: Unpack[HttpKeywords]) -> None: ...
    async def serve(self, transport: Literal["stdio", "http"] = "stdio", **options: Any) -> None:
        """Serve on stdio or over HTTP in the running event loop, until this coroutine is cancelled.

        Unlike `run`, this method does not handle signals, and serves with one process only.
        """
        from weft.server.run.running import serve

        await serve(self.engine, transport, **options)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report that a Server is no ASGI app

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError. If the name exists in another SDK, the message says what to use in Weft instead."""
            return attribute_of(self, name)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            """Reject the request with an error, because the ASGI app is `server.asgi()`, not the server itself."""
            from weft.server.http.app import refuse_in_place_of_app

            await refuse_in_place_of_app(self, scope, receive, send)
