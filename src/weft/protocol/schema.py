"""Compile JSON Schemas that come from users or peers, and check values against them.

Supported dialects: 2020-12 (the default without `$schema`, and the recommended one), 2019-09, draft-07, draft-06 and
draft-04. Nothing is fetched from the network: the target of a `$ref` must be in the schema itself.

The engine (jsonschema-rs) cannot be interrupted, so its work is limited in advance, to about 250 ms. Size and depth of
a schema are limited, and its regular expressions run in linear time. An upper bound of the work for one value is
computed from the schema, and multiplied by the number of values. This product is limited, because recursive references,
or many options for many values, could otherwise take very long.

Schemas that Weft makes from function signatures are not limited in this way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from urllib.parse import unquote

import msgspec

from weft.protocol.names import printable

if TYPE_CHECKING:
    import jsonschema_rs


DIALECTS: Mapping[str, str] = {
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
    "https://json-schema.org/draft/2019-09/schema": "2019-09",
    "http://json-schema.org/draft-07/schema": "draft-07",
    "http://json-schema.org/draft-06/schema": "draft-06",
    "http://json-schema.org/draft-04/schema": "draft-04",
}
"""The supported values of `$schema`, with or without a final `#`, and their short names."""

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_TYPE_WORDS: Sequence[tuple[Any, str]] = (
    (bool, "a boolean"), (str, "a string"), (int, "an integer"), (float, "a number"), (Mapping, "an object"),
    ((list, tuple), "an array"),
)  # fmt: skip
_CONTAINERS: Any = (dict, list, tuple)
_SHOWN = 60
_MAX_BYTES = 262_144
_MAX_DEPTH = 64
_REGEX_BYTES = 1 << 20

# A unit of work is one part of the schema that checks one value. It takes the engine at most 0.1 µs.
_MAX_WORK = 2_000_000
_MAX_LISTED_WORK = 20_000  # lower, because listing the problems takes a hundred times as long
_MAX_PARTS = 100_000  # how many parts of a schema may be visited to compute the work, with references
_MAX_RESOURCES = 32  # parts of a schema that have an `$id`
_SMALL = 500  # a schema with fewer parts is not measured, if no part checks all members of a value
_NUMBER_WORK = 100  # work for a float, which the engine compares digit by digit
_CHARACTERS_PER_VALUE = 64
_ONE_AT_SAME_VALUE = ("not", "if", "then", "else")
_SEVERAL_AT_SAME_VALUE = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_UNEVALUATED_TIMES = 3  # with these keywords, the engine evaluates the other parts for the same value three times
_IN_ARRAY = frozenset({"additionalItems", "contains", "items", "prefixItems", "unevaluatedItems", "uniqueItems"})
_IN_OBJECT = frozenset({
    "additionalProperties", "patternProperties", "properties", "propertyNames", "unevaluatedProperties",
})  # fmt: skip
_MULTIPLYING = (_IN_ARRAY | _IN_OBJECT | {*_REFERENCES, "pattern"}) - {"properties", "prefixItems"}
_LISTED = (
    "const", "dependentRequired", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf",
    "required",
)  # fmt: skip


class SchemaError(ValueError):
    """The error for a schema that cannot be used. The message says why, and what to do."""


class Problem(msgspec.Struct, frozen=True):
    """One reason why a value does not match its schema: the path to the wrong part, and a sentence about it."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in self.path)
        return f"'{place.lstrip('.')}': {self.message[:1].lower()}{self.message[1:]}" if place else self.message


class Validator:
    """A compiled schema, which can check values. `compile_schema` creates it."""

    __slots__ = ("_cost", "_engine")

    def __init__(self, schema: dict[str, Any], engine: jsonschema_rs.Validator) -> None:
        self._engine = engine
        self._cost = None if _is_small(schema) else _Cost(schema)

    def problems(self, value: Any, limit: int = 10) -> list[Problem]:
        """Return why a value does not match the schema: at most `limit` problems, or an empty list if it matches.

        The value must consist of JSON types (dict, list, str, int, float, bool, None). The messages never show the
        value.
        """
        try:
            work = 0 if self._cost is None else self._cost.measure(value)
            if work > _MAX_WORK:
                return [Problem((), "It is too large to be checked against this schema; send less.")]
            if self._engine.is_valid(value):
                return []
            if work > _MAX_LISTED_WORK:
                return [Problem((), "It does not fit its schema, but is too large to find out where.")]
            found: list[Problem] = []
            for error in self._engine.iter_errors(value):
                path = tuple(error.instance_path)
                message = _sentence(error.message, _follow(path, value))
                found.append(Problem(path, message))
                if len(found) == limit:
                    break
        except (ValueError, TypeError, OverflowError, RecursionError):
            return [Problem((), "It is nested too deeply, or contains something that is not a JSON value.")]
        return found


