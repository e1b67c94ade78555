"""A Python function → input schema, binder, output schema.

Owns how a function that a user registers is read: its parameters, its injected Context, its defaults and its
return type, and how the raw JSON of a call becomes keyword arguments. It does not call the function, and knows
nothing of requests or results.

Binding is one call into the compiled validator with the raw bytes. JSON types are taken exactly first; only when that
fails are spellings accepted that models are fond of (`"3"` for 3, `"true"` for true, 3.0 for 3) — though never a
boolean for a number, or a number for a boolean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pydantic_core
from pydantic_core import ValidationError

from weft.server.signature.docstrings import parse
from weft.server.signature.errors import ArgumentsError, explain, replace
from weft.server.signature.output import OutputError, read_output
from weft.server.signature.params import MirroredHeader, read_params
from weft.server.signature.plain import Arguments
from weft.server.where import describe, location, target

__all__ = ["ArgumentsError", "MirroredHeader", "OutputError", "Signature", "read_signature"]

_LARGE = 65536
"""Arguments above this many bytes must have exact types: telling every problem in them would cost too much (D4)."""
_MANY = 1000
_EXACT = 2**53  # above it, a float may stand for several integers
_NUMERIC = frozenset({"decimal_type", "float_type", "int_type"})


class Signature(msgspec.Struct, frozen=True):
    """What Weft knows of a registered function.

    `input_schema` and `output_schema` are JSON Schema 2020-12, `injected` is the name of the parameter that takes the
    Context, `returns` the evaluated return annotation (`inspect.Signature.empty` when there is none), `description` the
    docstring without its parameter section. `dump_output` turns a return value into JSON values; it and `output_schema`
    are None when the return type promises nothing worth checking. `require_text`, there when the return type is text,
    raises OutputError for anything else.
    """

    name: str
    kind: str
    where: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    is_async: bool
    injected: str | None
    returns: Any
    dump_output: Callable[[Any], Any] | None
    require_text: Callable[[Any], None] | None
    _arguments: Arguments

    def __repr__(self) -> str:
        return f"<Signature of {self.kind} {self.name!r} ({self.where})>"

    def bind_json(self, raw: bytes) -> dict[str, Any]:
        """The keyword arguments for a JSON object in bytes; ArgumentsError when they do not fit."""
        try:
            if len(raw) <= _LARGE:
                return self._arguments.validate_json(raw, strict=True)
            return self._arguments.validate_large(raw, strict=True)
        except ValidationError as error:
            # What it says is kept, not the exception: with this frame it would be a cycle, and hold all that came in.
            problems = self._problems(error)
        return self._bind_leniently(raw, problems)

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for JSON values that are decoded already; ArgumentsError when they do not fit."""
        return self.bind_json(pydantic_core.to_json(dict(values)))

    def _problems(self, error: ValidationError) -> list[Any]:
        """What is wrong with the arguments, each by itself; ArgumentsError when that is too much to tell (D4)."""
        if error.error_count() <= _MANY:
            return error.errors(include_url=False)
        raise ArgumentsError(
            [f"More than {_MANY} values do not fit; compare them with the input schema."], subject=self._subject
        ) from None

    def _bind_leniently(self, raw: bytes, problems: list[Any]) -> dict[str, Any]:
        if len(raw) <= _LARGE:
            whole = _with_whole_numbers(problems, raw)
            if whole is not None:
                return self.bind_json(whole)
            problems = [problem for problem in problems if _is_too_far(problem)]
            try:
                bound = self._arguments.validate_json(raw)
            except ValidationError as error:
                problems += self._problems(error)
            else:
                if not problems:
                    return bound
        raise self._explain(problems, raw)

    def _explain(self, problems: list[Any], raw: bytes) -> ArgumentsError:
        if problems[0]["type"] == "json_invalid" and not problems[0]["loc"]:  # else a text of JSON within them
            return ArgumentsError(["They are not valid JSON; send a JSON object."], subject=self._subject)
        arguments = pydantic_core.from_json(raw)
        if not isinstance(arguments, dict):
            return ArgumentsError(["They must be a JSON object with a value for each name."], subject=self._subject)
        return explain(
            problems, arguments, schema=self.input_schema, subject=self._subject, are_texts=self.kind == "prompt"
        )

    @property
    def _subject(self) -> str:
        return f"The arguments of {self.kind} {self.name!r}"


def read_signature(
    fn: Callable[..., Any],
    *,
    injected: tuple[type, ...] = (),
    opaque: tuple[type, ...] = (),
    kind: str = "tool",
    name: str | None = None,
    untyped: bool = False,
    refs: bool = False,
) -> Signature:
    """Read a function; RegistrationError, with its place and the remedy, when it cannot be offered as written.

    `injected` are the classes whose parameter Weft fills itself; `opaque` the classes of results that are not JSON
    values, for which no output schema is made. A plain `str`, `bytes`, `None` or `Any`, too, makes no output schema: it
    would promise nothing that the text of the result does not say already. Nor does a list of anything, `list` or
    `list[Any]`, which may hold pictures and other blocks. `untyped` lets parameters pass that have no annotation, where
    something else says what they take. `refs` leaves the definitions of a schema under `$defs`, in place of where they
    are used.

    >>> def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> signature = read_signature(add)
    >>> signature.bind_json(b'{"a": 2}')
    {'a': 2}
    >>> signature.output_schema
    {'type': 'integer'}
    """
    name = name or describe(fn).partition(" ")[0]
    doc = parse(inspect.getdoc(target(fn)))
    params = read_params(fn, injected=injected, doc=doc, kind=kind, name=name, untyped=untyped, refs=refs)
    output = read_output(fn, params.returns, opaque=opaque, kind=kind, name=name, refs=refs)
    return Signature(
        name=name,
        kind=kind,
        where=location(fn),
        description=doc.summary,
        input_schema=params.arguments.schema,
        output_schema=output.schema,
        is_async=inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__),
        injected=params.injected,
        returns=params.returns,
        dump_output=output.dump,
        require_text=output.require_text,
        _arguments=params.arguments,
    )


def _with_whole_numbers(problems: list[Any], raw: bytes) -> bytes | None:
    """The arguments with 3 in place of 3.0 where an integer is asked for: JSON Schema calls both integers.

    None if there is no such place. In a union another member, such as a boolean, must not get to take the number.
    """
    places = [problem["loc"] for problem in problems if problem["type"] == "int_type" and _is_whole(problem["input"])]
    if not places:
        return None
    arguments = pydantic_core.from_json(raw)
    changed = [place for place in places if replace(place, arguments, _as_integer)]
    return pydantic_core.to_json(arguments) if changed else None


def _as_integer(given: Any) -> Any:
    return int(given) if _is_whole(given) else given


def _is_whole(given: Any) -> bool:
    return isinstance(given, float) and given.is_integer() and abs(given) < _EXACT


def _is_too_far(problem: Mapping[str, Any]) -> bool:
    """Whether a value must not be taken for what was asked, though the lenient pass would."""
    given, place = problem["input"], problem["loc"]
    if problem["type"] == "bool_type":
        if isinstance(given, str):
            # One member of a union says nothing of the others, which may take the text.
            in_union = len(place) > 1 and place[-1] == "bool"
            return not in_union and given.lower() not in ("true", "false")
        return isinstance(given, (int, float))
    return problem["type"] in _NUMERIC and isinstance(given, bool)
