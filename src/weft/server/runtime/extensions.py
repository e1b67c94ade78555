"""Add an extension to the protocol: an identifier, settings to declare, methods, middleware and result types.

A client that did not declare the extension is served as if it were not there: calling its methods needs the capability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weft.errors import RegistrationError, UndeclaredExtension
from weft.protocol.names import check_extension_id
from weft.protocol.revisions import METHODS, Method
from weft.server.calls.call import Call, Handler
from weft.server.runtime.dispatch import Middleware


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

    def require(self, call: Call) -> None:
        """Refuse a call of this extension's methods by a client that did not declare it (VER-06).

        Where a handshake is not remembered, the call itself has to do: who calls the method knows the extension.
        """
        if call.knows_client and not self.declared_by(call):
            raise UndeclaredExtension(call.method, self.id)


def check_extensions(extensions: Sequence[Extension]) -> None:
    """Refuse an identifier that is not one (VER-05), and what is there twice or belongs to the core."""
    taken: dict[str, str] = dict.fromkeys(METHODS, "the core protocol")
    seen: set[str] = set()
    for extension in extensions:
        name = type(extension).__name__
        try:
            check_extension_id(extension.id)
        except ValueError as error:
            raise RegistrationError(f"{name}.id is {extension.id!r}: {error}") from None
        if extension.id in seen:
            raise RegistrationError(f"The extension {extension.id!r} is given twice; once is enough.")
        seen.add(extension.id)
        for method, _ in extension.methods():
            if method.name in taken:
                raise RegistrationError(
                    f"{name} adds the method {method.name!r}, which belongs to {taken[method.name]}. Name it otherwise."
                )
            taken[method.name] = extension.id
