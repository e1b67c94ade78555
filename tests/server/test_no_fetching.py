"""There is no mode in which a `$ref` is fetched: no option of a server or of a client makes one (JSCH-07)."""

import contextlib
import inspect
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from support import CLIENT_CAPABILITIES_KEY, ask
from weft import Client, Context, Server, ask_form
from weft.errors import RegistrationError, UsageError, WeftError
from weft.protocol.schema import compile_schema


class Bait:
    """An address where nobody may come by."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"

    @property
    def was_taken(self) -> bool:
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def bait() -> Iterator[Bait]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield Bait(listener)


def switches(cls: type) -> list[dict[str, bool]]:
    """Each option that can be switched on, switched on; and none."""
    parameters = inspect.signature(cls).parameters.values()
    named = [one.name for one in parameters if isinstance(one.default, bool) or "bool" in str(one.annotation)]
    assert named
    return [{}, *({name: True} for name in named)]


def references(url: str) -> list[dict[str, Any]]:
    return [
        {"type": "object", "properties": {"a": {"$ref": url}}},
        {"type": "object", "properties": {"a": {"$dynamicRef": f"{url}#a"}}},
        {"type": "object", "$id": url, "properties": {"a": {"$ref": "other.json"}}},
        {"type": "object", "$schema": url},
    ]


def test_a_visit_would_be_noticed(bait: Bait) -> None:
    where = urlsplit(bait.url)
    socket.create_connection((where.hostname, where.port)).close()
    assert bait.was_taken


@pytest.mark.spec("JSCH-07")
@pytest.mark.parametrize("options", switches(Server), ids=str)
def test_no_option_of_a_server_has_its_schemas_fetched(options: dict[str, bool], bait: Bait) -> None:
    async def tool(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    for schema in references(bait.url):
        for place in ("input_schema", "output_schema"):
            with pytest.raises(RegistrationError):
                Server("x", **options).add_tool(tool, **{place: schema})
    assert not bait.was_taken


@pytest.mark.spec("JSCH-07")
@pytest.mark.parametrize("options", switches(Client), ids=str)
async def test_no_option_of_a_client_has_a_servers_schemas_fetched(options: dict[str, bool], bait: Bait) -> None:
    for schema in references(bait.url):
        server = Server("x")
        server.add_tool(lambda: {"a": 1}, name="tool", output_schema={"type": "object"})
        server.engine.tools.get("tool").definition.output_schema = schema  # what no server of Weft's would say
        async with Client(server, **options) as client:
            assert (await client.list_tools())[0].output_schema == schema
            with contextlib.suppress(WeftError):
                await client.call_tool("tool")
        await server.stop()
    assert not bait.was_taken


@pytest.mark.spec("JSCH-07")
async def test_nor_are_those_of_arguments_and_forms(bait: Bait) -> None:
    with pytest.raises(UsageError):
        ask_form("Where?", {"type": "object", "properties": {"a": {"$ref": bait.url}}})
    server = Server("x")

    @server.tool
    async def echo(ctx: Context, schema: dict[str, Any]) -> str:
        return str((await ctx.elicit("Where?", schema)).action)

    for schema in references(bait.url):
        meta = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
        params = {"name": "echo", "arguments": {"schema": schema}}
        assert (await ask(server, "tools/call", params, meta=meta)).result["isError"] is True
    assert not bait.was_taken


@pytest.mark.spec("JSCH-07")
def test_what_compiles_schemas_takes_nothing_that_could_fetch() -> None:
    assert set(inspect.signature(compile_schema).parameters) == {"schema"}
