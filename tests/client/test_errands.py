"""Pages that a user has to visit first, where the server says so by an error that lists them."""

import asyncio
from typing import Any

import pytest

from support.fakes import DISCOVERED, FakePipe, initialized
from weft import CannotAnswer, Client, ClientLimits, InvalidAnswer, RemoteError, Server, UrlElicitationRequired
from weft.client.requests import exchange as errands

TEXT = {"content": [{"type": "text", "text": "done"}]}
REQUIRED = -32042


def page(name: str, **more: Any) -> dict[str, Any]:
    return {"mode": "url", "elicitationId": name, "url": f"https://a.example/{name}", "message": "Log in.", **more}


class Gate(FakePipe):
    """Refuses a call with the next of the lists of pages; when there are no more, answers."""

    def __init__(self, *lists: Any, is_legacy: bool = True, forever: bool = False) -> None:
        super().__init__(Gate.handle)
        self.lists = list(lists)
        self.is_legacy = is_legacy
        self.forever = forever

    def handle(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "server/discover" if not self.is_legacy:
                self.answer(message, DISCOVERED)
            case "server/discover":
                self.answer(message, error={"code": -32601, "message": "?"})
            case "initialize":
                self.answer(message, initialized())
            case "tools/call":
                self.call(message)

    def call(self, message: dict[str, Any]) -> None:
        if not self.lists:
            self.answer(message, TEXT)
            return
        pages = self.lists[0] if self.forever else self.lists.pop(0)
        error = {"code": REQUIRED, "message": "The user has to visit a page.", "data": {"elicitations": pages}}
        self.answer(message, error=error)

    def done(self, name: Any) -> None:
        self.say({"method": "notifications/elicitation/complete", "params": {"elicitationId": name}})


class User:
    """Consents, and remembers to what."""

    def __init__(self, answer: Any = True) -> None:
        self.asked: list[str] = []
        self.answer = answer

    async def __call__(self, question: Any) -> Any:
        self.asked.append(question.url)
        return self.answer


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whoever waits does not; the list tells which attempts they waited for."""
    waited: list[int] = []

    def pause(attempt: int) -> float:
        waited.append(attempt)
        return 0.0

    monkeypatch.setattr(errands, "pause", pause)
    return waited


@pytest.mark.spec("L11-41")
async def test_each_page_is_asked_about_once_and_the_call_made_again(no_pauses: list[int]) -> None:
    server, user = Gate([page("one"), page("two")], [page("two")], [page("three")]), User()
    async with Client(server, elicit_url=user) as client:
        assert (await client.call_tool("t", {"a": 1})).text == "done"
    assert user.asked == ["https://a.example/one", "https://a.example/two", "https://a.example/three"]
    calls = server.calls("tools/call")
    assert len(calls) == 4
    assert all(call["params"] == calls[0]["params"] for call in calls)
    assert len({call["id"] for call in calls}) == 4
    assert no_pauses == [0, 1, 0]  # longer and longer, and anew with a new page


@pytest.mark.spec("L11-40")
async def test_word_that_the_user_is_done_ends_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "pause", lambda _: 60)
    server, user = Gate([page("one")]), User()
    async with Client(server, elicit_url=user) as client:
        call = asyncio.create_task(client.call_tool("t"))
        await asyncio.sleep(0.05)
        for nobody in ("other", 7, None):
            server.done(nobody)
        await asyncio.sleep(0.05)
        assert not call.done()
        server.done("one")
        assert (await asyncio.wait_for(call, 30)).text == "done"
        server.done("one")  # once more: of nobody any more
        assert (await client.call_tool("t")).text == "done"


@pytest.mark.spec("L11-40")
async def test_word_may_come_while_the_user_is_still_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "pause", lambda _: 60)
    server = Gate([page("one")])

    async def visit(_: Any) -> bool:
        server.done("one")
        await asyncio.sleep(0.05)
        return True

    async with Client(server, elicit_url=visit) as client:
        assert (await asyncio.wait_for(client.call_tool("t"), 30)).text == "done"


@pytest.mark.parametrize("answer", [False, "cancel", None])
async def test_a_user_who_does_not_want_to_ends_the_call(answer: Any) -> None:
    server, user = Gate([page("one"), page("two")]), User(answer)
    async with Client(server, elicit_url=user) as client:
        with pytest.raises(RemoteError) as caught:
            await client.call_tool("t")
    assert caught.value.code == REQUIRED
    assert user.asked == ["https://a.example/one"]
    assert len(server.calls("tools/call")) == 1


@pytest.mark.parametrize("options", [{}, {"elicit": lambda _: {}}, {"elicit_url": User(), "manual_input": True}])
async def test_where_nobody_is_to_be_asked_the_error_is_told(options: dict[str, Any]) -> None:
    async with Client(Gate([page("one")]), **options) as client:
        with pytest.raises(RemoteError) as caught:
            await client.call_tool("t")
    assert caught.value.data["elicitations"][0]["elicitationId"] == "one"


@pytest.mark.parametrize("pages", [None, "many", 7, [], [7], {"url": "https://a.example"}])
async def test_an_error_that_lists_no_pages_is_an_error_like_any_other(pages: Any) -> None:
    user = User()
    async with Client(Gate(pages), elicit_url=user) as client:
        with pytest.raises(RemoteError):
            await client.call_tool("t")
    assert user.asked == []


@pytest.mark.parametrize(
    "error",
    [
        {},
        {"data": None},
        {"data": []},
        {"data": [page("one")]},
        {"data": "elicitations"},
        {"data": 7},
        {"data": {}},
        {"data": {"elicitations": [page("one"), None]}},
        {"data": {"elicitations": [[page("one")]]}},
    ],
)
async def test_an_error_whose_data_is_something_else_is_an_error_like_any_other(error: dict[str, Any]) -> None:
    """Whatever a server writes there, the call fails with its error, and nobody is sent anywhere."""

    class Odd(Gate):
        def call(self, message: dict[str, Any]) -> None:
            self.answer(message, error={"code": REQUIRED, "message": "Odd.", **error})

    user = User()
    async with Client(Odd(), elicit_url=user) as client:
        with pytest.raises(RemoteError, match=r"Odd\.") as caught:
            await client.call_tool("t")
    assert caught.value.code == REQUIRED
    assert user.asked == []


async def test_in_the_stateless_era_the_code_means_nothing() -> None:
    user = User()
    async with Client(Gate([page("one")], is_legacy=False), elicit_url=user) as client:
        with pytest.raises(RemoteError):
            await client.call_tool("t")
    assert user.asked == []


@pytest.mark.security("R11")
@pytest.mark.parametrize("url", ["http://a.example/", "javascript:alert(1)", "file:///etc/passwd", None])
async def test_nobody_is_sent_to_a_page_that_is_none(url: Any) -> None:
    user = User()
    async with Client(Gate([page("one", url=url)]), elicit_url=user) as client:
        with pytest.raises(CannotAnswer):
            await client.call_tool("t")
    assert user.asked == []


@pytest.mark.security("D12")
async def test_new_pages_are_bounded(no_pauses: list[int]) -> None:
    limits = ClientLimits(rounds=3)
    server = Gate(*([page(str(number))] for number in range(3)))
    async with Client(server, elicit_url=User(), limits=limits) as client:
        assert (await client.call_tool("t")).text == "done"
    server = Gate(*([page(str(number))] for number in range(4)))
    async with Client(server, elicit_url=User(), limits=limits) as client:
        with pytest.raises(InvalidAnswer, match="3 times in a row"):
            await client.call_tool("t")


@pytest.mark.security("D12")
async def test_pages_at_once_are_bounded(no_pauses: list[int]) -> None:
    limits = ClientLimits(input_requests=2)
    async with Client(Gate([page("1"), page("2")]), elicit_url=User(), limits=limits) as client:
        assert (await client.call_tool("t")).text == "done"
    async with Client(Gate([page("1"), page("2"), page("3")]), elicit_url=User(), limits=limits) as client:
        with pytest.raises(InvalidAnswer, match="3 pages at once"):
            await client.call_tool("t")


@pytest.mark.security("D12")
async def test_a_page_that_is_never_done_is_not_waited_for_for_ever() -> None:
    server, user = Gate([page("one")], forever=True), User()
    async with Client(server, elicit_url=user, limits=ClientLimits(ask_seconds=0.4)) as client:
        with pytest.raises(RemoteError) as caught:
            await asyncio.wait_for(client.call_tool("t"), 30)
    assert caught.value.code == REQUIRED
    assert user.asked == ["https://a.example/one"]


@pytest.mark.security("D12")
async def test_a_server_that_says_done_and_refuses_again_is_not_followed_for_ever() -> None:
    class Liar(Gate):
        def call(self, message: dict[str, Any]) -> None:
            super().call(message)
            asyncio.get_running_loop().call_later(0.01, self.done, "one")

    server = Liar([page("one")], forever=True)
    async with Client(server, elicit_url=User(), limits=ClientLimits(rounds=3)) as client:
        with pytest.raises(InvalidAnswer, match="3 times in a row"):
            await asyncio.wait_for(client.call_tool("t"), 30)
    assert len(server.calls("tools/call")) <= 5


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_server_of_our_own_that_waits_for_a_page_to_be_visited(mode: Any) -> None:
    server = Server("shop", version="1")
    paid: list[str] = []
    refusals = 0

    @server.tool
    async def buy() -> str:
        nonlocal refusals
        if not paid:
            refusals += 1
            raise UrlElicitationRequired(("Pay here.", "https://pay.example/1"))
        return "bought"

    async def visit(question: Any) -> bool:
        asyncio.get_running_loop().call_later(0.1, paid.append, question.url)  # the user takes a moment
        if mode == "stateless":
            await asyncio.sleep(0.2)  # rounds are answered at once, so this is the time to wait
        return True

    async with Client(server, eras=[mode], elicit_url=visit) as client:
        assert (await asyncio.wait_for(client.call_tool("buy"), 30)).text == "bought"
    assert paid == ["https://pay.example/1"]
    assert refusals >= 1
