"""Programs and companies at the authorization server, over a socket: client credentials, ID-JAGs, workload tokens.

Weft's own client logs in by each, and calls a tool of a server that is protected by them; and each thing that can be
wrong with what a client shows is refused by itself.
"""

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from support import serve
from support.logging_in import REDIRECT, Browser, log_in, pkce
from support.protected import make_protected
from support.tokens import bound_to, ec_jwk, ec_key, proof_for, rsa_jwk, rsa_key
from weft import AuthorizationFailed, Client
from weft.auth import ClientCredentials, EnterpriseManaged, WorkloadIdentity
from weft.authorization import (
    CLIENT_CREDENTIALS,
    JWT_BEARER,
    AuthorizationServer,
    RegisteredClient,
    TrustedIssuer,
)
from weft.client.auth import IdentityProvider, PrivateKey
from weft.server.auth import ResourceServer

SECRET = "a secret of a program"
CLIENT_JWT = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
OTHER = "https://other.example/mcp"  # a second resource of the same authorization server
USERS = {"ann": "correct horse"}


def pem_of(name: str) -> str:
    return ec_key(name).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def forge(good: str, alg: str, key: Any = None) -> str:
    """The same claims under another algorithm: not signed, or with a public key as if that were a shared secret."""
    head, claims, _ = good.split(".")
    parts = {**json.loads(base64.urlsafe_b64decode(head + "==")), "alg": alg}
    signed = f"{encode_part(json.dumps(parts).encode())}.{claims}"
    seal = b"" if key is None else hmac.new(public_pem(key).encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{encode_part(seal)}"


def encode_part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


PROGRAM = RegisteredClient(client_id="reporter", grant_types=(CLIENT_CREDENTIALS,), scopes=("read",))
OPEN = RegisteredClient(client_id="open", grant_types=(JWT_BEARER,))  # public
PLATFORM = TrustedIssuer("https://p.example", keys=[ec_jwk("platform")], workloads={"job:nightly": "open"})
PROVIDER = TrustedIssuer("https://i.example", keys=[rsa_jwk("idp")])
CLIENTS = [
    PROGRAM.with_secret(SECRET),
    RegisteredClient(client_id="signer", grant_types=(CLIENT_CREDENTIALS,)).with_keys([ec_jwk("signer")]),
    RegisteredClient(client_id="chat", grant_types=(JWT_BEARER, "refresh_token")).with_secret(SECRET),
    RegisteredClient(client_id="other", grant_types=(JWT_BEARER,)).with_secret(SECRET),
    OPEN,
    RegisteredClient(client_id="keyed", redirect_uris=(REDIRECT,), scopes=("read",)).with_keys([ec_jwk("keyed")]),
    RegisteredClient(client_id="person", redirect_uris=(REDIRECT,)).with_secret(SECRET),
]


class Place:
    """One address: a server, the authorization server that guards it, and a company's identity provider."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.idp, self.platform, self.resource = f"{self.base}/idp", f"{self.base}/platform", f"{self.base}/mcp"
        self.exchanged: list[dict[str, str]] = []  # what the identity provider was asked
        self.asked: list[str] = []  # what the authorization server was asked
        self.server = AuthorizationServer(
            self.base,
            resources=[self.resource, OTHER],
            users=USERS,
            scopes=["read", "write"],
            clients=CLIENTS,
            registration=True,
            trusted_issuers=[
                TrustedIssuer(self.idp, f"{self.idp}/jwks"),
                TrustedIssuer(self.platform, keys=[ec_jwk("platform")], workloads={"job:nightly": "open"}),
            ],
        )
        guard = ResourceServer(
            self.resource, authorization_servers=[self.base], verifier=self.server.verifier(), scopes=["read"]
        )
        self.apps = make_protected(guard).asgi(), self.server.asgi()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path.startswith("/idp/"):
            await self.answer_as_provider(path, receive, send)
        elif path == "/mcp" or path.startswith("/.well-known/oauth-protected-resource"):
            await self.apps[0](scope, receive, send)
        else:
            self.asked.append(path)
            await self.apps[1](scope, receive, send)

    async def answer_as_provider(self, path: str, receive: Any, send: Any) -> None:
        """The company's identity provider: its keys, and the exchange of an id token (RFC 8693)."""
        told: dict[str, Any] = {"keys": [rsa_jwk("idp")]}
        if path == "/idp/token":
            asked = dict(parse_qsl((await receive())["body"].decode()))
            self.exchanged.append(asked)
            jag = self.id_jag(aud=asked["audience"], resource=asked["resource"], scope=asked.get("scope"))
            told = {"access_token": jag, "issued_token_type": asked["requested_token_type"], "token_type": "N_A"}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})

    def id_jag(self, *, key: Any = None, alg: str = "RS256", head: Any = None, **changes: Any) -> str:
        """An ID-JAG about Ann for the client `chat`. In `changes`, None takes a claim out."""
        now = int(time.time())
        good = {"iss": self.idp, "aud": self.base, "sub": "U1", "client_id": "chat", "resource": self.resource}
        claims = {**good, "iat": now, "exp": now + 300, "jti": uuid.uuid4().hex, "scope": "read", **changes}
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(
            kept, key or rsa_key("idp"), alg, headers={"typ": "oauth-id-jag+jwt", "kid": "idp", **(head or {})}
        )

    def client_jwt(self, *, key: Any = None, alg: str = "ES256", head: Any = None, **changes: Any) -> str:
        """What the client `signer` says of itself."""
        now = int(time.time())
        good = {"iss": "signer", "sub": "signer", "aud": self.base, "iat": now, "exp": now + 60}
        claims = {**good, "jti": uuid.uuid4().hex, **changes}
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, key or ec_key("signer"), alg, headers=head)

    def ask(self, headers: dict[str, str] | None = None, **fields: str | None) -> tuple[int, dict[str, Any]]:
        """One request of the token endpoint."""
        given = {name: value for name, value in fields.items() if value is not None}
        answer = Browser(self.base).post("/token", given, **(headers or {}))
        return answer.status, json.loads(answer.body)

    def ask_with_jag(self, jag: str, **changes: str | None) -> tuple[int, dict[str, Any]]:
        who = {"client_id": "chat", "client_secret": SECRET}
        return self.ask(**{"grant_type": JWT_BEARER, "assertion": jag, **who, "resource": self.resource, **changes})

    def ask_with_key(self, assertion: str, **changes: str | None) -> tuple[int, dict[str, Any]]:
        given = {"client_assertion_type": CLIENT_JWT, "client_assertion": assertion, "resource": self.resource}
        return self.ask(**{"grant_type": CLIENT_CREDENTIALS, **given, **changes})


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    places: list[Place] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # the issuer has the port in it, which comes first
        if places:
            await places[0](scope, receive, send)

    with serve(app) as live:
        places.append(Place(live.port))
        yield places[0]


