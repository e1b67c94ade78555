"""The token endpoint: how a client shows who it is there, what it asks, and how the answer is read.

Owns client authentication (RFC 6749, RFC 7523), the retry with a nonce that DPoP has, and what is said about a refusal.
Which grant is asked for, the flows decide. Whatever an authorization server writes into an error is shown shortened and
without control characters; nothing that was sent is.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from weft.client.auth import urls
from weft.client.auth.credentials import DpopKey, Identity, Nonces, Token
from weft.client.auth.metadata import Issuer
from weft.client.auth.steps import FetchFailed, HttpAnswer, Steps, post_form
from weft.errors import AuthorizationFailed, UsageError
from weft.net.logs import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS = 60
_LONGEST_TOKEN = 32 * 1024
_MOST_DIGITS = 12
_SECRETS = ("code", "code_verifier", "refresh_token", "assertion", "subject_token")  # fields that hold one
_PASSING = (408, 425, 429)  # refusals that say nothing of what was asked for


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A key with which a client proves who it is (`private_key_jwt`): PEM as text or bytes, or a key object.

    The algorithm is chosen by the kind of key, unless one is given; UsageError for what is no private key.
    """

    pem: str | bytes | PrivateKeyTypes = field(repr=False)
    algorithm: str | None = None
    key_id: str | None = None
    _key: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = _load_key(self.pem) if isinstance(self.pem, str | bytes) else self.pem
        fitting = _algorithms(key)
        if self.algorithm is not None and self.algorithm not in fitting:
            raise UsageError(
                f"The private key cannot sign with algorithm={str(self.algorithm)[:100]!r}; leave that out, or use "
                f"{' or '.join(fitting)}."
            )
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "algorithm", self.algorithm or fitting[0])

    def assertion(self, client_id: str, audience: str, now: float) -> str:
        """A short-lived statement that we are this client, for this authorization server alone (XAUTH-02)."""
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
    "begins with '-----BEGIN' and says 'PRIVATE KEY', or a key object. If it is in a file, give what the file holds"
)


