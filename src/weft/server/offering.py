"""Which eras a server serves, which methods it offers in each, and what serves each method."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.eras.base import ServerEra
from weft.eras.session import SESSION
from weft.eras.stateless import STATELESS
from weft.errors import UsageError
from weft.protocol.revisions import METHODS, Method
from weft.server.dispatch import Handler
from weft.server.extensions import Extension
from weft.server.sessions.handshake import HANDLERS

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["handlers_of", "offered", "read_eras"]

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
