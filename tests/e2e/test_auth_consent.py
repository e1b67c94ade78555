"""The authorization server: whom a user says yes to, how long a client's document is believed, and what is open."""

import json
import re
import time
from collections.abc import Iterator
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from test_auth_login import CLIENTS, Authorization, documents, register

from support import serve
from support.logging_in import REDIRECT, Browser, hidden_fields, pkce, sent_to
from support.tokens import RESOURCE
from weft.authorization import AuthorizationServer
from weft.authorization.clients import Clients
from weft.backends.memory import MemoryBackend

VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture
def place() -> Iterator[Authorization]:
    apps: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # the issuer has the port in it, which comes first
        if scope["type"] == "http":
            await apps[0](scope, receive, send)

    with serve(app) as live:
        server = AuthorizationServer(
            f"http://127.0.0.1:{live.port}",
            resources=[RESOURCE],
            users={"ann": "correct horse"},
            scopes=["read", "write"],
            clients=CLIENTS,
            registration=True,
        )
        apps.append(server.asgi())
        yield Authorization(live, server)


# --- consent


@pytest.mark.spec("ASEC-13", "SBP-01")
@pytest.mark.security("R10")
def test_a_yes_to_one_client_is_no_yes_to_another(place: Authorization) -> None:
    """A user who has just said yes is asked again: for another client, and for the same; nobody is sent on unasked."""
    user = Browser(place.base)
    yes = {"username": "ann", "password": "correct horse", "action": "allow"}
    first = user.get("/authorize", **place.request(pkce()[1]))
    said = hidden_fields(first)
    assert "code" in sent_to(user.post("/authorize", {**said, **yes}))[1]

    other = json.loads(register(place, client_name="Another", redirect_uris=["https://b.example/back"]).body)
    request = place.request(
        pkce()[1], client_id=other["client_id"], redirect_uri="https://b.example/back", scope="read"
    )
    for asked in (request, place.request(pkce()[1])):
        page = user.get("/authorize", **asked)  # with the cookie of the first time
        assert (page.status, "location" in page.headers) == (200, False)
        assert "Allow" in page.body.decode()
    page = user.get("/authorize", **request)
    text = page.body.decode()
    for shown in ("Another", "https://b.example/back", "<dd>read</dd>", RESOURCE):
        assert shown in text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]

    # Neither the first yes again, nor one that was not given on a page that was shown to this browser.
    assert user.post("/authorize", {**said, **yes}).status == 403
    assert Browser(place.base).post("/authorize", {**hidden_fields(page), **yes}).status == 403
    where, told = sent_to(user.post("/authorize", {**hidden_fields(page), **yes}))
    assert where == "https://b.example/back"
    assert told["state"] == request["state"]


# --- whom nobody is sent to unasked

WRONG = [{"response_type": "bogus"}, {"scope": "everything"}, {"code_challenge": None}]


@pytest.mark.spec("ASEC-10")
@pytest.mark.parametrize("changes", WRONG)
@pytest.mark.parametrize("kind", ["registered", "documented"])
def test_nobody_is_sent_unasked_to_a_client_that_nobody_vouches_for(
    place: Authorization, changes: dict[str, Any], kind: str
) -> None:
    """Else whoever registers a client has links to this server that lead to theirs."""
    there = "https://evil.example/phish?a=1"
    described: dict[str, Any] = {"redirect_uris": [there]}
    with serve(documents(lambda: described)) as host:
        described["client_id"] = f"http://127.0.0.1:{host.port}/client.json"
        id = described["client_id"]
        if kind == "registered":
            id = json.loads(register(place, redirect_uris=[there]).body)["client_id"]
        request = place.request(pkce()[1], client_id=id, redirect_uri=there, **changes)
        page = place.browser.get("/authorize", **request)
    assert (page.status, "location" in page.headers) == (400, False)
    text = page.body.decode()
    assert "The request of the client is not valid: " in text
    assert "This client is not verified. Continue only if you know it: " in text
    assert ">back to evil.example</a>" in text
    link = re.search(r'<a href="(https://evil.example/phish[?]a=1&amp;error=[^"]*)" rel="noreferrer">', text)
    assert link is not None
    assert "state=s+t%26a" in unescape(link[1])


@pytest.mark.parametrize("changes", WRONG)
def test_a_program_on_the_users_own_machine_is_told_at_once(place: Authorization, changes: dict[str, Any]) -> None:
    id = json.loads(register(place).body)["client_id"]
    where, told = sent_to(place.browser.get("/authorize", **place.request(pkce()[1], client_id=id, **changes)))
    assert (where, "error" in told) == (REDIRECT, True)


# --- registration is what is left for those who have nothing better


@pytest.mark.spec("CREG-09", "DEP-01")
def test_registration_comes_after_documents_and_has_to_be_turned_on(place: Authorization) -> None:
    both = place.server.metadata()
    assert both["client_id_metadata_document_supported"] is True
    assert "registration_endpoint" in both
    without = AuthorizationServer("http://127.0.0.1:9", resources=[RESOURCE], users={"ann": "x"})
    assert without.metadata()["client_id_metadata_document_supported"] is True
    assert "registration_endpoint" not in without.metadata()
    with serve(without.asgi()) as live:
        assert live.send(b"{}", [("Content-Type", "application/json")], path="/register").status == 404


