"""The app is one by asgiref's types and by Starlette's."""

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable
from asgiref.typing import Scope as AsgirefScope
from starlette.types import ASGIApp, Receive, Scope, Send

from weft import Server
from weft.auth import TokenInfo

server = Server("flights")

by_asgiref: ASGI3Application = server.asgi()
by_starlette: ASGIApp = server.asgi()


class Login:
    """Middleware as Starlette's users write it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["weft.token_info"] = TokenInfo("ann")
        await self.app(scope, receive, send)


class Logged:
    """Middleware with asgiref's types."""

    def __init__(self, app: ASGI3Application) -> None:
        self.app = app

    async def __call__(self, scope: AsgirefScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await self.app(scope, receive, send)


wrapped: ASGIApp = Login(server.asgi("/mcp"))
logged: ASGI3Application = Logged(server.asgi("/mcp"))
not_an_app: ASGIApp = server  # expect error
