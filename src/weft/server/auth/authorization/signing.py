"""Access tokens: JWTs of RFC 9068, signed with the server's key, for one resource, for minutes."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.server.auth.authorization.grants import Grant
from weft.server.auth.dpop import thumbprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["Signer"]


class Signer:
    """Signs tokens with ES256."""

    def __init__(self, pem: str | None) -> None:
        from jwt.algorithms import ECAlgorithm

        self._key = _read(pem)
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.kid = thumbprint(public)
        self.jwks: dict[str, Any] = {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "ES256"}]}

    def __repr__(self) -> str:
        return f"<Signer {self.kid}>"  # never the key

    def sign(self, issuer: str, grant: Grant, seconds: float) -> str:
        """A token for what was granted."""
        import jwt

        now = int(time.time())
        claims = {
            "iss": issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": grant.client_id,
            "scope": " ".join(grant.scopes),
            "iat": now,
            "exp": now + int(seconds),
            "jti": secrets.token_urlsafe(16),
        }
        return jwt.encode(claims, self._key, "ES256", headers={"typ": "at+jwt", "kid": self.kid})


def _read(pem: str | None) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if pem is None:
        return generate_private_key(SECP256R1())
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise UsageError(
            "key= is no private key that tokens can be signed with. Make one with: "
            "openssl ecparam -name prime256v1 -genkey -noout"
        )
    return key
