"""A client in the same process: the same messages, handed over instead of written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from weft.errors import InternalError, ProtocolError
from weft.jsonrpc import decode, encode_error
from weft.server.runtime.runtime import Runtime
from weft.server.stdio.pipe import new_pipe


class _Handing:
    """Lines to somebody in the same process."""

    congested = False

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver

    def send(self, line: bytes) -> None:
        self._deliver(line)

    def send_now(self, line: bytes) -> None:
        self._deliver(line)

    async def drained(self) -> None:
        """They are with the other side at once."""


class MemoryPipe:
    """The server's end. `send` takes one message of the client; what is said to it is handed to `deliver`.

    The lifespan is entered with the first message, if nobody did before; it is not left here.
    """

    def __init__(self, runtime: Runtime, deliver: Callable[[bytes], None]) -> None:
        self._runtime = runtime
        self._deliver = deliver
        self._pipe = new_pipe(runtime, _Handing(deliver))
        self._waiting: list[bytes] = []  # for the lifespan to be entered
        self._starting: asyncio.Task[None] | None = None

    def send(self, message: bytes) -> None:
        """Take one message."""
        if self._runtime.lifespan.started:
            self._pipe.receive(message, full=self._pipe.full)
            return
        self._waiting.append(message)
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="weft-memory-start")

    async def close(self) -> None:
        """The client goes: end its streams, cancel what it asked for, release what is remembered of it."""
        if self._starting is not None:
            self._starting.cancel()
        self._pipe.end_streams()
        await asyncio.sleep(0)
        self._pipe.cancel()
        if tasks := self._pipe.tasks:
            await asyncio.wait(tasks, timeout=self._runtime.limits.drain_seconds)
        await self._pipe.close()

    def _refuse_waiting(self, text: str) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            with suppress(ProtocolError):  # what is no request is answered nothing
                if (frame := decode(message, self._runtime.limits)).is_request:
                    self._deliver(encode_error(frame.reply_id, InternalError.code, text))

    async def _start(self) -> None:
        try:
            await self._runtime.lifespan.start()
        except Exception as error:  # noqa: BLE001 - R1: whatever a lifespan raises, it is told to who waits
            text = self._runtime.lifespan.report(error)
            self._refuse_waiting(text)
            return
        finally:
            self._starting = None
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._pipe.receive(message, full=self._pipe.full)
