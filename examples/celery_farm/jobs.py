"""The render farm: a job of Celery that does the work of a task, and reports on it.

celery --app jobs worker --concurrency 2     starts a worker with two processes
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from celery import Celery

from weft import TaskEnded
from weft.sync import TaskStore

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")  # the queue of Celery, and the backend of the server
FRAMES = Path(os.environ.get("FRAMES", "frames"))  # a folder that all workers of the farm share

farm = Celery("farm", broker=REDIS_URL)
farm.conf.update(
    task_acks_late=True,  # a job leaves the queue when it ends, not when it begins,
    task_reject_on_worker_lost=True,  # so that it comes back if its process is killed,
    broker_transport_options={"visibility_timeout": 6 * 3600},  # or, after so many seconds, if the whole worker is
    worker_prefetch_multiplier=1,  # a busy worker takes no jobs in advance
    task_ignore_result=True,  # the result goes to the task
)
tasks = TaskStore(REDIS_URL)  # connects when it is first used: in each process of the worker


@dataclass
class Look:
    style: Literal["colour", "grey"]


@dataclass
class Film:
    folder: str
    frames: int


@farm.task
def render(task_id: str, film: str, frames: int) -> None:
    """Render a film. If this runs again, it gets the same answer, and goes on after the last finished frame."""
    try:
        look = tasks.ask(task_id, f"Which style for {film}?", Look)
        if look.action != "accept":
            tasks.fail(task_id, "Without a style, the film cannot be rendered.")
            return
        folder = FRAMES / task_id
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, frames + 1):
            picture = folder / f"{number}.txt"
            if not picture.exists():
                paint(picture, f"frame {number} of {film}, in {look.value.style}")
            if not tasks.progress(task_id, number, frames, "painting"):
                return  # the task was cancelled, or has expired
        tasks.complete(task_id, Film(str(folder), frames))
    except TaskEnded:
        return  # the same, while it waited for the answer
    except Exception as error:
        tasks.fail(task_id, error)
        raise


def paint(picture: Path, text: str) -> None:
    time.sleep(0.5)  # hard work
    unfinished = picture.with_suffix(".part")
    unfinished.write_text(text)
    unfinished.rename(picture)
