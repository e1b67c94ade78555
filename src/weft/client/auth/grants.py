"""Obtain tokens: a person logs in, or a program proves what it is.

    CodeFlow                   a person logs in: authorization code with PKCE, refreshing, asking for more scopes
    ClientCredentialsFlow      the program's own secret or key
    EnterpriseFlow             the company's identity provider vouches for the user (ID-JAG)
    WorkloadFlow               the platform vouches for the program (JWT)

A grant is async, and reaches the world only through its `LoginContext`. Nothing of an answer is used before it is
certain whose answer it is.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
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
    said,
    url_digest,
)
from weft.errors import AuthorizationFailed
from weft.net.urls import UrlRefused, origin_of, read_url, shown_url

Secret = str | Callable[[], Any]
"""A text, or a function (plain or async) that returns it each time it is needed."""

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ID_JAG_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"
_OFFLINE = "offline_access"
_FOUND_SECONDS = 600.0  # how long metadata is used again when a token is replaced
_FRESH_SECONDS = 10.0  # a token that is refused so soon is not refused for its age


@dataclass(slots=True)
class DiscoveryCache:
    """The last discovery of a server, so that replacing a short-lived token does not fetch the same documents again.

    A login does not read it: it begins because something has changed.
    """

    discovery: Discovery | None = None
    since: float = 0

    def keep(self, discovery: Discovery | None, now: float = 0) -> None:
        """Remember a discovery; None forgets it."""
        self.discovery, self.since = discovery, now

    def recall(self, now: float) -> Discovery | None:
        """Return a recent discovery, if any."""
        return self.discovery if now - self.since < _FOUND_SECONDS else None


@dataclass(slots=True)
class TokenRequest:
    """What is known when a token is needed."""

    challenge: Challenge = field(default_factory=Challenge)
    token: Token | None = None  # the one that is not sufficient any more
    is_step_up: bool = False  # that token is valid, but lacks scopes
    nonces: Nonces = field(default_factory=Nonces)
    found: DiscoveryCache = field(default_factory=DiscoveryCache)

    def previous(self, discovery: Discovery) -> Token | None:
        """Return the old token if it is from the same issuer for the same resource."""
        token = self.token
        if token is None or (token.issuer, token.resource) != (discovery.issuer.issuer, discovery.resource):
            return None
        return token


class Grant(Protocol):
    """A way to obtain tokens."""

    async def login(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a token that satisfies the request; AuthorizationFailed when there is none."""
        ...

    def can_renew(self, request: TokenRequest) -> bool:
        """Return whether the token can be replaced without a person."""
        ...

    async def renew(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a token that replaces the old one before it expires."""
        ...


async def _discover(request: TokenRequest, context: LoginContext, only: str | None, client_id: str | None) -> Discovery:
    return await context.run(discover(context.server_url, request.challenge, context.tried, only, client_id))


def select_scopes(request: TokenRequest, discovery: Discovery, wished: Sequence[str]) -> list[str]:
    """Return the scopes to ask for: those that the challenge demands, else those that the server lists, else none.

    Scopes that were asked for before are asked for again, so that none is lost. The user's own are added, and replace
    the server's list, which is only a guess at what will be needed.
    """
    demanded = request.challenge.scopes
    if demanded is None:
        listed = discovery.published.scopes_supported if discovery.published is not None else None
        demanded = tuple(wished or listed or ())
    previous = request.previous(discovery)
    before = previous.scopes if previous is not None else []
    return list(dict.fromkeys([*demanded, *wished, *before]))


def new_dpop_key(setting: bool | None, request: TokenRequest, discovery: Discovery) -> DpopKey | None:  # noqa: FBT001 - a tristate
    """Return a key to bind the token to: if the user wants it, else if the server wants it and the issuer can."""
    demanded = discovery.published is not None and bool(discovery.published.dpop_bound_access_tokens_required)
    if setting is None:
        setting = (request.challenge.is_dpop or demanded) and discovery.issuer.can_bind_tokens()
    return DpopKey.new() if setting else None


def _check_bound(token: Token, setting: bool | None, context: LoginContext) -> None:  # noqa: FBT001 - a tristate
    if setting and token.kind != "DPoP":
        raise AuthorizationFailed("The token is not bound to our key, which `dpop=True` demands.", context.tried)


# --- stored tokens


def token_key(issuer: str, resource: str) -> str:
    """Return the storage key of a token. It has the issuer in it: no issuer sees what another has issued."""
    return f"token {issuer} {resource}"


def server_key(server_url: str) -> str:
    """Return the storage key of the pair that names the token of a server."""
    return f"server {server_url}"


async def _keep_token(token: Token, context: LoginContext) -> None:
    """Store a token by its issuer and resource, and that the server takes it."""
    await context.keep_record(token_key(token.issuer, token.resource), token)
    await context.keep_record(server_key(context.server_url), [token.issuer, token.resource])


async def recall_token(context: LoginContext) -> Token | None:
    """Return the token that is stored for the server."""
    pair = await context.load_record(server_key(context.server_url), tuple[str, str])
    if pair is None:
        return None
    token = await context.load_record(token_key(*pair), Token)
    return token if token is not None and (token.issuer, token.resource) == pair else None


async def _forget_token(token: Token, context: LoginContext) -> None:
    """Delete a stored token, unless another program has stored a newer one."""
    key = token_key(token.issuer, token.resource)
    kept = await context.load_record(key, Token)
    if kept is not None and kept.refresh_token == token.refresh_token:
        await context.keep(key, None)


async def _newer_token(token: Token, context: LoginContext) -> Token | None:
    """Return the token that another program has stored since, if it is for the same client and does as much."""
    kept = await context.load_record(token_key(token.issuer, token.resource), Token)
    if kept is None or kept.access_token == token.access_token or kept.obtained_at < token.obtained_at:
        return None
    whose, same = ((one.issuer, one.resource, one.client_id, one.kind) for one in (kept, token))
    return kept if whose == same and set(token.granted) <= set(kept.scopes) else None


# --- programs


@dataclass(slots=True)
class _MachineFlow:
    """A grant without a person: it finds the issuer, asks its token endpoint once, and stores the token."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None
    issuer: str | None = None  # the only one that these credentials are for
    scopes: Sequence[str] = ()
    dpop: bool | None = None
    key: PrivateKey | None = None  # instead of a secret
    clock: Callable[[], float] = time.time

    async def login(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a new token."""
        discovery = await _discover(request, context, self.issuer, self.client_id)
        request.found.keep(discovery, self.clock())
        return await self._obtain(request, discovery, context)

    def can_renew(self, request: TokenRequest) -> bool:
        """Return whether the server has sent a challenge, which says where its metadata is."""
        return bool(request.challenge.scheme)

    async def renew(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a new token, with the metadata that is known."""
        known = request.found.recall(self.clock())
        if known is None:
            return await self.login(request, context)
        try:
            return await self._obtain(request, known, context)
        except AuthorizationFailed:
            request.found.keep(None)
            raise

    async def _obtain(self, request: TokenRequest, discovery: Discovery, context: LoginContext) -> Token:
        issuer = discovery.issuer
        if self.issuer is None:
            await bind_issuer(self.client_id, issuer, context)
        scopes = select_scopes(request, discovery, self.scopes)
        form = await self._form(discovery, scopes, context)
        if scopes:
            form["scope"] = " ".join(scopes)
        identity = Identity(self.client_id, issuer.issuer, self.client_secret, self.auth_method)
        dpop = new_dpop_key(self.dpop, request, discovery)
        client = TokenClient(issuer, identity, context.tried, dpop, request.nonces, self.clock, self.key)
        token = await context.run(client.ask({**form, "resource": discovery.resource}, scopes))
        _check_bound(token, self.dpop, context)
        await _keep_token(token, context)
        return token

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        raise NotImplementedError


@dataclass(slots=True)
class ClientCredentialsFlow(_MachineFlow):
    """The program's own secret, or its own key."""

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        return {"grant_type": "client_credentials"}


@dataclass(slots=True)
class WorkloadFlow(_MachineFlow):
    """A JWT of the platform that the program runs on."""

    assertion: Secret = field(kw_only=True, repr=False)

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        assertion = await _secret(self.assertion, "assertion", context)
        return {"grant_type": _JWT_BEARER, "assertion": assertion}


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """The company's identity provider, and how this program is known there. Give its token endpoint, or its issuer."""

    client_id: str
    id_token: Secret = field(repr=False)
    token_endpoint: str | None = None
    issuer: str | None = None
    client_secret: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class EnterpriseFlow(_MachineFlow):
    """The user's id token is exchanged for an ID-JAG for the server's issuer, and that for the access token."""

    provider: IdentityProvider = field(kw_only=True)

    async def _form(self, discovery: Discovery, scopes: list[str], context: LoginContext) -> dict[str, str]:
        issuer, provider = discovery.issuer, self.provider
        profiles = issuer.authorization_grant_profiles_supported
        if profiles is not None and _ID_JAG_PROFILE not in profiles:
            raise AuthorizationFailed(
                f"{shown_url(issuer.issuer)} does not take what a company's identity provider says; log in "
                "with OAuth() instead.",
                context.tried,
            )
        id_token = await _secret(provider.id_token, "id_token", context)
        idp = await self._identity_provider(context)
        form = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": issuer.issuer,
            "resource": discovery.resource,
            "subject_token": id_token,
            "subject_token_type": _ID_TOKEN,
        }
        if scopes:
            form["scope"] = " ".join(scopes)
        identity = Identity(provider.client_id, idp.issuer, provider.client_secret)
        client = TokenClient(idp, identity, context.tried, clock=self.clock)
        document = await context.run(client.exchange(form))
        assertion, kind = document.get("access_token"), document.get("issued_token_type")
        if not isinstance(assertion, str) or not assertion or kind != _ID_JAG:
            raise AuthorizationFailed(
                "The identity provider did not answer with an ID-JAG; have it set up for this server.", context.tried
            )
        return {"grant_type": _JWT_BEARER, "assertion": assertion}

    async def _identity_provider(self, context: LoginContext) -> Issuer:
        provider = self.provider
        if provider.token_endpoint is not None:
            return Issuer(provider.issuer or provider.token_endpoint, token_endpoint=provider.token_endpoint)
        assert provider.issuer is not None
        found = await context.run(discover_issuer(provider.issuer, context.tried))
        if found is None:
            raise AuthorizationFailed(
                f"The identity provider {shown_url(provider.issuer)} publishes no metadata; give its token_endpoint.",
                context.tried,
            )
        return found


async def _secret(given: Secret, name: str, context: LoginContext) -> str:
    value: Any = given if isinstance(given, str) else await context.call(given, name)
    if not isinstance(value, str) or not value:
        raise AuthorizationFailed(
            f"The function given as `{name}` returned no text; let it return a JWT.", context.tried
        )
    return value


# --- people


@dataclass(slots=True)
class CodeFlow:
    """The login of a person: authorization code with PKCE, and refresh tokens."""

    registration: Registration
    scopes: Sequence[str] = ()
    dpop: bool | None = None
    offline: bool = True  # ask for a refresh token where the issuer has a scope for that
    clock: Callable[[], float] = time.time

    async def login(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a token: by refreshing if that is enough, else by sending the person to the authorization server."""
        known = self.registration
        discovery = await _discover(request, context, known.issuer if known.client_id else None, known.client_id)
        request.found.keep(discovery, self.clock())
        previous = request.previous(discovery)
        if previous is not None and not request.is_step_up:
            token = await self._replace(request, discovery.issuer, previous, context, is_refused=True)
            if token is not None:
                return token
        token = await self._authorize(request, discovery, context)
        await _keep_token(token, context)
        return token

    def can_renew(self, request: TokenRequest) -> bool:
        """Return whether there is a refresh token."""
        return request.token is not None and request.token.refresh_token is not None

    async def renew(self, request: TokenRequest, context: LoginContext) -> Token:
        """Return a token for the refresh token, or one that another program has stored."""
        token = request.token
        assert token is not None, "can_renew"
        renewed = None
        try:
            issuer = await self._issuer_of(token, request, context)
            if issuer is not None:
                renewed = await self._replace(request, issuer, token, context, is_refused=False)
        finally:
            if renewed is None:
                request.found.keep(None)
        if renewed is None:
            raise AuthorizationFailed("The token could not be refreshed.", context.tried)
        return renewed

    # --- refreshing

    async def _issuer_of(self, token: Token, request: TokenRequest, context: LoginContext) -> Issuer | None:
        known = request.found.recall(self.clock())
        if known is not None and known.issuer.issuer == token.issuer:
            return known.issuer
        issuer = await context.run(discover_issuer(token.issuer, context.tried))
        if issuer is None and token.issuer == origin_of(context.server_url):
            issuer = legacy_issuer(context.server_url)
        if issuer is not None:
            request.found.keep(Discovery(token.resource, issuer, None), self.clock())
        return issuer

    async def _replace(
        self, request: TokenRequest, issuer: Issuer, token: Token, context: LoginContext, *, is_refused: bool
    ) -> Token | None:
        """Return a token without a person: one that another program has stored, or by refreshing; None for neither.

        Programs that share a storage take turns: a refresh token may be good once, and an issuer that sees one twice
        ends the whole login.
        """
        async with context.claimed(token_key(token.issuer, token.resource)):
            newer = await _newer_token(token, context)
            now = self.clock()
            if newer is not None and not newer.is_due(now):
                context.tried.append("the token that another program has kept")
                return newer
            is_fresh = now - token.obtained_at < _FRESH_SECONDS and not token.is_expired(now)
            if newer is None and is_refused and is_fresh:
                self._check_lacking(request, token, context)  # refreshing would not give it more scopes
                return None
            return await self._refresh(request, issuer, newer or token, context)

    async def _refresh(
        self, request: TokenRequest, issuer: Issuer, token: Token, context: LoginContext
    ) -> Token | None:
        """Return a new token for the refresh token, None if that is worthless; TokenRefusal if it may not be."""
        if token.refresh_token is None or (self.dpop and token.dpop_key is None):  # it would not be bound either
            return None
        identity = await self.registration.named(token.client_id, issuer, context)
        if identity is None:
            return None
        dpop = None if token.dpop_key is None else DpopKey.from_pem(token.dpop_key)
        client = TokenClient(issuer, identity, context.tried, dpop, request.nonces, self.clock)
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": token.resource}
        try:
            renewed = await self._ask_refresh(client, form, token, context)
        except TokenRefusal as refusal:
            if not refusal.is_final:
                raise  # the refresh token is as good as before: the issuer is in trouble, not the login
            newer = await _newer_token(token, context)  # without turns, another program may have been faster
            await _forget_token(token, context)
            token.refresh_token = None  # not to be tried again
            return newer
        renewed.asked = token.asked
        renewed.refresh_token = renewed.refresh_token or token.refresh_token  # some issuers send a new one each time
        await _keep_token(renewed, context)
        return renewed

    async def _ask_refresh(
        self, client: TokenClient, form: dict[str, str], token: Token, context: LoginContext
    ) -> Token:
        """Ask for the granted scopes: some issuers refuse a refresh without them, and others their own names for them.

        The latter are asked without scopes.
        """
        if token.granted:
            try:
                scoped = {**form, "scope": " ".join(token.granted)}
                return await self._ask(client, scoped, token.granted, context)
            except TokenRefusal as refusal:
                if refusal.code != "invalid_scope":
                    raise
        return await self._ask(client, form, token.granted, context)

    def _check_lacking(self, request: TokenRequest, token: Token, context: LoginContext) -> None:
        """Raise AuthorizationFailed unless scopes are demanded that were never asked for."""
        if set(request.challenge.scopes or ()) <= set(token.scopes):
            raise AuthorizationFailed(
                f"{shown_url(context.server_url)} refuses the token that {shown_url(token.issuer)} has just given "
                "for it. Logging in again would not help: tell the operator, the two do not agree on audience, issuer "
                "or keys.",
                context.tried,
            )

    # --- the browser

    async def _authorize(self, request: TokenRequest, discovery: Discovery, context: LoginContext) -> Token:
        issuer, tried, resource = discovery.issuer, context.tried, discovery.resource
        page = self._authorization_endpoint(issuer, tried)
        scopes = self._with_offline(select_scopes(request, discovery, self.scopes), issuer)
        known = await self.registration.known(issuer, context)
        redirect_uri = await context.listen([] if known is None else known.redirect_uris)
        _check_url(redirect_uri, "The redirect URI cannot be used", tried)
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
        }
        if scopes:
            asked["scope"] = " ".join(scopes)
        tried.append(f"login at {shown_url(page)}")
        came_back = await context.visit(_with_query(page, asked), state)
        form = {
            "grant_type": "authorization_code",
            "code": read_redirect(came_back, state, issuer, tried),
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "resource": resource,
        }
        dpop = new_dpop_key(self.dpop, request, discovery)
        client = TokenClient(issuer, identity, context.tried, dpop, request.nonces, self.clock)
        return await self._ask(client, form, scopes, context)

    def _authorization_endpoint(self, issuer: Issuer, tried: list[str]) -> str:
        endpoint = issuer.authorization_endpoint
        if endpoint is None:
            raise AuthorizationFailed(
                f"{shown_url(issuer.issuer)} publishes no authorization endpoint: nobody can log in there.", tried
            )
        if "S256" not in (issuer.code_challenge_methods_supported or ()):
            raise AuthorizationFailed(
                f"{shown_url(issuer.issuer)} does not say that it supports PKCE with S256, without which a login is "
                "not safe; have its operator publish `code_challenge_methods_supported`.",
                tried,
            )
        _check_url(endpoint, "The login page is not opened", tried)
        return endpoint

    def _with_offline(self, scopes: list[str], issuer: Issuer) -> list[str]:
        """Add the scope for a refresh token, if the issuer lists it; no scope at all means the issuer's defaults."""
        if not self.offline or not scopes or _OFFLINE in scopes or _OFFLINE not in (issuer.scopes_supported or ()):
            return scopes
        return [*scopes, _OFFLINE]

    async def _ask(self, client: TokenClient, form: dict[str, str], asked: list[str], context: LoginContext) -> Token:
        """Ask for a token. If the issuer has forgotten this client, the next login registers it again."""
        try:
            token = await context.run(client.ask(form, asked))
        except TokenRefusal as refusal:
            if refusal.code == "invalid_client":
                await self.registration.forget(client.identity, context)
            raise
        _check_bound(token, self.dpop, context)
        return token


def read_redirect(url: str, state: str, issuer: Issuer, tried: list[str]) -> str:
    """Return the code that the browser came back with, once it is certain that it answers this login.

    The state is checked first: an answer to another login is discarded. Then the issuer, compared as it is written; on
    a mismatch nothing of the answer is acted on or shown. Only then the answer itself.
    """
    try:
        query = parse_qs(urlsplit(url).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        query = dict[str, list[str]]()
    answer = {name: values[0] for name, values in query.items() if len(values) == 1}
    if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise AuthorizationFailed("The browser came back with an answer to another login; it was discarded.", tried)
    must_say = issuer.authorization_response_iss_parameter_supported or "iss" in query
    if must_say and answer.get("iss") != issuer.issuer:
        raise AuthorizationFailed(
            f"The answer to the login is not from {shown_url(issuer.issuer)}, or does not say so although it should: "
            "it was discarded, and the code in it was not redeemed. Somebody may be trying to mix up two servers.",
            tried,
        )
    if "error" in query:
        reason = said(answer, 0)
        tried.append(f"the answer: {reason}")
        raise AuthorizationFailed(f"The login was refused ({reason}); log in again, or as somebody else.", tried)
    code = answer.get("code")
    if not code:
        raise AuthorizationFailed("The browser came back without a code; try again.", tried)
    return code


def _check_url(url: str, what: str, tried: list[str]) -> None:
    try:
        read_url(url)
    except UrlRefused as refused:
        raise AuthorizationFailed(f"{what}: {refused}.", tried) from None


def _with_query(endpoint: str, params: dict[str, str]) -> str:
    """Return a URL with more parameters in its query."""
    parts = urlsplit(endpoint)
    query = "&".join(part for part in (parts.query, urlencode(params)) if part)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
