"""What each revision of the session era is sent: field by field, and held against the official schemas.

The official schemas are those inside the conformance suite that `make setup` fetches; it has none of 2024-11-05. They
allow unknown fields almost everywhere, so they are made strict here: what a revision does not name may not be there.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import jsonschema_rs
import msgspec
import pytest

from support import Live
from support.official_schemas import official_schemas
from weft.eras.session_fields import fit, fit_capabilities, fit_question
from weft.errors import MissingCapability
from weft.protocol.names import check_uri
from weft.protocol.revisions import (
    SESSION_2024_11_05,
    SESSION_2025_03_26,
    SESSION_2025_06_18,
    SESSION_2025_11_25,
    Revision,
)
from weft.types.base import Annotations, EmptyResult, Implementation, Result
from weft.types.features import (
    AudioContent,
    CallToolResult,
    CompleteResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceLink,
    ResourceTemplate,
    TextContent,
    Tool,
)
from weft.types.interaction import SamplingMessage, ToolResultContent, ToolUseContent
from weft.types.lifecycle import (
    ClientCapabilities,
    ElicitationCapability,
    InitializeResult,
    ProgressParams,
    RootsCapability,
    SamplingCapability,
    ServerCapabilities,
)

REVISIONS = (SESSION_2024_11_05, SESSION_2025_03_26, SESSION_2025_06_18, SESSION_2025_11_25)
NOVEMBER, JUNE, MARCH = "2025-11-25", "2025-06-18", "2025-03-26"
BEFORE_JUNE = (SESSION_2024_11_05, SESSION_2025_03_26)
BEFORE_NOVEMBER = (*BEFORE_JUNE, SESSION_2025_06_18)
SINCE_JUNE = (SESSION_2025_06_18, SESSION_2025_11_25)

each_revision = pytest.mark.parametrize("revision", REVISIONS, ids=str)


# --- objects with every field that their types have

SAMPLES: dict[str, Any] = {
    "uri": "file:///a",
    "uri_template": "file:///{a}",
    "src": "https://example.com/a.png",
    "website_url": "https://example.com",
    "data": "AAAA",
    "input_schema": {"type": "object", "properties": {"a": {"type": "string"}, "b": True, "c": False}},
    "output_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    "structured_content": {"a": "x"},
    "theme": "dark",
    "priority": 0.5,
}


def filled(kind: Any, name: str = "") -> Any:
    """A value of a type, with all its fields."""
    if name in SAMPLES:
        return SAMPLES[name]
    if kind is ResourceContents:
        return ResourceContents("file:///a", "text/plain", text="x", meta={"com.example/k": 1})
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{field.name: filled(field.type, field.name) for field in msgspec.structs.fields(kind)})
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not NoneType]
    if origin is Literal:
        return parts[0]
    if origin is list:
        return every(parts[0])
    if origin is dict or kind is dict:
        return {"com.example/k": {}}
    if parts:
        return filled(parts[0], name)
    return {str: "x", int: 1, float: 1.0, bool: True}[kind]


def every(kind: Any) -> list[Any]:
    """One value of each type that a list may hold."""
    return [filled(part) for part in (get_args(kind) if isinstance(kind, UnionType) else (kind,))]


def wire(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


RESULTS = {
    "EmptyResult": EmptyResult,
    "ListToolsResult": ListToolsResult,
    "CallToolResult": CallToolResult,
    "ListPromptsResult": ListPromptsResult,
    "GetPromptResult": GetPromptResult,
    "ListResourcesResult": ListResourcesResult,
    "ListResourceTemplatesResult": ListResourceTemplatesResult,
    "ReadResourceResult": ReadResourceResult,
    "CompleteResult": CompleteResult,
    "InitializeResult": InitializeResult,
}

FIELDS: list[tuple[type[Any], str, str, str | None]] = [
    # a type; a field that came, or comes, later than the first revision; since when (empty: not in this era); the row
    *((kind, "resultType", "", "L11-52") for kind in RESULTS.values()),
    *((kind, "ttlMs", "", "L11-52") for kind in RESULTS.values() if "ttl_ms" in kind.__struct_fields__),
    *((kind, "cacheScope", "", "L11-52") for kind in RESULTS.values() if "ttl_ms" in kind.__struct_fields__),
    (EmptyResult, "_meta", "", "L11-52"),
    (CallToolResult, "structuredContent", JUNE, "L03-06"),
    (Implementation, "title", JUNE, "L03-06"),
    (Implementation, "description", NOVEMBER, "L06-06"),
    (Implementation, "websiteUrl", NOVEMBER, None),
    (Implementation, "icons", NOVEMBER, "L06-06"),
    (ServerCapabilities, "completions", MARCH, "L24-06"),
    (ClientCapabilities, "elicitation", JUNE, "L03-06"),
    (ElicitationCapability, "form", NOVEMBER, "L06-04"),
    (ElicitationCapability, "url", NOVEMBER, "L06-04"),
    (SamplingCapability, "context", NOVEMBER, None),
    (SamplingCapability, "tools", NOVEMBER, "L06-05"),
    (Tool, "annotations", MARCH, "L24-06"),
    (Tool, "title", JUNE, "L03-06"),
    (Tool, "outputSchema", JUNE, "L03-06"),
    (Tool, "_meta", JUNE, None),
    (Tool, "icons", NOVEMBER, "L06-06"),
    (Tool, "execution", NOVEMBER, "L11-42"),
    (ServerCapabilities, "tasks", NOVEMBER, "L11-42"),
    (ClientCapabilities, "tasks", NOVEMBER, "L11-42"),
    (Prompt, "title", JUNE, "L03-06"),
    (Prompt, "_meta", JUNE, None),
    (Prompt, "icons", NOVEMBER, "L06-06"),
    (PromptArgument, "title", JUNE, "L03-06"),
    (Resource, "title", JUNE, "L03-06"),
    (Resource, "_meta", JUNE, None),
    (Resource, "icons", NOVEMBER, "L06-06"),
    (ResourceTemplate, "title", JUNE, "L03-06"),
    (ResourceTemplate, "_meta", JUNE, None),
    (ResourceTemplate, "icons", NOVEMBER, "L06-06"),
    (ResourceContents, "_meta", JUNE, None),
    (Annotations, "lastModified", JUNE, None),
    (TextContent, "_meta", JUNE, None),
    (ImageContent, "_meta", JUNE, None),
    (AudioContent, "_meta", JUNE, None),
    (EmbeddedResource, "_meta", JUNE, None),
    (ResourceLink, "icons", NOVEMBER, "L06-06"),
    (SamplingMessage, "_meta", NOVEMBER, None),
    (ProgressParams, "message", MARCH, "L03-08"),
]


def field_cases() -> Iterator[Any]:
    for kind, name, since, row in FIELDS:
        marks = [pytest.mark.spec(row)] if row else []
        yield pytest.param(kind, name, since, marks=marks, id=f"{kind.__name__}.{name}")


@pytest.mark.parametrize(("kind", "name", "since"), [*field_cases()])
def test_a_field_is_sent_from_its_revision_on_and_not_before(kind: type[Any], name: str, since: str) -> None:
    value = filled(kind)
    assert name in wire(value)
    for revision in REVISIONS:
        assert (name in wire(fit(value, revision))) is bool(since and revision.version >= since), revision


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in FIELDS}, key=lambda kind: kind.__name__))
def test_all_other_fields_are_sent_in_every_revision(kind: type[Any]) -> None:
    later = {name for listed, name, *_ in FIELDS if listed is kind}
    value = filled(kind)
    others = wire(value).keys() - later
    for revision in REVISIONS:
        if kind in (AudioContent, ResourceLink) and type(fit(value, revision)) is not kind:
            continue  # something else is sent in its place
        assert wire(fit(value, revision)).keys() >= others


@each_revision
@pytest.mark.parametrize("kind", RESULTS.values(), ids=list(RESULTS))
def test_what_is_handed_in_is_not_changed(kind: type[Result], revision: Revision) -> None:
    given = filled(kind)
    before = deepcopy(given)
    fit(given, revision)
    assert given == before


@each_revision
def test_what_has_nothing_to_lose_comes_back_itself(revision: Revision) -> None:
    message = PromptMessage("user", TextContent("x", Annotations(priority=0.5)))
    for result in (
        EmptyResult(),
        CallToolResult(content=[TextContent("x"), ImageContent("AAAA", "image/png")]),
        GetPromptResult(messages=[message], description="d"),
        ListToolsResult(tools=[Tool("t", {"type": "object", "properties": {"a": {}}})]),
    ):
        assert fit(result, revision) is result


def test_what_need_not_change_is_shared() -> None:
    plain, titled = Tool("plain", {"type": "object"}), Tool("titled", {"type": "object"}, title="Titled")
    listed = fit(ListToolsResult(tools=[plain, titled]), SESSION_2025_03_26)
    assert listed.tools[0] is plain
    assert listed.tools[1] == Tool("titled", {"type": "object"})


def test_a_result_of_an_extension_is_fitted_by_what_it_derives_from() -> None:
    class Listed(ListToolsResult, kw_only=True):
        more: int = 0

    given = Listed(tools=[filled(Tool)], ttl_ms=5, result_type="com.example/listed", more=3)
    fitted = fit(given, SESSION_2025_03_26)
    assert type(fitted) is Listed
    assert (fitted.ttl_ms, fitted.result_type, fitted.more, fitted.tools[0].title) == (None, None, 3, None)


@each_revision
@pytest.mark.spec("L11-52")
def test_an_empty_result_is_exactly_an_empty_object(revision: Revision) -> None:
    assert msgspec.json.encode(fit(EmptyResult(result_type="complete", meta={"k": 1}), revision)) == b"{}"


# --- what takes the place of what a revision cannot say


@pytest.mark.spec("L11-50")
@pytest.mark.parametrize("value", [None, 0, False, "text", 1.5, [], [{"a": 1}]], ids=repr)
@each_revision
def test_structured_content_that_is_no_object_is_left_to_the_text(value: Any, revision: Revision) -> None:
    text = [TextContent(json.dumps(value))]
    fitted = fit(CallToolResult(content=text, structured_content=value), revision)
    assert wire(fitted) == {"content": [{"type": "text", "text": json.dumps(value)}]}


class Seat(msgspec.Struct):
    row: int


@pytest.mark.parametrize("value", [{}, {"row": 1}, Seat(1)], ids=repr)
def test_structured_content_that_is_an_object_is_sent_since_it_exists(value: Any) -> None:
    given = CallToolResult(content=[TextContent("x")], structured_content=value)
    assert all(fit(given, revision) is given for revision in SINCE_JUNE)
    assert all("structuredContent" not in wire(fit(given, revision)) for revision in BEFORE_JUNE)


@pytest.mark.spec("L11-50")
def test_structured_content_without_text_becomes_the_text() -> None:
    listed = CallToolResult(content=[], structured_content=[1, 2])
    for revision in REVISIONS:
        assert wire(fit(listed, revision)) == {"content": [{"type": "text", "text": "[1,2]"}]}
    seat = CallToolResult(content=[], structured_content={"row": 1}, is_error=True)
    for revision in BEFORE_JUNE:
        assert wire(fit(seat, revision)) == {"content": [{"type": "text", "text": '{"row":1}'}], "isError": True}


@pytest.mark.spec("L11-50")
@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": ["object", "null"]}, {"anyOf": []}, {}], ids=repr)
def test_an_output_schema_whose_root_is_no_object_is_left_out(schema: dict[str, Any]) -> None:
    for revision in REVISIONS:
        assert fit(Tool("t", {"type": "object"}, output_schema=schema), revision).output_schema is None


@each_revision
def test_schemas_of_properties_are_objects(revision: Revision) -> None:
    schema = {"type": "object", "properties": {"a": True, "b": False, "c": {"type": "null"}}, "required": ["a"]}
    fitted = fit(Tool("t", schema), revision).input_schema
    assert fitted["properties"] == {"a": {}, "b": {"not": {}}, "c": {"type": "null"}}
    assert fitted["required"] == ["a"]
    assert schema["properties"]["a"] is True


@pytest.mark.spec("L03-06")
def test_a_resource_link_is_told_as_text_before_there_were_links() -> None:
    link = ResourceLink("file:///a.txt", "a.txt", title="A", annotations=Annotations(priority=1.0, last_modified="x"))
    for revision in BEFORE_JUNE:
        fitted = fit(CallToolResult(content=[link]), revision)
        assert fitted.content == [TextContent("a.txt: file:///a.txt", Annotations(priority=1.0))]
        prompt = fit(GetPromptResult(messages=[PromptMessage("user", link)]), revision)
        assert prompt.messages == [PromptMessage("user", fitted.content[0])]
    for revision in SINCE_JUNE:
        assert fit(CallToolResult(content=[link]), revision).content == [link]


@pytest.mark.spec("L24-06")
def test_audio_is_an_embedded_resource_in_the_first_revision() -> None:
    sound = AudioContent("AAAA", "audio/wav", Annotations(audience=["user"]), meta={"com.example/k": 1})
    other = AudioContent("AAAB", "audio/wav")
    first, again, second = fit(CallToolResult(content=[sound, sound, other]), SESSION_2024_11_05).content
    assert isinstance(first, EmbeddedResource)
    assert isinstance(second, EmbeddedResource)
    assert (first.resource.blob, first.resource.mime_type) == ("AAAA", "audio/wav")
    assert (first.annotations, first.meta) == (Annotations(audience=["user"]), None)
    check_uri(first.resource.uri)
    assert first == again
    assert first.resource.uri != second.resource.uri


@pytest.mark.spec("L03-08")
def test_audio_is_audio_from_then_on() -> None:
    given = CallToolResult(content=[AudioContent("AAAA", "audio/wav")])
    assert all(fit(given, revision) is given for revision in REVISIONS[1:])


# --- capabilities of clients

DECLARED = ClientCapabilities(
    experimental={"x": {}},
    roots=RootsCapability(list_changed=True),
    sampling=SamplingCapability(context={}, tools={}),
    elicitation=ElicitationCapability(form={}, url={}),
    extensions={"com.example/x": {}},
)


@pytest.mark.spec("L03-06", "L06-04", "L06-05")
@pytest.mark.parametrize(
    ("revision", "rest"),
    [
        (SESSION_2024_11_05, {"sampling": {}}),
        (SESSION_2025_03_26, {"sampling": {}}),
        (SESSION_2025_06_18, {"sampling": {}, "elicitation": {}}),
        (SESSION_2025_11_25, {"sampling": {"context": {}, "tools": {}}, "elicitation": {"form": {}, "url": {}}}),
    ],
    ids=str,
)
def test_of_what_a_client_declared_only_what_the_revision_has_counts(revision: Revision, rest: dict[str, Any]) -> None:
    always = {"experimental": {"x": {}}, "roots": {"listChanged": True}, "extensions": {"com.example/x": {}}}
    assert wire(fit_capabilities(DECLARED, revision)) == always | rest
    assert DECLARED.extensions == {"com.example/x": {}}


# --- questions


def form(**properties: Any) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    return {"message": "Which?", "mode": "form", "requestedSchema": schema, "_meta": {"progressToken": 1}}


FORM = form(
    text={"type": "string", "title": "T", "description": "D", "minLength": 1, "format": "email", "default": "a@b.c"},
    number={"type": "number", "minimum": 1, "maximum": 2, "default": 1},
    whole={"type": "integer", "default": 1},
    flag={"type": "boolean", "default": True},
    plain={"type": "string", "enum": ["a", "b"], "default": "a"},
    named={"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    titled={
        "type": "string",
        "title": "T",
        "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}],
        "default": "b",
    },
)
SEVERAL = form(several={"type": "array", "items": {"type": "string", "enum": ["a", "b"]}})
PAGE = {"message": "Log in", "mode": "url", "url": "https://example.com", "elicitationId": "e1"}


@pytest.mark.spec("L06-04")
def test_a_form_is_said_in_the_words_of_june() -> None:
    before = deepcopy(FORM)
    fitted = fit_question("elicitation/create", FORM, SESSION_2025_06_18)
    assert before == FORM
    assert fitted == {
        "message": "Which?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "title": "T", "description": "D", "minLength": 1, "format": "email"},
                "number": {"type": "number", "minimum": 1, "maximum": 2},
                "whole": {"type": "integer"},
                "flag": {"type": "boolean", "default": True},
                "plain": {"type": "string", "enum": ["a", "b"]},
                "named": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
                "titled": {"type": "string", "title": "T", "enum": ["a", "b"], "enumNames": ["A", "B"]},
            },
            "required": list(FORM["requestedSchema"]["properties"]),
        },
        "_meta": {"progressToken": 1},
    }


@pytest.mark.parametrize("params", [FORM, SEVERAL, PAGE], ids=["form", "several", "page"])
def test_november_has_every_question_to_the_user(params: dict[str, Any]) -> None:
    assert fit_question("elicitation/create", params, SESSION_2025_11_25) == params


def test_a_page_needs_an_id_in_november() -> None:
    with pytest.raises(ValueError, match="elicitationId"):
        fit_question("elicitation/create", {"message": "m", "mode": "url", "url": "https://a"}, SESSION_2025_11_25)


def message(*content: Any, listed: bool = True, **more: Any) -> dict[str, Any]:
    blocks = [wire(block) for block in content]
    return {"role": "user", "content": blocks if listed else blocks[0], **more}


SOUND = AudioContent("AAAA", "audio/wav")
TOOL_USE = ToolUseContent("1", "t", {})
TOOL_RESULT = ToolResultContent("1", [TextContent("x")], structured_content=[1])


@pytest.mark.parametrize(
    ("method", "params", "revisions", "said"),
    [
        pytest.param("elicitation/create", FORM, BEFORE_JUNE, "user cannot be asked.*since revision 2025-06-18",
                     marks=pytest.mark.spec("L03-06")),
        pytest.param("elicitation/create", SEVERAL, (SESSION_2025_06_18,), "'several'.*Ask for one option",
                     marks=pytest.mark.spec("L06-04")),
        pytest.param("elicitation/create", PAGE, (SESSION_2025_06_18,), "sent to a page.*2025-11-25",
                     marks=pytest.mark.spec("L06-04")),
        pytest.param("sampling/createMessage", {"messages": [], "tools": []}, BEFORE_NOVEMBER, "given tools",
                     marks=pytest.mark.spec("L06-05")),
        pytest.param("sampling/createMessage", {"messages": [], "toolChoice": {}}, BEFORE_NOVEMBER, "given tools",
                     marks=pytest.mark.spec("L06-05")),
        pytest.param("sampling/createMessage", {"messages": [message(TOOL_USE)]}, BEFORE_NOVEMBER, "told of tools",
                     marks=pytest.mark.spec("L06-05")),
        pytest.param("sampling/createMessage", {"messages": [message(TOOL_RESULT, listed=False)]}, BEFORE_NOVEMBER,
                     "told of tools", marks=pytest.mark.spec("L06-05")),
        pytest.param("sampling/createMessage", {"messages": [message(SOUND)]}, (SESSION_2024_11_05,), "sent audio",
                     marks=pytest.mark.spec("L24-06")),
    ],
)  # fmt: skip
def test_what_a_revision_cannot_ask_is_refused_like_what_was_not_declared(
    method: str, params: dict[str, Any], revisions: tuple[Revision, ...], said: str
) -> None:
    for revision in revisions:
        with pytest.raises(MissingCapability, match=said) as caught:
            fit_question(method, params, revision)
        assert revision.version in caught.value.message
        assert list(caught.value.data["requiredCapabilities"]) == [method.split("/", maxsplit=1)[0]]


SAMPLING = {
    "messages": [
        message(TextContent("one", meta={"k": 1}), ImageContent("AAAA", "image/png"), _meta={"k": 1}),
        message(TextContent("two", Annotations(last_modified="x")), listed=False),
        message(TextContent("three")),
        message(),
    ],
    "maxTokens": 5,
    "includeContext": "thisServer",
    "metadata": {"any": {"thing": 1}},
    "_meta": {"progressToken": 1},
}


@pytest.mark.spec("L06-05")
@pytest.mark.parametrize("revision", BEFORE_NOVEMBER, ids=str)
def test_a_sampling_message_is_one_block_before_november(revision: Revision) -> None:
    before = deepcopy(SAMPLING)
    fitted = fit_question("sampling/createMessage", SAMPLING, revision)
    assert before == SAMPLING
    assert fitted is not None
    is_june = revision is SESSION_2025_06_18
    assert fitted["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "one"} | ({"_meta": {"k": 1}} if is_june else {})},
        {"role": "user", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
        {
            "role": "user",
            "content": {"type": "text", "text": "two", "annotations": {"lastModified": "x"} if is_june else {}},
        },
        {"role": "user", "content": {"type": "text", "text": "three"}},
    ]
    assert {**fitted, "messages": []} == {**SAMPLING, "messages": []}


def test_november_has_all_of_sampling_but_bare_structure() -> None:
    assert fit_question("sampling/createMessage", SAMPLING, SESSION_2025_11_25) == SAMPLING
    tools = [wire(Tool("t", {"type": "object"}, output_schema={"type": "array"}, title="T"))]
    kept = ToolResultContent("2", [TextContent("y")], structured_content={"a": 1})
    talk = [message(TOOL_USE, listed=False), message(TOOL_RESULT, kept)]
    asked = {"messages": talk, "maxTokens": 5, "tools": tools, "toolChoice": {"mode": "auto"}}
    fitted = fit_question("sampling/createMessage", asked, SESSION_2025_11_25)
    assert fitted == asked | {
        "messages": [talk[0], message(ToolResultContent("1", [TextContent("x")]), kept)],
        "tools": [{"name": "t", "inputSchema": {"type": "object"}, "title": "T"}],
    }


@each_revision
def test_roots_are_asked_for_in_the_same_way_everywhere(revision: Revision) -> None:
    assert fit_question("roots/list", None, revision) is None
    assert fit_question("roots/list", {"_meta": {}}, revision) == {"_meta": {}}


# --- the official schemas


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return official_schemas()


OPEN = {"inputSchema", "outputSchema"}  # JSON Schemas, of which only the first words are listed


def strict(schema: Any) -> Any:
    """The schema with nothing allowed that it does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(part) for key, part in schema.items() if key != "properties"}
    if "properties" in schema:
        parts = schema["properties"]
        closed["properties"] = {name: part if name in OPEN else strict(part) for name, part in parts.items()}
        if "experimental" in parts:  # capabilities, which are open: SEP-2133 has extensions in every handshake
            closed["properties"].setdefault("extensions", {"type": "object"})
        closed.setdefault("additionalProperties", False)
    return closed


