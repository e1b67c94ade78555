"""Gate: where authorization meets HTTP. It lets the requests of one app in, and serves the resource's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.protocol.headers import Headers
from weft.server.auth.admission import Admission
from weft.server.auth.resource import WELL_KNOWN, Protection
from weft.server.transports.asgi import Scope
from weft.server.transports.caller import TOKEN_INFO
from weft.server.transports.http_reply import HttpReply, Refusal

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["Gate"]

_KEEP = (b"cache-control", b"public, max-age=300")


class Gate:
    """Stands before every route of an app, the metadata excepted, which says how to get past it."""

    def __init__(self, auth: Protection, server: Server) -> None:
        self._auth = auth
        self._admission = Admission(auth, server)
        self._metadata = auth.metadata(server.info)
        self._paths = auth.metadata_paths

    def is_metadata(self, inner: str) -> bool:
        """Whether the metadata is what is at this path below the place that the app is mounted at."""
        return inner in self._paths

    async def serve_metadata(self, scope: Scope, reply: HttpReply) -> None:
        """Tell who issues tokens."""
        if scope["method"] not in ("GET", "HEAD"):  # of the answer to HEAD, the HTTP server sends the head
            raise Refusal(405, "Served here: GET, HEAD.", headers=[(b"allow", b"GET, HEAD")])
        reply.extra = [_KEEP]
        await reply.answer(200, self._metadata)

    async def let_in(self, scope: Scope, headers: Headers, reply: HttpReply) -> None:
        """Write down in the scope who sends a request. A `Refusal` where that is nobody."""
        root: str = scope.get("root_path", "")
        if (
            root and self._auth.resource
        ):  # what is at the root of the host is not ours to serve: the metadata is below the mount
            reply.metadata_url = f"{self._auth.origin}{root}{WELL_KNOWN}"
        if not self.knows(scope, headers):
            metadata_url = reply.metadata_url or self._auth.metadata_url
            scope[TOKEN_INFO] = await self._admission.admit(scope, headers, metadata_url)

    def knows(self, scope: Scope, headers: Headers) -> bool:
        """The same for a request whose token was let in before; False where that is to be found out."""
        value = headers.known.get(b"authorization")
        if value is None or scope.get("query_string"):
            return False
        info = scope[TOKEN_INFO] = self._admission.recall(value)
        return info is not None
