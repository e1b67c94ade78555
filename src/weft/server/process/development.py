"""For development: finds calls in tools that block the event loop, and says where they are.

A beat on the loop and a thread that listens to it. When the beat stops, the thread looks at what the loop's own thread
is doing, and warns once per tool and line of the user's code. Nothing of this runs unless the server's `debug` is on.
"""

from __future__ import annotations

import asyncio
import linecache
import logging
import sys
import threading
import time
from types import FrameType
from weakref import WeakSet

from weft.server.where import is_users, short_path

__all__ = ["watch_for_blocking"]

log = logging.getLogger("weft.development")

BEAT_SECONDS = 0.05
BLOCKED_SECONDS = 0.25

_watched: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def watch_for_blocking(loop: asyncio.AbstractEventLoop) -> None:
    """Watch this loop until it is closed. The second time does nothing."""
    if loop not in _watched:
        _watched.add(loop)
        _Watch(loop).start()


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._beat = time.monotonic()
        self._told: set[tuple[str, str, int]] = set()

    def start(self) -> None:
        self._tick()
        threading.Thread(target=self._listen, name="weft-development", daemon=True).start()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self._loop.call_later(BEAT_SECONDS, self._tick)

    def _listen(self) -> None:
        while not self._loop.is_closed():
            time.sleep(BEAT_SECONDS)
            if time.monotonic() - self._beat > BLOCKED_SECONDS and self._loop.is_running():
                frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - another thread's stack
                self._tell(frames.get(self._thread))

    def _tell(self, frame: FrameType | None) -> None:
        found = _find(frame)
        if found is None or found in self._told:
            return
        self._told.add(found)
        tool, file, line = found
        log.warning(
            "Tool %r blocks the event loop at %s:%d: `%s` has not returned for %.2f s, and nobody else is served "
            "meanwhile. Make it a plain `def` (it then runs in a thread), or await something that does not block.",
            tool,
            short_path(file),
            line,
            linecache.getline(file, line).strip(),
            time.monotonic() - self._beat,
        )


def _find(frame: FrameType | None) -> tuple[str, str, int] | None:
    """The tool that blocks, and the innermost line of the user's own code in it: file and number."""
    place: tuple[str, int] | None = None
    while frame is not None:
        if place is None and is_users(frame.f_code.co_filename):
            place = (frame.f_code.co_filename, frame.f_lineno)
        if frame.f_code.co_qualname == "RegisteredTool.invoke":
            return place and (str(frame.f_locals["self"].name), *place)
        frame = frame.f_back
    return None
