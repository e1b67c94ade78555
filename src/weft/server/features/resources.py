"""Register and read resources and resource templates.

This module finds the resource for a URI, checks that the variables of a template match the parameters of its
function, and turns return values into contents. Clients can read only registered resources: no URI is ever opened.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import chain
from typing import Any, cast

from weft.errors import InvalidParams, RegistrationError, ResourceNotFound
from weft.limits import Limits
from weft.protocol.names import check_uri
from weft.protocol.schema import alternatives
from weft.protocol.uritemplate import UriTemplate
from weft.server.asking.rounds import invoke
from weft.server.calls.call import Call
from weft.server.calls.changes import Changes
from weft.server.diagnostics import Unserialisable, caller, location
from weft.server.features.content import MEDIA, File, base64_of, check_mime_type
from weft.server.features.registry import CacheHint, Encoded, Feature, FeatureOptions, Pages, Registry
from weft.server.signature.output import check_text, to_json_text
from weft.server.signature.signature import ArgumentsError, Signature, read_signature
from weft.types.base import Annotations, Result, Struct
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
_DESCRIBING = frozenset({"title", "description", "default", "examples"})  # Schema keywords that do not restrict values.


def to_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """Turn the return value of a resource's function into contents with this URI and MIME type.

    A string becomes text, bytes become base64, any other JSON value becomes JSON text. A list that contains an object
    such as `ResourceContents` or `File` gives one entry per item.

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


class ResourceOptions(FeatureOptions, kw_only=True, frozen=True):
    """The options of a resource or a resource template."""

    mime_type: str | None = None
    size: int | None = None  # In bytes.
    annotations: Annotations | None = None
    cache_hint: CacheHint | None = None


class RegisteredResource(Feature):
    """A resource with one URI: its definition, and either the function that reads it or its fixed contents."""

    kind = "Resource"
    signature: Signature  # Signature of the function; not set if the contents are fixed.
    _contents: list[ResourceContents] | None = None  # The fixed contents.

    def __init__(self, uri: str, content: Any, options: ResourceOptions, limits: Limits, cache_hint: CacheHint) -> None:
        self.fn: Any = content if callable(content) else None
        super().__init__(uri, caller() if self.fn is None else location(self.fn), options)
        self.cache_hint = options.cache_hint or cache_hint
        try:
            self._check_uri(options, limits.uri_bytes)
        except ValueError as error:
            raise self.refusal(error) from None
        if options.mime_type is not None:
            check_mime_type(options.mime_type, f"Resource {uri!r} cannot be registered ({self.where})")
        name = options.name or str(getattr(self.fn, "__name__", None) or uri.rstrip("/").rpartition("/")[2] or uri)
        description = options.description
        if self.fn is not None:
            self.signature = read_signature(
                self.fn, injected=(Call.context_type,), opaque=_OPAQUE, kind="resource", name=name
            )
            description = description or self.signature.description or None
        self.definition = self._define(
            name=name,
            title=options.title,
            description=description,
            mime_type=options.mime_type,
            icons=options.icons,
            annotations=options.annotations,
            meta=options.meta,
        )
        if options.size is not None:
            self.definition.size = options.size
        if self.fn is None:
            self._contents = self._fixed(content)

    def _check_uri(self, options: ResourceOptions, most: int) -> None:
        """Raise ValueError if the URI is malformed or has more than `most` bytes."""
        check_uri(self.name, most)

    def _define(self, **fields: Any) -> Resource | ResourceTemplate:
        """Return the definition; raise RegistrationError if the parameters of the function do not match the URI."""
        if self.fn is not None and (required := self.signature.input_schema.get("required")):
            raise self.refusal(
                f"its function needs {_names(required)}, which the URI does not give. Put them into the URI as "
                f"variables, such as {{{required[0]}}}, or give them defaults."
            )
        return Resource(self.name, **fields)

    def _fixed(self, content: Any) -> list[ResourceContents]:
        """Turn a fixed value into contents. Add the MIME type and the size to the definition if they are not set."""
        definition = cast("Resource", self.definition)
        try:
            contents = to_contents(content, self.name, definition.mime_type)
        except Unserialisable as error:
            raise self.refusal(error) from None
        if len(contents) == 1:
            definition.mime_type = definition.mime_type or contents[0].mime_type
            if definition.size is None:
                text, blob = contents[0].text, contents[0].blob
                definition.size = len(text.encode()) if text is not None else len(b64decode(blob or ""))
        return contents

    async def read(self, call: Call, kwargs: dict[str, Any]) -> Any:
        """Return the fixed contents, or else call the function with `kwargs` and return its value."""
        if self._contents is not None:
            return [copy(item) for item in self._contents]
        return await invoke(call, self.fn, self.signature, kwargs)


