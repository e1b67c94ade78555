"""Protect a server with tokens, as an OAuth 2.1 resource server.

`ResourceServer` names the protected URL and the issuers of its tokens; a verifier checks the tokens.

>>> from weft import Server
>>> from weft.auth import TokenInfo
>>> from weft.server.auth import ResourceServer, StaticTokens
>>> tokens = StaticTokens({"a-token-of-somebody": TokenInfo("ann", scopes=frozenset({"read"}))})
>>> auth = ResourceServer("http://localhost:8000/mcp", authorization_servers=["http://localhost:9000"], verifier=tokens)
>>> server = Server("protected", auth=auth)
"""

from __future__ import annotations

from weft.server.auth.dpop import Dpop
from weft.server.auth.protected_resource import ResourceServer
from weft.server.auth.tokens import TokenRefused, Verifier
from weft.server.auth.verifiers import IntrospectionVerifier, JwtVerifier, StaticTokens

__all__ = ["Dpop", "IntrospectionVerifier", "JwtVerifier", "ResourceServer", "StaticTokens", "TokenRefused", "Verifier"]