def claims_of(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


async def who(place: Place, auth: Any) -> dict[str, Any]:
    """Log in with Weft's own client, and have a tool say who it sees."""
    async with Client(place.resource, auth=auth) as client:
        return (await client.call_tool("who", {})).structured


# --- what the metadata says


@pytest.mark.spec("XAUTH-03", "XAUTH-07")
def test_the_metadata_lists_what_there_is(place: Place) -> None:
    told = json.loads(Browser(place.base).get("/.well-known/oauth-authorization-server").body)
    assert told["grant_types_supported"][2:] == [CLIENT_CREDENTIALS, JWT_BEARER]
    assert {"private_key_jwt", "client_secret_basic"} <= set(told["token_endpoint_auth_methods_supported"])
    assert told["token_endpoint_auth_signing_alg_values_supported"] == ["RS256", "PS256", "ES256", "EdDSA"]
    assert told["authorization_grant_profiles_supported"] == ["urn:ietf:params:oauth:grant-profile:id-jag"]


@pytest.mark.spec("XAUTH-03", "XAUTH-07")
def test_the_metadata_lists_nothing_that_there_is_not() -> None:
    told = AuthorizationServer("http://127.0.0.1:9", resources=[OTHER], users=USERS).metadata()
    assert list(told["grant_types_supported"]) == ["authorization_code", "refresh_token"]
    assert "private_key_jwt" not in told["token_endpoint_auth_methods_supported"]
    assert not {"token_endpoint_auth_signing_alg_values_supported", "authorization_grant_profiles_supported"} & set(
        told
    )


@pytest.mark.spec("XAUTH-03", "XAUTH-07")
@pytest.mark.parametrize(
    ("options", "grants", "methods"),
    [
        ({"users": USERS}, ["authorization_code", "refresh_token"], ["none"]),
        (
            {"users": USERS, "registration": True},
            ["authorization_code", "refresh_token"],
            ["none", "client_secret_basic", "client_secret_post"],
        ),
        ({"clients": CLIENTS[1:2]}, [CLIENT_CREDENTIALS], ["private_key_jwt"]),
        ({"clients": CLIENTS[:1]}, [CLIENT_CREDENTIALS], ["client_secret_basic", "client_secret_post"]),
        ({"clients": [OPEN], "trusted_issuers": [PLATFORM]}, [JWT_BEARER], ["none"]),
        ({"users": USERS, "trusted_issuers": [PROVIDER]}, ["authorization_code", "refresh_token"], ["none"]),
        ({"clients": [OPEN], "trusted_issuers": [PLATFORM, PROVIDER]}, [JWT_BEARER], ["none"]),
    ],
)
def test_the_metadata_lists_what_a_client_can_use(
    options: dict[str, Any], grants: list[str], methods: list[str]
) -> None:
    told = AuthorizationServer("http://127.0.0.1:9", resources=[OTHER], scopes=["read"], **options).metadata()
    assert list(told["grant_types_supported"]) == grants
    assert told["token_endpoint_auth_methods_supported"] == methods
    assert "authorization_grant_profiles_supported" not in told  # ID-JAGs take a client that proves who it is


# --- programs


@pytest.mark.spec("XAUTH-03", "XAUTH-02")
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_program_logs_in_with_its_secret(place: Place, method: str) -> None:
    seen = await who(place, ClientCredentials("reporter", client_secret=SECRET, auth_method=method))
    assert (seen["subject"], seen["client"], seen["scopes"]) == ("reporter", "reporter", ["read"])


@pytest.mark.spec("XAUTH-03", "XAUTH-02")
async def test_a_program_logs_in_with_its_key(place: Place) -> None:
    place.asked.clear()
    auth = ClientCredentials("signer", private_key=PrivateKey(pem_of("signer")), scopes=["read", "write"])
    seen = await who(place, auth)
    assert (seen["subject"], seen["scopes"]) == ("signer", ["read", "write"])
    assert "/register" not in place.asked
    assert "/authorize" not in place.asked


@pytest.mark.spec("XAUTH-03")
def test_a_program_gets_a_token_for_one_resource_and_no_refresh_token(place: Place) -> None:
    status, told = place.ask_with_key(place.client_jwt(aud=f"{place.base}/token"), scope="write")
    assert (status, told["token_type"], told["scope"], "refresh_token" in told) == (200, "Bearer", "write", False)
    claims = claims_of(told["access_token"])
    assert (claims["iss"], claims["aud"], claims["sub"]) == (place.base, place.resource, "signer")
    assert claims["client_id"] == "signer"


@pytest.mark.spec("XAUTH-03")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"resource": None}, "invalid_target"),  # there are two: which?
        ({"resource": "https://evil.example/mcp"}, "invalid_target"),
        ({"scope": "write"}, "invalid_scope"),  # the server has it, this client may not
        ({"grant_type": "authorization_code", "code": "x"}, "unauthorized_client"),
        ({"grant_type": "refresh_token", "refresh_token": "x"}, "unauthorized_client"),
        ({"grant_type": JWT_BEARER, "assertion": "x"}, "unauthorized_client"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"client_secret": "wrong"}, "invalid_client"),
        ({"client_secret": None}, "invalid_client"),
        ({"client_id": "person"}, "unauthorized_client"),
        ({"client_id": "signer"}, "invalid_client"),
        ({"client_id": "signer", "client_secret": None}, "invalid_client"),
        ({"client_assertion": "x", "client_assertion_type": CLIENT_JWT}, "invalid_request"),  # two ways
    ],
)
def test_a_program_gets_no_more_than_it_may(place: Place, changes: dict[str, Any], error: str) -> None:
    good = {"grant_type": CLIENT_CREDENTIALS, "client_id": "reporter", "client_secret": SECRET}
    whole = {**good, "resource": place.resource, **changes}
    status, told = place.ask(**whole)
    assert (status, told["error"]) == (401 if error == "invalid_client" else 400, error)


