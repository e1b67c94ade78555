"""The public names, pinned: a name that comes or goes is a decision, not an accident."""

import inspect

import pytest

import weft

NAMES = [
    "Annotations", "AskFailed", "AssistantMessage", "Audio", "AudioContent", "CacheHint", "CallToolResult", "Client",
    "ClientLimits", "Completion", "ConnectionFailed", "InvalidAnswer", "RemoteError", "RequestTimeout",
    "ResourceMissing", "VersionMismatch",
    "Connection", "Context", "EMAIL", "Elicitation",
    "AcceptedElicitation", "CancelledElicitation", "DeclinedElicitation", "EmbeddedResource", "Extension", "File",
    "GetPromptResult", "Icon", "Image", "ImageContent", "InputRequired", "InvalidParams", "Limits", "Middleware",
    "MirroredHeader",
    "Next", "PromptMessage", "ProtocolError", "QuestionFailed", "ReadResourceResult", "RegistrationError",
    "ResourceContents", "ResourceLink", "ResourceNotFound", "Server", "TextContent", "Titles", "TokenInfo",
    "ToolAnnotations", "ToolError", "UrlElicitationRequired", "UserMessage", "WeftError", "__version__", "ask_form",
    "ask_model", "ask_roots", "ask_url",
    "AuthorizationFailed", "BearerToken", "ClientCredentials", "EnterpriseManaged", "OAuth", "WorkloadIdentity",
    "AuthorizationServer", "IntrospectionVerifier", "JwtVerifier", "ResourceServer", "StaticTokens",
]  # fmt: skip


def test_the_public_names():
    assert sorted(weft.__all__) == sorted(NAMES)
    assert dir(weft) == sorted(NAMES)


def test_every_public_name_leads_to_something():
    assert [name for name in NAMES if getattr(weft, name, None) is None] == []


def test_every_public_class_and_function_says_what_it_is():
    things = [getattr(weft, name) for name in NAMES]
    named = [thing for thing in things if inspect.isclass(thing) or inspect.isfunction(thing)]
    assert [thing for thing in named if not (thing.__doc__ or "").strip()] == []


def test_a_name_that_is_not_public_is_refused_by_name():
    with pytest.raises(AttributeError, match="'Sever'"):
        _ = weft.Sever
