"""Read the challenges of a server, find its authorization server, and get a client id there.

A metadata document is refused if it is about another resource or another issuer than expected. If a server publishes no
metadata, the authorization server is assumed to be at the server's own origin, as in protocol version 2025-03-26. A
client identity is used only at the issuer that it was registered with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from weft.client.auth.ports import LoginContext
from weft.client.auth.tokens import Identity, Issuer, describe_error
from weft.errors import AuthorizationFailed, UsageError
from weft.net.fetch import FetchFailed, get, post_json
from weft.net.hosts import is_loopback
from weft.net.urls import is_safe_url, origin_of, shown_url

_RESOURCE = "/.well-known/oauth-protected-resource"
_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"
_MOST_ISSUERS = 5  # maximum number of authorization servers to try
_LATEST = 10**12  # an expiry time (Unix seconds) from here on counts as "never"
_DEFAULT_PORTS = {"http": 80, "https": 443}

_MOST_BYTES = 16 * 1024
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - a "token" of the HTTP grammar, not a secret
# A header is a list of parameters and scheme names. A token68 after a scheme name is ignored.
_PARAM = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN})(?=[ \t]*(?:,|$)))')
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+(?=[^ \t,=])|[ \t]*(?=,|$))")
_SEPARATOR = re.compile(r"[ \t,]+")


# --- challenges


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of a `WWW-Authenticate` header: a scheme and its parameters, with names in lower case."""

    scheme: str = ""
    params: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """The scopes that the server demands, or None if the challenge names no scopes."""
        scope = self.params.get("scope")
        return tuple(dict.fromkeys(scope.split())) if scope and scope.strip() else None

    @property
    def error(self) -> str | None:
        """The error code, such as `insufficient_scope`, or None if the challenge has none."""
        return self.params.get("error")

    @property
    def is_dpop(self) -> bool:
        """Whether the server demands tokens that are bound to a key (DPoP)."""
        return self.scheme == "dpop"


def parse_challenges(header: str) -> list[Challenge]:
    """Return all challenges in a `WWW-Authenticate` header; skip parts that cannot be read.

    The run time is linear in the length of the header.

    >>> parse_challenges('Bearer error="invalid_token", scope="a b", DPoP algs="ES256"')[1]
    Challenge(scheme='dpop', params={'algs': 'ES256'})
    """
    header = header[:_MOST_BYTES]
    found: list[Challenge] = []
    params: dict[str, str] = {}
    at = 0
    while at < len(header):
        if gap := _SEPARATOR.match(header, at):
            at = gap.end()
        elif (part := _PARAM.match(header, at)) is not None:
            if found:
                value = re.sub(r"\\(.)", r"\1", part[2]) if part[2] is not None else part[3]
                params.setdefault(part[1].lower(), value)
            at = part.end()
        elif (part := _SCHEME.match(header, at)) is not None:
            params = {}
            found.append(Challenge(part[1].lower(), params))
            at = part.end()
        else:  # skip unreadable text up to the next comma
            comma = header.find(",", at)
            at = comma if comma >= 0 else len(header)
    return found


def read_challenges(headers: Mapping[str, str]) -> Sequence[Challenge]:
    """Return the Bearer and DPoP challenges of a response, DPoP first.

    DPoP is preferred because a token that is bound to a key is useless to a thief.
    """
    getall: Any = getattr(headers, "getall", None)
    values = [headers.get("WWW-Authenticate", "")] if getall is None else getall("WWW-Authenticate", [])
    found = [one for value in values for one in parse_challenges(value)]
    known = [one for one in found if one.scheme in ("bearer", "dpop")]
    return sorted(known, key=lambda one: not one.is_dpop)


# --- discovery


