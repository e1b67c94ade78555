"""The end of a process that another program runs, such as `uvicorn api:app` with a server mounted in `api`.

A mounted app is told nothing of the end: Starlette and FastAPI do not pass lifespan events on to what is mounted in
them. It learns of it here, from the signal, by a handler in front of the one that the host has installed.

Two things have to happen. Streams that never end by themselves are ended, and so are questions that cannot be answered
any more, or a host that waits for open responses would wait for them forever. And the lifespan needs time to be left:
that happens when the event loop is closed, but uvicorn ends its process by the same signal once more *before* it closes
the loop. So signals are held back in two steps:

- From when one was heard, SIGTERM is blocked in the main thread, to which uvicorn sends it.
- While a lifespan is being left, SIGINT and SIGTERM are only noted, whichever thread the system gives them to: a
  terminal, a service manager and a supervisor of workers may all send one. Then the process ends by them, as its host
  wanted. SIGINT for the second time in this step is obeyed at once: a person does not want to wait any longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from weft.server.runtime.runtime import Runtime

_NUMBERS = (signal.SIGTERM, signal.SIGINT)  # those that were noted are raised in this order

_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()  # that are told when the process is asked to end
_waiting: set[asyncio.Task[Any]] = set()  # lifespans that have to be left, but are not yet about to be
_leaving: set[asyncio.Task[Any]] = set()  # lifespans that are being left
_former: dict[int, Any] = {}  # the handlers in whose place `_note` stands
_noted: set[int] = set()  # signals that came meanwhile
_blocked: set[int] = set()  # what we have blocked in the main thread: SIGTERM, unless it was already


def follow_host_signals(runtime: Runtime) -> None:
    """Close the streams of a server when the host is asked to end; do nothing where SIGTERM has no handler."""
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGTERM)):
        return  # only the main thread can; and without a handler, the process is to end at once
    _runtimes.add(runtime)
    runtime.lifespan.on_leaving = _leave
    for number in _NUMBERS:
        before = signal.getsignal(number)
        if callable(before) and not isinstance(before, _InFront):
            signal.signal(number, _InFront(before))


class _InFront:
    """A handler of signals in front of the host's."""

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for runtime in list(_runtimes):
            runtime.close_streams()
            with contextlib.suppress(RuntimeError):  # no loop runs
                runtime.open_calls.log_soon(asyncio.get_running_loop())
            task = runtime.lifespan.task
            if task is not None and not task.done():
                _wait_for(task)
        self._before(number, frame)


def _wait_for(task: asyncio.Task[Any]) -> None:
    """Do not let the host end the process before this task has ended."""
    if task not in _waiting | _leaving:
        _waiting.add(task)
        task.add_done_callback(_release)
        _hold()


def _leave(task: asyncio.Task[Any]) -> None:
    """Do not let anybody end the process before this task, which leaves its lifespan, has ended."""
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
    """Hold signals back as those that wait or leave need it; let go of them where no one does."""
    if _leaving and not _former:
        _former.update({number: signal.signal(number, _note) for number in _NUMBERS})
    _block()
    if not _leaving and _former:
        for number, handler in _former.items():
            if signal.getsignal(number) is _note:  # else the host has put another one there
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _former.clear()
        noted = [number for number in _NUMBERS if number in _noted]
        _noted.clear()
        for number in noted:
            _flush()
            signal.raise_signal(number)


def _block() -> None:
    """Block SIGTERM in this thread as long as somebody waits."""
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
    if number == signal.SIGINT and number in _noted:  # obeyed: nothing is held any more
        _waiting.clear()
        _leaving.clear()
        _hold()
    else:
        _noted.add(number)


def _flush() -> None:
    """Write out what the lifespan has printed: the next line may be the last."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
