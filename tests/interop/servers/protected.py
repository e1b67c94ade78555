"""A protected server and the authorization server that protects it, at one address.

python protected.py PORT [PATH]      PATH is where the endpoint is, /mcp if not said
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from weft import Context, Server
from weft.authorization import AuthorizationServer
from weft.server.auth import ResourceServer

PORT = int(sys.argv[1])
PATH = sys.argv[2] if len(sys.argv) > 2 else "/mcp"
ISSUER = f"http://127.0.0.1:{PORT}"
RESOURCE = (ISSUER + PATH).rstrip("/")
METADATA = "/.well-known/oauth-protected-resource"

authorization = AuthorizationServer(
    ISSUER, resources=[RESOURCE], users={"ann": "correct horse"}, scopes=["read", "write"], registration=True
)
auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=authorization.verifier(), scopes=["read"])
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
    endpoint = server.asgi(PATH)
    places = (PATH, METADATA, METADATA + PATH)
    routes = [*(Route(place, endpoint) for place in places), Mount("/", authorization.asgi())]
    uvicorn.run(Starlette(routes=routes), port=PORT, log_level="error")
