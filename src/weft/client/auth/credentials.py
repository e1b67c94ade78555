"""Keep identities and tokens, and prove possession of DPoP keys.

What is kept of a login: the client's identity at an issuer, and the tokens for one resource.

Owns the two records, their keys in the storage, and how they look when printed: without anything secret in them. Every
key has the issuer in it, so that nothing that one authorization server gave out is ever shown to another (ASD-08,
CREG-12).

Proofs that whoever shows a token holds the key it is bound to (RFC 9449, XAUTH-09).

Owns the key, the proofs, and the nonces that servers hand out. A proof is for one request: it is never sent twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from weft.client.auth.steps import Steps, keep, load

MARGIN_SECONDS = 30.0  # before its end a token is replaced …
_MARGIN_SHARE = 0.3  # … but not before this share of its life is left: some live for seconds

R = TypeVar("R")


@dataclass(slots=True)
class Identity:
    """A client as an authorization server knows it."""

    client_id: str
    issuer: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None  # of the token endpoint; None: chosen by what the issuer offers
    redirect_uris: list[str] = field(default_factory=list[str])
    scope: str | None = None  # what the issuer said that this client may ask for
    secret_expires_at: float = 0  # 0: never


@dataclass(slots=True)
class Token:
    """An access token, where it is from, and what it is good for."""

    access_token: str = field(repr=False)
    issuer: str
    resource: str
    client_id: str
    kind: str = "Bearer"  # or "DPoP"
    granted: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])  # kept so that a step-up loses nothing (AUTH-12)
    obtained_at: float = 0
    expires_at: float | None = None
    refresh_token: str | None = field(default=None, repr=False)
    dpop_key: str | None = field(default=None, repr=False)  # PEM; the token is worth nothing without it

    def __post_init__(self) -> None:
        """ValueError where the key is none: such a record is as good as none."""
        if self.dpop_key is not None:
            DpopKey.from_pem(self.dpop_key)

    @property
    def scopes(self) -> list[str]:
        """Everything that was ever asked for or given."""
        return list(dict.fromkeys([*self.asked, *self.granted]))

    def lacks(self, scopes: Iterable[str]) -> bool:
        """Whether the issuer did not grant all of these."""
        return not set(scopes) <= set(self.granted)

    def is_expired(self, now: float) -> bool:
        """Whether it is known to be over."""
        return self.expires_at is not None and now >= self.expires_at

    def is_due(self, now: float) -> bool:
        """Whether it has expired, or is about to.

        >>> token = Token("secret", "issuer", "resource", "client", obtained_at=1000, expires_at=1002)
        >>> token.is_due(1001), token.is_due(1001.5)
        (False, True)
        """
        if self.expires_at is None:
            return False
        return now >= self.expires_at - min(MARGIN_SECONDS, _MARGIN_SHARE * (self.expires_at - self.obtained_at))


def identity_key(issuer: str) -> str:
    """Where a registered identity is kept."""
    return f"client {issuer}"


def token_key(issuer: str, resource: str) -> str:
    """Where tokens are kept."""
    return f"token {issuer} {resource}"


def server_key(server_url: str) -> str:
    """Where it is kept which token a server takes."""
    return f"server {server_url}"


def binding_key(client_id: str, server_url: str) -> str:
    """Where it is kept which issuer a pre-registered identity was first used with."""
    return f"bound {client_id} {server_url}"


def load_record(key: str, kind: type[R]) -> Steps[R | None]:
    """A record of the storage; one that cannot be read is as good as none."""
    raw = yield from load(key)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def keep_record(key: str, record: object | None) -> Steps[None]:
    """Keep a record; None forgets it."""
    yield from keep(key, None if record is None else msgspec.json.encode(record))


ALGORITHM = "ES256"
_MOST_NONCES = 256


class DpopKey:
    """A key pair, made for one login; its private half is in no repr.

    >>> key = DpopKey.new()
    >>> len(key.proof("POST", "https://auth.example/token?x=1").split("."))
    3
    """

    def __init__(self, private: Any, clock: Callable[[], float] = time.time) -> None:
        from jwt.algorithms import ECAlgorithm

        self._private = private
        self._clock = clock
        self.public: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(private.public_key()))

    @classmethod
    def new(cls) -> DpopKey:
        """A new key."""
        from cryptography.hazmat.primitives.asymmetric import ec

        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: str) -> DpopKey:
        """A key that was kept."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        return cls(load_pem_private_key(pem.encode(), None))

    def pem(self) -> str:
        """The key for keeping. It is a secret."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        pem: bytes = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem.decode()

    def proof(self, method: str, url: str, *, nonce: str | None = None, access_token: str | None = None) -> str:
        """A proof for one request: a fresh id, the method, the URL without its query, and what else is demanded."""
        import jwt

        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("?")[0].partition("#")[0],
            "iat": int(self._clock()),
        }
        if nonce is not None:
            claims["nonce"] = nonce
        if access_token is not None:
            digest = hashlib.sha256(access_token.encode()).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return jwt.encode(claims, self._private, algorithm=ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self.public})


class Nonces:
    """The last nonce of each place. An authorization server's and a resource's are two, also at one origin."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def get(self, place: str) -> str | None:
        """The nonce that a proof for a place has to carry, if any."""
        return self._last.get(place)

    def put(self, place: str, nonce: str | None) -> bool:
        """Take note of a nonce; True when it is a new one."""
        if nonce is None or self._last.get(place) == nonce or len(nonce) > 1024:
            return False
        if len(self._last) >= _MOST_NONCES:
            self._last.clear()
        self._last[place] = nonce
        return True
