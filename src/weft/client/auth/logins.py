"""The classes that a program passes as `Client(url, auth=...)`, with their options.

    "token", BearerToken           the program already has a token
    OAuth                          a person logs in with the browser
    ClientCredentials              the program authenticates with a secret or a key
    EnterpriseManaged              the company's identity provider identifies the user
    WorkloadIdentity               the platform identifies the program

All classes except BearerToken are subclasses of `Authorizer`. They do all their I/O through a `LoginContext`. They
check that a response belongs to this login and comes from the right issuer before they use any part of the response.
"""

from __future__ import annotations

import hmac
import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from weft.client.auth.authorizer import Authorizer, ServerState
from weft.client.auth.discovery import (
    Discovery,
    Registration,
    bind_issuer,
    client_document,
    discover,
    discover_issuer,
    legacy_issuer,
    read_challenges,
)
from weft.client.auth.ports import AuthPorts, Fetcher, FunctionRedirect, LoginContext, LoopbackRedirect
from weft.client.auth.storage import MemoryStorage, Storage
from weft.client.auth.tokens import (
    DpopKey,
    Identity,
    Issuer,
    PrivateKey,
    Token,
    TokenClient,
    TokenRefusal,
    describe_error,
    forget_token,
    is_sendable,
    keep_token,
    newer_token,
    readable,
    token_key,
    url_digest,
    without,
)
from weft.errors import AuthorizationFailed, UsageError
from weft.net.urls import UrlRefused, origin_of, read_url, shown_url
from weft.protocol.names import printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from weft.client.connection.transport import Auth, Refused

Secret = str | Callable[[], Any]
"""A secret as text, or a sync or async function that returns the text. The function is called for each new token."""

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant type
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a token type
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ID_JAG_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"
_OFFLINE = "offline_access"
_FRESH_SECONDS = 10.0  # if the server refuses a token younger than this, a refresh does not help


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
        """Raise AuthorizationFailed if the server refused the token; return False if the refusal had another reason."""
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


def _check_token(token: Any) -> str:
    if not is_sendable(token):
        raise UsageError("The token cannot be sent: it is empty, or contains a space or another forbidden character.")
    return str(token)


def as_auth(auth: Any) -> Auth | None:
    """Convert the value of a client's option `auth=` to an `Auth` object: text becomes a `BearerToken`.

    None and `Auth` objects are returned unchanged. Raises UsageError for all other values.
    """
    if isinstance(auth, str):
        return BearerToken(auth)
    if auth is not None and not (hasattr(auth, "headers") and hasattr(auth, "refused")):
        kind = type(auth).__name__
        raise UsageError(f"auth= was given something of the type {kind!r}; give a token as text, or OAuth().")
    return cast("Auth | None", auth)


# --- people


