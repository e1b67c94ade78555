"""Grants: what ends a family of tokens ends all of it, whatever is under way."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.tokens import RESOURCE
from weft.authorization import grants as module
from weft.authorization.grants import Grants, IssuedGrant, Pending
from weft.authorization.web import OAuthError
from weft.backends.memory import MemoryBackend
from weft.protocol.request_state import KeyRing

PENDING = Pending(
    client_id="a", client_name="", redirect_uri="", state=None, challenge="", scopes=(), resource=RESOURCE
)


class Apart:
    """A store on another machine: between asking and being told, others have their turn."""

    def __init__(self) -> None:
        self._near = MemoryBackend().store

    def __getattr__(self, name: str) -> Any:
        async def later(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            done = await getattr(self._near, name)(*given, **named)
            await asyncio.sleep(0)
            return done

        return later


class World:
    """Grants on a store, with a clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any = None, **options: Any) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: self.now))
        self.store = store or MemoryBackend(clock=lambda: self.now).store
        times = {"grace_seconds": 30.0, "access_seconds": 600.0, **options}
        self.grants = Grants(self.store, KeyRing.ephemeral(), 86_400.0, **times)
        self.made = 0

    async def log_in(self) -> tuple[IssuedGrant, str]:
        grant = await self.grants.redeem_code(await self.grants.begin(PENDING, "ann"))
        return grant, await self.grants.refresh(grant)

    async def use(self, token: str, asked: str = "all") -> dict[str, object]:
        grant = await self.grants.read_refresh(token)

        async def make() -> dict[str, object]:
            self.made += 1
            return {"access_token": f"access {self.made}", "refresh_token": await self.grants.refresh(grant)}

        return await self.grants.redeem_refresh(token, asked, make)


@pytest.mark.spec("ASEC-04")
async def test_an_answer_that_was_lost_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    _, token = await world.log_in()
    first = await world.use(token)
    world.now += 29.9
    assert await world.use(token) == first
    assert (await world.use(cast("str", first["refresh_token"])))["access_token"] == "access 2"


@pytest.mark.spec("ASEC-04")
async def test_after_the_grace_a_second_use_ends_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    grant, token = await world.log_in()
    first = await world.use(token)
    world.now += 30.0
    with pytest.raises(OAuthError, match="refresh is not valid"):
        await world.use(token)
    assert await world.grants.has_ended(grant.family)
    with pytest.raises(OAuthError):
        await world.use(cast("str", first["refresh_token"]))


async def test_without_a_grace_a_second_use_ends_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, grace_seconds=0.0)
    grant, token = await world.log_in()
    await world.use(token)
    with pytest.raises(OAuthError):
        await world.use(token)
    assert await world.grants.has_ended(grant.family)


async def test_the_grace_is_for_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    grant, token = await world.log_in()
    first = await world.use(token, "all")
    with pytest.raises(OAuthError, match="not valid"):
        await world.use(token, "less")
    assert not await world.grants.has_ended(grant.family)
    assert await world.use(token, "all") == first


async def test_of_many_at_once_all_get_the_answer_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, store=Apart())
    _, token = await world.log_in()
    answers = await asyncio.gather(*(world.use(token) for _ in range(8)))
    assert [answer == answers[0] for answer in answers] == [True] * 8
    assert world.made > 1  # they did come at once
    kept = [key for key in world.store._near._values if key.startswith("refresh:")]
    assert len(kept) == 2  # the old one and the new: what the others made is forgotten


async def test_of_many_at_once_without_a_grace_the_family_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, store=Apart(), grace_seconds=0.0)
    grant, token = await world.log_in()
    answers = await asyncio.gather(*(world.use(token) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(answer, dict) for answer in answers) <= 1
    assert await world.grants.has_ended(grant.family)


async def test_a_family_that_has_ended_has_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    grant, token = await world.log_in()
    await world.use(token)
    await world.grants.end(grant.family)
    with pytest.raises(OAuthError):
        await world.use(token)
    assert world.made == 1


async def test_what_is_kept_of_an_answer_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    _, token = await world.log_in()
    answer = await world.use(token)
    kept = str(vars(world.store))
    assert token not in kept
    assert "access 1" not in kept
    assert str(answer["refresh_token"]) not in kept


@pytest.mark.spec("ASEC-04")
@pytest.mark.parametrize("kind", ["code", "refresh"])
async def test_a_token_of_a_family_that_ends_meanwhile_is_not_good(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thief uses the old token at the very moment in which its owner uses the new one: neither gets anything."""
    world = World(monkeypatch)
    _, token = await world.log_in()
    code = await world.grants.begin(PENDING, "ann")
    swap = world.store.swap

    async def swap_slowly(key: str, *given: Any, **named: Any) -> bool:
        done = await swap(key, *given, **named)
        for family in [key for key in world.store._values if key.startswith("family:")]:
            await world.store.delete(family)
        return done

    monkeypatch.setattr(world.store, "swap", swap_slowly)
    with pytest.raises(OAuthError, match=f"{kind} is not valid"):
        await (world.grants.redeem_code(code) if kind == "code" else world.use(token))


@pytest.mark.spec("ASEC-04")
async def test_a_code_is_good_once_however_many_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, store=Apart())
    code = await world.grants.begin(PENDING, "ann")
    tried = await asyncio.gather(*(world.grants.redeem_code(code) for _ in range(8)), return_exceptions=True)
    granted = [one for one in tried if isinstance(one, IssuedGrant)]
    assert len(granted) <= 1
    with pytest.raises(OAuthError):
        await world.grants.redeem_code(code)
    families = [key for key in world.store._near._values if key.startswith("ended:")]
    assert len(families) == 1


async def test_a_code_that_comes_again_after_hours_still_ends_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    code = await world.grants.begin(PENDING, "ann")
    grant = await world.grants.redeem_code(code)
    world.now += 7200.0
    with pytest.raises(OAuthError):
        await world.grants.redeem_code(code)
    assert await world.grants.has_ended(grant.family)


async def test_an_end_is_remembered_for_as_long_as_a_token_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, access_seconds=600.0)
    grant, _ = await world.log_in()
    await world.grants.end(grant.family)
    world.now += 659.0  # with what clocks may differ, at the one that signed and at the one that verifies
    assert await world.grants.has_ended(grant.family)
    world.now += 2.0
    assert not await world.grants.has_ended(grant.family)


async def test_lifetimes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for seconds, is_good in ((59.0, True), (61.0, False)):
        code = await world.grants.begin(PENDING, "ann")
        world.now += seconds
        if is_good:
            assert (await world.grants.redeem_code(code)).subject == "ann"
        else:
            with pytest.raises(OAuthError):
                await world.grants.redeem_code(code)
    for seconds, is_good in ((599.0, True), (601.0, False)):
        sealed = world.grants.seal(PENDING, "browser")
        world.now += seconds
        assert (world.grants.open(sealed, "browser") is not None) is is_good
    _, token = await world.log_in()
    world.now += 86_399.0
    second = await world.use(token)  # the family lives on with it
    world.now += 86_399.0
    third = await world.use(cast("str", second["refresh_token"]))
    world.now += 86_401.0
    with pytest.raises(OAuthError):
        await world.use(cast("str", third["refresh_token"]))
