"""Run a server: the event loop, logging, signals and the exit code.

`run` creates an event loop and handles signals. `serve` runs in the user's event loop, and leaves signals and threads
unchanged.

After the first Ctrl-C (or SIGTERM), open HTTP requests may finish, for at most `limits.drain_seconds`. Then `run`
returns, so the exit code is 0. A second Ctrl-C ends the process at once with exit code 130. If a server cannot start,
the process prints the reason and ends with exit code 1.

Deployments stop a process with SIGTERM, and other processes take over its clients. So after SIGTERM, the server accepts
connections for another `limits.drain_notice_seconds`, while `engine.draining` tells load balancers to choose another
process. Then it accepts none, and the next answer on each open connection has `Connection: close`. Only connections
without any request in the next `GRACE_SECONDS` are closed while the client might be about to send one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from weft.errors import StartError, UsageError
from weft.server.diagnostics import caller, check_options, shorten_tracebacks, summary_of, user_frames
from weft.server.run import listening
from weft.server.run.listening import HttpOptions
from weft.server.run.loading import Target, is_loading, warn_of_empty_server

if TYPE_CHECKING:
    import uvicorn

    from weft.server.run.engine import Engine


log = logging.getLogger("weft.running")

KEEP_ALIVE_SECONDS = 60  # how long an idle HTTP connection stays open: longer than most clients pause

INTERRUPTED = 130  # exit code after a second Ctrl-C

MOST_FRAMES = 8  # most frames of the user's code in a message

GRACE_SECONDS = 1.0  # how long idle connections stay open after SIGTERM

THREAD_SECONDS = 0.25  # how long to wait at the end for threads that still run

# Libraries whose debug messages contain secrets that Weft masks in its own messages, or do not help to debug a server.
_CHATTY = (
    *("aiohttp", "anyio", "asyncio", "asyncpg", "botocore", "charset_normalizer", "fsspec", "google", "grpc", "h11"),
    *("h2", "hpack", "httpcore", "httpx", "kombu", "markdown_it", "multipart", "openai", "anthropic", "opentelemetry"),
    *("paramiko", "PIL", "pymongo", "python_multipart", "redis", "requests", "s3transfer", "sse_starlette", "urllib3"),
    *("boto3", "azure", "watchfiles", "websockets"),
)

_LOOK_SECONDS = 0.02  # time between two looks at the connections that are still open

_Transport = Literal["stdio", "http"]
_SignalHandler = Callable[[int, Any], None]

# Names of transports in other SDKs, and what to write in Weft instead.
_TRANSPORT_ALIASES = {"streamable-http": "'http'", "sse": "'http', with sse_path='/sse'"}


class CannotStart(StartError, SystemExit):
    """A StartError that is also a SystemExit: if not caught, Python prints the message and exits with code 1."""

    def __init__(self, sentence: str) -> None:
        SystemExit.__init__(self, sentence)


def run(engine: Engine, transport: _Transport = "stdio", **options: Any) -> None:
    """Serve on stdio or over HTTP until the process is stopped. `options` are the fields of `HttpOptions`.

    Do nothing while `weft run` or a worker loads the file that calls `run`, because the program that loads a file also
    serves it.
    """
    if is_loading():
        return
    shorten_tracebacks()
    given = _read_options("server.run", transport, options)
    _refuse_within_loop(transport)
    try:
        start(engine, transport, given)
    except StartError as error:
        raise CannotStart(str(error)) from None


async def serve(engine: Engine, transport: _Transport = "stdio", **options: Any) -> None:
    """Serve on stdio or over HTTP in the running event loop, until this coroutine is cancelled.

    After the cancellation, open HTTP requests get the same time to finish as in `run`.
    """
    if is_loading():
        return
    given = _read_options("server.serve", transport, options)
    _prepare(engine, transport, given, in_users_loop=True)
    if given.workers > 1:
        raise StartError("server.serve has one worker: the process of the loop. Leave workers= out, or use run().")
    if transport == "stdio":
        await _serve(engine)
    else:
        with listening.bind(given.host, given.port) as listener:
            http = _http_server(engine, given, lambda: announce(engine, given, listener))
            await _serve(engine, _serve_http(engine, http, listener, _Stopping()))


def _read_options(what: str, transport: str, options: Mapping[str, Any]) -> HttpOptions:
    check_options(what, options, HttpOptions.__struct_fields__)
    host = options.get("host", "")
    if not isinstance(host, str):
        raise UsageError(f"host= is a str, not {type(host).__name__} ({caller()}). Write host='127.0.0.1'.")
    wrong = next((name for name in options if name != "log_level"), None)
    if transport == "stdio" and wrong is not None:
        raise UsageError(
            f"{what}() serves on stdio, where {wrong}= means nothing ({caller()}). Write "
            f"{what}('http', {wrong}=...), or leave it out."
        )
    return HttpOptions(**options)


def _refuse_within_loop(transport: str) -> None:
    """Raise StartError if an event loop is running already, for example in an async `main` or a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    call = "serve('http')" if transport == "http" else "serve()"
    raise StartError(
        f"server.run() starts an event loop, and one is running here already. Write `await server.{call}` "
        "instead, or call run() outside of async functions."
    )


