"""Request tokens from a token endpoint, and store the tokens. Client authentication and DPoP proofs are here too.

A repr or an error message never contains a secret. Texts from an authorization server are shortened, and their control
characters removed, before they are shown.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import msgspec

from weft.client.auth.ports import LoginContext
from weft.errors import AuthorizationFailed, UsageError
from weft.net.fetch import FetchFailed, HttpAnswer, post_form
from weft.net.urls import shown_url
from weft.protocol.names import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

MARGIN_SECONDS = 30.0  # a token is renewed this many seconds before it expires
_MARGIN_SHARE = 0.3  # a short-lived token is renewed when only this share of its lifetime is left
_ALGORITHM = "ES256"
_MOST_NONCES = 256
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS = 60
_LONGEST_TOKEN = 32 * 1024
_MOST_DIGITS = 12
_SECRETS = ("code", "code_verifier", "refresh_token", "assertion", "subject_token")  # form fields with a secret
_PASSING = (408, 425, 429)  # HTTP statuses after which the same request may succeed later


class Issuer(msgspec.Struct, frozen=True):
    """The metadata of an authorization server (RFC 8414, OpenID Connect Discovery)."""

    issuer: str
    token_endpoint: str | None = None
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    authorization_grant_profiles_supported: list[str] | None = None
    dpop_signing_alg_values_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None

    def can_bind_tokens(self) -> bool:
        """Return whether the issuer lists ES256 as an algorithm for DPoP, or does not list its algorithms."""
        listed = self.dpop_signing_alg_values_supported
        return listed is None or _ALGORITHM in listed


@dataclass(slots=True)
class Identity:
    """The registration of a client at an authorization server."""

    client_id: str
    issuer: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None  # how the client authenticates; None: with a method that the issuer offers
    redirect_uris: list[str] = field(default_factory=list[str])
    scope: str | None = None  # the scopes that the issuer allows this client
    secret_expires_at: float = 0  # in Unix seconds; 0: never


@dataclass(slots=True)
class Token:
    """An access token with its issuer, its resource, its scopes and its lifetime."""

    access_token: str = field(repr=False)
    issuer: str
    resource: str
    client_id: str
    kind: str = "Bearer"  # or "DPoP"
    granted: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])  # requested scopes; later logins request them again
    obtained_at: float = 0
    expires_at: float | None = None
    refresh_token: str | None = field(default=None, repr=False)
    dpop_key: str | None = field(default=None, repr=False)  # PEM of the key that the token is bound to

    def __post_init__(self) -> None:
        """Raise ValueError if `dpop_key` cannot be read, so that decoding a broken stored record fails."""
        if self.dpop_key is not None:
            DpopKey.from_pem(self.dpop_key)

    @property
    def scopes(self) -> list[str]:
        """All scopes that were requested or granted."""
        return list(dict.fromkeys([*self.asked, *self.granted]))

    def lacks(self, scopes: Iterable[str]) -> bool:
        """Return whether at least one of `scopes` was not granted."""
        return not set(scopes) <= set(self.granted)

    def is_expired(self, now: float) -> bool:
        """Return whether the token has expired; False if its lifetime is not known."""
        return self.expires_at is not None and now >= self.expires_at

    def is_due(self, now: float) -> bool:
        """Return whether the token has to be renewed, because it has expired or will expire soon.

        Soon means within 30 seconds. For a lifetime under 100 seconds, soon means within its last 30 %.

        >>> token = Token("secret", "issuer", "resource", "client", obtained_at=1000, expires_at=1002)
        >>> token.is_due(1001), token.is_due(1001.5)
        (False, True)
        """
        if self.expires_at is None:
            return False
        return now >= self.expires_at - min(MARGIN_SECONDS, _MARGIN_SHARE * (self.expires_at - self.obtained_at))


def token_key(issuer: str, resource: str) -> str:
    """Return the storage key of a token. The key contains the issuer, to keep tokens of different issuers apart."""
    return f"token {issuer} {resource}"


def server_key(server_url: str) -> str:
    """Return the storage key under which the issuer and the resource of a server's token are stored."""
    return f"server {server_url}"


async def keep_token(token: Token, context: LoginContext) -> None:
    """Store a token as the token for the server in `context`."""
    await context.keep(token_key(token.issuer, token.resource), token)
    await context.keep(server_key(context.server_url), [token.issuer, token.resource])


