"""Call a server, or report on tasks, from programs that do not use asyncio: `weft.sync.Client`, `weft.sync.TaskStore`.

    from weft.sync import Client

    with Client("https://flights.example/mcp") as client:
        print(client.call_tool("book", {"flight": "LX38"}).text)

`weft.sync.Client` has all methods of `weft.Client`, under the same names. Each method waits for its result. Use it in
scripts, in a REPL or in a notebook. Several threads can use a client at the same time. Ctrl-C interrupts a call, and
cancels its task if it has become one. If a client is not closed, it is closed when the program ends.

Each client has one thread with an event loop, in which a `weft.Client` does the work. Functions that answer questions
run in other threads, and may call the client. Functions for progress and log messages run in the client's thread, and
must not call the client, because the call would wait for itself.

`weft.sync.TaskStore` has all methods of `weft.TaskStore`, for programs to which a server hands the work of its tasks.
It has a thread of its own, too.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, cast, overload
from urllib.parse import urlsplit

from weft.backends import Backend, check_backend, open_backend
from weft.client.argument_checks import trim_traceback
from weft.client.client import Client as AsyncClient
from weft.client.joining import joined_name
from weft.client.results import PendingQuestions
from weft.errors import ConnectionFailed, UsageError, WeftError
from weft.limits import DEFAULT_CLIENT_LIMITS, DEFAULT_LIMITS, Limits
from weft.net.hosts import is_loopback
from weft.net.logs import masked_url

if TYPE_CHECKING:
    from weft.client.client import Arguments, CallOptions
    from weft.client.connection.connection import ProgressCallback
    from weft.client.connection.transport import Transport
    from weft.client.requests.subscriptions import Listening as AsyncListening
    from weft.client.requests.tasks import TaskHandle as AsyncTaskHandle
    from weft.client.results import Change, ToolResult
    from weft.server.asking.asks import Elicitation
    from weft.server.tasks.store import TaskStore as AsyncTaskStore
    from weft.types.base import Implementation
    from weft.types.features import Tool
    from weft.types.interaction import InputRequest
    from weft.types.lifecycle import ServerCapabilities
    from weft.types.tasks import TaskState

__all__ = ["Client", "JoinedTool", "Listening", "TaskHandle", "TaskStore", "join_tools"]

P = ParamSpec("P")
R = TypeVar("R")

# Seconds between checks for Ctrl-C. On Windows, Ctrl-C does not interrupt a thread that waits for another thread.
_POLL: Final = 0.2 if sys.platform == "win32" else None
_END_SECONDS = 15.0  # how long to wait until the client is closed and its thread has ended


class _LoopThread:
    """An event loop that runs in a daemon thread."""

    def __init__(
        self,
        last: Callable[[], Coroutine[Any, Any, None]],
        owner: str = "client",
        close_seconds: float = DEFAULT_CLIENT_LIMITS.close_seconds,
    ) -> None:
        self._last = last  # called and awaited before the loop ends
        self._owner = owner  # whose thread this is, for messages
        self._close_seconds = close_seconds  # how long Ctrl-C waits for the end of the coroutine that it has cancelled
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()  # set when the loop is to end
        self._lock = threading.Lock()  # prevents that a coroutine is given to a loop that has ended
        self.is_over = False  # the loop has ended
        self._pid = os.getpid()  # a forked process does not have the thread
        self._thread = threading.Thread(target=self._main, name="weft-sync", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop, and wait for its result.

        Ctrl-C cancels the coroutine and waits for its end, because it may have to cancel a task at the server. A second
        Ctrl-C does not wait.

        Raises UsageError if this is called in the loop's thread, or if the loop has ended. Raises ConnectionFailed if
        the loop ends before the coroutine does.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                f"The {self._owner} cannot be called in its own thread, where progress and log functions run; use "
                "another one."
            )
        future: Future[R] | None = None
        try:
            with self._lock:
                if self._is_gone:
                    work.close()
                    raise UsageError(f"The {self._owner} is closed, or its process was forked; make a new one.")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return _result(future)
        except CancelledError:
            raise ConnectionFailed(f"The {self._owner} was closed meanwhile.") from None
        except BaseException:
            if future is not None and not future.done():  # Ctrl-C, or an exception of another signal handler
                with suppress(RuntimeError):  # the loop has just been closed
                    self._loop.call_soon_threadsafe(self._cancel, work)
                wait([future], self._close_seconds)
            raise

    def _cancel(self, work: Coroutine[Any, Any, Any]) -> None:
        """Cancel a coroutine that runs on the loop. Its future is done when the coroutine has ended, not before."""
        for task in asyncio.all_tasks(self._loop):
            if task.get_coro() is work:
                task.cancel()

    def end(self) -> None:
        """End the loop, and wait until its thread has ended.

        If this is called in the loop's own thread, for example by a finalizer, it does not wait.
        """
        with self._lock:
            if self._is_gone:
                return
            self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_SECONDS)

    @property
    def _is_gone(self) -> bool:
        # Not `is_alive`: if Ctrl-C interrupts it, CPython 3.11 and 3.12 regard the thread as ended from then on.
        return self.is_over or os.getpid() != self._pid

    def _main(self) -> None:
        try:  # not with asyncio.Runner, because it waits for threads of the loop that hang
            self._loop.run_until_complete(self._wait())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self.is_over = True
            self._loop.close()

    async def _wait(self) -> None:
        await self._stop.wait()
        with suppress(Exception):
            await self._last()
        with self._lock:
            self.is_over = True
        await asyncio.sleep(0)  # lets coroutines start that were given to the loop at the last moment
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def _result(future: Future[R]) -> R:
    while _POLL is not None and not wait([future], _POLL).done:
        pass
    return future.result()


class _LoopClient(AsyncClient):
    """The async client that does the work of a `weft.sync.Client`."""

    _opening = "with"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._iterations: weakref.WeakSet[AsyncGenerator[TaskState]] = weakref.WeakSet()  # those that have begun

    async def next_state(self, states: AsyncGenerator[TaskState]) -> TaskState | None:
        """Return the next state of an iteration over a task, or None at its end."""
        self._iterations.add(states)
        return await anext(states, None)

    async def close(self) -> None:
        """Close the iterations over tasks, whose parts the event loop would close in a wrong order; then close all."""
        for states in list(self._iterations):
            with suppress(RuntimeError):  # another thread waits for the next state
                await states.aclose()
        await super().close()


def _is_served_by(loop: asyncio.AbstractEventLoop, url: str) -> bool:
    """Return whether the server at `url` runs in `loop`. A blocking call from `loop` to such a server would never end.

    An event loop has no list of its servers, so all objects of the process are searched for asyncio and uvloop servers.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    for one in gc.get_objects():
        kind = cast("type[object]", type(one))
        if not (hasattr(kind, "sockets") and hasattr(kind, "get_loop")):
            continue
        with suppress(Exception):  # it may be an object of another class with attributes of these names
            bound = [end.getsockname()[:2] for end in one.sockets] if one.get_loop() is loop else []
            if any(at == (host, port) or (at[1:] == (port,) and is_loopback(host)) for at in bound):
                return True
    return False


