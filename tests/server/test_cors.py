"""CORS: pages of the origins that are named may call and read, of either era, protected or not; others are told how."""

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from support import Live, encode, headers_for, message, serve
from support.authorizing import authorize
from support.logging_in import FORM, Browser, pkce
from support.protected import make_protected
from support.sessions import introduction, rpc
from support.tokens import token_for
from support.wire import ACCEPT_BOTH, Response
from weft import Context, Server
from weft.errors import UsageError
from weft.net.hosts import HostPolicy

PAGE = "https://app.example.com"
OTHER = "https://evil.example"
LISTED = "access-control-allow-origin"
NAMES = "authorization,content-type,mcp-protocol-version,mcp-method,mcp-name,mcp-param-region,x-own"


def make() -> Server:
    server = Server("teashop", instructions="Ask for tea.")

    @server.tool
    def price(grams: int) -> int:
        return 12 * grams

    return server


def preflight(live: Live, origin: str | None = PAGE, path: str = "/mcp", **changes: str | None) -> Response:
    good = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": NAMES}
    headers = {name: value for name, value in {**good, **changes}.items() if value is not None}
    return live.send(b"", list(headers.items()), verb="OPTIONS", path=path)


def words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",")}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serve(make(), cors=[PAGE, "http://localhost:3000"]) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with serve(make_protected(), cors=[PAGE]) as running:
        yield running


@pytest.mark.parametrize("protected", [False, True])
def test_a_page_that_may_is_told_what_it_may_send(live: Live, guarded: Live, protected: bool) -> None:
    answer = preflight(guarded if protected else live)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers[LISTED] == PAGE
    assert words(answer.headers["access-control-allow-methods"]) >= {"post", "get", "delete"}
    allowed = words(answer.headers["access-control-allow-headers"])
    assert allowed >= words(NAMES)
    assert allowed >= {"mcp-session-id", "last-event-id", "dpop", "accept"}
    assert answer.headers["access-control-max-age"] == "600"
    assert "access-control-allow-credentials" not in answer.headers
    assert "www-authenticate" not in answer.headers


def test_a_page_that_names_no_headers_or_odd_ones_is_told_the_usual(live: Live) -> None:
    for names in (None, "", 'x"y'):
        answer = preflight(live, **{"Access-Control-Request-Headers": names})
        assert answer.status == 204
        assert '"' not in answer.headers["access-control-allow-headers"]
        assert "mcp-session-id" in words(answer.headers["access-control-allow-headers"])


@pytest.mark.mistake("a CORS preflight")
@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
@pytest.mark.parametrize("protected", [False, True])
def test_without_the_option_the_refusal_says_what_to_set(protected: bool, origin: str) -> None:
    with serve(make_protected() if protected else make()) as plain:
        answer = preflight(plain, origin)
    assert (answer.status, LISTED in answer.headers) == (403, False)
    text = answer.json["error"]["message"]
    assert text == (
        f"A web page of '{origin}' may not call this server. To allow it, set cors=['{origin}'] in asgi() or run(), or "
        f"start with --cors {origin}."
    )


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "http://app.example.com", PAGE + ":444", "https://x.app.example.com"]
)
def test_a_page_of_another_origin(live: Live, origin: str) -> None:
    answer = preflight(live, origin)
    assert (answer.status, LISTED in answer.headers) == (403, False)
    body = message("tools/list")
    sent = live.send(encode(body), headers_for(body, {"Origin": origin}))
    assert (sent.status, LISTED in sent.headers) == (403, False)
    assert "cors=" in sent.json["error"]["message"]


def test_where_else_a_page_may_not_ask(live: Live) -> None:
    assert preflight(live, path="/other").status == 404
    assert preflight(live, Host="evil.example").status == 421
    assert preflight(live, None).status == 403  # of nobody's page
    plain = preflight(live, **{"Access-Control-Request-Method": None})  # no preflight at all
    assert (plain.status, plain.headers["allow"]) == (405, "POST, GET, DELETE")


def shared(answer: Response) -> None:
    """An answer that the page may read, with all that clients read in it."""
    assert answer.headers[LISTED] == PAGE
    assert "access-control-allow-credentials" not in answer.headers
    assert words(answer.headers["access-control-expose-headers"]) >= {
        "mcp-session-id",
        "www-authenticate",
        "dpop-nonce",
    }
    assert "origin" in words(answer.headers["vary"])


def test_the_page_reads_answers_of_either_era(live: Live) -> None:
    body = message("tools/call", {"name": "price", "arguments": {"grams": 2}})
    answer = live.send(encode(body), headers_for(body, {"Origin": PAGE}))
    assert answer.status == 200
    shared(answer)
    pairs = [("Accept", ACCEPT_BOTH), ("Content-Type", "application/json"), ("Origin", PAGE)]
    opened = live.send(encode(rpc("initialize", introduction())), pairs)
    assert "mcp-session-id" in opened.headers
    shared(opened)
    session = [*pairs, ("Mcp-Session-Id", opened.headers["mcp-session-id"])]
    told = live.send(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}), session)
    assert told.status == 202
    shared(told)
    ended = live.send(b"", session, verb="DELETE")
    assert ended.status == 204
    shared(ended)


