"""Serve with several processes on one socket: a parent process that opens the socket, and its workers.

The parent passes the socket to all workers. Each worker loads the server's file and accepts connections. Unless the
server has a backend that other machines use too, the workers share the memory of the parent (`weft.backends.socket`).
So a session lives on when its worker ends, and any worker serves it.

- The parent replaces a worker that dies. If a worker cannot start, and no other worker serves, the parent stops.
- SIGTERM and Ctrl-C stop all workers. Open requests may finish before. A second Ctrl-C kills the workers.
- SIGHUP replaces the workers one after another. A new worker loads the file again. As soon as it accepts connections,
  an old worker stops, so that no connection is refused. If the new worker cannot start, or hangs while it starts, the
  old workers go on serving.
  The parent itself does not change: a new release of Weft, and new options, need a restart of everything.

The parent starts a worker as `python -m weft.server.run.workers JSON`. The two have a control socket: the worker sends
a byte when it accepts connections, or the reason why it cannot start. The parent sends a byte when the server will stop
soon. When the parent ends, even if it is killed, the control socket is closed, and the worker stops. A worker that
hangs then is ended by the thread that watches the control socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from weft.backends import open_backend, set_default
from weft.backends.memory import MemoryBackend
from weft.backends.socket import BackendServer, SocketBackend
from weft.errors import StartError, UsageError
from weft.server.run.listening import HttpOptions, bind
from weft.server.run.loading import Target, load
from weft.server.run.running import (
    GRACE_SECONDS,
    announce,
    log_draining,
    on_signals,
    run_loop,
    serve_http,
    set_up_logging,
)

if TYPE_CHECKING:
    from weft.server.run.engine import Engine


log = logging.getLogger("weft.workers")

CANNOT_START = 3  # exit code of a worker that cannot start
WATCH_SECONDS = 0.1  # time between two checks of the workers
RESTART_SECONDS = 1.0  # shortest time between the start of a worker and the start of its replacement
KILL_SECONDS = 3.0  # a worker that still runs for so long after it should have ended is killed
START_SECONDS = 300.0  # when workers are replaced, a new worker that does not accept connections by then is killed
_VERSION: str = sys.modules["weft"].__version__
_BACKEND_URL = "WEFT_WORKER_BACKEND"  # environment variable of a worker: the URL of `weft run --backend`
_BYTE = b"\n"  # on a control socket, from a worker that accepts connections; from the parent when all will stop soon


class WorkerOrder(msgspec.Struct):
    """The command-line argument of a worker, sent as JSON: the server to load, and the options for serving."""

    target: Target
    options: HttpOptions
    debug: bool
    listener: int  # file descriptor of the socket that listens
    control: int  # file descriptor of the control socket
    backend: int | None  # file descriptor of the socket to the memory of the parent, if the workers share it
    version: str  # release of Weft in the parent
    has_made_key: bool = False  # whether the parent has made the key in WEFT_STATE_KEY, for its workers only


def target_of(engine: Engine) -> Target:
    """Return the target for workers: the running script, its variable that has the server, and its arguments.

    Raises StartError if no global variable of the script has the server.
    """
    script = sys.modules["__main__"]
    file = getattr(script, "__file__", None)
    for name, value in vars(script).items():
        if value is engine.owner and file is not None:
            return Target(f"{file}:{name}", arguments=tuple(sys.argv[1:]))
    raise StartError("Each worker loads the server itself, so it has to be a global variable of the script.")


def run_workers(engine: Engine, options: HttpOptions, target: Target, backend_url: str | None = None) -> None:
    """Serve over HTTP with several worker processes until this process is stopped. Each worker loads `target`.

    `backend_url` is the URL of the default backend, if it is not in the environment.
    """
    if os.name != "posix":
        raise StartError("This system cannot pass a socket to other processes, so workers= must be 1: leave it out.")
    shares_memory = _shares_memory(engine, options)
    with contextlib.closing(bind(options.host, options.port)) as listener:
        order = WorkerOrder(target, options, engine.debug, listener.fileno(), -1, None, _VERSION)
        supervisor = _Supervisor(order, listener, engine, shares_memory=shares_memory, backend_url=backend_url)
        how = f"process {os.getpid()}; Ctrl-C stops, SIGHUP replaces the workers"
        main = supervisor.run(lambda: announce(engine, options, listener, how))
        run_loop(engine, main, supervisor.on_signal)


def _shares_memory(engine: Engine, options: HttpOptions) -> bool:
    """Return whether the workers share the memory of this process: the server has no other backend to share.

    Raises StartError if the program has given the server a backend that only one process can use.
    """
    if not engine.backend.is_local:
        return False
    if engine.has_own_backend:
        raise StartError(
            f"workers={options.workers} is not possible with a backend= in memory: each worker would have its own. "
            "Leave backend= out: the workers then share the memory of the process that starts them."
        )
    return True


@dataclass(eq=False)
class _Worker:
    """A worker process, as its parent sees it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    started: float  # monotonic time
    is_ready: bool = False  # whether it accepts connections
    reason: bytes = b""  # why it cannot start

    @property
    def code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self.process.poll()

    @property
    def serves(self) -> bool:
        """Whether it accepts connections now."""
        return self.is_ready and self.code is None


