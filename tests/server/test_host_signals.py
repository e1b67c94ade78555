"""Following the signals of a host: what is kept for that."""

import asyncio
import gc
import signal
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from weft import Server
from weft.server.http import host_signals
from weft.server.http.host_signals import follow_host_signals


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that the host has heard, by handlers of its own."""
    numbers: list[int] = []

    def hear(number: int, _frame: Any) -> None:
        numbers.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_server_whose_host_is_followed_can_be_collected(heard: list[int]) -> None:
    server = Server("shop")
    follow_host_signals(server.engine)
    kept = weakref.ref(server)
    del server
    gc.collect()
    assert kept() is None
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_many_servers_share_one_handler(heard: list[int]) -> None:
    servers = [Server(f"shop {index}") for index in range(3)]
    follow_host_signals(servers[0].engine)
    first = signal.getsignal(signal.SIGTERM)
    for server in servers[1:]:
        follow_host_signals(server.engine)
    assert signal.getsignal(signal.SIGTERM) is first
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


async def test_the_hosts_handler_is_back_when_the_last_of_several_lifespans_has_ended(heard: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ends = [asyncio.Event(), asyncio.Event()]
    tasks = [asyncio.create_task(end.wait()) for end in ends]
    for task in tasks:
        host_signals._leave(task)
    assert signal.getsignal(signal.SIGTERM) is not before
    for end, task in zip(ends, tasks, strict=True):
        signal.raise_signal(signal.SIGTERM)  # noted, and handed on at the end
        assert heard == []
        end.set()
        await task
        await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGTERM) is before
    assert heard == [signal.SIGTERM]
