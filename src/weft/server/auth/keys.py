"""Find the public keys that verify tokens, and read signed JWTs.

The user gives a JSON Web Key Set, or the URL to fetch it from. A fetched set is used for an hour. If a signature was
made with an unknown key, the set is fetched again, because keys may be rotated at any time. This happens at most every
30 seconds, so that forged tokens do not cause many requests.

`read_signed` reads all kinds of JWTs. It checks the `typ`, so that one kind of JWT is not accepted as another. It
accepts only the listed algorithms, and only keys that are made for the algorithm.
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

# Key type and curve of each algorithm. All are asymmetric: a key that verifies cannot sign, and a public key is never
# used as a shared secret. The algorithm `none` is never accepted.
ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", None),
}

DEFAULT_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")

KEEP_SECONDS = 3600.0  # How long a fetched key set is used.
RETRY_SECONDS = 30.0  # Least time between two fetches.
FIRST_RETRY_SECONDS = 1.0  # Least time between two fetches until the first one has succeeded.
MOST_KEYS = 64  # Most keys of one set; further keys are ignored.
MOST_TRIED = 8  # Most keys to try for one signature.
LEAST_RSA_BITS = 2048  # RFC 7518, 3.3

PRIVATE_MEMBERS = {"d", "p", "q", "dp", "dq", "qi", "oth", "k"}  # Members that only private and shared keys have.

KeysGiven: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]] | str"  # a JWK set, a list of JWKs, a PEM

_IS_PRIVATE = "keys= has a private key. Give the public key; the private one stays with its owner."
_WANTED = f"Give a public key for one of the algorithms {', '.join(DEFAULT_ALGORITHMS)}."


def check_algorithms(algorithms: Sequence[str]) -> tuple[str, ...]:
    """Return `algorithms` as a tuple. Raise UsageError if it is empty, or if an algorithm is not supported."""
    listed = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
    wrong = [name for name in listed if name not in ALGORITHMS]
    if wrong or not listed:
        raise UsageError(f"algorithms= has {wrong or 'no entry'}. List some of {', '.join(ALGORITHMS)}.")
    return listed


def fits(jwk: Mapping[str, Any], algorithm: str) -> bool:
    """Return whether the public key `jwk` can verify signatures of `algorithm`, by its type, curve and declared use."""
    kind, curve = ALGORITHMS.get(algorithm, (None, None))
    if jwk.get("kty") != kind or (curve is not None and jwk.get("crv") != curve):
        return False
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return False
    return bool(jwk.get("use", "sig") == "sig" and jwk.get("alg", algorithm) == algorithm)


def read_keys(keys: KeysGiven, algorithms: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the given public keys as a list of JWKs. `keys` is a JWK set, a list of JWKs, or one key in PEM.

    Raises UsageError if a key is malformed, too short, private or a shared secret, or if no key can be used with any of
    the algorithms.
    """
    if isinstance(keys, str):
        listed: Any = [_read_pem(keys)]
    else:
        listed = keys.get("keys", [keys]) if isinstance(keys, Mapping) else keys
    found = [cast("Mapping[str, Any]", key) for key in listed if isinstance(key, Mapping)]
    for key in found:
        _check_key(key)
    if not any(fits(key, algorithm) for key in found for algorithm in algorithms):
        raise UsageError(f"keys= has no key for the algorithms {', '.join(algorithms)}: add one, or change them.")
    return found


def _check_key(jwk: Mapping[str, Any]) -> None:
    if jwk.get("kty") == "oct":
        raise UsageError(f"keys= has a shared secret (`oct`), with which tokens can also be signed. {_WANTED}")
    if PRIVATE_MEMBERS & jwk.keys():
        raise UsageError(_IS_PRIVATE)
    algorithm = next((name for name in ALGORITHMS if fits(jwk, name)), None)
    if algorithm is None:  # The key has another use, such as encryption, and is ignored.
        return
    key = _parse(jwk, algorithm)
    if key is None:
        raise UsageError(f"keys= has a key of type {jwk['kty']} that cannot be read. {_WANTED}")
    if _is_small(key):
        bits = key.key.key_size
        raise UsageError(f"keys= has an RSA key of {bits} bits; a safe one has {LEAST_RSA_BITS} or more.")


