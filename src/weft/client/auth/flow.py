"""A person logs in: authorization code with PKCE, and what follows from it — refreshing, and asking for more.

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
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from weft.client.auth import urls
from weft.client.auth.credentials import Identity, Token, token_key
from weft.client.auth.dpop import DpopKey
from weft.client.auth.grant import (
    Guarded,
    Situation,
    find_guard,
    forget_token,
    keep_token,
    newer_token,
    select_scopes,
    wants_dpop,
)
from weft.client.auth.metadata import Issuer, discover_issuer, legacy_issuer
from weft.client.auth.registration import Registration
from weft.client.auth.steps import Steps, claim, listen, release, visit
from weft.client.auth.tokens import Refusal, TokenEndpoint, said
from weft.errors import AuthorizationFailed

__all__ = ["CodeFlow", "Pkce", "read_redirect"]

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

    def login(self, situation: Situation) -> Steps[Token]:
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

    def renewal(self, situation: Situation) -> Steps[Token] | None:
        """Refreshing, where there is a refresh token: none is ever presumed (AUTH-38)."""
        token = situation.token
        return None if token is None or token.refresh_token is None else self._renewed(situation, token)

    # --- refreshing

    def _renewed(self, situation: Situation, token: Token) -> Steps[Token]:
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

    def _issuer_of(self, token: Token, situation: Situation) -> Steps[Issuer | None]:
        """Find the issuer of a token, which may have been kept since another program ran."""
        issuer = yield from discover_issuer(token.issuer, situation.tried)
        if issuer is None and token.issuer == urls.base(situation.server_url):
            issuer = legacy_issuer(situation.server_url)
        if issuer is not None:
            situation.found.keep(Guarded(token.resource, issuer, None), self.clock())
        return issuer

    def _replaced(self, situation: Situation, issuer: Issuer, token: Token, *, is_refused: bool) -> Steps[Token | None]:
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

    def _refreshed(self, situation: Situation, issuer: Issuer, token: Token) -> Steps[Token | None]:
        """A new token for the refresh token; None when that is worth nothing any more, a `Refusal` where it may be."""
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
        except Refusal as refusal:
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
            except Refusal as refusal:
                if refusal.code != "invalid_scope":
                    raise
        return (yield from self._ask(endpoint, form, token.resource, token.granted))

    def _is_fresh(self, token: Token) -> bool:
        now = self.clock()
        return now - token.obtained_at < _FRESH_SECONDS and not token.is_expired(now)

    def _check_lacking(self, situation: Situation, token: Token) -> None:
        """A login can only help where something is demanded that was never asked for."""
        if set(situation.challenge.scopes or ()) <= set(token.scopes):
            raise AuthorizationFailed(
                f"{urls.shown(situation.server_url)} refuses the token that {urls.shown(token.issuer)} has just given "
                "for it. Logging in again would not help: tell the operator, the two do not agree on audience, issuer "
                "or keys.",
                situation.tried,
            )

    # --- the person's part

    def _authorized(self, situation: Situation, guarded: Guarded) -> Steps[Token]:
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
        except Refusal as refusal:
            if refusal.code == "invalid_client":
                yield from self.registration.forget(endpoint.identity)
            raise

    def _endpoint(
        self, situation: Situation, issuer: Issuer, identity: Identity, dpop: DpopKey | None
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
