"""Issue and redeem codes and refresh tokens, and sign access tokens.

- Until the user allows or denies an authorization request, the request is stored, encrypted, in the login page. So
  requests cannot fill the store, and only the browser that opened the page can send the form.
- All codes and tokens of one login are a token family. A code or refresh token can be used once. If it is used again,
  it may have been stolen. Then the whole token family is ended: all its codes and tokens become invalid.
- Within a grace period of some seconds, the same request with a used refresh token gets the same response again,
  because the first response may have been lost.
- Only digests of codes and tokens are stored. Somebody who can read the store cannot use the codes and tokens.
- Access tokens are JWTs (RFC 9068), valid for one resource and some minutes. They contain the id of their family.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from weft.authorization.web import OAuthError, digest
from weft.backends import Store
from weft.errors import UsageError
from weft.protocol.request_state import KeyRing, StateRefused
from weft.server.auth.dpop import thumbprint
from weft.server.auth.tokens import LEEWAY, TokenRefused
from weft.server.auth.verifiers import JwtVerifier
from weft.server.calls.connection import TokenInfo

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


CODE_SECONDS = 60.0  # lifetime of a code
_WAIT_SECONDS = 600.0  # how long a user may take to allow or deny a request
_SEAL_SECONDS = 3600  # how long an encrypted response can be decrypted; longer than any grace period
_SEAL_BYTES = 64 * 1024

TokenAnswer: TypeAlias = dict[str, object]


class _Rights(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a pending request and an issued grant have in common."""

    client_id: str
    scopes: tuple[str, ...]
    resource: str
    redirect_uri: str = ""
    challenge: str = ""  # the PKCE challenge of a code; empty for refresh tokens
    jkt: str = ""  # thumbprint of the key that the code, or the refresh token of a public client, is bound to


class Pending(_Rights, frozen=True, kw_only=True):
    """An authorization request that the user has not allowed or denied yet."""

    client_name: str
    state: str | None


class IssuedGrant(_Rights, frozen=True, kw_only=True):
    """The rights that a user has granted to a client, or the rights of a program."""

    subject: str
    family: str = ""  # id of the token family, which is one login of the user; empty if there was no login


class _StoredGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a code or a refresh token in the store."""

    grant: IssuedGrant
    used_at: float = 0.0  # when the code or token was used, in Unix seconds; 0 if it was not used yet
    asked: str = ""  # digest of the request that used the token
    answer: str = ""  # the response to that request, encrypted; the key is the refresh token


@dataclass(slots=True)
class Grants:
    """Issues and redeems codes and refresh tokens, and keeps their records in a store."""

    store: Store
    ring: KeyRing  # encrypts the requests in login pages
    refresh_seconds: float
    _: KW_ONLY
    grace_seconds: float
    access_seconds: float

    def seal(self, pending: Pending, browser: str) -> str:
        """Encrypt a pending request for the login page, and bind it to `browser`, the value of the browser's cookie."""
        expires = int(time.time() + _WAIT_SECONDS)
        return self.ring.seal(msgspec.json.encode(pending), binding=digest(browser).encode(), expires=expires)

    def open(self, sealed: str, browser: str) -> Pending | None:
        """Decrypt and return the pending request of a login page; None if it is too old or bound to another browser."""
        try:
            payload = self.ring.open(sealed, binding=digest(browser).encode(), now=int(time.time()))
        except StateRefused:
            return None
        return msgspec.json.decode(payload, type=Pending)

    async def decide(self, sealed: str) -> bool:
        """Record that the user has allowed the request in `sealed`; return False if this was recorded before."""
        return await self.store.swap(f"decided:{digest(sealed)}", None, b"1", ttl=_WAIT_SECONDS)

    async def begin(self, pending: Pending, subject: str) -> str:
        """Start a token family for a request that the user `subject` has allowed, and return the authorization code.

        A token family contains all codes and tokens of one login.
        """
        family = secrets.token_urlsafe(16)
        await self.store.put(f"family:{family}", b"1", ttl=self.refresh_seconds)
        rights: dict[str, Any] = {name: getattr(pending, name) for name in _Rights.__struct_fields__}
        return await self._issue("code", IssuedGrant(**rights, subject=subject, family=family), CODE_SECONDS)

    async def read_code(self, code: str) -> IssuedGrant:
        """Return the grant of a code without redeeming the code. Raises OAuthError if the code is not valid."""
        return (await self._find("code", code))[2].grant

    async def redeem_code(self, code: str) -> IssuedGrant:
        """Redeem a code (it cannot be used again), and return its grant. Raises OAuthError if the code is not valid."""
        key, record, kept = await self._find("code", code)
        used = msgspec.json.encode(msgspec.structs.replace(kept, used_at=time.time()))
        if not await self.store.swap(key, record, used, ttl=self.refresh_seconds):
            await self.end(kept.grant.family)  # another request has used the code in the meantime
        await self._check_family("code", kept.grant)  # the family may have ended in the meantime
        return kept.grant

    async def refresh(self, grant: IssuedGrant) -> str:
        """Issue a refresh token for a grant, and return the token."""
        return await self._issue("refresh", msgspec.structs.replace(grant, challenge=""), self.refresh_seconds)

    async def read_refresh(self, token: str) -> IssuedGrant:
        """Return the grant of a refresh token without redeeming the token. The token may have been used before.

        Raises OAuthError if the token is unknown or expired, or if its token family has ended.
        """
        return (await self._find("refresh", token))[2].grant

    async def redeem_refresh(self, token: str, asked: str, make: Callable[[], Awaitable[TokenAnswer]]) -> TokenAnswer:
        """Redeem a refresh token, and return the response that `make` creates.

        `asked` is a digest of the request. If the same request is repeated within the grace period, it gets the same
        response. One atomic step marks the token as used and stores the response. So identical requests in parallel
        also get the same response.

        Raises OAuthError if the token is not valid, or if a different request has used it. If the token is used again
        after the grace period, its token family is ended, and OAuthError is raised.
        """
        key, record, kept = await self._find("refresh", token)
        if not kept.used_at:
            answer = await make()
            used = _StoredGrant(grant=kept.grant, used_at=time.time(), asked=asked, answer=_seal(token, asked, answer))
            if await self.store.swap(key, record, msgspec.json.encode(used), ttl=self.refresh_seconds):
                await self.store.touch(f"family:{kept.grant.family}", ttl=self.refresh_seconds)
                await self._check_family("refresh", kept.grant)  # the family may have ended in the meantime
                return answer
            await self._forget(answer)
            _, _, kept = await self._find("refresh", token)
        if time.time() - kept.used_at >= self.grace_seconds:
            await self.end(kept.grant.family)
            raise _refusal("refresh")
        told = _unseal(token, asked, kept.answer) if kept.asked == asked else None
        if told is None:  # a different request has used the token
            raise _refusal("refresh")
        return told

    async def end(self, family: str) -> None:
        """End a token family: all codes, refresh tokens and access tokens of one login become invalid."""
        # After this time, all access tokens of the family have expired.
        await self.store.put(f"ended:{family}", b"1", ttl=self.access_seconds + 2 * LEEWAY)
        await self.store.delete(f"family:{family}")

    async def has_ended(self, family: str) -> bool:
        """Return whether a token family has ended.

        The record of the end is deleted when all access tokens of the family have expired. Then the result is False.
        """
        return await self.store.get(f"ended:{family}") is not None

    async def _issue(self, kind: str, grant: IssuedGrant, seconds: float) -> str:
        secret = secrets.token_urlsafe(32)
        await self.store.put(f"{kind}:{digest(secret)}", msgspec.json.encode(_StoredGrant(grant=grant)), ttl=seconds)
        return secret

    async def _forget(self, answer: TokenAnswer) -> None:
        """Delete the new refresh token in `answer`, because this response will not be sent."""
        token = answer.get("refresh_token")
        if isinstance(token, str):
            await self.store.delete(f"refresh:{digest(token)}")

    async def _find(self, kind: str, secret: str) -> tuple[str, bytes, _StoredGrant]:
        """Return the store key, the record and the decoded record of a code or a refresh token.

        Raises OAuthError if there is no record, or if its token family has ended. If a code was used before, its token
        family is ended.
        """
        key = f"{kind}:{digest(secret)}"
        record = await self.store.get(key)
        if record is None:
            raise _refusal(kind)
        kept = msgspec.json.decode(record, type=_StoredGrant)
        if kind == "code" and kept.used_at:
            await self.end(kept.grant.family)
        await self._check_family(kind, kept.grant)
        return key, record, kept

    async def _check_family(self, kind: str, grant: IssuedGrant) -> None:
        if await self.store.get(f"family:{grant.family}") is None:
            raise _refusal(kind)


