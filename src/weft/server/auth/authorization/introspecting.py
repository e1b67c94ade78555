"""The introspection endpoint (RFC 7662): a resource server asks whether a token that it was shown is good.

Only a client that proves who it is may ask, and only about tokens of the resources that it is. Of all others it learns
nothing, not even whether they are tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.server.auth.authorization.authenticating import Authenticating
from weft.server.auth.authorization.web import Answer, OAuthError, Request, json_answer
from weft.server.auth.verifying import TokenRefused

if TYPE_CHECKING:
    from weft.server.auth.authorization.app import AuthorizationServer

__all__ = ["Introspecting"]

_TOLD = ("scope", "client_id", "sub", "aud", "iss", "exp", "iat", "jti", "cnf")


class Introspecting:
    """Serves the endpoint."""

    def __init__(self, server: AuthorizationServer, authenticating: Authenticating) -> None:
        self._server = server
        self._authenticating = authenticating
        self._verifier = server.verifier(leeway=0.0)  # who asks has a leeway of its own

    async def answer(self, request: Request) -> Answer:
        """Tell whether a token is good, and what it says."""
        fields = await request.form()
        client = await self._authenticating.find(request, fields)
        if not client.introspects:
            text = "The client may not ask about tokens: name its resources in RegisteredClient(introspects=...)."
            raise OAuthError("unauthorized_client", text, status=403)
        if not fields.get("token"):
            raise OAuthError("invalid_request", "The parameter token is missing.")
        audiences = [found for url in client.introspects if (found := self._server.find_resource(url)) is not None]
        try:
            info = await self._verifier.bind(audiences)(fields["token"])
        except TokenRefused:
            info = None
        if info is None:
            return json_answer({"active": False})
        told = {name: info.claims[name] for name in _TOLD if name in info.claims}
        return json_answer({"active": True, "token_type": "DPoP" if "cnf" in told else "Bearer", **told})
