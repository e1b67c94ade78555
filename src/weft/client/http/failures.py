"""Word why a connection failed, and choose its proxy.

What a connection that failed is called.

Owns the sentences alone: what aiohttp and OpenSSL say is turned into what happened and what to do. The texts of proxies
and of TLS are also those of a login, which has sentences of its own around them. No credentials are in any.

Which proxy a client goes through, and what it tells the proxy of itself.

Owns how a proxy is written, in `proxy=` and in the environment, and that its credentials go to the proxy alone: they
are in no error text, no log and no repr, and never among what a server gets.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import aiohttp

from weft.client.argument_checks import kind_of
from weft.client.connection.transport import NO_HEADERS
from weft.errors import ConnectionFailed, UsageError

_PORTS = {"http": 80, "https": 443}

# OpenSSL's codes for a certificate that does not hold (X509_V_ERR_…).
_NO_ISSUER = frozenset({2, 18, 19, 20, 21})
_OTHER_HOST = frozenset({62, 64})
_EXPIRED = 10

_GIVE_CLIENT_CERTIFICATE = "load one with load_cert_chain() into an ssl.SSLContext, and give that as `tls`"


def place(url: str) -> str:
    """A URL for error texts: without a query, which may be a key."""
    return url.partition("?")[0]


def why_unreached(
    url: str, error: Exception, *, proxy: Proxy | None, connect_seconds: float, was_reached: bool = False
) -> str:
    """The sentence for an exchange that got no response. `was_reached` is whether another did before."""
    parts, where = urlsplit(url), place(url)
    if fault := proxy_fault(error, proxy) or tls_fault(error):
        return f"{where} cannot be reached: {fault}."
    cause = _cause(error)
    if isinstance(cause, ConnectionRefusedError):
        address = f"{parts.hostname}:{parts.port or _PORTS.get(parts.scheme)}"
        return f"No server is running at {where}: {address} refused the connection. Start it, or check the address."
    if isinstance(cause, socket.gaierror) or isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"No server was found at {where}: the name {parts.hostname!r} is unknown; check it."
    if isinstance(error, TimeoutError):
        way = "" if proxy is None else f" through the proxy {proxy.url}"
        return (
            f"{where} did not take a connection{way} within {connect_seconds:g} s. Is it up, and let through by "
            "firewalls?"
        )
    if isinstance(error, aiohttp.ServerDisconnectedError) or isinstance(cause, ConnectionError):
        is_guess = parts.scheme == "https" and not was_reached
        guess = f" If it wants a client certificate, {_GIVE_CLIENT_CERTIFICATE}." if is_guess else ""
        return (
            f"{where} closed the connection without an answer: whether it did what was asked is not known. Look into "
            f"its log, or that of a proxy before it.{guess}"
        )
    if isinstance(error, aiohttp.ClientResponseError):  # its own text has the whole URL
        return f"{where} answered with something that is no HTTP; check the address, and what runs there."
    return f"{where} cannot be reached: {type(error).__name__}: {error}."


def is_unanswered(error: Exception) -> bool:
    """Return whether a connection stood and then ended, without a byte of an answer."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)


def _cause(error: BaseException) -> BaseException:
    """What aiohttp wrapped."""
    return getattr(error, "os_error", None) or error.__cause__ or error


def broken_off(where: str, error: Exception) -> str:
    """The sentence for an answer that did not end."""
    return (
        f"The connection to {where} broke off before its answer was complete ({type(error).__name__}). The server, or "
        "a proxy before it, went away; whether it did what was asked is not known."
    )


# --- proxies


def proxy_fault(error: Exception, proxy: Proxy | None) -> str | None:
    """What the proxy has to do with a failure; None where that is nothing."""
    if proxy is None:
        return None
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return proxy_refusal(error.status, error.headers or {}, proxy)
    if not isinstance(error, aiohttp.ClientConnectorError) or (error.host, error.port) != proxy.address:
        return None
    if (fault := tls_fault(error)) is not None:
        return f"the proxy {proxy.url} cannot be used: {fault}"
    return f"the proxy {proxy.url} cannot be connected to; check {proxy.said_in}"


def proxy_refusal(status: int, headers: Mapping[str, str], proxy: Proxy) -> str:
    """What a proxy means that refuses to connect."""
    if status != PROXY_REFUSES:
        return (
            f"the proxy {proxy.url} answered with the HTTP status {status}: it does not get there, or does not allow it"
        )
    if "basic" not in headers.get("Proxy-Authenticate", "basic").lower():
        return f"the proxy {proxy.url} wants credentials in another form than Basic, the only one that is known here"
    if proxy.headers:
        return f"the proxy {proxy.url} does not take the name and password in {proxy.said_in}; check them"
    return (
        f"the proxy {proxy.url} wants credentials; write them into {proxy.said_in}, as http://name:password@host:port"
    )


# --- TLS


