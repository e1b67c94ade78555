"""Where plain (not async) functions run: a bounded pool of threads, so that they do not block the loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["Threads"]


class _Outcome:
    """What a function did in its thread. StopIteration and SystemExit must not cross a Future as exceptions."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error


class Threads:
    """A pool that is made when the first plain function is called."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        """Call `fn` in a thread, with the caller's context variables."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._size, thread_name_prefix="weft")
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(self._pool, lambda: context.run(_outcome, fn, kwargs))
        if outcome.error is not None:
            raise outcome.error
        if inspect.isawaitable(outcome.value):  # a plain function around an async one
            return await outcome.value
        return outcome.value

    def stop(self) -> None:
        """Let go of the threads; work that has not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _outcome(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> _Outcome:
    try:
        return _Outcome(fn(**kwargs), None)
    except StopIteration as error:
        return _Outcome(None, RuntimeError(f"raised StopIteration({error.value!r})"))
    except BaseException as error:  # noqa: BLE001 - carried over to the caller, who raises it
        return _Outcome(None, error)
