"""Find calls in async handlers that block the event loop, and say where they are.

A beat on the loop and a thread that listens to it. When the beat stops, the thread looks at what the loop's own thread
is doing, and warns once per handler and line of the user's code. In development the beat is quick, so that short calls
are found too; otherwise it comes twice a second. Calls cost nothing either way.
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
    """Watch this loop until it is closed. The second time does nothing."""
    if loop not in _watched:
        _watched.add(loop)
        seconds = (DEVELOPMENT_BEAT_SECONDS, DEVELOPMENT_BLOCKED_SECONDS) if debug else (BEAT_SECONDS, BLOCKED_SECONDS)
        _Watch(loop, *seconds).start()


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop, beat_seconds: float, blocked_seconds: float) -> None:
        self._loop = ref(loop)  # a thread that sleeps must not keep a loop that is done with
        self._context = Context()  # or the beat would keep that of the request which it began with
        self._beat_seconds = beat_seconds
        self._blocked_seconds = blocked_seconds
        self._thread = threading.get_ident()
        self._beat = time.monotonic()
        self._told: set[tuple[str, str, int]] = set()

    def start(self) -> None:
        self._tick()
        threading.Thread(target=self._listen, name="weft-development", daemon=True).start()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        if (loop := self._loop()) is not None:
            loop.call_later(self._beat_seconds, self._tick, context=self._context)

    def _listen(self) -> None:
        while self._is_alive():
            time.sleep(self._beat_seconds)
            if time.monotonic() - self._beat > self._blocked_seconds and self._is_alive():
                # In no variable: a frame that is kept keeps all that is in it.
                self._tell(sys._current_frames().get(self._thread))  # pyright: ignore[reportPrivateUsage]

    def _is_alive(self) -> bool:
        loop = self._loop()
        return loop is not None and not loop.is_closed()

    def _tell(self, frame: FrameType | None) -> None:
        found = _find(frame)
        if found is None or found in self._told:
            return
        self._told.add(found)
        handler, file, line = found
        log.warning(
            "%s blocks the event loop at %s:%d: `%s` has not returned for %.2f s, and nobody else is served "
            "meanwhile. Make it a plain `def` (it then runs in a thread), or await something that does not block.",
            handler,
            short_path(file),
            line,
            linecache.getline(file, line).strip(),
            time.monotonic() - self._beat,
        )


def _find(frame: FrameType | None) -> tuple[str, str, int] | None:
    """What blocks, and the innermost line of the user's own code in it: file and number."""
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
