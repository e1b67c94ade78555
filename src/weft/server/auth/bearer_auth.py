"""Accept or reject HTTP requests by their bearer token.

The decision needs only the URL and the headers, and is made before the body of a request is read. The result of a
verifier is cached under a digest of the token, at most until the token expires, so the next request with the same token
needs only a look-up. The token itself is not stored.

A verifier whose tokens can be revoked before they expire may have an async method `recheck`. For every request with a
cached token, `recheck` is called with the cached `TokenInfo`. It raises `TokenRefused` if the token was revoked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from urllib.parse import unquote_plus

import msgspec

from weft.errors import InternalError
from weft.net.asgi import TOKEN_INFO, Refusal, Scope
from weft.protocol.headers import Headers
from weft.server.auth.dpop import ProofRefused, Proofs
from weft.server.auth.protected_resource import WELL_KNOWN, Protection
from weft.server.auth.tokens import LEEWAY, TokenRefused, VerifierFailed, challenge, check_claims, read_info, read_time
from weft.server.calls.connection import TokenInfo
from weft.server.calls.services import Services
from weft.server.diagnostics import report

_CREDENTIALS = re.compile(rb"(bearer|dpop) +([A-Za-z0-9._~+/-]+=*)[ \t]*", re.IGNORECASE)  # RFC 6750, 2.1
_MOST_KNOWN = 10_000  # Most cached tokens; if there are more, the oldest is dropped.


class BearerAuth:
    """Accepts HTTP requests with a valid token, and rejects all other requests with a `WWW-Authenticate` challenge.

    Every route of the app needs a token, except the metadata document, which tells clients how to get a token.
    """

    def __init__(self, auth: Protection, services: Services) -> None:
        self._auth = auth
        self._services = services
        self._paths = auth.metadata_paths
        self.metadata = auth.metadata(services.info)  # The metadata document, encoded.
        self._proofs = Proofs(auth.dpop, services)
        self._recheck: Callable[[TokenInfo], Awaitable[None]] | None = getattr(auth.verifier, "recheck", None)
        # Cached `TokenInfo` and the end of its validity, by the digest of scheme and token.
        self._known: dict[bytes, tuple[TokenInfo, float]] = {}

    def is_metadata(self, path: str) -> bool:
        """Return whether the metadata document is served at `path`, which is relative to the app's mount point."""
        return path in self._paths

    def metadata_url(self, scope: Scope) -> str | None:
        """Return the URL of the metadata document if the app is mounted below a path of another app, else None.

        A mounted app cannot serve the usual path at the root of the host, so its metadata is below the mount point.
        """
        root: str = scope.get("root_path", "")
        return f"{self._auth.origin}{root}{WELL_KNOWN}" if root and self._auth.resource else None

    def accept_known(self, scope: Scope, headers: Headers) -> bool:
        """Return True if the token of a request is cached, and put its `TokenInfo` into `scope`.

        If the result is False, call `accept` to verify the token.
        """
        value = headers.known.get(b"authorization")
        if value is None or scope.get("query_string"):
            return False
        info = scope[TOKEN_INFO] = self.recall(value)
        return info is not None

    def recall(self, authorization: bytes) -> TokenInfo | None:
        """Return the cached `TokenInfo` for an Authorization header, or None if `accept` must verify the token."""
        if self._recheck is not None:
            return None
        known = self._known.get(sha256(authorization).digest())
        return known[0] if known is not None and known[1] > time.time() else None

    async def accept(self, scope: Scope, headers: Headers, metadata_url: str | None) -> None:
        """Verify the token of a request and put its `TokenInfo` into `scope`, or raise a `Refusal` with a challenge.

        The challenge contains `metadata_url`, or the usual URL of the metadata document if `metadata_url` is None.
        """
        auth = self._auth
        asking = _Challenge(auth, metadata_url or auth.metadata_url, self._services.name)
        if _has_token(scope.get("query_string", b"")):
            raise asking.refuse(400, "invalid_request", "Send the token in the Authorization header, never in a URL.")
        value = headers.known.get(b"authorization")
        found = None if value is None else _CREDENTIALS.fullmatch(value.strip(b" \t"))
        if found is None:
            if value is not None and value.split(b" ", 1)[0].lower() in (b"bearer", b"dpop"):
                raise asking.refuse(400, "invalid_request", "The Authorization header has no well-formed token.")
            raise asking.refuse(401, None, "This server needs a token: send it in the Authorization header.")
        asking.is_dpop = found[1].lower() == b"dpop"
        token = found[2].decode("ascii")
        info = await self._verify(token, asking)
        if not auth.resource and (asking.is_dpop or "cnf" in info.claims):  # A proof needs a configured URL.
            asking.is_dpop = False
            raise asking.refuse(401, "invalid_token", "Tokens that are bound to a key are not accepted here.")
        if asking.is_dpop:
            await self._check_proof(scope, headers, token, info, asking)
        elif "cnf" in info.claims or auth.dpop.required:
            asking.is_dpop = True
            raise asking.refuse(401, "invalid_token", "The token must be bound to a key and be sent with a DPoP proof.")
        if not info.scopes.issuperset(auth.scopes):
            text = "The token does not have the scopes that this server needs."
            raise asking.refuse(403, "insufficient_scope", text, f" Needed: {', '.join(auth.scopes)}.")
        scope[TOKEN_INFO] = info

    async def _verify(self, token: str, asking: _Challenge) -> TokenInfo:
        """Return the `TokenInfo` of a token, cached or from the verifier. Raise `Refusal` if the token is not valid."""
        key = sha256(b"Bearer " + token.encode()).digest()
        if asking.is_dpop:  # A different key, so that `recall` never finds a token that also needs a proof.
            key = b"DPoP " + key
        known, now = self._known.get(key), time.time()
        try:
            if known is not None and known[1] > now:
                if self._recheck is not None:
                    await self._recheck(known[0])
                return known[0]
            info = read_info(await self._auth.verifier(token))
            if not hasattr(self._auth.verifier, "bind"):  # A verifier with `bind` checks the claims itself.
                check_claims(info.claims, audiences=self._auth.audiences, leeway=LEEWAY)
            until = min(read_time(info.claims, "exp") or now + self._auth.cache_seconds, now + self._auth.cache_seconds)
        except TokenRefused as error:
            raise asking.refuse(401, "invalid_token", str(error)) from None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a verifier raises, the request is refused and the server continues
            text = report("The token verifier", error, debug=self._services.debug, secret=token)
            if isinstance(error, VerifierFailed):
                raise _unavailable(text) from None
            raise Refusal(500, text, code=InternalError.code) from None
        if (scopes := self._auth.expand(info.scopes)) is not info.scopes:
            info = msgspec.structs.replace(info, scopes=scopes)
        self._keep(key, info, until, asking)
        return info

    def _keep(self, key: bytes, info: TokenInfo, until: float, asking: _Challenge) -> None:
        """Cache the `TokenInfo` of a token until the time `until`.

        Do not cache a bearer token that needs a DPoP proof or lacks a scope, because `recall` checks neither proofs nor
        scopes.
        """
        auth = self._auth
        needs_more = "cnf" in info.claims or auth.dpop.required or not info.scopes.issuperset(auth.scopes)
        if until <= time.time() or (needs_more and not asking.is_dpop):
            return
        self._known.pop(key, None)
        if len(self._known) >= _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = info, until

    async def _check_proof(
        self, scope: Scope, headers: Headers, token: str, info: TokenInfo, asking: _Challenge
    ) -> None:
        proofs = [value for name, value in headers.raw if name == b"dpop"]
        # Use the host of the configured resource, as clients see it: a proxy may have changed the host of the request.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        urls = (self._auth.resource, self._auth.origin + raw.partition(b"?")[0].decode("latin-1"))
        try:
            await self._proofs.check(proofs, method=scope["method"], urls=urls, token=token, info=info)
        except ProofRefused as error:
            refusal = asking.refuse(401, error.error, str(error))
            if error.nonce is not None:
                refusal.headers = [*refusal.headers, (b"dpop-nonce", error.nonce.encode())]
            raise refusal from None
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything; a possible replay is refused
            text = report("The record of proofs", error, debug=self._services.debug, secret=token)
            raise _unavailable(text) from None


