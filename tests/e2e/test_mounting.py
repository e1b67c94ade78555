"""The app inside another app: it just works, the path is not doubled, the lifespan is its own."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from support import Live, ask, encode, headers_for, message, serve
from weft import Context, Server

BODY = message("tools/call", {"name": "number"})


class Life:
    """What a lifespan did."""

    def __init__(self, value: Any = 42) -> None:
        self.value = value
        self.events: list[str] = []

    @asynccontextmanager
    async def __call__(self, server: Server) -> AsyncIterator[Any]:
        self.events.append("entered")
        try:
            yield self.value
        finally:
            self.events.append("left")


def made() -> tuple[Server, Life]:
    life = Life()
    server = Server("mounted", lifespan=life)

    @server.tool
    async def number(ctx: Context) -> int:
        return ctx.lifespan

    return server, life


def fastapi(server: Server) -> FastAPI:
    app = FastAPI()
    app.mount("/mcp", server.asgi())
    return app


WAYS: dict[str, Any] = {
    "Mount at the path": lambda server: Starlette(routes=[Mount("/mcp", server.asgi())]),
    "Mount at the root": lambda server: Starlette(routes=[Mount("/", server.asgi("/mcp"))]),
    "Route": lambda server: Starlette(routes=[Route("/mcp", server.asgi(), methods=["POST"])]),
    "FastAPI mount": fastapi,
    "Mount with a path of its own": lambda server: Starlette(routes=[Mount("/mcp", server.asgi("/"))]),
    "alone": lambda server: server.asgi("/mcp"),
}


@pytest.mark.mistake("mounted in FastAPI")
@pytest.mark.parametrize("way", WAYS)
def test_mounted(way: str) -> None:
    server, life = made()
    with serve(WAYS[way](server)) as live:
        assert _number(live) == 42
        assert _number(live) == 42
        assert life.events == ["entered"]
        assert live.faults == []


def _number(live: Live, path: str = "/mcp") -> Any:
    response = live.send(encode(BODY), headers_for(BODY), path=path)
    if response.status == 307:  # a router that wants the slash says so, to every client
        response = live.send(encode(BODY), headers_for(BODY), path=path + "/")
    return response.result["structuredContent"]


def _status(live: Live, path: str) -> int:
    return live.send(encode(BODY), headers_for(BODY), path=path).status


@pytest.mark.mistake("mounted in FastAPI")
@pytest.mark.parametrize("way", ["Mount at the path", "Mount at the root", "FastAPI mount", "alone"])
def test_no_other_path_is_served(way: str) -> None:
    server, _ = made()
    with serve(WAYS[way](server)) as live:
        assert _number(live) == 42
        assert [_status(live, path) for path in ("/other", "/mcp/other", "/other/mcp")] == [404] * 3


@pytest.mark.mistake("mounted in FastAPI")
def test_two_servers_in_one_app() -> None:
    admin, app = Server("admin"), FastAPI()
    admin.add_tool(lambda: 7, name="number", output_schema={"type": "integer"})
    app.mount("/admin", admin.asgi())
    app.mount("/", made()[0].asgi("/mcp"))
    with serve(app) as live:
        assert (_number(live, "/mcp"), _number(live, "/admin/"), _number(live, "/admin/mcp")) == (42, 7, 7)
        assert [_status(live, path) for path in ("/", "/admin/x", "/x")] == [404] * 3


@pytest.mark.parametrize(
    ("routes", "path"),
    [
        (lambda app: [Route("/elsewhere", app)], "/elsewhere"),
        (lambda app: [Mount("/api", routes=[Route("/mcp", app)])], "/api/mcp"),
        (lambda app: [Mount("/", routes=[Route("/mcp", app)])], "/mcp"),
        (lambda app: [Mount("/api", routes=[Mount("/v1", app)])], "/api/v1/"),
    ],
    ids=["Route elsewhere", "Route in a Mount", "Route in a Mount at the root", "Mount in a Mount"],
)
def test_where_a_router_puts_it(routes: Any, path: str) -> None:
    server, _ = made()
    with serve(Starlette(routes=routes(server.asgi()))) as live:
        assert _number(live, path) == 42
        assert _status(live, "/other") == 404


@pytest.mark.mistake("mounted in FastAPI")
def test_the_parents_own_lifespan_and_routes_stay_what_they_are() -> None:
    server, life = made()
    parent = Life({})
    routes = [Route("/", lambda request: PlainTextResponse("hello")), Mount("/mcp", server.asgi())]
    with serve(Starlette(routes=routes, lifespan=parent)) as live:
        assert parent.events == ["entered"]
        assert life.events == []  # lazily
        assert live.send(b"", [], verb="GET", path="/").body == b"hello"
        assert _number(live) == 42
        assert life.events == ["entered"]
    assert parent.events == ["entered", "left"]


def test_alone_the_lifespan_is_entered_at_start_up_and_left_at_shutdown() -> None:
    server, life = made()
    with serve(server) as live:
        assert life.events == ["entered"]
        assert _number(live) == 42
    assert life.events == ["entered", "left"]


@pytest.mark.mistake("mounted in FastAPI")
def test_a_lazily_entered_lifespan_is_left_when_the_loop_shuts_down() -> None:
    server, life = made()

    async def main() -> None:
        assert (await ask(fastapi(server), "tools/call", {"name": "number"}, scope=_at_root())).result[
            "structuredContent"
        ] == 42
        assert life.events == ["entered"]

    def run() -> None:
        asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert life.events == ["entered", "left"]


def _at_root() -> dict[str, Any]:
    return {
        "path": "/mcp/",
        "raw_path": b"/mcp/",
        "query_string": b"",
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "app": None,
    }


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("", "/mcp", 200),
        ("/api", "/api/mcp", 200),
        ("/api", "/api", 200),
        ("/api", "/api/", 200),
        ("/api", "/api/other", 404),
        ("/api", "/mcp/x", 404),
    ],
)
async def test_the_endpoint_behind_a_root_path(root: str, path: str, status: int) -> None:
    server, _ = made()
    response = await ask(server, "tools/call", {"name": "number"}, scope={"root_path": root, "path": path})
    assert response.status == status
    await server.engine.lifespan.stop()


async def test_a_scope_without_the_optional_root_path() -> None:
    server, _ = made()
    app = server.asgi()
    for _ in range(2):
        scope = {"path": "/mcp"}
        assert (await ask(_without_root(app), "tools/call", {"name": "number"}, scope=scope)).status == 200
    await server.engine.lifespan.stop()


def _without_root(app: Any) -> Any:
    async def bare(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({key: value for key, value in scope.items() if key != "root_path"}, receive, send)

    return bare
