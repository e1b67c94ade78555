"""Protecting a server, and logging in."""

from weft import Context, Server
from weft.auth import (
    ClientCredentials,
    IntrospectionVerifier,
    JwtVerifier,
    OAuth,
    ResourceServer,
    StaticTokens,
    TokenInfo,
)
from weft.sync import Client

ISSUER = "https://auth.example.com"
keys = JwtVerifier(f"{ISSUER}/jwks.json", issuer=ISSUER)
auth = ResourceServer("https://mcp.example.com/mcp", authorization_servers=[ISSUER], verifier=keys)
server = Server("flights", auth=auth)
fixed = ResourceServer(
    "https://mcp.example.com/mcp",
    authorization_servers=[ISSUER],
    verifier=StaticTokens({"s3cret-token-of-ann": TokenInfo("ann", scopes=frozenset({"book"}))}),
)


@server.tool(scopes=["book"])
async def me(ctx: Context) -> str:
    return ctx.token_info.subject if ctx.token_info else "nobody I know"


@server.tool
async def unchecked(ctx: Context) -> str:
    return ctx.token_info.subject  # expect error


ResourceServer("https://mcp.example.com/mcp", verifier=5)  # expect error
Server("flights", auth="secret")  # expect error

by_asking = IntrospectionVerifier(f"{ISSUER}/introspect", client_id="mcp", client_secret="secret", issuer=ISSUER)
program = ClientCredentials("reports", client_secret="its secret")
with Client("https://mcp.example.com/mcp", auth=program) as reports:
    print(reports.list_tools())

with Client("https://mcp.example.com/mcp", auth=OAuth()) as client:
    print(client.call_tool("me").text)
