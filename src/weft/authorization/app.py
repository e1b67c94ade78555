"""The authorization server: its settings, its metadata, and the ASGI app that serves its endpoints."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from weft.authorization.clients import (
    CLIENT_CREDENTIALS,
    JWT_BEARER,
    MOST_PER_ADDRESS,
    Clients,
    RegisteredClient,
    refuse_client,
)
from weft.authorization.endpoints import AuthorizeEndpoint, TokenEndpoint
from weft.authorization.grants import Grants, IssuedTokens, Signer
from weft.authorization.users import MOST_TRIES, Assertions, Login, TrustedIssuer, Users
from weft.authorization.web import OAuthError, WebRequest, WebResponse, error_answer, json_answer
from weft.backends import Backend, default_backend, open_backend
from weft.backends.memory import MemoryBackend
from weft.backends.scoped import ScopedBackend
from weft.errors import BackendUnavailable, StartError, UsageError
from weft.net.asgi import Receive, Scope, Send
from weft.net.hosts import HostPolicy, is_loopback, refusal
from weft.net.logs import Seldom
from weft.net.urls import check_url, origin_of, same_url, spell
from weft.protocol.headers import HeaderFault, Headers, read
from weft.protocol.request_state import KeyRing
from weft.server.auth.dpop import Dpop
from weft.server.auth.keys import DEFAULT_ALGORITHMS
from weft.server.auth.tokens import LEEWAY
from weft.server.diagnostics import check_scopes, report
from weft.server.http.request import Cors, TrustedProxies, is_preflight, preflight_refusal
from weft.server.runtime.request_log import refused_http

_seldom = Seldom(logging.getLogger("weft.authorization"))  # a logger that skips repeated lines

_Endpoint = Callable[[WebRequest], Awaitable[WebResponse]]

_MOST_GRACE_SECONDS = 60.0
_ID_JAG_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"
_KEY_IS_MISSING = (
    "This authorization server shares a backend with other processes, so all of them need the same key to sign "
    "tokens: AuthorizationServer(key=...), a private key in PEM. Make a key with: openssl ecparam -name prime256v1 "
    "-genkey -noout"
)
_SHARED = (
    f"{MOST_PER_ADDRESS} registrations an hour that get no token, {MOST_TRIES} wrong passwords a minute for one name. "
    "If one client reaches such a limit, all other clients behind the proxy are refused too"
)


class AuthorizationServer:
    """An authorization server: users log in and consent, and their clients get tokens for MCP servers.

    Args:
        issuer: The URL of this server, without a slash at the end. Serve the app at the root of its host; the endpoints
            are below the path of this URL.
        resources: The URLs of the MCP servers to issue tokens for, written as in their `ResourceServer`.
        users: The users who can log in: a dictionary from names to passwords or to results of `hash_password`, or an
            async function that takes a name and a password and returns the subject, or None. Without `users`, only
            programs and the users of trusted issuers get tokens.
        scopes: The scopes that can be granted. A client that requests no scopes gets all of them.
        clients: The configured clients, which can be applications of users or programs.
        trusted_issuers: Identity providers whose users get tokens, and platforms whose programs get tokens.
        registration: Whether clients may register themselves (RFC 7591). MCP has deprecated this, but some clients
            support nothing else.
        documents: Whether a client id may be the URL of a metadata document that describes the client (CIMD).
        key: The private key that signs tokens, in PEM (P-256). Default: a new key for this process. Processes that
            share a backend need the same key, so without one they do not start.
        backend: The backend that stores codes, refresh tokens and registrations, as a URL or an object. Default: the
            URL in the environment variable WEFT_BACKEND, or else the memory of this process.
        access_seconds: Lifetime of an access token.
        refresh_seconds: How long a refresh token is valid if it is not used.
        grace_seconds: How long a client may repeat a request with a refresh token. A repeated request gets the same
            response again, because the first response may have been lost. If the refresh token is used again after
            this time, all tokens of the login become invalid.
        dpop: How tokens are bound to a client's key (DPoP). A token is bound if the client sends a proof. With
            `Dpop(required=True)`, only bound tokens are issued.
    """

    def __init__(
        self,
        issuer: str,
        *,
        resources: Sequence[str],
        users: Mapping[str, str] | Login | None = None,
        scopes: Sequence[str] = (),
        clients: Sequence[RegisteredClient] = (),
        trusted_issuers: Sequence[TrustedIssuer] = (),
        registration: bool = False,
        documents: bool = True,
        key: str | None = None,
        backend: Backend | str | None = None,
        access_seconds: float = 600.0,
        refresh_seconds: float = 30 * 86_400.0,
        grace_seconds: float = 30.0,
        dpop: Dpop | None = None,
    ) -> None:
        parts = check_url(issuer, "issuer")
        if parts.query or issuer.endswith("/"):
            raise UsageError(f"issuer={issuer!r} is not possible: it has a query, or a slash at the end.")
        if isinstance(resources, str) or not resources:
            raise UsageError("resources= is a list of the URLs that tokens are issued for; give at least one.")
        for resource in resources:
            check_url(resource, "An entry of resources")
        if not 1 <= access_seconds <= 3600:
            raise UsageError("access_seconds= must be 1 to 3600: other servers cannot see that a token was revoked.")
        if not 0 <= grace_seconds <= _MOST_GRACE_SECONDS:
            raise UsageError(f"grace_seconds= must be 0 to {_MOST_GRACE_SECONDS:g}: a client repeats a request soon.")
        _check_unique("clients", [client.client_id for client in clients])
        _check_unique("trusted_issuers", [trusted.issuer for trusted in trusted_issuers])
        given = backend or default_backend()
        shared = open_backend(given) if isinstance(given, str) else given
        self.backend: Backend = MemoryBackend() if shared is None else ScopedBackend(shared, issuer)
        if key is None and not self.backend.is_local:
            raise StartError(_KEY_IS_MISSING)
        store = self.backend.store
        self.issuer = issuer
        self.origin = origin_of(issuer)
        self.resources = tuple(map(spell, resources))  # normalised, as `ResourceServer` does with its audience
        self.scopes = check_scopes(scopes, "AuthorizationServer")
        self.access_seconds = access_seconds
        self.dpop = dpop or Dpop()
        self.users = Users(users, store)
        self.has_users = users is not None
        self.state_keys = (
            KeyRing.ephemeral() if key is None else KeyRing([hashlib.sha256(b"consent" + key.encode()).digest()])
        )
        self.grants = Grants(
            store, self.state_keys, refresh_seconds, grace_seconds=grace_seconds, access_seconds=access_seconds
        )
        self.clients = Clients(store, clients, documents=documents, local=is_loopback(parts.hostname or ""))
        self.assertions = Assertions(store, issuer)
        self.trusted_issuers = {trusted.issuer: trusted for trusted in trusted_issuers}
        _check_clients(self, users)
        self.signer = Signer(key)
        self.registration = registration
        self._documents = documents
        if users is None and (registration or not self.grant_types):
            raise UsageError("users= is missing. Without it, give clients= or trusted_issuers= that need no login.")

    def __repr__(self) -> str:
        return f"<AuthorizationServer {self.issuer!r}>"

    def verifier(self, *, leeway: float = LEEWAY) -> IssuedTokens:
        """Return a verifier of the tokens of this server, for a `ResourceServer` in the same process.

        The verifier also refuses tokens whose login has ended, even if another worker with the same backend ended the
        login.
        """
        return IssuedTokens(self.signer, self.grants, self.issuer, leeway)

    @property
    def grant_types(self) -> tuple[str, ...]:
        """The grant types that at least one user or client can use."""
        programs = any(CLIENT_CREDENTIALS in client.grant_types for client in self.clients.known)
        platforms = any(trusted.workloads is not None for trusted in self.trusted_issuers.values())
        served = {
            "authorization_code": self.has_users,
            "refresh_token": self.has_users,
            CLIENT_CREDENTIALS: programs,
            JWT_BEARER: platforms or self._takes_id_jags,
        }
        return tuple(grant for grant, is_served in served.items() if is_served)

    @property
    def _takes_id_jags(self) -> bool:
        """Whether ID-JAGs (assertions of an identity provider about a user) are accepted from at least one client."""
        clients = any(JWT_BEARER in client.grant_types and client.is_confidential for client in self.clients.known)
        return clients and any(trusted.workloads is None for trusted in self.trusted_issuers.values())

    @property
    def _auth_methods(self) -> list[str]:
        """All methods with which clients of this server can authenticate at its token endpoint."""
        known, others = self.clients.known, self.has_users and (self.registration or self._documents)
        secrets = self.registration or any(client.secret_digest is not None for client in known)
        return [
            *(["none"] if others or not all(client.is_confidential for client in known) else []),
            *(["client_secret_basic", "client_secret_post"] if secrets else []),
            *(["private_key_jwt"] if any(client.keys for client in known) else []),
        ]

    @property
    def introspects(self) -> bool:
        """Whether at least one configured client may use the introspection endpoint."""
        return any(client.introspects for client in self.clients.known)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the server (RFC 8414, OpenID Connect Discovery)."""
        methods = self._auth_methods
        document: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "registration_endpoint": f"{self.issuer}/register" if self.registration else None,
            "introspection_endpoint": f"{self.issuer}/introspect" if self.introspects else None,
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": self.grant_types,
            "scopes_supported": self.scopes or None,
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": methods,
            "token_endpoint_auth_signing_alg_values_supported": (
                DEFAULT_ALGORITHMS if "private_key_jwt" in methods else None
            ),
            "introspection_endpoint_auth_methods_supported": (
                [method for method in methods if method != "none"] if self.introspects else None
            ),
            "authorization_grant_profiles_supported": [_ID_JAG_PROFILE] if self._takes_id_jags else None,
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": self._documents and self.has_users,
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
            "dpop_signing_alg_values_supported": self.dpop.algorithms,  # RFC 9449, 5.1
        }
        return {name: value for name, value in document.items() if value is not None}

    def possible_scopes(self, client: RegisteredClient) -> tuple[str, ...]:
        """Return all scopes that a client may request."""
        return self.scopes if client.scopes is None else client.scopes

    def choose_scopes(self, client: RegisteredClient, *asked: str | None) -> tuple[str, ...]:
        """Return the scopes to grant: the scopes that the client may request and that every text in `asked` contains.

        A text contains scopes separated by spaces. None and empty texts are ignored. Raises OAuthError if the client
        may request scopes, but none of them can be granted.
        """
        granted = possible = self.possible_scopes(client)
        for text in asked:
            if text:
                granted = tuple(scope for scope in dict.fromkeys(text.split()) if scope in granted)
        if possible and not granted:
            raise OAuthError("invalid_scope", f"The possible scopes are {', '.join(possible)}.")
        return granted

    def choose_resource(self, asked: str | None) -> str:
        """Return the resource for a token: the requested one (RFC 8707), or the only resource if none is requested.

        Raises OAuthError if `asked` is unknown, or if `asked` is None and there are several resources.
        """
        if asked is None and len(self.resources) == 1:
            return self.resources[0]
        found = self.find_resource(asked)
        if found is None:
            raise OAuthError("invalid_target", "resource must be the URL of a server that tokens are issued for.")
        return found

    def find_resource(self, named: object) -> str | None:
        """Return the resource with the URL `named`, as `resources` spells it, or None if there is no such resource."""
        if not isinstance(named, str):
            return None
        return next((resource for resource in self.resources if same_url(resource, named)), None)

    def asgi(
        self,
        *,
        allowed_hosts: Sequence[str] | None = None,
        trusted_proxies: Sequence[str] = (),
        cors: Sequence[str] = (),
    ) -> _App:
        """Return the ASGI app of this server.

        Args:
            allowed_hosts: The accepted Host headers. Default: the issuer's host, and loopback addresses.
            trusted_proxies: Addresses or networks of reverse proxies. For their requests, limits are counted for the
                client address that the proxy names in a header.
            cors: The origins of web pages that may be clients. These pages can call all endpoints but the login page.
        """
        policy = HostPolicy(allowed_hosts, None, urlsplit(self.issuer).hostname, cors=cors)
        return _App(self, policy, Cors(policy) if cors else None, TrustedProxies(trusted_proxies, _SHARED))


