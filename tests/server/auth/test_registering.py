"""Registration: what one address does takes nothing from others, and what is in use is never forgotten for others."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from support.authorizing import Authorization, authorize, error_of
from support.logging_in import REDIRECT, Browser, hidden_fields, pkce
from weft.authorization import clients as module
from weft.authorization import users
from weft.authorization.clients import Clients
from weft.authorization.web import OAuthError, WebRequest
from weft.backends.memory import MemoryBackend
from weft.server.calls.call import peer_of


class World:
    """Clients that register themselves, on a clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now))
        self.store = MemoryBackend(clock=lambda: self.now).store
        self.clients = self.worker()

    def worker(self) -> Clients:
        return Clients(self.store, [], documents=False, local=True)

    async def register(self, address: str) -> str:
        return (await self.clients.register({"redirect_uris": [REDIRECT]}, address))["client_id"]

    async def has(self, client_id: str) -> bool:
        return await self.clients.find(client_id) is not None

    async def use(self, client_id: str, at: Clients | None = None) -> None:
        found = await self.clients.find(client_id)
        assert found is not None
        await (at or self.clients).keep(found)


@pytest.mark.security("R12")
async def test_an_address_that_registers_much_takes_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for _ in range(100):
        await world.register("6.6.6.6")
    with pytest.raises(OAuthError, match="from your address") as refused:
        await world.register("6.6.6.6")
    assert (refused.value.status, refused.value.headers) == (429, [(b"retry-after", b"3600")])
    assert await world.has(await world.register("7.7.7.7"))
    world.now += 3599.0
    with pytest.raises(OAuthError):
        await world.register("6.6.6.6")
    world.now += 1.0
    assert await world.has(await world.register("6.6.6.6"))


async def test_a_client_that_is_used_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for _ in range(120):
        await world.use(await world.register("10.0.0.1"))  # many behind one address, who all log in


@pytest.mark.security("R12")
async def test_too_many_in_all_refuse_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNUSED", 12)
    world = World(monkeypatch)
    mine = await world.register("7.7.7.7")
    used = await world.register("6.6.6.6")
    await world.use(used, at=world.worker())  # another worker gave it a token: this one does not know
    flood = [await world.register(f"6.6.6.{number % 3}") for number in range(30)]
    kept = [await world.has(one) for one in flood]
    assert len([one for one in kept if one]) == 10  # with `mine`, and the one that this worker takes for unused
    assert kept[-3:] == [True] * 3  # the newest
    assert await world.has(mine)  # an address with a single one
    assert await world.has(used)  # in use
    assert len(world.clients._unused) == 12


async def test_how_long_a_registration_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    used, unused = await world.register("a"), await world.register("a")
    await world.use(used)
    assert await world.has(unused)  # anybody can look it up: that is no use of it
    world.now += 86_399.0
    assert await world.has(unused)
    world.now += 2.0
    assert (await world.has(used), await world.has(unused)) == (True, False)
    await world.register("a")
    assert len(world.clients._unused) == 1  # what is over is not counted
    world.now += 89 * 86_400.0 - 2.0
    await world.use(used)  # each token keeps it
    world.now += 90 * 86_400.0 - 1.0
    assert await world.has(used)
    world.now += 2.0
    assert not await world.has(used)


def register(place: Authorization, address: str) -> Any:
    body = json.dumps({"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"})
    headers = {"Content-Type": "application/json", "X-Forwarded-For": address}
    return place.browser.send("POST", "/register", body, headers)


