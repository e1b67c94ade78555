"""Whether the answer to a form fits the schema that was sent, field by field (ELI-26).

Strict, as JSON Schema is: the text "5" is no integer, 1 is not true, true is not 1, and 5.0 is the integer 5. Formats
count too; none of their checks looks anything up, and each is linear in its input (R7):

    email       name@host in ASCII, as RFC 5321 has it, without quoted names and IP addresses
    uri         with a scheme, as RFC 3986 has it
    date        a day that the calendar has, `YYYY-MM-DD`
    date-time   as RFC 3339 has it, with `Z` or an offset; without leap seconds, which Python has not

Owns the check of one flat answer. What may be asked, and what becomes of the answer, is for `forms` to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from weft.protocol.names import check_uri
from weft.protocol.schema import is_array, json_type

__all__ = ["Issue", "check_answer", "options_of"]

Issue = tuple[str, str]
"""The name of a field, and a sentence about what it should be."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_EMAIL_LENGTH = 254
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


def check_answer(form: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Issue]:
    """What is wrong with an answer, at most one issue for each field; empty when it fits. Values are never quoted.

    >>> form = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    >>> check_answer(form, {"age": "5"}), check_answer(form, {"age": 5.0})
    ([('age', 'it should be an integer; it is a string.')], [])
    """
    found: list[Issue] = []
    required = form.get("required", ())
    for name, field in form["properties"].items():
        if name in answer:
            wrong = _CHECKS[field["type"]](field, answer[name])
        else:
            wrong = "it is missing" if name in required else None
        if wrong:
            found.append((name, f"{wrong}."))
    return found


def options_of(field: Mapping[str, Any]) -> Sequence[Any]:
    """The values that a field, or the items of a list, may have; empty where they are not given one by one."""
    titled: Sequence[Any] = field.get("oneOf", field.get("anyOf", ()))
    options: Sequence[Any] = field.get("enum", [option["const"] for option in titled])
    return options


# --- kinds of field: each says what is wrong, or None


def _text(field: Mapping[str, Any], value: Any) -> str | None:
    if not isinstance(value, str):
        return _other_than("text", value)
    options = options_of(field)
    if options and value not in options:
        return "it should be one of the options"
    if wrong := _bounds(len(value), field.get("minLength"), field.get("maxLength"), "characters"):
        return wrong
    format = field.get("format")
    if format is not None and not _FORMATS[format][0](value):
        return f"it should be {_FORMATS[format][1]}"
    return None


def _integer(field: Mapping[str, Any], value: Any) -> str | None:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        return _other_than("an integer", value)
    return _bounds(value, field.get("minimum"), field.get("maximum"))


def _number(field: Mapping[str, Any], value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _other_than("a number", value)
    return _bounds(value, field.get("minimum"), field.get("maximum"))


def _boolean(_: Mapping[str, Any], value: Any) -> str | None:
    return None if isinstance(value, bool) else _other_than("true or false", value)


def _several(field: Mapping[str, Any], value: Any) -> str | None:
    if not is_array(value):
        return _other_than("a list of options", value)
    options = options_of(field["items"])
    if not all(isinstance(item, str) and item in options for item in value):
        return "it should have nothing but the options"
    if len(set(value)) < len(value):
        return "it should have no option twice"
    return _bounds(len(value), field.get("minItems"), field.get("maxItems"), "options")


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Any], str | None]] = {
    "array": _several,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "string": _text,
}


def _other_than(expected: str, value: Any) -> str:
    return f"it should be {expected}; it is {json_type(value)}"


def _bounds(size: float, least: float | None, most: float | None, unit: str = "") -> str | None:
    if least is not None and size < least:
        return f"it should have at least {least} {unit}" if unit else f"it should be at least {least}"
    if most is not None and size > most:
        return f"it should have at most {most} {unit}" if unit else f"it should be at most {most}"
    return None


# --- formats


def _is_email(text: str) -> bool:
    return len(text) <= _EMAIL_LENGTH and _EMAIL.fullmatch(text) is not None


def _is_uri(text: str) -> bool:
    try:
        check_uri(text)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _exists(date.fromisoformat, text)


def _is_date_time(text: str) -> bool:
    parts = _DATE_TIME.fullmatch(text)
    return parts is not None and _exists(datetime.fromisoformat, f"{parts[1]}T{parts[2]}")


def _exists(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


_FORMATS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "email": (_is_email, "an email address, such as 'ann@example.com'"),
    "uri": (_is_uri, "a URI that begins with its scheme"),
    "date": (_is_date, "a date that exists, written YYYY-MM-DD"),
    "date-time": (_is_date_time, "a time that exists, written YYYY-MM-DDThh:mm:ss and then Z or an offset"),
}
