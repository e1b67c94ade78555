"""The parameters of a function: their types, defaults and descriptions, as one compiled validator and one schema.

Owns how parameters are found and their annotations evaluated, what is refused because of the way a function is
written, and the form of every refusal. What is made of the types is up to `signature.plain` and `signature.fields`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ForwardRef, Union, get_args, get_origin, get_type_hints

import msgspec

from weft.errors import RegistrationError
from weft.server.signature.docstrings import Docstring
from weft.server.signature.plain import Arguments, plain_arguments
from weft.server.signature.words import reason, type_name
from weft.server.where import enclosing_locals, location, target

__all__ = ["MirroredHeader", "Params", "read_params"]

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
