"""The clients people have today drive the example server: each test runs for both clients over both transports."""

import re
from typing import Any

Facts = dict[str, Any]


def names(page: Facts, key: str, field: str = "name") -> set[str]:
    return {item[field] for item in page[key]}


def test_discover(facts: Facts) -> None:
    assert facts["version"] == "2026-07-28"
    assert facts["server"]["name"] == "library"
    assert facts["server"]["title"] == "The town library"
    assert "Search before you lend" in facts["instructions"]
    assert {"tools", "resources", "prompts", "completions"} <= facts["capabilities"].keys()


def test_lists(facts: Facts) -> None:
    tools = {tool["name"]: tool for tool in facts["tools"]["tools"]}
    assert {"add", "search_books", "reserve", "invite", "take_stock", "count_given_up_waits"} < tools.keys()
    assert set(tools["add"]["inputSchema"]["required"]) == {"a", "b"}
    assert tools["search_books"]["outputSchema"]["type"] == "array"
    assert names(facts["resources"], "resources", "uri") == {"library://catalogue", "library://notices"}
    assert names(facts["templates"], "resourceTemplates", "uriTemplate") == {"library://books/{book_id}"}
    [prompt] = facts["prompts"]["prompts"]
    assert {argument["name"]: argument.get("required", False) for argument in prompt["arguments"]} == {
        "genre": True,
        "mood": False,
    }


def test_call(facts: Facts) -> None:
    assert facts["sum"]["content"][0]["text"] == "5"
    assert facts["sum"]["structuredContent"] == 5
    assert not facts["sum"].get("isError")


def test_call_with_structured_output(facts: Facts) -> None:
    books = facts["books"]["structuredContent"]
    assert [book["title"] for book in books] == ["The Hound of the Baskervilles", "Gaudy Night"]


def test_a_tool_that_fails_answers_with_a_sentence(facts: Facts) -> None:
    assert facts["tool_error"]["isError"] is True
    assert facts["tool_error"]["content"][0]["text"] == "There is no book 'none': search for it first."


def test_unknown_names_are_errors(facts: Facts) -> None:
    assert facts["unknown_tool"]["code"] == -32602
    assert facts["unknown_resource"]["code"] == -32602


def test_read(facts: Facts) -> None:
    [catalogue] = facts["catalogue"]["contents"]
    assert catalogue["mimeType"] == "text/plain"
    assert catalogue["text"].splitlines()[4] == "b5  Middlemarch, George Eliot"
    [book] = facts["book"]["contents"]
    assert book["uri"] == "library://books/b3"
    assert '"The Hound of the Baskervilles"' in book["text"]


def test_prompt(facts: Facts) -> None:
    [message] = facts["prompt"]["messages"]
    assert message["role"] == "user"
    assert message["content"]["text"].startswith("I am in a curious mood. Recommend one mystery book")


def test_complete(facts: Facts) -> None:
    assert facts["genres"]["completion"]["values"] == ["mystery"]
    assert facts["ids"]["completion"]["values"] == ["b1", "b2", "b3", "b4", "b5"]


def test_progress(facts: Facts) -> None:
    heard = facts["progress"]["heard"]
    assert [[progress, total] for progress, total, _ in heard] == [[number, 5] for number in range(1, 6)]
    assert heard[2][2] == "Found The Hound of the Baskervilles"
    assert facts["progress"]["result"]["content"][0]["text"].startswith("5 books")


def test_cancel_reaches_the_tool(facts: Facts) -> None:
    assert facts["cancel"]["cancelled"] is True
    assert int(facts["cancel"]["after"]) == int(facts["cancel"]["before"]) + 1


def slip(facts: Facts) -> tuple[int, str]:
    """The number of a reservation, and what the tool said of it."""
    text = facts["content"][0]["text"]
    found = re.search(r"[Ss]lip (\d+)", text)
    assert found is not None, text
    return int(found[1]), text


def test_a_tool_asks_the_user(facts: Facts) -> None:
    number, text = slip(facts["asks"]["accept"])
    assert text == f"Slip {number}: The Left Hand of Darkness for Ada on Saturday, for 2 weeks."
    questions = [question for question in facts["asks"]["asked"] if question[0] == "elicit"]
    asked = ["elicit", "Who fetches The Left Hand of Darkness, and when?", ["day", "reader", "weeks"]]
    assert questions == [asked] * 3  # each once for each call, although the tool ran twice


def test_a_user_may_decline_or_go_away(facts: Facts) -> None:
    for action in ("decline", "cancel"):
        number, text = slip(facts["asks"][action])
        assert text == f"Nothing was reserved; slip {number} is void."


def test_what_is_done_once_is_done_once(facts: Facts) -> None:
    numbers = [slip(facts["asks"][action])[0] for action in ("accept", "decline", "cancel")]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


def test_a_tool_asks_the_model_and_for_the_roots_at_once(facts: Facts) -> None:
    assert facts["asks"]["invite"]["content"][0]["text"] == "Come, all! (To be kept in file:///home/ada.)"
    questions = sorted(question for question in facts["asks"]["asked"] if question[0] != "elicit")
    assert questions == [["roots"], ["sample", "Invite the town to a reading of Middlemarch, in one sentence.", 100]]


def test_changes_are_heard_and_then_seen(facts: Facts) -> None:
    changes = facts["changes"]
    assert changes["heard"] == ["library://notices", "ToolsListChanged", "ToolsListChanged"]
    assert changes["board"]["contents"][0]["text"].splitlines()[-1] == "Lost: one glove."
    assert changes["menus"] == [True, False]
