"""A protected server and the authorization server that protects it, at one address.

python protected.py PORT
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from weft import Context, Server
from weft.server.auth import ResourceServer
from weft.server.auth.authorization import AuthorizationServer

PORT = int(sys.argv[1])
ISSUER = f"http://127.0.0.1:{PORT}"
METADATA = "/.well-known/oauth-protected-resource"

authorization = AuthorizationServer(
    ISSUER, resources=[f"{ISSUER}/mcp"], users={"ann": "correct horse"}, scopes=["read", "write"], registration=True
)
auth = ResourceServer(
    f"{ISSUER}/mcp", authorization_servers=[ISSUER], verifier=authorization.verifier(), scopes=["read"]
)
server = Server("protected", auth=auth)


@server.tool
def who(ctx: Context) -> str:
    assert ctx.token_info is not None
    return ctx.token_info.subject


@server.tool(scopes=["write"])
def erase(ctx: Context) -> str:
    assert ctx.token_info is not None
    return " ".join(sorted(ctx.token_info.scopes))


if __name__ == "__main__":
    endpoint = server.asgi()
    places = ("/mcp", METADATA, f"{METADATA}/mcp")
    routes = [*(Route(place, endpoint) for place in places), Mount("/", authorization.asgi())]
    uvicorn.run(Starlette(routes=routes), port=PORT, log_level="error")
