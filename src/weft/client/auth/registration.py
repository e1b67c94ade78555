"""How a client comes by an identity at an authorization server (CREG-01).

In the order of preference: the one that was registered beforehand, the URL of a document that the client publishes
(CIMD), the one that was registered here earlier, a new registration (DCR). Owns that order, and that an identity stays
with the issuer that it is from: where the issuer is another one, there is a new identity or an error, never the old one
(CREG-13 … CREG-16).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from weft.client.auth import urls
from weft.client.auth.credentials import Identity, binding_key, identity_key, keep_record, load_record
from weft.client.auth.metadata import Issuer
from weft.client.auth.steps import FetchFailed, Steps, keep, load, post_json
from weft.client.auth.tokens import said
from weft.errors import AuthorizationFailed, UsageError
from weft.net.hosts import is_loopback

_LATEST = 10**12  # no secret expires later: it is said otherwise that it does not


def check_document_url(url: str) -> None:
    """UsageError unless a URL can be a client id: https, with a path, and nothing that could be read in two ways."""
    parts = urlsplit(url)
    dotted = any(segment in (".", "..") for segment in parts.path.split("/"))
    if parts.scheme != "https" or parts.path in ("", "/") or parts.fragment or parts.username or dotted:
        raise UsageError(
            f"client_metadata_url={url!r} cannot be a client id; give the https URL of the document, with a path, such "
            "as 'https://app.example/client.json'."
        )


def application_type(redirect_uri: str) -> str:
    """What kind of program receives the browser there (CREG-10)."""
    parts = urlsplit(redirect_uri)
    return "web" if parts.scheme == "https" and not is_loopback(parts.hostname or "") else "native"


def client_document(name: str, redirect_uris: list[str], *, client_id: str | None = None) -> dict[str, Any]:
    """What a client says about itself: in a registration, or with its URL as `client_id` in a document (CREG-04)."""
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
    """What a client can say about itself."""

    name: str = "Weft"
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str | None = None
    issuer: str | None = None  # to which the pre-registered identity belongs
    document_url: str | None = None

    def check(self) -> None:
        """UsageError when it makes no sense."""
        if self.client_secret is not None and self.client_id is None:
            raise UsageError("A client_secret was given without its client_id; give both.")
        if self.document_url is not None:
            check_document_url(self.document_url)

    def choose(self, offered: list[str], tried: list[str]) -> list[str]:
        """The issuers to try, of those that guard the server; the one that we are registered with is the only one."""
        if self.issuer is None or self.client_id is None:
            return offered
        if self.issuer in offered:
            return [self.issuer]
        raise AuthorizationFailed(
            f"The client {self.client_id!r} is registered with {urls.shown(self.issuer)}, but the server is guarded by "
            f"{', '.join(urls.shown(one) for one in offered[:5])}; register the client there, and give the new "
            "`client_id` and `issuer`.",
            tried,
        )

    def known(self, issuer: Issuer) -> Steps[Identity | None]:
        """The identity that was registered with this issuer earlier, if any."""
        kept = yield from load_record(identity_key(issuer.issuer), Identity)
        return kept if kept is not None and kept.issuer == issuer.issuer else None

    def named(self, client_id: str, issuer: Issuer) -> Steps[Identity | None]:
        """The identity that we used with this issuer under an id, if it is ours still."""
        if client_id in (self.client_id, self.document_url):
            return self._own(client_id, issuer)
        kept = yield from self.known(issuer)
        return kept if kept is not None and kept.client_id == client_id else None

    def forget(self, identity: Identity) -> Steps[None]:
        """Its issuer does not know it any more: where it was registered here, it is registered anew next time."""
        key = identity_key(identity.issuer)
        kept = yield from load_record(key, Identity)
        if kept is not None and kept.client_id == identity.client_id:
            yield from keep_record(key, None)

    def obtain(
        self, issuer: Issuer, server_url: str, redirect_uri: str, scopes: list[str], tried: list[str]
    ) -> Steps[Identity]:
        """An identity for this issuer, by the first way that is open."""
        if self.client_id is not None:
            if self.issuer is None:  # it was not said whose it is: that of its first use
                yield from bind_issuer(self.client_id, issuer, server_url, tried)
            return self._own(self.client_id, issuer)
        if self.document_url is not None and issuer.client_id_metadata_document_supported:
            return self._own(self.document_url, issuer)
        kept = yield from self.known(issuer)
        if kept is not None and _still_fits(kept, redirect_uri, scopes):
            return kept
        if issuer.registration_endpoint is None:
            raise AuthorizationFailed(
                f"{urls.shown(issuer.issuer)} does not register clients by itself. Register one there, with the "
                f"redirect URI {redirect_uri}, and give OAuth(client_id=..., client_secret=..., issuer="
                f"{issuer.issuer!r})"
                + (", or a client_metadata_url." if issuer.client_id_metadata_document_supported else "."),
                tried,
            )
        identity = yield from self._register(issuer, issuer.registration_endpoint, redirect_uri, scopes, tried)
        yield from keep_record(identity_key(issuer.issuer), identity)
        return identity

    def _own(self, client_id: str, issuer: Issuer) -> Identity:
        """The identity that we were given: the pre-registered one, or the URL of the document."""
        if client_id == self.client_id:
            return Identity(client_id, issuer.issuer, self.client_secret, self.auth_method)
        return Identity(client_id, issuer.issuer, auth_method="none")

    def _register(
        self, issuer: Issuer, endpoint: str, redirect_uri: str, scopes: list[str], tried: list[str]
    ) -> Steps[Identity]:
        document = client_document(self.name, [redirect_uri])
        document["token_endpoint_auth_method"] = _wished_method(issuer)
        if scopes:
            document["scope"] = " ".join(scopes)
        try:
            response = yield from post_json(endpoint, document)
        except FetchFailed as failure:
            tried.append(f"{urls.shown(endpoint)}: {failure}")
            raise AuthorizationFailed("The client could not be registered; try again later.", tried) from None
        answer = response.json()
        client_id = None if answer is None else answer.get("client_id")
        if answer is None or response.status not in (200, 201) or not isinstance(client_id, str) or not client_id:
            reason = said(answer, response.status)
            tried.append(f"registration at {urls.shown(endpoint)}: {reason}")
            raise AuthorizationFailed(
                f"{urls.shown(issuer.issuer)} did not register this client ({reason}). If it does not like the "
                f"redirect URI {redirect_uri}, give another (`redirect=`); else register a client there and give "
                "its `client_id`.",
                tried,
            )
        tried.append(f"registration at {urls.shown(endpoint)}: registered")
        return _identity(answer, client_id, issuer, redirect_uri)


def bind_issuer(client_id: str, issuer: Issuer, server_url: str, tried: list[str]) -> Steps[None]:
    """Hold credentials to the issuer that a server first named for them; AuthorizationFailed at another (CREG-12)."""
    key = binding_key(client_id, server_url)
    first = yield from load(key)
    if first is not None and first.decode() != issuer.issuer:
        raise AuthorizationFailed(
            f"The client {client_id!r} was used with {urls.shown(first.decode())}, and now the server is guarded by "
            f"{urls.shown(issuer.issuer)}: nothing was sent there. If that is as it should be, register the client "
            f"there and give the new client_id=..., issuer={issuer.issuer!r}.",
            tried,
        )
    yield from keep(key, issuer.issuer.encode())


def _wished_method(issuer: Issuer) -> str:
    """A native client keeps no secret; where the issuer insists on one, it gets one."""
    offered = issuer.token_endpoint_auth_methods_supported
    if offered is None or "none" in offered:
        return "none"
    return next((one for one in ("client_secret_basic", "client_secret_post") if one in offered), "none")


def _identity(answer: dict[str, Any], client_id: str, issuer: Issuer, redirect_uri: str) -> Identity:
    def text(name: str) -> str | None:
        value = answer.get(name)
        return value if isinstance(value, str) and value else None

    expires = answer.get("client_secret_expires_at", 0)
    return Identity(
        client_id,
        issuer.issuer,
        text("client_secret"),
        text("token_endpoint_auth_method"),
        [redirect_uri],
        text("scope"),
        expires if isinstance(expires, int | float) and abs(expires) < _LATEST else 0,
    )


def _still_fits(identity: Identity, redirect_uri: str, scopes: list[str]) -> bool:
    """Whether an earlier registration serves: the same redirect URI, a live secret, and scopes that it may ask for."""
    if redirect_uri not in identity.redirect_uris:
        return False
    if identity.secret_expires_at and time.time() >= identity.secret_expires_at:
        return False
    return identity.scope is None or set(scopes) <= set(identity.scope.split())