def test_over_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PER_ADDRESS", 2)
    with authorize(asgi={"trusted_proxies": ["127.0.0.1"]}) as place:
        assert [register(place, "6.6.6.6").status for _ in range(3)] == [201, 201, 429]
        refused = register(place, "6.6.6.6")
        assert error_of(refused) == (429, "temporarily_unavailable")
        assert int(refused.headers["retry-after"]) > 3500
        told = json.loads(register(place, "7.7.7.7").body)
        code, verifier = place.code(client_id=told["client_id"])
        request = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
        assert place.token(**request, client_id=told["client_id"]).status == 200
        kept = [key for key in place.server.backend.store._values if key.startswith(("client:", "new-client:"))]  # type: ignore[attr-defined] - of the memory one
        assert sorted(key.partition(":")[0] for key in kept) == ["client", "new-client", "new-client"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("6.6.6.6", "6.6.6.7", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),  # one machine has all of these
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:6.6.6.6", "6.6.6.6", True),
        ("::ffff:6.6.6.6", "::ffff:6.6.6.7", False),
        ("somewhere", "elsewhere", False),
    ],
)
def test_whom_limits_are_counted_for(one: str, other: str, same: bool) -> None:
    def address(text: str) -> str:
        return WebRequest({"client": (text, 1)}, None, None).address  # type: ignore[arg-type] - nothing else is looked at

    assert (address(one) == address(other)) is same
    assert (peer_of(one, None) == peer_of(other, None)) is same  # by calls too
    assert WebRequest({}, None, None).address == ""  # type: ignore[arg-type] - as above


# What the operator is told.


def lines_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


def test_a_proxy_that_is_not_named_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with authorize() as place:
        for _ in range(2):
            Browser(place.base).send("GET", "/jwks", headers={"X-Forwarded-For": "203.0.113.9"})
    (told,) = lines_of(caplog, "weft.advice")
    assert "100 registrations an hour" in told
    assert "10 wrong passwords a minute" in told
    assert "Set trusted_proxies=['127.0.0.1']. If not" in told  # there is no command that serves it


@pytest.mark.parametrize(("proxies", "lines"), [(["127.0.0.1"], 0), (["10.0.0.1"], 1)])
def test_a_proxy_that_is_named_is_not_told(proxies: list[str], lines: int, caplog: pytest.LogCaptureFixture) -> None:
    with authorize({"trusted_proxies": proxies}) as place:
        Browser(place.base).send("GET", "/jwks", headers={"X-Forwarded-For": "203.0.113.9"})
    assert len(lines_of(caplog, "weft.advice")) == lines


def test_what_is_refused_is_logged_without_what_is_secret(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PER_ADDRESS", 1)
    monkeypatch.setattr(users, "MOST_TRIES", 1)
    with caplog.at_level("INFO", "weft.server"), authorize() as place:
        place.live.send(b"", [("Host", "evil.example")], path="/jwks")
        place.token(client_id="private", client_secret="hidden-1", grant_type="authorization_code")
        place.token(grant_type="refresh_token", refresh_token="hidden-2")
        Browser(place.base).get("/no%0Asuch?code=hidden-3")
        register(place, "6.6.6.6")
        assert error_of(register(place, "6.6.6.6")) == (429, "temporarily_unavailable")
        browser, (_, challenge) = Browser(place.base), pkce()
        fields = hidden_fields(browser.get("/authorize", **place.request(challenge)))
        for _ in range(2):
            browser.post("/authorize", {**fields, "action": "allow", "username": "ann", "password": "hidden-4"})
    told = [line.split(":")[0] for line in lines_of(caplog, "weft.server")]
    assert told == [
        "refused POST /jwks 421 127.0.0.1",
        "refused POST /token 401 127.0.0.1",
        "refused POST /token 400 127.0.0.1",
        "refused GET /no?such 404 127.0.0.1",
        "refused POST /register 429 127.0.0.1",
        "refused POST /authorize 403 127.0.0.1",
        "refused POST /authorize 429 127.0.0.1",
    ]
    assert "hidden" not in caplog.text
    assert "Name or password is wrong." in caplog.text


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["http://evil.example/cb"],
        [REDIRECT, "http://evil.example/cb"],
        ["javascript:alert(1)", REDIRECT],
        [f"{REDIRECT}/{number}" for number in range(17)],
    ],
    ids=["none", "unsafe", "one of two", "a script", "seventeen"],
)
async def test_redirect_uris_that_cannot_be_are_refused(uris: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OAuthError) as refused:
        await World(monkeypatch).clients.register({"redirect_uris": uris}, "6.6.6.6")
    assert refused.value.error == "invalid_redirect_uri"


async def test_sixteen_redirect_uris_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    uris = [f"{REDIRECT}/{number}" for number in range(16)]
    registered = await World(monkeypatch).clients.register({"redirect_uris": uris}, "6.6.6.6")
    assert list(registered["redirect_uris"]) == uris
