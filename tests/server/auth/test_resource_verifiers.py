"""Verifiers: which tokens are good, and which are not, whatever they look like."""

import asyncio
import base64
import time
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from support.tokens import BAD_TOKENS, ISSUER, RESOURCE, claims_for, ec_jwk, rsa_jwk, rsa_key, token_for
from weft.auth import TokenInfo
from weft.errors import UsageError
from weft.server.auth import IntrospectionVerifier, JwtVerifier, StaticTokens, TokenRefused
from weft.server.auth import keys as keys_module
from weft.server.auth.keys import read_issuer
from weft.server.auth.tokens import VerifierFailed


def verifier(**options: Any) -> JwtVerifier:
    given = {"keys": {"keys": [rsa_jwk()]}, "issuer": ISSUER, "audience": RESOURCE, **options}
    return JwtVerifier(**given)


@pytest.mark.spec("AUTH-29", "AUTH-30")
async def test_a_good_token_says_who_is_calling():
    info = await verifier()(token_for("ann", scope="read write", aud=["https://other.example", RESOURCE]))
    assert info is not None
    assert (info.subject, info.client_id, info.issuer) == ("ann", "app", ISSUER)
    assert info.scopes == {"read", "write"}
    assert info.claims["iss"] == ISSUER


@pytest.mark.spec("AUTH-29", "AUTH-30", "AUTH-31", "ASEC-02")
@pytest.mark.security("R10", "D15")
@pytest.mark.parametrize(("make", "reason"), BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
async def test_a_bad_token_is_refused(make: Any, reason: str):
    with pytest.raises(TokenRefused, match=reason) as refused:
        await verifier()(make())
    assert make()[:20] not in str(refused.value)


@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
async def test_a_time_that_is_no_number_of_this_world_is_refused(name: str):
    with pytest.raises(TokenRefused, match=f"The claim `{name}` of the access token is not a time"):
        await verifier()(token_for(**{name: 10**400 if name == "exp" else -(10**400)}))


async def test_a_head_that_is_too_deep_for_an_older_pyjwt_is_refused(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr(jwt, "get_unverified_header", fail)
    monkeypatch.setattr(jwt, "decode", fail)
    with pytest.raises(TokenRefused, match="no JWT"):
        await verifier()(token_for())
    assert read_issuer(token_for()) is None


async def test_clocks_may_differ_a_little():
    assert await verifier()(token_for(exp=int(time.time()) - 10, nbf=int(time.time()) + 10)) is not None


async def test_keys_may_be_a_pem_a_list_or_a_set():
    pem = rsa_key("first").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for keys in (pem, [ec_jwk("other"), rsa_jwk()], {"keys": [{"kty": "unknown"}, rsa_jwk()]}):
        info = await verifier(keys=keys)(token_for(head={"typ": "at+jwt"}))
        assert info is not None
        assert info.subject == "ann"


@pytest.mark.parametrize(
    "said", [{"use": "enc"}, {"alg": "PS256"}, {"alg": "RSA-OAEP"}, {"key_ops": ["sign"]}, {"key_ops": []}]
)
async def test_a_key_verifies_what_it_says_it_is_for_and_nothing_else(said: dict[str, Any]):
    with pytest.raises(TokenRefused, match="not signed"):
        await verifier(keys=[{**rsa_jwk(), **said}, ec_jwk("other")])(token_for())
    for good in ({"use": "sig"}, {"alg": "RS256"}, {"key_ops": ["verify"]}):
        assert await verifier(keys=[{**rsa_jwk(), **good}])(token_for()) is not None


@pytest.mark.parametrize("algorithms", [["none"], ["HS256"], [], ["RS256", "x"]])
def test_algorithms_that_are_not_asymmetric_cannot_be_configured(algorithms: list[str]):
    with pytest.raises(UsageError, match="algorithms= has"):
        verifier(algorithms=algorithms)


@pytest.mark.parametrize(
    "options",
    [
        {"keys": None},
        {"jwks_uri": "https://a.example/jwks"},
        {"keys": "x"},
        {"keys": []},
        {"leeway": -1},
        {"audience": ""},
    ],
)
def test_a_verifier_that_cannot_work_is_refused(options: dict[str, Any]):
    with pytest.raises(UsageError):
        verifier(**options)


@pytest.mark.security("R11")
@pytest.mark.parametrize("uri", ["http://auth.example.com/jwks", "file:///etc/passwd", "https://u:p@a.example", "x"])
def test_keys_come_over_https_or_from_this_machine(uri: str):
    with pytest.raises(UsageError, match="not safe for sending tokens"):
        JwtVerifier(uri, issuer=ISSUER)


async def test_a_verifier_needs_to_know_for_whom():
    with pytest.raises(UsageError, match="audience="):
        await JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER)(token_for())


class Endpoint:
    """A URL that answers as told, and counts."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.seconds = 0.0  # until it answers
        self.asked: list[Any] = []
        self.headers: list[Any] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        self.asked.append(dict(await request.post()))
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.seconds)
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, status=self.status, content_type="application/json")
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def endpoint():
    answering = Endpoint()
    app = web.Application()
    app.router.add_route("*", "/x", answering.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    answering.url = f"http://127.0.0.1:{port}/x"
    yield answering
    await runner.cleanup()


async def test_keys_are_fetched_once_and_rotated_on_an_unknown_id(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    endpoint.answer = {"keys": [rsa_jwk()]}
    fetching = JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)
    await asyncio.gather(*(fetching(token_for()) for _ in range(5)))
    assert len(endpoint.asked) == 1
    endpoint.answer = {"keys": [rsa_jwk("next")]}
    rotated = token_for(key=rsa_key("next"), head={"kid": "next"})
    with pytest.raises(TokenRefused):  # not asked again so soon, whatever ids are made up
        await fetching(rotated)
    assert len(endpoint.asked) == 1
    monkeypatch.setattr(keys_module, "RETRY_SECONDS", 0.0)
    assert await fetching(rotated) is not None
    assert len(endpoint.asked) == 2
    with pytest.raises(TokenRefused):  # the old key is gone
        await fetching(token_for())


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keys be asked for again, once."""
    clock = keys_module.time
    monkeypatch.setattr(
        keys_module, "time", SimpleNamespace(monotonic=lambda: clock.monotonic() + keys_module.RETRY_SECONDS)
    )


def without_id(name: str, **head: Any) -> str:
    """A token whose head names no key, unless told."""
    return jwt.encode(claims_for(), rsa_key(name), "RS256", headers=head)


def nameless(name: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in rsa_jwk(name).items() if key != "kid"} | more


@pytest.mark.parametrize("named", [{}, {"kid": "the key"}], ids=["no ids", "the same id"])
async def test_keys_are_fetched_again_when_none_of_them_made_a_signature(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
):
    endpoint.answer = {"keys": [nameless("first", **named)]}
    fetching = JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)
    assert await fetching(without_id("first", **named)) is not None
    endpoint.answer = {"keys": [nameless("next", **named)]}
    later(monkeypatch)
    # All who come at once have the new keys, of one fetch.
    found = await asyncio.gather(*(fetching(without_id("next", **named)) for _ in range(5)))
    assert [info.subject for info in found if info is not None] == ["ann"] * 5
    assert len(endpoint.asked) == 2
    with pytest.raises(TokenRefused):  # the old key is gone
        await fetching(without_id("first", **named))