async def recall_token(context: LoginContext) -> Token | None:
    """Return the stored token for the server in `context`, or None if there is none."""
    pair = await context.load(server_key(context.server_url), tuple[str, str])
    if pair is None:
        return None
    token = await context.load(token_key(*pair), Token)
    return token if token is not None and (token.issuer, token.resource) == pair else None


async def forget_token(token: Token, context: LoginContext) -> None:
    """Delete a stored token, unless another program has replaced it."""
    key = token_key(token.issuer, token.resource)
    kept = await context.load(key, Token)
    if kept is not None and kept.refresh_token == token.refresh_token:
        await context.keep(key, None)


async def newer_token(token: Token, context: LoginContext) -> Token | None:
    """Return a newer token that another program has stored for the same client and the same or more scopes, or None."""
    kept = await context.load(token_key(token.issuer, token.resource), Token)
    if kept is None or kept.access_token == token.access_token or kept.obtained_at < token.obtained_at:
        return None
    whose, same = ((one.issuer, one.resource, one.client_id, one.kind) for one in (kept, token))
    return kept if whose == same and set(token.granted) <= set(kept.scopes) else None


def url_digest(text: str) -> str:
    """Return the SHA-256 digest of a text in URL-safe base64 without padding, as PKCE and DPoP use it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class DpopKey:
    """A key pair that the tokens of one login are bound to (DPoP, RFC 9449). The repr does not show the private key.

    >>> key = DpopKey.new()
    >>> len(key.proof("POST", "https://auth.example/token?x=1").split("."))
    3
    """

    def __init__(self, private: Any) -> None:
        from jwt.algorithms import ECAlgorithm

        self._private = private
        self.public: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(private.public_key()))

    @classmethod
    def new(cls) -> DpopKey:
        """Generate a new key pair, and return it."""
        from cryptography.hazmat.primitives.asymmetric import ec

        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: str) -> DpopKey:
        """Return the key pair that belongs to the private key in a PEM text."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        return cls(load_pem_private_key(pem.encode(), None))

    def pem(self) -> str:
        """Return the private key as PEM text, which is a secret."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        pem: bytes = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem.decode()

    def proof(self, method: str, url: str, *, nonce: str | None = None, access_token: str | None = None) -> str:
        """Return a DPoP proof (a signed JWT) for one request. Every request needs a new proof."""
        import jwt

        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("?")[0].partition("#")[0],
            "iat": int(time.time()),
        }
        if nonce is not None:
            claims["nonce"] = nonce
        if access_token is not None:
            claims["ath"] = url_digest(access_token)
        return jwt.encode(claims, self._private, algorithm=_ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self.public})


class Nonces(dict[str, str]):
    """The last DPoP nonce of each server. An authorization server and an MCP server have separate nonces."""

    def put(self, place: str, nonce: str | None) -> bool:
        """Store the nonce that the server `place` has sent; return True if the nonce was stored.

        A nonce is not stored if it is None, too long, or the same as the last nonce of this server.
        """
        if nonce is None or self.get(place) == nonce or len(nonce) > 1024:
            return False
        if len(self) >= _MOST_NONCES:
            self.clear()
        self[place] = nonce
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A private key with which a client authenticates (`private_key_jwt`).

    `pem` is PEM as text or bytes, or a key object. The default for `algorithm` depends on the type of the key. Raises
    UsageError if `pem` is not a private key, or if the key cannot sign with `algorithm`.
    """

    pem: str | bytes | PrivateKeyTypes = field(repr=False)
    algorithm: str | None = None
    key_id: str | None = None
    _key: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = _load_key(self.pem) if isinstance(self.pem, str | bytes) else self.pem
        fitting = _algorithms(key)
        if self.algorithm is not None and self.algorithm not in fitting:
            what = f"The private key cannot sign with algorithm={str(self.algorithm)[:100]!r}"
            raise UsageError(f"{what}; leave that out, or use {' or '.join(fitting)}.")
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "algorithm", self.algorithm or fitting[0])

    def assertion(self, client_id: str, audience: str, now: float) -> str:
        """Return a signed JWT that proves the client's identity to one authorization server, valid for a minute."""
        import jwt

        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "iat": int(now),
            "exp": int(now) + _ASSERTION_SECONDS,
            "jti": secrets.token_urlsafe(16),
        }
        headers = None if self.key_id is None else {"kid": self.key_id}
        return jwt.encode(claims, self._key, algorithm=self.algorithm, headers=headers)


