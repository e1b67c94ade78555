"""What is possible and had better not be done: a warning in the log, once, that names it and what to do instead."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from support import CLIENT_CAPABILITIES_KEY, ask
from weft import Context, InputRequired, MirroredHeader, Server, ask_form
from weft.auth import ResourceServer, StaticTokens
from weft.forms import Titles
from weft.server.asking import questions
from weft.server.run.listening import try_line, warn_of_scopes


@pytest.fixture(autouse=True)
def afresh() -> None:
    questions._warn_of_secrets.cache_clear()
    questions._warn_of_links.cache_clear()  # a form that another test has asked is warned of again


# HDR-41: secrets and personal data in headers.


def mirrored(*names: str) -> dict[str, Any]:
    return {name: {"type": "string", "x-mcp-header": f"H{place}"} for place, name in enumerate(names)}


def register(properties: dict[str, Any]) -> None:
    def find(arguments: dict[str, Any]) -> str:
        return ""

    Server("x").add_tool(find, input_schema={"type": "object", "properties": properties})


@pytest.mark.spec("HDR-41")
@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "userPassword",
        "secret",
        "clientSecret",
        "token",
        "access_token",
        "api_key",
        "apiKey",
        "APIKey",
        "apikey",
        "Authorization",
        "ssn",
        "email",
        "e_mail",
        "userEmail",
        "phone",
        "birthDate",
        "card_number",
    ],
)
def test_a_header_with_a_secret_or_a_person_in_it_is_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    register(mirrored("region", name))
    (record,) = caplog.records
    assert record.name.startswith("weft")
    assert record.levelname == "WARNING"
    told = record.getMessage()
    assert "Tool 'find' (" in told
    assert f"its parameter {name!r} in the header Mcp-Param-H1" in told
    assert "proxies write headers into their logs. Remove the x-mcp-header annotation" in told


@pytest.mark.spec("HDR-41")
def test_so_is_one_by_annotation_and_one_within(caplog: pytest.LogCaptureFixture) -> None:
    @Server("x").tool
    def login(email: Annotated[str, MirroredHeader("Who")]) -> str:
        return email

    register({"user": {"type": "object", "properties": mirrored("password")}})
    assert ["'email'" in caplog.messages[0], "'user.password'" in caplog.messages[1]] == [True, True]
    assert len(caplog.records) == 2


@pytest.mark.spec("HDR-41")
@pytest.mark.parametrize("name", ["region", "tenant", "microphone", "max_tokens", "tokenizer", "keyboard", "spinner"])
def test_other_headers_are_fine(name: str, caplog: pytest.LogCaptureFixture) -> None:
    register(mirrored(name))
    assert caplog.records == []


@pytest.mark.spec("HDR-41")
def test_a_secret_that_stays_in_the_body_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    @Server("x").tool
    def login(password: str, region: Annotated[str, MirroredHeader("Region")]) -> str:
        return ""

    assert caplog.records == []


# RES-10: URIs that lead elsewhere.


def add_resource(uri: str) -> None:
    def read(name: str) -> str:
        return name

    Server("x").add_resource(uri, read if "{" in uri else "A")


@pytest.mark.spec("RES-10")
@pytest.mark.parametrize("uri", ["https://example.com/a", "http://example.com/a", "HTTPS://example.com/{name}"])
def test_a_web_address_that_the_server_reads_itself_is_warned_of(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    add_resource(uri)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("weft.advice", "WARNING")
    told = record.getMessage()
    assert f"Resource {uri!r} (" in told
    assert "clients can fetch it from the web by themselves" in told
    assert "Use another scheme" in told


@pytest.mark.spec("RES-10")
@pytest.mark.parametrize("uri", ["docs://example.com/a", "file:///a", "httpx://a/b", "docs://{name}"])
def test_other_schemes_are_fine(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    add_resource(uri)
    assert caplog.records == []


# Templates of which one is in front of the other.


def add_templates(*families: tuple[str, Any]) -> None:
    server = Server("x")
    for uri, kind in families:

        def read_a(a: kind) -> str: ...  # type: ignore[valid-type] - annotated by the test

        def read_b(b: kind) -> str: ...  # type: ignore[valid-type] - annotated by the test

        server.add_resource(uri, read_a if "a}" in uri else read_b)


def test_a_template_behind_one_that_matches_the_same_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    add_templates(("note://x/{a}", str), ("note://x/{b}", int))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("weft.advice", "WARNING")
    told = record.getMessage()
    assert "Resource 'note://x/{b}' (" in told
    assert ") is never read: Resource 'note://x/{a}' (" in told
    assert told.endswith(") matches the same URIs and was registered first. Give one of them another URI.")


@pytest.mark.parametrize(
    "families",
    [
        (("note://x/{a}", int), ("note://x/{b}", str)),  # what is no number is for the second
        (("note://x/{a}", Literal["p", "q"]), ("note://x/{b}", str)),
        (("note://x/{a}", str), ("note://y/{b}", str)),
        (("note://x{?a}", str), ("note://x{?b}", str)),
        (("note://x/{a}", str), ("note://x/{+b}", str)),
    ],
)
def test_templates_that_each_have_uris_of_their_own_are_fine(
    families: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    add_templates(*families)
    assert caplog.records == []


# Scopes that no caller can have.


def scoped(**options: Any) -> Server:
    server = Server("x", **options)
    server.add_tool(lambda: "", name="open")
    server.add_tool(lambda: "", name="burn", scopes=["admin"])
    server.add_resource("note://a", "A", scopes=["read"])
    server.add_resource("note://b", "A")
    server.add_prompt(lambda: "", name="greet", scopes=["read"])
    return server


def test_scopes_without_anybody_who_could_have_them_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_scopes(scoped().engine)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("weft.advice", "WARNING")
    assert record.getMessage() == (
        "scopes= is set for tool 'burn', resource 'note://a', prompt 'greet', but the server has no auth=. It accepts "
        "no tokens, so over HTTP no client can use or list them. Set Server(auth=ResourceServer(...)), or leave "
        "scopes= out."
    )


def test_many_scopes_are_not_all_named(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("x")
    for number in range(7):
        server.add_tool(lambda: "", name=f"tool{number}", scopes=["a"])
    warn_of_scopes(server.engine)
    assert "tool 'tool4' and 2 more, but" in caplog.text
    assert "tool5" not in caplog.text


def test_scopes_of_a_server_that_verifies_tokens_are_fine(caplog: pytest.LogCaptureFixture) -> None:
    auth = ResourceServer(
        "https://a.example/mcp",
        authorization_servers=["https://b.example"],
        verifier=StaticTokens({"token-of-ann": "ann"}),
    )
    warn_of_scopes(scoped(auth=auth).engine)
    warn_of_scopes(Server("x").engine)
    assert caplog.records == []


def test_what_nobody_may_call_is_not_what_to_try() -> None:
    server = Server("x")
    server.add_tool(lambda: "", name="burn", scopes=["admin"])
    assert try_line(server.engine, "http://a/mcp") is None
    assert str(try_line(scoped().engine, "http://a/mcp")).endswith(" call http://a/mcp open")


# ELI-20: links in forms.

PAGE = "https://example.com/terms"


def form(**field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"row": {"type": "integer"}, "place": field}}


@pytest.mark.spec("ELI-20")
@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "title": f"See {PAGE}"},
        {"type": "string", "description": f"See {PAGE.upper()}."},
        {"type": "string", "description": "http://example.com"},
        {"type": "string", "format": "uri", "default": PAGE},
        {"type": "string", "enum": ["a", PAGE]},
        {"type": "string", "enum": ["a"], "enumNames": [PAGE]},
        {"type": "string", "oneOf": [{"const": "a", "title": PAGE}]},
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": PAGE}]}},
        {"type": "array", "items": {"type": "string", "enum": [PAGE]}},
    ],
)
def test_a_link_in_a_form_is_warned_of(field: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        ask_form("Where?", form(**field))
    (record,) = caplog.records  # once for a form
    assert (record.name, record.levelname) == ("weft.asks", "WARNING")
    told = record.getMessage()
    assert "The form with the fields row, place has a web address in its field 'place'." in told
    assert "ctx.elicit_url (or ask_url)" in told


class Terms(BaseModel):
    place: Annotated[Literal["w", "a"], Titles({"w": f"Window, {PAGE}"})]
    agreed: bool = Field(description=f"I have read {PAGE}.")
    note: str = ""


@pytest.mark.spec("ELI-20")
def test_a_link_in_a_model_and_in_the_message_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ask_form("Do you agree?", Terms)
    ask_form(f"Do you agree to {PAGE}?", form(type="string"))
    assert "in its field 'place' and its field 'agreed'." in caplog.messages[0]
    assert "in its message." in caplog.messages[1]
    assert len(caplog.records) == 2


@pytest.mark.spec("ELI-20")
def test_a_form_without_links_is_fine_also_one_that_asks_for_one(caplog: pytest.LogCaptureFixture) -> None:
    ask_form("Your page?", form(type="string", format="uri", title="Home page", description="Begins with https."))
    assert caplog.records == []


@pytest.mark.spec("ELI-20")
@pytest.mark.parametrize("by_hand", [False, True])
async def test_it_is_warned_of_both_ways_of_asking_and_asked_all_the_same(
    by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("x")

    @server.tool
    async def sign(ctx: Context) -> Any:
        if by_hand:
            return InputRequired({"terms": ask_form("Do you agree?", Terms)})
        return (await ctx.elicit("Do you agree?", Terms)).action

    meta = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
    for _ in range(2):
        result = (await ask(server, "tools/call", {"name": "sign"}, meta=meta)).result
        assert result["resultType"] == "input_required"
    assert [record.name for record in caplog.records] == ["weft.asks"]


# ELI-09: secrets in forms.


@pytest.mark.spec("ELI-09")
@pytest.mark.parametrize("name", ["password", "apiKey", "db_password", "accessToken", "PIN", "client-secret"])
def test_a_form_that_asks_for_a_secret_is_warned_of_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, name: {"type": "string"}}}
    for _ in range(2):
        ask_form("Log in?", schema)
    assert caplog.text.count(f"A form asks for '{name}'. By its name that is a secret") == 1
    assert "ctx.elicit_url" in caplog.text


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("keyboard", {"type": "string"}),
        ("spinner", {"type": "string"}),
        ("max_tokens", {"type": "string"}),
        ("reset_password", {"type": "boolean"}),
        ("token", {"type": "string", "enum": ["red", "blue"]}),
    ],
)
def test_what_only_sounds_like_a_secret_is_not(name: str, field: Any, caplog: pytest.LogCaptureFixture) -> None:
    ask_form("Which?", {"type": "object", "properties": {name: field}})
    assert "secret" not in caplog.text
