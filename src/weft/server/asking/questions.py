"""Build questions (elicitation, sampling, roots), and check that the client supports them.

Each question needs a capability. If the client did not declare the capability, the call fails with an error that names
it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast, get_origin

import msgspec

from weft.errors import UsageError
from weft.jsonrpc import to_unicode
from weft.net.urls import UrlRefused, read_url
from weft.protocol.names import check_uri
from weft.protocol.sampling import fault_of_messages
from weft.server.calls.call import Call, not_declared
from weft.server.calls.connection import covers
from weft.server.diagnostics import read_message
from weft.types.features import TextContent
from weft.types.interaction import CreateMessageParams, ElicitParams, InputRequest, SamplingMessage
from weft.types.lifecycle import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability

log = logging.getLogger("weft.asks")


def ask_form(message: str, schema: type[Any] | Mapping[str, Any]) -> InputRequest:
    """Return a question that asks the user to fill in a form.

    `schema` describes the form: a class or a JSON Schema, without nested fields.
    """
    from weft.forms import check_form, fields_with_links, fields_with_secrets, form_schema, has_link

    shape = cast("object", schema)  # Callers may be untyped.
    if not isinstance(cast("object", message), str):
        raise UsageError("This cannot be asked by form: the first argument, the message, must be a text.")
    if not isinstance(shape, type | Mapping) and get_origin(shape) is None:
        raise UsageError(
            f"This cannot be asked by form: give the class of the form, not a value ({type(shape).__name__}); or a "
            "flat JSON Schema as a dictionary."
        )
    try:
        requested = check_form(schema) if isinstance(schema, Mapping) else form_schema(schema)
    except ValueError as error:
        raise UsageError(f"This cannot be asked by form: {error}") from None
    linked = [f"field {name!r}" for name in fields_with_links(requested)]
    if has_link(message):
        linked.append("message")
    if linked:
        _warn_of_links(tuple(linked), tuple(requested["properties"]))
    if secrets := fields_with_secrets(requested):
        _warn_of_secrets(tuple(secrets))
    params = ElicitParams(message=read_message(message, "ask_form"), mode="form", requested_schema=requested)
    return InputRequest("elicitation/create", params)


@lru_cache(maxsize=512)  # Warn once per form.
def _warn_of_links(linked: tuple[str, ...], fields: tuple[str, ...]) -> None:
    log.warning(
        "The form with the fields %s has a web address in its %s. Clients do not show it as a link, to prevent "
        "phishing: send the user there with ctx.elicit_url (or ask_url) instead.",
        ", ".join(fields),
        " and its ".join(linked),
    )


@lru_cache(maxsize=512)
def _warn_of_secrets(fields: tuple[str, ...]) -> None:
    log.warning(
        "A form asks for %s. By its name that is a secret, but a form shows it to the client, and maybe to a model. "
        "Let the user enter it on your own web page instead, with ctx.elicit_url (or ask_url).",
        ", ".join(repr(name) for name in fields),
    )


def ask_url(message: str, url: str, *, id: str | None = None) -> InputRequest:
    """Return a question that asks the user to visit a web page.

    The URL must be https, or http on this machine, and must not contain a user name or password. If you give an `id`,
    you can call `ctx.notify_complete(id)` later, to notify the client that the user has finished on the page. Default:
    a new id.
    """
    if id is not None and not (isinstance(id, str) and id):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code
        raise UsageError(f"ask_url(id={id!r}) is not possible: give a text that is not empty.")
    try:
        check_uri(url)
        read_url(url)
    except (TypeError, ValueError, UrlRefused) as error:
        refused = error if isinstance(error, UrlRefused) else None
        if refused is None or refused.fault == "malformed":
            raise UsageError("The user cannot be sent to a URL that is malformed: use an https URL.") from None
        # Without the path, which may be a secret: this is logged.
        shown = f"{refused.scheme}://{refused.host}"[:100]
        raise UsageError(
            f"The user cannot be sent to {shown!r}: use an https URL (or http on this machine) without a name or "
            "password: let the user log in on the page."
        ) from None
    params = ElicitParams(message=read_message(message, "ask_url"), mode="url", url=url, elicitation_id=id)
    return InputRequest("elicitation/create", params)


def ask_model(messages: str | Sequence[SamplingMessage], *, max_tokens: int, **options: Any) -> InputRequest:
    """Return a question for the client's model (sampling). `options` are the other fields of `CreateMessageParams`."""
    if isinstance(messages, str):
        messages = [SamplingMessage("user", TextContent(to_unicode(messages)))]
    return _ask_model(CreateMessageParams(messages=list(messages), max_tokens=max_tokens, **options))


