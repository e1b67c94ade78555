"""A server at a URL, as the commands see it: requests out, results in, a sentence for everything that goes wrong.

It speaks HTTP through the standard library and leaves the envelope of a request to the era. It prints nothing but the
notifications that come before an answer.
"""

from __future__ import annotations

import http.client
import itertools
import socket
import ssl
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from weft import __version__
from weft.cli.command import WrongCommand
from weft.eras.stateless import StatelessClient
from weft.errors import HeaderMismatch, MethodNotFound, WeftError
from weft.protocol.headers import find_mirrors, mirror_values
from weft.types.base import Implementation
from weft.types.capabilities import ClientCapabilities

__all__ = ["CallFailed", "Peer"]

MOST_PAGES = 250  # D12
MOST_BYTES = 64 * 1024 * 1024  # D12
MOST_EVENT_BYTES = 16 * 1024 * 1024  # D12
MOST_REDIRECTS = 3
SAME_REQUEST = (307, 308)  # redirects that keep the method and the body
PATH_HINT = "check the path, which is usually /mcp"


class CallFailed(WeftError):
    """The server could not be reached, or refused."""

    def __init__(self, sentence: str, code: int | None = None) -> None:
        super().__init__(sentence)
        self.code = code  # of the JSON-RPC error, if it was one


class _ErrorBody(msgspec.Struct):
    code: int
    message: str


class _Message(msgspec.Struct):
    """What a server sends: an answer, or a notification before it."""

    method: str | None = None
    params: Any = None
    result: dict[str, Any] | None = None
    error: _ErrorBody | None = None


_read_message = msgspec.json.Decoder(_Message).decode


class Peer:
    """A server at a URL."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._parts = _check(url)
        self._timeout = timeout
        self._ids = itertools.count(1)

    def call_tool(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Where it wants arguments repeated in headers, its schema says which."""
        params = {"name": tool, "arguments": arguments}
        try:
            return self.request("tools/call", params)
        except CallFailed as failed:
            if failed.code != HeaderMismatch.code:
                raise
            for found in self.pages("tools/list", "tools"):
                if found.get("name") == tool:
                    mirrors = find_mirrors(found.get("inputSchema", {}))
                    return self.request("tools/call", params, mirror_values(mirrors, arguments))
            raise

    def pages(self, method: str, kind: str) -> list[dict[str, Any]]:
        """All items of a list."""
        items: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            result = self.request(method, params)
            items += result.get(kind, [])
            if not result.get("nextCursor"):
                break
            params = {"cursor": result["nextCursor"]}
        return items

    def request(self, method: str, params: dict[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Send one request; returns its result."""
        info = Implementation("weft", __version__)
        params, stamped = StatelessClient().stamp(method, params, info=info, capabilities=ClientCapabilities())
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})
        answer, status = self._post(body, {**stamped, **(headers or {})})
        error = answer.error
        if error is not None:
            sentence = f"{self._url} refused {method}: {error.message} ({error.code})"
            if status == http.client.NOT_FOUND and error.code != MethodNotFound.code:
                sentence += f"; {PATH_HINT}."
            raise CallFailed(sentence, error.code)
        return answer.result or {}

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[_Message, int]:
        """Send a body and read the answer, with its status. A redirect is followed on the same host only (R11)."""
        accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        for _ in range(MOST_REDIRECTS + 1):
            connect = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            connection = connect(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
            path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
            try:
                connection.request("POST", path, body, {**accepted, **headers})
                response = connection.getresponse()
                if not response.getheader("Location"):
                    return self._read(response), response.status
                self._parts = self._redirected(response)
            except (OSError, http.client.HTTPException) as error:
                raise CallFailed(self._why(error)) from None
            finally:
                connection.close()
        raise CallFailed(f"{self._url} redirects again and again; use the URL that the server prints when it starts.")

    def _redirected(self, response: http.client.HTTPResponse) -> SplitResult:
        """Where a redirect leads, if that is the same host and the same request."""
        place = urljoin(self._parts.geturl(), response.getheader("Location", ""))
        parts = urlsplit(place)
        if response.status in SAME_REQUEST and (parts.scheme, parts.netloc) == (self._parts.scheme, self._parts.netloc):
            return parts
        raise CallFailed(
            f"{self._url} answered {response.status} {response.reason}: it sends you to {place}. If you trust that "
            "place, use its URL."
        )

    def _read(self, response: http.client.HTTPResponse) -> _Message:
        try:
            if response.getheader("Content-Type", "").startswith("text/event-stream"):
                return self._read_events(response)
            answer = _read_message(response.read(MOST_BYTES))
        except msgspec.DecodeError:
            answer = _Message()
        if answer.result is None and answer.error is None:
            failed = response.status >= http.client.INTERNAL_SERVER_ERROR
            remedy = "look into its log, and into that of a proxy in front of it" if failed else PATH_HINT
            raise CallFailed(
                f"{self._url} answered {response.status} {response.reason}, but not as an MCP server does; {remedy}."
            )
        return answer

    def _read_events(self, response: http.client.HTTPResponse) -> _Message:
        """The answer at the end of a stream; what comes before it is shown on stderr."""
        data = b""
        while line := response.readline(MOST_EVENT_BYTES):
            if line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line.strip() and data:
                message = _read_message(data)
                if message.method is None:
                    return message
                print(f"{message.method}: {msgspec.json.encode(message.params).decode()}", file=sys.stderr)
                data = b""
        raise CallFailed(f"{self._url} ended its answer before it was complete; look into the server's log.")

    def _why(self, error: Exception) -> str:
        place = f"{self._parts.hostname}:{self._parts.port or (443 if self._parts.scheme == 'https' else 80)}"
        if isinstance(error, ConnectionRefusedError):
            return (
                f"No server is running at {self._url}: {place} refused the connection. Start it (weft run FILE --http "
                f"--port {place.rpartition(':')[2]}), or check the address."
            )
        if isinstance(error, socket.gaierror):
            return f"No server was found at {self._url}: the name {self._parts.hostname!r} is unknown; check it."
        if isinstance(error, TimeoutError):
            return f"{self._url} did not answer within {self._timeout:g} s. Is it busy? --timeout waits longer."
        if isinstance(error, ssl.SSLError):
            return f"{self._url} cannot be reached over TLS: {error.reason or error}. Is it an http:// address?"
        return f"{self._url} cannot be reached: {type(error).__name__}: {error}."


def _check(url: str) -> SplitResult:
    """https, or http to this machine: anything else could be read by others on its way (R11)."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WrongCommand(f"{url!r} is not the URL of a server; write one like http://127.0.0.1:8000/mcp.")
    if parts.scheme == "http" and not _is_here(parts.hostname):
        raise WrongCommand(f"{url} is not encrypted; use https:// for a server that is not on this machine.")
    return parts


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
