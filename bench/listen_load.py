"""Load by listen streams: many that are open and say nothing, and one change that all of them hear of."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from processes import CAN_PIN, LOAD_CORE, resident_mib
from wire import change, headers_of, listen

__all__ = ["STREAMS", "Listening", "measure_streams"]

STREAMS = 1000
WARM_UP = 20  # streams before the first weighing: what a server makes once is not the price of a stream
AT_ONCE = 50
SECONDS = 60  # in which anything must have happened


@dataclass(frozen=True)
class Listening:
    """What a thousand streams cost."""

    kib_each: float
    change_milliseconds: list[float]


class Stream(asyncio.Protocol):
    """One open stream: it waits for a piece of text, and forgets what came before."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._seen = b""
        self._wanted = b""
        self._found: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def expect(self, wanted: bytes) -> asyncio.Future[None]:
        self._wanted, self._seen = wanted, b""
        self._found = asyncio.get_running_loop().create_future()
        return self._found

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._found is not None and not self._found.done() and self._wanted in self._seen:
            self._found.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._found is not None and not self._found.done():
            self._found.set_exception(RuntimeError(f"A stream was closed before {self._wanted!r} came: {self._seen!r}"))


def http(port: int, method: str, name: str | None, body: bytes) -> bytes:
    head = {"Host": f"127.0.0.1:{port}", **headers_of(method, name), "Content-Length": str(len(body))}
    lines = "".join(f"{field}: {value}\r\n" for field, value in head.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


async def send(port: int, request: bytes, wanted: bytes) -> Stream:
    """Sends a request on a connection of its own, and waits until the answer has this text."""
    _, stream = await asyncio.get_running_loop().create_connection(Stream, "127.0.0.1", port)
    assert stream.transport is not None
    found = stream.expect(wanted)
    stream.transport.write(request)
    await asyncio.wait_for(found, SECONDS)
    return stream


async def open_streams(port: int, first: int, count: int) -> list[Stream]:
    streams: list[Stream] = []
    for start in range(first, first + count, AT_ONCE):
        ids = range(start, min(start + AT_ONCE, first + count))
        requests = [http(port, "subscriptions/listen", None, listen(id)) for id in ids]
        streams += await asyncio.gather(*(send(port, request, b"acknowledged") for request in requests))
    return streams


async def tell(port: int, streams: list[Stream]) -> float:
    """Seconds from asking for one change until the last stream has heard of it."""
    heard = asyncio.gather(*(stream.expect(b"resources/updated") for stream in streams))
    started = time.perf_counter()
    caller = await send(port, http(port, "tools/call", "change", change(0)), b'"changed"')
    await asyncio.wait_for(heard, SECONDS)
    taken = time.perf_counter() - started
    assert caller.transport is not None
    caller.transport.close()
    return taken


async def measured(port: int, pid: int, changes: int) -> Listening:
    warm = await open_streams(port, 1, WARM_UP)
    await tell(port, warm)
    before = resident_mib(pid)
    streams = await open_streams(port, WARM_UP + 1, STREAMS)
    await asyncio.sleep(0.5)  # what was only needed to open them is gone
    kib_each = (resident_mib(pid) - before) * 1024 / STREAMS
    milliseconds = [1000 * await tell(port, streams) for _ in range(changes)]
    for stream in (*warm, *streams):
        assert stream.transport is not None
        stream.transport.abort()
    return Listening(kib_each, milliseconds)


def measure_streams(port: int, pid: int, changes: int) -> Listening:
    """Opens the streams against a server that has none, weighs them, and has `changes` changes told."""
    affinity = os.sched_getaffinity(0)
    if CAN_PIN:
        os.sched_setaffinity(0, {LOAD_CORE})
    try:
        return asyncio.run(measured(port, pid, changes))
    finally:
        os.sched_setaffinity(0, affinity)
