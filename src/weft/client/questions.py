"""Define classes for the questions of a server, and check questions and answers.

If a question breaks the rules, InvalidParams is raised, which is sent to the server. If an answer does not match its
question, UsageError is raised, which tells the program that its function returned a wrong answer. This module does not
call the program's functions. It does no I/O, except to check whether the folders of roots exist.
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
from weft.types.interaction import CreateMessageParams, ElicitResult, ModelPreferences, Root

T = TypeVar("T")
Action = Literal["accept", "decline", "cancel"]
RootLike: TypeAlias = str | Path | Root


@dataclass(frozen=True, slots=True)
class FormQuestion:
    """A form for the user to fill in (form elicitation). Show the user which `server` asks."""

    message: str
    schema: Mapping[str, Any]  # a flat JSON Schema with the fields of the form
    defaults: Mapping[str, Any]  # values to fill in beforehand; sent for fields that the answer leaves out
    server: str = ""


@dataclass(frozen=True, slots=True)
class UrlQuestion:
    """A web page for the user to visit (URL elicitation). Show the whole `url`, and emphasize the `host`.

    Do not fetch the page. Ask the user for consent, then open the page in a browser, where neither this program nor a
    model can read it.
    """

    message: str
    url: str
    host: str
    warnings: tuple[str, ...] = ()  # warnings about a suspicious URL, to be shown with it
    server: str = ""
    elicitation_id: str | None = None


class SampleQuestion(CreateMessageParams, kw_only=True):
    """A sampling request: the server asks for a message from a language model.

    Show the user which `server` asks. Generate at most `max_tokens` tokens.
    """

    server: str = ""


def preferred_model(preferences: ModelPreferences | None, available: Sequence[str]) -> str | None:
    """Return the available model that matches the preferences best, or None if no model matches.

    A model matches if its name contains a hint. Earlier hints have priority.

    >>> from weft.types.interaction import ModelHint
    >>> preferred_model(ModelPreferences(hints=[ModelHint("opus"), ModelHint("haiku")]), ["claude-haiku", "gpt"])
    'claude-haiku'
    """
    hints = [hint.name.lower() for hint in (preferences and preferences.hints) or () if hint.name]
    return next((model for hint in hints for model in available if hint in model.lower()), None)


# --- reading questions


def read_params(params: Any, type: type[T], method: str) -> T:
    """Convert the params of a request, a mapping or raw JSON, to `type`. Raises InvalidParams if that fails."""
    try:
        if isinstance(params, msgspec.Raw | bytes):
            return msgspec.json.decode(params, type=type)
        return msgspec.convert({} if params is None or params is msgspec.UNSET else params, type)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        raise InvalidParams(f"Invalid params: they do not match the schema of {method}.") from None


class Form:
    """The schema of a form elicitation. Provides the default values of its fields, and checks answers.

    The specification allows only a few kinds of fields. Many servers send schemas with other kinds, because a library
    generates the schemas. Answers to such a schema are checked by the rules of JSON Schema. Raises InvalidParams if the
    schema cannot be used, or asks for a password.
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
        """Check `content`, the user's answers by field, and return the answers to send to the server.

        Raises UsageError if the answers do not match the schema.
        """
        from weft.forms import parse_form

        try:
            if self._validator is None:
                filled: dict[str, Any] = parse_form(self._schema, content)
                return filled
            asked = {name: value for name, value in content.items() if name in self._schema["properties"]}
            if problems := self._validator.problems(asked):
                raise ValueError(" ".join(map(str, problems)))
            if not all(map(_is_plain, asked.values())):
                raise ValueError("A field is text, a number, true or false, or a list of texts.")
        except ValueError as error:
            raise UsageError(f"elicit= returned an answer that cannot be sent: {error}") from None
        return asked


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in cast("list[Any]", value))
    return value is None or isinstance(value, str | int | float)


def check_page(url: str) -> tuple[str, tuple[str, ...]]:
    """Return the host of a web page that the user is asked to visit, and warnings about the host.

    Raises InvalidParams unless `url` uses https, or http on this machine, and has no password.
    """
    try:
        check_uri(url)
        host = read_url(url).hostname or ""
    except (ValueError, UrlRefused):
        raise InvalidParams("Invalid params: `url` must be https (on localhost, http) without a password.") from None
    warnings: list[str] = []
    if any(label.startswith("xn--") for label in host.lower().split(".")):
        warnings.append(f"The host {host} is written in Punycode: it may imitate the name of another host.")
    if host.replace(".", "").isdigit() or ":" in host:
        warnings.append(f"The host {host} is an IP address, not a name.")
    return host, tuple(warnings)


def check_sampling(params: CreateMessageParams) -> None:
    """Raise InvalidParams if `max_tokens` is below 1, or if the messages break the rules of the protocol."""
    if params.max_tokens < 1:
        raise InvalidParams("Invalid params: `maxTokens` is 1 or more.")
    fault = fault_of_messages(params.messages)
    if fault is not None:
        raise InvalidParams(f"Invalid params: {fault}")


# --- reading answers


def read_action(answer: Any) -> tuple[Action, Mapping[str, Any] | None]:
    """Convert the return value of `elicit` or `elicit_url` to an action and the answers to the form.

    The answers are None if the function returned only an action. Raises UsageError for any other return value.
    """
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
        f"The function returned {kind_of(answer)}; return a dict with answers, True, 'accept', 'decline' or 'cancel'."
    )


def read_roots(roots: Any) -> list[Root]:
    """Convert paths, file:// URIs and Root values to roots. Raises UsageError for anything else.

    >>> read_roots(["file:///home/ann/notes"])
    [Root(uri='file:///home/ann/notes', name=None, meta=None)]
    """
    if isinstance(roots, str | Path | Root) or not isinstance(roots, Iterable):
        raise UsageError("roots= needs to be a list of folders, or a function that returns one.")
    return [_root(root) for root in cast("Iterable[RootLike]", roots)]


def _root(root: RootLike) -> Root:
    """Convert one value to a root. Raises UsageError unless the value is a path or a file:// URI without `..`."""
    if isinstance(root, Path):
        return Root(root.expanduser().resolve().as_uri(), root.name or None)
    if isinstance(root, str):
        return _root(Root(root) if "://" in root else cast("RootLike", Path(root)))
    parts = urlsplit(root.uri)
    if parts.scheme != "file":
        raise UsageError(f"The root {root.uri[:100]!r} is not a file:// URI; give a path, or such a URI.")
    try:
        check_uri(root.uri)
    except ValueError as error:
        raise UsageError(f"A root cannot be sent: {error}") from None
    path = unquote(parts.path)
    if "\0" in path or ".." in re.split(r"[/\\]", path):
        raise UsageError(f"The root {root.uri[:100]!r} has '..' or a NUL in it; write the resolved path.")
    return root


def reachable(roots: Sequence[Root], log: Seldom) -> list[Root]:
    """Return the roots that exist and can be read. Log a warning for each other root."""
    found = [root for root in roots if os.access(_path(root), os.R_OK)]
    for uri in {root.uri for root in roots} - {root.uri for root in found}:
        log.warning("The root %s does not exist or cannot be read; it is not sent to the server.", uri, about=uri)
    return found


def _path(root: Root) -> str:
    path = os.fsdecode(unquote_to_bytes(urlsplit(root.uri).path))
    return path.lstrip("/") if os.name == "nt" else path  # on Windows, the letter of a drive comes after the slash