def start(
    engine: Engine,
    transport: _Transport,
    options: HttpOptions,
    target: Target | None = None,
    listener: socket.socket | None = None,
    backend_url: str | None = None,
) -> None:
    """Serve until the process is stopped. Unlike `run`, raise StartError instead of ending the process.

    `target` is the server that workers load. Default: the main script, and its variable that has the server. `listener`
    is a socket that already listens. Default: a new socket. `backend_url` is the URL that was passed to `set_default`:
    workers do the same with it.
    """
    _prepare(engine, transport, options)
    if transport == "stdio":
        run_loop(engine, _serve(engine))
    elif options.workers > 1:
        from weft.server.run.workers import run_workers, target_of

        run_workers(engine, options, target or target_of(engine), backend_url)
    else:
        with listener or listening.bind(options.host, options.port) as listener:
            serve_http(engine, options, listener, lambda: announce(engine, options, listener))


def _prepare(engine: Engine, transport: str, options: HttpOptions, *, in_users_loop: bool = False) -> None:
    """Set up logging, check the options, and print advice for the user, before the server starts.

    Raises StartError if the server cannot start with these options, and RegistrationError if a completion function is
    for a prompt, template or argument that does not exist. `in_users_loop` is passed to `set_up_logging`.
    """
    set_up_logging(options.log_level, transport, in_users_loop=in_users_loop)
    engine.completions.check()
    if transport == "stdio":
        from weft.server.stdio.stdio import check_pipes

        check_pipes()
        warn_of_empty_server(engine)
        if os.isatty(0):  # a person, not a client
            print_notice(f"Weft serves {engine.name!r} on stdio, for an MCP client that starts it. Ctrl-C stops.")
            print_notice("To serve over HTTP instead: weft run FILE --http")
    elif transport == "http":
        listening.check_workers(options.workers)
        listening.check_exposure(options)
        listening.warn_of_scopes(engine)
        listening.warn_of_proxy(engine, options)
    else:
        known = _TRANSPORT_ALIASES.get(str(transport).lower().replace("_", "-"))
        meant = f" It is called {known} here." if known else ""
        raise StartError(f"There is no transport {transport!r}; write run() or run('stdio'), or run('http').{meant}")


class _Stopping(msgspec.Struct):
    """How a server ends. By default it ends as soon as its open requests are answered."""

    notice_seconds: float = 0.0  # how long the server still accepts connections
    grace_seconds: float = 0.0  # how long idle connections stay open after that


def serve_http(
    engine: Engine,
    options: HttpOptions,
    listener: socket.socket,
    started: Callable[[], None],
    *,
    is_worker: bool = False,
) -> None:
    """Serve over HTTP on the socket `listener` until stopped. Call `started` as soon as requests are accepted.

    A worker gives no notice before it stops: its parent does, or starts another worker in its place.
    """
    listening.raise_descriptors()
    stopping = _Stopping()

    def begin() -> None:
        # Collect garbage less often. The objects that exist now live as long as the process, and a request leaves
        # almost no garbage. With Python's default threshold, a busy server would spend 5 % of its time on it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        started()

    def on_signal(number: int) -> None:
        if number == signal.SIGTERM:
            stopping.grace_seconds = GRACE_SECONDS
            stopping.notice_seconds = 0.0 if is_worker else engine.limits.drain_notice_seconds
        if not is_worker:
            engine.draining = True

    http = _http_server(engine, options, begin, stopping)
    run_loop(engine, _serve(engine, _serve_http(engine, http, listener, stopping)), on_signal)


