"""Register and read resources and resource templates.

This module finds the resource of a URI, checks that the variables of a template match the parameters of its
function, and turns return values into contents. Only registered resources can be read: no URI is ever opened.
"""

from __future__ import annotations

import logging
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
from weft.server.asking.rounds import invoke
from weft.server.calls.call import Call, check_hide, check_needs
from weft.server.calls.changes import Changes
from weft.server.diagnostics import Unserialisable, caller, check_scopes, location
from weft.server.features.content import MEDIA, File, base64_of, check_mime_type
from weft.server.features.registry import CacheHint, Encoded, Pages, Registry, check_definition
from weft.server.signature.output import check_text, to_json_text
from weft.server.signature.signature import ArgumentsError, Signature, read_signature
from weft.types.base import Annotations, Icon, Meta, Result, Struct
from weft.types.features import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceTemplate,
)

log = logging.getLogger("weft.advice")

_OPAQUE = (Struct, *MEDIA)  # Return types that are not JSON values.
_DESCRIBING = frozenset({"title", "description", "default", "examples"})  # Keywords that restrict no value.


def to_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """Turn the return value of a resource into contents.

    A string becomes text, bytes become base64, any other JSON value becomes JSON text. A list with contents or files
    gives several contents, each with its own URI.

    >>> to_contents({"debug": True}, "config://app", None)[0].text
    '{"debug":true}'
    """
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        if any(isinstance(item, (ResourceContents, *MEDIA)) for item in items):
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
    if isinstance(value, MEDIA):
        return ResourceContents(uri, value.mime_type, blob=base64_of(value.data), meta=value.meta)
    return ResourceContents(uri, mime_type or "application/json", text=to_json_text(value))


class _Registered:
    """The common part of resources and templates."""

    __slots__ = ("cache_hint", "hide", "needs", "scopes", "uri", "where")

    def __init__(self, uri: str, cache_hint: CacheHint, where: str) -> None:
        self.uri = uri  # For a template, its text.
        self.cache_hint = cache_hint
        self.where = where
        self.scopes: tuple[str, ...] = ()
        self.needs: tuple[str, ...] = ()
        self.hide = False

    @property
    def described(self) -> str:
        """The URI and the source location, for messages to the developer."""
        return f"Resource {self.uri!r} ({self.where})"


