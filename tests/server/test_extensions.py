"""Extensions: capabilities, methods and result types that a package adds."""

from collections.abc import Sequence
from typing import Annotated, Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, ask
from weft import Context, Extension, MirroredHeader, RegistrationError, Server
from weft.protocol.revisions import Method
from weft.server.calls.call import Call
from weft.types import CallToolResult
from weft.types.base import EmptyResult, Result
from weft.types.lifecycle import RequestParams


class EchoParams(RequestParams, kw_only=True):
    name: str


class EchoResult(Result, kw_only=True):
    said: str


class Echo(Extension):
    id = "com.example/echo"
    result_types = frozenset({"echo"})
    seen: list[str]

    def __init__(self) -> None:
        self.seen = []

    @property
    def settings(self) -> dict[str, Any]:
        return {"loud": True}

    def methods(self) -> Sequence[Any]:
        return [(Method("echo/say", EchoParams, mirrored="name"), self.say)]

    def middleware(self) -> Sequence[Any]:
        async def note(ctx: Context, next: Any) -> Any:
            self.seen.append(ctx.method)
            return await next()

        return [note]

    async def say(self, call: Call) -> Result:
        return EchoResult(said=call.context.params.name, result_type="echo")


def declares(*ids: str) -> dict[str, Any]:
    """The metadata of a client that declares extensions."""
    return {CLIENT_CAPABILITIES_KEY: {"extensions": {id: {} for id in ids}}}


async def no_answer(call: Any) -> EmptyResult:
    return EmptyResult()


DECLARED = declares("com.example/echo")


@pytest.mark.spec("VER-08", "VER-05")
async def test_it_is_declared_with_its_settings() -> None:
    capabilities = (await ask(Server("x", extensions=[Echo()]), "server/discover")).result["capabilities"]
    assert capabilities["extensions"] == {"com.example/echo": {"loud": True}}
    assert "extensions" not in (await ask(Server("x"), "server/discover")).result["capabilities"]


@pytest.mark.spec("VER-06", "JRPC-10")
async def test_a_client_that_declared_it_gets_it() -> None:
    echo = Echo()
    server = Server("x", extensions=[echo])
    result = (await ask(server, "echo/say", {"name": "hi"}, meta=DECLARED)).result
    assert (result["resultType"], result["said"]) == ("echo", "hi")
    assert echo.seen == ["echo/say"]


@pytest.mark.spec("VER-06", "META-06", "META-05")
async def test_a_client_that_did_not_is_told_what_to_declare() -> None:
    response = await ask(Server("x", extensions=[Echo()]), "echo/say", {"name": "hi"})
    assert response.refusal == (400, -32021)
    assert response.error["data"] == {"requiredCapabilities": {"extensions": {"com.example/echo": {}}}}


@pytest.mark.spec("VER-06", "HDR-05")
async def test_a_server_without_it_does_not_know_its_methods() -> None:
    assert (await ask(Server("x"), "echo/say", {"name": "hi"}, meta=DECLARED)).refusal == (404, -32601)


@pytest.mark.spec("HDR-09")
async def test_the_headers_of_its_methods_are_checked() -> None:
    server = Server("x", extensions=[Echo()])
    response = await ask(server, "echo/say", {"name": "hi"}, meta=DECLARED, headers={"Mcp-Name": "ho"})
    assert response.refusal == (400, -32020)


@pytest.mark.spec("VER-05")
@pytest.mark.parametrize("id", ["", "echo", "1com/echo", "com..example/echo", "com.example/-x", "-a/b"])
def test_an_identifier_needs_a_prefix_and_the_grammar(id: str) -> None:
    class Bad(Extension):
        pass

    Bad.id = id
    with pytest.raises(RegistrationError, match=r"Bad\.id"):
        Server("x", extensions=[Bad()])


def test_what_is_not_said_is_nothing() -> None:
    plain = Extension()
    assert (plain.settings, plain.methods(), plain.middleware()) == ({}, (), ())
    assert EmptyResult().result_type is None


def test_what_is_there_twice_or_belongs_to_the_core_is_refused() -> None:
    class Twice(Extension):
        id = "com.example/twice"

    class Grabby(Extension):
        id = "com.example/grabby"

        def methods(self) -> Any:
            return [(Method("tools/list", RequestParams), no_answer)]

    with pytest.raises(RegistrationError, match="given twice"):
        Server("s", extensions=[Twice(), Twice()])
    with pytest.raises(RegistrationError, match=r"'tools/list', which belongs to the core protocol"):
        Server("s", extensions=[Grabby()])


