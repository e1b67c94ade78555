"""What a function returns: its output schema, and the way from a return value to plain JSON values.

Owns the promise that both agree. A value that does not fit, or that JSON cannot carry, is an OutputError; its `repr`
is never sent instead. Text has no schema, but what is annotated as text is held to it all the same.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from inspect import Signature as PythonSignature
from typing import Annotated, Any, Never, NoReturn, Union, get_args, get_origin

import msgspec
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator, ValidationError

from weft.errors import RegistrationError, WeftError
from weft.protocol.schema import is_array, is_object
from weft.server.diagnostics.source_location import location
from weft.server.signature.errors import expectation, place_of, reason, remedy, type_name
from weft.server.signature.plain import plain_type

_SILENT = (PythonSignature.empty, None, type(None), str, bytes, bytearray, Any, object, NoReturn, Never)


class OutputError(WeftError):
    """A function returned what its annotation does not allow, or what JSON cannot carry."""


class Output(msgspec.Struct, frozen=True):
    """The schema of the return values, and the function that turns a value into JSON values that conform to it.

    Both are None where nothing is promised; `require_text`, for return types that are text, refuses what is not.
    """

    schema: dict[str, Any] | None = None
    dump: Callable[[Any], Any] | None = None
    require_text: Callable[[Any], None] | None = None


def read_output(
    fn: Callable[..., Any], returns: Any, *, opaque: tuple[type, ...], kind: str, name: str, refs: bool = False
) -> Output:
    """Read a return annotation that is evaluated already; RegistrationError when it cannot be described."""
    subject = f"{kind.capitalize()} {name!r} ({location(fn)})"
    if _is_silent(returns) or _contains(returns, (*opaque, bytes)):
        return Output(require_text=_text_requirement(returns, subject))
    try:
        promised = _promise(returns, refs=refs)
    except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
        raise RegistrationError(
            f"{kind.capitalize()} {name!r} at {location(fn)}: its return type {type_name(returns)} cannot be "
            f"described as JSON.\n  Why: {reason(error)}\n"
            "  What to do: "
            + remedy(
                error,
                "return a type made of JSON values (a dataclass, a pydantic model, a TypedDict, list, dict, "
                "numbers, text), or annotate `-> Any` to promise nothing.",
            )
        ) from None
    return Output(promised.schema, _checked_dump(promised, returns, subject))


class _Promise(msgspec.Struct, frozen=True):
    schema: dict[str, Any]
    validate: Callable[..., Any]
    to_python: Callable[..., Any]


def _promise(returns: Any, *, refs: bool) -> _Promise:
    if plain := plain_type(returns):
        return _Promise(
            plain.shown, SchemaValidator(plain.core).validate_python, SchemaSerializer(plain.core).to_python
        )
    from pydantic import TypeAdapter  # plain tools do without: signature.plain

    from weft.server.signature.fields import inline, schema_of

    adapter: TypeAdapter[Any] = TypeAdapter(returns)
    schema = schema_of(adapter, "serialization")
    return _Promise(schema if refs else inline(schema), adapter.validator.validate_python, adapter.serializer.to_python)


def _checked_dump(promised: _Promise, returns: Any, subject: str) -> Callable[[Any], Any]:
    validate, to_python = promised.validate, promised.to_python
    expected = type_name(returns)
    exact = returns if returns in (int, str, bool) else None  # conforms if it is that, and is JSON already

    def dump(value: Any) -> Any:
        """Check the value against the annotation, so that it conforms to the output schema (TOOL-12)."""
        if type(value) is exact:
            return value
        try:
            dumped = to_python(validate(value), mode="json", by_alias=True, warnings="error")
        except ValidationError as error:
            raise _misfit(subject, value, expected, error) from None
        except PydanticSerializationError as error:
            if (misfit := _inner_misfit(promised, value)) is not None:
                raise _misfit(subject, value, expected, misfit) from None
            raise _not_json(subject, value, error) from None
        except (ValueError, RecursionError) as error:
            raise _not_json(subject, value, error) from None
        return _finite(dumped, subject, value)

    return dump


def _misfit(subject: str, value: object, expected: str, error: ValidationError | None = None) -> OutputError:
    because = ""
    if error is not None:
        first = error.errors(include_url=False, include_input=False)[0]
        place = f" at {place_of(first['loc'])}" if first["loc"] else ""
        because = f"{place}: {expectation(first)}"
    return OutputError(
        f"{subject} returned a value of type {type_name(type(value))}, which does not fit its return type "
        f"{expected}{because}. Return what the annotation says, or correct the annotation."
    )


def _inner_misfit(promised: _Promise, value: Any) -> ValidationError | None:
    """What is wrong inside an instance of the right class, whose fields nobody checked: it is read from its parts."""
    try:
        parts = promised.to_python(value, round_trip=True, warnings=False)
        promised.validate(parts, by_alias=True, by_name=True)
    except ValidationError as error:
        return error
    except (TypeError, ValueError, RecursionError):  # has no parts
        return None
    return None


def _text_requirement(returns: Any, subject: str) -> Callable[[Any], None] | None:
    """Other values would be sent as some text as well, or as none: nobody would see the mistake."""
    kinds = _text_kinds(returns)
    if str not in kinds or not {str, type(None)}.issuperset(kinds):
        return None

    def check(value: Any) -> None:
        if not isinstance(value, kinds):
            raise _misfit(subject, value, type_name(returns))

    return check


def _text_kinds(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _text_kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _text_kinds(part))
    return (annotation,) if isinstance(annotation, type) else (object,)


def _not_json(subject: str, value: object, error: Exception) -> OutputError:
    return OutputError(
        f"{subject} returned a value of type {type_name(type(value))} that JSON cannot carry: {reason(error)} "
        "Return JSON values (text, numbers, lists, dicts, dataclasses, pydantic models), or turn it into text yourself."
    )


def _finite(dumped: Any, subject: str, value: object) -> Any:
    if type(dumped) in (int, str, bool) or _is_finite(dumped):
        return dumped
    raise OutputError(
        f"{subject} returned a value of type {type_name(type(value))} with a number that is not finite (NaN or "
        "infinity), which JSON cannot carry. Return None in its place, or leave it out."
    )


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if is_object(value):
        return all(map(_is_finite, value.values()))
    if is_array(value):
        return all(map(_is_finite, value))
    return True


def _is_silent(annotation: Any) -> bool:
    """Whether a return type promises nothing beyond text: see `read_signature`."""
    if get_origin(annotation) is Annotated:
        return _is_silent(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return all(map(_is_silent, get_args(annotation)))
    return _is_list_of_anything(annotation) or any(annotation is silent for silent in _SILENT)


def _is_list_of_anything(annotation: Any) -> bool:
    """Such a list may hold pictures and other blocks as well, which no schema could promise."""
    items = get_args(annotation)
    return (get_origin(annotation) or annotation) in (list, tuple, Sequence) and all(
        item in (Any, object, ...) for item in items
    )


def _contains(annotation: Any, classes: tuple[type, ...]) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, classes)
    return any(_contains(part, classes) for part in get_args(annotation))
