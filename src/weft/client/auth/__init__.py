"""Log in to servers with OAuth 2.1.

    logins        the classes that a program passes as `Client(auth=...)`, such as OAuth and ClientCredentials
    authorizer    adds tokens to the requests of transports, and logs in once for all waiting requests
    discovery     finds the authorization server, and registers the client there
    tokens        requests tokens; defines the stored records of tokens and client identities
    ports         sends HTTP requests, opens the browser, calls functions of the program
    storage       stores tokens and registrations

A secret never appears in a repr, a log line or an error message.
"""

from weft.client.auth.authorizer import Authorizer
from weft.client.auth.logins import (
    BearerToken,
    ClientCredentials,
    EnterpriseManaged,
    IdentityProvider,
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