def tls_fault(error: BaseException) -> str | None:
    """What went wrong with TLS; None where it was something else."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _untrusted(error.certificate_error)
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _untrusted(cause)
    if isinstance(cause, ssl.SSLError):
        return _refused(cause)
    if isinstance(cause, ConnectionError) and _was_in_handshake(error):
        return (
            "it broke off the TLS handshake without a word. If it wants a client certificate, "
            f"{_GIVE_CLIENT_CERTIFICATE}"
        )
    return None


def _was_in_handshake(error: BaseException) -> bool:
    """Whether a connection ended between its beginning and the first request."""
    is_early = isinstance(error, aiohttp.ClientConnectorError) and not isinstance(
        error.os_error, ConnectionRefusedError
    )
    return is_early and getattr(error.args[0], "is_ssl", False)


def _untrusted(error: Exception) -> str:
    """Why the server's certificate does not hold."""
    code = getattr(error, "verify_code", None)
    said = str(getattr(error, "verify_message", "") or error).rstrip(". ")
    if code in _OTHER_HOST:
        return f"its certificate is not for this host ({said}); use a name that it is for"
    remedy = "ask its operator for one that holds"
    if code in _NO_ISSUER:
        remedy = "if its issuer is a private one, give tls=ssl.create_default_context(cafile='…')"
    elif code == _EXPIRED:
        remedy = "have it renewed, or set the clock of this machine right"
    return f"its certificate is not trusted ({said}); {remedy}"


def _refused(error: ssl.SSLError) -> str:
    """Why there is no TLS, from OpenSSL's name for it."""
    reason = str(error.reason or "")
    if reason.endswith("ALERT_CERTIFICATE_REQUIRED"):
        return f"it wants a client certificate: {_GIVE_CLIENT_CERTIFICATE}"
    if reason.endswith("ALERT_HANDSHAKE_FAILURE"):
        return (
            "it refused the TLS handshake; the two have no version or cipher in common, or it wants a client "
            f"certificate: {_GIVE_CLIENT_CERTIFICATE}"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or reason.endswith("UNKNOWN_CA")):
        return f"it does not take the client certificate in `tls` ({_in_words(reason)}); give one that it knows"
    if reason in _NO_TLS:
        return "it does not speak TLS there; use http:// if that is meant, or check the port"
    return f"TLS failed ({_in_words(reason) or error})"


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"})


def _in_words(reason: str) -> str:
    return reason.lower().replace("_", " ")


PROXY_REFUSES = 407  # without credentials that it knows

_FORM = "http://host:port, or http://name:password@host:port"
_NO_PROXY = f"is no URL of a proxy; write it as {_FORM}, with %40 and its like for the @ : / # ? % of a password."


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. Its credentials are a header, which is not shown."""

    url: str  # without credentials
    said_in: str = "`proxy`"  # where a person finds it
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]

    def headers_through(self, url: str) -> Mapping[str, str]:
        """What goes along with a request to a URL: the proxy reads it, where no tunnel leads past it."""
        return NO_HEADERS if url[:6].lower() == "https:" else self.headers


def read_proxy(given: object) -> Proxy:
    """The proxy that a program names.

    >>> read_proxy("http://ann:secret@proxy.example:3128")
    Proxy(url='http://proxy.example:3128', said_in='`proxy`')
    >>> read_proxy("socks5://proxy.example")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: `proxy` has the scheme 'socks5'; only HTTP proxies can be used: write it as \
http://host:port, or http://name:password@host:port.
    """
    if not isinstance(given, str):
        raise UsageError(f"proxy= was given {kind_of(given)}; write it as text: {_FORM}.")
    try:
        return _read(given, "`proxy`")
    except ValueError as error:
        raise UsageError(f"`proxy` {error}") from None


def environment_proxy(url: str) -> Proxy | None:
    """The proxy that the environment, or else the system, has for a URL; None where it has none. May take a moment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    given = urllib.request.getproxies().get(parts.scheme)
    if not given or any(map(urllib.request.proxy_bypass, (host, f"{host}:{parts.port or _PORTS[parts.scheme]}"))):
        return None
    variable = f"{parts.scheme}_proxy"
    is_set = any(name.lower() == variable for name in os.environ)
    said_in = f"`{variable}` in the environment" if is_set else "the settings of the system"
    try:
        return _read(_with_scheme(given), said_in)
    except ValueError as error:
        raise ConnectionFailed(f"A proxy was found by trust_env=True, and cannot be used: {said_in} {error}") from None


def environment_proxy_hosts() -> frozenset[str]:
    """The hosts of all proxies that the environment may lead to."""
    found: set[str] = set()
    for given in urllib.request.getproxies().values():
        try:
            found.add(urlsplit(_with_scheme(given)).hostname or "")
        except ValueError:
            continue  # it is told of when it is to be used
    return frozenset(found)


def _with_scheme(given: str) -> str:
    """A proxy as the environment has it, where many leave out how it is spoken to."""
    return given if "://" in given else f"http://{given}"


def _read(text: str, said_in: str) -> Proxy:
    """Read a proxy; ValueError with the rest of a sentence. Nothing is quoted that may be a part of a password."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_NO_PROXY) from None
    if parts.scheme not in _PORTS and "://" in text:
        raise ValueError(f"has the scheme {parts.scheme[:20]!r}; only HTTP proxies can be used: write it as {_FORM}.")
    is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in _PORTS or not host or not is_bare or any(char <= " " or char == "\x7f" for char in text):
        raise ValueError(_NO_PROXY)
    written = f"[{host}]" if ":" in host else host
    url = f"{parts.scheme}://{written}" + ("" if port is None else f":{port}")
    if "@" not in parts.netloc:
        return Proxy(url, said_in)
    credentials = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
    return Proxy(url, said_in, {"Proxy-Authorization": f"Basic {base64.b64encode(credentials).decode()}"})
