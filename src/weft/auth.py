"""The public names for authorization: logins for clients, verifiers for servers, and an authorization server.

>>> from weft import Client
>>> from weft.auth import OAuth
>>> client = Client("https://flights.example/mcp", auth=OAuth())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.foreign import lazily

if TYPE_CHECKING:
    from weft.authorization import AuthorizationServer
    from weft.client.auth import BearerToken, ClientCredentials, EnterpriseManaged, OAuth, WorkloadIdentity
    from weft.server.auth import IntrospectionVerifier, JwtVerifier, ResourceServer, StaticTokens
    from weft.server.calls.connection import TokenInfo

__all__ = [
    "AuthorizationServer",
    "BearerToken",
    "ClientCredentials",
    "EnterpriseManaged",
    "IntrospectionVerifier",
    "JwtVerifier",
    "OAuth",
    "ResourceServer",
    "StaticTokens",
    "TokenInfo",
    "WorkloadIdentity",
]

__getattr__ = lazily(
    __name__,
    {
        "weft.authorization": ("AuthorizationServer",),
        "weft.client.auth": ("BearerToken", "ClientCredentials", "EnterpriseManaged", "OAuth", "WorkloadIdentity"),
        "weft.server.auth": ("IntrospectionVerifier", "JwtVerifier", "ResourceServer", "StaticTokens"),
        "weft.server.calls.connection": ("TokenInfo",),
    },
)


def __dir__() -> list[str]:
    return __all__
