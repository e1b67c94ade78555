"""The end of a process that another program runs, such as `uvicorn api:app` with a server mounted in `api`.

A mounted app is told nothing of the end: Starlette and FastAPI do not pass lifespan events on to what is mounted in
them. It learns of it here, from the signal, by a handler in front of the one that the host has installed.

Two things have to happen. Streams that never end by themselves are ended, or a host that waits for open responses would
wait for them forever. And the lifespan needs time to be left: that happens when the event loop is closed, but uvicorn
ends its process by the same signal once more *before* it closes the loop. So SIGTERM is blocked from when it was heard
until the lifespan has been left; then the process ends by it, as its host wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["follow_host_signals"]

_held: set[asyncio.Task[Any]] = set()  # lifespans that have to be left before SIGTERM may end the process


def follow_host_signals(server: Server) -> None:
    """Close `server` when the host of this process is asked to end; do nothing where nobody handles SIGTERM."""
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGTERM)):
        return  # only the main thread can; and without a handler, the process is to end at once
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, _handler(server, before))


def _handler(server: Server, before: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
    def end(number: int, frame: FrameType | None) -> None:
        server.close_streams()
        task = server.lifespan.task
        if number == signal.SIGTERM and task is not None and not task.done():
            _hold(task)
        before(number, frame)

    return end


def _hold(task: asyncio.Task[Any]) -> None:
    """Do not let SIGTERM end the process before this task has ended."""
    if task not in _held and hasattr(signal, "pthread_sigmask"):
        _held.add(task)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        task.add_done_callback(_release)


def _release(task: asyncio.Task[Any]) -> None:
    _held.discard(task)
    if not _held:
        for stream in (sys.stdout, sys.stderr):  # what the lifespan has printed: the next line may be the last
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
