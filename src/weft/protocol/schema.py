"""JSON Schemas that others wrote: checks, reference policy, bounds, and validation against them.

Supported dialects: 2020-12 (the default when `$schema` is absent, and the one to use), 2019-09, draft-07, draft-06 and
draft-04. Nothing is ever fetched: a `$ref` must lead to something within the schema itself.

The engine cannot be interrupted, so its work is bounded beforehand (default D14: 250 ms): size and depth of a schema
are limited, its regular expressions run on a linear engine (R7), and what comes of each part of the schema that meets
a part of the value is counted, with a limit, before the engine is started: references that lead back to themselves may
otherwise multiply without end, and many options with many values.

Owns foreign schemas only; those that Weft makes from signatures need no check. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
"""The supported values of `$schema`, with or without a final `#`, and what they are called (JSCH-04)."""

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SHOWN = 60
_MAX_BYTES = 262_144
_MAX_DEPTH = 64
_REGEX_BYTES = 1 << 20

# Work is counted in steps: a step is one part of the schema that meets one part of the value.
_MAX_WORK = 50_000
_MAX_LISTED_WORK = 5_000
_LOOKS_PER_STEP = 20  # a look is what takes a fraction of a microsecond: at a name, an option, a part without others
_LOOKS_PER_PATTERN = 4  # for each name that it is held against
_LOOKS_PER_FLOAT = 40  # among the options: the engine compares those digit by digit
_WORDS_PER_LOOK = 10  # text among other options
_CHARACTERS_PER_LOOK = 1000
_MOST_FLAT = 20  # parts without others inside that are counted in looks
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_IN_PLACE_ONE = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_CHILDREN = (
    "additionalProperties",
    "items",
    "additionalItems",
    "contains",
    "unevaluatedItems",
    "unevaluatedProperties",
)

_MULTIPLYING = (*_CHILDREN, "patternProperties", "propertyNames")  # looks at every part of a value
_SMALL = 500  # parts of a schema that is never worth counting
_FEW_PATTERNS = 20

_APPLICATORS = frozenset({
    *_IN_PLACE, *_IN_PLACE_ONE, *_REFERENCES, *_CHILDREN, "dependencies", "dependentSchemas", "patternProperties",
    "prefixItems", "properties", "propertyNames",
})  # fmt: skip


class SchemaError(ValueError):
    """A schema cannot be used; the text says why, and what would do."""


class Problem(msgspec.Struct, frozen=True):
    """One way in which a value does not fit: the path to the part that is wrong, and a sentence about it."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in self.path)
        return f"'{place.lstrip('.')}': {self.message[:1].lower()}{self.message[1:]}" if place else self.message


class Validator:
    """A compiled schema; make one with `compile_schema`."""

    __slots__ = ("_engine", "_parts")

    def __init__(self, schema: dict[str, Any], engine: jsonschema_rs.Validator) -> None:
        self._engine = engine
        self._parts = None if _is_small(schema) else _Parts(schema)

    def problems(self, value: Any, limit: int = 10) -> list[Problem]:
        """What is wrong with a value of plain JSON types; empty when it fits. The value itself is never quoted."""
        work = 0 if self._parts is None else _work(self._parts, value)
        if work > _MAX_WORK:
            return [Problem((), "It is too large to be checked against this schema; send less.")]
        try:
            if self._engine.is_valid(value):
                return []
            if work > _MAX_LISTED_WORK:
                return [Problem((), "It does not fit its schema, and is too large to say where.")]
            found: list[Problem] = []
            for error in self._engine.iter_errors(value):
                path = tuple(error.instance_path)
                message = _sentence(error.message, _follow(path, value))
                found.append(Problem(path, message))
                if len(found) == limit:
                    break
        except (ValueError, TypeError, OverflowError):
            return [Problem((), "It is nested too deeply, or is not made of JSON values.")]
        return found


def compile_schema(schema: Mapping[str, Any]) -> Validator:
    """Compile a foreign schema; SchemaError when it is invalid, too large, or refers to something outside itself.

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
    """SchemaError unless the schema's root is of type "object", as a tool's inputSchema must be (TOOL-06)."""
    if schema.get("type") != "object":
        raise SchemaError(
            'The root of an input schema must have "type": "object", because arguments come by name; '
            f"it is {json.dumps(schema.get('type'), default=str)[:60]}. Wrap the value in an object with a property."
        )


def json_type(value: Any) -> str:
    """What a JSON value is, in words.

    >>> json_type("3"), json_type(None), json_type([])
    ('a string', 'null', 'an array')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    words: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (str, "a string"),
        (int, "an integer"),
        (float, "a number"),
        (Mapping, "an object"),
        ((list, tuple), "an array"),
    )
    return next((word for kind, word in words if isinstance(value, kind)), "something that is not JSON")


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether a JSON value is an array."""
    return isinstance(value, list)


def referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema that Weft made, or what it refers to under `$defs` of the root.

    >>> referred({"$ref": "#/$defs/Color"}, {"$defs": {"Color": {"enum": ["red"]}}})
    {'enum': ['red']}
    """
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    return found


def alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a value may be by a part of a schema that Weft made: the members of a union, else the part alone.

    >>> list(alternatives({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}, {"$defs": {"A": {"type": "string"}}}))
    [{'type': 'null'}, {'type': 'string'}]
    """
    pending, followed = [schema], set[str]()  # unions may be members of each other
    while pending:
        one = pending.pop(0)
        reference = one.get("$ref")
        if reference is not None:
            if reference not in followed:
                followed.add(reference)
                pending.insert(0, referred(one, root))
        elif members := [*one.get("anyOf", ()), *one.get("oneOf", ())]:
            pending[:0] = members
        else:
            yield one


# --- before compiling


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of plain JSON types, within the bounds (JSCH-09)."""
    try:
        text = json.dumps(schema, allow_nan=False, default=_plain)
    except RecursionError:
        raise SchemaError(_TOO_DEEP) from None
    except (TypeError, ValueError) as error:
        raise SchemaError(f"The schema is not made of JSON values: {error}. Use dicts, lists, text, numbers.") from None
    if len(text) > _MAX_BYTES:
        raise SchemaError(f"The schema has {len(text)} bytes as JSON, more than the {_MAX_BYTES} allowed; shorten it.")
    plain = json.loads(text)
    if not is_object(plain):
        raise SchemaError(f"A schema must be a JSON object; it is {json_type(plain)}.")
    if _is_too_deep(plain):
        raise SchemaError(_TOO_DEEP)
    return plain


_TOO_DEEP = f"The schema is nested more than {_MAX_DEPTH} levels deep; use $defs to flatten it."


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _is_too_deep(schema: Any) -> bool:
    level: list[Any] = [schema]
    for _ in range(_MAX_DEPTH + 1):
        level = [child for node in level for child in _inside(node)]
        if not level:
            return False
    return True


def _inside(node: Any) -> Iterator[Any]:
    if is_object(node):
        yield from node.values()
    elif is_array(node):
        yield from node


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
        return SchemaError(
            f"A reference cannot be resolved: {error.message[:300]}. References are never fetched; "
            "put what it refers to under $defs in the schema itself."
        )
    if kind == "Format" and error.message.endswith('"regex"'):
        return SchemaError(
            f"The regular expression at {place!r} cannot be used: it is malformed, too large, or needs look-around or "
            "back-references, which do not run in linear time. Rewrite it without them."
        )
    if kind == "AnyOf" and place.rpartition("/")[2] == "type":  # `type` alone takes one or several
        return SchemaError(
            f"The schema is not valid JSON Schema at {place!r}: {_shown(error.instance)} is no type. The types are "
            f"{', '.join(_TYPES)}. Correct it."
        )
    return SchemaError(
        f"The schema is not valid JSON Schema at {place or 'its root'!r}: {_sentence(error.message, error.instance)} "
        "Correct it."
    )


