"""Nobody logs in: client credentials, the company's identity provider, the platform's word; and tokens with a key."""

import base64
import hashlib
import json
import traceback
from pathlib import Path
from types import SimpleNamespace

import jwt
import pytest
from auth_world import (
    AS,
    ISSUER,
    NOW,
    PRM,
    SERVER,
    ClientCredentialsFlow,
    CodeFlow,
    EnterpriseFlow,
    WorkloadFlow,
    World,
    json_response,
    metadata,
    prm,
)
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from weft.client.auth import ClientCredentials, EnterpriseManaged, IdentityProvider, PrivateKey
from weft.client.auth.authorizer import ServerState as TokenRequest
from weft.client.auth.discovery import Challenge, Registration
from weft.client.auth.tokens import DpopKey, Nonces, recall_token
from weft.errors import AuthorizationFailed, UsageError

TOKEN = f"{ISSUER}/token"
IDP = "https://idp.example"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def situation(scheme: str = "bearer", **params: str) -> TokenRequest:
    return TokenRequest(Challenge(scheme, params))


def key() -> tuple[str, ec.EllipticCurvePublicKey]:
    private = ec.generate_private_key(ec.SECP256R1())
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(), private.public_key()


# --- client credentials


@pytest.mark.spec("XAUTH-02", "AUTH-24")
@pytest.mark.parametrize(
    ("offered", "in_header"), [(None, True), (["client_secret_basic"], True), (["client_secret_post"], False)]
)
def test_a_secret(offered, in_header):
    world = World()
    world.documents[AS] = metadata(token_endpoint_auth_methods_supported=offered)
    flow = ClientCredentialsFlow("robot", "s3cret", clock=lambda: NOW)
    token = world.run(flow.login, situation(scope="a b"))
    form, headers = world.forms()[0], world.requests[-1].headers
    assert (form["grant_type"], form["resource"], form["scope"]) == ("client_credentials", SERVER, "a b")
    assert ("Authorization" in headers) is in_header
    assert (form.get("client_secret") == "s3cret") is not in_header
    assert world.posted == [TOKEN]
    assert token.granted == ["a", "b"]
    assert world.run(recall_token) == token


@pytest.mark.spec("XAUTH-02")
def test_a_key():
    world = World()
    pem, public = key()
    flow = ClientCredentialsFlow("robot", key=PrivateKey(pem, "ES256", "k1"), clock=lambda: NOW)
    world.run(flow.login, situation())
    form = world.forms()[0]
    assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    claims = jwt.decode(
        form["client_assertion"],
        public,
        algorithms=["ES256"],
        audience=ISSUER,
        options={"verify_exp": False, "verify_iat": False},
    )
    assert (claims["iss"], claims["sub"]) == ("robot", "robot")
    assert NOW < claims["exp"] <= NOW + 300
    assert claims["jti"]
    assert jwt.get_unverified_header(form["client_assertion"])["kid"] == "k1"
    assert "client_secret" not in form
    assert pem not in repr(flow)


def test_credentials_for_another_issuer_are_not_sent():
    world = World()
    flow = ClientCredentialsFlow("robot", "s3cret", issuer="https://other.example")
    with pytest.raises(AuthorizationFailed, match=r"registered with https://other\.example.*nothing was sent"):
        world.run(flow.login, situation())
    assert world.posted == []


@pytest.mark.spec("CREG-12", "CREG-13", "CREG-15")
@pytest.mark.parametrize(
    "flow",
    [
        ClientCredentialsFlow("robot", "s3cret", clock=lambda: NOW),
        WorkloadFlow("robot", assertion="a.b.c", clock=lambda: NOW),
    ],
)
def test_credentials_stay_with_the_issuer_of_their_first_use(flow):
    world, other = World(), "https://evil.example"
    world.run(flow.login, situation())
    world.documents[PRM] = prm(authorization_servers=[other])
    world.documents[f"{other}/.well-known/oauth-authorization-server"] = metadata(other)
    with pytest.raises(AuthorizationFailed, match="Nothing was sent there"):
        world.run(flow.login, situation())
    assert world.posted == [TOKEN]


def test_either_a_secret_or_a_key():
    for given in ({}, {"client_secret": "s", "private_key": "k"}):
        with pytest.raises(UsageError, match="either"):
            ClientCredentials("robot", **given)


PASSWORD = BestAvailableEncryption(b"s3cret")
KEYS = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    "RS256": rsa.generate_private_key(65537, 2048),
}


def pem_of(private, encryption=None) -> bytes:
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