async def test_forged_tokens_make_nobody_fetch_keys_over_and_over(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    endpoint.answer = {"keys": [rsa_jwk()]}
    fetching = JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)
    assert await fetching(token_for()) is not None
    later(monkeypatch)
    for _ in range(20):
        with pytest.raises(TokenRefused, match="not signed"):
            await fetching(token_for(key=rsa_key("other")))
    assert len(endpoint.asked) == 2
    later(monkeypatch)
    for wrong in ({"exp": 1}, {"aud": "https://other.example"}):  # signed by a key that there is: no reason to look
        with pytest.raises(TokenRefused):
            await fetching(token_for(**wrong))
    assert len(endpoint.asked) == 2


@pytest.mark.filterwarnings(r"ignore:The \w+ key is:UserWarning")
async def test_a_key_that_cannot_be_used_does_not_take_the_others_with_it(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
):
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    short = {**RSAAlgorithm.to_jwk(small.public_key(), as_dict=True), "kid": "short"}
    endpoint.answer = {"keys": [{"kty": "RSA", "n": "!"}, short, rsa_jwk()]}
    fetching = JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)
    assert await fetching(token_for()) is not None
    with pytest.raises(TokenRefused, match="not signed"):
        await fetching(token_for(key=small, head={"kid": "short"}))
    with pytest.raises(TokenRefused, match="not signed"):  # anybody can send such tokens: it is said once
        await fetching(token_for(key=small, head={"kid": "short"}))
    assert caplog.text.count("A key that signs tokens is ignored: an RSA key must have at least 2048 bits.") == 1


async def test_who_goes_away_does_not_keep_the_others_from_new_keys(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    endpoint.answer = {"keys": [rsa_jwk()]}
    fetching = JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)
    assert await fetching(token_for()) is not None
    endpoint.answer, endpoint.seconds = {"keys": [rsa_jwk("next")]}, 0.2
    later(monkeypatch)
    rotated = token_for(key=rsa_key("next"), head={"kid": "next"})
    leaving, staying = (asyncio.create_task(fetching(rotated)) for _ in range(2))
    await asyncio.sleep(0.05)
    leaving.cancel()
    assert await staying is not None
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, {}),
        (302, {}),
        (200, b"no"),
        (200, {"x": 1}),
        (200, {"keys": 3}),
        (200, {"keys": "no"}),
        (200, {"keys": {}}),
        (200, b" " * 600_000),
    ],
)
async def test_keys_that_cannot_be_had_are_no_reason_to_refuse_a_token(endpoint: Endpoint, status: int, answer: Any):
    endpoint.status, endpoint.answer = status, answer
    with pytest.raises(VerifierFailed):
        await JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)(token_for())