def _seal(token: str, asked: str, answer: TokenAnswer) -> str:
    """Encrypt the response to a refresh request. The key is the refresh token `token`, which is not in the store."""
    expires = int(time.time()) + _SEAL_SECONDS
    return KeyRing([token]).seal(
        msgspec.json.encode(answer), binding=asked.encode(), expires=expires, max_bytes=_SEAL_BYTES
    )


def _unseal(token: str, asked: str, sealed: str) -> TokenAnswer | None:
    try:
        payload = KeyRing([token]).open(sealed, binding=asked.encode(), now=int(time.time()), max_bytes=_SEAL_BYTES)
    except StateRefused:
        return None
    return msgspec.json.decode(payload, type=dict[str, object])


def _refusal(kind: str) -> OAuthError:
    return OAuthError("invalid_grant", f"The {kind} is not valid, or is no longer valid.")


_GRANT_ID = "grant_id"  # the claim that contains the id of the token family


class Signer:
    """Signs access tokens with ES256. `jwks` has the public key for verifiers."""

    def __init__(self, pem: str | None) -> None:
        from jwt.algorithms import ECAlgorithm

        self._key = _read(pem)
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.kid = thumbprint(public)
        self.jwks: dict[str, Any] = {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "ES256"}]}

    def __repr__(self) -> str:
        return f"<Signer {self.kid}>"  # never the key

    def sign(self, issuer: str, grant: IssuedGrant, seconds: float, *, key: str = "") -> str:
        """Return a signed access token for a grant. If `key` is a key's thumbprint, the token is bound to that key."""
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
    """Verifies tokens of an authorization server in the same process, and refuses tokens whose login has ended."""

    def __init__(self, signer: Signer, grants: Grants, issuer: str, leeway: float = LEEWAY) -> None:
        super().__init__(keys=signer.jwks, issuer=issuer, algorithms=["ES256"], leeway=leeway)
        self._grants = grants

    async def __call__(self, token: str) -> TokenInfo | None:
        """Verify a token, and return its claims; raise TokenRefused if it is not valid or its login has ended."""
        info = await super().__call__(token)
        if info is not None:
            await self.recheck(info)
        return info

    async def recheck(self, info: TokenInfo) -> None:
        """Raise TokenRefused if the login that a token belongs to has ended."""
        family = info.claims.get(_GRANT_ID)
        if isinstance(family, str) and await self._grants.has_ended(family):
            raise TokenRefused("The login that the token belongs to has ended; log in again.")


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
            "key= is not a private key on P-256 in PEM, which is needed to sign tokens. Make one with: "
            "openssl ecparam -name prime256v1 -genkey -noout"
        )
    return key
