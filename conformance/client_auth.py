"""How the client of the conformance suite logs in, scenario by scenario; nothing here opens a browser."""

from typing import Any

import aiohttp

from weft import Client
from weft.client.auth import (
    ClientCredentials,
    EnterpriseManaged,
    FunctionRedirect,
    IdentityProvider,
    OAuth,
    PrivateKey,
    WorkloadIdentity,
)

__all__ = ["auth_for", "use_twice"]

REDIRECT_URI = "http://localhost:3000/callback"
DOCUMENT_URL = "https://conformance-test.local/client-metadata.json"


async def follow(url: str) -> str:
    """The person's part: the suite's authorization servers redirect at once."""
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as reply:
        return reply.headers["Location"]


def auth_for(scenario: str, context: dict[str, Any]) -> Any:
    """What a scenario logs in with; None where nobody has to."""
    if not scenario.startswith("auth/"):
        return None
    match scenario:
        case "auth/client-credentials-jwt":
            key = PrivateKey(context["private_key_pem"], context["signing_algorithm"])
            return ClientCredentials(context["client_id"], private_key=key)
        case "auth/client-credentials-basic":
            return ClientCredentials(context["client_id"], client_secret=context["client_secret"])
        case "auth/enterprise-managed-authorization":
            provider = IdentityProvider(
                context["idp_client_id"],
                context["idp_id_token"],
                token_endpoint=context["idp_token_endpoint"],
                issuer=context["idp_issuer"],
            )
            return EnterpriseManaged(context["client_id"], provider, client_secret=context["client_secret"])
        case "auth/wif-jwt-bearer":
            return WorkloadIdentity(context["client_id"], context["valid_jwt"])
    return OAuth(
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
        issuer=context.get("issuer"),
        client_metadata_url=DOCUMENT_URL,
        redirect=FunctionRedirect(follow, REDIRECT_URI),
    )


async def use_twice(client: Client) -> None:
    """Two authenticated requests, and one after the authorization server has changed."""
    for _ in range(2):
        for tool in await client.list_tools():
            await client.call_tool(tool.name, {})
