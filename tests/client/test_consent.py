"""Who is asked, what they see, and that they can say no: every question of a server, from the user's side."""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fakes import DISCOVERED, LEGACY, FakePipe, initialized
from weft import CannotAnswer, Client, ClientLimits
from weft.client.handlers import ServerRequestHandlers
from weft.client.questions import FormQuestion, SampleQuestion, UrlQuestion, preferred_model
from weft.errors import InternalError, InvalidParams, ProtocolError, UsageError
from weft.net.rate import Allowance
from weft.types.features import TextContent
from weft.types.interaction import CreateMessageParams, CreateMessageResult, ToolUseContent

TEXT = {"content": [{"type": "text", "text": "done"}]}
SECRET = "4111-1111"
FORM = {"type": "object", "properties": {"n": {"type": "integer"}, "card": {"type": "string", "pattern": "^[a-z]+$"}}}
TOOLS = [{"name": "add", "inputSchema": {"type": "object"}}]


def sampling(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}], "maxTokens": 9, **more}


def form(message: str = "Who?") -> dict[str, Any]:
    return {"message": message, "requestedSchema": FORM}


def page(message: str = "Pay") -> dict[str, Any]:
    return {"mode": "url", "message": message, "url": "https://bank.example/pay"}


def asking(*questions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    asked = {f"k{number}": {"method": method, "params": params} for number, (method, params) in enumerate(questions)}
    return {"resultType": "input_required", "inputRequests": asked}


def serve(rounds: Iterator[dict[str, Any]], discovered: dict[str, Any] = DISCOVERED) -> FakePipe:
    """A server of the stateless era, which answers every call with the next of these results."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "id" in message:
            pipe.answer(message, discovered if message["method"] == "server/discover" else next(rounds))

    return FakePipe(handle)


def serve_session(*questions: tuple[str, dict[str, Any]]) -> FakePipe:
    """A server of the session era, which asks all of this during a call, and answers when it has all answers."""
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "server/discover":
                pipe.answer(message, error={"code": -32601, "message": "Method not found"})
            case "initialize":
                pipe.answer(message, initialized(LEGACY))
            case "tools/call":
                calls.append(message)
                for number, (method, params) in enumerate(questions):
                    pipe.say({"id": f"q{number}", "method": method, "params": params})
            case None:
                answers.append(message)
                if len(answers) == len(questions):
                    pipe.answer(calls[0], TEXT)

    return FakePipe(handle)


# --- who asks, for what, and why


@pytest.mark.spec("ELI-11", "ELI-28", "SAM-12")
@pytest.mark.parametrize("named", [True, False])
async def test_every_question_says_who_asks_for_what_and_why(named: bool) -> None:
    seen: list[Any] = []
    anonymous = {key: value for key, value in DISCOVERED.items() if key != "_meta"}
    asked = asking(
        ("elicitation/create", form("Your age, for the ticket")),
        ("elicitation/create", page("To pay for it")),
        ("sampling/createMessage", sampling("Write a poem", systemPrompt="Be brief", server="The Bank")),
    )
    server = serve(iter([asked, TEXT]), DISCOVERED if named else anonymous)

    def show(answer: Any) -> Any:
        return lambda question: seen.append(question) or answer

    client = Client(server, elicit=show({"n": 1}), elicit_url=show(True), sample=show("a poem"))
    async with client:
        where = client.transport.where
        await client.call_tool("t")
    by_type = {type(question): question for question in seen}
    asker = f"fake ({where})" if named else where  # one that does not introduce itself is known by where it is
    assert {question.server for question in seen} == {asker}
    assert by_type[FormQuestion].message == "Your age, for the ticket"
    assert set(by_type[FormQuestion].schema["properties"]) == {"n", "card"}
    assert (by_type[UrlQuestion].message, by_type[UrlQuestion].host) == ("To pay for it", "bank.example")
    turn = by_type[SampleQuestion]
    assert isinstance(turn, CreateMessageParams)
    assert (turn.messages[0].content.text, turn.system_prompt) == ("Write a poem", "Be brief")


@pytest.mark.spec("ELI-28", "SAM-12")
@pytest.mark.parametrize(
    ("method", "params", "refusal", "expected"),
    [
        ("elicitation/create", form(), "decline", {"action": "decline"}),
        ("elicitation/create", form(), None, {"action": "cancel"}),
        ("elicitation/create", page(), False, {"action": "decline"}),
        ("elicitation/create", page(), None, {"action": "cancel"}),
    ],
)
async def test_a_user_can_say_no(method: str, params: dict[str, Any], refusal: Any, expected: Any) -> None:
    server = serve(iter([asking((method, params)), TEXT]))
    async with Client(server, elicit=lambda _: refusal, elicit_url=lambda _: refusal) as client:
        await client.call_tool("t")
    assert server.calls("tools/call")[1]["params"]["inputResponses"] == {"k0": expected}


@pytest.mark.spec("SAM-12")
async def test_a_turn_of_a_model_that_is_refused_ends_the_call() -> None:
    server = serve(iter([asking(("sampling/createMessage", sampling()))]))
    async with Client(server, sample=lambda _: None) as client:
        with pytest.raises(CannotAnswer, match="rejected"):
            await client.call_tool("t")
    assert len(server.calls("tools/call")) == 1


@pytest.mark.spec("ELI-28")
async def test_a_user_can_leave_while_a_question_is_open() -> None:
    is_shown, was_closed = asyncio.Event(), asyncio.Event()

    async def ask(_: FormQuestion) -> None:
        is_shown.set()
        try:
            await asyncio.sleep(60)
        finally:
            was_closed.set()

    server = serve(iter([asking(("elicitation/create", form()))]))
    async with Client(server, elicit=ask) as client:
        call = asyncio.ensure_future(client.call_tool("t"))
        await is_shown.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert was_closed.is_set()
    assert len(server.calls("tools/call")) == 1


@pytest.mark.spec("ELI-13")
async def test_after_consent_to_a_page_the_user_says_when_to_try_again_and_when_to_stop() -> None:
    """The server asks again until the user is done there; each time it is the user who has the call made again."""
    tries: list[int] = []
    user = iter([True, True, "cancel"])

    def visit(question: UrlQuestion) -> Any:
        tries.append(len(server.calls("tools/call")))
        return next(user)

    def rounds() -> Iterator[dict[str, Any]]:
        yield asking(("elicitation/create", page()))
        yield asking(("elicitation/create", page()))
        yield asking(("elicitation/create", page()))
        yield TEXT

    server = serve(rounds())
    async with Client(server, elicit_url=visit) as client:
        assert (await client.call_tool("t")).text == "done"
    assert tries == [1, 2, 3]
    actions = [call["params"].get("inputResponses", {}).get("k0", {}) for call in server.calls("tools/call")]
    assert actions == [{}, {"action": "accept"}, {"action": "accept"}, {"action": "cancel"}]


# --- sampling


@pytest.mark.spec("SAM-09")
@pytest.mark.parametrize("tokens", [0, -1, 1.5, "9", True, None])
async def test_a_turn_without_a_bound_is_refused_before_anybody_sees_it(tokens: Any) -> None:
    seen: list[Any] = []
    duties = ServerRequestHandlers(sample=seen.append)
    with pytest.raises(InvalidParams) as caught:
        await duties.answer("sampling/createMessage", sampling() | {"maxTokens": tokens})
    missing = {key: value for key, value in sampling().items() if key != "maxTokens"}
    with pytest.raises(InvalidParams):
        await duties.answer("sampling/createMessage", missing)
    assert caught.value.code == -32602
    assert seen == []


@pytest.mark.spec("SAM-09")
@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS}])
async def test_the_bound_reaches_the_function_and_so_do_the_other_knobs(extra: dict[str, Any]) -> None:
    seen: list[SampleQuestion] = []
    knobs = {"temperature": 0.5, "stopSequences": ["x"], "metadata": {"k": 1}, "systemPrompt": "s", **extra}
    cut = CreateMessageResult("assistant", TextContent("a"), "m", "maxTokens")
    duties = ServerRequestHandlers(sample_with_tools=lambda question: seen.append(question) or cut)
    answer = await duties.answer("sampling/createMessage", sampling(maxTokens=1, **knobs))
    [turn] = seen
    assert (turn.max_tokens, turn.temperature, turn.stop_sequences, turn.metadata) == (1, 0.5, ["x"], {"k": 1})
    assert [tool.name for tool in turn.tools or ()] == [tool["name"] for tool in extra.get("tools", ())]
    assert answer["stopReason"] == "maxTokens"  # and the server learns that the answer ended there


@pytest.mark.spec("SAM-12")
async def test_a_model_that_must_use_no_tool_uses_none() -> None:
    used = CreateMessageResult("assistant", ToolUseContent("1", "add", {}), "m")
    duties = ServerRequestHandlers(sample_with_tools=lambda _: used)
    await duties.answer("sampling/createMessage", sampling(tools=TOOLS))
    with pytest.raises(InternalError):
        await duties.answer("sampling/createMessage", sampling(tools=TOOLS, toolChoice={"mode": "none"}))


@pytest.mark.spec("SAM-12")
async def test_a_hint_chooses_the_model() -> None:
    models = ["big-1", "small-1"]
    duties = ServerRequestHandlers(
        sample=lambda question: CreateMessageResult(
            "assistant", TextContent("hi"), preferred_model(question.model_preferences, models) or models[0]
        )
    )
    hinted = sampling(modelPreferences={"hints": [{"name": "small"}]})
    assert (await duties.answer("sampling/createMessage", hinted))["model"] == "small-1"


@pytest.mark.spec("SAM-12")
@pytest.mark.security("D12")
async def test_a_server_cannot_ask_without_end() -> None:
    asked = 0

    def sample(_: SampleQuestion) -> str:
        nonlocal asked
        asked += 1
        return "more"

    duties = ServerRequestHandlers(sample=sample, limits=ClientLimits(asks_per_minute=3))
    for _ in range(3):
        await duties.answer("sampling/createMessage", sampling())
    for _ in range(2):
        with pytest.raises(ProtocolError, match="takes 3 questions a minute"):
            await duties.answer("sampling/createMessage", sampling())
    assert asked == 3


@pytest.mark.spec("SAM-12")
@pytest.mark.security("D12")
async def test_a_loop_of_questions_ends_in_either_era() -> None:
    def for_ever() -> Iterator[dict[str, Any]]:
        while True:
            yield asking(("sampling/createMessage", sampling()))

    asked: list[Any] = []
    async with Client(serve(for_ever()), sample=lambda _: asked.append(1) or "x") as client:
        with pytest.raises(Exception, match="10 times in a row"):
            await client.call_tool("t")
    assert len(asked) <= 11
    server = serve_session(*[("sampling/createMessage", sampling())] * 8)
    limits = ClientLimits(asks_per_minute=5)
    async with Client(server, sample=lambda _: "x", limits=limits) as client:
        await client.call_tool("t")
    answers = [message for message in server.heard if "method" not in message]
    assert [("result" in answer) for answer in answers].count(True) == 5
    assert {answer["error"]["code"] for answer in answers if "error" in answer} == {-32603}


def test_an_allowance_comes_back_with_time() -> None:
    now = 100.0
    allowance = Allowance(60, 60.0, clock=lambda: now)
    assert [allowance.wait() for _ in range(61)][:60] == [0.0] * 60
    assert 0 < allowance.wait() <= 1
    now += 1
    assert allowance.wait() == 0
    assert allowance.wait() > 0
    now += 1000
    assert [allowance.wait() for _ in range(60)] == [0.0] * 60  # but no more than that is saved up
    assert allowance.wait() > 0


# --- what is sensitive


@pytest.mark.spec("SAM-13")
@pytest.mark.security("R1")
@pytest.mark.parametrize("is_session", [False, True])
async def test_what_is_asked_and_answered_is_in_no_log_and_no_error(
    is_session: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever becomes of a question: answered, refused, wrong, answered wrongly, failed."""
    wrong = {"content": {"card": SECRET}, "n": SECRET}
    for method, params, answer in [
        ("sampling/createMessage", sampling(SECRET), SECRET),
        ("sampling/createMessage", sampling(SECRET), None),
        ("sampling/createMessage", sampling(SECRET), {"text": SECRET}),
        ("sampling/createMessage", sampling(SECRET) | {"maxTokens": SECRET}, SECRET),
        ("sampling/createMessage", sampling(SECRET), CreateMessageResult("user", ToolUseContent(SECRET, "x", {}), "m")),
        ("elicitation/create", form(SECRET), {"n": 1}),
        ("elicitation/create", form(SECRET), wrong),
        ("elicitation/create", form(SECRET), {"card": SECRET}),
        ("elicitation/create", form(SECRET) | {"requestedSchema": {"default": SECRET}}, {}),
        ("elicitation/create", page(SECRET), SECRET),
        ("elicitation/create", page(SECRET) | {"url": f"ftp://{SECRET}"}, True),
        ("elicitation/create", form(SECRET), OSError("no screen")),
    ]:

        def respond(_: Any, answer: Any = answer) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        server = serve_session((method, params)) if is_session else serve(iter([asking((method, params)), TEXT]))
        said = ""
        with caplog.at_level(logging.DEBUG):
            async with Client(server, elicit=respond, elicit_url=respond, sample=respond) as client:
                try:
                    await client.call_tool("t")
                except CannotAnswer as error:
                    said = f"{error!r} {error}"
        assert SECRET not in said
        refusals = [message["error"] for message in server.heard if "error" in message]
        assert SECRET not in str(refusals)
    assert caplog.text
    assert SECRET not in caplog.text


# --- roots


async def told(*roots: Any) -> list[str]:
    answer = await ServerRequestHandlers(roots=lambda: list(roots)).answer("roots/list")
    return [root["uri"] for root in answer["roots"]]


@pytest.mark.spec("ROOT-03")
async def test_only_the_roots_that_were_given_are_told(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    assert await told(tmp_path / "mine") == [(tmp_path / "mine").as_uri()]
    assert await told() == []


@pytest.mark.spec("ROOT-03", "ROOT-04")
async def test_a_root_that_is_not_there_is_left_out_for_as_long_as_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "a b\u00e9"
    folder.mkdir()
    duties = ServerRequestHandlers(roots=[folder.as_uri(), tmp_path])

    async def names() -> list[str]:
        return [root["uri"].rpartition("/")[2] for root in (await duties.answer("roots/list"))["roots"]]

    assert await names() == ["a%20b%C3%A9", tmp_path.name]
    folder.rmdir()
    assert await names() == [tmp_path.name]
    assert f"The root {folder.as_uri()} does not exist or cannot be read" in caplog.text
    folder.mkdir()
    assert len(await names()) == 2


@pytest.mark.spec("ROOT-03")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="whoever is root may read everything")
async def test_a_root_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o000)
    assert await told(folder, tmp_path) == [tmp_path.as_uri()]