def _parse(jwk: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        return PyJWK(dict(jwk), algorithm)
    except (PyJWTError, ValueError, TypeError):
        return None


def _is_small(key: PyJWK) -> bool:
    return key.key_type == "RSA" and key.key.key_size < LEAST_RSA_BITS


def _read_pem(pem: str) -> Mapping[str, Any]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
    from jwt.exceptions import PyJWTError

    if "PRIVATE KEY-----" in pem:
        raise UsageError(_IS_PRIVATE)
    try:
        key = load_pem_public_key(pem.encode())
        if isinstance(key, RSAPublicKey):
            return RSAAlgorithm.to_jwk(key, as_dict=True)
        if isinstance(key, EllipticCurvePublicKey):
            return ECAlgorithm.to_jwk(key, as_dict=True)
        return OKPAlgorithm.to_jwk(cast("Any", key), as_dict=True)
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
        raise UsageError(f"keys= is no public key in PEM, or one that signs no tokens. {_WANTED}") from None


def make_key_set(need: str, jwks_uri: str | None, keys: KeysGiven | None, algorithms: Sequence[str]) -> KeySet:
    """Return a `KeySet` that fetches its keys from `jwks_uri`, or that has the given `keys`.

    Raises UsageError unless exactly one of `jwks_uri` and `keys` is given. The error message begins with `need`.
    """
    if (jwks_uri is None) == (keys is None):
        raise UsageError(f"{need}, or keys=: give exactly one of them.")
    if keys is None:
        check_url(cast("str", jwks_uri), "jwks_uri")
        return KeySet(jwks_uri)
    return KeySet(None, read_keys(keys, algorithms))


class KeySet:
    """The public keys of one token issuer: given by the user, or fetched from `uri`."""

    def __init__(self, uri: str | None, keys: Sequence[Mapping[str, Any]] = ()) -> None:
        self._uri = uri
        self._keys = list(keys)
        self._parsed: dict[tuple[int, str], PyJWK | None] = {}  # By index and algorithm; None: not usable.
        self._fetched = 0.0  # Monotonic time of the last successful fetch; 0 before the first.
        self._tried = 0.0  # Monotonic time of the last attempt to fetch.
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> list[PyJWK]:
        """Return the keys to try for a signature that was made with `algorithm`.

        If `kid` is given, keys with another id are left out. Raises `VerifierFailed` if the keys must be fetched, but
        no fetch has succeeded so far.
        """
        if self._uri is not None:
            if not self._fetched or time.monotonic() - self._fetched > KEEP_SECONDS:
                await self._refresh()
            if not self._fetched:
                raise VerifierFailed("The keys of the authorization server cannot be fetched.")
        return self._fitting(kid, algorithm)

    async def find_more(self, kid: str | None, algorithm: str, tried: Sequence[PyJWK]) -> list[PyJWK]:
        """Fetch the key set again, and return the keys that fit and are not in `tried`.

        Call this if no key in `tried` verifies the signature. If the set has no `uri`, the result is empty.
        """
        if self._uri is None:
            return []
        await self._refresh()
        return [key for key in self._fitting(kid, algorithm) if key not in tried]

    def _fitting(self, kid: str | None, algorithm: str) -> list[PyJWK]:
        named = ((place, jwk) for place, jwk in enumerate(self._keys) if kid is None or jwk.get("kid", kid) == kid)
        places = [place for place, jwk in named if fits(jwk, algorithm)]
        found = [self._usable(place, algorithm) for place in places[:MOST_TRIED]]
        return [key for key in found if key is not None]

    def _usable(self, place: int, algorithm: str) -> PyJWK | None:
        """Return the parsed key at the index `place` of the set, or None if the key is malformed or too short."""
        if (place, algorithm) in self._parsed:
            return self._parsed[place, algorithm]
        key = _parse(self._keys[place], algorithm)
        if key is not None and _is_small(key):
            log.warning("A key that signs tokens is ignored: an RSA key must have at least %d bits.", LEAST_RSA_BITS)
            key = None
        self._parsed[place, algorithm] = key  # Unusable keys are stored too, so that each is parsed and logged once.
        return key

    async def _refresh(self) -> None:
        """Fetch the key set again, unless the last attempt was only seconds ago. If the fetch fails, keep the old keys.

        Concurrent requests share one fetch. If one of the requests is cancelled, the fetch continues.
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


_MOST_BYTES = 16 * 1024  # Largest size of a JWT.
_MOST_KID = 512  # Longest id of a key, in characters.


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
    """Verify a JWT from `issuer`, and return its claims. Raise `TokenRefused` if the JWT is not valid.

    `kind` is the expected kind of JWT: its name in messages, and the accepted values of `typ` in lower case. `required`
    are the claims that the JWT must have.
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
                    options={"require": list(required)},
                )
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, OverflowError, TypeError, RecursionError) as error:  # older releases raise all four
                raise TokenRefused(_reason(error, kind[0])) from None
        return None

    tried = await keys.find(kid, algorithm)
    claims = read(tried)
    if claims is None:  # The keys may have been rotated.
        claims = read(await keys.find_more(kid, algorithm, tried))
    if claims is None:
        raise TokenRefused(f"The {kind[0]} is not signed by a key of its issuer.")
    for name in ("exp", "nbf", "iat"):  # PyJWT also accepts times as texts, RFC 7519 does not.
        read_time(claims, name, kind[0])
    return claims


def read_issuer(token: str) -> str | None:
    """Return the issuer that a JWT names, or None. The JWT is not verified: use the result only to choose keys."""
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
    except (jwt.PyJWTError, ValueError, RecursionError):  # older releases of PyJWT raise RecursionError
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
    """Return a message that says what PyJWT found wrong. It contains no values from the JWT."""
    import jwt

    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"The {what} has no `{error.claim}`."
    reasons: dict[type[Exception], str] = {
        jwt.ExpiredSignatureError: "has expired",
        jwt.ImmatureSignatureError: "is not valid yet",
        jwt.InvalidIssuedAtError: "is not valid yet",
        jwt.InvalidAudienceError: "was issued for another resource",
        jwt.InvalidIssuerError: "was issued by another authorization server",
    }
    return f"The {what} {reasons.get(type(error), 'is not valid')}."
