"""The token endpoint: codes and refresh tokens become access tokens, for the client that they were given to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

import msgspec

from weft.server.auth.authorization.clients import RegisteredClient
from weft.server.auth.authorization.grants import Grant
from weft.server.auth.authorization.web import Answer, OAuthError, Request, json_answer

if TYPE_CHECKING:
    from weft.server.auth.authorization.app import AuthorizationServer

__all__ = ["Tokening"]

_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # RFC 7636, 4.1
_BASIC = [(b"www-authenticate", b'Basic realm="token"')]


class Tokening:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer) -> None:
        self._server = server

    async def answer(self, request: Request) -> Answer:
        """Exchange what a client has for tokens."""
        fields = await request.form()
        client = await self._authenticate(request, fields)
        kind = fields.get("grant_type")
        if kind == "authorization_code":
            grant = await self._redeem_code(client, fields)
        elif kind == "refresh_token" and "refresh_token" in client.grant_types:
            grant = await self._redeem_refresh(client, fields)
        else:
            raise OAuthError("unsupported_grant_type", "grant_type is authorization_code or refresh_token.")
        return await self._issue(client, grant, _scopes_asked_for(grant, fields))

    async def _authenticate(self, request: Request, fields: dict[str, str]) -> RegisteredClient:
        """The client that asks. A confidential one proves it with its secret, in one of two places."""
        client_id, secret = fields.get("client_id"), fields.get("client_secret")
        basic = _read_basic(request.headers.get(b"authorization"))
        if basic is not None:
            if secret is not None or client_id not in (None, basic[0]):
                raise OAuthError("invalid_request", "The client authenticates in one way, not in two.")
            client_id, secret = basic
        client = await self._server.clients.find(client_id or "")
        if client is None or not client.has_secret(secret):
            headers = [] if basic is None else _BASIC
            raise OAuthError(
                "invalid_client", "The client is not known, or not authenticated.", status=401, headers=headers
            )
        return client

    async def _redeem_code(self, client: RegisteredClient, fields: dict[str, str]) -> Grant:
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
        return grant

    async def _redeem_refresh(self, client: RegisteredClient, fields: dict[str, str]) -> Grant:
        grant = await self._server.grants.redeem_refresh(fields.get("refresh_token", ""))
        if grant.client_id != client.client_id:
            await self._server.grants.end(grant.family)
            raise OAuthError("invalid_grant", "The refresh token was given to another client.")
        return grant

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
        if "refresh_token" in client.grant_types:
            told["refresh_token"] = await server.grants.refresh(grant)  # a new one each time (ASEC-04)
        return json_answer(told, headers=[(b"pragma", b"no-cache")])


def _scopes_asked_for(grant: Grant, fields: dict[str, str]) -> tuple[str, ...]:
    """The scopes of a grant as far as they are asked for; OAuthError where more is, or another resource."""
    if fields.get("resource", grant.resource) != grant.resource:
        raise OAuthError("invalid_target", "The grant is for another resource.")
    if not fields.get("scope"):
        return grant.scopes
    asked = tuple(dict.fromkeys(fields["scope"].split()))
    if not set(asked) <= set(grant.scopes):
        raise OAuthError("invalid_scope", "Less was granted than is asked for.")
    return asked


def _read_basic(value: str | None) -> tuple[str, str] | None:
    """Client id and secret of an Authorization header (RFC 6749, 2.3.1)."""
    scheme, _, credentials = (value or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        id, found, secret = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        id, found, secret = "", "", ""
    if not found:
        raise OAuthError("invalid_client", "The Authorization header cannot be read.", status=401, headers=_BASIC)
    return unquote_plus(id), unquote_plus(secret)
