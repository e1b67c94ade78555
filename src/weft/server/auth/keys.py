"""Find the keys that sign tokens, and read signed JWTs.

The keys that sign tokens: a JSON Web Key Set, given or fetched, and which key fits which algorithm.

A fetched set is kept for an hour. A signature that is of none of its keys makes it fetched anew, at most every half
minute: keys may be rotated at any time, with or without ids, and nobody can make this server ask more often by making
up tokens.

A JWT that somebody else signed: read, and held against what is expected of it. Whose it is, others judge.

One reader for all kinds of them. Each kind has its `typ`, so that one is never taken for another; the algorithm is one
of a list, and the key one that is made for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weft.errors import UsageError
from weft.net.fetch import FetchFailed, fetch_json
from weft.net.urls import check_url
from weft.server.auth.tokens import TokenRefused, VerifierFailed, read_time

if TYPE_CHECKING:
    from jwt import PyJWK


log = logging.getLogger("weft.auth")

# The key type and curve that each algorithm is for. All are asymmetric: whoever can verify cannot sign, and a public
# key can never be taken for a shared secret. `none` is in no list (AUTH-29).
ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", None),
}

DEFAULT_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")

KEEP_SECONDS = 3600.0
RETRY_SECONDS = 30.0
FIRST_RETRY_SECONDS = 1.0  # while there are no keys at all
MOST_KEYS = 64
MOST_TRIED = 8  # keys that one signature is held against
LEAST_RSA_BITS = 2048  # RFC 7518, 3.3

PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})  # no public key has them

KeysGiven: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]] | str"  # a JWK set, a list of JWKs, a PEM

_WANTED = f"Give the public key of one that signs with {', '.join(DEFAULT_ALGORITHMS)}."


def check_algorithms(algorithms: Sequence[str]) -> tuple[str, ...]:
    """An allow-list of algorithms; UsageError where one is not asymmetric, or unknown."""
    listed = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    wrong = [name for name in listed if name not in ALGORITHMS]
    if wrong or not listed:
        raise UsageError(
            f"algorithms= has {', '.join(map(repr, wrong)) or 'no entry'}. Signatures are made with one of "
            f"{', '.join(ALGORITHMS)}: list those that your authorization server uses."
        )
    return listed


def fits(jwk: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a key may verify signatures of this algorithm: by its type, its curve, and what it says of itself."""
    kind, curve = ALGORITHMS.get(algorithm, (None, None))
    if jwk.get("kty") != kind or (curve is not None and jwk.get("crv") != curve):
        return False
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return False
    return bool(jwk.get("use", "sig") == "sig" and jwk.get("alg", algorithm) == algorithm)


def read_keys(keys: KeysGiven) -> list[Mapping[str, Any]]:
    """Keys as JWKs: of a JWK set, of a list of JWKs, or of one public key in PEM."""
    if isinstance(keys, str):
        return [_of_pem(keys)]
    listed: Any = keys.get("keys", [keys]) if isinstance(keys, Mapping) else keys
    found = [cast("Mapping[str, Any]", key) for key in listed if isinstance(key, Mapping)]
    if not found:
        raise UsageError("keys= has no key: give a JWK set, a list of JWKs, or one public key in PEM.")
    return found


def check_keys(keys: Sequence[Mapping[str, Any]], algorithms: Sequence[str]) -> None:
    """UsageError where one of the keys cannot be what it says, or is not for others to see; or none is of use."""
    for key in keys:
        _check_key(key)
    if not any(fits(key, algorithm) for key in keys for algorithm in algorithms):
        raise UsageError(f"keys= has a key that signs with none of {', '.join(algorithms)}.")


def _check_key(jwk: Mapping[str, Any]) -> None:
    if jwk.get("kty") == "oct":
        raise UsageError(f"keys= has a shared secret (`oct`): whoever verifies with it could sign as well. {_WANTED}")
    if PRIVATE_MEMBERS & jwk.keys():
        raise UsageError("keys= has a private key. Give the public one; the other is its owner's own.")
    algorithm = next((name for name in ALGORITHMS if fits(jwk, name)), None)
    if algorithm is None:  # of another use: it verifies nothing, and does no harm beside one that does
        return
    key = _parse(jwk, algorithm)
    if key is None:
        raise UsageError(f"keys= has a key of type {jwk['kty']} that cannot be read. {_WANTED}")
    if _is_small(key):
        bits = key.key.key_size
        raise UsageError(f"keys= has an RSA key of {bits} bits; one that is safe has {LEAST_RSA_BITS} or more.")