def complaints(schema: dict[str, Any], target: str, value: Any) -> list[str]:
    """What a strict reader of the schema has against a value. `target`: a definition, or a path inside of one."""
    key = "$defs" if "$defs" in schema else "definitions"
    closed = {name: strict(part) for name, part in schema[key].items()}
    whole = {"$schema": schema["$schema"], key: closed, "$ref": f"#/{key}/{target}"}
    validator = jsonschema_rs.validator_for(whole, validate_formats=True)
    return [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(wire(value))]


VALIDATED = RESULTS | {
    "Implementation": Implementation,
    "ServerCapabilities": ServerCapabilities,
    "ClientCapabilities": ClientCapabilities,
}


@pytest.mark.spec("COMPAT-23", "L11-52", "L03-06", "L06-06")
@pytest.mark.parametrize("name", VALIDATED)
@pytest.mark.parametrize("revision", REVISIONS[1:], ids=str)
def test_all_that_is_sent_is_in_the_official_schema(schemas: dict[str, Any], revision: Revision, name: str) -> None:
    given = filled(VALIDATED[name])
    fitted = fit(given, revision)
    schema = schemas[revision.version]
    assert complaints(schema, name, fitted) == []
    if fitted != given and name not in ("EmptyResult", "ClientCapabilities"):  # which are open by their schema
        assert complaints(schema, name, given), "nothing had to be left out"


ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("tools/list", {}, "ListToolsResult"),
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "CallToolResult"),
    ("tools/call", {"name": "echo", "arguments": {"value": [1, None]}}, "CallToolResult"),
    ("tools/call", {"name": "seat", "arguments": {"number": "12A"}}, "CallToolResult"),
    ("tools/call", {"name": "picture"}, "CallToolResult"),
    ("tools/call", {"name": "fail", "arguments": {"how": "tool"}}, "CallToolResult"),
    ("resources/list", {}, "ListResourcesResult"),
    ("resources/templates/list", {}, "ListResourceTemplatesResult"),
    ("resources/read", {"uri": "both://of/them"}, "ReadResourceResult"),
    ("prompts/list", {}, "ListPromptsResult"),
    ("prompts/get", {"name": "greet", "arguments": {"name": "Ann"}}, "GetPromptResult"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "A"}},
        "CompleteResult",
    ),
]


