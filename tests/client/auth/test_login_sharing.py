"""One login for many: requests that wait for it whatever it is called, and programs that keep it in the same place."""

import asyncio
import gc
import json
from contextlib import asynccontextmanager

import pytest
from auth_world import AS, ISSUER, SERVER, TOKEN, Person, World, go, json_response, metadata, oauth, refusal

from weft.client.auth import FileStorage, MemoryStorage
from weft.errors import AuthorizationFailed

CALL = {"Mcp-Method": "tools/call", "Mcp-Name": "x"}


class Issuer:
    """Rotates refresh tokens, and ends the whole login when one is shown twice, as OAuth 2.1 wants it."""

    def __init__(self, world: World, *, scope: str | None = None, seconds: int = 60) -> None:
        self.world = world
        self.scope = scope
        self.seconds = seconds
        self.count = 0
        self.good: set[str] = set()
        world.answers[TOKEN] = self.answer

    def answer(self, _request):
        shown = self.world.forms()[-1].get("refresh_token")
        if shown is not None and shown not in self.good:
            self.good.clear()
            return json_response({"error": "invalid_grant"}, 400)
        self.count += 1
        self.good = {f"r{self.count}"}
        given = {"access_token": f"a{self.count}", "token_type": "Bearer", "refresh_token": f"r{self.count}"}
        return {**given, "expires_in": self.seconds, **({} if self.scope is None else {"scope": self.scope})}

    @property
    def grants(self) -> list[str]:
        return [form["grant_type"] for form in self.world.forms()]


# --- requests: an authorization server may name what it granted otherwise than the server names what it wants


@pytest.mark.parametrize("scope", [None, "admin", "read,write", "https://api.example/read"])
async def test_one_login_for_all_who_wait_whatever_the_scopes_are_called(scope):
    world, person = World(), Person()
    Issuer(world, scope=scope)
    auth = oauth(world, person)
    person.may_go_on.clear()
    waiting = [asyncio.create_task(go(auth, 401, 'Bearer scope="read"', **CALL)) for _ in range(10)]
    await asyncio.sleep(0.05)
    person.may_go_on.set()
    assert await asyncio.gather(*waiting) == [True] * 10
    assert len(person.asked) == 1


@pytest.mark.parametrize("scope", [None, "admin"])
async def test_one_refresh_for_all_whose_token_was_revoked(scope):
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world, scope=scope, seconds=3600)
    auth = oauth(world, person, now=now)
    await go(auth, 401, 'Bearer scope="read"')
    now[0] += 60
    challenge = 'Bearer error="invalid_token", scope="read"'
    assert await asyncio.gather(*(go(auth, 401, challenge, **CALL) for _ in range(8))) == [True] * 8
    assert issuer.grants == ["authorization_code", "refresh_token"]
    assert len(person.asked) == 1


async def test_a_401_refreshes_first_also_where_it_names_scopes_that_were_never_asked_for():
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world, scope="admin", seconds=3600)
    auth = oauth(world, person, now=now)
    await go(auth, 401, 'Bearer scope="read"')
    now[0] += 60
    assert await go(auth, 401, 'Bearer scope="write"') is True
    assert issuer.grants == ["authorization_code", "refresh_token"]
    assert await go(auth, 401, 'Bearer scope="write"') is True  # its age was not the reason: more is asked for
    assert [asked["scope"] for asked in person.asked] == ["read", "write read admin"]
    with pytest.raises(AuthorizationFailed, match="refuses the token that"):
        await go(auth, 401, 'Bearer scope="write"')
    assert len(person.asked) == 2


async def test_one_step_up_for_all_whatever_the_scopes_are_called():
    world, person = World(), Person()
    Issuer(world, scope="admin")
    auth = oauth(world, person)
    await go(auth)
    stamps = [await auth.headers(SERVER, "POST") for _ in range(8)]
    denied = refusal(403, 'Bearer error="insufficient_scope", scope="write"')
    assert await asyncio.gather(*(auth.refused(denied, stamp, CALL) for stamp in stamps)) == [True] * 8
    assert len(person.asked) == 2


async def test_a_lack_of_scopes_is_a_step_up_whatever_the_status():
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world, seconds=3600)
    auth = oauth(world, person, now=now)
    await go(auth, 401, 'Bearer scope="read"')
    now[0] += 60
    assert await go(auth, 401, 'Bearer error="insufficient_scope", scope="write"') is True
    assert issuer.grants == ["authorization_code", "authorization_code"]


