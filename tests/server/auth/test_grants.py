"""Grants: what ends a family of tokens ends all of it, whatever is under way."""

import pytest

from support.tokens import RESOURCE
from weft.backends.memory import MemoryBackend
from weft.protocol.sealing import KeyRing
from weft.server.auth.authorization.grants import Grants, Pending
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
