"""Admit HTTP requests by their bearer token.

The decision is made on the raw headers, before anything else of a request is read. What a verifier said of a token is
cached under a digest of the token until it expires, so the next request with the same token costs one look-up. The
token itself is stored nowhere. A verifier whose tokens can end before they expire has `recheck`, an async function of
the `TokenInfo`: it is called with every request, and raises `TokenRefused`.
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


class Gate:
    """Stands before every route of an app, the metadata excepted, which says how to get past it."""

    def __init__(self, auth: Protection, services: Services) -> None:
        self._auth = auth
        self._admission = Admission(auth, services)
        self.metadata = auth.metadata(services.info)  # the document, encoded
        self._paths = auth.metadata_paths

    def is_metadata(self, inner: str) -> bool:
        """Whether the metadata is what is at this path below the place that the app is mounted at."""
        return inner in self._paths

    def metadata_url(self, scope: Scope) -> str | None:
        """Return where the metadata is, if that is not its usual place.

        The root of the host is not ours to serve: where the app is mounted, the metadata is below the mount.
        """
        root: str = scope.get("root_path", "")
        return f"{self._auth.origin}{root}{WELL_KNOWN}" if root and self._auth.resource else None

    async def admit(self, scope: Scope, headers: Headers, metadata_url: str | None) -> None:
        """Put the verified caller into the scope; raise a `Refusal` with a challenge where there is none."""
        if not self.recall(scope, headers):
            metadata_url = metadata_url or self._auth.metadata_url
            scope[TOKEN_INFO] = await self._admission.admit(scope, headers, metadata_url)

    def recall(self, scope: Scope, headers: Headers) -> bool:
        """Put the caller into the scope if its token was admitted before; return False if it has to be verified."""
        value = headers.known.get(b"authorization")
        if value is None or scope.get("query_string"):
            return False
        info = scope[TOKEN_INFO] = self._admission.recall(value)
        return info is not None


_CREDENTIALS = re.compile(rb"(bearer|dpop) +([A-Za-z0-9._~+/-]+=*)[ \t]*", re.IGNORECASE)  # RFC 6750, 2.1
_MOST_KNOWN = 10_000


class Admission:
    """Lets requests in to one server, or turns them away with what it takes."""

    def __init__(self, auth: Protection, services: Services) -> None:
        self.auth = auth
        self._services = services
        self._proofs = Proofs(auth.dpop, services)
        self._recheck: Callable[[TokenInfo], Awaitable[None]] | None = getattr(auth.verifier, "recheck", None)
        self._known: dict[bytes, tuple[TokenInfo, float]] = {}  # by digest of scheme and token, until when

    def recall(self, authorization: bytes) -> TokenInfo | None:
        """Who bears a token that was let in before and needs nothing besides; None where that is to be found out."""
        if self._recheck is not None:
            return None
        known = self._known.get(sha256(authorization).digest())
        return known[0] if known is not None and known[1] > time.time() else None

    async def admit(self, scope: Scope, headers: Headers, metadata_url: str | None) -> TokenInfo:
        """Who sends a request. A `Refusal` with a challenge where that does not suffice (AUTH-34)."""
        asking = _AuthRequest(self.auth, metadata_url, self._services.name)
        if _has_token(scope.get("query_string", b"")):
            raise asking.refuse(400, "invalid_request", "A token is sent in the Authorization header, never in a URL.")
        value = headers.known.get(b"authorization")
        found = None if value is None else _CREDENTIALS.fullmatch(value.strip(b" \t"))
        if found is None:
            if value is not None and value.split(b" ", 1)[0].lower() in (b"bearer", b"dpop"):
                raise asking.refuse(400, "invalid_request", "The Authorization header holds no token as it should.")
            raise asking.refuse(401, None, "This server needs a token: send it in the Authorization header.")
        asking.is_dpop = found[1].lower() == b"dpop"
        token = found[2].decode("ascii")
        info = await self._verify(token, asking)
        if not self.auth.resource and (asking.is_dpop or "cnf" in info.claims):  # a proof is about a URL
            asking.is_dpop = False
            raise asking.refuse(401, "invalid_token", "Tokens that are bound to a key are not taken here.")
        if asking.is_dpop:
            await self._check_proof(scope, headers, token, info, asking)
        elif "cnf" in info.claims or self.auth.dpop.required:
            asking.is_dpop = True
            raise asking.refuse(401, "invalid_token", "The token must be bound to a key, and come with a proof of it.")
        if not info.scopes.issuperset(self.auth.scopes):
            text = "The token does not have the scopes that this server takes."
            raise asking.refuse(403, "insufficient_scope", text, f" Needed: {', '.join(self.auth.scopes)}.")
        return info

    async def _verify(self, token: str, asking: _AuthRequest) -> TokenInfo:
        """What the verifier says of a token, now or a while ago."""
        key = sha256(b"Bearer " + token.encode()).digest()
        if asking.is_dpop:  # no digest: whatever a header says, `recall` finds no token that needs a proof besides
            key = b"DPoP " + key
        known, now = self._known.get(key), time.time()
        try:
            if known is not None and known[1] > now:
                if self._recheck is not None:
                    await self._recheck(known[0])
                return known[0]
            info = read_info(await self.auth.verifier(token))
            if not hasattr(self.auth.verifier, "bind"):  # those that have it have done so themselves
                check_claims(info.claims, audiences=self.auth.audiences, leeway=LEEWAY)
            until = min(read_time(info.claims, "exp") or now + self.auth.cache_seconds, now + self.auth.cache_seconds)
        except TokenRefused as error:
            raise asking.refuse(401, "invalid_token", str(error)) from None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - R1: whatever a verifier raises, nobody is let in and all goes on
            text = report("The verifier of tokens", error, debug=self._services.debug, secret=token)
            if isinstance(error, VerifierFailed):
                raise _unavailable(text) from None
            raise Refusal(500, text, code=InternalError.code) from None
        if (scopes := self.auth.expand(info.scopes)) is not info.scopes:
            info = msgspec.structs.replace(info, scopes=scopes)
        self._keep(key, info, until, asking)
        return info

    def _keep(self, key: bytes, info: TokenInfo, until: float, asking: _AuthRequest) -> None:
        """Remember who bears a token. What `recall` finds is let in as it is: it must lack nothing."""
        bearer = not asking.is_dpop
        if bearer and ("cnf" in info.claims or self.auth.dpop.required or not info.scopes.issuperset(self.auth.scopes)):
            return
        if until <= time.time():
            return
        self._known.pop(key, None)
        if len(self._known) >= _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = info, until

    async def _check_proof(
        self, scope: Scope, headers: Headers, token: str, info: TokenInfo, asking: _AuthRequest
    ) -> None:
        proofs = [value for name, value in headers.raw if name == b"dpop"]
        # The URL as the client sees it: the resource says under which name that is, whatever a proxy makes of it.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        urls = (self.auth.resource, self.auth.origin + raw.partition(b"?")[0].decode("latin-1"))
        try:
            await self._proofs.check(proofs, method=scope["method"], urls=urls, token=token, info=info)
        except ProofRefused as error:
            refusal = asking.refuse(401, error.error, str(error))
            if error.nonce is not None:
                refusal.headers = [*refusal.headers, (b"dpop-nonce", error.nonce.encode())]
            raise refusal from None
        except Exception as error:  # noqa: BLE001 - a Backend raises what it likes; who may be a replay stays outside
            text = report("The record of proofs", error, debug=self._services.debug, secret=token)
            raise _unavailable(text) from None


class _AuthRequest:
    """What a challenge to one request says."""

    def __init__(self, auth: Protection, metadata_url: str | None, name: str) -> None:
        self.auth = auth
        self.metadata_url = metadata_url
        self.realm = name if metadata_url is None else None  # RFC 6750, 3: a challenge says something
        self.is_dpop = auth.dpop.required

    def refuse(self, status: int, error: str | None, text: str, more: str = "") -> Refusal:
        """A refusal with its challenge: where to get a token (L06-07), and with which scopes (AUTH-09).

        `more` is for who reads the answer only: the challenge says it elsewhere.
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
    """Whether a query has an `access_token` (AUTH-28): however it is spelled, it is in somebody's log already."""
    return any(unquote_plus(part.partition("=")[0]) == "access_token" for part in query.decode("latin-1").split("&"))


def _unavailable(text: str) -> Refusal:
    return Refusal(503, text, code=InternalError.code, headers=[(b"retry-after", b"5")])