def test_the_page_reads_refusals(live: Live, guarded: Live) -> None:
    body = message("tools/list")
    refused = guarded.send(encode(body), headers_for(body, {"Origin": PAGE}))
    assert (refused.status, "www-authenticate" in refused.headers) == (401, True)
    shared(refused)
    for answer in (
        live.send(b"{", headers_for(body, {"Origin": PAGE})),
        live.send(b"{}", headers_for(body, {"Origin": PAGE}), path="/other"),
        live.send(b"{}", headers_for(body, {"Origin": PAGE, "Content-Type": "text/plain"})),
    ):
        assert answer.status >= 400
        shared(answer)
    assert (
        guarded.send(encode(body), headers_for(body, {"Origin": PAGE, "Authorization": f"Bearer {token_for()}"})).status
        == 200
    )


def test_the_page_reads_streams() -> None:
    server = make()

    @server.tool
    async def slow(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        return "done"

    with serve(server, cors=[PAGE]) as running:
        body = message("tools/call", {"name": "slow", "arguments": {}}, meta={"progressToken": "p"})
        answer = running.send(encode(body), headers_for(body, {"Origin": PAGE}))
    assert answer.headers["content-type"] == "text/event-stream"
    shared(answer)


def test_the_page_reads_the_metadata(guarded: Live) -> None:
    path = "/.well-known/oauth-protected-resource/mcp"
    asked = preflight(guarded, path=path, **{"Access-Control-Request-Method": "GET"})
    assert (asked.status, asked.headers["access-control-allow-methods"]) == (204, "GET, HEAD")
    answer = guarded.send(b"", [("Origin", PAGE)], verb="GET", path=path)
    assert answer.status == 200
    shared(answer)
    kept = guarded.send(b"", [], verb="GET", path=path)  # a cache may keep it, and must not for a page
    assert (LISTED in kept.headers, kept.headers["vary"]) == (False, "Origin")


def test_who_is_no_page_notices_nothing(live: Live) -> None:
    body = message("tools/list")
    answer = live.send(encode(body), headers_for(body))
    assert answer.status == 200
    assert not {name for name in answer.headers if name.startswith("access-control") or name == "vary"}


def test_any_origin() -> None:
    with serve(make(), cors=["*"]) as running:
        for origin in (OTHER, "null"):
            assert preflight(running, origin).headers[LISTED] == origin


@pytest.mark.security("R2")
def test_one_decision_about_origins() -> None:
    policy = HostPolicy(["api.example.com"], None, cors=[PAGE])
    assert policy.origin_ok(PAGE.encode())
    assert policy.origin_ok(b"https://api.example.com")  # as without
    assert not policy.origin_ok(OTHER.encode())
    assert not policy.shares_with(b"https://api.example.com")
    strict = HostPolicy(None, ["https://a.example"], cors=[PAGE])
    assert [strict.origin_ok(one.encode()) for one in (PAGE, "https://a.example", "http://localhost", OTHER)] == [
        True,
        True,
        False,
        False,
    ]
    assert not strict.shares_with(None)
    with pytest.raises(UsageError, match=r"cors= is a list of entries; write cors=\['https://a.example'\]"):
        HostPolicy(None, None, cors="https://a.example")
    with pytest.raises(UsageError, match=r"cors= has the entry 'app.example.com', which is not an origin"):
        HostPolicy(None, None, cors=["app.example.com"])


# --- the authorization server


def test_a_page_logs_in_at_the_authorization_server() -> None:
    with authorize(asgi={"cors": [PAGE]}) as place:
        for path, verb in (("/token", "POST"), ("/register", "POST"), ("/.well-known/openid-configuration", "GET")):
            asked = preflight(place.live, path=path, **{"Access-Control-Request-Method": verb})
            assert (asked.status, asked.headers[LISTED]) == (204, PAGE)
            assert verb in asked.headers["access-control-allow-methods"]
        for answer in (
            place.browser.send("GET", "/.well-known/oauth-authorization-server", headers={"Origin": PAGE}),
            place.browser.send("POST", "/token", "grant_type=x", {"Origin": PAGE, "Content-Type": FORM}),
        ):
            shared(answer)
        assert preflight(place.live, OTHER, path="/token").status == 403
        stranger = place.browser.send("POST", "/token", "grant_type=x", {"Origin": OTHER, "Content-Type": FORM})
        assert LISTED not in stranger.headers


@pytest.mark.security("R10")
def test_no_other_page_reads_that_of_the_consent() -> None:
    with authorize(asgi={"cors": ["*"]}) as place:
        assert preflight(place.live, path="/authorize").status == 403
        request = place.request(pkce()[1])
        page = Browser(place.base).send("GET", f"/authorize?{urlencode(request)}", headers={"Origin": PAGE})
        assert (page.status, LISTED in page.headers) == (200, False)


def test_without_the_option_the_authorization_server_says_so_too() -> None:
    with authorize() as place:
        answer = preflight(place.live, path="/token")
        assert (answer.status, LISTED in answer.headers) == (403, False)
        assert f"set cors=['{PAGE}']" in json.loads(answer.body)["error_description"]