class OAuth(Authorizer):
    """A login by a person in the browser. After the login, the token is refreshed as long as possible.

        client = Client("https://flights.example/mcp", auth=OAuth())

    By default the client registers itself at the authorization server. If it is already registered there, give
    `client_id`, `client_secret` if there is one, and `issuer`. If it publishes a metadata document, give
    `client_metadata_url`. `scopes` are requested in addition to the scopes that the server demands. With
    `storage=FileStorage(...)` or `KeyringStorage()`, the program uses the same login after a restart. With
    `dpop=True`, only tokens that are bound to a key are accepted. By default, tokens are bound to a key if the server
    demands it.
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
        self.offline = offline
        super().__init__(AuthPorts(fetcher, storage or MemoryStorage(), redirect or LoopbackRedirect()), scopes, dpop)

    def client_metadata(self, redirect_uris: Sequence[str]) -> dict[str, Any]:
        """Return the client's metadata document, which the program must publish at `client_metadata_url`."""
        url = self._registration.document_url
        if url is None or not redirect_uris:
            raise UsageError("Give OAuth(client_metadata_url=...), and at least one redirect URI.")
        return client_document(self._registration.name, list(redirect_uris), client_id=url)

    async def login(self, server: ServerState, context: LoginContext) -> Token:
        """Get and return a new token: with the refresh token if possible, otherwise with a login in the browser."""
        known = self._registration
        only = known.issuer if known.client_id else None
        discovery = await discover(server.challenge, context, only, known.client_id)
        server.keep(discovery, self._clock())
        previous = server.previous(discovery)
        if previous is not None and not server.is_step_up:
            token = await self._replace(server, discovery.issuer, previous, context, is_refused=True)
            if token is not None:
                return token
        token = await self._authorize(server, discovery, context)
        await keep_token(token, context)
        return token

    def can_renew(self, server: ServerState) -> bool:
        """Return whether the token of `server` has a refresh token."""
        return server.token is not None and server.token.refresh_token is not None

    async def renew(self, server: ServerState, context: LoginContext) -> Token:
        """Refresh the token and return the new token, or return a newer token that another program has stored.

        Raises AuthorizationFailed if neither is possible.
        """
        token = server.token
        assert token is not None, "can_renew"
        renewed = None
        try:
            issuer = await self._issuer_of(token, server, context)
            if issuer is not None:
                renewed = await self._replace(server, issuer, token, context, is_refused=False)
        finally:
            if renewed is None:
                server.keep(None)
        if renewed is None:
            raise AuthorizationFailed("The token could not be refreshed.")
        return renewed

    # --- refreshing

    async def _issuer_of(self, token: Token, server: ServerState, context: LoginContext) -> Issuer | None:
        known = server.recall(self._clock())
        if known is not None and known.issuer.issuer == token.issuer:
            return known.issuer
        issuer = await discover_issuer(token.issuer, context)
        if issuer is None and token.issuer == origin_of(context.server_url):
            issuer = legacy_issuer(context.server_url)
        if issuer is not None:
            server.keep(Discovery(token.resource, issuer, None), self._clock())
        return issuer

    async def _replace(
        self, server: ServerState, issuer: Issuer, token: Token, context: LoginContext, *, is_refused: bool
    ) -> Token | None:
        """Return a newer token that another program has stored, or refresh `token`; return None if neither is possible.

        A lock in the storage keeps two programs from sending the same refresh token: an issuer that receives a refresh
        token twice may revoke all tokens of the login.

        `is_refused` is True if the MCP server has refused `token`. If the server refuses a token that was issued a few
        seconds ago, a refresh would not help. In that case, return None if the server demands more scopes, which a
        login can obtain; otherwise raise AuthorizationFailed.
        """
        async with context.claimed(token_key(token.issuer, token.resource)):
            newer = await newer_token(token, context)
            now = self._clock()
            if newer is not None and not newer.is_due(now):
                context.tried.append("a newer token that another program has stored")
                return newer
            is_fresh = now - token.obtained_at < _FRESH_SECONDS and not token.is_expired(now)
            if newer is None and is_refused and is_fresh:
                if set(server.challenge.scopes or ()) <= set(token.scopes):
                    raise AuthorizationFailed(
                        f"{shown_url(context.server_url)} refuses the token that {shown_url(token.issuer)} has just "
                        "issued for it. Tell its operator that the two do not agree on audience, issuer or keys."
                    )
                return None  # a refresh would not add scopes
            return await self._refresh(server, issuer, newer or token, context)

    async def _refresh(self, server: ServerState, issuer: Issuer, token: Token, context: LoginContext) -> Token | None:
        """Refresh `token` and return the new token; return None if there is no usable refresh token.

        If the issuer refuses the refresh token permanently, return a newer token that another program has stored, or
        None. Raises TokenRefusal if the issuer has a temporary problem: the refresh token may still be valid then.
        """
        if token.refresh_token is None or (self.dpop and token.dpop_key is None):  # the new token would not be bound
            return None
        identity = await self._registration.named(token.client_id, issuer, context)
        if identity is None:
            return None
        dpop = None if token.dpop_key is None else DpopKey.from_pem(token.dpop_key)
        client = TokenClient(issuer, identity, context, dpop, server.nonces, self._clock)
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": token.resource}
        try:
            try:
                renewed = await self._ask(client, {**form, **_scope(token.granted)}, token.granted)
            except TokenRefusal as refusal:
                if refusal.code != "invalid_scope" or not token.granted:
                    raise
                # Some issuers require scopes in a refresh. Others refuse even the scopes that they granted.
                renewed = await self._ask(client, form, token.granted)
        except TokenRefusal as refusal:
            if not refusal.is_final:
                raise  # the issuer has a problem; the refresh token may still be valid
            newer = await newer_token(token, context)  # without a lock, another program may have been faster
            await forget_token(token, context)
            token.refresh_token = None  # so that it is not sent again
            return newer
        renewed.asked = token.asked
        renewed.refresh_token = renewed.refresh_token or token.refresh_token  # some issuers do not send a new one
        await keep_token(renewed, context)
        return renewed

    # --- the browser

    async def _authorize(self, server: ServerState, discovery: Discovery, context: LoginContext) -> Token:
        issuer, resource = discovery.issuer, discovery.resource
        page = self._authorization_endpoint(issuer)
        scopes = self._with_offline(self._select_scopes(server, discovery), issuer)
        known = await self._registration.known(issuer.issuer, context)
        redirect_uri = await context.listen([] if known is None else known.redirect_uris)
        _check_url(redirect_uri, "The redirect URI cannot be used")
        identity = await self._registration.obtain(issuer, redirect_uri, scopes, context)
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(32)
        asked = {
            "response_type": "code",
            "client_id": identity.client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": url_digest(verifier),
            "code_challenge_method": "S256",
            "resource": resource,
            **_scope(scopes),
        }
        context.tried.append(f"login at {shown_url(page)}")
        came_back = await context.visit(_with_query(page, asked), state)
        form = {
            "grant_type": "authorization_code",
            "code": read_redirect(came_back, state, issuer),
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "resource": resource,
        }
        dpop = self._new_key(server, discovery)
        return await self._ask(TokenClient(issuer, identity, context, dpop, server.nonces, self._clock), form, scopes)

    def _authorization_endpoint(self, issuer: Issuer) -> str:
        endpoint, name = issuer.authorization_endpoint, shown_url(issuer.issuer)
        if endpoint is None:
            raise AuthorizationFailed(f"{name} has no page where a person can log in; use ClientCredentials(...).")
        if "S256" not in (issuer.code_challenge_methods_supported or ()):
            raise AuthorizationFailed(
                f"{name} does not list S256 in `code_challenge_methods_supported`. Without PKCE a login is not safe."
            )
        _check_url(endpoint, "The login page is not opened")
        return endpoint

    def _with_offline(self, scopes: list[str], issuer: Issuer) -> list[str]:
        """Return `scopes` plus the scope for a refresh token (`offline_access`), if the issuer lists that scope.

        If `scopes` is empty, nothing is added, so that the issuer grants its default scopes.
        """
        if not self.offline or not scopes or _OFFLINE in scopes or _OFFLINE not in (issuer.scopes_supported or ()):
            return scopes
        return [*scopes, _OFFLINE]

    async def _ask(self, client: TokenClient, form: dict[str, str], asked: list[str]) -> Token:
        """Request and return a token. If the issuer no longer knows the client, delete the stored registration."""
        try:
            return await super()._ask(client, form, asked)
        except TokenRefusal as refusal:
            if refusal.code == "invalid_client":
                await self._registration.forget(client.identity, client.context)
            raise


