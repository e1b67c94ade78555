"""A protected server over a socket, in both eras: who is let in, and what the others are told."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from support import Live, encode, headers_for, message, serve
from support.protected import ERAS, Peer, challenge_of, make_protected
from support.sessions import introduction, rpc
from support.tokens import BAD_TOKENS, ISSUER, METADATA, RESOURCE, token_for
from weft import Limits, Server
from weft.auth import TokenInfo
from weft.server.auth import ResourceServer, StaticTokens

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serve(make_protected(), sse_path="/sse") as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def get(live: Live, path: str, verb: str = "GET", **headers: str) -> Any:
    return live.send(b"", list(headers.items()), verb=verb, path=path)


@pytest.mark.spec("HTTP-05", "AUTH-01", "AUTH-29")
@pytest.mark.parametrize("era", ERAS)
def test_a_good_token_lets_in_and_says_who_it_is(live: Live, era: str) -> None:
    told = Peer(live, era, token_for("ann", scope="read write")).tool("who").result["structuredContent"]
    assert (told["subject"], told["client"], told["issuer"]) == ("ann", "app", ISSUER)
    assert told["scopes"] == ["read", "write"]


@pytest.mark.spec("AUTH-09", "AUTH-34", "ASD-02", "ASEC-14", "L06-07")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("credentials", [None, "Basic YW5uOmFubg==", "Token x", ""])
def test_without_a_token(live: Live, era: str, credentials: str | None) -> None:
    response = Peer(live, era, token_for()).tool("who", {"Authorization": credentials})
    assert response.refusal == (401, -32600)
    assert challenge_of(response) == ("Bearer", {"scope": "read", "resource_metadata": METADATA})
    assert "vault" not in response.body.decode()


@pytest.mark.spec("AUTH-30", "AUTH-31", "AUTH-33", "AUTH-34", "ASEC-02", "L06-07")
@pytest.mark.security("R10", "D15")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("make", "reason"), BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
def test_a_bad_token(live: Live, era: str, make: Any, reason: str) -> None:
    token = make()
    response = Peer(live, era, token_for()).tool("who", bearer(token))
    assert response.status == 401
    scheme, told = challenge_of(response)
    assert (scheme, told["error"], told["resource_metadata"]) == ("Bearer", "invalid_token", METADATA)
    assert re.search(reason.replace("`", "`?"), told["error_description"])
    assert token not in response.body.decode()


@pytest.mark.spec("AUTH-34", "AUTH-40")
@pytest.mark.parametrize("era", ERAS)
def test_a_token_without_the_scope_of_the_server(live: Live, era: str) -> None:
    response = Peer(live, era, token_for()).tool("who", bearer(token_for(scope="other")))
    assert response.status == 403
    scheme, told = challenge_of(response)
    assert (scheme, told["error"], told["scope"]) == ("Bearer", "insufficient_scope", "read")
    assert told["resource_metadata"] == METADATA
    message = response.json["error"]["message"]
    assert message == "The token does not have the scopes that this server needs. Needed: read."


@pytest.mark.spec("AUTH-34", "AUTH-33", "XAUTH-08")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("query", ["access_token={}", "x=1&access_token={}", "access%5Ftoken={}"])
@pytest.mark.parametrize("with_header", [True, False])
def test_a_token_in_the_query(live: Live, era: str, query: str, with_header: bool) -> None:
    token = token_for()
    body = message("tools/list") if era == "stateless" else rpc("initialize", introduction())
    headers = headers_for(body, bearer(token) if with_header else None)
    response = live.send(encode(body), headers, path="/mcp?" + query.format(token))
    assert response.status == 400
    assert challenge_of(response)[1]["error"] == "invalid_request"
    assert token not in response.body.decode()


@pytest.mark.parametrize("query", ["", "session=1", "access_tokens=1"])
def test_another_query_does_no_harm(live: Live, query: str) -> None:
    body = message("tools/list")
    assert live.send(encode(body), headers_for(body, bearer(token_for())), path=f"/mcp?{query}").status == 200


@pytest.mark.spec("AUTH-34")
@pytest.mark.security("R14")
@pytest.mark.parametrize("era", ERAS)
def test_two_authorization_headers(live: Live, era: str) -> None:
    body = message("tools/list") if era == "stateless" else rpc("initialize", introduction())
    twice = [("Authorization", f"Bearer {token_for(name)}") for name in ("ann", "bob")]
    assert live.send(encode(body), [*headers_for(body), *twice]).status == 400


@pytest.mark.spec("AUTH-34")
@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "Bearer a b", 'Bearer "x"', "bearer é", "Bearer x, Bearer y"])
def test_a_header_that_holds_no_token(live: Live, value: str) -> None:
    body = message("tools/list")
    headers = [*headers_for(body), ("Authorization", value.encode("latin-1"))]
    response = live.send(encode(body), headers)
    assert response.status == 400
    assert challenge_of(response)[1]["error"] == "invalid_request"


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_the_scheme_is_spelled_as_one_likes(live: Live, scheme: str) -> None:
    assert Peer(live, "stateless", token_for(), scheme=scheme.rstrip(" ") + " " * scheme.count(" ")).tool("who").result


# --- every route


VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")
NOTHING = ("/", "/mcp/x", "/openapi.json", "/sse/", f"{WELL_KNOWN}/mcp/", f"{WELL_KNOWN}/x")


@pytest.mark.spec("ASEC-14")
@pytest.mark.security("R13")
def test_no_route_is_open() -> None:
    """What is served without credentials is the metadata, and what is not there at all. The app says what is there."""
    app = make_protected().asgi(sse_path="/sse")
    assert app._sse is not None
    assert app._gate is not None
    guarded, public = {*app._paths, *app._sse.verbs}, set(app._gate._paths)
    assert {"/mcp", "/sse", "/messages"} < guarded
    found = {}
    with serve(app) as live:
        for path in (*guarded, *public, *(f"{path}?session_id=sse-x" for path in guarded), *NOTHING):
            for verb in VERBS:
                body = encode(message("tools/list"))
                response = live.send(body, headers_for(message("tools/list")), verb=verb, path=path)
                found[path, verb] = response.status
    # 400 is said to a verb that an older httptools does not know (QUERY), before anything of ours.
    opened = {route for route, status in found.items() if status not in (400, 401, 404)}
    served = {(path, verb) for path in public for verb in ("GET", "HEAD")}
    assert {route for route in opened if found[route] != 405} == served
    assert {path for path, _ in opened} == public  # and 405 is said there only
    assert {path.partition("?")[0] for (path, _), status in found.items() if status == 401} == guarded
    assert {path for (path, _), status in found.items() if status == 404} == set(NOTHING)


@pytest.mark.spec("ASEC-14")
def test_the_order_is_origin_token_verb(live: Live) -> None:
    assert get(live, "/mcp", "PUT", Origin="https://evil.example").status == 403
    assert get(live, "/mcp", "PUT", Host="evil.example").status == 421
    assert get(live, "/mcp", "PUT").status == 401
    assert get(live, "/mcp", "PUT", **bearer(token_for())).status == 405
    assert live.send(b"{", [("Content-Type", "text/plain")]).status == 401
    assert live.send(b"{", [("Content-Type", "text/plain"), *bearer(token_for()).items()]).status == 415


# --- the metadata


@pytest.mark.spec("AUTH-04", "ASD-01", "ASD-02", "AUTH-39")
@pytest.mark.parametrize("path", ["", "/mcp"])
def test_the_metadata_says_where_to_get_a_token(live: Live, path: str) -> None:
    response = get(live, WELL_KNOWN + path)
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    told = json.loads(response.body)
    assert told["resource"] == RESOURCE
    assert told["authorization_servers"] == [ISSUER]
    assert told["scopes_supported"] == ["read"]
    assert told["bearer_methods_supported"] == ["header"]
    assert told["resource_name"] == "vault"
    head = get(live, WELL_KNOWN + path, "HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(response.body)))
    assert get(live, WELL_KNOWN + path, "PUT").headers["allow"] == "GET, HEAD"


@pytest.mark.security("R2")
def test_the_metadata_is_guarded_against_rebinding(live: Live) -> None:
    assert get(live, WELL_KNOWN, Host="evil.example").status == 421
    assert get(live, WELL_KNOWN, Origin="https://evil.example").status == 403


def mounted(path: str, resource: str) -> Any:
    auth = ResourceServer(resource, authorization_servers=[ISSUER], verifier=StaticTokens({"token-of-ann": "ann"}))
    server = make_protected(auth)
    return Starlette(routes=[Mount(path, server.asgi())])


@pytest.mark.spec("ASD-02", "L06-07")
@pytest.mark.parametrize(
    ("mount", "endpoint"), [("/api", "/api/mcp"), ("/mcp", "/mcp/"), ("/", "/mcp"), ("/a/b", "/a/b/mcp")]
)
def test_a_mounted_server_says_where_its_metadata_is(mount: str, endpoint: str) -> None:
    with serve(mounted(mount, f"https://mcp.example.com{endpoint}")) as live:
        body = message("tools/call", {"name": "burn"})
        for headers, status in [(None, 401), (bearer("token-of-ann"), 403)]:
            response = live.send(encode(body), headers_for(body, headers), path=endpoint)
            assert response.status == status
            place = challenge_of(response)[1]["resource_metadata"]
            assert place.startswith("https://mcp.example.com/")
            told = json.loads(get(live, place.removeprefix("https://mcp.example.com")).body)
            assert told["resource"] == f"https://mcp.example.com{endpoint}"


def test_a_routed_server_serves_its_metadata_where_it_is_routed() -> None:
    server = make_protected()
    app = server.asgi()
    with serve(Starlette(routes=[Route("/mcp", app), Route(f"{WELL_KNOWN}/mcp", app)])) as live:
        place = challenge_of(live.call("tools/list"))[1]["resource_metadata"]
        assert place == METADATA
        assert json.loads(get(live, f"{WELL_KNOWN}/mcp").body)["resource"] == RESOURCE
        assert live.call("tools/list", headers=bearer(token_for())).status == 200


# --- what belongs to somebody


@pytest.mark.spec("SBP-03", "L11-24")
@pytest.mark.security("R4", "R5")
def test_another_principals_session_is_unknown(live: Live) -> None:
    ann = Peer(live, "session", token_for("ann"))
    others = [bearer(token_for("bob")), bearer(token_for("ann", client_id="other"))]
    for other in others:
        theirs = ann.tool("who", other)
        unknown = ann.tool("who", {**other, "Mcp-Session-Id": "0" * len(ann.session or "")})
        assert (theirs.status, theirs.body) == (unknown.status, unknown.body) == (404, unknown.body)
        for verb in ("GET", "DELETE"):
            headers = {"Accept": "text/event-stream", "Mcp-Session-Id": str(ann.session), **other}
            assert live.send(b"", list(headers.items()), verb=verb).status == 404
    assert ann.tool("who").status == 200
    assert ann.tool("who", bearer(token_for("ann", jti="another token of the same"))).status == 200


@pytest.mark.spec("MRTR-11", "SBP-03")
@pytest.mark.security("R5")
def test_another_principals_state_is_unknown(live: Live) -> None:
    ann, bob = (Peer(live, "stateless", token_for(name)) for name in ("ann", "bob"))
    asked = ann.tool("book").result
    answers = {"seat": {"action": "accept", "content": {"word": "12A"}}}
    retry = {"name": "book", "arguments": {}, "inputResponses": answers, "requestState": asked["requestState"]}
    theirs = bob.send("tools/call", retry)
    unknown = bob.send("tools/call", {**retry, "requestState": "A" * len(asked["requestState"])})
    assert (theirs.status, theirs.error) == (unknown.status, unknown.error)
    assert theirs.error["code"] == -32602
    assert "12A" in ann.send("tools/call", retry).result["content"][0]["text"]


# --- what is known of a token, and what is not told of it


@pytest.mark.spec("AUTH-33", "ASEC-15", "XAUTH-08")
@pytest.mark.parametrize("era", ERAS)
def test_a_handler_never_sees_the_token(live: Live, era: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = token_for("ann", unique=era)
    told = Peer(live, era, token).tool("who").result["structuredContent"]
    assert token not in json.dumps(told) + caplog.text
    assert "authorization" not in told["headers"]


class Counting:
    """A verifier of one's own."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, token: str) -> Any:
        self.asked.append(token)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def own(answer: Any, **options: Any) -> tuple[Counting, Server]:
    verifier = Counting(answer)
    auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=verifier, **options)
    return verifier, make_protected(auth)


