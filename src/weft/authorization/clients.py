"""Keep the clients, register new ones, and authenticate them.

The clients of the authorization server: known beforehand, described by a document, or registered by themselves.

Clients that register themselves (RFC 7591): how many may, and which are forgotten.

Anybody can register, as often as they like. So what one address may do takes nothing from others: an address has an
allowance of registrations that nothing came of, and where there are too many in all, one of the address that has most
of them is forgotten. A client that was given a token counts no longer, and is not forgotten for others.

Which client asks at the token endpoint, and whether it is that one: by its secret, by its key, or by neither.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import unquote_plus, urlsplit

import msgspec

from weft.authorization.assertions import CLIENT_ASSERTION, Assertions
from weft.authorization.web import OAuthError, WebRequest, digest
from weft.backends.base import Store
from weft.errors import UsageError
from weft.net.fetch import FetchFailed, fetch_document, fresh_seconds
from weft.net.hosts import is_loopback
from weft.net.urls import is_safe_url
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeySet, KeysGiven, check_keys, fits, read_issuer, read_keys
from weft.server.auth.tokens import TokenRefused

CLIENT_CREDENTIALS = "client_credentials"  # the grant of programs, which act for nobody but themselves
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # that of clients for which somebody else vouches

_GRANTS = ("authorization_code", "refresh_token")  # those that a client can register for by itself
_METHODS = ("none", "client_secret_basic", "client_secret_post")
_DOCUMENT_SECONDS = 300.0  # a document is used again, if it does not say how long …
_MOST_DOCUMENT_SECONDS = 86_400.0  # … and at most, whatever it says
_MOST_DOCUMENTS = 1000
_FETCHED_AT_ONCE = 8
_MOST_WAITING = 64  # for a document; anybody can name one that is slow
_MOST_URIS = 16
_MOST_TEXT = 200


class RegisteredClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client.

    Without a secret or a key it is a public one, and proves with PKCE alone that it began what it ends. `scopes` is
    what it may have at most, all that there are if not said. A program, which nobody logs in to, is one of the grant
    `CLIENT_CREDENTIALS`:

    >>> program = RegisteredClient(client_id="reporter", grant_types=(CLIENT_CREDENTIALS,)).with_secret("…")

    A resource server that asks about the tokens it is shown has no grant at all:

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
    dpop_bound_access_tokens: bool = False  # its tokens are always bound to a key (RFC 9449, 5.2)
    introspects: tuple[str, ...] = ()  # the resources that it is, whose tokens it may ask about (RFC 7662)

    def with_secret(self, secret: str) -> RegisteredClient:
        """The same client, confidential."""
        if not secret:
            raise UsageError(f"The client {self.client_id!r} has an empty secret, which everybody knows: give it one.")
        return msgspec.structs.replace(self, secret_digest=digest(secret))

    def with_keys(self, keys: KeysGiven) -> RegisteredClient:
        """The same client, confidential by a private key of its own: here are its public ones, as JWKs or in PEM."""
        found = tuple(dict(key) for key in read_keys(keys))
        check_keys(found, DEFAULT_ALGORITHMS)
        if not all(any(fits(key, algorithm) for algorithm in DEFAULT_ALGORITHMS) for key in found):
            raise UsageError(f"with_keys() was given a key that signs with none of {', '.join(DEFAULT_ALGORITHMS)}.")
        return msgspec.structs.replace(self, keys=found)

    @property
    def is_confidential(self) -> bool:
        """Whether it can prove who it is."""
        return self.secret_digest is not None or bool(self.keys)

    def check(self) -> None:
        """UsageError where a client that is known beforehand cannot do what it is for."""
        grants, what = set(self.grant_types), f"The client {self.client_id!r}"
        if not self.client_id:
            raise UsageError("A client has the empty client_id: give each an id, by which it is known.")
        if unknown := grants - {*_GRANTS, CLIENT_CREDENTIALS, JWT_BEARER}:
            raise UsageError(f"{what} has the grant {min(unknown)!r}, which is not served here.")
        if self.secret_digest is not None and self.keys:
            raise UsageError(f"{what} has a secret and keys; give it one of the two.")
        if ("authorization_code" in grants) != bool(self.redirect_uris):
            raise UsageError(f"{what} needs redirect_uris for people to log in, and none without authorization_code.")
        for uri in _listed(self.redirect_uris, what):
            if not is_safe_url(uri):  # ASEC-05
                raise UsageError(
                    f"{what} has the redirect URI {uri[:200]!r}, to which no code may be sent. Give a full https:// "
                    "URL without user and fragment; http:// is for the user's own machine, such as "
                    "http://127.0.0.1/callback."
                )
        if self.introspects and not self.is_confidential:
            raise UsageError(f"{what} asks about tokens: let it prove who it is, .with_secret(...) or .with_keys(...).")
        if CLIENT_CREDENTIALS not in grants:
            return
        if not self.is_confidential:
            raise UsageError(f"{what} acts for itself: let it prove who it is, .with_secret(...) or .with_keys(...).")
        if len(grants) > 1:  # so that what a program does is never taken for what a user did
            raise UsageError(f"{what} acts for itself and for others; give a program a client id of its own.")

    def takes(self, redirect_uri: str) -> bool:
        """Whether a redirect URI is one of this client's: exactly (ASEC-10), but for the port of a loopback one."""
        return any(uri == redirect_uri or _same_but_port(uri, redirect_uri) for uri in self.redirect_uris)

    def has_secret(self, secret: str | None) -> bool:
        """Whether a secret is the client's; a public one has none, and must not bring one."""
        if self.secret_digest is None or secret is None:
            return not self.is_confidential and secret is None
        return hmac.compare_digest(self.secret_digest, digest(secret))


