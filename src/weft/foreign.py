"""Names that people bring along from other SDKs, and what they are called here.

One table for all of them. Type checkers know nothing of it: for them there is no such attribute, which is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES: Mapping[str, Mapping[str, str]] = {
    "weft": {
        "FastMCP": "it is called Server here: from weft import Server",
        "MCPServer": "it is called Server here: from weft import Server",
        "ClientSession": "it is called Client here: from weft import Client",
        "StdioServerParameters": "give the command to the client: Client(['python', 'server.py'])",
        "McpError": "it is called ProtocolError here, in a server, and RemoteError in a client",
    },
    "Server": {
        "add_middleware": "register an async function by @server.middleware, or by server.middleware(fn)",
        "http_app": "it is called asgi here: app = server.asgi()",
        "streamable_http_app": "it is called asgi here: app = server.asgi()",
        "sse_app": "it is an option of asgi here: app = server.asgi(sse_path='/sse')",
        "run_async": "it is called serve here: await server.serve('http')",
        "run_stdio_async": "it is called serve here: await server.serve()",
        "run_streamable_http_async": "it is called serve here: await server.serve('http')",
        "custom_route": "mount server.asgi() in an application that has the route",
    },
    "ToolResult": {
        "data": "it is called structured here: result.structured",
        "structuredContent": "it is called structured here: result.structured",
        "isError": "it is called is_error here: result.is_error",
    },
}


def attribute_of(thing: object, name: str) -> Any:
    """Say what a name is called here that `thing` does not have; any other fails as it did."""
    kind = type(thing)
    for one in kind.__mro__:
        if meant := _NAMES.get(one.__name__, {}).get(name):
            raise AttributeError(f"A {kind.__name__} has no {name!r}; {meant}.")
    return object.__getattribute__(thing, name)  # once more: what a property raised is lost by now


def no_such_name(name: str) -> Exception:
    """Say what a name is called here that `weft` does not have. `from weft import ...` shows an ImportError alone."""
    if meant := _NAMES["weft"].get(name):
        return ImportError(f"weft has no {name!r}; {meant}.", name="weft")
    return AttributeError(f"module 'weft' has no attribute {name!r}")
