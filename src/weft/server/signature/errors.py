"""Write the messages about arguments that do not match a signature, and about types that cannot be used.

The messages about arguments are for a model. They say which argument is wrong, which type is expected and which type
was sent. They never contain a value that was sent, or the name of a library. Arguments are not validated here.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Annotated, Any, Union, get_args, get_origin

from weft.errors import ToolError
from weft.limits import DEFAULT_LIMITS, Limits
from weft.protocol.names import closest, printable
from weft.protocol.schema import is_array, is_object, json_type

_MAX_ISSUE = 350  # Maximum length of one sentence, in bytes.
_MAX_ISSUES = 50  # Maximum number of sentences. Each takes time, because an unknown name is compared with all names.
_DIGITS = frozenset("-0123456789")
# pydantic's error types for missing arguments, and for unknown arguments.
_MISSING = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
_EXTRA = frozenset({"extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"})

_PREFIX = re.compile(r"\A(?:Value error|Assertion failed), ")
_SUBJECT = re.compile(r"\A(?:Decimal i|I)nput (?=should |is |violated )")
_SUFFIX = re.compile(r"(?:_str_parsing|_parsing|_from_\w+|_type|_required)\Z")

_Path = tuple[str | int, ...]

_KINDS = {  # Descriptions of an expected value, each with pydantic's error types (most without a suffix like `_type`).
    "a URL": "url",
    "a UUID": "uuid",
    "a complex number as a string": "complex",
    "a date and time in ISO 8601 form": "datetime",
    "a date and time with a time zone": "timezone_aware",
    "a date and time without a time zone": "timezone_naive",
    "a date as YYYY-MM-DD": "date",
    "a duration in ISO 8601 form": "time_delta",
    "a finite number": "finite_number",
    "a number": "decimal float fraction",
    "a smaller integer": "int_parsing_size",
    "a string": "bytes string",
    "a time as HH:MM:SS": "time",
    "an array": "deque frozen_set iterable list named_tuple set tuple",
    "an integer": "int",
    "an object": "counter dataclass dataclass_exact dict frozen_dict mapping model model_attributes ordered_dict",
    "null": "none",
    "true or false": "bool",
}
_EXPECTED = {kind: words for words, kinds in _KINDS.items() for kind in kinds.split()}
_WORDS = {  # Descriptions of the types in JSON Schema.
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_TEXTS = {  # Descriptions of a value, each with an example of the value as text.
    "an integer": ", such as '3'",
    "a number": ", such as '1.5'",
    "true or false": ", such as 'true'",
    "an array": " in JSON, '[…]'",
    "an object": " in JSON, '{…}'",
}


_REASONS = {  # Reasons why a type cannot be used, by pydantic's error code.
    "schema-for-unknown-type": (
        "it contains a class whose fields are not known: neither a dataclass, a model, nor a TypedDict."
    ),
    "typed-dict-version": "on this Python, a TypedDict of `typing` does not say which of its keys are required.",
    "invalid-for-json-schema": "it contains a part, such as a callable, that cannot be written as JSON.",
}


def type_name(annotation: Any) -> str:
    """Return the name of a type for messages, such as "list[int] | None"."""
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
    """Return a sentence that says why a type cannot be used. `error` is the exception that the type caused."""
    text = _REASONS.get(str(getattr(error, "code", ""))) or str(error).strip().partition("\n")[0].rstrip()
    text = text or type(error).__name__
    return text if text.endswith(".") else text + "."


def remedy(error: BaseException, otherwise: str) -> str:
    """Return a sentence that says how to correct a type that caused `error`; `otherwise` if the error is unknown."""
    if getattr(error, "code", None) == "typed-dict-version":
        return "import TypedDict from typing_extensions instead of typing."
    return otherwise


class ArgumentsError(ToolError):
    """The arguments of a call do not match the signature. `issues` describes the first problems, one sentence each.

    The server's limits set the maximum number of issues, and the maximum size of the text, that the client gets.
    """

    def __init__(self, issues: Sequence[str], *, subject: str = "The arguments", unlisted: int = 0) -> None:
        self._all_issues = [_cut(issue, _MAX_ISSUE) for issue in issues]
        self._unlisted = unlisted  # Number of further problems, without a sentence.
        self._subject = subject
        self.issues = self._all_issues[: DEFAULT_LIMITS.error_issues]
        super().__init__(self.describe(DEFAULT_LIMITS))

    def describe(self, limits: Limits) -> str:
        """Return the text for the client, which lists the problems and is shortened to the limits."""
        shown = self._all_issues[: limits.error_issues]
        lines = [f"{self._subject} do not fit:", *(f"- {issue}" for issue in shown)]
        if more := len(self._all_issues) - len(shown) + self._unlisted:
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
    """Turn the problems that pydantic found (its `errors()`) into an ArgumentsError.

    `arguments` are the arguments that were validated, `schema` is the input schema. The text begins with `subject`
    ("The arguments of …"). `are_texts` is True if every argument was sent as a string, as for prompts.
    """
    wrong: dict[_Path, list[str]] = {}
    missing: list[_Path] = []
    extra: list[_Path] = []
    for problem in _likeliest(problems, arguments):
        path = _path(problem["loc"], arguments)
        kind: str = problem["type"]
        if kind in _MISSING:
            missing.append(path if len(path) == len(problem["loc"]) else (*path, problem["loc"][-1]))
        elif kind in _EXTRA:
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
    return ArgumentsError(issues, subject=subject, unlisted=in_all - len(issues))


def _likeliest(problems: Sequence[Mapping[str, Any]], arguments: Any, start: int = 0) -> Sequence[Mapping[str, Any]]:
    """Return the problems, but for each union only the problems with the member that the client probably meant.

    If a value matches no member of a union, pydantic reports the problems with every member. The client probably meant
    the member with the fewest problems, among the members of the right type. If no member has the right type, the
    problems with all members are returned. The first `start` entries of each problem's location (`loc`) are ignored.
    """
    likely: list[Mapping[str, Any]] = []
    unions: dict[_Path, dict[str | int, list[Mapping[str, Any]]]] = {}
    for problem in problems:
        at = _member_step(problem, arguments, start)
        if at is None:
            likely.append(problem)
        else:
            location = problem["loc"]
            unions.setdefault(location[:at], {}).setdefault(location[at], []).append(problem)
    for before, members in unions.items():
        depth = len(before) + 1
        fitting = [found for found in members.values() if not any(_is_about_type(one, depth) for one in found)]
        for found in [min(fitting, key=len)] if fitting else members.values():
            likely += _likeliest(found, arguments, depth)
    return likely


def _is_about_type(problem: Mapping[str, Any], depth: int) -> bool:
    """Return whether the value at this depth of the problem's location has the wrong type, not just wrong contents."""
    return len(problem["loc"]) == depth and expectation(problem).startswith("expected ")


