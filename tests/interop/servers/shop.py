"""A shop that asks twice and charges once, and keeps a book of what each of its processes did: $SHOP_BOOK."""

import os
from dataclasses import dataclass
from typing import Literal

from weft import Context, Server

server = Server("shop", version="1.0")


@dataclass
class Size:
    size: Literal["small", "large"]


@dataclass
class Address:
    street: str


def note(what: str, order: str) -> None:
    with open(os.environ["SHOP_BOOK"], "a") as book:  # noqa: PTH123 - appends of one line, whole even from two processes
        book.write(f"{what} {order} {os.getpid()}\n")


def charge(order: str) -> str:
    note("charged", order)
    return f"receipt of {order} from {os.getpid()}"


@server.tool
async def buy(ctx: Context, order: str) -> str:
    """Ask for the size, charge, ask where to send it."""
    note("served", order)
    size = await ctx.elicit("Which size?", Size)
    receipt = await ctx.once("charge", charge, order)
    address = await ctx.elicit("Where to?", Address)
    assert size.accepted
    assert address.accepted
    return f"{size.value.size}, to {address.value.street}, {receipt}"


@server.tool
def restock() -> str:
    """Tell that the stock changed; what is returned is the process that did."""
    server.notify_resource_updated("shop://stock")
    return str(os.getpid())


@server.resource("shop://stock")
def stock() -> str:
    return "plenty"
