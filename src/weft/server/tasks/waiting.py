"""Wait for the end of a task within a call, and ask the client the task's questions meanwhile.

`tasks/result` of the session era waits in this way: its stream carries the questions, progress and changes of the
status. Of several calls that wait for one task, at any worker, only one asks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from weft.errors import InvalidParams, QuestionFailed
from weft.jsonrpc import encode_notification
from weft.net.logs import Seldom
from weft.server.asking.asks import fault_of
from weft.server.asking.rounds import Channel
from weft.server.calls.call import Call
from weft.server.runtime.runtime import Runtime
from weft.server.tasks.records import GivenAnswer, TaskRecord, TaskRecords
from weft.types.base import NotificationParams
from weft.types.interaction import InputRequest
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import related_task

_CLAIM_SECONDS = 30.0  # how long a call may ask without renewing its claim; then another one asks

log = logging.getLogger("weft.tasks")
_seldom = Seldom(log)

_Give = Callable[[TaskRecord, dict[str, GivenAnswer]], Awaitable[None]]  # stores answers


class TaskWaiter:
    """Waits for tasks, for calls that are answered with their results."""

    def __init__(self, runtime: Runtime, records: TaskRecords, give: _Give) -> None:
        self._runtime = runtime
        self._records = records
        self._give = give

    async def wait(self, call: Call, id: str, *, is_plain: bool = False) -> TaskRecord | None:
        """Return the record of a task when it has ended; None if it has expired. Ask its questions meanwhile.

        `is_plain` is True if the client of the call does not know that there is a task.
        """
        waiting = _Waiting(self._runtime, self._records, self._give, call, id, is_plain=is_plain)
        try:
            return await waiting.run()
        finally:
            await waiting.close()


class _Waiting:
    """One call that waits for one task."""

    def __init__(
        self, runtime: Runtime, records: TaskRecords, give: _Give, call: Call, id: str, *, is_plain: bool
    ) -> None:
        self._store = runtime.backend.store
        self._records = records
        self._give = give
        self._call = call
        self._id = id
        self._meta = None if is_plain else related_task(id)
        self._mark = secrets.token_bytes(12)  # of the claim of this call
        self._claimed_until = 0.0  # monotonic time until which this call is the one that asks
        self._asking: dict[str, asyncio.Task[None]] = {}  # by key of the question
        # Status, message and progress that the client knows; first those of a new task, which it got as the handle.
        self._told: tuple[str, str | None, float | None] = ("working", None, None)

    async def run(self) -> TaskRecord | None:
        changed = asyncio.Event()
        async with self._records.watched(self._id, changed.set):
            while True:
                changed.clear()
                record = await self._records.read(self._id)
                if record is None or record.is_final:
                    return record
                await self._tell(record)
                await self._ask(record)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_CLAIM_SECONDS / 3, record.seconds_left)):
                        await changed.wait()

    async def close(self) -> None:
        """Stop asking, and let another call ask."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
        if self._claimed_until:
            with suppress(Exception):  # it expires
                await self._store.swap(self._claim, self._mark, b"", ttl=_CLAIM_SECONDS)

    @property
    def _claim(self) -> str:
        return f"asker/{self._id}"

    async def _tell(self, record: TaskRecord) -> None:
        """Notify the client of progress since the last time, if it asked for progress, and of a changed status."""
        told, self._told = self._told, (record.status, record.message, record.progress)
        own = self._call.envelope.progress_token
        token = record.progress_token if own is None else own
        if token is not None and record.progress is not None and record.progress != told[2]:
            params = ProgressParams(
                progress_token=token,
                progress=record.progress,
                total=record.total,
                message=record.message,
                meta=self._meta,
            )
            await self._notify("notifications/progress", params)
        if self._meta is not None and self._told[:2] != told[:2]:
            await self._notify(*self._call.era.tasks.notification(record))

    async def _notify(self, method: str, params: NotificationParams) -> None:
        fitting = self._call.era.notice(params, self._call.envelope.revision)
        await self._call.reply.notify(encode_notification(method, fitting))

    async def _ask(self, record: TaskRecord) -> None:
        """Ask the questions of a task that are not being asked, unless another call asks them."""
        for key in [key for key in self._asking if key not in record.questions]:
            self._asking.pop(key).cancel()
        new = [key for key in record.questions if key not in self._asking]
        if (new or self._asking) and await self._is_asker():
            for key in new:
                asking = self._asking[key] = asyncio.create_task(self._ask_one(key, record), name="weft-task-question")
                asking.add_done_callback(partial(self._asked, key))

    def _asked(self, key: str, asking: asyncio.Task[None]) -> None:
        """If a question could not be asked, or its answer could not be stored, let it be asked again soon."""
        if not asking.cancelled() and (error := asking.exception()) is not None:
            _seldom.warning("A question of a task could not be asked, and is asked again: %s", error)
            if self._asking.get(key) is asking:
                del self._asking[key]

    async def _is_asker(self) -> bool:
        """Return whether this call is the one that asks, and stays it for some time."""
        for expected in (self._mark, None, b""):
            if await self._store.swap(self._claim, expected, self._mark, ttl=_CLAIM_SECONDS):
                self._claimed_until = time.monotonic() + _CLAIM_SECONDS
                return True
        return False

    async def _ask_one(self, key: str, record: TaskRecord) -> None:
        question = msgspec.json.decode(record.questions[key], type=InputRequest)
        params: Any = {} if question.params is msgspec.UNSET else question.params
        if self._meta is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), **self._meta}}
        try:
            value = await Channel(self._call).send(question.method, params or None)
        except QuestionFailed as error:
            if self._call.cancellation.cancelled or self._call.reply.answered:
                return  # another call asks
            answer = GivenAnswer(failure=str(error), code=error.code, data=error.data)
        else:
            fault = fault_of(question, value)
            unusable = None if fault is None else f"The client's answer cannot be used: {fault}"
            answer = GivenAnswer(value, failure=unusable)
        try:
            await self._give(record, {key: answer})
        except InvalidParams as error:  # it is too long
            await self._give(record, {key: GivenAnswer(failure=f"The client's answer cannot be used: {error}")})
