"""How often a call may speak up before its answer: progress and log messages beyond the rate are dropped."""

from typing import Any

import pytest
from pydantic import BaseModel, SecretBytes, SecretStr

from support import LOG_LEVEL_KEY, ask
from weft import Context, Limits, Server
from weft.net.rate import Pace


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("weft.net.rate.monotonic", clock)
    return clock


async def told(do: Any, limits: Limits, method: str) -> list[dict[str, Any]]:
    """What a client is told by a call that does this, before it is answered."""
    server = Server("chatty", limits=limits)

    @server.tool
    async def talk(ctx: Context) -> str:
        await do(ctx)
        return "done"

    meta = {"progressToken": 1, LOG_LEVEL_KEY: "debug"}
    response = await ask(server, "tools/call", {"name": "talk"}, meta=meta)
    assert response.result["content"][0]["text"] == "done"
    return [one["params"] for one in response.messages if one.get("method") == method]


async def progress(do: Any, limits: Limits) -> list[float]:
    return [one["progress"] for one in await told(do, limits, "notifications/progress")]


async def logged(do: Any, limits: Limits) -> list[Any]:
    return [one["data"] for one in await told(do, limits, "notifications/message")]


def test_a_second_has_so_many_and_the_next_one_as_many_again(clock: Clock) -> None:
    pace = Pace(2)
    assert [pace.allows() for _ in range(4)] == [True, True, False, False]
    clock.now += 0.99
    assert not pace.allows()
    clock.now += 0.01
    assert [pace.allows() for _ in range(3)] == [True, True, False]
    assert (pace.dropped, pace.untold) == (4, 4)


def test_what_is_urgent_has_room_but_not_without_end(clock: Clock) -> None:
    pace = Pace(2)
    assert [pace.allows(urgent=True) for _ in range(5)] == [True] * 4 + [False]
    assert not pace.allows()


def test_a_rate_of_0_is_no_limit(clock: Clock) -> None:
    pace = Pace(0)
    assert all(pace.allows() for _ in range(10_000))
    assert pace.dropped == 0


@pytest.mark.spec("PROG-07")
@pytest.mark.security("R12")
async def test_progress_comes_no_faster_than_the_limit_and_reaches_its_total(clock: Clock) -> None:
    async def hurry(ctx: Context) -> None:
        for step in range(1, 51):
            await ctx.report_progress(step, 50)

    assert await progress(hurry, Limits(progress_per_second=5)) == [1, 2, 3, 4, 5, 50]
    assert await progress(hurry, Limits(progress_per_second=50)) == list(range(1, 51))
    assert await progress(hurry, Limits(progress_per_second=0)) == list(range(1, 51))


@pytest.mark.spec("PROG-07", "PROG-03")
async def test_progress_that_was_dropped_is_told_by_what_comes_later(clock: Clock) -> None:
    async def hurry(ctx: Context) -> None:
        for step in range(1, 11):
            await ctx.report_progress(step)
        clock.now += 1
        await ctx.report_progress(10)
        await ctx.report_progress(9)

    assert await progress(hurry, Limits(progress_per_second=3)) == [1, 2, 3, 10]


@pytest.mark.spec("PROG-07")
async def test_every_call_has_a_rate_of_its_own(clock: Clock) -> None:
    server = Server("two", limits=Limits(progress_per_second=1))

    @server.tool
    async def twice(ctx: Context) -> str:
        await ctx.report_progress(1)
        await ctx.report_progress(2)
        return "done"

    for _ in range(2):
        response = await ask(server, "tools/call", {"name": "twice"}, meta={"progressToken": 1})
        assert [one["params"]["progress"] for one in response.messages[:-1]] == [1]


