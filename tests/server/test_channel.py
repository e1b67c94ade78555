"""A handler that asks in both styles, in both eras: the same questions, each asked once, and the same result."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.raw_sessions import FORM, AppPeer, Reply, accept, answer_to, called, message
from weft import Context, InputRequired, Limits, Server, UrlElicitationRequired, ask_form, ask_roots, ask_url
from weft.errors import QuestionFailed, UsageError
from weft.types.interaction import ListRootsResult
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY

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
    await peer.app.runtime.stop()
    await peer.leave()


@ERAS
async def test_a_function_that_is_run_once_asks_in_no_era(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    peer, asked = AppPeer(make_server().asgi()), []
    result = await drive(peer, "ask_in_once", asked)
    assert (asked, result["isError"]) == ([], True)
    assert "A function given to ctx.once cannot ask" in caplog.text
    await peer.app.runtime.stop()
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
    await peer.app.runtime.stop()
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
    exchange = await peer.post(called("pay"))
    page = await exchange.question()
    await peer.post(answer_to(page, {"action": "accept"}))
    await peer.post(accept(await exchange.question(), "12A"))
    done = await exchange.message()
    assert done["params"] == {"elicitationId": page["params"]["elicitationId"]}
    assert await exchange.text() == "paid"
    pages = (await (await peer.post(called("visit"))).json())["error"]["data"]["elicitations"]
    assert len({page["params"]["elicitationId"], *(one["elicitationId"] for one in pages)}) == 3
    await server.stop()
    await peer.leave()


# Pages whose handler has named them.

PAGES = {"elicitation": {"form": {}, "url": {}}}
COMPLETE = "notifications/elicitation/complete"


def make_paying() -> Any:
    server: Any = Server("paying")
    server.connections = []

    @server.tool
    async def visit(ctx: Context) -> str:
        server.connections.append(ctx.connection)
        raise UrlElicitationRequired(
            ask_url("Pay", "https://example.com/a", id="bill-7"), ("Log in", "https://a.example")
        )

    @server.tool
    async def visit_by_hand(ctx: Context) -> Any:
        if not ctx.has_input_response("page"):
            return InputRequired({"page": ask_url("Pay", "https://example.com/a", id="bill-8")})
        await ctx.notify_complete("bill-8")
        return "paid"

    @server.tool
    async def paid(ctx: Context) -> str:
        await ctx.notify_complete("bill-7")
        return "told"

    return server


@pytest.mark.parametrize("question", [ask_roots(), ask_form("Who?", {"type": "object", "properties": {}})])
def test_only_pages_are_listed_as_pages(question: Any) -> None:
    with pytest.raises(UsageError, match=r"^UrlElicitationRequired lists pages: pairs of a message and a URL, or ask_"):
        UrlElicitationRequired(question)


@pytest.mark.spec("L11-39", "L11-40", "L11-41")
async def test_a_page_may_have_an_id_by_which_the_client_is_told_that_it_is_done() -> None:
    server = make_paying()
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=PAGES)
    listed = (await (await peer.post(called("visit"))).json())["error"]["data"]["elicitations"]
    assert [page["elicitationId"] == "bill-7" for page in listed] == [True, False]
    later = [event.data async for event in (await peer.post(called("paid"))).rest() if event.data]
    assert [later[0].get("method"), later[0].get("params")] == [COMPLETE, {"elicitationId": "bill-7"}]
    listening = await peer.get()
    await server.connections[0].notify_complete("bill-7")  # from a web page of the server's, say
    assert (await listening.message())["params"] == {"elicitationId": "bill-7"}
    exchange = await peer.post(called("visit_by_hand"))
    question = await exchange.question()
    assert question["params"]["elicitationId"] == "bill-8"
    await peer.post(answer_to(question, {"action": "accept"}))
    assert (await exchange.message())["params"] == {"elicitationId": "bill-8"}
    assert await exchange.text() == "paid"
    await server.stop()
    await peer.leave()


@pytest.mark.spec("ELI-08", "L11-40")
async def test_who_knows_no_such_ids_is_told_none() -> None:
    server = make_paying()
    peer = AppPeer(server.asgi())
    declared = {CLIENT_CAPABILITIES_KEY: PAGES}
    for tool in ("visit", "visit_by_hand"):
        result = await (await peer.stateless("tools/call", {"name": tool, "arguments": {}}, meta=declared)).result()
        pages = [set(page["params"]) for page in result["inputRequests"].values()]
        assert pages[0] == {"message", "mode", "url"}
    told = await peer.stateless("tools/call", {"name": "paid", "arguments": {}}, meta=declared)
    assert not told.is_stream
    await peer.open(capabilities=FORM)  # it cannot be sent to pages
    told = await peer.post(called("paid"))
    assert (told.is_stream, await told.text()) == (False, "told")
    await server.stop()
    await peer.leave()


@pytest.mark.parametrize("id", ["", 7])
def test_an_id_of_a_page_that_is_none(id: Any) -> None:
    with pytest.raises(UsageError, match="give a text that is not empty"):
        ask_url("Pay", "https://example.com/a", id=id)


@pytest.mark.spec("L11-40")
async def test_who_takes_no_stream_hears_that_a_page_is_done_on_the_one_that_is_open() -> None:
    server = make_paying()
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=PAGES)
    listening = await peer.get()
    await (await peer.post(called("paid"), Accept="application/json")).body()
    assert (await listening.message())["method"] == COMPLETE
    await server.stop()
    await peer.leave()


# Questions that cannot be asked, and answers that cannot be used.


async def test_a_question_after_the_answer_fails_at_once() -> None:
    server: Any = Server("late", limits=Limits(ask_seconds=30))
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @server.tool
    async def start(ctx: Context) -> str:
        async def later() -> None:
            await asyncio.sleep(0.02)
            try:
                await ctx.elicit("Tea?", Reply)
            except QuestionFailed as error:
                failed.set_result(str(error))

        server.later = asyncio.create_task(later())
        return "started"

    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)
    assert await (await peer.post(called("start"))).text() == "started"
    assert await asyncio.wait_for(failed, 30) == (
        "The client cannot be asked (elicitation/create): the call is answered. Ask before the handler returns."
    )
    await server.stop()
    await peer.leave()


MALFORMED: list[tuple[str, Any, str]] = [
    ("ask", {"action": "accept", "content": {"value": 7}}, "the answer to a question does not fit it: "),
    ("ask", {"action": "maybe"}, "the answer to elicitation/create is malformed."),
    ("roots", {"roots": 7}, "the answer to roots/list is malformed."),
    (
        "sample",
        {"role": "user", "model": "m", "content": {"type": "text", "text": "Hi"}},
        "the answer to sampling/createMessage breaks a rule: ",
    ),
    ("by_hand", {"roots": 7}, "`inputResponses['roots']` does not have the expected shape."),
]


@pytest.mark.parametrize(("tool", "said", "fault"), MALFORMED)
async def test_an_answer_that_does_not_fit_is_not_the_fault_of_the_call(tool: str, said: Any, fault: str) -> None:
    """It came in a message of its own, and the handler may make do without it. Without a session it is the call's."""
    server = Server("strict")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Tea?", Reply)).action

    @server.tool
    async def roots(ctx: Context) -> int:
        return len(await ctx.list_roots())

    @server.tool
    async def sample(ctx: Context) -> str:
        return (await ctx.sample("Hello", max_tokens=9)).model

    @server.tool
    async def by_hand(ctx: Context) -> Any:
        if not ctx.has_input_response("roots"):
            return InputRequired({"roots": ask_roots()})
        return str(ctx.input_response("roots", ListRootsResult))

    everything = {**FORM, "roots": {}, "sampling": {}}
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=everything)
    exchange = await peer.post(called(tool))
    await peer.post(answer_to(await exchange.message(), said))
    result = await exchange.result()
    assert result["isError"]
    assert result["content"][0]["text"].startswith(f"The client's answer cannot be used: {fault}")
    meta = {CLIENT_CAPABILITIES_KEY: everything}
    params: Any = {"name": tool, "arguments": {}}
    asked = await (await peer.stateless("tools/call", params, meta=meta)).result()
    params |= {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], said)}
    refused = (await (await peer.stateless("tools/call", params, meta=meta)).json())["error"]
    assert refused["code"] == -32602
    assert refused["message"].startswith(f"Invalid params: {fault}")
    await server.stop()
    await peer.leave()
