"""Access tokens: JWTs of RFC 9068, signed with the server's key, for one resource, for minutes.

A token has the id of its grant in it, so that it can be refused when the grant has ended before the token.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.server.auth.authorization.grants import Grant, Grants
from weft.server.auth.dpop import thumbprint
from weft.server.auth.jwt_verifier import JwtVerifier
from weft.server.auth.verifying import LEEWAY, TokenRefused
from weft.server.context import TokenInfo

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["IssuedTokens", "Signer"]

_GRANT_ID = "grant_id"  # the claim that names the grant of a token, where it can be ended


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

    def sign(self, issuer: str, grant: Grant, seconds: float, *, key: str = "") -> str:
        """Sign a token for what was granted; bound to a client's key, where its thumbprint is given."""
        import jwt

        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": grant.client_id,
            "scope": " ".join(grant.scopes),
            "iat": now,
            "exp": now + int(seconds),
            "jti": secrets.token_urlsafe(16),
        }
        if grant.family:
            claims[_GRANT_ID] = grant.family
        if key:
            claims["cnf"] = {"jkt": key}
        return jwt.encode(claims, self._key, "ES256", headers={"typ": "at+jwt", "kid": self.kid})


class IssuedTokens(JwtVerifier):
    """Verifies the tokens that an authorization server of this process issued; not those of a grant that has ended."""

    def __init__(self, signer: Signer, grants: Grants, issuer: str, leeway: float = LEEWAY) -> None:
        super().__init__(keys=signer.jwks, issuer=issuer, algorithms=["ES256"], leeway=leeway)
        self._grants = grants

    async def __call__(self, token: str) -> TokenInfo | None:
        """Return who bears the token. `TokenRefused` where it is not good."""
        info = await super().__call__(token)
        if info is not None:
            await self.recheck(info)
        return info

    async def recheck(self, info: TokenInfo) -> None:
        """Refuse a token of a grant that has ended meanwhile: a signature stays good, a grant need not."""
        family = info.claims.get(_GRANT_ID)
        if isinstance(family, str) and await self._grants.has_ended(family):
            raise TokenRefused("What the token was granted by has ended: log in again.")


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
