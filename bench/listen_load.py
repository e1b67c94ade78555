"""Load by listen streams: many that are open and say nothing, and one change that all of them hear of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from processes import here, resident_mib
from wire import change, headers_of, listen

__all__ = ["STREAMS", "Listening", "Stream", "change_milliseconds", "connect", "http", "measure_streams", "send"]

STREAMS = 1000
WARM_UP = 20  # streams before the first weighing: what a server makes once is not the price of a stream
AT_ONCE = 50
SECONDS = 60  # in which anything must have happened


@dataclass(frozen=True)
class Listening:
    """What many streams cost."""

    kib_each: float
    change_milliseconds: list[float]


class Stream(asyncio.Protocol):
    """One connection: it waits for a piece of text, and forgets what came before."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._seen = b""
        self._wanted = b""
        self._found: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def expect(self, wanted: bytes) -> asyncio.Future[bytes]:
        """The future gets what was received, when this text is in it."""
        self._wanted, self._seen = wanted, b""
        self._found = asyncio.get_running_loop().create_future()
        return self._found

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._found is not None and not self._found.done() and self._wanted in self._seen:
            self._found.set_result(self._seen)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._found is not None and not self._found.done():
            self._found.set_exception(RuntimeError(f"A stream was closed before {self._wanted!r} came: {self._seen!r}"))


def http(port: int, headers: Mapping[str, str], body: bytes) -> bytes:
    """A POST, as bytes."""
    head = {"Host": f"127.0.0.1:{port}", **headers, "Content-Length": str(len(body))}
    lines = "".join(f"{field}: {value}\r\n" for field, value in head.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


async def connect(port: int) -> Stream:
    _, stream = await asyncio.get_running_loop().create_connection(Stream, "127.0.0.1", port)
    return stream


async def send(stream: Stream, request: bytes, wanted: bytes) -> bytes:
    """Sends a request on a connection, and waits until the answer has this text; returns what came."""
    found = stream.expect(wanted)
    stream.write(request)
    return await asyncio.wait_for(found, SECONDS)


async def open_stream(port: int, id: int) -> Stream:
    stream = await connect(port)
    await send(stream, http(port, headers_of("subscriptions/listen"), listen(id)), b"acknowledged")
    return stream


async def open_streams(ports: Sequence[int], first: int, count: int) -> list[Stream]:
    """Opens streams at these servers in turn."""
    streams: list[Stream] = []
    for start in range(first, first + count, AT_ONCE):
        ids = range(start, min(start + AT_ONCE, first + count))
        streams += await asyncio.gather(*(open_stream(ports[id % len(ports)], id) for id in ids))
    return streams


async def tell(port: int, caller: Stream, streams: Sequence[Stream]) -> float:
    """Seconds from asking for one change until the last stream has heard of it."""
    heard = asyncio.gather(*(stream.expect(b"resources/updated") for stream in streams))
    started = time.perf_counter()
    await send(caller, http(port, headers_of("tools/call", "change"), change(0)), b'"changed"')
    await asyncio.wait_for(heard, SECONDS)
    return time.perf_counter() - started


async def measured(ports: Sequence[int], pids: Sequence[int], count: int, changes: int) -> Listening:
    caller = await connect(ports[0])
    warm = await open_streams(ports, 1, WARM_UP)
    await tell(ports[0], caller, warm)
    before = sum(map(resident_mib, pids))
    streams = await open_streams(ports, WARM_UP + 1, count)
    await asyncio.sleep(0.5)  # what was only needed to open them is gone
    kib_each = (sum(map(resident_mib, pids)) - before) * 1024 / count
    milliseconds = [1000 * await tell(ports[0], caller, streams) for _ in range(changes)]
    for stream in (caller, *warm, *streams):
        stream.abort()
    return Listening(kib_each, milliseconds)


def measure_streams(ports: Sequence[int], pids: Sequence[int], count: int, changes: int) -> Listening:
    """Opens streams against servers that have none, weighs them, and has `changes` changes told at the first server."""
    with here(load=True):
        return asyncio.run(measured(ports, pids, count, changes))


async def one_heard(port: int, listening: int, times: int) -> float:
    caller, stream = await connect(port), await open_stream(listening, 1)
    taken = [1000 * await tell(port, caller, [stream]) for _ in range(times)]
    for one in (caller, stream):
        one.abort()
    return median(taken)


def change_milliseconds(port: int, listening: int, times: int) -> float:
    """Milliseconds from asking one server for a change until the only stream, at the server `listening`, hears of it;
    the median of so many changes."""
    with here(load=True):
        return asyncio.run(one_heard(port, listening, times))