@pytest.mark.spec("XAUTH-03")
def test_a_program_that_asks_for_more_gets_what_it_may_have(place: Place) -> None:
    basic = {"Authorization": "Basic " + base64.b64encode(f"reporter:{SECRET.replace(' ', '+')}".encode()).decode()}
    told = place.ask(basic, grant_type=CLIENT_CREDENTIALS, resource=place.resource, scope="read write")[1]
    assert told["scope"] == claims_of(told["access_token"])["scope"] == "read"


BAD_CLIENT_JWTS: dict[str, Any] = {
    "other key": lambda place: place.client_jwt(key=ec_key("other")),
    "other client": lambda place: place.client_jwt(iss="reporter", sub="reporter"),
    "about another": lambda place: place.client_jwt(sub="reporter"),
    "unknown client": lambda place: place.client_jwt(iss="nobody", sub="nobody"),
    "audience": lambda place: place.client_jwt(aud="https://evil.example"),
    "resource as audience": lambda place: place.client_jwt(aud=place.resource),
    "several audiences": lambda place: place.client_jwt(aud=[place.base, "https://evil.example"]),
    "expired": lambda place: place.client_jwt(exp=int(time.time()) - 31),
    "no expiry": lambda place: place.client_jwt(exp=None),
    "expiry that is none": lambda place: place.client_jwt(exp=1e400),
    "good for long": lambda place: place.client_jwt(exp=int(time.time()) + 3600),
    "made in the future": lambda place: place.client_jwt(iat=int(time.time()) + 60),
    "no id": lambda place: place.client_jwt(jti=None),
    "empty id": lambda place: place.client_jwt(jti=""),
    "long id": lambda place: place.client_jwt(jti="x" * 513),
    "half a character as id": lambda place: place.client_jwt(jti="\ud800"),
    "none": lambda place: forge(place.client_jwt(), "none"),
    "public key as secret": lambda place: forge(place.client_jwt(), "HS256", ec_key("signer")),
    "an ID-JAG": lambda place: place.client_jwt(head={"typ": "oauth-id-jag+jwt"}),
    "an access token": lambda place: place.client_jwt(head={"typ": "at+jwt"}),
    "text": lambda place: "not.a.jwt",
    "long": lambda place: place.client_jwt(more="x" * 20_000),
}


