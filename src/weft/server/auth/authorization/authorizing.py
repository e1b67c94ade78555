"""The authorization endpoint: a client sends its user here, who logs in, consents, and is sent back with a code.

What a user consents to is bound to the browser that the page was shown in (R10): the request is sealed into the page
for the cookie of that browser. Nobody can have somebody else's browser consent, nor show the page in a frame.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from weft.protocol.hosts import is_loopback
from weft.server.auth.authorization.clients import RegisteredClient
from weft.server.auth.authorization.consent import consent_page, error_page
from weft.server.auth.authorization.grants import Pending
from weft.server.auth.authorization.users import TooManyTries
from weft.server.auth.authorization.web import Answer, OAuthError, Request, redirect

if TYPE_CHECKING:
    from weft.server.auth.authorization.app import AuthorizationServer

__all__ = ["Authorizing"]

_32_BYTES = re.compile(
    r"[A-Za-z0-9_-]{43}"
)  # in base64: a cookie; a challenge of S256, of which there is no other; a thumbprint
_MOST_STATE = 2048


class Authorizing:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer, path: str) -> None:
        self._server = server
        self._path = path
        self._is_secure = server.issuer.startswith("https:")
        self._origin = server.origin.removesuffix(":443" if self._is_secure else ":80")  # as browsers say it
        self._cookie = "__Host-weft-consent" if self._is_secure else "weft-consent"

    # GET: a client's request.

    async def ask(self, request: Request) -> Answer:
        """Show the page, or send the user back with what is wrong. Only a known client's own URI is sent to."""
        if not self._server.has_users:
            return error_page("Nobody logs in here: this authorization server is for programs alone.", 403)
        try:
            fields = request.query
        except OAuthError as error:
            return error_page(error.description)
        client = await self._server.clients.find(fields.get("client_id", ""))
        if client is None:
            return error_page("The client is not known here.")
        uri = fields.get("redirect_uri", client.redirect_uris[0] if len(client.redirect_uris) == 1 else "")
        if not client.takes(uri):
            return error_page("The client asks to send you to a place that is not its own.")
        cookie = request.cookie(self._cookie)
        browser = cookie if cookie is not None and _32_BYTES.fullmatch(cookie) else secrets.token_urlsafe(32)
        try:
            pending = self._read(fields, client, uri)
        except OAuthError as error:
            return self._send_back_error(client, uri, fields.get("state"), error)
        answer = consent_page(pending, self._server.grants.seal(pending, browser), self._path)
        answer.headers = [*answer.headers, (b"set-cookie", self._set_cookie(browser))]
        return answer

    def _read(self, fields: dict[str, str], client: RegisteredClient, uri: str) -> Pending:
        state = fields.get("state")
        if state is not None and len(state) > _MOST_STATE:
            raise OAuthError("invalid_request", f"state has at most {_MOST_STATE} characters.")
        if not fields.get("response_type"):
            raise OAuthError("invalid_request", "The parameter response_type is missing.")
        if fields["response_type"] != "code":
            raise OAuthError("unsupported_response_type", "response_type is code.")
        if fields.get("code_challenge_method") != "S256" or not _32_BYTES.fullmatch(fields.get("code_challenge", "")):
            raise OAuthError("invalid_request", "PKCE is required: send a code_challenge with method S256.")
        key = fields.get("dpop_jkt", "")
        if key and not _32_BYTES.fullmatch(key):
            raise OAuthError("invalid_request", "dpop_jkt is the thumbprint of a key (RFC 7638).")
        return Pending(
            client_id=client.client_id,
            client_name=client.client_name,
            redirect_uri=uri,
            state=state,
            challenge=fields["code_challenge"],
            scopes=self._server.choose_scopes(client, fields.get("scope")),
            resource=self._server.choose_resource(fields.get("resource")),
            jkt=key,
        )

    def _set_cookie(self, browser: str) -> bytes:
        secure = "; Secure" if self._is_secure else ""
        return f"{self._cookie}={browser}; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax{secure}".encode()

    # POST: the user's decision.

    async def decide(self, request: Request) -> Answer:
        """Take the decision, if it comes from the browser and the page that the question was shown in."""
        origin = request.headers.get(b"origin")
        if origin is not None and origin.lower() != self._origin:
            return error_page("This page can only be used from itself.", 403)
        try:
            fields = await request.form()
        except OAuthError as error:
            return error_page(error.description, error.status)
        sealed = fields.get("request", "")
        pending = self._server.grants.open(sealed, request.cookie(self._cookie) or "")
        if pending is None:
            return error_page("This request is over, or began in another browser. Go back to the client.", 403)
        if fields.get("action") != "allow":
            text = "The user did not allow it."
            return self._send_back(pending.redirect_uri, pending.state, error="access_denied", error_description=text)
        try:
            name, password = fields.get("username", ""), fields.get("password", "")
            subject = await self._server.users.check(name, password, request.address)
        except TooManyTries as error:
            return consent_page(pending, sealed, self._path, str(error), 429)
        if subject is None:
            return consent_page(pending, sealed, self._path, "Name or password is wrong.", 403)
        if not await self._server.grants.decide(sealed):
            return error_page("This request is over. Go back to the client.", 403)
        code = await self._server.grants.begin(pending, subject)
        return self._send_back(pending.redirect_uri, pending.state, code=code)

    def _send_back_error(self, client: RegisteredClient, uri: str, state: str | None, error: OAuthError) -> Answer:
        """Tell the client what is wrong with its request, of which its user has seen nothing yet.

        Whoever describes a client of its own could send anybody anywhere by way of this server: the user of such a one
        goes there by a click, or not (ASEC-10). The user's own machine is no such place.
        """
        place = self._place(uri, state, error=error.error, error_description=error.description)
        if self._server.clients.is_known(client) or is_loopback(urlsplit(uri).hostname or ""):
            return redirect(place)
        return error_page(f"The client asks for what cannot be: {error.description}", way_back=place)

    def _send_back(self, uri: str, state: str | None, **fields: str) -> Answer:
        return redirect(self._place(uri, state, **fields))

    def _place(self, uri: str, state: str | None, **fields: str) -> str:
        """Where the user is sent back to, with who says so (AUTH-17)."""
        told = {**fields, "iss": self._server.issuer}
        if state is not None:
            told["state"] = state
        return f"{uri}{'&' if '?' in uri else '?'}{urlencode(told)}"
