"""How a client comes by an identity, and that it stays with the issuer it is from."""

import base64

import pytest
from auth_world import AS, ISSUER, NOW, PRM, REDIRECT, CodeFlow, World, json_response, metadata, prm

from weft.client.auth import OAuth
from weft.client.auth.authorizer import ServerState as TokenRequest
from weft.client.auth.discovery import Challenge, Registration, application_type
from weft.errors import AuthorizationFailed, UsageError
from weft.net.fetch import FetchFailed, HttpAnswer

REGISTER, TOKEN = f"{ISSUER}/register", f"{ISSUER}/token"
DOCUMENT = "https://app.example/client.json"


def log_in(world: World, **given):
    situation = TokenRequest(Challenge("bearer", {"scope": "a"} if given.pop("scoped", False) else {}))
    return world.run(CodeFlow(Registration(**given), clock=lambda: NOW).login, situation)


# --- the order


@pytest.mark.spec("CREG-01", "CREG-08")
def test_an_identity_that_is_there_is_used_before_all_else():
    world = World()
    world.documents[AS] = metadata(client_id_metadata_document_supported=True)
    log_in(world, client_id="mine", client_secret="s3cret", issuer=ISSUER, document_url=DOCUMENT)
    assert world.visits[0]["client_id"] == "mine"
    assert world.posted == [TOKEN]
    pair = base64.b64encode(b"mine:s3cret").decode()
    assert world.requests[-1].headers["Authorization"] == f"Basic {pair}"


@pytest.mark.spec("CREG-01", "CREG-02", "CREG-03", "CREG-07", "DEP-01")
@pytest.mark.parametrize("supported", [True, False, None])
def test_a_document_is_used_where_it_is_supported(supported):
    world = World()
    world.documents[AS] = metadata(client_id_metadata_document_supported=supported)
    log_in(world, document_url=DOCUMENT)
    assert (world.visits[0]["client_id"] == DOCUMENT) is bool(supported)
    assert (REGISTER in world.posted) is not bool(supported)


@pytest.mark.spec("CREG-16")
def test_a_document_needs_no_registration_anywhere():
    world = World()
    for issuer in (ISSUER, "https://second.example"):
        world.issuer = issuer
        world.documents[PRM] = prm(authorization_servers=[issuer])
        url = f"{issuer}/.well-known/oauth-authorization-server"
        world.documents[url] = metadata(issuer, client_id_metadata_document_supported=True)
        log_in(world, document_url=DOCUMENT)
    assert [visit["client_id"] for visit in world.visits] == [DOCUMENT, DOCUMENT]
    assert not any(url.endswith("/register") for url in world.posted)


@pytest.mark.spec("CREG-01", "CREG-09")
def test_a_registration_is_used_again():
    world = World()
    log_in(world)
    log_in(world)
    assert world.posted == [REGISTER, TOKEN, TOKEN]
    assert world.known == [[], [REDIRECT]]


@pytest.mark.spec("ASEC-09")
def test_another_redirect_uri_is_registered_before_it_is_used():
    world = World()
    log_in(world)
    world.redirect_uri = "http://127.0.0.1:6666/callback"
    log_in(world)
    assert [document["redirect_uris"] for document in world.registered()] == [[REDIRECT], [world.redirect_uri]]


def test_a_registration_that_may_not_ask_for_a_scope_is_made_anew():
    world = World()
    world.answers[REGISTER] = json_response({"client_id": "c", "scope": "other"}, 201)
    log_in(world)
    log_in(world, scoped=True)
    assert [document.get("scope") for document in world.registered()] == [None, "a"]


def test_a_secret_that_has_expired_is_registered_anew():
    world = World()
    world.answers[REGISTER] = json_response(
        {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 1}, 201
    )
    log_in(world)
    log_in(world)
    assert len(world.registered()) == 2


def test_a_time_beyond_all_times_is_none():
    world = World()
    world.answers[REGISTER] = HttpAnswer(201, {}, b'{"client_id": "c", "client_secret_expires_at": 1%s}' % (b"0" * 400))
    log_in(world)
    log_in(world)
    assert len(world.registered()) == 1


def test_an_issuer_that_has_forgotten_the_client_is_registered_with_anew():
    world = World()
    world.answers[TOKEN] = json_response({"error": "invalid_client"}, 401)
    with pytest.raises(AuthorizationFailed, match="invalid_client"):
        log_in(world)
    del world.answers[TOKEN]
    log_in(world)
    log_in(world)
    assert len(world.registered()) == 2


@pytest.mark.spec("CREG-01")
def test_where_nothing_is_open_the_user_is_told_what_to_do():
    world = World()
    world.documents[AS] = metadata(registration_endpoint=None)
    with pytest.raises(AuthorizationFailed, match=r"Register one there, with the redirect URI http://127.*client_id="):
        log_in(world)
    assert world.visits == []


# --- dynamic registration


@pytest.mark.spec("CREG-10", "AUTH-36", "ASEC-09")
def test_what_a_registration_says():
    world = World()
    log_in(world, name="Flights", scoped=True)
    assert world.registered()[0] == {
        "client_name": "Flights",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
        "scope": "a",
    }


