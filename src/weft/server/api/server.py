"""Register features and options of a server: `Server`.

`CachedValue` is a cached property that is thread-safe and can be invalidated.

`functools.cached_property` would lose a change that another thread makes meanwhile: it stores what it made of the state
before, after it was told to forget it. Here the two wait for each other.

Server: the features a program offers, registered by decorators or calls. It holds nothing of any peer.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, get_args, overload

import msgspec

from weft.backends.base import Backend
from weft.backends.memory import MemoryBackend
from weft.eras.base import Offer
from weft.errors import UsageError
from weft.foreign import attribute_of
from weft.limits import DEFAULT_LIMITS, Limits
from weft.server.api.extensions import Extension, check_extensions, handlers_of, offered, read_eras
from weft.server.api.lifespan import Background, Lifespan, LifespanFactory
from weft.server.asking.once import OnceStore
from weft.server.asking.rounds import InputRequired, key_ring
from weft.server.auth.protected_resource import ResourceServer, read_auth
from weft.server.auth.tokens import Verifier
from weft.server.calls.call import Call
from weft.server.calls.changes import Change, Changes
from weft.server.calls.connection import Connection
from weft.server.calls.tasks import Threads
from weft.server.diagnostics.argument_checks import check_limits, check_options, decorate
from weft.server.diagnostics.error_reporting import caller
from weft.server.features.prompts import Completions, Prompts
from weft.server.features.registry import DEFAULT_PAGE_SIZE, CacheHint, check_info, read_cache_hints
from weft.server.features.resources import Resources
from weft.server.features.tools import ToolOptions, Tools
from weft.server.run.development import watch_for_blocking
from weft.server.runtime.dispatch import (
    Check,
    Dispatcher,
    Handler,
    Middleware,
    Translation,
    Translations,
    check_exceptions,
    check_middleware,
    checks_of,
    find_tracing,
)
from weft.server.runtime.load import OpenCalls
from weft.server.runtime.request_log import dispatcher_class
from weft.server.runtime.subscriptions import ListenStreams
from weft.server.sessions.sessions import Sessions
from weft.types.base import SERVER_INFO_KEY, Annotations, Icon, Implementation
from weft.types.lifecycle import DiscoverResult, ListChangedCapability, ResourcesCapability, ServerCapabilities
from weft.types.tools import ToolAnnotations

if TYPE_CHECKING:
    from weft.server.http.app import HttpApp
    from weft.server.run.listening import HttpKeywords
    from weft.server.stdio.memory import MemoryPipe


T = TypeVar("T")


class CachedValue(Generic[T]):
    """Decorates a method without parameters: read as an attribute, it is called once.

    >>> class Shop:
    ...     prices = [3, 4]
    ...     @CachedValue
    ...     def total(self):
    ...         return sum(self.prices)
    >>> shop = Shop()
    >>> shop.total, shop.prices.append(5), shop.total
    (7, None, 7)
    >>> Shop.total.forget(shop)
    >>> shop.total
    12
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self._lock = threading.RLock()
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> CachedValue[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> CachedValue[T] | T:
        if owner is None:
            return self
        with self._lock:
            kept = owner.__dict__  # where Python looks first: what is kept costs no call
            if self._name not in kept:
                kept[self._name] = self._make(owner)
            value: T = kept[self._name]
            return value

    def forget(self, owner: object) -> None:
        """Have it made anew when it is next asked for."""
        with self._lock:
            owner.__dict__.pop(self._name, None)


F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Exception)
PROMPT_OPTIONS = ("name", "title", "description", "icons", "meta", "needs", "hide", "scopes", "replace")
RESOURCE_OPTIONS = (*PROMPT_OPTIONS, "mime_type", "size", "annotations", "cache_hint")
EraName = Literal["stateless", "session"]
ASKING = ("tools/call", "prompts/get", "resources/read")  # what may ask (MRTR-02)
RootsChanged = Callable[[Connection], Coroutine[Any, Any, None]]
CacheList = Literal["discover", "tools", "resources", "templates", "prompts"]


