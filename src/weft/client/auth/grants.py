"""Obtain tokens, for a person who logs in or for a program.

    CodeFlow                   a person logs in: authorization code with PKCE, refresh tokens, step-up
    ClientCredentialsFlow      the program has a secret or a private key
    EnterpriseFlow             the company's identity provider identifies the user (ID-JAG)
    WorkloadFlow               the platform identifies the program (JWT)

A grant does all its I/O through a `LoginContext`. It checks that a response belongs to this login, and comes from the
right issuer, before it uses any part of the response.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from weft.client.auth.discovery import (
    Challenge,
    Discovery,
    Registration,
    bind_issuer,
    discover,
    discover_issuer,
    legacy_issuer,
)
from weft.client.auth.ports import LoginContext
from weft.client.auth.tokens import (
    DpopKey,
    Identity,
    Issuer,
    Nonces,
    PrivateKey,
    Token,
    TokenClient,
    TokenRefusal,
    describe_error,
    url_digest,
)
from weft.errors import AuthorizationFailed
from weft.net.urls import UrlRefused, origin_of, read_url, shown_url

Secret = str | Callable[[], Any]
"""A secret as text, or a function (sync or async) that is called for the text each time it is needed."""

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant type
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a token type
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ID_JAG_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"
_OFFLINE = "offline_access"
_FOUND_SECONDS = 600.0  # how long discovered metadata is used for renewing tokens
_FRESH_SECONDS = 10.0  # a token younger than this is new: if the server refuses it, a refresh does not help


@dataclass(slots=True)
class TokenRequest:
    """The state of a server for which a token is requested: its challenge, the old token, and cached facts."""

    challenge: Challenge = field(default_factory=Challenge)  # the last challenge, which says where the metadata is
    token: Token | None = None  # the old token, which has expired or was refused
    is_step_up: bool = False  # whether the old token is valid, but lacks scopes
    nonces: Nonces = field(default_factory=Nonces)
    # The last discovery. A token is renewed with it, so that renewing a short-lived token does not fetch the metadata
    # again. A login always fetches the metadata, because it may have changed.
    found: Discovery | None = None
    found_at: float = 0

    def keep(self, discovery: Discovery | None, now: float = 0) -> None:
        """Store a discovery; if `discovery` is None, forget the last one."""
        self.found, self.found_at = discovery, now

    def recall(self, now: float) -> Discovery | None:
        """Return the last discovery, or None if there is none or it is too old."""
        return self.found if now - self.found_at < _FOUND_SECONDS else None

    def previous(self, discovery: Discovery) -> Token | None:
        """Return the old token if its issuer and resource are those of `discovery`; otherwise None."""
        token = self.token
        if token is None or (token.issuer, token.resource) != (discovery.issuer.issuer, discovery.resource):
            return None
        return token


@dataclass(kw_only=True)
class Grant:
    """An OAuth flow that obtains tokens. This base class has what all flows share."""

    scopes: Sequence[str] = ()  # scopes to request in addition to those that the server demands
    dpop: bool | None = None  # whether tokens are bound to a key; None: if the server demands it
    clock: Callable[[], float] = time.time

    async def login(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a token that satisfies the request, or raise AuthorizationFailed."""
        raise NotImplementedError

    def can_renew(self, request: TokenRequest) -> bool:
        """Return whether the token of the request can be renewed without a person who logs in."""
        raise NotImplementedError

    async def renew(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a new token instead of the old one, which expires soon; raise AuthorizationFailed if that fails."""
        raise NotImplementedError

    def _select_scopes(self, request: TokenRequest, discovery: Discovery) -> list[str]:
        """Return the scopes to request: those in the challenge, those of this grant, and those of the old token.

        If neither the challenge nor this grant names scopes, the scopes in the server's metadata are requested. The
        scopes of the old token are requested again, so that the new token can do all that the old one could.
        """
        demanded = request.challenge.scopes
        if demanded is None:
            listed = discovery.published.scopes_supported if discovery.published is not None else None
            demanded = tuple(self.scopes or listed or ())
        previous = request.previous(discovery)
        before = previous.scopes if previous is not None else []
        return list(dict.fromkeys([*demanded, *self.scopes, *before]))

    def _new_key(self, request: TokenRequest, discovery: Discovery) -> DpopKey | None:
        """Return a new key to bind the token to, or None if the token should not be bound.

        By default, the token is bound if the server demands a bound token and the issuer may support it.
        """
        is_bound = self.dpop
        if is_bound is None:
            published = discovery.published
            is_demanded = published is not None and bool(published.dpop_bound_access_tokens_required)
            is_bound = (request.challenge.is_dpop or is_demanded) and discovery.issuer.can_bind_tokens()
        return DpopKey.new() if is_bound else None

    async def _ask(self, client: TokenClient, form: dict[str, str], asked: list[str]) -> Token:
        """Request a token; raise AuthorizationFailed if it has to be bound to a key and is not."""
        token = await client.ask(form, asked)
        if self.dpop and token.kind != "DPoP":
            raise AuthorizationFailed(
                "The token is not bound to a key, as `dpop=True` requires; leave `dpop` out to accept such tokens."
            )
        return token


# --- stored tokens


def token_key(issuer: str, resource: str) -> str:
    """Return the storage key of a token. It contains the issuer, so that tokens of two issuers are never mixed up."""
    return f"token {issuer} {resource}"


def server_key(server_url: str) -> str:
    """Return the storage key under which the issuer and the resource of a server's token are stored."""
    return f"server {server_url}"


async def _keep_token(token: Token, context: LoginContext) -> None:
    """Store a token, and remember that it belongs to the server of `context`."""
    await context.keep(token_key(token.issuer, token.resource), token)
    await context.keep(server_key(context.server_url), [token.issuer, token.resource])


async def recall_token(context: LoginContext) -> Token | None:
    """Return the stored token for the server of `context`, or None if there is none."""
    pair = await context.load(server_key(context.server_url), tuple[str, str])
    if pair is None:
        return None
    token = await context.load(token_key(*pair), Token)
    return token if token is not None and (token.issuer, token.resource) == pair else None


async def _forget_token(token: Token, context: LoginContext) -> None:
    """Delete a stored token, unless another program has replaced it."""
    key = token_key(token.issuer, token.resource)
    kept = await context.load(key, Token)
    if kept is not None and kept.refresh_token == token.refresh_token:
        await context.keep(key, None)


async def _newer_token(token: Token, context: LoginContext) -> Token | None:
    """Return a newer token that another program has stored, if it has the same client and at least the same scopes."""
    kept = await context.load(token_key(token.issuer, token.resource), Token)
    if kept is None or kept.access_token == token.access_token or kept.obtained_at < token.obtained_at:
        return None
    whose, same = ((one.issuer, one.resource, one.client_id, one.kind) for one in (kept, token))
    return kept if whose == same and set(token.granted) <= set(kept.scopes) else None


# --- programs


@dataclass
class ClientCredentialsFlow(Grant):
    """The client credentials grant: the program authenticates with its secret or its key.

    It is the base of all flows without a person. They differ in the form that is sent to the token endpoint.
    """

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None
    issuer: str | None = None  # if given, the credentials are sent to no other issuer
    key: PrivateKey | None = None  # used instead of a secret

    async def login(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a new token."""
        discovery = await discover(request.challenge, context, self.issuer, self.client_id)
        request.keep(discovery, self.clock())
        return await self._obtain(request, discovery, context)

    def can_renew(self, request: TokenRequest) -> bool:
        """Return whether the server has sent a challenge, which may be needed to find its metadata."""
        return bool(request.challenge.scheme)

    async def renew(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a new token. Metadata is fetched only if there is no recent discovery in the cache."""
        known = request.recall(self.clock())
        if known is None:
            return await self.login(request, context)
        try:
            return await self._obtain(request, known, context)
        except AuthorizationFailed:
            request.keep(None)
            raise

    async def _obtain(self, request: TokenRequest, discovery: Discovery, context: LoginContext) -> Token:
        issuer = discovery.issuer
        if self.issuer is None:
            await bind_issuer(self.client_id, issuer, context)
        scopes = self._select_scopes(request, discovery)
        form = {**await self._form(discovery, scopes, context), **_scope(scopes), "resource": discovery.resource}
        identity = Identity(self.client_id, issuer.issuer, self.client_secret, self.auth_method)
        dpop = self._new_key(request, discovery)
        client = TokenClient(issuer, identity, context, dpop, request.nonces, self.clock, self.key)
        token = await self._ask(client, form, scopes)
        await _keep_token(token, context)
        return token

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        return {"grant_type": "client_credentials"}


def _scope(scopes: list[str]) -> dict[str, str]:
    """Return the form field that requests scopes; no field if there are none."""
    return {"scope": " ".join(scopes)} if scopes else {}


@dataclass
class WorkloadFlow(ClientCredentialsFlow):
    """The JWT bearer grant: the program presents a JWT of the platform that it runs on."""

    assertion: Secret = field(kw_only=True, repr=False)

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        assertion = await _secret(self.assertion, "assertion", context)
        return {"grant_type": _JWT_BEARER, "assertion": assertion}


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """The company's identity provider, and the client id of this program there.

    Give `token_endpoint` or `issuer`. `id_token` is the id token of the user, or a function that returns it.
    """

    client_id: str
    id_token: Secret = field(repr=False)
    token_endpoint: str | None = None
    issuer: str | None = None
    client_secret: str | None = field(default=None, repr=False)


@dataclass
class EnterpriseFlow(ClientCredentialsFlow):
    """The enterprise flow: exchange the user's id token for an ID-JAG, and the ID-JAG for an access token."""

    provider: IdentityProvider = field(kw_only=True)

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


# --- people


@dataclass
class CodeFlow(Grant):
    """The login of a person: authorization code with PKCE, and refresh tokens."""

    registration: Registration
    offline: bool = True  # whether to request the scope `offline_access`, for a refresh token, if the issuer lists it

    async def login(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a new token: use the refresh token if possible; otherwise let the person log in with the browser."""
        known = self.registration
        only = known.issuer if known.client_id else None
        discovery = await discover(request.challenge, context, only, known.client_id)
        request.keep(discovery, self.clock())
        previous = request.previous(discovery)
        if previous is not None and not request.is_step_up:
            token = await self._replace(request, discovery.issuer, previous, context, is_refused=True)
            if token is not None:
                return token
        token = await self._authorize(request, discovery, context)
        await _keep_token(token, context)
        return token

    def can_renew(self, request: TokenRequest) -> bool:
        """Return whether the old token has a refresh token."""
        return request.token is not None and request.token.refresh_token is not None

    async def renew(self, request: TokenRequest, context: LoginContext) -> Token:
        """Refresh the token and return the new one, or return a newer token that another program has stored."""
        token = request.token
        assert token is not None, "can_renew"
        renewed = None
        try:
            issuer = await self._issuer_of(token, request, context)
            if issuer is not None:
                renewed = await self._replace(request, issuer, token, context, is_refused=False)
        finally:
            if renewed is None:
                request.keep(None)
        if renewed is None:
            raise AuthorizationFailed("The token could not be refreshed.")
        return renewed

    # --- refreshing

    async def _issuer_of(self, token: Token, request: TokenRequest, context: LoginContext) -> Issuer | None:
        known = request.recall(self.clock())
        if known is not None and known.issuer.issuer == token.issuer:
            return known.issuer
        issuer = await discover_issuer(token.issuer, context)
        if issuer is None and token.issuer == origin_of(context.server_url):
            issuer = legacy_issuer(context.server_url)
        if issuer is not None:
            request.keep(Discovery(token.resource, issuer, None), self.clock())
        return issuer

    async def _replace(
        self, request: TokenRequest, issuer: Issuer, token: Token, context: LoginContext, *, is_refused: bool
    ) -> Token | None:
        """Return a newer token that another program has stored, or refresh the token; None if neither is possible.

        Programs that share a storage do this one after another: a refresh token may be valid only once, and an issuer
        that receives it twice may revoke all tokens of the login.

        `is_refused` says that the MCP server refused `token`. If `token` was only just issued, it is not refreshed: a
        refresh would not help. The result is then None if the server demands further scopes, which need a login.
        Otherwise AuthorizationFailed is raised.
        """
        async with context.claimed(token_key(token.issuer, token.resource)):
            newer = await _newer_token(token, context)
            now = self.clock()
            if newer is not None and not newer.is_due(now):
                context.tried.append("a newer token that another program has stored")
                return newer
            is_fresh = now - token.obtained_at < _FRESH_SECONDS and not token.is_expired(now)
            if newer is None and is_refused and is_fresh:
                if set(request.challenge.scopes or ()) <= set(token.scopes):
                    raise AuthorizationFailed(
                        f"{shown_url(context.server_url)} refuses the token that {shown_url(token.issuer)} has just "
                        "issued for it. Tell its operator that the two do not agree on audience, issuer or keys."
                    )
                return None  # a refresh would not add scopes
            return await self._refresh(request, issuer, newer or token, context)

    async def _refresh(
        self, request: TokenRequest, issuer: Issuer, token: Token, context: LoginContext
    ) -> Token | None:
        """Refresh `token` and return the new token; None if there is no usable refresh token.

        If the issuer refuses the refresh token for good, return a newer token of another program, or None. Raises
        TokenRefusal if the issuer has only a temporary problem, because the refresh token may still be valid then.
        """
        if token.refresh_token is None or (self.dpop and token.dpop_key is None):  # the new token would not be bound
            return None
        identity = await self.registration.named(token.client_id, issuer, context)
        if identity is None:
            return None
        dpop = None if token.dpop_key is None else DpopKey.from_pem(token.dpop_key)
        client = TokenClient(issuer, identity, context, dpop, request.nonces, self.clock)
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
            newer = await _newer_token(token, context)  # without a lock, another program may have been faster
            await _forget_token(token, context)
            token.refresh_token = None  # it is not tried again
            return newer
        renewed.asked = token.asked
        renewed.refresh_token = renewed.refresh_token or token.refresh_token  # not every issuer sends a new one
        await _keep_token(renewed, context)
        return renewed

    # --- the browser

    async def _authorize(self, request: TokenRequest, discovery: Discovery, context: LoginContext) -> Token:
        issuer, resource = discovery.issuer, discovery.resource
        page = self._authorization_endpoint(issuer)
        scopes = self._with_offline(self._select_scopes(request, discovery), issuer)
        known = await self.registration.known(issuer.issuer, context)
        redirect_uri = await context.listen([] if known is None else known.redirect_uris)
        _check_url(redirect_uri, "The redirect URI cannot be used")
        identity = await self.registration.obtain(issuer, redirect_uri, scopes, context)
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
        dpop = self._new_key(request, discovery)
        return await self._ask(TokenClient(issuer, identity, context, dpop, request.nonces, self.clock), form, scopes)

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
        """Request a token. If the issuer does not know this client any more, delete the stored registration."""
        try:
            return await super()._ask(client, form, asked)
        except TokenRefusal as refusal:
            if refusal.code == "invalid_client":
                await self.registration.forget(client.identity, client.context)
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
    """Return the URL `endpoint` with `params` added to its query."""
    parts = urlsplit(endpoint)
    query = "&".join(part for part in (parts.query, urlencode(params)) if part)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
