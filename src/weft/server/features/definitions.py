"""Definitions: what a server says of itself and of each feature, checked where the developer writes it.

Owns what is refused because it could not be sent, or is not what it should be, and what is said where a name leads to
nothing. What is special to tools, resources or prompts is checked by their registries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from weft.errors import InvalidParams, RegistrationError, UsageError
from weft.protocol.names import check_meta_key, closest
from weft.server.diagnostics.source_location import caller
from weft.types.base import Implementation, Meta, Struct

_MOST_NAMED = 10  # in the answer to a request for what is not there
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

_encode = msgspec.json.Encoder().encode


def check_definition(definition: Struct, what: str, where: str) -> None:
    """Refuse at registration what may not be listed: what is not JSON, and malformed keys of `_meta` (META-11)."""
    try:
        for key in cast("Meta", getattr(definition, "meta", None) or {}):
            check_meta_key(str(key))
    except ValueError as error:
        raise RegistrationError(f"{what} cannot be registered ({where}): meta= has a wrong key. {error}") from None
    if fault := _fault(definition):
        raise RegistrationError(f"{what} cannot be registered ({where}): {fault}")


def check_info(info: Implementation) -> None:
    """Refuse what a server may not say of itself."""
    if fault := _fault(info):
        raise UsageError(f"Server({info.name!r}) is not possible ({caller()}): {fault}")


def nothing_to_remove(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """The mistake of removing what is not there."""
    return UsageError(f"There is no {kind} {name!r} to remove. {meant_or_known(name, known)}")


def meant_or_known(name: str, known: Sequence[str]) -> str:
    """A hint for a developer: the name that was probably meant, else some of those that there are."""
    near = closest(name, known)
    return f"Did you mean {near!r}?" if near else f"There are: {', '.join(known[:10]) or 'none'}."


def unknown(kind: str, name: str, known: Sequence[str]) -> InvalidParams:
    """The refusal of a request for a tool or a prompt that is not there (PRM-07). `known` are those to be told of."""
    near = closest(name, known)
    if near:
        hint = f"Did you mean {near!r}?"
    elif known:
        rest = len(known) - _MOST_NAMED
        more = f", and {rest} more; {kind}s/list names them all" if rest > 0 else ""
        hint = f"The {kind}s are: {', '.join(known[:_MOST_NAMED])}{more}."
    else:
        hint = f"There are no {kind}s."
    return InvalidParams(f"Unknown {kind}. {hint}")


def _fault(definition: Struct) -> str | None:
    """What is wrong with something that is going to be sent: it is not JSON, or not of the type it should be."""
    try:
        encoded = _encode(definition)
    except (TypeError, ValueError, RecursionError) as error:
        return (
            f"its definition is not JSON: {_clause(error)}. "
            "Use strings, numbers, booleans, None, lists and dictionaries with string keys in it."
        )
    try:
        _check_kinds(definition, msgspec.json.decode(encoded, type=type(definition)))
    except ValueError as error:
        return f"{_option(error)}."
    return None


def _check_kinds(given: Struct, read: Struct) -> None:
    """Refuse a dictionary in place of a struct: it reads the same, but nobody would notice a key that is misspelled."""
    for name in given.__struct_fields__:
        for part, wanted in zip(_items(getattr(given, name)), _items(getattr(read, name)), strict=True):
            if isinstance(wanted, Struct) and not isinstance(part, Struct):
                raise ValueError(f"{name}= takes {type(wanted).__name__}(...), not {type(part).__name__}")  # noqa: TRY004 - told as others


def _items(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _option(error: ValueError) -> str:
    """What is wrong with an option, by its name in Python.

    >>> _option(ValueError("Expected `str | null`, got `int` - at `$.title`"))
    'title= is wrong: expected `str` or None, got `int`'
    """
    text, at, place = str(error).rpartition(" - at ")
    if not at:
        return str(error)
    name = _CAMEL.sub("_", place.strip("`").removeprefix("$.").lstrip("_")).lower()
    return f"{name}= is wrong: {_clause(text.replace(' | null`', '` or None'))}"


def _clause(error: object) -> str:
    sentence = str(error).rstrip(".")
    return sentence[:1].lower() + sentence[1:]
