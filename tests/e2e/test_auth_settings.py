"""What cannot be set up at an authorization server is told at once, with what is wanted; and one that has no users."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm

from support import serve
from support.logging_in import REDIRECT, Browser
from support.tokens import ec_jwk, ec_key, rsa_jwk, rsa_key
from weft.authorization import (
    CLIENT_CREDENTIALS,
    JWT_BEARER,
    AuthorizationServer,
    RegisteredClient,
    TrustedIssuer,
    hash_password,
)
from weft.errors import UsageError
from weft.server.auth import JwtVerifier

RESOURCE = "https://mcp.example/mcp"
USERS = {"ann": "correct horse"}
PROGRAM = RegisteredClient(client_id="reporter", grant_types=(CLIENT_CREDENTIALS,), scopes=("read",))
NIGHTLY = RegisteredClient(client_id="nightly", grant_types=(JWT_BEARER,))
PROVIDER = TrustedIssuer("https://idp.example", keys=[rsa_jwk("idp")])
PLATFORM = TrustedIssuer("https://platform.example", keys=[ec_jwk("platform")], workloads={"job": "nightly"})


def make(**options: Any) -> AuthorizationServer:
    good: dict[str, Any] = {"resources": [RESOURCE], "users": USERS, "scopes": ["read"]}
    return AuthorizationServer("http://127.0.0.1:9", **{**good, **options})


def public_pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private_pem(key: Any) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (PROGRAM, "it must authenticate"),
        (RegisteredClient(client_id="a"), "needs redirect_uris"),
        (RegisteredClient(client_id="", redirect_uris=(REDIRECT,)), "empty client_id"),
        (RegisteredClient(client_id="a", redirect_uris=(REDIRECT,), grant_types=(JWT_BEARER,)), "and none without"),
        (RegisteredClient(client_id="a", redirect_uris=(REDIRECT,), grant_types=("password",)), "does not support"),
        (PROGRAM.with_secret("s").with_keys([ec_jwk()]), "one of the two"),
        (
            RegisteredClient(client_id="a", grant_types=(CLIENT_CREDENTIALS, JWT_BEARER)).with_secret("s"),
            "a separate client id",
        ),
        (
            RegisteredClient(client_id="ann", grant_types=(CLIENT_CREDENTIALS,)).with_secret("s"),
            "a program and of a user",
        ),
        (RegisteredClient(client_id="a", redirect_uris=(REDIRECT,), scopes=("admin",)), "name it in scopes="),
    ],
)
def test_a_client_that_could_not_work_is_told_at_once(client: RegisteredClient, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(clients=[client])


@pytest.mark.spec("ASEC-05")
@pytest.mark.parametrize(
    "uri",
    [
        "javascript:alert(1)",
        "http://evil.example/cb",
        "https://é.example/cb",
        "https://a.example/cb#x",
        "https://u@a.example/cb",
        "nonsense",
    ],
)
def test_no_code_is_sent_where_it_is_not_safe(uri: str) -> None:
    """Whoever says so: what holds for clients that register themselves holds for those that are known."""
    with pytest.raises(
        UsageError, match=r"which is not safe for sending codes\. Give a full https:// URL without"
    ) as told:
        make(clients=[RegisteredClient(client_id="a", redirect_uris=(REDIRECT, uri))])
    assert f"The client 'a' has the redirect URI {uri!r}" in str(told.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": [PROGRAM.with_secret("s"), PROGRAM.with_keys([ec_jwk()])]}, "'reporter' twice"),
        (
            {"trusted_issuers": [PROVIDER, TrustedIssuer(PROVIDER.issuer, keys=[ec_jwk()], workloads={"a": "b"})]},
            "twice",
        ),
        ({"trusted_issuers": [PLATFORM]}, "names 'nightly': add it to clients="),
        (
            {
                "clients": [RegisteredClient(client_id="nightly", grant_types=(CLIENT_CREDENTIALS,)).with_secret("s")],
                "trusted_issuers": [PLATFORM],
            },
            "with the grant JWT_BEARER",
        ),
        (
            {"clients": [NIGHTLY], "trusted_issuers": [PLATFORM], "users": {"nightly": "x"}},
            "'nightly' is the name of a program and of a user",
        ),
        ({"clients": [NIGHTLY.with_secret("s")]}, "but no trusted issuer"),
        ({"clients": [NIGHTLY], "trusted_issuers": [PROVIDER]}, "but no trusted issuer"),  # it proves nothing
        *(({"grace_seconds": seconds}, "grace_seconds= must be 0 to 60") for seconds in (-1, 61)),
        *(({"access_seconds": seconds}, "access_seconds= must be 1 to 3600") for seconds in (0, 3601)),
        ({"users": None}, "users= is missing"),
        *(
            ({"users": {"ann": word}}, "has a text for 'ann' that begins with .* not made by hash_password")
            for word in (
                "scrypt$",
                "scrypt$x",
                "scrypt$AAAA$AAAA",
                hash_password("x")[:-4],
                hash_password("x") + "$AA==",
            )
        ),
        ({"users": None, "clients": [PROGRAM.with_secret("s")], "registration": True}, "users= is missing"),
        (
            {"users": None, "clients": [RegisteredClient(client_id="a", redirect_uris=(REDIRECT,))]},
            "the server has no users who could log in: give users=",
        ),
    ],
)
def test_a_server_that_could_not_work_is_told_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(**options)


def test_an_empty_secret_is_none() -> None:
    with pytest.raises(UsageError, match="empty secret"):
        PROGRAM.with_secret("")


def test_a_server_for_programs_alone_says_so_to_people() -> None:
    server = make(users=None, clients=[PROGRAM.with_secret("s")])
    assert server.metadata()["client_id_metadata_document_supported"] is False
    with serve(server.asgi()) as live:
        browser = Browser(f"http://127.0.0.1:{live.port}")
        page = browser.get("/authorize", client_id="reporter", response_type="code")
        assert (page.status, b"Users cannot log in here" in page.body) == (403, True)
        fields = {"grant_type": CLIENT_CREDENTIALS, "client_id": "reporter", "client_secret": "s"}
        assert browser.post("/token", fields).status == 200
        assert browser.post("/token", {**fields, "grant_type": "authorization_code"}).status == 400


# --- keys

P521 = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP521R1()).public_key(), as_dict=True)
BAD_KEYS: dict[str, tuple[Any, str]] = {
    "private": ([{**ec_jwk(), "d": "AQ"}], "private key. Give the public key"),
    "private PEM": (private_pem(ec_key("first")), "private key. Give the public key"),
    "shared": ([{"kty": "oct", "k": "AQ"}], "shared secret"),
    "shared beside another": ([ec_jwk(), {"kty": "oct", "k": "AQ"}], "shared secret"),
    "of another algorithm": ([P521], "no key for the algorithms RS256, PS256, ES256, EdDSA"),
    "short point": ([{"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}], "type EC that cannot be read. Give a"),
    "impossible point": ([{**ec_jwk("first"), "y": ec_jwk("other")["y"]}], "type EC that cannot be read"),
    "short RSA": (public_pem(rsa.generate_private_key(65537, 1024)), "1024 bits; a safe one has 2048"),
    "X25519 PEM": (public_pem(x25519.X25519PrivateKey.generate()), "signs no tokens. Give a public key for one"),
    "X25519": ([{"kty": "OKP", "crv": "X25519", "x": "A" * 43}], "type OKP that cannot be read"),
    "DSA PEM": (public_pem(dsa.generate_private_key(1024)), "signs no tokens. Give a public key for one"),
    "curve": (public_pem(ec.generate_private_key(ec.BrainpoolP256R1())), "signs no tokens"),
    "text": ("a key", "no public key in PEM"),
    "none": ([], "has no key"),
}


@pytest.mark.parametrize("what", BAD_KEYS)
def test_a_key_that_could_verify_nothing_is_told_at_once(what: str) -> None:
    keys, words = BAD_KEYS[what]
    with pytest.raises(UsageError, match=words):
        PROGRAM.with_keys(keys)
    with pytest.raises(UsageError, match=words):
        TrustedIssuer("https://idp.example", keys=keys)
    with pytest.raises(UsageError, match=words):
        JwtVerifier(keys=keys, issuer="https://idp.example")


@pytest.mark.parametrize("key", [rsa_key("first"), ec_key("first"), ed25519.Ed25519PrivateKey.generate()])
def test_a_public_key_in_pem(key: Any) -> None:
    assert PROGRAM.with_keys(public_pem(key)).keys[0]["kty"] in ("RSA", "EC", "OKP")


def test_a_key_set_may_have_keys_of_another_use() -> None:
    TrustedIssuer("https://idp.example", keys={"keys": [rsa_jwk(), rsa_jwk("second", use="enc"), P521]})
    with pytest.raises(UsageError, match="a key that fits none of"):  # those of a program are chosen by hand
        PROGRAM.with_keys([rsa_jwk(), P521])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one"),
        ({"jwks_uri": "https://a.example", "keys": [rsa_jwk()]}, "exactly one"),
        ({"jwks_uri": "http://a.example/jwks"}, "not safe for sending tokens"),
        ({"keys": [rsa_jwk()], "algorithms": ["HS256"]}, "'HS256'"),
        ({"keys": [rsa_jwk()], "workloads": {}}, "from the `sub` of each"),
        ({"keys": [rsa_jwk()], "subject": lambda claims: "ann"}, "async function"),
    ],
)
def test_a_trusted_issuer_that_could_not_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TrustedIssuer("https://idp.example", **options)
