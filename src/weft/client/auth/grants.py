"""Nobody logs in: a program shows what it is, or what somebody else says about it.

    ClientCredentialsFlow      the program's own secret or key (XAUTH-02)
    EnterpriseFlow             the company's identity provider vouches for the user: an ID-JAG (XAUTH-04, XAUTH-05)
    WorkloadFlow               the platform vouches for the program: a JWT (XAUTH-09)

None of them registers a client, and none tries twice: what was refused once is refused again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.client.auth import urls
from weft.client.auth.credentials import Identity, Token
from weft.client.auth.dpop import DpopKey
from weft.client.auth.grant import Guarded, Situation, find_guard, keep_token, select_scopes, wants_dpop
from weft.client.auth.metadata import Issuer, discover_issuer
from weft.client.auth.registration import bind_issuer
from weft.client.auth.steps import Steps, call
from weft.client.auth.tokens import PrivateKey, TokenEndpoint
from weft.errors import AuthorizationFailed

__all__ = ["ClientCredentialsFlow", "EnterpriseFlow", "IdentityProvider", "Secret", "WorkloadFlow"]

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

    def login(self, situation: Situation) -> Steps[Token]:
        """A token."""
        guarded = yield from find_guard(situation, self._choose)
        situation.found.keep(guarded, self.clock())
        return (yield from self._obtained(situation, guarded))

    def renewal(self, situation: Situation) -> Steps[Token] | None:
        """The same again: it needs nobody. Where the server has not said yet who guards it, it is let say so."""
        return self._renewed(situation) if situation.challenge.scheme else None

    def _renewed(self, situation: Situation) -> Steps[Token]:
        known = situation.found.recall(self.clock())
        if known is None:
            return (yield from self.login(situation))
        try:
            return (yield from self._obtained(situation, known))
        except AuthorizationFailed:
            situation.found.forget()
            raise

    def _obtained(self, situation: Situation, guarded: Guarded) -> Steps[Token]:
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

    def _form(self, situation: Situation, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
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

    def _endpoint(self, situation: Situation, issuer: Issuer, dpop: DpopKey | None) -> TokenEndpoint:
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

    def _form(self, situation: Situation, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
        yield from ()
        return {"grant_type": "client_credentials"}


@dataclass(slots=True)
class WorkloadFlow(_MachineFlow):
    """A JWT of the platform, shown once."""

    assertion: Secret = field(kw_only=True, repr=False)

    def _form(self, situation: Situation, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
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

    def _form(self, situation: Situation, guarded: Guarded, scopes: list[str]) -> Steps[dict[str, str]]:
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

    def _identity_provider(self, situation: Situation) -> Steps[Issuer]:
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
