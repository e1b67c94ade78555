"""Close streams and exit the lifespan when a signal stops the program that hosts the app.

The host is another program, such as `uvicorn api:app` with a server mounted in `api`. Starlette and FastAPI do not pass
lifespan events on to mounted apps. So a signal handler is installed in front of the host's handler.

Two things have to be done when a signal comes. First, long-lived streams and unanswered questions must be ended,
because a host that waits for open responses would wait forever. Second, the lifespan needs time to exit. It exits when
the event loop is closed, but uvicorn raises the same signal once more *before* it closes the loop, and this second
signal would end the process. So signals are delayed in two steps:

- After the first signal, SIGTERM is blocked in the main thread, where uvicorn raises it.
- While a lifespan exits, SIGINT and SIGTERM are only recorded, in any thread: a terminal, a service manager and a
  supervisor of workers may each send a signal. When the lifespan has exited, the recorded signals are raised, and end
  the process as the host intended. A second SIGINT in this step ends the process at once: a person pressed Ctrl-C
  again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from weft.server.runtime.runtime import Runtime

_NUMBERS = (signal.SIGTERM, signal.SIGINT)  # in the order in which recorded signals are raised

_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()  # the servers whose streams are closed
_waiting: set[asyncio.Task[Any]] = set()  # tasks of lifespans that must exit, but have not begun to exit
_leaving: set[asyncio.Task[Any]] = set()  # tasks of lifespans that are exiting
_former: dict[int, Any] = {}  # signal handlers that `_note` has replaced
_noted: set[int] = set()  # signals that came while a lifespan was exiting
_blocked: set[int] = set()  # signals that Weft has blocked: SIGTERM, unless the host blocks it


def follow_host_signals(runtime: Runtime) -> None:
    """Install signal handlers that close the streams of a server, and then call the signal handlers of the host.

    Do nothing outside the main thread, because only the main thread can set signal handlers. Do nothing if the host has
    no handler for SIGTERM, because the signal then ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGTERM)):
        return  # only the main thread can set handlers; without the host's handler, a signal ends the process at once
    _runtimes.add(runtime)
    runtime.lifespan.on_leaving = _leave
    for number in _NUMBERS:
        before = signal.getsignal(number)
        if callable(before) and getattr(before, "func", None) is not _on_signal:
            signal.signal(number, partial(_on_signal, before))


def _on_signal(before: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
    """Handle a signal: close the streams of all servers, then call `before`, the signal handler of the host."""
    for runtime in list(_runtimes):
        runtime.close_streams()
        with contextlib.suppress(RuntimeError):  # no loop runs
            runtime.open_calls.log_soon(asyncio.get_running_loop())
        task = runtime.lifespan.task
        if task is not None and not task.done():
            _wait_for(task)
    before(number, frame)


def _wait_for(task: asyncio.Task[Any]) -> None:
    """Block SIGTERM until the lifespan that runs in `task` begins to exit, or `task` ends."""
    if task not in _waiting | _leaving:
        _waiting.add(task)
        task.add_done_callback(_release)
        _hold()


def _leave(task: asyncio.Task[Any]) -> None:
    """Delay SIGINT and SIGTERM until `task` has ended. Called when the lifespan that runs in `task` begins to exit."""
    if threading.current_thread() is threading.main_thread():
        _wait_for(task)
        _waiting.discard(task)
        _leaving.add(task)
        _hold()


def _release(task: asyncio.Task[Any]) -> None:
    _waiting.discard(task)
    _leaving.discard(task)
    _hold()


def _hold() -> None:
    """Start or end the delay of signals, depending on the lifespans that still have to exit.

    While a lifespan exits, signals are only recorded. When all lifespans have exited, the former signal handlers are
    restored, and the recorded signals are raised. Before a lifespan begins to exit, SIGTERM is blocked (`_block`).
    """
    if _leaving and not _former:
        _former.update({number: signal.signal(number, _note) for number in _NUMBERS})
    _block()
    if not _leaving and _former:
        for number, handler in _former.items():
            if signal.getsignal(number) is _note:  # else the host has set another handler meanwhile
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _former.clear()
        noted = [number for number in _NUMBERS if number in _noted]
        _noted.clear()
        for number in noted:
            _flush()
            signal.raise_signal(number)


def _block() -> None:
    """Block SIGTERM in this thread if a lifespan still has to begin its exit. Otherwise unblock SIGTERM."""
    if not hasattr(signal, "pthread_sigmask"):
        return
    if _waiting and not _blocked:
        _blocked.update({signal.SIGTERM} - signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))
    elif _blocked and not _waiting:
        _flush()
        signals = list(_blocked)
        _blocked.clear()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _note(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGINT and number in _noted:  # the second Ctrl-C: end the delay
        _waiting.clear()
        _leaving.clear()
        _hold()
    else:
        _noted.add(number)


def _flush() -> None:
    """Flush stdout and stderr, because the next signal may end the process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
