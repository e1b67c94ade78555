"""An authorization server for development and small deployments: people log in, consent, and clients get tokens.

It implements OAuth 2.1 as MCP clients expect it: the code flow with PKCE, rotated refresh tokens, client metadata
documents, dynamic registration, client credentials for programs, and assertions of trusted issuers. It stores its state
in a Backend. (Authlib is not used, because its servers need a web framework and a blocking store.)

>>> from weft.authorization import AuthorizationServer
>>> authorization = AuthorizationServer(
...     "http://localhost:9000", resources=["http://localhost:8000/mcp"], users={"ann": "correct horse"}
... )
>>> app = authorization.asgi()  # run it with any ASGI server, at the root of its host
"""

from __future__ import annotations

from weft.authorization.app import AuthorizationServer
from weft.authorization.clients import CLIENT_CREDENTIALS, JWT_BEARER, RegisteredClient
from weft.authorization.users import TrustedIssuer, hash_password

__all__ = [
    "CLIENT_CREDENTIALS",
    "JWT_BEARER",
    "AuthorizationServer",
    "RegisteredClient",
    "TrustedIssuer",
    "hash_password",
]
