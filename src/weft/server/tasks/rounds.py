"""Run a handler as a task: its questions wait in the task's record, its results of `ctx.once` go into the journal.

A handler in a task runs as in the stateless era, in both eras: a question without an answer ends the run, and the
handler runs again from the top when the answer is there. Only that the journal is in the Backend, not with the client.
So a task that waits for an answer needs no coroutine, and any worker can go on with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import QuestionFailed
from weft.protocol.request_state import Journal, RecordedAnswer
from weft.server.asking.once import Once
from weft.server.asking.rounds import Round
from weft.server.calls.call import Call
from weft.server.tasks.records import AskedQuestion, GivenAnswer, JournalEntry
from weft.types.interaction import InputRequest, InputRequiredResult

if TYPE_CHECKING:
    from weft.server.tasks.runs import TaskRun


@dataclass(slots=True, eq=False)
class TaskJournal:
    """What is known from earlier runs of a task's handler, and the answers that are no answers."""

    journal: Journal = field(default_factory=Journal.empty)
    failures: dict[str, tuple[str, GivenAnswer]] = field(default_factory=dict[str, tuple[str, GivenAnswer]])
    size: int = 0  # bytes of all values

    def add(self, entry: JournalEntry) -> None:
        """Add an entry of the stored journal. A later answer to the same question replaces an earlier one."""
        self.size += len(bytes(entry.value))
        if entry.kind == "once":
            self.journal.once.setdefault(entry.name, entry.value)
        elif entry.asked is not None and entry.answer is not None:
            self._add_answer(entry.asked, entry.answer)

    def _add_answer(self, asked: AskedQuestion, answer: GivenAnswer) -> None:
        self.size += len(bytes(answer.value))
        self.journal.answers.pop(asked.name, None)
        self.failures.pop(asked.name, None)
        if answer.failure is not None:
            self.failures[asked.name] = asked.digest, answer
        else:
            self.journal.answers[asked.name] = RecordedAnswer(asked.digest, answer.value)
        if asked.by_hand:
            self.journal.by_hand.add(asked.name)

    def entries(self) -> list[JournalEntry]:
        """Return the content as entries, to be stored for a call that becomes a task."""
        journal = self.journal
        made = [JournalEntry("once", name, value) for name, value in journal.once.items()]
        for name, answer in journal.answers.items():
            asked = AskedQuestion(name, answer.question, by_hand=name in journal.by_hand)
            made.append(JournalEntry("answer", asked=asked, answer=GivenAnswer(answer.value)))
        return made


class TaskRound(Round):
    """One run of a handler in a task, or of one whose call may become a task.

    Until the call has become a task, this is a round like any other: its questions go to the client with the answer.
    """

    def __init__(self, call: Call, run: TaskRun, known: TaskJournal | None = None) -> None:
        self._run = run
        self._failures: Mapping[str, tuple[str, GivenAnswer]] = {} if known is None else known.failures
        super().__init__(call, None if known is None else known.journal)
        if known is not None:
            self.is_retry = bool(self.journal.answers or self.journal.once or self._failures or self.journal.state)
        self.has_asked = False  # whether this run of the task's handler has ended with questions
        self._pages = 0  # number of web pages that were asked for

    @property
    def is_running_once(self) -> bool:
        """Whether a function of `ctx.once` runs now, so that its result would be lost."""
        return self._running > 0

    @property
    def open_questions(self) -> dict[str, tuple[AskedQuestion, InputRequest]]:
        """The questions with which this run has ended, by the handler's key."""
        pending, by_hand = self.journal.pending, self.journal.by_hand
        return {
            name: (AskedQuestion(name, pending[name], by_hand=name in by_hand), request)
            for name, request in self._questions.items()
        }

    def new_page_id(self) -> str | None:
        """Return an id for a web page, the same in each run of the handler; None if the era has no such ids.

        The id of the task cannot be read from it: clients may show or log the id of a page.
        """
        if self._call.era.asks_by_rounds:
            return None
        self._pages += 1
        return hashlib.sha256(f"{self._run.id}-{self._pages}".encode()).hexdigest()

    def unusable(self, fault: str) -> Exception:
        """Return the exception for an answer that cannot be used: in a task, one that the handler may catch."""
        if not self._run.is_task:
            return super().unusable(fault)
        return QuestionFailed(f"The client's answer cannot be used: {fault}")

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """Return the result of `fn`, which is called at most once in all runs of the task."""
        if key not in self.journal.once:
            await self._run.check()
        return await super().once(key, fn, args, type)

    def result(self) -> InputRequiredResult:
        """Return the questions of this run. In a task, they are taken from here (`open_questions`), and not sent."""
        if not self._run.is_task:
            return super().result()
        self.warn_if_changed()
        self._check_count(len(self._questions))
        self.has_asked = True
        return InputRequiredResult(result_type="input_required")

    def sealed_result(self) -> InputRequiredResult:
        """Return the questions for a call that has not become a task after all."""
        return super().result()

    def _new_once(self, call: Call) -> Once:
        run = self._run
        return Once(
            call.services,
            self.journal.once,
            self.journal.id,
            peer=call.peer,
            keep=run.keep,
            threads=run.threads,
            holder=hashlib.sha256(run.id.encode()).digest()[:16],
        )

    def _answer(self, name: str, question: str) -> msgspec.Raw | None:
        asked, failed = self._failures.get(name, ("", None))
        if failed is not None and asked == question:
            raise QuestionFailed(failed.failure or "", failed.code, failed.data)
        return super()._answer(name, question)
