"""The authorization server over a socket: from a client's registration to a call of a tool with the token it gets."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import jwt
import pytest
from aiohttp import ThreadedResolver

from support import serve
from support.authorizing import CLIENTS, SECRET, Authorization, authorize, error_of
from support.logging_in import FORM, REDIRECT, Browser, hidden_fields, log_in, pkce, sent_to
from support.protected import Peer, make_protected
from support.tokens import RESOURCE
from weft.authorization import AuthorizationServer, web
from weft.authorization import clients as module
from weft.authorization.clients import Clients
from weft.authorization.users import TooManyTries, Users
from weft.authorization.web import digest
from weft.backends.memory import MemoryBackend
from weft.errors import UsageError
from weft.net.fetch import FetchFailed, fetch_document, is_private, open_session
from weft.protocol.headers import Headers
from weft.server.auth import ResourceServer


@pytest.fixture(scope="module")
def place() -> Iterator[Authorization]:
    with authorize() as running:
        yield running


@pytest.mark.spec("AUTH-03", "AUTH-17", "ASEC-03", "AUTH-30")
def test_the_whole_way(place: Authorization) -> None:
    verifier, challenge = pkce()
    told = log_in(place.browser, **place.request(challenge, scope="read"))
    assert (told["state"], told["iss"]) == ("s t&a", place.server.issuer)
    answer = place.token(
        grant_type="authorization_code",
        code=told["code"],
        code_verifier=verifier,
        redirect_uri=REDIRECT,
        resource=RESOURCE,
    )
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    tokens = json.loads(answer.body)
    assert (tokens["token_type"], tokens["scope"], tokens["expires_in"]) == ("Bearer", "read", 600)
    claims = jwt.decode(tokens["access_token"], options={"verify_signature": False})
    assert (claims["sub"], claims["aud"], claims["client_id"]) == ("ann", RESOURCE, "public")
    auth = ResourceServer(
        RESOURCE, authorization_servers=[place.server.issuer], verifier=place.server.verifier(), scopes=["read"]
    )
    with serve(make_protected(auth)) as live:
        peer = Peer(live, "stateless", tokens["access_token"])
        assert peer.tool("who").result["structuredContent"]["subject"] == "ann"
        assert peer.tool("burn").status == 403


@pytest.mark.spec("AUTH-06", "AUTH-18", "ASEC-08", "CREG-02")
@pytest.mark.parametrize("path", ["oauth-authorization-server", "openid-configuration"])
def test_the_metadata(place: Authorization, path: str) -> None:
    answer = place.browser.get(f"/.well-known/{path}")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    told = json.loads(answer.body)
    assert told["issuer"] == place.server.issuer
    assert told["code_challenge_methods_supported"] == ["S256"]
    assert told["authorization_response_iss_parameter_supported"] is True
    assert told["client_id_metadata_document_supported"] is True
    assert told["token_endpoint"].endswith("/token")
    head = place.browser.send("HEAD", f"/.well-known/{path}")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(answer.body)))


@pytest.mark.spec("AUTH-06")
def test_the_metadata_of_an_issuer_with_a_path() -> None:
    server = AuthorizationServer("http://127.0.0.1:9/as", resources=[RESOURCE], users={"ann": "x"}, registration=False)
    with serve(server.asgi()) as live:
        for path in (
            "/.well-known/oauth-authorization-server/as",
            "/.well-known/openid-configuration/as",
            "/as/.well-known/openid-configuration",
        ):
            told = json.loads(live.send(b"", [], verb="GET", path=path).body)
            assert told["issuer"] == "http://127.0.0.1:9/as"
            assert "registration_endpoint" not in told
        assert live.send(b"", [], verb="GET", path="/as/authorize").status == 400
        assert live.send(b"{}", [("Content-Type", "application/json")], path="/as/register").status == 404


@pytest.mark.spec("ASEC-12")
def test_the_page_says_who_asks_and_where_the_answer_goes(place: Authorization) -> None:
    page = place.browser.get("/authorize", **place.request(pkce()[1]))
    text = page.body.decode()
    assert "The &lt;client&gt;" in text
    assert "127.0.0.1:3000" in text
    assert "your own machine" in text
    assert "read, write" in text
    assert page.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert "HttpOnly; SameSite=Lax" in page.headers["set-cookie"]


def test_over_https_the_cookie_belongs_to_the_host_alone() -> None:
    server = AuthorizationServer("https://auth.example.com", resources=[RESOURCE], users={"ann": "x"}, clients=CLIENTS)
    with serve(server.asgi()) as live:
        query = urlencode({"client_id": "public", "response_type": "code", "code_challenge_method": "S256"})
        headers = [("Host", "auth.example.com")]
        path = f"/authorize?{query}&code_challenge={pkce()[1]}"
        cookie = live.send(b"", headers, verb="GET", path=path).headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert cookie.endswith("; Secure")
        assert live.send(b"", [("Host", "evil.example")], verb="GET", path=path).status == 421


# --- what goes back to nobody, and what goes back to the client


@pytest.mark.spec("ASEC-10", "CREG-05")
@pytest.mark.security("R10")
@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "unknown"},
        {"client_id": None},
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": REDIRECT + "/more"},
        {"redirect_uri": REDIRECT + "?x=1"},
        {"redirect_uri": "http://127.0.0.1:3000@evil.example/callback"},
        {"redirect_uri": "http://localhost:3000/callback"},
        {"client_id": "private", "redirect_uri": None},
        {"client_id": "private", "redirect_uri": "https://a.example:444/cb?x=1"},
    ],
)
def test_nobody_is_sent_to_a_place_that_is_not_the_clients(place: Authorization, changes: dict[str, Any]) -> None:
    page = place.browser.get("/authorize", **place.request(pkce()[1], **changes))
    assert page.status == 400
    assert "location" not in page.headers


def test_a_native_client_takes_any_port(place: Authorization) -> None:
    request = place.request(pkce()[1], redirect_uri="http://127.0.0.1:45678/callback")
    assert place.browser.get("/authorize", **request).status == 200


@pytest.mark.spec("AUTH-17")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "invalid_request"),
        ({"dpop_jkt": "no thumbprint"}, "invalid_request"),
        ({"state": "x" * 2049}, "invalid_request"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"resource": "https://other.example"}, "invalid_target"),
        ({"scope": "everything"}, "invalid_scope"),
    ],
)
def test_a_wrong_request_is_told_to_the_client(place: Authorization, changes: dict[str, Any], error: str) -> None:
    where, told = sent_to(place.browser.get("/authorize", **place.request(pkce()[1], **changes)))
    assert where == REDIRECT
    assert (told["error"], told["iss"]) == (error, place.server.issuer)
    assert told["state"] == changes.get("state", "s t&a")


@pytest.mark.parametrize("name", ["client_id", "redirect_uri", "state", "code_challenge", "scope", "resource", "iss"])
def test_a_parameter_that_is_there_twice(place: Authorization, name: str) -> None:
    """Whoever reads the first and whoever reads the last would see two requests."""
    request = {"scope": "read", "iss": "x", **place.request(pkce()[1])}
    page = place.browser.send("GET", f"/authorize?{urlencode(request)}&{urlencode({name: request[name]})}")
    assert (page.status, "location" in page.headers) == (400, False)
    assert ("one resource" if name == "resource" else "more than once") in page.body.decode()


@pytest.mark.parametrize(
    ("name", "error"), [("code", "invalid_request"), ("grant_type", "invalid_request"), ("resource", "invalid_target")]
)
def test_a_field_that_is_there_twice(place: Authorization, name: str, error: str) -> None:
    code, verifier = place.code()
    fields = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "client_id": "public"}
    body = urlencode({**fields, "resource": RESOURCE})
    twice = f"{body}&{urlencode({name: {**fields, 'resource': RESOURCE}[name]})}"
    assert error_of(place.browser.send("POST", "/token", twice, {"Content-Type": FORM})) == (400, error)
    assert place.browser.send("POST", "/token", body, {"Content-Type": FORM}).status == 200  # nothing was used up


# --- consent


def begin(place: Authorization, browser: Browser) -> dict[str, str]:
    page = browser.get("/authorize", **place.request(pkce()[1]))
    return {**hidden_fields(page), "username": "ann", "password": "correct horse", "action": "allow"}


@pytest.mark.security("R10")
def test_consent_belongs_to_the_browser_that_gave_it(place: Authorization) -> None:
    ann, other = Browser(place.base), Browser(place.base)
    fields = begin(place, ann)
    begin(place, other)  # has a cookie, of its own
    for wrong in (
        other.post("/authorize", fields),
        Browser(place.base).post("/authorize", fields),
        ann.post("/authorize", {**fields, "request": "x"}),
        ann.post("/authorize", {**fields, "request": fields["request"][:-2]}),
        ann.post("/authorize", fields, Origin="https://evil.example"),
        ann.post("/authorize", fields, Origin="null"),
    ):
        assert (wrong.status, "location" in wrong.headers) == (403, False)
    assert "code" in sent_to(ann.post("/authorize", fields, Origin=place.server.issuer))[1]
    assert ann.post("/authorize", fields).status == 403  # once


def test_a_user_may_say_no(place: Authorization) -> None:
    browser = Browser(place.base)
    fields = {**begin(place, browser), "action": "deny"}
    told = sent_to(browser.post("/authorize", fields))[1]
    assert (told["error"], told["iss"]) == ("access_denied", place.server.issuer)


@pytest.mark.parametrize(("name", "password"), [("eve", "wrong"), ("nobody", "x"), ("", ""), ("eve", "x" * 5000)])
def test_a_wrong_password(place: Authorization, name: str, password: str) -> None:
    browser = Browser(place.base)
    fields = begin(place, browser)
    page = browser.post("/authorize", {**fields, "username": name, "password": password})
    assert (page.status, "wrong" in page.body.decode()) == (403, True)
    assert "code" in sent_to(browser.post("/authorize", fields))[1]


@pytest.mark.security("R12")
def test_nobody_guesses_for_long(place: Authorization) -> None:
    browser = Browser(place.base)
    fields = {**begin(place, browser), "username": "guessed", "password": "x"}
    assert [browser.post("/authorize", fields).status for _ in range(11)] == [403] * 10 + [429]
    assert "code" in sent_to(browser.post("/authorize", {**fields, "username": "ann", "password": "correct horse"}))[1]


@pytest.mark.parametrize("said", [False, True, "", 5, ["ann"], 0])
async def test_a_function_that_says_no_subject_says_nobody(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def check(name: str, password: str) -> Any:
        return said

    users = Users(check, MemoryBackend().store)
    for _ in range(10):
        assert await users.check("ann", "x") is None
    with pytest.raises(TooManyTries):  # it has counted
        await users.check("ann", "x")
    kind = type(said).__name__
    text = f"checks passwords returned something of type {kind}, so the login was refused. Return the subject"
    assert (text in caplog.text) is bool(said)


async def test_a_body_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_BODY_SECONDS", 0.05)

    async def receive() -> Any:
        return await asyncio.Event().wait()

    form = Headers({b"content-type": b"application/x-www-form-urlencoded"}, [])
    with pytest.raises(web.OAuthError) as refused:
        await web.WebRequest({"method": "POST"}, form, receive).form()
    assert refused.value.status == 408


async def test_a_body_that_is_cut_short_is_not_taken_for_whole() -> None:
    parts = [{"type": "http.request", "body": b"a=1", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return parts.pop(0)

    form = Headers({b"content-type": b"application/x-www-form-urlencoded"}, [])
    with pytest.raises(web.OAuthError, match="before it was complete"):
        await web.WebRequest({"method": "POST"}, form, receive).form()


async def test_documents_are_not_waited_for_by_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()

    async def slow(*_: Any, **__: Any) -> Any:
        await never.wait()

    monkeypatch.setattr(module, "fetch_document", slow)
    clients = Clients(MemoryBackend().store, [], documents=True, local=False)
    finding = [asyncio.create_task(clients.find(f"https://a.example/{n}.json")) for n in range(module._MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(web.OAuthError) as refused:
        await clients.find("https://a.example/one-more.json")
    assert refused.value.status == 503
    for task in finding:
        task.cancel()
    await asyncio.wait(finding)
    assert clients._waiting == 0


def test_a_hashed_password(place: Authorization) -> None:
    assert "code" in log_in(Browser(place.base), "bob", "battery staple", **place.request(pkce()[1]))


# --- tokens


@pytest.mark.spec("AUTH-03")
@pytest.mark.parametrize(
    ("changes", "status", "error"),
    [
        ({"code_verifier": "x" * 43}, 400, "invalid_grant"),
        ({"code_verifier": None}, 400, "invalid_request"),
        ({"code": None}, 400, "invalid_request"),
        ({"code_verifier": "x" * 42}, 400, "invalid_grant"),
        ({"grant_type": None}, 400, "invalid_request"),
        ({"redirect_uri": "http://127.0.0.1:3001/callback"}, 400, "invalid_grant"),
        ({"resource": "https://other.example"}, 400, "invalid_target"),
        ({"scope": "read write admin"}, 400, "invalid_scope"),
        ({"client_id": "private", "client_secret": SECRET}, 400, "invalid_grant"),
        ({"client_id": "private"}, 401, "invalid_client"),
        ({"client_id": "private", "client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_secret": "unexpected"}, 401, "invalid_client"),
        ({"client_id": "unknown"}, 401, "invalid_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"code": "unknown"}, 400, "invalid_grant"),
    ],
)
def test_a_code_is_good_for_who_asked_for_it(
    place: Authorization, changes: dict[str, Any], status: int, error: str
) -> None:
    verifier, challenge = pkce()
    code = log_in(Browser(place.base), **place.request(challenge))["code"]
    given = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, **changes}
    assert error_of(place.token(**given)) == (status, error)


def test_a_refresh_may_ask_for_less(place: Authorization) -> None:
    token = place.tokens(scope="read write")["refresh_token"]
    less = json.loads(place.token(grant_type="refresh_token", refresh_token=token, scope="read").body)
    assert less["scope"] == "read"
    again = json.loads(place.token(grant_type="refresh_token", refresh_token=less["refresh_token"]).body)
    assert again["scope"] == "read write"  # what was granted stays granted (RFC 6749, 6)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"scope": "read write admin"}, "invalid_scope"), ({"resource": "https://other.example"}, "invalid_target")],
)
def test_a_refresh_that_asks_for_too_much_uses_nothing_up(
    place: Authorization, wrong: dict[str, Any], error: str
) -> None:
    given = {"grant_type": "refresh_token", "refresh_token": place.tokens()["refresh_token"]}
    assert error_of(place.token(**given, **wrong)) == (400, error)
    assert place.token(**given).status == 200


@pytest.mark.parametrize("basic", [True, False])
def test_a_client_with_a_secret(place: Authorization, basic: bool) -> None:
    verifier, challenge = pkce()
    code = log_in(Browser(place.base), **place.request(challenge, client_id="private"))["code"]
    given: dict[str, Any] = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    headers = {"Authorization": "Basic " + base64.b64encode(f"private:{SECRET.replace(' ', '+')}".encode()).decode()}
    given |= {"client_id": None} if basic else {"client_id": "private", "client_secret": SECRET}
    assert place.token(headers if basic else None, **given).status == 200


@pytest.mark.parametrize("value", ["Basic !", "Basic eA==", "Basic cHJpdmF0ZTp3cm9uZw=="])
def test_a_wrong_secret_is_challenged_in_kind(place: Authorization, value: str) -> None:
    answer = place.token({"Authorization": value}, client_id=None, grant_type="authorization_code")
    assert error_of(answer) == (401, "invalid_client")
    assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("client_id=a&client_id=b", {}, 400),
        ("x" * 70_000, {}, 413),
        ("&".join(f"a{n}=1" for n in range(100)), {}, 400),
        ("{}", {"Content-Type": "application/json"}, 415),
    ],
)
def test_a_body_that_is_no_form(place: Authorization, body: str, headers: dict[str, str], status: int) -> None:
    assert place.browser.send("POST", "/token", body, {"Content-Type": FORM, **headers}).status == status


@pytest.mark.security("R13")
def test_every_route_has_its_verbs_and_no_other(place: Authorization) -> None:
    for path in place.server.asgi()._routes:
        assert place.browser.send("DELETE", path).status == 405
    assert place.browser.get("/").status == 404
    keys = json.loads(place.browser.get("/jwks").body)["keys"]
    assert [set(key) & {"d", "k"} for key in keys] == [set()]


# --- registration


def register(place: Authorization, **changes: Any) -> Any:
    metadata = {"redirect_uris": [REDIRECT], "client_name": "new", "token_endpoint_auth_method": "none", **changes}
    body = json.dumps({name: value for name, value in metadata.items() if value is not None})
    return place.browser.send("POST", "/register", body, {"Content-Type": "application/json"})


def test_a_client_registers_itself(place: Authorization) -> None:
    answer = register(place, grant_types=["authorization_code", "refresh_token"], application_type="native")
    assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
    told = json.loads(answer.body)
    assert "client_secret" not in told
    assert told["application_type"] == "native"
    verifier, challenge = pkce()
    code = log_in(Browser(place.base), **place.request(challenge, client_id=told["client_id"]))["code"]
    given = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    assert place.token(**given, client_id=told["client_id"]).status == 200


def test_a_client_registers_with_a_secret(place: Authorization) -> None:
    told = json.loads(register(place, token_endpoint_auth_method=None).body)
    assert (told["token_endpoint_auth_method"], told["client_secret_expires_at"]) == ("client_secret_basic", 0)
    assert told["grant_types"] == ["authorization_code"]
    assert error_of(place.token(client_id=told["client_id"], grant_type="x")) == (401, "invalid_client")
    given = {"client_id": told["client_id"], "client_secret": told["client_secret"], "grant_type": "refresh_token"}
    assert error_of(place.token(**given)) == (400, "unauthorized_client")


@pytest.mark.spec("ASEC-05")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"redirect_uris": ["http://a.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a.example/cb#x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": None}, "invalid_redirect_uri"),
        ({"redirect_uris": "x"}, "invalid_redirect_uri"),
        ({"redirect_uris": [REDIRECT] * 17}, "invalid_redirect_uri"),
        ({"client_name": "x" * 201}, "invalid_client_metadata"),
        ({"client_name": 3}, "invalid_client_metadata"),
        ({"grant_types": ["client_credentials"]}, "invalid_client_metadata"),
        ({"token_endpoint_auth_method": "private_key_jwt"}, "invalid_client_metadata"),
    ],
)
def test_a_registration_that_cannot_be(place: Authorization, changes: dict[str, Any], error: str) -> None:
    assert error_of(register(place, **changes)) == (400, error)


# --- clients that are described by a document


def documents(document: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.dumps(document() if callable(document) else document).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.spec("CREG-02", "CREG-05")
def test_a_client_whose_id_is_the_url_of_its_document(place: Authorization) -> None:
    described: dict[str, Any] = {"redirect_uris": [REDIRECT], "client_name": "Documented"}
    with serve(documents(lambda: described)) as host:
        id = f"http://127.0.0.1:{host.port}/client.json"
        refused = place.browser.get("/authorize", **place.request(pkce()[1], client_id=id))
        assert refused.status == 400  # the document does not name it
        described["client_id"] = id
        verifier, challenge = pkce()
        told = log_in(Browser(place.base), **place.request(challenge, client_id=id))
        given = {"grant_type": "authorization_code", "code": told["code"], "code_verifier": verifier}
        assert place.token(**given, client_id=id).status == 200
        for wrong in (f"http://127.0.0.1:{host.port}/", f"http://127.0.0.1:{host.port}/other.json"):
            assert place.browser.get("/authorize", **place.request(pkce()[1], client_id=wrong)).status == 400


@pytest.mark.spec("ASEC-12")
@pytest.mark.security("R11", "D15")
@pytest.mark.parametrize("reaches", [False, True], ids=["public", "private"])
async def test_a_public_server_fetches_no_document_from_where_only_it_can_reach(
    reaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody there is even connected to. A server of this machine, which may, is: so is it seen that it would be."""
    arrived: list[str] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append("somebody")
        writer.close()

    async def resolve(*_: Any, **__: Any) -> Any:  # a name that somebody else chose, and where it leads
        return [{"hostname": "a.example", "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}]

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    monkeypatch.setattr("aiohttp.connector.DefaultResolver", ThreadedResolver)
    clients = Clients(MemoryBackend().store, [], documents=True, local=reaches)
    tricks = () if reaches else ("2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]")
    async with listening:
        for host in ("127.0.0.1", "localhost", "a.example", *tricks):
            arrived.clear()
            assert await clients.find(f"https://{host}:{port}/c.json") is None
            assert bool(arrived) is reaches, host
        if not reaches:  # and over plain http from nowhere at all
            assert await clients.find(f"http://127.0.0.1:{port}/c.json") is None
            assert arrived == []


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    ("addresses", "is_taken"),
    [
        (["93.184.216.34"], True),
        (["93.184.216.34", "2606:4700::1"], True),
        (["93.184.216.34", "127.0.0.1"], False),  # one public, one private: who connects may take either
        (["10.0.0.1", "93.184.216.34"], False),
        (["10.0.0.1"], False),
    ],
)
async def test_a_name_with_one_private_address_is_not_public(
    addresses: list[str], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: Any, **__: Any) -> Any:
        return [
            {"hostname": "a.example", "host": one, "port": 1, "family": 2, "proto": 6, "flags": 0} for one in addresses
        ]

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    async with open_session(1.0, is_private) as session:
        resolving = session.connector._resolver.resolve("a.example", 443)
        if is_taken:
            assert [entry["host"] for entry in await resolving] == addresses
        else:
            with pytest.raises(OSError, match=r"a\.example"):
                await resolving


@pytest.mark.security("R11")
@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]", "[fd00::1]", "2130706433"])
async def test_an_address_that_is_not_public_is_not_connected_to(host: str) -> None:
    with pytest.raises(FetchFailed, match="private address"):
        await fetch_document(f"https://{host}/c.json", public_only=True)


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        "10.0.0.1",
        "169.254.169.254",
        "fd00::1",
        "100.64.0.1",
        "2002:7f00:1::",
        "64:ff9b::a00:1",
        "x",
    ],
)
async def test_addresses_that_are_not_public(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: Any, **__: Any) -> Any:
        return [{"hostname": "a.example", "host": address, "port": 1, "family": 2, "proto": 6, "flags": 0}]

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    with pytest.raises(FetchFailed, match="private address" if address != "x" else "cannot be reached"):
        await fetch_document("https://a.example/c.json", public_only=True)


