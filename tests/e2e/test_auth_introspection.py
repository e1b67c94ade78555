"""The introspection endpoint: resource servers ask about the tokens of their own audience, and of no other."""

import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from support import serve
from support.authorizing import CLIENTS, SECRET, Authorization, authorize, error_of
from support.logging_in import Browser
from support.protected import Peer
from support.tokens import RESOURCE
from weft.authorization import AuthorizationServer, RegisteredClient
from weft.errors import UsageError
from weft.server.auth import IntrospectionVerifier

OTHER = "https://other.example/mcp"
ASKER = RegisteredClient(client_id="asker", grant_types=(), introspects=(RESOURCE,)).with_secret(SECRET)
STRANGER = RegisteredClient(client_id="stranger", grant_types=(), introspects=(OTHER,)).with_secret(SECRET)


@pytest.fixture(scope="module")
def place() -> Iterator[Authorization]:
    with authorize(clients=[*CLIENTS, ASKER, STRANGER], resources=[RESOURCE, OTHER]) as running:
        yield running


def ask(place: Authorization, **fields: str | None) -> Any:
    given = {"client_id": "asker", "client_secret": SECRET, **fields}
    return Browser(place.base).post("/introspect", {name: value for name, value in given.items() if value is not None})


def test_a_token_that_is_good(place: Authorization) -> None:
    token = place.tokens(scope="read")["access_token"]
    answer = ask(place, token=token, token_type_hint="refresh_token")  # a hint, which may be wrong
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    told = json.loads(answer.body)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (told["active"], told["token_type"], told["scope"]) == (True, "Bearer", "read")
    assert (told["sub"], told["aud"], told["client_id"], told["iss"]) == ("ann", RESOURCE, "public", place.base)
    assert (told["exp"], told["iat"], told["jti"]) == (claims["exp"], claims["iat"], claims["jti"])


INACTIVE: dict[str, Any] = {
    "another audience": lambda place: place.tokens(resource=OTHER)["access_token"],
    "a refresh token": lambda place: place.tokens()["refresh_token"],
    "cut": lambda place: place.tokens()["access_token"][:-5],
    "text": lambda place: "x",
    "expired": lambda place: place.server.signer.sign(place.base, grant(), -1),
    "of another issuer": lambda place: place.server.signer.sign("https://evil.example", grant(), 60),
    "of another key": lambda place: other_server(place).signer.sign(place.base, grant(), 60),
}


def grant() -> Any:
    from weft.authorization.grants import IssuedGrant

    return IssuedGrant(client_id="public", subject="ann", scopes=("read",), resource=RESOURCE)


def other_server(place: Authorization) -> AuthorizationServer:
    return AuthorizationServer(place.base, resources=[RESOURCE], users={"ann": "x"})


@pytest.mark.parametrize("what", INACTIVE)
def test_of_other_tokens_nothing_is_told(place: Authorization, what: str) -> None:
    answer = ask(place, token=INACTIVE[what](place))
    assert (answer.status, json.loads(answer.body)) == (200, {"active": False})


def test_what_is_not_wrong_with_those(place: Authorization) -> None:
    assert json.loads(ask(place, token=place.server.signer.sign(place.base, grant(), 60)).body)["active"] is True


def test_another_resource_server_learns_nothing(place: Authorization) -> None:
    token = place.tokens()["access_token"]
    assert json.loads(ask(place, token=token, client_id="stranger").body) == {"active": False}
    assert json.loads(ask(place, token=token).body)["active"] is True


@pytest.mark.parametrize(
    ("changes", "status", "error"),
    [
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_secret": None}, 401, "invalid_client"),
        ({"client_id": None, "client_secret": None}, 401, "invalid_client"),
        ({"client_id": "public", "client_secret": None}, 403, "unauthorized_client"),
        ({"client_id": "private"}, 403, "unauthorized_client"),
        ({"token": None}, 400, "invalid_request"),
        ({"token": ""}, 400, "invalid_request"),
    ],
)
def test_who_may_ask(place: Authorization, changes: dict[str, Any], status: int, error: str) -> None:
    assert error_of(ask(place, **{"token": place.tokens()["access_token"], **changes})) == (status, error)


def test_a_login_that_has_ended(place: Authorization) -> None:
    code, verifier = place.code()
    request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    token = json.loads(place.token(**request).body)["access_token"]
    assert json.loads(ask(place, token=token).body)["active"] is True
    place.token(**request)
    assert json.loads(ask(place, token=token).body) == {"active": False}


def test_a_weft_server_elsewhere_asks(place: Authorization) -> None:
    """The server is another process: it knows the authorization server by its endpoint alone."""
    verifier = IntrospectionVerifier(
        f"{place.base}/introspect", client_id="asker", client_secret=SECRET, issuer=place.base, cache_seconds=0
    )
    code, secret = place.code()
    request = {"grant_type": "authorization_code", "code": code, "code_verifier": secret}
    token = json.loads(place.token(**request).body)["access_token"]
    with serve(place.protect(verifier=verifier)) as live:
        peer = Peer(live, "stateless", token)
        assert peer.tool("who").result["structuredContent"]["subject"] == "ann"
        place.token(**request)  # a replay
        assert peer.tool("who").status == 401


def test_the_metadata_names_the_endpoint_where_there_is_one(place: Authorization) -> None:
    told = place.server.metadata()
    assert told["introspection_endpoint"] == f"{place.base}/introspect"
    assert told["introspection_endpoint_auth_methods_supported"] == ["client_secret_basic", "client_secret_post"]
    with authorize() as other:
        assert not [name for name in other.server.metadata() if name.startswith("introspection")]
        assert ask(other, token="x").status == 404


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (RegisteredClient(client_id="a", grant_types=(), introspects=(RESOURCE,)), "it must authenticate"),
        (
            RegisteredClient(client_id="a", grant_types=(), introspects=("https://evil.example",)).with_secret("s"),
            "name that resource in resources=",
        ),
    ],
)
def test_a_client_that_could_never_ask(client: RegisteredClient, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        AuthorizationServer("http://127.0.0.1:9", resources=[RESOURCE], users={"ann": "x"}, clients=[client])


def test_no_leeway_is_added_to_that_of_who_asks(place: Authorization) -> None:
    token = place.server.signer.sign(place.base, grant(), 1)
    assert json.loads(ask(place, token=token).body)["active"] is True
    time.sleep(1.1)
    assert json.loads(ask(place, token=token).body)["active"] is False
