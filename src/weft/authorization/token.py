"""Serve the token endpoint and the introspection endpoint.

The token endpoint: codes, refresh tokens, credentials and assertions become access tokens, each for its client.

The introspection endpoint (RFC 7662): a resource server asks whether a token that it was shown is good.

Only a client that proves who it is may ask, and only about tokens of the resources that it is. Of all others it learns
nothing, not even whether they are tokens.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from weft.authorization.assertions import ID_JAG, WORKLOAD_TOKEN, TrustedIssuer
from weft.authorization.clients import CLIENT_CREDENTIALS, JWT_BEARER, Authenticating, RegisteredClient
from weft.authorization.grants import IssuedGrant, Told
from weft.authorization.web import OAuthError, WebRequest, WebResponse, digest, json_answer
from weft.net.urls import same_url
from weft.server.auth.dpop import Proof, ProofRefused, Proofs, bound_key
from weft.server.auth.keys import read_issuer
from weft.server.auth.tokens import TokenRefused

if TYPE_CHECKING:
    from weft.authorization.app import AuthorizationServer


_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # RFC 7636, 4.1


class _TokenForm(msgspec.Struct, frozen=True):
    """One request of the endpoint, whose client has proven who it is."""

    client: RegisteredClient
    fields: Mapping[str, str]
    proof: Proof | None  # that the client has a key, if it came with one

    @property
    def key(self) -> str:
        """The thumbprint of the key that tokens are bound to; empty if to none."""
        return "" if self.proof is None else self.proof.key

    def need(self, name: str) -> str:
        """Return a parameter that a grant takes; a request without it is incomplete (RFC 6749, 5.2)."""
        value = self.fields.get(name, "")
        if not value:
            raise OAuthError("invalid_request", f"The parameter {name} is missing.")
        return value


_Redeem = Callable[[_TokenForm], Awaitable[Told]]


class TokenEndpoint:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer, authenticating: Authenticating) -> None:
        self._server = server
        self._authenticating = authenticating
        self._proofs = Proofs(server.dpop, server)
        self._url = f"{server.issuer}/token"
        ways: dict[str, _Redeem] = {
            "authorization_code": self._redeem_code,
            "refresh_token": self._redeem_refresh,
            CLIENT_CREDENTIALS: self._redeem_credentials,
            JWT_BEARER: self._redeem_assertion,
        }
        self._ways = {grant: ways[grant] for grant in server.grant_types}

    async def answer(self, request: WebRequest) -> WebResponse:
        """Exchange what a client has for tokens."""
        fields = await request.form()
        client = await self._authenticating.find(request, fields)
        kind = fields.get("grant_type")
        if not kind:
            raise OAuthError("invalid_request", "The parameter grant_type is missing.")
        if kind not in self._ways:
            raise OAuthError("unsupported_grant_type", f"grant_type is {' or '.join(self._ways)}.")
        if kind not in client.grant_types:
            raise OAuthError("unauthorized_client", "The client is not registered for this grant_type.")
        try:
            told = await self._ways[kind](_TokenForm(client, fields, self._read_proof(request, client)))
        except ProofRefused as error:
            nonce = [] if error.nonce is None else [(b"dpop-nonce", error.nonce.encode())]
            raise OAuthError(error.error, str(error), headers=nonce) from None
        await self._server.clients.keep(client)
        return json_answer(told, headers=[(b"pragma", b"no-cache")])

    def _read_proof(self, request: WebRequest, client: RegisteredClient) -> Proof | None:
        """The proof that a request came with (RFC 9449, 5); None where there is none, and none is needed."""
        proofs = [value for name, value in request.headers.raw if name == b"dpop"]
        if proofs or self._server.dpop.required or client.dpop_bound_access_tokens:
            return self._proofs.read(proofs, method="POST", urls=[self._url])
        return None

    async def _use_proof(self, asking: _TokenForm) -> None:
        """Mark the proof of a request as used.

        The rest of the request was checked before, so requests that get no token cannot fill the record of proofs. The
        code or refresh token is not used up yet: the client may ask again with another proof.
        """
        if asking.proof is not None:
            await self._proofs.use(asking.proof)

    async def _redeem_code(self, asking: _TokenForm) -> Told:
        code, verifier = asking.need("code"), asking.need("code_verifier")
        grant = await self._server.grants.read_code(code)
        made = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        if (
            grant.client_id != asking.client.client_id
            or not _VERIFIER.fullmatch(verifier)
            or not hmac.compare_digest(made, grant.challenge.encode())
            or asking.fields.get("redirect_uri", grant.redirect_uri) != grant.redirect_uri
            or (grant.jkt and grant.jkt != asking.key)
        ):
            await self._server.grants.end(grant.family)
            raise OAuthError("invalid_grant", "The code was given to another request.")
        scopes = self._scopes_asked_for(asking, grant)
        await self._use_proof(asking)
        return await self._issue(asking, await self._server.grants.redeem_code(code), scopes)

    async def _redeem_refresh(self, asking: _TokenForm) -> Told:
        """Looked at before it is used up: a client that asks for too much may ask again."""
        token, client, grants = asking.need("refresh_token"), asking.client, self._server.grants
        grant = await grants.read_refresh(token)
        if grant.client_id != client.client_id:
            await grants.end(grant.family)
            raise OAuthError("invalid_grant", "The refresh token was given to another client.")
        if grant.jkt and asking.proof is None:
            raise ProofRefused("The refresh token is bound to a key: send a proof of it in the DPoP header.")
        if grant.jkt and grant.jkt != asking.key:  # who has the token and not the key can do no harm
            raise OAuthError("invalid_grant", "The refresh token is bound to another key.")
        scopes = self._scopes_asked_for(asking, grant)
        said = [asking.key, asking.fields.get("scope"), asking.fields.get("resource")]
        asked = digest(msgspec.json.encode(said).decode())
        await self._use_proof(asking)
        return await grants.redeem_refresh(token, asked, lambda: self._issue(asking, grant, scopes))

    async def _redeem_credentials(self, asking: _TokenForm) -> Told:
        """A program, which has proven who it is: only confidential clients have this grant."""
        return await self._grant_client(asking)

    async def _redeem_assertion(self, asking: _TokenForm) -> Told:
        """Somebody vouches: a platform for the client itself, an identity provider for its user."""
        assertion = asking.need("assertion")
        issuer = self._server.trusted_issuers.get(read_issuer(assertion) or "")
        try:
            if issuer is None:
                raise TokenRefused("The token is of nobody who is trusted here.")
            kind = ID_JAG if issuer.workloads is None else WORKLOAD_TOKEN
            claims = await self._server.assertions.read(
                assertion, kind, issuer=issuer.issuer, keys=issuer.keys, algorithms=issuer.algorithms
            )
            if issuer.workloads is None:
                return await self._grant_user(asking, issuer, claims)
            if issuer.workloads.get(claims["sub"]) == asking.client.client_id:
                return await self._grant_client(asking)
            raise TokenRefused("The token is about another client.")
        except TokenRefused as error:
            raise OAuthError("invalid_grant", str(error)) from None

    async def _grant_user(self, asking: _TokenForm, issuer: TrustedIssuer, claims: Mapping[str, Any]) -> Told:
        """What an ID-JAG is good for (XAUTH-06). Only one that is right in all is used up, and only then its user is
        looked for: that may take its time, and must not be done again for the same one.
        """
        resource, scopes = self._check_id_jag(asking, claims)
        await self._use_proof(asking)
        await self._server.assertions.use(claims, ID_JAG)
        subject = await issuer.subject_of(claims)
        if subject is None:
            raise TokenRefused("The token is about somebody who is not known here.")
        grant = IssuedGrant(client_id=asking.client.client_id, subject=subject, scopes=scopes, resource=resource)
        return await self._issue(asking, grant, scopes)

    def _check_id_jag(self, asking: _TokenForm, claims: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Resource and scopes of an ID-JAG: it is for its client, at its resource, within its scopes.

        What is wrong with the ID-JAG itself is `invalid_grant`; a resource or scopes that cannot be had here, or are
        not those of the request, have codes of their own, as they have without an ID-JAG.
        """
        client = asking.client
        if not client.is_confidential:
            raise OAuthError("unauthorized_client", "Who acts for a user without asking must prove who it is.")
        if claims.get("client_id") != client.client_id:
            raise TokenRefused("The token was given to another client.")
        if "cnf" in claims and (not asking.key or bound_key(claims) != asking.key):
            raise TokenRefused("The token is bound to a key, and the request has no proof of that key.")
        if "scope" in claims and not (isinstance(claims["scope"], str) and claims["scope"].strip()):
            raise TokenRefused("The scopes of the token cannot be read.")
        if "resource" in claims and not isinstance(claims["resource"], str):
            raise TokenRefused("The resource of the token cannot be read: it is one URL.")
        asked, named = asking.fields.get("resource"), claims.get("resource")
        if named is not None and asked is not None and not same_url(named, asked):
            raise OAuthError("invalid_target", "The token is for another resource than the request asks for.")
        resource = self._server.choose_resource(asked if named is None else named)
        return resource, self._server.choose_scopes(client, claims.get("scope"), asking.fields.get("scope"))

    async def _grant_client(self, asking: _TokenForm) -> Told:
        """What a client that acts for itself may have: nobody is asked."""
        id = asking.client.client_id
        scopes = self._server.choose_scopes(asking.client, asking.fields.get("scope"))
        resource = self._server.choose_resource(asking.fields.get("resource"))
        await self._use_proof(asking)
        return await self._issue(
            asking, IssuedGrant(client_id=id, subject=id, scopes=scopes, resource=resource), scopes
        )

    async def _issue(self, asking: _TokenForm, grant: IssuedGrant, scopes: tuple[str, ...]) -> Told:
        """An access token with these scopes; the refresh token stays good for all that was granted (RFC 6749, 6)."""
        server, client = self._server, asking.client
        narrowed = msgspec.structs.replace(grant, scopes=scopes)
        told: Told = {
            "access_token": server.signer.sign(server.issuer, narrowed, server.access_seconds, key=asking.key),
            "token_type": "DPoP" if asking.key else "Bearer",
            "expires_in": int(server.access_seconds),
            "scope": " ".join(scopes),
        }
        if grant.family and "refresh_token" in client.grant_types:  # who needs nobody asks again instead
            # One that proves who it is needs no key besides (RFC 9449, 5).
            bound = msgspec.structs.replace(grant, jkt="" if client.is_confidential else asking.key)
            told["refresh_token"] = await server.grants.refresh(bound)  # a new one each time (ASEC-04)
        return told

    def _scopes_asked_for(self, asking: _TokenForm, grant: IssuedGrant) -> tuple[str, ...]:
        """The scopes of a grant as far as they can still be had and are asked for; OAuthError where more is asked for,
        or another resource. A grant may be older than what is configured now.
        """
        if not same_url(asking.fields.get("resource", grant.resource), grant.resource):
            raise OAuthError("invalid_target", "The grant is for another resource.")
        possible = self._server.possible_scopes(asking.client)
        left = tuple(scope for scope in grant.scopes if scope in possible)
        if self._server.find_resource(grant.resource) is None or (grant.scopes and not left):
            raise OAuthError("invalid_grant", "What was granted cannot be had any more.")
        asked = tuple(dict.fromkeys(asking.fields.get("scope", "").split()))
        if not set(asked) <= set(left):
            raise OAuthError("invalid_scope", "Less was granted than is asked for.")
        return asked or left


_TOLD = ("scope", "client_id", "sub", "aud", "iss", "exp", "iat", "jti", "cnf")


class Introspecting:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer, authenticating: Authenticating) -> None:
        self._server = server
        self._authenticating = authenticating
        self._verifier = server.verifier(leeway=0.0)  # who asks has a leeway of its own

    async def answer(self, request: WebRequest) -> WebResponse:
        """Tell whether a token is good, and what it says."""
        fields = await request.form()
        client = await self._authenticating.find(request, fields)
        if not client.introspects:
            text = "The client may not ask about tokens: name its resources in RegisteredClient(introspects=...)."
            raise OAuthError("unauthorized_client", text, status=403)
        if not fields.get("token"):
            raise OAuthError("invalid_request", "The parameter token is missing.")
        audiences = [found for url in client.introspects if (found := self._server.find_resource(url)) is not None]
        try:
            info = await self._verifier.bind(audiences)(fields["token"])
        except TokenRefused:
            info = None
        if info is None:
            return json_answer({"active": False})
        told = {name: info.claims[name] for name in _TOLD if name in info.claims}
        return json_answer({"active": True, "token_type": "DPoP" if "cnf" in told else "Bearer", **told})