def compile_schema(schema: Mapping[str, Any]) -> Validator:
    """Compile a schema; raise SchemaError if it is invalid, too large, or has a reference to another document.

    >>> compile_schema({"type": "object", "required": ["city"]}).problems({})
    [Problem(path=(), message='"city" is a required property.')]
    """
    import jsonschema_rs

    plain = _bounded(schema)
    _check_dialect(plain)
    try:
        engine = jsonschema_rs.validator_for(
            plain,
            offline=True,
            mask="the value",
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_REGEX_BYTES, dfa_size_limit=_REGEX_BYTES),
        )
    except jsonschema_rs.ValidationError as error:
        raise _refusal(error) from None
    except ValueError as error:
        raise SchemaError(f"The schema cannot be compiled: {error}. Simplify it.") from None
    return Validator(plain, engine)


def check_object_schema(schema: Mapping[str, Any]) -> None:
    """Raise SchemaError if the root of a tool's inputSchema does not have the type "object"."""
    if schema.get("type") != "object":
        raise SchemaError(
            'The root of an input schema must have "type": "object", because arguments come by name; '
            f"it is {json.dumps(schema.get('type'), default=str)[:60]}. Wrap the value in an object with a property."
        )


def json_type(value: Any) -> str:
    """Return the type of a JSON value in words, such as "a string".

    >>> json_type("3"), json_type(None), json_type([])
    ('a string', 'null', 'an array')
    """
    if value is None:
        return "null"
    return next((word for kind, word in _TYPE_WORDS if isinstance(value, kind)), "something that is not JSON")


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return True if a JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Return True if a JSON value is an array."""
    return isinstance(value, list)


def alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the members of a union (`anyOf` or `oneOf`), or `schema` itself if it is not a union.

    References are replaced by their targets in the `$defs` of `root`. A union inside the union is replaced by its
    members. This function is only for schemas that Weft has made.

    >>> list(alternatives({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}, {"$defs": {"A": {"type": "string"}}}))
    [{'type': 'null'}, {'type': 'string'}]
    """
    pending, followed = [schema], set[str]()  # `followed` prevents an endless loop if unions contain each other
    while pending:
        one = pending.pop(0)
        reference = one.get("$ref")
        if reference is not None:
            if reference not in followed:
                followed.add(reference)
                pending.insert(0, root.get("$defs", {}).get(reference.rpartition("/")[2], {}))
        elif members := [*one.get("anyOf", ()), *one.get("oneOf", ())]:
            pending[:0] = members
        else:
            yield one


# --- checks before compiling


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema as a dict; raise SchemaError if it is not JSON, too large, or nested too deeply."""
    try:
        text = json.dumps(schema, allow_nan=False, default=_plain)
    except RecursionError:
        raise SchemaError(_TOO_DEEP) from None
    except (TypeError, ValueError) as error:
        raise SchemaError(f"The schema is not valid JSON: {error}. Use only dicts, lists, text and numbers.") from None
    if len(text) > _MAX_BYTES:
        raise SchemaError(f"The schema has {len(text)} bytes as JSON, more than the {_MAX_BYTES} allowed; shorten it.")
    plain = json.loads(text)
    if not is_object(plain):
        raise SchemaError(f"A schema must be a JSON object; it is {json_type(plain)}.")
    if _depth(plain) - 1 > _MAX_DEPTH:
        raise SchemaError(_TOO_DEEP)
    return plain


_TOO_DEEP = f"The schema is nested more than {_MAX_DEPTH} levels deep; use $defs to flatten it."


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _depth(value: Any) -> int:
    """Return how many levels of arrays and objects a JSON value has."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, _CONTAINERS)]:
        depth += 1
        level = [child for node in level for child in _members(node)]
    return depth


def _members(node: Any) -> Iterable[Any]:
    if is_object(node):
        return node.values()
    return cast("Iterable[Any]", node) if isinstance(node, _CONTAINERS) else ()