@pytest.mark.spec("XAUTH-03")
@pytest.mark.parametrize("what", BAD_CLIENT_JWTS)
def test_what_a_client_says_of_itself_must_be_right_in_all(place: Place, what: str) -> None:
    status, told = place.ask_with_key(BAD_CLIENT_JWTS[what](place))
    assert (status, told["error"]) == (401, "invalid_client")
    assert "access_token" not in told
    assert "The token" not in told["error_description"]  # there is none yet: it is the client's word that is wrong


@pytest.mark.spec("XAUTH-03")
def test_a_client_that_signs_with_another_key_is_told_so(place: Place) -> None:
    told = place.ask_with_key(place.client_jwt(key=ec_key("other")))[1]["error_description"]
    assert told == "The client is not authenticated: The client assertion is not signed by a key of its issuer."


@pytest.mark.spec("XAUTH-03")
def test_what_a_client_says_of_itself_is_good_once(place: Place) -> None:
    said = place.client_jwt()
    assert place.ask_with_key(said)[0] == 200
    status, told = place.ask_with_key(said)
    assert (status, told["error"]) == (401, "invalid_client")
    assert "used before" in told["error_description"]


@pytest.mark.spec("XAUTH-03")
def test_what_a_client_says_of_itself_need_not_say_when(place: Place) -> None:
    assert place.ask_with_key(place.client_jwt(iat=None))[0] == 200


