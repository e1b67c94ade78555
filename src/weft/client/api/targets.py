"""From what a client is pointed at to the transport that leads there.

Owns the choice alone. A server in this process and an ASGI app are known by what they can do, for neither is imported
here; all that is written down, `config` reads. The HTTP library is imported when a URL or an app is dialled.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from weft.client.argument_checks import check_function, check_tls, kind_of
from weft.client.config import CommandTarget, UrlTarget, is_sendable, parse_target
from weft.client.connection.transport import NO_HEADERS, MemoryTransport, Piped, Transport
from weft.errors import UsageError
from weft.limits import ClientLimits

if TYPE_CHECKING:
    from weft.client.http.transport import Auth


class HttpSettings(msgspec.Struct, frozen=True):
    """How HTTP is spoken. Most of it may be a secret, and is not shown."""

    headers: Mapping[str, str] = NO_HEADERS
    auth: Any = None  # an `Auth`, or a token as text
    proxy: str | None = None
    tls: ssl.SSLContext | None = None
    trust_env: bool = False
    allow_insecure: bool = False
    path: str = "/mcp"  # of an ASGI app

    def __repr__(self) -> str:
        return f"HttpSettings(path={self.path!r})"


class Dialled(msgspec.Struct):
    """A transport, not yet open."""

    transport: Transport
    key: str | None = None  # under which the server is remembered
    headers: Mapping[str, str] = NO_HEADERS  # the user's own
    old_transport: Callable[[], Transport] | None = None  # the last to be tried

    def __repr__(self) -> str:
        return f"Dialled({self.transport.where!r}, headers={sorted(self.headers)})"  # whose values may be secrets


def dial(
    target: Any,
    limits: ClientLimits,
    http: HttpSettings,
    *,
    server: str | None = None,
    on_stderr: Callable[[str], Any] | None = None,
) -> Dialled:
    """The transport to a target."""
    if isinstance(target, type):
        raise UsageError(f"A client was given the class {target.__name__}; give it an instance of it.")
    _check_headers(http.headers)
    if on_stderr is not None:
        check_function(on_stderr, "on_stderr(line)")
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
    if callable(target):
        return _dial_app(target, limits, http)
    found = parse_target(target, server=server, allow_insecure=http.allow_insecure)
    if isinstance(found, CommandTarget):
        from weft.client.stdio import StdioTransport

        if http.auth is not None:  # AUTH-02
            raise UsageError(
                f"auth= is for servers at a URL; the command `{found.where}` gets credentials from its environment: "
                "give env in an entry of an mcpServers configuration."
            )

        return Dialled(StdioTransport(found, limits, on_stderr=on_stderr))
    return _dial_url(found, limits, http)


def _takes_three(function: Any) -> bool:
    """Whether a function may be an ASGI app: it is called with a scope, `receive` and `send`."""
    try:
        inspect.signature(function).bind({}, None, None)
    except TypeError:
        return False
    except ValueError:  # some that are written in C do not tell
        return True
    return True


def _check_headers(headers: Any) -> None:
    """UsageError unless these can be sent. What is wrong with one is told without its value: it may be a secret."""
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers= was given {kind_of(headers)}; give a dict such as {{'X-Key': 'value'}}.")
    for name, value in cast("Mapping[Any, Any]", headers).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"headers= has {kind_of(value)} at {str(name)[:60]!r}; names and values are text.")
        if not is_sendable(name, value):
            raise UsageError(f"headers= has the header {name[:60]!r}, which cannot be sent; take out what is no text.")


def _dial_url(target: UrlTarget, limits: ClientLimits, http: HttpSettings) -> Dialled:
    from weft.client.http.failures import read_proxy
    from weft.client.http.sse import SseTransport
    from weft.client.http.transport import HttpTransport
    from weft.client.http.wire import AiohttpWire

    proxy = None if http.proxy is None else read_proxy(http.proxy)
    check_tls(http.tls)
    headers = {**target.headers, **http.headers}
    if any(name.lower() == "proxy-authorization" for name in headers):
        raise UsageError(
            "The header 'Proxy-Authorization' would go to the server; write the credentials of a proxy into proxy=, as "
            "http://name:password@host:port."
        )
    auth = _auth(http, target.url)

    def wire() -> AiohttpWire:
        return AiohttpWire(limits, proxy=proxy, tls=http.tls, trust_env=http.trust_env)

    return Dialled(
        HttpTransport(target.url, wire(), limits, headers=headers, auth=auth),
        key=target.url,
        headers=headers,
        old_transport=lambda: SseTransport(target.url, wire(), limits, headers=headers, auth=auth),
    )


def _dial_app(app: Any, limits: ClientLimits, http: HttpSettings) -> Dialled:
    from weft.client.http.asgi import AsgiWire
    from weft.client.http.transport import HttpTransport

    if not http.path.startswith("/"):
        raise UsageError(f"path={http.path!r} is not possible: a path begins with a slash, like '/mcp'.")
    url = f"http://localhost{http.path}"
    transport = HttpTransport(url, AsgiWire(app, limits), limits, headers=http.headers, auth=_auth(http))
    return Dialled(transport, headers=http.headers)


def _auth(http: HttpSettings, url: str | None = None) -> Auth | None:
    """The hook for authorization. A login on behalf of a server goes the way that its client does."""
    if http.auth is None:
        return None
    from weft.client.auth import Authorizer, as_auth

    if isinstance(http.auth, str) and http.auth[:7].lower() == "bearer ":
        raise UsageError("The token cannot be sent as it is: leave off 'Bearer ', which is put before it anyway.")
    auth = as_auth(http.auth)
    if url is not None and isinstance(auth, Authorizer):
        auth.go_as(url, proxy=http.proxy, tls=http.tls, trust_env=http.trust_env)
    return auth