@pytest.mark.parametrize(("seconds", "times"), [(None, 3), (60, 1)])
def test_what_a_function_says_is_used_for_as_long_as_said(seconds: float | None, times: int) -> None:
    verifier, server = own(TokenInfo("ann"), cache_seconds=seconds)
    with serve(server) as live:
        for _ in range(3):
            assert Peer(live, "stateless", "opaque").tool("who").status == 200
        assert verifier.asked == ["opaque"] * times


@pytest.mark.spec("AUTH-30", "AUTH-31")
@pytest.mark.parametrize(
    ("claims", "reason"),
    [({"aud": "https://x.example"}, "another resource"), ({"exp": 1}, "expired"), ({"nbf": 2**40}, "not valid yet")],
)
def test_the_claims_of_a_function_are_checked(claims: dict[str, Any], reason: str) -> None:
    _, server = own(TokenInfo("ann", claims=claims), cache_seconds=60)
    with serve(server) as live:
        for _ in range(2):
            response = Peer(live, "stateless", "opaque").tool("who")
            assert response.status == 401
            assert reason in challenge_of(response)[1]["error_description"]


@pytest.mark.parametrize("debug", [False, True])
def test_a_token_in_a_verifiers_error_is_in_no_log(debug: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    people: dict[str, TokenInfo] = {}

    async def look_up(token: str) -> TokenInfo:
        return people[token]

    auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=look_up)
    with serve(make_protected(auth, debug=debug)) as live:
        body = message("tools/list")
        response = live.send(encode(body), headers_for(body, bearer("a-token-nobody-knows")))
    assert response.status == 500
    assert "KeyError" in caplog.text
    assert "a-token-nobody-knows" not in caplog.text + response.body.decode()