def test_a_client_that_names_another_kind_of_assertion_or_another_id(place: Place) -> None:
    assert place.ask_with_key(place.client_jwt(), client_assertion_type=None)[1]["error"] == "invalid_request"
    status, told = place.ask_with_key(place.client_jwt(), client_assertion_type="saml")
    assert (status, told["error"]) == (401, "invalid_client")
    assert place.ask_with_key(place.client_jwt(), client_id="reporter")[1]["error"] == "invalid_client"
    assert place.ask_with_key(place.client_jwt(), client_id="signer")[0] == 200


@pytest.mark.spec("XAUTH-03")
def test_nobody_registers_as_a_program(place: Place) -> None:
    body = {"redirect_uris": [REDIRECT], "grant_types": ["authorization_code", CLIENT_CREDENTIALS, JWT_BEARER]}
    answer = Browser(place.base).send("POST", "/register", json.dumps(body), {"Content-Type": "application/json"})
    told = json.loads(answer.body)
    assert told["grant_types"] == ["authorization_code"]
    who = {"client_id": told["client_id"], "client_secret": told["client_secret"]}
    for grant in (CLIENT_CREDENTIALS, JWT_BEARER):
        assert place.ask(grant_type=grant, resource=place.resource, **who)[1]["error"] == "unauthorized_client"


def test_a_client_of_people_may_have_a_key_as_well(place: Place) -> None:
    verifier, challenge = pkce()
    request = {"response_type": "code", "code_challenge": challenge, "code_challenge_method": "S256"}
    code = log_in(Browser(place.base), client_id="keyed", resource=place.resource, **request)["code"]
    given = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    assert place.ask(client_id="keyed", **given)[1]["error"] == "invalid_client"
    signed = place.client_jwt(iss="keyed", sub="keyed", key=ec_key("keyed"))
    status, told = place.ask_with_key(signed, **given)
    assert (status, "refresh_token" in told, told["scope"]) == (200, True, "read")


# --- users that a company's identity provider vouches for


@pytest.mark.spec("XAUTH-04", "XAUTH-05", "XAUTH-06")
async def test_a_company_vouches_for_its_user(place: Place) -> None:
    place.asked.clear()
    provider = IdentityProvider("chat-at-idp", "the id token", token_endpoint=f"{place.idp}/token", issuer=place.idp)
    seen = await who(place, EnterpriseManaged("chat", provider, client_secret=SECRET))
    assert (seen["subject"], seen["client"], seen["scopes"]) == (f"{place.idp}#U1", "chat", ["read"])
    asked = place.exchanged[-1]
    assert (asked["audience"], asked["resource"], asked["subject_token"]) == (
        place.base,
        place.resource,
        "the id token",
    )
    assert "/authorize" not in place.asked  # nobody was sent anywhere
    assert "/register" not in place.asked


@pytest.mark.spec("XAUTH-06")
def test_an_id_jag_makes_a_token_for_its_resource_and_no_refresh_token(place: Place) -> None:
    status, told = place.ask_with_jag(place.id_jag(resource=OTHER), resource=None)
    assert (status, told["scope"], "refresh_token" in told) == (200, "read", False)
    claims = claims_of(told["access_token"])
    assert (claims["aud"], claims["client_id"], claims["sub"]) == (OTHER, "chat", f"{place.idp}#U1")


