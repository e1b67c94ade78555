"""A verifier alone protects a server: a plain 401, nothing published, and no token in any log or repr."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support import Live, encode, headers_for, message, serve
from support.protected import ERAS, Peer, challenge_of, make_protected
from support.tokens import ISSUER, RESOURCE, bound_to, proof_for, rsa_jwk, token_for
from weft import AuthorizationFailed, Client, Server
from weft.auth import JwtVerifier, ResourceServer, StaticTokens, TokenInfo
from weft.errors import UsageError

TOKEN = "a-long-random-text"
READER = TokenInfo("ann", scopes=frozenset({"write", "admin"}))


def tokens() -> StaticTokens:
    return StaticTokens({TOKEN: "ann", "another-long-text": READER})


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serve(make_protected(tokens())) as running:  # type: ignore[arg-type] - a verifier, as Server takes it
        yield running


@pytest.mark.parametrize("era", ERAS)
def test_who_has_a_token_is_let_in(live: Live, era: str) -> None:
    told = Peer(live, era, TOKEN).tool("who").result["structuredContent"]
    assert (told["subject"], told["scopes"]) == ("ann", [])
    assert Peer(live, era, "another-long-text").tool("burn").status == 200


def test_who_has_none_is_told_so_plainly(live: Live) -> None:
    body = message("tools/list")
    refused = live.send(encode(body), headers_for(body))
    assert (refused.status, refused.headers["www-authenticate"]) == (401, 'Bearer realm="vault"')
    wrong = live.send(encode(body), headers_for(body, {"Authorization": f"Bearer {TOKEN}x"}))
    assert (wrong.status, challenge_of(wrong)[1]["error"]) == (401, "invalid_token")
    assert "resource_metadata" not in wrong.headers["www-authenticate"]
    assert TOKEN not in wrong.body.decode() + wrong.headers["www-authenticate"]


@pytest.mark.security("R13")
def test_nothing_is_published_and_nothing_is_open(live: Live) -> None:
    for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
        assert live.send(b"", [], verb="GET", path=path).status == 404
    for verb in ("GET", "POST", "DELETE", "PUT", "OPTIONS"):
        assert live.send(b"", [], verb=verb).status == 401


def test_what_takes_scopes_is_challenged_without_metadata(live: Live) -> None:
    refused = Peer(live, "stateless", TOKEN).tool("burn")
    scheme, told = challenge_of(refused)
    assert (refused.status, scheme, told["error"], told["scope"]) == (
        403,
        "Bearer",
        "insufficient_scope",
        "write admin",
    )
    assert "resource_metadata" not in told


async def test_weft_clients(live: Live) -> None:
    url = f"http://127.0.0.1:{live.port}/mcp"
    async with Client(url, auth=TOKEN) as client:
        assert (await client.call_tool("who", {})).structured["subject"] == "ann"
    with pytest.raises(AuthorizationFailed):
        async with Client(url, auth="some-other-text") as client:
            await client.list_tools()


def test_below_a_mount_nothing_is_published_either() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount("/below", make_protected(tokens()).asgi())])  # type: ignore[arg-type] - as above
    with serve(app) as running:
        body = message("tools/list")
        refused = running.send(encode(body), headers_for(body), path="/below/mcp")
    assert refused.headers["www-authenticate"] == 'Bearer realm="vault"'


# --- other verifiers


def test_a_function_of_ones_own() -> None:
    async def verify(token: str) -> TokenInfo | None:
        ends = {"expired": time.time() - 31, "good": time.time() + 60}
        if token not in ends:
            return None
        return TokenInfo("ann", claims={"aud": "what only it knows", "exp": ends[token]})

    with serve(make_protected(verify)) as running:  # type: ignore[arg-type] - as above
        assert [Peer(running, "stateless", token).tool("who").status for token in ("good", "expired", "bad")] == [
            200,
            401,
            401,
        ]


@pytest.mark.spec("AUTH-30")
def test_jwts_need_an_audience() -> None:
    alone = JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER)
    with pytest.raises(UsageError, match=r"auth=JwtVerifier\(...\) alone does not say for which audience"):
        Server("vault", auth=alone)
    named = JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER, audience=RESOURCE)
    with serve(make_protected(named)) as running:  # type: ignore[arg-type] - as above
        assert Peer(running, "stateless", token_for()).tool("who").status == 200
        assert Peer(running, "stateless", token_for(aud="https://other.example")).tool("who").status == 401
        bound = token_for(cnf=bound_to())
        for scheme in ("Bearer", "DPoP"):
            refused = Peer(running, "stateless", bound, scheme=scheme, more={"DPoP": proof_for(bound)}).tool("who")
            assert (refused.status, challenge_of(refused)[0]) == (401, "Bearer")
            assert "not accepted here" in challenge_of(refused)[1]["error_description"]
        plain = Peer(running, "stateless", token_for(), scheme="DPoP", more={"DPoP": proof_for(token_for())}).tool(
            "who"
        )
        assert plain.status == 401


# --- mistakes and secrets


@pytest.mark.mistake("auth= is a dictionary of tokens")
@pytest.mark.parametrize("given", [{TOKEN: "ann"}, TOKEN, [TOKEN], lambda token: TokenInfo("ann")])
def test_what_is_no_protection_is_told_without_the_token(given: Any) -> None:
    with pytest.raises(UsageError, match=r"auth= is a ResourceServer, or a verifier") as mistake:
        Server("vault", auth=given)
    assert "Write auth=StaticTokens({" in str(mistake.value)
    assert __file__.rpartition("/")[2] in str(mistake.value)
    if not callable(given):
        assert str(mistake.value).count(TOKEN) == (0 if isinstance(given, dict) else 1)  # that of the example


def test_no_token_is_shown_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = "s3cret-of-the-tests"
    server = make_protected(StaticTokens({secret: "ann"}), debug=True)  # type: ignore[arg-type] - as above
    auth = server.engine.protection
    assert secret not in repr(auth) + repr(vars(auth)) + repr(vars(auth.verifier)) + repr(server)  # type: ignore[union-attr] - it is there
    with caplog.at_level(logging.DEBUG), serve(server) as running:
        assert Peer(running, "stateless", secret).tool("who").status == 200
        assert Peer(running, "stateless", secret + "x").tool("who").status == 401
        told = Peer(running, "stateless", secret).tool("who").body.decode()
    assert secret not in caplog.text
    assert secret not in told


async def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are known are compared, each by a digest, also after one was found."""
    from weft.server.auth import verifiers as static_tokens

    compared: list[tuple[bytes, bytes]] = []

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(static_tokens.hmac, "compare_digest", noted)
    known = tokens()
    assert await known(TOKEN) == TokenInfo("ann")
    assert await known("x") is None
    assert len(compared) == 4
    assert all(len(one) == len(other) == 32 for one, other in compared)


def test_a_resource_server_is_as_before() -> None:
    auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=tokens())
    assert Server("vault", auth=auth).engine.protection is auth
    assert auth.metadata_url is not None