@pytest.mark.parametrize("algorithm", KEYS)
@pytest.mark.parametrize(
    "form", [lambda key: key, pem_of, lambda key: pem_of(key).decode()], ids=["object", "bytes", "text"]
)
async def test_a_key_in_any_form_signs_with_what_suits_it(algorithm, form):
    world = World()
    auth = ClientCredentials("robot", private_key=form(KEYS[algorithm]), fetcher=world)
    given = await auth.headers(SERVER, "POST")
    assert await auth.refused(SimpleNamespace(status=401, headers={"WWW-Authenticate": "Bearer"}), given, {})
    signed = world.forms()[0]["client_assertion"]
    assert jwt.get_unverified_header(signed)["alg"] == algorithm
    assert jwt.decode(signed, KEYS[algorithm].public_key(), algorithms=[algorithm], audience=ISSUER)["sub"] == "robot"


def test_an_algorithm_of_ones_own():
    assert PrivateKey(KEYS["RS256"], "PS256").algorithm == "PS256"
    with pytest.raises(UsageError, match="cannot sign with algorithm='RS256'; leave that out, or use ES256"):
        PrivateKey(KEYS["ES256"], "RS256")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("reporter-s3cret.pem", "is not the PEM of a private key"),
        (b"\x00s3cret", "is not the PEM of a private key"),
        ("", "is not the PEM of a private key"),
        ("\udce9s3cret", "is not the PEM of a private key"),
        (Path("s3cret.pem"), "of the type 'PosixPath'"),
        (17, "of the type 'int'"),
        (KEYS["ES256"].public_key(), "of the type '.*PublicKey'"),
        (
            KEYS["ES256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "is not the PEM of a private key",
        ),
        ("-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----", "is not the PEM of a private key"),
        (pem_of(KEYS["ES256"], PASSWORD), "or is encrypted"),
        (pem_of(x25519.X25519PrivateKey.generate()), "of the type '.*X25519PrivateKey'"),
        (ec.generate_private_key(ec.SECP224R1()), "of the type '.*PrivateKey'"),
    ],
)
def test_what_is_no_key_is_said_when_it_is_given(given, said):
    for take in (PrivateKey, lambda key: ClientCredentials("robot", private_key=key)):
        with pytest.raises(
            UsageError, match=f"(?s){said}.*give a private key that can sign.*If it is in a file"
        ) as caught:
            take(given)
        text = "".join(traceback.format_exception(caught.value, chain=True)).partition("UsageError: ")[2]
        assert not any(word in text for word in ("s3cret", "http", "cryptography", "jwt"))


@pytest.mark.spec("XAUTH-01", "XAUTH-04")
def test_the_extensions_by_name():
    assert ClientCredentials.extension == "io.modelcontextprotocol/oauth-client-credentials"
    assert EnterpriseManaged.extension == "io.modelcontextprotocol/enterprise-managed-authorization"


# --- enterprise-managed


def enterprise(**changes) -> EnterpriseManaged:
    provider = IdentityProvider(
        **{"client_id": "at-idp", "id_token": "the-id-token", "token_endpoint": f"{IDP}/token", **changes}
    )
    return EnterpriseFlow("robot", "s3cret", provider=provider, clock=lambda: NOW)


def with_idp(world: World, **changes) -> World:
    world.answers[f"{IDP}/token"] = json_response(
        {"access_token": "the-jag", "issued_token_type": ID_JAG, "token_type": "N_A", **changes}
    )
    return world


@pytest.mark.spec("XAUTH-04", "XAUTH-05")
def test_an_id_token_becomes_an_assertion_becomes_a_token():
    world = with_idp(World())
    token = world.run(enterprise().login, situation(scope="a"))
    exchange, grant = world.forms(f"{IDP}/token")[0], world.forms()[0]
    assert exchange == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": ID_JAG,
        "audience": ISSUER,
        "resource": SERVER,
        "subject_token": "the-id-token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "client_id": "at-idp",
        "scope": "a",
    }
    assert (grant["grant_type"], grant["assertion"]) == (JWT_BEARER, "the-jag")
    assert world.visits == []
    assert token.access_token == "access-1"


def test_the_id_token_may_come_from_a_function_and_the_endpoint_from_the_issuer():
    world = with_idp(World())
    world.documents[f"{IDP}/.well-known/oauth-authorization-server"] = metadata(IDP)
    world.run(enterprise(id_token=lambda: "fresh", token_endpoint=None, issuer=IDP).login, situation())
    assert world.forms(f"{IDP}/token")[0]["subject_token"] == "fresh"


@pytest.mark.spec("XAUTH-07")
def test_an_issuer_that_says_it_does_not_take_assertions_is_not_shown_any():
    world = with_idp(World())
    world.documents[AS] = metadata(authorization_grant_profiles_supported=["urn:other"])
    with pytest.raises(AuthorizationFailed, match="identity provider"):
        world.run(enterprise().login, situation())
    assert world.posted == []