@pytest.mark.spec("LOG-07")
@pytest.mark.security("R12")
async def test_log_messages_beyond_the_limit_are_dropped_and_counted(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def hurry(ctx: Context) -> None:
        for number in range(10):
            await ctx.info(number)
        clock.now += 1
        await ctx.error("late", logger="db")
        await ctx.error("later", logger="db")

    dropped = "Messages dropped, too many in a second: 7."
    assert await logged(hurry, Limits(log_messages_per_second=3)) == [0, 1, 2, dropped, "late", "later"]
    (record,) = caplog.records  # once, not for each
    assert "tools/call 'talk' logs more than 3 messages a second" in record.getMessage()
    assert "Limits(log_messages_per_second=...)" in record.getMessage()
    assert await logged(hurry, Limits(log_messages_per_second=0)) == [*range(10), "late", "later"]


@pytest.mark.spec("LOG-07")
async def test_the_count_comes_at_a_level_that_the_client_asked_for(clock: Clock) -> None:
    async def hurry(ctx: Context) -> None:
        await ctx.error(1)
        await ctx.error(2)
        clock.now += 1
        await ctx.critical(3)

    got = await told(hurry, Limits(log_messages_per_second=1), "notifications/message")
    assert [(one["level"], one["data"]) for one in got[1:]] == [
        ("critical", "Messages dropped, too many in a second: 1."),
        ("critical", 3),
    ]


@pytest.mark.spec("LOG-07")
async def test_messages_that_nobody_asked_for_use_nothing_up(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("quiet", limits=Limits(log_messages_per_second=1))

    @server.tool
    async def talk(ctx: Context) -> str:
        for _ in range(10):
            await ctx.debug("unheard")
        await ctx.error("heard")
        return "done"

    response = await ask(server, "tools/call", {"name": "talk"}, meta={LOG_LEVEL_KEY: "error"})
    assert [one["params"]["data"] for one in response.messages[:-1]] == ["heard"]
    assert caplog.records == []


@pytest.mark.spec("LOG-07")
async def test_a_logger_has_one_name_the_servers_unless_another_is_said(clock: Clock) -> None:
    async def say(ctx: Context) -> None:
        await ctx.info("a")
        await ctx.log("error", "b")
        await ctx.info("c", logger="db")
        clock.now += 1
        await ctx.info("d", logger="db")

    got = await told(say, Limits(log_messages_per_second=2), "notifications/message")
    assert [(one["logger"], one["data"]) for one in got] == [
        ("chatty", "a"),
        ("chatty", "b"),
        ("chatty", "Messages dropped, too many in a second: 1."),
        ("db", "d"),
    ]


class Login(BaseModel):
    user: str
    password: SecretStr


@pytest.mark.spec("LOG-07", "LOG-06")
async def test_secrets_are_stripped_from_what_is_logged() -> None:
    """Those that say so by their type, wherever they are; and those that a request came with."""
    secret = SecretStr("hunter2")

    async def say(ctx: Context) -> None:
        await ctx.info(Login(user="ann", password=secret))
        await ctx.info({"logins": [Login(user="bob", password=secret)], "key": SecretBytes(b"hunter2")})
        await ctx.info(dict(ctx.headers))

    server = Server("discreet")

    @server.tool
    async def talk(ctx: Context) -> str:
        await say(ctx)
        return "done"

    response = await ask(
        server,
        "tools/call",
        {"name": "talk"},
        meta={LOG_LEVEL_KEY: "debug"},
        headers={"Authorization": "Bearer hunter2", "Cookie": "id=hunter2", "X-Trace": "abc"},
    )
    first, second, third = (one["params"]["data"] for one in response.messages[:-1])
    assert first == {"user": "ann", "password": "**********"}
    assert (second["logins"][0]["password"], second["key"]) == ("**********", "**********")
    assert third["x-trace"] == "abc"
    assert "hunter2" not in str(response.messages)


@pytest.mark.spec("PROG-07", "LOG-07")
async def test_a_call_that_says_nothing_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise AssertionError("the time was looked at")

    monkeypatch.setattr("weft.net.rate.monotonic", fail)
    server = Server("plain")

    @server.tool
    async def plain(ctx: Context) -> str:
        return ctx.method

    meta = {"progressToken": 1, LOG_LEVEL_KEY: "debug"}
    assert (await ask(server, "tools/call", {"name": "plain"}, meta=meta)).result["content"][0]["text"] == "tools/call"
