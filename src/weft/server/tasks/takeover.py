"""Find tasks that have to run and do not: those of this worker, and those of workers that have died or left.

Each worker has a set of tasks that it must run. When its lease has expired, the others read this set, and each takes
some of the tasks, by compare-and-set of their records. A task that cannot be taken over keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from functools import partial
from typing import Protocol

from weft.limits import Limits
from weft.net.logs import Seldom
from weft.server.runtime.fleet import LEFT, Fleet
from weft.server.tasks.records import TaskRecord, TaskRecords
from weft.types.tasks import SHOWN_OF_TASK_ID

log = logging.getLogger("weft.tasks")
_seldom = Seldom(log)

LOOK_SECONDS = 5.0  # between two looks for tasks of dead workers


class Worker(Protocol):
    """What runs the tasks that are found here."""

    is_stopping: bool

    @property
    def listed_until(self) -> float:
        """The Unix time until which others must know that this worker may have tasks."""
        ...

    async def assign(self, id: str, *, ttl: float) -> None:
        """Note in the Backend that this worker must run a task."""
        ...

    def start(self, id: str, owner: str) -> None:
        """Run a task as soon as there is a place."""
        ...

    async def drop(self, id: str) -> None:
        """Forget a task that is assigned to this worker, unless it must run it."""
        ...

    def knows(self, id: str) -> bool:
        """Return whether a task runs here, waits for a place, or begins."""
        ...

    def has_room_for(self, owner: str) -> bool:
        """Return whether more tasks of a caller may wait here."""
        ...

    def note_end(self, record: TaskRecord) -> None:
        """Let all workers that count a task know that it has ended."""
        ...


class TakeOver:
    """Looks for such tasks as long as this worker serves, and lets the worker run them."""

    def __init__(self, worker: Worker, fleet: Fleet, records: TaskRecords, limits: Limits) -> None:
        self._worker = worker
        self._fleet = fleet
        self._records = records
        self._limits = limits
        self._idle: set[str] | None = None  # ids of assigned tasks that did not run at the last look; None before it
        self._looking: asyncio.Task[None] | None = None
        self._now = asyncio.Event()  # set to look at once
        self.has_left_some = False  # whether there was no room for all tasks of dead workers
        if not fleet.is_alone:
            fleet.hear(LEFT, lambda _: self.look(), lambda: None)

    def begin(self) -> None:
        """Begin to look. Called when this worker has joined the fleet."""
        loop = asyncio.get_running_loop()
        is_looking = self._looking is not None and not self._looking.done() and self._looking.get_loop() is loop
        if not self._fleet.is_alone and not is_looking:
            self._now = asyncio.Event()  # an event belongs to the event loop in which it was waited for
            self._looking = loop.create_task(self._look_again(), name="weft-tasks")

    def look(self) -> None:
        """Look at once."""
        self._now.set()

    def end(self) -> None:
        """Stop looking, because this worker stops."""
        self._idle = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look_again(self) -> None:
        while True:
            self._now.clear()
            try:
                await self._look_after_own()
                await self._look_after_others()
            except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                _seldom.warning("The tasks of other workers could not be looked at: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._now.wait()

    async def _look_after_own(self) -> None:
        """Start the tasks that are assigned to this worker, but did not run here at the last look either.

        That can happen if the Backend failed in the moment of the assignment. At the first look, these are the tasks of
        a server that was stopped and runs again in the same process, unless others have taken them. Others must find
        this worker after its death, also if the Backend has lost data, or took it for dead.
        """
        own = self._fleet.worker
        if (left := self._worker.listed_until - time.time()) > 0:
            await self._records.list_worker(own, ttl=left)
        idle = {id for id in await self._records.assigned(own) if not self._worker.knows(id)}
        for id in idle:
            if self._idle is None or id in self._idle:
                record = await self._records.read(id)
                if record is not None and record.must_run_at(own):
                    self._worker.start(id, record.owner)
                elif self._idle is not None:
                    await self._worker.drop(id)
        self._idle = idle

    async def _look_after_others(self) -> None:
        self.has_left_some = False
        for worker in await self._records.workers():
            if worker != self._fleet.worker and not await self._fleet.is_alive(worker):
                await self._take_all(worker)

    async def _take_all(self, dead: str) -> None:
        """Take over the tasks of a dead worker."""
        ids = list(await self._records.assigned(dead))
        if not ids:
            await self._records.unlist_worker(dead)
        random.shuffle(ids)  # so that several workers take different ones
        for id in ids:
            if self._worker.is_stopping or await self._fleet.is_alive(dead):  # it was only cut off, and is back
                return
            try:
                await self._take(id, dead)
            except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                _seldom.warning("A task of a worker that has died could not be taken over yet: %s", error)

    async def _take(self, id: str, dead: str) -> None:
        """Take over one task of a dead worker, unless another worker is faster, or enough of its owner wait here."""
        record = await self._records.read(id)
        if record is not None and record.must_run_at(dead):
            if not self._worker.has_room_for(record.owner):
                self.has_left_some = True
                return
            last = await self._records.last_entry(id)
            await self._worker.assign(id, ttl=record.seconds_left)
            record = await self._records.change(id, partial(self._note_taken, dead=dead, last=last), is_told=False)
            if record is not None and record.must_run_at(self._fleet.worker):
                log.info("task %s of %r is taken over from worker %s", id[:SHOWN_OF_TASK_ID], record.tool, dead)
                self._worker.start(id, record.owner)
            else:
                await self._note_not_taken(id, record)
        await self._records.unassign(id, dead)

    async def _note_not_taken(self, id: str, record: TaskRecord | None) -> None:
        if record is not None and record.work == "over" and record.runner == self._fleet.worker:
            log.warning("task %s of %r has failed: %s", id[:SHOWN_OF_TASK_ID], record.tool, record.message)
            await self._records.tell(id)
            self._worker.note_end(record)
        await self._worker.drop(id)

    def _note_taken(self, record: TaskRecord, *, dead: str, last: int) -> bool:
        if not record.must_run_at(dead):
            return False
        if record.work == "running":
            has_progress = last > record.last_entry
            record.deaths = 1 if has_progress else record.deaths + 1
        record.last_entry, kept = last, self._limits.task_kept_seconds
        record.run_at(self._fleet.worker)
        if record.work == "running" and not record.restarts:
            record.fail("The worker that ran this task has died, and the task is not run again.", kept_seconds=kept)
        elif record.deaths > self._limits.task_restarts:
            why = f"{record.deaths} workers in a row have died while they ran this task."
            record.fail(why, kept_seconds=kept)
        else:
            record.work = "queued"
        return True
