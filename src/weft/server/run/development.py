"""Find calls in async handlers that block the event loop, and warn with their place.

A callback on the loop records the time at regular intervals (the beat). A thread checks the recorded time. When the
beat stops, the thread reads the stack of the loop's thread, and warns once per handler and line of the user's code. In
debug mode the beat is fast, so that short calls are found too; otherwise it comes twice a second. In both modes,
handlers run at full speed.
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

BEAT_SECONDS, DEVELOPMENT_BEAT_SECONDS = 0.5, 0.05
BLOCKED_SECONDS, DEVELOPMENT_BLOCKED_SECONDS = 1.0, 0.25

_watched: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def watch_for_blocking(loop: asyncio.AbstractEventLoop, *, debug: bool) -> None:
    """Watch a loop for blocking calls until the loop is closed.

    Do nothing if the loop is watched already, or if this Python cannot show the stacks of threads.
    """
    if loop not in _watched and hasattr(sys, "_current_frames"):
        _watched.add(loop)
        seconds = (DEVELOPMENT_BEAT_SECONDS, DEVELOPMENT_BLOCKED_SECONDS) if debug else (BEAT_SECONDS, BLOCKED_SECONDS)
        _Watch(loop, *seconds).start()


class _Watch:
    """The beat on one loop, and the thread that checks it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, beat_seconds: float, blocked_seconds: float) -> None:
        self._loop = ref(loop)  # a weak reference, so that the thread does not keep a closed loop in memory
        self._context = Context()  # empty: else the beat would keep the context of the first request in memory
        self._beat_seconds = beat_seconds
        self._blocked_seconds = blocked_seconds
        self._thread = threading.get_ident()
        self._frames = sys._current_frames  # pyright: ignore[reportPrivateUsage] - documented
        self._beat = time.monotonic()
        self._warned: set[tuple[str, str, int]] = set()  # handler, file, line

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
                # Not in a variable: a frame keeps all objects in it alive.
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
    """Return the handler that blocks, and the file and number of the innermost line of the user's code.

    `frame` is the innermost frame of the stack. Return None if the stack contains no handler.
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
