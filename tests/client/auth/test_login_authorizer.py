"""The hook of the transports: tokens at hand, one login for all who wait, a few tries and no more."""

import asyncio
import gc
import json
import logging

import pytest
from auth_world import AS, ISSUER, PRM, SERVER, TOKEN, Person, World, go, json_response, metadata, oauth, prm, refusal

from weft.client.auth import BearerToken, ClientCredentials, MemoryStorage, as_auth
from weft.client.auth.authorizer import Authorizer
from weft.client.auth.tokens import server_key, token_key
from weft.client.connection.transport import Refused
from weft.errors import AuthorizationFailed, UsageError


@pytest.mark.spec("AUTH-27", "AUTH-28")
async def test_a_login_and_what_is_sent_from_then_on():
    world, person = World(), Person()
    auth = oauth(world, person)
    assert await auth.headers(SERVER, "POST") == {}
    assert await go(auth) is True
    for method in ("POST", "GET", "DELETE"):
        assert await auth.headers(SERVER, method) == {"Authorization": "Bearer access-1"}
    assert len(person.asked) == 1


@pytest.mark.spec("AUTH-32")
async def test_a_token_goes_only_to_its_server():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth)
    for other in ("https://evil.example/mcp", "https://mcp.example/other", "http://mcp.example/mcp"):
        assert await auth.headers(other, "POST") == {}


async def test_a_kept_token_whose_key_is_damaged_is_as_good_as_none():
    storage, person = MemoryStorage(), Person()
    kept = {
        "access_token": "t",
        "issuer": ISSUER,
        "resource": SERVER,
        "client_id": "c",
        "kind": "DPoP",
        "dpop_key": "x",
    }
    await storage.put(server_key(SERVER), json.dumps([ISSUER, SERVER]).encode())
    await storage.put(token_key(ISSUER, SERVER), json.dumps(kept).encode())
    auth = oauth(World(), person, storage)
    assert await auth.headers(SERVER, "POST") == {}
    assert await go(auth) is True
    assert len(person.asked) == 1


async def test_one_login_for_all_who_wait():
    world, person = World(), Person()
    person.may_go_on.clear()
    auth = oauth(world, person)
    waiting = [asyncio.create_task(go(auth)) for _ in range(20)]
    await asyncio.sleep(0.05)
    person.may_go_on.set()
    assert await asyncio.gather(*waiting) == [True] * 20
    assert len(person.asked) == 1
    assert len(world.forms()) == 1


async def test_who_was_refused_with_an_older_token_only_tries_again():
    world, person = World(), Person()
    auth = oauth(world, person)
    early = await auth.headers(SERVER, "POST")
    await go(auth)
    assert await auth.refused(refusal(), early, {}) is True
    assert len(person.asked) == 1


async def test_a_failed_login_is_the_same_clear_error_for_all_and_the_next_request_may_try_again():
    world, person = World(), Person()
    person.denies = True
    person.may_go_on.clear()
    auth = oauth(world, person)
    early = await auth.headers(SERVER, "POST")
    waiting = [asyncio.create_task(go(auth)) for _ in range(5)]
    await asyncio.sleep(0.05)
    person.may_go_on.set()
    failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(failure) for failure in failures} == {AuthorizationFailed}
    assert len({id(failure) for failure in failures}) == 5
    assert all("access_denied" in str(failure) and "log in again" in str(failure) for failure in failures)
    with pytest.raises(AuthorizationFailed, match="access_denied"):  # it was sent before the login failed
        await auth.refused(refusal(), early, {})
    assert len(person.asked) == 1
    person.denies = False
    assert await go(auth) is True


async def test_a_login_ends_with_the_last_who_waits():
    world, person = World(), Person()
    person.may_go_on.clear()
    auth = oauth(world, person)
    before = asyncio.all_tasks()
    first, second = (asyncio.create_task(go(auth)) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first])
    assert len(asyncio.all_tasks() - before) == 2  # the second, and the login
    second.cancel()
    await asyncio.wait([second])
    assert asyncio.all_tasks() - before == set()
    person.may_go_on.set()
    assert await go(auth) is True