def read_redirect(url: str, state: str, issuer: Issuer) -> str:
    """Check the URL to which the browser was redirected after the login, and return the authorization code in it.

    The state is checked first, because the response may belong to another login. The issuer is checked next, by exact
    comparison (RFC 9207). If either is wrong, no other part of the response is read or shown. Raises
    AuthorizationFailed if a check fails, or if the login was refused.
    """
    try:
        query = parse_qs(urlsplit(url).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        query = dict[str, list[str]]()
    answer = {name: values[0] for name, values in query.items() if len(values) == 1}
    if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise AuthorizationFailed("The browser came back with a response to another login; try again.")
    must_say = issuer.authorization_response_iss_parameter_supported or "iss" in query
    if must_say and answer.get("iss") != issuer.issuer:
        raise AuthorizationFailed(
            f"The response to the login does not name {shown_url(issuer.issuer)} as its issuer, and was ignored. This "
            "may be an attack that mixes up two servers."
        )
    if "error" in query:
        reason = describe_error(answer, 0)
        raise AuthorizationFailed(f"The login was refused ({reason}); log in again, or as another user.")
    code = answer.get("code")
    if not code:
        raise AuthorizationFailed("The browser came back without a code; try again.")
    return code


def _check_url(url: str, what: str) -> None:
    try:
        read_url(url)
    except UrlRefused as refused:
        raise AuthorizationFailed(f"{what}: {refused}.") from None


def _with_query(endpoint: str, params: dict[str, str]) -> str:
    parts = urlsplit(endpoint)
    query = "&".join(part for part in (parts.query, urlencode(params)) if part)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))


