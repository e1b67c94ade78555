"""The ways to log in that `Client(url, auth=...)` takes, and their options.

    "token", BearerToken           a token that the program already has
    OAuth                          a person logs in, in the browser
    ClientCredentials              the program itself, with a secret or a key
    EnterpriseManaged              the company's identity provider vouches for the user
    WorkloadIdentity               the platform vouches for the program

Each but the first is an `Authorizer` with one grant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from weft.client.auth.authorizer import Authorizer
from weft.client.auth.discovery import Registration, client_document, read_challenges
from weft.client.auth.grants import (
    ClientCredentialsFlow,
    CodeFlow,
    EnterpriseFlow,
    IdentityProvider,
    Secret,
    WorkloadFlow,
)
from weft.client.auth.ports import AuthPorts, Fetching, LoopbackRedirect, Redirect
from weft.client.auth.storage import MemoryStorage, Storage
from weft.client.auth.tokens import PrivateKey, is_sendable, readable, without
from weft.errors import AuthorizationFailed, UsageError
from weft.protocol.names import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from weft.client.connection.transport import Auth, Refused


class BearerToken:
    """A token that the program already has; `token` may be a function, plain or async, that returns it.

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
        """Return the Authorization header: a token is sent nowhere else."""
        token: Any = self._token
        if not isinstance(token, str):
            given = token()
            token = _check_token(await given if inspect.isawaitable(given) else given)
        return {"Authorization": f"Bearer {token}"}

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Raise AuthorizationFailed, unless the refusal is not about the token: there is no other one to try."""
        challenges = read_challenges(refusal.headers)
        if refusal.status != 401 and not any(one.error for one in challenges):
            return False
        words = [one.params.get("error_description") or one.error for one in challenges]
        reason = next((word for word in words if word), None) or refusal.reason or "it gave no reason"
        token = given.get("Authorization", "").partition(" ")[2]
        shown = printable(without(reason, [token])[:300]).rstrip(". ")
        advice = "Check that it is complete, has not expired, and is meant for this server."
        if lacking := next((one for one in challenges if one.error == "insufficient_scope"), None):
            wanted = readable(lacking.scopes or ())
            advice = f"Give one that has the scopes it takes: {wanted}." if wanted else "Give one that has more scopes."
        raise AuthorizationFailed(
            f"{refusal.where} refused the token that was given (HTTP {refusal.status}): {shown}. {advice}"
        )


class OAuth(Authorizer):
    """A person logs in, in the browser, when a server wants it; the token is refreshed for as long as it can be.

        client = Client("https://flights.example/mcp", auth=OAuth())

    With nothing given, the client registers itself. Give `client_id` (and its secret, and the `issuer` it is registered
    with) if it is registered already, or `client_metadata_url` if it publishes a document about itself. `scopes` are
    asked for besides those that the server demands. `storage` keeps logins beyond the program's end: see `FileStorage`
    and `KeyringStorage`. `dpop` binds tokens to a key: None does it where the server wants it.
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
        redirect: Redirect | None = None,
        storage: Storage | None = None,
        fetcher: Fetching | None = None,
    ) -> None:
        registration = Registration(client_name, client_id, client_secret, auth_method, issuer, client_metadata_url)
        registration.check()
        self._registration = registration
        super().__init__(
            CodeFlow(registration, _scopes(scopes), dpop, offline),
            _ports(storage, fetcher, redirect or LoopbackRedirect()),
        )

    def client_metadata(self, redirect_uris: Sequence[str]) -> dict[str, Any]:
        """Return the document to be published at `client_metadata_url`."""
        url = self._registration.document_url
        if url is None or not redirect_uris:
            raise UsageError("Give OAuth(client_metadata_url=...), and at least one redirect URI.")
        return client_document(self._registration.name, list(redirect_uris), client_id=url)