async def test_a_token_is_replaced_before_it_expires_once_for_all():
    world, person, now = World(), Person(), [1000.0]
    answers = iter(range(1, 100))
    world.answers[TOKEN] = lambda _: json_response(
        {"access_token": f"t{next(answers)}", "token_type": "Bearer", "expires_in": 100, "refresh_token": "r"}
    )
    auth = oauth(world, person, now=now)
    await go(auth)
    now[0] += 69
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer t1"
    now[0] += 2
    assert (await auth.headers(SERVER, "DELETE"))["Authorization"] == "Bearer t1"  # nobody waits to say goodbye
    sent = await asyncio.gather(*(auth.headers(SERVER, "POST") for _ in range(20)))
    assert {headers["Authorization"] for headers in sent} == {"Bearer t2"}
    assert [form["grant_type"] for form in world.forms()] == ["authorization_code", "refresh_token"]
    assert len(person.asked) == 1


async def test_a_replacement_that_fails_leaves_the_decision_to_the_server():
    world, person, now = World(), Person(), [1000.0]
    world.answers[TOKEN] = json_response(
        {"access_token": "t", "token_type": "Bearer", "expires_in": 100, "refresh_token": "r"}
    )
    auth = oauth(world, person, now=now)
    await go(auth)
    world.answers[TOKEN] = 503
    now[0] += 80
    for _ in range(3):
        assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer t"
    assert world.posted.count(TOKEN) == 2  # at the login, and once since: it is not tried again at once
    now[0] += 11
    world.answers[TOKEN] = json_response({"access_token": "new", "token_type": "Bearer"})
    world.documents[AS] = metadata(token_endpoint=f"{ISSUER}/moved")
    world.answers[f"{ISSUER}/moved"] = json_response({"access_token": "moved", "token_type": "Bearer"})
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer moved"  # its metadata is looked at again


async def test_a_token_that_lives_for_seconds_is_not_replaced_with_every_request():
    world, person, now = World(), Person(), [1000.0]
    answers = iter(range(1, 100))
    world.answers[TOKEN] = lambda _: json_response(
        {"access_token": f"t{next(answers)}", "token_type": "Bearer", "expires_in": 2, "refresh_token": "r"}
    )
    auth = oauth(world, person, now=now)
    await go(auth)
    for step in range(10):
        now[0] = 1000 + step / 10
        assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer t1"
    world.requests.clear()
    for step in range(20):
        now[0] = 1001 + step  # each time it is about to end, or has ended
        await auth.headers(SERVER, "POST")
    assert 9 <= world.posted.count(TOKEN) <= 19
    assert world.fetched == [], "who issues them was found out at the login"


async def test_what_was_found_out_about_an_issuer_is_looked_at_again_after_a_while():
    world, person, now = World(), Person(), [1000.0]
    world.answers[TOKEN] = json_response(
        {"access_token": "t", "token_type": "Bearer", "expires_in": 590, "refresh_token": "r"}
    )
    auth = oauth(world, person, now=now)
    await go(auth)
    for seconds, fetches in [(580, 1), (1170, 2), (1760, 2), (2350, 3)]:
        now[0] = 1000 + seconds
        await auth.headers(SERVER, "POST")
        assert world.fetched.count(AS) == fetches


async def test_a_kept_token_has_its_issuer_looked_up_once():
    world, person, now, storage = World(), Person(), [1000.0], MemoryStorage()
    world.answers[TOKEN] = json_response(
        {"access_token": "t", "token_type": "Bearer", "expires_in": 2, "refresh_token": "r"}
    )
    await go(oauth(world, person, storage, now))
    world.requests.clear()
    later = oauth(world, person, storage, now)
    for step in range(5):
        now[0] = 1010 + 10 * step
        await later.headers(SERVER, "POST")
    assert world.posted == [TOKEN] * 5
    assert world.fetched == [AS]


