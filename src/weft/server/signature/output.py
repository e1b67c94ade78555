"""Describe what a function returns, and turn its return values into JSON.

The JSON values always match the output schema. If a value does not match it, or is not JSON, the error says which part
is wrong. The `repr` of a value is never sent. A function annotated as text has no output schema, but must return text.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from inspect import Signature as PythonSignature
from types import CoroutineType
from typing import Any, Never, NoReturn, cast, get_args, get_origin

import msgspec
import pydantic_core
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator, ValidationError

from weft.errors import RegistrationError, WeftError
from weft.server.diagnostics import Unserialisable
from weft.server.signature.errors import expectation, place_of, reason, remedy, type_name
from weft.server.signature.plain import members, plain_type

# Return annotations for which no output schema is made.
_SILENT = (PythonSignature.empty, None, type(None), str, bytes, bytearray, Any, object, NoReturn, Never)
_REMEDY = (
    "Return strings, numbers, booleans, None, lists, dictionaries, dataclasses or pydantic models, "
    "or convert it yourself."
)
_WORD = 2**63  # Integers below this limit are encoded with `str`, which is fast.
_MAX_DEPTH = 64  # Maximum depth of the search for the part of a value that is not JSON.

_Place = tuple[str | int, ...]


class OutputError(WeftError):
    """A function returned a value that its annotation does not allow, or that is not JSON."""


class Output(msgspec.Struct, frozen=True):
    """The output schema of a function, and `dump`, which turns a return value into JSON values that match the schema.

    Both are None if there is no output schema. If the return type is text, `require_text` raises OutputError for a
    value of another type.
    """

    schema: dict[str, Any] | None = None
    dump: Callable[[Any], Any] | None = None
    require_text: Callable[[Any], None] | None = None


def read_output(
    returns: Any, *, opaque: tuple[type, ...], subject: str, refuse: Callable[..., RegistrationError], refs: bool
) -> Output:
    """Return the output schema for the return type `returns`, and the functions that check and convert return values.

    Raises the error that `refuse` returns if JSON Schema cannot describe the type. A type that contains a class in
    `opaque` gets no schema. `subject` names the function in error messages. If `refs` is True, the definitions of the
    schema stay under `$defs`.
    """
    if _is_silent(returns) or _contains(returns, (*opaque, bytes)):
        return Output(require_text=_text_requirement(returns, subject))
    try:
        if plain := plain_type(returns):
            schema = plain.shown
            validator: Any = SchemaValidator(plain.core)
            serializer: Any = SchemaSerializer(plain.core)
        else:
            from pydantic import TypeAdapter  # Slow to import, and not needed for plain types.

            from weft.server.signature.fields import inline, schema_of

            adapter: TypeAdapter[Any] = TypeAdapter(returns)
            schema = schema_of(adapter, "serialization")
            schema = schema if refs else inline(schema)
            validator, serializer = adapter.validator, adapter.serializer
    except Exception as error:  # noqa: BLE001  # hooks of a type may raise anything, and the remedy is the same
        raise refuse(
            f"its return type {type_name(returns)} cannot be described as JSON.",
            remedy(
                error,
                "return a type made of JSON values (a dataclass, a pydantic model, a TypedDict, list, dict, "
                "numbers, text), or annotate `-> Any` for no output schema.",
            ),
            why=reason(error),
        ) from None
    return Output(schema, _checked_dump(validator, serializer, returns, subject))


def _checked_dump(validator: Any, serializer: Any, returns: Any, subject: str) -> Callable[[Any], Any]:
    validate, to_python = validator.validate_python, serializer.to_python
    expected = type_name(returns)
    exact = returns if returns in (int, str, bool) else None  # Values of exactly this type are JSON already.

    def dump(value: Any) -> Any:
        """Check a return value against the return type and return it as JSON values."""
        if type(value) is exact:
            return value
        try:
            return to_python(validate(value), mode="json", by_alias=True, warnings="error")
        except ValidationError as error:
            raise _misfit(subject, value, expected, error) from None
        except (ValueError, RecursionError) as error:  # PydanticSerializationError is a ValueError.
            if isinstance(error, PydanticSerializationError):
                check_fields(value)
            raise _not_json(subject, value, error) from None

    def check_fields(value: Any) -> None:
        """Raise OutputError if a field has a wrong type. `validate` does not check the fields of an existing object."""
        try:
            validate(to_python(value, round_trip=True, warnings=False), by_alias=True, by_name=True)
        except ValidationError as error:
            raise _misfit(subject, value, expected, error) from None
        except (TypeError, ValueError, RecursionError):  # The value has no parts.
            return

    return dump


def _misfit(subject: str, value: object, expected: str, error: ValidationError | None = None) -> OutputError:
    because = ""
    if error is not None:
        first = error.errors(include_url=False, include_input=False)[0]
        because = f"{_at(first['loc'])}: {expectation(first)}"
    return OutputError(
        f"{subject} returned a value of type {type_name(type(value))}, which does not fit its return type "
        f"{expected}{because}. Return what the annotation says, or correct the annotation."
    )


def _not_json(subject: str, value: object, error: Exception) -> OutputError:
    return OutputError(
        f"{subject} returned a value of type {type_name(type(value))} that cannot be written as JSON: {reason(error)} "
        "Return JSON values (text, numbers, lists, dicts, dataclasses, pydantic models), or turn it into text yourself."
    )


def _text_requirement(returns: Any, subject: str) -> Callable[[Any], None] | None:
    """Return a function that raises OutputError for values other than text; None if the return type is not text."""
    kinds = tuple(one if isinstance(one, type) else object for one in members(returns))
    if str not in kinds or not {str, type(None)}.issuperset(kinds):
        return None

    def check(value: Any) -> None:
        if not isinstance(value, kinds):
            raise _misfit(subject, value, type_name(returns))

    return check


def _is_silent(annotation: Any) -> bool:
    """Return whether a return type gets no output schema, such as `str` or `Any` (see `read_signature`)."""
    return all(_is_list_of_anything(one) or any(one is silent for silent in _SILENT) for one in members(annotation))


def _is_list_of_anything(annotation: Any) -> bool:
    """Return whether a type is a list whose items may have any type, such as `list` or `list[Any]`."""
    items = get_args(annotation)
    return (get_origin(annotation) or annotation) in (list, tuple, Sequence) and all(
        item in (Any, object, ...) for item in items
    )


def _contains(annotation: Any, classes: tuple[type, ...]) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, classes)
    return any(_contains(part, classes) for part in get_args(annotation))


def to_json_text(value: Any) -> str:
    """Encode a value as JSON text. The value may contain pydantic models, dataclasses, dates, decimals, sets and enums.

    Raises Unserialisable for values of other types, and for NaN and infinity, which JSON does not have.
    """
    if type(value) is int and -_WORD < value < _WORD:  # the fast path
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise _unserialisable(value, (), "Wrap it in Image(...), Audio(...) or File(...), or decode it.")
    culprits: list[Any] = []

    def fallback(item: Any) -> Any:
        if isinstance(item, msgspec.Struct):
            return msgspec.to_builtins(item)
        culprits.append(item)
        raise TypeError

    try:
        data = pydantic_core.to_json(
            value, by_alias=True, bytes_mode="base64", inf_nan_mode="constants", fallback=fallback
        )
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        if culprits:
            raise _unserialisable(culprits[0], _place(value, lambda item: item is culprits[0])) from None
        raise Unserialisable(
            f"The returned {type_name(type(value))} cannot be sent as JSON: {str(error).rstrip('.')}. {_REMEDY}"
        ) from None
    if b"NaN" in data or b"Infinity" in data:
        _check_numbers(data, value)
    return data.decode()


def _check_numbers(data: bytes, value: Any) -> None:
    """Raise Unserialisable if `value` contains the number NaN or infinity. `data` is `value` as JSON.

    Texts may contain the words "NaN" and "Infinity". The error says where in `value` the number is.
    """

    def refuse(_: str) -> NoReturn:
        place = _place(value, lambda item: isinstance(item, float) and not math.isfinite(item))
        raise Unserialisable(
            f"The returned value{_at(place)} is NaN or infinite, which JSON does not have. "
            "Return None or a string instead."
        )

    json.loads(data, parse_constant=refuse)


def check_text(value: str) -> str:
    """Return the text unchanged; raise Unserialisable if UTF-8 cannot encode the text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unserialisable(
            "The returned text has a lone surrogate, which UTF-8 cannot encode. "
            "Decode the bytes it came from with errors='replace'."
        ) from None
    return value


