"""Word what is wrong with arguments and types.

What messages call a type, and how they say why it cannot be used. Owns these words; raises nothing.

Arguments that do not fit, told to a model: what is wrong with each, what is expected, what was got.

Owns the sentences. They name arguments and types, never the values that came in, and no library. It decides
nothing: whether arguments fit is the signature's business.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Union, get_args, get_origin

from weft.errors import ToolError
from weft.limits import DEFAULT_LIMITS, Limits
from weft.protocol.names import closest, printable
from weft.protocol.schema import is_array, is_object, json_type, referred


def type_name(annotation: Any) -> str:
    """A type as its author wrote it, nearly."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "None"
    if origin is Annotated:
        return type_name(parts[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_name, parts))
    if isinstance(origin, type) and parts and all(isinstance(part, type) for part in parts):
        return f"{type_name(origin)}[{', '.join(map(type_name, parts))}]"
    if isinstance(annotation, type):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return repr(annotation).replace("typing.", "")[:120]


def reason(error: BaseException) -> str:
    """Why a type cannot be used, in a sentence."""
    from pydantic import PydanticSchemaGenerationError, PydanticUserError  # plain tools do without: signature.plain

    if isinstance(error, PydanticSchemaGenerationError):
        return "it has a class whose contents are not known: neither a dataclass, a model, nor a TypedDict."
    if isinstance(error, PydanticUserError) and error.code == "typed-dict-version":
        return "on this Python, a TypedDict of `typing` does not say which of its keys are required."
    if isinstance(error, PydanticUserError) and error.code == "invalid-for-json-schema":
        return "it has a part, such as a callable, that has no form in JSON."
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    return text if text.endswith(".") else text + "."


def remedy(error: BaseException, otherwise: str) -> str:
    """What to do about a type that cannot be used: what this error asks for, else what helps in general."""
    if getattr(error, "code", None) == "typed-dict-version":
        return "import TypedDict from typing_extensions instead of typing."
    return otherwise


_MAX_ISSUE = 350
_MAX_ISSUES = 50  # sentences that are made at all: each unknown name is compared with those that there are
_MAX_DEPTH = 64  # schemas refer to themselves
_DIGITS = frozenset("-0123456789")
_MISSING = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})

_PREFIX = re.compile(r"\A(?:Value error|Assertion failed), ")
_SUBJECT = re.compile(r"\A(?:Decimal i|I)nput (?=should |is |violated )")

_Path = tuple[str | int, ...]

