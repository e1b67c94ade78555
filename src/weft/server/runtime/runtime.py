"""Provide the parts of a server that transports need, and run the lifespan of the server.

The lifespan runs in a separate task, so that its context manager is entered and left in the same task. An app that is
mounted in another app gets no shutdown event. Then the lifespan is left when the event loop shuts down and cancels
all tasks (`weft.server.http.host_signals` keeps the process alive for that long).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from weft.backends import Backend
from weft.eras.base import ServerEra
from weft.errors import UsageError
from weft.net.logs import Seldom
from weft.server.calls.connection import Connection
from weft.server.calls.execution import is_cancelled
from weft.server.calls.services import CachedValue, Services
from weft.server.calls.shares import Shares
from weft.server.diagnostics import report, summary_of
from weft.server.runtime.admission import OpenCalls
from weft.server.runtime.dispatch import Dispatcher
from weft.server.runtime.fleet import Fleet
from weft.server.runtime.peer_limits import PeerLimits
from weft.server.runtime.subscriptions import ListenStreams

LifespanFactory = Callable[[Any], AbstractAsyncContextManager[Any]]


class Lifespan:
    """The user's context manager that is entered before the first request is served, and left when the server stops."""

    def __init__(self, factory: LifespanFactory | None, services: Services, fleet: Fleet) -> None:
        _check(factory)
        self.factory = factory
        self._services = services
        self._fleet = fleet  # is joined before the context manager is entered, and left after it
        self.task: asyncio.Task[None] | None = None  # enters the context manager, and leaves it later
        self._ready: asyncio.Future[None] | None = None
        self._stop: asyncio.Event | None = None
        self.started = self._is_empty
        self.value: Any = None  # the value that the context manager yielded
        self.on_ready: Callable[[], None] | None = None  # called after the context manager is entered
        self.on_leaving: Callable[[asyncio.Task[Any]], None] | None = None  # called before the context manager is left
        self._reported: tuple[str, str] | None = None  # the last failure that was logged, and its text for clients

    @property
    def _is_empty(self) -> bool:
        """Whether there is nothing to start: no context manager, and no other workers."""
        return self.factory is None and self._fleet.is_alone

    def report(self, error: Exception) -> str:
        """Log that the lifespan failed to start (the same failure only once); return the error text for clients."""
        summary = summary_of(error)
        if self._reported is None or self._reported[0] != summary:
            text = report(f"The lifespan of {self._services.name!r}", error, debug=self._services.debug)
            why = text.removeprefix("Internal error. ")
            self._reported = summary, f"The server's lifespan failed when it started, so nothing can be served. {why}"
        return self._reported[1]

    async def start(self) -> None:
        """Enter the context manager. Does nothing if it is entered already.

        If entering fails, the exception of the context manager is raised here.
        """
        if self.started:
            return
        loop = asyncio.get_running_loop()
        if self._ready is None or self._ready.get_loop() is not loop:
            self._ready = loop.create_future()
            self._stop = asyncio.Event()
            self.task = loop.create_task(self._run(self._ready, self._stop), name="weft-lifespan")
        await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """Leave the context manager. If it is not completely entered yet, cancel its task instead."""
        if self.task is None or self._stop is None:
            return
        self._stop.set()
        if not self.started:
            self.task.cancel()
        task, self.task, self._ready = self.task, None, None
        self.started = self._is_empty
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _run(self, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        cancelled: asyncio.CancelledError | None = None
        try:
            async with self._fleet, self._manager() as self.value:
                self.started = self._ready is ready  # unless it was stopped meanwhile
                self._reported = None
                ready.set_result(None)
                if self.on_ready is not None:
                    self.on_ready()
                # The event loop cancels this task when it shuts down. The cancellation is raised only later, so that
                # the lifespan's code after `yield` runs even if it is not in a `finally`.
                try:
                    await stop.wait()
                except asyncio.CancelledError as error:
                    cancelled = error
                task = asyncio.current_task()
                if self.on_leaving is not None and task is not None:
                    self.on_leaving(task)
            if cancelled is not None:
                raise cancelled
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(_failure(error))  # any exception, because requests wait for this future
            ready.exception()  # retrieved here, so that asyncio does not warn if no request waits
            if is_cancelled():
                raise
        finally:
            # If `stop` was not called, the start failed or the event loop shuts down. The next request starts again.
            if self._ready is ready:
                self._ready = None
                self.started = False

    def _manager(self) -> AbstractAsyncContextManager[Any]:
        if self.factory is None:
            return nullcontext()
        manager = self.factory(self._services.owner)
        if not isinstance(manager, AbstractAsyncContextManager):  # pyright: ignore[reportUnnecessaryIsInstance] - the user's
            raise _no_lifespan(f"one that returns {type(manager).__name__}")
        return manager


def _check(factory: Any) -> None:
    """Raise UsageError if `factory` cannot be used as a lifespan. This does not call the factory."""
    if factory is None:
        return
    name = getattr(factory, "__name__", type(factory).__name__)
    if not callable(factory):
        raise _no_lifespan(type(factory).__name__)
    if inspect.isasyncgenfunction(factory):
        raise _no_lifespan(f"the generator {name}")
    if inspect.iscoroutinefunction(factory):
        raise _no_lifespan(f"the async function {name}")
    try:
        inspect.signature(factory).bind(None)
    except TypeError as error:
        raise _no_lifespan(f"{name}, which cannot be called with the server: {error}") from None
    except ValueError:  # some functions that are written in C have no signature
        return


def _no_lifespan(what: str) -> UsageError:
    return UsageError(
        f"lifespan= is a function that takes the server and returns an async context manager, not {what}. Write "
        "@contextlib.asynccontextmanager above an `async def lifespan(server)` that yields once."
    )


def _failure(error: BaseException) -> Exception:
    """Return the exception to raise in requests that wait for the lifespan, after it failed with `error`.

    This is `error` itself, or a RuntimeError if `error` is not an Exception (but, for example, a SystemExit).
    """
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"The lifespan raised {type(error).__name__} before it yielded; raise an Exception instead.")
    failure.__cause__ = error
    return failure.with_traceback(error.__traceback__)