# --- programs


@dataclass(repr=False, eq=False)
class _ProgramLogin(Authorizer):
    """The base class of logins without a person: it finds the issuer, requests a token, and stores the token."""

    client_id: str
    _: KW_ONLY
    client_secret: str | None = None
    auth_method: str | None = None
    issuer: str | None = None  # if given, the credentials are sent to no other issuer
    scopes: Sequence[str] = ()
    dpop: bool | None = None
    storage: Storage | None = None
    fetcher: Fetcher | None = None
    _key: PrivateKey | None = field(default=None, init=False)  # used for authentication instead of a secret

    def __post_init__(self) -> None:
        super().__init__(AuthPorts(self.fetcher, self.storage or MemoryStorage()), self.scopes, self.dpop)

    async def login(self, server: ServerState, context: LoginContext) -> Token:
        """Find the authorization server, and return a new token from it."""
        discovery = await discover(server.challenge, context, self.issuer, self.client_id)
        server.keep(discovery, self._clock())
        return await self._obtain(server, discovery, context)

    def can_renew(self, server: ServerState) -> bool:
        """Return True if the server has sent a challenge. Without a challenge, its metadata may not be found."""
        return bool(server.challenge.scheme)

    async def renew(self, server: ServerState, context: LoginContext) -> Token:
        """Request and return a new token. Fetch metadata only if no recent metadata is cached."""
        known = server.recall(self._clock())
        if known is None:
            return await self.login(server, context)
        try:
            return await self._obtain(server, known, context)
        except AuthorizationFailed:
            server.keep(None)
            raise

    async def _obtain(self, server: ServerState, discovery: Discovery, context: LoginContext) -> Token:
        issuer = discovery.issuer
        if self.issuer is None:
            await bind_issuer(self.client_id, issuer, context)
        scopes = self._select_scopes(server, discovery)
        form = {**await self._form(discovery, scopes, context), **_scope(scopes), "resource": discovery.resource}
        identity = Identity(self.client_id, issuer.issuer, self.client_secret, self.auth_method)
        dpop = self._new_key(server, discovery)
        client = TokenClient(issuer, identity, context, dpop, server.nonces, self._clock, self._key)
        token = await self._ask(client, form, scopes)
        await keep_token(token, context)
        return token

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        raise NotImplementedError


def _scope(scopes: list[str]) -> dict[str, str]:
    """Return the form field `scope`, or an empty dictionary if there are no scopes."""
    return {"scope": " ".join(scopes)} if scopes else {}