_EXPECTED = {  # by the kind of a problem, as a whole or without a suffix
    "bool": "true or false",
    "bytes": "a string",
    "complex": "a complex number as a string",
    "counter": "an object",
    "dataclass": "an object",
    "dataclass_exact": "an object",
    "date": "a date as YYYY-MM-DD",
    "datetime": "a date and time in ISO 8601 form",
    "decimal": "a number",
    "deque": "an array",
    "dict": "an object",
    "finite_number": "a finite number",
    "float": "a number",
    "fraction": "a number",
    "frozen_dict": "an object",
    "frozen_set": "an array",
    "int": "an integer",
    "int_parsing_size": "a smaller integer",
    "iterable": "an array",
    "list": "an array",
    "mapping": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "named_tuple": "an array",
    "none": "null",
    "ordered_dict": "an object",
    "set": "an array",
    "string": "a string",
    "time": "a time as HH:MM:SS",
    "time_delta": "a duration in ISO 8601 form",
    "timezone_aware": "a date and time with a time zone",
    "timezone_naive": "a date and time without a time zone",
    "tuple": "an array",
    "url": "a URL",
    "uuid": "a UUID",
}
_SUFFIXES = (
    "",
    "_type",
    "_parsing",
    "_str_parsing",
    "_from_date_parsing",
    "_from_datetime_parsing",
    "_from_float",
    "_from_datetime_inexact",
    "_required",
)
_WORDS = {  # by the type that a schema names
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_TEXTS = {  # how such a value is written as a text
    "an integer": ", such as '3'",
    "a number": ", such as '1.5'",
    "true or false": ", such as 'true'",
    "an array": " in JSON, '[…]'",
    "an object": " in JSON, '{…}'",
}


class ArgumentsError(ToolError):
    """The arguments of a call do not fit the function; `issues` has a sentence for each of the first problems.

    No more issues and bytes of text reach the peer than the limits allow, whatever it sent (default D4).
    """

    def __init__(self, issues: Sequence[str], *, subject: str = "The arguments", unsaid: int = 0) -> None:
        self._every = [_cut(issue, _MAX_ISSUE) for issue in issues]
        self._unsaid = unsaid  # further problems, for which nobody made a sentence
        self._subject = subject
        self.issues = self._every[: DEFAULT_LIMITS.error_issues]
        super().__init__(self.tell(DEFAULT_LIMITS))

    def tell(self, limits: Limits) -> str:
        """The text for the peer."""
        told = self._every[: limits.error_issues]
        lines = [f"{self._subject} do not fit:", *(f"- {issue}" for issue in told)]
        if more := len(self._every) - len(told) + self._unsaid:
            lines.append(f"- and {more} more.")
        return _cut("\n".join(lines), limits.error_bytes)


def explain(
    problems: Sequence[Mapping[str, Any]],
    arguments: Any,
    *,
    schema: Mapping[str, Any],
    subject: str,
    are_texts: bool = False,
) -> ArgumentsError:
    """Turn the problems that validation found (pydantic's `errors()`) into sentences.

    `arguments` is what was validated, `schema` the input schema, `subject` begins the text ("The arguments of …").
    `are_texts`: on the wire each argument is the text of its value, as those of prompts are (PRM-08).
    """
    wrong: dict[_Path, list[str]] = {}
    missing: list[_Path] = []
    extra: list[_Path] = []
    for problem in _likeliest(problems, arguments):
        path = _path(problem["loc"], arguments)
        kind: str = problem["type"]
        if kind in _MISSING:
            missing.append(path if len(path) == len(problem["loc"]) else (*path, problem["loc"][-1]))
        elif kind in {"extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"}:
            extra.append(path)
        else:
            words = expectation(problem)
            if problem["loc"][-1:] == ("[key]",) and path[-1:] != ("[key]",):
                words = f"wrong as a key; {words}"
            known = wrong.setdefault(path, [])
            if words not in known:
                known.append(words)
    sentences = chain(
        (_missing(path, schema, as_text=are_texts and len(path) == 1) for path in dict.fromkeys(missing)),
        (_wrong(path, words, arguments, as_text=are_texts and len(path) == 1) for path, words in wrong.items()),
        (_extra(path, missing, schema) for path in dict.fromkeys(extra)),
    )
    issues = list(islice(sentences, _MAX_ISSUES))
    in_all = len(set(missing)) + len(wrong) + len(set(extra))
    return ArgumentsError(issues, subject=subject, unsaid=in_all - len(issues))


def _likeliest(problems: Sequence[Mapping[str, Any]], arguments: Any, start: int = 0) -> Sequence[Mapping[str, Any]]:
    """What is to be told: of a union, why the member that was most likely meant does not fit, not why the others don't.

    That is the one with the fewest problems, of those whose type fits. The steps before `start` are looked at already.
    """
    told: list[Mapping[str, Any]] = []
    unions: dict[_Path, dict[str | int, list[Mapping[str, Any]]]] = {}
    for problem in problems:
        at = _member_step(problem, arguments, start)
        if at is None:
            told.append(problem)
        else:
            location = problem["loc"]
            unions.setdefault(location[:at], {}).setdefault(location[at], []).append(problem)
    for before, members in unions.items():
        depth = len(before) + 1
        fitting = [found for found in members.values() if not any(_is_about_type(one, depth) for one in found)]
        for found in [min(fitting, key=len)] if fitting else members.values():
            told += _likeliest(found, arguments, depth)
    return told


def _is_about_type(problem: Mapping[str, Any], depth: int) -> bool:
    """Whether it is about the type of the value at this depth, and not about what is in it."""
    return len(problem["loc"]) == depth and expectation(problem).startswith("expected ")


def _member_step(problem: Mapping[str, Any], arguments: Any, start: int) -> int | None:
    """Which step of a location names a member of a union: the first that leads nowhere, but for what is missing."""
    location: Sequence[str | int] = problem["loc"]
    for at, step in enumerate(location):
        inside, arguments = _step(arguments, step)
        if not inside and at >= start:
            return None if at == len(location) - 1 and problem["type"] in _MISSING else at
    return None


def _wrong(path: _Path, words: list[str], arguments: Any, *, as_text: bool) -> str:
    expected = [word[9:] for word in words if word.startswith("expected ")]
    others = [word for word in words if not word.startswith("expected ")]
    if as_text and expected and (text := _text_of(_either(expected))):
        expected = [text]
    elif expected and not others:
        return f"{_name(path)}: expected {_either(expected)}, got {_got(_value(path, arguments), expected)}."
    clauses = ([f"expected {_either(expected)}"] if expected else []) + others
    return f"{_name(path)}: {' or '.join(clauses)}."


def _got(value: Any, expected: list[str]) -> str:
    """What came in, without saying it. A text among the wrong texts is no mistake of type, nor is such a number."""
    if isinstance(value, str) and any(words.startswith("'") for words in expected):
        return "another text"
    if isinstance(value, (int, float)) and any(words[:1] in _DIGITS for words in expected):
        return json_type(value) if isinstance(value, bool) else "another number"
    return json_type(value)


def _extra(path: _Path, missing: list[_Path], schema: Mapping[str, Any]) -> str:
    if not path:
        return "An argument is not known; remove it."
    siblings = [str(other[-1]) for other in missing if other[:-1] == path[:-1]]
    if len(path) == 1:
        siblings += [name for name in schema.get("properties", {}) if name not in siblings]
    close = closest(str(path[-1]), siblings)
    if close is not None:
        return f"{_name(path)} is not known; did you mean {close!r}?"
    if len(path) > 1:
        return f"{_name(path)} is not known; remove it."
    if not siblings:
        return f"{_name(path)} is not known; there are no arguments, remove it."
    return f"{_name(path)} is not known; remove it. The arguments are: {', '.join(siblings[:20])}."


def expectation(problem: Mapping[str, Any]) -> str:
    """What a problem asks for, without anything that came in."""
    kind: str = problem["type"]
    context: Mapping[str, Any] = problem.get("ctx") or {}
    if kind in {"literal_error", "enum"}:
        return f"expected {_cut(str(context.get('expected')), 200)}"
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tags = f": {_cut(str(context['expected_tags']), 200)}" if "expected_tags" in context else ""
        return f"{str(context.get('discriminator')).strip(chr(39))!r} must name one of its kinds{tags}"
    if kind == "json_invalid":
        return "expected JSON"
    for suffix in _SUFFIXES:
        if kind.endswith(suffix) and kind.removesuffix(suffix) in _EXPECTED:
            return f"expected {_EXPECTED[kind.removesuffix(suffix)]}"
    message = _SUBJECT.sub("it ", _PREFIX.sub("", str(problem["msg"]))).replace(" after validation", "")
    return _cut(message.rstrip("."), 250)


def _missing(path: _Path, schema: Mapping[str, Any], *, as_text: bool) -> str:
    known = _schema_at(schema, path)
    words = _schema_words(known) if known else None
    if words and as_text:
        words = _text_of(words) or words
    return f"{_name(path)} is missing; {f'expected {words}' if words else 'add it'}."


def _schema_at(schema: Mapping[str, Any], path: _Path) -> Mapping[str, Any] | None:
    """The schema of what a path leads to, if there is exactly one."""
    found: Any = schema
    for step in path:
        found = _resolved(found, schema)
        if isinstance(step, int):
            found = found.get("items")
        elif step in found.get("properties", {}):
            found = found["properties"][step]
        else:
            found = found.get("additionalProperties")
        if not is_object(found):
            return None
    return _resolved(found, schema) if "$ref" in found else found


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema without what stands before it: a reference, or that it may be null as well."""
    for _ in range(_MAX_DEPTH):
        inner = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
        if "$ref" in schema:
            schema = referred(schema, root)
        elif len(inner) == 1 and is_object(inner[0]):
            schema = inner[0]
        else:
            break
    return schema


def _text_of(words: str) -> str | None:
    """How a JSON value is written as a text; None if there is nothing to be said of that.

    >>> _text_of("an integer or null")
    "the text of an integer or null, such as '3'"
    """
    for kind, example in _TEXTS.items():
        if words.startswith(kind):
            return f"the text of {words}{example}"
    return None


def _schema_words(schema: Mapping[str, Any]) -> str | None:
    """The type that a property asks for in a few words, if it is that simple."""
    if "enum" in schema:
        return _cut("one of " + ", ".join(repr(value) for value in schema["enum"]), 200)
    if "const" in schema:
        return repr(schema["const"])
    if "anyOf" in schema:
        options = [_schema_words(option) for option in schema["anyOf"]]
        return _either([option for option in options if option]) if all(options) else None
    kind = schema.get("type")
    return _WORDS.get(kind) if isinstance(kind, str) else None


def _path(location: Sequence[str | int], arguments: Any) -> _Path:
    """The steps of a location that are steps in the arguments; the others name a member of a union, or a key."""
    path: list[str | int] = []
    for step in location:
        inside, arguments = _step(arguments, step)
        if inside:
            path.append(step)
    return tuple(path)


def _value(path: _Path, arguments: Any) -> Any:
    for step in path:
        arguments = _step(arguments, step)[1]
    return arguments


def replace(location: Sequence[str | int], arguments: Any, change: Callable[[Any], Any]) -> bool:
    """Change the value that a problem is about, within the arguments; False if that changes nothing."""
    path = _path(location, arguments)
    given = _value(path, arguments)
    changed = change(given)
    if not path or changed is given:
        return False
    _value(path[:-1], arguments)[path[-1]] = changed
    return True


def _step(value: Any, step: str | int) -> tuple[bool, Any]:
    if isinstance(step, str) and is_object(value) and step in value:
        return True, value[step]
    if isinstance(step, int) and is_array(value) and 0 <= step < len(value):
        return True, value[step]
    return False, value


def _name(path: _Path) -> str:
    return place_of(path) if path else "The arguments as a whole"


def place_of(path: Sequence[str | int]) -> str:
    """Where in a value something is.

    >>> place_of(("seats", 1, "row"))
    "'seats[1].row'"
    """
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else ("." if text else "") + printable(step[:64], "?")
    return f"'{_cut(text, 160)}'"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _cut(text: str, limit: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= limit else data[: max(limit - 3, 0)].decode(errors="ignore") + "…"
