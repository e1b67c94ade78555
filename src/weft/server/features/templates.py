"""What a URI and the function that reads it must have in common, or nothing could ever be read.

Owns what is refused at registration because of it. How URIs are matched is up to `protocol.uritemplate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weft.errors import RegistrationError
from weft.protocol.names import check_uri
from weft.protocol.schema import alternatives
from weft.protocol.uritemplate import UriTemplate
from weft.server.signature.signature import Signature
from weft.types.resources import Resource

__all__ = ["check_no_parameters", "check_parameters", "parse_template"]


def check_no_parameters(signature: Signature, definition: Resource, where: str) -> None:
    """Refuse parameters that a URI without variables could not fill in."""
    required = signature.input_schema.get("required")
    if required:
        raise RegistrationError(
            f"Resource {definition.uri!r} cannot be registered ({where}): its function needs {_names(required)}, which "
            f"its URI does not give. Put them into the URI as variables, such as {{{required[0]}}}, or give them "
            "defaults."
        )


def parse_template(text: str, where: str) -> UriTemplate:
    """Read a template; RegistrationError if it is none, or if nothing that it makes could be asked for."""
    try:
        template = UriTemplate(text)
        _check_readable(template)
    except ValueError as error:
        raise RegistrationError(f"Resource template {text!r} cannot be registered ({where}): {error}") from None
    return template


def _check_readable(template: UriTemplate) -> None:
    """What a template makes must be a URI, or nothing of it could ever be asked for (RES-11)."""
    # A value with a colon, where the template lets it stand, may bring the scheme: `{+uri}`.
    plain, colon = (template.expand(dict.fromkeys(template.variables, value)) for value in ("x", "x:x"))
    try:
        check_uri(colon, len(colon))
    except ValueError:
        check_uri(plain, len(plain))


def check_parameters(template: UriTemplate, signature: Signature, where: str) -> None:
    """Refuse a function whose parameters do not fit the variables."""
    _check_variables(template, signature, where)
    _check_kinds(template, signature, where)


def _check_variables(template: UriTemplate, signature: Signature, where: str) -> None:
    """The variables and the parameters must be the same; parameters with a default may be more."""
    parameters = signature.input_schema.get("properties", {})
    unknown = [name for name in template.variables if name not in parameters]
    missing = [name for name in signature.input_schema.get("required", ()) if name not in template.variables]
    if not unknown and not missing:
        return
    problems: list[str] = []
    if unknown:
        problems.append(f"its function has no parameter for {_names(unknown)}")
    if missing:
        problems.append(f"it gives no value for {_names(missing)}")
    raise RegistrationError(
        f"Resource template {template.text!r} cannot be registered ({where}): {', and '.join(problems)}. "
        f"Its variables are {_names(template.variables)}, the parameters are {_names(parameters)}: make them the same."
    )


def _check_kinds(template: UriTemplate, signature: Signature, where: str) -> None:
    """A parameter that takes nothing of what its variable gives could never be filled in."""
    for name in template.variables:
        kinds = _kinds(signature.input_schema["properties"][name], signature.input_schema)
        is_list = name in template.lists
        if not kinds or ("array" in kinds if is_list else not kinds <= {"array", "object", "null"}):
            continue
        given, write = ("a list of texts", f"{name}: list[str]") if is_list else ("a text", f"{name}: str")
        raise RegistrationError(
            f"Resource template {template.text!r} cannot be registered ({where}): its variable {name!r} gives {given}, "
            f"which the type of that parameter does not take. Annotate it `{write}`, or change the template: "
            f"{{{name}*}} gives a list, {{{name}}} a text."
        )


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema takes; none where it does not simply say so."""
    kinds: list[Any] = [one.get("type") for one in alternatives(schema, root)]
    return set(kinds) if all(isinstance(kind, str) for kind in kinds) else set()


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