async def test_who_is_refused_while_a_replacement_fails_logs_in():
    world, person, now, answering = World(), Person(), [1000.0], asyncio.Event()
    world.answers[TOKEN] = json_response(
        {"access_token": "t", "token_type": "Bearer", "expires_in": 100, "refresh_token": "r"}
    )
    auth = oauth(world, person, now=now)
    await go(auth)
    earlier = [await auth.headers(SERVER, "POST") for _ in range(2)]
    now[0] += 80
    world.answers[TOKEN] = lambda request: (
        json_response({"error": "invalid_grant"}, 400)
        if b"refresh_token" in request.body
        else json_response({"access_token": "new", "token_type": "Bearer"})
    )
    storage, put = auth._ports.storage, auth._ports.storage.put

    async def slow_put(key, value):
        await answering.wait()
        await put(key, value)

    storage.put = slow_put
    renewing = asyncio.create_task(auth.headers(SERVER, "POST"))
    await asyncio.sleep(0.01)
    refused = asyncio.create_task(auth.refused(refusal(), earlier[0], {}))  # while it is replaced …
    await asyncio.sleep(0.01)
    answering.set()
    assert await refused is True
    assert (await renewing)["Authorization"] in ("Bearer t", "Bearer new")
    assert await auth.refused(refusal(), earlier[1], {}) is True  # … and afterwards
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer new"
    assert len(person.asked) == 2


async def test_a_kept_token_is_used_at_once_and_refreshed_when_it_is_refused():
    storage = MemoryStorage()
    world, person = World(), Person()
    world.answers[TOKEN] = json_response({"access_token": "kept", "token_type": "Bearer", "refresh_token": "r"})
    await go(oauth(world, person, storage))
    later = oauth(world, person, storage, now=[4_000_000_000.0])
    assert await later.headers(SERVER, "POST") == {"Authorization": "Bearer kept"}
    world.answers[TOKEN] = json_response({"access_token": "fresh", "token_type": "Bearer"})
    assert await go(later) is True
    assert await later.headers(SERVER, "POST") == {"Authorization": "Bearer fresh"}
    assert len(person.asked) == 1


# --- asking for more


@pytest.mark.spec("AUTH-43", "AUTH-12")
async def test_more_is_asked_for_when_the_server_says_what():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth, challenge='Bearer scope="read"')
    assert await go(auth, 403, 'Bearer error="insufficient_scope", scope="write"') is True
    assert [asked["scope"] for asked in person.asked] == ["read", "write read"]


@pytest.mark.spec("AUTH-43")
@pytest.mark.parametrize("challenge", ["Bearer", 'Bearer error="invalid_token"', "Basic", ""])
async def test_a_403_that_is_not_about_scopes_is_final(challenge):
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth)
    assert await go(auth, 403, challenge) is False
    assert len(person.asked) == 1


@pytest.mark.spec("AUTH-44")
async def test_more_is_asked_for_a_few_times_only_for_one_operation():
    world, person, now = World(), Person(), [1000.0]
    world.answers[TOKEN] = json_response({"access_token": "t", "token_type": "Bearer", "scope": "little"})
    auth = oauth(world, person, now=now)
    await go(auth)
    for _ in range(2):
        await go(auth, 403, 'Bearer error="insufficient_scope", scope="much"', **{"Mcp-Name": "x"})
    with pytest.raises(AuthorizationFailed, match="wants the scopes much"):
        await go(auth, 403, 'Bearer error="insufficient_scope", scope="much"', **{"Mcp-Name": "x"})
    assert len(person.asked) == 3
    assert await go(auth, 403, 'Bearer error="insufficient_scope", scope="much"', **{"Mcp-Name": "y"}) is True
    now[0] += 601
    assert await go(auth, 403, 'Bearer error="insufficient_scope", scope="much"', **{"Mcp-Name": "x"}) is True


