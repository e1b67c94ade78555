"""Authorization: a server that is an OAuth 2.1 resource server.

`ResourceServer` says what a server protects and who issues its tokens; a verifier says whether a token is good.

>>> from weft import Server, TokenInfo
>>> from weft.server.auth import ResourceServer, StaticTokens
>>> tokens = StaticTokens({"a-token-of-somebody": TokenInfo("ann", scopes=frozenset({"read"}))})
>>> auth = ResourceServer("http://localhost:8000/mcp", authorization_servers=["http://localhost:9000"], verifier=tokens)
>>> server = Server("protected", auth=auth)
"""

from __future__ import annotations

from weft.server.auth.dpop import Dpop
from weft.server.auth.introspection import IntrospectionVerifier
from weft.server.auth.jwt_verifier import JwtVerifier
from weft.server.auth.resource import ResourceServer
from weft.server.auth.static_tokens import StaticTokens
from weft.server.auth.verifying import TokenRefused, Verifier

__all__ = [
    "Dpop",
    "IntrospectionVerifier",
    "JwtVerifier",
    "ResourceServer",
    "StaticTokens",
    "TokenRefused",
    "Verifier",
]