def _shown(value: Any) -> str:
    """A part of a schema, bounded."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


# --- while validating


class _Parts:
    """The parts of a schema: those that a reference may name, and what each costs by itself."""

    __slots__ = ("_anchors", "_ids", "_looks", "root")

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self._anchors: dict[str, Any] = {}
        self._ids: dict[str, Any] = {}
        self._looks: dict[int, int] = {}  # by identity; where there are any
        pending: list[Any] = [root]
        while pending:
            node = pending.pop()
            pending += _inside(node)
            if is_object(node):
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(name := node.get(keyword), str):
                        self._anchors[name] = node
                if isinstance(name := node.get("$id"), str):
                    self._ids[name.rstrip("#").rpartition("/")[2]] = node
                if looks := _looks_of(node):
                    self._looks[id(node)] = looks

    def resolve(self, reference: str) -> Any:
        """What a reference leads to; the root when that is not plain, which counts too much rather than too little."""
        base, _, fragment = reference.partition("#")
        node = self._ids.get(base.rpartition("/")[2], self.root) if base else self.root
        if not fragment.startswith("/"):
            return self._anchors.get(fragment, node)
        for step in unquote(fragment[1:]).split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if is_array(node):
                node = node[int(step)] if step.isdecimal() and int(step) < len(node) else None
            else:
                node = node.get(step) if is_object(node) else None
        return self.root if node is None else node

    def looks(self, part: dict[str, Any]) -> int:
        """The looks of a part at each value that it meets, whatever the value."""
        return self._looks.get(id(part), 0)


def _looks_of(part: dict[str, Any]) -> int:
    """For the options and the names that a part lists. Options that are all text are found without a look at each."""
    options, looks = part.get("enum"), 0
    pending = [part[keyword] for keyword in ("required", "dependentRequired") if keyword in part]
    if is_array(options) and not all(isinstance(option, str) for option in options):
        looks += len(options) // _WORDS_PER_LOOK
        pending += [option for option in options if option is not None and not isinstance(option, bool | str)]
    while pending:
        node = pending.pop()
        looks += _LOOKS_PER_FLOAT if isinstance(node, float) else 1
        pending += _inside(node)
    return looks


def _is_small(schema: dict[str, Any]) -> bool:
    """Whether little is to be done whatever the value: no part of the schema is met more than once."""
    pending: list[Any] = [schema]
    patterns = 0
    for _ in range(_SMALL):
        if not pending:
            return patterns <= _FEW_PATTERNS
        node = pending.pop()
        pending += _inside(node)
        if not is_object(node):
            continue
        if any(is_object(node.get(word)) or is_array(node.get(word)) for word in _MULTIPLYING):
            return False
        if node.get("uniqueItems") is True or not node.keys().isdisjoint(_REFERENCES):
            return False
        patterns += "pattern" in node
    return False


_Meeting = tuple[Any, Any, frozenset[str]]  # a part of the schema, a part of the value, references followed here


def _work(parts: _Parts, value: Any) -> int:
    """The steps that it takes to hold a value against a schema, counted up to just above the limit."""
    met, looks = 0, 0
    pending: list[_Meeting] = [(parts.root, value, frozenset())]
    while pending:
        part, instance, trail = pending.pop()
        met += 1
        if is_object(part):
            looks += parts.looks(part) + _looks_at(part, instance) + len(trail)  # which is copied, if only here
            if not _APPLICATORS.isdisjoint(part):
                pending += _same_place(parts, part, instance, trail)
                named, deep, flat = _below(parts, part, instance)
                looks += flat
                if deep and len(deep) * len(instance) > _MAX_WORK:  # a list of them would take the memory
                    return _MAX_WORK + 1
                pending += [(child, inner, frozenset[str]()) for child, inner in named]
                pending += [(child, inner, frozenset[str]()) for child in deep for inner in _inside(instance)]
        if met + len(pending) + looks // _LOOKS_PER_STEP > _MAX_WORK:
            return _MAX_WORK + 1
    return met + looks // _LOOKS_PER_STEP


def _looks_at(part: dict[str, Any], instance: Any) -> int:
    """What a part costs at one value, by the size of that."""
    if isinstance(instance, str):
        return len(instance) // _CHARACTERS_PER_LOOK
    if is_array(instance):
        return len(instance) if part.get("uniqueItems") is True else 0
    if is_object(instance):
        patterns = len(part.get("patternProperties", ())) * _LOOKS_PER_PATTERN
        return min(len(part.get("properties", ())), len(instance)) + patterns * (len(instance) + 1)
    return 0


def _same_place(parts: _Parts, part: dict[str, Any], instance: Any, trail: frozenset[str]) -> Iterator[_Meeting]:
    """The subschemas that look at the same value."""
    for keyword in _IN_PLACE:
        for child in part.get(keyword, ()):
            yield child, instance, trail
    for keyword in _IN_PLACE_ONE:
        if keyword in part:
            yield part[keyword], instance, trail
    for keyword in ("dependentSchemas", "dependencies"):
        for child in part.get(keyword, {}).values():
            yield child, instance, trail
    for keyword in _REFERENCES:
        reference = part.get(keyword)
        # A reference that leads back to itself without going deeper is not followed again by the engine either.
        if isinstance(reference, str) and reference not in trail:
            yield parts.resolve(reference), instance, trail | {reference}


def _below(
    parts: _Parts, part: dict[str, Any], instance: Any
) -> tuple[list[tuple[Any, Any]], list[dict[str, Any]], int]:
    """The subschemas that look at what is inside the value: those at one place, each with what is there; those that
    look everywhere; and the looks of more such, which look no further.
    """
    if not (is_object(instance) or is_array(instance)) or not instance:
        return [], [], 0
    named: list[tuple[Any, Any]] = []
    if is_object(instance):
        properties: dict[str, Any] = part.get("properties", {})
        fewer = properties if len(properties) < len(instance) else instance
        named = [(properties[name], instance[name]) for name in fewer if name in properties and name in instance]
    else:
        for keyword in ("prefixItems", "items"):  # the latter in older dialects
            if is_array(children := part.get(keyword)):
                named += zip(children, instance, strict=False)
    everywhere = [part.get(keyword) for keyword in (*_CHILDREN, "propertyNames")]
    deep = [child for child in (*everywhere, *part.get("patternProperties", {}).values()) if is_object(child)]
    flat = [child for child in deep if _is_flat(child)]
    if len(flat) > _MOST_FLAT:
        return named, deep, 0
    deep = [child for child in deep if not _is_flat(child)]
    return named, deep, sum(1 + parts.looks(child) for child in flat) * len(instance)


def _is_flat(part: dict[str, Any]) -> bool:
    return _APPLICATORS.isdisjoint(part) and "uniqueItems" not in part


def _follow(path: tuple[str | int, ...], value: Any) -> Any:
    for step in path:
        value = value[step]
    return value


def _sentence(message: str, value: Any) -> str:
    """The engine's message as a bounded sentence that says what was got in terms of types."""
    text = printable(message[:300], "?").rstrip(".")
    if not text.startswith("the value"):
        return f"{text}."
    return f"{text[0].upper()}{text[1:]}; it is {json_type(value)}."