def _check_clients(server: AuthorizationServer, users: Mapping[str, str] | Login | None) -> None:
    """Raise UsageError if the configuration of a client does not agree with the configuration of the server.

    - A client may name only resources and scopes of the server.
    - A client with the grant authorization_code needs users who can log in.
    - A client with the grant JWT_BEARER needs a trusted issuer: a platform that lists the client in its `workloads`, or
      an identity provider if the client is confidential. A client in `workloads` needs the grant JWT_BEARER.
    - The id of a program must not be the name of a user, because their tokens would look the same.
    """
    clients, trusted_issuers = server.clients.known, server.trusted_issuers.values()
    workloads = {client_id for trusted in trusted_issuers for client_id in (trusted.workloads or {}).values()}
    has_providers = any(trusted.workloads is None for trusted in trusted_issuers)
    if unable := workloads - {client.client_id for client in clients if JWT_BEARER in client.grant_types}:
        raise UsageError(f"workloads= names {min(unable)!r}: add it to clients=, with the grant JWT_BEARER.")
    for client in clients:
        id, grants = client.client_id, client.grant_types
        strange = [url for url in client.introspects if server.find_resource(url) is None]
        unknown = set(client.scopes or ()) - set(server.scopes)
        is_program = CLIENT_CREDENTIALS in grants or id in workloads
        can_be_vouched_for = id in workloads or (has_providers and client.is_confidential)
        refuse_client(
            id,
            {
                f"has introspects={strange}: name that resource in resources= too.": strange,
                f"has the scope {min(unknown, default='')!r}: name it in scopes= too.": unknown,
                "has the grant authorization_code, but the server has no users who could log in: give users=.": (
                    users is None and "authorization_code" in grants
                ),
                "has the grant JWT_BEARER, but no trusted issuer. Name it in the workloads= of a trusted issuer; or "
                "add an identity provider, and give the client a secret or keys.": (
                    JWT_BEARER in grants and not can_be_vouched_for
                ),
                "is the name of a program and of a user, so their tokens would look the same; rename one of them.": (
                    is_program and isinstance(users, Mapping) and id in users
                ),
            },
        )


