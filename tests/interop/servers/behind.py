"""A protected server and its authorization server, made to be reached through a proxy under another address.

python behind.py PORT PUBLIC [--mounted]      PUBLIC is the origin that clients see, such as https://mcp.example.com

Without more, the endpoint is at /mcp here and at /tools/mcp there: the proxy takes the prefix off. With --mounted, an
app around it has it below /tools here as well, and the proxy passes paths on as they are.
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from weft import Context, Server
from weft.authorization import AuthorizationServer
from weft.server.auth import ResourceServer

PORT, PUBLIC = int(sys.argv[1]), sys.argv[2]
RESOURCE = f"{PUBLIC}/tools/mcp"
ISSUER = f"{PUBLIC}/login"

authorization = AuthorizationServer(
    ISSUER, resources=[RESOURCE], users={"ann": "correct horse"}, scopes=["read", "write"], registration=True
)
auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=authorization.verifier(), scopes=["read"])
server = Server("behind", auth=auth)


@server.tool
def who(ctx: Context) -> str:
    assert ctx.token_info is not None
    return ctx.token_info.subject


@server.tool(scopes=["write"])
def erase(ctx: Context) -> str:
    assert ctx.token_info is not None
    return " ".join(sorted(ctx.token_info.scopes))


endpoint, login = server.asgi(), authorization.asgi()


async def app(scope, receive, send):
    """Both at one port: what is not the authorization server's is the endpoint's."""
    is_login = "/login" in scope.get("path", "") or "oauth-authorization-server" in scope.get("path", "")
    await (login if is_login else endpoint)(scope, receive, send)


if __name__ == "__main__":
    mounted = Starlette(routes=[Mount("/tools", endpoint), Mount("/", app)])
    # What uvicorn itself would make of forwarded headers is not needed.
    uvicorn.run(mounted if "--mounted" in sys.argv else app, port=PORT, log_level="error", proxy_headers=False)
