"""Proofs that whoever shows a token holds the key it is bound to (RFC 9449, XAUTH-09).

Owns the key, the proofs, and the nonces that servers hand out. A proof is for one request: it is never sent twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from typing import Any

__all__ = ["ALGORITHM", "DpopKey", "Nonces"]

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
