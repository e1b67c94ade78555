"""Log a warning, with file and line, if a call in an async handler blocks the event loop.

A callback on the event loop records the time at regular intervals; this is called the beat. A thread checks the
recorded time. If the time is too old, the thread reads the stack of the loop's thread, and logs a warning, once per
handler and line of the user's code. In debug mode the interval is short, so that short blocking calls are found too.
Otherwise the interval is half a second. Handlers are not slowed down in either mode.
"""

from __future__ import annotations

import asyncio
import linecache
import logging
import sys
import threading
import time
from contextvars import Context
from types import FrameType
from weakref import WeakSet, ref

from weft.server.diagnostics import describe, is_users, short_path

log = logging.getLogger("weft.development")

# Interval of the beat, and the time without a beat after which a warning is logged: by default, and in debug mode.
BEAT_SECONDS, DEVELOPMENT_BEAT_SECONDS = 0.5, 0.05
BLOCKED_SECONDS, DEVELOPMENT_BLOCKED_SECONDS = 1.0, 0.25

_watched: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def watch_for_blocking(loop: asyncio.AbstractEventLoop, *, debug: bool) -> None:
    """Start a thread that logs warnings about calls that block an event loop. It ends when the loop is closed.

    With `debug`, shorter blocking calls are reported too. Do nothing if the loop is watched already, or if this Python
    does not have `sys._current_frames`.
    """
    if loop not in _watched and hasattr(sys, "_current_frames"):
        _watched.add(loop)
        seconds = (DEVELOPMENT_BEAT_SECONDS, DEVELOPMENT_BLOCKED_SECONDS) if debug else (BEAT_SECONDS, BLOCKED_SECONDS)
        _Watch(loop, *seconds).start()


class _Watch:
    """The callback that runs regularly on one event loop, and the thread that checks when the callback last ran."""

    def __init__(self, loop: asyncio.AbstractEventLoop, beat_seconds: float, blocked_seconds: float) -> None:
        self._loop = ref(loop)  # a weak reference, so that the thread does not keep a closed loop in memory
        self._context = Context()  # empty: otherwise the beat would keep the first request's context in memory
        self._beat_seconds = beat_seconds
        self._blocked_seconds = blocked_seconds
        self._thread = threading.get_ident()
        self._frames = sys._current_frames  # pyright: ignore[reportPrivateUsage] - documented
        self._beat = time.monotonic()
        self._warned: set[tuple[str, str, int]] = set()  # handler, file and line of each warning so far

    def start(self) -> None:
        self._tick()
        threading.Thread(target=self._check, name="weft-development", daemon=True).start()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        if (loop := self._loop()) is not None:
            loop.call_later(self._beat_seconds, self._tick, context=self._context)

    def _check(self) -> None:
        while self._is_alive():
            time.sleep(self._beat_seconds)
            if time.monotonic() - self._beat > self._blocked_seconds and self._is_alive():
                # Do not assign the frame to a variable: a frame keeps all its local objects alive.
                self._warn(self._frames().get(self._thread))

    def _is_alive(self) -> bool:
        loop = self._loop()
        return loop is not None and not loop.is_closed()

    def _warn(self, frame: FrameType | None) -> None:
        found = _find(frame)
        if found is None or found in self._warned:
            return
        self._warned.add(found)
        handler, file, line = found
        log.warning(
            "%s blocks the event loop at %s:%d: `%s` has not returned for %.2f s, and no other call is served "
            "meanwhile. Make it a plain `def` (it then runs in a thread), or await something that does not block.",
            handler,
            short_path(file),
            line,
            linecache.getline(file, line).strip(),
            time.monotonic() - self._beat,
        )


def _find(frame: FrameType | None) -> tuple[str, str, int] | None:
    """Return the handler that blocks, and the file and line number of the user's code where it blocks.

    `frame` is the innermost frame of the stack. Return None if the stack contains no handler or no code of the user.
    """
    place: tuple[str, int] | None = None
    handler: str | None = None
    while frame is not None:
        if place is None and is_users(frame.f_code.co_filename):
            place = (frame.f_code.co_filename, frame.f_lineno)
        name = frame.f_code.co_qualname
        if name == "RegisteredTool.invoke":
            handler = f"Tool {frame.f_locals['self'].name!r}"
        elif name in ("invoke", "Threads.call") and handler is None:
            handler = describe(frame.f_locals["fn"])
        frame = frame.f_back
    return None if place is None or handler is None else (handler, *place)