class ProtectedResource(msgspec.Struct, frozen=True):
    """The metadata that an MCP server publishes about its authorization (RFC 9728)."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool | None = None


@dataclass(slots=True)
class Discovery:
    """The result of a discovery: the authorization server of an MCP server, and the metadata of both."""

    resource: str  # the server's resource URI, exactly as published
    issuer: Issuer  # the metadata of the authorization server
    published: ProtectedResource | None  # the server's metadata, or None if it publishes none


D = TypeVar("D", ProtectedResource, Issuer)


async def discover(
    challenge: Challenge, context: LoginContext, only: str | None = None, client_id: str | None = None
) -> Discovery:
    """Return the first usable authorization server of the MCP server in `context`.

    If the client is already registered with one issuer, `only` is this issuer, and no other issuer is used. `client_id`
    is the id of the client there, for the error message. Raises AuthorizationFailed if there is no usable authorization
    server.
    """
    server_url = context.server_url
    published = await _discover_resource(challenge, context)
    root = origin_of(server_url)
    offered = [root] if published is None else published.authorization_servers
    if only is not None and only not in offered:
        raise AuthorizationFailed(
            f"The client {client_id!r} is registered with {shown_url(only)}, but the server accepts only tokens of "
            f"{', '.join(map(shown_url, offered[:5]))}; nothing was sent. Give a client_id and its issuer there."
        )
    if published is None:
        issuer = await discover_issuer(root, context, also=f"{root}/")
        return Discovery(canonical(server_url), issuer or legacy_issuer(server_url), None)
    failure: AuthorizationFailed | None = None
    for name in offered[:_MOST_ISSUERS] if only is None else [only]:
        try:
            issuer = await discover_issuer(name, context)
        except AuthorizationFailed as error:
            failure = error
            continue
        if issuer is not None:
            return Discovery(published.resource, issuer, published)
    raise failure or AuthorizationFailed(
        f"No authorization server of {shown_url(server_url)} publishes its metadata; tell its operator."
    )


def _resource_urls(server_url: str) -> list[str]:
    """Return the well-known URLs to try for an MCP server's metadata, in order of preference."""
    root, parts = f"{origin_of(server_url)}{_RESOURCE}", urlsplit(server_url)
    path = parts.path.rstrip("/")
    return [f"{root}{path}{'?' + parts.query if parts.query else ''}", root] if path else [root]


def issuer_urls(issuer: str) -> list[str]:
    """Return the URLs to try for an authorization server's metadata, in order of preference.

    >>> issuer_urls("https://auth.example")[1]
    'https://auth.example/.well-known/openid-configuration'
    """
    root, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    urls = [f"{root}{_OAUTH}{path}", f"{root}{_OPENID}{path}"]
    return [*urls, f"{root}{path}{_OPENID}"] if path else urls


async def _discover_resource(challenge: Challenge, context: LoginContext) -> ProtectedResource | None:
    """Return the metadata of the MCP server in `context`, or None if the server publishes none.

    Raises AuthorizationFailed if the metadata cannot be read, is about another server, or names no authorization
    server.
    """
    server_url, named = context.server_url, challenge.params.get("resource_metadata")
    has_broken = named is not None  # a document that the challenge names has to exist
    for url in _resource_urls(server_url) if named is None else [named]:
        found, is_broken = await _document(url, ProtectedResource, context)
        has_broken = has_broken or is_broken
        if found is None:
            continue
        if not resource_fits(found.resource, server_url):
            raise AuthorizationFailed(
                f"{shown_url(server_url)} publishes the metadata of another server; connect to "
                f"{shown_url(found.resource)}, or ask the operator to correct `resource`."
            )
        if not found.authorization_servers:
            raise AuthorizationFailed(
                f"{shown_url(server_url)} names no authorization server in its metadata; ask its operator to add one."
            )
        return found
    if has_broken:
        raise AuthorizationFailed(
            f"The metadata of {shown_url(server_url)} cannot be read; try again later, or tell its operator."
        )
    return None


async def discover_issuer(issuer: str, context: LoginContext, also: str | None = None) -> Issuer | None:
    """Return the metadata of the authorization server `issuer`, or None if it publishes none.

    Raises AuthorizationFailed if the metadata names an issuer that is neither `issuer` nor `also`. `also` is a second
    accepted spelling of `issuer`, such as the same URL with a slash at the end.
    """
    try:
        places = issuer_urls(issuer)
    except ValueError:
        context.tried.append(f"{shown_url(issuer)} is not a URL")
        return None
    for url in places:
        found, _ = await _document(url, Issuer, context)
        if found is None:
            continue
        if found.issuer not in (issuer, also):  # an exact comparison, as RFC 8414 requires
            raise AuthorizationFailed(
                f"The authorization server {shown_url(issuer)} publishes the metadata of another issuer, "
                f"{shown_url(found.issuer)}; nothing was sent. Ask the operator to write the name in the same way."
            )
        return found
    return None


def legacy_issuer(server_url: str) -> Issuer:
    """Return an issuer with default endpoints at the server's origin, for a server that publishes no metadata."""
    root = origin_of(server_url)
    return Issuer(
        root,
        token_endpoint=f"{root}/token",
        authorization_endpoint=f"{root}/authorize",
        registration_endpoint=f"{root}/register",
        code_challenge_methods_supported=["S256"],
    )


