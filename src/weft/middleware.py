"""The types of middleware: a `Middleware` is a function; `Next` is the function that it calls to continue."""

from weft.server.api.context import Middleware
from weft.server.runtime.dispatch import Next

__all__ = ["Middleware", "Next"]