class RegisteredTemplate(RegisteredResource):
    """A resource template. The variables of the URI template are the parameters of the function."""

    template: UriTemplate

    def refusal(self, problem: object) -> RegistrationError:
        """Return the error for a template that cannot be registered; `problem` says why."""
        return RegistrationError(
            f"Resource template {self.name[:200]!r} cannot be registered ({self.where}): {problem}"
        )

    def _check_uri(self, options: ResourceOptions, most: int) -> None:
        if len(self.name) > most:
            raise ValueError(f"it is longer than {most} characters. Shorten it.")
        if self.fn is None:
            raise ValueError(
                "a template needs a function that takes its variables. Register a function, or a URI without {}."
            )
        if options.size is not None:
            raise ValueError("size= is for one resource, and a template has many. Leave it out.")
        self.template = UriTemplate(self.name)
        _check_readable(self.template)

    def _define(self, **fields: Any) -> ResourceTemplate:
        self._check_variables()
        self._check_types()
        return ResourceTemplate(self.name, **fields)

    def _check_variables(self) -> None:
        """Raise RegistrationError if a variable has no parameter, or a parameter without a default has no variable."""
        variables, parameters = self.template.variables, self.signature.input_schema.get("properties", {})
        unknown = [name for name in variables if name not in parameters]
        missing = [name for name in self.signature.input_schema.get("required", ()) if name not in variables]
        problems = [f"its function has no parameter for {_names(unknown)}"] if unknown else []
        if missing:
            problems.append(f"it gives no value for {_names(missing)}")
        if problems:
            raise self.refusal(
                f"{', and '.join(problems)}. Its variables are {_names(variables)}, the parameters are "
                f"{_names(parameters)}: make them the same."
            )

    def _check_types(self) -> None:
        """Raise RegistrationError if a parameter has a type that does not accept the value of its template variable.

        The value of a variable is a text or a list of texts.
        """
        schema = self.signature.input_schema
        for name in self.template.variables:
            kinds: list[Any] = [one.get("type") for one in alternatives(schema["properties"][name], schema)]
            is_list = name in self.template.lists
            if not kinds or not all(isinstance(kind, str) for kind in kinds):  # The schema does not just name types.
                continue
            if "array" in kinds if is_list else not {"array", "object", "null"}.issuperset(kinds):
                continue
            given, write = ("a list of texts", f"{name}: list[str]") if is_list else ("a text", f"{name}: str")
            raise self.refusal(
                f"its variable {name!r} gives {given}, which the type of that parameter does not accept. Annotate it "
                f"`{write}`, or change the template: {{{name}*}} gives a list, {{{name}}} a text."
            )

    @property
    def takes_any_text(self) -> bool:
        """Whether all template variables are `str` parameters, so that every URI that matches is accepted."""
        parameters = self.signature.input_schema.get("properties", {})
        return all(_restrictions(parameters[name]) <= {("type", "string")} for name in self.template.variables)

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the function's arguments for this URI, or None if the URI or the type of a value does not match."""
        values = self.template.match(uri)
        try:
            return None if values is None else self.signature.bind(values)
        except ArgumentsError:
            return None