def _blocking(
    verb: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]:
    """Return a method of `Client` that calls the async method `verb` and waits for its result."""

    @functools.wraps(verb)
    def call(self: Client, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            work = verb(self._asynchronous, *args, **kwargs)  # pyright: ignore[reportPrivateUsage] - a method of it
            return self._wait_for(work)  # pyright: ignore[reportPrivateUsage] - the same
        except WeftError as error:
            trim_traceback(error)
            raise

    return call  # type: ignore[return-value] # mypy: `self` could be given by its name


def _like(
    other: Callable[Concatenate[AsyncClient, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Client, P], R]]:
    """Return a decorator that gives a method the signature of the async method `other`."""

    def entitle(method: Callable[..., R]) -> Callable[Concatenate[Client, P], R]:
        return functools.wraps(other, assigned=())(method)

    return entitle


_call_tool: Callable[..., Any] = _blocking(AsyncClient.call_tool)
_start_tool: Callable[..., AsyncTaskHandle] = _blocking(AsyncClient.start_tool)


class Client:
    """A client for one server, for programs without asyncio. It has the parameters and methods of `weft.Client`.

    with Client(["uvx", "mcp-server-time"]) as client:
        print([tool.name for tool in client.list_tools()])
    """

    _asynchronous: _LoopClient  # the async client that does the work, on the loop of `_thread`

    @_like(AsyncClient.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._asynchronous = behind = _LoopClient(*args, **kwargs)
        self._url = behind._url  # pyright: ignore[reportPrivateUsage] - a class of this module
        self._close_seconds = behind._limits.close_seconds  # pyright: ignore[reportPrivateUsage] - the same
        # The last running event loop that was found not to serve the URL, so that it may be blocked.
        self._harmless: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._thread: _LoopThread | None = None  # started by the first call
        self._starting = threading.Lock()  # held while the thread is started
        self._finalizer: weakref.finalize[Any, Any] | None = None  # closes the client, also when the program ends

    def _wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the client's thread, and return its result."""
        try:
            self._check_loop()
        except UsageError:
            work.close()
            raise
        with self._starting:
            if self._thread is None:
                self._thread = _LoopThread(self._asynchronous.close, close_seconds=self._close_seconds)
                self._finalizer = weakref.finalize(self, self._thread.end)
        return self._thread.run(work)

    def _check_loop(self) -> None:
        """Raise UsageError if the server runs in the event loop of this thread.

        A blocking call would block this event loop, so the server could not answer.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._url is None or (self._harmless is not None and self._harmless() is loop):
            return
        if _is_served_by(loop, self._url):
            raise UsageError(
                f"{masked_url(self._url)} is served by the event loop that runs here, and weft.sync.Client would block "
                "it. Use `async with weft.Client(...)`; or call weft.sync.Client by `await asyncio.to_thread(...)`."
            )
        self._harmless = weakref.ref(loop)

    # --- opening and closing

    if not TYPE_CHECKING:  # so that type checkers report `async with Client(...)`

        async def __aenter__(self) -> Self:
            raise UsageError(
                "weft.sync.Client is opened by `with`; to await its calls, use `async with weft.Client(...)`."
            )

        async def __aexit__(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The client cannot be used again. Any thread can call this, and more than once."""
        if self._finalizer is not None:
            self._finalizer()

    @property
    def _is_closed(self) -> bool:
        return self._thread is not None and self._thread.is_over

    connect = _blocking(AsyncClient.connect)
    reconnect = _blocking(AsyncClient.reconnect)

    # --- the result of the negotiation

    @property
    def era(self) -> str:
        """The era (family of protocol versions) of this connection: "stateless" or "session"."""
        return self._asynchronous.era

    @property
    def protocol_version(self) -> str:
        """The protocol version of this connection, such as "2025-11-25"."""
        return self._asynchronous.protocol_version

    @property
    def server_info(self) -> Implementation | None:
        """The name and version of the server, or None if the server did not send them."""
        return self._asynchronous.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declared."""
        return self._asynchronous.server_capabilities

    @property
    def instructions(self) -> str | None:
        """The server's text on how to use its features, or None if the server did not send a text."""
        return self._asynchronous.instructions

    @property
    def transport(self) -> Transport:
        """The transport of this connection. If the server is a child process, the transport has `stderr` and `pid`."""
        return self._asynchronous.transport

    # --- requests

    @overload
    def call_tool(
        self, name: str, arguments: Arguments = None, *, result_type: None = None, **options: Unpack[CallOptions]
    ) -> ToolResult: ...

    @overload
    def call_tool(
        self, name: str, arguments: Arguments = None, *, result_type: type[R], **options: Unpack[CallOptions]
    ) -> R: ...

    @functools.wraps(AsyncClient.call_tool, assigned=())
    def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        """Call a tool and return its result; see `weft.Client.call_tool`."""
        try:
            return _call_tool(self, *args, **kwargs)
        except PendingQuestions as asked:
            if asked.task is not None:
                asked.task = self._handle(asked.task)
            raise

    @_like(AsyncClient.start_tool)
    def start_tool(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Call a tool, and return as soon as the server has answered with a task, or with the result.

        See `weft.Client.start_tool`.
        """
        return self._handle(_start_tool(self, *args, **kwargs))

    @_like(AsyncClient.task)
    def task(self, *args: Any, **kwargs: Any) -> TaskHandle:
        """Return a handle for a task that was started before, perhaps by another process. Sends nothing."""
        return self._handle(self._asynchronous.task(*args, **kwargs))

    def _handle(self, handle: AsyncTaskHandle) -> TaskHandle:
        return TaskHandle(handle, self._wait_for, self._asynchronous.next_state)

    complete = _blocking(AsyncClient.complete)
    get_prompt = _blocking(AsyncClient.get_prompt)
    list_prompts = _blocking(AsyncClient.list_prompts)
    list_prompts_page = _blocking(AsyncClient.list_prompts_page)
    list_resource_templates = _blocking(AsyncClient.list_resource_templates)
    list_resource_templates_page = _blocking(AsyncClient.list_resource_templates_page)
    list_resources = _blocking(AsyncClient.list_resources)
    list_resources_page = _blocking(AsyncClient.list_resources_page)
    list_tools = _blocking(AsyncClient.list_tools)
    list_tools_page = _blocking(AsyncClient.list_tools_page)
    notify = _blocking(AsyncClient.notify)
    ping = _blocking(AsyncClient.ping)
    read_resource = _blocking(AsyncClient.read_resource)
    request = _blocking(AsyncClient.request)
    roots_changed = _blocking(AsyncClient.roots_changed)
    set_log_level = _blocking(AsyncClient.set_log_level)

    @_like(AsyncClient.listen)
    def listen(self, *args: Any, **kwargs: Any) -> Listening:
        """Return an iterator over changes of the chosen lists and of the resources in `uris`.

        The arguments `tools`, `prompts` and `resources` choose the lists. Without any argument, all three are chosen.

        with client.listen(uris=["file:///log"]) as changes:
            for change in changes:
                ...
        """
        return Listening(self._asynchronous.listen(*args, **kwargs), self._wait_for, lambda: self._is_closed)


@dataclass(eq=False, repr=False)
class Listening:
    """An iterator over the changes of a server.

    `with` waits until the server has accepted the subscription. At the end of the block, the subscription is ended.
    """

    _listening: AsyncListening
    _wait_for: Callable[[Coroutine[Any, Any, Any]], Any]
    _is_closed: Callable[[], bool]  # returns whether the client is closed

    def __enter__(self) -> Self:
        self._wait_for(self._listening.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        change = self._unless_closed(self._next())
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """Stop listening, and end the subscription at the server."""
        self._unless_closed(self._listening.close())

    async def _next(self) -> Change | None:
        return await anext(self._listening, None)

    def _unless_closed(self, work: Coroutine[Any, Any, R]) -> R | None:
        """Run a coroutine and return its result. Return None if the coroutine fails because the client is closed."""
        try:
            return cast("R", self._wait_for(work))
        except (ConnectionFailed, UsageError):
            if not self._is_closed():
                raise
            return None


@dataclass(eq=False, repr=False)
class TaskHandle:
    """A call of a tool, which the server may have answered with a task. See `weft.client.TaskHandle`."""

    _handle: AsyncTaskHandle
    _wait_for: Callable[[Coroutine[Any, Any, Any]], Any]
    _next_state: Callable[[AsyncGenerator[TaskState]], Coroutine[Any, Any, TaskState | None]]

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def id(self) -> str | None:
        """The id of the task, to be stored; None if the server has answered with the result instead."""
        return self._handle.id

    @property
    def tool(self) -> str:
        """The name of the tool; "" if it is not known."""
        return self._handle.tool

    @property
    def immediate_response(self) -> str | None:
        """A text that the model may be told while the task runs, if the server has sent one."""
        return self._handle.immediate_response

    def status(self) -> TaskState:
        """Ask the server for the state of the task, once. Raises TaskEnded if the task does not exist any more."""
        return cast("TaskState", self._wait_for(self._handle.status()))

    def cancel(self) -> None:
        """Cancel the task. Do nothing if it has ended."""
        self._wait_for(self._handle.cancel())

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer questions of the task by their keys, if the client has `manual_input`."""
        self._wait_for(self._handle.answer(answers))

    @overload
    def result(
        self,
        *,
        result_type: None = None,
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult: ...

    @overload
    def result(
        self,
        *,
        result_type: type[R],
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> R: ...

    def result(self, **options: Any) -> Any:
        """Wait until the task has ended, answer its questions meanwhile, and return the result like `call_tool`."""
        try:
            return self._wait_for(self._handle.result(**options))
        except PendingQuestions as asked:
            asked.task = self
            raise
        except WeftError as error:
            trim_traceback(error)
            raise

    def __iter__(self) -> Iterator[TaskState]:
        """Yield each change of the state, and answer the questions of the task. The last state is final."""
        states = aiter(self._handle)
        try:
            while (state := self._wait_for(self._next_state(states))) is not None:
                yield state
        finally:
            # The client may be closed, or the iteration may still go on after Ctrl-C. Neither must hide another error.
            with suppress(WeftError, RuntimeError):
                self._wait_for(states.aclose())


class TaskStore:
    """Reports on tasks from programs without asyncio, such as a Celery worker. It has the methods of `weft.TaskStore`.

    tasks = TaskStore("redis://localhost:6379")
    if tasks.progress(task_id, 3, 10, "rendering"):
        tasks.complete(task_id, {"frames": 10})

    It connects with the first call, so it may be made in a module, before the program forks. Several threads can use it
    at the same time. `backend` is a URL, or a backend object that nothing else uses.
    """

    def __init__(self, backend: str | Backend, *, prefix: str = "weft:", limits: Limits = DEFAULT_LIMITS) -> None:
        from weft.server.tasks.store import TaskStore as AsyncTaskStore  # clients do not need the code of servers

        opened = open_backend(backend, prefix=prefix) if isinstance(backend, str) else backend
        check_backend(opened)
        if opened.is_local:
            raise UsageError(
                "weft.sync.TaskStore cannot use the memory of a server, which belongs to the server's event loop. Use "
                "`weft.TaskStore` there, or give both a backend that processes share, such as redis://localhost:6379."
            )
        self._asynchronous: AsyncTaskStore = AsyncTaskStore(opened, limits=limits)
        self._thread: _LoopThread | None = None  # started by the first call
        self._starting = threading.Lock()  # held while the thread is started
        self._finalizer: weakref.finalize[Any, Any] | None = None  # closes the store, also when the program ends

    def _wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the thread of the store, and return its result."""
        with self._starting:
            if self._thread is None:
                self._thread = _LoopThread(self._asynchronous.close, "task store")
                self._finalizer = weakref.finalize(self, self._thread.end)
        try:
            return self._thread.run(work)
        except WeftError as error:
            trim_traceback(error)
            raise

    def __enter__(self) -> Self:
        try:
            self._wait_for(self._asynchronous.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the backend. The store cannot be used again."""
        if self._finalizer is not None:
            self._finalizer()

    def status(self, id: str) -> TaskState | None:
        """Return the state of a task whose work was handed over; None if there is no such task, or it has expired."""
        return self._wait_for(self._asynchronous.status(id))

    def progress(self, id: str, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Show progress to the client. Return False if the task is not waiting any more, so that the work can stop."""
        return self._wait_for(self._asynchronous.progress(id, progress, total, message))

    def tell(self, id: str, message: str) -> bool:
        """Show a text to the client as the status of the task. Return False if the task is not waiting any more."""
        return self._wait_for(self._asynchronous.tell(id, message))

    def complete(self, id: str, result: Any = None) -> bool:
        """End a task with a result; see `weft.TaskStore.complete`. Return False if it is not waiting any more."""
        return self._wait_for(self._asynchronous.complete(id, result))

    def fail(self, id: str, error: str | Exception) -> bool:
        """End a task that has failed; see `weft.TaskStore.fail`. Return False if it is not waiting any more."""
        return self._wait_for(self._asynchronous.fail(id, error))

    @overload
    def ask(
        self, id: str, question: str, schema: type[R], *, key: str | None = None, timeout: float | None = None
    ) -> Elicitation[R]: ...

    @overload
    def ask(
        self, id: str, question: str, schema: Mapping[str, Any], *, key: str | None = None, timeout: float | None = None
    ) -> Elicitation[dict[str, Any]]: ...

    @overload
    def ask(self, id: str, question: InputRequest, *, key: str | None = None, timeout: float | None = None) -> Any: ...

    def ask(
        self, id: str, question: Any, schema: Any = None, *, key: str | None = None, timeout: float | None = None
    ) -> Any:
        """Ask the user, and wait for the answer; see `weft.TaskStore.ask`."""
        return self._wait_for(self._asynchronous.ask(id, question, schema, key=key, timeout=timeout))


@dataclass(frozen=True, slots=True)
class JoinedTool:
    """A tool with a name that is unique among the tools of several servers."""

    name: str  # such as `flights__book`
    tool: Tool  # the server's description; `tool.name` is the name that the server uses
    client: Client  # the client of the server that has the tool

    def call(self, arguments: Mapping[str, Any] | None = None, **options: Any) -> ToolResult:
        """Call the tool on its server. `options` are the keyword arguments of `Client.call_tool`."""
        result: ToolResult = self.client.call_tool(self.tool.name, arguments, **options)
        return result


def join_tools(clients: Mapping[str, Client]) -> dict[str, JoinedTool]:
    """Return the tools of several connected clients, by unique names such as `flights__book`.

    A unique name is the client's key in `clients`, then `__`, then the tool's name. Raises UsageError for an invalid
    key.

    tools = join_tools({"flights": flights, "hotels": hotels})
    tools["flights__book"].call({"flight": "LX38"})
    """
    found = [
        JoinedTool(joined_name(key, tool), tool, client)
        for key, client in clients.items()
        for tool in client.list_tools()
    ]
    return {joined.name: joined for joined in found}