def _listed(uris: object, what: str) -> list[str]:
    """The redirect URIs of an option; UsageError where they are no list of texts. Callers may be untyped."""
    found = _texts(list(cast("Sequence[object]", uris))) if isinstance(uris, list | tuple) else None
    if found is None:
        raise UsageError(f"{what} has redirect_uris={uris!r}: give a tuple of texts, redirect_uris=('https://…',).")
    return found


def _same_but_port(registered: str, given: str) -> bool:
    """RFC 8252, 7.3: a native app takes any free port."""
    if not is_safe_url(given):
        return False
    one, other = urlsplit(registered), urlsplit(given)
    same = (one.scheme, one.hostname, one.path, one.query) == (other.scheme, other.hostname, other.path, other.query)
    return same and one.scheme == "http" and is_loopback(one.hostname or "")


class Clients:
    """All clients. Those that register themselves are in the store; documents are fetched, and kept as they say."""

    def __init__(self, store: Store, known: Sequence[RegisteredClient], *, documents: bool, local: bool) -> None:
        for client in known:
            client.check()
        self.known = tuple(known)
        self._by_id = {client.client_id: client for client in known}
        self._reads_documents = documents
        self._local = local  # the server is this machine's own: so may documents be
        self._at_once = asyncio.Semaphore(_FETCHED_AT_ONCE)
        self._waiting = 0
        self._documents: dict[str, tuple[RegisteredClient, float]] = {}
        self._registrations = Registrations(store)

    def is_known(self, client: RegisteredClient) -> bool:
        """Whether somebody here has vouched for a client; of others there is only what they say of themselves."""
        return client.client_id in self._by_id

    async def find(self, client_id: str) -> RegisteredClient | None:
        """The client of this id."""
        known = self._by_id.get(client_id)
        if known is not None:
            return known
        if "://" in client_id:
            return await self._read_document(client_id) if self._reads_documents else None
        return await self._registrations.find(client_id, RegisteredClient)

    async def keep(self, client: RegisteredClient) -> None:
        """Keep the registration of a client that was given a token."""
        if not self.is_known(client) and "://" not in client.client_id:
            await self._registrations.keep(client.client_id)

    async def _read_document(self, url: str) -> RegisteredClient | None:
        """A client whose id is the URL of what describes it (CREG-03, CREG-05, ASEC-12)."""
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
        """A document, with its headers. A few are fetched at once, and more wait, but not any number."""
        if self._waiting >= _MOST_WAITING:
            raise OAuthError("temporarily_unavailable", "Too many clients are looked up. Try again soon.", status=503)
        self._waiting += 1
        try:
            async with self._at_once:
                return await fetch_document(url, public_only=not self._local)
        finally:
            self._waiting -= 1

    def _keep_document(self, url: str, client: RegisteredClient, headers: Mapping[str, str]) -> None:
        """Use a document again for as long as it says (CREG-06). One that cannot be used was never kept."""
        self._documents.pop(url, None)
        seconds = fresh_seconds(headers, default=_DOCUMENT_SECONDS, most=_MOST_DOCUMENT_SECONDS)
        if seconds <= 0:
            return
        if len(self._documents) >= _MOST_DOCUMENTS:
            del self._documents[next(iter(self._documents))]
        self._documents[url] = client, time.monotonic() + seconds

    async def register(self, metadata: Mapping[str, Any], address: str = "") -> dict[str, Any]:
        """Register a client (RFC 7591) that asks from this address, and return what it is told."""
        method = metadata.get("token_endpoint_auth_method", "client_secret_basic")
        if method not in _METHODS:
            raise OAuthError("invalid_client_metadata", f"token_endpoint_auth_method is one of {', '.join(_METHODS)}.")
        client = _describe(metadata, secrets.token_urlsafe(16))
        told: dict[str, Any] = {
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
            told |= {"client_secret": secret, "client_secret_expires_at": 0}
        if "application_type" in metadata:
            told["application_type"] = metadata["application_type"]
        if client.dpop_bound_access_tokens:
            told["dpop_bound_access_tokens"] = True
        await self._registrations.add(client.client_id, client, address)
        return told


def _describe(metadata: Mapping[str, Any], client_id: str) -> RegisteredClient:
    """A client by what it says of itself; OAuthError where that cannot be."""
    uris, name = _texts(metadata.get("redirect_uris")), metadata.get("client_name", "")
    if not uris or len(uris) > _MOST_URIS or not all(map(is_safe_url, uris)):  # ASEC-05
        raise OAuthError(
            "invalid_redirect_uri", "redirect_uris are https URLs, or http ones of the user's own machine."
        )
    if not isinstance(name, str) or len(name) > _MOST_TEXT or not name.isprintable():
        raise OAuthError("invalid_client_metadata", f"client_name is a text of at most {_MOST_TEXT} characters.")
    grants = _texts(metadata.get("grant_types", ["authorization_code"]))
    if not grants or "authorization_code" not in grants:
        raise OAuthError("invalid_client_metadata", f"grant_types are of {', '.join(_GRANTS)}.")
    served = tuple(grant for grant in _GRANTS if grant in grants)
    bound = metadata.get("dpop_bound_access_tokens", False)
    if not isinstance(bound, bool):
        raise OAuthError("invalid_client_metadata", "dpop_bound_access_tokens is true or false.")
    return RegisteredClient(
        client_id=client_id,
        redirect_uris=tuple(uris),
        client_name=name,
        grant_types=served,
        dpop_bound_access_tokens=bound,
    )


def _texts(value: object) -> list[str] | None:
    """A list of texts; None for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
        return None
    return cast("list[str]", value)


UNUSED_SECONDS = 86_400.0  # a registration that no token came of
KEEP_SECONDS = 90 * 86_400.0  # one that was used, since its last token
MOST_UNUSED = 10_000  # registrations without a token, made at one process
MOST_PER_ADDRESS = 100  # of one address within an hour
_HOUR = 3600.0

_Client = TypeVar("_Client", bound=msgspec.Struct)


class _Unused(NamedTuple):
    address: str
    when: float  # on the monotonic clock


class Registrations:
    """The clients that have registered themselves, in a store that workers share.

    A client without a token is kept apart from those that have one: forgetting it can never hit a client in use.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unused: dict[str, _Unused] = {}  # by key in the store, the oldest first

    async def find(self, client_id: str, kind: type[_Client]) -> _Client | None:
        """Return the client of this id."""
        key = digest(client_id)
        record = await self._store.get(f"client:{key}") or await self._store.get(f"new-client:{key}")
        return None if record is None else msgspec.json.decode(record, type=kind)

    async def add(self, client_id: str, client: msgspec.Struct, address: str) -> None:
        """Keep a new client; OAuthError where its address has used up its allowance."""
        now, key = time.monotonic(), digest(client_id)
        for old in [old for old, one in self._unused.items() if one.when <= now - UNUSED_SECONDS]:
            del self._unused[old]  # the store has forgotten it by itself
        recent = [one.when for one in self._unused.values() if one.address == address and one.when > now - _HOUR]
        if len(recent) >= MOST_PER_ADDRESS:
            wait = b"%d" % max(1, int(recent[0] + _HOUR - now))
            text = "Too many clients have registered from your address, and not been used. Try again later."
            raise OAuthError("temporarily_unavailable", text, status=429, headers=[(b"retry-after", wait)])
        if len(self._unused) >= MOST_UNUSED:
            await self._forget_one()
        self._unused[key] = _Unused(address, now)
        await self._store.put(f"new-client:{key}", msgspec.json.encode(client), ttl=UNUSED_SECONDS)

    async def keep(self, client_id: str) -> None:
        """Keep a client that was given a token."""
        key = digest(client_id)
        if await self._store.touch(f"client:{key}", ttl=KEEP_SECONDS):
            return
        record = await self._store.get(f"new-client:{key}")
        if record is not None:
            await self._store.put(f"client:{key}", record, ttl=KEEP_SECONDS)
            await self._store.delete(f"new-client:{key}")
            self._unused.pop(key, None)

    async def _forget_one(self) -> None:
        """Forget the oldest unused client of the address that has most of them."""
        ((address, _),) = Counter(one.address for one in self._unused.values()).most_common(1)
        oldest = next(key for key, one in self._unused.items() if one.address == address)
        del self._unused[oldest]
        await self._store.delete(f"new-client:{oldest}")


_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_BASIC = [(b"www-authenticate", b'Basic realm="token"')]


class Authenticating:
    """Authenticates the clients of one authorization server."""

    def __init__(self, clients: Clients, assertions: Assertions) -> None:
        self._clients = clients
        self._assertions = assertions
        self._keys = {client.client_id: KeySet(None, client.keys) for client in clients.known if client.keys}

    async def find(self, request: WebRequest, fields: Mapping[str, str]) -> RegisteredClient:
        """The client that asks. It authenticates in one of the ways that there are, and not in two."""
        client_id, secret, assertion = (fields.get(name) for name in ("client_id", "client_secret", "client_assertion"))
        basic = _read_basic(request.headers.get(b"authorization"))
        if [basic, secret, assertion].count(None) < 2 or (basic is not None and client_id not in (None, basic[0])):
            raise OAuthError("invalid_request", "The client authenticates in one way, not in two.")
        if assertion is not None:
            if "client_assertion_type" not in fields:
                raise OAuthError("invalid_request", f"client_assertion_type is {_JWT_BEARER}.")
            if fields["client_assertion_type"] != _JWT_BEARER:  # a way that is not supported (RFC 6749, 5.2)
                raise _refusal(f"client_assertion_type is {_JWT_BEARER}.")
            return await self._by_assertion(client_id, assertion)
        if basic is not None:
            client_id, secret = basic
        client = await self._clients.find(client_id or "")
        if client is None or not client.has_secret(secret):
            raise _refusal("The client is not known, or not authenticated.", challenged=basic is not None)
        return client

    async def _by_assertion(self, client_id: str | None, assertion: str) -> RegisteredClient:
        """The client whose key an assertion is signed with. It says of itself who it is: `iss` and `sub` are the id."""
        named = read_issuer(assertion) or ""
        keys = self._keys.get(named)
        client = None if keys is None else await self._clients.find(named)
        if keys is None or client is None or client_id not in (None, named):
            raise _refusal("The client is not known, or not authenticated.")
        try:
            claims = await self._assertions.read(
                assertion, CLIENT_ASSERTION, issuer=named, keys=keys, algorithms=DEFAULT_ALGORITHMS
            )
            if claims["sub"] != named:
                raise TokenRefused("The client assertion is about another client.")
            await self._assertions.use(claims, CLIENT_ASSERTION)
        except TokenRefused as error:
            raise _refusal(f"The client is not authenticated: {error}") from None
        return client


def _refusal(text: str, *, challenged: bool = False) -> OAuthError:
    return OAuthError("invalid_client", text, status=401, headers=_BASIC if challenged else [])


def _read_basic(value: str | None) -> tuple[str, str] | None:
    """Client id and secret of an Authorization header (RFC 6749, 2.3.1)."""
    scheme, _, credentials = (value or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        id, found, secret = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        id, found, secret = "", "", ""
    if not found:
        raise _refusal("The Authorization header cannot be read.", challenged=True)
    return unquote_plus(id), unquote_plus(secret)
