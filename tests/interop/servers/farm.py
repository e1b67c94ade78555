"""The jobs of examples/celery_farm, for tests: they paint at once, but no more frames of a film than the test permits.

The films "torn" and "torn-badly" cannot be painted. The folder FRAMES has `FILM.permits`, and gets `log`: a line for
each start and end of a job and for each painted frame.
"""

import os
import time
from pathlib import Path
from typing import Any

import jobs
from celery.signals import task_postrun, task_prerun
from jobs import FRAMES, farm

from weft import ToolError

__all__ = ["farm"]

if seconds := os.environ.get("VISIBILITY"):
    farm.conf.broker_transport_options = {
        "visibility_timeout": int(seconds), "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1,
    }  # fmt: skip


def note(*words: Any) -> None:
    """Add a line to the log, which several processes write."""
    file = os.open(FRAMES / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


@task_prerun.connect
def begin(args: Any, **_: Any) -> None:
    note("begin", args[0], os.getpid())


@task_postrun.connect
def end(args: Any, **_: Any) -> None:
    note("end", args[0], os.getpid())


def paint(picture: Path, text: str) -> None:
    film = text.partition(" of ")[2].partition(",")[0]
    if film == "torn":
        raise ToolError("The film is torn.")
    if film == "torn-badly":
        raise OSError("The film is torn at /srv/films.")
    permits = FRAMES / f"{film}.permits"
    while permits.exists() and int(permits.read_text() or 0) < int(picture.stem):
        time.sleep(0.01)
    picture.write_text(text)
    note("paint", picture.parent.name, picture.stem)


jobs.paint = paint
