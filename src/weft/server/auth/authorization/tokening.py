"""The token endpoint: codes, refresh tokens, credentials and assertions become access tokens, each for its client."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from weft.server.auth.authorization.assertions import ID_JAG, WORKLOAD_TOKEN, TrustedIssuer
from weft.server.auth.authorization.authenticating import Authenticating
from weft.server.auth.authorization.clients import CLIENT_CREDENTIALS, JWT_BEARER, RegisteredClient
from weft.server.auth.authorization.grants import Grant
from weft.server.auth.authorization.web import Answer, OAuthError, Request, json_answer
from weft.server.auth.signed import read_issuer
from weft.server.auth.urls import same_url
from weft.server.auth.verifying import TokenRefused

if TYPE_CHECKING:
    from weft.server.auth.authorization.app import AuthorizationServer

__all__ = ["Tokening"]

_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # RFC 7636, 4.1

_Fields = Mapping[str, str]
_Redeemed = tuple[Grant, tuple[str, ...]]  # what was granted, and the scopes of it that this token has
_Redeem = Callable[[RegisteredClient, _Fields], Awaitable[_Redeemed]]


class Tokening:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer) -> None:
        self._server = server
        self._authenticating = Authenticating(server.clients, server.assertions)
        ways: dict[str, _Redeem] = {
            "authorization_code": self._redeem_code,
            "refresh_token": self._redeem_refresh,
            CLIENT_CREDENTIALS: self._redeem_credentials,
            JWT_BEARER: self._redeem_assertion,
        }
        self._ways = {grant: ways[grant] for grant in server.grant_types}

    async def answer(self, request: Request) -> Answer:
        """Exchange what a client has for tokens."""
        fields = await request.form()
        client = await self._authenticating.find(request, fields)
        kind = fields.get("grant_type", "")
        if kind not in self._ways:
            raise OAuthError("unsupported_grant_type", f"grant_type is {' or '.join(self._ways)}.")
        if kind not in client.grant_types:
            raise OAuthError("unauthorized_client", "The client is not registered for this grant_type.")
        grant, scopes = await self._ways[kind](client, fields)
        return await self._issue(client, grant, scopes)

    async def _redeem_code(self, client: RegisteredClient, fields: _Fields) -> _Redeemed:
        verifier = fields.get("code_verifier", "")
        grant = await self._server.grants.redeem_code(fields.get("code", ""))
        made = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        if (
            grant.client_id != client.client_id
            or not _VERIFIER.fullmatch(verifier)
            or not hmac.compare_digest(made, grant.challenge.encode())
            or fields.get("redirect_uri", grant.redirect_uri) != grant.redirect_uri
        ):
            await self._server.grants.end(grant.family)
            raise OAuthError("invalid_grant", "The code was given to another request.")
        return grant, self._scopes_asked_for(client, grant, fields)

    async def _redeem_refresh(self, client: RegisteredClient, fields: _Fields) -> _Redeemed:
        """Looked at before it is used up: a client that asks for too much may ask again."""
        token = fields.get("refresh_token", "")
        grant = await self._server.grants.read_refresh(token)
        if grant.client_id != client.client_id:
            await self._server.grants.end(grant.family)
            raise OAuthError("invalid_grant", "The refresh token was given to another client.")
        scopes = self._scopes_asked_for(client, grant, fields)
        return await self._server.grants.redeem_refresh(token), scopes

    async def _redeem_credentials(self, client: RegisteredClient, fields: _Fields) -> _Redeemed:
        """A program, which has proven who it is: only confidential clients have this grant."""
        return self._grant_client(client, fields)

    async def _redeem_assertion(self, client: RegisteredClient, fields: _Fields) -> _Redeemed:
        """Somebody vouches: a platform for the client itself, an identity provider for its user."""
        assertion = fields.get("assertion", "")
        issuer = self._server.trusted_issuers.get(read_issuer(assertion) or "")
        try:
            if issuer is None:
                raise TokenRefused("The token is of nobody who is trusted here.")
            kind = ID_JAG if issuer.workloads is None else WORKLOAD_TOKEN
            claims = await self._server.assertions.read(
                assertion, kind, issuer=issuer.issuer, keys=issuer.keys, algorithms=issuer.algorithms
            )
            if issuer.workloads is None:
                return await self._grant_user(client, issuer, claims, fields)
            if issuer.workloads.get(claims["sub"]) == client.client_id:
                return self._grant_client(client, fields)
            raise TokenRefused("The token is about another client.")
        except TokenRefused as error:
            raise OAuthError("invalid_grant", str(error)) from None

    async def _grant_user(
        self, client: RegisteredClient, issuer: TrustedIssuer, claims: Mapping[str, Any], fields: _Fields
    ) -> _Redeemed:
        """What an ID-JAG is good for (XAUTH-06). Only one that is right in all is used up, and only then its user is
        looked for: that may take its time, and must not be done again for the same one.
        """
        resource, scopes = self._check_id_jag(client, claims, fields)
        await self._server.assertions.use(claims, ID_JAG)
        subject = await issuer.subject_of(claims)
        if subject is None:
            raise TokenRefused("The token is about somebody who is not known here.")
        return Grant(client_id=client.client_id, subject=subject, scopes=scopes, resource=resource), scopes

    def _check_id_jag(
        self, client: RegisteredClient, claims: Mapping[str, Any], fields: _Fields
    ) -> tuple[str, tuple[str, ...]]:
        """Resource and scopes of an ID-JAG: it is for its client, at its resource, within its scopes."""
        if not client.is_confidential:
            raise OAuthError("unauthorized_client", "Who acts for a user without asking must prove who it is.")
        if claims.get("client_id") != client.client_id:
            raise TokenRefused("The token was given to another client.")
        if "cnf" in claims:  # what is issued here would be good for whoever has it
            raise TokenRefused("The token is bound to a key, and tokens that are issued here are not.")
        resource, scope = self._server.find_resource(claims.get("resource")), claims.get("scope")
        if resource is None or not same_url(fields.get("resource", resource), resource):
            raise TokenRefused("The token is for another resource.")
        if "scope" in claims and not (isinstance(scope, str) and scope.strip()):
            raise TokenRefused("The scopes of the token cannot be read.")
        possible = self._server.possible_scopes(client)
        if scope is not None and possible and not set(possible) & set(scope.split()):
            raise TokenRefused("The token has no scope that can be had here.")
        return resource, self._server.choose_scopes(client, scope, fields.get("scope"))

    def _grant_client(self, client: RegisteredClient, fields: _Fields) -> _Redeemed:
        """What a client that acts for itself may have: nobody is asked."""
        scopes = self._server.choose_scopes(client, fields.get("scope"))
        resource = self._server.choose_resource(fields.get("resource"))
        return Grant(client_id=client.client_id, subject=client.client_id, scopes=scopes, resource=resource), scopes

    async def _issue(self, client: RegisteredClient, grant: Grant, scopes: tuple[str, ...]) -> Answer:
        """An access token with these scopes; the refresh token stays good for all that was granted (RFC 6749, 6)."""
        server = self._server
        narrowed = msgspec.structs.replace(grant, scopes=scopes)
        told: dict[str, object] = {
            "access_token": server.signer.sign(server.issuer, narrowed, server.access_seconds),
            "token_type": "Bearer",
            "expires_in": int(server.access_seconds),
            "scope": " ".join(scopes),
        }
        if grant.family and "refresh_token" in client.grant_types:  # who needs nobody asks again instead
            told["refresh_token"] = await server.grants.refresh(grant)  # a new one each time (ASEC-04)
        await server.clients.keep(client)
        return json_answer(told, headers=[(b"pragma", b"no-cache")])

    def _scopes_asked_for(self, client: RegisteredClient, grant: Grant, fields: _Fields) -> tuple[str, ...]:
        """The scopes of a grant as far as they can still be had and are asked for; OAuthError where more is asked for,
        or another resource. A grant may be older than what is configured now.
        """
        if not same_url(fields.get("resource", grant.resource), grant.resource):
            raise OAuthError("invalid_target", "The grant is for another resource.")
        possible = self._server.possible_scopes(client)
        left = tuple(scope for scope in grant.scopes if scope in possible)
        if self._server.find_resource(grant.resource) is None or (grant.scopes and not left):
            raise OAuthError("invalid_grant", "What was granted cannot be had any more.")
        asked = tuple(dict.fromkeys(fields.get("scope", "").split()))
        if not set(asked) <= set(left):
            raise OAuthError("invalid_scope", "Less was granted than is asked for.")
        return asked or left
