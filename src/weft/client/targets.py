"""Choose the transport that leads to what a client is pointed at.

A server in this process and an ASGI app are recognised by what they can do, for neither is imported here; everything
that is written down, `config` reads. The HTTP library is imported when a URL or an app is dialled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec

from weft.client.config import Asgi, Command, Http, parse_target
from weft.client.connection.transport import NO_HEADERS, Auth, MemoryTransport, Piped, Transport
from weft.errors import UsageError
from weft.limits import ClientLimits


class Dialled(msgspec.Struct):
    """A transport that is not open yet, and what distinguishes its server and its user."""

    transport: Transport
    key: str | None = None  # under which the server is remembered
    headers: Mapping[str, str] = NO_HEADERS  # the user's own
    auth: Auth | str | None = None
    old_transport: Callable[[], Transport] | None = None  # the last to be tried

    def __repr__(self) -> str:
        return f"Dialled({self.transport.where!r}, headers={sorted(self.headers)})"  # whose values may be secrets


def dial(target: Any, limits: ClientLimits, *, server: str | None = None, auth: Auth | str | None = None) -> Dialled:
    """Return the transport to a target. `server` is an entry of a configuration; `auth` goes with a URL or an app."""
    if isinstance(target, type):
        raise UsageError(f"A client was given the class {target.__name__}; give it an instance of it.")
    if isinstance(target, Piped):
        name = getattr(target, "name", None) or type(target).__name__
        return Dialled(MemoryTransport(target, f"the server {name!r} in this process", limits))
    if hasattr(target, "stream_per_request"):  # a transport that somebody else wrote
        return Dialled(cast("Transport", target))
    if inspect.isroutine(target) and not _takes_three(target):
        raise UsageError(
            f"A client was given the function {getattr(target, '__name__', '')!r}, which is no server. Give the Server "
            "that it is registered at, an ASGI app, a URL or a command."
        )
    found = _as_value(target, server)
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


def _as_value(target: Any, server: str | None) -> Http | Command | Asgi:
    if isinstance(target, Asgi):
        return target
    return Asgi(target) if callable(target) else parse_target(target, server=server)


def _takes_three(function: Any) -> bool:
    """Return whether a function may be an ASGI app: it is called with a scope, `receive` and `send`."""
    try:
        inspect.signature(function).bind({}, None, None)
    except TypeError:
        return False
    except ValueError:  # some that are written in C do not tell
        return True
    return True


def _dial_url(target: Http, limits: ClientLimits) -> Dialled:
    from weft.client.http.sse import SseTransport
    from weft.client.http.transport import HttpTransport
    from weft.client.http.wire import AiohttpWire, read_proxy

    url, headers = target.url, target.headers
    proxy = None if target.proxy is None else read_proxy(target.proxy)
    if any(name.lower() == "proxy-authorization" for name in headers):
        raise UsageError(
            "The header 'Proxy-Authorization' would go to the server; write the credentials of a proxy into proxy=, as "
            "http://name:password@host:port."
        )
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
    """Return the hook for authorization. A login uses the proxy and the certificates of its client."""
    given = target.auth
    if given is None:
        return None
    from weft.client.auth import Authorizer, as_auth

    if isinstance(given, str) and given[:7].lower() == "bearer ":
        raise UsageError("The token cannot be sent as it is: leave off 'Bearer ', which is put before it anyway.")
    auth = as_auth(given)
    if isinstance(target, Http) and isinstance(auth, Authorizer):
        auth.go_as(target.url, proxy=target.proxy, tls=target.tls, trust_env=target.trust_env)
    return auth