log = logging.getLogger("weft.background")

MOST = 1000  # most functions that run at the same time; another function is not called, and a warning is logged

_Key = tuple[Callable[[Connection], Any], Connection]


class Background:
    """Runs user functions in background tasks, outside of calls, and logs their exceptions."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seldom = Seldom(log)  # limits how often a warning that clients can cause is logged
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._again: set[_Key] = set()  # functions to call again when they have ended

    def start(self, option: str, fn: Callable[[Connection], Any], connection: Connection) -> None:
        """Call `fn(connection)` in a background task.

        If `fn` is still running for this connection, it is called once more after it has ended, even if `start` was
        called several times meanwhile. So a client that repeats a notification cannot start many tasks. `option` is the
        name of the server option with which the user registered `fn`, for error messages.
        """
        key, name = (fn, connection), repr(getattr(fn, "__name__", option))
        if key in self._tasks:
            self._again.add(key)
        elif len(self._tasks) >= MOST:
            self._seldom.warning("%s was not called: %d such functions run already", name, MOST, about=name)
        else:
            running = self._run(key, option, name)
            self._tasks[key] = asyncio.get_running_loop().create_task(running, name=f"weft-{name}")

    async def close(self, timeout: float) -> None:
        """Cancel all background tasks, and wait at most `timeout` seconds until they have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        self._tasks.clear()
        self._again.clear()

    async def _run(self, key: _Key, option: str, name: str) -> None:
        self._again.add(key)
        try:
            while key in self._again:
                self._again.discard(key)
                await self._call(key, option, name)
        finally:
            self._tasks.pop(key, None)
            self._again.discard(key)

    async def _call(self, key: _Key, option: str, name: str) -> None:
        fn, connection = key
        try:
            work = fn(connection)
            if not inspect.isawaitable(work):
                raise UsageError(f"A function given to {option} must be async: `async def f(connection): ...`.")
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's function must not end the server
            report(name, error, debug=self._services.debug)


class Runtime(Services):
    """The parts of a server that the transports need."""

    def __init__(
        self,
        *args: Any,
        eras: tuple[ServerEra, ...],
        lifespan: LifespanFactory | None,
        whole_backend: Backend,
        is_alone: bool,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.whole_backend = whole_backend  # the backend with the parts of other servers, which may use it, too
        self.scope = "" if is_alone else self.info.name  # name of the part that belongs to this server
        self.eras = eras  # eras that the server serves, in the order in which they are tried
        self.fleet = Fleet(self, is_alone=is_alone)
        self.lifespan = Lifespan(lifespan, self, self.fleet)
        self.draining = False  # whether the process will stop soon, so that new clients should go to another one
        self.background = Background(self)
        self.open_calls = OpenCalls()  # unfinished calls that have to wait
        if not self.backend.is_local:
            self.open_calls.name = "This worker"
        self.subscriptions = ListenStreams(self)
        self.task_waits = Shares()  # calls that wait for the results of tasks
        # Shared by all ASGI apps of the server; None if the requests of a client are not limited.
        self.peer_limits = PeerLimits.for_limits(self.backend, self.limits, self.fleet.worker)

    @CachedValue
    def dispatcher(self) -> Dispatcher:
        """Return the dispatcher that serves calls."""
        return self.make_dispatcher()

    def make_dispatcher(self) -> Dispatcher:
        """Return a new dispatcher with the handlers and middleware that are registered now."""
        raise NotImplementedError

    def roots_changed(self, connection: Connection) -> None:
        """Start the functions that the user registered for a change of the client's roots."""
        raise NotImplementedError

    def close_streams(self) -> None:
        """End all listen streams and standalone streams, because the process is about to stop."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop the server: end its calls, sessions and background tasks, and leave the lifespan."""
        raise NotImplementedError

    def is_full(self, *, own: int = 0) -> bool:
        """Return whether the server has reached its limit of running requests.

        Listen streams, and calls that wait for the results of tasks, have separate limits and are not counted. `own` is
        the number of running requests that belong to the caller of this method. These are not counted either.
        """
        most = self.limits.in_flight + own
        return self.in_flight >= most and self.in_flight - len(self.subscriptions) - len(self.task_waits) >= most