# --- what is kept, and what is not


@pytest.mark.spec("ASEC-01")
async def test_the_store_holds_no_secret_that_could_be_used(place: Authorization) -> None:
    tokens = place.tokens()
    values = str(vars(place.server.grants.store))
    assert tokens["refresh_token"] not in values
    assert tokens["access_token"] not in values
    assert SECRET not in values + repr(place.server) + repr(place.server.signer)
    assert digest(tokens["refresh_token"]) in values


@pytest.mark.security("R1")
@pytest.mark.parametrize("failure", [RuntimeError, SystemExit])
def test_a_login_of_ones_own_that_fails(failure: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    async def login(name: str, password: str) -> str | None:
        await asyncio.sleep(0)
        if name == "fails":
            raise failure(f"hidden: no {password!r} in the directory")
        return f"id of {name}" if password == "x" else None

    server = AuthorizationServer("http://127.0.0.1:9", resources=[RESOURCE], users=login, clients=CLIENTS)
    with serve(server.asgi()) as live:
        place = Authorization(live, server)
        place.base = f"http://127.0.0.1:{live.port}"
        browser = Browser(place.base)
        fields = begin(place, browser)
        failed = browser.post("/authorize", {**fields, "username": "fails"})
        assert (failed.status, b"hidden" in failed.body) == (500, False)
        assert f"checks passwords raised {failure.__name__} [error" in caplog.text
        assert "hidden:" not in caplog.text.replace('f"hidden: no {password!r}', "")  # but for the line itself
        assert "correct horse" not in caplog.text
        assert browser.post("/authorize", {**fields, "username": "ann"}).status == 403
        assert "code" in sent_to(browser.post("/authorize", {**fields, "username": "ann", "password": "x"}))[1]


@pytest.mark.parametrize(
    "options",
    [
        {"issuer": "http://auth.example.com"},
        {"issuer": "https://auth.example.com/"},
        {"issuer": "https://auth.example.com?x"},
        {"resources": []},
        {"resources": RESOURCE},
        {"resources": ["http://mcp.example.com"]},
        {"users": {}},
        {"users": {"ann": ""}},
        {"users": lambda name, password: name},
        {"key": "no key"},
        {"access_seconds": 86_400},
        {"scopes": ["a b"]},
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any]) -> None:
    good = {"issuer": "https://auth.example.com", "resources": [RESOURCE], "users": {"ann": "x"}}
    with pytest.raises(UsageError):
        AuthorizationServer(**{**good, **options})


def test_a_code_does_not_last(place: Authorization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.authorization.grants.CODE_SECONDS", 0.05)
    verifier, challenge = pkce()
    code = log_in(Browser(place.base), **place.request(challenge))["code"]
    time.sleep(0.1)
    late = place.token(grant_type="authorization_code", code=code, code_verifier=verifier)
    assert error_of(late) == (400, "invalid_grant")
