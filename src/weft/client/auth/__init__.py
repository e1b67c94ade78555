"""Logging in: OAuth 2.1 as flows without I/O, and the parts that do what the flows want done.

    logins        what a program chooses from: OAuth, ClientCredentials …
    authorizer    the hook of the transports: tokens at hand, one login for all who wait
    driver        does the steps of a flow; with fetching (HTTP), redirect (browser), storage
    flow, grants  the flows: a person logs in; nobody does
    grant         what the flows share; with metadata, registration, tokens, dpop, challenge, urls, credentials
    steps         the vocabulary of the flows

Nothing that is secret is in a repr, a log line or an error.
"""

from weft.client.auth.authorizer import Authorizer
from weft.client.auth.fetching import Fetcher
from weft.client.auth.grants import IdentityProvider
from weft.client.auth.logins import (
    BearerToken,
    ClientCredentials,
    EnterpriseManaged,
    OAuth,
    WorkloadIdentity,
    as_auth,
)
from weft.client.auth.redirect import FunctionRedirect, LoopbackRedirect
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
