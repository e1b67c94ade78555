"""What messages call a type, and how they say why it cannot be used. Owns these words; raises nothing."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin

__all__ = ["reason", "remedy", "type_name"]


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
