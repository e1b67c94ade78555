"""Finds out who guards a server: its own metadata first, then that of its authorization server.

Owns the places that are asked and their order (ASD-03, ASD-05, ASD-06), and what makes a document unusable: a resource
that is another server (ASD-10), an issuer that is another issuer (ASD-07). A server that publishes nothing of itself is
guarded the way of the revision that had authorization first: by its own origin (L03-07).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from weft.client.auth import urls
from weft.client.auth.challenge import Challenge
from weft.client.auth.steps import FetchFailed, Steps, get
from weft.errors import AuthorizationFailed

__all__ = [
    "Issuer",
    "Resource",
    "discover_issuer",
    "discover_resource",
    "issuer_urls",
    "legacy_issuer",
    "resource_urls",
]

_RESOURCE = "/.well-known/oauth-protected-resource"
_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


class Resource(msgspec.Struct, frozen=True):
    """What a server publishes about itself (RFC 9728)."""

    resource: str
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None
    dpop_bound_access_tokens_required: bool | None = None


class Issuer(msgspec.Struct, frozen=True):
    """What an authorization server publishes about itself (RFC 8414, OpenID Connect Discovery)."""

    issuer: str
    token_endpoint: str | None = None
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    grant_types_supported: list[str] | None = None
    authorization_grant_profiles_supported: list[str] | None = None
    dpop_signing_alg_values_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


D = TypeVar("D", Resource, Issuer)


@dataclass(slots=True)
class _Looked:
    """What was asked, and whether somebody may know more than was said."""

    tried: list[str]
    is_broken: bool = False


def resource_urls(server_url: str, challenge: Challenge) -> Iterator[str]:
    """Where a server's metadata may be: where it says, and only else where such things are (ASD-03)."""
    if challenge.resource_metadata is not None:
        yield challenge.resource_metadata
        return
    parts = urlsplit(server_url)
    path = parts.path.rstrip("/")
    if path:
        yield f"{urls.base(server_url)}{_RESOURCE}{path}{'?' + parts.query if parts.query else ''}"
    yield f"{urls.base(server_url)}{_RESOURCE}"


def issuer_urls(issuer: str) -> Iterator[str]:
    """Where an authorization server's metadata may be, in the order of preference (ASD-05, ASD-06).

    >>> list(issuer_urls("https://auth.example"))[1]
    'https://auth.example/.well-known/openid-configuration'
    """
    root, path = urls.base(issuer), urlsplit(issuer).path.rstrip("/")
    yield f"{root}{_OAUTH}{path}"
    yield f"{root}{_OPENID}{path}"
    if path:
        yield f"{root}{path}{_OPENID}"


def discover_resource(server_url: str, challenge: Challenge, tried: list[str]) -> Steps[Resource | None]:
    """What the server publishes; None when it publishes nothing."""
    looked = _Looked(tried)
    for url in resource_urls(server_url, challenge):
        found = yield from _document(url, Resource, looked)
        if found is None:
            continue
        if not urls.resource_fits(found.resource, server_url):
            raise AuthorizationFailed(
                f"{urls.shown(server_url)} publishes the metadata of another server, {urls.shown(found.resource)}, so "
                "no login was begun. Use the URL that the server gives out itself, or have its operator correct "
                "`resource`.",
                tried,
            )
        if not found.authorization_servers:
            raise AuthorizationFailed(
                f"{urls.shown(server_url)} names no authorization server in its metadata; its operator has to.", tried
            )
        return found
    if looked.is_broken or challenge.resource_metadata is not None:
        raise AuthorizationFailed(
            f"The metadata of {urls.shown(server_url)} cannot be read; try again later, or tell its operator.", tried
        )
    return None


def discover_issuer(issuer: str, tried: list[str], also: str | None = None) -> Steps[Issuer | None]:
    """What an authorization server publishes; None when it publishes nothing.

    `also` is another name that it may go by, where we made up the first ourselves.
    """
    try:
        places = list(issuer_urls(issuer))
    except ValueError:
        tried.append(f"{urls.shown(issuer)} is no URL")
        return None
    for url in places:
        found = yield from _document(url, Issuer, _Looked(tried))
        if found is None:
            continue
        if found.issuer not in (issuer, also):  # plain comparison: nothing is normalised (ASD-07)
            tried.append(f"{urls.shown(url)} is the document of another issuer")
            raise AuthorizationFailed(
                f"The authorization server {urls.shown(issuer)} answers for another, {urls.shown(found.issuer)}; "
                "nothing was sent to either. If the two are the same to you, have the server publish exact names.",
                tried,
            )
        return found
    return None


def legacy_issuer(server_url: str) -> Issuer:
    """The authorization server of a server that publishes nothing at all: itself, at fixed places (L03-07)."""
    root = urls.base(server_url)
    return Issuer(
        root,
        token_endpoint=f"{root}/token",
        authorization_endpoint=f"{root}/authorize",
        registration_endpoint=f"{root}/register",
        code_challenge_methods_supported=["S256"],
    )


def _document(url: str, kind: type[D], looked: _Looked) -> Steps[D | None]:
    """A document, or None when it is not there. One that is there and cannot be read is remembered."""
    try:
        response = yield from get(url)
    except FetchFailed as failure:
        looked.tried.append(f"{urls.shown(url)}: {failure}")
        looked.is_broken = True
        return None
    if response.status != 200:
        looked.tried.append(f"{urls.shown(url)}: HTTP {response.status}")
        looked.is_broken = looked.is_broken or response.status >= 500
        return None
    try:
        found = msgspec.json.decode(response.body, type=kind)
    except (msgspec.DecodeError, RecursionError):
        looked.tried.append(f"{urls.shown(url)}: a document that cannot be read")
        looked.is_broken = True
        return None
    looked.tried.append(f"{urls.shown(url)}: found")
    return found
