"""The classes that a program passes as `Client(url, auth=...)`, with their options.

    "token", BearerToken           the program already has a token
    OAuth                          a person logs in with the browser
    ClientCredentials              the program authenticates with a secret or a key
    EnterpriseManaged              the company's identity provider identifies the user
    WorkloadIdentity               the platform identifies the program

All classes except BearerToken are an `Authorizer` with one grant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from weft.client.auth.authorizer import Authorizer
from weft.client.auth.discovery import Registration, client_document, read_challenges
from weft.client.auth.grants import (
    ClientCredentialsFlow,
    CodeFlow,
    EnterpriseFlow,
    Grant,
    IdentityProvider,
    Secret,
    WorkloadFlow,
)
from weft.client.auth.ports import AuthPorts, Fetcher, FunctionRedirect, LoopbackRedirect
from weft.client.auth.storage import MemoryStorage, Storage
from weft.client.auth.tokens import PrivateKey, is_sendable, readable, without
from weft.errors import AuthorizationFailed, UsageError
from weft.protocol.names import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from weft.client.connection.transport import Auth, Refused


class BearerToken:
    """A token that the program already has. `token` is text, or a sync or async function that returns the text.

    >>> BearerToken("s3cret")
    BearerToken(…)
    """

    extension: str | None = None

    def __init__(self, token: str | Callable[[], Any]) -> None:
        if isinstance(token, str):
            _check_token(token)
        self._token = token

    def __repr__(self) -> str:
        return "BearerToken(…)"

    async def headers(self, url: str, method: str) -> Mapping[str, str]:
        """Return the Authorization header with the token."""
        token: Any = self._token
        if not isinstance(token, str):
            given = token()
            token = _check_token(await given if inspect.isawaitable(given) else given)
        return {"Authorization": f"Bearer {token}"}

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Raise AuthorizationFailed if the server refused the token; return False if there was another reason."""
        challenges = read_challenges(refusal.headers)
        if refusal.status != 401 and not any(one.error for one in challenges):
            return False
        words = [one.params.get("error_description") or one.error or "" for one in challenges]
        reason = next(filter(None, [*words, refusal.reason]), "it gave no reason")
        token = given.get("Authorization", "").partition(" ")[2]
        shown = printable(without(reason, [token])[:300]).rstrip(". ")
        advice = "Check that it is complete, has not expired, and is meant for this server."
        if lacking := next((one for one in challenges if one.error == "insufficient_scope"), None):
            wanted = readable(lacking.scopes or ())
            advice = f"Give a token with the scopes: {wanted}." if wanted else "Give a token with more scopes."
        what = f"{refusal.where} refused the token that was given (HTTP {refusal.status})"
        raise AuthorizationFailed(f"{what}: {shown}. {advice}")


