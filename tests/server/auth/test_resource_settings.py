"""What a ResourceServer is told, and which mistakes it finds."""

import json
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from support.protected import make_protected
from support.tokens import ISSUER, rsa_jwk, token_for
from support.wire import ask
from weft import Server
from weft.auth import TokenInfo
from weft.errors import UsageError
from weft.net.urls import is_safe_url, same_url
from weft.server.auth import JwtVerifier, ResourceServer, StaticTokens, tokens
from weft.server.auth import bearer_auth as admission_module
from weft.server.auth.tokens import challenge
from weft.types.base import Implementation

TOKENS = StaticTokens({"token-of-ann": "ann"})


def make(resource: str = "https://mcp.example.com/mcp", **options: Any) -> ResourceServer:
    return ResourceServer(resource, **{"authorization_servers": [ISSUER], "verifier": TOKENS, **options})


@pytest.mark.spec("AUTH-26", "ASD-02")
@pytest.mark.parametrize(
    ("given", "resource", "metadata", "audiences"),
    [
        ("https://a.example/mcp", "https://a.example/mcp", "/mcp", ("https://a.example/mcp",)),
        ("HTTPS://A.Example/Mcp", "https://a.example/Mcp", "/Mcp", ("https://a.example/Mcp",)),
        ("https://a.example", "https://a.example", "", ("https://a.example", "https://a.example/")),
        ("https://a.example/", "https://a.example/", "", ("https://a.example", "https://a.example/")),
        ("https://a.example/x/", "https://a.example/x/", "/x", ("https://a.example/x/",)),
    ],
)
def test_where_the_metadata_is(given: str, resource: str, metadata: str, audiences: tuple[str, ...]) -> None:
    auth = make(given)
    assert auth.resource == resource
    assert auth.metadata_url == f"https://a.example/.well-known/oauth-protected-resource{metadata}"
    assert auth.audiences == audiences


@pytest.mark.spec("ASD-01")
@pytest.mark.security("R11")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"resource": "mcp.example.com"}, "resource"),
        ({"resource": "http://mcp.example.com/mcp"}, "resource"),
        ({"resource": "https://mcp.example.com/mcp#x"}, "resource"),
        ({"resource": "https://mcp.example.com/mcp?x=1"}, "query"),
        ({"resource": 'https://mcp.example.com/"'}, "resource"),
        ({"authorization_servers": []}, "authorization_servers"),
        ({"authorization_servers": ISSUER}, "authorization_servers"),
        ({"authorization_servers": ["http://auth.example.com"]}, "authorization_servers"),
        ({"verifier": "secret"}, r"verifier= is an async function of a token \(async def\)"),
        ({"verifier": lambda token: TokenInfo("ann")}, "verifier= is an async function"),
    ],
)
def test_mistakes(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        make(**options)


class Verifier:
    async def __call__(self, token: str, more: int = 0) -> TokenInfo | None:
        return None


def test_a_verifier_is_whatever_is_called_and_awaited() -> None:
    for verifier in (Verifier(), Verifier().__call__, partial(Verifier(), more=1), partial(Verifier().__call__)):
        assert make(verifier=verifier).verifier is verifier


@pytest.mark.parametrize("scopes", [["a", "b"], ("a", "b"), {"a", "b"}, frozenset({"a", "b"})])
def test_scopes_of_a_token_come_as_one_likes(scopes: Any) -> None:
    assert TokenInfo("ann", scopes=scopes).scopes == frozenset({"a", "b"})
    assert type(TokenInfo("ann", scopes=scopes).scopes) is frozenset


@pytest.mark.parametrize("scopes", ["read", None, [1], 7])
def test_scopes_that_are_none_are_told_at_once(scopes: Any) -> None:
    with pytest.raises(UsageError, match=r"is not possible: give a set of strings, such as \{'read'\}") as told:
        TokenInfo("ann", scopes=scopes)
    assert f"TokenInfo(scopes={scopes!r})" in str(told.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example", "https://a.example/", True),
        ("https://a.example/x", "HTTPS://A.Example/x", True),
        ("https://a.example/x", "https://a.example/X", False),
        ("https://a.example/x", "https://a.example/x/", False),
        ("https://a.example/x", "https://a.example/x?y", False),
        ("https://a.example", "https://a.example#x", False),
        ("https://a.example", "https://a.example@b.example", False),
        ("https://a.example", "https://[", False),
    ],
)
def test_which_urls_are_the_same(one: str, other: str, same: bool) -> None:
    assert same_url(one, other) is same