async def _document(url: str, kind: type[D], context: LoginContext) -> tuple[D | None, bool]:
    """Fetch and decode the document at `url`. Return the document or None, and whether an error occurred.

    The second value is True after a failed connection, a server error (HTTP 5xx) or an unreadable document: the
    document may exist then. It is False if the server says that there is no document.
    """
    found, fault, is_broken = None, "found", False
    try:
        response = await context.send(get(url))
        if response.status == 200:
            found = msgspec.json.decode(response.body, type=kind)
        else:
            fault, is_broken = f"HTTP {response.status}", response.status >= 500
    except FetchFailed as failure:
        fault, is_broken = str(failure), True
    except (msgspec.DecodeError, RecursionError):
        fault, is_broken = "a document that cannot be read", True
    context.tried.append(f"{shown_url(url)}: {fault}")
    return found, is_broken


def canonical(url: str) -> str:
    """Return a server's URL in a canonical spelling, as the resource URI of a server that publishes no metadata.

    >>> canonical("HTTPS://Flights.example/mcp/#top")
    'https://flights.example/mcp'
    """
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{origin_of(url)}{parts.path.rstrip('/')}{query}"


def resource_fits(resource: str, server_url: str) -> bool:
    """Return whether `resource` is the URL of a server, or the same URL with a parent path.

    >>> resource_fits("https://a.example", "https://a.example/mcp")
    True
    >>> resource_fits("https://a.example/m", "https://a.example/mcp")
    False
    """
    try:
        wanted, asked = urlsplit(resource), urlsplit(server_url)
        origins = {(one.scheme, one.hostname, one.port or _DEFAULT_PORTS.get(one.scheme)) for one in (wanted, asked)}
    except ValueError:
        return False
    if wanted.fragment or len(origins) > 1 or (wanted.query and wanted.query != asked.query):
        return False
    path = wanted.path.rstrip("/")
    return asked.path.rstrip("/") == path or asked.path.startswith(path + "/")


# --- registration


def application_type(redirect_uri: str) -> str:
    """Return the application type for a redirect URI: "web" for https on another machine, otherwise "native"."""
    parts = urlsplit(redirect_uri)
    return "web" if parts.scheme == "https" and not is_loopback(parts.hostname or "") else "native"


def client_document(name: str, redirect_uris: list[str], *, client_id: str | None = None) -> dict[str, Any]:
    """Return the metadata of a client, to send in a registration request.

    If `client_id` is given, return a metadata document that the client can publish. `client_id` is the URL of the
    document.
    """
    document: dict[str, Any] = {
        "client_name": name,
        "redirect_uris": redirect_uris,
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": application_type(redirect_uris[0]),
    }
    return document if client_id is None else {"client_id": client_id, **document}