class _Challenge:
    """The `WWW-Authenticate` challenge in the response to one rejected request."""

    def __init__(self, auth: Protection, metadata_url: str | None, name: str) -> None:
        self.auth = auth
        self.metadata_url = metadata_url
        self.realm = name if metadata_url is None else None  # RFC 6750, 3: a challenge has at least one parameter.
        self.is_dpop = auth.dpop.required

    def refuse(self, status: int, error: str | None, text: str, more: str = "") -> Refusal:
        """Return a `Refusal` with a challenge that says where to get a token, and which scopes the token needs.

        `more` is added only to the text in the body, for example the names of the needed scopes. The challenge has a
        separate parameter for the scopes.
        """
        value = challenge(
            "DPoP" if self.is_dpop else "Bearer",
            realm=self.realm,
            error=error,
            error_description=None if error is None else text,
            scope=" ".join(self.auth.scopes) or None,
            resource_metadata=self.metadata_url,
            algs=" ".join(self.auth.dpop.algorithms) if self.is_dpop else None,
        )
        return Refusal(status, text + more, headers=[(b"www-authenticate", value), (b"cache-control", b"no-store")])


def _has_token(query: bytes) -> bool:
    """Return whether a query has the parameter `access_token`, even if its name is percent-encoded."""
    return any(unquote_plus(part.partition("=")[0]) == "access_token" for part in query.decode("latin-1").split("&"))


def _unavailable(text: str) -> Refusal:
    return Refusal(503, text, code=InternalError.code, headers=[(b"retry-after", b"5")])
