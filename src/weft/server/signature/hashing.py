"""Sets and mappings of a parameter whose keys a client can choose so that all of them have one hash.

Owns which types these are, and what is refused. Python's hash of a text is secret, but that of a number is the number
modulo 2**61 - 1, and that of a tuple, a UUID or a Decimal is made of such hashes. Keys that share a hash are compared
one by one, so that twenty thousand of them take seconds. Here each key is looked at before it is put in; a few with
one hash are no harm, and happen (-1 and -2). Tools without such parameters pay nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pydantic_core import core_schema

from weft.server.signature.errors import ArgumentsError
from weft.server.signature.plain import with_each

__all__ = ["guarded", "watching"]

_MOST_ALIKE = 16
_KEYS = {
    "counter": "keys_schema",
    "dict": "keys_schema",
    "frozen-dict": "keys_schema",
    "frozendict": "keys_schema",
    "frozenset": "items_schema",
    "ordered-dict": "keys_schema",
    "set": "items_schema",
}
# Types whose hash is secret, or of whose values but few can have the same one.
_HARMLESS = frozenset({"bool", "bytes", "date", "enum", "float", "literal", "none", "str"})
_REFUSAL = (
    f"More than {_MOST_ALIKE} different items of a set, or names of an object, have one and the same hash in Python, "
    "which would take it too long. Send fewer of them in one call."
)


class _Seen(threading.local):
    """The keys of the call that is being validated in this thread, by their hash."""

    by_hash: dict[int, list[Any]]


_seen = _Seen()


def guarded(core: Any) -> Any:
    """The same core schema, but with keys that could have one hash looked at; the very same one if there are none."""
    found: list[str] = []

    def guard(schema: dict[str, Any]) -> dict[str, Any]:
        place = _KEYS.get(schema["type"])
        if place is None:
            return schema
        keys: Any = schema.get(place)
        if keys is None and place == "keys_schema":  # any name of a JSON object, which is a text
            return schema
        if keys is not None and _is_harmless(keys):
            return schema
        found.append(place)
        return {**schema, place: core_schema.no_info_after_validator_function(_look_at, keys or {"type": "any"})}

    changed = with_each(core, guard)
    return changed if found else core


def watching(validate: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The same validator, of a schema that `guarded` has changed."""

    def watched(raw: bytes, **options: Any) -> dict[str, Any]:
        _seen.by_hash = {}
        try:
            return validate(raw, **options)
        finally:
            _seen.by_hash = {}  # what came in is not held

    return watched


def _is_harmless(keys: Any) -> bool:
    return keys["type"] in _HARMLESS or (keys["type"] in ("default", "nullable") and _is_harmless(keys["schema"]))


def _look_at(key: Any) -> Any:
    """Let a key pass, unless too many others have its hash."""
    try:
        alike = _seen.by_hash.setdefault(hash(key), [])
    except TypeError:  # it has none: the set says so
        return key
    if key not in alike:
        if len(alike) == _MOST_ALIKE:
            raise ArgumentsError([_REFUSAL])  # no ValueError, upon which pydantic would go on with the next key
        alike.append(key)
    return key