class _Supervisor:
    """Starts the worker processes, replaces workers that die, and stops all workers at the end."""

    def __init__(
        self,
        order: WorkerOrder,
        listener: socket.socket,
        engine: Engine,
        *,
        shares_memory: bool,
        backend_url: str | None = None,
    ) -> None:
        self._order = order
        self._listener = listener
        self._notice_seconds = engine.limits.drain_notice_seconds
        self._end_seconds = _end_seconds(engine)
        self._backend = BackendServer(MemoryBackend()) if shares_memory else None
        self._environment = dict(os.environ)
        if shares_memory and not os.environ.get("WEFT_STATE_KEY"):
            # The client may send the answer to a question to another worker, so all need the key of `requestState`.
            self._environment["WEFT_STATE_KEY"] = os.urandom(32).hex()
            order.has_made_key = True
        if backend_url is not None:
            # In the environment: other users can see the command line of a process, and the URL may have a password.
            self._environment[_BACKEND_URL] = backend_url
        self._workers: list[_Worker] = []  # those that serve, or are about to
        self._running: set[_Worker] = set()  # these, and others that start or end
        self._changed = asyncio.Event()  # set when a worker is ready, or has closed its control socket
        self._stopped_by: int | None = None  # the first signal to stop
        self._is_restart_due = False  # whether SIGHUP has come, and the workers are not being replaced yet
        self._restarting: asyncio.Task[None] | None = None
        self._had_terminal = _has_terminal()

    async def run(self, started: Callable[[], None]) -> None:
        """Run the workers until this task is cancelled. Call `started` when all of them accept connections."""
        with on_signals({signal.SIGHUP: self._on_hangup}):
            try:
                self._workers = [self._start_worker() for _ in range(self._order.options.workers)]
                while not all(worker.is_ready for worker in self._workers):
                    self._check_workers()
                    await self._wait()
                started()
                while True:
                    self._check_workers(is_started=True)
                    if self._is_restart_due and (self._restarting is None or self._restarting.done()):
                        self._is_restart_due = False
                        self._restarting = asyncio.create_task(self._replace_all(), name="weft-restart")
                    await self._wait()
            finally:
                await self._stop_workers()

    def _start_worker(self) -> _Worker:
        ours = contextlib.ExitStack()  # the sockets of this process, closed if the worker cannot be started
        with ours, contextlib.ExitStack() as its:  # the sockets of the worker
            control, its_control = socket.socketpair()
            ours.enter_context(control)
            its.enter_context(its_control)
            order = msgspec.structs.replace(self._order, control=its_control.fileno())
            passed = [order.listener, order.control]
            backend: socket.socket | None = None
            if self._backend is not None:
                backend, its_backend = socket.socketpair()
                ours.enter_context(backend)
                its.enter_context(its_backend)
                order.backend = its_backend.fileno()
                passed.append(order.backend)
            command = [sys.executable, "-m", "weft.server.run.workers", msgspec.json.encode(order).decode()]
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
                command, stdin=subprocess.DEVNULL, pass_fds=passed, env=self._environment
            )
            ours.pop_all()
        if self._backend is not None and backend is not None:
            self._backend.serve(backend, cut=process.kill)
        worker = _Worker(process, control, time.monotonic())
        control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._read_control, worker)
        self._running.add(worker)
        return worker

    def _try_start_worker(self) -> _Worker | None:
        """Start a worker while others serve. Return None if that is not possible now, and log the reason."""
        try:
            return self._start_worker()
        except OSError as error:  # too many processes or files, or too little memory
            log.error("A worker cannot be started now: %s", error)  # noqa: TRY400 - no trace
            return None

    def _read_control(self, worker: _Worker) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = worker.control.recv(4096)
        if said == _BYTE:
            worker.is_ready = True
        elif said:
            worker.reason += said
        else:  # it ends
            asyncio.get_running_loop().remove_reader(worker.control)
        self._changed.set()

    def _reason(self, worker: _Worker) -> str:
        """Return why a worker that has ended could not start."""
        with contextlib.suppress(OSError):  # nothing more to read
            while said := worker.control.recv(4096):
                worker.reason += said
        return worker.reason.decode("utf-8", "replace") or "A worker could not start."

    async def _wait(self) -> None:
        """Wait until a worker is ready, but not longer than until the next check of the workers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_SECONDS):
                await self._changed.wait()
        self._changed.clear()

    def _check_workers(self, *, is_started: bool = False) -> None:
        """Replace the workers that have ended, but not sooner than a second after their start.

        Raises StartError if a worker cannot start, unless another worker serves. It then is tried again.
        """
        for number, worker in enumerate(self._workers):
            code = worker.code
            if code == CANNOT_START and not (is_started and any(other.serves for other in self._workers)):
                raise StartError(self._reason(worker))
            if code is not None and time.monotonic() - worker.started >= RESTART_SECONDS:
                if code == CANNOT_START:
                    log.error("Worker %d could not start: %s", worker.process.pid, self._reason(worker))
                log.warning("worker %d ended with code %d and is replaced", worker.process.pid, code)
                worker.started = time.monotonic()  # if the next line fails, it is tried again in a second
                if (new := self._try_start_worker()) is not None:
                    self._forget(worker)
                    self._workers[number] = new

    async def _replace_all(self) -> None:
        """Replace the workers one after another by new ones, which load the server's file again."""
        log.info("The workers are replaced, one after another.")
        for old in list(self._workers):
            if old not in self._workers:
                continue  # it has died, and its replacement has loaded the file already
            new = self._try_start_worker()
            if new is None or not await self._is_ready_in_time(new):
                log.error(
                    "The new worker could not start, so the old workers go on serving. Correct this, and send SIGHUP "
                    "again: %s",
                    "see above." if new is None or new.code != CANNOT_START else self._reason(new),
                )
                if new is not None:
                    self._forget(new)
                return
            if old in self._workers:
                self._workers[self._workers.index(old)] = new
                await self._end(old)
            else:  # it has died, and was replaced
                await self._end(new)
        log.info("All workers are new now.")

    async def _is_ready_in_time(self, worker: _Worker) -> bool:
        """Wait until a new worker accepts connections. Return False if it has ended. Kill it if it takes too long."""
        while not worker.is_ready and worker.code is None:
            if time.monotonic() - worker.started > START_SECONDS:
                log.error("The new worker did not accept connections within %g s and was killed.", START_SECONDS)
                worker.process.kill()
                worker.process.wait()
                return False
            await self._wait()
        return worker.is_ready

    # Stopping.

    def on_signal(self, number: int) -> None:
        """Kill all workers if Ctrl-C comes after a first signal. The first signal cancels the task of `run`."""
        if self._stopped_by is None:
            self._stopped_by = number
        elif number == signal.SIGINT:
            for worker in self._running:
                worker.process.kill()

    def _on_hangup(self, _signal: int, _frame: Any) -> None:
        if self._had_terminal and not _has_terminal():  # the user has closed the terminal
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._is_restart_due = True

    async def _stop_workers(self) -> None:
        """Stop all workers, and wait until they have ended. Workers that do not end in time are killed."""
        if self._restarting is not None:
            self._restarting.cancel()
        for worker in self._running:
            with contextlib.suppress(OSError):  # it has ended
                worker.control.send(_BYTE)
        if self._stopped_by == signal.SIGTERM and self._notice_seconds:
            log_draining(self._notice_seconds)
            await asyncio.sleep(self._notice_seconds)
        self._listener.close()  # otherwise new clients would wait for a worker that never accepts them
        await self._end(*self._running)
        if self._backend is not None:
            self._backend.close()

    async def _end(self, *workers: _Worker) -> None:
        for worker in workers:
            worker.process.terminate()
        until = time.monotonic() + self._end_seconds
        while any(worker.code is None for worker in workers) and time.monotonic() < until:
            await self._wait()
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            self._forget(worker)

    def _forget(self, worker: _Worker) -> None:
        asyncio.get_running_loop().remove_reader(worker.control)
        worker.control.close()
        self._running.discard(worker)


