"""The parameters of a function: their types, defaults and descriptions, as one compiled validator and one schema.

Owns what is refused at registration, and the sentences that say so. The parameters become the fields of a TypedDict,
not of a model: a parameter may then have any name, and one that is absent takes the function's own default.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ForwardRef, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import msgspec
import pydantic_core
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaValidator
from typing_extensions import TypedDict

from weft.errors import RegistrationError
from weft.protocol.schema import is_array, is_object
from weft.server.docstrings import Docstring
from weft.server.signature_schema import inline, reason, schema_of, type_name
from weft.server.where import enclosing_locals, location, target

__all__ = ["MirroredHeader", "Params", "read_params"]

_EMPTY = inspect.Parameter.empty
_CONTAINERS = frozenset({
    "counter", "deque", "dict", "frozen-dict", "frozendict", "frozenset", "list", "ordered-dict", "set", "tuple",
})  # fmt: skip


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
    """The parameters as a whole: see the fields of the same names in `Signature`."""

    schema: dict[str, Any]
    injected: str | None
    returns: Any
    validate_json: Callable[..., dict[str, Any]]
    validate_large: Callable[..., dict[str, Any]]


def read_params(fn: Callable[..., Any], *, injected: tuple[type, ...], doc: Docstring, kind: str, name: str) -> Params:
    """Read the parameters of a function; RegistrationError when one cannot be offered."""
    return _Reader(fn, kind, name).read(injected, doc)


class _Reader:
    """One reading of one function; it exists so that each refusal can say whose it is and where."""

    def __init__(self, fn: Callable[..., Any], kind: str, name: str) -> None:
        self.fn = fn
        self.subject = f"{kind.capitalize()} {name!r} at {location(fn)}"
        self.globals: dict[str, Any] = getattr(target(fn), "__globals__", {})
        self.locals = enclosing_locals(fn)

    def read(self, injected: tuple[type, ...], doc: Docstring) -> Params:
        signature = self.inspect()
        context: str | None = None
        fields: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
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
            fields[parameter.name] = self.field_of(parameter, annotation)
            if parameter.default is not _EMPTY and not isinstance(parameter.default, FieldInfo):
                defaults[parameter.name] = parameter.default
        adapter = self.adapt(fields)
        schema = self.describe(adapter, fields, defaults, doc)
        return Params(
            schema=schema,
            injected=context,
            returns=self.evaluate("return", signature.return_annotation, "its return type"),
            validate_json=adapter.validator.validate_json,
            validate_large=_fail_fast(adapter).validate_json,
        )

    def refuse(self, what: str, remedy: str, why: str | None = None) -> RegistrationError:
        because = f"\n  Why: {why}" if why else ""
        return RegistrationError(f"{self.subject}: {what}{because}\n  What to do: {remedy}")

    def inspect(self) -> inspect.Signature:
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

    # --- one parameter

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
            raise self.refuse(
                f"parameter {name!r} has no type.",
                f"annotate it, such as `{name}: str`, or use `{name}: Any` to accept anything.",
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

    def field_of(self, parameter: inspect.Parameter, annotation: Any) -> Any:
        """The TypedDict field of one parameter; its default is left to Python where that is safe."""
        default = parameter.default
        if isinstance(default, FieldInfo):
            annotation = Annotated[annotation, default]
        elif default is not _EMPTY:
            self.check_default(parameter.name, annotation, default)
            # What can be changed is copied for each call; else one call would find what another one left in it.
            if not _is_hashable(default) or not _field_info(annotation).is_required():
                annotation = Annotated[annotation, Field(default=default)]
            return NotRequired[annotation]
        required = _field_info(annotation).is_required()
        return Required[annotation] if required else NotRequired[annotation]

    def check_default(self, name: str, annotation: Any, default: Any) -> None:
        try:
            given = {_outer_name(name, Required[annotation]): default}
            _typed_dict({name: Required[annotation]}).validator.validate_python(given, strict=True)
        except ValidationError as error:
            if default is None:
                raise self.refuse(
                    f"parameter {name!r} has the default None, which its type {type_name(annotation)} does not allow.",
                    f"annotate it `{name}: {type_name(annotation)} | None = None`, or give another default.",
                    why="clients are shown type and default side by side, and the function gets the default as it is.",
                ) from None
            first = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise self.refuse(
                f"the default of parameter {name!r}, of type {type_name(type(default))}, does not fit its type "
                f"{type_name(annotation)}.",
                "give a default of that type, or widen the annotation.",
                why=first.replace("Input", "It", 1) + ".",
            ) from None
        except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
            raise self.not_json(name, annotation, error) from None

    # --- all of them

    def adapt(self, fields: dict[str, Any]) -> TypeAdapter[Any]:
        try:
            return _typed_dict(fields)
        except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
            raise self.blame(fields, error) from None

    def describe(
        self, adapter: TypeAdapter[Any], fields: dict[str, Any], defaults: dict[str, Any], doc: Docstring
    ) -> dict[str, Any]:
        try:
            schema = schema_of(adapter, "validation")
        except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
            raise self.blame(fields, error) from None
        schema.pop("title", None)
        properties: dict[str, dict[str, Any]] = schema.setdefault("properties", {})
        for name, field in fields.items():
            shown = properties.get(_outer_name(name, field))
            if shown is None:
                continue
            if name in doc.params:
                shown.setdefault("description", doc.params[name])
            if name in defaults and "default" not in shown:
                shown.update(_shown_default(defaults[name]))
        schema = inline(schema)
        schema["properties"] = {name: _hoist_header(shown) for name, shown in schema["properties"].items()}
        return {"type": "object", **schema}

    def blame(self, fields: dict[str, Any], error: Exception) -> RegistrationError:
        """Find the parameter that alone fails as all together did."""
        for name, field in fields.items():
            try:
                schema_of(_typed_dict({name: field}), "validation")
            except Exception as cause:  # noqa: BLE001  # see above
                return self.not_json(name, get_args(field)[0], cause)
        return self.refuse("its parameters cannot be described as JSON.", "simplify their types.", why=reason(error))

    def not_json(self, name: str, annotation: Any, error: Exception) -> RegistrationError:
        return self.refuse(
            f"parameter {name!r} has the type {type_name(annotation)}, which cannot be read from JSON.",
            "use a type made of JSON values (a dataclass, a pydantic model, a TypedDict, list, dict, numbers, text), "
            "or make the value inside the function.",
            why=reason(error),
        )


_IMPORT_IT = (
    "import or define the name in the module itself, before the function; an import under `if TYPE_CHECKING:` "
    "does not exist when the program runs."
)


def _typed_dict(fields: Mapping[str, Any]) -> TypeAdapter[Any]:
    holder: Any = TypedDict("Arguments", dict(fields))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]  # fields known at run time
    holder.__pydantic_config__ = ConfigDict(extra="forbid")
    return TypeAdapter(holder)


def _fail_fast(adapter: TypeAdapter[Any]) -> SchemaValidator:
    """The same validator, but each container stops at its first wrong item: few errors, however much comes."""
    schema = _stopping(adapter.core_schema)
    try:
        return SchemaValidator(schema, _use_prebuilt=False)  # else models bring their own validators, which do not stop
    except TypeError:  # a version that has no such validators to bring
        return SchemaValidator(schema)


def _stopping(node: Any) -> Any:
    if is_array(node):
        return [_stopping(child) for child in node]
    if not is_object(node):
        return node
    changed = {key: value if key in ("metadata", "default") else _stopping(value) for key, value in node.items()}
    if node.get("type") in _CONTAINERS:
        changed["fail_fast"] = True
    return changed


def _is_injected(annotation: Any, classes: tuple[type, ...]) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_injected(get_args(annotation)[0], classes)
    if origin in (Union, types.UnionType):
        return any(_is_injected(part, classes) for part in get_args(annotation))
    cls = origin or annotation
    return isinstance(cls, type) and issubclass(cls, classes)


def _field_info(annotation: Any) -> FieldInfo:
    return FieldInfo.from_annotation(annotation)


def _outer_name(name: str, field: Any) -> str:
    """The name that callers use: an alias, if the parameter has one."""
    info = _field_info(get_args(field)[0])
    alias = info.validation_alias or info.alias
    return alias if isinstance(alias, str) else name


def _shown_default(default: Any) -> dict[str, Any]:
    try:
        shown = pydantic_core.to_jsonable_python(default)
    except (ValueError, RecursionError):
        return {}
    return {} if isinstance(shown, float) and not math.isfinite(shown) else {"default": shown}


def _hoist_header(shown: dict[str, Any]) -> dict[str, Any]:
    """Move the keyword of `Annotated[T, MirroredHeader(…)] | None` from the union's member to the property (HDR-21)."""
    for member in shown.get("anyOf", ()):
        if "x-mcp-header" in member and "x-mcp-header" not in shown:
            members = [{key: value for key, value in m.items() if key != "x-mcp-header"} for m in shown["anyOf"]]
            return {**shown, "anyOf": members, "x-mcp-header": member["x-mcp-header"]}
    return shown


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _text(annotation: Any) -> str:
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else type_name(annotation)