@pytest.mark.spec("XAUTH-05")
def test_what_the_identity_provider_answers_has_to_be_an_assertion():
    world = with_idp(World(), issued_token_type="urn:ietf:params:oauth:token-type:access_token")
    with pytest.raises(AuthorizationFailed, match="ID-JAG"):
        world.run(enterprise().login, situation())
    assert world.forms() == []


def test_a_provider_that_cannot_be_found():
    with pytest.raises(UsageError, match="token_endpoint"):
        EnterpriseManaged("c", IdentityProvider("x", "y"))
    world = World()
    with pytest.raises(AuthorizationFailed, match="publishes no metadata"):
        world.run(enterprise(token_endpoint=None, issuer=IDP).login, situation())


@pytest.mark.spec("XAUTH-08")
def test_assertions_are_in_no_url_no_repr_and_no_error():
    world = with_idp(World())
    world.answers[TOKEN] = json_response({"error": "invalid_grant"}, 400)
    flow = enterprise()
    with pytest.raises(AuthorizationFailed) as failure:
        world.run(flow.login, situation())
    shown = f"{failure.value} {flow!r} {world.requests!r} {[request.url for request in world.requests]}"
    assert not any(secret in shown for secret in ("the-id-token", "the-jag", "s3cret"))


# --- workload identity


@pytest.mark.spec("XAUTH-09")
def test_the_word_of_the_platform_is_shown_once():
    world = World()
    world.answers[TOKEN] = json_response({"error": "invalid_grant"}, 400)
    flow = WorkloadFlow("robot", assertion=lambda: "the-jwt")
    with pytest.raises(AuthorizationFailed, match="invalid_grant"):
        world.run(flow.login, situation())
    assert [form["assertion"] for form in world.forms()] == ["the-jwt"]
    assert world.forms()[0]["grant_type"] == JWT_BEARER
    assert world.forms()[0]["client_id"] == "robot"


def test_a_function_that_returns_nothing():
    with pytest.raises(AuthorizationFailed, match="`assertion`"):
        World().run(WorkloadFlow("robot", assertion=lambda: None).login, situation())


def test_a_machine_renews_by_asking_again():
    world = World()
    flow = ClientCredentialsFlow("robot", "s3cret", clock=lambda: NOW)
    assert not flow.can_renew(TokenRequest())
    assert flow.can_renew(situation())
    assert world.run(flow.renew, situation()).access_token == "access-1"


# --- DPoP


def proof_of(request) -> tuple[dict, dict]:
    token = request.headers["DPoP"]
    header = jwt.get_unverified_header(token)
    public = jwt.algorithms.ECAlgorithm.from_jwk(json.dumps(header["jwk"]))
    claims = jwt.decode(token, public, algorithms=["ES256"], options={"verify_iat": False})
    return header, claims


def dpop_world(**changes) -> World:
    world = World()
    world.documents[AS] = metadata(dpop_signing_alg_values_supported=["ES256"], **changes)
    world.answers[TOKEN] = json_response({"access_token": "bound", "token_type": "DPoP"})
    return world


def log_in(world: World, given: TokenRequest, **options):
    return world.run(CodeFlow(Registration(), clock=lambda: NOW, **options).login, given)


@pytest.mark.spec("XAUTH-09")
def test_a_token_request_proves_a_key():
    world = dpop_world()
    token = log_in(world, situation("dpop"))
    header, claims = proof_of(world.requests[-1])
    assert header["typ"] == "dpop+jwt"
    assert "d" not in header["jwk"]
    assert (claims["htm"], claims["htu"]) == ("POST", TOKEN)
    assert claims["jti"]
    assert "nonce" not in claims
    assert token.kind == "DPoP"
    assert DpopKey.from_pem(token.dpop_key).public == header["jwk"]
    assert "PRIVATE" not in repr(token)


@pytest.mark.spec("XAUTH-09")
def test_a_nonce_is_answered_with_a_new_proof():
    world = dpop_world()
    answers = [
        json_response({"error": "use_dpop_nonce"}, 400, dpop_nonce="n1"),
        json_response({"access_token": "bound", "token_type": "DPoP"}),
    ]
    world.answers[TOKEN] = lambda _: answers.pop(0)
    log_in(world, situation("dpop"))
    (_, first), (_, second) = (proof_of(request) for request in world.requests[-2:])
    assert "nonce" not in first
    assert second["nonce"] == "n1"
    assert first["jti"] != second["jti"]


def test_a_server_that_never_likes_its_own_nonce_is_left():
    world = dpop_world()
    world.answers[TOKEN] = json_response({"error": "use_dpop_nonce"}, 400, dpop_nonce="same")
    with pytest.raises(AuthorizationFailed, match="use_dpop_nonce"):
        log_in(world, situation("dpop"))
    assert len(world.forms()) == 2


