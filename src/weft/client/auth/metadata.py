"""Find the authorization server of a resource, and read its challenges.

Finds out who guards a server: its own metadata first, then that of its authorization server.

Owns the places that are asked and their order (ASD-03, ASD-05, ASD-06), and what makes a document unusable: a resource
that is another server (ASD-10), an issuer that is another issuer (ASD-07). A server that publishes nothing of itself is
guarded the way of the revision that had authorization first: by its own origin (L03-07).

Reads `WWW-Authenticate`: which schemes a server offers, and with which parameters (ASD-04).

The header is a list whose items are lists themselves, both with commas; there may be several such headers. What cannot
be read is left out: a server's mistake in one challenge does not hide another. Reading takes time linear in the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from weft.client.auth import urls
from weft.client.auth.steps import FetchFailed, Steps, get
from weft.errors import AuthorizationFailed

_RESOURCE = "/.well-known/oauth-protected-resource"
_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


class ProtectedResource(msgspec.Struct, frozen=True):
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


D = TypeVar("D", ProtectedResource, Issuer)


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


def discover_resource(server_url: str, challenge: Challenge, tried: list[str]) -> Steps[ProtectedResource | None]:
    """What the server publishes; None when it publishes nothing."""
    looked = _Looked(tried)
    for url in resource_urls(server_url, challenge):
        found = yield from _document(url, ProtectedResource, looked)
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


_MOST_BYTES = 16 * 1024
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - a token of the HTTP grammar, no secret
# A parameter, else the name of a scheme (with a token68, which nobody here needs).
_PARAM = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN})(?=[ \t]*(?:,|$)))')
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+(?=[^ \t,=])|[ \t]*(?=,|$))")
_SEPARATOR = re.compile(r"[ \t,]+")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One scheme with its parameters; their names are in lower case."""

    scheme: str = ""
    params: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """The scopes that are asked for; None when the challenge says nothing of them."""
        scope = self.params.get("scope")
        return tuple(dict.fromkeys(scope.split())) if scope and scope.strip() else None

    @property
    def error(self) -> str | None:
        """Why, in a word: `invalid_token`, `insufficient_scope`, `use_dpop_nonce` …"""
        return self.params.get("error")

    @property
    def resource_metadata(self) -> str | None:
        """Where the server says more about itself."""
        return self.params.get("resource_metadata")

    @property
    def is_dpop(self) -> bool:
        """Whether tokens have to be bound to a key."""
        return self.scheme == "dpop"


def parse(header: str) -> list[Challenge]:
    """All challenges in one header.

    >>> parse('Bearer error="invalid_token", scope="a b", DPoP algs="ES256"')[1]
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
                params.setdefault(part[1].lower(), _unquoted(part))
            at = part.end()
        elif (part := _SCHEME.match(header, at)) is not None:
            params = {}
            found.append(Challenge(part[1].lower(), params))
            at = part.end()
        else:  # what is neither ends at a comma
            comma = header.find(",", at)
            at = comma if comma >= 0 else len(header)
    return found


def _unquoted(part: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", part[2]) if part[2] is not None else part[3]


def challenges(headers: Mapping[str, str]) -> Sequence[Challenge]:
    """The challenges of a response that concern tokens, in the order in which we would take them up.

    A server that offers both ways of presenting a token gets the one that a thief cannot use.
    """
    found = [one for value in header_values(headers, "WWW-Authenticate") for one in parse(value)]
    known = [one for one in found if one.scheme in ("bearer", "dpop")]
    return sorted(known, key=lambda one: not one.is_dpop)


def header_values(headers: Mapping[str, str], name: str) -> list[str]:
    """All headers of a name, where the mapping can hold several."""
    getall: Any = getattr(headers, "getall", None)
    if getall is not None:
        return list(getall(name, []))
    value = headers.get(name, headers.get(name.lower()))
    return [] if value is None else [value]