# --- programs


@pytest.fixture(params=["file", "memory"])
def storages(request, tmp_path):
    """The storages of two programs, which are one."""
    if request.param == "file":
        return [FileStorage(tmp_path / "tokens.json") for _ in range(2)]
    return [MemoryStorage()] * 2


async def two(world: World, person: Person, storages, now):
    """Two programs that have the same token."""
    first = oauth(world, person, storages[0], now)
    await go(first)
    second = oauth(world, person, storages[1], now)
    assert await first.headers(SERVER, "POST") == await second.headers(SERVER, "POST")
    return first, second


async def test_a_program_takes_over_what_another_has_refreshed(storages):
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world)
    first, second = await two(world, person, storages, now)
    for expected in ("a2", "a3", "a4"):
        now[0] += 50
        for auth in (first, second):
            assert await auth.headers(SERVER, "POST") == {"Authorization": f"Bearer {expected}"}
    assert issuer.grants == ["authorization_code", "refresh_token", "refresh_token", "refresh_token"]
    assert len(person.asked) == 1


async def test_a_program_whose_token_is_refused_takes_over_what_another_has_refreshed(storages):
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world)
    first, second = await two(world, person, storages, now)
    given = await second.headers(SERVER, "POST")
    now[0] += 50
    await first.headers(SERVER, "POST")
    assert await second.refused(refusal(), given, {}) is True
    assert await second.headers(SERVER, "POST") == {"Authorization": "Bearer a2"}
    assert issuer.grants == ["authorization_code", "refresh_token"]


async def test_what_was_taken_over_is_refreshed_when_it_is_old_too(storages):
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world)
    first, second = await two(world, person, storages, now)
    now[0] += 50
    await first.headers(SERVER, "POST")
    now[0] += 50
    assert await second.headers(SERVER, "POST") == {"Authorization": "Bearer a3"}
    assert await first.headers(SERVER, "POST") == {"Authorization": "Bearer a3"}
    assert [form.get("refresh_token") for form in world.forms()] == [None, "r1", "r2"]
    assert issuer.good == {"r3"}


async def test_programs_that_refresh_at_the_same_time_take_turns(tmp_path):
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world)
    first, second = await two(world, person, [FileStorage(tmp_path / "tokens.json") for _ in range(2)], now)
    respond, under_way = world.respond, 0

    async def slowly(request):
        nonlocal under_way
        under_way += request.url == TOKEN
        assert under_way <= 1
        await asyncio.sleep(0.05)
        under_way -= request.url == TOKEN
        return respond(request)

    class Slow:
        def open(self, url):
            return self

        async def __aenter__(self):
            return slowly

        async def __aexit__(self, *error):
            pass

    for auth in (first, second):
        object.__setattr__(auth._ports, "fetcher", Slow())
    now[0] += 50
    sent = await asyncio.gather(*(auth.headers(SERVER, "POST") for auth in (first, second) for _ in range(3)))
    assert {headers["Authorization"] for headers in sent} == {"Bearer a2"}
    assert issuer.grants == ["authorization_code", "refresh_token"]


async def test_a_refusal_costs_nobody_the_token_that_another_program_has_kept(tmp_path):
    path = tmp_path / "tokens.json"
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world)
    _, second = await two(world, person, [FileStorage(path) for _ in range(2)], now)
    entries = json.loads(path.read_text())
    (name,) = (key for key in entries if key.startswith("token "))
    theirs = {**json.loads(entries[name]), "client_id": "another", "refresh_token": "theirs"}
    path.write_text(json.dumps({**entries, name: json.dumps(theirs)}))
    issuer.good.clear()
    now[0] += 50
    assert await second.headers(SERVER, "POST") == {"Authorization": "Bearer a1"}
    assert json.loads(json.loads(path.read_text())[name]) == theirs


