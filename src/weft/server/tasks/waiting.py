"""Wait for the end of a task within a call, and ask the client the task's questions meanwhile.

`tasks/result` of the session era waits in this way: its stream carries the questions, progress and changes of the
status. Of several calls that wait for one task, at any worker, only one asks: the newest whose client can be asked. The
client of an older one may have closed its stream, which the server does not learn, and wait here instead.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from weft.errors import InvalidParams, QuestionFailed
from weft.jsonrpc import encode_notification
from weft.net.logs import Seldom
from weft.server.asking.asks import fault_of
from weft.server.asking.questions import missing_for, read_question
from weft.server.asking.rounds import Channel
from weft.server.calls.call import Call
from weft.server.runtime.runtime import Runtime
from weft.server.tasks.records import GivenAnswer, TaskRecord, TaskRecords
from weft.types.base import NotificationParams
from weft.types.interaction import InputRequest
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import related_task

_seldom = Seldom(logging.getLogger("weft.tasks"))

_CLAIM_SECONDS = 30.0  # how long a call may ask without renewing its claim; then another one asks

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
        self._has_claimed = False  # whether this call was ever the one that asks
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
        self._withdraw(list(self._asking))
        if asking:
            await asyncio.wait(asking)
        with suppress(Exception):  # the claim expires
            await self._release()

    @property
    def _claim(self) -> str:
        return f"asker/{self._id}"

    async def _tell(self, record: TaskRecord) -> None:
        """Notify the client of progress since the last time, if it asked for progress, and of a changed status."""
        told, further = self._told, _further(record.progress, self._told[2])
        self._told = (record.status, record.message, told[2] if further is None else further)
        own = self._call.envelope.progress_token
        token = record.progress_token if own is None else own
        if token is not None and further is not None:
            params = ProgressParams(
                progress_token=token,
                progress=further,
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
        self._withdraw([key for key in self._asking if key not in record.questions])
        if not all(map(self._can_ask, record.questions.values())):
            self._withdraw(list(self._asking))
            await self._release()
        elif not await self._is_asker():
            self._withdraw(list(self._asking))
        else:
            for key in record.questions:
                if key not in self._asking or self._asking[key].done():  # its answer could not be stored
                    self._asking[key] = asyncio.create_task(self._ask_one(key, record), name="weft-task-question")

    def _can_ask(self, question: msgspec.Raw) -> bool:
        """Return whether the client can be asked a question. It may be another client than that of the task."""
        return missing_for(self._call.envelope.client_capabilities, read_question(question)) is None

    def _withdraw(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._asking.pop(key).cancel()

    async def _is_asker(self) -> bool:
        """Return whether this call is the one that asks, and stays it for some time. At first, it always is."""
        if not self._has_claimed:
            self._has_claimed = True
            before = await self._store.get(self._claim)
            await self._store.put(self._claim, self._mark, ttl=_CLAIM_SECONDS)
            if before:
                await self._records.tell(self._id)  # so that the older call stops asking
            return True
        for expected in (self._mark, None, b""):
            if await self._store.swap(self._claim, expected, self._mark, ttl=_CLAIM_SECONDS):
                return True
        return False

    async def _release(self) -> None:
        """Let another call ask, if this one is the one that asks."""
        if self._has_claimed and await self._store.swap(self._claim, self._mark, b"", ttl=_CLAIM_SECONDS):
            await self._store.delete(self._claim)
            await self._records.tell(self._id)

    async def _ask_one(self, key: str, record: TaskRecord) -> None:
        try:
            if (answer := await self._answer_to(msgspec.json.decode(record.questions[key], type=InputRequest))) is None:
                return
            try:
                await self._give(record, {key: answer})
            except InvalidParams as error:  # it is too long
                await self._give(record, {key: GivenAnswer(failure=f"The client's answer cannot be used: {error}")})
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything; the question is asked again
            _seldom.warning("The answer to a question of a task was not stored: %s", error)

    async def _answer_to(self, question: InputRequest) -> GivenAnswer | None:
        """Ask the client, and return its answer; None if this call has ended meanwhile, so that another one asks."""
        params: Any = {} if question.params is msgspec.UNSET else question.params
        if self._meta is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), **self._meta}}
        try:
            value = await Channel(self._call).send(question.method, params or None)
        except QuestionFailed as error:
            if self._call.cancellation.cancelled or self._call.reply.answered:
                return None
            return GivenAnswer(failure=str(error), code=error.code, data=error.data)
        fault = fault_of(question, value)
        return GivenAnswer(value, failure=None if fault is None else f"The client's answer cannot be used: {fault}")


def _further(progress: float | None, told: float | None) -> float | None:
    """Return progress if it is greater than what was told before, as the protocol requires; else None."""
    return progress if progress is not None and (told is None or progress > told) else None
