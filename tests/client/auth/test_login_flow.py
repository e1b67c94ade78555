"""A person logs in: what is asked, what is believed of the answer, and what is kept."""

import base64
import hashlib
import json

import pytest
from auth_world import AS, ISSUER, NOW, PRM, REDIRECT, SERVER, CodeFlow, World, json_response, metadata, prm

from weft.client.auth import OAuth
from weft.client.auth.authorizer import ServerState as TokenRequest
from weft.client.auth.discovery import Challenge, Registration
from weft.client.auth.logins import read_redirect
from weft.client.auth.tokens import Issuer, Token, recall_token, token_key
from weft.errors import AuthorizationFailed

TOKEN = f"{ISSUER}/token"


def flow(**options) -> OAuth:
    registration = {name: options.pop(name) for name in list(options) if name in Registration.__dataclass_fields__}
    return CodeFlow(Registration(**registration), clock=lambda: NOW, **options)


def log_in(world: World, situation: TokenRequest | None = None, **options) -> Token:
    return world.run(flow(**options).login, situation or TokenRequest(Challenge("bearer")))


def old_token(**changes) -> Token:
    given = {"refresh_token": "refresh-0", "granted": ["a"], "asked": ["a"], "obtained_at": NOW - 900, **changes}
    return Token("old", ISSUER, SERVER, given.pop("client_id", "client-at-auth.example"), **given)


# --- what is asked


@pytest.mark.spec("AUTH-08", "ASEC-06", "AUTH-16")
def test_a_login_from_beginning_to_end():
    world = World()
    token = log_in(world)
    asked, form = world.visits[0], world.forms()[0]
    assert asked["response_type"] == "code"
    assert asked["client_id"] == form["client_id"] == "client-at-auth.example"
    assert asked["redirect_uri"] == form["redirect_uri"] == REDIRECT
    assert asked["code_challenge_method"] == "S256"
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert len(form["code_verifier"]) >= 43
    assert form["grant_type"] == "authorization_code"
    assert form["code"] == "the-code"
    assert (token.access_token, token.issuer, token.resource) == ("access-1", ISSUER, SERVER)
    assert token.expires_at == NOW + 3600


@pytest.mark.spec("AUTH-16")
def test_the_issuer_is_settled_before_the_user_is_sent_away():
    """What the metadata says while the user logs in changes nothing: the code goes where it was to go."""
    world = World()

    def turned(asked):
        world.documents[AS] = metadata(issuer="https://evil.example", token_endpoint="https://evil.example/token")
        world.documents[PRM] = prm(authorization_servers=["https://evil.example"])
        return world.log_in(asked)

    world.came_back = turned
    token = log_in(world)
    assert world.posted[-1] == f"{ISSUER}/token"
    assert world.forms()[0]["code"] == "the-code"
    assert not [url for url in world.posted if "evil" in url]
    assert token.issuer == ISSUER


@pytest.mark.spec("AUTH-16")
@pytest.mark.parametrize("changed", [{"iss": "https://evil.example"}, {"iss": f"{ISSUER}/"}, {"state": "another"}])
def test_an_answer_of_another_login_or_issuer_gets_no_code(changed):
    world = World()
    world.came_back = lambda asked: {**world.log_in(asked), **changed}
    with pytest.raises(AuthorizationFailed):
        log_in(world)
    assert world.forms() == []


def test_no_two_logins_share_a_secret():
    worlds = [World(), World()]
    for world in worlds:
        log_in(world)
    for name in ("state", "code_challenge"):
        assert worlds[0].visits[0][name] != worlds[1].visits[0][name]


@pytest.mark.spec("AUTH-24", "AUTH-25")
@pytest.mark.parametrize("resource", [SERVER, "https://mcp.example", "https://MCP.example/mcp/"])
def test_the_resource_is_sent_twice_exactly_as_published(resource):
    world = World()
    world.documents[PRM] = prm(resource=resource)
    log_in(world)
    assert world.visits[0]["resource"] == world.forms()[0]["resource"] == resource


@pytest.mark.spec("ASEC-07")
@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_without_pkce_nobody_is_sent_anywhere(methods):
    world = World()
    world.documents[AS] = metadata(code_challenge_methods_supported=methods)
    with pytest.raises(AuthorizationFailed, match="PKCE"):
        log_in(world)
    assert world.visits == []
    assert world.posted == []