@dataclass(frozen=True, slots=True)
class Registration:
    """The options that decide which client id a client uses at an issuer.

    The client uses the first of these that is possible: a client id that was registered in advance, the URL of a
    metadata document, an earlier registration by this program, a new registration.
    """

    name: str = "Weft"
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None
    issuer: str | None = None  # the issuer that `client_id` is registered with
    document_url: str | None = None  # the URL of the client's metadata document

    def __post_init__(self) -> None:
        """Raise UsageError if there is a secret without a client id, or if the document's URL cannot be a client id."""
        if self.client_secret is not None and self.client_id is None:
            raise UsageError("A client_secret was given without its client_id; give both.")
        if self.document_url is not None:
            parts = urlsplit(self.document_url)
            is_plain = parts.path not in ("", "/") and not {".", ".."} & set(parts.path.split("/"))
            if parts.scheme != "https" or not is_plain or not is_safe_url(self.document_url):
                raise UsageError(
                    f"client_metadata_url={self.document_url!r} cannot be a client id; give the https URL of the "
                    "document, with a path, such as 'https://app.example/client.json'."
                )

    async def known(self, issuer: str, context: LoginContext) -> Identity | None:
        """Return the stored identity of an earlier registration with an issuer, or None if there is none."""
        kept = await context.load(identity_key(issuer), Identity)
        return kept if kept is not None and kept.issuer == issuer else None

    async def named(self, client_id: str, issuer: Issuer, context: LoginContext) -> Identity | None:
        """Return the identity with this client id at an issuer; None if this program no longer uses the client id."""
        if client_id in (self.client_id, self.document_url):
            return self._given(client_id, issuer)
        kept = await self.known(issuer.issuer, context)
        return kept if kept is not None and kept.client_id == client_id else None

    async def forget(self, identity: Identity, context: LoginContext) -> None:
        """Delete the stored registration `identity`, so that the next login registers the client again."""
        kept = await self.known(identity.issuer, context)
        if kept is not None and kept.client_id == identity.client_id:
            await context.keep(identity_key(identity.issuer), None)

    async def obtain(self, issuer: Issuer, redirect_uri: str, scopes: list[str], context: LoginContext) -> Identity:
        """Return the client's identity at an issuer; register the client there if needed.

        Raises AuthorizationFailed if there is no identity, for example because the issuer does not permit registration.
        """
        if self.client_id is not None:
            if self.issuer is None:
                await bind_issuer(self.client_id, issuer, context)
            return self._given(self.client_id, issuer)
        if self.document_url is not None and issuer.client_id_metadata_document_supported:
            return self._given(self.document_url, issuer)
        kept = await self.known(issuer.issuer, context)
        if kept is not None and _still_fits(kept, redirect_uri, scopes):
            return kept
        if issuer.registration_endpoint is None:
            also = ", or a client_metadata_url" if issuer.client_id_metadata_document_supported else ""
            raise AuthorizationFailed(
                f"{shown_url(issuer.issuer)} does not let clients register. Register one there, with the redirect URI "
                f"{redirect_uri}, and give OAuth(client_id=..., client_secret=..., issuer={issuer.issuer!r}){also}."
            )
        identity = await self._register(issuer, issuer.registration_endpoint, redirect_uri, scopes, context)
        await context.keep(identity_key(issuer.issuer), identity)
        return identity

    def _given(self, client_id: str, issuer: Issuer) -> Identity:
        """Return the identity for `client_id`: the configured client id, or the URL of the metadata document."""
        if client_id == self.client_id:
            return Identity(client_id, issuer.issuer, self.client_secret, self.auth_method)
        return Identity(client_id, issuer.issuer, auth_method="none")

    async def _register(
        self, issuer: Issuer, endpoint: str, redirect_uri: str, scopes: list[str], context: LoginContext
    ) -> Identity:
        document = client_document(self.name, [redirect_uri])
        # A native client should have no secret. If the issuer does not offer "none", the client gets a secret.
        offered = issuer.token_endpoint_auth_methods_supported or ["none"]
        methods = ("none", "client_secret_basic", "client_secret_post")
        document["token_endpoint_auth_method"] = next((one for one in methods if one in offered), "none")
        if scopes:
            document["scope"] = " ".join(scopes)
        try:
            response = await context.send(post_json(endpoint, document))
        except FetchFailed as failure:
            context.tried.append(f"{shown_url(endpoint)}: {failure}")
            raise AuthorizationFailed("The client could not be registered; try again later.") from None
        answer = response.json() or {}
        client_id = _text(answer, "client_id")
        if client_id is None or response.status not in (200, 201):
            reason = describe_error(answer, response.status)
            context.tried.append(f"registration at {shown_url(endpoint)}: {reason}")
            raise AuthorizationFailed(
                f"{shown_url(issuer.issuer)} did not register this client ({reason}). If it does not accept the URI "
                f"{redirect_uri}, give another one (`redirect=`); otherwise give the client_id of a registered client."
            )
        context.tried.append(f"registration at {shown_url(endpoint)}: registered")
        secret, method = _text(answer, "client_secret"), _text(answer, "token_endpoint_auth_method")
        expires = answer.get("client_secret_expires_at", 0)
        expires = expires if isinstance(expires, int | float) and abs(expires) < _LATEST else 0
        return Identity(client_id, issuer.issuer, secret, method, [redirect_uri], _text(answer, "scope"), expires)


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and value else None


def identity_key(issuer: str) -> str:
    """Return the storage key of the identity that is registered with an issuer."""
    return f"client {issuer}"


async def bind_issuer(client_id: str, issuer: Issuer, context: LoginContext) -> None:
    """Store that a client id is used with `issuer` for the server in `context`.

    Raises AuthorizationFailed if the client id was used with another issuer for this server before. Without this check,
    an attacker who controls the server could name an issuer that steals the client's secret.
    """
    key = f"bound {client_id} {context.server_url}"
    first = await context.load(key, str)
    if first is not None and first != issuer.issuer:
        raise AuthorizationFailed(
            f"The client {client_id!r} was used with {shown_url(first)}, but the server now names another issuer. "
            f"Nothing was sent there. If this is intended, give the client_id there, and issuer={issuer.issuer!r}."
        )
    await context.keep(key, issuer.issuer)


def _still_fits(identity: Identity, redirect_uri: str, scopes: list[str]) -> bool:
    """Return whether a registration has this redirect URI and these scopes, and its secret has not expired."""
    if redirect_uri not in identity.redirect_uris:
        return False
    if identity.secret_expires_at and time.time() >= identity.secret_expires_at:
        return False
    return identity.scope is None or set(scopes) <= set(identity.scope.split())