async def test_who_was_slower_takes_what_the_other_has_where_there_are_no_turns():
    world, person, now, storage = World(), Person(), [1000.0], MemoryStorage()
    Issuer(world)
    _, second = await two(world, person, [storage, storage], now)
    now[0] += 50
    key = f"token {ISSUER} {SERVER}"

    def faster(_request):
        kept = json.loads(storage._kept[key])
        newer = {**kept, "access_token": "a2", "refresh_token": "r2", "obtained_at": now[0], "expires_at": now[0] + 60}
        storage._kept[key] = json.dumps(newer).encode()
        return json_response({"error": "invalid_grant"}, 400)

    world.answers[TOKEN] = faster
    assert await second.headers(SERVER, "POST") == {"Authorization": "Bearer a2"}
    assert json.loads(storage._kept[key])["refresh_token"] == "r2"


@pytest.mark.parametrize(
    "theirs",
    [{"client_id": "another"}, {"granted": [], "asked": []}, {"obtained_at": 1.0}, {"kind": "DPoP"}],
    ids=["of another client", "for less", "older", "bound to a key"],
)
async def test_what_does_not_do_the_same_is_not_taken_over(theirs):
    world, person, now, storage = World(), Person(), [1000.0], MemoryStorage()
    issuer = Issuer(world)
    first = oauth(world, person, storage, now)
    await go(first, 401, 'Bearer scope="read"')
    now[0] += 50
    key = f"token {ISSUER} {SERVER}"
    other = {"access_token": "b1", "refresh_token": "s1", "obtained_at": now[0], "expires_at": now[0] + 60, **theirs}
    storage._kept[key] = json.dumps({**json.loads(storage._kept[key]), **other}).encode()
    assert await first.headers(SERVER, "POST") == {"Authorization": "Bearer a2"}
    assert issuer.grants == ["authorization_code", "refresh_token"]


# --- two ways to present a token


@pytest.mark.spec("ASD-03", "ASD-04")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_what_one_of_two_challenges_says_is_heard(order):
    world, person = World(), Person()
    where = "https://mcp.example/meta"
    world.documents = {where: {"resource": SERVER, "authorization_servers": [ISSUER]}, AS: metadata()}
    world.answers[TOKEN] = json_response({"access_token": "bound", "token_type": "DPoP"})
    both = [f'Bearer resource_metadata="{where}", scope="read"', 'DPoP algs="ES256"']
    auth = oauth(world, person)
    assert await go(auth, 401, ", ".join(both[index] for index in order)) is True
    assert world.fetched == [where, AS]
    assert person.asked[0]["scope"] == "read"
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "DPoP bound"


async def test_a_lack_of_scopes_does_not_cost_the_key():
    world, person = World(), Person()
    world.answers[TOKEN] = lambda request: json_response(
        {"access_token": "bound", "token_type": "DPoP" if "DPoP" in request.headers else "Bearer"}
    )
    auth = oauth(world, person)
    await go(auth, 401, 'DPoP algs="ES256"')
    assert await go(auth, 403, 'DPoP algs="ES256", Bearer error="insufficient_scope", scope="write"') is True
    assert person.asked[1]["scope"] == "write"
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "DPoP bound"


# --- who goes away


async def test_a_refresh_that_nobody_waits_for_any_more_is_not_lost():
    """Its token is good for once: shown again, it would end the login."""
    world, person, now = World(), Person(), [1000.0]
    issuer = Issuer(world)
    auth = oauth(world, person, now=now)
    await go(auth)
    reply, may_go_on = world.open, asyncio.Event()

    @asynccontextmanager
    async def open_slowly(server_url):
        async with reply(server_url) as fetch:

            async def fetch_slowly(request):
                answer = await fetch(request)
                if request.method == "POST":
                    await may_go_on.wait()
                return answer

            yield fetch_slowly

    world.open = open_slowly
    now[0] += 60
    leaving = asyncio.create_task(auth.headers(SERVER, "POST"))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.wait([leaving])
    may_go_on.set()
    headers = await auth.headers(SERVER, "POST")
    assert headers["Authorization"] == "Bearer a2"
    assert issuer.grants == ["authorization_code", "refresh_token"]
    assert len(person.asked) == 1


async def test_a_refresh_that_fails_when_nobody_waits_is_not_complained_of(caplog):
    world, now = World(), [1000.0]
    Issuer(world)
    auth = oauth(world, Person(), now=now)
    await go(auth)
    world.answers[TOKEN] = json_response({"error": "server_error"}, 500)
    now[0] += 60
    leaving = asyncio.create_task(auth.headers(SERVER, "POST"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    await asyncio.sleep(0.01)
    del leaving
    gc.collect()
    assert "never retrieved" not in caplog.text
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer a1"