@pytest.mark.spec("AUTH-44")
async def test_what_was_granted_already_is_not_asked_for_again():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth, challenge='Bearer scope="write"')
    with pytest.raises(AuthorizationFailed, match="still does after they were granted") as failure:
        await go(auth, 403, 'Bearer error="insufficient_scope", scope="write"')
    assert len(person.asked) == 1
    assert failure.value.tried == [
        f"{PRM}: found",
        f"{AS}: found",
        f"registration at {ISSUER}/register: registered",
        f"login at {ISSUER}/authorize",
        f"authorization_code at {TOKEN}: granted",
    ]


async def test_what_the_authorization_server_does_not_grant_is_said_to_be_its_doing():
    world = World()
    world.answers[TOKEN] = json_response({"access_token": "SECRET", "token_type": "Bearer", "scope": "notes:read"})
    auth = ClientCredentials("robot", client_secret="SECRET", fetcher=world)
    await go(auth)
    challenge = 'Bearer error="insufficient_scope", scope="notes:read notes:write"'
    for _ in range(2):
        assert await go(auth, 403, challenge) is True
    with pytest.raises(AuthorizationFailed) as failure:
        await go(auth, 403, challenge)
    assert failure.value.message == (
        f"{SERVER} wants the scopes notes:read notes:write for this, but the authorization server granted only "
        f"notes:read; allow the other scopes for this client or this user at {ISSUER}."
    )
    asked = [entry for entry in failure.value.tried if entry.startswith("client_credentials")]
    more = f"client_credentials at {TOKEN}: granted only notes:read"
    assert asked == [f"client_credentials at {TOKEN}: granted", more, more]
    assert "SECRET" not in str(failure.value)


async def test_a_server_that_never_says_which_scopes_it_wants():
    world = World()
    auth = ClientCredentials("robot", client_secret="s", fetcher=world)
    await go(auth)
    for _ in range(2):
        assert await go(auth, 403, 'Bearer error="insufficient_scope"') is True
    with pytest.raises(AuthorizationFailed, match="wants other scopes for this, does not say which, and still does"):
        await go(auth, 403, 'Bearer error="insufficient_scope"')


async def test_a_kept_token_is_named_among_what_was_tried():
    world, person, storage = World(), Person(), MemoryStorage()
    await go(oauth(world, person, storage), challenge='Bearer scope="write"')
    later = oauth(world, person, storage)
    with pytest.raises(AuthorizationFailed, match="still does after they were granted") as failure:
        await go(later, 403, 'Bearer error="insufficient_scope", scope="write"')
    assert failure.value.tried == ["the token that was kept, for write"]


@pytest.mark.spec("AUTH-11")
async def test_a_401_that_demands_more_scopes_is_a_step_up():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth, challenge='Bearer scope="a"')
    assert await go(auth, 401, 'Bearer scope="b"') is True
    assert person.asked[1]["scope"] == "b a"


async def test_one_step_up_for_all_who_need_it():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth, challenge='Bearer scope="a"')
    stamps = [await auth.headers(SERVER, "POST") for _ in range(10)]
    denied = refusal(403, 'Bearer error="insufficient_scope", scope="b"')
    assert all([await auth.refused(denied, stamp, {}) for stamp in stamps])
    assert len(person.asked) == 2


@pytest.mark.spec("AUTH-44", "AUTH-12")
async def test_many_who_need_different_scopes_at_once_all_get_them():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth)
    names = list("abcdef")
    challenged = [(403, f'Bearer error="insufficient_scope", scope="{name}"') for name in names]
    assert all(await asyncio.gather(*(go(auth, *how, **{"mcp-name": how[1]}) for how in challenged)))
    assert set(names) <= set((await auth.headers(SERVER, "POST")).token.granted)
    assert len(person.asked) == 1 + len(names)


