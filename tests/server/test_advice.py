"""What is possible and had better not be done: a warning in the log, once, that names it and what to do instead."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from support import CLIENT_CAPABILITIES_KEY, ask
from weft import Context, InputRequired, MirroredHeader, Server, Titles, ask_form
from weft.server import asks


@pytest.fixture(autouse=True)
def afresh() -> None:
    asks._warn_of_links.cache_clear()  # a form that another test has asked is warned of again


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
    assert "proxies write headers into their logs: take the x-mcp-header annotation away" in told


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