class Server:
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
        self.info = Implementation(name, version, title, description, website_url, icons)
        check_info(self.info)
        self.instructions = instructions
        self.limits = limits
        self.debug = os.environ.get("WEFT_DEBUG", "") not in ("", "0") if debug is None else debug
        self.changes = Changes()
        self.threads = Threads(limits.threads)
        self.lifespan = Lifespan(lifespan, self)
        self.in_flight = 0  # calls being served in this process, whatever their transport
        self.open_calls = OpenCalls()  # those of them that wait
        self.guests = 0  # how many `serve` are under way
        self.eras = read_eras(eras)
        self.backend: Backend = backend or MemoryBackend()
        self.auth = read_auth(auth)
        self._require_initialized = require_initialized
        hint, hints = read_cache_hints(cache_hint, list_cache_hints, get_args(CacheList))
        self._discover_hint = hints["discover"]
        self.tools = Tools(self.changes, self.threads, hints["tools"], page_size, refs=schema_refs)
        self.resources = Resources(
            self.changes,
            hint,
            page_size,
            limits,
            list_hint=hints["resources"],
            templates_hint=hints["templates"],
        )
        self.prompts = Prompts(self.changes, hints["prompts"], page_size, limits)
        self.completions = Completions(self.prompts, self.resources)
        check_extensions(extensions)
        self.extensions = tuple(extensions)
        self._middleware: list[Middleware] = list(middleware)
        self._translations: Translations | None = None  # of exceptions; None where there are none
        self._roots_changed: list[RootsChanged] = []
        self.background = Background(self)
        self.changes.subscribe(self._forget_offer)
        self.state_keys = key_ring(state_keys)
        self.subscriptions = ListenStreams(self)
        self.sessions = Sessions(self)
        self.claims = OnceStore(self.backend.store, seconds=limits.ask_seconds, most_bytes=limits.state_bytes)

    @property
    def name(self) -> str:
        """What programs call it."""
        return self.info.name

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
        self.tools.add(fn, ToolOptions(**options))

    def remove_tool(self, name: str) -> None:
        """Take a tool out."""
        self.tools.remove(name)

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
        self.resources.add(uri, content, **options)

    def remove_resource(self, uri: str) -> None:
        """Take a resource or a template out."""
        self.resources.remove(uri)

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
        self.prompts.add(fn, **options)

    def remove_prompt(self, name: str) -> None:
        """Take a prompt out."""
        self.prompts.remove(name)

    def completion(self, *, prompt: str | None = None, template: str | None = None, argument: str) -> Callable[[F], F]:
        """Register a function that suggests values for an argument of a prompt or of a resource template.

        `@server.completion(prompt="review", argument="language")`; the function gets what was typed so far.
        """

        def register(fn: F) -> F:
            self.completions.add(fn, prompt=prompt, template=template, argument=argument)
            Server.offer.forget(self)
            return fn

        return register

    @overload
    def middleware(self, fn: Middleware, /) -> Middleware: ...
    @overload
    def middleware(self, /) -> Callable[[Middleware], Middleware]: ...
    def middleware(self, fn: Any = None, /) -> Any:
        """Register a function around every call: `async def timing(ctx, next): return await next()`."""

        def register(layer: Any) -> None:
            check_middleware(layer)
            self._middleware.append(layer)
            Server.dispatcher.forget(self)

        return decorate(fn, register, "middleware")

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

        def register(function: Any) -> None:
            self._translations = (self._translations or Translations()).with_one(kind, function)
            Server.dispatcher.forget(self)

        return decorate(fn, register, "on_error(ExceptionType)")

    def on_roots_changed(self, fn: RootsChanged) -> RootsChanged:
        """Have a function called when a client with a session says that its roots changed: `async def f(connection)`.

        `await connection.list_roots()` asks for the new ones.
        """
        decorate(fn, self._roots_changed.append, "on_roots_changed")
        return fn

    def calls_for_itself(self, fn: object) -> bool:
        """Whether a function is registered as something that no client calls: middleware, `on_error`, the lifespan."""
        of_errors = () if self._translations is None else self._translations.functions
        return any(fn is one for one in (*self._middleware, *self._roots_changed, *of_errors, self.lifespan.factory))

    def roots_changed(self, connection: Connection) -> None:
        """The client at the other end of `connection` says that its roots changed."""
        for fn in self._roots_changed:
            self.background.start("on_roots_changed", fn, connection)

    # Saying that something changed. From anywhere: also outside a call, also from a thread. Adding and removing
    # features says so by itself.

    def notify_resource_updated(self, uri: str, part_of: str | None = None) -> None:
        """A resource holds something else now. Those hear of it who subscribed to it, or to what it is `part_of`."""
        self.changes.publish(Change("resource", uri, part_of))

    def notify_tools_changed(self) -> None:
        """The list of tools is not what it was."""
        self.changes.publish(Change("tools"))

    def notify_resources_changed(self) -> None:
        """The list of resources is not what it was."""
        self.changes.publish(Change("resources"))

    def notify_prompts_changed(self) -> None:
        """The list of prompts is not what it was."""
        self.changes.publish(Change("prompts"))

    # What transports ask.

    @property
    def capabilities(self) -> ServerCapabilities:
        """What this server declares: what it has."""
        changes = ListChangedCapability(list_changed=True)
        return ServerCapabilities(
            logging={},
            completions={} if self.completions.used else None,
            prompts=changes if self.prompts.used else None,
            resources=ResourcesCapability(subscribe=True, list_changed=True) if self.resources.used else None,
            tools=changes if self.tools.used else None,
            extensions={extension.id: dict(extension.settings) for extension in self.extensions} or None,
        )

    @CachedValue
    def offer(self) -> Offer:
        """What reading and sealing messages needs to know of this server."""
        declared: Mapping[str, Any] = msgspec.to_builtins(self.capabilities)
        methods = {era.name: offered(era, declared, self.extensions) for era in self.eras}
        meta = {SERVER_INFO_KEY: msgspec.to_builtins(self.info)}
        versions = [version for era in self.eras for version in era.versions]
        return Offer(methods, meta, versions, self._require_initialized, self.limits.id_bytes)

    @CachedValue
    def dispatcher(self) -> Dispatcher:
        """Serves calls."""
        handlers: dict[str, Handler] = {"server/discover": self._discover, **handlers_of(self)}
        checks: dict[str, Check] = checks_of(self)
        around = list(self._middleware)
        for extension in self.extensions:
            handlers.update({method.name: handler for method, handler in extension.methods()})
            checks.update({method.name: extension.require for method, _ in extension.methods()})
            around.extend(extension.middleware())
        watch_for_blocking(asyncio.get_running_loop(), debug=self.debug)
        if self.debug:
            from weft.server.asking.replay import watched

            handlers.update({method: watched(handlers[method]) for method in ASKING if method in handlers})
        return dispatcher_class()(
            self, handlers, translations=self._translations, middleware=around, tracing=find_tracing(), checks=checks
        )

    async def invoke(self, fn: Callable[..., Any], is_async: bool, kwargs: Mapping[str, Any]) -> Any:  # noqa: FBT001 - a fact of `fn`, not an option
        """Call a user's function: here if it is async, else in a thread."""
        value = await fn(**kwargs) if is_async else await self.threads.run(fn, kwargs)
        if isinstance(value, InputRequired):
            raise value
        return value

    async def invoke_plain(self, fn: Callable[..., Any], args: tuple[Any, ...], *, to_end: bool = False) -> Any:
        """Call any function by position: an async one here, another in a thread (`to_end`: see there)."""
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        return await self.threads.run(partial(fn, *args), {}, to_end=to_end)

    async def _discover(self, call: Call) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(self.offer.versions),
            capabilities=self.capabilities,
            instructions=self.instructions,
            ttl_ms=self._discover_hint.ttl_ms,
            cache_scope=self._discover_hint.list_scope,
        )

    def _forget_offer(self, change: Change) -> None:
        if change.kind != "resource":
            Server.offer.forget(self)

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
        from weft.server.runtime.wire_log import app_class

        self.completions.check()
        return app_class()(
            self,
            path,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            sessions=sessions,
            sse_path=sse_path,
            trusted_proxies=trusted_proxies,
            cors=cors,
        )

    def pipe(self, deliver: Callable[[bytes], None]) -> MemoryPipe:
        """Serve a client in this process: `deliver` gets what it is sent, `pipe.send` takes what it sends."""
        from weft.server.stdio.memory import MemoryPipe

        return MemoryPipe(self, deliver)

    def close_streams(self) -> None:
        """End the streams that never end by themselves, because the process is about to stop; new ones end at once."""
        self.subscriptions.close_soon()
        self.sessions.close_soon()

    async def start(self) -> None:
        """Enter the lifespan now, and raise what it raises. Without this, the first request enters it."""
        await self.lifespan.start()

    async def stop(self) -> None:
        """Release everything, at the end of the process: sessions, what runs beside calls, threads, the lifespan."""
        self.subscriptions.close()
        try:
            await self.open_calls.give_up()
            await self.sessions.close()
            await self.background.close(self.limits.drain_seconds)
        finally:
            self.subscriptions.reopen()
            self.threads.stop()
            await self.lifespan.stop()

    @overload
    def run(self, transport: Literal["stdio"] = "stdio", *, log_level: str | None = ...) -> None: ...
    @overload
    def run(self, transport: Literal["http"], **options: Unpack[HttpKeywords]) -> None: ...
    def run(self, transport: Literal["stdio", "http"] = "stdio", **options: Any) -> None:
        """Serve until stopped: on stdio, or over HTTP with `host`, `port`, `path`, `workers`, `sessions`, ..."""
        from weft.server.run.running import run

        run(self, transport, **options)

    @overload
    async def serve(self, transport: Literal["stdio"] = "stdio", *, log_level: str | None = ...) -> None: ...
    @overload
    async def serve(self, transport: Literal["http"], **options: Unpack[HttpKeywords]) -> None: ...
    async def serve(self, transport: Literal["stdio", "http"] = "stdio", **options: Any) -> None:
        """The same within a loop that runs already, until cancelled. It takes no signals, and has one worker."""
        from weft.server.run.running import serve

        await serve(self, transport, **options)

    if not TYPE_CHECKING:  # a type checker knows that a Server is no ASGI app; whoever uses none is told

        def __getattr__(self, name: str) -> Any:
            """Say what is called otherwise elsewhere."""
            return attribute_of(self, name)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            """Refuse to be mounted in place of what `asgi` returns."""
            from weft.server.http.app import refuse_in_place_of_app

            await refuse_in_place_of_app(self, scope, receive, send)