@pytest.mark.spec("SBP-05", "ASEC-05")
@pytest.mark.security("R11")
@pytest.mark.parametrize(
    "endpoint",
    ["javascript:alert(1)", "http://auth.example/authorize", "file:///etc/passwd", "https://u:p@auth.example/", "//x"],
)
def test_a_page_that_is_no_web_page_is_not_opened(endpoint):
    world = World()
    world.documents[AS] = metadata(authorization_endpoint=endpoint)
    with pytest.raises(AuthorizationFailed, match="not opened"):
        log_in(world)
    assert world.visits == []


@pytest.mark.spec("ASEC-05")
def test_the_browser_comes_back_to_this_machine_or_over_https():
    world = World()
    world.redirect_uri = "http://elsewhere.example/callback"
    with pytest.raises(AuthorizationFailed, match="redirect URI cannot be used"):
        log_in(world)
    assert world.visits == []


def test_parameters_of_the_endpoint_stay():
    world = World()
    world.documents[AS] = metadata(authorization_endpoint=f"{ISSUER}/authorize?tenant=7")
    log_in(world)
    assert world.visits[0]["tenant"] == "7"


# --- scopes


@pytest.mark.spec("AUTH-13", "AUTH-10", "AUTH-11", "AUTH-14")
@pytest.mark.parametrize(
    ("challenged", "listed", "wished", "expected"),
    [
        ("mcp:basic", ["mcp:read"], [], "mcp:basic"),
        (None, ["mcp:read", "mcp:write"], [], "mcp:read mcp:write"),
        (None, None, [], None),
        (None, [], [], None),
        ("", None, [], None),
        (None, ["mcp:read", "mcp:write"], ["mcp:read"], "mcp:read"),
        ("mcp:basic", ["mcp:read"], ["mcp:admin"], "mcp:basic mcp:admin"),
    ],
)
def test_which_scopes_are_asked_for(challenged, listed, wished, expected):
    world = World()
    world.documents[PRM] = prm(**({} if listed is None else {"scopes_supported": listed}))
    params = {} if challenged is None else {"scope": challenged}
    log_in(world, TokenRequest(Challenge("bearer", params)), scopes=wished)
    assert world.visits[0].get("scope") == expected


@pytest.mark.spec("AUTH-12")
def test_asking_for_more_keeps_what_was_there():
    world = World()
    challenge = Challenge("bearer", {"scope": "mcp:write", "error": "insufficient_scope"})
    token = old_token(granted=["mcp:basic"], asked=["mcp:basic", "mcp:extra"])
    renewed = log_in(world, TokenRequest(challenge, token, is_step_up=True))
    assert world.visits[0]["scope"].split() == ["mcp:write", "mcp:basic", "mcp:extra"]
    assert world.forms()[0]["grant_type"] == "authorization_code"
    assert set(renewed.granted) == {"mcp:write", "mcp:basic", "mcp:extra"}


@pytest.mark.spec("AUTH-37")
@pytest.mark.parametrize(
    ("listed", "scope", "offline", "expected"),
    [
        (["a", "offline_access"], "a", True, "a offline_access"),
        (["a"], "a", True, "a"),
        (None, "a", True, "a"),
        (["offline_access"], "a", False, "a"),
        (["offline_access"], None, True, None),
    ],
)
def test_offline_access_is_asked_for_only_where_it_is_listed(listed, scope, offline, expected):
    world = World()
    world.documents[AS] = metadata(scopes_supported=listed)
    params = {} if scope is None else {"scope": scope}
    log_in(world, TokenRequest(Challenge("bearer", params)), offline=offline)
    assert world.visits[0].get("scope") == expected


# --- what is believed


