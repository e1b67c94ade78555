"""Who guards a server: where that is looked up, in which order, and what is not believed."""

import pytest
from auth_world import AS, ISSUER, PRM, PRM_ROOT, SERVER, World, metadata, prm

from weft.client.auth.discovery import (
    Challenge,
    canonical,
    discover,
    issuer_urls,
    parse_challenges,
    read_challenges,
    resource_fits,
)
from weft.errors import AuthorizationFailed
from weft.net.fetch import FetchFailed, HttpAnswer


def find(world: World, challenge: Challenge | None = None, server: str = SERVER):
    return world.run(discover, challenge or Challenge(), server=server)


# --- WWW-Authenticate


@pytest.mark.spec("ASD-04")
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer", [("bearer", {})]),
        ('Bearer scope="a b", error=invalid_token', [("bearer", {"scope": "a b", "error": "invalid_token"})]),
        ('bearer  realm = "x\\"y" ,scope="a, b"', [("bearer", {"realm": 'x"y', "scope": "a, b"})]),
        ('Basic realm="x", DPoP algs=E, Bearer', [("basic", {"realm": "x"}), ("dpop", {"algs": "E"}), ("bearer", {})]),
        ("Negotiate abc==, Bearer scope=a", [("negotiate", {}), ("bearer", {"scope": "a"})]),
        ('Bearer scope="a", scope="b"', [("bearer", {"scope": "a"})]),
        ('Bearer scope="unclosed', [("bearer", {})]),
        (',,Bearer ,, error="x",', [("bearer", {"error": "x"})]),
        ('scope="no scheme"', []),
        ("", []),
    ],
)  # fmt: skip
def test_challenges_are_read_as_the_grammar_has_them(header, expected):
    assert [(one.scheme, dict(one.params)) for one in parse_challenges(header)] == expected


def test_a_long_header_is_read_in_linear_time_and_only_so_far():
    assert len(parse_challenges('a="' * 100_000)) <= 16 * 1024
    assert parse_challenges("a," * 1_000_000)[0].scheme == "a"


def test_a_token_that_nobody_can_steal_is_preferred():
    found = read_challenges({"WWW-Authenticate": 'Bearer scope="a", Basic, DPoP algs="ES256"'})
    assert [one.scheme for one in found] == ["dpop", "bearer"]


# --- the server's own metadata


@pytest.mark.spec("ASD-03", "AUTH-05")
def test_where_the_challenge_says_is_the_only_place_asked():
    world = World()
    elsewhere = "https://mcp.example/elsewhere.json"
    world.documents = {elsewhere: prm(), AS: metadata()}
    guarded = find(world, Challenge("bearer", {"resource_metadata": elsewhere}))
    assert world.fetched == [elsewhere, AS]
    assert guarded.issuer.issuer == ISSUER


@pytest.mark.spec("ASD-03")
def test_without_a_hint_the_path_is_asked_before_the_root():
    world = World()
    world.documents = {PRM_ROOT: prm(resource="https://mcp.example"), AS: metadata()}
    guarded = find(world)
    assert world.fetched == [PRM, PRM_ROOT, AS]
    assert guarded.resource == "https://mcp.example"


@pytest.mark.spec("ASD-03")
def test_the_root_is_not_asked_when_the_path_answers():
    world = World()
    find(world)
    assert PRM_ROOT not in world.fetched


@pytest.mark.spec("ASD-10")
@pytest.mark.parametrize(
    "resource",
    [
        "https://evil.example/mcp",
        "https://mcp.example/mc",
        "http://mcp.example/mcp",
        "https://mcp.example:444/mcp",
        "https://mcp.example/mcp#x",
        "nonsense",
    ],
)
def test_the_metadata_of_another_server_ends_the_login(resource):
    world = World()
    world.documents[PRM] = prm(resource=resource)
    with pytest.raises(AuthorizationFailed, match="another server"):
        find(world)
    assert world.fetched == [PRM]


@pytest.mark.spec("ASD-10", "AUTH-26")
@pytest.mark.parametrize(
    ("resource", "server"),
    [
        ("https://a.example/mcp", "https://a.example/mcp"),
        ("https://a.example/mcp/", "https://a.example/mcp"),
        ("HTTPS://A.example:443/mcp", "https://a.example/mcp"),
        ("https://a.example", "https://a.example/x/mcp"),
        ("https://a.example/x", "https://a.example/x/mcp"),
    ],
)
def test_a_resource_is_recognised_however_it_is_written(resource, server):
    assert resource_fits(resource, server)


def test_a_server_that_names_nobody_cannot_be_logged_in_to():
    world = World()
    world.documents[PRM] = prm(authorization_servers=[])
    with pytest.raises(AuthorizationFailed, match="names no authorization server"):
        find(world)