def _member_step(problem: Mapping[str, Any], arguments: Any, start: int) -> int | None:
    """Return the index of the entry in the problem's location (`loc`) that names a union member, or None.

    This is the first entry that does not exist in the arguments. The first `start` entries are ignored.
    """
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
    """Return words for a wrong value that a client sent: the name of its type, such as "a string".

    `expected` describes the expected values, such as "an integer" or "'red'". If certain texts or numbers are expected,
    such as 'red', return "another text" or "another number".
    """
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
    known = f" The arguments are: {', '.join(siblings[:20]) or 'none'}." if len(path) == 1 else ""
    return f"{_name(path)} is not known; remove it.{known}"


def expectation(problem: Mapping[str, Any]) -> str:
    """Return a short description of a problem that pydantic found, such as "expected an integer"."""
    kind: str = problem["type"]
    context: Mapping[str, Any] = problem.get("ctx") or {}
    if kind in {"literal_error", "enum"}:
        return f"expected {_cut(str(context.get('expected')), 200)}"
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tags = f": {_cut(str(context['expected_tags']), 200)}" if "expected_tags" in context else ""
        return f"{str(context.get('discriminator')).strip(chr(39))!r} must name one of its kinds{tags}"
    if kind == "json_invalid":
        return "expected JSON"
    expected = _EXPECTED.get(kind) or _EXPECTED.get(_SUFFIX.sub("", kind))
    if expected is not None:
        return f"expected {expected}"
    message = _SUBJECT.sub("it ", _PREFIX.sub("", str(problem["msg"]))).replace(" after validation", "")
    return _cut(message.rstrip("."), 250)


def _missing(path: _Path, schema: Mapping[str, Any], *, as_text: bool) -> str:
    known = schema.get("properties", {}).get(path[0]) if len(path) == 1 else None
    words = _schema_words(known) if known else None
    if words and as_text:
        words = _text_of(words) or words
    return f"{_name(path)} is missing; {f'expected {words}' if words else 'add it'}."


def _text_of(words: str) -> str | None:
    """Turn the description of a JSON value into a description of its text; return None if the value is a text itself.

    >>> _text_of("an integer or null")
    "the text of an integer or null, such as '3'"
    """
    for kind, example in _TEXTS.items():
        if words.startswith(kind):
            return f"the text of {words}{example}"
    return None


def _schema_words(schema: Mapping[str, Any]) -> str | None:
    """Describe the type of a property in a few words; return None if the type is too complex."""
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
    """Return a location without the entries that do not occur in the arguments, such as the name of a union member."""
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


def place_in(location: Sequence[str | int], arguments: Any) -> tuple[Any, Any]:
    """Return the object or array that contains the value at `location`, and the name or index of this value.

    The name is None if no part of the location is in the arguments, for example because the value is a default.
    """
    path = _path(location, arguments)
    return _value(path[:-1], arguments), path[-1] if path else None


def _step(value: Any, step: str | int) -> tuple[bool, Any]:
    if isinstance(step, str) and is_object(value) and step in value:
        return True, value[step]
    if isinstance(step, int) and is_array(value) and 0 <= step < len(value):
        return True, value[step]
    return False, value


def _name(path: _Path) -> str:
    return place_of(path) if path else "The arguments as a whole"


def place_of(path: Sequence[str | int]) -> str:
    """Return the path to a part of a value as text, for messages.

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
