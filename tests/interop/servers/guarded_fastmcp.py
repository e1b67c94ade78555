"""A FastMCP server that wants a login, with FastMCP's own authorization server. Usage: guarded_fastmcp.py PORT."""

import sys

from fastmcp import FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider

PORT = int(sys.argv[1])
guard = InMemoryOAuthProvider(
    base_url=f"http://127.0.0.1:{PORT}",
    required_scopes=["use"],
    client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["use"]),
)
server = FastMCP("guarded", auth=guard)


@server.tool
def add(a: int, b: int) -> int:
    return a + b


server.run(transport="http", host="127.0.0.1", port=PORT, show_banner=False)
