"""Read a function's parameters and return type, and bind JSON arguments to it.

A Python function → input schema, binder, output schema.

Owns how a function that a user registers is read: its parameters, its injected Context, its defaults and its
return type, and how the raw JSON of a call becomes keyword arguments. It does not call the function, and knows
nothing of requests or results.

Binding is one call into the compiled validator with the raw bytes. JSON types are taken exactly first; only when that
fails are spellings accepted that models are fond of (`"3"` for 3, `"true"` for true, 3.0 for 3) — though never a
boolean for a number, or a number for a boolean.

The parameters of a function: their types, defaults and descriptions, as one compiled validator and one schema.

Owns how parameters are found and their annotations evaluated, what is refused because of the way a function is
written, and the form of every refusal. What is made of the types is up to `signature.plain` and `signature.fields`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ForwardRef, Union, get_args, get_origin, get_type_hints

import msgspec
import pydantic_core
from pydantic_core import ValidationError

from weft.errors import RegistrationError
from weft.server.diagnostics.source_location import describe, enclosing_locals, location, target
from weft.server.signature.docstrings import Docstring, parse
from weft.server.signature.errors import ArgumentsError, explain, reason, replace, type_name
from weft.server.signature.output import OutputError, read_output
from weft.server.signature.plain import Arguments, plain_arguments

__all__ = ["ArgumentsError", "MirroredHeader", "OutputError", "Params", "Signature", "read_params", "read_signature"]

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


_EMPTY = inspect.Parameter.empty


class MirroredHeader(msgspec.Struct, frozen=True):
    """Marks a parameter whose value clients repeat in the header `Mcp-Param-{name}` (HDR-13).

    >>> def run(region: Annotated[str, MirroredHeader("Region")]) -> str: ...
    """

    name: str

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Put the keyword beside the parameter's own schema."""
        return {**handler(core_schema), "x-mcp-header": self.name}


class Params(msgspec.Struct, frozen=True):
    """What clients send; and, as in `Signature`, the parameter that they do not, and the return annotation."""

    arguments: Arguments
    injected: str | None
    returns: Any


def read_params(
    fn: Callable[..., Any],
    *,
    injected: tuple[type, ...],
    doc: Docstring,
    kind: str,
    name: str,
    untyped: bool = False,
    refs: bool = False,
) -> Params:
    """Read the parameters of a function; RegistrationError when one cannot be offered. `untyped` ones take anything."""
    return _Reader(fn, kind, name, untyped=untyped, refs=refs).read(injected, doc)


class _Reader:
    """One reading of one function; it exists so that each refusal can say whose it is and where."""

    def __init__(self, fn: Callable[..., Any], kind: str, name: str, *, untyped: bool, refs: bool) -> None:
        self.fn = fn
        self.refs = refs
        self.untyped = untyped
        self.subject = f"{kind.capitalize()} {name!r} at {location(fn)}"
        self.globals: dict[str, Any] = getattr(target(fn), "__globals__", {})
        self.locals = enclosing_locals(fn)

    def read(self, injected: tuple[type, ...], doc: Docstring) -> Params:
        signature = self.read_signature()
        context: str | None = None
        offered: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            annotation = self.annotation_of(parameter)
            if _is_injected(annotation, injected):
                if context is not None:
                    raise self.refuse(
                        f"both {context!r} and {parameter.name!r} are {type_name(annotation)} parameters.",
                        "keep one of them.",
                    )
                context = parameter.name
                continue
            offered.append(parameter.replace(annotation=annotation))
        return Params(
            arguments=plain_arguments(offered, doc) or self.compile(offered, doc),
            injected=context,
            returns=self.evaluate("return", signature.return_annotation, "its return type"),
        )

    def compile(self, offered: Sequence[inspect.Parameter], doc: Docstring) -> Arguments:
        from weft.server.signature.fields import read_fields  # brings all of pydantic, which plain tools do without

        return read_fields(offered, doc, self.refuse, refs=self.refs)

    def refuse(self, what: str, remedy: str, why: str | None = None) -> RegistrationError:
        because = f"\n  Why: {why}" if why else ""
        return RegistrationError(f"{self.subject}: {what}{because}\n  What to do: {remedy}")

    def read_signature(self) -> inspect.Signature:
        fn = self.fn
        if inspect.isclass(fn) or not callable(fn):
            raise self.refuse(
                "it is not a function.", "register a function, a method, or an object that can be called."
            )
        if inspect.isgeneratorfunction(target(fn)) or inspect.isasyncgenfunction(target(fn)):
            raise self.refuse("it is a generator.", "collect what it yields in a list, and return that.")
        try:
            signature = inspect.signature(fn)
        except NameError as error:
            raise self.refuse(f"an annotation cannot be evaluated: {error}.", _IMPORT_IT) from None
        except (TypeError, ValueError):
            raise self.refuse("its parameters cannot be read.", "wrap it in a function of your own.") from None
        bound = fn.keywords if isinstance(fn, partial) else {}
        return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in bound])

    def annotation_of(self, parameter: inspect.Parameter) -> Any:
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise self.refuse(
                f"it takes {stars}{name}.",
                f"name each parameter; for a varying number take one list or dict, such as `{name}: list[str]`.",
                why="arguments come by name, and clients are told beforehand which names there are.",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise self.refuse(
                f"parameter {name!r} is positional-only, but arguments come by name.",
                "remove the `/` from the parameter list.",
            )
        if parameter.annotation is _EMPTY:
            if name in ("self", "cls"):
                raise self.refuse(
                    f"parameter {name!r} shows that it is a method without its object.",
                    "register the bound method, such as `server.tool(thing.method)`.",
                )
            if self.untyped and name not in ("ctx", "context"):
                return Any
            raise self.refuse(
                f"parameter {name!r} has no type.",
                f"annotate it, such as `{name}: str`, or use `{name}: Any` to accept anything."
                if name not in ("ctx", "context")
                else f"if it is the call's context, annotate it `{name}: Context`, with `from weft import Context`; "
                f"if clients are to send it, give it the type of what they send.",
                why="clients are told the type of every argument, and what they send is checked against it.",
            )
        return self.evaluate(name, parameter.annotation, f"parameter {name!r}")

    def evaluate(self, name: str, annotation: Any, subject: str) -> Any:
        """The annotation with every name in it looked up, also where it was written as text."""
        if annotation is _EMPTY or annotation is None:
            return annotation
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return get_type_hints(holder, self.globals, self.locals, include_extras=True)[name]
        except Exception as error:  # noqa: BLE001  # evaluating the user's text may raise anything
            text = annotation if isinstance(annotation, str) else _text(annotation)
            raise self.refuse(
                f"the annotation {text!r} of {subject} cannot be evaluated.",
                _IMPORT_IT if isinstance(error, NameError) else "correct the annotation.",
                why=reason(error),
            ) from None


_IMPORT_IT = (
    "import or define the name in the module itself, before the function; an import under `if TYPE_CHECKING:` "
    "does not exist when the program runs."
)


def _is_injected(annotation: Any, classes: tuple[type, ...]) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_injected(get_args(annotation)[0], classes)
    if origin in (Union, types.UnionType):
        return any(_is_injected(part, classes) for part in get_args(annotation))
    cls = origin or annotation
    return isinstance(cls, type) and issubclass(cls, classes)


def _text(annotation: Any) -> str:
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else type_name(annotation)