@pytest.mark.spec("new-21")
@pytest.mark.parametrize(
    ("id", "method", "result_type", "said"),
    [
        ("io.modelcontextprotocol/tasks", None, None, "Own.id is 'io.modelcontextprotocol/tasks', which Weft has"),
        ("com.example/own", "tasks/pause", None, "the method 'tasks/pause', which belongs to io.modelcontextprotocol"),
        ("com.example/own", "tasks/get", None, "the method 'tasks/get', which belongs to io.modelcontextprotocol"),
        ("com.example/own", "notifications/tasks", None, "the method 'notifications/tasks', which belongs to io.model"),
        ("com.example/own", "notifications/tasks/x", None, "the method 'notifications/tasks/x', which belongs to io.m"),
        ("com.example/own", None, "task", "the result type 'task', which belongs to 'io.modelcontextprotocol/tasks'"),
    ],
)
def test_the_names_of_tasks_are_reserved(id: str, method: str | None, result_type: str | None, said: str) -> None:
    """Also while no tool has tasks: a server gets its tools later."""

    class Own(Extension):
        def methods(self) -> Any:
            return [] if method is None else [(Method(method, RequestParams), no_answer)]

    Own.id, Own.result_types = id, frozenset({"own", result_type} - {None})  # type: ignore[arg-type] - without None
    with pytest.raises(RegistrationError, match=said):
        Server("s", extensions=[Own()])


@pytest.mark.spec("new-21")
async def test_names_that_only_resemble_those_of_tasks_are_free() -> None:
    names = ("task/get", "mytasks/get", "notifications/task", "notifications/tasksaid", "com.example/tasks/get")

    class Own(Extension):
        id = "com.example/tasks"
        result_types = frozenset({"tasks", "Task"})

        def methods(self) -> Any:
            return [(Method(name, RequestParams), no_answer) for name in names]

    server = Server("s", extensions=[Own()])
    server.add_tool(lambda: "done", name="work", task="optional")
    for name in names:
        assert (await ask(server, name, meta=declares("com.example/tasks"))).result["resultType"] == "complete"
    handle = await ask(server, "tools/call", {"name": "work"}, meta=declares("io.modelcontextprotocol/tasks"))
    assert handle.result["resultType"] == "task"
    await server.stop()


@pytest.mark.spec("new-21")
async def test_a_handler_cannot_say_that_its_result_is_a_task() -> None:
    server = Server("s")
    server.add_tool(lambda: CallToolResult(content=[], result_type="task"), name="lie")
    answer = await ask(server, "tools/call", {"name": "lie"}, meta=declares("io.modelcontextprotocol/tasks"))
    assert answer.error["code"] == -32603


@pytest.mark.spec("JRPC-10")
@pytest.mark.parametrize(("declared", "sent"), [({"com.example/kinds": {}}, True), ({}, False)])
async def test_a_result_type_needs_the_declared_extension_that_has_it(declared: dict, sent: bool) -> None:
    class Kinds(Extension):
        id = "com.example/kinds"
        result_types = frozenset({"postcard"})

    server = Server("s", extensions=[Kinds()])

    @server.tool
    def send() -> Any:
        return CallToolResult(content=[], result_type="postcard")

    meta = {"io.modelcontextprotocol/clientCapabilities": {"extensions": declared}}
    answer = await ask(server, "tools/call", {"name": "send"}, meta=meta)
    assert ("result" in answer.json and answer.result["resultType"] == "postcard") is sent
    assert sent or answer.error["code"] == -32603


async def test_the_checks_of_a_call_come_before_middleware_writes_anything() -> None:
    server = Server("s")

    @server.middleware
    async def chatty(ctx: Context, next: Any) -> Any:
        await ctx.info("here")
        return await next()

    @server.tool
    def run(region: Annotated[str, MirroredHeader("Region")]) -> str:
        return region

    @server.tool(needs=["elicitation.url"])
    def visit() -> str:
        return "went"

    meta = {"io.modelcontextprotocol/logLevel": "debug"}
    refused = await ask(server, "tools/call", {"name": "run", "arguments": {"region": "eu"}}, meta=meta)
    assert (refused.status, refused.error["code"]) == (400, -32020)
    lacking = await ask(server, "tools/call", {"name": "visit"}, meta=meta)
    assert (lacking.status, lacking.error["code"]) == (400, -32021)
    assert lacking.error["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
