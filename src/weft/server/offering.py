"""Which eras a server serves, and which methods it offers in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.eras.base import ServerEra
from weft.eras.session import SESSION
from weft.eras.stateless import STATELESS
from weft.errors import UsageError
from weft.protocol.revisions import METHODS, Method
from weft.server.extensions import Extension

__all__ = ["offered", "read_eras"]

_ERAS: Mapping[str, ServerEra] = {era.name: era for era in (STATELESS, SESSION)}  # in the order they are asked


def read_eras(names: Sequence[str]) -> tuple[ServerEra, ...]:
    """The eras of these names."""
    if not names or isinstance(names, str) or any(name not in _ERAS for name in names):
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
