"""For development: warn of what a handler does before a question, and would do again when it is run again.

Without a session a handler runs from the top with every answer. What it does before the question happens again, unless
it goes through `ctx.once`. That cannot be seen in general, but some of it can: a log message through the context, an
argument that was changed, and an `await` of something else than a question or a `once`. Whether an `await` only reads
is judged by its name: `get_price`, `fetch`, `sleep` and the like are left alone.

The handler is stepped here with a profile function set, which sees the coroutines that the user's code awaits. Nothing
of this is there unless the server's `debug` is on.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
import sys
from collections.abc import Container, Coroutine, Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, cast, get_args

from weft.server.diagnostics import is_users, short_path
from weft.types.base import LogLevel

if TYPE_CHECKING:
    from weft.server.calls.call import Call, Handler


log = logging.getLogger("weft.asks")

# The first word of the name of what only reads, or waits.
_READING = re.compile(
    r"_*(a?get|read|fetch|list|find|load|select|search|query|look|lookup|count|check|exists|is|has|can|head|show|"
    r"describe|resolve|validate|parse|verify|wait|sleep|acquire|connect|open|enter|exit|next|iter|anext|aenter|aexit)"
    r"(_|$|[A-Z\d])"
)
_SERVER = str(Path(__file__).resolve().parents[1])  # where Weft's own server is
_LOGS = frozenset({"log", *get_args(LogLevel)})
_PLAIN = (str, bytes, int, float, bool, type(None))
_MOST_TOLD = 512

_told: set[tuple[str, str]] = set()  # what was said once, by handler and place

_is_users = lru_cache(maxsize=1024)(is_users)


def watched(handler: Handler) -> Handler:
    """The handler of a method, with every call of it watched that may be run again."""

    async def serve(call: Call) -> Any:
        if not call.era.asks_by_rounds or sys.getprofile() is not None:
            return await handler(call)
        call.replay = replay = Replay(call)
        try:
            return await _Stepped(replay, cast("Coroutine[Any, Any, Any]", handler(call)))
        finally:
            replay.forget()

    return serve


class _Step:
    """Something that the user's code did, and would do again."""

    __slots__ = ("asks", "back", "frame", "is_over", "place", "what")

    def __init__(self, what: str, place: str, frame: FrameType | None = None, back: FrameType | None = None) -> None:
        self.what = what
        self.place = place
        self.frame = frame  # of what is awaited; None where that is no coroutine
        self.back = back  # of what awaits it
        self.asks = False  # a question or a `once` came out of it: then it is no more than the way there
        self.is_over = False  # said only of what has no frame

    def is_under_way(self, frames: Container[FrameType | None]) -> bool:
        """Whether it has not ended, where these frames have not."""
        return not self.is_over if self.frame is None else self.frame in frames


