"""Find the clients of the authorization server: configured, described by a metadata document, or self-registered.

Everyone can register a client (RFC 7591), so the number of unused clients is limited. A client is unused until it gets
its first token. Each address may register only some unused clients. If there are too many unused clients in total, the
oldest unused client of the address with the most unused clients is deleted. A client that has been given a token is
never deleted to make room.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from weft.authorization.web import OAuthError, digest
from weft.backends import Store
from weft.errors import UsageError
from weft.net.fetch import FetchFailed, fetch_document, fresh_seconds
from weft.net.hosts import is_loopback
from weft.net.urls import is_safe_url
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeysGiven, fits, read_keys

CLIENT_CREDENTIALS = "client_credentials"  # the grant type of programs that act for themselves
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # the grant type for assertions of a trusted issuer

_GRANTS = ("authorization_code", "refresh_token")  # the grant types that a client can register for
_METHODS = ("none", "client_secret_basic", "client_secret_post")
_DOCUMENT_SECONDS = 300.0  # how long a metadata document is cached by default
_MOST_DOCUMENT_SECONDS = 86_400.0  # how long a metadata document is cached at most
_MOST_DOCUMENTS = 1000
_FETCHED_AT_ONCE = 8
_MOST_WAITING = 64  # maximum number of requests that wait for a document, which may be on a slow server
_MOST_URIS = 16
_MOST_TEXT = 200
UNUSED_SECONDS = 86_400.0  # lifetime of a registration without a token
KEEP_SECONDS = 90 * 86_400.0  # lifetime of a registration after its last token
MOST_UNUSED = 10_000  # maximum number of registrations without a token, per process
MOST_PER_ADDRESS = 100  # maximum number of registrations without a token, per address and hour
_HOUR = 3600.0


class RegisteredClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of the authorization server.

    A client without a secret or a key is a public client, which is protected only by PKCE. `scopes` are the scopes that
    the client may request (default: all scopes of the server). A program that acts for itself, not for a user, has the
    grant type `CLIENT_CREDENTIALS`:

    >>> program = RegisteredClient(client_id="reporter", grant_types=(CLIENT_CREDENTIALS,)).with_secret("…")

    A resource server that only introspects tokens has no grant types:

    >>> url = "https://mcp.example.com/mcp"
    >>> server = RegisteredClient(client_id="notes", grant_types=(), introspects=(url,)).with_secret("…")
    """

    client_id: str
    redirect_uris: tuple[str, ...] = ()
    client_name: str = ""
    secret_digest: str | None = None  # made by `with_secret`
    keys: tuple[dict[str, Any], ...] = ()  # made by `with_keys`
    grant_types: tuple[str, ...] = _GRANTS
    scopes: tuple[str, ...] | None = None
    dpop_bound_access_tokens: bool = False  # whether its tokens must be bound to a key (RFC 9449, 5.2)
    introspects: tuple[str, ...] = ()  # the resources whose tokens it may introspect (RFC 7662)

    def with_secret(self, secret: str) -> RegisteredClient:
        """Return a copy of the client with a secret."""
        if not secret:
            raise UsageError(f"The client {self.client_id!r} has an empty secret; give it a long random one.")
        return msgspec.structs.replace(self, secret_digest=digest(secret))

    def with_keys(self, keys: KeysGiven) -> RegisteredClient:
        """Return a copy of the client with public keys (JWKs or PEM), so that it authenticates with its private key."""
        found = tuple(dict(key) for key in read_keys(keys, DEFAULT_ALGORITHMS))
        if not all(any(fits(key, algorithm) for algorithm in DEFAULT_ALGORITHMS) for key in found):
            raise UsageError(f"with_keys() was given a key that fits none of {', '.join(DEFAULT_ALGORITHMS)}.")
        return msgspec.structs.replace(self, keys=found)

    @property
    def is_confidential(self) -> bool:
        """Whether the client has a secret or a key to authenticate with."""
        return self.secret_digest is not None or bool(self.keys)

    def check(self) -> None:
        """Raise UsageError if the configuration of the client is wrong."""
        grants = set(self.grant_types)
        is_program = CLIENT_CREDENTIALS in grants
        unknown = grants - {*_GRANTS, CLIENT_CREDENTIALS, JWT_BEARER}
        unsafe = [uri[:200] for uri in self.redirect_uris if not is_safe_url(uri)]
        refuse_client(
            self.client_id,
            {
                "has an empty client_id; give each client an id.": not self.client_id,
                f"has the grant {min(unknown, default='')!r}, which this server does not support.": unknown,
                "has a secret and keys; give it one of the two.": self.secret_digest is not None and self.keys,
                "needs redirect_uris for people to log in, and none without authorization_code.": (
                    ("authorization_code" in grants) != bool(self.redirect_uris)
                ),
                f"has the redirect URI {''.join(unsafe[:1])!r}, which is not safe for sending codes. Give a full "
                "https:// URL without user and fragment; http:// is only for the user's own machine, such as "
                "http://127.0.0.1/callback.": unsafe,
                "acts for itself or introspects tokens, so it must authenticate: add .with_secret(...) or "
                ".with_keys(...).": (is_program or self.introspects) and not self.is_confidential,
                # An action of a program must never be taken for an action of a user.
                "acts for itself and for users; give the program a separate client id.": is_program and len(grants) > 1,
            },
        )

    def takes(self, redirect_uri: str) -> bool:
        """Return whether a redirect URI is registered for the client. The port of a loopback URI may differ."""
        return any(uri == redirect_uri or _same_but_port(uri, redirect_uri) for uri in self.redirect_uris)

    def has_secret(self, secret: str | None) -> bool:
        """Return whether `secret` is the client's secret. For a public client, return whether `secret` is None."""
        if self.secret_digest is None or secret is None:
            return not self.is_confidential and secret is None
        return hmac.compare_digest(self.secret_digest, digest(secret))