BAD_ID_JAGS: dict[str, tuple[Any, str]] = {
    "typ": (lambda place: place.id_jag(head={"typ": "JWT"}), "no ID-JAG"),
    "no typ": (lambda place: place.id_jag(head={"typ": None}), "no ID-JAG"),
    "access token": (lambda place: place.id_jag(head={"typ": "at+jwt"}), "no ID-JAG"),
    "audience": (lambda place: place.id_jag(aud="https://evil.example"), "another resource"),
    "endpoint as audience": (lambda place: place.id_jag(aud=f"{place.base}/token"), "another resource"),
    "slash": (lambda place: place.id_jag(aud=f"{place.base}/"), "another resource"),
    "several audiences": (
        lambda place: place.id_jag(aud=[place.base, "https://evil.example"]),
        "more than one audience",
    ),
    "no audience": (lambda place: place.id_jag(aud=None), "`aud`"),
    "issuer": (lambda place: place.id_jag(iss="https://evil.example"), "is not trusted here"),
    "the server itself": (lambda place: place.id_jag(iss=place.base), "is not trusted here"),
    "no issuer": (lambda place: place.id_jag(iss=None), "is not trusted here"),
    "expired": (lambda place: place.id_jag(exp=int(time.time()) - 31), "expired"),
    "no expiry": (lambda place: place.id_jag(exp=None), "`exp`"),
    "good for long": (lambda place: place.id_jag(exp=int(time.time()) + 86_400), "expire within"),
    "made in the future": (lambda place: place.id_jag(iat=int(time.time()) + 60), "not valid yet"),
    "no time": (lambda place: place.id_jag(iat=None), "`iat`"),
    "no subject": (lambda place: place.id_jag(sub=None), "`sub`"),
    "no id": (lambda place: place.id_jag(jti=None), "`jti`"),
    "foreign client": (lambda place: place.id_jag(client_id="other"), "another client"),
    "no client": (lambda place: place.id_jag(client_id=None), "another client"),
    "none": (lambda place: forge(place.id_jag(), "none"), "algorithm"),
    "public key as secret": (lambda place: forge(place.id_jag(), "HS256", rsa_key("idp")), "algorithm"),
    "not allowed": (lambda place: place.id_jag(alg="RS384"), "algorithm"),
    "other key": (lambda place: place.id_jag(key=rsa_key("other")), "not signed"),
    "key id": (lambda place: place.id_jag(head={"kid": "unknown"}), "not signed"),
    "resource that is none": (lambda place: place.id_jag(resource=3), "resource of the token cannot be read"),
    "resources": (lambda place: place.id_jag(resource=[place.resource]), "resource of the token cannot be read"),
    "scopes": (lambda place: place.id_jag(scope=["read"]), "cannot be read"),
    "no scope at all": (lambda place: place.id_jag(scope=""), "cannot be read"),
    "blank scopes": (lambda place: place.id_jag(scope="  "), "cannot be read"),
    "half a character": (lambda place: place.id_jag(jti="\ud800"), "`jti`"),
    "half a character as subject": (lambda place: place.id_jag(sub="\udfff"), "`sub`"),
    "bound to a key": (lambda place: place.id_jag(cnf={"jkt": "x"}), "bound to a key"),
    "text": (lambda place: "x", "is not trusted here"),
    "long": (lambda place: place.id_jag(more="x" * 20_000), "is not trusted here"),
}


@pytest.mark.spec("XAUTH-06")
@pytest.mark.parametrize("what", BAD_ID_JAGS)
def test_an_id_jag_must_be_right_in_all(place: Place, what: str) -> None:
    make, words = BAD_ID_JAGS[what]
    status, told = place.ask_with_jag(make(place))
    assert (status, told["error"]) == (400, "invalid_grant")
    assert words in told["error_description"]


@pytest.mark.spec("XAUTH-06")
def test_an_id_jag_may_spell_its_resource_as_it_likes(place: Place) -> None:
    for named, asked in (("HTTPS://Other.example/mcp", OTHER), (OTHER, "https://OTHER.example/mcp")):
        status, told = place.ask_with_jag(place.id_jag(resource=named), resource=asked)
        assert status == 200
        assert jwt.decode(told["access_token"], options={"verify_signature": False})["aud"] == OTHER


@pytest.mark.spec("XAUTH-06")
@pytest.mark.parametrize(
    ("named", "asked", "granted"),
    [
        (None, OTHER, OTHER),  # it need not name one: then the request does
        (OTHER, None, OTHER),
        (OTHER, OTHER, OTHER),
        (None, None, None),  # there are two: which?
        (None, "https://evil.example/mcp", None),
        ("https://evil.example/mcp", None, None),
        ("https://evil.example/mcp", "https://evil.example/mcp", None),
        (OTHER, "https://evil.example/mcp", None),
        ("https://evil.example/mcp", OTHER, None),
    ],
)
def test_the_resource_of_an_id_jag(place: Place, named: str | None, asked: str | None, granted: str | None) -> None:
    status, told = place.ask_with_jag(place.id_jag(resource=named), resource=asked)
    if granted is None:
        assert (status, told["error"]) == (400, "invalid_target")
    else:
        assert (status, claims_of(told["access_token"])["aud"]) == (200, granted)


