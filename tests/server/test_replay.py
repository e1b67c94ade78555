"""What a handler does before a question happens again: in development it is warned of, and nothing else is."""

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.rounds import play, word, worker
from weft import Context
from weft.server.asking import replay

MISTAKE = pytest.mark.mistake("a side effect before a question")


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    replay._warned.clear()


async def warnings(caplog: Any, handler: Any, *, debug: bool = True, **params: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "weft.asks"):
        await play(worker(handler, debug=debug), **params)
    return [record.getMessage() for record in caplog.records if record.name == "weft.asks"]


def line_of(handler: Any, text: str) -> int:
    """The line in this file, in the function, that has this text."""
    import inspect

    lines, first = inspect.getsourcelines(handler)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


async def charge(cents: int = 5) -> str:
    return f"R{cents}"


async def mail(to: str) -> None:
    await asyncio.sleep(0)


async def get_price() -> int:
    await asyncio.sleep(0)
    return 3


# --- what is warned of


async def charging(ctx: Context) -> str:
    ref = await charge()
    return ref + await word(ctx, "sure?")


async def charging_and_waiting(ctx: Context) -> str:
    await mail("ann")
    return await word(ctx, "sure?")


async def logging_first(ctx: Context) -> str:
    await ctx.info("booking")
    return await word(ctx, "sure?")


async def charging_in_a_helper(ctx: Context) -> str:
    return await _charged(ctx)


async def _charged(ctx: Context) -> str:
    await mail("ann")  # in the helper
    return await word(ctx, "sure?")


async def gathering(ctx: Context) -> str:
    await asyncio.gather(mail("ann"), mail("bob"))
    return await word(ctx, "sure?")


async def in_a_thread(ctx: Context) -> str:
    await asyncio.to_thread(print, end="")
    return await word(ctx, "sure?")


async def between_questions(ctx: Context) -> str:
    first = await word(ctx, "one?")
    await mail("ann")
    return first + await word(ctx, "two?")


def plainly(ctx: Context) -> str:
    ctx.wait(mail("ann"))
    return ctx.wait(word(ctx, "sure?"))


def plainly_logging(ctx: Context) -> str:
    ctx.wait(ctx.warning("booking"))
    return ctx.wait(word(ctx, "sure?"))


@MISTAKE
@pytest.mark.parametrize(
    ("handler", "at", "what"),
    [
        (charging, "await charge()", "awaits charge(...)"),
        (charging_and_waiting, "await mail", "awaits mail(...)"),
        (logging_first, "ctx.info", "logs with ctx.info(...)"),
        (charging_in_a_helper, None, "awaits mail(...)"),
        (gathering, "asyncio.gather", "awaits something"),
        (in_a_thread, "to_thread", "awaits to_thread(...)"),
        (between_questions, "await mail", "awaits mail(...)"),
        (plainly, "mail", "awaits mail(...)"),
        (plainly_logging, "ctx.warning", "logs with ctx.warning(...)"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_a_side_effect_before_a_question(caplog: Any, handler: Any, at: str | None, what: str) -> None:
    (told,) = await warnings(caplog, handler)  # once, however many rounds there are
    line = line_of(_charged, "await mail") if at is None else line_of(handler, at)
    assert f"tools/call 'run' {what} at tests/server/test_replay.py:{line}, before it asks" in told
    assert "The handler runs again from the top when the answer comes, and does this again." in told
    assert "ctx.once(key, fn, ...)" in told
    assert await warnings(caplog, handler) == []  # once, however many calls there are


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)


@MISTAKE
async def test_an_argument_that_is_changed_before_a_question(caplog: Any) -> None:
    async def add(ctx: Context, basket: Basket, words: list[str], name: str) -> str:
        basket.items.append("tea")
        words = [*words, "more"]
        name += "!"
        return await word(ctx, "sure?")

    arguments = {"basket": {"items": []}, "words": [], "name": "ann"}
    (told,) = await warnings(caplog, add, name="run", arguments=arguments)
    line = line_of(add, "await word")
    assert f"has changed its argument 'basket' at tests/server/test_replay.py:{line}, before it asks" in told


@MISTAKE
async def test_it_says_where_the_question_is(caplog: Any) -> None:
    (told,) = await warnings(caplog, charging)
    assert re.search(r"before it asks at tests/support/rounds\.py:\d+\.", told)


# --- what is not


async def only_asking(ctx: Context) -> str:
    return await word(ctx, "one?") + await word(ctx, "two?")


async def asking_together(ctx: Context) -> str:
    first, second = await asyncio.gather(word(ctx, "one?"), word(ctx, "two?"))
    return first + second + await word(ctx, "three?")


async def asking_in_a_group(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(word(ctx, "one?"))
    return asked.result() + await word(ctx, "two?")


async def asking_in_time(ctx: Context) -> str:
    return await asyncio.wait_for(word(ctx, "one?"), 5) + await word(ctx, "two?")


async def doing_it_once(ctx: Context) -> str:
    ref = await ctx.once("charge", charge, 5)
    return ref + await word(ctx, "sure?")


async def doing_it_once_in_a_helper(ctx: Context) -> str:
    return await _once(ctx) + await word(ctx, "sure?")


async def _once(ctx: Context) -> str:
    return await ctx.once("charge", charge, 5)


async def doing_it_afterwards(ctx: Context) -> str:
    sure = await word(ctx, "sure?")
    await ctx.info("charging")
    return sure + await charge()


async def reading(ctx: Context) -> str:
    price = await get_price()
    async with asyncio.timeout(5), asyncio.Lock():
        await asyncio.sleep(0)
    await ctx.report_progress(1, 2)
    return str(price) + await word(ctx, "sure?")


async def not_asking(ctx: Context) -> str:
    await mail("ann")
    await ctx.info("mailed")
    return await charge()


def plainly_asking(ctx: Context) -> str:
    first = ctx.wait(word(ctx, "one?"))
    ref = ctx.wait(ctx.once("charge", charge, 5))
    return first + ref + ctx.wait(word(ctx, "two?"))


HARMLESS = [
    only_asking, asking_together, asking_in_a_group, asking_in_time, doing_it_once, doing_it_once_in_a_helper,
    doing_it_afterwards, reading, not_asking, plainly_asking,
]  # fmt: skip


@pytest.mark.parametrize("handler", HARMLESS, ids=lambda handler: handler.__name__)
async def test_what_is_harmless_is_not_warned_of(caplog: Any, handler: Any) -> None:
    assert await warnings(caplog, handler) == []


@pytest.mark.parametrize("handler", [charging, logging_first, plainly])
async def test_outside_development_nothing_is_watched(caplog: Any, handler: Any) -> None:
    assert await warnings(caplog, handler, debug=False) == []


@pytest.mark.parametrize("handler", [*HARMLESS, charging, gathering, between_questions])
async def test_watching_changes_no_result(handler: Any) -> None:
    watched, plain = [await play(worker(handler, debug=debug)) for debug in (True, False)]
    assert watched[0]["content"] == plain[0]["content"]
    assert watched[1] == plain[1]


async def test_what_a_handler_raises_and_its_cancellation_pass(caplog: Any) -> None:
    async def run(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return await word(ctx, "late?")
        return ""

    assert await warnings(caplog, run) == []
