"""The client of programs that do not await."""

from typing import Any

from weft.sync import Client


def elicit(question: Any) -> dict[str, str]:
    return {"number": "12A"}


with Client("http://127.0.0.1:8000/mcp", elicit=elicit) as client:
    result = client.call_tool("search", {"airport": "ZRH"})
    text: str = result.text
    number: int = result.text  # expect error
    total: int = client.call_tool("add", {"a": 1, "b": 2}, result_type=int)
    words: str = client.call_tool("add", result_type=int)  # expect error
    names: list[str] = [tool.name for tool in client.list_tools()]
    board = client.read_resource("flights://ZRH/board")
    prompt = client.get_prompt("review", {"code": "x"})
    client.call_tol("search")  # expect error
    client.call_tool(5)  # expect error
    era: str = client.era
