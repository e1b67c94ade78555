"""`tasks/cancel` in a session: the task is cancelled at once and for good, and its handler is stopped."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.raw_sessions import accept, eventually
from support.session_tasks import AppTaskPeer, Workshop
from weft import Limits


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def client(shop: Workshop) -> AppTaskPeer:
    return await shop.client()


async def settle() -> None:
    """Let everything happen that is about to."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.spec("L11-46b", "L11-47b")
async def test_the_answer_is_the_cancelled_task(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("hold")
    await settle()
    result = (await client.cancel(task["taskId"]))["result"]
    assert result.keys() == {*task, "statusMessage"}
    assert (result["status"], result["statusMessage"]) == ("cancelled", "The task was cancelled.")
    assert (result["taskId"], result["createdAt"]) == (task["taskId"], task["createdAt"])
    assert await client.state(task["taskId"]) == result
    await eventually(lambda: shop.said == ["stopped"])


@pytest.mark.spec("L11-46b", "L11-u7")
async def test_a_cancelled_task_is_kept_for_a_minute(client: AppTaskPeer) -> None:
    task = await client.start("hold")
    assert 60_000 <= (await client.cancel(task["taskId"]))["result"]["ttl"] <= 62_000


@pytest.mark.spec("L11-46b", "L11-u2")
async def test_a_handler_that_goes_on_changes_nothing(shop: Workshop, client: AppTaskPeer) -> None:
    """Neither by its progress nor by its result."""
    task = await client.start("stubborn")
    await settle()
    result = (await client.cancel(task["taskId"]))["result"]
    await eventually(lambda: "goes on" in shop.said)
    shop.released.set()
    await eventually(lambda: "done" in shop.said)
    await settle()
    assert await client.state(task["taskId"]) == result
    assert (await client.outcome(task["taskId"]))["error"]["code"] == -32602


@pytest.mark.spec("L11-46b", "L11-u2")
async def test_a_plain_function_that_goes_on_changes_nothing(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("grind")
    await settle()
    result = (await client.cancel(task["taskId"]))["result"]
    shop.released.set()
    await eventually(lambda: shop.said == ["ground"])
    await settle()
    assert await client.state(task["taskId"]) == result


@pytest.mark.spec("L11-46b")
async def test_a_task_that_waits_for_an_answer_can_be_cancelled(shop: Workshop, client: AppTaskPeer) -> None:
    """Its question is withdrawn, and a late answer ignored."""
    task = await client.start("frame", photo="attic")
    reading = await (await client.wait(task["taskId"]))
    question = await reading.question()
    assert (await client.cancel(task["taskId"]))["result"]["status"] == "cancelled"
    withdrawn = await reading.question("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    await client.post(accept(question, "oak"))
    await settle()
    assert (await client.state(task["taskId"]))["status"] == "cancelled"
    assert shop.said == []


@pytest.mark.spec("L11-46b")
async def test_a_task_that_has_not_begun_can_be_cancelled() -> None:
    async with Workshop(limits=Limits(tasks_at_once=1, drain_seconds=0.1)) as shop:
        client = await shop.client()
        first, second = await client.start("hold"), await client.start("engrave", name="Ada")
        assert (await client.cancel(second["taskId"]))["result"]["status"] == "cancelled"
        shop.released.set()
        await client.reach(first["taskId"], "completed")
        await settle()
        assert shop.said == ["done"]  # the second one did not run


@pytest.mark.spec("L11-46a", "L11-u2")
@pytest.mark.parametrize(
    ("tool", "status"), [("photo", "completed"), ("spill", "failed"), ("tear", "failed"), ("hold", "cancelled")]
)
async def test_a_task_that_has_ended_cannot_be_cancelled(client: AppTaskPeer, tool: str, status: str) -> None:
    task = await client.start(tool)
    if status == "cancelled":
        await client.cancel(task["taskId"])
    before = await client.reach(task["taskId"], status)
    message = f"Invalid params: the task has ended already; its status is '{status}'."
    assert (await client.cancel(task["taskId"]))["error"] == {"code": -32602, "message": message}
    assert await client.state(task["taskId"]) == before
