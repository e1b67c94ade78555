"""Run a server: from `server.run()` to the end of the process.

This room owns the loop, the log, Ctrl-C and the exit code. The transports know nothing of processes, and this knows
nothing of messages. `run` owns the process; `serve` runs in a loop of the user, and leaves its signals and threads.

The first Ctrl-C (or SIGTERM) lets HTTP requests finish for `limits.drain_seconds`, and `run` returns, so the exit code
is 0; a second one ends the process at once with 130. A server that cannot start ends with 1 and says why.
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
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from weft.errors import StartError, UsageError
from weft.server.diagnostics import (
    caller,
    check_kind,
    check_options,
    show_mistakes_plainly,
    summary_of,
    user_frames,
)
from weft.server.run.listening import (
    BACKLOG,
    HttpOptions,
    bind,
    check_exposure,
    check_workers,
    raise_descriptors,
    try_line,
    url_of,
    warn_of_proxy,
    warn_of_scopes,
)
from weft.server.run.loading import Target, is_loading, warn_of_nothing

if TYPE_CHECKING:
    import uvicorn

    from weft.server.run.engine import Engine


BEAT_SECONDS, DEVELOPMENT_BEAT_SECONDS = 0.5, 0.05

BLOCKED_SECONDS, DEVELOPMENT_BLOCKED_SECONDS = 1.0, 0.25

_watched: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


log = logging.getLogger("weft.running")

KEEP_ALIVE_SECONDS = 60  # an idle connection; longer than the pauses of a client, shorter than those of a proxy

INTERRUPTED = 130  # the exit code of who was asked to end a second time

MOST_FRAMES = 8

THREAD_SECONDS = 0.25  # that threads get to end by themselves

# Libraries whose debug lines have what we mask on the wire, or are of no use to who debugs a server.
_CHATTY = (
    *("aiohttp", "anyio", "asyncio", "asyncpg", "botocore", "charset_normalizer", "fsspec", "google", "grpc", "h11"),
    *("h2", "hpack", "httpcore", "httpx", "kombu", "markdown_it", "multipart", "openai", "anthropic", "opentelemetry"),
    *("paramiko", "PIL", "pymongo", "python_multipart", "redis", "requests", "s3transfer", "sse_starlette", "urllib3"),
    *("boto3", "azure", "watchfiles", "websockets"),
)

_Transport = Literal["stdio", "http"]

# What others call the transports.
_CALLED_HERE = {
    "streamable-http": "'http'",
    "streamablehttp": "'http'",
    "https": "'http'",
    "sse": "'http', with sse_path='/sse'",
    "std-io": "'stdio'",
    "stdin": "'stdio'",
}


class CannotStart(StartError, SystemExit):
    """A StartError that, if nobody catches it, ends the process with its sentence and code 1 instead of a traceback."""

    def __init__(self, sentence: str) -> None:
        SystemExit.__init__(self, sentence)


def run(engine: Engine, transport: _Transport = "stdio", **options: Any) -> None:
    """Serve until stopped. The options are those of `HttpOptions`.

    Within a file that `weft run` or a worker loads this does nothing: whoever loads the file serves it.
    """
    if is_loading():
        return
    show_mistakes_plainly()
    given = _read_options("server.run", transport, options)
    _refuse_within_loop(transport)
    try:
        start(engine, transport, given)
    except StartError as error:
        raise CannotStart(str(error)) from None


async def serve(engine: Engine, transport: _Transport = "stdio", **options: Any) -> None:
    """Serve until cancelled, in the loop that runs. HTTP requests get the time to finish that `run` gives them."""
    if is_loading():
        return
    given = _read_options("server.serve", transport, options)
    _prepare(engine, transport, given, is_guest=True)
    if given.workers > 1:
        raise StartError("server.serve has one worker, that of the loop it runs in; leave workers= out, or use run().")
    if transport == "stdio":
        from weft.server.stdio.stdio import serve_stdio

        async with _visit(engine):
            await serve_stdio(engine)
    else:
        with contextlib.closing(bind(given.host, given.port)) as listener:
            async with _visit(engine):
                await _serve_as_guest(engine, given, listener)


@contextlib.asynccontextmanager
async def _visit(engine: Engine) -> AsyncGenerator[None]:
    """Serve as a guest. The last one stops the server: others may serve it too, elsewhere in this loop."""
    engine.guests += 1
    try:
        yield
    finally:
        engine.guests -= 1
        if not engine.guests:
            await engine.stop()


def _read_options(what: str, transport: str, options: Mapping[str, Any]) -> HttpOptions:
    check_options(what, options, HttpOptions.__struct_fields__)
    for name, example in (("host", "127.0.0.1"), ("path", "/mcp"), ("log_level", "info")):
        if name != "log_level" or options.get(name) is not None:
            check_kind(name, options.get(name, example), str, repr(example))
    wrong = next((name for name in options if name != "log_level"), None)
    if transport == "stdio" and wrong is not None:
        raise UsageError(
            f"{what}() serves on stdio, where {wrong}= means nothing ({caller()}). Write "
            f"{what}('http', {wrong}=...), or leave it out."
        )
    return HttpOptions(**options)


def _refuse_within_loop(transport: str) -> None:
    """A loop that runs already, as in an async `main` or a notebook, cannot have another one started in it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    call = "serve('http')" if transport == "http" else "serve()"
    raise StartError(
        f"server.run() starts an event loop of its own, and one is running here already. Write `await server.{call}` "
        "instead, or call run() outside of async functions."
    )


