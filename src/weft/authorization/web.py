"""Read HTTP requests (forms, JSON) and make HTTP responses (pages, JSON, redirects) for the authorization server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

import msgspec

from weft.errors import WeftError
from weft.net.asgi import RawHeaders, Receive, Scope, Send
from weft.net.hosts import network_of
from weft.protocol.headers import Headers

_MOST_BYTES = 64 * 1024
_MOST_FIELDS = 64
_BODY_SECONDS = 30.0
_NO_STORE = (b"cache-control", b"no-store")


def digest(secret: str) -> str:
    """Return the SHA-256 digest of a secret. The digest is stored instead of the secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class OAuthError(WeftError):
    """An error in a client's request, with its OAuth error code."""

    def __init__(self, error: str, description: str, *, status: int = 400, headers: RawHeaders = ()) -> None:
        super().__init__(description)
        self.error = error
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class WebResponse:
    """A complete HTTP response."""

    status: int
    body: bytes
    headers: RawHeaders
    reason: str = ""  # why the request was refused, for the log; it contains no secrets

    async def send(self, send: Send) -> None:
        """Send the response."""
        headers = [*self.headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def json_answer(document: object, status: int = 200, headers: RawHeaders = (), reason: str = "") -> WebResponse:
    """Return a JSON response that must not be cached."""
    all_headers = [(b"content-type", b"application/json"), _NO_STORE, *headers]
    return WebResponse(status, msgspec.json.encode(document), all_headers, reason)


def error_answer(error: str, text: str, status: int, headers: RawHeaders = ()) -> WebResponse:
    """Return a JSON response with an OAuth error code and its description (RFC 6749, 5.2)."""
    return json_answer({"error": error, "error_description": text}, status, headers, reason=text)


def redirect(url: str) -> WebResponse:
    """Return a redirect (303): the browser sends a GET request to the URL."""
    return WebResponse(303, b"", [(b"location", url.encode("ascii")), _NO_STORE])


def read_fields(data: bytes) -> dict[str, str]:
    """Return the fields of a query or a form; raise OAuthError if they cannot be read or a field occurs twice."""
    try:
        pairs = parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise OAuthError("invalid_request", "The parameters cannot be read.") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        if {name for name in names if names.count(name) > 1} == {"resource"}:  # RFC 8707 allows several
            raise OAuthError("invalid_target", "A token is for one resource: send `resource` only once.")
        raise OAuthError("invalid_request", "A parameter occurs more than once.")
    return fields


def need(fields: Mapping[str, str], name: str) -> str:
    """Return the value of the required parameter `name`; raise OAuthError if it is missing or empty."""
    if not fields.get(name):
        raise OAuthError("invalid_request", f"The parameter {name} is missing.")
    return fields[name]


class WebRequest:
    """One HTTP request. Call `form` or `json` once to read its body."""

    def __init__(self, scope: Scope, headers: Headers, receive: Receive) -> None:
        self.headers = headers
        self.address = network_of((scope.get("client") or ("",))[0])  # the address that limits are counted for
        self._query: bytes = scope.get("query_string", b"")
        self._receive = receive

    @property
    def query(self) -> dict[str, str]:
        """The fields of the URL's query. Raises OAuthError if the query cannot be read or a field occurs twice."""
        return read_fields(self._query)

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie, or None if the request has no cookie or several cookies with this name."""
        cookies = (part.strip().partition("=") for part in (self.headers.get(b"cookie") or "").split(";"))
        found = [value for key, _, value in cookies if key == name]
        return found[0] if len(found) == 1 else None

    async def form(self) -> dict[str, str]:
        """Read the body, and return the fields of the form in it. Raises OAuthError if the body is not a valid form."""
        self._expect(b"application/x-www-form-urlencoded")
        return read_fields(await self._body())

    async def json(self) -> dict[str, object]:
        """Read the body, and return the JSON object in it. Raises OAuthError if the body is not a JSON object."""
        self._expect(b"application/json")
        try:
            return msgspec.json.decode(await self._body(), type=dict[str, object])
        except (msgspec.DecodeError, RecursionError):
            raise OAuthError("invalid_client_metadata", "The body is not a JSON object.") from None

    def _expect(self, kind: bytes) -> None:
        if self.headers.known.get(b"content-type", b"").partition(b";")[0].strip().lower() != kind:
            raise OAuthError("invalid_request", f"The body must be {kind.decode()}.", status=415)

    async def _body(self) -> bytes:
        body, has_more = b"", True
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while has_more:
                    message = await self._receive()
                    body += message.get("body", b"")
                    if len(body) > _MOST_BYTES:
                        raise OAuthError("invalid_request", f"A body has at most {_MOST_BYTES} bytes.", status=413)
                    if message["type"] == "http.disconnect":  # the first part of a form may look like a complete form
                        raise OAuthError("invalid_request", "The body ended before it was complete.")
                    has_more = message.get("more_body", False)
        except TimeoutError:
            text = f"The body did not arrive within {_BODY_SECONDS:g} s."
            raise OAuthError("invalid_request", text, status=408) from None
        return body
