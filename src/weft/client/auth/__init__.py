"""Logging in with OAuth 2.1.

    logins        what `Client(auth=...)` takes: OAuth, ClientCredentials …
    authorizer    the hook of the transports: adds tokens to requests, and shares one login among them
    grants        the ways to a token: a person logs in, or a program proves what it is
    discovery     finds the authorization server, and registers the client there
    tokens        the token endpoint, and the records of a login
    ports         HTTP exchanges, the browser, functions of the user
    storage       where tokens and registrations are kept

No secret is in a repr, a log line or an error message.
"""

from weft.client.auth.authorizer import Authorizer
from weft.client.auth.grants import IdentityProvider
from weft.client.auth.logins import (
    BearerToken,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    WorkloadIdentity,
    as_auth,
)
from weft.client.auth.ports import Fetcher, FunctionRedirect, LoopbackRedirect
from weft.client.auth.storage import FileStorage, KeyringStorage, MemoryStorage
from weft.client.auth.tokens import PrivateKey

__all__ = [
    "Authorizer",
    "BearerToken",
    "ClientCredentials",
    "EnterpriseManaged",
    "Fetcher",
    "FileStorage",
    "FunctionRedirect",
    "IdentityProvider",
    "KeyringStorage",
    "LoopbackRedirect",
    "MemoryStorage",
    "OAuth",
    "PrivateKey",
    "WorkloadIdentity",
    "as_auth",
]
