"""Close streams and the lifespan when the process that hosts the app is stopped by a signal.

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
_waiting: set[asyncio.Task[Any]] = set()  # lifespans that must exit, but have not begun to
_leaving: set[asyncio.Task[Any]] = set()  # lifespans that are exiting
_former: dict[int, Any] = {}  # signal handlers that `_note` has replaced
_noted: set[int] = set()  # signals that came while a lifespan was exiting
_blocked: set[int] = set()  # signals that Weft has blocked: SIGTERM, unless the host blocks it


def follow_host_signals(runtime: Runtime) -> None:
    """From now on, close the streams of a server when the host gets a signal.

    Do nothing in other threads than the main thread, because they cannot set signal handlers. Do nothing if the host
    has no handler for SIGTERM, because the signal then ends the process at once.
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
    """Close the streams, and then call the host's handler `before`."""
    for runtime in list(_runtimes):
        runtime.close_streams()
        with contextlib.suppress(RuntimeError):  # no loop runs
            runtime.open_calls.log_soon(asyncio.get_running_loop())
        task = runtime.lifespan.task
        if task is not None and not task.done():
            _wait_for(task)
    before(number, frame)


def _wait_for(task: asyncio.Task[Any]) -> None:
    """Delay the host's second SIGTERM until the lifespan in `task` begins to exit, or `task` has ended."""
    if task not in _waiting | _leaving:
        _waiting.add(task)
        task.add_done_callback(_release)
        _hold()


def _leave(task: asyncio.Task[Any]) -> None:
    """Delay SIGINT and SIGTERM until `task`, whose lifespan is exiting, has ended."""
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
    """Delay signals as long as a lifespan needs it, and end the delay when no lifespan does.

    While a lifespan exits, signals are recorded. When all have exited, restore the former signal handlers, and raise
    the recorded signals. Before a lifespan exits, SIGTERM is blocked (`_block`).
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
    """Block SIGTERM in this thread while any lifespan has not begun to exit, and unblock SIGTERM afterwards."""
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
    """Flush stdout and stderr, because the signal that comes next may end the process."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
