"""Extensions: how a package adds to the protocol.

An extension has an identifier, settings to declare, methods with their handlers, and result types of its own. A client
that does not declare the extension is served as if it were not there: its methods then need the capability (VER-06).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weft.errors import MissingCapability, RegistrationError
from weft.protocol.names import check_extension_id
from weft.protocol.revisions import Method
from weft.server.call import Call
from weft.server.dispatch import Handler, Middleware
from weft.server.pages import Encoded
from weft.types.base import Result

__all__ = ["Extension"]


class Extension:
    """Derive from this, say what is added, and give an instance to `Server(extensions=[...])`.

    >>> class Echo(Extension):
    ...     id = "com.example/echo"
    >>> Echo().settings
    {}
    """

    id: ClassVar[str] = ""
    result_types: ClassVar[frozenset[str]] = frozenset()  # values of `resultType` beyond the core's

    @property
    def settings(self) -> Mapping[str, Any]:
        """What is declared under the identifier in `capabilities.extensions`."""
        return {}

    def methods(self) -> Sequence[tuple[Method, Handler]]:
        """The methods that are added."""
        return ()

    def middleware(self) -> Sequence[Middleware]:
        """What goes around every call."""
        return ()

    def declared_by(self, call: Call) -> bool:
        """Whether the client declared this extension for this call."""
        return self.id in (call.envelope.client_capabilities.extensions or {})

    def handlers(self) -> dict[str, Handler]:
        """The methods' handlers, each behind the check that the client declared the extension."""
        return {method.name: self._guarded(handler) for method, handler in self.methods()}

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(call: Call) -> Result | Encoded:
            if not self.declared_by(call):
                raise MissingCapability(
                    f"The client must declare the extension {self.id!r}.", required={"extensions": {self.id: {}}}
                )
            return await handler(call)

        return guarded

    def check(self) -> None:
        """Refuse an identifier that is not one (VER-05)."""
        try:
            check_extension_id(self.id)
        except ValueError as error:
            raise RegistrationError(f"{type(self).__name__}.id is {self.id!r}: {error}") from None