async def test_nobody_logs_in_to_say_goodbye():
    world, person = World(), Person()
    auth = oauth(world, person)
    given = await auth.headers(SERVER, "DELETE")
    assert await auth.refused(refusal(), given, {}) is False
    assert person.asked == []


# --- DPoP at the resource


@pytest.mark.spec("XAUTH-09")
async def test_every_request_has_a_proof_of_its_own_and_the_nonce_it_was_given():
    import jwt

    world, person = World(), Person()
    world.documents[AS] = metadata(dpop_signing_alg_values_supported=["ES256"])
    world.answers[TOKEN] = json_response({"access_token": "bound", "token_type": "DPoP"})
    auth = oauth(world, person)
    await go(auth, challenge='DPoP algs="ES256"')

    def claims(given):
        assert given["Authorization"] == "DPoP bound"
        return jwt.decode(given["DPoP"], options={"verify_signature": False})

    first, second = [await auth.headers(SERVER, "POST") for _ in range(2)]
    assert claims(first)["jti"] != claims(second)["jti"]
    assert (claims(first)["htm"], claims(first)["htu"]) == ("POST", SERVER)
    assert "nonce" not in claims(first)
    wanted = refusal(401, 'DPoP error="use_dpop_nonce"', **{"DPoP-Nonce": "n1"})
    assert await auth.refused(wanted, first, {}) is True
    assert claims(await auth.headers(SERVER, "GET"))["nonce"] == "n1"
    assert await auth.refused(wanted, second, {}) is False  # the same again: it would not help
    assert len(person.asked) == 1


# --- nothing leaks


@pytest.mark.spec("XAUTH-08", "AUTH-35")
async def test_no_secret_is_in_a_repr_a_log_or_an_error(caplog):
    caplog.set_level(logging.DEBUG)
    world, person, now = World(), Person(), [1000.0]
    world.answers[TOKEN] = json_response(
        {"access_token": "SECRET1", "token_type": "Bearer", "refresh_token": "SECRET2", "expires_in": 50}
    )
    auth = oauth(world, person, now=now)
    await go(auth)
    world.answers[TOKEN] = json_response({"error": "invalid_grant"}, 400)
    now[0] += 60
    given = await auth.headers(SERVER, "POST")
    with pytest.raises(AuthorizationFailed) as failure:
        await auth.refused(refusal(), given, {})
    own = [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("weft.client.auth")]
    text = " ".join([caplog.text, str(failure.value), repr(failure.value.tried), repr(given), *map(repr, own)])
    assert "SECRET" not in text


# --- the simple ways


@pytest.mark.spec("AUTH-27")
async def test_a_token_as_text():
    auth = as_auth("s3cret")
    assert await auth.headers(SERVER, "POST") == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(auth)


@pytest.mark.parametrize(
    ("challenge", "advice"),
    [
        ('Bearer error="insufficient_scope"', "Give a token with more scopes."),
        ('Bearer error="insufficient_scope", scope="a b"', "Give a token with the scopes: a b."),
    ],
)
async def test_a_token_that_was_given_and_lacks_scopes(challenge, advice):
    refused = Refused(SERVER, 403, {"WWW-Authenticate": challenge}, b"")
    with pytest.raises(AuthorizationFailed) as failure:
        await as_auth("s3cret").refused(refused, {"Authorization": "Bearer s3cret"}, {})
    told = f"{SERVER} refused the token that was given (HTTP 403): insufficient_scope. {advice}"
    assert str(failure.value) == told