@pytest.mark.parametrize(
    "broken", [500, HttpAnswer(200, {}, b"<html>"), HttpAnswer(200, {}, b"[]"), FetchFailed("gone")]
)
def test_metadata_that_is_there_and_broken_is_no_reason_for_the_old_way(broken):
    world = World()
    world.documents[PRM] = broken
    with pytest.raises(AuthorizationFailed, match="cannot be read") as failure:
        find(world)
    assert any(PRM in entry for entry in failure.value.tried)


# --- the authorization server's


@pytest.mark.spec("ASD-05", "ASD-06", "AUTH-07")
@pytest.mark.parametrize(
    ("issuer", "expected"),
    [
        (
            "https://auth.example/tenant1",
            [
                "https://auth.example/.well-known/oauth-authorization-server/tenant1",
                "https://auth.example/.well-known/openid-configuration/tenant1",
                "https://auth.example/tenant1/.well-known/openid-configuration",
            ],
        ),
        (
            "https://auth.example",
            [
                "https://auth.example/.well-known/oauth-authorization-server",
                "https://auth.example/.well-known/openid-configuration",
            ],
        ),
        (
            "https://auth.example/",
            [
                "https://auth.example/.well-known/oauth-authorization-server",
                "https://auth.example/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_the_places_of_an_issuer_in_order(issuer, expected):
    assert list(issuer_urls(issuer)) == expected
    for last in range(len(expected)):
        world = World()
        world.documents = {PRM: prm(authorization_servers=[issuer]), expected[last]: metadata(issuer)}
        assert find(world).issuer.issuer == issuer
        assert world.fetched == [PRM, *expected[: last + 1]]


@pytest.mark.spec("ASD-07")
@pytest.mark.parametrize("other", ["https://attacker.example", f"{ISSUER}/", "HTTPS://auth.example", f"{ISSUER}:443"])
def test_a_document_of_another_issuer_is_not_used(other):
    world = World()
    world.documents[AS] = metadata(issuer=other)
    with pytest.raises(AuthorizationFailed, match="publishes the metadata of another issuer"):
        find(world)
    assert world.posted == []


def test_the_next_issuer_is_asked_when_one_cannot_be_used():
    world = World()
    world.documents[PRM] = prm(authorization_servers=["https://down.example", "https://[", ISSUER])
    assert find(world).issuer.issuer == ISSUER


def test_an_issuer_that_is_no_url_is_told_of():
    world = World()
    world.documents[PRM] = prm(authorization_servers=["https://["])
    with pytest.raises(AuthorizationFailed, match="publishes its metadata") as failure:
        find(world)
    assert "https://[ is not a URL" in failure.value.tried


def test_no_issuer_at_all_is_one_clear_error():
    world = World()
    del world.documents[AS]
    with pytest.raises(AuthorizationFailed, match="publishes its metadata") as failure:
        find(world)
    assert f"{AS}: HTTP 404" in failure.value.tried
    assert AS in str(failure.value)


# --- a server that publishes nothing


@pytest.mark.spec("L03-07")
def test_a_server_without_metadata_guards_itself():
    world = World()
    root = "https://mcp.example"
    place = f"{root}/.well-known/oauth-authorization-server"
    world.documents = {place: metadata(f"{root}/", token_endpoint=f"{root}/oauth/token")}
    guarded = find(world)
    assert world.fetched == [PRM, PRM_ROOT, place]
    assert guarded.issuer.token_endpoint == f"{root}/oauth/token"
    assert guarded.resource == SERVER


@pytest.mark.spec("L03-07")
def test_a_server_that_publishes_nothing_at_all_has_fixed_places():
    world = World()
    world.documents = {}
    guarded = find(world)
    assert guarded.issuer.authorization_endpoint == "https://mcp.example/authorize"
    assert guarded.issuer.token_endpoint == "https://mcp.example/token"
    assert guarded.issuer.registration_endpoint == "https://mcp.example/register"


@pytest.mark.spec("AUTH-25", "AUTH-26")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTPS://MCP.Example/mcp/", "https://mcp.example/mcp"),
        ("https://mcp.example/#x", "https://mcp.example"),
        ("https://mcp.example:8443/a?b=1", "https://mcp.example:8443/a?b=1"),
    ],
)
def test_the_canonical_uri_of_a_server(url, expected):
    assert canonical(url) == expected


def test_few_authorization_servers_are_asked_however_many_are_named():
    """A server must not be able to have a client knock at a thousand doors."""
    for dead, is_found in [(4, True), (5, False)]:
        world = World()
        named = [f"https://down{number}.example" for number in range(dead)]
        world.documents[PRM] = prm(authorization_servers=[*named, ISSUER])
        if is_found:
            assert find(world).issuer.issuer == ISSUER
        else:
            with pytest.raises(AuthorizationFailed):
                find(world)
        assert (AS in world.fetched) is is_found
