"""The server of `tests/fleet/test_chaos.py`. Every answer says for whom it is and which process gave it."""

import asyncio
import json
import os

from support.raw_sessions import Reply
from support.remote import shared_notes
from weft import Context, Limits, Server

# All clients of the test have one address.
server = Server("chaos", limits=Limits(sessions_per_peer=10_000, listen_streams_per_peer=1000))
notes = shared_notes()


def answer(ctx: Context, who: str, **rest: object) -> str:
    """An answer: who asked as the call says, who asked as the handshake says, and the process."""
    name = None if ctx.client_info is None else ctx.client_info.name
    return json.dumps({"who": who, "client": name, "process": os.getpid(), **rest})


@server.tool
async def echo(ctx: Context, who: str, number: int) -> str:
    return answer(ctx, who, number=number)


@server.tool
async def ask(ctx: Context, who: str, number: int) -> str:
    """Ask one question."""
    reply = await ctx.elicit(f"{who} {number}?", Reply)
    return answer(ctx, who, number=number, reply=reply.value.value)


@server.tool
async def buy(ctx: Context, who: str, order: str) -> str:
    """Ask, charge once, ask again: in the stateless era in three rounds."""
    size = await ctx.elicit(f"{who} {order} size?", Reply)
    receipt = await ctx.once("charge", charge, order)
    street = await ctx.elicit(f"{who} {order} street?", Reply)
    return answer(ctx, who, order=order, receipt=receipt, size=size.value.value, street=street.value.value)


async def charge(order: str) -> str:
    """The effect that must not happen twice. The process and the order are noted before anything else can happen."""
    notes.add("charges", f"{order} {os.getpid()}")
    return f"receipt of {order}"


@server.tool(single_use=True)
async def sign(ctx: Context, who: str, order: str) -> str:
    """Ask one question, whose answer is taken once."""
    reply = await ctx.elicit(f"{who} {order} signature?", Reply)
    notes.add("signatures", f"{order} {os.getpid()}")
    return answer(ctx, who, order=order, reply=reply.value.value)


@server.tool
async def count(ctx: Context, who: str, to: int, pause: float) -> str:
    """Report numbered progress, and which process does so."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"{who} by {os.getpid()}")
        await asyncio.sleep(pause)
    return answer(ctx, who, number=to)


@server.tool
async def change(ctx: Context, who: str, uri: str) -> str:
    server.notify_resource_updated(uri)
    return answer(ctx, who, uri=uri)


for number in range(40):
    server.add_resource(f"tick://{number}", str(number))
