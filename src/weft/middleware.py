"""The public types of middleware: `Middleware` is the function; `Next` is the function it calls to continue."""

from weft.server.api.context import Middleware
from weft.server.runtime.dispatch import Next

__all__ = ["Middleware", "Next"]
