"""Pages, cursors, cache policies; and the changes that make pages anew."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import Server
from weft.errors import InvalidParams, RegistrationError, UsageError
from weft.limits import Limits
from weft.server.calls.changes import Change, Changes
from weft.server.features.registry import CacheHint, Pages, check_definition
from weft.types.features import ListToolsResult, Tool


def build(items: list[str], cursor: str | None) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(item, {}) for item in items], next_cursor=cursor)


def filled(count: int, page_size: int = 2, kind: str = "tools") -> Pages[str]:
    pages: Pages[str] = Pages(kind, page_size)
    for number in range(count):
        pages.add(f"t{number}", f"t{number}")
    return pages


def page(pages: Pages[str], cursor: str | None = None, key: str = "k") -> tuple[list[str], str | None]:
    body = json.loads(bytes(pages.page(cursor, build, lambda result: result, key).body))
    return [tool["name"] for tool in body["tools"]], body.get("nextCursor")


def walk(pages: Pages[str]) -> list[list[str]]:
    found, cursor = page(pages)
    seen = [found]
    while cursor is not None:
        found, cursor = page(pages, cursor)
        seen.append(found)
    return seen


@pytest.mark.spec("PAG-04", "PAG-06")
@given(count=st.integers(0, 30), size=st.integers(1, 12))
def test_all_pages_together_are_the_list_in_order(count: int, size: int) -> None:
    seen = walk(filled(count, size))
    assert [name for part in seen for name in part] == [f"t{number}" for number in range(count)]
    assert all(len(part) == size for part in seen[:-1])


@pytest.mark.spec("PAG-04")
def test_a_cursor_goes_on_at_the_right_place_when_items_come_and_go() -> None:
    pages = filled(6)
    _, cursor = page(pages)
    pages.remove("t0")  # before the place
    pages.add("new", "new")
    assert page(pages, cursor)[0] == ["t2", "t3"]
    pages.remove("t1")  # the item that the cursor names
    assert page(pages, cursor)[0] == ["t2", "t3"]
    pages.remove("t2")
    assert page(pages, cursor)[0] == ["t3", "t4"]
    for name in ("t3", "t4", "t5", "new"):
        pages.remove(name)
    assert page(pages, cursor) == ([], None)


@pytest.mark.spec("PAG-04")
def test_a_cursor_goes_on_where_its_item_was_when_that_is_gone() -> None:
    pages = filled(6)
    _, second = page(pages, page(pages)[1])
    pages.remove("t3")
    assert page(pages, second)[0] == ["t4", "t5"]


@pytest.mark.spec("PAG-04")
def test_a_cursor_of_one_worker_is_understood_by_another() -> None:
    assert page(filled(5), page(filled(5))[1]) == page(filled(5), page(filled(5))[1])
    assert page(filled(5), page(filled(5))[1])[0] == ["t2", "t3"]
    other = filled(0)
    for name in ("gone", "t0", "t1", "t2", "t3", "t4"):  # the same list, numbered otherwise
        other.add(name, name)
    other.remove("gone")
    _, cursor = page(filled(5))
    assert page(other, cursor)[0] == ["t2", "t3"]
    _, cursor = page(other)
    assert page(filled(5), cursor)[0] == ["t2", "t3"]


@pytest.mark.spec("PAG-04")
def test_a_cursor_skips_nothing_when_its_item_went_and_came_again() -> None:
    pages = filled(5)
    _, cursor = page(pages)
    pages.remove("t1")
    pages.add("t1", "t1")  # now the last
    assert page(pages, cursor)[0] == ["t2", "t3"]
    assert page(pages, page(pages, cursor)[1])[0] == ["t4", "t1"]


@pytest.mark.security("R12")
def test_what_was_taken_out_is_remembered_up_to_a_limit() -> None:
    pages = filled(1001)
    for number in range(1001):
        pages.remove(f"t{number}")
    assert len(pages._removed) == 1000
    assert "t0" not in pages._removed


def test_the_longest_uri_fits_into_a_cursor() -> None:
    pages: Pages[str] = Pages("resource templates", 1)
    uri = "a://" + "x" * (Limits().uri_bytes - 4)
    pages.add(uri, uri)
    pages.add("next", "next")
    assert page(pages, page(pages)[1])[0] == ["next"]


def test_a_cursor_does_not_tell_whether_a_hidden_item_exists() -> None:
    pages = filled(5)

    def seen(name: str) -> bytes:
        crafted = craft("tools", name, 0)
        shown = pages.page(crafted, build, lambda result: result, "k", view="few", sees=lambda item: item != "t3")
        return bytes(shown.body)

    assert seen("t3") == seen("unknown") != seen("t2")


def craft(*payload: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")


@pytest.mark.spec("PAG-05")
@pytest.mark.parametrize(
    "cursor",
    ["", "x", "not base64!", "é", "====", craft("tools"), craft("tools", 1, 1), craft("tools", "t1", -1),
     craft("tools", "t1", "1"), craft("prompts", "t1", 1), "A" * 20_000],
)  # fmt: skip
def test_a_cursor_that_this_list_did_not_give_out_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidParams, match="begin at the first page") as caught:
        page(filled(5), cursor)
    assert caught.value.code == -32602
    assert len(caught.value.message) < 200


@pytest.mark.spec("PAG-05")
def test_a_cursor_of_another_list_is_refused() -> None:
    _, cursor = page(filled(5, kind="prompts"))
    with pytest.raises(InvalidParams):
        page(filled(5, kind="tools"), cursor)


@given(st.text(max_size=60))
def test_no_cursor_raises_anything_else(cursor: str) -> None:
    with pytest.raises(InvalidParams):
        page(filled(3), cursor)


def test_a_page_is_encoded_once_until_something_changes() -> None:
    pages, built = filled(3), []

    def counting(items: list[str], cursor: str | None) -> ListToolsResult:
        built.append(items)
        return build(items, cursor)

    def ask(key: str = "k", cursor: str | None = None) -> object:
        return pages.page(cursor, counting, lambda result: result, key)

    assert ask() is ask()
    assert len(built) == 1
    assert ask("other") is not ask()
    for change in (lambda: pages.add("z", "z"), lambda: pages.remove("t1")):
        before = len(built)
        change()
        ask()
        assert len(built) == before + 1


@pytest.mark.security("R12")
def test_the_cache_holds_no_more_than_the_list_for_a_few_keys() -> None:
    pages = filled(100, 10)
    for key in range(50):
        for name in range(100):
            page(pages, craft("tools", f"t{name}", name), str(key))
    kept = pages._current().pages
    assert len(kept) == 8
    assert all(len(starts) <= 10 for starts in kept.values())


def test_items_can_be_looked_up_and_replaced_in_their_place() -> None:
    pages = filled(2)
    assert (len(pages), pages.get("t1"), pages.get("t9"), pages.get("t0")) == (2, "t1", None, "t0")
    assert (list(pages), list(pages.items)) == (["t0", "t1"], ["t0", "t1"])
    pages.add("t0", "again")
    assert list(pages) == ["again", "t1"]
    assert pages.remove("t9") is None


def test_a_page_made_during_a_change_is_not_kept() -> None:
    pages = filled(1)

    def changing(items: list[str], cursor: str | None) -> ListToolsResult:
        pages.add("late", "late")
        return build(items, cursor)

    pages.page(None, changing, lambda result: result, "k")
    assert page(pages)[0] == ["t0", "late"]


def test_items_may_come_from_many_threads() -> None:
    pages: Pages[str] = Pages("tools", 7)

    def fill(worker: int) -> None:
        for number in range(50):
            pages.add(f"{worker}-{number}", f"{worker}-{number}")
            walk(pages)

    threads = [threading.Thread(target=fill, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [name for part in walk(pages) for name in part]
    assert len(names) == len(set(names)) == 200


def test_page_size_must_be_positive() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Pages("tools", 0)


@pytest.mark.spec("CACHE-02")
@pytest.mark.parametrize("ttl", [-1, 1.5, True, "60"])
def test_ttl_is_a_whole_number_of_milliseconds(ttl: object) -> None:
    with pytest.raises(UsageError, match="whole number of milliseconds"):
        CacheHint(ttl_ms=ttl)  # type: ignore[arg-type]


@pytest.mark.spec("CACHE-03")
def test_scope_is_public_or_private() -> None:
    assert CacheHint(scope="private").scope == "private"
    assert (CacheHint().list_scope, CacheHint().read_scope) == ("public", "private")
    with pytest.raises(UsageError, match=r"'public' .* 'private'"):
        CacheHint(scope="shared")  # type: ignore[arg-type]


def test_a_definition_that_is_not_json_is_refused_where_it_is_written() -> None:
    check_definition(Tool("a", {}, meta={"ok": 1}), "Tool 'a'", "app.py:3")
    with pytest.raises(RegistrationError, match=r"Tool 'a' cannot be registered \(app.py:3\).*not JSON"):
        check_definition(Tool("a", {}, meta={"bad": object()}), "Tool 'a'", "app.py:3")


@pytest.mark.spec("META-11", "META-13")
@pytest.mark.parametrize("key", ["1com/x", "com.example-/x", "-x", "a/b/c", "x y"])
def test_a_malformed_key_of_meta_is_refused_where_it_is_written(key: str) -> None:
    server = Server("s")

    def echo(b: str) -> str:
        return b

    for register in (
        lambda: server.tool(lambda: "x", name="a", meta={key: 1}),
        lambda: server.add_resource("a://b", "x", meta={key: 1}),
        lambda: server.add_resource("a://{b}", echo, meta={key: 1}),
        lambda: server.prompt(lambda: "x", name="a", meta={key: 1}),
    ):
        with pytest.raises(RegistrationError, match=r"cannot be registered \(.*meta= has a wrong key. .*(write|begin)"):
            register()
    server.add_resource("a://b", "x", meta={"com.example/x": 1, "io.modelcontextprotocol/x": 1, "plain": 1})


# Changes


def test_every_listener_hears_every_change() -> None:
    changes, first, second = Changes(), [], []
    changes.subscribe(first.append)
    changes.subscribe(second.append)
    changes.publish(Change("tools"))
    changes.publish(Change("resource", "a://b"))
    assert first == second == [Change("tools"), Change("resource", "a://b")]


@pytest.mark.security("R1")
def test_a_listener_that_raises_hurts_no_other_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    changes, heard = Changes(), []

    def broken(change: Change) -> None:
        raise RuntimeError("boom")

    changes.subscribe(broken)
    changes.subscribe(heard.append)
    changes.publish(Change("prompts"))
    assert heard == [Change("prompts")]
    assert "a change of prompts" in caplog.text


def test_a_change_is_a_value() -> None:
    assert msgspec.to_builtins(Change("resource", "a://b")) == {"kind": "resource", "uri": "a://b"}


@pytest.mark.parametrize(
    ("registry", "add"),
    [
        ("tools", lambda server: server.add_tool(lambda: None, name="a", scopes=["admin"])),
        ("prompts", lambda server: server.add_prompt(lambda: "", name="a", scopes=["admin"])),
        ("resources", lambda server: server.add_resource("a://b", "x", scopes=["admin"])),
    ],
)
def test_what_takes_a_scope_is_guarded_before_it_can_be_found(
    monkeypatch: pytest.MonkeyPatch, registry: str, add: Callable[[Server], None]
) -> None:
    server, guarded = Server("shop"), []
    put = Pages.add

    def observed(pages: Pages[Any], name: str, item: Any) -> None:  # what a request in another thread would meet
        scopes = getattr(server.engine, registry).scopes
        guarded.append("admin" in scopes and (registry != "tools" or item.is_guarded))
        put(pages, name, item)

    monkeypatch.setattr(Pages, "add", observed)
    add(server)
    assert guarded == [True]


def test_one_of_two_threads_that_register_the_same_name_is_told_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    server, told = Server("shop"), []
    both, get = threading.Barrier(2), Pages.get

    def slow(pages: Pages[Any], name: str) -> Any:
        found = get(pages, name)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # without a lock both threads have looked by now
        return found

    def add() -> None:
        try:
            server.add_tool(lambda: None, name="buy")
        except Exception as error:
            told.append(type(error))

    monkeypatch.setattr(Pages, "get", slow)
    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert told == [RegistrationError]