# --- documents of clients


class Host:
    """Where a client has its document; it says how long it may be used."""

    def __init__(self, cache: str | None) -> None:
        self.cache = cache
        self.asked = 0
        self.document: dict[str, Any] = {"redirect_uris": [REDIRECT], "client_name": "first"}
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked += 1
        headers = [(b"content-type", b"application/json")]
        if self.cache is not None:
            headers.append((b"cache-control", self.cache.encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(self.document).encode()})


@pytest.mark.spec("CREG-06")
@pytest.mark.parametrize(
    ("cache", "fetched"), [(None, 1), ("max-age=60", 1), ("no-store", 3), ("max-age=0", 3), ("private", 3)]
)
async def test_a_document_is_used_again_for_as_long_as_it_says(cache: str | None, fetched: int) -> None:
    host = Host(cache)
    clients = Clients(MemoryBackend().store, [], documents=True, local=True)
    with serve(host) as live:
        url = f"http://127.0.0.1:{live.port}/client.json"
        host.document["client_id"] = url
        for _ in range(3):
            assert await clients.find(url) is not None
    assert host.asked == fetched


@pytest.mark.spec("CREG-06")
async def test_a_document_is_fetched_anew_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("max-age=600")
    clients = Clients(MemoryBackend().store, [], documents=True, local=True)
    started = time.monotonic()
    with serve(host) as live:
        url = f"http://127.0.0.1:{live.port}/client.json"
        host.document["client_id"] = url
        names = []
        for later in (0, 599, 601):
            clock = SimpleNamespace(monotonic=lambda now=started + later: now)
            monkeypatch.setattr("weft.authorization.clients.time", clock)
            client = await clients.find(url)
            assert client is not None
            names.append(client.client_name)
            host.document["client_name"] = "second"
    assert names == ["first", "first", "second"]


@pytest.mark.spec("CREG-06")
async def test_a_failure_is_not_remembered() -> None:
    host = Host("max-age=600")
    host.status = 500
    clients = Clients(MemoryBackend().store, [], documents=True, local=True)
    with serve(host) as live:
        url = f"http://127.0.0.1:{live.port}/client.json"
        assert await clients.find(url) is None
        host.status = 200
        assert await clients.find(url) is None  # it does not name itself
        host.document["client_id"] = url
        assert await clients.find(url) is not None


# --- the sweep


@pytest.mark.security("R13")
def test_no_route_gives_anything_to_whoever_has_nothing(place: Authorization) -> None:
    """Every route with every verb, without credentials: the public documents are all that is told."""
    routes = place.server.asgi()._routes
    public = {path for path in routes if ".well-known" in path or path.endswith("/jwks")}
    kinds = {"/token": "application/x-www-form-urlencoded", "/register": "application/json"}
    seen = {}
    for path in (*routes, "/", "/admin", "/authorize/", "/token/", "//token", "/%74oken/x"):
        for verb in VERBS:
            headers = [("Content-Type", kinds.get(path, "application/x-www-form-urlencoded"))]
            answer = place.live.send(b"", headers, verb=verb, path=path)
            seen[path, verb] = answer.status
            assert b"access_token" not in answer.body
            assert "location" not in answer.headers
    opened = {route for route, status in seen.items() if status < 400}
    assert opened == {(path, verb) for path in public for verb in ("GET", "HEAD")}
    assert {status for route, status in seen.items() if route not in opened} <= {400, 401, 403, 404, 405, 501}
    assert len(public) == 3
    for path in routes:
        assert [verb for verb in VERBS if seen[path, verb] not in (405, 501)] == sorted(routes[path])


@pytest.mark.security("R10")
@pytest.mark.parametrize(
    ("issuer", "origin", "is_own"),
    [
        ("https://auth.example:443", "https://auth.example", True),  # browsers leave the usual port out
        ("http://127.0.0.1:80", "http://127.0.0.1", True),
        ("https://auth.example:8443", "https://auth.example:8443", True),
        ("https://auth.example:8443", "https://auth.example", False),
        ("https://auth.example:443", "http://auth.example", False),
    ],
)
async def test_the_page_is_used_from_itself_however_its_port_is_written(issuer: str, origin: str, is_own: bool) -> None:
    app = AuthorizationServer(issuer, resources=[RESOURCE], users={"ann": "correct horse"}).asgi()
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"request=x"}

    async def send(message: Any) -> None:
        sent.append(message)

    form = b"application/x-www-form-urlencoded"
    host = issuer.partition("://")[2].encode()
    headers = [(b"host", host), (b"origin", origin.encode()), (b"content-type", form)]
    await app({"type": "http", "method": "POST", "path": "/authorize", "headers": headers}, receive, send)
    assert sent[0]["status"] == 403
    assert (b"was sent from another page" not in sent[1]["body"]) is is_own
