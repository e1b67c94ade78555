"""Warn developers about side effects of a handler before a question, which are repeated when the handler runs again.

Without a session, a handler runs again from the top after every answer. Side effects before the question then happen
again, unless they are done by `ctx.once`. Not all side effects can be detected. These can: a log message through the
context, an argument that was changed, and an `await` of anything other than a question or a `once`. An `await` that
only reads is no side effect. It is recognised by its name, such as `get_price`, `fetch` or `sleep`.

The coroutine of the handler is run step by step, with a profile function (`sys.setprofile`) that is called for each
coroutine that the user's code awaits. This is done only if the server's `debug` is on.
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

# Names of coroutine functions that only read or wait: they begin with one of these words.
_READING = re.compile(
    r"_*(a?get|read|fetch|list|find|load|select|search|query|look|lookup|count|check|exists|is|has|can|head|show|"
    r"describe|resolve|validate|parse|verify|wait|sleep|acquire|connect|open|enter|exit|next|iter|anext|aenter|aexit)"
    r"(_|$|[A-Z\d])"
)
_SERVER = str(Path(__file__).resolve().parents[1])  # the directory of weft.server
_LOGS = frozenset({"log", *get_args(LogLevel)})
_PLAIN = (str, bytes, int, float, bool, type(None))
_MOST_WARNINGS = 512

_warned: set[tuple[str, str]] = set()  # warnings that were logged: handler, and side effect with its place

_is_users = lru_cache(maxsize=1024)(is_users)


def watched(handler: Handler) -> Handler:
    """Wrap the handler of a method so that it warns about side effects, in calls whose handler may run again."""

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
    """A possible side effect: one `await` or log message of the user's code."""

    __slots__ = ("asks", "back", "frame", "is_over", "place", "what")

    def __init__(self, what: str, place: str, frame: FrameType | None = None, back: FrameType | None = None) -> None:
        self.what = what
        self.place = place
        self.frame = frame  # frame of the awaited coroutine; None for a future, or for `ctx.wait`
        self.back = back  # frame of the code that awaits it
        self.asks = False  # True if it led to a question or a `once`: then it is no side effect
        self.is_over = False  # whether it has ended; used only if there is no frame

    def is_under_way(self, frames: Container[FrameType | None]) -> bool:
        """Return whether the step is still running; `frames` are the frames that are still running."""
        return not self.is_over if self.frame is None else self.frame in frames


class Replay:
    """Records the side effects of one run of a handler."""

    def __init__(self, call: Call) -> None:
        self._described = call.described
        self._steps: dict[FrameType | int, _Step] = {}
        self._running: list[_Step] = []  # steps without a frame that are still running
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._handler: FrameType | None = None
        self._arguments: dict[str, tuple[Any, Any]] = {}  # the handler's arguments, each with a copy of its first value

    # Recording steps.

    def step(self, coroutine: Coroutine[Any, Any, Any], step: Any, value: Any) -> Any:
        """Run the handler until it is suspended again, and record the coroutines that it awaits.

        `step` is the `send` or `throw` of `coroutine`, and `value` is its argument. Returns what the handler awaits.
        """
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
        """Record the `await` of a future or a task, for which the profile function is not called."""
        leaf = self._chain()[-1:]
        if leaf and _is_users(leaf[0].f_code.co_filename):
            place = _place(leaf[0])
            self._begin(_Step("awaits something", place, back=leaf[0]))

    @contextmanager
    def waiting(self, awaitable: Any, place: str) -> Generator[None]:
        """Return a context in which a sync handler runs `awaitable` with `ctx.wait`; record it as a step.

        `place` is the file and line of the call of `ctx.wait`.
        """
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
        """Return a description of what a coroutine does; None if it has no side effects. `code` is its code object."""
        name: str = code.co_name
        if code.co_filename.startswith(_SERVER):
            is_log = code.co_qualname.startswith("Context.") and name in _LOGS
            return f"logs with ctx.{name}(...)" if is_log else None
        return None if _READING.match(name) else f"awaits {name}(...)"

    # Questions.

    def asked(self) -> None:
        """Record a question or a `once`. The steps that are running now led to it, so they are no side effects."""
        under_way = self._under_way()
        for step in self._steps.values():
            step.asks = step.asks or step.is_under_way(under_way)

    def warn(self) -> None:
        """Warn about the side effects before a question that has no answer yet."""
        under_way = self._under_way()
        done = [step for step in self._steps.values() if not step.asks and not step.is_under_way(under_way)]
        inner = {step.frame for step in done if step.frame is not None}
        found = [(step.what, step.place) for step in done if step.back not in inner]
        question = self._place_of_question(under_way)
        if self._handler is not None:
            place = _place(self._handler)
            found += [(f"has changed its argument {name!r}", place) for name in self._changed(self._handler)]
        for what, place in found:
            self._log(what, place, question)

    def _log(self, what: str, place: str, question: str) -> None:
        key = (self._described, f"{what} {place}")
        if key in _warned or len(_warned) >= _MOST_WARNINGS:
            return
        _warned.add(key)
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

    # Frames and places.

    def _chain(self) -> list[FrameType]:
        """Return the frames of the suspended handler, the outermost first."""
        frames: list[FrameType] = []
        coroutine: Any = self._coroutine
        while isinstance(coroutine, CoroutineType):
            if coroutine.cr_frame is not None:
                frames.append(coroutine.cr_frame)
            coroutine = cast("Any", coroutine).cr_await
        return frames

    def _under_way(self) -> dict[FrameType | None, None]:
        """Return the frames of the handler's coroutines and of the current thread: their code has not ended yet.

        The innermost frames come first.
        """
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
        return self._running[-1].place if self._running else "an unknown place"

    def forget(self) -> None:
        """Release the frames, so that the objects in them can be freed."""
        self._steps.clear()
        self._running.clear()
        self._arguments.clear()
        self._handler = self._coroutine = None


class _Stepped:
    """An awaitable that runs a coroutine step by step, through `Replay.step`."""

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
                except BaseException as error:  # noqa: BLE001 - passed to the coroutine, as `await` does
                    step, value = coroutine.throw, error
        except StopIteration as done:
            return done.value


def _place(frame: FrameType) -> str:
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _copies(frame: FrameType) -> dict[str, tuple[Any, Any]]:
    """Return the arguments of a running function that can be changed and compared, each with a copy."""
    code = frame.f_code
    found: dict[str, tuple[Any, Any]] = {}
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if isinstance(value, _PLAIN) or cast("Any", type(value)).__eq__ is object.__eq__:
            continue
        with suppress(Exception):  # values that cannot be copied or compared are not checked
            copied = copy.deepcopy(value)
            if _is_equal(value, copied):
                found[name] = value, copied
    return found


def _is_equal(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
    except Exception:  # noqa: BLE001 - the user's own comparison
        return True