@pytest.mark.spec("AUTH-19", "AUTH-20", "AUTH-21", "AUTH-22")
@pytest.mark.parametrize(
    ("advertised", "iss", "is_fine"),
    [
        (True, ISSUER, True),
        (True, None, False),
        (None, ISSUER, True),
        (None, None, True),
        (False, None, True),
        (None, "https://evil.example", False),
        (True, "https://evil.example", False),
        (True, f"{ISSUER}/", False),
        (True, ISSUER.upper(), False),
        (True, f"{ISSUER}:443", False),
        (None, "", False),
    ],
)
def test_whose_answer_it_is_is_settled_before_the_code_is_redeemed(advertised, iss, is_fine):
    world = World()
    world.documents[AS] = metadata(authorization_response_iss_parameter_supported=advertised)
    more = {} if iss is None else {"iss": iss}
    world.came_back = lambda asked: {"code": "the-code", "state": asked["state"], **more}
    if is_fine:
        assert log_in(world).access_token == "access-1"
    else:
        with pytest.raises(AuthorizationFailed, match=r"does not name .* as its issuer"):
            log_in(world)
        assert world.forms() == []


@pytest.mark.spec("AUTH-23")
def test_an_error_from_somebody_else_is_not_shown():
    world = World()
    world.came_back = lambda asked: {
        "error": "go_to_evil", "error_description": "call 555", "state": asked["state"], "iss": "https://evil.example"
    }  # fmt: skip
    with pytest.raises(AuthorizationFailed) as failure:
        log_in(world)
    assert "evil" not in str(failure.value)
    assert "555" not in str(failure.value)


@pytest.mark.spec("ASEC-11")
@pytest.mark.parametrize("state", [None, "", "another"])
def test_an_answer_to_another_login_is_discarded(state):
    world = World()
    world.came_back = lambda _: {"code": "c", "iss": ISSUER, **({} if state is None else {"state": state})}
    with pytest.raises(AuthorizationFailed, match="another login"):
        log_in(world)
    assert world.forms() == []


def test_a_refusal_is_shown_without_what_a_terminal_would_act_on():
    world = World()
    world.came_back = lambda asked: {
        "error": "access_denied", "error_description": "no\x1b[31m\n!", "state": asked["state"], "iss": ISSUER
    }  # fmt: skip
    with pytest.raises(AuthorizationFailed, match="access_denied") as failure:
        log_in(world)
    assert str(failure.value).isprintable()


def test_an_answer_without_a_code_is_no_login():
    world = World()
    world.came_back = lambda asked: {"state": asked["state"], "iss": ISSUER}
    with pytest.raises(AuthorizationFailed, match="without a code"):
        log_in(world)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"access_token": 7, "token_type": "Bearer"},
        {"access_token": "", "token_type": "Bearer"},
        {"access_token": "a\r\nX: y", "token_type": "Bearer"},
        {"access_token": "a b", "token_type": "Bearer"},
        {"access_token": "é", "token_type": "Bearer"},
        {"access_token": "a" * 40_000, "token_type": "Bearer"},
        {"access_token": "a"},
        {"access_token": "a", "token_type": "MAC"},
        {"access_token": "a", "token_type": "DPoP"},
    ],
)
def test_a_token_that_cannot_be_used_is_refused(document):
    world = World()
    world.answers[TOKEN] = json_response(document)
    with pytest.raises(AuthorizationFailed, match="answered with"):
        log_in(world)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (1.5, 1.5),
        ("soon", None),
        ("", None),
        ("9" * 5000, None),
        (10**400, None),
        (0, None),
        (-1, None),
        (True, None),
        (None, None),
    ],
)
def test_how_long_a_token_is_good(said, seconds):
    world = World()
    world.answers[TOKEN] = json_response({"access_token": "a", "token_type": "Bearer", "expires_in": said})
    assert log_in(world).expires_at == (None if seconds is None else NOW + seconds)


def test_what_the_token_endpoint_says_is_told_with_a_remedy():
    world = World()
    world.answers[TOKEN] = json_response({"error": "invalid_client", "error_description": "It is unknown."}, 401)
    with pytest.raises(AuthorizationFailed, match=r"invalid_client: It is unknown[^.]*check the client id") as failure:
        log_in(world)
    assert "the-code" not in str(failure.value)
    assert world.forms()[0]["code_verifier"] not in str(failure.value)
    assert ".." not in str(failure.value)


# --- what is kept, and how long


@pytest.mark.spec("ASD-08")
def test_a_token_is_found_again_by_the_server_it_is_for():
    world = World()
    token = log_in(world)
    assert world.run(recall_token) == token
    assert world.run(recall_token, server="https://mcp.example/other") is None