async def _serve(engine: Engine, http: Coroutine[Any, Any, None] | None = None) -> None:
    """Await `http`, which serves over HTTP, or serve on stdio if `http` is None.

    Several calls of this function may run at the same time. When the last of them ends, it stops the engine.
    """
    from weft.server.stdio.stdio import serve_stdio

    engine.serving += 1
    try:
        await (http or serve_stdio(engine))
    finally:
        engine.serving -= 1
        if not engine.serving:
            await engine.stop()


async def _serve_http(engine: Engine, http: uvicorn.Server, listener: socket.socket, stopping: _Stopping) -> None:
    """Serve with uvicorn until cancelled. Then wait until uvicorn has finished the open requests.

    A second cancellation aborts the open requests.
    """
    await engine.lifespan.start()  # here, so that an error in the lifespan is reported like any other error
    task = asyncio.create_task(http.serve(sockets=[listener]), name="weft-http")
    try:
        await asyncio.shield(task)  # if uvicorn itself were cancelled, it would drop open requests
    except asyncio.CancelledError:
        if stopping.notice_seconds:  # after a signal: there is no second cancellation
            log_draining(stopping.notice_seconds)
            await asyncio.sleep(stopping.notice_seconds)
        http.should_exit = True
        try:
            await task
        except asyncio.CancelledError:  # cancelled a second time
            await _abort_connections(http)
        raise


def log_draining(seconds: float) -> None:
    """Log that the server will stop, and still accepts connections for some seconds."""
    log.info("Draining: /readyz answers 503, and new connections are accepted for another %g s.", seconds)


async def _let_clients_leave(http: uvicorn.Server, seconds: float) -> None:
    """Accept no connections, let the next answer on each connection be its last, and wait until all have ended.

    A client that gets `Connection: close` with an answer sends its next request on another connection. Without it, the
    client might send a request at the moment in which the server closes the connection. Wait at most `seconds`.
    """
    from weft.server.http.uvicorn_protocol import CLOSE_FIELD

    state: Any = getattr(http, "server_state", None)
    fields: Any = getattr(state, "default_headers", None)  # of the answers to all requests that arrive from now on
    if fields is None:
        return
    for server in getattr(http, "servers", ()):
        server.close()
    closing = state.default_headers = [*fields, CLOSE_FIELD]
    for connection in state.connections:
        cycle: Any = getattr(connection, "cycle", None)  # the last request that has arrived
        if not getattr(cycle, "response_started", True):
            cycle.default_headers = closing
    until = time.monotonic() + seconds
    while state.connections and time.monotonic() < until:  # noqa: ASYNC110 - only when the server stops
        await asyncio.sleep(_LOOK_SECONDS)


async def _abort_connections(http: uvicorn.Server) -> None:
    """Abort all open connections and requests of uvicorn, which would otherwise continue in the user's event loop."""
    state = getattr(http, "server_state", None)
    for server in getattr(http, "servers", ()):  # uvicorn sets this attribute when it starts
        server.close()
    for connection in list(getattr(state, "connections", ())):
        connection.transport.abort()
    if tasks := list(getattr(state, "tasks", ())):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)