class ClientCredentials(Authorizer):
    """The program itself is the client: with a secret, or with a private key (PEM or a key object), which is safer.

    >>> ClientCredentials("reporter", client_secret="s3cret")
    ClientCredentials()
    """

    extension = "io.modelcontextprotocol/oauth-client-credentials"

    def __init__(
        self,
        client_id: str,
        *,
        client_secret: str | None = None,
        private_key: PrivateKey | str | bytes | PrivateKeyTypes | None = None,
        auth_method: str | None = None,
        issuer: str | None = None,
        scopes: Sequence[str] = (),
        dpop: bool | None = None,
        storage: Storage | None = None,
        fetcher: Fetching | None = None,
    ) -> None:
        if (client_secret is None) == (private_key is None):
            raise UsageError("ClientCredentials needs either a client_secret or a private_key.")
        if private_key is not None and not isinstance(private_key, PrivateKey):
            private_key = PrivateKey(private_key)
        flow = ClientCredentialsFlow(
            client_id, client_secret, auth_method, issuer, _scopes(scopes), dpop, key=private_key
        )
        super().__init__(flow, _ports(storage, fetcher))


class EnterpriseManaged(Authorizer):
    """The company's identity provider vouches for the user: the user sees no page of the server.

    `provider` says who that is, and where the user's id token comes from; `client_id` and its secret are those at the
    authorization server of the MCP server.
    """

    extension = "io.modelcontextprotocol/enterprise-managed-authorization"

    def __init__(
        self,
        client_id: str,
        provider: IdentityProvider,
        *,
        client_secret: str | None = None,
        auth_method: str | None = None,
        issuer: str | None = None,
        scopes: Sequence[str] = (),
        dpop: bool | None = None,
        storage: Storage | None = None,
        fetcher: Fetching | None = None,
    ) -> None:
        if provider.token_endpoint is None and provider.issuer is None:
            raise UsageError("IdentityProvider needs its token_endpoint, or its issuer, from which that is found out.")
        flow = EnterpriseFlow(client_id, client_secret, auth_method, issuer, _scopes(scopes), dpop, provider=provider)
        super().__init__(flow, _ports(storage, fetcher))


class WorkloadIdentity(Authorizer):
    """The platform that the program runs on vouches for it, with a JWT; `assertion` may be a function that gets one."""

    def __init__(
        self,
        client_id: str,
        assertion: Secret,
        *,
        client_secret: str | None = None,
        auth_method: str | None = None,
        issuer: str | None = None,
        scopes: Sequence[str] = (),
        dpop: bool | None = None,
        storage: Storage | None = None,
        fetcher: Fetching | None = None,
    ) -> None:
        flow = WorkloadFlow(client_id, client_secret, auth_method, issuer, _scopes(scopes), dpop, assertion=assertion)
        super().__init__(flow, _ports(storage, fetcher))


def as_auth(auth: Any) -> Auth | None:
    """Return the hook of a transport for what a user gave as `auth=`; a text is a token."""
    if isinstance(auth, str):
        return BearerToken(auth)
    if auth is not None and not (hasattr(auth, "headers") and hasattr(auth, "refused")):
        raise UsageError(
            f"auth= was given something of the type {type(auth).__name__!r}; give a token as text, or OAuth(), "
            "ClientCredentials(...) or the like."
        )
    return cast("Auth | None", auth)


def _ports(storage: Storage | None, fetcher: Fetching | None, redirect: Redirect | None = None) -> AuthPorts:
    return AuthPorts(fetcher, storage or MemoryStorage(), redirect)


def _scopes(scopes: Sequence[str]) -> Sequence[str]:
    if isinstance(scopes, str):
        raise UsageError(f"scopes= is a list; write scopes={scopes.split()!r}.")
    return tuple(scopes)


def _check_token(token: Any) -> str:
    if not is_sendable(token):
        raise UsageError("The token cannot be sent: it is empty, or has spaces or other characters that no token has.")
    return str(token)
