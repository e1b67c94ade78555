"""Clients as the how-to has them."""

import asyncio

from weft import Client, ClientLimits, Command, Http, RemoteError, RequestTimeout, Server, ToolError, ToolResult
from weft.auth import BearerToken

server = Server("flights")


async def main() -> None:
    async with Client(server) as client:
        tools = await client.list_tools()
        names: list[str] = [tool.name for tool in tools]
        result = await client.call_tool("search", {"airport": "ZRH"}, timeout=5)
        text: str = result.text
        wrong: int = result.text  # expect error
        total: int = await client.call_tool("add", {"a": 1, "b": 2}, result_type=int)
        words: list[str] = await client.call_tool("split", {"text": "a b"}, result_type=list[str])
        number: str = await client.call_tool("add", result_type=int)  # expect error
        whole: ToolResult = await client.call_tool("add", raise_on_error=True)
        print(total, words, number, whole)
        if result.is_error:
            raise ToolError(text)
        board = await client.read_resource("flights://ZRH/board")
        print(names, board.contents, client.server_info, client.protocol_version)
    async with Client(["uvx", "mcp-server-time"], limits=ClientLimits()) as other:
        try:
            await other.get_prompt("review", {"code": "x"})
        except (RemoteError, RequestTimeout) as error:
            print(error)
    async with Client("https://mcp.example.com/mcp", auth=BearerToken("secret")) as third:
        unawaited: str = third.call_tool("search").text  # expect error
        await third.call_tool("search", timeout="soon")  # expect error
    Client(Http("https://mcp.example.com/mcp", headers={"X-Key": "secret"}, trust_env=True))
    Client(Command(["uvx", "mcp-server-time"], env={"TZ": "UTC"}, on_stderr=print), eras=["session"])
    Client(Http("https://mcp.example.com/mcp", proxy=5))  # expect error
    Client(server, eras=["modern"])  # expect error
    Client()  # expect error


asyncio.run(main())
