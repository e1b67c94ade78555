"""Grants: what ends a family of tokens ends all of it, whatever is under way."""

import asyncio
from typing import Any, cast

import pytest

from support.tokens import RESOURCE
from weft.backends.memory import MemoryBackend
from weft.protocol.sealing import KeyRing
from weft.server.auth.authorization.grants import Grants, Pending
from weft.server.auth.authorization.users import TooManyTries, Users
from weft.server.auth.authorization.web import OAuthError


@pytest.mark.spec("ASEC-04")
async def test_a_token_of_a_family_that_ends_meanwhile_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thief uses the old token at the very moment in which its owner uses the new one: neither gets anything."""

    store = MemoryBackend().store
    delete = store.delete

    async def delete_slowly(key: str) -> bool:
        gone = await delete(key)
        await delete(f"family:{grant.family}")
        return gone

    grants = Grants(store, KeyRing.ephemeral(), 60.0)
    pending = Pending(
        client_id="a", client_name="", redirect_uri="", state=None, challenge="", scopes=(), resource=RESOURCE
    )
    grant = await grants.redeem_code(await grants.begin(pending, "ann"))
    first = await grants.refresh(grant)
    assert await grants.redeem_refresh(first) is not None
    second = await grants.refresh(grant)
    monkeypatch.setattr(store, "delete", delete_slowly)
    with pytest.raises(OAuthError, match="refresh is not valid"):
        await grants.redeem_refresh(second)


async def test_tries_are_counted_however_many_come_at_once() -> None:
    class Apart:
        """A store on another machine: between asking and being told, others have their turn."""

        def __init__(self) -> None:
            self._near = MemoryBackend().store

        def __getattr__(self, name: str) -> Any:
            async def later(*given: Any, **named: Any) -> Any:
                await asyncio.sleep(0)
                return await getattr(self._near, name)(*given, **named)

            return later

    asked: list[str] = []

    async def nobody(name: str, password: str) -> None:
        asked.append(password)

    users = Users(nobody, cast("Any", Apart()))
    tried = await asyncio.gather(*(users.check("ann", str(n)) for n in range(40)), return_exceptions=True)
    assert len(asked) == 10
    assert [type(one) for one in tried].count(TooManyTries) == 30
