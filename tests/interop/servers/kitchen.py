"""The server that the frameworks of others meet: text, structured content, a nested argument, a tool that fails."""

from dataclasses import dataclass

from weft import Context, Server, ToolError

server = Server("kitchen", instructions="Ask for tea.")


@dataclass
class Leaf:
    """What goes into the pot."""

    name: str
    grams: int = 5


@dataclass
class Pot:
    """What comes out of it."""

    tea: str
    grams: int
    ready: bool


@server.tool
def greet(name: str, times: int = 1) -> str:
    """Say hello.

    Args:
        name: Who is greeted.
        times: How often.
    """
    return " ".join([f"Hello, {name}!"] * times)


@server.tool
def brew(leaf: Leaf) -> Pot:
    """Make a pot of tea."""
    return Pot(tea=leaf.name, grams=leaf.grams, ready=True)


@server.tool
def spill() -> str:
    """Fail, always."""
    raise ToolError("The kettle is empty; fill it first.")


@server.tool
def which(ctx: Context) -> str:
    """Name the revision of the protocol that is spoken."""
    return f"revision {ctx.protocol_version}"