@pytest.mark.security("R1")
@pytest.mark.parametrize(
    ("answer", "status"),
    [(None, 401), (RuntimeError("hidden"), 500), (SystemExit(3), 500), ("ann", 500), (TokenInfo(""), 500)],
    ids=["none", "raises", "exits", "text", "nobody"],
)
def test_a_verifier_that_fails_lets_nobody_in(answer: Any, status: int) -> None:
    verifier, server = own(answer, cache_seconds=60)
    with serve(server) as live:
        response = Peer(live, "stateless", "opaque").tool("who")
        assert response.status == status
        assert "hidden" not in response.body.decode()
        verifier.answer = TokenInfo("bob")
        assert Peer(live, "stateless", "another").tool("who").status == 200


@pytest.mark.security("R1")
@pytest.mark.parametrize("scopes", [["read"], ("read",), {"read"}])
@pytest.mark.parametrize("options", [{}, {"scopes": ["read"]}, {"implied_scopes": {"read": ["write", "admin"]}}])
def test_a_verifier_may_return_scopes_as_it_likes(scopes: Any, options: dict[str, Any]) -> None:
    auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=_saying(scopes), **options)
    with serve(make_protected(auth)) as live:
        peer = Peer(live, "stateless", "opaque")
        assert peer.tool("who").status == 200
        assert "who" in peer.names("tools/list", "tools")
        assert peer.tool("burn").status == (200 if "implied_scopes" in options else 403)


