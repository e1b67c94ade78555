"""A server of the official SDK (1.x or 2.x) that wants a login, with its own routes. Usage: guarded_mcp.py PORT."""

import secrets
import sys
import time

from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthToken
from pydantic import AnyHttpUrl

PORT = int(sys.argv[1])
BASE = f"http://127.0.0.1:{PORT}"


class Provider:
    """Says yes to everybody, and remembers in dictionaries; a refresh token is good for once."""

    def __init__(self) -> None:
        self.clients, self.codes, self.tokens, self.refreshes = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        code = secrets.token_hex(20)
        self.codes[code] = AuthorizationCode(
            code=code,
            client_id=client.client_id,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            expires_at=time.time() + 300,
            scopes=params.scopes or ["use"],
            code_challenge=params.code_challenge,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.issue(client, authorization_code.scopes)

    async def load_refresh_token(self, client, refresh_token):
        return self.refreshes.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refreshes[refresh_token.token]
        return self.issue(client, scopes or refresh_token.scopes)

    async def load_access_token(self, token):
        return self.tokens.get(token)

    async def revoke_token(self, token):
        self.tokens.pop(token.token, None)

    def issue(self, client, scopes):
        access, refresh = secrets.token_hex(20), secrets.token_hex(20)
        self.tokens[access] = AccessToken(
            token=access, client_id=client.client_id, scopes=scopes, expires_at=int(time.time()) + 3600
        )
        self.refreshes[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=scopes)
        return OAuthToken(
            access_token=access, token_type="Bearer", expires_in=3600, scope=" ".join(scopes), refresh_token=refresh
        )


settings = AuthSettings(
    issuer_url=AnyHttpUrl(BASE),
    resource_server_url=AnyHttpUrl(f"{BASE}/mcp"),
    required_scopes=["use"],
    client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["use"], default_scopes=["use"]),
)
place = {"host": "127.0.0.1", "port": PORT}
try:
    from mcp.server import MCPServer

    server = MCPServer("guarded", auth=settings, auth_server_provider=Provider())
    options = place
except ImportError:
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("guarded", auth=settings, auth_server_provider=Provider(), **place)
    options = {}


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run(transport="streamable-http", **options)
