"""Define `Engine`, which combines all parts of one server: features, authorization, sessions and runtime.

`Server` is the public interface; its `engine` serves the clients. Modules in lower layers use the engine only through
its base classes: a call uses `Services`, a transport uses `Runtime`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from weft.backends import Backend, check_backend, default_backend, open_backend
from weft.backends.memory import MemoryBackend
from weft.backends.scoped import ScopedBackend
from weft.eras.base import Offer, ServerEra
from weft.eras.session import SESSION
from weft.eras.stateless import STATELESS
from weft.errors import StartError, UsageError
from weft.limits import Limits
from weft.protocol.revisions import METHODS, Method
from weft.server.asking.rounds import key_ring
from weft.server.auth.protected_resource import ResourceServer, read_auth
from weft.server.auth.tokens import Verifier
from weft.server.calls.call import Call, Handler
from weft.server.calls.changes import Change
from weft.server.calls.connection import Connection
from weft.server.diagnostics import describe, report
from weft.server.features.prompts import Completions, Prompts
from weft.server.features.registry import CacheHint, read_cache_hints
from weft.server.features.resources import Resources
from weft.server.features.tools import Tools
from weft.server.run.development import watch_for_blocking
from weft.server.runtime import dispatch
from weft.server.runtime.dispatch import find_tracing
from weft.server.runtime.request_log import dispatcher_class
from weft.server.runtime.runtime import LifespanFactory, Runtime
from weft.server.sessions.session import HANDLERS
from weft.server.sessions.sessions import Sessions
from weft.server.tasks.service import TaskService
from weft.types.base import SERVER_INFO_KEY, Implementation
from weft.types.lifecycle import DiscoverResult, ListChangedCapability, ResourcesCapability, ServerCapabilities

if TYPE_CHECKING:
    from weft.server.http.app import HttpApp
    from weft.server.run.listening import HttpOptions
    from weft.server.stdio.pipe import MemoryPipe

CacheList = Literal["discover", "tools", "resources", "templates", "prompts"]
RootsChanged: TypeAlias = Callable[[Connection], Coroutine[Any, Any, None]]

_ASKING = ("tools/call", "prompts/get", "resources/read")  # methods whose handlers may ask the client a question
_ERAS: Mapping[str, ServerEra] = {era.name: era for era in (STATELESS, SESSION)}  # in the order in which they are tried


class Servable:
    """The base class of `Server`, for the modules that load and run a server."""

    engine: Engine


class EngineOptions(msgspec.Struct, kw_only=True):
    """The arguments of `Server(...)` that are passed to its engine."""

    lifespan: LifespanFactory | None
    middleware: Sequence[dispatch.Middleware]
    extensions: Sequence[dispatch.Extension]
    cache_hint: CacheHint | None
    list_cache_hints: Mapping[CacheList, CacheHint] | None
    page_size: int
    schema_refs: bool
    limits: Limits
    state_keys: Sequence[str | bytes] | None
    eras: Sequence[str]
    require_initialized: bool
    backend: Backend | str | None
    auth: ResourceServer | Verifier | None
    debug: bool


class Engine(Runtime):
    """The internal part of a `Server`, which has its features, authorization, sessions and middleware."""

    def __init__(self, owner: Servable, info: Implementation, instructions: str | None, options: EngineOptions) -> None:
        self.protection = read_auth(options.auth)
        self.has_own_backend = options.backend is not None  # whether the program has chosen the backend
        given = options.backend or default_backend()
        shared = open_backend(given) if isinstance(given, str) else given
        if shared is not None:
            check_backend(shared)
        whole: Backend = shared or MemoryBackend()
        super().__init__(
            owner,
            info,
            instructions,
            limits=options.limits,
            debug=options.debug,
            backend=whole if shared is None else ScopedBackend(shared, info.name),
            whole_backend=whole,
            is_alone=shared is None,
            state_keys=key_ring(options.state_keys),
            auth=self.protection,
            eras=_read_eras(options.eras),
            lifespan=options.lifespan,
        )
        self._require_initialized = options.require_initialized
        self._make_features(options)
        dispatch.check_extensions(options.extensions)
        self.extensions = tuple(options.extensions)
        self._middleware: list[dispatch.Middleware] = list(options.middleware)
        self._translations: dispatch.Translations | None = None  # functions registered with `on_error`, if any
        self._on_roots_changed: list[RootsChanged] = []
        self._on_shutdown: list[Callable[[], Any]] = []
        self._shutting_down: asyncio.Task[None] | None = None  # calls these functions, when the server stops
        self.sessions = Sessions(self)
        self.tasks = TaskService(self, self.tools)
        self.subscriptions.feed = self.tasks
        self._dispatches_tasks = False  # whether the dispatcher asks `tasks` about calls of tools
        self.lifespan.on_ready = self.tasks.runner.begin
        self.serving = 0  # number of running `serve` calls
        self.changes.subscribe(self._forget_offer)

    def _make_features(self, options: EngineOptions) -> None:
        hint, hints = read_cache_hints(options.cache_hint, options.list_cache_hints, get_args(CacheList))
        page_size, limits = options.page_size, options.limits
        self._discover_hint = hints["discover"]
        self.tools = Tools(self.changes, self.threads, hints["tools"], page_size, refs=options.schema_refs)
        self.resources = Resources(self.changes, page_size, limits, hint, hints)
        self.prompts = Prompts(self.changes, hints["prompts"], page_size, limits)
        self.completions = Completions(self.prompts, self.resources)

    # Callbacks of the user.

    def add_middleware(self, layer: dispatch.Middleware) -> None:
        """Add a middleware function, which wraps every call.

        Middleware that was added earlier wraps middleware that is added later.
        """
        dispatch.check_middleware(layer)
        self._middleware.append(layer)
        Engine.dispatcher.forget(self)

    def add_translation(self, kind: type[Exception], fn: Callable[..., Any]) -> None:
        """Add a function that converts exceptions of the class `kind` into a response (see `Server.on_error`)."""
        self._translations = (self._translations or dispatch.Translations()).with_one(kind, fn)
        Engine.dispatcher.forget(self)

    def add_roots_callback(self, fn: RootsChanged) -> None:
        """Add a function that is called when a client in a session reports that its roots have changed."""
        self._on_roots_changed.append(fn)

    def add_shutdown_callback(self, fn: Callable[[], Any]) -> None:
        """Add a function that is called when the server stops (see `Server.on_shutdown`)."""
        self._on_shutdown.append(fn)

    def roots_changed(self, connection: Connection) -> None:
        """Call the functions that are registered with `on_roots_changed`, each in a background task."""
        for fn in self._on_roots_changed:
            self.background.start("on_roots_changed", fn, connection)

    def calls_for_itself(self, fn: object) -> bool:
        """Return whether `fn` is registered on this server as middleware, as a callback or as the lifespan."""
        of_errors = () if self._translations is None else self._translations.functions
        callbacks = (*self._on_roots_changed, *self._on_shutdown, *of_errors)
        return any(fn is one for one in (*self._middleware, *callbacks, self.lifespan.factory))

    # What the server offers.

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declares. For example, `tools` is declared only if there are tools.

        If there are tools with `task=`, these are the capabilities as the first era of the server declares them.
        """
        declared = self._capabilities()
        return self.eras[0].tasks.declare(declared, lists=False) if self.tools.has_tasks else declared

    def capabilities_for(self, call: Call) -> ServerCapabilities:
        """Return the capabilities that the server declares to the client of a call."""
        declared = self._capabilities()
        if not self.tools.has_tasks:
            return declared
        return call.era.tasks.declare(declared, lists=call.principal is not None)

    def _capabilities(self) -> ServerCapabilities:
        changes = ListChangedCapability(list_changed=True)
        return ServerCapabilities(
            logging={},
            completions={} if self.completions.used else None,
            prompts=changes if self.prompts.used else None,
            resources=ResourcesCapability(subscribe=True, list_changed=True) if self.resources.used else None,
            tools=changes if self.tools.used else None,
            extensions={extension.id: dict(extension.settings) for extension in self.extensions} or None,
        )

    def make_offer(self) -> Offer:
        """Create an `Offer` with the methods, protocol versions and metadata that the server has now."""
        declared: Mapping[str, Any] = msgspec.to_builtins(self.capabilities)
        methods = {era.name: self._offered(era, declared) for era in self.eras}
        meta = {SERVER_INFO_KEY: msgspec.to_builtins(self.info)}
        versions = [version for era in self.eras for version in era.versions]
        return Offer(methods, meta, versions, self._require_initialized, self.limits.id_bytes)

    def _offered(self, era: ServerEra, declared: Mapping[str, Any]) -> dict[str, Method]:
        """Return the methods that the server offers in an era, by name.

        Methods that need a capability are left out if the capability is not in `declared`. Methods of extensions are
        always included.
        """
        own = {
            name: method
            for name, method in METHODS.items()
            if name in era.methods and (method.capability is None or method.capability in declared)
        }
        if self.tools.has_tasks:
            own.update({method.name: method for method in era.tasks.methods})
        return own | {method.name: method for extension in self.extensions for method, _ in extension.methods()}

    def forget_offer(self) -> None:
        """Delete the cached offer, so that a new one is created at the next use."""
        Engine.offer.forget(self)

    def _forget_offer(self, change: Change) -> None:
        if change.kind != "resource":
            self.forget_offer()
            if self.tools.has_tasks and not self._dispatches_tasks:
                Engine.dispatcher.forget(self)

    async def _discover(self, call: Call) -> DiscoverResult:
        return DiscoverResult(
            supported_versions=list(self.offer.versions),
            capabilities=self.capabilities_for(call),
            instructions=self.instructions,
            ttl_ms=self._discover_hint.ttl_ms,
            cache_scope=self._discover_hint.list_scope,
        )

    def make_dispatcher(self) -> dispatch.Dispatcher:
        """Create a dispatcher with the handlers and middleware that are registered now."""
        handlers: dict[str, Handler] = {
            "server/discover": self._discover,
            "tools/list": self.tools.list,
            "tools/call": self.tools.call,
            "resources/list": self.resources.list,
            "resources/templates/list": self.resources.templates,
            "resources/read": self.resources.read,
            "prompts/list": self.prompts.list,
            "prompts/get": self.prompts.get_prompt,
            "completion/complete": self.completions.complete,
            "subscriptions/listen": self.subscriptions.listen,
            **HANDLERS,
        }
        checks = dispatch.Checks(self.tools, self.resources, self.prompts, self.limits.listen_uris).by_method
        around = list(self._middleware)
        self._dispatches_tasks = self.tools.has_tasks
        if self._dispatches_tasks:
            handlers.update({**self.tasks.handlers, "tools/call": self.tasks.call})
            checks.update(dict.fromkeys(self.tasks.handlers, self.tasks.require))
        for extension in self.extensions:
            handlers.update({method.name: handler for method, handler in extension.methods()})
            checks.update({method.name: extension.require for method, _ in extension.methods()})
            around.extend(extension.middleware())
        watch_for_blocking(asyncio.get_running_loop(), debug=self.debug)
        if self.debug:
            from weft.server.asking.replay import watched

            handlers.update({method: watched(handlers[method]) for method in _ASKING})
        return dispatcher_class()(
            self,
            handlers,
            translations=self._translations,
            middleware=around,
            tracing=find_tracing(),
            checks=checks,
            extensions=self.extensions,
            tasks=self.tasks if self._dispatches_tasks else None,
        )

    # Serving.

    def app(self, options: HttpOptions) -> HttpApp:
        """Create an ASGI app that serves this server over HTTP."""
        from weft.server.http.app import app_class  # imported here: stdio does not need it, and starts faster

        self.completions.check()
        self._check_keys()
        return app_class()(
            self,
            self.sessions,
            self.protection,
            options.path,
            allowed_hosts=options.allowed_hosts,
            allowed_origins=options.allowed_origins,
            keeps_sessions=options.sessions is not False,
            sse_path=options.sse_path,
            trusted_proxies=options.trusted_proxies,
            cors=options.cors,
            health=options.health,
        )

    def _check_keys(self) -> None:
        """Raise StartError if other processes serve the same clients, but this one has a random key."""
        self.fleet.serves_http = True
        if not self.backend.is_local and self.state_keys.is_ephemeral:
            raise StartError(
                "This server shares a backend with other processes, so all of them need the same key for the state of "
                "calls: set WEFT_STATE_KEY in their environment, or Server(state_keys=[...]). Make a key with: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )

    def pipe(self, deliver: Callable[[bytes], None]) -> MemoryPipe:
        """Return a pipe that serves one client in this process.

        The pipe passes messages for the client to `deliver`.
        """
        from weft.server.stdio.pipe import MemoryPipe

        return MemoryPipe(self, deliver)

    def close_streams(self) -> None:
        """Close all listen streams and standalone streams, because the process will stop soon.

        Streams that clients open later are closed at once.
        """
        self.subscriptions.close_soon()
        self.sessions.close_soon()

    async def stop(self) -> None:
        """Stop the server: cancel open calls, close sessions, end background tasks and threads, exit the lifespan."""
        self.subscriptions.close()
        try:
            await self._shut_down()
            await asyncio.gather(self.tasks.runner.hand_over(), self.open_calls.cancel(self.limits.drain_seconds))
            await self.sessions.close()
            await self.tasks.runner.close()
            await self.background.close(self.limits.drain_seconds)
        finally:
            self.subscriptions.reopen()
            self.threads.stop()
            try:
                await self.lifespan.stop()
            finally:
                self.draining = False
                self.tasks.runner.reopen()
                self._shutting_down = None

    async def hand_over(self) -> None:
        """Call the functions of `on_shutdown`, and then leave running tasks to other workers, because the server stops.

        This may begin before `stop`, which then waits for the rest.
        """
        await self._shut_down()
        await self.tasks.runner.hand_over()

    async def _shut_down(self) -> None:
        """Call the functions of `on_shutdown` once. A second call waits for the first."""
        if self._shutting_down is None:
            calls = self._call_shutdown_callbacks()
            self._shutting_down = asyncio.get_running_loop().create_task(calls, name="weft-shutdown")
        await asyncio.shield(self._shutting_down)

    async def _call_shutdown_callbacks(self) -> None:
        """Call the functions that are registered with `on_shutdown`. Their exceptions are logged."""
        for fn in self._on_shutdown:
            try:
                async with asyncio.timeout(self.limits.drain_seconds):
                    await self.threads.call(fn, ())
            except Exception as error:  # noqa: BLE001 - the user's function must not keep the server from stopping
                report(f"{describe(fn)}, called at shutdown,", error, debug=self.debug)


def _read_eras(names: Sequence[str]) -> tuple[ServerEra, ...]:
    if not isinstance(names, Collection) or not names or any(name not in _ERAS for name in names):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise UsageError(f"Server(eras={names!r}) is not possible: give one or both of {', '.join(map(repr, _ERAS))}.")
    return tuple(era for name, era in _ERAS.items() if name in names)
