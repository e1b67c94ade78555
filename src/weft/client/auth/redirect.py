"""How a person gets to the authorization server and back: a browser and a listener on this machine, or a function.

Owns the listener: it takes one answer, the one with the state that was asked for, says in the browser that the page may
be closed, and stops. Every other request gets a short refusal and changes nothing. The URL goes to the browser through
the system's own means, never through a shell (SBP-05).
"""

from __future__ import annotations

import asyncio
import hmac
import html
import inspect
import sys
import webbrowser
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from weft.client.auth import urls
from weft.client.callbacks import Functions
from weft.errors import AuthorizationFailed, UsageError

_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="font: 1.1em/1.5 system-ui, sans-serif; max-width: 32em; margin: 20vh auto; padding: 0 1em">
<h1>{title}</h1><p>{text}</p></body></html>
"""


class RedirectListener(Protocol):
    """Ready to receive the browser."""

    uri: str  # the redirect URI

    async def visit(self, url: str, state: str) -> str:
        """Send the person to a URL, and wait; the URL that the browser came back with."""
        ...


class Redirect(Protocol):
    """A way to the authorization server and back."""

    def listening(self, known: Sequence[str]) -> AbstractAsyncContextManager[RedirectListener]:
        """Be ready to receive the browser, at one of the known redirect URIs if that can be."""
        ...


class FunctionRedirect:
    """A function takes the person's part: it is given the URL, and returns the one that the browser came back with.

    For tests, for programs with a browser of their own, and for web applications.

    >>> redirect = FunctionRedirect(lambda url: url, "http://localhost:3000/callback")
    """

    def __init__(self, function: Callable[[str], Any], redirect_uri: str) -> None:
        try:
            urls.check(redirect_uri)
        except urls.UrlRefused as refused:
            raise UsageError(f"redirect_uri={redirect_uri!r} is not possible: {refused}.") from None
        self.uri = redirect_uri
        self._function = function

    @asynccontextmanager
    async def listening(self, known: Sequence[str]) -> AsyncGenerator[RedirectListener]:
        """Always ready."""
        yield self

    async def visit(self, url: str, state: str) -> str:
        """Let the function do it."""
        came_back = self._function(url)
        if inspect.isawaitable(came_back):
            came_back = await came_back
        if not isinstance(came_back, str):
            raise UsageError("The redirect function has to return the URL that the browser came back with, as text.")
        return came_back


class LoopbackRedirect:
    """Opens the browser, and listens on this machine for its return.

    `port` 0 takes any that is free: an authorization server has to allow that for this machine (RFC 8252); where it
    does not, give the port that is registered there. `open_browser` is given the URL, and returns whether it could.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        path: str = "/callback",
        seconds: float = 300.0,
        open_browser: Callable[[str], Any] = webbrowser.open,
        tell: Callable[[str], Any] | None = None,
    ) -> None:
        if not path.startswith("/"):
            raise UsageError(f"path={path!r} is not possible: a path begins with a slash, like '/callback'.")
        self._port = port
        self._path = path
        self._seconds = seconds
        self._open_browser = open_browser
        self._tell = tell or _tell

    @asynccontextmanager
    async def listening(self, known: Sequence[str]) -> AsyncGenerator[RedirectListener]:
        """Listen, for as long as the login takes."""
        visitor = _Visitor(self._path, self._seconds, self._open_browser, self._tell)
        server = await self._bound(visitor, self._wished(known))
        visitor.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{self._path}"
        try:
            yield visitor
        finally:
            server.close()
            await visitor.finished()
            await server.wait_closed()

    def _wished(self, known: Sequence[str]) -> int:
        """The port to listen on: as configured, else the one that is registered already."""
        if self._port:
            return self._port
        for uri in known:
            parts = urlsplit(uri)
            if parts.hostname == "127.0.0.1" and parts.path == self._path and parts.port:
                return parts.port
        return 0

    async def _bound(self, visitor: _Visitor, port: int) -> asyncio.Server:
        try:
            return await asyncio.start_server(visitor.connected, "127.0.0.1", port, limit=_HEAD_BYTES)
        except OSError as error:
            if self._port or not port:
                raise AuthorizationFailed(
                    f"Nothing can listen for the browser on port {port}: {error.strerror}. Free it, or give another "
                    "with LoopbackRedirect(port=...)."
                ) from None
        return await self._bound(visitor, 0)


class _Visitor:
    """One login's listener."""

    def __init__(
        self, path: str, seconds: float, open_browser: Callable[[str], Any], tell: Callable[[str], Any]
    ) -> None:
        self.uri = ""
        self._path = path
        self._seconds = seconds
        self._open_browser = open_browser
        self._tell = tell
        self._state = ""
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connections: set[asyncio.Task[Any]] = set()

    async def visit(self, url: str, state: str) -> str:
        """Open the browser, and wait for its return."""
        self._state = state
        opening = asyncio.create_task(self._send_away(url))
        try:
            async with asyncio.timeout(self._seconds):
                # Some browsers are not started, but run until they are closed: the answer comes before that.
                either: list[asyncio.Future[Any]] = [opening, self._answer]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not self._answer.done():
                    opening.result()
                return await self._answer
        except TimeoutError:
            raise AuthorizationFailed(
                f"Nobody logged in within {self._seconds:g} s; try again, or give LoopbackRedirect(seconds=...) more."
            ) from None
        finally:
            opening.cancel()

    async def _send_away(self, url: str) -> None:
        opened = False
        with suppress(OSError, webbrowser.Error):
            opened = await Functions().call(self._open_browser, url)
        if opened is False:
            self._tell(url)

    async def finished(self) -> None:
        """Wait until the browser has been told, but not for one that does not listen."""
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=2.0)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if not self._answer.done():
            self._answer.cancel()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._respond(head.decode("latin-1")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _respond(self, head: str) -> bytes:
        """Look at a request, and say what becomes of it. Only one with our path and our state ends the wait."""
        method, _, rest = head.partition("\r\n")[0].partition(" ")
        target = rest.partition(" ")[0]
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return _response(400, "Not understood", "This address cannot be read.")
        if method != "GET" or parts.path != self._path:
            return _response(404, "Nothing here", "This address is only for the end of a login.")
        given = query.get("state", [""])
        is_ours = len(given) == 1 and hmac.compare_digest(given[0].encode(), self._state.encode())
        if not self._state or not is_ours or self._answer.done():
            return _response(400, "Not this login", "This page does not belong to a login that is under way.")
        self._answer.set_result(f"{self.uri}?{parts.query}")
        if "error" in query:
            return _response(200, "Not logged in", "The program has been told. You may close this page.")
        return _response(200, "Done", "You may close this page and go back to the program.")


def _response(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    head = (
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _tell(url: str) -> None:
    """Without a browser, the person has to open the page; standard output may belong to the protocol."""
    sys.stderr.write(f"To log in, open this page in a browser on this machine:\n\n  {url}\n\n")
    sys.stderr.flush()
