"""Clients as the how-to has them."""

import asyncio

from weft import BearerToken, Client, ClientLimits, RemoteError, RequestTimeout, Server, ToolError

server = Server("flights")


async def main() -> None:
    async with Client(server) as client:
        tools = await client.list_tools()
        names: list[str] = [tool.name for tool in tools]
        result = await client.call_tool("search", {"airport": "ZRH"}, timeout=5)
        text: str = result.text
        wrong: int = result.text  # expect error
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
    Client()  # expect error


asyncio.run(main())
