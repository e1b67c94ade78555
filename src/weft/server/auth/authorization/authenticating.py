"""Which client asks at the token endpoint, and whether it is that one: by its secret, by its key, or by neither."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import unquote_plus

from weft.server.auth.authorization.assertions import CLIENT_ASSERTION, Assertions
from weft.server.auth.authorization.clients import Clients, RegisteredClient
from weft.server.auth.authorization.web import OAuthError, Request
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeySet
from weft.server.auth.signed import read_issuer
from weft.server.auth.verifying import TokenRefused

__all__ = ["Authenticating"]

_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_BASIC = [(b"www-authenticate", b'Basic realm="token"')]


class Authenticating:
    """Authenticates the clients of one authorization server."""

    def __init__(self, clients: Clients, assertions: Assertions) -> None:
        self._clients = clients
        self._assertions = assertions
        self._keys = {client.client_id: KeySet(None, client.keys) for client in clients.known if client.keys}

    async def find(self, request: Request, fields: Mapping[str, str]) -> RegisteredClient:
        """The client that asks. It authenticates in one of the ways that there are, and not in two."""
        client_id, secret, assertion = (fields.get(name) for name in ("client_id", "client_secret", "client_assertion"))
        basic = _read_basic(request.headers.get(b"authorization"))
        if [basic, secret, assertion].count(None) < 2 or (basic is not None and client_id not in (None, basic[0])):
            raise OAuthError("invalid_request", "The client authenticates in one way, not in two.")
        if assertion is not None:
            if "client_assertion_type" not in fields:
                raise OAuthError("invalid_request", f"client_assertion_type is {_JWT_BEARER}.")
            if fields["client_assertion_type"] != _JWT_BEARER:  # a way that is not supported (RFC 6749, 5.2)
                raise _refusal(f"client_assertion_type is {_JWT_BEARER}.")
            return await self._by_assertion(client_id, assertion)
        if basic is not None:
            client_id, secret = basic
        client = await self._clients.find(client_id or "")
        if client is None or not client.has_secret(secret):
            raise _refusal("The client is not known, or not authenticated.", challenged=basic is not None)
        return client

    async def _by_assertion(self, client_id: str | None, assertion: str) -> RegisteredClient:
        """The client whose key an assertion is signed with. It says of itself who it is: `iss` and `sub` are the id."""
        named = read_issuer(assertion) or ""
        keys = self._keys.get(named)
        client = None if keys is None else await self._clients.find(named)
        if keys is None or client is None or client_id not in (None, named):
            raise _refusal("The client is not known, or not authenticated.")
        try:
            claims = await self._assertions.read(
                assertion, CLIENT_ASSERTION, issuer=named, keys=keys, algorithms=DEFAULT_ALGORITHMS
            )
            if claims["sub"] != named:
                raise TokenRefused("The client assertion is about another client.")
            await self._assertions.use(claims, CLIENT_ASSERTION)
        except TokenRefused as error:
            raise _refusal(f"The client is not authenticated: {error}") from None
        return client


def _refusal(text: str, *, challenged: bool = False) -> OAuthError:
    return OAuthError("invalid_client", text, status=401, headers=_BASIC if challenged else [])


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
        raise _refusal("The Authorization header cannot be read.", challenged=True)
    return unquote_plus(id), unquote_plus(secret)
