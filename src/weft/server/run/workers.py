"""Serve with several processes on one socket: a parent process that opens the socket, and its workers.

The parent passes the socket to all workers. Each worker loads the server's file and accepts connections. The parent
replaces a worker that dies. If a worker cannot start, the parent stops all workers. A worker ends when the parent ends,
even if the parent is killed: the worker's stdin is a pipe whose other end only the parent has.

The parent starts a worker as `python -m weft.server.run.workers JSON`.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any

import msgspec

from weft.backends.memory import MemoryBackend
from weft.errors import StartError, UsageError
from weft.server.run.listening import HttpOptions, bind
from weft.server.run.loading import Target, load
from weft.server.run.running import (
    INTERRUPTED,
    announce,
    end_child,
    on_signals,
    print_notice,
    serve_http,
    set_up_logging,
)

if TYPE_CHECKING:
    from weft.server.run.engine import Engine


log = logging.getLogger("weft.workers")

CANNOT_START = 3  # exit code of a worker that cannot start; it is not replaced, because a new one would fail too
WATCH_SECONDS = 0.1  # time between two checks of the workers
RESTART_SECONDS = 1.0  # shortest time between the start of a worker and the start of its replacement


class WorkerOrder(msgspec.Struct):
    """The command-line argument of a worker, sent as JSON: the server to load, and the options for serving."""

    target: Target
    options: HttpOptions
    fd: int  # file descriptor of the socket that listens
    debug: bool


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


def run_workers(engine: Engine, options: HttpOptions, target: Target) -> None:
    """Serve over HTTP with several worker processes until this process is stopped. Each worker loads `target`."""
    if os.name != "posix":
        raise StartError("This system cannot pass a socket to other processes, so workers= must be 1: leave it out.")
    settled = settle_sessions(engine, options)

    def started() -> None:
        announce(engine, options, listener)
        if options.sessions is None and not settled.sessions and any(era.remembers for era in engine.eras):
            print_notice(
                "Clients that open with a handshake are served without sessions, since workers do not know each "
                "other's: they cannot be asked, and are not notified of changes. To have sessions, use one worker or a "
                "shared backend=; sessions=False (--no-sessions) leaves this line out."
            )

    with contextlib.closing(bind(options.host, options.port)) as listener:
        order = WorkerOrder(target, settled, listener.fileno(), engine.debug)
        _WorkerSupervisor(order, listener, drain=engine.limits.drain_seconds).run(started)


def settle_sessions(engine: Engine, options: HttpOptions) -> HttpOptions:
    """Return a copy of `options` in which `sessions` is True or False, not None.

    If `options.sessions` is None, the value is False for several workers without a shared backend, and True in all
    other cases. Raises StartError if the options require sessions, but the workers share no backend.
    """
    are_shared = options.workers <= 1 or not isinstance(engine.backend, MemoryBackend)
    if not are_shared and (options.sessions or options.sse_path is not None):
        raise StartError(
            f"sessions=True or sse_path= is not possible with workers={options.workers}: each worker has its own "
            "memory. Use one worker, or give the server a backend= that the workers share."
        )
    return msgspec.structs.replace(options, sessions=are_shared if options.sessions is None else options.sessions)


class _WorkerSupervisor:
    """Starts the worker processes, replaces workers that die, and stops all workers at the end."""

    def __init__(self, order: WorkerOrder, listener: socket.socket, drain: float) -> None:
        self._order = order
        self._listener = listener
        self._drain = drain
        self._workers: list[tuple[subprocess.Popen[bytes], float]] = []  # each process with its start time
        # The client may send the answer to a question to another worker, so all workers need the key of `requestState`.
        self._environment = {**os.environ, "WEFT_STATE_KEY": os.environ.get("WEFT_STATE_KEY") or os.urandom(32).hex()}
        self._stopping = False

    def run(self, started: Callable[[], None]) -> None:
        with on_signals(self._stop):
            try:
                self._workers = [self._start_worker() for _ in range(self._order.options.workers)]
                started()
                while not self._stopping:
                    time.sleep(WATCH_SECONDS)
                    self._workers = [self._check_worker(*worker) for worker in self._workers]
            finally:
                self._stop_workers()

    def _start_worker(self) -> tuple[subprocess.Popen[bytes], float]:
        command = [sys.executable, "-m", "weft.server.run.workers", msgspec.json.encode(self._order).decode()]
        worker = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
            command, stdin=subprocess.PIPE, pass_fds=[self._order.fd], env=self._environment
        )
        return worker, time.monotonic()

    def _check_worker(self, worker: subprocess.Popen[bytes], since: float) -> tuple[subprocess.Popen[bytes], float]:
        code = worker.poll()
        if code is None or self._stopping:
            return worker, since
        if code == CANNOT_START:
            raise StartError("A worker could not start; the reason is printed above.")
        if time.monotonic() - since < RESTART_SECONDS:
            return worker, since
        log.warning("worker %d ended with code %d and is replaced", worker.pid, code)
        _close_pipe(worker)
        return self._start_worker()

    def _stop(self, _signal: int, _frame: Any) -> None:
        if self._stopping:
            for worker, _ in self._workers:
                worker.kill()
            os._exit(INTERRUPTED)
        self._stopping = True

    def _stop_workers(self) -> None:
        """Stop all workers, and wait until they have ended.

        Workers that still run three seconds after the end of `drain_seconds` are killed.
        """
        self._stopping = True
        self._listener.close()  # otherwise new clients would wait for a worker that never accepts them
        for worker, _ in self._workers:
            if worker.poll() is None:
                worker.terminate()
        until = time.monotonic() + self._drain + 3
        for worker, _ in self._workers:
            end_child(worker, until - time.monotonic())
            _close_pipe(worker)


def _close_pipe(worker: subprocess.Popen[bytes]) -> None:
    if worker.stdin is not None:
        worker.stdin.close()


def main(text: str) -> int:
    """Run one worker process, and return its exit code. `text` is a `WorkerOrder` as JSON."""
    order = msgspec.json.decode(text, type=WorkerOrder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which then stops this worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        engine = load(order.target).engine
        set_up_logging(order.options.log_level)  # after `load`, because the file may set up logging itself
        engine.debug = engine.debug or order.debug
        with socket.socket(fileno=order.fd) as listener:
            serve_http(engine, order.options, listener, lambda: None)
    except UsageError as error:
        print_notice(str(error))
        return CANNOT_START
    return 0


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent is gone
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