class Resources(Registry[RegisteredResource]):
    """All resources and resource templates of a server."""

    def __init__(
        self, changes: Changes, page_size: int, limits: Limits, cache_hint: CacheHint, hints: Mapping[str, CacheHint]
    ) -> None:
        super().__init__("resources", changes, page_size, ListResourcesResult, hints["resources"])
        self._cache_hint = cache_hint  # Default for the contents of resources.
        self._limits = limits
        self._templates: Pages[RegisteredTemplate] = Pages("resource templates", page_size)
        self._build_templates = self._builder(ListResourceTemplatesResult, "resource_templates", hints["templates"])
        self.has_needs = False  # Whether any resource needs a capability of the client.

    def __len__(self) -> int:
        return len(self._pages) + len(self._templates)

    def __iter__(self) -> Iterator[RegisteredResource]:
        return chain(self._pages, self._templates)

    def get_template(self, text: str) -> RegisteredTemplate | None:
        """Return the resource template whose URI template is `text`, or None."""
        return self._templates.get(text)

    def add(self, uri: str, content: Any, options: ResourceOptions) -> None:
        """Register a resource, or a template if the URI contains `{`. Notify subscribers that the list has changed.

        `content` is the function that reads the resource, or its fixed contents. A template needs a function.
        """
        make = RegisteredTemplate if "{" in uri else RegisteredResource
        entry = make(uri, content, options, self._limits, self._cache_hint)
        if entry.needs:  # Not `|=`, which could undo what another thread sets at the same time.
            self.has_needs = True
        if isinstance(entry, RegisteredTemplate):
            self._warn_of_same(entry)
            self._add(self._templates, entry, replace=options.replace)
        else:
            self._add(self._pages, entry, replace=options.replace)
        if uri.lower().startswith(("http://", "https://")):
            log.warning(
                "%s is read by this server, but its URI means that clients can fetch it from the web by themselves. "
                "Use another scheme, such as docs://, if they cannot.",
                entry.described,
            )

    def _warn_of_same(self, template: RegisteredTemplate) -> None:
        """Warn if a template that was registered earlier matches the same URIs, so that `template` is never used."""
        shape = template.template.shape
        for one in self._templates:
            if one.name != template.name and one.template.shape == shape and one.takes_any_text:
                log.warning(
                    "%s is never read: %s matches the same URIs and was registered first. Give one of them another "
                    "URI.",
                    template.described,
                    one.described,
                )
                return

    def _take_out(self, name: str) -> bool:
        return self._pages.remove(name) is not None or self._templates.remove(name) is not None

    async def read(self, call: Call) -> Result:
        """Serve `resources/read`: read the resource with the requested URI, or else the first template that matches."""
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

    def _match(self, uri: str) -> tuple[RegisteredResource | None, dict[str, Any]]:
        """Return the resource or template for this URI, or None, and the arguments for its function."""
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
        """Return the scopes that a token needs to read this URI; an empty tuple for an unknown URI."""
        entry = self.find(uri)
        return () if entry is None else entry.scopes

    def find(self, uri: str) -> RegisteredResource | None:
        """Return the resource or template for this URI, or None."""
        return self._match(uri)[0]

    def _check_requested(self, uri: str) -> None:
        """Raise InvalidParams if the URI is too long, or ResourceNotFound if the URI is malformed."""
        if len(uri) > self._limits.uri_bytes or len(uri.encode()) > self._limits.uri_bytes:
            raise InvalidParams(f"Invalid params: `uri` is longer than {self._limits.uri_bytes} bytes.")
        try:
            check_uri(uri, self._limits.uri_bytes)
        except ValueError:
            raise ResourceNotFound(uri) from None

    async def templates(self, call: Call) -> Encoded:
        """Serve `resources/templates/list`."""
        return self._page(call, self._templates, self._build_templates)


def _result(value: Any, uri: str, entry: RegisteredResource) -> Result:
    """Turn the return value of a resource's function into a result; raise ResourceNotFound if there are no contents."""
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


def _restrictions(schema: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return each keyword of a JSON Schema that restricts the valid values, with the keyword's value as text."""
    return {(keyword, str(value)) for keyword, value in schema.items() if keyword not in _DESCRIBING}


def _check_readable(template: UriTemplate) -> None:
    """Raise ValueError if the template can never produce a valid URI."""
    # In a template such as `{+uri}`, the value contains the scheme, so a value with a colon is tried too.
    plain, colon = (template.expand(dict.fromkeys(template.variables, value)) for value in ("x", "x:x"))
    try:
        check_uri(colon, len(colon))
    except ValueError:
        check_uri(plain, len(plain))


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
