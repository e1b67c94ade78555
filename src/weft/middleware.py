"""Name the types of middleware: `Middleware` is the function, `Next` is what it calls to go on."""

from weft.server.api.context import Middleware
from weft.server.runtime.dispatch import Next

__all__ = ["Middleware", "Next"]