def _parse(jwk: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        return PyJWK(dict(jwk), algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None


def _is_small(key: PyJWK) -> bool:
    return key.key_type == "RSA" and key.key.key_size < LEAST_RSA_BITS


def _of_pem(pem: str) -> Mapping[str, Any]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
    from jwt.exceptions import PyJWTError

    if "PRIVATE KEY-----" in pem:
        raise UsageError("keys= has a private key. Give the public one; the other is its owner's own.")
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError("keys= is no public key in PEM (-----BEGIN PUBLIC KEY-----).") from None
    try:
        if isinstance(key, RSAPublicKey):
            return RSAAlgorithm.to_jwk(key, as_dict=True)
        if isinstance(key, EllipticCurvePublicKey):
            return ECAlgorithm.to_jwk(key, as_dict=True)
        return OKPAlgorithm.to_jwk(cast("Any", key), as_dict=True)
    except (PyJWTError, ValueError, TypeError):
        raise UsageError(f"keys= is a key of a kind that signs no tokens. {_WANTED}") from None


def make_key_set(need: str, jwks_uri: str | None, keys: KeysGiven | None, algorithms: Sequence[str]) -> KeySet:
    """The keys by what was given: where they are, or themselves. `need` says who needs that, and begins the mistake."""
    if (jwks_uri is None) == (keys is None):
        raise UsageError(f"{need}, or keys=: give exactly one of them.")
    if keys is None:
        check_url(cast("str", jwks_uri), "jwks_uri")
        return KeySet(jwks_uri)
    listed = read_keys(keys)
    check_keys(listed, algorithms)
    return KeySet(None, listed)


class KeySet:
    """The keys of one issuer."""

    def __init__(self, uri: str | None, keys: Sequence[Mapping[str, Any]] = ()) -> None:
        self._uri = uri
        self._keys = list(keys)
        self._parsed: dict[tuple[int, str], PyJWK | None] = {}  # by place and algorithm; None: of no use
        self._fetched = 0.0  # when it last succeeded, on the monotonic clock; 0: never
        self._tried = 0.0
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> list[PyJWK]:
        """The keys that a signature of this algorithm may be made with; those of that id where one is given."""
        if self._uri is not None:
            if not self._fetched or time.monotonic() - self._fetched > KEEP_SECONDS:
                await self._refresh()
            if not self._fetched:
                raise VerifierFailed("The keys of the authorization server cannot be had.")
        return self._fitting(kid, algorithm)

    async def find_more(self, kid: str | None, algorithm: str, tried: Sequence[PyJWK]) -> list[PyJWK]:
        """The same, of a set that has been fetched since: for a signature that none of the `tried` ones made."""
        if self._uri is None:
            return []
        await self._refresh()
        return [key for key in self._fitting(kid, algorithm) if key not in tried]  # each set has its own

    def _fitting(self, kid: str | None, algorithm: str) -> list[PyJWK]:
        places = [
            place
            for place, jwk in enumerate(self._keys)
            if (kid is None or jwk.get("kid", kid) == kid) and fits(jwk, algorithm)
        ]
        found = [self._usable(place, algorithm) for place in places[:MOST_TRIED]]
        return [key for key in found if key is not None]

    def _usable(self, place: int, algorithm: str) -> PyJWK | None:
        """A key of the set. One that is malformed or weak does not take the others with it."""
        if (place, algorithm) in self._parsed:
            return self._parsed[place, algorithm]
        key = _parse(self._keys[place], algorithm)
        if key is not None and _is_small(key):
            log.warning("A key that signs tokens is not used: RSA keys have %d bits or more.", LEAST_RSA_BITS)
            key = None
        self._parsed[place, algorithm] = key  # once, whatever comes of it: anybody can send tokens
        return key

    async def _refresh(self) -> None:
        """Have the set fetched anew, unless that was just tried. Where it fails, the old keys stay good.

        It is fetched for all who wait: one who goes away does not end it.
        """
        if self._fetching is None:
            now = time.monotonic()
            if self._tried and now - self._tried < (RETRY_SECONDS if self._fetched else FIRST_RETRY_SECONDS):
                return
            self._tried = now
            self._fetching = asyncio.create_task(self._fetch())
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        assert self._uri is not None
        try:
            listed = (await fetch_json(self._uri)).get("keys")
            if isinstance(listed, list):
                keys = [cast("Mapping[str, Any]", key) for key in cast("list[Any]", listed) if isinstance(key, dict)]
                self._keys, self._parsed, self._fetched = keys[:MOST_KEYS], {}, time.monotonic()
            else:
                log.warning("The keys that sign tokens could not be read: %s is no JWK set.", self._uri)
        except FetchFailed as error:
            log.warning("The keys that sign tokens could not be fetched: %s", error)
        finally:
            self._fetching = None


_MOST_BYTES = 16 * 1024
_MOST_KID = 512


async def read_signed(
    token: str,
    keys: KeySet,
    *,
    kind: tuple[str, Collection[str]],
    algorithms: Collection[str],
    issuer: str,
    audiences: Sequence[str],
    leeway: float,
    required: Sequence[str] = ("exp", "aud", "iss"),
) -> dict[str, Any]:
    """The claims of a JWT of this issuer; `TokenRefused` where it is not good.

    `kind` is what it should be: the word for it, and what its `typ` may say (in lower case).
    """
    import jwt

    kid, algorithm = _read_head(token, kind, algorithms)

    def read(candidates: Sequence[PyJWK]) -> dict[str, Any] | None:
        for key in candidates:
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=audiences,
                    issuer=issuer,
                    leeway=leeway,
                    options={"require": list(required)},  # D15: `exp` among them
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as error:
                raise TokenRefused(_reason(error, kind[0])) from None
            except (OverflowError, TypeError, RecursionError):  # older releases of PyJWT, of a time that is none
                raise TokenRefused(f"The {kind[0]} is not valid.") from None
        return None

    tried = await keys.find(kid, algorithm)
    claims = read(tried)
    if claims is None:  # the keys may have changed since they were fetched
        claims = read(await keys.find_more(kid, algorithm, tried))
    if claims is None:
        raise TokenRefused(f"The {kind[0]} is not signed by a key of its issuer.")
    for name in ("exp", "nbf", "iat"):  # PyJWT reads times in texts as well, which RFC 7519 has not
        read_time(claims, name, kind[0])
    return claims


def read_issuer(token: str) -> str | None:
    """Whom a JWT says that it is from, which nobody has verified: it tells only by whose keys to verify it."""
    import jwt

    if len(token) > _MOST_BYTES:
        return None
    try:
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    return issuer if isinstance(issuer, str) else None


def _read_head(token: str, kind: tuple[str, Collection[str]], algorithms: Collection[str]) -> tuple[str | None, str]:
    import jwt

    what, types = kind
    try:
        if len(token) > _MOST_BYTES:
            raise TokenRefused(f"The {what} is too long.")
        head = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):  # the last of older releases of PyJWT
        raise TokenRefused(f"The {what} is no JWT.") from None
    algorithm, kid, typ = str(head.get("alg")), head.get("kid"), head.get("typ", "jwt")
    if algorithm not in algorithms:
        raise TokenRefused(f"The {what} is signed with an algorithm that is not accepted.")
    if not isinstance(typ, str) or typ.lower() not in types or "crit" in head:
        raise TokenRefused(f"The JWT is no {what}.")
    if kid is not None and (not isinstance(kid, str) or len(kid) > _MOST_KID):
        raise TokenRefused(f"The {what} is not signed by a key of its issuer.")
    return kid, algorithm


def _reason(error: Exception, what: str) -> str:
    """The sentence for a JWT that PyJWT refuses. It says what is wrong, never what is in it."""
    import jwt

    if isinstance(error, jwt.ExpiredSignatureError):
        return f"The {what} has expired."
    if isinstance(error, jwt.ImmatureSignatureError | jwt.InvalidIssuedAtError):
        return f"The {what} is not valid yet."
    if isinstance(error, jwt.InvalidAudienceError):
        return f"The {what} was issued for another resource."
    if isinstance(error, jwt.InvalidIssuerError):
        return f"The {what} was issued by another authorization server."
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"The {what} has no `{error.claim}`."
    return f"The {what} is not valid."