def ask_model_raw(params: Mapping[str, Any]) -> InputRequest:
    """Return a question for the client's model with these params; raise UsageError if the params are not valid."""
    try:
        return _ask_model(msgspec.convert(params, CreateMessageParams))
    except msgspec.ValidationError as error:
        raise UsageError(f"The model cannot be asked this: {error}.") from None


def _ask_model(params: CreateMessageParams) -> InputRequest:
    fault = fault_of_messages(params.messages)
    if fault is not None:
        raise UsageError(f"The model cannot be asked this: {fault}")
    return InputRequest("sampling/createMessage", params)


def ask_roots() -> InputRequest:
    """Return a question that asks the client for its list of roots."""
    return InputRequest("roots/list")


def params_of(request: InputRequest) -> Any:
    """Return the params of a question as JSON values; None if the question has no params."""
    return None if request.params is msgspec.UNSET else msgspec.to_builtins(request.params)


def read_question(encoded: msgspec.Raw) -> InputRequest:
    """Return a question that was stored as JSON.

    >>> asked = ask_url("Please pay.", "https://shop.example/pay")
    >>> read_question(msgspec.Raw(msgspec.json.encode(asked))) == asked
    True
    """
    request = msgspec.json.decode(encoded, type=InputRequest)
    if request.method == "elicitation/create":
        request.params = msgspec.convert(request.params, ElicitParams)
    elif request.method == "sampling/createMessage":
        request.params = msgspec.convert(request.params, CreateMessageParams)
    return request


def check_key(key: object, where: str) -> None:
    r"""Raise UsageError if a key is not a string, or cannot be stored. The error message begins with `where`.

    >>> check_key("page \udcff", "ctx.once(...)")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: ctx.once(...) is not possible: the key is not Unicode. Give ascii(key), or another text.
    """
    if not isinstance(key, str):
        raise UsageError(f"{where} is not possible: a key is a text, not a value of the type {type(key).__name__}.")
    if to_unicode(key) != key:  # not replaced: the keys of two steps would become the same
        raise UsageError(f"{where} is not possible: the key is not Unicode. Give ascii(key), or another text.")


def check_request(call: Call, request: InputRequest) -> None:
    """Raise `MissingCapability` if the client did not declare the capability that a question needs."""
    needed, purpose = _needed(request)
    if call.connection.check_capability(needed):
        return
    required = cast("dict[str, Any]", msgspec.to_builtins(needed))
    name = next(iter(required))
    part = "".join(f".{inner}" for inner in required[name])
    raise not_declared(call, purpose, f"{name}{part}", required)


def missing_for(declared: ClientCapabilities, request: InputRequest) -> str | None:
    """Return why a client with these capabilities cannot be asked a question, or None if it can."""
    needed, purpose = _needed(request)
    if covers(declared, needed):
        return None
    return f"To {purpose}, the client must declare the capability {msgspec.json.encode(needed).decode()}."


def _needed(request: InputRequest) -> tuple[ClientCapabilities, str]:
    """Return the client capability that a question needs, and the purpose of the question for error messages."""
    params = request.params
    if request.method == "roots/list":
        return ClientCapabilities(roots=RootsCapability()), "list the client's roots"
    if request.method == "sampling/createMessage":
        tools: dict[str, Any] | None = {} if params.tools or params.tool_choice else None
        context: dict[str, Any] | None = {} if params.include_context in ("thisServer", "allServers") else None
        return ClientCapabilities(sampling=SamplingCapability(context, tools)), "ask the client's model"
    if params.mode == "url":
        return ClientCapabilities(elicitation=ElicitationCapability(url={})), "send the user to a page"
    return ClientCapabilities(elicitation=ElicitationCapability(form={})), "ask the user"
