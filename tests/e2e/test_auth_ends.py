"""Logins that end before their tokens: by a code or a refresh token that comes twice, or that another client shows."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support import serve
from support.authorizing import SECRET, Authorization, authorize, error_of
from support.protected import ERAS, Peer, challenge_of
from weft.authorization import AuthorizationServer
from weft.backends.memory import MemoryBackend


@pytest.fixture(scope="module")
def place() -> Iterator[Authorization]:
    with authorize() as running:
        yield running


def redeem(place: Authorization) -> tuple[dict[str, str], dict[str, Any]]:
    """A code that was exchanged: the request that did it, and the tokens that it got."""
    code, verifier = place.code()
    request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    return request, json.loads(place.token(**request).body)


@pytest.mark.spec("ASEC-04")
@pytest.mark.parametrize("era", ERAS)
def test_a_replayed_code_ends_the_access_token_too(place: Authorization, era: str) -> None:
    with serve(place.protect()) as live:
        request, tokens = redeem(place)
        _, others = redeem(place)
        peer, other = (Peer(live, era, one["access_token"]) for one in (tokens, others))
        assert [peer.tool("who").status for _ in range(2)] == [200, 200]  # what was found of it is remembered
        assert error_of(place.token(**request)) == (400, "invalid_grant")
        refused = peer.tool("who")
        assert (refused.status, challenge_of(refused)[1]["error"]) == (401, "invalid_token")
        assert "has ended; log in again" in challenge_of(refused)[1]["error_description"]
        assert Peer(live, "stateless", tokens["access_token"]).tool("who").status == 401
        assert other.tool("who").status == 200  # another login of the same user
    assert error_of(place.refresh(tokens["refresh_token"])) == (400, "invalid_grant")


@pytest.mark.spec("ASEC-04")
def test_a_token_that_was_never_shown_before_ends_as_well(place: Authorization) -> None:
    request, tokens = redeem(place)
    place.token(**request)
    with serve(place.protect()) as live:
        assert Peer(live, "stateless", tokens["access_token"]).tool("who").status == 401


@pytest.mark.spec("ASEC-04")
def test_another_client_that_shows_a_refresh_token_ends_its_family(place: Authorization) -> None:
    tokens = place.tokens()
    stolen = place.refresh(tokens["refresh_token"], client_id="private", client_secret=SECRET)
    assert error_of(stolen) == (400, "invalid_grant")
    assert error_of(place.refresh(tokens["refresh_token"])) == (400, "invalid_grant")
    with serve(place.protect()) as live:
        assert Peer(live, "stateless", tokens["access_token"]).tool("who").status == 401


@pytest.mark.spec("ASEC-04")
@pytest.mark.parametrize(
    "changes",
    [
        {"code_verifier": "x" * 43},
        {"redirect_uri": "http://127.0.0.1:3001/callback"},
        {"client_id": "private", "client_secret": SECRET},
    ],
)
def test_a_code_in_wrong_hands_is_good_for_nobody(place: Authorization, changes: dict[str, str]) -> None:
    code, verifier = place.code()
    request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    assert error_of(place.token(**{**request, **changes})) == (400, "invalid_grant")
    assert error_of(place.token(**request)) == (400, "invalid_grant")


@pytest.mark.spec("ASEC-04")
def test_refresh_tokens_are_rotated_and_a_late_reuse_ends_them_all() -> None:
    with authorize(grace_seconds=0.5) as place:
        first = place.tokens()
        second = json.loads(place.refresh(first["refresh_token"]).body)
        assert second["refresh_token"] != first["refresh_token"]
        assert second["access_token"] != first["access_token"]
        again = place.refresh(first["refresh_token"])
        assert (again.status, json.loads(again.body)) == (200, second)  # the answer may have been lost
        assert error_of(place.refresh(first["refresh_token"], scope="read")) == (400, "invalid_grant")
        time.sleep(0.6)
        assert error_of(place.refresh(first["refresh_token"])) == (400, "invalid_grant")
        assert error_of(place.refresh(second["refresh_token"])) == (400, "invalid_grant")
        with serve(place.protect()) as live:
            for token in (first["access_token"], second["access_token"]):
                assert Peer(live, "stateless", token).tool("who").status == 401


def test_of_many_who_refresh_at_once_all_get_the_same_answer(place: Authorization) -> None:
    token = place.tokens()["refresh_token"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: place.refresh(token), range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert len({answer.body for answer in answers}) == 1


def test_the_grace_is_for_the_client_of_the_token(place: Authorization) -> None:
    token = place.tokens()["refresh_token"]
    second = json.loads(place.refresh(token).body)
    assert error_of(place.refresh(token, client_id="private", client_secret=SECRET)) == (400, "invalid_grant")
    assert error_of(place.refresh(second["refresh_token"])) == (400, "invalid_grant")


def test_workers_that_share_a_backend_know_of_an_end() -> None:
    """The one that issues and the one that verifies are two processes, of one key."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    backend = MemoryBackend()
    with authorize(key=key, backend=backend) as place:
        options: dict[str, Any] = {"resources": place.server.resources, "users": {"ann": "x"}}
        near = AuthorizationServer(place.server.issuer, **options, key=key, backend=backend)
        far = AuthorizationServer(place.server.issuer, **options, key=key)
        request, tokens = redeem(place)
        with (
            serve(place.protect(verifier=near.verifier())) as live,
            serve(place.protect(verifier=far.verifier())) as other,
        ):
            peers = [Peer(one, "stateless", tokens["access_token"]) for one in (live, other)]
            assert [peer.tool("who").status for peer in peers] == [200, 200]
            place.token(**request)
            assert [peer.tool("who").status for peer in peers] == [401, 200]  # the other has nothing to know it from


@pytest.mark.security("R1")
def test_where_it_cannot_be_told_whether_a_login_has_ended_nobody_is_let_in(
    place: Authorization, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def get(self, *_: Any) -> bytes:
            raise ConnectionError("redis://10.0.0.7 is gone")

    _, tokens = redeem(place)
    with serve(place.protect()) as live:
        peer = Peer(live, "stateless", tokens["access_token"])
        assert peer.tool("who").status == 200
        monkeypatch.setattr(place.server.grants, "store", Broken())
        refused = peer.tool("who")
    assert (refused.status, b"10.0.0.7" in refused.body) == (500, False)
    assert tokens["access_token"] not in caplog.text
