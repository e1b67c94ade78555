"""Wait for the end of a task within a call, and ask the client the task's questions meanwhile.

`tasks/result` of the session era waits in this way: its stream carries the questions, progress and changes of the
status. Of several calls that wait for one task, at any worker, only one asks: the newest whose client can be asked. The
client of an older one may have closed its stream, which the server does not learn, and wait here instead.

Only what a client answers ends a question. If a client does not answer in time, it may be gone without the server's
knowledge. Then its call does not ask that question again, but the question stays, and the next call asks it.

Calls that wait do not count as requests in flight, because they may wait for hours. `Limits.task_waits` bounds them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from typing import Any

import msgspec

from weft.errors import InvalidParams, InvalidRequest, QuestionFailed
from weft.jsonrpc import encode_notification
from weft.net.logs import Seldom
from weft.server.asking.asks import fault_of
from weft.server.asking.questions import missing_for, read_question
from weft.server.asking.rounds import Channel, QuestionUnanswered
from weft.server.calls.call import Call
from weft.server.runtime.admission import Busy
from weft.server.runtime.runtime import Runtime
from weft.server.runtime.subscriptions import at_expiry
from weft.server.tasks.parts import MOST_INLINE
from weft.server.tasks.records import GivenAnswer, TaskRecord, TaskRecords
from weft.types.base import NotificationParams
from weft.types.interaction import InputRequest
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import related_task

_seldom = Seldom(logging.getLogger("weft.tasks"))

_AGAIN_SECONDS = 2.0  # until an answer is stored again that could not be stored
_EXPIRED = "Invalid request: its token has expired. Send the request again, with a new token."
_CLAIM_SECONDS = 30.0  # how long a call may ask without renewing its claim; then another one asks

_Give = Callable[[TaskRecord, dict[str, GivenAnswer]], Awaitable[None]]  # stores answers


class TaskWaiter:
    """Waits for tasks, for calls that are answered with their results."""

    def __init__(self, runtime: Runtime, records: TaskRecords, give: _Give) -> None:
        self._runtime = runtime
        self._records = records
        self._give = give
        self._numbers = count(1)  # of calls that wait

    async def wait(self, call: Call, id: str, *, is_plain: bool = False) -> TaskRecord | None:
        """Return the record of a task when it has ended; None if it has expired. Ask its questions meanwhile.

        `is_plain` is True if the client of the call does not know that there is a task. Such a call counts as a request
        in flight, like any other. Raises Busy if too many other calls wait.
        """
        with nullcontext() if is_plain else self._counted(call.peer):
            waiting = _Waiting(self._runtime, self._records, self._give, call, id, is_plain=is_plain)
            try:
                return await waiting.run()
            finally:
                await waiting.close()

    @contextmanager
    def _counted(self, peer: str) -> Generator[None]:
        """Count a call that waits, instead of a request in flight. Raises Busy if the peer has no room for it."""
        waits, key = self._runtime.task_waits, str(next(self._numbers))
        if not waits.take(key, peer, most=self._runtime.limits.task_waits, seconds=math.inf):
            raise Busy("Too many requests wait for the results of tasks. Try again when one of yours has ended.")
        try:
            yield
        finally:
            waits.release(key)


class _Waiting:
    """One call that waits for one task."""

    def __init__(
        self, runtime: Runtime, records: TaskRecords, give: _Give, call: Call, id: str, *, is_plain: bool
    ) -> None:
        self._services = runtime
        self._store = runtime.backend.store
        self._records = records
        self._give = give
        self._call = call
        self._id = id
        self._is_plain = is_plain
        self._meta = None if is_plain else related_task(id)
        self._changed = asyncio.Event()  # set when there may be something to do
        self._mark = secrets.token_bytes(12)  # of the claim of this call
        self._has_claimed = False  # whether this call was ever the one that asks
        self._has_expired = False  # whether the client's token has expired
        self._can_be_asked: dict[str, bool] = {}  # by key of the question: whether this client can answer it
        self._asking: dict[str, asyncio.Task[None]] = {}  # by key of the question
        self._unanswered: set[str] = set()  # keys of questions that the client has not answered: not asked again here
        # Status, message and progress that the client knows; first those of a new task, which it got as the handle.
        self._told: tuple[str, str | None, float | None] = ("working", None, None)

    async def run(self) -> TaskRecord | None:
        async with self._records.watched(self._id, self._changed.set):
            with at_expiry(self._services, self._call.token_info, self._expire):
                while True:
                    self._changed.clear()
                    record = await self._records.read(self._id)
                    if record is None or record.is_final:
                        return record
                    if self._has_expired:
                        raise InvalidRequest(_EXPIRED)
                    await self._tell(record)
                    await self._ask(record)
                    seconds = min(_CLAIM_SECONDS / 3, record.seconds_left)
                    del record  # many calls may wait for long
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._changed.wait()

    def _expire(self) -> None:
        """Stop waiting, because the client's token has expired."""
        self._has_expired = True
        self._changed.set()

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
        if record.questions.keys() - self._can_be_asked.keys() and not await self._load_questions(record):
            return
        keys = [key for key in record.questions if key not in self._unanswered]
        is_given_up = bool(record.questions) and not keys
        if is_given_up or not self._can_ask(record):
            self._withdraw(list(self._asking))
            await self._release()
        elif not await self._is_asker():
            self._withdraw(list(self._asking))
        elif (new := [key for key in keys if key not in self._asking]) and await self._load_questions(record):
            for key in new:
                self._asking[key] = asyncio.create_task(self._ask_one(key, record), name="weft-task-question")

    async def _load_questions(self, record: TaskRecord) -> bool:
        """Load all questions of a task. Return False if it has changed meanwhile; then its record is read again."""
        filled = await self._records.fill(record, "question")
        if filled is not None and filled is not record:
            self._changed.set()
        return filled is record

    def _can_ask(self, record: TaskRecord) -> bool:
        """Return whether the client can be asked all questions. It may be another client than that of the task."""
        known = self._can_be_asked = {key: can for key, can in self._can_be_asked.items() if key in record.questions}
        able = self._call.envelope.client_capabilities
        for key in record.questions.keys() - known.keys():
            known[key] = missing_for(able, read_question(record.questions[key])) is None
        return all(known.values())

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
        """Ask the client one question, and store the answer."""
        try:
            answer = await self._answer_to(msgspec.json.decode(record.questions[key], type=InputRequest))
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything; the question is asked again
            _seldom.warning("A question of a task could not be asked: %s", error)
            self._asking.pop(key, None)
            return
        if answer is None:
            self._unanswered.add(key)
            self._changed.set()
        else:
            await self._keep_answer(record, key, answer)

    async def _keep_answer(self, record: TaskRecord, key: str, answer: GivenAnswer) -> None:
        """Store an answer of the client: if that fails, again and again, because the client is not asked twice."""
        while key and record.expires > time.time():
            try:
                await self._give(record, {key: answer})
                key = ""
            except InvalidParams as error:  # it is too long
                answer = GivenAnswer(failure=f"The client's answer cannot be used: {error}")
            except Exception as error:  # noqa: BLE001 - there is no room, or a Backend fails, which may raise anything
                _seldom.warning("The answer to a question of a task is not stored yet: %s", error)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _answer_to(self, question: InputRequest) -> GivenAnswer | None:
        """Ask the client, and return its answer; None if it has not answered, so that another call asks.

        A client that does not know of the task has no other call. So the program that has asked learns that it did not
        answer, as a handler does.
        """
        params: Any = {} if question.params is msgspec.UNSET else question.params
        if self._meta is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), **self._meta}}
        try:
            value = await Channel(self._call).send(question.method, params or None)
        except QuestionFailed as error:
            is_over = self._call.cancellation.cancelled or self._call.reply.answered
            if is_over or (isinstance(error, QuestionUnanswered) and not self._is_plain):
                return None
            is_short = len(msgspec.json.encode(error.data)) <= MOST_INLINE  # what has failed is stored without a limit
            return GivenAnswer(failure=str(error)[:MOST_INLINE], code=error.code, data=error.data if is_short else None)
        fault = fault_of(question, value)
        return (
            GivenAnswer(value) if fault is None else GivenAnswer(failure=f"The client's answer cannot be used: {fault}")
        )


def _further(progress: float | None, told: float | None) -> float | None:
    """Return progress if it is greater than what was told before, as the protocol requires; else None."""
    return progress if progress is not None and (told is None or progress > told) else None
