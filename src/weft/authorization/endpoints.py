"""Serve the endpoints of the authorization server: authorization (with its login page), token and introspection.

The login page contains the authorization request, encrypted and bound to a cookie of the browser. So another site
cannot make the browser consent. The page cannot be shown in a frame. Only an authenticated client may introspect
tokens, and only tokens for its own resources.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlencode, urlsplit

import msgspec

from weft.authorization.clients import CLIENT_CREDENTIALS, JWT_BEARER, RegisteredClient
from weft.authorization.grants import IssuedGrant, Pending, TokenAnswer
from weft.authorization.users import CLIENT_ASSERTION, ID_JAG, WORKLOAD_TOKEN, TooManyTries, TrustedIssuer
from weft.authorization.web import OAuthError, WebRequest, WebResponse, digest, json_answer, need, redirect
from weft.net.hosts import is_loopback
from weft.net.urls import same_url
from weft.server.auth.dpop import Proof, ProofRefused, Proofs, bound_key
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeySet, read_issuer
from weft.server.auth.tokens import TokenRefused

if TYPE_CHECKING:
    from weft.authorization.app import AuthorizationServer

_32_BYTES = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes in base64: a cookie, an S256 challenge or a thumbprint
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")  # RFC 7636, 4.1
_MOST_STATE = 2048
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_BASIC = [(b"www-authenticate", b'Basic realm="token"')]
_SHOWN_CLAIMS = ("scope", "client_id", "sub", "aud", "iss", "exp", "iat", "jti", "cnf")


# --- authorization


class AuthorizeEndpoint:
    """The authorization endpoint: the user logs in, consents, and is redirected to the client with a code."""

    def __init__(self, server: AuthorizationServer, path: str) -> None:
        self._server = server
        self._path = path
        self._is_secure = server.issuer.startswith("https:")
        self._origin = server.origin.removesuffix(":443" if self._is_secure else ":80")  # as browsers write it
        self._cookie = "__Host-weft-consent" if self._is_secure else "weft-consent"

    async def ask(self, request: WebRequest) -> WebResponse:
        """Answer an authorization request with the login page, or report an error to the client.

        Errors are sent only to a registered redirect URI. If the client or the URI is unknown, return an error page.
        """
        if not self._server.has_users:
            return error_page("Users cannot log in here: this authorization server is for programs only.", 403)
        try:
            fields = request.query
        except OAuthError as error:
            return error_page(str(error))
        client = await self._server.clients.find(fields.get("client_id", ""))
        if client is None:
            return error_page("This authorization server does not know the client.")
        uri = fields.get("redirect_uri", client.redirect_uris[0] if len(client.redirect_uris) == 1 else "")
        if not client.takes(uri):
            return error_page("The client wants to redirect you to an address that is not registered for it.")
        cookie = request.cookie(self._cookie)
        browser = cookie if cookie is not None and _32_BYTES.fullmatch(cookie) else secrets.token_urlsafe(32)
        try:
            pending = self._read(fields, client, uri)
        except OAuthError as error:
            return self._send_back_error(client, uri, fields.get("state"), error)
        answer = consent_page(pending, self._server.grants.seal(pending, browser), self._path)
        secure = "; Secure" if self._is_secure else ""
        cookie = f"{self._cookie}={browser}; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax{secure}"
        return replace(answer, headers=[*answer.headers, (b"set-cookie", cookie.encode())])

    def _read(self, fields: dict[str, str], client: RegisteredClient, uri: str) -> Pending:
        state = fields.get("state")
        if state is not None and len(state) > _MOST_STATE:
            raise OAuthError("invalid_request", f"state has at most {_MOST_STATE} characters.")
        if need(fields, "response_type") != "code":
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

    async def decide(self, request: WebRequest) -> WebResponse:
        """Handle the submitted login page: check the password, and redirect to the client with a code or an error.

        The form is accepted only from the login page, in the browser that opened the page. If the password is wrong,
        return the login page again.
        """
        origin = request.headers.get(b"origin")
        if origin is not None and origin.lower() != self._origin:
            return error_page("This form was sent from another page. Go back to the client, and log in again.", 403)
        try:
            fields = await request.form()
        except OAuthError as error:
            return error_page(str(error), error.status)
        sealed = fields.get("request", "")
        pending = self._server.grants.open(sealed, request.cookie(self._cookie) or "")
        if pending is None:
            return error_page("This login has expired, or began in another browser. Go back to the client.", 403)
        uri, state = pending.redirect_uri, pending.state
        if fields.get("action") != "allow":
            text = "The user did not allow the access."
            return redirect(self._way_back(uri, state, error="access_denied", error_description=text))
        try:
            name, password = fields.get("username", ""), fields.get("password", "")
            subject = await self._server.users.check(name, password, request.address)
        except TooManyTries as error:
            return consent_page(pending, sealed, self._path, str(error), 429)
        if subject is None:
            return consent_page(pending, sealed, self._path, "Name or password is wrong.", 403)
        if not await self._server.grants.decide(sealed):
            return error_page("This login is already finished. Go back to the client.", 403)
        return redirect(self._way_back(uri, state, code=await self._server.grants.begin(pending, subject)))

    def _send_back_error(self, client: RegisteredClient, uri: str, state: str | None, error: OAuthError) -> WebResponse:
        """Report an error in an authorization request to the client: with a redirect, or with a link for the user.

        A configured client, or a client on the user's own machine, gets a redirect. For any other client, the user has
        to click on a link. Otherwise anyone could register a client, and misuse this server as an open redirector.
        """
        place = self._way_back(uri, state, error=error.error, error_description=str(error))
        if self._server.clients.is_known(client) or is_loopback(urlsplit(uri).hostname or ""):
            return redirect(place)
        return error_page(f"The request of the client is not valid: {error}", way_back=place)

    def _way_back(self, uri: str, state: str | None, **fields: str) -> str:
        fields["iss"] = self._server.issuer
        if state is not None:
            fields["state"] = state
        return f"{uri}{'&' if '?' in uri else '?'}{urlencode(fields)}"


_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:26rem;margin:4rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}dt{color:#666;font-size:.85rem;margin-top:.6rem}dd{margin:0;word-break:break-all}"
    "label{display:block;margin-top:.8rem}input{width:100%;padding:.4rem;font:inherit;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1.2rem .6rem 0 0}.note{background:#fff3cd;padding:.5rem .8rem}"
)


def consent_page(pending: Pending, sealed: str, path: str, note: str | None = None, status: int = 200) -> WebResponse:
    """Return the login page for a pending request. It shows the client, the scopes and the redirect URI.

    The page has a form, which sends `sealed`, the encrypted request, to `path`. `note` is a message for the user, such
    as "Name or password is wrong.".
    """
    target = urlsplit(pending.redirect_uri)
    name = pending.client_name or pending.client_id
    notes = [note] if note else []
    if is_loopback(target.hostname or ""):
        notes.append("Access is given to a program on your own machine. Allow it only if you have just started it.")
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
    """Return an error page for the user. If `way_back` is given, the page has a link to this URL of the client."""
    body = f"<h1>This is not possible</h1><p>{escape(text)}</p>"
    if way_back is not None:
        body += (
            "<p>This client is not verified. Continue only if you know it: "
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
        f"form-action {form_action}"  # browsers check the redirect after the form against this list too
    )
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-frame-options", b"DENY"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),  # with "no-referrer", browsers send "Origin: null" with the form
        (b"cache-control", b"no-store"),
    ]
    return WebResponse(status, page.encode(), headers, reason=reason)


# --- authentication of clients


def _not_authenticated(text: str, *, challenged: bool = False) -> OAuthError:
    return OAuthError("invalid_client", text, status=401, headers=_BASIC if challenged else [])


def _read_basic(value: str | None) -> tuple[str, str] | None:
    """Return the client id and the secret in a Basic Authorization header (RFC 6749, 2.3.1); None for other schemes.

    Raises OAuthError if the header cannot be read.
    """
    scheme, _, credentials = (value or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        id, found, secret = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        id, found, secret = "", "", ""
    if not found:
        raise _not_authenticated("The Authorization header cannot be read.", challenged=True)
    return unquote_plus(id), unquote_plus(secret)


# --- tokens


class _TokenForm(msgspec.Struct, frozen=True):
    """One token request of an authenticated client."""

    client: RegisteredClient
    fields: Mapping[str, str]
    proof: Proof | None  # the DPoP proof (RFC 9449), if any

    @property
    def key(self) -> str:
        """The thumbprint of the key to bind tokens to, or "" for tokens that are not bound."""
        return "" if self.proof is None else self.proof.key


_Redeem = Callable[[_TokenForm], Awaitable[TokenAnswer]]


class TokenEndpoint:
    """The endpoints that clients call: token and introspection.

    The token endpoint issues access tokens for codes, refresh tokens, client credentials and assertions. The
    introspection endpoint (RFC 7662) tells a resource server whether a token is valid.
    """

    def __init__(self, server: AuthorizationServer) -> None:
        self._server = server
        self._keys = {client.client_id: KeySet(None, client.keys) for client in server.clients.known if client.keys}
        self._proofs = Proofs(server.dpop, server)
        self._verifier = server.verifier(leeway=0.0)  # the resource server adds its own leeway
        ways: dict[str, _Redeem] = {
            "authorization_code": self._redeem_code,
            "refresh_token": self._redeem_refresh,
            CLIENT_CREDENTIALS: self._grant_client,
            JWT_BEARER: self._redeem_assertion,
        }
        self._ways = {grant: ways[grant] for grant in server.grant_types}

    async def answer(self, request: WebRequest) -> WebResponse:
        """Answer a token request with tokens; raise OAuthError if the request is refused."""
        fields = await request.form()
        client = await self._find_client(request, fields)
        kind = need(fields, "grant_type")
        if kind not in self._ways:
            raise OAuthError("unsupported_grant_type", f"grant_type must be {' or '.join(self._ways)}.")
        if kind not in client.grant_types:
            raise OAuthError("unauthorized_client", "The client is not registered for this grant_type.")
        try:
            answer = await self._ways[kind](_TokenForm(client, fields, self._read_proof(request, client)))
        except TokenRefused as error:
            raise OAuthError("invalid_grant", str(error)) from None
        except ProofRefused as error:
            nonce = [] if error.nonce is None else [(b"dpop-nonce", error.nonce.encode())]
            raise OAuthError(error.error, str(error), headers=nonce) from None
        await self._server.clients.keep(client)
        return json_answer(answer, headers=[(b"pragma", b"no-cache")])

    async def _find_client(self, request: WebRequest, fields: Mapping[str, str]) -> RegisteredClient:
        """Return the client that sent a request; raise OAuthError if the client is unknown or not authenticated."""
        client_id, secret, assertion = (fields.get(name) for name in ("client_id", "client_secret", "client_assertion"))
        basic = _read_basic(request.headers.get(b"authorization"))
        if [basic, secret, assertion].count(None) < 2 or (basic is not None and client_id not in (None, basic[0])):
            raise OAuthError("invalid_request", "The client must authenticate in one way only.")
        if assertion is not None:
            if "client_assertion_type" not in fields:
                raise OAuthError("invalid_request", f"client_assertion_type must be {_ASSERTION_TYPE}.")
            if fields["client_assertion_type"] != _ASSERTION_TYPE:  # not supported (RFC 6749, 5.2)
                raise _not_authenticated(f"client_assertion_type must be {_ASSERTION_TYPE}.")
            return await self._find_by_assertion(client_id, assertion)
        if basic is not None:
            client_id, secret = basic
        client = await self._server.clients.find(client_id or "")
        if client is None or not client.has_secret(secret):
            raise _not_authenticated("The client is not known, or not authenticated.", challenged=basic is not None)
        return client

    async def _find_by_assertion(self, client_id: str | None, assertion: str) -> RegisteredClient:
        named = read_issuer(assertion) or ""
        keys = self._keys.get(named)
        client = None if keys is None else await self._server.clients.find(named)
        if keys is None or client is None or client_id not in (None, named):
            raise _not_authenticated("The client is not known, or not authenticated.")
        try:
            claims = await self._server.assertions.read(
                assertion, CLIENT_ASSERTION, issuer=named, keys=keys, algorithms=DEFAULT_ALGORITHMS
            )
            if claims["sub"] != named:
                raise TokenRefused("The client assertion is about another client.")
            await self._server.assertions.use(claims, CLIENT_ASSERTION)
        except TokenRefused as error:
            raise _not_authenticated(f"The client is not authenticated: {error}") from None
        return client

    def _read_proof(self, request: WebRequest, client: RegisteredClient) -> Proof | None:
        """Return the DPoP proof of a request, or None if there is no proof and none is required.

        Raises ProofRefused if the proof is required but missing, or is not valid.
        """
        proofs = [value for name, value in request.headers.raw if name == b"dpop"]
        if proofs or self._server.dpop.required or client.dpop_bound_access_tokens:
            return self._proofs.read(proofs, method="POST", urls=[f"{self._server.issuer}/token"])
        return None

    async def _use_proof(self, form: _TokenForm) -> None:
        """Mark the DPoP proof of a request as used; raise ProofRefused if it was used before.

        Call this method after all other checks, so that requests that get no token cannot fill the store with used
        proofs. Call this method before a code or a refresh token is redeemed, so that the client can try again if the
        proof is refused.
        """
        if form.proof is not None:
            await self._proofs.use(form.proof)

    async def _redeem_code(self, form: _TokenForm) -> TokenAnswer:
        code, verifier = need(form.fields, "code"), need(form.fields, "code_verifier")
        grant = await self._server.grants.read_code(code)
        made = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        if (
            grant.client_id != form.client.client_id
            or not _VERIFIER.fullmatch(verifier)
            or not hmac.compare_digest(made, grant.challenge.encode())
            or form.fields.get("redirect_uri", grant.redirect_uri) != grant.redirect_uri
            or (grant.jkt and grant.jkt != form.key)
        ):
            await self._server.grants.end(grant.family)
            raise OAuthError("invalid_grant", "The code was issued for another request.")
        scopes = self._narrow_scopes(form, grant)
        await self._use_proof(form)
        return await self._issue(form, await self._server.grants.redeem_code(code), scopes)

    async def _redeem_refresh(self, form: _TokenForm) -> TokenAnswer:
        """Issue tokens for a refresh token.

        The refresh token is redeemed only after all checks, so that a client whose request was refused can try again.
        """
        token, grants = need(form.fields, "refresh_token"), self._server.grants
        grant = await grants.read_refresh(token)
        if grant.client_id != form.client.client_id:
            await grants.end(grant.family)
            raise OAuthError("invalid_grant", "The refresh token was issued to another client.")
        if grant.jkt and form.proof is None:
            raise ProofRefused("The refresh token is bound to a key: send a proof of it in the DPoP header.")
        if grant.jkt and grant.jkt != form.key:  # the login is not ended: without the key the token is useless
            raise OAuthError("invalid_grant", "The refresh token is bound to another key.")
        scopes = self._narrow_scopes(form, grant)
        said = [form.key, form.fields.get("scope"), form.fields.get("resource")]
        asked = digest(msgspec.json.encode(said).decode())
        await self._use_proof(form)
        return await grants.redeem_refresh(token, asked, lambda: self._issue(form, grant, scopes))

    async def _redeem_assertion(self, form: _TokenForm) -> TokenAnswer:
        """Issue a token for an assertion: of a platform about the client, or of an identity provider about a user."""
        assertion = need(form.fields, "assertion")
        issuer = self._server.trusted_issuers.get(read_issuer(assertion) or "")
        if issuer is None:
            raise TokenRefused("The issuer of the token is not trusted here.")
        kind = ID_JAG if issuer.workloads is None else WORKLOAD_TOKEN
        claims = await self._server.assertions.read(
            assertion, kind, issuer=issuer.issuer, keys=issuer.keys, algorithms=issuer.algorithms
        )
        if issuer.workloads is None:
            return await self._grant_user(form, issuer, claims)
        if issuer.workloads.get(claims["sub"]) != form.client.client_id:
            raise TokenRefused("The token is about another client.")
        return await self._grant_client(form)

    async def _grant_user(self, form: _TokenForm, issuer: TrustedIssuer, claims: Mapping[str, Any]) -> TokenAnswer:
        """Issue a token for the user in an ID-JAG, which is an assertion of an identity provider about a user.

        The ID-JAG is marked as used after all checks. The user is looked up after that, because the lookup may be slow
        and should not be repeated for the same ID-JAG.
        """
        resource, scopes = self._check_id_jag(form, claims)
        await self._use_proof(form)
        await self._server.assertions.use(claims, ID_JAG)
        subject = await issuer.subject_of(claims)
        if subject is None:
            raise TokenRefused("The user of the token is not known here.")
        grant = IssuedGrant(client_id=form.client.client_id, subject=subject, scopes=scopes, resource=resource)
        return await self._issue(form, grant, scopes)

    def _check_id_jag(self, form: _TokenForm, claims: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Check an ID-JAG against the request, and return the resource and the scopes to grant.

        Raises TokenRefused (sent as `invalid_grant`) if the ID-JAG itself is wrong. Raises OAuthError if the client is
        not confidential, if the resource is unknown or differs from the resource in the request, or if no scope can
        be granted.
        """
        client = form.client
        if not client.is_confidential:
            raise OAuthError("unauthorized_client", "A client must authenticate to act for a user with an ID-JAG.")
        if claims.get("client_id") != client.client_id:
            raise TokenRefused("The token was issued to another client.")
        if "cnf" in claims and (not form.key or bound_key(claims) != form.key):
            raise TokenRefused("The token is bound to a key, and the request has no proof of that key.")
        if "scope" in claims and not (isinstance(claims["scope"], str) and claims["scope"].strip()):
            raise TokenRefused("The scopes of the token cannot be read.")
        if "resource" in claims and not isinstance(claims["resource"], str):
            raise TokenRefused("The resource of the token cannot be read: it must be one URL.")
        asked, named = form.fields.get("resource"), claims.get("resource")
        if named is not None and asked is not None and not same_url(named, asked):
            raise OAuthError("invalid_target", "The token and the request name different resources.")
        resource = self._server.choose_resource(asked if named is None else named)
        return resource, self._server.choose_scopes(client, claims.get("scope"), form.fields.get("scope"))

    async def _grant_client(self, form: _TokenForm) -> TokenAnswer:
        """Issue a token to a client that acts for itself, not for a user."""
        id = form.client.client_id
        scopes = self._server.choose_scopes(form.client, form.fields.get("scope"))
        resource = self._server.choose_resource(form.fields.get("resource"))
        await self._use_proof(form)
        return await self._issue(form, IssuedGrant(client_id=id, subject=id, scopes=scopes, resource=resource), scopes)

    async def _issue(self, form: _TokenForm, grant: IssuedGrant, scopes: tuple[str, ...]) -> TokenAnswer:
        """Issue an access token with `scopes`. A refresh token, if the client gets one, has all scopes of the grant."""
        server, client = self._server, form.client
        narrowed = msgspec.structs.replace(grant, scopes=scopes)
        answer: TokenAnswer = {
            "access_token": server.signer.sign(server.issuer, narrowed, server.access_seconds, key=form.key),
            "token_type": "DPoP" if form.key else "Bearer",
            "expires_in": int(server.access_seconds),
            "scope": " ".join(scopes),
        }
        if grant.family and "refresh_token" in client.grant_types:
            # A confidential client authenticates, so its refresh tokens are not bound to a key (RFC 9449, 5).
            bound = msgspec.structs.replace(grant, jkt="" if client.is_confidential else form.key)
            answer["refresh_token"] = await server.grants.refresh(bound)
        return answer

    def _narrow_scopes(self, form: _TokenForm, grant: IssuedGrant) -> tuple[str, ...]:
        """Return the scopes for a new token: the scopes in the request, or by default all scopes of the grant.

        The configuration may have changed since the grant was given, so scopes that no longer exist are left out.
        Raises OAuthError if the request names another resource or a scope that was not granted, or if the granted
        resource or all granted scopes no longer exist.
        """
        if not same_url(form.fields.get("resource", grant.resource), grant.resource):
            raise OAuthError("invalid_target", "The grant is for another resource.")
        possible = self._server.possible_scopes(form.client)
        left = tuple(scope for scope in grant.scopes if scope in possible)
        if self._server.find_resource(grant.resource) is None or (grant.scopes and not left):
            raise OAuthError("invalid_grant", "The granted resource or scopes do not exist any more.")
        asked = tuple(dict.fromkeys(form.fields.get("scope", "").split()))
        if not set(asked) <= set(left):
            raise OAuthError("invalid_scope", "The request has scopes that were not granted.")
        return asked or left

    async def introspect(self, request: WebRequest) -> WebResponse:
        """Answer an introspection request: whether the token in the request is valid, and the claims of a valid token.

        Raises OAuthError if the client may not introspect tokens.
        """
        fields = await request.form()
        client = await self._find_client(request, fields)
        if not client.introspects:
            text = "The client may not ask about tokens: name its resources in RegisteredClient(introspects=...)."
            raise OAuthError("unauthorized_client", text, status=403)
        token = need(fields, "token")
        audiences = [found for url in client.introspects if (found := self._server.find_resource(url)) is not None]
        try:
            info = await self._verifier.bind(audiences)(token)
        except TokenRefused:
            info = None
        if info is None:
            return json_answer({"active": False})
        claims = {name: info.claims[name] for name in _SHOWN_CLAIMS if name in info.claims}
        return json_answer({"active": True, "token_type": "DPoP" if "cnf" in claims else "Bearer", **claims})
