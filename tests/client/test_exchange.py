"""One request and all that may lie between it and its result, with a server that does as the test says."""

import asyncio
import json
import time
from typing import Any

import pytest

from support.fakes import DISCOVERED, FakePipe, initialized
from weft import (
    CannotAnswer,
    Client,
    ClientLimits,
    ConnectionFailed,
    InvalidAnswer,
    RemoteError,
    RequestTimeout,
    WeftError,
)
from weft.client import PendingQuestions
from weft.client.questions import FormQuestion
from weft.types.lifecycle import ProgressParams

TEXT = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
META = "io.modelcontextprotocol/"
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}}


def serve(answers: Any, *, is_legacy: bool = False, tools: list[dict[str, Any]] | None = None) -> FakePipe:
    """A server that answers `tools/call` by a function, and the rest as it should be."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "server/discover" if not is_legacy:
                pipe.answer(message, DISCOVERED)
            case "initialize":
                pipe.answer(message, initialized())
            case "tools/list":
                pipe.answer(message, {"tools": tools or []})
            case "tools/call" | "resources/read" | "prompts/get":
                answers(pipe, message)
            case _ if "id" in message and "method" in message:
                pipe.answer(message, error={"code": -32601, "message": "Method not found"})

    return FakePipe(handle)


def asking(state: str | None = None, *methods: str) -> dict[str, Any]:
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    params = {"elicitation/create": {"message": "n?", "requestedSchema": form}, "roots/list": None}
    asked = {f"k{number}": {"method": method, "params": params.get(method)} for number, method in enumerate(methods)}
    return {
        "resultType": "input_required",
        **({"inputRequests": asked} if methods else {}),
        **({} if state is None else {"requestState": state}),
    }


# --- requests as they are sent


@pytest.mark.spec(
    "META-01", "META-03", "JRPC-02", "JRPC-03", "JRPC-04", "JRPC-05", "ELI-01", "ROOT-01", "SAM-01", "TRN-03"
)
async def test_every_request_introduces_itself() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, TEXT))
    functions: dict[str, Any] = {"elicit": lambda _: None, "roots": ["file:///tmp"], "sample": lambda _: None}
    async with Client(server, **functions) as client:
        await asyncio.gather(*(client.call_tool("t") for _ in range(5)))
    ids = [message["id"] for message in server.heard]
    assert len(set(ids)) == 6
    for message in server.heard:
        meta = message["params"]["_meta"]
        assert message["jsonrpc"] == "2.0"
        assert isinstance(message["id"], int)
        assert meta[f"{META}protocolVersion"] == "2026-07-28"
        assert meta[f"{META}clientCapabilities"] == {
            "elicitation": {"form": {}},
            "extensions": {f"{META}tasks": {}},
            "roots": {},
            "sampling": {},
        }
        assert meta[f"{META}clientInfo"]["name"] == "weft"


@pytest.mark.spec("JRPC-08")
async def test_a_result_that_does_not_say_what_it_is_is_complete() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, {"content": TEXT["content"]}))
    async with Client(server) as client:
        assert (await client.call_tool("t")).text == "done"


@pytest.mark.spec("JRPC-09", "JRPC-10")
async def test_a_result_of_an_unknown_kind_is_none() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, {"resultType": "maybe", "content": []}))
    async with Client(server) as client:
        with pytest.raises(InvalidAnswer, match="maybe"):
            await client.call_tool("t")


@pytest.mark.spec("JRPC-22", "TOOL-16")
async def test_what_the_server_says_and_what_we_find_out_are_told_apart() -> None:
    error = {"code": -32602, "message": "Unknown tool: t", "data": {"did": "you mean u?"}}
    server = serve(lambda pipe, message: pipe.answer(message, error=error))
    async with Client(server) as client:
        with pytest.raises(RemoteError, match="Unknown tool") as caught:
            await client.call_tool("t")
        assert (caught.value.code, caught.value.data) == (-32602, {"did": "you mean u?"})
    assert not issubclass(RequestTimeout, RemoteError)
    assert not issubclass(ConnectionFailed, RemoteError)


@pytest.mark.parametrize("answer", [{"content": 1}, {"content": [{"type": "hologram"}]}, [], "text", None])
async def test_a_result_that_cannot_be_read(answer: Any) -> None:
    server = serve(lambda pipe, message: pipe.answer(message, answer))
    async with Client(server) as client:
        with pytest.raises((InvalidAnswer, WeftError)):
            await client.call_tool("t", timeout=1)


@pytest.mark.security("R6")
async def test_answers_to_requests_that_nobody_made_are_left_out() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        for wrong in (999, f"0{message['id']}", f"call-{message['id']}", -1):
            pipe.say({"id": wrong, "result": {"content": [{"type": "text", "text": "wrong"}]}})
        pipe.answer(message, TEXT)

    async with Client(serve(answer)) as client:
        assert (await client.call_tool("t")).text == "done"


# --- rounds


@pytest.mark.spec("MRTR-17", "MRTR-18", "MRTR-19", "MRTR-20", "MRTR-22", "META-16")
async def test_rounds() -> None:
    state = 'op\u00e1que "\\\u2028 + /=='
    rounds = [asking(state, "elicitation/create", "roots/list"), asking(None, "roots/list"), asking("last"), TEXT]
    server = serve(lambda pipe, message: pipe.answer(message, rounds.pop(0)))
    async with Client(server, elicit=lambda _: {"n": 7}, roots=["file:///"]) as client:
        assert (await client.call_tool("t", {"a": 1})).text == "done"
    calls = server.calls("tools/call")
    assert len({call["id"] for call in calls}) == 4
    said = [{key: value for key, value in call["params"].items() if key != "_meta"} for call in calls]
    roots = {"roots": [{"uri": "file:///"}]}
    original = {"name": "t", "arguments": {"a": 1}}
    answers = {"k0": {"action": "accept", "content": {"n": 7}}, "k1": roots}
    assert said == [
        original,
        {**original, "inputResponses": answers, "requestState": state},
        {**original, "inputResponses": {"k0": roots}},
        {**original, "requestState": "last"},
    ]


@pytest.mark.parametrize("verb", ["read_resource", "get_prompt", "request"])
async def test_rounds_of_other_methods(verb: str) -> None:
    done = {"resultType": "complete", "contents": [], "messages": [], "content": []}
    rounds = [asking("s", "roots/list"), done]
    server = serve(lambda pipe, message: pipe.answer(message, rounds.pop(0)))
    async with Client(server, roots=[]) as client:
        if verb == "request":
            await client.request("tools/call", {"name": "t"})
        else:
            await getattr(client, verb)("x://y")
    assert server.heard[-1]["params"]["inputResponses"] == {"k0": {"roots": []}}


@pytest.mark.security("D12")
async def test_rounds_are_bounded() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, asking("again")))
    async with Client(server, limits=ClientLimits(rounds=3)) as client:
        with pytest.raises(InvalidAnswer, match="3 times in a row"):
            await client.call_tool("t")
    assert len(server.calls("tools/call")) == 4


async def test_questions_at_once_are_bounded() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, asking(None, *["roots/list"] * 3)))
    async with Client(server, roots=[], limits=ClientLimits(input_requests=2)) as client:
        with pytest.raises(InvalidAnswer, match="3 questions"):
            await client.call_tool("t")


async def test_a_round_without_questions_and_state_is_nonsense() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, {"resultType": "input_required"}))
    async with Client(server) as client:
        with pytest.raises(InvalidAnswer, match="with neither `inputRequests` nor `requestState`"):
            await client.call_tool("t")


@pytest.mark.spec("MRTR-28", "SAM-03")
@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
async def test_a_question_that_is_not_answered_ends_the_call(method: str) -> None:
    server = serve(lambda pipe, message: pipe.answer(message, asking("s", method)))
    async with Client(server) as client:
        with pytest.raises(CannotAnswer, match=method):
            await client.call_tool("t")
    assert len(server.calls("tools/call")) == 1


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ({"s3cret": "s3cret"}, "elicit= returned an answer that cannot be sent: .* 'n': it is missing"),
        ({"n": "s3cret"}, "elicit= returned an answer that cannot be sent: .*'n'"),
        (["s3cret"], "returned something of the type 'list'; return a dict"),
        (ValueError("s3cret"), "the function that answers this raised ValueError; the log has"),
    ],
)
async def test_the_program_is_told_what_is_wrong_with_its_answer(returned: Any, why: str) -> None:
    def elicit(_: Any) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    server = serve(lambda pipe, message: pipe.answer(message, asking("s", "elicitation/create")))
    async with Client(server, elicit=elicit) as client:
        with pytest.raises(CannotAnswer, match=why) as caught:
            await client.call_tool("t")
    assert "s3cret" not in str(caught.value)


async def test_the_program_is_told_what_is_wrong_with_its_model_and_its_folders() -> None:
    sampling = {"messages": [], "maxTokens": 9}
    asked = {"s": ("sampling/createMessage", sampling), "r": ("roots/list", {})}
    for key, function, why in (
        ("s", {"sample": lambda _: 17}, "sample= returned something of the type 'int'; return text"),
        ("r", {"roots": lambda: 17}, "roots= needs to be a list of folders"),
    ):
        method, params = asked[key]
        question = {"resultType": "input_required", "inputRequests": {"k": {"method": method, "params": params}}}
        server = serve(lambda pipe, message, question=question: pipe.answer(message, question))
        functions: dict[str, Any] = function
        async with Client(server, **functions) as client:
            with pytest.raises(CannotAnswer, match=why):
                await client.call_tool("t")


@pytest.mark.parametrize(
    ("required", "has", "option"),
    [
        ({"elicitation": {"form": {}}}, {}, "`elicit=`"),
        ({"elicitation": {}}, {}, "`elicit=`"),
        ({"elicitation": {"url": {}}}, {"elicit": print}, "`elicit_url=`"),
        ({"sampling": {}}, {}, "`sample=`"),
        ({"sampling": {"tools": {}}}, {"sample": print}, "`sample_with_tools=`"),
        ({"roots": {}, "elicitation": {"form": {}}}, {}, "`roots=` and `elicit=`"),
        ({"roots": {}}, {"roots": []}, None),  # it is declared: no option would help
        ({"extensions": {"x.example/y": {}}}, {}, "`extensions={'x.example/y': {}}`"),
        ({"extensions": {"x.example/y": {}}}, {"extensions": {"x.example/y": {}}}, None),
        (["roots"], {}, None),
        (None, {}, None),
    ],
)
async def test_a_capability_that_is_missed_is_named_by_its_option(required: Any, has: Any, option: str | None) -> None:
    error = {"code": -32021, "message": "The client must declare it.", "data": {"requiredCapabilities": required}}
    server = serve(lambda pipe, message: pipe.answer(message, error=error))
    async with Client(server, **has) as client:
        with pytest.raises(RemoteError) as caught:
            await client.call_tool("t")
    more = "" if option is None else f" Give the client {option}."
    assert str(caught.value) == f"The client must declare it.{more} (-32021)"
    assert (caught.value.code, caught.value.data) == (-32021, error["data"])


async def test_nothing_else_may_be_asked() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, asking("s", "shell/run")))
    async with Client(server) as client:
        with pytest.raises(InvalidAnswer, match="shell/run"):
            await client.call_tool("t")


async def test_a_question_that_nobody_answers_in_time_ends_the_call() -> None:
    async def think(_: Any) -> None:
        await asyncio.sleep(5)

    server = serve(lambda pipe, message: pipe.answer(message, asking("s", "elicitation/create")))
    async with Client(server, elicit=think, limits=ClientLimits(ask_seconds=0.05)) as client:
        with pytest.raises(CannotAnswer, match="in time"):
            await client.call_tool("t")

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.say({"id": 9, "method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}})
        asyncio.get_running_loop().call_later(0.2, pipe.answer, message, TEXT)

    server = serve(answer, is_legacy=True)
    async with Client(server, elicit=think, limits=ClientLimits(ask_seconds=0.05)) as client:
        await client.call_tool("t")
    [told] = [message for message in server.heard if "error" in message]
    assert (told["id"], told["error"]["message"]) == (9, "The question was not answered in time.")


@pytest.mark.spec("MRTR-21", "STATE-05")
async def test_parallel_calls_do_not_share_their_rounds() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        params = message["params"]
        name = params["name"]
        if "requestState" in params:
            assert params["requestState"] == f"state of {name}"
            assert set(params["inputResponses"]) == {name}
            pipe.answer(message, {"content": [{"type": "text", "text": name}]})
        else:
            asked = {name: {"method": "roots/list"}}
            pipe.answer(
                message,
                {"resultType": "input_required", "inputRequests": asked, "requestState": f"state of {name}"},
            )

    async with Client(serve(answer), roots=[]) as client:
        names = [f"t{number}" for number in range(20)]
        results = await asyncio.gather(*(client.call_tool(name) for name in names))
    assert [result.text for result in results] == names


async def test_questions_can_be_left_to_the_caller() -> None:
    rounds = [asking("s", "elicitation/create"), TEXT]
    server = serve(lambda pipe, message: pipe.answer(message, rounds.pop(0)))
    async with Client(server, manual_input=True) as client:
        with pytest.raises(PendingQuestions, match="k0") as caught:
            await client.call_tool("t")
        assert caught.value.requests["k0"].params["message"] == "n?"
        answers = {"k0": {"action": "decline"}}
        assert (await client.call_tool("t", answers=answers, state=caught.value.state)).text == "done"
    assert server.heard[-1]["params"]["inputResponses"] == answers
    assert server.heard[-1]["params"]["requestState"] == "s"


# --- time


@pytest.mark.mistake("a client timeout")
@pytest.mark.spec("CAN-01", "CAN-02", "CAN-04", "CAN-12", "CAN-13", "STDIO-08")
async def test_a_request_that_takes_too_long_is_given_up_and_the_server_told() -> None:
    server = serve(lambda pipe, message: None)
    async with Client(server) as client:
        with pytest.raises(RequestTimeout) as caught:
            await client.call_tool("t", timeout=0.05)
        assert str(caught.value) == (
            "the server 'FakePipe' in this process did not answer tools/call of 't' within 0.05 s. Is it busy, or "
            "stuck? To wait longer, give `timeout=` for this call, or `Client(..., "
            "limits=ClientLimits(request_seconds=...))`."
        )
        await asyncio.sleep(0.02)
    [call] = server.calls("tools/call")
    [cancelled] = server.calls("notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert "id" not in cancelled


@pytest.mark.spec("CAN-08", "CAN-09")
async def test_a_cancelled_call_tells_the_server_and_a_late_answer_is_ignored() -> None:
    server = serve(lambda pipe, message: None)
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("t"))
        await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.02)
        assert len(server.calls("notifications/cancelled")) == 1
        server.answer(server.calls("tools/call")[0], TEXT)
        await asyncio.sleep(0.02)
        assert await client.list_tools() == []


@pytest.mark.spec("L11-32")
async def test_a_handshake_is_never_cancelled() -> None:
    server = FakePipe(lambda pipe, message: None)
    with pytest.raises(WeftError):
        await Client(server, eras=["session"], limits=ClientLimits(request_seconds=0.05)).connect()
    assert [message["method"] for message in server.heard] == ["initialize"]


@pytest.mark.spec("CAN-14", "PROG-01", "PROG-02")
async def test_progress_starts_the_clock_anew_but_not_for_ever() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        token = message["params"]["_meta"]["progressToken"]

        def tell(step: int) -> None:
            params = {"progressToken": token, "progress": step, "total": 5, "message": "on it"}
            pipe.say({"method": "notifications/progress", "params": params})
            if step == 5 and message["params"]["name"] == "ends":
                pipe.answer(message, TEXT)
            else:
                asyncio.get_running_loop().call_later(0.05, tell, step + 1)

        tell(1)

    seen: list[float] = []
    limits = ClientLimits(request_seconds=0.12, total_seconds=0.6)
    async with Client(serve(answer), limits=limits) as client:
        result = await client.call_tool("ends", progress=lambda told: seen.append(told.progress))
        assert result.text == "done"
        assert seen == [1, 2, 3, 4, 5]
        with pytest.raises(RequestTimeout) as caught:
            await client.call_tool("goes on", progress=seen.append)
        assert str(caught.value).endswith(
            "did not answer tools/call of 'goes on' within 0.6 s in all; `ClientLimits(total_seconds=...)` allows more."
        )


async def test_where_progress_is_awaited_its_lack_is_told() -> None:
    async with Client(serve(lambda pipe, message: None)) as client:
        with pytest.raises(
            RequestTimeout, match=r"did not answer tools/call of 't', nor report progress, within 0\.05 s\. Is"
        ):
            await client.call_tool("t", timeout=0.05, progress=print)


async def test_one_who_gives_up_while_progress_is_still_told_leaves_nothing_behind() -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            token = message["params"]["_meta"]["progressToken"]
            for step in range(5):
                params = {"progressToken": token, "progress": step}
                pipe.say({"method": "notifications/progress", "params": params})
            pipe.answer(message, {"content": []})
        else:
            pipe.answer(message, DISCOVERED)

    seen: list[float] = []

    async def slow(told: ProgressParams) -> None:
        seen.append(told.progress)
        await asyncio.sleep(0.05)

    async with Client(FakePipe(handle)) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):  # it is answered by then
                await client.call_tool("t", progress=slow)
        await asyncio.sleep(0.1)
    assert seen == [0]


async def test_a_timeout_around_a_late_request_stays_one() -> None:
    """Both run out, one after the other, while a function is slow to end: the outer one must still know its own."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            token = message["params"]["_meta"]["progressToken"]
            pipe.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        else:
            pipe.answer(message, DISCOVERED)

    async def stubborn(told: ProgressParams) -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.2)

    async with Client(FakePipe(handle)) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.call_tool("t", progress=stubborn, timeout=0.05)


