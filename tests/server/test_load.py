"""Whose turn it is when large messages wait, and how much of them there may be."""

import asyncio
from typing import Self

import pytest

from weft import Limits
from weft.server.runtime.admission import BodyMemory, Busy, LargeMessageQueue

MB = 1024 * 1024


class Line:
    """Messages that wait for their turn, and the order in which they had it."""

    def __init__(self, **limits: int) -> None:
        self.turns = LargeMessageQueue(Limits(**limits))
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.turns.wait("first", 1)  # so that all others have to wait
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _take(self, peer: str, name: str, size: int) -> None:
        await self.turns.wait(peer, size)
        self.order.append(name)

    async def add(self, peer: str, name: str, size: int = MB) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(self._take(peer, name, size)))
        await asyncio.sleep(0)
        return self.tasks[-1]


@pytest.mark.security("D9")
async def test_peers_take_turns() -> None:
    async with Line() as line:
        for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
            await line.add(name[0], name)
    assert line.order == ["a1", "b1", "c1", "a2", "b2", "a3"]


@pytest.mark.security("D9")
async def test_small_messages_of_a_peer_go_first_but_not_forever() -> None:
    async with Line() as line:
        await line.add("a", "large", 4 * MB)
        await line.add("a", "small", 100_000)
        await line.add("a", "medium", MB)
    assert line.order == ["small", "medium", "large"]
    async with Line() as line:
        await line.add("a", "large", 100_000)
        await asyncio.sleep(0.12)  # by then it has waited longer than the difference is worth
        held = await line.add("a", "small", 1)
        await held
    assert line.order[0] == "large"


@pytest.mark.security("D9", "R12")
async def test_one_message_of_a_peer_too_many_does_not_wait() -> None:
    assert Limits().large_messages_per_peer == 64
    async with Line(large_messages_per_peer=2) as line:
        for name in ("a1", "a2", "b1"):
            await line.add(name[0], name)
        with pytest.raises(Busy, match="2 of your large messages wait"):
            await line.turns.wait("a", 1)
    await line.turns.wait("a", 1)
    assert line.order == ["a1", "b1", "a2"]


@pytest.mark.security("R1")
async def test_who_gives_up_keeps_nobody_waiting() -> None:
    async with Line(large_messages_per_peer=2) as line:
        first = await line.add("a", "a1")
        second = await line.add("b", "b1")
        await line.add("c", "c1")
        second.cancel()
        while "a1" not in line.order:
            (place,) = line.turns._queues.values()
            if "a" not in place._waiting:  # its turn has come, and it does not know yet
                first.cancel()
                break
            await asyncio.sleep(0)
    assert line.order == ["c1"]
    async with asyncio.timeout(5):
        await line.turns.wait("a", 1)


@pytest.mark.security("D9", "R12")
def test_a_peer_holds_no_more_than_it_leaves_free() -> None:
    bodies = BodyMemory(Limits(bodies_bytes=800, body_bytes=100))
    one, other, third = (bodies.hold(peer) for peer in "abc")
    one.grow(400)
    with pytest.raises(Busy):
        one.grow(401)
    with pytest.raises(Busy):
        bodies.hold("a").grow(1)
    other.grow(200)
    with pytest.raises(Busy):
        other.grow(201)
    third.grow(100)
    one.release()
    one.release()
    other.grow(350)
    for held in (other, third):
        held.release()
    assert bodies._used == {}
    assert bodies._free == 800


@pytest.mark.security("D1")
def test_the_longest_body_can_be_read_whatever_the_limit_is() -> None:
    BodyMemory(Limits(bodies_bytes=1, body_bytes=1000)).hold("a").grow(1000)