def _check_unique(option: str, names: list[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{option}= has {twice[0]!r} twice; give it once.")


def _publish(document: object) -> dict[str, _Endpoint]:
    """Return the endpoints that serve a public JSON document, by HTTP method."""

    async def answer(_: WebRequest) -> WebResponse:
        return json_answer(document)

    return {"GET": answer, "HEAD": answer}


class _App:
    """The ASGI app: checks the Host header of a request, calls its endpoint, and adds CORS headers."""

    def __init__(
        self, server: AuthorizationServer, policy: HostPolicy, cors: Cors | None, proxies: TrustedProxies
    ) -> None:
        base = urlsplit(server.issuer).path
        authorize, token = AuthorizeEndpoint(server, f"{base}/authorize"), TokenEndpoint(server)
        metadata, keys = _publish(server.metadata()), _publish(server.signer.jwks)

        async def register(request: WebRequest) -> WebResponse:
            return json_answer(await server.clients.register(await request.json(), request.address), 201)

        self._routes: dict[str, dict[str, _Endpoint]] = {
            f"/.well-known/oauth-authorization-server{base}": metadata,
            f"/.well-known/openid-configuration{base}": metadata,
            f"{base}/.well-known/openid-configuration": metadata,
            f"{base}/jwks": keys,
            f"{base}/authorize": {"GET": authorize.ask, "POST": authorize.decide},
            f"{base}/token": {"POST": token.answer},
        }
        if server.registration:
            self._routes[f"{base}/register"] = {"POST": register}
        if server.introspects:
            self._routes[f"{base}/introspect"] = {"POST": token.introspect}
        self._own_page = f"{base}/authorize"  # the path of the login page, which has no CORS headers
        self._policy, self._cors, self._proxies = policy, cors, proxies
        self._backend = server.backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            for event, work in (("startup", self._backend.start), ("shutdown", self._backend.close)):
                await receive()
                try:
                    await work()
                except Exception as error:  # noqa: BLE001 - reported to the ASGI server, which stops
                    await send({"type": f"lifespan.{event}.failed", "message": f"{type(error).__name__}: {error}"})
                    return
                await send({"type": f"lifespan.{event}.complete"})
        elif scope["type"] == "http":
            if self._cors is not None and scope["path"] != self._own_page:
                send = self._cors.share(scope, send)
            answer = await self._answer(scope, receive, send)
            if answer is not None:
                if 400 <= answer.status < 500:
                    refused_http(scope, answer.status, answer.reason)
                await answer.send(send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> WebResponse | None:
        """Return the response to one request, or None if it was a CORS preflight request, which is already answered."""
        try:
            headers = read(scope["headers"])
            host = headers.known.get(b"host")
            if not self._policy.host_ok(host):
                raise OAuthError("invalid_request", refusal("host", host), status=421)
            self._proxies.resolve(scope, headers)
            self._proxies.warn(scope, headers)
            endpoints = self._routes.get(scope["path"])
            if endpoints is None:
                raise OAuthError("invalid_request", "There is nothing at this path.", status=404)
            if scope["method"] == "OPTIONS" and is_preflight(headers):
                await self._answer_preflight(scope, headers, endpoints, send)
                return None
            endpoint = endpoints.get(scope["method"])
            if endpoint is None:
                allow = [(b"allow", ", ".join(endpoints).encode())]
                raise OAuthError("invalid_request", "This method is not allowed here.", status=405, headers=allow)
            return await endpoint(WebRequest(scope, headers, receive))
        except OAuthError as error:
            return error_answer(error.error, str(error), error.status, error.headers)
        except HeaderFault as fault:
            return error_answer("invalid_request", str(fault), fault.status)
        except BackendUnavailable as error:
            _seldom.warning("A request was refused, because the backend is not available: %s", error)
            text = "The server's backend is not available. Try again."
            return error_answer("temporarily_unavailable", text, 503, [(b"retry-after", b"1")])
        except Exception as error:  # noqa: BLE001 - a login function may raise anything
            text = report("The authorization server", error, debug=False)
            return error_answer("server_error", text, 500)

    async def _answer_preflight(self, scope: Scope, headers: Headers, verbs: Iterable[str], send: Send) -> None:
        """Answer a CORS preflight request. `verbs` are the HTTP methods that the path accepts.

        Raises OAuthError if web pages from the origin in the request may not call the path. The login page cannot be
        called from any other origin.
        """
        origin = headers.known.get(b"origin")
        if self._cors is None or scope["path"] == self._own_page or not self._policy.shares_with(origin):
            raise OAuthError("invalid_request", preflight_refusal(origin), status=403)
        await self._cors.answer_preflight(headers, tuple(verbs), send)