@pytest.mark.spec("AUTH-35")
def test_nothing_secret_is_in_a_repr():
    world = World()
    world.answers[TOKEN] = json_response({"access_token": "s1", "token_type": "Bearer", "refresh_token": "s2"})
    shown = repr(log_in(world)) + repr(world.requests) + repr(flow(client_id="c", client_secret="s3"))
    assert not any(secret in shown for secret in ("s1", "s2", "s3", "the-code"))


def with_registration(world: World) -> World:
    log_in(world)
    world.requests.clear()
    world.visits.clear()
    return world


def test_a_refused_token_is_refreshed_and_the_refresh_token_rotates():
    world = with_registration(World())
    world.answers[TOKEN] = json_response(
        {"access_token": "new", "token_type": "Bearer", "refresh_token": "refresh-1", "expires_in": 60}
    )
    token = log_in(world, TokenRequest(Challenge("bearer"), old_token()))
    assert world.visits == []
    form = world.forms()[0]
    assert (form["grant_type"], form["refresh_token"], form["resource"]) == ("refresh_token", "refresh-0", SERVER)
    assert (token.access_token, token.refresh_token, token.granted) == ("new", "refresh-1", ["a"])
    assert world.run(recall_token) == token


@pytest.mark.spec("ASEC-11", "AUTH-21")
@pytest.mark.parametrize(
    "query",
    [
        "code=c&state=s&state=s&iss=ISS",
        "code=c&state=s&state=other&iss=ISS",
        "code=c&state=other&state=s&iss=ISS",
        "code=c&code=c&state=s&iss=ISS",
        "code=c&code=other&state=s&iss=ISS",
        "code=c&state=s&iss=ISS&iss=ISS",
        "code=c&state=s&iss=ISS&iss=https://evil.example",
        "code=c&state=s&iss=https://evil.example&iss=ISS",
        "code=c&state=s&iss=ISS&error=a&error=b",
    ],
)
@pytest.mark.parametrize("must_say", [True, False])
def test_an_answer_that_says_something_twice_is_discarded(query, must_say):
    """Two parsers may take different ones of two; a parameter comes once (RFC 6749, 3.1)."""
    issuer = Issuer(ISSUER, authorization_response_iss_parameter_supported=must_say)
    with pytest.raises(AuthorizationFailed):
        read_redirect(f"{REDIRECT}?{query.replace('ISS', ISSUER)}", "s", issuer)
    assert read_redirect(f"{REDIRECT}?code=c&state=s&iss={ISSUER}", "s", issuer) == "c"


def test_an_answer_with_more_fields_than_any_has_is_not_read():
    issuer = Issuer(ISSUER)
    for fields, code in [(48, "c"), (49, None)]:
        more = "&".join(f"f{number}=1" for number in range(fields))
        url = f"{REDIRECT}?code=c&state=s&{more}"
        if code is None:
            with pytest.raises(AuthorizationFailed, match="another login"):
                read_redirect(url, "s", issuer)
        else:
            assert read_redirect(url, "s", issuer) == code


def test_a_kept_token_of_another_issuer_or_resource_is_not_taken():
    """Whoever can write to the storage must not be able to have a token sent elsewhere (AUTH-32)."""
    for changes in ({"issuer": "https://other.example"}, {"resource": "https://other.example/mcp"}):
        world = World()
        log_in(world)
        key = token_key(ISSUER, SERVER)
        record = {**json.loads(world.kept[key]), **changes}
        world.kept[key] = json.dumps(record).encode()
        assert world.run(recall_token) is None


def test_a_refresh_names_the_scope_that_was_granted():
    """Some issuers refuse one that does not, though it may be left out (RFC 6749, 6)."""
    world = with_registration(World())
    log_in(world, TokenRequest(Challenge("bearer"), old_token(granted=["a", "b"], asked=["a", "b", "c"])))
    assert world.forms()[0]["scope"] == "a b"


def test_a_refresh_of_a_token_without_scopes_names_none():
    world = with_registration(World())
    world.kept = {key: value for key, value in world.kept.items() if not key.startswith("token ")}
    log_in(world, TokenRequest(Challenge("bearer"), old_token(granted=[], asked=[])))
    assert "scope" not in world.forms()[0]