def start(
    engine: Engine,
    transport: _Transport,
    options: HttpOptions,
    target: Target | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve until stopped; raises `StartError` where `run` ends the process.

    `target` is what workers load; without it the main script is searched. `listener` is a socket that
    listens already; without it one is opened.
    """
    _prepare(engine, transport, options)
    if transport == "stdio":
        _run_loop(engine, _serve_stdio(engine))
    elif options.workers > 1:
        from weft.server.run.workers import run_workers, target_of

        run_workers(engine, options, target or target_of(engine))
    else:
        with contextlib.closing(listener or bind(options.host, options.port)) as listener:
            serve_http(engine, options, listener, lambda: announce(engine, options, listener))


def _prepare(engine: Engine, transport: str, options: HttpOptions, *, is_guest: bool = False) -> None:
    """What is looked at and said before anything is served."""
    set_up_logging(options.log_level, transport, is_guest=is_guest)
    engine.completions.check()
    if transport == "stdio":
        from weft.server.stdio.stdio import check_pipes

        check_pipes()
        warn_of_nothing(engine)
        if os.isatty(0):  # a person, not a client
            say(f"Weft serves {engine.name!r} on stdio: an MCP client starts this and talks to it. Ctrl-C stops.")
            say("To serve over HTTP instead: weft run FILE --http")
    elif transport == "http":
        check_workers(options.workers)
        check_exposure(options)
        warn_of_scopes(engine)
        warn_of_proxy(engine, options)
    else:
        known = _CALLED_HERE.get(str(transport).lower().replace("_", "-"))
        meant = f" It is called {known} here." if known else ""
        raise StartError(f"There is no transport {transport!r}; write run() or run('stdio'), or run('http').{meant}")


async def _serve_stdio(engine: Engine) -> None:
    from weft.server.stdio.stdio import serve_stdio

    try:
        await serve_stdio(engine)
    finally:
        await engine.stop()


def serve_http(engine: Engine, options: HttpOptions, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve on a socket that listens already; `started` is called when requests are taken."""
    raise_descriptors()
    http = _http_server(engine, options, started)

    async def serve() -> None:
        await engine.lifespan.start()  # here, so that its failure is told like any other
        _calm_collector()
        await http.serve(sockets=[listener])

    _run_loop(engine, serve())


async def _serve_as_guest(engine: Engine, options: HttpOptions, listener: socket.socket) -> None:
    http = _http_server(engine, options, lambda: announce(engine, options, listener), is_guest=True)
    await engine.lifespan.start()
    task = asyncio.create_task(http.serve(sockets=[listener]), name="weft-http")
    try:
        await asyncio.shield(task)  # uvicorn, cancelled itself, would drop the requests that are being served
    except asyncio.CancelledError:
        http.should_exit = True
        try:
            await task
        except asyncio.CancelledError:  # asked a second time
            await _abandon(http)
        raise


async def _abandon(http: uvicorn.Server) -> None:
    """Let go of all that uvicorn has not ended itself: the loop is not ours, and would go on with it."""
    for server in getattr(http, "servers", ()):  # there from when it has started
        server.close()
    for connection in list(http.server_state.connections):
        connection.transport.abort()
    if tasks := list(http.server_state.tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)


def _http_server(
    engine: Engine, options: HttpOptions, started: Callable[[], None], *, is_guest: bool = False
) -> uvicorn.Server:
    """What serves HTTP. As a guest it leaves the process's signals alone."""
    import uvicorn

    class HttpServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if engine.guests > 1:  # others serve the same streams and calls
                await super().shutdown(sockets)
                return
            engine.subscriptions.close()  # or the drain would wait for streams that never end
            engine.sessions.end_streams()
            draining = asyncio.create_task(engine.open_calls.drain(engine.limits.drain_seconds), name="weft-drain")
            try:
                await super().shutdown(sockets)
            finally:
                draining.cancel()

        def capture_signals(self) -> Any:
            return contextlib.nullcontext() if is_guest else super().capture_signals()

        def handle_exit(self, sig: int, frame: Any) -> None:
            """Unlike uvicorn's: a stop that was asked for is no failure, and the second request for it is obeyed."""
            if self.should_exit and sig == signal.SIGINT:
                os._exit(INTERRUPTED)
            self.should_exit = True

    logging.getLogger("uvicorn.error").addFilter(_is_news)
    # A guest may not be the only one: see `_visit`.
    return HttpServer(_uvicorn_config(engine, options, "off" if is_guest else "on"))


def _calm_collector() -> None:
    """Look for garbage less often. What is loaded by now stays, and a request leaves next to nothing to search for:
    at Python's default of 700 objects, the search is a twentieth of the time that a busy server spends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _is_news(record: logging.LogRecord) -> bool:
    """Of requests that are given up at the end of the drain uvicorn would log how many, and a traceback each; of
    streams that are cut, that they were not completed. We have logged which, and why.
    """
    is_given_up = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    text = record.getMessage()
    is_known = text.startswith("ASGI callable returned without completing response") or (
        text.startswith("Cancel ") and text.endswith("timeout graceful shutdown exceeded")
    )
    return not is_given_up and not is_known


def _uvicorn_config(engine: Engine, options: HttpOptions, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    import uvicorn

    from weft.server.http.uvicorn_protocol import guarded_protocol

    app = engine.app(
        options.path,
        allowed_hosts=options.allowed_hosts,
        allowed_origins=options.allowed_origins,
        sessions=options.sessions is not False,
        sse_path=options.sse_path,
        trusted_proxies=options.trusted_proxies,
        cors=options.cors,
    )
    app.follows_host = False  # we are the host
    drain = engine.limits.drain_seconds
    return uvicorn.Config(
        app,  # an ASGI app by its own spelling of the types
        http=guarded_protocol(engine.limits),
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # R14: what a peer says of its address is not believed
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # Longer than calls have: they are ended before (`OpenCalls.drain`), and need a moment to tell their clients.
        timeout_graceful_shutdown=None if math.isinf(drain) else math.ceil(drain) + 1,
        h11_max_incomplete_event_size=engine.limits.header_bytes,
    )


def set_up_logging(level: str | None, transport: str = "http", *, is_guest: bool = False) -> None:
    """Let the log reach stderr: Weft's own and the app's, from a level on.

    By default that is `info` over HTTP, which has a line for each call, as HTTP servers do; and `warning` on stdio,
    where hosts show what is on stderr as problems. At `debug`, libraries that are known to write much stay at `info`:
    what they write of requests is not masked. A program that has arranged its logging itself is left alone, but for a
    level that was asked for. As a guest, only Weft's own log is shown: the rest is the program's.
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
    for logger in (own, logging.getLogger("uvicorn")) if is_guest else (root,):
        logger.addHandler(handler)
        logger.setLevel(chosen)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, names[chosen]))  # below, it says nothing of use
    for name in _CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:  # else the program has chosen one
            logger.setLevel(max(logging.INFO, names[chosen]))


