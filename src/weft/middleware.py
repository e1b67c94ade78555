"""The types for middleware: `Middleware` is the type of the function; `Next` is the type of its `next` parameter."""

from weft.server.api.context import Middleware
from weft.server.runtime.dispatch import Next

__all__ = ["Middleware", "Next"]