_WANTED = (
    "give a private key that can sign (EC on P-256, P-384 or P-521, RSA, or Ed25519): its PEM as text or bytes, which "
    "begins with '-----BEGIN' and says 'PRIVATE KEY', or a key object. If it is in a file, give the file's content"
)


def _load_key(pem: str | bytes) -> Any:
    """Return the private key in `pem`; raise UsageError if it cannot be read. The message does not contain the PEM."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem.encode("utf-8", "replace") if isinstance(pem, str) else pem, None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise UsageError(f"The private key is not the PEM of a private key, or is encrypted; {_WANTED}.") from None


_BY_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512", "secp256k1": "ES256K"}
_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def _algorithms(key: Any) -> tuple[str, ...]:
    """Return the algorithms that a key can sign with, the default first; raise UsageError if there are none."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    if isinstance(key, RSAPrivateKey):
        return _OF_RSA
    if isinstance(key, Ed25519PrivateKey | Ed448PrivateKey):
        return ("EdDSA",)
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in _BY_CURVE:
        return (_BY_CURVE[key.curve.name],)
    raise UsageError(f"The private key is something of the type {type(key).__name__!r}; {_WANTED}.")


class TokenRefusal(AuthorizationFailed):
    """The error that is raised when the token endpoint refuses a request.

    `code` is the OAuth error code. `is_final` is True if the same request would be refused again.
    """

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.is_final = 400 <= status < 500 and status not in _PASSING


def describe_error(document: Mapping[str, Any] | None, status: int, secrets: Iterable[str] = ()) -> str:
    """Return the error text in a response of an authorization server, without `secrets`, or else the HTTP status."""
    if document is None:
        return f"HTTP {status}"
    texts = [document.get("error"), document.get("error_description")]
    words = ": ".join(without(text, secrets)[:200] for text in texts if isinstance(text, str) and text)
    return printable(words).rstrip(". ") or f"HTTP {status}"  # it becomes part of a sentence


def readable(scopes: Iterable[str]) -> str:
    """Return scopes as text for error messages, shortened and without control characters."""
    return printable(" ".join(scopes)[:200], "?")


def without(text: str, secrets: Iterable[str]) -> str:
    """Replace all `secrets` in a server's text by "…", because a server may repeat secrets that were sent to it.

    >>> without("no such token: s3cret", ["s3cret"])
    'no such token: …'
    """
    for secret in secrets:
        text = text.replace(secret, "…") if secret else text
    return text


def is_sendable(token: object) -> bool:
    """Return whether a value is text that can be sent as a token in an HTTP header."""
    return isinstance(token, str) and token != "" and token.isascii() and token.isprintable() and " " not in token