def refuse_unawaited(value: Any, place: _Place = ()) -> None:
    """Raise Unserialisable if `value` is a coroutine, because the user's code lacks an `await`.

    Also close the coroutine, so that Python does not warn about it. `place` is the path to `value`, for the message.
    """
    if isinstance(value, CoroutineType):
        coroutine = cast("CoroutineType[Any, Any, Any]", value)
        coroutine.close()
        raise Unserialisable(
            f"The returned value{_at(place)} is the coroutine of {coroutine.__name__!r}, which was not awaited. "
            f"Write `await {coroutine.__name__}(...)`."
        ) from None


def _unserialisable(culprit: Any, place: _Place, remedy: str = _REMEDY) -> Unserialisable:
    refuse_unawaited(culprit, place)
    return Unserialisable(
        f"The returned value{_at(place)} is of type {type_name(type(culprit))}, which is not JSON. {remedy}"
    )


def _place(value: Any, found: Callable[[Any], bool]) -> _Place:
    """Return the path (keys and indices) to the first part of `value` for which `found` returns True.

    The path is empty if this part is `value` itself, or if there is no such part.
    """
    seen: set[int] = set()

    def walk(value: Any, place: _Place) -> _Place | None:
        if found(value):
            return place
        if id(value) in seen or len(place) > _MAX_DEPTH:
            return None
        seen.add(id(value))
        return next((inner for step, item in _parts(value) if (inner := walk(item, (*place, step))) is not None), None)

    return walk(value, ()) or ()


def _parts(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in cast("Mapping[Any, Any]", value).items()]
    if isinstance(value, list | tuple | AbstractSet):
        return list(enumerate(cast("Iterable[Any]", value)))
    if dataclasses.is_dataclass(value) or hasattr(value, "model_fields_set"):
        return list(cast("dict[str, Any]", getattr(value, "__dict__", {})).items())
    return ()


def _at(place: _Place) -> str:
    return f" at {place_of(place)}" if place else ""
