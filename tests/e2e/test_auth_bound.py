"""Tokens that the authorization server binds to a client's key (RFC 9449), from its login to a call of a tool."""

import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from support import serve
from support.authorizing import CLIENTS, SECRET, Authorization, authorize, error_of
from support.logging_in import REDIRECT, Browser, log_in
from support.protected import Peer, challenge_of, make_protected
from support.tokens import RESOURCE, ec_jwk, proof_for, rsa_jwk
from weft import Client
from weft.auth import ClientCredentials, OAuth
from weft.authorization import CLIENT_CREDENTIALS, AuthorizationServer, RegisteredClient
from weft.client.auth import FunctionRedirect
from weft.server.auth import Dpop, IntrospectionVerifier, ResourceServer, dpop
from weft.server.auth.dpop import thumbprint

PROGRAM = RegisteredClient(client_id="program", grant_types=(CLIENT_CREDENTIALS,)).with_secret(SECRET)
BOUND = RegisteredClient(client_id="bound", redirect_uris=(REDIRECT,), dpop_bound_access_tokens=True)
ASKER = RegisteredClient(client_id="asker", grant_types=(), introspects=(RESOURCE,)).with_secret(SECRET)


@pytest.fixture(scope="module")
def place() -> Iterator[Authorization]:
    with authorize(clients=[*CLIENTS, PROGRAM, BOUND, ASKER]) as running:
        yield running


def proof(place: Authorization, key: str = "first", **changes: Any) -> dict[str, str]:
    """A proof for the token endpoint, which is about no token."""
    return {"DPoP": proof_for("", **{"url": f"{place.base}/token", "key": key, "ath": None, **changes})}


def jkt(key: str = "first") -> str:
    return thumbprint(ec_jwk(key))


def exchange(place: Authorization, headers: Any = None, **changes: Any) -> Any:
    """Log in, and show the code."""
    code, verifier = place.code(**changes)
    who = {"client_id": changes.get("client_id", "public")}
    who |= {"client_secret": SECRET} if who["client_id"] == "private" else {}
    return place.token(headers, grant_type="authorization_code", code=code, code_verifier=verifier, **who)


def test_a_proof_binds_the_tokens_to_its_key(place: Authorization) -> None:
    answer = exchange(place, proof(place))
    tokens = json.loads(answer.body)
    assert (answer.status, tokens["token_type"]) == (200, "DPoP")
    token = tokens["access_token"]
    assert jwt.decode(token, options={"verify_signature": False})["cnf"] == {"jkt": jkt()}
    with serve(place.protect()) as live:
        peer = Peer(live, "stateless", token, scheme="DPoP")
        assert peer.tool("who", {"DPoP": proof_for(token)}).result["structuredContent"]["subject"] == "ann"
        assert peer.tool("who", {"DPoP": proof_for(token, key="other")}).status == 401
        assert Peer(live, "stateless", token).tool("who").status == 401


def test_without_a_proof_tokens_are_as_before(place: Authorization) -> None:
    tokens = json.loads(exchange(place).body)
    assert tokens["token_type"] == "Bearer"
    assert "cnf" not in jwt.decode(tokens["access_token"], options={"verify_signature": False})


def test_the_refresh_token_of_a_public_client_is_bound_too(place: Authorization) -> None:
    tokens = json.loads(exchange(place, proof(place)).body)
    assert error_of(place.refresh(tokens["refresh_token"])) == (400, "invalid_dpop_proof")
    assert error_of(place.refresh(tokens["refresh_token"], proof(place, "other"))) == (400, "invalid_grant")
    second = place.refresh(tokens["refresh_token"], proof(place))
    assert (second.status, json.loads(second.body)["token_type"]) == (200, "DPoP")  # who has no key did no harm
    # Also in the grace the answer is for the key alone.
    assert error_of(place.refresh(tokens["refresh_token"], proof(place, "other"))) == (400, "invalid_grant")
    assert error_of(place.refresh(tokens["refresh_token"])) == (400, "invalid_dpop_proof")
    again = place.refresh(tokens["refresh_token"], proof(place))
    assert (again.status, again.body) == (200, second.body)
    third = place.refresh(json.loads(second.body)["refresh_token"])
    assert error_of(third) == (400, "invalid_dpop_proof")


def test_that_of_a_client_with_a_secret_is_bound_to_the_client(place: Authorization) -> None:
    tokens = json.loads(exchange(place, proof(place), client_id="private").body)
    given = {"client_id": "private", "client_secret": SECRET}
    second = json.loads(place.refresh(tokens["refresh_token"], proof(place, "other"), **given).body)
    assert jwt.decode(second["access_token"], options={"verify_signature": False})["cnf"] == {"jkt": jkt("other")}


def test_a_code_can_be_bound_to_a_key(place: Authorization) -> None:
    assert exchange(place, proof(place), dpop_jkt=jkt()).status == 200
    assert error_of(exchange(place, proof(place, "other"), dpop_jkt=jkt())) == (400, "invalid_grant")
    assert error_of(exchange(place, dpop_jkt=jkt())) == (400, "invalid_grant")