def refuse_client(client_id: str, faults: Mapping[str, object]) -> None:
    """Raise UsageError with the first text in `faults` whose value is true; do nothing if all values are false."""
    for text, is_wrong in faults.items():
        if is_wrong:
            raise UsageError(f"The client {client_id!r} {text}")


def _same_but_port(registered: str, given: str) -> bool:
    """Return whether two redirect URIs are http loopback URIs that differ at most in the port (RFC 8252)."""
    if not is_safe_url(given):
        return False
    one, other = urlsplit(registered), urlsplit(given)
    same = (one.scheme, one.hostname, one.path, one.query) == (other.scheme, other.hostname, other.path, other.query)
    return same and one.scheme == "http" and is_loopback(one.hostname or "")


class Clients:
    """All clients of the server: configured, self-registered, or described by a metadata document.

    Self-registered clients are in the store. Clients without a token have a separate key prefix there, so that deleting
    an unused client to make room cannot delete a client in use. Metadata documents are fetched, and cached.
    """

    def __init__(self, store: Store, known: Sequence[RegisteredClient], *, documents: bool, local: bool) -> None:
        for client in known:
            client.check()
        self.known = tuple(known)
        self._by_id = {client.client_id: client for client in known}
        self._reads_documents = documents
        self._local = local  # whether the server is on loopback; then metadata documents may be on loopback too
        self._at_once = asyncio.Semaphore(_FETCHED_AT_ONCE)
        self._waiting = 0
        self._documents: dict[str, tuple[RegisteredClient, float]] = {}
        self._store = store
        # Address and time (monotonic) of each registration without a token, by key in the store; the oldest first.
        self._unused: dict[str, tuple[str, float]] = {}

    def is_known(self, client: RegisteredClient) -> bool:
        """Return whether a client is one of the configured clients of this server."""
        return client.client_id in self._by_id

    async def find(self, client_id: str) -> RegisteredClient | None:
        """Return the client with this id, or None if there is none."""
        known = self._by_id.get(client_id)
        if known is not None:
            return known
        if "://" in client_id:
            return await self._read_document(client_id) if self._reads_documents else None
        key = digest(client_id)
        record = await self._store.get(f"client:{key}") or await self._store.get(f"new-client:{key}")
        return None if record is None else msgspec.json.decode(record, type=RegisteredClient)

    async def keep(self, client: RegisteredClient) -> None:
        """Extend the lifetime of a self-registered client, because it was given a token."""
        if self.is_known(client) or "://" in client.client_id:
            return
        key = digest(client.client_id)
        if await self._store.touch(f"client:{key}", ttl=KEEP_SECONDS):
            return
        record = await self._store.get(f"new-client:{key}")
        if record is not None:
            await self._store.put(f"client:{key}", record, ttl=KEEP_SECONDS)
            await self._store.delete(f"new-client:{key}")
            self._unused.pop(key, None)

    async def _read_document(self, url: str) -> RegisteredClient | None:
        """Return the client that the metadata document at `url` describes, or None if the document cannot be used."""
        kept = self._documents.get(url)
        if kept is not None and kept[1] > time.monotonic():
            return kept[0]
        parts = urlsplit(url) if is_safe_url(url) else None
        if parts is None or parts.path in ("", "/") or (parts.scheme != "https" and not self._local):
            return None
        try:
            document, headers = await self._fetch(url)
        except FetchFailed:
            return None
        if document.get("client_id") != url or document.get("token_endpoint_auth_method", "none") != "none":
            return None
        try:
            client = _describe(document, url)
        except OAuthError:
            return None
        self._keep_document(url, client, headers)
        return client

    async def _fetch(self, url: str) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Fetch a JSON document; return the document and the headers of the response.

        Only a few fetches run at the same time. Raises OAuthError if too many fetches wait already, and FetchFailed if
        the document cannot be fetched or is not a JSON object.
        """
        if self._waiting >= _MOST_WAITING:
            text = "Too many clients are being looked up. Try again soon."
            raise OAuthError("temporarily_unavailable", text, status=503)
        self._waiting += 1
        try:
            async with self._at_once:
                return await fetch_document(url, public_only=not self._local)
        finally:
            self._waiting -= 1

    def _keep_document(self, url: str, client: RegisteredClient, headers: Mapping[str, str]) -> None:
        """Cache the client of a metadata document, for as long as the headers of the response allow."""
        self._documents.pop(url, None)
        seconds = fresh_seconds(headers, default=_DOCUMENT_SECONDS, most=_MOST_DOCUMENT_SECONDS)
        if seconds <= 0:
            return
        if len(self._documents) >= _MOST_DOCUMENTS:
            del self._documents[next(iter(self._documents))]
        self._documents[url] = client, time.monotonic() + seconds

    async def register(self, metadata: Mapping[str, Any], address: str = "") -> dict[str, Any]:
        """Register a client (RFC 7591), and return the response. `address` is the address that sent the request.

        Raises OAuthError if the metadata is not acceptable, or if the address has registered too many unused clients.
        """
        method = metadata.get("token_endpoint_auth_method", "client_secret_basic")
        if method not in _METHODS:
            raise _unacceptable(f"token_endpoint_auth_method must be one of {', '.join(_METHODS)}.")
        client = _describe(metadata, secrets.token_urlsafe(16))
        response: dict[str, Any] = {
            "client_id": client.client_id,
            "client_id_issued_at": int(time.time()),
            "client_name": client.client_name,
            "redirect_uris": client.redirect_uris,
            "grant_types": client.grant_types,
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
        }
        if method != "none":
            secret = secrets.token_urlsafe(32)
            client = client.with_secret(secret)
            response |= {"client_secret": secret, "client_secret_expires_at": 0}
        if "application_type" in metadata:
            response["application_type"] = metadata["application_type"]
        if client.dpop_bound_access_tokens:
            response["dpop_bound_access_tokens"] = True
        await self._add(client, address)
        return response

    async def _add(self, client: RegisteredClient, address: str) -> None:
        """Store a new client; raise OAuthError if `address` has registered too many unused clients."""
        now, key = time.monotonic(), digest(client.client_id)
        for old in [old for old, (_, when) in self._unused.items() if when <= now - UNUSED_SECONDS]:
            del self._unused[old]  # this registration has expired in the store
        recent = [when for place, when in self._unused.values() if place == address and when > now - _HOUR]
        if len(recent) >= MOST_PER_ADDRESS:
            wait = b"%d" % max(1, int(recent[0] + _HOUR - now))
            text = "Too many clients were registered from your address and not used. Try again later."
            raise OAuthError("temporarily_unavailable", text, status=429, headers=[(b"retry-after", wait)])
        if len(self._unused) >= MOST_UNUSED:
            await self._forget_one()
        self._unused[key] = address, now
        await self._store.put(f"new-client:{key}", msgspec.json.encode(client), ttl=UNUSED_SECONDS)

    async def _forget_one(self) -> None:
        """Delete the oldest unused client of the address that has the most unused clients."""
        ((address, _),) = Counter(place for place, _ in self._unused.values()).most_common(1)
        oldest = next(key for key, (place, _) in self._unused.items() if place == address)
        del self._unused[oldest]
        await self._store.delete(f"new-client:{oldest}")


class _Description(msgspec.Struct):
    """The metadata that a client gives about itself, without its redirect URIs."""

    client_name: str = ""
    grant_types: tuple[str, ...] = ("authorization_code",)
    dpop_bound_access_tokens: bool = False


def _describe(metadata: Mapping[str, Any], client_id: str) -> RegisteredClient:
    """Return the client that `metadata` describes; raise OAuthError if the metadata is not acceptable."""
    try:
        uris = msgspec.convert(metadata.get("redirect_uris"), tuple[str, ...])
    except msgspec.ValidationError:
        uris = ()
    if not 0 < len(uris) <= _MOST_URIS or not all(map(is_safe_url, uris)):
        text = "redirect_uris must be https URLs, or http URLs of the user's own machine."
        raise OAuthError("invalid_redirect_uri", text)
    try:
        said = msgspec.convert(metadata, _Description)
    except msgspec.ValidationError as error:
        raise _unacceptable(f"{error}.") from None
    if len(said.client_name) > _MOST_TEXT or not said.client_name.isprintable():
        raise _unacceptable(f"client_name must be text of at most {_MOST_TEXT} characters.")
    if "authorization_code" not in said.grant_types:
        raise _unacceptable("grant_types must contain authorization_code, and may contain refresh_token.")
    return RegisteredClient(
        client_id=client_id,
        redirect_uris=uris,
        client_name=said.client_name,
        grant_types=tuple(grant for grant in _GRANTS if grant in said.grant_types),
        dpop_bound_access_tokens=said.dpop_bound_access_tokens,
    )


def _unacceptable(text: str) -> OAuthError:
    return OAuthError("invalid_client_metadata", text)