@pytest.mark.parametrize(
    ("setting", "scheme", "published", "listed", "expected"),
    [
        (None, "bearer", None, ["ES256"], False),
        (None, "dpop", None, ["ES256"], True),
        (None, "dpop", None, None, True),
        (None, "dpop", None, ["RS256"], False),
        (None, "bearer", True, ["ES256"], True),
        (True, "bearer", None, None, True),
        (False, "dpop", None, ["ES256"], False),
    ],
)
def test_when_tokens_are_bound(setting, scheme, published, listed, expected):
    world = dpop_world()
    world.documents[PRM] = prm(dpop_bound_access_tokens_required=published)
    world.documents[AS] = metadata(dpop_signing_alg_values_supported=listed)
    kind = "DPoP" if expected else "Bearer"
    world.answers[TOKEN] = json_response({"access_token": "t", "token_type": kind})
    assert log_in(world, situation(scheme), dpop=setting).kind == kind
    assert ("DPoP" in world.requests[-1].headers) is expected


def test_a_token_that_has_to_be_bound_and_is_not():
    world = World()
    with pytest.raises(AuthorizationFailed, match="dpop=True"):
        log_in(world, situation(), dpop=True)


@pytest.mark.spec("XAUTH-09")
def test_a_proof_for_a_resource_names_the_token_and_not_the_query():
    made = DpopKey.new().proof("GET", f"{SERVER}?a=1#b", access_token="tok", nonce="n")
    claims = jwt.decode(made, options={"verify_signature": False})
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"tok").digest()).rstrip(b"=").decode()
    assert (claims["htu"], claims["ath"], claims["nonce"]) == (SERVER, digest, "n")


def test_a_refresh_uses_the_key_that_the_token_is_bound_to():
    world = dpop_world()
    world.answers[TOKEN] = json_response({"access_token": "bound", "token_type": "DPoP", "refresh_token": "r"})
    token = log_in(world, situation("dpop"))
    token.obtained_at -= 100
    again = situation("dpop")
    again.token = token
    renewed = log_in(world, again)
    assert proof_of(world.requests[-1])[0]["jwk"] == DpopKey.from_pem(token.dpop_key).public
    assert renewed.dpop_key == token.dpop_key


def test_nonces_are_bounded_and_only_new_ones_count():
    nonces = Nonces()
    assert nonces.put("a", "1")
    assert not nonces.put("a", "1")
    assert not nonces.put("a", None)
    assert not nonces.put("a", "x" * 2000)
    for number in range(1000):
        nonces.put(str(number), "n")
    assert len(nonces) <= 256


def test_a_machine_whose_token_has_to_be_bound_and_is_not():
    with pytest.raises(AuthorizationFailed, match="dpop=True"):
        World().run(ClientCredentialsFlow("robot", "s", dpop=True, clock=lambda: NOW).login, situation())


def test_a_refresh_does_not_lose_the_key():
    world = dpop_world()
    world.answers[TOKEN] = json_response({"access_token": "bound", "token_type": "DPoP", "refresh_token": "r"})
    again = situation("dpop")
    again.token = log_in(world, situation("dpop"), dpop=True)
    again.token.obtained_at -= 100
    world.answers[TOKEN] = json_response({"access_token": "free", "token_type": "Bearer"})
    with pytest.raises(AuthorizationFailed, match="dpop=True"):
        log_in(world, again, dpop=True)


def test_a_token_that_was_never_bound_is_not_refreshed_where_it_has_to_be():
    world = World()
    world.answers[TOKEN] = json_response({"access_token": "free", "token_type": "Bearer", "refresh_token": "r"})
    again = situation()
    again.token = log_in(world, situation())
    again.token.obtained_at -= 100
    world.answers[TOKEN] = json_response({"access_token": "bound", "token_type": "DPoP"})
    assert log_in(world, again, dpop=True).access_token == "bound"
    assert [form["grant_type"] for form in world.forms()] == ["authorization_code"] * 2


def test_an_issuer_that_repeats_what_it_was_sent_is_not_quoted_with_it():
    world, secret = World(), "s" * 300
    world.answers[TOKEN] = json_response({"error": "invalid_grant", "error_description": f"{secret} of the-code"}, 400)
    flow = CodeFlow(Registration(client_id="c", client_secret=secret), clock=lambda: NOW)
    with pytest.raises(AuthorizationFailed, match=r"invalid_grant: … of …") as failure:
        world.run(flow.login, situation())
    assert not any("sss" in text or "the-code" in text for text in (str(failure.value), *failure.value.tried))
