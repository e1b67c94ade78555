"""Serve the authorization endpoint and its login page.

The authorization endpoint: a client sends its user here, who logs in, consents, and is sent back with a code.

What a user consents to is bound to the browser that the page was shown in (R10): the request is sealed into the page
for the cookie of that browser. Nobody can have somebody else's browser consent, nor show the page in a frame.

The page on which a user logs in and consents. It says who asks, for what, and where the answer goes (ASEC-12).
"""

from __future__ import annotations

import re
import secrets
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from weft.authorization.clients import RegisteredClient
from weft.authorization.grants import Pending
from weft.authorization.users import TooManyTries
from weft.authorization.web import OAuthError, WebRequest, WebResponse, redirect
from weft.net.hosts import is_loopback

if TYPE_CHECKING:
    from weft.authorization.app import AuthorizationServer


_32_BYTES = re.compile(
    r"[A-Za-z0-9_-]{43}"
)  # in base64: a cookie; a challenge of S256, of which there is no other; a thumbprint
_MOST_STATE = 2048


class AuthorizeEndpoint:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer, path: str) -> None:
        self._server = server
        self._path = path
        self._is_secure = server.issuer.startswith("https:")
        self._origin = server.origin.removesuffix(":443" if self._is_secure else ":80")  # as browsers say it
        self._cookie = "__Host-weft-consent" if self._is_secure else "weft-consent"

    # GET: a client's request.

    async def ask(self, request: WebRequest) -> WebResponse:
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

    async def decide(self, request: WebRequest) -> WebResponse:
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

    def _send_back_error(self, client: RegisteredClient, uri: str, state: str | None, error: OAuthError) -> WebResponse:
        """Tell the client what is wrong with its request, of which its user has seen nothing yet.

        Whoever describes a client of its own could send anybody anywhere by way of this server: the user of such a one
        goes there by a click, or not (ASEC-10). The user's own machine is no such place.
        """
        place = self._place(uri, state, error=error.error, error_description=error.description)
        if self._server.clients.is_known(client) or is_loopback(urlsplit(uri).hostname or ""):
            return redirect(place)
        return error_page(f"The client asks for what cannot be: {error.description}", way_back=place)

    def _send_back(self, uri: str, state: str | None, **fields: str) -> WebResponse:
        return redirect(self._place(uri, state, **fields))

    def _place(self, uri: str, state: str | None, **fields: str) -> str:
        """Where the user is sent back to, with who says so (AUTH-17)."""
        told = {**fields, "iss": self._server.issuer}
        if state is not None:
            told["state"] = state
        return f"{uri}{'&' if '?' in uri else '?'}{urlencode(told)}"


_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:26rem;margin:4rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}dt{color:#666;font-size:.85rem;margin-top:.6rem}dd{margin:0;word-break:break-all}"
    "label{display:block;margin-top:.8rem}input{width:100%;padding:.4rem;font:inherit;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1.2rem .6rem 0 0}.note{background:#fff3cd;padding:.5rem .8rem}"
)


def consent_page(pending: Pending, sealed: str, path: str, note: str | None = None, status: int = 200) -> WebResponse:
    """The page for a request that waits."""
    target = urlsplit(pending.redirect_uri)
    local = is_loopback(target.hostname or "")
    name = pending.client_name or pending.client_id
    notes = [note] if note else []
    if local:
        notes.append("The answer goes to a program on your own machine. Allow it only if you have just started it.")
    shown = {
        "Client": pending.client_id,
        "The answer goes to": pending.redirect_uri,
        "Access to": pending.resource,
        "May": ", ".join(pending.scopes) or "use it",
    }
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in shown.items())
    warnings = "".join(f'<p class="note" role="alert">{escape(text)}</p>' for text in notes)
    body = (
        f"<h1>{escape(name)} asks for access</h1>{warnings}<dl>{facts}</dl>"
        f'<form method="post" action="{escape(path)}">'
        f'<input type="hidden" name="request" value="{escape(sealed)}">'
        '<label>Name <input name="username" autocomplete="username" autofocus></label>'
        '<label>Password <input name="password" type="password" autocomplete="current-password"></label>'
        '<button name="action" value="allow">Allow</button><button name="action" value="deny">Deny</button></form>'
    )
    return _page(status, name, body, f"'self' {target.scheme}://{target.netloc}", note or "")


def error_page(text: str, status: int = 400, *, way_back: str | None = None) -> WebResponse:
    """What is told to the user where there is no client that it could be told to, or none that anybody has vouched for:
    then with the `way_back` to it.
    """
    body = f"<h1>This is not possible</h1><p>{escape(text)}</p>"
    if way_back is not None:
        body += (
            "<p>Nobody here knows this client. Go on only if you do: "
            f'<a href="{escape(way_back)}" rel="noreferrer">back to {escape(urlsplit(way_back).netloc)}</a></p>'
        )
    return _page(status, "Not possible", body, "'none'", text)


def _page(status: int, title: str, body: str, form_action: str, reason: str) -> WebResponse:
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{body}</html>"
    )
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; "
        f"form-action {form_action}"  # browsers apply it to the redirect after the form as well
    )
    return WebResponse(
        status,
        page.encode(),
        [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy.encode()),
            (b"x-frame-options", b"DENY"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),  # with less, browsers do not say where the form comes from
            (b"cache-control", b"no-store"),
        ],
        reason=reason,
    )