def _http_server(
    engine: Engine, options: HttpOptions, started: Callable[[], None], stopping: _Stopping | None = None
) -> uvicorn.Server:
    """Create a uvicorn server that calls `started` when it begins to accept requests.

    The server does not handle signals, and does not run the lifespan.
    """
    import uvicorn

    class HttpServer(uvicorn.Server):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            if not hasattr(uvicorn.Server, "startup"):  # the socket listens already
                started()
            await super().serve(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if engine.serving > 1:  # other running `serve` calls use the same streams
                await super().shutdown(sockets)
                return
            engine.subscriptions.close()  # otherwise uvicorn would wait for streams that never end
            engine.sessions.end_streams()
            draining = asyncio.create_task(engine.open_calls.drain(engine.limits.drain_seconds), name="weft-drain")
            handing_over = asyncio.create_task(engine.hand_over(), name="weft-hand-over")
            try:
                if stopping is not None and stopping.grace_seconds:
                    since = time.monotonic()
                    await _let_clients_leave(self, stopping.grace_seconds)
                    if self.config.timeout_graceful_shutdown is not None:  # open requests have waited meanwhile
                        self.config.timeout_graceful_shutdown -= int(time.monotonic() - since)
                await super().shutdown(sockets)
            finally:
                draining.cancel()
                handing_over.cancel()  # `engine.stop` waits for the rest

        def capture_signals(self) -> Any:
            return contextlib.nullcontext()

    logging.getLogger("uvicorn.error").addFilter(_is_worth_logging)
    return HttpServer(_uvicorn_config(engine, options))


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False if a log record of uvicorn is about requests that Weft has ended and logged itself, else True.

    When `drain_seconds` are over, uvicorn logs the number of cancelled requests, and a traceback for each. For a stream
    that Weft closed early, uvicorn logs that the response is not complete.
    """
    is_given_up = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    text = record.getMessage()
    is_known = text.startswith("ASGI callable returned without completing response") or (
        text.startswith("Cancel ") and text.endswith("timeout graceful shutdown exceeded")
    )
    return not is_given_up and not is_known


def _uvicorn_config(engine: Engine, options: HttpOptions) -> uvicorn.Config:
    import uvicorn

    from weft.server.http.uvicorn_protocol import guarded_protocol

    app = engine.app(options)
    app.follows_host = False  # `_run_loop`, or the user's program, handles the signals
    drain = engine.limits.drain_seconds
    protocol = guarded_protocol(engine.limits)
    if protocol is None:
        log.warning(
            "This release of uvicorn (%s) is not known to Weft. Its connections are served without Weft's limits for "
            "slow and greedy clients. Install a newer release of Weft, or an older one of uvicorn.",
            uvicorn.__version__,
        )
    return uvicorn.Config(
        app,
        http=protocol or "auto",
        ws="none",
        lifespan="off",  # `_serve_http` starts it, because several `serve` calls share one
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a client could write any address there; `trusted_proxies` handles them
        server_header=False,
        backlog=listening.BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # One second longer than `OpenCalls.drain`, which cancels the calls: their responses must still be sent.
        timeout_graceful_shutdown=None if math.isinf(drain) else math.ceil(drain) + 1,
        h11_max_incomplete_event_size=engine.limits.header_bytes,
    )


def set_up_logging(level: str | None, transport: str = "http", *, in_users_loop: bool = False) -> None:
    """Set up logging to stderr, for Weft and for the user's program. Raise StartError if `level` is unknown.

    Over HTTP, the default level is `info`, which logs a line for each call, as HTTP servers do. On stdio, it is
    `warning`, because hosts show all lines on stderr as problems. At level `debug`, libraries that log a lot stay at
    `info`, because Weft does not mask the secrets in their messages.

    If the program has configured logging itself, only the level of Weft's logger is changed, and only if `level` is
    given. With `in_users_loop`, only the loggers of Weft and uvicorn are set up.
    """
    chosen = (level or ("warning" if transport == "stdio" else "info")).upper()
    names: Any = logging.getLevelNamesMapping()
    if chosen not in names:
        raise StartError(f"log_level={level!r} is not known; choose debug, info, warning, error or critical.")
    root, own = logging.getLogger(), logging.getLogger("weft")
    if root.handlers or own.handlers:
        if level is not None:
            own.setLevel(chosen)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    for logger in (own, logging.getLogger("uvicorn")) if in_users_loop else (root,):
        logger.addHandler(handler)
        logger.setLevel(chosen)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, names[chosen]))  # its info messages do not help
    for name in _CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:  # otherwise the program has chosen a level
            logger.setLevel(max(logging.INFO, names[chosen]))


def end_child(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a child process ends. Kill the process if it still runs after `seconds`."""
    try:
        child.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def print_notice(text: str) -> None:
    """Print a line for the user on stderr, because stdout may carry the messages of the protocol."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stderr, or it is closed
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the one place that prints


def announce(engine: Engine, options: HttpOptions, listener: socket.socket, how: str = "Ctrl-C stops") -> None:
    """Print the URL of the server, its backend, and a command to try it. Log a warning if the server has no features.

    `how` says how to control the server.
    """
    warn_of_empty_server(engine)
    url = listening.url_of(options, listener)
    print_notice(f"Weft serves {engine.name!r} at {url}{listening.for_hosts(options)} ({how})")
    if not engine.backend.is_local:
        print_notice(f"Backend: {getattr(engine.whole_backend, 'shown', type(engine.whole_backend).__name__)}")
    if line := listening.try_line(engine, url, listening.needed_host(options, url)):
        print_notice(f"Try: {line}")


# The loop.


def run_loop(
    engine: Engine, main: Coroutine[Any, Any, None], on_signal: Callable[[int], None] = lambda _: None
) -> None:
    """Run `main` in a new event loop until it returns, or until Ctrl-C. Raise StartError if `main` raises an exception.

    `on_signal` is called with each SIGINT and SIGTERM, before the signal takes effect. A background task that raises
    SystemExit or KeyboardInterrupt does not stop `main`. If sync handlers still run in threads at the end, the process
    ends without waiting for them.
    """
    loop = _new_loop()
    task = loop.create_task(main)
    try:
        stop = _canceller(task, on_signal)
        with on_signals({signal.SIGINT: stop, signal.SIGTERM: stop}):
            _run_to_end(loop, task)
    except asyncio.CancelledError:
        pass  # Ctrl-C
    except StartError:
        raise
    except Exception as error:  # noqa: BLE001 - reported in a sentence, like every failure to start
        frames = (f"  {frame}" for frame in user_frames(error)[-MOST_FRAMES:])
        raise StartError("\n".join([f"{engine.name!r} stopped: {summary_of(error)}"[:600], *frames])) from None
    finally:
        _close(loop)
    _abandon_threads()


def _run_to_end(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    while True:
        try:
            return loop.run_until_complete(task)  # type: ignore[no-any-return] # the result is not used
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            # Another task raised the exception, for example a task that a handler started: asyncio re-raises it here.
            log.error("a background task raised %s; the server goes on", type(error).__name__)  # noqa: TRY400 - no trace


def _new_loop() -> asyncio.AbstractEventLoop:
    if find_spec("uvloop") is not None:
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _canceller(task: asyncio.Task[None], on_signal: Callable[[int], None]) -> _SignalHandler:
    """Return a signal handler. The first signal cancels `task`. After that, Ctrl-C ends the process at once."""
    asked = False

    def stop(number: int, _frame: Any) -> None:
        nonlocal asked
        on_signal(number)
        if asked:
            if number == signal.SIGINT:
                os._exit(INTERRUPTED)
            return
        asked = True
        task.get_loop().call_soon_threadsafe(task.cancel)

    return stop


@contextlib.contextmanager
def on_signals(handlers: Mapping[int, _SignalHandler]) -> Generator[None]:
    """Return a context in which these functions handle signals. Outside of the main thread, it has no effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close the event loop as `asyncio.run` does, but wait at most a second for tasks, and do not wait for threads."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _run_to_end(loop, loop.create_task(asyncio.wait(tasks, timeout=1)))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _abandon_threads() -> None:
    """End the process if sync handlers still run in threads after a short wait.

    The server has stopped, so the results of these handlers are not needed.
    """
    working = [
        thread for thread in threading.enumerate() if thread.name.startswith(("weft_", "weft-task_", "asyncio_"))
    ]
    until = time.monotonic() + THREAD_SECONDS
    for thread in working:
        thread.join(max(0, until - time.monotonic()))
    stuck = [thread for thread in working if thread.is_alive()]
    if stuck and threading.current_thread() is threading.main_thread():
        log.warning("%d plain function(s) did not return and were abandoned", len(stuck))
        sys.stderr.flush()
        os._exit(0)
