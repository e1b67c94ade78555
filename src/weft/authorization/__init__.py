"""An authorization server for development and small deployments: people log in, consent, and clients get tokens.

It speaks OAuth 2.1 as MCP clients expect it: the code flow with PKCE, refresh tokens that are rotated, client metadata
documents and dynamic registration; client credentials for programs, and the assertions of others that it trusts. What
outlives a request is in a Backend. (Authlib, which would be the library for this, has servers only for frameworks and
stores that block; it cannot stand on a Backend.)

>>> from weft.authorization import AuthorizationServer
>>> authorization = AuthorizationServer(
...     "http://localhost:9000", resources=["http://localhost:8000/mcp"], users={"ann": "correct horse"}
... )
>>> app = authorization.asgi()  # to run under any ASGI server, at the root of its host
"""

from __future__ import annotations

from weft.authorization.app import AuthorizationServer
from weft.authorization.assertions import TrustedIssuer
from weft.authorization.clients import CLIENT_CREDENTIALS, JWT_BEARER, RegisteredClient
from weft.authorization.users import hash_password

__all__ = [
    "CLIENT_CREDENTIALS",
    "JWT_BEARER",
    "AuthorizationServer",
    "RegisteredClient",
    "TrustedIssuer",
    "hash_password",
]