def _load_key(pem: str | bytes) -> Any:
    """The key in a PEM. What was given is never shown: it may be the secret itself."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    raw = pem.encode("utf-8", "replace") if isinstance(pem, str) else pem
    if b"-----BEGIN" not in raw:
        raise UsageError(f"The private key is no PEM; {_WANTED}.")
    if b"PRIVATE KEY" not in raw:
        raise UsageError(f"The private key is a public key or a certificate; {_WANTED}.")
    try:
        return load_pem_private_key(raw, None)
    except TypeError:
        raise UsageError(
            f"The private key is encrypted, and there is no password for it here; decrypt it, then {_WANTED}."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"The private key is a PEM that cannot be read; {_WANTED}.") from None


_BY_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512", "secp256k1": "ES256K"}
_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def _algorithms(key: Any) -> tuple[str, ...]:
    """What a key can sign with, the usual first; UsageError for what is no such key."""
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
    """The token endpoint said no: `code` is its word for it, as `invalid_grant`. `is_final`: asking again is no use."""

    def __init__(self, message: str, code: str, status: int, tried: list[str]) -> None:
        super().__init__(message, tried)
        self.code = code
        self.is_final = 400 <= status < 500 and status not in _PASSING


def said(document: Mapping[str, Any] | None, status: int, secrets: Iterable[str] = ()) -> str:
    """What an authorization server says about a refusal, fit to be shown: without the secrets that it was sent."""
    if document is None:
        return f"HTTP {status}"
    texts = [document.get("error"), document.get("error_description")]
    words = ": ".join(without(text, secrets)[:200] for text in texts if isinstance(text, str) and text)
    return printable(words).rstrip(". ") or f"HTTP {status}"  # whoever shows it goes on with the sentence


def readable(scopes: Iterable[str]) -> str:
    """Scopes, which somebody else may have named, fit to be shown."""
    return printable(" ".join(scopes)[:200], "?")


def without(text: str, secrets: Iterable[str]) -> str:
    """What somebody else says, who may repeat what it was sent.

    >>> without("no such token: s3cret", ["s3cret"])
    'no such token: …'
    """
    for secret in secrets:
        text = text.replace(secret, "…") if secret else text
    return text


def is_sendable(token: object) -> bool:
    """Whether something is a token that a header can hold."""
    return isinstance(token, str) and token != "" and token.isascii() and token.isprintable() and " " not in token


@dataclass(slots=True)
class TokenEndpoint:
    """The token endpoint of one issuer, as one client uses it."""

    issuer: Issuer
    identity: Identity
    tried: list[str]
    key: PrivateKey | None = None
    dpop: DpopKey | None = None
    must_bind: bool = False  # a token that is not bound to the key is refused
    nonces: Nonces = field(default_factory=Nonces)
    clock: Callable[[], float] = time.time

    def ask(self, form: Mapping[str, str], *, resource: str, asked: list[str]) -> Steps[Token]:
        """Ask for a token; `asked` are the scopes that were asked for, which are granted if nothing else is said."""
        document = yield from self.exchange(form)
        token = self._read(document, resource, asked)
        if token.lacks(asked):
            self.tried[-1] += f" only {readable(token.granted)}"
        return token

    def exchange(self, form: Mapping[str, str]) -> Steps[dict[str, Any]]:
        """One request, and one more with the nonce that the first was refused for; the document that came."""
        endpoint = self.issuer.token_endpoint
        if endpoint is None:
            raise AuthorizationFailed(
                f"The authorization server {urls.shown(self.issuer.issuer)} publishes no token endpoint.", self.tried
            )
        response, has_new_nonce = yield from self._post(endpoint, form)
        document = response.json()
        if has_new_nonce and response.status >= 400 and document and document.get("error") == "use_dpop_nonce":
            response, _ = yield from self._post(endpoint, form)
            document = response.json()
        grant = form.get("grant_type", "").rpartition(":")[2]
        if response.status != 200 or document is None:
            sent = [form[name] for name in _SECRETS if name in form]
            reason = said(document, response.status, [*sent, self.identity.client_secret or ""])
            self.tried.append(f"{grant} at {urls.shown(endpoint)}: {reason}")
            code = str((document or {}).get("error", ""))[:100]
            raise TokenRefusal(
                f"The authorization server {urls.shown(self.issuer.issuer)} gave no token ({reason}); {_remedy(code)}.",
                code,
                response.status,
                self.tried,
            )
        self.tried.append(f"{grant} at {urls.shown(endpoint)}: granted")
        return document

    @property
    def _place(self) -> str:
        return f"issuer {self.issuer.issuer}"

    def _post(self, endpoint: str, form: Mapping[str, str]) -> Steps[tuple[HttpAnswer, bool]]:
        """What came back, and whether a nonce that is new was in it."""
        sent = dict(form)
        headers: dict[str, str] = {}
        self._authenticate(sent, headers)
        if self.dpop is not None:
            headers["DPoP"] = self.dpop.proof("POST", endpoint, nonce=self.nonces.get(self._place))
        try:
            response = yield from post_form(endpoint, sent, headers)
        except FetchFailed as failure:
            self.tried.append(f"{urls.shown(endpoint)}: {failure}")
            raise AuthorizationFailed(
                "The token endpoint cannot be reached; try again, or check the network.", self.tried
            ) from None
        return response, self.nonces.put(self._place, response.headers.get("dpop-nonce"))

    def _authenticate(self, form: dict[str, str], headers: dict[str, str]) -> None:
        identity = self.identity
        method = self._method()
        form["client_id"] = identity.client_id  # also beside a header: servers of other SDKs look for it here
        if method == "private_key_jwt" and self.key is not None:
            form["client_assertion_type"] = _ASSERTION_TYPE
            form["client_assertion"] = self.key.assertion(identity.client_id, self.issuer.issuer, self.clock())
        elif method == "client_secret_basic" and identity.client_secret is not None:
            pair = f"{quote_plus(identity.client_id)}:{quote_plus(identity.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif method == "client_secret_post" and identity.client_secret is not None:
            form["client_secret"] = identity.client_secret

    def _method(self) -> str:
        """How we show who we are: as was registered, else the best that both sides can."""
        if self.key is not None:
            return "private_key_jwt"
        if self.identity.auth_method is not None:
            return self.identity.auth_method
        if self.identity.client_secret is None:
            return "none"
        offered = self.issuer.token_endpoint_auth_methods_supported
        if offered is None or "client_secret_basic" in offered:
            return "client_secret_basic"
        return "client_secret_post"

    def _read(self, document: Mapping[str, Any], resource: str, asked: list[str]) -> Token:
        access, kind = document.get("access_token"), document.get("token_type")
        refresh, scope, seconds = document.get("refresh_token"), document.get("scope"), _seconds(document)
        if not isinstance(access, str) or not is_sendable(access) or len(access) > _LONGEST_TOKEN:
            raise self._unusable("no access token that can be sent")
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "dpop"):
            raise self._unusable("a token of a kind that is not known here")
        is_bound = kind.lower() == "dpop"
        if self.must_bind and not is_bound:
            raise AuthorizationFailed("The token is not bound to our key, which `dpop=True` demands.", self.tried)
        if is_bound and self.dpop is None:
            raise self._unusable("a token bound to a key that was never shown")
        return Token(
            access_token=access,
            issuer=self.issuer.issuer,
            resource=resource,
            client_id=self.identity.client_id,
            kind="DPoP" if is_bound else "Bearer",
            granted=scope.split() if isinstance(scope, str) and scope.split() else list(asked),
            asked=list(asked),
            obtained_at=self.clock(),
            expires_at=None if seconds is None else self.clock() + seconds,
            refresh_token=refresh if isinstance(refresh, str) and refresh else None,
            dpop_key=self.dpop.pem() if is_bound and self.dpop is not None else None,
        )

    def _unusable(self, what: str) -> AuthorizationFailed:
        return AuthorizationFailed(
            f"The authorization server {urls.shown(self.issuer.issuer)} answered with {what}; tell its operator.",
            self.tried,
        )


def _seconds(document: Mapping[str, Any]) -> float | None:
    """How long a token is good, if that is said; some write the number as a text."""
    given: Any = document.get("expires_in")
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS:
        given = int(given)
    if not isinstance(given, int | float) or isinstance(given, bool):
        return None
    return given if 0 < given < 10**_MOST_DIGITS else None


_REMEDIES = {
    "invalid_client": "check the client id and its secret or key, and how the client is registered there",
    "invalid_grant": "log in again; a code or an assertion is good for once and a short time",
    "unauthorized_client": "have the client allowed this grant there",
    "unsupported_grant_type": "use another way to log in: this server does not offer this one",
    "invalid_scope": "ask for scopes that it knows",
    "invalid_target": "it does not know this server: check the URL, or have it registered there",
}


def _remedy(code: str) -> str:
    return _REMEDIES.get(code, "look at what it says, or try again later")