@pytest.mark.spec("XAUTH-06")
@pytest.mark.parametrize(
    ("cnf", "key", "is_good"),
    [
        (bound_to("first"), "first", True),
        (bound_to("first"), "other", False),
        (bound_to("first"), None, False),
        ({"jkt": ""}, None, False),
        ("text", "first", False),
        (None, "first", True),  # it need not be bound for the token to be
    ],
)
def test_an_id_jag_that_is_bound_to_a_key(place: Place, cnf: Any, key: str | None, is_good: bool) -> None:
    made = {} if key is None else {"DPoP": proof_for("", url=f"{place.base}/token", key=key, ath=None)}
    given = {"grant_type": JWT_BEARER, "client_id": "chat", "client_secret": SECRET, "resource": place.resource}
    status, told = place.ask(made, assertion=place.id_jag(cnf=cnf), **given)
    if is_good:
        assert (status, claims_of(told["access_token"])["cnf"]) == (200, bound_to(key or ""))
    else:
        assert (status, told["error"]) == (400, "invalid_grant")
        assert "bound to a key" in told["error_description"]


@pytest.mark.spec("XAUTH-06")
def test_scopes_of_an_id_jag_that_cannot_be_had(place: Place) -> None:
    status, told = place.ask_with_jag(place.id_jag(scope="admin root"))
    assert (status, told["error"]) == (400, "invalid_scope")


def test_a_grant_without_what_it_takes_is_incomplete(place: Place) -> None:
    who = {"client_id": "chat", "client_secret": SECRET}
    for fields in ({"grant_type": JWT_BEARER}, {"grant_type": JWT_BEARER, "assertion": ""}, {}, {"grant_type": ""}):
        status, told = place.ask(**who, **fields)
        assert (status, told["error"]) == (400, "invalid_request")


@pytest.mark.spec("XAUTH-06")
def test_an_id_jag_stays_good_when_the_proof_with_it_is_not_taken(place: Place) -> None:
    used, fresh = ({"DPoP": proof_for("", url=f"{place.base}/token", ath=None)} for _ in range(2))
    asked = {"grant_type": JWT_BEARER, "client_id": "chat", "client_secret": SECRET, "resource": place.resource}
    assert place.ask(used, **asked, assertion=place.id_jag())[0] == 200
    jag = place.id_jag()
    assert place.ask(used, **asked, assertion=jag)[1]["error"] == "invalid_dpop_proof"
    assert place.ask(fresh, **asked, assertion=jag)[0] == 200


@pytest.mark.spec("XAUTH-06")
def test_an_id_jag_is_good_once_and_only_when_it_was_good(place: Place) -> None:
    jag = place.id_jag()
    assert place.ask_with_jag(jag, scope="write")[1]["error"] == "invalid_scope"
    assert place.ask_with_jag(jag, client_id="other")[1]["error"] == "invalid_grant"
    assert place.ask_with_jag(jag)[0] == 200  # what was refused did not use it up
    status, told = place.ask_with_jag(jag)
    assert (status, told["error"]) == (400, "invalid_grant")
    assert "used before" in told["error_description"]


@pytest.mark.spec("XAUTH-06")
def test_of_many_who_show_an_id_jag_at_once_one_gets_a_token(place: Place) -> None:
    jag = place.id_jag()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: place.ask_with_jag(jag)[0], range(8)))
    assert sorted(answers) == [200] + [400] * 7


@pytest.mark.spec("XAUTH-06")
@pytest.mark.parametrize(
    ("vouched", "asked", "granted"),
    [
        ("read", "read write", "read"),
        ("read write", "write", "write"),
        ("read write", None, "read write"),
        (None, "write", "write"),
        ("read admin", None, "read"),
        ("read", "write", None),
    ],
)
def test_of_an_id_jag_come_the_scopes_that_all_agree_on(
    place: Place, vouched: str | None, asked: str | None, granted: str | None
) -> None:
    status, told = place.ask_with_jag(place.id_jag(scope=vouched), scope=asked)
    if granted is None:
        assert (status, told["error"]) == (400, "invalid_scope")
    else:
        assert told["scope"] == claims_of(told["access_token"])["scope"] == granted