@pytest.mark.parametrize(
    ("status", "challenge", "body", "said"),
    [
        (401, 'Bearer error="invalid_token", error_description="It expired."', b"", "(HTTP 401): It expired."),
        (401, 'Bearer error="invalid_token"', b'{"message": "no"}', "(HTTP 401): invalid_token."),
        (401, "Bearer", b'{"error": {"code": 1, "message": "Who?\\n"}}', "(HTTP 401): Who?."),
        (401, "", b'{"error": "cut', "(HTTP 401): it gave no reason."),
        (403, 'Bearer error="invalid_request"', b"", "(HTTP 403): invalid_request."),
        (401, 'Bearer error="x", error_description="s3cret is unknown"', b"", "(HTTP 401): … is unknown."),
    ],
)
async def test_a_token_that_was_given_and_is_refused(status, challenge, body, said):
    refused = Refused(SERVER, status, {"WWW-Authenticate": challenge}, body)
    with pytest.raises(AuthorizationFailed) as failure:
        await as_auth("s3cret").refused(refused, {"Authorization": "Bearer s3cret"}, {})
    assert f"{SERVER} refused the token that was given {said} Check" in str(failure.value)
    assert "s3cret" not in str(failure.value)


async def test_a_refusal_that_is_not_about_the_token():
    assert await as_auth("s3cret").refused(Refused(SERVER, 403, {}, b"This host is not served."), {}, {}) is False


async def test_a_token_from_a_function():
    async def later() -> str:
        return "two"

    assert await BearerToken(lambda: "one").headers(SERVER, "POST") == {"Authorization": "Bearer one"}
    assert await BearerToken(later).headers(SERVER, "POST") == {"Authorization": "Bearer two"}


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "é", None])
async def test_a_token_from_a_function_that_cannot_be_sent(token):
    async def later():
        return token

    for function in (later, lambda: token):
        with pytest.raises(UsageError, match="cannot be sent"):
            await BearerToken(function).headers(SERVER, "POST")


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "é"])
def test_a_token_that_cannot_be_sent(token):
    with pytest.raises(UsageError, match="cannot be sent") as failure:
        as_auth(token)
    assert not token or token not in str(failure.value)


def test_something_that_is_no_authorization():
    assert as_auth(None) is None
    with pytest.raises(UsageError, match="'int'"):
        as_auth(7)


@pytest.mark.spec("XAUTH-02")
async def test_a_machine_logs_in_without_a_person():
    world = World()
    auth = ClientCredentials("robot", client_secret="s", fetcher=world)
    assert await go(auth) is True
    assert await auth.headers(SERVER, "POST") == {"Authorization": "Bearer access-1"}
    assert isinstance(auth, Authorizer)


@pytest.mark.spec("CREG-13", "CREG-14")
async def test_the_server_moves_to_another_issuer():
    world, person = World(), Person()
    auth = oauth(world, person)
    await go(auth)
    second = "https://second.example"
    world.documents[PRM] = prm(authorization_servers=[second])
    world.documents[f"{second}/.well-known/oauth-authorization-server"] = metadata(second)
    person.issuer = second
    assert await go(auth) is True
    assert world.posted[-2:] == [f"{second}/register", f"{second}/token"]


async def test_a_program_does_not_fetch_metadata_with_every_token():
    world, now = World(), [1000.0]
    answers = iter(range(1, 100))
    world.answers[TOKEN] = lambda _: json_response(
        {"access_token": f"t{next(answers)}", "token_type": "Bearer", "expires_in": 2}
    )
    auth = ClientCredentials("robot", client_secret="s", fetcher=world)
    auth._clock = lambda: now[0]
    await go(auth)
    assert (await auth.headers(SERVER, "POST"))["Authorization"] == "Bearer t1"
    world.requests.clear()
    for step in range(5):
        now[0] = 1010 + 10 * step
        assert (await auth.headers(SERVER, "POST"))["Authorization"] == f"Bearer t{step + 2}"
    assert world.posted == [TOKEN] * 5
    assert world.fetched == []
    world.answers[TOKEN] = 503
    now[0] += 10
    await auth.headers(SERVER, "POST")
    now[0] += 20
    await auth.headers(SERVER, "POST")
    assert world.fetched == [PRM, AS], "what fails is looked at again"
