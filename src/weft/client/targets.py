"""Choose the transport for a target: a URL, a command, an app or a server in this process.

This module must not import the server, so it recognises a server in this process by its method `pipe`. An object that
can be called is an ASGI app. The module `config` reads all other targets. The HTTP library is imported only for a
URL or an app.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from weft.client.config import Asgi, Command, Http, parse_target
from weft.client.connection.transport import Auth, MemoryTransport, Piped, Transport
from weft.errors import UsageError
from weft.limits import ClientLimits


@dataclass(slots=True, repr=False)  # without repr, because headers and auth may be secret
class Dialled:
    """A transport that is not open yet, with values that identify its server and its user."""

    transport: Transport
    key: str | None = None  # URL of the server, if it has one; the client remembers the era for this URL
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # additional headers from the program
    auth: Auth | str | None = None
    old_transport: Callable[[], Transport] | None = None  # creates the HTTP+SSE transport, which is tried last


def dial(target: Any, limits: ClientLimits, *, server: str | None = None, auth: Auth | str | None = None) -> Dialled:
    """Create the transport for a target, without connecting.

    If the target is a configuration, `server` is the name of the entry to use. `auth` is for a URL or an app. Raises
    UsageError if a client cannot connect to this target, or if `auth` is given for a command.
    """
    if isinstance(target, type) or (inspect.isroutine(target) and not _takes_three(target)):
        kind = "class" if isinstance(target, type) else "function"
        raise UsageError(
            f"A client was given the {kind} {getattr(target, '__name__', '')!r}, which is not a server. Give a Server "
            "(with the function registered at it), an ASGI app, a URL or a command."
        )
    if isinstance(target, Piped):
        name = getattr(target, "name", None) or type(target).__name__
        return Dialled(MemoryTransport(target, f"the server {name!r} in this process", limits))
    if hasattr(target, "stream_per_request"):  # a transport
        return Dialled(cast("Transport", target))
    found: Http | Command | Asgi
    if isinstance(target, Asgi):
        found = target
    else:
        found = Asgi(target) if callable(target) else parse_target(target, server=server)
    if isinstance(found, Command):
        from weft.client.stdio import StdioTransport

        if auth is not None:
            raise UsageError(
                f"auth= is for servers at a URL; the command `{found.where}` gets credentials from its environment: "
                "give Command([...], env={...})."
            )
        return Dialled(StdioTransport(found, limits))
    if auth is not None:
        if found.auth is not None:
            raise UsageError("auth= was given twice, to the client and to its target; leave one of them out.")
        found = replace(found, auth=auth)
    return _dial_app(found, limits) if isinstance(found, Asgi) else _dial_url(found, limits)


def _takes_three(function: Any) -> bool:
    """Return whether a function takes three arguments, as an ASGI app does (scope, receive, send)."""
    try:
        inspect.signature(function).bind({}, None, None)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


def _dial_url(target: Http, limits: ClientLimits) -> Dialled:
    from weft.client.http.sse_transport import SseTransport
    from weft.client.http.transport import HttpTransport
    from weft.client.http.wire import AiohttpWire, read_proxy

    url, headers = target.url, target.headers
    proxy = None if target.proxy is None else read_proxy(target.proxy)
    if any(name.lower() == "proxy-authorization" for name in headers):
        raise UsageError("'Proxy-Authorization' would go to the server; write proxy='http://name:password@host:port'.")
    auth = _auth(target)

    def wire() -> AiohttpWire:
        return AiohttpWire(limits, proxy=proxy, tls=target.tls, trust_env=target.trust_env)

    return Dialled(
        HttpTransport(url, wire(), limits, headers=headers, auth=auth),
        key=url,
        headers=headers,
        auth=target.auth,
        old_transport=lambda: SseTransport(url, wire(), limits, headers=headers, auth=auth),
    )


def _dial_app(target: Asgi, limits: ClientLimits) -> Dialled:
    from weft.client.http.asgi import AsgiWire
    from weft.client.http.transport import HttpTransport

    wire = AsgiWire(target.app, limits)
    url = f"http://localhost{target.path}"
    transport = HttpTransport(url, wire, limits, headers=target.headers, auth=_auth(target))
    return Dialled(transport, headers=target.headers, auth=target.auth)


def _auth(target: Http | Asgi) -> Auth | None:
    """Return the object that adds authorization to requests, or None if the target has no `auth`.

    A login uses the proxy and the certificates of the target. Raises UsageError if a token begins with "Bearer ".
    """
    given = target.auth
    if given is None:
        return None
    from weft.client.auth import Authorizer, as_auth

    if isinstance(given, str) and given[:7].lower() == "bearer ":
        raise UsageError("The token begins with 'Bearer '; leave that out, because it is added to every token.")
    auth = as_auth(given)
    if isinstance(target, Http) and isinstance(auth, Authorizer):
        auth.go_as(target.url, proxy=target.proxy, tls=target.tls, trust_env=target.trust_env)
    return auth
