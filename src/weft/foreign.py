"""Import public names when they are first used, and help users who look for a name of another SDK.

The error for an unknown name says what to use in Weft, or which module has the name. Type checkers do not use this
module: for them, an unknown name does not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_ELSEWHERE = ("weft.types", "weft.auth", "weft.forms", "weft.middleware", "weft.client", "weft.errors")

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
    """Raise the AttributeError for an attribute that `thing` does not have.

    If `name` is a known name of another SDK, the message says what to use in Weft.
    """
    kind = type(thing)
    for one in kind.__mro__:
        if meant := _NAMES.get(one.__name__, {}).get(name):
            raise AttributeError(f"A {kind.__name__} has no {name!r}; {meant}.")
    return object.__getattribute__(thing, name)  # raises again; the first error, such as one of a property, is lost


def lazily(module: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a `__getattr__` function for the module `module`, which imports each public name on first use.

    `homes` maps each module that defines public names to the names that are imported from it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise _no_such_name(module, name)
        value = getattr(import_module(home), name)
        setattr(sys.modules[module], name, value)
        return value

    return get


def _no_such_name(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have. If possible, the error says what to import instead.

    An error with such advice is an ImportError, because `from weft import ...` does not show the text of an
    AttributeError. An error without advice is an AttributeError.
    """
    meant = _NAMES["weft"].get(name) if module == "weft" else None
    if meant is None and module == "weft" and not name.startswith("_"):
        home = next((home for home in _ELSEWHERE if name in import_module(home).__all__), None)
        meant = None if home is None else f"import it from {home}: from {home} import {name}"
    if meant is not None:
        return ImportError(f"{module} has no {name!r}; {meant}.", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}")