@pytest.mark.parametrize(
    "url",
    [
        "https://[",
        "https://a.example:99999",
        "https://",
        "ftp://a.example",
        "https://a b",
        "https://é.example",
        "https://a.example;sandbox",  # which would go on in the policy of a page
        "https://a.example,b.example",
        "https://127.0.0%2e1",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    assert not is_safe_url(url)


@pytest.mark.spec("AUTH-04")
def test_the_metadata_says_what_people_should_know() -> None:
    auth = make(documentation="https://docs.example.com")
    told = json.loads(auth.metadata(Implementation("vault", "1", title="The vault")))
    assert (told["resource_name"], told["resource_documentation"]) == ("The vault", "https://docs.example.com")
    assert "scopes_supported" not in told


def test_a_challenge_cannot_be_broken_out_of() -> None:
    assert challenge("Bearer", error='a", b="c\r\nX: y\\') == b"Bearer error=\"a', b='c''X: y'\""


async def test_what_is_remembered_of_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_MOST_KNOWN", 2)
    asked: list[str] = []

    async def verify(token: str) -> TokenInfo:
        asked.append(token)
        return TokenInfo(token)

    app = make_protected(make(verifier=verify, cache_seconds=60)).asgi()
    for token in ("a", "b", "b", "c", "a", "c"):
        assert (await ask(app, "tools/list", headers={"Authorization": f"Bearer {token}"})).status == 200
    assert asked == ["a", "b", "c", "a"]


async def test_a_token_is_forgotten_when_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()

    async def verify(token: str) -> TokenInfo:
        return TokenInfo(token, claims={"exp": now + 100})

    app = make_protected(make(verifier=verify, cache_seconds=3600)).asgi()
    headers = {"Authorization": "Bearer opaque"}
    assert (await ask(app, "tools/list", headers=headers)).status == 200
    clock = SimpleNamespace(time=lambda: now + 131)  # and the leeway is over
    for module in (admission_module, tokens):
        monkeypatch.setattr(module, "time", clock)
    assert (await ask(app, "tools/list", headers=headers)).status == 401


@pytest.mark.spec("AUTH-30", "ASEC-02")
async def test_one_verifier_may_serve_several_resources() -> None:
    """Each accepts the tokens that were issued for it, and no others."""
    shared = JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER)
    places = ["https://a.example/mcp", "https://b.example/mcp"]
    apps = {place: make_protected(make(place, verifier=shared)).asgi() for place in places}
    for place, app in apps.items():
        for audience in places:
            headers = {"Authorization": f"Bearer {token_for(aud=audience)}"}
            assert (await ask(app, "tools/list", headers=headers)).status == (200 if audience == place else 401)


async def test_a_server_without_protection_asks_for_nothing() -> None:
    server = Server("open")
    server.add_tool(lambda: "", name="look")
    assert (await ask(server, "tools/list")).status == 200
    gone = await ask(server, "x", scope={"path": "/.well-known/oauth-protected-resource", "method": "GET"})
    assert gone.status == 404


async def test_public_metadata_is_one_answer_and_the_end_of_the_request() -> None:
    """What is answered must not go on to be asked for its token, or for a session."""
    app: Any = make_protected(make("https://a.example/mcp")).asgi()
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/.well-known/oauth-protected-resource/mcp"
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "root_path": "", "scheme": "https", "headers": [(b"host", b"a.example")]}
    await app({**scope, "client": ("127.0.0.1", 1), "server": ("a.example", 443)}, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200
