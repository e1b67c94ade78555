"""Carry a handler's questions to the client, and the answers back: `Round` without a session, `Channel` in a session.

Without a session, the server stores nothing between two calls. A handler runs from the top in every round. A question
whose answer is in the journal is answered at once. The first question without an answer ends the round: the client gets
the questions and the encrypted journal. Its next call, to any worker, brings back the journal and the answers. So a
handler must ask the same questions when it gets the same answers. Everything else that it does is done again, except
for functions called through `ctx.once`, whose results are in the journal.

Questions asked at the same time (`asyncio.gather`) are sent together. So a round does not end with its first question,
but when no new question came for a few turns of the event loop and no `once` is running.

In a session, a question is sent on the stream of the call, and the handler waits for the answer. If the call has no
stream, the standalone stream is used. A handler that returns its questions is called again with the answers; a journal
in memory makes sure that no question is asked twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import msgspec

from weft.errors import (
    InvalidParams,
    NoBackChannelError,
    ProtocolError,
    QuestionFailed,
    RemoteError,
    RequestTimeout,
    UsageError,
)
from weft.limits import Limits
from weft.protocol.request_state import Journal, KeyRing, Keys, RecordedAnswer, StateRefused, binding, digest
from weft.server.asking.once import Once, to_json
from weft.server.asking.questions import ask_url, check_key, check_request, params_of
from weft.server.calls.pending import ChannelClosed
from weft.types.features import CallToolParams
from weft.types.interaction import InputRequest, InputRequiredResult
from weft.types.lifecycle import InputParams

if TYPE_CHECKING:
    from weft.server.calls.call import Call
    from weft.server.signature.signature import Signature


log = logging.getLogger("weft.asks")

QUIET_TURNS = 3  # Turns of the event loop without a new question, after which a round ends.
PAGES_REQUIRED = -32042  # JSON-RPC error code: the user must visit pages first.


def key_ring(given: Sequence[str | bytes] | None) -> KeyRing:
    """Return the keys that encrypt journals: `given`, or the keys in WEFT_STATE_KEY, or a new key for this process."""
    if given is not None:
        return KeyRing(given)
    listed = os.environ.get("WEFT_STATE_KEY", "")
    try:
        return KeyRing.from_environment(listed) if listed else KeyRing.ephemeral()
    except UsageError as error:
        raise UsageError(f"The variable WEFT_STATE_KEY cannot be used. {error}") from None


@cache  # Once per process: clients can send any number of such states.
def _warn_of_key() -> None:
    log.warning(
        "A call was refused because its `requestState` was sealed with another key. If several processes or machines "
        "serve the same clients, all need the same key: set WEFT_STATE_KEY in their environment, or "
        "Server(state_keys=[...]). After a restart without such a key, this is expected."
    )


class InputRequired(BaseException):
    """Signals that the call needs answers from the client. Handlers return it; methods such as `ctx.elicit` raise it.

    `requests` has the questions by key; the next call finds the answers under the same keys (`ctx.input_response`).
    `state` can be any JSON value. The client gets the state encrypted, and the next call has it as `ctx.request_state`.

    This class is not an `Exception`, so `except Exception` in a handler does not catch it.
    """

    def __init__(self, requests: Mapping[str, InputRequest] | None = None, *, state: Any = None) -> None:
        super().__init__("answers are needed before the call can be completed")
        if not requests and state is None:
            raise UsageError("InputRequired needs questions, a state, or both: InputRequired({'name': ask_form(...)}).")
        self.requests = dict(requests or {})
        self.state = state
        for key, request in cast("dict[object, object]", self.requests).items():
            if not isinstance(key, str) or not isinstance(request, InputRequest):
                raise UsageError(
                    "InputRequired takes questions by their keys: InputRequired({'name': ask_form(...)}), or ask_url, "
                    f"ask_model, ask_roots. It was given {type(key).__name__}: {type(request).__name__}."
                )
            check_key(key, f"InputRequired({{{key!r}: ...}})")


class UrlElicitationRequired(InputRequired):
    """Signals that the user must visit web pages before the call can be completed. Handlers raise it.

    Each page is a pair of a message and a URL, or `ask_url(...)`. Depending on its protocol version, the client gets
    questions, or an error that lists the pages. After the user has visited the pages, the client repeats the call.
    """

    def __init__(self, *pages: tuple[str, str] | InputRequest) -> None:
        asked = [page if isinstance(page, InputRequest) else ask_url(*page) for page in pages]
        if any(getattr(page.params, "mode", None) != "url" for page in asked):
            raise UsageError("UrlElicitationRequired lists pages: pairs of a message and a URL, or ask_url(...).")
        super().__init__({f"page {number}": page for number, page in enumerate(asked, 1)})


class QuestionUnanswered(QuestionFailed):
    """The client has not answered a question at all: it cannot be asked, is gone, or does not answer in time.

    A handler in a session need not know the difference. In a task, another call may get an answer.
    """


class _RoundOver(InputRequired):
    """Raised inside a handler to end the round. The client then gets the questions that the `Round` has collected."""

    def __init__(self) -> None:
        BaseException.__init__(self, "the round is over")
        self.requests = {}
        self.state = None


def asker_of(call: Call) -> Asker:
    """Return the `Asker` of a call. Create the `Asker` if the call has none yet."""
    if call.asker is None:
        call.asker = Round(call) if call.era.asks_by_rounds else Channel(call)
    return cast("Asker", call.asker)


def round_of(call: Call) -> Round | None:
    """Return the `Round` of a call; None if its questions are sent in a session, or if it has not asked yet."""
    return call.asker if isinstance(call.asker, Round) else None


async def invoke(call: Call, fn: Callable[..., Any], signature: Signature, kwargs: dict[str, Any]) -> Any:
    """Call a function of the user and return its value. A sync function runs in a thread.

    If the function has a Context parameter, the context of the call is added to `kwargs`. If the function returns an
    `InputRequired`, the `InputRequired` is raised.
    """
    if signature.injected is not None:
        kwargs[signature.injected] = call.context
    value = await fn(**kwargs) if signature.is_async else await call.services.threads.run(fn, kwargs)
    if isinstance(value, InputRequired):
        raise value
    return value


class Asker(ABC):
    """Asks the client the questions of one call, and returns the answers to the handler."""

    def __init__(self, call: Call, journal: Journal) -> None:
        self._call: Call = weakref.proxy(call)  # A weak reference, because the call refers to this object.
        self.journal = journal
        self.is_retry = False  # Whether the handler ran before for the same logical call.
        self._keys = Keys()
        self._once = self._new_once(call)

    def _new_once(self, call: Call) -> Once:
        """Return the object that calls functions once and stores their results in the journal."""
        return Once(call.services, self.journal.once, self.journal.id, peer=call.peer)

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """Return the result of `fn`, which is called at most once for all rounds of a call.

        The result is stored under `key`. `type` is the type of the result, or None to use the annotation of `fn`.
        """
        return await self._once.result(key, fn, args, type)

    @abstractmethod
    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """Ask the client one question, and return the answer as JSON.

        The answer is stored under `key`. If `key` is None, a key is made from the content of the question.
        """

    def new_page_id(self) -> str | None:
        """Return an id for a web page that the user must visit; None if the protocol version has no such ids."""
        return None

    def unusable(self, fault: str) -> Exception:
        """Return the exception for an answer that cannot be used. `fault` says what is wrong with the answer."""
        return InvalidParams(f"Invalid params: {fault}")  # Refuses the call, because its params contain the answer.

    async def settle(self, signal: InputRequired) -> bool:
        """Ask the questions that a handler returned. Return True if the handler must run again with the answers.

        This base method only returns False: the client gets the questions in the result of the call.
        """
        return False

    def _fit(self, method: str, params: Any) -> Any:
        """Return the params of a question as the client's protocol version defines them."""
        return self._call.era.question(method, params, self._call.envelope.revision)

    def _check_count(self, questions: int) -> None:
        most = self._call.services.limits.input_responses
        if questions > most:
            raise UsageError(
                f"{self._call.described} asks {questions} questions at once, but only {most} answers are read. Ask "
                "fewer at a time, put them into one form, or raise Limits(input_responses=...)."
            )

    @property
    def _limits(self) -> Limits:
        return self._call.services.limits

    def _check_total(self, asked: int, what: str, limit: str, most: int) -> None:
        """Raise UsageError if the count `asked` is above `most`: the handler may be in an endless loop.

        `limit` is the name of the limit in `Limits`. `what` names the things that are counted.
        """
        if asked > most:
            raise UsageError(
                f"{self._call.described} has asked {most} {what} and is still not done. Return a result when the "
                f"answers are there, or raise Limits({limit}=...). Does each run ask something else? Then get what "
                "changes (time, random numbers) with ctx.once."
            )