def _end_seconds(engine: Engine) -> float:
    """Return the time within which a worker ends after SIGTERM. Then it has hung."""
    return engine.limits.drain_seconds + GRACE_SECONDS + KILL_SECONDS


def _has_terminal() -> bool:
    return any(map(os.isatty, (0, 1, 2)))


# In a worker.


def main(text: str) -> int:
    """Run one worker process, and return its exit code. `text` is a `WorkerOrder` as JSON."""
    order = msgspec.json.decode(text, type=WorkerOrder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which then stops this worker
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the same if the user closes the terminal
    served: list[Engine] = []
    control = _inherited(order.control)
    threading.Thread(target=_follow_parent, args=(control, served), daemon=True).start()
    try:
        if order.version != _VERSION:
            raise StartError(
                f"Weft {_VERSION} was installed while {order.version} is running. Stop it, and start it again."
            )
        url = os.environ.pop(_BACKEND_URL, None)  # processes that the file or a tool starts must not have it
        if order.backend is not None:
            set_default(SocketBackend(_inherited(order.backend)))
        elif url is not None:
            set_default(open_backend(url))
        listener = _inherited(order.listener)  # before the file is loaded, which may start processes
        engine = load(order.target).engine
        served.append(engine)
        if order.has_made_key:
            os.environ.pop("WEFT_STATE_KEY", None)  # the server has read it, and processes of a tool must not have it
        set_up_logging(order.options.log_level)  # after `load`, because the file may set up logging itself
        engine.debug = engine.debug or order.debug
        with listener:
            serve_http(engine, order.options, listener, lambda: control.sendall(_BYTE), is_worker=True)
    except UsageError as error:
        with contextlib.suppress(OSError):  # the parent has ended
            control.sendall(str(error).encode())
        return CANNOT_START
    return 0


def _inherited(descriptor: int) -> socket.socket:
    """Return a socket that the parent has passed on. Processes that this worker starts do not get it."""
    inherited = socket.socket(fileno=descriptor)
    inherited.set_inheritable(False)
    return inherited


def _follow_parent(control: socket.socket, served: list[Engine]) -> None:
    """Note when the parent says that the server will stop soon, and stop this process when the parent has ended."""
    with contextlib.suppress(OSError):
        while control.recv(1):
            for engine in served:
                engine.draining = True
    log.warning("The process that started this worker is gone, so this worker stops.")
    os.kill(os.getpid(), signal.SIGTERM)
    until = time.monotonic() + max(map(_end_seconds, served), default=KILL_SECONDS)
    while time.monotonic() < until:  # it may be infinite, which `sleep` does not accept
        time.sleep(WATCH_SECONDS)
    log.error("This worker did not stop in time, and is ended.")
    os._exit(1)  # its event loop is blocked, such as by a tool


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
