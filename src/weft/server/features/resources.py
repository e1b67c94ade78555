"""Register and read resources and resource templates.

Resources: the registry, and what happens at `resources/list`, `resources/templates/list` and `resources/read`.

Owns which URI belongs to which resource, and how what a function returns becomes contents. It must not open what a URI
names: only what was registered can be read (RES-13, RES-15).

What a URI and the function that reads it must have in common, or nothing could ever be read.

Owns what is refused at registration because of it. How URIs are matched is up to `protocol.uritemplate`.
"""

from __future__ import annotations

import logging
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Any, cast

from weft.errors import InvalidParams, RegistrationError, ResourceNotFound
from weft.limits import Limits
from weft.protocol.names import check_uri
from weft.protocol.schema import alternatives
from weft.protocol.uritemplate import UriTemplate
from weft.server.asking.context import Context
from weft.server.auth.scopes import Audience, check_scopes
from weft.server.calls.call import Call, check_hide, check_needs
from weft.server.calls.changes import Change, Changes
from weft.server.diagnostics.argument_checks import check_kind, warn_of_web_uri
from weft.server.diagnostics.source_location import caller, location
from weft.server.features.content import (
    HELPERS,
    File,
    Unserialisable,
    base64_of,
    check_mime_type,
    check_text,
    to_json_text,
)
from weft.server.features.definitions import check_definition, nothing_to_remove
from weft.server.features.pages import CacheHint, Encoded, Pages
from weft.server.signature.signature import ArgumentsError, Signature, read_signature
from weft.types.base import Annotations, Icon, Meta, Result, Struct
from weft.types.content import ResourceContents
from weft.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)

log = logging.getLogger("weft.advice")

_OPAQUE = (Struct, *HELPERS)
_DESCRIBING = frozenset({"title", "description", "default", "examples"})


def to_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """What a resource's function returned, as contents.

    A string is text, bytes are base64, any other JSON value is JSON text; a list that has contents or files in it may
    have several, each under its own URI.

    >>> to_contents({"debug": True}, "config://app", None)[0].text
    '{"debug":true}'
    """
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        if any(isinstance(item, (ResourceContents, *HELPERS)) for item in items):
            return _several(items, uri, mime_type)
    return [_one(value, uri, mime_type)]


def _several(items: Iterable[Any], uri: str, mime_type: str | None) -> list[ResourceContents]:
    return [_one(item, item.uri if isinstance(item, File) else uri, mime_type) for item in items]


