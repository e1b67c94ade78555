"""Protection: who verifies the tokens of a server, and what every request takes. Settings; no state.

A verifier alone is enough where clients have their tokens already. A `ResourceServer` says besides under which URL the
server is reached and who issues the tokens for it, so that clients can get one by themselves (RFC 9728).
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
    """Protects a server by a verifier: every request needs a token that it lets in.

    Nothing is published: a request without a token is answered with a plain 401.
    """

    # What only a `ResourceServer` has.
    resource: str = ""  # the URL of the endpoint
    origin: str = ""
    host: str | None = None

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
        audiences = self.audiences
        if bind is not None and audiences is None and not getattr(verifier, "audience", None):
            raise UsageError(
                f"auth={type(verifier).__name__}(...) alone does not say for whom tokens are: give it audience=, or "
                "write auth=ResourceServer(url, authorization_servers=[...], verifier=...)."
            )
        self.verifier: Verifier = verifier if bind is None else bind(audiences or ())
        # For how long a token is let in that has expired.
        self.leeway: float = LEEWAY if bind is None else getattr(verifier, "leeway", LEEWAY)
        self.scopes = check_scopes(scopes, type(self).__name__)
        self.dpop = dpop or Dpop()
        self.cache_seconds: float = getattr(verifier, "cache_seconds", 0.0) if cache_seconds is None else cache_seconds
        self._implied = _closure(implied_scopes or {})

    def __repr__(self) -> str:
        return f"<Protection by {self.verifier!r}>"

    @property
    def audiences(self) -> tuple[str, ...] | None:
        """What a token may name as its audience; None where only the verifier knows."""
        return None

    @property
    def metadata_url(self) -> str | None:
        """Where clients find who issues tokens; None where they are told nothing."""
        return None

    @property
    def metadata_paths(self) -> frozenset[str]:
        """The paths of the metadata."""
        return frozenset()

    def metadata(self, info: Implementation) -> bytes:
        """The metadata document, where there is one."""
        return b""

    def expand(self, scopes: frozenset[str]) -> frozenset[str]:
        """Scopes together with those that they imply (AUTH-42)."""
        if not self._implied:
            return scopes
        return scopes.union(*(self._implied.get(scope, frozenset[str]()) for scope in scopes))


def read_auth(auth: object) -> Protection | None:
    """The protection that an option says: a `ResourceServer`, or a verifier alone. The mistake names no token."""
    if auth is None or isinstance(auth, Protection):
        return auth
    if is_async(auth):
        return Protection(cast("Verifier", auth))
    kind = type(auth).__name__
    what = "StaticTokens({...})" if kind == "dict" else "StaticTokens({'a-long-random-text': 'ann'})"
    raise UsageError(
        f"auth= is a ResourceServer, or what verifies tokens: StaticTokens, JwtVerifier or an async function; not "
        f"{kind} ({caller()}). Write auth={what}."
    )


class ResourceServer(Protection):
    """Protects a server: every request needs a token that was issued for it.

    Args:
        resource: The URL of the endpoint as its clients see it, whatever proxies are in between. Tokens must be issued
            for it: it is never taken from a request, which could name any.
        authorization_servers: Who issues tokens, by their issuer URLs; clients go there to log in.
        verifier: Whether a token is good: `JwtVerifier`, `IntrospectionVerifier`, `StaticTokens`, or any async function
            from a token to the `TokenInfo` of who bears it, or None. Of an own function's `claims`, `exp`, `nbf` and
            `aud` are checked where they are.
        scopes: What every request takes. Clients ask for these when they log in; what a tool takes besides is asked for
            when it is first used.
        implied_scopes: Scopes that include others: `{"admin": ["read", "write"]}`.
        dpop: How tokens that are bound to a client's key are handled.
        cache_seconds: How long what the verifier said is used, at most until the token expires. JWTs until then, what
            was introspected for a minute, what an own function says not at all, unless said here.
        documentation: Where people read how to use the resource.
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
            raise UsageError(f"resource={resource!r} has a query; give the URL of the endpoint without it.")
        if isinstance(authorization_servers, str) or not authorization_servers:  # ASD-01
            raise UsageError("authorization_servers= is a list with at least one URL, where clients get their tokens.")
        for issuer in authorization_servers:
            check_url(issuer, "An entry of authorization_servers")
        if not is_async(verifier):
            raise UsageError(
                "verifier= is an async function of a token (async def), or one such as JwtVerifier(...) or "
                "StaticTokens(...)."
            )
        self.origin = origin_of(resource)
        self.host = parts.hostname or ""  # of any port: proxies say it with or without
        self.resource = self.origin + parts.path
        self.path = parts.path.rstrip("/")
        self.authorization_servers = tuple(authorization_servers)
        self.documentation = documentation
        super().__init__(verifier, scopes=scopes, implied_scopes=implied_scopes, dpop=dpop, cache_seconds=cache_seconds)

    def __repr__(self) -> str:
        return f"<ResourceServer {self.resource!r}>"

    @property
    def audiences(self) -> tuple[str, ...]:
        """What a token may name as its audience: the resource. An empty path and a slash are the same (RFC 3986)."""
        return (self.origin, self.origin + "/") if not self.path else (self.resource,)

    @property
    def metadata_url(self) -> str:
        """Where clients find who issues tokens for this resource (RFC 9728, 3.1)."""
        return f"{self.origin}{WELL_KNOWN}{self.path}"

    @property
    def metadata_paths(self) -> frozenset[str]:
        """The paths of the metadata: with that of the resource behind it, and at the root (ASD-02)."""
        return frozenset({WELL_KNOWN, WELL_KNOWN + self.path})

    def metadata(self, info: Implementation) -> bytes:
        """The metadata document (AUTH-04)."""
        document: dict[str, Any] = {
            "resource": self.resource,
            "authorization_servers": self.authorization_servers,
            "bearer_methods_supported": ["header"],
            "resource_name": info.title or info.name,
        }
        if self.scopes:
            document["scopes_supported"] = self.scopes
        if self.documentation is not None:
            document["resource_documentation"] = self.documentation
        document["dpop_signing_alg_values_supported"] = self.dpop.algorithms
        if self.dpop.required:
            document["dpop_bound_access_tokens_required"] = True
        return msgspec.json.encode(document)


def _closure(implied: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """For each scope all that it implies, directly or not."""
    direct = {scope: frozenset(check_scopes(others, "implied_scopes")) for scope, others in implied.items()}
    whole: dict[str, frozenset[str]] = {}
    for scope in direct:
        found, pending = set[str](), [scope]
        while pending:
            for other in direct.get(pending.pop(), ()):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        whole[scope] = frozenset(found)
    return whole