async def test_an_async_function_hears_all_progress_in_order_before_the_result() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        token = message["params"]["_meta"]["progressToken"]
        for step in range(5):
            pipe.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
        pipe.answer(message, TEXT)

    seen: list[float] = []

    async def hear(told: Any) -> None:
        await asyncio.sleep(0.01)
        seen.append(told.progress)

    async with Client(serve(answer)) as client:
        await client.call_tool("t", progress=hear)
    assert seen == [0, 1, 2, 3, 4]


async def test_progress_of_nobody_and_callbacks_that_fail_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        for params in ({"progressToken": "x", "progress": 1}, {"progress": "?"}, {}, {"progressToken": 0}):
            pipe.say({"method": "notifications/progress", "params": params})
        token = message["params"]["_meta"]["progressToken"]
        pipe.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        pipe.answer(message, TEXT)

    async with Client(serve(answer)) as client:
        assert (await client.call_tool("t", progress=lambda told: 1 / 0)).text == "done"
    assert "The function that was given as progress= failed." in caplog.text


# --- the server's own requests (session era)


@pytest.mark.spec("L11-31", "L11-37", "ELI-05")
async def test_the_servers_requests_are_answered() -> None:
    form = {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}}
    asked = [
        {"id": 0, "method": "ping"},
        {"id": "a", "method": "roots/list"},
        {"id": 1, "method": "elicitation/create", "params": {"message": "n?", "requestedSchema": form}},
        {"id": 2, "method": "sampling/createMessage", "params": {}},
        {
            "id": 3,
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "m", "url": "https://a.example"},
        },
        {"id": 4, "method": "no/such"},
    ]

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        for request in asked:
            pipe.say(request)
        asyncio.get_running_loop().call_later(0.1, pipe.answer, message, TEXT)

    server = serve(answer, is_legacy=True)
    async with Client(server, elicit=lambda _: {}, roots=["file:///"]) as client:
        await client.call_tool("t")
    answers = {message["id"]: message for message in server.heard if "method" not in message}
    assert answers[0]["result"] == {}
    assert answers["a"]["result"] == {"roots": [{"uri": "file:///"}]}
    assert answers[1]["result"] == {"action": "accept", "content": {"n": 3}}
    assert [answers[number]["error"]["code"] for number in (2, 3, 4)] == [-32601, -32602, -32601]