@pytest.mark.spec("XAUTH-06")
def test_only_a_client_that_proves_who_it_is_acts_for_a_user(place: Place) -> None:
    jag = place.id_jag(client_id="open")
    status, told = place.ask_with_jag(jag, client_id="open", client_secret=None)
    assert (status, told["error"]) == (400, "unauthorized_client")
    assert place.ask_with_jag(place.id_jag(), client_secret="wrong")[0] == 401


@pytest.mark.spec("XAUTH-06")
async def test_who_a_vouched_user_is_here_may_be_said_by_a_function() -> None:
    async def by_mail(claims: Any) -> str | None:
        return {"ann@example.com": "ann"}.get(claims.get("email"))

    issuer = TrustedIssuer("https://idp.example", keys=[rsa_jwk("idp")], subject=by_mail)
    assert await issuer.subject_of({"sub": "U1", "email": "ann@example.com"}) == "ann"
    assert await issuer.subject_of({"sub": "U2", "email": "eve@example.com"}) is None


def test_a_user_whom_the_function_does_not_know(place: Place) -> None:
    async def nobody(_: Any) -> None:
        return None

    trusted, place.server.trusted_issuers[place.idp]._subject = place.server.trusted_issuers[place.idp], nobody
    try:
        assert "not known here" in place.ask_with_jag(place.id_jag())[1]["error_description"]
    finally:
        trusted._subject = None


def test_a_provider_whose_keys_cannot_be_had_is_no_refusal(place: Place) -> None:
    place.server.trusted_issuers["https://gone.example"] = TrustedIssuer(
        "https://gone.example", "http://127.0.0.1:9/jwks"
    )
    try:
        status, told = place.ask_with_jag(place.id_jag(iss="https://gone.example"))
    finally:
        del place.server.trusted_issuers["https://gone.example"]
    assert (status, told["error"]) == (503, "temporarily_unavailable")


# --- programs that their platform vouches for


def workload_token(place: Place, **changes: Any) -> str:
    now = int(time.time())
    claims = {"iss": place.platform, "sub": "job:nightly", "aud": place.base, "iat": now, "exp": now + 3600, **changes}
    head = claims.pop("head", None)
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, ec_key("platform"), "ES256", headers=head)


@pytest.mark.spec("XAUTH-09")
async def test_a_platform_vouches_for_its_program(place: Place) -> None:
    seen = await who(place, WorkloadIdentity("open", workload_token(place), scopes=["read"]))
    assert (seen["subject"], seen["client"]) == ("open", "open")


@pytest.mark.parametrize("changes", [{}, {"iat": None}, {"aud": "/token"}, {"jti": "of a file"}])
def test_what_a_platform_says_can_be_shown_again(place: Place, changes: dict[str, Any]) -> None:
    more = {"aud": f"{place.base}{changes['aud']}"} if "aud" in changes else changes
    given = {"grant_type": JWT_BEARER, "client_id": "open", "assertion": workload_token(place, **more)}
    assert [place.ask(**given, resource=place.resource)[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": "job:other"},
        {"iat": int(time.time()) + 600},
        {"aud": "https://evil.example"},
        {"exp": int(time.time()) - 60},
        {"exp": int(time.time()) + 7 * 86_400},
        {"head": {"typ": "at+jwt"}},
        {"head": {"typ": "oauth-id-jag+jwt"}},
    ],
)
def test_what_a_platform_says_must_be_right_in_all(place: Place, changes: dict[str, Any]) -> None:
    token = workload_token(place, **changes)
    status, told = place.ask(grant_type=JWT_BEARER, client_id="open", assertion=token, resource=place.resource)
    assert (status, told["error"]) == (400, "invalid_grant")


def test_a_platform_vouches_for_no_users_and_for_no_other_client(place: Place) -> None:
    who = {"client_id": "chat", "client_secret": SECRET}
    token = workload_token(place)
    assert place.ask(grant_type=JWT_BEARER, assertion=token, **who)[1]["error"] == "invalid_grant"


async def test_a_login_that_is_refused_is_one_clear_error(place: Place) -> None:
    with pytest.raises(AuthorizationFailed, match="check the client id and its secret or key"):
        await who(place, ClientCredentials("signer", private_key=pem_of("other")))
