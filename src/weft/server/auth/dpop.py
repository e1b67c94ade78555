"""Check DPoP proofs (RFC 9449): a token that is bound to a key is valid only if the client proves that it has the key.

A proof is a JWT for one request. It names the method, the URL and the token of the request, and the time when the proof
was made. A proof can be used once, by default within a minute. A request to the token endpoint has no token yet; the
token that is issued there is bound to the key of the proof. Used proofs are recorded in the backend's store, which
workers share. Each process also counts the used proofs of each caller, to limit their number.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from weft.backends import Backend
from weft.errors import UsageError, WeftError
from weft.protocol.request_state import KeyRing, StateRefused
from weft.protocol.schema import is_object
from weft.server.auth.keys import PRIVATE_MEMBERS, check_algorithms, fits
from weft.server.calls.connection import TokenInfo, as_time
from weft.server.calls.shares import Shares

_MOST_BYTES = 8 * 1024  # Largest size of a proof.
_MOST_ID = 256  # Longest id of a proof, in characters.
_MOST_SEEN = 200_000  # Maximum number of used proofs that one process remembers; half of it for one caller.
_NONCE_SECONDS = 300  # How long a nonce is valid.
_NONCE = b"dpop nonce"  # Binding of encrypted nonces, so that no other encrypted value is accepted as one.
# Members of a key that its thumbprint is made of, by key type (RFC 7638, 3.2).
_MEMBERS = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
_PORTS = {"https": 443, "http": 80}  # Default ports.


@dataclass(kw_only=True)
class Dpop:
    """Settings for DPoP: access tokens that are bound to a key of the client.

    A token that is bound to a key is accepted only with a proof. With `required`, tokens that are not bound to a key
    are rejected. With `nonces`, a proof must repeat a nonce that the server sent shortly before. `window` is the
    greatest age of a proof in seconds. `algorithms` are the accepted signature algorithms of proofs.
    """

    required: bool = False
    nonces: bool = False
    window: float = 60.0
    algorithms: Sequence[str] = ("ES256", "EdDSA")

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 600:
            raise UsageError(f"Dpop(window={self.window!r}) is not possible: a proof is valid for 1 to 600 seconds.")
        self.algorithms = check_algorithms(self.algorithms)


class ProofRefused(WeftError):
    """Raised if a DPoP proof is not valid.

    `error` is the error code for the challenge. If there is a `nonce`, the client's next proof must repeat it.
    """

    def __init__(self, message: str, *, error: str = "invalid_dpop_proof", nonce: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.nonce = nonce


class Proof(NamedTuple):
    """A valid DPoP proof: the thumbprint of the key that signed it, and its id."""

    key: str  # Thumbprint of the key.
    id: str


class _ProofServer(Protocol):
    """The attributes of a server that `Proofs` uses: the backend, and the keys that encrypt nonces."""

    @property
    def backend(self) -> Backend: ...
    @property
    def state_keys(self) -> KeyRing: ...


class Proofs:
    """Checks DPoP proofs, and records which proofs were used."""

    def __init__(self, dpop: Dpop, server: _ProofServer) -> None:
        self._dpop = dpop
        self._server = server
        self._seen = Shares()  # The used proofs of each caller.

    async def check(
        self, proofs: Sequence[bytes], *, method: str, urls: Sequence[str], token: str, info: TokenInfo
    ) -> None:
        """Check the DPoP proof of a request, and mark the proof as used.

        The proof must be signed with the key that the token is bound to. Raises `ProofRefused` if the token is not
        bound to a key, or if the proof is missing, not valid or used before.
        """
        bound = bound_key(info.claims)
        if bound is None:
            raise ProofRefused("The token is not bound to a key: send it as Bearer.", error="invalid_token")
        proof = self.read(proofs, method=method, urls=urls, token=token, bound=bound)
        await self.use(proof, caller=info.principal)  # One caller may have many keys.

    def read(
        self,
        proofs: Sequence[bytes],
        *,
        method: str,
        urls: Sequence[str],
        token: str | None = None,
        bound: str | None = None,
    ) -> Proof:
        """Return the DPoP proof of a request, but do not mark it as used. Raise `ProofRefused` if it is not valid.

        `proofs` are the values of the DPoP header; there must be exactly one. The proof must be for `method` and for
        one of `urls`. If `token` is given, the proof must be for that token. If `bound` is given, it is the thumbprint
        of the key that the proof must be signed with.
        """
        if len(proofs) != 1 or len(proofs[0]) > _MOST_BYTES:
            raise ProofRefused("A token that is bound to a key needs exactly one proof, in the DPoP header.")
        jwk, claims = self._read(proofs[0].decode("latin-1"), needs_token=token is not None)
        key = thumbprint(jwk)
        if bound is not None and not hmac.compare_digest(key.encode(), bound.encode()):
            raise ProofRefused("The proof is signed with another key than that of the token.", error="invalid_token")
        self._check_claims(claims, method, urls)
        if token is not None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=")
            if not hmac.compare_digest(str(claims["ath"]).encode(errors="replace"), digest):
                raise ProofRefused("The proof is for another token.")
        if self._dpop.nonces:
            self._check_nonce(claims.get("nonce"))
        return Proof(key, claims["jti"])

    def _read(self, proof: str, *, needs_token: bool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the public key that a proof contains, and the claims of the proof.

        Raises `ProofRefused` if the proof is malformed, or is not signed with that key. With `needs_token`, the proof
        must have the claim `ath`, which is a hash of the token.
        """
        import jwt

        try:
            head = jwt.get_unverified_header(proof)
            algorithm, jwk = str(head.get("alg")), head.get("jwk")
            if head.get("typ") != "dpop+jwt" or algorithm not in self._dpop.algorithms or "crit" in head:
                raise ProofRefused(f"The proof must be a dpop+jwt signed with {' or '.join(self._dpop.algorithms)}.")
            if not is_object(jwk) or PRIVATE_MEMBERS & jwk.keys() or not fits(jwk, algorithm):
                raise ProofRefused("The proof must carry the public key that it is signed with.")
            required = ["jti", "htm", "htu", "iat", *(["ath"] if needs_token else [])]
            options: Any = {"require": required, "verify_iat": False, "verify_aud": False}
            claims = jwt.decode(proof, jwt.PyJWK(jwk, algorithm), algorithms=[algorithm], options=options)
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            # Older releases of PyJWT raise more than PyJWTError.
            raise ProofRefused("The proof cannot be read, or is not signed with the key that it carries.") from None
        return jwk, claims

    def _check_claims(self, claims: Mapping[str, Any], method: str, urls: Sequence[str]) -> None:
        jti, htu = claims["jti"], claims["htu"]
        if not isinstance(jti, str) or not 0 < len(jti) <= _MOST_ID:
            raise ProofRefused(f"The `jti` of the proof must be a text of 1 to {_MOST_ID} characters.")
        if claims["htm"] != method:
            raise ProofRefused("The proof is for another method.")
        if not isinstance(htu, str) or _plain(htu) not in {_plain(url) for url in urls}:
            raise ProofRefused("The proof is for another URL.")
        made = as_time(claims["iat"])
        if made is None or abs(time.time() - made) > self._dpop.window:
            raise ProofRefused(f"The proof must be made within {self._dpop.window:g} s of its use. Check the clock.")

    def _check_nonce(self, nonce: object) -> None:
        now = int(time.time())
        try:
            self._server.state_keys.open(str(nonce), binding=_NONCE, now=now)
        except StateRefused:
            fresh = self._server.state_keys.seal(b"", binding=_NONCE, expires=now + _NONCE_SECONDS)
            text = "The proof must repeat the nonce of the DPoP-Nonce header."
            raise ProofRefused(text, error="use_dpop_nonce", nonce=fresh) from None

    async def use(self, proof: Proof, *, caller: str | None = None) -> None:
        """Mark a proof as used, for all workers. `caller` is the user of the proof (default: the key of the proof).

        Raises `ProofRefused` if the proof was used before, or if the caller has used too many proofs recently.
        """
        # A proof may be dated up to `window` in the future, and is valid for `window` after its date.
        keep = 2 * self._dpop.window
        mark = "dpop:" + hashlib.sha256(f"{proof.key} {proof.id}".encode(errors="surrogatepass")).hexdigest()
        if mark in self._seen:
            raise ProofRefused("The proof was used before: make a new one for each request.")
        if not self._seen.take(mark, caller or proof.key, most=_MOST_SEEN, seconds=keep):
            raise ProofRefused(f"Too many proofs were used in the last {keep:g} seconds. Try again later.")
        is_new = False
        try:
            is_new = await self._server.backend.store.swap(mark, None, b"1", ttl=keep)
        finally:
            if not is_new:
                self._seen.release(mark)
        if not is_new:
            raise ProofRefused("The proof was used before: make a new one for each request.")


def bound_key(claims: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of the key that a token with these claims is bound to, or None if it is not bound."""
    cnf = claims.get("cnf")
    bound = cast("Mapping[str, Any]", cnf).get("jkt") if isinstance(cnf, Mapping) else None
    return bound if isinstance(bound, str) else None


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """Return the thumbprint of a JSON Web Key (RFC 7638).

    >>> thumbprint({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"})
    'kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k'
    """
    members = {name: jwk.get(name) for name in _MEMBERS.get(str(jwk.get("kty")), ("kty",))}
    digest = hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _plain(url: str) -> tuple[str, str, int | None, str] | None:
    """Split a URL into scheme, host, port and path, to compare URLs. Return None if the URL is malformed."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme), parts.path or "/"
    except ValueError:
        return None
