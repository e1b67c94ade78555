"""An authorization server that is only its keys: tokens as a test wants them, right or wrong, and DPoP proofs."""

import base64
import hashlib
import hmac
import json
import math
import time
import uuid
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from weft.server.auth.dpop import thumbprint

ISSUER = "https://auth.example.com"
RESOURCE = "http://127.0.0.1:8000/mcp"
METADATA = "http://127.0.0.1:8000/.well-known/oauth-protected-resource/mcp"


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def rsa_jwk(name: str = "first", **more: Any) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True), "kid": name, **more}


def ec_jwk(name: str = "first", **more: Any) -> dict[str, Any]:
    return {**ECAlgorithm.to_jwk(ec_key(name).public_key(), as_dict=True), **more}


def claims_for(subject: str = "ann", **changes: Any) -> dict[str, Any]:
    """The claims of a good token. In `changes`, None takes a claim out."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": RESOURCE, "sub": subject, "client_id": "app", "scope": "read", "iat": now}
    merged = {**good, "exp": now + 600, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def token_for(subject: str = "ann", *, key: Any = None, alg: str = "RS256", head: Any = None, **changes: Any) -> str:
    """A token, signed with the key that the issuer published unless another is given."""
    signed = rsa_key("first") if key is None else key
    return jwt.encode(claims_for(subject, **changes), signed, alg, headers={"kid": "first", **(head or {})})


def bound_to(name: str = "first") -> dict[str, Any]:
    """The claim of a token that is bound to a client's key."""
    return {"jkt": thumbprint(ec_jwk(name))}


def proof_for(
    token: str, *, url: str = RESOURCE, method: str = "POST", key: str = "first", head: Any = None, **changes: Any
) -> str:
    """A DPoP proof. In `changes`, None takes a claim out."""
    ath = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
    good = {"jti": uuid.uuid4().hex, "htm": method, "htu": url, "iat": int(time.time()), "ath": ath}
    claims = {name: value for name, value in {**good, **changes}.items() if value is not None}
    public = {name: value for name, value in ec_jwk(key).items() if name != "key_ops"}
    return jwt.encode(claims, ec_key(key), "ES256", headers={"typ": "dpop+jwt", "jwk": public, **(head or {})})


def unsigned(**changes: Any) -> str:
    parts = [{"alg": "none", "typ": "JWT"}, claims_for(**changes)]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


def confused() -> str:
    """Signed with the public key as if that were a shared secret."""
    pem = rsa_key("first").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = {"alg": "HS256", "typ": "JWT", "kid": "first"}
    signed = b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims_for())
    )
    seal = base64.urlsafe_b64encode(hmac.new(pem, signed, hashlib.sha256).digest()).rstrip(b"=")
    return (signed + b"." + seal).decode()


# What is wrong with each, as the sentence that refuses it says.
BAD_TOKENS: dict[str, tuple[Any, str]] = {
    "audience": (lambda: token_for(aud="https://other.example/mcp"), "another resource"),
    "audience prefix": (lambda: token_for(aud=RESOURCE + "/"), "another resource"),
    "no audience": (lambda: token_for(aud=None), "`aud`"),
    "issuer": (lambda: token_for(iss="https://evil.example"), "another authorization server"),
    "no issuer": (lambda: token_for(iss=None), "`iss`"),
    "expired": (lambda: token_for(exp=int(time.time()) - 31), "expired"),
    "no expiry": (lambda: token_for(exp=None), "`exp`"),
    "expiry in a text": (lambda: token_for(exp=str(int(time.time()) + 600)), "`exp` of the access token is not a time"),
    "endless": (lambda: token_for(exp=math.inf), "not valid"),
    "issued in a text": (lambda: token_for(iat=str(int(time.time()))), "`iat` of the access token is not a time"),
    "not yet valid": (lambda: token_for(nbf=int(time.time()) + 60), "not valid yet"),
    "none": (unsigned, "algorithm"),
    "confused": (confused, "algorithm"),
    "not allowed": (lambda: token_for(alg="RS384"), "algorithm"),
    "other key": (lambda: token_for(key=rsa_key("other")), "not signed"),
    "key of another type": (lambda: token_for(key=ec_key("first"), alg="ES256"), "not signed"),
    "other id": (lambda: token_for(head={"kid": "second"}), "not signed"),
    "cut": (lambda: token_for()[:-10], "not signed"),
    "proof": (lambda: token_for(head={"typ": "dpop+jwt"}), "no access token"),
    "critical": (lambda: token_for(head={"crit": ["x"], "x": 1}), "no JWT|no access token"),
    "text": (lambda: "not.a.jwt", "no JWT"),
    "long": (lambda: token_for(extra="x" * 20_000), "too long"),
    "nobody": (lambda: token_for(sub=None, client_id=None), "has no subject"),
    "scopes": (lambda: token_for(scope=3), "scopes"),
}
