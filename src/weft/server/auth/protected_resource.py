"""Define how a server is protected: by a verifier of tokens, and by the scopes that every request needs.

A verifier alone is enough for clients that already have a token. A `ResourceServer` adds the URL of the server and the
issuers of its tokens, and publishes them, so that clients can get a token themselves (RFC 9728).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from weft.errors import UsageError
from weft.net.urls import check_url, origin_of
from weft.server.auth.dpop import Dpop
from weft.server.auth.tokens import LEEWAY, Verifier, is_async
from weft.server.diagnostics import caller, check_scopes
from weft.types.base import Implementation

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Protection:
    """Protects a server with a verifier: every request needs a token that the verifier accepts.

    No metadata is published, so the 401 response to a request without a token does not say where to get a token.
    """

    # Only a `ResourceServer` sets the following attributes.
    resource: str = ""  # URL of the endpoint.
    origin: str = ""  # Scheme, host and port of the endpoint.
    host: str | None = None  # Host name of the endpoint.
    audiences: tuple[str, ...] | None = None  # Accepted audiences of a token. None: only the verifier checks them.
    metadata_url: str | None = None  # URL of the metadata document.
    metadata_paths: frozenset[str] = frozenset()  # Paths where the metadata document is served.

    def __init__(
        self,
        verifier: Verifier,
        *,
        scopes: Sequence[str] = (),
        implied_scopes: Mapping[str, Sequence[str]] | None = None,
        dpop: Dpop | None = None,
        cache_seconds: float | None = None,
    ) -> None:
        bind = getattr(verifier, "bind", None)
        if bind is not None and self.audiences is None and not getattr(verifier, "audience", None):
            raise UsageError(
                f"auth={type(verifier).__name__}(...) alone does not say for which audience tokens must be issued. "
                "Give it audience=, or use a ResourceServer."
            )
        self.verifier: Verifier = verifier if bind is None else bind(self.audiences or ())
        # Seconds for which an expired token is still accepted.
        self.leeway: float = LEEWAY if bind is None else getattr(verifier, "leeway", LEEWAY)
        self.scopes = check_scopes(scopes, type(self).__name__)
        self.dpop = dpop or Dpop()
        self.cache_seconds: float = getattr(verifier, "cache_seconds", 0.0) if cache_seconds is None else cache_seconds
        self._implied = _closure(implied_scopes or {})

    def metadata(self, info: Implementation) -> bytes:
        """Return the metadata document as JSON; empty here, because only a `ResourceServer` publishes metadata."""
        return b""

    def expand(self, scopes: frozenset[str]) -> frozenset[str]:
        """Return `scopes` together with all scopes that they imply."""
        if not self._implied:
            return scopes
        return scopes.union(*(self._implied.get(scope, frozenset[str]()) for scope in scopes))


def read_auth(auth: object) -> Protection | None:
    """Convert the option `auth` of a server to a `Protection`. Return None if `auth` is None.

    Raises UsageError if `auth` is neither a `Protection` nor a verifier. The error message never contains a token.
    """
    if auth is None or isinstance(auth, Protection):
        return auth
    if is_async(auth):
        return Protection(cast("Verifier", auth))
    kind = type(auth).__name__
    what = "StaticTokens({...})" if kind == "dict" else "StaticTokens({'a-long-random-text': 'ann'})"
    raise UsageError(
        f"auth= is a ResourceServer, or a verifier: StaticTokens, JwtVerifier or an async function; not "
        f"{kind} ({caller()}). Write auth={what}."
    )


class ResourceServer(Protection):
    """Protects a server: every request needs a token that was issued for this server.

    Args:
        resource: URL of the endpoint as clients see it, in front of any proxy. Tokens must be issued for this URL.
            It is never derived from a request, because a client could send any host.
        authorization_servers: Issuer URLs of the servers that issue tokens; clients log in there.
        verifier: Verifies tokens: `JwtVerifier`, `IntrospectionVerifier`, `StaticTokens`, or any async function that
            takes a token and returns the `TokenInfo` of the caller, or None if the token is not valid. If the
            `TokenInfo` has the claims `exp`, `nbf` or `aud`, they are checked.
        scopes: Scopes that every request needs. Clients ask for these scopes when they log in, and for the
            additional scopes of a tool when they first use the tool.
        implied_scopes: Scopes that include other scopes: `{"admin": ["read", "write"]}`.
        dpop: Settings for tokens that are bound to a client's key.
        cache_seconds: How long the result of the verifier is used, at most until the token expires. Default: JWTs until
            they expire, introspected tokens for a minute, other tokens not at all.
        documentation: URL of the documentation of the resource, for people.
    """

    def __init__(
        self,
        resource: str,
        *,
        authorization_servers: Sequence[str],
        verifier: Verifier,
        scopes: Sequence[str] = (),
        implied_scopes: Mapping[str, Sequence[str]] | None = None,
        dpop: Dpop | None = None,
        cache_seconds: float | None = None,
        documentation: str | None = None,
    ) -> None:
        parts = check_url(resource, "resource")
        if parts.query:
            raise UsageError(f"resource={resource!r} has a query. Give the URL without it.")
        if isinstance(authorization_servers, str) or not authorization_servers:
            raise UsageError("authorization_servers= is a list with at least one URL, where clients get their tokens.")
        for issuer in authorization_servers:
            check_url(issuer, "An entry of authorization_servers")
        if not is_async(verifier):
            raise UsageError("verifier= is an async function of a token (async def), or a JwtVerifier(...).")
        self.origin = origin_of(resource)
        self.host = parts.hostname or ""  # Without the port, because some proxies remove the port.
        self.resource = self.origin + parts.path
        path = parts.path.rstrip("/")
        # The URL of a resource without a path is the same with a final slash (RFC 3986).
        self.audiences = (self.resource,) if path else (self.origin, self.origin + "/")
        self.metadata_url = f"{self.origin}{WELL_KNOWN}{path}"  # RFC 9728, 3.1
        self.metadata_paths = frozenset({WELL_KNOWN, WELL_KNOWN + path})
        self.authorization_servers = tuple(authorization_servers)
        self.documentation = documentation
        super().__init__(verifier, scopes=scopes, implied_scopes=implied_scopes, dpop=dpop, cache_seconds=cache_seconds)

    def metadata(self, info: Implementation) -> bytes:
        """Return the metadata document of the protected resource (RFC 9728) as JSON."""
        document: dict[str, Any] = {
            "resource": self.resource,
            "authorization_servers": self.authorization_servers,
            "bearer_methods_supported": ["header"],
            "resource_name": info.title or info.name,
            "scopes_supported": self.scopes or None,
            "resource_documentation": self.documentation,
            "dpop_signing_alg_values_supported": self.dpop.algorithms,
            "dpop_bound_access_tokens_required": self.dpop.required or None,
        }
        return msgspec.json.encode({name: value for name, value in document.items() if value is not None})


def _closure(implied: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return, for each scope, all scopes that it implies directly or indirectly."""
    whole = {scope: frozenset(check_scopes(others, "implied_scopes")) for scope, others in implied.items()}
    for _ in whole:  # Each pass adds the scopes that are implied one step further.
        whole = {scope: others.union(*(whole.get(other, ()) for other in others)) for scope, others in whole.items()}
    return whole
