"""What a connection that failed is called.

Owns the sentences alone: what aiohttp and OpenSSL say is turned into what happened and what to do. The texts of proxies
and of TLS are also those of a login, which has sentences of its own around them. No credentials are in any.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp

from weft.client.proxies import PROXY_REFUSES, Proxy

__all__ = ["broken_off", "is_unanswered", "place", "proxy_fault", "proxy_refusal", "tls_fault", "why_unreached"]

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
