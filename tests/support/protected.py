"""A server that is protected, and a client of either era that sends whatever credentials a test wants."""

import re
from collections.abc import Mapping
from typing import Any

from support.sessions import introduction, rpc
from support.tokens import ISSUER, RESOURCE, rsa_jwk
from support.wire import ACCEPT_BOTH, Live, Response, encode, headers_for, message
from weft import Context, Server
from weft.server.auth import JwtVerifier, ResourceServer
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY

ERAS = ("stateless", "session")
WORD = {"type": "object", "properties": {"word": {"type": "string"}}}


def protect(**options: Any) -> ResourceServer:
    """Protection by JWTs, as `support.tokens` makes them."""
    verifier = JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER)
    given = {"authorization_servers": [ISSUER], "verifier": verifier, "scopes": ["read"], **options}
    return ResourceServer(RESOURCE, **given)


def make_protected(auth: ResourceServer | None = None, **options: Any) -> Server:
    """A server with something for everybody, and something for those who may write; `ran` says what ran."""
    server = Server("vault", auth=auth or protect(), state_keys=["a secret of the tests"], **options)
    server.ran = []  # type: ignore[attr-defined] - for the tests alone
    ran: list[str] = server.ran  # type: ignore[attr-defined] - as above

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        info = ctx.token_info
        assert info is not None
        seen = {"subject": info.subject, "client": info.client_id, "scopes": sorted(info.scopes)}
        return {**seen, "issuer": info.issuer, "headers": dict(ctx.headers), "shown": repr(info)}

    @server.tool(scopes=["write", "admin"])
    def burn() -> str:
        ran.append("burn")
        return "burnt"

    @server.tool
    async def book(ctx: Context) -> str:
        answer = await ctx.elicit("Which seat?", WORD, key="seat")
        return str(answer.value)

    server.add_resource("note://open", "for all")
    server.add_resource("note://secret", lambda: ran.append("secret") or "hidden", scopes=["write"])

    @server.resource("file://{name}", scopes=["write"])
    def file(name: str) -> str:
        ran.append(name)
        return name

    @server.prompt
    def plain() -> str:
        return "plain"

    @server.prompt(scopes=["write"])
    def secret(word: str) -> str:
        ran.append(word)
        return word

    @server.completion(prompt="secret", argument="word")
    @server.completion(template="file://{name}", argument="name")
    def suggest(value: str) -> list[str]:
        ran.append("suggest")
        return [value]

    return server


class Peer:
    """A client of one era. In the session era it has opened its session with a good token."""

    def __init__(self, live: Live, era: str, token: str, *, scheme: str = "Bearer", more: Any = None) -> None:
        self.live = live
        self.era = era
        self.credentials = {"Authorization": f"{scheme} {token}", **(more or {})}
        self.session: str | None = None
        if era == "session":
            self.session = self.send("initialize", introduction()).headers["mcp-session-id"]

    def send(
        self, method: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str | None] | None = None
    ) -> Response:
        changed = {**self.credentials, **(headers or {})}
        if self.era == "stateless":
            meta = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
            body = message(method, params, meta=meta)
            return self.live.send(encode(body), headers_for(body, changed))
        pairs = {"Accept": ACCEPT_BOTH, "Content-Type": "application/json", "Mcp-Session-Id": self.session, **changed}
        body = rpc(method, dict(params or {}))
        return self.live.send(encode(body), [(name, value) for name, value in pairs.items() if value is not None])

    def tool(self, name: str, headers: Mapping[str, str | None] | None = None, **arguments: Any) -> Response:
        return self.send("tools/call", {"name": name, "arguments": arguments}, headers)

    def names(self, method: str, key: str) -> list[str]:
        """The names or URIs of a list."""
        return [entry.get("uriTemplate", entry.get("uri", entry["name"])) for entry in self.send(method).result[key]]


def challenge_of(response: Response) -> tuple[str, dict[str, str]]:
    """The scheme and the parameters of the challenge."""
    scheme, _, rest = response.headers["www-authenticate"].partition(" ")
    return scheme, dict(re.findall(r'(\w+)="([^"]*)"', rest))
