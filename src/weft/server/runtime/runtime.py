"""Hold what serving calls needs of a server, and enter and leave its lifespan.

The lifespan runs in a separate task, so that it is entered and left in the same task, whichever request comes first or
last. An app that is mounted in another gets no shutdown event: then the lifespan is left when the event loop shuts down
and cancels all tasks (`weft.server.http.host_signals` keeps the process alive for that long)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from weft.eras.base import ServerEra
from weft.errors import UsageError
from weft.net.logs import Seldom
from weft.server.calls.connection import Connection
from weft.server.calls.services import CachedValue, Services
from weft.server.diagnostics import report, summary_of
from weft.server.runtime.dispatch import Dispatcher
from weft.server.runtime.load import OpenCalls
from weft.server.runtime.subscriptions import ListenStreams

LifespanFactory = Callable[[Any], AbstractAsyncContextManager[Any]]


class Lifespan:
    """Started once, lazily or at start-up; stopped once."""

    def __init__(self, factory: LifespanFactory | None, services: Services) -> None:
        _check(factory)
        self.factory = factory
        self._services = services
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._stop: asyncio.Event | None = None
        self.started = factory is None  # nothing to start
        self.value: Any = None  # what the context manager yielded
        self.on_leaving: Callable[[asyncio.Task[Any]], None] | None = None  # told before the context manager is left
        self._told: tuple[str, str] | None = None  # the last failure that was logged, and what callers read of it

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that has entered the context manager and will leave it; None where it was not entered."""
        return self._task

    def report(self, error: Exception) -> str:
        """Log that the start failed, once however many requests wait for it; return the text for the caller."""
        summary = summary_of(error)
        if self._told is None or self._told[0] != summary:
            text = report(f"The lifespan of {self._services.name!r}", error, debug=self._services.debug)
            said = text.removeprefix("Internal error. ")
            self._told = summary, f"The server's lifespan failed when it started, so nothing can be served. {said}"
        return self._told[1]

    async def start(self) -> None:
        """Enter the context manager, if nobody has yet. Raises what it raises."""
        if self.started:
            return
        loop = asyncio.get_running_loop()
        if self._ready is None or self._ready.get_loop() is not loop:
            self._ready = loop.create_future()
            self._stop = asyncio.Event()
            self._task = loop.create_task(self._run(self._ready, self._stop), name="weft-lifespan")
        await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """Leave the context manager, if it was entered; if it is being entered, give that up."""
        if self._task is None or self._stop is None:
            return
        self._stop.set()
        if not self.started:
            self._task.cancel()
        task, self._task, self._ready = self._task, None, None
        self.started = self.factory is None
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _run(self, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        assert self.factory is not None
        try:
            manager = self.factory(self._services.owner)
            if not isinstance(manager, AbstractAsyncContextManager):  # pyright: ignore[reportUnnecessaryIsInstance] - the user's
                raise _no_lifespan(f"one that returns {type(manager).__name__}")
            async with manager as self.value:
                self.started = self._ready is ready  # else it was stopped meanwhile
                self._told = None
                ready.set_result(None)
                cancelled = await _cancelled_before(stop)
                task = asyncio.current_task()
                if self.on_leaving is not None and task is not None:
                    self.on_leaving(task)
            if cancelled is not None:
                raise cancelled
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(_failure(error))  # whatever it is: requests wait for this (R1)
            ready.exception()  # and where none does any more, asyncio need not complain
            if _is_cancelled():
                raise
        finally:
            # Left without `stop`: the start failed, or the loop shuts down. The next request enters it anew.
            if self._ready is ready:
                self._ready = None
                self.started = False


def _check(factory: Any) -> None:
    """Refuse what is no such function, as far as can be seen without calling it."""
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
        raise _no_lifespan(f"{name}, which cannot be called with it: {error}") from None
    except ValueError:  # of a function in C, nothing is known
        return


def _no_lifespan(what: str) -> UsageError:
    return UsageError(
        f"lifespan= is a function that takes the server and returns an async context manager, not {what}. Write "
        "@contextlib.asynccontextmanager above an `async def lifespan(server)` that yields once."
    )


async def _cancelled_before(stop: asyncio.Event) -> asyncio.CancelledError | None:
    """Wait for the end. One that comes as a cancellation, when the loop shuts down, is handed back and not raised:

    what a lifespan does after its `yield` is done then too, also without `try` and `finally` around it.
    """
    try:
        await stop.wait()
    except asyncio.CancelledError as error:
        return error
    return None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failure(error: BaseException) -> Exception:
    """The failure of a start as those who wait for it get it: a cancellation or an exit is not theirs to obey."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"The lifespan raised {type(error).__name__} before it yielded; raise an Exception instead.")
    failure.__cause__ = error
    return failure.with_traceback(error.__traceback__)


log = logging.getLogger("weft.background")

MOST = 1000  # at the same time; what comes then is dropped and logged

_Key = tuple[Callable[[Connection], Any], Connection]


class Background:
    """The tasks that belong to no call. Whatever one raises is logged and ends nothing else (R1)."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seldom = Seldom(log)  # for what clients can cause at will
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._again: set[_Key] = set()  # of them, those to be run once more

    def start(self, option: str, fn: Callable[[Connection], Any], connection: Connection) -> None:
        """Call `fn(connection)`, which was given to `option`.

        While it runs for a connection, no second call for that one begins: it is called once more afterwards, however
        often it was started. So what one client says again and again leaves room for what others say.
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
        """Cancel what still runs, and wait for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        self._tasks.clear()
        self._again.clear()

    async def _run(self, key: _Key, option: str, name: str) -> None:
        try:
            await self._call(key, option, name)
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
        except BaseException as error:  # noqa: BLE001 - R1
            report(name, error, debug=self._services.debug)


class Runtime(Services):
    """What the transports need of a server."""

    def __init__(
        self, *args: Any, eras: tuple[ServerEra, ...], lifespan: LifespanFactory | None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.eras = eras  # served, in the order in which a message is offered to them
        self.lifespan = Lifespan(lifespan, self)
        self.background = Background(self)
        self.open_calls = OpenCalls()  # calls that wait for something
        self.subscriptions = ListenStreams(self)

    @CachedValue
    def dispatcher(self) -> Dispatcher:
        """Serves calls."""
        return self.make_dispatcher()

    def make_dispatcher(self) -> Dispatcher:
        """Compose the method table and the middleware of now."""
        raise NotImplementedError

    def roots_changed(self, connection: Connection) -> None:
        """Call the functions that the user registered for changed roots."""
        raise NotImplementedError

    def close_streams(self) -> None:
        """End the streams that never end by themselves, because the process is about to stop."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Release everything, at the end of the process."""
        raise NotImplementedError

    def is_full(self, *, own: int = 0) -> bool:
        """Return whether the process serves as many requests as it may; listen streams have a separate limit.

        `own` is how many of the counted requests are the caller's.
        """
        most = self.limits.in_flight + own
        return self.in_flight >= most and self.in_flight - len(self.subscriptions) >= most
