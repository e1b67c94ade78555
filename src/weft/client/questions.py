"""Describe the questions of a server as values, and check them and their answers.

A question that breaks the rules is an `InvalidParams`, for the server; an answer that does not fit its question is a
`UsageError`, for the program whose function gave it. Nothing here calls a function or fetches anything; of folders it
is looked only whether they exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import msgspec

from weft.client.argument_checks import kind_of
from weft.errors import InvalidParams, UsageError
from weft.net.logs import Seldom
from weft.net.urls import UrlRefused, read_url
from weft.protocol.names import check_uri
from weft.protocol.sampling import fault_of_messages
from weft.types.interaction import (
    CreateMessageParams,
    ElicitResult,
    ModelPreferences,
    Root,
)

T = TypeVar("T")
Action = Literal["accept", "decline", "cancel"]
RootLike: TypeAlias = str | Path | Root


@dataclass(frozen=True, slots=True)
class FormQuestion:
    """A form to fill in. `server` asks, and should be named to the user."""

    message: str
    schema: Mapping[str, Any]  # a flat JSON Schema: what to ask
    defaults: Mapping[str, Any]  # what to fill in beforehand; also what is sent where the answer leaves a field out
    server: str = ""


@dataclass(frozen=True, slots=True)
class UrlQuestion:
    """A page to visit, if the user consents. Show the whole `url`, and the `host` so that it stands out.

    Do not fetch the page; open it, after consent, where neither this program nor a model can look into it.
    """

    message: str
    url: str
    host: str
    warnings: tuple[str, ...] = ()  # sentences about what is odd about the URL, to be shown with it
    server: str = ""
    elicitation_id: str | None = None


class SampleQuestion(CreateMessageParams, kw_only=True):
    """A turn of a model. `server` asks; no more than `max_tokens` are to be generated."""

    server: str = ""


def preferred_model(preferences: ModelPreferences | None, available: Sequence[str]) -> str | None:
    """Return the first available model that a hint names a part of; the first hint that fits decides.

    >>> from weft.types.interaction import ModelHint
    >>> preferred_model(ModelPreferences(hints=[ModelHint("opus"), ModelHint("haiku")]), ["claude-haiku", "gpt"])
    'claude-haiku'
    """
    for hint in (preferences and preferences.hints) or ():
        for model in available:
            if hint.name and hint.name.lower() in model.lower():
                return model
    return None


# --- reading questions


def read_params(params: Any, type: type[T], method: str) -> T:
    """Read the params of a request, given as a mapping or as raw JSON."""
    try:
        if isinstance(params, msgspec.Raw | bytes):
            return msgspec.json.decode(params, type=type)
        return msgspec.convert({} if params is None or params is msgspec.UNSET else params, type)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        raise InvalidParams(f"Invalid params: they do not have the shape of those of {method}.") from None


class Form:
    """A requested schema: its defaults, and what fits it.

    One that keeps to the few kinds of field that a form has is checked as a form; one that does not, for many servers
    write what their language gives them, as the JSON Schema that it is.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        from weft.forms import check_form
        from weft.protocol.schema import compile_schema, is_object

        self._schema = schema
        self._validator = None
        properties = schema.get("properties")
        if schema.get("type") != "object" or not is_object(properties):
            raise InvalidParams('Invalid params: a requestedSchema has "type": "object" and "properties".')
        fields = {name: field for name, field in properties.items() if is_object(field)}
        if any(field.get("format") == "password" for field in fields.values()):
            raise InvalidParams("Invalid params: secrets are never asked by form; use elicitation by URL.")
        try:
            check_form(schema)
        except ValueError:
            try:
                self._validator = compile_schema(schema)
            except ValueError:
                raise InvalidParams("Invalid params: the requestedSchema is not a usable JSON Schema.") from None
        self.defaults = {name: field["default"] for name, field in fields.items() if field.get("default") is not None}

    def checked(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return what may be sent; UsageError for an answer that does not fit."""
        from weft.forms import parse_form

        if self._validator is None:
            try:
                filled: dict[str, Any] = parse_form(self._schema, content)
            except ValueError as error:
                raise UsageError(f"elicit= returned an answer that cannot be sent: {error}") from None
            return filled
        asked = {name: value for name, value in content.items() if name in self._schema["properties"]}
        problems = [str(problem) for problem in self._validator.problems(asked)]
        if not problems and not all(_is_plain(value) for value in asked.values()):
            problems = ["A field is text, a number, true or false, or a list of texts."]
        if problems:
            raise UsageError(f"elicit= returned an answer that cannot be sent: {' '.join(problems)}")
        return asked


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in cast("list[Any]", value))
    return value is None or isinstance(value, str | int | float)


def check_page(url: str) -> tuple[str, tuple[str, ...]]:
    """Return the host of a page that a user may be sent to, and warnings about it; InvalidParams for any other."""
    try:
        check_uri(url)
        host = read_url(url).hostname or ""
    except ValueError:
        raise InvalidParams("Invalid params: `url` is not a URL.") from None
    except UrlRefused as refused:
        if refused.fault == "credentials":
            text = "a user is not sent to a URL with a name or password before its host."
        elif refused.fault == "malformed":
            text = "`url` is not a URL."
        else:
            text = "a user is sent to https URLs only, or to http on their own machine."
        raise InvalidParams(f"Invalid params: {text}") from None
    warnings: list[str] = []
    if any(label.startswith("xn--") for label in host.lower().split(".")):
        warnings.append(f"The host {host} is written in Punycode: it may be made to look like another.")
    if host.replace(".", "").isdigit() or ":" in host:
        warnings.append(f"The host {host} is an address without a name.")
    return host, tuple(warnings)


def check_sampling(params: CreateMessageParams) -> None:
    """Check that a model can be given a request: it has room for an answer, and the results of all tools used."""
    if params.max_tokens < 1:
        raise InvalidParams("Invalid params: `maxTokens` is 1 or more.")
    fault = fault_of_messages(params.messages)
    if fault is not None:
        raise InvalidParams(f"Invalid params: {fault}")


# --- reading answers


def read_action(answer: Any) -> tuple[Action, Mapping[str, Any] | None]:
    """Read the action of the user, and the answers given with it, from what a function returned."""
    if isinstance(answer, ElicitResult):
        return answer.action, answer.content
    if isinstance(answer, Mapping):
        return "accept", cast("Mapping[str, Any]", answer)
    if isinstance(answer, bool):
        return ("accept" if answer else "decline"), None
    if answer is None:
        return "cancel", None
    if isinstance(answer, str) and answer in get_args(Action):
        return cast("Action", answer), None
    raise UsageError(
        f"The function that asks the user returned {kind_of(answer)}; return a dict with the answers, True, 'accept', "
        "'decline' or 'cancel'."
    )


def read_roots(roots: Any) -> list[Root]:
    """Return roots from paths, file:// URIs or Root values; UsageError for anything else.

    >>> read_roots(["file:///home/ann/notes"])
    [Root(uri='file:///home/ann/notes', name=None, meta=None)]
    """
    if isinstance(roots, str | Path | Root) or not isinstance(roots, Iterable):
        raise UsageError("roots= needs to be a list of folders, or a function that returns one.")
    return [_root(root) for root in cast("Iterable[RootLike]", roots)]


def _root(root: RootLike) -> Root:
    """Return a root with a file:// URI that leads where it says."""
    if isinstance(root, Path):
        return Root(root.expanduser().resolve().as_uri(), root.name or None)
    if isinstance(root, str):
        return _root(Root(root) if "://" in root else cast("RootLike", Path(root)))
    parts = urlsplit(root.uri)
    if parts.scheme != "file":
        raise UsageError(f"The root {root.uri[:100]!r} is no file:// URI; give a path, or a URI such as file:///home.")
    try:
        check_uri(root.uri)
    except ValueError as error:
        raise UsageError(f"A root cannot be sent: {error}") from None
    path = unquote(parts.path)
    if "\0" in path or ".." in re.split(r"[/\\]", path):
        raise UsageError(f"The root {root.uri[:100]!r} has '..' or a NUL in it; write where it leads.")
    return root


def reachable(roots: Sequence[Root], log: Seldom) -> list[Root]:
    """Return the roots that exist and can be read; the others are left out, with a warning."""
    found: list[Root] = []
    for root in roots:
        if os.access(_path(root), os.R_OK):
            found.append(root)
        else:
            uri = root.uri
            log.warning("The root %s is not there, or cannot be read: the server is not told of it.", uri, about=uri)
    return found


def _path(root: Root) -> str:
    path = os.fsdecode(unquote_to_bytes(urlsplit(root.uri).path))
    return path.lstrip("/") if os.name == "nt" else path  # there, the letter of a drive comes after the slash