def test_a_refresh_whose_scope_is_refused_is_asked_for_without():
    world = with_registration(World())
    world.answers[TOKEN] = lambda request: (
        json_response({"error": "invalid_scope"}, 400)
        if b"scope=" in request.body
        else json_response({"access_token": "new", "token_type": "Bearer"})
    )
    token = log_in(world, TokenRequest(Challenge("bearer"), old_token()))
    assert (token.access_token, token.refresh_token) == ("new", "refresh-0")
    assert world.visits == []
    assert [form.get("scope") for form in world.forms()] == ["a", None]


def test_a_refresh_token_that_is_not_replaced_stays():
    world = with_registration(World())
    token = log_in(world, TokenRequest(Challenge("bearer"), old_token()))
    assert token.refresh_token == "refresh-0"


@pytest.mark.spec("AUTH-38")
def test_without_a_refresh_token_the_person_logs_in_again():
    world = with_registration(World())
    log_in(world, TokenRequest(Challenge("bearer"), old_token(refresh_token=None)))
    assert len(world.visits) == 1
    assert world.posted == [TOKEN]


def test_a_refresh_token_that_is_refused_is_forgotten_and_the_person_logs_in():
    world = with_registration(World())
    answers = [
        json_response({"error": "invalid_grant"}, 400),
        json_response({"access_token": "n", "token_type": "bearer"}),
    ]
    world.answers[TOKEN] = lambda _: answers.pop(0)
    token = old_token()
    assert log_in(world, TokenRequest(Challenge("bearer"), token)).access_token == "n"
    assert [form["grant_type"] for form in world.forms()] == ["refresh_token", "authorization_code"]
    assert token.refresh_token is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_issuer_in_trouble_does_not_cost_the_refresh_token(status):
    world = with_registration(World())
    world.answers[TOKEN] = json_response({"error": "temporarily_unavailable"}, status)
    token, kept = old_token(), dict(world.kept)
    for steps in (flow().login, flow().renew):
        with pytest.raises(AuthorizationFailed, match="temporarily_unavailable"):
            world.run(steps, TokenRequest(Challenge("bearer"), token))
    assert token.refresh_token == "refresh-0"
    assert world.kept == kept
    assert world.visits == []


def test_a_token_that_is_refused_at_once_is_not_asked_for_again():
    world = with_registration(World())
    token = old_token(obtained_at=NOW - 1, expires_at=NOW + 100)
    with pytest.raises(AuthorizationFailed, match="has just issued"):
        log_in(world, TokenRequest(Challenge("bearer"), token))
    assert world.posted == []


def test_a_renewal_needs_nobody():
    world = with_registration(World())
    request = TokenRequest(Challenge(), old_token())
    assert flow().can_renew(request)
    assert world.run(flow().renew, request).access_token == "access-2"
    assert world.visits == []
    assert not flow().can_renew(TokenRequest(Challenge(), old_token(refresh_token=None)))


def test_the_token_of_a_server_that_publishes_nothing_is_renewed_there():
    world = World()
    world.documents.clear()
    old = Token("old", "https://mcp.example", SERVER, "client", refresh_token="refresh-0", obtained_at=NOW - 900)
    assert world.run(flow(client_id="client").renew, TokenRequest(Challenge(), old)).access_token == "access-1"
    assert [request.url for request in world.requests if request.method == "POST"] == ["https://mcp.example/token"]


# --- another authorization server


@pytest.mark.spec("ASD-09", "CREG-13", "CREG-14")
def test_another_issuer_gets_nothing_of_the_first():
    world = with_registration(World())
    second = "https://second.example"
    world.issuer = second
    world.documents[PRM] = prm(authorization_servers=[second])
    world.documents["https://second.example/.well-known/oauth-authorization-server"] = metadata(second)
    token = log_in(world, TokenRequest(Challenge("bearer"), old_token()))
    assert world.posted == [f"{second}/register", f"{second}/token"]
    assert token.client_id == "client-at-second.example"
    assert "scope" not in world.visits[0]
    sent = b"".join(request.body or b"" for request in world.requests)
    assert b"client-at-auth.example" not in sent
    assert b"refresh-0" not in sent