class Round(Asker):
    """One run of a handler without a session.

    Answers come from the journal. If the journal has no answer, the run ends, and the client gets the question.
    `journal` is the journal of the call. Default: it is decrypted from the params of the call.
    """

    def __init__(self, call: Call, journal: Journal | None = None) -> None:
        params = call.envelope.params
        if not isinstance(params, InputParams):
            raise UsageError(
                f"{call.described} cannot ask the client: only tools, prompts and resources can ask. Move the "
                "question into the handler of one of them."
            )
        super().__init__(call, _open_journal(call, params) if journal is None else journal)
        self._params = params
        self._asked: dict[str, str] = {}  # Digests of all questions of this run, by key.
        self._questions: dict[str, InputRequest] = {}  # Questions without an answer, by key.
        self._places: dict[str, str] = {}  # In debug mode, by key: where a question without an answer is asked.
        self._waiters: list[asyncio.Future[None]] = []  # One for each question without an answer.
        self._running = 0  # Number of `once` calls that are running.
        self._progress = 0  # Number of questions asked and `once` calls ended.
        self._unused = dict.fromkeys(
            self.journal.once
        )  # Keys of earlier `once` results, without those used in this run.
        self.is_over = False  # Whether the round has ended with unanswered questions.
        self.is_retry = bool(self.journal.answers or self.journal.once or params.request_state)

    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """Return the answer from the journal. If the journal has no answer, end the round with this question."""
        self._once.check_asking()
        question = digest(method, without_page_id(params))
        name = self._keys.name(key, question)
        self._asked[name] = question
        self._check_total(len(self._asked), "questions", "asks_per_call", self._limits.asks_per_call)
        answer = self._answer(name, question)
        if self._call.replay is not None:
            self._call.replay.asked()
            if answer is None:
                self._call.replay.warn()
                self._places[name] = self._call.replay.question_place()
        if answer is not None:
            return answer
        if self.is_over:
            raise _RoundOver
        self._add_question(name, method, params, question)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._restart_quiet()
        try:
            await waiter
        except asyncio.CancelledError:  # The handler gave up the question and continues without an answer.
            self._waiters.remove(waiter)
            self._questions.pop(name, None)
            self.journal.pending.pop(name, None)
            raise
        raise _RoundOver  # Not set on the future: it would form a cycle of future, exception and frame.

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """Return the result of `fn`, which is called at most once for all rounds of a call.

        Raises `_RoundOver` if the round is over and the journal has no result for `key`.
        """
        if self.is_over and key not in self.journal.once:
            raise _RoundOver  # The journal is sent already, so a result would be lost.
        self._unused.pop(key, None)
        if self._call.replay is not None:
            self._call.replay.asked()
        self._running += 1
        try:
            return await super().once(key, fn, args, type)
        finally:
            self._running -= 1
            self._restart_quiet()

    def abandon(self) -> bool:
        """End the round and drop its questions. Return True if `ctx.once` has called no function in this round.

        In this case, the client may safely repeat the call.
        """
        self._end()  # From now on, tasks that still run cannot call a `once` function.
        return not self._once.began

    def add(self, explicit: InputRequired) -> None:
        """Add the questions and the state of an `InputRequired` that a handler returned."""
        for name, request in explicit.requests.items():
            params = self._fit(request.method, params_of(request))
            self._add_question(name, request.method, params, digest(request.method, params))
            self.journal.by_hand.add(name)
            self.journal.answers.pop(name, None)  # Asked again: an earlier answer does not count.
        if explicit.state is not None:
            self.journal.state = to_json(explicit.state)

    def _add_question(self, name: str, method: str, params: Any, question: str) -> None:
        self._questions[name] = InputRequest(method) if params is None else InputRequest(method, params)
        self.journal.pending[name] = question

    def result(self) -> InputRequiredResult:
        """Return the result that ends this round: the questions to the client, and the encrypted journal."""
        self.warn_if_changed()
        self._check_count(len(self._questions))
        return InputRequiredResult(
            result_type="input_required", input_requests=self._questions or None, request_state=self._seal()
        )

    def warn_if_changed(self, *, is_done: bool = False) -> None:
        """Log a warning in debug mode if this run did not repeat a question of the previous round.

        If the handler is done, also log a warning if it did not call `once` with the keys of earlier rounds.
        """
        if not self._call.services.debug:
            return
        if is_done and self._unused:
            log.warning(
                "%s did not call ctx.once with keys of an earlier run: %s. The functions of these keys were called for "
                "nothing, or again under other keys. A key must name the same step in every run: do not make it from "
                "the time or a random number.",
                self._call.described,
                ", ".join(self._unused),
            )
        if forgotten := self.journal.unasked(self._asked):
            log.warning(
                "%s asked other questions than in the round before: %s not asked again%s. A handler runs from the top "
                "in every round and must ask the same when it gets the same answers; get values that change (time, "
                "random numbers, data of other systems) with ctx.once.",
                self._call.described,
                f"{_listed(forgotten)} {'was' if len(forgotten) == 1 else 'were'}",
                self._asked_instead(),
            )

    def _asked_instead(self) -> str:
        """Describe the questions of this run that have no answer, for a warning."""
        asked: list[str] = []
        for name, request in self._questions.items():
            params: Any = msgspec.to_builtins(params_of(request)) or {}
            message = params.get("message", request.method)
            asked.append(f"{str(message)[:80]!r}" + (f" at {self._places[name]}" if name in self._places else ""))
        return f"; instead it asked {_listed(asked)}" if asked else ""

    def _restart_quiet(self) -> None:
        self._progress += 1
        self._check_quiet(self._progress, QUIET_TURNS + 1)

    def _check_quiet(self, progress: int, turns_left: int) -> None:
        """End the round if there is no progress in the next `turns_left` turns of the event loop.

        `progress` is the value of the progress counter when the check began.
        """
        if progress != self._progress or self._running or self.is_over or not self._waiters:
            return  # Each progress starts another check.
        if turns_left:
            asyncio.get_running_loop().call_soon(self._check_quiet, progress, turns_left - 1)
        else:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _answer(self, name: str, question: str) -> msgspec.Raw | None:
        """Return the answer to a question, or None. `name` is the key of the question, `question` is its digest."""
        return self.journal.answer(name, question) or self._early_answer(name, question)

    def _early_answer(self, name: str, question: str) -> msgspec.Raw | None:
        """Return and record the answer that the client has sent with its first call, before the question was asked.

        `name` is the key of the question, `question` is its digest. Returns None if there is no such answer, or if this
        is not the first call.
        """
        answer = (self._params.input_responses or {}).get(name)
        if self._params.request_state is not None or answer is None:
            return None
        self.journal.answers[name] = RecordedAnswer(question, answer)
        return answer

    def _seal(self) -> str:
        self.journal.id = self.journal.id or secrets.token_urlsafe(12)
        try:
            return self._sealed(self.journal.encode())
        except UsageError as error:
            try:
                self._sealed(self.journal.encode_own())
            except UsageError:
                raise error from None  # Too large even without the client's answers.
            most = self._call.services.limits.state_bytes
            raise InvalidParams(
                f"Invalid params: the answers to this call are too long: with them, its state would have more than the "
                f"{most} bytes allowed. Send shorter answers."
            ) from None

    def _sealed(self, journal: bytes) -> str:
        services = self._call.services
        return services.state_keys.seal(
            journal,
            binding=_binding(self._call, self._params),
            expires=int(time.time() + services.limits.ask_seconds),
            max_bytes=services.limits.state_bytes,
        )


