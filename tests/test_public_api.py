"""The public names, pinned: a name that comes or goes is a decision, not an accident."""

import importlib
import inspect

import pytest

import weft

NAMES = [
    "AcceptedElicitation", "Asgi", "AssistantMessage", "Audio", "AuthorizationFailed", "Backend", "CacheHint",
    "CancelledElicitation", "CannotAnswer", "Client", "ClientLimits", "Command", "Connection", "ConnectionFailed",
    "Context", "DeclinedElicitation", "Elicitation", "Extension", "File", "Http", "Image", "InputRequired",
    "InvalidAnswer", "InvalidParams", "Limits", "MemoryBackend", "MirroredHeader", "ProtocolError", "QuestionFailed",
    "RegistrationError", "RemoteError", "RequestTimeout", "ResourceNotFound", "Server", "Task", "TaskEnded",
    "TaskStore", "ToolCallFailed", "ToolError", "ToolResult", "UrlElicitationRequired", "UsageError", "UserMessage",
    "VersionMismatch", "WeftError", "__version__", "ask_form", "ask_model", "ask_roots", "ask_url",
]  # fmt: skip
ELSEWHERE = {
    "weft.auth": [
        "AuthorizationServer", "BearerToken", "ClientCredentials", "EnterpriseManaged", "IntrospectionVerifier",
        "JwtVerifier", "OAuth", "ResourceServer", "StaticTokens", "TokenInfo", "WorkloadIdentity",
    ],
    "weft.middleware": ["Middleware", "Next"],
}  # fmt: skip


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


@pytest.mark.parametrize(("module", "names"), ELSEWHERE.items())
def test_names_of_other_public_modules(module: str, names: list[str]):
    home = importlib.import_module(module)
    assert sorted(home.__all__) == sorted(names)
    assert [name for name in names if getattr(home, name, None) is None] == []


@pytest.mark.mistake
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("OAuth", "weft.auth"),
        ("TextContent", "weft.types"),
        ("EMAIL", "weft.forms"),
        ("Next", "weft.middleware"),
        ("ToolsChanged", "weft.client"),
        ("StartError", "weft.errors"),
    ],
)
def test_a_name_that_lives_in_another_module_is_pointed_to(name: str, module: str):
    with pytest.raises(ImportError) as caught:
        getattr(weft, name)
    assert str(caught.value) == f"weft has no {name!r}; import it from {module}: from {module} import {name}."
