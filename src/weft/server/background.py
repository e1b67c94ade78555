"""Background: functions of the user's that run beside the calls, because a client said something."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from weft.server.faults import report

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["Background"]

MOST = 1000  # at the same time; what comes then is dropped and logged


class Background:
    """The tasks that belong to no call. Whatever one raises is logged and ends nothing else (R1)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run `work` to its end. `what` names it in the log."""
        if len(self._tasks) >= MOST:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._run(work, what), name=f"weft-{what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout: float) -> None:
        """Cancel what still runs, and wait for it."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def _run(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - R1
            report(what, error, debug=self._server.debug)
