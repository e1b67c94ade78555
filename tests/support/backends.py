"""Backends as they are on another machine: others run before and after every operation, and it may be gone."""

import asyncio
import time
from typing import Any

from weft.backends.memory import Clock, MemoryBackend


class Yielding:
    """Passes everything on to a part of a Backend, and lets others run before and after."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_gone = False
        self.failure: Exception = ConnectionError("the store is gone")  # what is raised then
        self.is_deaf = False  # whether everything is done, and then fails as if it had not been

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)

        async def call(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            if self.is_gone:
                raise self.failure
            result = await function(*args, **options)
            if self.is_deaf:
                raise self.failure
            await asyncio.sleep(0)
            return result

        return call


class YieldingBackend:
    is_local = True

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.memory = MemoryBackend(clock)
        memory = self.memory
        self.store, self.log, self.sets, self.bus = (
            Yielding(part) for part in (memory.store, memory.log, memory.sets, memory.bus)
        )

    async def start(self) -> None:
        pass

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        pass
