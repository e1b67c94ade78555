"""Several workers of one authorization server on one backend, over a socket: what one has seen, all know.

What is good once is good once for all of them, to the end of its time and for as long as their clocks differ; who a
vouched user is, is asked once; and what was granted is held against what is configured now.
"""

import json
import logging
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from support import serve
from support.logging_in import REDIRECT, Browser, log_in, pkce
from support.tokens import ec_jwk, ec_key, rsa_jwk, rsa_key
from weft.authorization import (
    CLIENT_CREDENTIALS,
    JWT_BEARER,
    AuthorizationServer,
    RegisteredClient,
    TrustedIssuer,
)
from weft.backends.memory import MemoryBackend

SECRET = "a secret of a client"
RESOURCE = "https://mcp.example/mcp"
IDP = "https://idp.example"
CLIENT_JWT = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
KEY = ec_key("server").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class Workers:
    """Requests of the token endpoint, each to the worker that is named."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.seconds = 0.0  # how much later it is for the backend
        self.backend = MemoryBackend(clock=lambda: time.monotonic() + self.seconds)
        self.asked: list[str] = []  # the ids of the ID-JAGs that the function was asked about
        self.said: Any = "ann"  # what it says
        self.apps: list[Any] = []

    async def subject(self, claims: Any) -> Any:
        self.asked.append(claims["jti"])
        if isinstance(self.said, type):
            raise self.said(f"hidden: {dict(claims)}")
        return self.said

    def add(self, **changes: Any) -> None:
        options: dict[str, Any] = {
            "users": {"bob": "correct horse"},
            "scopes": ["read", "write"],
            "clients": [
                RegisteredClient(client_id="chat", grant_types=(JWT_BEARER,)).with_secret(SECRET),
                RegisteredClient(client_id="signer", grant_types=(CLIENT_CREDENTIALS,)).with_keys([ec_jwk("signer")]),
                RegisteredClient(client_id="twin", grant_types=(JWT_BEARER,)).with_keys([ec_jwk("twin")]),
                RegisteredClient(client_id="app", redirect_uris=(REDIRECT,)),
                RegisteredClient(client_id="other", redirect_uris=(REDIRECT,)),
            ],
            "trusted_issuers": [
                TrustedIssuer(IDP, keys=[rsa_jwk("idp")], subject=self.subject),
                TrustedIssuer("https://second.example", keys=[rsa_jwk("idp")]),
                TrustedIssuer("twin", keys=[rsa_jwk("idp")]),
            ],
        }
        server = AuthorizationServer(
            self.base, **{"resources": [RESOURCE], **options, **changes}, key=KEY, backend=self.backend
        )
        self.apps.append(server.asgi())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            number = next((int(value) for name, value in scope["headers"] if name == b"x-worker"), 0)
            await self.apps[number](scope, receive, send)

    def ask(self, worker: int = 0, **fields: str) -> tuple[int, dict[str, Any]]:
        answer = Browser(self.base).post("/token", fields, **{"X-Worker": str(worker)})
        return answer.status, json.loads(answer.body)

    def show(self, jag: str, worker: int = 0, **changes: str) -> tuple[int, dict[str, Any]]:
        who = {"client_id": "chat", "client_secret": SECRET}
        return self.ask(worker, **{"grant_type": JWT_BEARER, "assertion": jag, **who, **changes})

    def sign(self, said: str, worker: int = 0, **changes: str) -> tuple[int, dict[str, Any]]:
        given = {"client_assertion_type": CLIENT_JWT, "client_assertion": said}
        return self.ask(worker, **{"grant_type": CLIENT_CREDENTIALS, **given, **changes})

    def id_jag(self, **changes: Any) -> str:
        good = {"iss": IDP, "aud": self.base, "sub": "U1", "client_id": "chat", "resource": RESOURCE, "scope": "read"}
        return encode({**good, **changes}, rsa_key("idp"), "RS256", "oauth-id-jag+jwt")

    def client_jwt(self, name: str = "signer", **changes: Any) -> str:
        return encode({"iss": name, "sub": name, "aud": self.base, **changes}, ec_key(name), "ES256", "JWT")

    def refresh_token(self) -> str:
        verifier, challenge = pkce()
        asked = {"response_type": "code", "code_challenge": challenge, "code_challenge_method": "S256"}
        code = log_in(Browser(self.base), "bob", client_id="app", **asked)["code"]
        told = self.ask(grant_type="authorization_code", code=code, code_verifier=verifier, client_id="app")[1]
        return told["refresh_token"]

    def refresh(self, token: str, worker: int = 0, **changes: str) -> tuple[int, dict[str, Any]]:
        return self.ask(
            worker, **{"grant_type": "refresh_token", "refresh_token": token, "client_id": "app", **changes}
        )


def encode(claims: dict[str, Any], key: Any, alg: str, typ: str) -> str:
    """A JWT of now, with an id of its own."""
    now = int(time.time())
    return jwt.encode(
        {"iat": now - 60, "exp": now + 60, "jti": uuid.uuid4().hex, **claims}, key, alg, headers={"typ": typ}
    )


@contextmanager
def running(count: int = 2) -> Iterator[Workers]:
    """Workers that are all alike."""
    found: list[Workers] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # the issuer has the port in it, which comes first
        if found:
            await found[0](scope, receive, send)

    with serve(app) as live:
        workers = Workers(f"http://127.0.0.1:{live.port}")
        for _ in range(count):
            workers.add()
        found.append(workers)
        yield workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    with running() as found:
        yield found


# --- what is good once


@pytest.mark.spec("XAUTH-03", "XAUTH-06")
def test_what_one_worker_has_seen_no_other_takes(workers: Workers) -> None:
    jag, said = workers.id_jag(), workers.client_jwt()
    assert [workers.show(jag)[0], workers.show(jag, 1)[0]] == [200, 400]
    assert [workers.sign(said)[0], workers.sign(said, 1)[0]] == [200, 401]


def test_of_many_at_two_workers_one_gets_a_token(workers: Workers) -> None:
    said = workers.client_jwt()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: workers.sign(said, number % 2)[0], range(8)))
    assert sorted(answers) == [200] + [401] * 7


# A worker whose clock is behind still takes what has ended by the others' clocks, and 30 s more are given besides.
@pytest.mark.parametrize(("ends", "later"), [(10, 55), (-20, 25)])
def test_what_was_used_is_remembered_for_longer_than_it_could_be_shown(
    workers: Workers, ends: int, later: float
) -> None:
    exp = int(time.time()) + ends
    jag, said = workers.id_jag(exp=exp), workers.client_jwt(exp=exp)
    assert (workers.show(jag)[0], workers.sign(said)[0]) == (200, 200)
    workers.seconds = later
    assert "used before" in workers.show(jag, 1)[1]["error_description"]
    assert "used before" in workers.sign(said, 1)[1]["error_description"]


def test_an_id_is_of_one_issuer_and_of_one_kind(workers: Workers) -> None:
    assert workers.show(workers.id_jag(jti="same"))[0] == 200
    assert workers.show(workers.id_jag(jti="same", iss="https://second.example"))[0] == 200
    twins = {"assertion": workers.id_jag(jti="same", iss="twin", client_id="twin"), "grant_type": JWT_BEARER}
    assert workers.sign(workers.client_jwt("twin", jti="same"), **twins)[0] == 200


# --- who a vouched user is


def test_who_a_user_is_is_asked_last_and_once(workers: Workers) -> None:
    jag = workers.id_jag()
    assert workers.show(workers.id_jag(client_id="other"))[0] == 400
    assert workers.show(workers.id_jag(resource="https://evil.example"))[0] == 400
    assert workers.show(jag, scope="write")[1]["error"] == "invalid_scope"
    assert workers.asked == []
    for worker in (0, 1, 0):
        workers.show(jag, worker)
    assert len(workers.asked) == 1


@pytest.mark.security("R1")
@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_a_function_that_fails_is_logged_without_what_it_was_asked(
    workers: Workers, failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    workers.said = failure
    with caplog.at_level(logging.DEBUG):
        status, told = workers.show(workers.id_jag(email="ann@example.com"))
    assert (status, told["error"]) == (500, "server_error")
    assert f"returns the subject of an ID-JAG raised {failure.__name__} [error" in caplog.text
    assert "ann@example.com" not in caplog.text + json.dumps(told)
    workers.said = "ann"
    assert workers.show(workers.id_jag())[0] == 200  # and goes on


@pytest.mark.parametrize("said", [None, "", 5, b"ann", ["ann"]])
def test_a_function_that_names_nobody(workers: Workers, said: Any) -> None:
    workers.said = said
    status, told = workers.show(workers.id_jag())
    assert (status, told["error"]) == (400, "invalid_grant")
    assert "not known here" in told["error_description"]


async def test_a_function_may_be_an_object_that_is_called() -> None:
    class Directory:
        async def __call__(self, claims: Any) -> str | None:
            return {"U1": "ann"}.get(claims["sub"])

    issuer = TrustedIssuer(IDP, keys=[rsa_jwk("idp")], subject=Directory())
    assert [await issuer.subject_of({"sub": name}) for name in ("U1", "U2")] == ["ann", None]


# --- what was granted, and what is configured now


def test_a_refresh_gives_what_the_client_may_have_now(workers: Workers) -> None:
    less = RegisteredClient(client_id="app", redirect_uris=(REDIRECT,), scopes=("read",))
    workers.add(clients=[less], trusted_issuers=[])
    assert workers.refresh(workers.refresh_token(), 2)[1]["scope"] == "read"
    assert workers.refresh(workers.refresh_token(), 2, scope="read write")[1]["error"] == "invalid_scope"
    assert workers.refresh(workers.refresh_token(), 1)[1]["scope"] == "read write"


@pytest.mark.parametrize("changes", [{"scopes": ["admin"]}, {"scopes": []}, {"resources": ["https://new.example/mcp"]}])
def test_a_refresh_gives_nothing_where_nothing_is_left(workers: Workers, changes: dict[str, Any]) -> None:
    workers.add(**changes)
    status, told = workers.refresh(workers.refresh_token(), 2)
    assert (status, told["error"]) == (400, "invalid_grant")


@pytest.mark.spec("ASEC-04")
def test_a_refresh_token_that_a_foreign_client_shows_ends_with_its_family(workers: Workers) -> None:
    token = workers.refresh_token()
    assert workers.refresh(token, client_id="other")[1]["error"] == "invalid_grant"
    assert workers.refresh(token, 1)[1]["error"] == "invalid_grant"