@dataclass(repr=False, eq=False)
class ClientCredentials(_ProgramLogin):
    """A login of the program itself, without a person: with a secret, or with a private key (PEM or a key object).

    A private key is safer, because it is never sent.

    >>> ClientCredentials("reporter", client_secret="s3cret")
    ClientCredentials()
    """

    extension = "io.modelcontextprotocol/oauth-client-credentials"
    private_key: PrivateKey | str | bytes | PrivateKeyTypes | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        key = self.private_key
        if (self.client_secret is None) == (key is None):
            raise UsageError("ClientCredentials needs either a client_secret or a private_key.")
        self._key = key if key is None or isinstance(key, PrivateKey) else PrivateKey(key)
        super().__post_init__()

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        return {"grant_type": "client_credentials"}


@dataclass(repr=False, eq=False)
class WorkloadIdentity(_ProgramLogin):
    """A login of a program with a JWT that its platform (for example, Kubernetes) has issued.

    `assertion` is the JWT, or a function that returns the JWT.
    """

    assertion: Secret

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        assertion = await _secret(self.assertion, "assertion", context)
        return {"grant_type": _JWT_BEARER, "assertion": assertion}


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """The company's identity provider, and the client id of this program there.

    Give `token_endpoint`, or give `issuer` to find the endpoint in the provider's metadata. `id_token` is the id token
    of the user, or a function that returns the id token.
    """

    client_id: str
    id_token: Secret = field(repr=False)
    token_endpoint: str | None = None
    issuer: str | None = None
    client_secret: str | None = field(default=None, repr=False)


@dataclass(repr=False, eq=False)
class EnterpriseManaged(_ProgramLogin):
    """A login through the company's identity provider: the user sees no login page of the MCP server.

    `provider` has the identity provider and the user's id token. `client_id` and `client_secret` are the credentials of
    this program at the authorization server of the MCP server.
    """

    extension = "io.modelcontextprotocol/enterprise-managed-authorization"
    provider: IdentityProvider

    def __post_init__(self) -> None:
        if self.provider.token_endpoint is None and self.provider.issuer is None:
            raise UsageError("IdentityProvider needs token_endpoint=..., or issuer=... to find the endpoint.")
        super().__post_init__()

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        issuer, provider = discovery.issuer, self.provider
        profiles = issuer.authorization_grant_profiles_supported
        if profiles is not None and _ID_JAG_PROFILE not in profiles:
            name = shown_url(issuer.issuer)
            raise AuthorizationFailed(f"{name} does not accept users of an identity provider; log in with OAuth().")
        id_token = await _secret(provider.id_token, "id_token", context)
        idp = await self._identity_provider(context)
        form = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": issuer.issuer,
            "resource": discovery.resource,
            "subject_token": id_token,
            "subject_token_type": _ID_TOKEN,
            **_scope(scopes),
        }
        identity = Identity(provider.client_id, idp.issuer, provider.client_secret)
        document = await TokenClient(idp, identity, context).exchange(form)
        assertion, kind = document.get("access_token"), document.get("issued_token_type")
        if not isinstance(assertion, str) or not assertion or kind != _ID_JAG:
            raise AuthorizationFailed("The identity provider did not answer with an ID-JAG; ask its operator.")
        return {"grant_type": _JWT_BEARER, "assertion": assertion}

    async def _identity_provider(self, context: LoginContext) -> Issuer:
        provider = self.provider
        if provider.token_endpoint is not None:
            return Issuer(provider.issuer or provider.token_endpoint, token_endpoint=provider.token_endpoint)
        assert provider.issuer is not None
        found = await discover_issuer(provider.issuer, context)
        if found is None:
            raise AuthorizationFailed("The identity provider publishes no metadata; give its token_endpoint.")
        return found


async def _secret(given: Secret, name: str, context: LoginContext) -> str:
    value: Any = given if isinstance(given, str) else await context.call(given, name)
    if not isinstance(value, str) or not value:
        raise AuthorizationFailed(f"The function given as `{name}` must return a JWT as text, and returned none.")
    return value
