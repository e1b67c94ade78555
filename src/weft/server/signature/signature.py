"""Read a Python function and bind JSON arguments to it.

This module reads the docstring, parameters, injected Context, defaults and return type of a registered function, and
refuses functions that cannot be used. It converts the JSON of a call to keyword arguments. It does not call the
function. `signature.plain` and `signature.fields` compile the types of the parameters.

The raw bytes are validated by one call of the compiled validator. First, only the exact JSON types are accepted. If
that fails, other forms that models send are accepted too (`"3"` for 3, `"true"` for true, 3.0 for 3), but never a
boolean for a number, or a number for a boolean.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from functools import partial
from textwrap import dedent
from typing import Any, ForwardRef, get_origin, get_type_hints

import msgspec
import pydantic_core
from pydantic_core import ValidationError

from weft.errors import RegistrationError
from weft.server.diagnostics import describe, enclosing_locals, location, target
from weft.server.signature.errors import ArgumentsError, explain, place_in, reason, type_name
from weft.server.signature.output import OutputError, read_output
from weft.server.signature.plain import Arguments, members, plain_arguments

__all__ = ["ArgumentsError", "MirroredHeader", "OutputError", "Signature", "read_signature"]

_LARGE = 65536  # Arguments with more bytes need exact types, because listing every problem would take too long.
_MANY = 1000  # Maximum number of problems that are listed.
_EXACT = 2**53  # Larger floats do not represent every integer exactly.
_NUMERIC = frozenset({"decimal_type", "float_type", "int_type"})  # pydantic's error types for numbers.
_EMPTY = inspect.Parameter.empty
_IMPORT_IT = (
    "import or define the name in the module itself, before the function; an import under `if TYPE_CHECKING:` "
    "does not exist when the program runs."
)

_HEADER = r"(?:args|arguments|params|parameters|keyword args|keyword arguments|other parameters)"
# A section and its entries in each style. Group 1 of a section is its indentation, group 2 its body.
_GOOGLE = re.compile(rf"^( *){_HEADER}: *\n((?:\1 +.*\n| *\n)*)", re.IGNORECASE | re.MULTILINE)
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+) ?(?:\([^)\n]*\))? ?:(?: |$)", re.MULTILINE)
_NUMPY = re.compile(
    rf"^( *){_HEADER} *\n *-{{3,}} *\n((?:(?!.*\n *-{{3,}} *$)(?:\1.*| *)\n)*)", re.IGNORECASE | re.MULTILINE
)
_NUMPY_ENTRY = re.compile(r"^(\S[^:\n]*).*\n", re.MULTILINE)
_SPHINX = re.compile(
    r"^( *):(?:param|parameter|arg|argument|key|keyword|(type)) ([^:\n]*):(.*\n(?:\1 +\S.*\n)*)", re.MULTILINE
)


class Signature(msgspec.Struct, frozen=True):
    """The name, schemas and types of a registered function, with methods that bind arguments to its parameters."""

    name: str
    kind: str  # Such as "tool" or "prompt".
    where: str  # Source location of the function.
    description: str  # The docstring without its parameter section.
    input_schema: dict[str, Any]  # JSON Schema 2020-12.
    output_schema: dict[str, Any] | None  # None if no schema is made for the return type.
    is_async: bool
    injected: str | None  # Name of the parameter that takes the Context.
    returns: Any  # The evaluated return annotation, or `inspect.Signature.empty`.
    dump_output: Callable[[Any], Any] | None  # Turns a return value into JSON values.
    require_text: Callable[[Any], None] | None  # Raises OutputError if a return value is not text.
    _arguments: Arguments

    def bind_json(self, raw: bytes) -> dict[str, Any]:
        """Decode a JSON object to keyword arguments; raise ArgumentsError if it does not match the signature."""
        try:
            if len(raw) <= _LARGE:
                return self._arguments.validate_json(raw, strict=True)
            return self._arguments.validate_large(raw, strict=True)
        except ValidationError as error:
            # Do not keep the exception: with this frame it would form a reference cycle that holds all arguments.
            problems = self._problems(error)
        return self._bind_leniently(raw, problems)

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert JSON values to keyword arguments; raise ArgumentsError if the values do not match the signature."""
        return self.bind_json(pydantic_core.to_json(dict(values)))

    def _problems(self, error: ValidationError) -> list[Any]:
        """Return the problems that pydantic found; raise ArgumentsError if there are too many to list."""
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
        if (
            problems[0]["type"] == "json_invalid" and not problems[0]["loc"]
        ):  # Otherwise one argument is a text that should be JSON.
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
    """Read the signature of a function; raise RegistrationError if the function cannot be registered.

    A parameter whose type is a class in `injected` gets its value from Weft, not from the client. `opaque` has the
    return types that are not JSON values. If `untyped` is True, parameters may have no annotation, as in a tool with
    `input_schema=`. If `refs` is True, the definitions of a schema stay under `$defs`.

    These return types get no output schema: classes in `opaque`; `str`, `bytes`, `None` and `Any`, for which a schema
    would say nothing new; `list` and `list[Any]`, which may contain content blocks.

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
    doc = parse_docstring(inspect.getdoc(target(fn)))
    reader = _Reader(fn, kind, name, untyped=untyped, refs=refs)
    arguments, context, returns = reader.read(injected, doc.params)
    subject = f"{kind.capitalize()} {name!r} ({location(fn)})"
    output = read_output(returns, opaque=opaque, subject=subject, refuse=reader.refuse, refs=refs)
    return Signature(
        name=name,
        kind=kind,
        where=location(fn),
        description=doc.summary,
        input_schema=arguments.schema,
        output_schema=output.schema,
        is_async=inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__),
        injected=context,
        returns=returns,
        dump_output=output.dump,
        require_text=output.require_text,
        _arguments=arguments,
    )


def _with_whole_numbers(problems: list[Any], raw: bytes) -> bytes | None:
    """Return the arguments with 3 in place of 3.0 where an integer is expected, or None if nothing has to change.

    `raw` are the arguments as JSON. In JSON Schema, 3.0 is an integer too. The replacement is done before the lenient
    validation, because there another member of a union, such as a boolean, might accept the number.
    """
    places = [problem["loc"] for problem in problems if problem["type"] == "int_type" and _is_whole(problem["input"])]
    if not places:
        return None
    arguments = pydantic_core.from_json(raw)
    is_changed = False
    for place in places:
        holder, step = place_in(place, arguments)
        if step is not None and _is_whole(holder[step]):
            holder[step] = int(holder[step])
            is_changed = True
    return pydantic_core.to_json(arguments) if is_changed else None


def _is_whole(given: Any) -> bool:
    return isinstance(given, float) and given.is_integer() and abs(given) < _EXACT


def _is_too_far(problem: Mapping[str, Any]) -> bool:
    """Return whether a wrong value must be rejected, although lenient validation would convert it.

    `problem` is the problem with this value that strict validation found.
    """
    given, place = problem["input"], problem["loc"]
    if problem["type"] == "bool_type":
        if isinstance(given, str):
            # In a union, another member may accept the text.
            in_union = len(place) > 1 and place[-1] == "bool"
            return not in_union and given.lower() not in ("true", "false")
        return isinstance(given, (int, float))
    return problem["type"] in _NUMERIC and isinstance(given, bool)


class MirroredHeader(msgspec.Struct, frozen=True):
    """Marks a parameter whose value clients repeat in the HTTP header `Mcp-Param-{name}`.

    >>> def run(region: Annotated[str, MirroredHeader("Region")]) -> str: ...
    """

    name: str

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the JSON Schema of the parameter with the keyword `x-mcp-header`."""
        return {**handler(core_schema), "x-mcp-header": self.name}