def say(text: str) -> None:
    """Tell the person who started it. On stderr, since stdout may be the protocol's."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stderr, or it is closed
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the one place that talks to a person


def announce(engine: Engine, options: HttpOptions, listener: socket.socket) -> None:
    """Say where the server is, and what to try."""
    warn_of_nothing(engine)
    url = url_of(options, listener)
    say(f"Weft serves {engine.name!r} at {url} (Ctrl-C stops)")
    if line := try_line(engine, url):
        say(f"Try: {line}")


# The loop.


def _run_loop(engine: Engine, main: Coroutine[Any, Any, None]) -> None:
    """Run `main` to its end, whatever other tasks raise, and leave without waiting for threads that hang."""
    loop = _new_loop()
    task = loop.create_task(main)
    try:
        with on_signals(_canceller(task)):
            _run_to_end(loop, task)
    except asyncio.CancelledError:
        pass  # Ctrl-C
    except StartError:
        raise
    except Exception as error:  # noqa: BLE001 - told in a sentence, as every failure to start
        raise StartError(_failure(engine, error)) from None
    finally:
        _close(loop)
    _leave()


def _run_to_end(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    while True:
        try:
            return loop.run_until_complete(task)  # type: ignore[no-any-return] # of no use
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            # Not ours: asyncio lets these two out of any task, and a handler may have started one (R1).
            log.error("a background task raised %s; the server goes on", type(error).__name__)  # noqa: TRY400 - no trace


def _new_loop() -> asyncio.AbstractEventLoop:
    if find_spec("uvloop") is not None:
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _canceller(task: asyncio.Task[None]) -> Callable[[int, Any], None]:
    """What to do on signals: the first cancels the task, the second ends the process."""
    asked = False

    def stop(_signal: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            os._exit(INTERRUPTED)
        asked = True
        task.get_loop().call_soon_threadsafe(task.cancel)

    return stop


@contextlib.contextmanager
def on_signals(stop: Callable[[int, Any], None]) -> Generator[None]:
    """Have `stop` called when the process is asked to end. Only the main thread can arrange that; others go without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop as `asyncio.run` does, but wait a second at most, and not for threads."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _run_to_end(loop, loop.create_task(asyncio.wait(tasks, timeout=1)))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _leave() -> None:
    """Do not let a plain function that still runs in its thread keep the process: nobody wants its result any more."""
    working = [thread for thread in threading.enumerate() if thread.name.startswith(("weft_", "asyncio_"))]
    until = time.monotonic() + THREAD_SECONDS
    for thread in working:
        thread.join(max(0, until - time.monotonic()))
    stuck = [thread for thread in working if thread.is_alive()]
    if stuck and threading.current_thread() is threading.main_thread():
        log.warning("%d plain function(s) did not return and were abandoned", len(stuck))
        sys.stderr.flush()
        os._exit(0)


def _failure(engine: Engine, error: Exception) -> str:
    frames = user_frames(error)[-MOST_FRAMES:]
    return "\n".join([f"{engine.name!r} stopped: {summary_of(error)}"[:600], *(f"  {frame}" for frame in frames)])
