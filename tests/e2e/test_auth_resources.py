"""For which resource the authorization server issues tokens, by whatever spelling of its URL."""

import asyncio
import json

import pytest
from test_auth_login import CLIENTS, Authorization

from support import serve
from support.logging_in import Browser, log_in, pkce
from weft.authorization import AuthorizationServer
from weft.server.auth import ResourceServer


@pytest.mark.spec("AUTH-26", "AUTH-30")
@pytest.mark.parametrize(
    ("said", "protected", "asked"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://LOCALHOST:8000/mcp", "http://localhost:8000/mcp", "http://localhost:8000/mcp"),
        ("http://localhost:8000/mcp", "http://LOCALHOST:8000/mcp", "http://Localhost:8000/mcp"),
    ],
)
def test_a_resource_is_the_same_however_it_is_spelled(said: str, protected: str, asked: str) -> None:
    """And the token that comes of it is one that its server takes; also the next one, of a refresh."""
    server = AuthorizationServer(
        "http://127.0.0.1:9", resources=[said], users={"ann": "correct horse"}, clients=CLIENTS
    )
    verifier = ResourceServer(protected, authorization_servers=[server.issuer], verifier=server.verifier()).verifier
    with serve(server.asgi()) as live:
        place = Authorization(live, server)
        place.base = f"http://127.0.0.1:{live.port}"
        secret, challenge = pkce()
        code = log_in(Browser(place.base), **place.request(challenge, resource=asked))["code"]
        given = {"grant_type": "authorization_code", "code": code, "code_verifier": secret}
        first = json.loads(place.token(**given, resource=asked).body)
        again = place.token(grant_type="refresh_token", refresh_token=first["refresh_token"], resource=asked)
        for token in (first["access_token"], json.loads(again.body)["access_token"]):
            info = asyncio.run(verifier(token))
            assert info is not None
            assert info.subject == "ann"
        other = place.token(grant_type="refresh_token", refresh_token="x", resource=asked + "/x")
        assert other.status == 400
