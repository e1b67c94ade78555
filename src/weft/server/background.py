"""Background: functions of the user's that run beside the calls, because a client said something."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.protocol.logs import Seldom
from weft.server.connection import Connection
from weft.server.faults import report

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["Background"]

log = logging.getLogger("weft.background")

MOST = 1000  # at the same time; what comes then is dropped and logged

_Key = tuple[Callable[[Connection], Any], Connection]


class Background:
    """The tasks that belong to no call. Whatever one raises is logged and ends nothing else (R1)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seldom = Seldom(log)  # for what clients can cause at will
        self._tasks: dict[_Key, asyncio.Task[None]] = {}
        self._again: set[_Key] = set()  # of them, those to be run once more

    def start(self, option: str, fn: Callable[[Connection], Any], connection: Connection) -> None:
        """Call `fn(connection)`, which was given to `option`.

        While it runs for a connection, no second call for that one begins: it is called once more afterwards, however
        often it was started. So what one client says again and again leaves room for what others say.
        """
        key, name = (fn, connection), repr(getattr(fn, "__name__", option))
        if key in self._tasks:
            self._again.add(key)
        elif len(self._tasks) >= MOST:
            self._seldom.warning("%s was not called: %d such functions run already", name, MOST, about=name)
        else:
            running = self._run(key, option, name)
            self._tasks[key] = asyncio.get_running_loop().create_task(running, name=f"weft-{name}")

    async def close(self, timeout: float) -> None:
        """Cancel what still runs, and wait for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        self._tasks.clear()
        self._again.clear()

    async def _run(self, key: _Key, option: str, name: str) -> None:
        try:
            await self._call(key, option, name)
            while key in self._again:
                self._again.discard(key)
                await self._call(key, option, name)
        finally:
            self._tasks.pop(key, None)
            self._again.discard(key)

    async def _call(self, key: _Key, option: str, name: str) -> None:
        fn, connection = key
        try:
            work = fn(connection)
            if not inspect.isawaitable(work):
                raise UsageError(f"A function given to {option} must be async: `async def f(connection): ...`.")
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - R1
            report(name, error, debug=self._server.debug)