class OAuth(Authorizer):
    """A login by a person in the browser, when a server requires it. The token is refreshed as long as possible.

        client = Client("https://flights.example/mcp", auth=OAuth())

    By default the client registers itself at the authorization server. If it is already registered there, give
    `client_id`, `client_secret` if there is one, and `issuer`. If it publishes a metadata document, give
    `client_metadata_url`. `scopes` are requested in addition to those that the server demands. `storage` keeps logins
    after the program has ended (`FileStorage`, `KeyringStorage`). `dpop=True` requires tokens that are bound to a key;
    by default, tokens are bound if the server demands it.
    """

    def __init__(
        self,
        *,
        client_name: str = "Weft",
        client_id: str | None = None,
        client_secret: str | None = None,
        issuer: str | None = None,
        client_metadata_url: str | None = None,
        auth_method: str | None = None,
        scopes: Sequence[str] = (),
        dpop: bool | None = None,
        offline: bool = True,
        redirect: FunctionRedirect | LoopbackRedirect | None = None,
        storage: Storage | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self._registration = Registration(
            client_name, client_id, client_secret, auth_method, issuer, client_metadata_url
        )
        flow = CodeFlow(self._registration, offline, scopes=_scopes(scopes), dpop=dpop)
        super().__init__(flow, AuthPorts(fetcher, storage or MemoryStorage(), redirect or LoopbackRedirect()))

    def client_metadata(self, redirect_uris: Sequence[str]) -> dict[str, Any]:
        """Return the client's metadata document, which the program must publish at `client_metadata_url`."""
        url = self._registration.document_url
        if url is None or not redirect_uris:
            raise UsageError("Give OAuth(client_metadata_url=...), and at least one redirect URI.")
        return client_document(self._registration.name, list(redirect_uris), client_id=url)


@dataclass(repr=False, eq=False)
class _ProgramLogin(Authorizer):
    """The common part of the logins without a person."""

    client_id: str
    _: KW_ONLY
    client_secret: str | None = None
    auth_method: str | None = None
    issuer: str | None = None
    scopes: Sequence[str] = ()
    dpop: bool | None = None
    storage: Storage | None = None
    fetcher: Fetcher | None = None

    def __post_init__(self) -> None:
        flow = self._flow()
        flow.scopes, flow.dpop = _scopes(self.scopes), self.dpop
        super().__init__(flow, AuthPorts(self.fetcher, self.storage or MemoryStorage()))

    def _flow(self) -> Grant:
        raise NotImplementedError


@dataclass(repr=False, eq=False)
class ClientCredentials(_ProgramLogin):
    """A login of the program itself, without a person: with a secret, or with a private key (PEM or a key object).

    A private key is safer, because it is never sent.

    >>> ClientCredentials("reporter", client_secret="s3cret")
    ClientCredentials()
    """

    extension = "io.modelcontextprotocol/oauth-client-credentials"
    private_key: PrivateKey | str | bytes | PrivateKeyTypes | None = field(default=None, kw_only=True)

    def _flow(self) -> Grant:
        key = self.private_key
        if (self.client_secret is None) == (key is None):
            raise UsageError("ClientCredentials needs either a client_secret or a private_key.")
        if key is not None and not isinstance(key, PrivateKey):
            key = PrivateKey(key)
        return ClientCredentialsFlow(self.client_id, self.client_secret, self.auth_method, self.issuer, key)


@dataclass(repr=False, eq=False)
class EnterpriseManaged(_ProgramLogin):
    """A login through the company's identity provider: the user sees no login page of the MCP server.

    `provider` describes the identity provider and the user's id token. `client_id` and `client_secret` are those of
    this program at the authorization server of the MCP server.
    """

    extension = "io.modelcontextprotocol/enterprise-managed-authorization"
    provider: IdentityProvider

    def _flow(self) -> Grant:
        if self.provider.token_endpoint is None and self.provider.issuer is None:
            raise UsageError("IdentityProvider needs token_endpoint=..., or issuer=... to find the endpoint.")
        client = self.client_id, self.client_secret, self.auth_method, self.issuer
        return EnterpriseFlow(*client, provider=self.provider)


@dataclass(repr=False, eq=False)
class WorkloadIdentity(_ProgramLogin):
    """A login with a JWT of the platform that the program runs on.

    `assertion` is the JWT, or a function that returns it.
    """

    assertion: Secret

    def _flow(self) -> Grant:
        client = self.client_id, self.client_secret, self.auth_method, self.issuer
        return WorkloadFlow(*client, assertion=self.assertion)


def as_auth(auth: Any) -> Auth | None:
    """Return the value of a client's option `auth=` as an `Auth` object. Text becomes a `BearerToken`.

    Raises UsageError if the value is neither text nor an object with the methods of `Auth`.
    """
    if isinstance(auth, str):
        return BearerToken(auth)
    if auth is not None and not (hasattr(auth, "headers") and hasattr(auth, "refused")):
        kind = type(auth).__name__
        raise UsageError(f"auth= was given something of the type {kind!r}; give a token as text, or OAuth().")
    return cast("Auth | None", auth)


def _scopes(scopes: Sequence[str]) -> Sequence[str]:
    if isinstance(scopes, str):
        raise UsageError(f"scopes= is a list; write scopes={scopes.split()!r}.")
    return tuple(scopes)


def _check_token(token: Any) -> str:
    if not is_sendable(token):
        raise UsageError("The token cannot be sent: it is empty, or contains a space or another forbidden character.")
    return str(token)