@pytest.mark.spec("COMPAT-23")
@pytest.mark.parametrize(("method", "params", "name"), ASKED, ids=[method for method, *_ in ASKED])
def test_what_a_server_answers_is_in_the_official_schema(
    live: Live, schemas: dict[str, Any], method: str, params: dict[str, Any], name: str
) -> None:
    result = msgspec.convert(live.call(method, params).result, RESULTS[name])
    for revision in REVISIONS[1:]:
        assert complaints(schemas[revision.version], name, fit(result, revision)) == [], revision


@pytest.mark.spec("COMPAT-23")
@pytest.mark.parametrize("revision", REVISIONS[1:], ids=str)
def test_questions_are_in_the_official_schema(schemas: dict[str, Any], revision: Revision) -> None:
    schema = schemas[revision.version]
    has_november = revision.version == NOVEMBER
    sampling = "CreateMessageRequestParams" if has_november else "CreateMessageRequest/properties/params"
    asked = {key: value for key, value in SAMPLING.items() if key != "_meta"}
    assert complaints(schema, sampling, fit_question("sampling/createMessage", asked, revision)) == []
    if revision in SINCE_JUNE:
        form_params = "ElicitRequestFormParams" if has_november else "ElicitRequest/properties/params"
        asked = {key: value for key, value in FORM.items() if key != "_meta"}
        assert complaints(schema, form_params, fit_question("elicitation/create", asked, revision)) == []
    if has_november:
        assert complaints(schema, "ElicitRequestURLParams", fit_question("elicitation/create", PAGE, revision)) == []
