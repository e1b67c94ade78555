"""A handler that asks in both styles, in both eras: the same questions, each asked once, and the same result."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.raw_sessions import FORM, AppPeer, Reply, accept, answer_to, called, message
from weft import Context, InputRequired, Server, UrlElicitationRequired, ask_form
from weft.errors import QuestionFailed
from weft.types.request import CLIENT_CAPABILITIES_KEY

ANSWERS = {"Name?": "Ada", "Seat?": "12A", "Meal?": "soup"}


def make_server() -> Server:
    server = Server("styles", state_keys=["a secret that the workers share"])

    @server.tool
    async def book(ctx: Context) -> Any:
        name = (await ctx.elicit("Name?", Reply, key="name")).value.value
        if not ctx.has_input_response("seat"):
            return InputRequired({"seat": ask_form("Seat?", Reply)}, state={"began": 1})
        if not ctx.has_input_response("meal"):
            return InputRequired({"meal": ask_form("Meal?", Reply)})
        answers = {key: answer["content"]["value"] for key, answer in ctx.input_responses.items()}
        return f"{name} {answers} {ctx.request_state}"

    @server.tool
    async def ask_in_once(ctx: Context) -> str:
        async def ask() -> str:
            return (await ctx.elicit("Name?", Reply)).value.value

        return await ctx.once("ask", ask)

    @server.tool
    async def ask_too_much(ctx: Context) -> Any:
        most = ctx.server.limits.input_responses
        return InputRequired({str(number): ask_form("Name?", Reply) for number in range(most + 1)})

    return server


async def in_a_session(peer: AppPeer, tool: str, asked: list[str]) -> Any:
    await peer.open(capabilities=FORM)
    exchange = await peer.post(called(tool))
    while exchange.is_stream and "method" in (found := await exchange.message()):
        asked.append(found["params"]["message"])
        await peer.post(accept(found, ANSWERS[asked[-1]]))
    return (found if exchange.is_stream else await exchange.json())["result"]


async def by_rounds(peer: AppPeer, tool: str, asked: list[str]) -> Any:
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    while True:
        answer = await peer.stateless("tools/call", params, meta={CLIENT_CAPABILITIES_KEY: FORM})
        result = await answer.result()
        if result["resultType"] == "complete":
            return result
        params["requestState"], params["inputResponses"] = result["requestState"], {}
        for key, question in result["inputRequests"].items():
            asked.append(question["params"]["message"])
            said = {"action": "accept", "content": {"value": ANSWERS[asked[-1]]}}
            params["inputResponses"][key] = said


ERAS = pytest.mark.parametrize("drive", [in_a_session, by_rounds])
Drive = Callable[[AppPeer, str, list[str]], Awaitable[Any]]


@ERAS
@pytest.mark.spec("COMPAT-01")
async def test_nobody_is_asked_again_because_the_handler_is_called_again(drive: Drive) -> None:
    peer, asked = AppPeer(make_server().asgi()), []
    result = await drive(peer, "book", asked)
    answers = {"name": "Ada", "seat": "12A", "meal": "soup"}
    assert (asked, result["content"][0]["text"]) == (list(ANSWERS), f"Ada {answers} {{'began': 1}}")
    await peer.app.server.stop()
    await peer.leave()


@ERAS
async def test_a_function_that_is_run_once_asks_in_no_era(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    peer, asked = AppPeer(make_server().asgi()), []
    result = await drive(peer, "ask_in_once", asked)
    assert (asked, result["isError"]) == ([], True)
    assert "A function given to ctx.once cannot ask" in caplog.text
    await peer.app.server.stop()
    await peer.leave()


@pytest.mark.security("D13", "R12")
async def test_one_question_too_many_is_asked_in_no_era(caplog: pytest.LogCaptureFixture) -> None:
    peer = AppPeer(make_server().asgi())
    await peer.open(capabilities=FORM)
    in_session = await peer.post(called("ask_too_much"))
    params = {"name": "ask_too_much", "arguments": {}}
    alone = await peer.stateless("tools/call", params, meta={CLIENT_CAPABILITIES_KEY: FORM})
    assert (await in_session.refusal(), await alone.refusal()) == ((200, -32603), (200, -32603))
    assert caplog.text.count("asks 65 questions at once") == 2
    await peer.app.server.stop()
    await peer.leave()


@pytest.mark.spec("CAN-09", "L11-13")
async def test_who_has_cancelled_a_call_is_not_asked_by_it() -> None:
    server, said = Server("stubborn"), []

    @server.tool
    async def wait(ctx: Context) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await ctx.close_stream()
            try:
                await ctx.elicit("Really?", Reply)
            except QuestionFailed as error:
                said.append(str(error))

    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)
    call = await peer.begin(called("wait", 5))
    await peer.post(message("notifications/cancelled", {"requestId": 5}))
    exchange = await call
    assert (exchange.status, await exchange.body()) == (202, b"")
    assert said == ["The client cannot be asked (elicitation/create): it has cancelled the call."]
    await server.stop()
    await peer.leave()


@pytest.mark.spec("CAN-12", "L11-14")
async def test_a_question_that_the_handler_gives_up_is_withdrawn_where_it_was_asked() -> None:
    server = Server("hasty")

    @server.tool
    async def hurry(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                await ctx.elicit("Name?", Reply)
        except TimeoutError:
            return "too late"
        return "in time"

    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)
    exchange = await peer.post(called("hurry"))
    question, told, answer = [event.data async for event in exchange.rest() if event.data]
    assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", question["id"])
    assert answer["result"]["content"][0]["text"] == "too late"
    await server.stop()
    await peer.leave()


@pytest.mark.spec("L11-39", "L11-40")
async def test_a_page_keeps_its_id_when_the_handler_is_called_again() -> None:
    server = Server("pages")

    @server.tool
    async def pay(ctx: Context) -> Any:
        page = await ctx.elicit_url("Pay", "https://example.com/pay")
        if not ctx.has_input_response("seat"):
            return InputRequired({"seat": ask_form("Seat?", Reply)})
        await page.notify_complete()
        return "paid"

    @server.tool
    async def visit() -> str:
        raise UrlElicitationRequired(("Pay", "https://example.com/a"), ("Log in", "https://example.com/b"))

    peer = AppPeer(server.asgi())
    await peer.open(capabilities={"elicitation": {"form": {}, "url": {}}})
    listening = await peer.get()
    exchange = await peer.post(called("pay"))
    page = await exchange.question()
    await peer.post(answer_to(page, {"action": "accept"}))
    await peer.post(accept(await exchange.question(), "12A"))
    assert await exchange.text() == "paid"
    assert (await listening.message())["params"] == {"elicitationId": page["params"]["elicitationId"]}
    pages = (await (await peer.post(called("visit"))).json())["error"]["data"]["elicitations"]
    assert len({page["params"]["elicitationId"], *(one["elicitationId"] for one in pages)}) == 3
    await server.stop()
    await peer.leave()
