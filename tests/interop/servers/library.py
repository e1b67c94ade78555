"""The example server, and what a peer's client can do that the example has no tool for. Public Weft only.

The servers beside this one (reference_*) are the same library on the peers' SDKs: the same names, the same words.
"""

import asyncio
import importlib.util
import sys
from pathlib import Path

from weft import Context
from weft.types import TextContent

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "server.py"
spec = importlib.util.spec_from_file_location("example_server", EXAMPLE)
assert spec is not None
assert spec.loader is not None
example = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
server = example.server


@server.tool
def greet(name: str) -> str:
    """Greet a reader."""
    return f"Hello, {name}!"


@server.tool
async def sample(ctx: Context, prompt: str) -> str:
    """What the client's model says."""
    said = await ctx.sample(prompt, max_tokens=100)
    return said.content.text if isinstance(said.content, TextContent) else "It did not say it in words."


@server.tool
async def roots(ctx: Context) -> str:
    """The client's folders, one to a line."""
    return "\n".join(root.uri for root in await ctx.list_roots())


@server.tool
async def pay_fine(ctx: Context) -> str:
    """Send the reader to a page to pay."""
    consent = await ctx.elicit_url("Pay your fine of 2 francs.", "https://library.example/fines/7")
    return "The page was opened." if consent.accepted else "The fine is still due."


@server.tool
async def announce(ctx: Context, text: str) -> str:
    """Say it aloud, and something under one's breath."""
    await ctx.debug(f"({text})")
    await ctx.warning(text)
    return "Announced."


@server.tool
async def ring_back(ctx: Context) -> str:
    """Take a while; whoever is cut off hears the rest on coming back."""
    await ctx.report_progress(1, 2, "Ringing back")
    await asyncio.sleep(0.3)
    await ctx.report_progress(2, 2, "Rang back")
    await asyncio.sleep(0.05)  # the TypeScript client forgets progress that comes in one piece with the answer
    return "Here you are."


@server.tool
async def hang_up(ctx: Context) -> str:
    """Close the stream in the middle of the call: the client comes back for the rest."""
    await ctx.report_progress(1, 2, "Hanging up")
    await ctx.close_stream(retry_seconds=0.1)
    await asyncio.sleep(0.3)
    await ctx.report_progress(2, 2, "Hung up")
    await asyncio.sleep(0.05)
    return "Here you are again."
