"""Background: functions of the user's that run beside the calls, because a client said something."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.server.faults import report

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["Background", "call_async"]

log = logging.getLogger("weft.background")

MOST = 1000  # at the same time; what comes then is dropped and logged


class Background:
    """The tasks that belong to no call. Whatever one raises is logged and ends nothing else (R1)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._again: set[Hashable] = set()  # of them, those to be run once more

    def start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        """Run `work` to its end. `what` names it in the log.

        While one of this `key` runs, no second one begins: it is run once more afterwards, however often it was
        started. So what one client says again and again leaves room for what others say.
        """
        if key in self._tasks:
            self._again.add(key)
        elif len(self._tasks) >= MOST:
            log.warning("%s was not called: %d such functions run already", what, MOST)
        else:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._run(key, work, what), name=f"weft-{what}")

    async def close(self, timeout: float) -> None:
        """Cancel what still runs, and wait for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        self._tasks.clear()
        self._again.clear()

    async def _run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        try:
            await self._run_once(work, what)
            while key in self._again:
                self._again.discard(key)
                await self._run_once(work, what)
        finally:
            self._tasks.pop(key, None)
            self._again.discard(key)

    async def _run_once(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - R1
            report(what, error, debug=self._server.debug)


async def call_async(option: str, fn: Callable[..., Any], connection: Any) -> None:
    """Call a function that was given to `option`, and tell whoever forgot to make it async."""
    work = fn(connection)
    if not inspect.isawaitable(work):
        raise UsageError(f"A function given to {option} must be async: `async def f(connection): ...`.")
    await work