def _one(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        if (value.text is None) == (value.blob is None):
            raise Unserialisable("ResourceContents has either `text` or `blob`: give exactly one of them.")
        return value
    if isinstance(value, str):
        return ResourceContents(uri, mime_type or "text/plain", text=check_text(value))
    if isinstance(value, bytes):
        return ResourceContents(uri, mime_type or "application/octet-stream", blob=base64_of(value))
    if isinstance(value, File):
        return value.to_contents(uri)
    if isinstance(value, HELPERS):
        return ResourceContents(uri, value.mime_type, blob=base64_of(value.data), meta=value.meta)
    return ResourceContents(uri, mime_type or "application/json", text=to_json_text(value))


class _Registered:
    """What resources and templates have in common."""

    __slots__ = ("cache_hint", "hide", "needs", "scopes", "uri", "where")

    def __init__(self, uri: str, cache_hint: CacheHint, where: str) -> None:
        self.uri = uri  # or the text of a template
        self.cache_hint = cache_hint
        self.where = where
        self.scopes: tuple[str, ...] = ()
        self.needs: tuple[str, ...] = ()  # of the client
        self.hide = False  # from clients that lack it

    @property
    def described(self) -> str:
        """What it is and where, for messages to the developer."""
        return f"Resource {self.uri!r} ({self.where})"


class RegisteredResource(_Registered):
    """A resource with a URI of its own: a function that reads it, or what is in it."""

    __slots__ = ("_contents", "definition", "fn", "signature")

    def __init__(
        self, definition: Resource, fn: Callable[..., Any] | None, content: Any, cache_hint: CacheHint, where: str
    ) -> None:
        super().__init__(definition.uri, cache_hint, where)
        self.definition = definition
        self.fn = fn
        self.signature: Signature | None = None
        self._contents: list[ResourceContents] = []  # of a resource without a function: made once
        if fn is None:
            self._contents = _registered_contents(content, definition, where)
        else:
            self.signature = _read_function(fn, definition)
            check_no_parameters(self.signature, definition, where)

    async def read(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """What is in it now."""
        if self.fn is None or self.signature is None:
            return [copy(item) for item in self._contents]
        return await _invoke(call, self.fn, self.signature, kwargs)


class RegisteredTemplate(_Registered):
    """A family of resources: the variables of the template are the parameters of the function."""

    __slots__ = ("definition", "fn", "signature", "template")

    def __init__(self, definition: ResourceTemplate, fn: Callable[..., Any], cache_hint: CacheHint, where: str) -> None:
        super().__init__(definition.uri_template, cache_hint, where)
        self.definition = definition
        self.fn = fn
        self.template = parse_template(definition.uri_template, where)
        self.signature = _read_function(fn, definition)
        check_parameters(self.template, self.signature, where)

    @property
    def takes_any_text(self) -> bool:
        """Whether every URI that matches is of this family, because no parameter asks for more than a text."""
        parameters = self.signature.input_schema.get("properties", {})
        return all(_says(parameters[name]) <= {("type", "string")} for name in self.template.variables)

    def match(self, uri: str) -> dict[str, Any] | None:
        """The arguments for this URI; None when it is none of this family, a wrong type included."""
        values = self.template.match(uri)
        if values is None:
            return None
        try:
            return self.signature.bind(values)
        except ArgumentsError:
            return None

    async def read(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """What is in the resource that these arguments name."""
        return await _invoke(call, self.fn, self.signature, kwargs)


def _read_function(fn: Callable[..., Any], definition: Resource | ResourceTemplate) -> Signature:
    """The signature of a function that reads; its docstring describes what nothing else does."""
    signature = read_signature(fn, injected=(Context,), opaque=_OPAQUE, kind="resource", name=definition.name)
    definition.description = definition.description or signature.description or None
    return signature


async def _invoke(call: Call, fn: Callable[..., Any], signature: Signature, kwargs: dict[str, Any]) -> Any:
    if signature.injected is not None:
        kwargs[signature.injected] = call.context
    return await call.server.invoke(fn, signature.is_async, kwargs)


class Resources:
    """All resources and resource templates of a server."""

    def __init__(
        self,
        changes: Changes,
        cache_hint: CacheHint,
        page_size: int,
        limits: Limits,
        *,
        list_hint: CacheHint | None = None,
        templates_hint: CacheHint | None = None,
    ) -> None:
        self._changes = changes
        self._cache_hint = cache_hint  # Default of what is read.
        self._list_hint = list_hint or cache_hint
        self._templates_hint = templates_hint or cache_hint
        self._limits = limits
        self._resources: Pages[RegisteredResource] = Pages("resources", page_size)
        self._templates: Pages[RegisteredTemplate] = Pages("resource templates", page_size)
        self.audience = Audience()
        self.has_needs = False  # whether any resource needs something of the client
        self._lock = threading.Lock()  # resources come and go from threads, too
        self.used = False  # once there was a resource, the capability stays declared

    def __len__(self) -> int:
        return len(self._resources) + len(self._templates)

    def __iter__(self) -> Iterator[RegisteredResource | RegisteredTemplate]:
        return chain(self._resources, self._templates)

    def get(self, uri: str) -> RegisteredResource | None:
        """The resource that is registered under this very URI."""
        return self._resources.get(uri)

    def get_template(self, text: str) -> RegisteredTemplate | None:
        """The template of this text."""
        return self._templates.get(text)

    def template_texts(self) -> Iterable[str]:
        """The texts of all templates, in order."""
        return self._templates.names()

    def add(
        self,
        uri: str,
        content: Any,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        cache_hint: CacheHint | None = None,
        needs: Sequence[str] = (),
        hide: bool = False,
        scopes: Sequence[str] = (),
        replace: bool = False,
        where: str | None = None,
    ) -> None:
        """Register a function that reads a resource, or what is in it; listeners hear of it.

        A URI with `{` in it is a template, which needs a function.
        """
        check_kind("uri", uri, str, "'docs://guide'")
        check_kind("mime_type", mime_type or "", str, "'text/plain'")
        hint = cache_hint or self._cache_hint
        check_kind("cache_hint", hint, CacheHint, "CacheHint(ttl_ms=60_000)")
        fn = cast("Callable[..., Any]", content) if callable(content) else None
        where = where or (location(fn) if fn is not None else caller())
        name = name or _default_name(uri, fn)
        if mime_type is not None:
            check_mime_type(mime_type, f"Resource {uri!r} cannot be registered ({where})")
        if "{" in uri:
            self._check_template(uri, fn, size, where)
            template = ResourceTemplate(uri, name, title, description, mime_type, icons, annotations, meta)
            entry: RegisteredResource | RegisteredTemplate
            entry = RegisteredTemplate(template, cast("Any", fn), hint, where)
            pages: Pages[Any] = self._templates
        else:
            self._check_uri(uri, where)
            resource = Resource(uri, name, title, description, mime_type, size, icons, annotations, meta)
            entry = RegisteredResource(resource, fn, content, hint, where)
            pages = self._resources
        entry.scopes = check_scopes(scopes, entry.described)
        entry.needs = check_needs(needs, entry.described)
        entry.hide = check_hide(hide, entry.needs, entry.described)
        self._add(pages, entry, replace=replace)

    def _add(self, pages: Pages[Any], entry: RegisteredResource | RegisteredTemplate, *, replace: bool) -> None:
        uri = entry.uri
        check_definition(entry.definition, f"Resource {uri!r}", entry.where)
        with self._lock:
            taken = pages.get(uri)
            if taken is not None and not replace:
                raise RegistrationError(
                    f"Resource {uri!r} is registered twice: at {taken.where} and at {entry.where}. "
                    "Give one of them another URI, or the second replace=True."
                )
            if isinstance(entry, RegisteredTemplate) and taken is None:
                self._warn_if_hidden(entry)
            self.audience.add(entry)  # guarded before it can be found
            self.has_needs |= bool(entry.needs)
            pages.add(uri, entry)
            self.used = True
        warn_of_web_uri(uri, entry.described)
        self._changes.publish(Change("resources"))

    def _warn_if_hidden(self, entry: RegisteredTemplate) -> None:
        """The first template that fits a URI reads it: one behind it that fits no others is never called."""
        shape = entry.template.shape
        before = next((one for one in self._templates if one.template.shape == shape and one.takes_any_text), None)
        if before is not None:
            log.warning(
                "%s is never read: %s matches the same URIs and was registered first. Give one of them another URI.",
                entry.described,
                before.described,
            )

    def remove(self, uri: str) -> None:
        """Take a resource or a template out; listeners hear of it. UsageError when there is none."""
        if self._resources.remove(uri) is None and self._templates.remove(uri) is None:
            raise nothing_to_remove("resource", uri, [*self._resources.names(), *self._templates.names()])
        self._changes.publish(Change("resources"))

    def _check_uri(self, uri: str, where: str) -> None:
        """RES-11, RES-12: a URI that no client could send is refused here."""
        try:
            check_uri(uri, self._limits.uri_bytes)
        except ValueError as error:
            raise RegistrationError(f"Resource {uri[:200]!r} cannot be registered ({where}): {error}") from None

    def _check_template(self, text: str, fn: Callable[..., Any] | None, size: int | None, where: str) -> None:
        if len(text) > self._limits.uri_bytes:
            problem = f"it is longer than {self._limits.uri_bytes} characters. Shorten it."
        elif fn is None:
            problem = "a template needs a function that takes its variables. Register a function, or a URI without {}."
        elif size is not None:
            problem = "size= is for one resource, and a template has many. Leave it out."
        else:
            return
        raise RegistrationError(f"Resource template {text[:200]!r} cannot be registered ({where}): {problem}")

    async def read(self, call: Call) -> Result:
        """`resources/read`: the resource of this URI, else the first template that fits it."""
        uri = cast("ReadResourceParams", call.envelope.params).uri
        self._check_requested(uri)
        entry, kwargs = self._match(uri)
        if entry is None:
            raise ResourceNotFound(uri)
        try:
            return _result(await entry.read(call, kwargs), uri, entry)
        except BaseException:
            call.blamed = entry.described
            raise

    def _match(self, uri: str) -> tuple[RegisteredResource | RegisteredTemplate | None, dict[str, Any]]:
        """What is read under this URI, and with which arguments."""
        resource = self._resources.get(uri)
        if resource is not None:
            return resource, {}
        if len(uri) <= self._limits.uri_bytes:
            for template in self._templates:
                kwargs = template.match(uri)
                if kwargs is not None:
                    return template, kwargs
        return None, {}

    def scopes_of(self, uri: str) -> tuple[str, ...]:
        """What it takes to read this URI; nothing where there is nothing to read."""
        entry = self.find(uri)
        return () if entry is None else entry.scopes

    def find(self, uri: str) -> RegisteredResource | RegisteredTemplate | None:
        """What would be read under this URI."""
        return self._match(uri)[0]

    def _check_requested(self, uri: str) -> None:
        """RES-12, D7. A URI that is too long is not repeated; one that is none is just not there."""
        if len(uri) > self._limits.uri_bytes or len(uri.encode()) > self._limits.uri_bytes:
            raise InvalidParams(f"Invalid params: `uri` is longer than {self._limits.uri_bytes} bytes.")
        try:
            check_uri(uri, self._limits.uri_bytes)
        except ValueError:
            raise ResourceNotFound(uri) from None

    async def templates(self, call: Call) -> Encoded:
        """`resources/templates/list`."""
        return self.audience.page(call, self._templates, self._templates_page)

    def _templates_page(self, entries: list[RegisteredTemplate], next_cursor: str | None) -> Result:
        return ListResourceTemplatesResult(
            resource_templates=[entry.definition for entry in entries],
            next_cursor=next_cursor,
            ttl_ms=self._templates_hint.ttl_ms,
            cache_scope=self.audience.scope(self._templates_hint.list_scope),
        )

    def _resources_page(self, entries: list[RegisteredResource], next_cursor: str | None) -> Result:
        return ListResourcesResult(
            resources=[entry.definition for entry in entries],
            next_cursor=next_cursor,
            ttl_ms=self._list_hint.ttl_ms,
            cache_scope=self.audience.scope(self._list_hint.list_scope),
        )

    async def list(self, call: Call) -> Encoded:
        """`resources/list`."""
        return self.audience.page(call, self._resources, self._resources_page)


def _result(value: Any, uri: str, entry: RegisteredResource | RegisteredTemplate) -> Result:
    """A fresh result of what was read. Nothing read is not found, never empty contents (RES-06)."""
    mime_type = entry.definition.mime_type
    if isinstance(value, ReadResourceResult):
        result = copy(value)
        result.contents = _several(value.contents, uri, mime_type)
    elif isinstance(value, Result):
        return copy(value)  # such as a question first (RES-17), which carries no cache hints (CACHE-04)
    else:
        result = ReadResourceResult(contents=[] if value is None else to_contents(value, uri, mime_type))
    if not result.contents:
        raise ResourceNotFound(uri)
    if result.ttl_ms is None:
        result.ttl_ms = entry.cache_hint.ttl_ms
    if result.cache_scope is None:
        result.cache_scope = "private" if entry.scopes else entry.cache_hint.read_scope
    return result


def _registered_contents(content: Any, definition: Resource, where: str) -> list[ResourceContents]:
    """Convert what is in a resource once, and tell clients its type and size where they are not given."""
    try:
        contents = to_contents(content, definition.uri, definition.mime_type)
    except Unserialisable as error:
        raise RegistrationError(f"Resource {definition.uri!r} cannot be registered ({where}): {error}") from None
    if len(contents) == 1:
        definition.mime_type = definition.mime_type or contents[0].mime_type
        if definition.size is None:
            text, blob = contents[0].text, contents[0].blob
            definition.size = len(text.encode()) if text is not None else len(b64decode(blob or ""))
    return contents


def _says(schema: Mapping[str, Any]) -> set[tuple[str, str]]:
    """What a schema asks for, keyword by keyword; what only describes is left out."""
    return {(keyword, str(value)) for keyword, value in schema.items() if keyword not in _DESCRIBING}


def _default_name(uri: str, fn: Callable[..., Any] | None) -> str:
    return getattr(fn, "__name__", None) or uri.rstrip("/").rpartition("/")[2] or uri


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