@pytest.mark.spec("STDIO-05", "HTTP-10", "TRN-02")
async def test_in_the_stateless_era_a_request_of_the_server_is_not_answered() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.say({"id": 5, "method": "roots/list"})
        pipe.say({"id": 6, "method": "ping"})
        asyncio.get_running_loop().call_later(0.05, pipe.answer, message, TEXT)

    server = serve(answer)
    async with Client(server, roots=[]) as client:
        await client.call_tool("t")
    assert all("method" in message for message in server.heard)


async def test_the_time_a_user_thinks_is_not_the_servers() -> None:
    thought: list[str] = []

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.say({"id": 1, "method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}})

    def heard(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "method" not in message:
            pipe.answer(pipe.calls("tools/call")[0], TEXT)

    async def think(_: Any) -> str:
        thought.append("long")
        await asyncio.sleep(0.3)
        return "decline"

    server = serve(answer, is_legacy=True)
    before = server.handler
    server.handler = lambda pipe, message: before(pipe, message) if "method" in message else heard(pipe, message)
    async with Client(server, elicit=think, limits=ClientLimits(request_seconds=0.15)) as client:
        assert (await client.call_tool("t")).text == "done"
    assert thought == ["long"]


async def test_the_server_can_take_back_a_question() -> None:
    was: list[str] = []

    async def think(_: Any) -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            was.append("cancelled")
            raise
        return "decline"

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        pipe.say({"id": 9, "method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}})
        params = {"requestId": 9}
        loop.call_later(0.05, pipe.say, {"method": "notifications/cancelled", "params": params})
        loop.call_later(0.1, pipe.answer, message, TEXT)

    server = serve(answer, is_legacy=True)
    async with Client(server, elicit=think) as client:
        await client.call_tool("t")
    assert was == ["cancelled"]
    assert all("method" in message for message in server.heard)


@pytest.mark.security("D12")
async def test_endless_pings_are_survived_and_keep_no_clock_running() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        def ping(number: int) -> None:
            for offset in range(20):
                pipe.say({"id": number + offset, "method": "ping"})
            asyncio.get_running_loop().call_later(0.001, ping, number + 20)

        ping(0)

    server = serve(answer, is_legacy=True)
    async with Client(server, limits=ClientLimits(request_seconds=0.2)) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("t")
    await asyncio.sleep(0.05)  # they go on, to nobody
    assert len(asyncio.all_tasks()) == 1


async def test_more_questions_than_can_be_answered_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def think(_: Any) -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.1)
        return "decline"

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        for number in range(10):
            params = {"message": "?", "requestedSchema": FORM}
            pipe.say({"id": number, "method": "elicitation/create", "params": params})
        asyncio.get_running_loop().call_later(0.35, pipe.answer, message, TEXT)

    limits = ClientLimits(asks_at_once=2, asks_waiting=4)
    async with Client(serve(answer, is_legacy=True), elicit=think, limits=limits) as client:
        await client.call_tool("t")
    assert asked == 4
    assert "too much at once" in caplog.text


@pytest.mark.security("D12")
@pytest.mark.parametrize("more", [0, 1])
async def test_questions_that_wait_are_bound_by_their_size_too(caplog: pytest.LogCaptureFixture, more: int) -> None:
    """256 of 16 MiB each would be allowed otherwise. One that was answered makes room."""
    asked: list[str] = []

    async def think(question: FormQuestion) -> str:
        asked.append(question.message[0])
        await asyncio.sleep(0.05)
        return "decline"

    def question(letter: str) -> dict[str, Any]:
        return {"message": letter * 1000, "requestedSchema": FORM}

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        for letter in "abc":
            pipe.say({"id": letter, "method": "elicitation/create", "params": question(letter)})
        late = {"jsonrpc": "2.0", "id": "d", "method": "elicitation/create", "params": question("d")}
        asyncio.get_running_loop().call_later(0.3, pipe.say, json.dumps(late).encode())
        asyncio.get_running_loop().call_later(0.5, pipe.answer, message, TEXT)

    limits = ClientLimits(asks_at_once=1, asks_bytes=3 * len(json.dumps(question("a"))) - more)
    async with Client(serve(answer, is_legacy=True), elicit=think, limits=limits) as client:
        await client.call_tool("t")
    assert asked == (["a", "b", "d"] if more else ["a", "b", "c", "d"])
    assert ("too much at once" in caplog.text) == bool(more)


@pytest.mark.security("D12")
@pytest.mark.parametrize("is_patient", [False, True])
async def test_a_call_ends_at_the_hard_maximum_although_the_server_goes_on_asking(is_patient: bool) -> None:
    """Its time stands still while the user thinks, and begins anew with each answer: but not for ever."""

    async def think(question: FormQuestion) -> str:
        await asyncio.sleep(30 if is_patient else 0.01)
        return "decline"

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message.get("method") == "server/discover":
            pipe.answer(message, error={"code": -32601, "message": "Method not found"})
        elif message.get("method") == "initialize":
            pipe.answer(message, initialized())
        elif message.get("method", "tools/call") == "tools/call":
            params = {"message": "?", "requestedSchema": FORM}
            pipe.say({"id": f"q{len(pipe.heard)}", "method": "elicitation/create", "params": params})

    limits = ClientLimits(request_seconds=0.2, total_seconds=0.6, asks_per_minute=0)
    async with Client(FakePipe(handle), elicit=think, limits=limits) as client:
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match="total_seconds"):
            await asyncio.wait_for(client.call_tool("t"), 10)
        assert time.monotonic() - began >= 0.5


# --- outputs


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tool(**more: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": {"type": "object"}, **more}


@pytest.mark.spec("TOOL-13", "JSCH-01")
async def test_an_output_is_checked_against_its_schema() -> None:
    results = [{"n": 1}, {"n": "one"}, None, {"n": "error"}]

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        value = results.pop(0)
        structured = {} if value is None else {"structuredContent": value}
        pipe.answer(message, {"content": [], **structured, "isError": value == {"n": "error"}})

    server = serve(answer, tools=[tool(outputSchema=SCHEMA)])
    async with Client(server) as client:
        assert (await client.call_tool("t")).structured == {"n": 1}
        with pytest.raises(InvalidAnswer, match="outputSchema"):
            await client.call_tool("t")
        with pytest.raises(InvalidAnswer, match="sent no structured content"):
            await client.call_tool("t")
        assert (await client.call_tool("t")).is_error
    assert len(server.calls("tools/list")) == 1
    results[:] = [{"n": "one"}]
    async with Client(server, check_output=False) as client:
        assert (await client.call_tool("t")).structured == {"n": "one"}


@pytest.mark.parametrize("value", [None, False, 0, [], "text"])
async def test_structured_content_may_be_any_value(value: Any) -> None:
    answer = {"content": [], "structuredContent": value}
    server = serve(lambda pipe, message: pipe.answer(message, answer), tools=[tool(outputSchema={})])
    async with Client(server) as client:
        assert (await client.call_tool("t")).structured == value


@pytest.mark.spec("JSCH-03", "JSCH-05", "JSCH-08", "JSCH-09")
@pytest.mark.security("D14")
@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"$schema": "http://json-schema.org/draft-99/schema"}, "dialect"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "never fetched"),
        ({"$ref": "file:///etc/passwd"}, "never fetched"),
        ({"pattern": "(a+)+(?=b)"}, "regular expression"),
        ({"description": "x" * 300_000}, "bytes as JSON"),
        ({"properties": {"n": {"allOf": [{"$ref": "#"}] * 50}}}, "too large to be checked"),
    ],
    ids=["dialect", "network", "file", "regex", "size", "itself"],
)
async def test_schemas_that_mean_harm(schema: dict[str, Any], complaint: str) -> None:
    deep: Any = {"n": 1}
    for _ in range(30):
        deep = {"n": deep}
    answer = {"content": [], "structuredContent": deep}
    server = serve(lambda pipe, message: pipe.answer(message, answer), tools=[tool(outputSchema=schema)])
    async with Client(server) as client:
        with pytest.raises(InvalidAnswer, match=complaint):
            await client.call_tool("t")