def _walk(node: Any) -> Iterator[Any]:
    """Yield a JSON value and all values inside it."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += _members(node)


def _check_dialect(schema: Mapping[str, Any]) -> None:
    dialect = schema.get("$schema")
    if dialect is None or (isinstance(dialect, str) and dialect.removesuffix("#") in DIALECTS):
        return
    raise SchemaError(
        f"The schema's dialect {str(dialect)[:200]!r} is not supported; supported are {', '.join(DIALECTS.values())}. "
        'Use "https://json-schema.org/draft/2020-12/schema", or leave $schema out.'
    )


def _refusal(error: jsonschema_rs.ValidationError) -> SchemaError:
    place = "/".join(str(step) for step in error.instance_path)
    kind = type(error.kind).__name__
    if kind == "Referencing":
        remedy = "References are never fetched; put the target under $defs in the schema itself."
        return SchemaError(f"A reference cannot be resolved: {error.message[:300]}. {remedy}")
    if kind == "Format" and error.message.endswith('"regex"'):
        return SchemaError(
            f"The regular expression at {place!r} cannot be used: it is malformed, too large, or needs look-around or "
            "back-references, which do not run in linear time. Rewrite it without them."
        )
    if kind == "AnyOf" and place.rpartition("/")[2] == "type":  # only `type` may be one value or a list
        return SchemaError(
            f"The schema is not valid JSON Schema at {place!r}: {_shown(error.instance)} is not a type. The types are "
            f"{', '.join(_TYPES)}. Correct it."
        )
    problem = _sentence(error.message, error.instance)
    return SchemaError(f"The schema is not valid JSON Schema at {place or 'its root'!r}: {problem} Correct it.")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


# --- how much work it is to check a value


class _Cost:
    """The upper bound of the work that the engine needs to check a value against a schema.

    The bound is the number of values inside the checked value, times the work for one of them. The work for one value
    depends on the schema, and on how deep the checked value is nested. If several parts of the schema check the same
    value, their work is added up. The work of parts that check every member of an array or object, such as `items`, is
    added up too. Other parts check only one member, such as those in `properties`. Of these, only the member with the
    most work counts.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self._resources: list[Any] = [schema]
        self._anchors: dict[str, list[Any]] = {}
        self._own: dict[int, int] = {}  # work of a part without its subschemas, by `id(part)`
        self._together: dict[int, list[dict[str, Any]]] = {}  # parts that check the same value, by `id(first part)`
        self._costs: dict[tuple[int, int], int] = {}  # results of `_cost_at`, by `id(part)` and depth
        self._left = 0  # number of parts that may still be visited
        id_keyword = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        for node in _walk(schema):
            if is_object(node):
                self._own[id(node)] = _own_work(node)
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := node.get(keyword), str):
                        self._anchors.setdefault(name, []).append(node)
                if isinstance(node.get(id_keyword), str) and node is not schema:
                    self._resources.append(node)
        if len(self._resources) > _MAX_RESOURCES:
            raise SchemaError(f"The schema has more than {_MAX_RESOURCES} parts with an {id_keyword!r}; use $defs.")

    def measure(self, value: Any) -> int:
        """Return an upper bound of the work to check a value. Above `_MAX_WORK`, the value must not be checked."""
        self._left = _MAX_PARTS
        data = msgspec.json.encode(value)
        values = 1 + data.count(b",") + data.count(b"{") + data.count(b"[") + len(data) // _CHARACTERS_PER_VALUE
        return values * self._cost_at(self.schema, _depth(value))

    def _cost_at(self, part: Any, depth: int) -> int:
        """Return the work to check one value with the schema part `part`. The value has `depth` nested levels."""
        self._left -= 1
        if self._left < 0:
            return _MAX_WORK + 1
        if not is_object(part):
            return 1
        key = id(part), depth
        if (known := self._costs.get(key)) is not None:
            return known
        parts = self._parts_at_same_value(part)
        costs = [sum(self._own[id(one)] for one in parts)]
        if depth:
            costs += [self._cost_of_member(parts, keywords, depth - 1) for keywords in (_IN_ARRAY, _IN_OBJECT)]
        cost = min(max(costs), _MAX_WORK + 1)
        if self._left < 0:
            return _MAX_WORK + 1
        self._costs[key] = cost
        return cost

    def _cost_of_member(self, parts: list[dict[str, Any]], keywords: frozenset[str], depth: int) -> int:
        """Return the work to check one member of an array or object with `parts`: that of the most expensive member.

        `keywords` are the schema keywords whose subschemas check members. Each member has `depth` nested levels.
        """
        everywhere, by_place = 0, Counter[str | int]()
        for part in parts:
            for keyword in keywords & part.keys():
                inner = part[keyword]
                if keyword == "properties" and is_object(inner):
                    for name, child in inner.items():
                        by_place[name] += self._cost_at(child, depth)
                elif is_array(inner):
                    for place, child in enumerate(inner):
                        by_place[place] += self._cost_at(child, depth)
                elif keyword == "patternProperties":
                    everywhere += sum(self._cost_at(child, depth) for child in _members(inner))
                else:
                    everywhere += self._cost_at(inner, depth)
        return everywhere + max(by_place.values(), default=0)

    def _parts_at_same_value(self, first: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the schema part `first`, and all other parts that check the same value as `first`.

        If the engine evaluates a part several times, the list contains this part several times.
        """
        if (known := self._together.get(id(first))) is not None:
            self._left -= len(known)
            return known
        found: list[dict[str, Any]] = []
        pending: list[tuple[Any, frozenset[int]]] = [(first, frozenset())]  # each with the references that led to it
        while pending and self._left >= 0:
            part, trail = pending.pop()
            self._left -= 1 + len(trail)  # copying the trail is work, too
            if not is_object(part):
                continue
            found.append(part)
            inner: list[Any] = [part[keyword] for keyword in _ONE_AT_SAME_VALUE if keyword in part]
            inner += [child for keyword in _SEVERAL_AT_SAME_VALUE for child in _members(part.get(keyword))]
            children: list[tuple[Any, frozenset[int]]] = [(child, trail) for child in inner]
            for reference in (part[keyword] for keyword in _REFERENCES if isinstance(part.get(keyword), str)):
                # The engine does not follow a reference again that leads back to itself at the same value.
                targets = [target for target in self._resolve(reference) if id(target) not in trail]
                children += [(target, trail | {id(target)}) for target in targets]
            pending += children * (1 if _UNEVALUATED.isdisjoint(part) else _UNEVALUATED_TIMES)
        if self._left >= 0:
            self._together[id(first)] = found
        return found

    def _resolve(self, reference: str) -> list[Any]:
        """Return all parts of the schema to which a reference may point.

        There can be several parts, because the base URI of the reference is not known.
        """
        fragment = unquote(reference.partition("#")[2])
        if not fragment:
            return self._resources
        if not fragment.startswith("/"):
            return self._anchors.get(fragment, self._resources)
        steps = [step.replace("~1", "/").replace("~0", "~") for step in fragment[1:].split("/")]
        self._left -= len(steps) * len(self._resources)
        return [target for target in (_find(resource, steps) for resource in self._resources) if target is not None]


def _find(node: Any, steps: list[str]) -> Any:
    for step in steps:
        if is_array(node):
            node = node[int(step)] if step.isdecimal() and int(step) < len(node) else None
        else:
            node = node.get(step) if is_object(node) else None
    return node


def _own_work(part: dict[str, Any]) -> int:
    """Return the work of a schema part without its subschemas. Strings in an `enum` are not counted."""
    listed = [part[keyword] for keyword in _LISTED if keyword in part]
    listed += [option for option in _members(part.get("enum")) if not isinstance(option, str)]
    return sum(_NUMBER_WORK if isinstance(node, float) else 1 for node in _walk(listed))


def _is_small(schema: dict[str, Any]) -> bool:
    """Return whether checks with a schema are always fast: it has few parts, and each part checks only one value."""
    nodes = [*islice(_walk(schema), _SMALL)]
    return len(nodes) < _SMALL and all(_MULTIPLYING.isdisjoint(node) for node in nodes if is_object(node))


# --- texts of problems


def _follow(path: tuple[str | int, ...], value: Any) -> Any:
    for step in path:
        value = value[step]
    return value


def _sentence(message: str, value: Any) -> str:
    """Return the engine's error message as a short sentence. If it begins with "the value", the type is added."""
    text = printable(message[:300], "?").rstrip(".")
    if not text.startswith("the value"):
        return f"{text}."
    return f"{text[0].upper()}{text[1:]}; it is {json_type(value)}."
