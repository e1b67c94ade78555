"""Long work as tasks, and a program elsewhere that does the work."""

from dataclasses import dataclass

from weft import Context, Server, TaskStore
from weft import sync as blocking

server = Server("farm")


@dataclass
class Film:
    frames: int


def submit(task_id: str, film: str) -> None: ...


@server.tool(task="optional")
async def render(ctx: Context, film: str) -> Film:
    id: str = ctx.task.id  # expect error
    handed: Film = ctx.task.external(submit, film, message=id)
    return handed


@server.tool(task="often")  # expect error
async def paint(ctx: Context) -> None: ...


async def work(id: str) -> bool:
    async with TaskStore("redis://localhost:6379") as store:
        answer = await store.ask(id, "How many?", Film)
        if answer.action == "accept":
            text: str = answer.value.frames  # expect error
            return await store.complete(id, Film(answer.value.frames))
        return await store.progress(id, 1)


def work_plainly(id: str) -> bool:
    with blocking.TaskStore("redis://localhost:6379") as store:
        answer = store.ask(id, "How many?", Film)
        if answer.action == "accept":
            text: str = answer.value.frames  # expect error
            return store.complete(id, Film(answer.value.frames))
        store.finish(id)  # expect error
        return store.progress(id, 1)
