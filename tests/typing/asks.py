"""A server that asks, as a user writes it."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

from weft import AcceptedElicitation, CancelledElicitation, Context, DeclinedElicitation, Elicitation, Server

server = Server("flights")


@dataclass
class Seat:
    number: str


def charge(flight: str, cents: int = 100) -> int:
    return cents


async def send_mail(to: str) -> datetime:
    return datetime.now()


@server.tool
async def by_action(ctx: Context) -> str:
    seat = await ctx.elicit("Which seat?", Seat)
    if seat.action != "accept":
        return "Nothing was booked."
    return seat.value.number


@server.tool
async def by_truth(ctx: Context) -> str:
    seat = await ctx.elicit("Which seat?", Seat)
    return seat.value.number if seat else seat.action


@server.tool
async def by_match(ctx: Context) -> str:
    match await ctx.elicit("Which seat?", Seat):
        case AcceptedElicitation(seat):
            return seat.number
        case DeclinedElicitation():
            return "declined"
        case CancelledElicitation():
            return "cancelled"


@server.tool
async def by_value(ctx: Context) -> str:
    seat = await ctx.elicit("Which seat?", Seat)
    return "" if seat.value is None else seat.value.number


@server.tool
async def unlooked(ctx: Context) -> str:
    seat = await ctx.elicit("Which seat?", Seat)
    return seat.value.number  # expect error


@server.tool
async def a_typo(ctx: Context) -> str:
    seat = await ctx.elicit("Which seat?", Seat)
    if seat.action == "accepted":  # expect error
        return "booked"
    return seat.value.nubmer if seat else ""  # expect error


def chosen(seat: Elicitation[Seat]) -> str:
    return seat.value.number if seat.action == "accept" else "none"


@server.tool
async def several(ctx: Context) -> str:
    hers, his = await asyncio.gather(ctx.elicit("Hers?", Seat), ctx.elicit("His?", Seat))
    return chosen(hers) + chosen(his)


@server.tool
def plain(ctx: Context) -> str:
    return chosen(ctx.wait(ctx.elicit("Which seat?", Seat)))


@server.tool
def unawaited(ctx: Context) -> str:
    return ctx.elicit("Which seat?", Seat).action  # expect error


@server.tool
async def by_schema(ctx: Context) -> str:
    answer = await ctx.elicit("Which?", {"type": "object", "properties": {"n": {"type": "string"}}})
    return str(answer.value["n"]) if answer else ""


@server.tool
async def page(ctx: Context) -> bool:
    visit = await ctx.elicit_url("Log in.", "https://example.com/in")
    await visit.notify_complete()
    return visit.accepted


@server.tool
async def once(ctx: Context, flight: str) -> str:
    cents = await ctx.once("charge", charge, flight, 200)
    assert_type(cents, int)
    mailed = await ctx.once("mail", send_mail, flight)
    assert_type(mailed, datetime)
    assert_type(await ctx.once("draw", lambda: 6 > 5), bool)
    assert_type(await ctx.once("clock", datetime.now, type=datetime), datetime)
    cents.upper()  # expect error
    await ctx.once("charge", charge, 5, 5)  # expect error
    await ctx.once("charge", send_mail)  # expect error
    ctx.once("a", charge, flight, 1).bit_length()  # expect error
    await ctx.once(7, charge, flight, 1)  # expect error
    return mailed.isoformat()


@server.tool
async def default_left_out(ctx: Context, flight: str) -> int:
    return await ctx.once("charge", charge, flight)


@server.tool
async def model(ctx: Context) -> str:
    answer = await ctx.sample("A slogan.", max_tokens=10)
    await ctx.sample("A slogan.")  # expect error
    return answer.model


@server.tool
async def roots(ctx: Context) -> list[str]:
    return [root.uri for root in await ctx.list_roots()]