BAD: dict[str, Any] = {
    "text": lambda place: {"DPoP": "x"},
    "method": lambda place: proof(place, method="GET"),
    "URL": lambda place: proof(place, url=RESOURCE),
    "endpoint": lambda place: proof(place, url=f"{place.base}/authorize"),
    "old": lambda place: proof(place, iat=int(time.time()) - 90),
    "early": lambda place: proof(place, iat=int(time.time()) + 90),
    "no id": lambda place: proof(place, jti=None),
    "type": lambda place: proof(place, head={"typ": "JWT"}),
    "another key in its head": lambda place: proof(place, head={"jwk": public("other")}),
    "no key": lambda place: proof(place, head={"jwk": None}),
    "a key of another kind": lambda place: proof(place, head={"jwk": rsa_jwk()}),
}


def public(name: str) -> dict[str, Any]:
    return {member: value for member, value in ec_jwk(name).items() if member != "key_ops"}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_proof_gets_no_token(place: Authorization, what: str) -> None:
    code, verifier = place.code()
    request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    assert error_of(place.token(BAD[what](place), **request)) == (400, "invalid_dpop_proof")
    assert place.token(proof(place), **request).status == 200  # and the code was not used up


def test_a_proof_is_good_once(place: Authorization) -> None:
    program = {"grant_type": CLIENT_CREDENTIALS, "client_id": "program", "client_secret": SECRET}
    shown = proof(place)
    assert place.token(shown, **program).status == 200
    again = place.token(shown, **program)
    assert error_of(again) == (400, "invalid_dpop_proof")
    assert "used before" in json.loads(again.body)["error_description"]


def test_two_proofs(place: Authorization) -> None:
    body = f"grant_type={CLIENT_CREDENTIALS}&client_id=program&client_secret={SECRET.replace(' ', '+')}".encode()
    headers = [("Content-Type", "application/x-www-form-urlencoded"), *proof(place).items()]
    assert place.live.send(body, headers, path="/token").status == 200
    headers = [headers[0], *proof(place).items(), *proof(place).items()]
    assert place.live.send(body, headers, path="/token").status == 400


def test_what_gets_no_token_is_not_remembered(place: Authorization) -> None:
    """Anybody can make proofs: the record of them is for those who get something."""
    from weft.authorization import endpoints as tokening

    made: list[Any] = []
    use = tokening.Proofs.use

    async def noted(self: Any, given: Any) -> None:
        made.append(given)
        await use(self, given)

    tokening.Proofs.use = noted  # type: ignore[method-assign] - only counted
    try:
        for _ in range(3):
            request = {"grant_type": "authorization_code", "code": "x", "code_verifier": "x" * 43}
            assert error_of(place.token(proof(place), **request)) == (400, "invalid_grant")
        assert made == []
        assert exchange(place, proof(place)).status == 200
        assert len(made) == 1
    finally:
        tokening.Proofs.use = use  # type: ignore[method-assign] - as above


