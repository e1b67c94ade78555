"""Add extensions, and choose the eras and methods that a server serves.

Extensions: how a package adds to the protocol.

An extension has an identifier, settings to declare, methods with their handlers, and result types of its own. A client
that does not declare the extension is served as if it were not there: its methods then need the capability (VER-06).

Which eras a server serves, which methods it offers in each, and what serves each method.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from weft.eras.base import ServerEra
from weft.eras.session import SESSION
from weft.eras.stateless import STATELESS
from weft.errors import RegistrationError, UndeclaredExtension, UsageError
from weft.protocol.names import check_extension_id
from weft.protocol.revisions import METHODS, Method
from weft.server.calls.call import Call
from weft.server.runtime.dispatch import Handler, Middleware
from weft.server.sessions.handshake import HANDLERS

if TYPE_CHECKING:
    from weft.server.api.server import Server


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


_ERAS: Mapping[str, ServerEra] = {era.name: era for era in (STATELESS, SESSION)}  # in the order they are asked


def read_eras(names: Sequence[str]) -> tuple[ServerEra, ...]:
    """The eras of these names."""
    listed = isinstance(names, Collection) and not isinstance(names, str)  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
    if not listed or not names or any(name not in _ERAS for name in names):
        raise UsageError(f"Server(eras={names!r}) is not possible: give one or both of {', '.join(map(repr, _ERAS))}.")
    return tuple(era for name, era in _ERAS.items() if name in names)


def offered(era: ServerEra, declared: Mapping[str, Any], extensions: Sequence[Extension]) -> dict[str, Method]:
    """The methods of an era that this server offers: those whose capability it declares, and those of extensions."""
    methods = {
        name: method
        for name, method in METHODS.items()
        if name in era.methods and (method.capability is None or method.capability in declared)
    }
    for extension in extensions:
        methods.update({method.name: method for method, _ in extension.methods()})
    return methods


def handlers_of(server: Server) -> dict[str, Handler]:
    """What serves the methods of the core, by the registry that has what they are about."""
    return {
        "tools/list": server.tools.list,
        "tools/call": server.tools.call,
        "resources/list": server.resources.list,
        "resources/templates/list": server.resources.templates,
        "resources/read": server.resources.read,
        "prompts/list": server.prompts.list,
        "prompts/get": server.prompts.get_prompt,
        "completion/complete": server.completions.complete,
        "subscriptions/listen": server.subscriptions.listen,
        **HANDLERS,
    }
