"""`tasks/list` in a session: the caller's own tasks, page by page."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.session_tasks import DECLARED, AppTaskPeer, Workshop
from weft import Limits
from weft.server.tasks import service


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def ann(shop: Workshop) -> AppTaskPeer:
    return await shop.client("ann")


async def page(client: AppTaskPeer, cursor: Any = None) -> dict[str, Any]:
    return await (await client.ask("tasks/list", {} if cursor is None else {"cursor": cursor})).result()


async def pages(client: AppTaskPeer) -> list[list[dict[str, Any]]]:
    """All pages, as a client reads them."""
    read = [await page(client)]
    while (cursor := read[-1].get("nextCursor")) is not None:
        read.append(await page(client, cursor))
    return [one["tasks"] for one in read]


async def listed(client: AppTaskPeer) -> set[str]:
    return {task["taskId"] for tasks in await pages(client) for task in tasks}


@pytest.mark.spec("L11-45c", "L11-47b")
async def test_what_can_be_read_is_listed(shop: Workshop, ann: AppTaskPeer) -> None:
    """In every status, and as `tasks/get` has it."""
    started = {
        "hold": "working", "hang": "input_required", "photo": "completed", "spill": "failed", "stages": "cancelled",
    }  # fmt: skip
    states = []
    for tool, status in started.items():
        task = await ann.start(tool)
        if status == "cancelled":
            await ann.cancel(task["taskId"])
        states.append(await ann.reach(task["taskId"], status))
    result = await page(ann)
    assert result.keys() == {"tasks"}
    assert sorted(result["tasks"], key=str) == sorted(states, key=str)
    other = await shop.client("ann")  # in another session
    assert await listed(other) == {state["taskId"] for state in states}


@pytest.mark.spec("L11-45c")
async def test_a_list_may_be_empty(ann: AppTaskPeer) -> None:
    assert await page(ann) == {"tasks": []}


@pytest.mark.spec("L11-45c")
@pytest.mark.parametrize(("count", "sizes"), [(2, [2]), (3, [3]), (4, [3, 1]), (9, [3, 3, 3])])
async def test_a_long_list_comes_in_pages(
    ann: AppTaskPeer, monkeypatch: pytest.MonkeyPatch, count: int, sizes: list[int]
) -> None:
    """There is a cursor if there is more, and none at the end."""
    monkeypatch.setattr(service, "PAGE_SIZE", 3)
    started = {(await ann.start("photo"))["taskId"] for _ in range(count)}
    read = await pages(ann)
    assert [len(tasks) for tasks in read] == sizes
    assert {task["taskId"] for tasks in read for task in tasks} == started


@pytest.mark.spec("L11-45c")
async def test_a_page_has_a_hundred_tasks(ann: AppTaskPeer) -> None:
    for _ in range(101):
        await ann.start("photo")
    assert [len(tasks) for tasks in await pages(ann)] == [100, 1]


@pytest.mark.spec("L11-45c")
async def test_a_list_may_change_between_two_pages(ann: AppTaskPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """None that is there all the time is left out, and none comes twice."""
    monkeypatch.setattr(service, "PAGE_SIZE", 3)
    before = {(await ann.start("photo"))["taskId"] for _ in range(9)}
    first = await page(ann)
    for _ in range(9):
        await ann.start("photo")
    seen, cursor = [task["taskId"] for task in first["tasks"]], first["nextCursor"]
    while cursor is not None:
        following = await page(ann, cursor)
        seen += [task["taskId"] for task in following["tasks"]]
        cursor = following.get("nextCursor")
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


@pytest.mark.spec("L11-45c", "L11-u7")
async def test_expired_tasks_are_not_listed() -> None:
    async with Workshop(limits=Limits(task_kept_seconds=0)) as shop:
        ann = await shop.client("ann")
        short, long = await ann.start("photo", {"ttl": 1000}), await ann.start("photo")
        assert await listed(ann) == {short["taskId"], long["taskId"]}
        while "result" in await (await ann.ask("tasks/get", {"taskId": short["taskId"]})).json():
            await (await ann.ask("ping")).result()
        assert await listed(ann) == {long["taskId"]}


@pytest.mark.spec("L11-45c", "L11-49")
@pytest.mark.parametrize(
    "cursor",
    [
        "nonsense",
        "",
        "ü",
        "x" * 10_000,
        base64.urlsafe_b64encode(b"tools:add").decode(),
        base64.urlsafe_b64encode(b"\xff\xff\xff").decode(),
        "dGFza3M",  # "tasks", without an id
        base64.urlsafe_b64encode(b"tasks:").decode(),
        base64.urlsafe_b64encode(b"tasks:" + b"x" * 24).decode() + "!",
        5,
    ],
)
async def test_a_cursor_that_is_none_is_refused(ann: AppTaskPeer, cursor: Any) -> None:
    await ann.start("photo")
    answer = await (await ann.ask("tasks/list", {"cursor": cursor})).json()
    assert answer["error"]["code"] == -32602


@pytest.mark.spec("L11-45c", "L11-49")
async def test_a_cursor_of_another_list_is_refused(ann: AppTaskPeer) -> None:
    """And the cursor of this one by others."""
    for _ in range(101):
        await ann.start("photo")
    cursor = (await page(ann))["nextCursor"]
    assert (await (await ann.ask("tools/list", {"cursor": cursor})).json())["error"]["code"] == -32602


@pytest.mark.spec("L11-49")
async def test_others_tasks_are_not_listed(shop: Workshop, ann: AppTaskPeer) -> None:
    ben = await shop.client("ben")
    hers, his = await ann.start("photo"), await ben.start("photo")
    assert await listed(ann) == {hers["taskId"]}
    assert await listed(ben) == {his["taskId"]}


@pytest.mark.spec("L11-45c", "TASK-33")
async def test_tasks_of_the_stateless_era_are_listed_too(ann: AppTaskPeer) -> None:
    """What `tasks/get` finds is in the list."""
    call = {"name": "photo", "arguments": {}}
    handle = await (await ann.stateless("tools/call", call, meta=DECLARED)).result()
    assert await listed(ann) == {handle["taskId"]}


@pytest.mark.spec("L11-49")
async def test_without_authorization_there_is_no_list(shop: Workshop) -> None:
    client = await shop.client()
    await client.start("photo")
    assert await (await client.ask("tasks/list")).refusal() == (200, -32601)