@pytest.mark.parametrize("kind", ["code", "refresh"])
@pytest.mark.parametrize("trouble", ["was used before", "has no room", "cannot be looked up"])
def test_what_a_proof_came_with_stays_good_when_the_proof_is_not_taken(
    place: Authorization, trouble: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "code":
        code, verifier = place.code()
        request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    else:
        first = json.loads(exchange(place, proof(place)).body)["refresh_token"]
        request = {"grant_type": "refresh_token", "refresh_token": first}
    shown, store = proof(place), place.server.backend.store
    status, kept = 400, list[str]()
    put, swap = store.put, store.swap

    async def watched(key: str, *given: Any, **named: Any) -> None:
        kept.append(key.partition(":")[0])
        await put(key, *given, **named)

    async def failing(key: str, *given: Any, **named: Any) -> bool:
        if key.startswith("dpop:"):
            raise ConnectionError("the store is gone")
        return await swap(key, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", watched)
        if trouble == "was used before":
            program = {"grant_type": CLIENT_CREDENTIALS, "client_id": "program", "client_secret": SECRET}
            assert place.token(shown, **program).status == 200
        elif trouble == "has no room":
            patch.setattr(dpop, "_MOST_SEEN", 0)
        else:
            patch.setattr(store, "swap", failing)
            status = 500
        assert place.token(shown, **request).status == status
    assert "refresh" not in kept  # no token that its client does not get
    assert place.token(proof(place), **request).status == 200


def test_a_client_whose_tokens_are_always_bound(place: Authorization) -> None:
    assert error_of(exchange(place, client_id="bound")) == (400, "invalid_dpop_proof")
    assert json.loads(exchange(place, proof(place), client_id="bound").body)["token_type"] == "DPoP"


def test_a_client_may_register_as_such_a_one(place: Authorization) -> None:
    def register(bound: Any) -> Any:
        metadata = {
            "redirect_uris": [REDIRECT],
            "token_endpoint_auth_method": "none",
            "dpop_bound_access_tokens": bound,
        }
        return place.browser.send("POST", "/register", json.dumps(metadata), {"Content-Type": "application/json"})

    told = json.loads(register(True).body)
    assert told["dpop_bound_access_tokens"] is True
    assert error_of(exchange(place, client_id=told["client_id"])) == (400, "invalid_dpop_proof")
    assert exchange(place, proof(place), client_id=told["client_id"]).status == 200
    assert error_of(register("yes")) == (400, "invalid_client_metadata")


def test_bound_tokens_can_be_demanded_and_nonces_too() -> None:
    with authorize(dpop=Dpop(required=True, nonces=True, algorithms=["ES256"])) as place:
        assert place.server.metadata()["dpop_signing_alg_values_supported"] == ("ES256",)
        code, verifier = place.code()
        request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
        assert error_of(place.token(**request)) == (400, "invalid_dpop_proof")
        asked = place.token(proof(place), **request)
        assert error_of(asked) == (400, "use_dpop_nonce")
        assert place.token(proof(place, nonce=asked.headers["dpop-nonce"]), **request).status == 200


def test_the_metadata_says_with_what_proofs_are_signed(place: Authorization) -> None:
    told = json.loads(place.browser.get("/.well-known/oauth-authorization-server").body)
    assert told["dpop_signing_alg_values_supported"] == ["ES256", "EdDSA"]


def test_introspection_tells_the_key(place: Authorization) -> None:
    verifier = IntrospectionVerifier(f"{place.base}/introspect", client_id="asker", client_secret=SECRET)
    token = json.loads(exchange(place, proof(place)).body)["access_token"]
    given = {"client_id": "asker", "client_secret": SECRET, "token": token}
    told = json.loads(Browser(place.base).post("/introspect", given).body)
    assert (told["token_type"], told["cnf"]) == ("DPoP", {"jkt": jkt()})
    with serve(place.protect(verifier=verifier)) as live:
        bearer = Peer(live, "stateless", token).tool("who")
        assert (bearer.status, challenge_of(bearer)[0]) == (401, "DPoP")
        peer = Peer(live, "stateless", token, scheme="DPoP")
        assert peer.tool("who", {"DPoP": proof_for(token)}).status == 200


# --- with Weft's own client


class Together:
    """A server and the authorization server that guards it, at one address."""

    def __init__(self, port: int, **options: Any) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.resource = f"{self.base}/mcp"
        self.asked: list[tuple[str, str]] = []
        self.server = AuthorizationServer(
            self.base,
            resources=[self.resource],
            users={"ann": "correct horse"},
            scopes=["read"],
            clients=[PROGRAM],
            registration=True,
            access_seconds=options.pop("access_seconds", 600.0),
            dpop=Dpop(nonces=True),
        )
        guard = ResourceServer(
            self.resource,
            authorization_servers=[self.base],
            verifier=self.server.verifier(),
            scopes=["read"],
            dpop=Dpop(required=True, nonces=True),
        )
        self.apps = make_protected(guard).asgi(), self.server.asgi()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_mcp = scope["path"] == "/mcp" or "protected-resource" in scope["path"]
        self.asked.append((scope["method"], scope["path"]))
        await self.apps[0 if is_mcp else 1](scope, receive, send)


@pytest.fixture
def together() -> Iterator[Together]:
    places: list[Together] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await places[0](scope, receive, send)

    with serve(app) as live:
        places.append(Together(live.port))
        yield places[0]


async def test_a_program_with_bound_tokens(together: Together) -> None:
    async with Client(together.resource, auth=ClientCredentials("program", client_secret=SECRET)) as client:
        told = (await client.call_tool("who", {})).structured
    assert told["subject"] == "program"


async def test_a_person_with_bound_tokens_that_are_refreshed(together: Together) -> None:
    import asyncio
    from urllib.parse import parse_qsl, urlencode, urlsplit

    def visit(url: str) -> str:
        query = dict(parse_qsl(urlsplit(url).query))
        told = log_in(Browser(together.base), **query)
        return f"{query['redirect_uri']}?{urlencode(told)}"

    async def go(url: str) -> str:
        return await asyncio.to_thread(visit, url)

    auth = OAuth(redirect=FunctionRedirect(go, REDIRECT), dpop=True)
    together.server.access_seconds = 1.0
    async with Client(together.resource, auth=auth) as client:
        assert (await client.call_tool("who", {})).structured["subject"] == "ann"
        await asyncio.sleep(1.5)
        assert (await client.call_tool("who", {})).structured["subject"] == "ann"
    asked = [path for _, path in together.asked]
    assert asked.count("/authorize") == 2  # the page and the decision: it was refreshed, not logged in again
    assert asked.count("/token") >= 2