@pytest.mark.spec("CREG-10")
@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://127.0.0.1:1/callback", "native"),
        ("http://localhost/callback", "native"),
        ("https://localhost/callback", "native"),
        ("https://app.example/callback", "web"),
    ],
)
def test_what_kind_of_application_it_is(uri, expected):
    assert application_type(uri) == expected


@pytest.mark.parametrize(
    ("offered", "wished"),
    [
        (None, "none"),
        (["none", "client_secret_basic"], "none"),
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["tls_client_auth"], "none"),
    ],
)
def test_a_secret_is_taken_only_where_the_issuer_insists(offered, wished):
    world = World()
    world.documents[AS] = metadata(token_endpoint_auth_methods_supported=offered)
    log_in(world)
    assert world.registered()[0]["token_endpoint_auth_method"] == wished


@pytest.mark.parametrize(
    ("method", "in_header", "in_form"),
    [
        ("client_secret_basic", True, False),
        ("client_secret_post", False, True),
        ("none", False, False),
        (None, True, False),
    ],
)
def test_the_method_that_was_registered_is_the_one_used(method, in_header, in_form):
    world = World()
    answer = {
        "client_id": "a b",
        "client_secret": "s/+",
        **({} if method is None else {"token_endpoint_auth_method": method}),
    }
    world.answers[REGISTER] = json_response(answer, 201)
    log_in(world)
    form, headers = world.forms()[0], world.requests[-1].headers
    assert headers.get("Authorization") == (f"Basic {base64.b64encode(b'a+b:s%2F%2B').decode()}" if in_header else None)
    assert form.get("client_secret") == ("s/+" if in_form else None)


@pytest.mark.spec("CREG-11")
def test_a_refused_registration_says_why_and_what_to_do():
    world = World()
    world.answers[REGISTER] = json_response({"error": "invalid_redirect_uri", "error_description": "no loopback"}, 400)
    with pytest.raises(AuthorizationFailed, match=r"invalid_redirect_uri: no loopback.*give another") as failure:
        log_in(world)
    assert world.visits == []
    assert failure.value.tried[-1].startswith("registration at")


@pytest.mark.spec("CREG-11")
@pytest.mark.parametrize(
    "answer", [json_response({}, 201), json_response({"client_id": 7}, 201), 500, FetchFailed("x")]
)
def test_a_registration_that_is_none(answer):
    world = World()
    world.answers[REGISTER] = lambda _: answer
    with pytest.raises(AuthorizationFailed):
        log_in(world)
    assert world.visits == []


# --- whose identity it is


@pytest.mark.spec("CREG-12", "CREG-15", "CREG-13")
def test_an_identity_of_another_issuer_is_an_error():
    world = World()
    with pytest.raises(AuthorizationFailed, match=r"is registered with https://other\.example"):
        log_in(world, client_id="mine", issuer="https://other.example")
    assert world.fetched == [PRM]
    assert world.posted == []


@pytest.mark.spec("CREG-12", "CREG-15")
def test_an_identity_stays_with_the_issuer_of_its_first_use():
    world = World()
    log_in(world, client_id="mine", client_secret="s3cret")
    second = "https://second.example"
    world.issuer = second
    world.documents[PRM] = prm(authorization_servers=[second])
    world.documents[f"{second}/.well-known/oauth-authorization-server"] = metadata(second)
    with pytest.raises(AuthorizationFailed, match=r"was used with https://auth\.example"):
        log_in(world, client_id="mine", client_secret="s3cret")
    assert world.posted == [TOKEN]


@pytest.mark.spec("CREG-12")
def test_the_issuer_of_an_identity_is_chosen_among_several():
    world = World()
    world.documents[PRM] = prm(authorization_servers=["https://first.example", ISSUER])
    log_in(world, client_id="mine", issuer=ISSUER)
    assert world.fetched == [PRM, AS]


# --- what the user gives


@pytest.mark.spec("CREG-03")
@pytest.mark.parametrize(
    "url",
    [
        "http://app.example/c.json",
        "https://app.example",
        "https://app.example/",
        "https://a.example/../c",
        "https://a.example/c#x",
    ],
)
def test_a_document_that_cannot_be_an_id_is_refused_at_once(url):
    with pytest.raises(UsageError, match="cannot be a client id"):
        OAuth(client_metadata_url=url)


@pytest.mark.spec("CREG-04")
def test_the_document_to_publish():
    document = OAuth(client_name="Flights", client_metadata_url=DOCUMENT).client_metadata([REDIRECT])
    assert document["client_id"] == DOCUMENT
    assert document["client_name"] == "Flights"
    assert document["redirect_uris"] == [REDIRECT]


@pytest.mark.parametrize(("url", "redirects"), [(None, [REDIRECT]), (DOCUMENT, [])])
def test_a_document_needs_its_address_and_a_redirect(url, redirects):
    with pytest.raises(UsageError, match="at least one redirect URI"):
        OAuth(client_metadata_url=url).client_metadata(redirects)


def test_a_secret_needs_its_id():
    with pytest.raises(UsageError, match="without its client_id"):
        OAuth(client_secret="x")


def test_scopes_are_a_list():
    with pytest.raises(UsageError, match=r"scopes=\['a', 'b'\]"):
        OAuth(scopes="a b")
