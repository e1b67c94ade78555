"""An HTTP proxy that behaves as a test says. It remembers what it was told, and passes on no more than it should."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

__all__ = ["FakeProxy"]


class FakeProxy:
    """Tunnels, and passes on requests without encryption. `credentials` are name:password, where it wants some."""

    def __init__(
        self, credentials: str | None = None, refuses: str | None = None, form: str = 'Basic realm="r"'
    ) -> None:
        self.wanted = credentials and f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self.refuses = refuses  # a status, such as "502 Bad Gateway", for every request
        self.form = form
        self.seen: list[str] = []  # the first line of each request
        self.told: list[str | None] = []  # and its credentials

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """At work; yields host and port."""
        tasks: set[asyncio.Task] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())
            try:
                await self._serve(reader, writer)
                writer.close()
                await writer.wait_closed()
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        try:
            yield f"{'localhost' if tls else '127.0.0.1'}:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.seen.append(start)
        self.told.append(headers.get("proxy-authorization"))
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        refusal = self.refuses
        if self.wanted is not None and self.told[-1] != self.wanted:
            refusal = f"407 Proxy Authentication Required\r\nProxy-Authenticate: {self.form}"
        if refusal is not None:
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
            return
        method, target, _ = start.split(" ")
        place = urlsplit(f"//{target}" if method == "CONNECT" else target)
        there = await asyncio.open_connection(place.hostname, place.port)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
            else:
                kept = [line for line in lines if not line.lower().startswith("proxy-")]
                head = "\r\n".join([f"{method} {place.path} HTTP/1.1", *kept, "", ""])
                there[1].write(head.encode("latin-1") + body)
                await _pass_on(there[0], writer)
        finally:
            there[1].transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One response, after which the connection ends: the next request has its own."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    body = await reader.readexactly(int(found[1]))
    writer.write(head.removesuffix(b"\r\n") + b"connection: close\r\n\r\n" + body)
    await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