class _Reader:
    """Reads the parameters and annotations of one function."""

    def __init__(self, fn: Callable[..., Any], kind: str, name: str, *, untyped: bool, refs: bool) -> None:
        self.fn = fn
        self.refs = refs
        self.untyped = untyped
        self.subject = f"{kind.capitalize()} {name!r} at {location(fn)}"
        self.globals: dict[str, Any] = getattr(target(fn), "__globals__", {})
        self.locals = enclosing_locals(fn)

    def read(self, injected: tuple[type, ...], descriptions: Mapping[str, str]) -> tuple[Arguments, str | None, Any]:
        """Return the compiled parameters, the name of the parameter with a type in `injected`, and the return type."""
        signature = self.read_signature()
        context: str | None = None
        offered: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            annotation = self.annotation_of(parameter)
            if not _is_injected(annotation, injected):
                offered.append(parameter.replace(annotation=annotation))
            elif context is None:
                context = parameter.name
            else:
                raise self.refuse(
                    f"both {context!r} and {parameter.name!r} are {type_name(annotation)} parameters.",
                    "keep one of them.",
                )
        arguments = plain_arguments(offered, descriptions)
        if arguments is None:
            from weft.server.signature.fields import read_fields  # Slow to import, because it imports pydantic.

            arguments = read_fields(offered, descriptions, self.refuse, refs=self.refs)
        return arguments, context, self.evaluate("return", signature.return_annotation, "its return type")

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
            raise self.refuse("its parameters cannot be read.", "wrap it in a function.") from None
        bound = fn.keywords if isinstance(fn, partial) else {}
        return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in bound])

    def annotation_of(self, parameter: inspect.Parameter) -> Any:
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise self.refuse(
                f"it takes {stars}{name}.",
                f"name each parameter; for a varying number take one list or dict, such as `{name}: list[str]`.",
                why="arguments come by name, and clients must know all names beforehand.",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise self.refuse(
                f"parameter {name!r} is positional-only, but arguments come by name.",
                "remove the `/` from the parameter list.",
            )
        if parameter.annotation is _EMPTY:
            if name in ("self", "cls"):
                raise self.refuse(
                    f"parameter {name!r} has no type; it seems to be a method without its object.",
                    "register the bound method, such as `server.tool(thing.method)`.",
                )
            if self.untyped and name not in ("ctx", "context"):
                return Any
            raise self.refuse(
                f"parameter {name!r} has no type.",
                f"annotate it, such as `{name}: str`, or use `{name}: Any` to accept anything."
                if name not in ("ctx", "context")
                else f"if it is the call's context, annotate it `{name}: Context`, with `from weft import Context`; "
                f"if clients send it, annotate it with the type of the value.",
                why="clients are told the type of every argument, and the values that they send are checked.",
            )
        return self.evaluate(name, parameter.annotation, f"parameter {name!r}")

    def evaluate(self, name: str, annotation: Any, subject: str) -> Any:
        """Return the type that an annotation means; raise RegistrationError if the annotation cannot be evaluated.

        The annotation may be a string. `name` is the parameter or "return"; `subject` describes it in the error.
        """
        if annotation is _EMPTY or annotation is None:
            return annotation
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return get_type_hints(holder, self.globals, self.locals, include_extras=True)[name]
        except Exception as error:  # noqa: BLE001  # an annotation may raise anything
            text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
            text = text if isinstance(text, str) else type_name(text)
            raise self.refuse(
                f"the annotation {text!r} of {subject} cannot be evaluated.",
                _IMPORT_IT if isinstance(error, NameError) else "correct the annotation.",
                why=reason(error),
            ) from None


def _is_injected(annotation: Any, classes: tuple[type, ...]) -> bool:
    kinds = [get_origin(one) or one for one in members(annotation)]
    return any(isinstance(kind, type) and issubclass(kind, classes) for kind in kinds)


class Docstring(msgspec.Struct, frozen=True):
    """A parsed docstring: the description of a function, and of each of its parameters."""

    summary: str = ""  # The docstring without its parameter section.
    params: dict[str, str] = msgspec.field(default_factory=dict[str, str])


def parse_docstring(doc: str | None) -> Docstring:
    """Split a docstring into a summary and the descriptions of the parameters.

    Parameters may be described in Google, NumPy or Sphinx style. All other text is part of the summary.

    >>> parse_docstring('''Add two numbers.
    ...
    ... Args:
    ...     a: The first.
    ...     b: The second,
    ...         on two lines.
    ... ''')
    Docstring(summary='Add two numbers.', params={'a': 'The first.', 'b': 'The second, on two lines.'})
    """
    text = inspect.cleandoc(doc or "") + "\n"
    found: dict[str, list[str]] = {}

    def read_google(section: re.Match[str]) -> str:
        _, *entries = _GOOGLE_ENTRY.split(dedent(section[2]))
        for name, entry in zip(entries[::2], entries[1::2], strict=True):
            found.setdefault(name, []).append(entry)
        return ""

    def read_numpy(section: re.Match[str]) -> str:
        _, *entries = _NUMPY_ENTRY.split(dedent(section[2]))
        for names, entry in zip(entries[::2], entries[1::2], strict=True):
            found.update({name.strip().lstrip("*"): [entry] for name in names.split(",")})
        return ""

    def read_sphinx(entry: re.Match[str]) -> str:
        if entry[3].split() and not entry[2]:
            found[entry[3].split()[-1].lstrip("*")] = [entry[4]]
        return ""

    for pattern, read in ((_SPHINX, read_sphinx), (_NUMPY, read_numpy), (_GOOGLE, read_google)):
        text = pattern.sub(read, text)
    params = {name: " ".join(" ".join(entries).split()) for name, entries in found.items()}
    summary = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines())).strip()
    return Docstring(summary, {name: description for name, description in params.items() if name and description})