@pytest.mark.security("R1")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (lambda: TokenInfo("ann", scopes="read"), "TokenInfo(scopes='read') is not possible: give a set of strings"),
        (lambda: TokenInfo("ann", scopes=None), "TokenInfo(scopes=None) is not possible"),
        (lambda: TokenInfo("ann", claims=None), "It returned claims that are no dictionary. A verifier returns"),
        (lambda: {"sub": "ann"}, "It returned a dict. A verifier returns weft.auth.TokenInfo(subject=...), or None."),
        (lambda: TokenInfo(""), "It returned a TokenInfo whose subject is ''. Name the user or program of the token"),
    ],
    ids=["text", "none", "claims", "dictionary", "nobody"],
)
def test_what_is_wrong_with_what_a_verifier_returns_is_in_the_log(
    said: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def verify(token: str) -> TokenInfo:
        return said()

    auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=verify, scopes=["read"])
    with serve(make_protected(auth)) as live:
        response = Peer(live, "stateless", "opaque").tool("who")
        assert (response.status, response.error["code"]) == (500, -32603)
        assert live.faults == []
    assert f"The token verifier raised UsageError: {words}" in caplog.text


def _saying(scopes: Any) -> Any:
    async def verify(token: str) -> TokenInfo:
        return TokenInfo("ann", scopes=scopes)

    return verify


@pytest.mark.security("R12", "R14")
@pytest.mark.parametrize(("proxies", "survives"), [(["10.0.0.0/8"], True), (["10.0.0.2"], False), ([], False)])
def test_requests_are_counted_for_whom_a_trusted_proxy_names(proxies: list[str], survives: bool) -> None:
    app = Server("s", limits=Limits(sessions_per_peer=1)).asgi(trusted_proxies=proxies)

    async def from_the_proxy(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": ("10.0.0.1", 1)}, receive, send)

    with serve(from_the_proxy) as live:
        first, second = (_open_session(live, f"203.0.113.{number}") for number in (1, 2))
        assert _is_there(live, second)
        assert _is_there(live, first) is survives
        _open_session(live, "203.0.113.1")
        assert not _is_there(live, first)
        assert _is_there(live, second) is survives


def _open_session(live: Live, sender: str) -> str:
    body = rpc("initialize", introduction())
    headers = headers_for(body, {"MCP-Protocol-Version": None, "X-Forwarded-For": sender})
    return live.send(encode(body), headers).headers["mcp-session-id"]


def _is_there(live: Live, session: str) -> bool:
    body = rpc("ping")
    headers = headers_for(body, {"MCP-Protocol-Version": None, "Mcp-Session-Id": session})
    return live.send(encode(body), headers).status != 404