@pytest.mark.spec("ROOT-03")
@pytest.mark.security("R11")
@pytest.mark.parametrize(
    "root", ["file:///a/../etc", "file:///a/%2E%2e/etc", "file:///a%2f..%2fetc", "file:///a/..%5Cetc", "file:///a%00b"]
)
async def test_a_root_that_leads_elsewhere_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="write the resolved path"):
        ServerRequestHandlers(roots=[root])
    with pytest.raises(InternalError):
        await told(root)


@pytest.mark.spec("ROOT-03")
async def test_a_link_is_told_as_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert await told(tmp_path / "link", str(tmp_path / "link")) == [(tmp_path / "real").resolve().as_uri()] * 2


@pytest.mark.spec("ROOT-04")
async def test_roots_are_told_after_consent_only_and_whoever_is_asked_may_refuse(tmp_path: Path) -> None:
    """A function is asked each time, before anything is told."""

    def refuse() -> list[Path]:
        raise ProtocolError("The user does not share folders.", code=-1)

    with pytest.raises(ProtocolError, match="does not share"):
        await ServerRequestHandlers(roots=refuse).answer("roots/list")
    consent = [False]
    duties = ServerRequestHandlers(roots=lambda: [tmp_path] if consent[0] else [])
    assert (await duties.answer("roots/list"))["roots"] == []
    consent[0] = True
    assert len((await duties.answer("roots/list"))["roots"]) == 1
