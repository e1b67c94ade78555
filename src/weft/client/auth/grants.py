"""Obtain tokens: a person logs in, or a program proves what it is.

Nobody logs in: a program shows what it is, or what somebody else says about it.

    ClientCredentialsFlow      the program's own secret or key (XAUTH-02)
    EnterpriseFlow             the company's identity provider vouches for the user: an ID-JAG (XAUTH-04, XAUTH-05)
    WorkloadFlow               the platform vouches for the program: a JWT (XAUTH-09)

None of them registers a client, and none tries twice: what was refused once is refused again.

What all ways to a token have in common: where it begins, who is asked, for which scopes, and what is kept.

Owns the interface of a grant and the parts that every grant uses; the grants themselves are in `flow` (a person logs
in) and `grants` (nobody does). Sans-IO: everything that touches the world is a step.

A person logs in: authorization code with PKCE, and what follows from it — refreshing, and asking for more.

The flow as a whole, one function after the other: find out who guards the server, refresh if that is enough, come by an
identity, send the person to the authorization server, check what the browser came back with, redeem the code. Nothing
of the answer is looked at before it is certain whose answer it is (AUTH-19 … AUTH-23).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from weft.client.auth import urls
from weft.client.auth.credentials import (
    ALGORITHM,
    DpopKey,
    Identity,
    Nonces,
    Token,
    keep_record,
    load_record,
    server_key,
    token_key,
)
from weft.client.auth.metadata import (
    Challenge,
    Issuer,
    ProtectedResource,
    discover_issuer,
    discover_resource,
    legacy_issuer,
)
from weft.client.auth.registration import Registration, bind_issuer
from weft.client.auth.steps import Steps, call, claim, listen, release, visit
from weft.client.auth.tokens import PrivateKey, TokenEndpoint, TokenRefusal, said
from weft.errors import AuthorizationFailed

Secret = str | Callable[[], Any]
"""A text, or a function (plain or async) that returns it each time it is needed."""

_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ID_JAG_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"


@dataclass(slots=True)
class _MachineFlow:
    """What the three have in common: find the issuer, ask its token endpoint once, keep the token."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None
    issuer: str | None = None  # the only one that these credentials are for
    scopes: Sequence[str] = ()
    dpop: bool | None = None
    key: PrivateKey | None = None  # instead of a secret
    clock: Callable[[], float] = time.time

    def login(self, situation: TokenRequest) -> Steps[Token]:
        """A token."""
        guarded = yield from find_guard(situation, self._choose)
        situation.found.keep(guarded, self.clock())
        return (yield from self._obtained(situation, guarded))

    def renewal(self, situation: TokenRequest) -> Steps[Token] | None:
        """The same again: it needs nobody. Where the server has not said yet who guards it, it is let say so."""
        return self._renewed(situation) if situation.challenge.scheme else None

    def _renewed(self, situation: TokenRequest) -> Steps[Token]:
        known = situation.found.recall(self.clock())
        if known is None:
            return (yield from self.login(situation))
        try:
            return (yield from self._obtained(situation, known))
        except AuthorizationFailed:
            situation.found.forget()
            raise

    def _obtained(self, situation: TokenRequest, guarded: Guarded) -> Steps[Token]:
        if self.issuer is None:
            yield from bind_issuer(self.client_id, guarded.issuer, situation.server_url, situation.tried)
        scopes = select_scopes(situation, guarded, self.scopes)
        form = yield from self._form(situation, guarded, scopes)
        if scopes:
            form["scope"] = " ".join(scopes)
        dpop = DpopKey.new() if wants_dpop(self.dpop, situation, guarded) else None
        endpoint = self._endpoint(situation, guarded.issuer, dpop)
        token = yield from endpoint.ask({**form, "resource": guarded.resource}, resource=guarded.resource, asked=scopes)
        yield from keep_token(situation.server_url, token)
        return token

    def _form(self, situation: TokenRequest, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
        raise NotImplementedError

    def _choose(self, offered: list[str], tried: list[str]) -> list[str]:
        if self.issuer is None:
            return offered
        if self.issuer in offered:
            return [self.issuer]
        raise AuthorizationFailed(
            f"These credentials are for {urls.shown(self.issuer)}, but the server is guarded by "
            f"{', '.join(urls.shown(one) for one in offered[:5])}; nothing was sent. Give those for it.",
            tried,
        )

    def _endpoint(self, situation: TokenRequest, issuer: Issuer, dpop: DpopKey | None) -> TokenEndpoint:
        identity = Identity(self.client_id, issuer.issuer, self.client_secret, self.auth_method)
        return TokenEndpoint(
            issuer,
            identity,
            situation.tried,
            key=self.key,
            dpop=dpop,
            must_bind=bool(self.dpop),
            nonces=situation.nonces,
            clock=self.clock,
        )


@dataclass(slots=True)
class ClientCredentialsFlow(_MachineFlow):
    """The program's own secret, or its own key."""

    def _form(self, situation: TokenRequest, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
        yield from ()
        return {"grant_type": "client_credentials"}


@dataclass(slots=True)
class WorkloadFlow(_MachineFlow):
    """A JWT of the platform, shown once."""

    assertion: Secret = field(kw_only=True, repr=False)

    def _form(self, situation: TokenRequest, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
        assertion = yield from _secret(self.assertion, "assertion", situation.tried)
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
    """The user's id token becomes an ID-JAG for the server's issuer, and that becomes the access token."""

    provider: IdentityProvider = field(kw_only=True)

    def _form(self, situation: TokenRequest, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
        profiles = guarded.issuer.authorization_grant_profiles_supported
        if profiles is not None and _ID_JAG_PROFILE not in profiles:  # XAUTH-07
            raise AuthorizationFailed(
                f"{urls.shown(guarded.issuer.issuer)} does not take what a company's identity provider says; log in "
                "with OAuth() instead.",
                situation.tried,
            )
        id_token = yield from _secret(self.provider.id_token, "id_token", situation.tried)
        idp = yield from self._identity_provider(situation)
        form = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": guarded.issuer.issuer,
            "resource": guarded.resource,
            "subject_token": id_token,
            "subject_token_type": _ID_TOKEN,
        }
        if scopes:
            form["scope"] = " ".join(scopes)
        identity = Identity(self.provider.client_id, idp.issuer, self.provider.client_secret)
        exchange = TokenEndpoint(idp, identity, situation.tried, clock=self.clock)
        document = yield from exchange.exchange(form)
        assertion, kind = document.get("access_token"), document.get("issued_token_type")
        if not isinstance(assertion, str) or not assertion or kind != _ID_JAG:
            raise AuthorizationFailed(
                "The identity provider did not answer with an ID-JAG; have it set up for this server.", situation.tried
            )
        return {"grant_type": _JWT_BEARER, "assertion": assertion}

    def _identity_provider(self, situation: TokenRequest) -> Steps[Issuer]:
        provider = self.provider
        if provider.token_endpoint is not None:
            return Issuer(provider.issuer or provider.token_endpoint, token_endpoint=provider.token_endpoint)
        assert provider.issuer is not None
        found = yield from discover_issuer(provider.issuer, situation.tried)
        if found is None:
            raise AuthorizationFailed(
                f"The identity provider {urls.shown(provider.issuer)} publishes no metadata; give its token_endpoint.",
                situation.tried,
            )
        return found


def _secret(given: Secret, name: str, tried: list[str]) -> Steps[str]:
    value: Any = given if isinstance(given, str) else (yield from call(given, name))
    if not isinstance(value, str) or not value:
        raise AuthorizationFailed(f"The function given as `{name}` returned no text; let it return a JWT.", tried)
    return value


_MOST_ISSUERS = 5
_FOUND_SECONDS = 600.0  # for which metadata is good, when a token is replaced

Choose = Callable[[list[str], list[str]], list[str]]


@dataclass(slots=True)
class Found:
    """What was found out about who guards a server; for a while it need not be found out again.

    A login always looks: it is begun because something is not as it was. A token that lives for seconds is replaced
    without fetching the same documents each time.
    """

    guarded: Guarded | None = None
    since: float = 0

    def keep(self, guarded: Guarded, now: float) -> None:
        """Remember."""
        self.guarded, self.since = guarded, now

    def recall(self, now: float) -> Guarded | None:
        """Return what was found out not long ago."""
        return self.guarded if now - self.since < _FOUND_SECONDS else None

    def forget(self) -> None:
        """Find out again the next time: something failed that was built on it."""
        self.guarded = None


@dataclass(slots=True)
class TokenRequest:
    """What is known when a token is needed."""

    server_url: str
    challenge: Challenge = field(default_factory=Challenge)
    token: Token | None = None  # the one that does not suffice any more
    is_step_up: bool = False  # it is good, but not for this
    nonces: Nonces = field(default_factory=Nonces)
    tried: list[str] = field(default_factory=list[str])
    found: Found = field(default_factory=Found)

    def previous(self, guarded: Guarded) -> Token | None:
        """The token that we had from the same issuer for the same resource; of others, nothing is taken over."""
        token = self.token
        if token is None or (token.issuer, token.resource) != (guarded.issuer.issuer, guarded.resource):
            return None
        return token


@dataclass(slots=True)
class Guarded:
    """A server, and the authorization server that guards it."""

    resource: str  # exactly as published (AUTH-24)
    issuer: Issuer
    published: ProtectedResource | None


class Grant(Protocol):
    """A way to a token."""

    def login(self, situation: TokenRequest) -> Steps[Token]:
        """A token that does what the situation needs; AuthorizationFailed when there is none."""
        ...

    def renewal(self, situation: TokenRequest) -> Steps[Token] | None:
        """How the token is replaced before it expires, where that needs nobody."""
        ...


def find_guard(situation: TokenRequest, choose: Choose) -> Steps[Guarded]:
    """The first usable authorization server of those that guard a server (AUTH-05)."""
    url, tried = situation.server_url, situation.tried
    published = yield from discover_resource(url, situation.challenge, tried)
    if published is None:
        root = urls.base(url)
        choose([root], tried)
        issuer = yield from discover_issuer(root, tried, also=f"{root}/")
        return Guarded(urls.canonical(url), issuer or legacy_issuer(url), None)
    failure: AuthorizationFailed | None = None
    for name in choose(published.authorization_servers, tried)[:_MOST_ISSUERS]:
        try:
            issuer = yield from discover_issuer(name, tried)
        except AuthorizationFailed as error:
            failure = error
            continue
        if issuer is not None:
            return Guarded(published.resource, issuer, published)
    raise failure or AuthorizationFailed(
        f"No authorization server of {urls.shown(url)} publishes its metadata; try again later, or tell its operator.",
        tried,
    )


def select_scopes(situation: TokenRequest, guarded: Guarded, wished: Sequence[str]) -> list[str]:
    """The scopes to ask for: what the challenge demands, else what the server lists, else none (AUTH-13).

    What was asked for before is asked for again, so that nothing is lost (AUTH-12); what the user wishes goes along,
    and replaces the server's list, which is only a guess at what will be needed (AUTH-14).
    """
    demanded = situation.challenge.scopes
    if demanded is None:
        listed = guarded.published.scopes_supported if guarded.published is not None else None
        demanded = tuple(wished or listed or ())
    previous = situation.previous(guarded)
    before = previous.scopes if previous is not None else []
    return list(dict.fromkeys([*demanded, *wished, *before]))


def wants_dpop(setting: bool | None, situation: TokenRequest, guarded: Guarded) -> bool:  # noqa: FBT001 - a tristate
    """Whether the token is to be bound to a key: as the user says, else where the server wants it and it can be."""
    if setting is not None:
        return setting
    listed = guarded.issuer.dpop_signing_alg_values_supported
    demanded = guarded.published is not None and bool(guarded.published.dpop_bound_access_tokens_required)
    return (situation.challenge.is_dpop or demanded) and (listed is None or ALGORITHM in listed)


def keep_token(server_url: str, token: Token) -> Steps[None]:
    """Keep a token, by its issuer and resource, and which one this server takes."""
    yield from keep_record(token_key(token.issuer, token.resource), token)
    yield from keep_record(server_key(server_url), [token.issuer, token.resource])


def forget_token(token: Token) -> Steps[None]:
    """It is worth nothing any more. What another program has kept in its place stays."""
    key = token_key(token.issuer, token.resource)
    kept = yield from load_record(key, Token)
    if kept is not None and kept.refresh_token == token.refresh_token:
        yield from keep_record(key, None)


def newer_token(token: Token) -> Steps[Token | None]:
    """What another program has kept in place of a token since, if it is for the same client and does as much."""
    kept = yield from load_record(token_key(token.issuer, token.resource), Token)
    if kept is None or kept.access_token == token.access_token or kept.obtained_at < token.obtained_at:
        return None
    is_alike = _whose(kept) == _whose(token) and set(token.granted) <= set(kept.scopes)
    return kept if is_alike else None


def _whose(token: Token) -> tuple[str, str, str, str]:
    return token.issuer, token.resource, token.client_id, token.kind


def recall_token(server_url: str) -> Steps[Token | None]:
    """The token that was kept for a server."""
    pair = yield from load_record(server_key(server_url), tuple[str, str])
    if pair is None:
        return None
    token = yield from load_record(token_key(*pair), Token)
    return token if token is not None and (token.issuer, token.resource) == pair else None


_OFFLINE = "offline_access"
_FRESH_SECONDS = 10.0  # a token that is refused so soon is not refused for its age


@dataclass(frozen=True, slots=True)
class Pkce:
    """A secret that only the one who began a login can show at its end (ASEC-06)."""

    verifier: str = field(repr=False)

    @classmethod
    def new(cls) -> Pkce:
        """A new secret."""
        return cls(secrets.token_urlsafe(48))

    @property
    def challenge(self) -> str:
        """Its S256 digest."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()


@dataclass(slots=True)
class CodeFlow:
    """The login of a person, as one program is set up for it."""

    registration: Registration
    scopes: Sequence[str] = ()
    dpop: bool | None = None
    offline: bool = True  # ask for a refresh token where the issuer wants to be asked
    clock: Callable[[], float] = time.time

    # --- Grant

    def login(self, situation: TokenRequest) -> Steps[Token]:
        """A token: by refreshing if that suffices, else by sending the person to the authorization server."""
        guarded = yield from find_guard(situation, self.registration.choose)
        situation.found.keep(guarded, self.clock())
        previous = situation.previous(guarded)
        if previous is not None and not situation.is_step_up:
            token = yield from self._replaced(situation, guarded.issuer, previous, is_refused=True)
            if token is not None:
                return token
        token = yield from self._authorized(situation, guarded)
        yield from keep_token(situation.server_url, token)
        return token

    def renewal(self, situation: TokenRequest) -> Steps[Token] | None:
        """Refreshing, where there is a refresh token: none is ever presumed (AUTH-38)."""
        token = situation.token
        return None if token is None or token.refresh_token is None else self._renewed(situation, token)

    # --- refreshing

    def _renewed(self, situation: TokenRequest, token: Token) -> Steps[Token]:
        found = situation.found
        known = found.recall(self.clock())
        issuer = None if known is None or known.issuer.issuer != token.issuer else known.issuer
        if issuer is None:
            issuer = yield from self._issuer_of(token, situation)
        renewed = None
        try:
            if issuer is not None:
                renewed = yield from self._replaced(situation, issuer, token, is_refused=False)
        finally:
            if renewed is None:
                found.forget()
        if renewed is None:
            raise AuthorizationFailed("The token could not be refreshed.", situation.tried)
        return renewed

    def _issuer_of(self, token: Token, situation: TokenRequest) -> Steps[Issuer | None]:
        """Find the issuer of a token, which may have been kept since another program ran."""
        issuer = yield from discover_issuer(token.issuer, situation.tried)
        if issuer is None and token.issuer == urls.base(situation.server_url):
            issuer = legacy_issuer(situation.server_url)
        if issuer is not None:
            situation.found.keep(Guarded(token.resource, issuer, None), self.clock())
        return issuer

    def _replaced(
        self, situation: TokenRequest, issuer: Issuer, token: Token, *, is_refused: bool
    ) -> Steps[Token | None]:
        """Another token without a person: what another program has come by since, else by refreshing; None for neither.

        Programs that share a storage take turns: a refresh token may be good for once, and an issuer that sees one
        twice ends the whole login.
        """
        yield from claim(token_key(token.issuer, token.resource))
        found = newer = yield from newer_token(token)
        if newer is not None and not newer.is_due(self.clock()):
            situation.tried.append("the token that another program has kept")
        elif newer is None and is_refused and self._is_fresh(token):
            self._check_lacking(situation, token)  # refreshing would not give it more scopes
        else:
            found = yield from self._refreshed(situation, issuer, newer or token)
        yield from release()
        return found

    def _refreshed(self, situation: TokenRequest, issuer: Issuer, token: Token) -> Steps[Token | None]:
        """Return a new token for the refresh token, None if that is worthless, or a `TokenRefusal` if it may not be."""
        if token.refresh_token is None or (self.dpop and token.dpop_key is None):  # it would not be bound either
            return None
        identity = yield from self.registration.named(token.client_id, issuer)
        if identity is None:
            return None
        dpop = None if token.dpop_key is None else DpopKey.from_pem(token.dpop_key)
        endpoint = self._endpoint(situation, issuer, identity, dpop)
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": token.resource}
        try:
            renewed = yield from self._refresh(endpoint, form, token)
        except TokenRefusal as refusal:
            if not refusal.is_final:
                raise  # it is as good as before: the issuer is in trouble, not the login
            newer = yield from newer_token(token)  # where there are no turns, somebody may have been faster
            yield from forget_token(token)
            token.refresh_token = None  # it is not tried again
            return newer
        renewed.asked = token.asked
        renewed.refresh_token = renewed.refresh_token or token.refresh_token  # rotated where the issuer does
        yield from keep_token(situation.server_url, renewed)
        return renewed

    def _refresh(self, endpoint: TokenEndpoint, form: dict[str, str], token: Token) -> Steps[Token]:
        """Ask for what was granted: some issuers refuse a refresh that names no scope, though it may be left out.

        Others call what they granted by names that they do not take themselves: those are asked without.
        """
        if token.granted:
            try:
                scoped = {**form, "scope": " ".join(token.granted)}
                return (yield from self._ask(endpoint, scoped, token.resource, token.granted))
            except TokenRefusal as refusal:
                if refusal.code != "invalid_scope":
                    raise
        return (yield from self._ask(endpoint, form, token.resource, token.granted))

    def _is_fresh(self, token: Token) -> bool:
        now = self.clock()
        return now - token.obtained_at < _FRESH_SECONDS and not token.is_expired(now)

    def _check_lacking(self, situation: TokenRequest, token: Token) -> None:
        """A login can only help where something is demanded that was never asked for."""
        if set(situation.challenge.scopes or ()) <= set(token.scopes):
            raise AuthorizationFailed(
                f"{urls.shown(situation.server_url)} refuses the token that {urls.shown(token.issuer)} has just given "
                "for it. Logging in again would not help: tell the operator, the two do not agree on audience, issuer "
                "or keys.",
                situation.tried,
            )

    # --- the person's part

    def _authorized(self, situation: TokenRequest, guarded: Guarded) -> Steps[Token]:
        issuer, tried = guarded.issuer, situation.tried
        endpoint = self._authorization_endpoint(issuer, tried)
        scopes = self._with_offline(select_scopes(situation, guarded, self.scopes), issuer)
        known = yield from self.registration.known(issuer)
        redirect_uri = yield from listen([] if known is None else known.redirect_uris)
        self._check(redirect_uri, "The redirect URI cannot be used", tried)  # this machine, or https (ASEC-05)
        identity = yield from self.registration.obtain(issuer, situation.server_url, redirect_uri, scopes, tried)
        pkce, state = Pkce.new(), secrets.token_urlsafe(32)
        asked = {
            "response_type": "code",
            "client_id": identity.client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": pkce.challenge,
            "code_challenge_method": "S256",
            "resource": guarded.resource,
        }
        if scopes:
            asked["scope"] = " ".join(scopes)
        tried.append(f"login at {urls.shown(endpoint)}")
        came_back = yield from visit(_with_query(endpoint, asked), state)
        code = read_redirect(came_back, state, issuer, tried)
        dpop = DpopKey.new() if wants_dpop(self.dpop, situation, guarded) else None
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": pkce.verifier,
            "resource": guarded.resource,
        }
        tokens = self._endpoint(situation, issuer, identity, dpop)
        return (yield from self._ask(tokens, form, guarded.resource, scopes))

    def _authorization_endpoint(self, issuer: Issuer, tried: list[str]) -> str:
        endpoint = issuer.authorization_endpoint
        if endpoint is None:
            raise AuthorizationFailed(
                f"{urls.shown(issuer.issuer)} publishes no authorization endpoint: nobody can log in there.", tried
            )
        if "S256" not in (issuer.code_challenge_methods_supported or ()):  # ASEC-07
            raise AuthorizationFailed(
                f"{urls.shown(issuer.issuer)} does not say that it supports PKCE with S256, without which a login is "
                "not safe; have its operator publish `code_challenge_methods_supported`.",
                tried,
            )
        self._check(endpoint, "The login page is not opened", tried)  # SBP-05: it is handed to a browser
        return endpoint

    def _check(self, url: str, what: str, tried: list[str]) -> None:
        try:
            urls.check(url)
        except urls.UrlRefused as refused:
            raise AuthorizationFailed(f"{what}: {refused}.", tried) from None

    def _with_offline(self, scopes: list[str], issuer: Issuer) -> list[str]:
        """With a refresh token, where the issuer lists it (AUTH-37); no scope at all means the issuer's defaults."""
        if not self.offline or not scopes or _OFFLINE in scopes or _OFFLINE not in (issuer.scopes_supported or ()):
            return scopes
        return [*scopes, _OFFLINE]

    def _ask(self, endpoint: TokenEndpoint, form: dict[str, str], resource: str, asked: list[str]) -> Steps[Token]:
        """Ask for a token. An issuer that has forgotten this client is registered with anew at the next login."""
        try:
            return (yield from endpoint.ask(form, resource=resource, asked=asked))
        except TokenRefusal as refusal:
            if refusal.code == "invalid_client":
                yield from self.registration.forget(endpoint.identity)
            raise

    def _endpoint(
        self, situation: TokenRequest, issuer: Issuer, identity: Identity, dpop: DpopKey | None
    ) -> TokenEndpoint:
        return TokenEndpoint(
            issuer,
            identity,
            situation.tried,
            dpop=dpop,
            must_bind=bool(self.dpop),
            nonces=situation.nonces,
            clock=self.clock,
        )


def read_redirect(url: str, state: str, issuer: Issuer, tried: list[str]) -> str:
    """The code that the browser came back with, once it is certain that it is the answer to our question.

    The state first: an answer to another question is discarded (ASEC-11). Then the issuer, compared as it is written;
    on a mismatch nothing of the answer is acted on or shown (AUTH-21, AUTH-23). Only then the answer itself.
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
            f"The answer to the login is not from {urls.shown(issuer.issuer)}, or does not say so although it should: "
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


def _with_query(endpoint: str, params: dict[str, str]) -> str:
    """A URL with more parameters; those that it has stay."""
    parts = urlsplit(endpoint)
    query = "&".join(part for part in (parts.query, urlencode(params)) if part)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