def _listed(texts: Sequence[str], most: int = 3) -> str:
    """Join texts for a message; of many, only the first ones.

    >>> _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _open_journal(call: Call, params: InputParams) -> Journal:
    """Decrypt the journal of a call, or create an empty journal for a first call. Add the answers of the call."""
    state, services = params.request_state, call.services
    try:
        if state is None:
            journal = Journal.empty()
        else:
            now, most = int(time.time()), services.limits.state_bytes
            opened = services.state_keys.open(state, binding=_binding(call, params), now=now, max_bytes=most)
            journal = Journal.decode(opened)
        journal.accept(params.input_responses or {}, limit=services.limits.input_responses)
    except StateRefused:
        if state and len(state) <= services.limits.state_bytes and services.state_keys.is_foreign(state):
            _warn_of_key()
        raise
    except ValueError as error:
        raise InvalidParams(f"Invalid params: {error}") from None
    return journal


def _binding(call: Call, params: InputParams) -> bytes:
    """Return bytes that stand for the server, caller, method, name and arguments of a call.

    A `requestState` is valid only in calls with the same bytes.
    """
    mirrored = call.envelope.method.mirrored
    name = str(getattr(params, mirrored)) if mirrored else ""  # In an extension, it may be a number.
    if isinstance(params, CallToolParams):  # The arguments as the client sent them, before any middleware.
        sent = params.raw_arguments
        raw = b"{}" if sent is msgspec.UNSET else bytes(sent)
    else:
        raw = msgspec.json.encode(getattr(params, "arguments", None) or {})
    return binding(call.principal, call.method, name, raw, server=call.services.info.name)


def questions(call: Call, signal: InputRequired | None) -> InputRequiredResult:
    """Return the result that ends the round of a call: its questions and the encrypted journal.

    The questions of `signal` are added to the questions that the round has collected.
    """
    round = asker_of(call)
    assert isinstance(round, Round)
    if signal is not None:
        for request in signal.requests.values():
            check_request(call, request)
        round.add(signal)
    return round.result()


def signal_in(error: BaseException) -> InputRequired | ProtocolError | None:
    """Return the first InputRequired or ProtocolError: `error` itself, or one in its exception group. Else None."""
    if isinstance(error, InputRequired | ProtocolError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            if (found := signal_in(inner)) is not None:
                return found
    return None


class Channel(Asker):
    """Sends the questions of a call to the client in a session, and waits for the answers."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, Journal.empty())
        self._rounds = 0  # How many times the handler returned questions.
        self._sent = 0  # Number of questions sent, in all runs of the handler.
        self._page_prefix = secrets.token_urlsafe(16)
        self._page_numbers = count(1)

    def new_page_id(self) -> str | None:
        """Return an id for `notifications/elicitation/complete`. The ids are the same in every run of the handler."""
        return f"{self._page_prefix}-{next(self._page_numbers)}"

    def unusable(self, fault: str) -> Exception:
        """Return the QuestionFailed for an answer that cannot be used. The handler may catch this exception."""
        return QuestionFailed(f"The client's answer cannot be used: {fault}")

    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """Return the answer from an earlier run of the handler, or else send the question and wait for the answer."""
        self._once.check_asking()
        question = digest(method, without_page_id(params))
        name = self._keys.name(key, question)
        answer = self.journal.answer(name, question)
        if answer is None:
            answer = await self.send(method, params)
            self.journal.answers[name] = RecordedAnswer(question, answer)
        return answer

    async def send(self, method: str, params: Any) -> msgspec.Raw:
        """Send a question to the client, and return its answer as JSON.

        Raises QuestionFailed if the client answers with an error, and QuestionUnanswered if it does not answer.
        """
        call, seconds = self._call, self._call.services.limits.ask_seconds
        if call.cancellation.cancelled or call.reply.answered:
            reason = "the call is answered. Ask before the handler returns."
            if call.cancellation.cancelled:
                reason = "it has cancelled the call."
            raise QuestionUnanswered(f"The client cannot be asked ({method}): {reason}")
        self._sent += 1
        self._check_total(self._sent, "questions", "asks_per_call", self._limits.asks_per_call)
        fitting = self._fit(method, params)
        try:
            if call.session is not None and call.reply.can_stream:
                return await call.session.outstanding.request(
                    call.reply.notify, method, fitting, timeout=seconds, send_cancellation=self._send_cancellation
                )
            return msgspec.Raw(
                msgspec.json.encode(await call.connection.send_raw_request(method, fitting, timeout=seconds))
            )
        except ChannelClosed as error:
            raise QuestionUnanswered(f"The client did not answer: {error.message}") from None
        except RemoteError as error:
            raise QuestionFailed(f"The client refused: {error.message}", error.code, error.data) from None
        except RequestTimeout as error:
            raise QuestionUnanswered(str(error)) from None
        except NoBackChannelError:
            raise QuestionUnanswered(
                f"The client cannot be asked ({method}): it accepts no stream as the response to this call, and has no "
                "other stream open."
            ) from None

    async def _send_cancellation(self, message: bytes) -> None:
        """Send the cancellation of a question on the stream of the call.

        If the call was cancelled, send the cancellation outside of the call instead.
        """
        call = self._call
        assert call.session is not None
        await (call.session.outstanding.send if call.cancellation.cancelled else call.reply.notify)(message)

    async def settle(self, signal: InputRequired) -> bool:
        """Ask the questions that a handler returned. Return True, so that the handler runs again with the answers.

        Raises ProtocolError with a list of the web pages if the handler raised UrlElicitationRequired.
        """
        self._check_count(len(signal.requests))
        for request in signal.requests.values():
            check_request(self._call, request)
        if isinstance(signal, UrlElicitationRequired):
            raise self._pages_required(signal)
        self._rounds += 1
        self._check_total(self._rounds, "rounds", "input_rounds", self._limits.input_rounds)
        self.is_retry = True
        answers = await _ask_all(self._ask_returned(request) for request in signal.requests.values())
        self.journal.answers.update(zip(signal.requests, answers, strict=True))
        if signal.state is not None:
            self.journal.state = to_json(signal.state)
        self._keys, self._page_numbers = Keys(), count(1)
        return True

    async def _ask_returned(self, request: InputRequest) -> RecordedAnswer:
        params = params_of(request)
        question = digest(request.method, without_page_id(params))
        return RecordedAnswer(question, await self.send(request.method, _with_page_id(params)))

    def _pages_required(self, signal: UrlElicitationRequired) -> ProtocolError:
        """Return the error that lists the web pages that the user must visit."""
        pages = [self._fit(request.method, _with_page_id(params_of(request))) for request in signal.requests.values()]
        return ProtocolError("The user has to visit a page first.", code=PAGES_REQUIRED, data={"elicitations": pages})


def _with_page_id(params: Any) -> Any:
    if params is not None and params.get("mode") == "url":
        return {"elicitationId": secrets.token_urlsafe(16), **params}
    return params


def without_page_id(params: Any) -> Any:
    """Return the params of a question without `elicitationId`. Questions that differ only in this id are the same."""
    return params if params is None else {name: value for name, value in params.items() if name != "elicitationId"}


async def _ask_all(asks: Iterable[Coroutine[Any, Any, RecordedAnswer]]) -> list[RecordedAnswer]:
    """Ask questions at the same time and return the answers. If one question fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    except Exception:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
