"""Passwords: an address that guesses is locked out for that name alone; many addresses are slowed down."""

import asyncio
import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.authorizing import authorize
from support.logging_in import Browser, hidden_fields, pkce, sent_to
from weft.authorization import hash_password
from weft.authorization import users as module
from weft.authorization.users import TooManyTries, Users
from weft.backends.memory import MemoryBackend


class World:
    """Users whose waits are noted, on a clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        self.waits: list[float] = []
        self.asked: list[str] = []
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: self.now))

        async def noted(seconds: float) -> None:
            self.waits.append(seconds)
            await asyncio.sleep(0)

        # Only for this module: servers of other tests may run in threads of this process.
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": noted}))
        self.users = Users(self.login, MemoryBackend(clock=lambda: self.now).store)

    async def login(self, name: str, password: str) -> str | None:
        self.asked.append(password)
        return name if password == "good" else None

    async def guess(self, times: int, name: str = "ann", address: str = "6.6.6.6") -> int:
        """Guess; how many were refused without a look."""
        refused = 0
        for _ in range(times):
            try:
                assert await self.users.check(name, "bad", address) is None
            except TooManyTries:
                refused += 1
        return refused


@pytest.mark.security("R12")
async def test_an_address_that_guesses_locks_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert await world.guess(10) == 0
    assert await world.guess(5) == 5  # one more than it may
    with pytest.raises(TooManyTries):  # also with the right one
        await world.users.check("ann", "good", "6.6.6.6")
    assert await world.users.check("ann", "good", "7.7.7.7") == "ann"  # the same name from elsewhere
    assert await world.users.check("bob", "good", "6.6.6.6") == "bob"  # another name from there
    world.now += 59.0
    assert await world.guess(1) == 1
    world.now += 2.0
    assert await world.users.check("ann", "good", "6.6.6.6") == "ann"


async def test_a_good_password_ends_the_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for _ in range(3):
        assert await world.guess(9) == 0
        assert await world.users.check("ann", "good", "6.6.6.6") == "ann"


@pytest.mark.security("R12")
async def test_many_addresses_that_guess_at_a_name_are_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert await world.users.check("ann", "good", "7.7.7.7") == "ann"  # ann was here before
    world.now += 61.0
    world.waits.clear()
    for number in range(10):
        assert await world.guess(1, address=f"6.6.6.{number}") == 0
    assert world.waits == [0.0] * 10
    world.waits.clear()
    for number in range(10, 20):
        await world.guess(1, address=f"6.6.6.{number}")
    assert world.waits == [2.0, 4.0, 6.0, 8.0, 10.0]  # one at a time, and the rest were refused
    world.waits.clear()
    assert await world.users.check("ann", "good", "7.7.7.7") == "ann"  # from where she usually comes: at once
    assert world.waits == []
    assert await world.users.check("bob", "good", "6.6.6.1") == "bob"
    assert world.waits == [0.0]
    with pytest.raises(TooManyTries, match="too many login attempts for this name"):
        await world.users.check("ann", "good", "8.8.8.8")
    world.now += 2.0  # and from elsewhere soon, not after a minute
    assert await world.users.check("ann", "good", "8.8.8.8") == "ann"


async def test_an_address_is_known_for_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    await world.users.check("ann", "good", "7.7.7.7")
    for days, known in ((29.9, True), (30.1, False)):
        world.waits.clear()
        world.now += days * 86_400
        await world.users.check("ann", "bad", "7.7.7.7")
        assert (world.waits == []) is known
        await world.users.check("ann", "good", "7.7.7.7")


class Apart:
    """A store on another machine: between asking and being told, others have their turn."""

    def __init__(self) -> None:
        self._near = MemoryBackend().store

    def __getattr__(self, name: str) -> Any:
        async def later(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            return await getattr(self._near, name)(*given, **named)

        return later


async def test_tries_are_counted_however_many_come_at_once() -> None:
    asked: list[str] = []

    async def nobody(name: str, password: str) -> None:
        asked.append(password)

    users = Users(nobody, cast("Any", Apart()))
    tried = await asyncio.gather(*(users.check("ann", str(n)) for n in range(40)), return_exceptions=True)
    assert len(asked) == 10
    assert [type(one) for one in tried].count(TooManyTries) == 30


@pytest.mark.parametrize(
    ("addresses", "passed"),
    [(1, 16), (8, 64)],  # one address does not take the places of the others
)
async def test_how_many_wait_to_be_checked(addresses: int, passed: int) -> None:
    gate = asyncio.Event()

    async def slow(name: str, password: str) -> None:
        await gate.wait()

    users = Users(slow, MemoryBackend().store)
    tasks = [
        asyncio.create_task(users.check(f"name {number}", "x", f"6.6.6.{number % addresses}"))
        for number in range(addresses * 17)
    ]
    await asyncio.sleep(0.05)
    refused = [task for task in tasks if task.done()]
    assert len(tasks) - len(refused) == passed
    assert all(isinstance(task.exception(), TooManyTries) for task in refused)
    gate.set()
    await asyncio.wait(tasks)
    assert users._waiting == {}


async def test_few_passwords_are_checked_at_the_same_time() -> None:
    running, most = 0, 0

    async def work(name: str, password: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    users = Users(work, MemoryBackend().store)
    await asyncio.gather(*(users.check(f"name {number}", "x") for number in range(12)))
    assert most == 4


@pytest.mark.parametrize(("length", "looked_at"), [(1024, True), (1025, False)])
@pytest.mark.parametrize("what", ["name", "password"])
async def test_what_is_too_long_is_not_looked_at(what: str, length: int, looked_at: bool) -> None:
    asked: list[str] = []

    async def check(name: str, password: str) -> str | None:
        asked.append(name)
        return "ann"

    given = {"name": "ann", "password": "x", what: "x" * length}
    assert (await Users(check, MemoryBackend().store).check(**given) == "ann") is looked_at
    assert bool(asked) is looked_at


def test_how_a_password_is_written_down() -> None:
    one, other = (hash_password("correct horse").split("$") for _ in range(2))
    assert [one[0], *(len(base64.b64decode(part)) for part in one[1:])] == ["scrypt", 16, 32]
    assert one[1:] != other[1:]  # another salt each time


def test_over_the_wire_an_address_is_the_clients() -> None:
    """Behind a proxy that is trusted, it is the one that the proxy names: one client is not locked out for another."""
    with authorize(asgi={"trusted_proxies": ["127.0.0.1"]}) as place:
        browser = Browser(place.base)
        page = browser.get("/authorize", **place.request(pkce()[1]))
        fields = {**hidden_fields(page), "username": "ann", "password": "wrong", "action": "allow"}
        evil = {"X-Forwarded-For": "6.6.6.6"}
        assert [browser.post("/authorize", fields, **evil).status for _ in range(11)] == [403] * 10 + [429]
        good = {**fields, "password": "correct horse"}
        assert browser.post("/authorize", good, **evil).status == 429
        assert "code" in sent_to(browser.post("/authorize", good, **{"X-Forwarded-For": "7.7.7.7"}))[1]


def test_what_a_proxy_says_that_is_not_trusted_is_not_believed() -> None:
    with authorize() as place:
        browser = Browser(place.base)
        page = browser.get("/authorize", **place.request(pkce()[1]))
        fields = {**hidden_fields(page), "username": "ann", "password": "wrong", "action": "allow"}
        tried = [browser.post("/authorize", fields, **{"X-Forwarded-For": f"6.6.6.{n}"}).status for n in range(11)]
        assert tried == [403] * 10 + [429]