class RegisteredResource(_Registered):
    """A resource with one URI. It has a function that reads it, or fixed contents."""

    __slots__ = ("_contents", "definition", "fn", "signature")

    def __init__(
        self, definition: Resource, fn: Callable[..., Any] | None, content: Any, cache_hint: CacheHint, where: str
    ) -> None:
        super().__init__(definition.uri, cache_hint, where)
        self.definition = definition
        self.fn = fn
        self.signature: Signature | None = None
        self._contents: list[ResourceContents] = []  # Contents of a resource without a function.
        if fn is None:
            self._contents = _registered_contents(content, definition, where)
        else:
            self.signature = _read_function(fn, definition)
            if required := self.signature.input_schema.get("required"):
                raise RegistrationError(
                    f"Resource {self.uri!r} cannot be registered ({where}): its function needs {_names(required)}, "
                    f"which the URI does not give. Put them into the URI as variables, such as {{{required[0]}}}, or "
                    "give them defaults."
                )

    async def read(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """Return the current contents."""
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
        try:
            self.template = UriTemplate(self.uri)
            _check_readable(self.template)
        except ValueError as error:
            raise _not_registered(self.uri, where, str(error)) from None
        self.signature = _read_function(fn, definition)
        _check_variables(self.template, self.signature, where)
        _check_types(self.template, self.signature, where)

    @property
    def takes_any_text(self) -> bool:
        """Whether the function accepts every URI that matches the template: all its parameters are plain strings."""
        parameters = self.signature.input_schema.get("properties", {})
        return all(_restrictions(parameters[name]) <= {("type", "string")} for name in self.template.variables)

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the arguments of the function for this URI; None if the URI or the type of a value does not match."""
        values = self.template.match(uri)
        if values is None:
            return None
        try:
            return self.signature.bind(values)
        except ArgumentsError:
            return None

    async def read(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """Return the contents of the resource that these arguments name."""
        return await _invoke(call, self.fn, self.signature, kwargs)


def _read_function(fn: Callable[..., Any], definition: Resource | ResourceTemplate) -> Signature:
    """Read the signature of a function. Its docstring becomes the description if `definition` has none."""
    signature = read_signature(fn, injected=(Call.context_type,), opaque=_OPAQUE, kind="resource", name=definition.name)
    definition.description = definition.description or signature.description or None
    return signature


async def _invoke(call: Call, fn: Callable[..., Any], signature: Signature, kwargs: dict[str, Any]) -> Any:
    if signature.injected is not None:
        kwargs[signature.injected] = call.context
    return await invoke(call, fn, signature.is_async, kwargs)


class Resources(Registry[RegisteredResource | RegisteredTemplate]):
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
        super().__init__("resources", changes, page_size)
        self._cache_hint = cache_hint  # Default for contents.
        self._limits = limits
        self._templates: Pages[RegisteredTemplate] = Pages("resource templates", page_size)
        self._build = self._builder(ListResourcesResult, "resources", list_hint or cache_hint)
        self._build_templates = self._builder(
            ListResourceTemplatesResult, "resource_templates", templates_hint or cache_hint
        )
        self.has_needs = False  # Whether any resource needs a capability of the client.

    def __len__(self) -> int:
        return len(self._pages) + len(self._templates)

    def __iter__(self) -> Iterator[RegisteredResource | RegisteredTemplate]:
        return chain(self._pages, self._templates)

    def get_template(self, text: str) -> RegisteredTemplate | None:
        """Return the template that was registered as `text`, or None."""
        return self._templates.get(text)

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
        """Register a resource and notify subscribers. `content` is a function that reads it, or its fixed contents.

        A URI that contains `{` is a template, which needs a function.
        """
        hint = cache_hint or self._cache_hint
        fn = cast("Callable[..., Any]", content) if callable(content) else None
        where = where or (location(fn) if fn is not None else caller())
        name = name or str(getattr(fn, "__name__", None) or uri.rstrip("/").rpartition("/")[2] or uri)
        if mime_type is not None:
            check_mime_type(mime_type, f"Resource {uri!r} cannot be registered ({where})")
        entry: RegisteredResource | RegisteredTemplate
        if "{" in uri:
            self._check_template(uri, fn, size, where)
            template = ResourceTemplate(uri, name, title, description, mime_type, icons, annotations, meta)
            entry = RegisteredTemplate(template, cast("Any", fn), hint, where)
            pages: Pages[Any] = self._templates
        else:
            try:
                check_uri(uri, self._limits.uri_bytes)
            except ValueError as error:
                raise RegistrationError(f"Resource {uri[:200]!r} cannot be registered ({where}): {error}") from None
            resource = Resource(uri, name, title, description, mime_type, size, icons, annotations, meta)
            entry = RegisteredResource(resource, fn, content, hint, where)
            pages = self._pages
        entry.scopes = check_scopes(scopes, entry.described)
        entry.needs = check_needs(needs, entry.described)
        entry.hide = check_hide(hide, entry.needs, entry.described)
        check_definition(entry.definition, f"Resource {uri!r}", where)
        self._add(pages, uri, entry, replace=replace)
        if uri.lower().startswith(("http://", "https://")):
            log.warning(
                "%s is read by this server, but its URI means that clients can fetch it from the web by themselves. "
                "Use another scheme, such as docs://, if they cannot.",
                entry.described,
            )

    def _prepare(
        self, item: RegisteredResource | RegisteredTemplate, taken: RegisteredResource | RegisteredTemplate | None
    ) -> None:
        self.has_needs |= bool(item.needs)
        if not isinstance(item, RegisteredTemplate) or taken is not None:
            return
        # The first template that matches a URI is used, so a later one that matches the same URIs is never called.
        shape = item.template.shape
        before = next((one for one in self._templates if one.template.shape == shape and one.takes_any_text), None)
        if before is not None:
            log.warning(
                "%s is never read: %s matches the same URIs and was registered first. Give one of them another URI.",
                item.described,
                before.described,
            )

    def _take_out(self, name: str) -> bool:
        return self._pages.remove(name) is not None or self._templates.remove(name) is not None

    def _names(self) -> list[str]:
        return [*self._pages.names(), *self._templates.names()]

    def _check_template(self, text: str, fn: Callable[..., Any] | None, size: int | None, where: str) -> None:
        if len(text) > self._limits.uri_bytes:
            problem = f"it is longer than {self._limits.uri_bytes} characters. Shorten it."
        elif fn is None:
            problem = "a template needs a function that takes its variables. Register a function, or a URI without {}."
        elif size is not None:
            problem = "size= is for one resource, and a template has many. Leave it out."
        else:
            return
        raise _not_registered(text[:200], where, problem)

    async def read(self, call: Call) -> Result:
        """Serve `resources/read`: use the resource with the requested URI, or else the first template that matches."""
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
        """Return the resource or template of this URI, and the arguments of its function."""
        resource = self._pages.get(uri)
        if resource is not None:
            return resource, {}
        if len(uri) <= self._limits.uri_bytes:
            for template in self._templates:
                kwargs = template.match(uri)
                if kwargs is not None:
                    return template, kwargs
        return None, {}

    def scopes_of(self, uri: str) -> tuple[str, ...]:
        """Return the scopes that are needed to read this URI; empty for an unknown URI."""
        entry = self.find(uri)
        return () if entry is None else entry.scopes

    def find(self, uri: str) -> RegisteredResource | RegisteredTemplate | None:
        """Return the resource or template that reads this URI, or None."""
        return self._match(uri)[0]

    def _check_requested(self, uri: str) -> None:
        """Raise InvalidParams for a URI that is too long, ResourceNotFound for one that is malformed."""
        if len(uri) > self._limits.uri_bytes or len(uri.encode()) > self._limits.uri_bytes:
            raise InvalidParams(f"Invalid params: `uri` is longer than {self._limits.uri_bytes} bytes.")
        try:
            check_uri(uri, self._limits.uri_bytes)
        except ValueError:
            raise ResourceNotFound(uri) from None

    async def templates(self, call: Call) -> Encoded:
        """Serve `resources/templates/list`."""
        return self.audience.page(call, self._templates, self._build_templates)

    async def list(self, call: Call) -> Encoded:
        """Serve `resources/list`."""
        return self.audience.page(call, self._pages, self._build)


def _result(value: Any, uri: str, entry: RegisteredResource | RegisteredTemplate) -> Result:
    """Turn a return value into a new result. Raises ResourceNotFound if the value is None or has no contents."""
    mime_type = entry.definition.mime_type
    if isinstance(value, ReadResourceResult):
        result = copy(value)
        result.contents = _several(value.contents, uri, mime_type)
    elif isinstance(value, Result):
        return copy(value)  # Such as a question, which has no cache hints.
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
    """Return the fixed contents of a resource. Set the MIME type and the size in `definition` if they are missing."""
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


def _restrictions(schema: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the keywords of a schema that restrict which values are valid, each with its value as text."""
    return {(keyword, str(value)) for keyword, value in schema.items() if keyword not in _DESCRIBING}


def _not_registered(text: str, where: str, problem: str) -> RegistrationError:
    return RegistrationError(f"Resource template {text!r} cannot be registered ({where}): {problem}")


def _check_readable(template: UriTemplate) -> None:
    """Raise ValueError if no expansion of the template is a valid URI, because no client could request it."""
    # In a template such as `{+uri}`, the value contains the scheme, so a value with a colon is tried too.
    plain, colon = (template.expand(dict.fromkeys(template.variables, value)) for value in ("x", "x:x"))
    try:
        check_uri(colon, len(colon))
    except ValueError:
        check_uri(plain, len(plain))


def _check_variables(template: UriTemplate, signature: Signature, where: str) -> None:
    """Raise RegistrationError if a variable has no parameter, or a parameter without a default has no variable."""
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
    raise _not_registered(
        template.text,
        where,
        f"{', and '.join(problems)}. Its variables are {_names(template.variables)}, the parameters are "
        f"{_names(parameters)}: make them the same.",
    )


def _check_types(template: UriTemplate, signature: Signature, where: str) -> None:
    """Raise RegistrationError if a parameter does not accept what its variable gives: a text, or a list of texts."""
    for name in template.variables:
        schema = signature.input_schema["properties"][name]
        kinds: list[Any] = [one.get("type") for one in alternatives(schema, signature.input_schema)]
        is_list = name in template.lists
        if not kinds or not all(isinstance(kind, str) for kind in kinds):  # The schema does not simply name its types.
            continue
        if "array" in kinds if is_list else not {"array", "object", "null"}.issuperset(kinds):
            continue
        given, write = ("a list of texts", f"{name}: list[str]") if is_list else ("a text", f"{name}: str")
        raise _not_registered(
            template.text,
            where,
            f"its variable {name!r} gives {given}, which the type of that parameter does not accept. Annotate it "
            f"`{write}`, or change the template: {{{name}*}} gives a list, {{{name}}} a text.",
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
