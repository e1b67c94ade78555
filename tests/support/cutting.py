"""A TCP proxy that loses replies: it cuts connections after a request was executed, or lets them hang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["CuttingProxy"]


class CuttingProxy:
    """Passes everything on to a port of this machine, until a test says otherwise."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.cuts = 0  # replies that were lost
        self.is_frozen = False  # whether nothing is passed on; connections stay open
        self._pattern: bytes | None = None
        self._times = 0
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["CuttingProxy"]:
        """The proxy at `port`, for as long as the block lasts."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await self.cut_all()

    def lose_reply(self, pattern: bytes, times: int = 1) -> None:
        """Cut the connection instead of passing on the reply to the next requests that contain `pattern`."""
        self._pattern, self._times = pattern, times

    async def cut_all(self) -> None:
        """Cut all connections. New ones are accepted."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                is_cut = asyncio.Event()
                pumps = [
                    asyncio.create_task(self._requests(reader, to_there, is_cut)),
                    asyncio.create_task(self._replies(there, writer, is_cut)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                to_there.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                await self._while_frozen()
                if self._times and self._pattern is not None and self._pattern in data:
                    self._times -= 1
                    is_cut.set()
                writer.write(data)
                await writer.drain()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                await self._while_frozen()
                if is_cut.is_set():
                    self.cuts += 1
                    return
                writer.write(data)
                await writer.drain()

    async def _while_frozen(self) -> None:
        while self.is_frozen:  # noqa: ASYNC110 - tests set it without an event loop, too
            await asyncio.sleep(0.01)