class Replay:
    """What one run of a handler has done so far."""

    def __init__(self, call: Call) -> None:
        self._described = call.described
        self._steps: dict[FrameType | int, _Step] = {}
        self._running: list[_Step] = []  # that have no frame to be found by
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._handler: FrameType | None = None
        self._arguments: dict[str, tuple[Any, Any]] = {}  # each with a copy of what it was

    # What happens, as it happens.

    def step(self, coroutine: Coroutine[Any, Any, Any], step: Any, value: Any) -> Any:
        """Take one step of the handler, and see what it does."""
        self._coroutine = coroutine
        for done in self._running:
            done.is_over = True
        self._running.clear()
        sys.setprofile(self._see)
        try:
            return step(value)
        finally:
            sys.setprofile(None)

    def suspended(self) -> None:
        """Note a future or a task that the user's code awaits by itself."""
        leaf = self._chain()[-1:]
        if leaf and _is_users(leaf[0].f_code.co_filename):
            place = _place(leaf[0])
            self._begin(_Step("awaits something", place, back=leaf[0]))

    @contextmanager
    def waiting(self, awaitable: Any, place: str) -> Generator[None]:
        """Note what a plain function does by `ctx.wait`."""
        what = self._judge(awaitable.cr_code) if isinstance(awaitable, CoroutineType) else "awaits something"
        if what is None:
            yield
            return
        step = _Step(what, place)
        self._begin(step)
        try:
            yield
        finally:
            step.is_over = True
            with suppress(ValueError):
                self._running.remove(step)

    def _begin(self, step: _Step) -> None:
        self._running.append(step)
        self._steps[id(step)] = step

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code, back = frame.f_code, frame.f_back
        if event != "call" or not code.co_flags & inspect.CO_COROUTINE or back is None or frame in self._steps:
            return
        if not _is_users(back.f_code.co_filename):
            if self._handler is None and _is_users(code.co_filename):
                self._handler, self._arguments = frame, _copies(frame)
            return
        what = self._judge(code)
        if what is not None:
            self._steps[frame] = _Step(what, _place(back), frame, back)

    def _judge(self, code: Any) -> str | None:
        """What it is that a coroutine does; None if that is harmless."""
        name: str = code.co_name
        if code.co_filename.startswith(_SERVER):
            is_log = code.co_qualname.startswith("Context.") and name in _LOGS
            return f"logs by ctx.{name}(...)" if is_log else None
        return None if _READING.match(name) else f"awaits {name}(...)"

    # What is asked.

    def asked(self) -> None:
        """Note that a question is asked, or a `once` called: whatever leads there is no side effect."""
        under_way = self._under_way()
        for step in self._steps.values():
            step.asks = step.asks or step.is_under_way(under_way)

    def warn(self) -> None:
        """Warn of what was done before a question that has no answer yet."""
        under_way = self._under_way()
        done = [step for step in self._steps.values() if not step.asks and not step.is_under_way(under_way)]
        inner = {step.frame for step in done if step.frame is not None}
        found = [(step.what, step.place) for step in done if step.back not in inner]
        question = self._place_of_question(under_way)
        if self._handler is not None:
            place = _place(self._handler)
            found += [(f"has changed its argument {name!r}", place) for name in self._changed(self._handler)]
        for what, place in found:
            self._tell(what, place, question)

    def _tell(self, what: str, place: str, question: str) -> None:
        key = (self._described, f"{what} {place}")
        if key in _told or len(_told) >= _MOST_TOLD:
            return
        _told.add(key)
        where = f"before it asks at {question}" if place != question else "before it asks"
        log.warning(
            "%s %s at %s, %s. The handler runs again from the top when the answer comes, and does this again. If it "
            "must happen once, put it into ctx.once(key, fn, ...), or do it after the last question.",
            self._described,
            what,
            place,
            where,
        )

    def _changed(self, handler: FrameType) -> list[str]:
        now = handler.f_locals
        return [
            name
            for name, (value, before) in self._arguments.items()
            if now.get(name) is value and not _is_equal(value, before)
        ]

    # Where it is.

    def _chain(self) -> list[FrameType]:
        """The frames of a handler that waits, the outermost first."""
        frames: list[FrameType] = []
        coroutine: Any = self._coroutine
        while isinstance(coroutine, CoroutineType):
            if coroutine.cr_frame is not None:
                frames.append(coroutine.cr_frame)
            coroutine = cast("Any", coroutine).cr_await
        return frames

    def _under_way(self) -> dict[FrameType | None, None]:
        """The frames of what has begun and not ended: those of a handler that waits, and those that run now."""
        frames: dict[FrameType | None, None] = dict.fromkeys(reversed(self._chain()))
        frame = inspect.currentframe()
        while frame is not None:
            frames[frame] = None
            frame = frame.f_back
        return frames

    def _place_of_question(self, under_way: dict[FrameType | None, None]) -> str:
        for frame in under_way:
            if frame is not None and _is_users(frame.f_code.co_filename):
                return _place(frame)
        return self._running[-1].place if self._running else "a place of its own"

    def forget(self) -> None:
        """Let go of the frames, and of all that is in them."""
        self._steps.clear()
        self._running.clear()
        self._arguments.clear()
        self._handler = self._coroutine = None


class _Stepped:
    """A coroutine that is stepped by a `Replay`; awaited like any other."""

    def __init__(self, replay: Replay, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._replay = replay
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, replay = self._coroutine, self._replay
        step: Any = coroutine.send
        value: Any = None
        try:
            while True:
                awaited = replay.step(coroutine, step, value)
                replay.suspended()
                try:
                    value = yield awaited
                    step = coroutine.send
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on to the coroutine, as `await` would
                    step, value = coroutine.throw, error
        except StopIteration as done:
            return done.value


def _place(frame: FrameType) -> str:
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _copies(frame: FrameType) -> dict[str, tuple[Any, Any]]:
    """The arguments of a function that can be changed and compared, each with a copy."""
    code = frame.f_code
    found: dict[str, tuple[Any, Any]] = {}
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if isinstance(value, _PLAIN) or cast("Any", type(value)).__eq__ is object.__eq__:
            continue
        with suppress(Exception):  # what cannot be copied or compared is not looked at
            copied = copy.deepcopy(value)
            if _is_equal(value, copied):
                found[name] = value, copied
    return found


def _is_equal(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
    except Exception:  # noqa: BLE001 - the user's own comparison
        return True
