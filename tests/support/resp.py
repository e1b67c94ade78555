"""A server that speaks the protocol of Redis and says what a test wants, for what a real server here cannot be."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

__all__ = ["scripted_redis"]


@asynccontextmanager
async def scripted_redis(replies: Mapping[str, bytes]) -> AsyncIterator[int]:
    """A server that answers each command with its reply, all others with OK; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(length + 2))[:-2])
                writer.write(replies.get(words[0].decode().upper(), b"+OK\r\n"))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