@pytest.mark.parametrize(("status", "answer"), [(500, {}), (200, {"keys": "no"})])
async def test_old_keys_stay_good_while_new_ones_cannot_be_had(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, status: int, answer: Any
):
    endpoint.answer = {"keys": [rsa_jwk()]}
    fetching = JwtVerifier(endpoint.url, issuer=ISSUER, audience=RESOURCE)
    assert await fetching(token_for()) is not None
    monkeypatch.setattr(keys_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(keys_module, "KEEP_SECONDS", 0.0)
    endpoint.status, endpoint.answer = status, answer
    assert await fetching(token_for()) is not None
    assert len(endpoint.asked) == 2


def introspection(url: str, **options: Any) -> IntrospectionVerifier:
    return IntrospectionVerifier(url, client_id="me:", client_secret="s3cret/+", audience=RESOURCE, **options)


async def test_introspection_asks_and_reads_the_answer(endpoint: Endpoint):
    endpoint.answer = {"active": True, **claims_for("bob", iss=None)}
    info = await introspection(endpoint.url, issuer=ISSUER)("opaque")
    assert info is not None
    assert (info.subject, info.issuer, info.scopes) == ("bob", ISSUER, {"read"})
    assert endpoint.asked == [{"token": "opaque", "token_type_hint": "access_token"}]
    assert base64.b64decode(endpoint.headers[0]["Authorization"].split()[1]) == b"me%3A:s3cret%2F%2B"


INACTIVE: dict[str, tuple[dict[str, Any], str | None]] = {
    "inactive": ({"active": False}, None),
    "not said": ({}, None),
    "truthy": ({"active": "true"}, None),
    "audience": ({"active": True, "sub": "a", "aud": "https://other.example"}, "another resource"),
    "no audience": ({"active": True, "sub": "a"}, "which resource"),
    "issuer": ({"active": True, "sub": "a", "aud": RESOURCE, "iss": "https://evil.example"}, "authorization server"),
    "expired": ({"active": True, "sub": "a", "aud": RESOURCE, "exp": 1}, "expired"),
    "not yet": ({"active": True, "sub": "a", "aud": RESOURCE, "nbf": 99_999_999_999}, "not valid yet"),
    "no time": ({"active": True, "sub": "a", "aud": RESOURCE, "exp": "soon"}, "`exp`"),
}


@pytest.mark.spec("AUTH-30", "AUTH-31")
@pytest.mark.parametrize(("answer", "reason"), INACTIVE.values(), ids=INACTIVE.keys())
async def test_introspection_refuses(endpoint: Endpoint, answer: dict[str, Any], reason: str | None):
    endpoint.answer = answer
    asking = introspection(endpoint.url, issuer=ISSUER)
    if reason is None:
        assert await asking("opaque") is None
    else:
        with pytest.raises(TokenRefused, match=reason):
            await asking("opaque")


async def test_introspection_that_fails_is_no_verdict(endpoint: Endpoint):
    endpoint.status = 401
    with pytest.raises(VerifierFailed) as failed:
        await introspection(endpoint.url)("opaque")
    assert "opaque" not in str(failed.value)


@pytest.mark.security("R11")
def test_no_repr_shows_a_secret():
    shown = repr(introspection("https://a.example/i")) + repr(StaticTokens({"hidden-token": "ann"})) + repr(verifier())
    assert not any(secret in shown for secret in ("s3cret", "hidden", "BEGIN"))


async def test_static_tokens():
    tokens = StaticTokens({"token-of-ann": "ann", "token/of/bob==": TokenInfo("bob", client_id="cli")})
    ann, bob = await tokens("token-of-ann"), await tokens("token/of/bob==")
    assert (ann and ann.subject, bob and bob.client_id) == ("ann", "cli")
    assert await tokens("token-of-ann ") is None


@pytest.mark.parametrize(
    "token", ["token of ann", "token-of-ann ", " " * 8, "token=of=ann", "token-of-änn", "12345678\n"]
)
def test_static_tokens_that_no_client_can_send_are_refused(token: str):
    with pytest.raises(UsageError, match=r"that no client can send .*: a token has only letters, digits") as refused:
        StaticTokens({"a-token-that-can-be-sent": "bob", token: "ann"})
    assert "token_urlsafe" in str(refused.value)
    assert token not in str(refused.value)


@pytest.mark.parametrize("tokens", [{}, {"": "ann"}, {"short": "ann"}])
def test_static_tokens_that_are_no_protection_are_refused(tokens: dict[str, str]):
    with pytest.raises(UsageError, match="StaticTokens"):
        StaticTokens(tokens)