@dataclass(slots=True)
class TokenClient:
    """Sends requests of one client to the token endpoint of one issuer."""

    issuer: Issuer
    identity: Identity
    context: LoginContext
    dpop: DpopKey | None = None
    nonces: Nonces = field(default_factory=Nonces)
    clock: Callable[[], float] = time.time
    key: PrivateKey | None = None  # used for authentication instead of a secret

    async def ask(self, form: Mapping[str, str], asked: list[str]) -> Token:
        """Request a token with the form fields `form`, and return the token.

        `asked` are the requested scopes. They count as granted if the response names no scopes. Raises TokenRefusal if
        the issuer refuses the request, and AuthorizationFailed if the issuer cannot be reached or its token cannot be
        used.
        """
        token = self._read(await self.exchange(form), form["resource"], asked)
        if token.lacks(asked):
            self.context.tried[-1] += f" only {readable(token.granted)}"
        return token

    async def exchange(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Post a form to the token endpoint, and return the JSON object in the response.

        If the issuer demands a new DPoP nonce, post the form again with that nonce. Raises TokenRefusal if the issuer
        refuses the request.
        """
        endpoint, tried = self.issuer.token_endpoint, self.context.tried
        if endpoint is None:
            raise self._unusable("no token endpoint in its metadata")
        response, has_new_nonce = await self._post(endpoint, form)
        document = response.json()
        if has_new_nonce and response.status >= 400 and document and document.get("error") == "use_dpop_nonce":
            response, _ = await self._post(endpoint, form)
            document = response.json()
        step = f"{form['grant_type'].rpartition(':')[2]} at {shown_url(endpoint)}"
        if response.status == 200 and document is not None:
            tried.append(f"{step}: granted")
            return document
        sent = [form[name] for name in _SECRETS if name in form]
        reason = describe_error(document, response.status, [*sent, self.identity.client_secret or ""])
        tried.append(f"{step}: {reason}")
        code = str((document or {}).get("error", ""))[:100]
        remedy = _REMEDIES.get(code, "try again later, or ask its operator")
        message = f"The authorization server {shown_url(self.issuer.issuer)} gave no token ({reason}); {remedy}."
        raise TokenRefusal(message, code, response.status)

    async def _post(self, endpoint: str, form: Mapping[str, str]) -> tuple[HttpAnswer, bool]:
        """Post a form to `endpoint`; return the response, and whether the response contains a new DPoP nonce."""
        place = f"issuer {self.issuer.issuer}"
        sent = dict(form)
        headers: dict[str, str] = {}
        self._authenticate(sent, headers)
        if self.dpop is not None:
            headers["DPoP"] = self.dpop.proof("POST", endpoint, nonce=self.nonces.get(place))
        try:
            response = await self.context.send(post_form(endpoint, sent, headers))
        except FetchFailed as failure:
            self.context.tried.append(f"{shown_url(endpoint)}: {failure}")
            raise AuthorizationFailed("The token endpoint cannot be reached; check the network.") from None
        return response, self.nonces.put(place, response.headers.get("dpop-nonce"))

    def _authenticate(self, form: dict[str, str], headers: dict[str, str]) -> None:
        """Add the client id, and the client's secret or a JWT signed with its key, to `form` and `headers`.

        A secret is sent with the method that the client is registered for, or else with one that the issuer offers.
        """
        client_id, secret, method = self.identity.client_id, self.identity.client_secret, self.identity.auth_method
        if method is None:
            offered = self.issuer.token_endpoint_auth_methods_supported or ["client_secret_basic"]
            method = "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"
        form["client_id"] = client_id  # even with an Authorization header: servers of other SDKs require it here
        if self.key is not None:
            form["client_assertion_type"] = _ASSERTION_TYPE
            form["client_assertion"] = self.key.assertion(client_id, self.issuer.issuer, self.clock())
        elif secret is not None and method == "client_secret_basic":
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif secret is not None and method == "client_secret_post":
            form["client_secret"] = secret

    def _read(self, document: Mapping[str, Any], resource: str, asked: list[str]) -> Token:
        access, kind, refresh, scope = map(document.get, ("access_token", "token_type", "refresh_token", "scope"))
        seconds, now = _seconds(document.get("expires_in")), self.clock()
        if not isinstance(access, str) or not is_sendable(access) or len(access) > _LONGEST_TOKEN:
            raise self._unusable("no access token that can be sent")
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "dpop"):
            raise self._unusable("a token of an unknown type")
        key = self.dpop if kind.lower() == "dpop" else None
        if key is None and kind.lower() == "dpop":
            raise self._unusable("a token that is bound to an unknown key")
        return Token(
            access_token=access,
            issuer=self.issuer.issuer,
            resource=resource,
            client_id=self.identity.client_id,
            kind="Bearer" if key is None else "DPoP",
            granted=scope.split() if isinstance(scope, str) and scope.split() else list(asked),
            asked=list(asked),
            obtained_at=now,
            expires_at=None if seconds is None else now + seconds,
            refresh_token=refresh if isinstance(refresh, str) and refresh else None,
            dpop_key=None if key is None else key.pem(),
        )

    def _unusable(self, what: str) -> AuthorizationFailed:
        return AuthorizationFailed(
            f"The authorization server {shown_url(self.issuer.issuer)} answered with {what}; tell its operator."
        )


def _seconds(given: Any) -> float | None:
    """Convert the lifetime of a token, a number or text, to seconds; return None if it is not valid."""
    try:
        seconds = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < 10**_MOST_DIGITS and not isinstance(given, bool) else None


_REMEDIES = {
    "invalid_client": "check the client id and its secret or key, and how the client is registered there",
    "invalid_grant": "log in again; a code or an assertion can be used only once and for a short time",
    "unauthorized_client": "ask its operator to allow this grant for the client",
    "unsupported_grant_type": "use another way to log in: this server does not offer this one",
    "invalid_scope": "request only scopes that it knows",
    "invalid_target": "it does not know this server: check the URL, or ask its operator to register the server",
}
