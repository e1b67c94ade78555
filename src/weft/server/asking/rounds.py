"""Carry a handler's questions to the client: by rounds without a session, by messages in one.

Rounds: how a handler asks in the middle of its body, and is served by calls that know nothing of each other.

A handler runs from the top in every round. A question whose answer is in the journal is answered at once; the first one
that is not ends the round: the client gets the questions and the sealed journal, and its next call brings both back, to
any worker. So the handler must ask the same questions again when it is given the same answers, and whatever it does
besides asking is done again — except what it does through `ctx.once`, whose result is in the journal too.

Questions asked at the same time (`asyncio.gather`) go out together. So a question does not end the round at once: it
waits until nothing new was asked for a few turns of the loop, and no `once` is running.

Channel: how a handler asks a client that has a session. The question is sent, and the answer awaited.

It goes out on the stream of the call that asks, so that the client sees what it belongs to; where the call has no
stream, on the one that belongs to no call.

A handler that returns its questions is called again with the answers, and may ask on the way as well. So there is a
journal here too, like that of a `Round`: what was answered is not asked again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

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
from weft.protocol.journal import Journal, Keys, RecordedAnswer, digest
from weft.protocol.sealing import KeyRing, StateRefused, binding
from weft.server.asking.once import Once, to_json
from weft.server.asking.questions import ask_url, check_request, params_of
from weft.types.features import CallToolParams
from weft.types.interaction import InputRequest, InputRequiredResult
from weft.types.lifecycle import InputParams

if TYPE_CHECKING:
    from weft.server.calls.call import Call


log = logging.getLogger("weft.asks")

QUIET_TURNS = 3  # turns of the loop without a new question, after which the round is over


def key_ring(given: Sequence[str | bytes] | None) -> KeyRing:
    """The keys that seal journals: those given, else those of the environment, else one that dies with the process."""
    if given is not None:
        return KeyRing(given)
    listed = os.environ.get("WEFT_STATE_KEY", "")
    try:
        return KeyRing.from_environment(listed) if listed else KeyRing.ephemeral()
    except UsageError as error:
        raise UsageError(f"The variable WEFT_STATE_KEY cannot be used. {error}") from None


@cache  # once in a process: clients may send as many such states as they like
def _warn_of_key() -> None:
    log.warning(
        "A call came back with a `requestState` that was sealed with another key, so it was refused. Where several "
        "processes or machines serve the same clients, all of them need the same key: set WEFT_STATE_KEY in their "
        "environment, or Server(state_keys=[...]). After a restart without such a key this is to be expected."
    )


class InputRequired(BaseException):
    """Answers are needed before the call can be completed. Return it, or let `ctx.elicit` and the others raise it.

    `requests` are the questions by the keys under which the answers are found in the next call (`ctx.input_response`);
    `state`, any JSON value, is handed back as `ctx.request_state`, sealed meanwhile.

    It is no `Exception`: `except Exception` in a handler does not stop it.
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


class UrlElicitationRequired(InputRequired):
    """The user has to visit pages before the call can be completed: pairs of a message and a URL, or `ask_url(...)`.

    Raise it. Clients are asked as their revision has it: by questions, or by an error that lists the pages, after which
    they call again (L11-41).
    """

    def __init__(self, *pages: tuple[str, str] | InputRequest) -> None:
        asked = [page if isinstance(page, InputRequest) else ask_url(*page) for page in pages]
        if any(getattr(page.params, "mode", None) != "url" for page in asked):
            raise UsageError("UrlElicitationRequired lists pages: pairs of a message and a URL, or ask_url(...).")
        super().__init__({f"page {number}": page for number, page in enumerate(asked, 1)})


class Asker(Protocol):
    """How a call's questions reach the client and the answers come back."""

    @property
    def answers(self) -> Mapping[str, msgspec.Raw]:
        """The answers so far to questions that have a key."""
        ...

    @property
    def state(self) -> msgspec.Raw | None:
        """What the handler wanted to find again when it is called again."""
        ...

    @property
    def is_retry(self) -> bool:
        """Whether the handler was called before, for the same purpose."""
        ...

    def name_page(self) -> str | None:
        """An id for a page that the user is sent to, where the protocol has them."""
        ...

    def unfit(self, fault: str) -> Exception:
        """What a handler gets to see of an answer that does not fit its question."""
        ...

    async def settle(self, signal: InputRequired) -> bool:
        """Get the answers to the questions a handler returned. True: they are there, call it again."""
        ...

    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """The answer to one question, as it stands on the wire."""
        ...

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """The result of a function that is called once per logical call."""
        ...


def asker_of(call: Call) -> Asker:
    """Return what carries the questions of a call; made when the call first asks, or brings answers back."""
    if call.asker is None:
        call.asker = Round(call) if call.era.asks_by_rounds else Channel(call)
    return cast("Asker", call.asker)


def round_of(call: Call) -> Round | None:
    """Return the round that this call is, if it asked anything or brought answers back."""
    return cast("Round | None", call.asker) if call.era.asks_by_rounds else None


async def invoke(call: Call, fn: Callable[..., Any], is_async: bool, kwargs: Mapping[str, Any]) -> Any:  # noqa: FBT001 - a fact of `fn`, not an option
    """Call a user's function: here if it is async, else in a thread."""
    value = await fn(**kwargs) if is_async else await call.services.threads.run(fn, kwargs)
    if isinstance(value, InputRequired):
        raise value
    return value


class _RoundOver(InputRequired):
    """Ends the round: the questions are those of the `Round`."""

    def __init__(self) -> None:
        BaseException.__init__(self, "the round is over")
        self.requests = {}
        self.state = None


class Round:
    """One run of a handler."""

    def __init__(self, call: Call) -> None:
        params = call.envelope.params
        if not isinstance(params, InputParams):
            # MRTR-02: nothing but these three may be answered with questions.
            raise UsageError("Only tools, prompts and reads of resources can ask; this is neither.")
        self._call: Call = weakref.proxy(call)  # which has this: a cycle would keep both until a collection finds it
        self._params = params
        self._keys = Keys()
        self._asked: dict[str, str] = {}  # all questions of this run, answered or not, by key: their digests
        self._questions: dict[str, InputRequest] = {}  # those without an answer
        self._waiters: list[asyncio.Future[None]] = []
        self._running = 0  # `once` calls under way
        self._quiet = 0
        self.is_over = False  # whether questions have gone unanswered, so that the call cannot be completed
        self._ticking = False
        self.journal = self._open()
        self._once = Once(call.services, self.journal.once, self.journal.id)
        self.is_retry = bool(self.journal.answers or self.journal.once or params.request_state)

    @property
    def answers(self) -> Mapping[str, msgspec.Raw]:
        """The answers so far."""
        return {key: answer.value for key, answer in self.journal.answers.items()}

    @property
    def state(self) -> msgspec.Raw | None:
        """The state that an earlier round returned."""
        return self.journal.state

    def name_page(self) -> str | None:
        """Nothing: a page is named by its question."""
        return None

    def unfit(self, fault: str) -> Exception:
        """The answers are params of this very call: it is refused."""
        return InvalidParams(f"Invalid params: {fault}")

    async def settle(self, signal: InputRequired) -> bool:
        """The client has to be answered with the questions first."""
        return False

    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """The answer, from the journal; or the end of the round."""
        self._once.check_asking()
        question = digest(method, params)
        name = self._keys.name(key, question)
        self._asked[name] = question
        check_asks(self._call, len(self._asked))
        answer = self.journal.answer(name, question) or self._volunteered(name, question)
        if self._call.replay is not None:
            self._call.replay.asked()
            if answer is None:
                self._call.replay.warn()
        if answer is not None:
            return answer
        if self.is_over:
            raise _RoundOver
        self._put(name, method, params, question)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._quiet = 0
        self._tick()
        try:
            await waiter
        except asyncio.CancelledError:  # the handler gave the question up, and goes on without the answer
            self._waiters.remove(waiter)
            self._questions.pop(name, None)
            self.journal.pending.pop(name, None)
            raise
        raise _RoundOver  # here, not by the future: a future with its exception and this frame would be a cycle

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """The result of `fn`, called at most once in the life of the journal."""
        if self.is_over and key not in self.journal.once:
            raise _RoundOver  # what happened now would be forgotten
        if self._call.replay is not None:
            self._call.replay.asked()
        self._running += 1
        try:
            return await self._once.result(key, fn, args, type)
        finally:
            self._running -= 1
            self._quiet = 0
            self._tick()

    def abandon(self) -> bool:
        """End the round without an answer. True if nothing has happened in it, so that it may be played again."""
        self._end()  # what still runs can begin no `once` any more
        return not self._once.began

    def add(self, explicit: InputRequired) -> None:
        """Take over the questions and the state of an `InputRequired` that a handler returned."""
        for name, request in explicit.requests.items():
            params = self._call.era.question(request.method, params_of(request), self._call.envelope.revision)
            self._put(name, request.method, params, digest(request.method, params))
            self.journal.by_hand.add(name)
            self.journal.answers.pop(name, None)  # asked anew: what was answered before is no answer to it (MRTR-26)
        if explicit.state is not None:
            self.journal.state = to_json(explicit.state)

    def _put(self, name: str, method: str, params: Any, question: str) -> None:
        """Have this asked at the end of the round."""
        self._questions[name] = InputRequest(method) if params is None else InputRequest(method, params)
        self.journal.pending[name] = question

    def result(self) -> InputRequiredResult:
        """The result that asks: the questions, and the journal sealed."""
        self.warn_if_changed()
        check_number(self._call, len(self._questions))
        return InputRequiredResult(
            result_type="input_required", input_requests=self._questions or None, request_state=self._seal()
        )

    def warn_if_changed(self) -> None:
        """In development: a run that did not ask again what is answered already is not a replay."""
        if not self._call.services.debug:
            return
        if forgotten := self.journal.unasked(self._asked):
            log.warning(
                "%s asked other questions than in the round before: %s was not asked again. A handler "
                "runs from the top in every round and must ask the same when it gets the same answers; put what "
                "changes (time, random values, what was read elsewhere) into ctx.once.",
                self._call.described,
                ", ".join(forgotten),
            )

    def _tick(self) -> None:
        if not self._ticking and self._waiters:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._ticking = False
        if self._running or self.is_over:
            return  # the end of `once` begins anew
        self._quiet += 1
        if self._quiet <= QUIET_TURNS:
            self._tick()
            return
        self._end()

    def _end(self) -> None:
        self.is_over = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _volunteered(self, name: str, question: str) -> msgspec.Raw | None:
        """The answer of a client that knows the question before it is asked, and so has no state to send with it."""
        answer = (self._params.input_responses or {}).get(name)
        if self._params.request_state is not None or answer is None:
            return None
        self.journal.answers[name] = RecordedAnswer(question, answer)
        return answer

    def _open(self) -> Journal:
        state, responses = self._params.request_state, self._params.input_responses or {}
        try:
            journal = Journal.empty() if state is None else Journal.decode(self._unsealed(state))
            journal.accept(responses, limit=self._call.services.limits.input_responses)
        except ValueError as error:
            raise InvalidParams(f"Invalid params: {error}") from None
        return journal

    def _unsealed(self, state: str) -> bytes:
        server = self._call.services
        try:
            return server.state_keys.open(
                state, binding=self._binding(), now=int(time.time()), max_bytes=server.limits.state_bytes
            )
        except StateRefused:
            if len(state) <= server.limits.state_bytes and server.state_keys.is_foreign(state):
                _warn_of_key()
            raise

    def _seal(self) -> str:
        self.journal.id = self.journal.id or secrets.token_urlsafe(12)
        try:
            return self._sealed(self.journal.encode())
        except UsageError as error:
            try:
                self._sealed(self.journal.encode_own())
            except UsageError:
                raise error from None  # the handler has filled it without the client's help
            most = self._call.services.limits.state_bytes
            raise InvalidParams(
                f"Invalid params: the answers to this call are too long: with them, its state would have more than the "
                f"{most} bytes allowed. Answer more briefly."
            ) from None

    def _sealed(self, journal: bytes) -> str:
        server = self._call.services
        return server.state_keys.seal(
            journal,
            binding=self._binding(),
            expires=int(time.time() + server.limits.ask_seconds),
            max_bytes=server.limits.state_bytes,
        )

    def _binding(self) -> bytes:
        """State is good for the same server, caller, method, name and arguments only (MRTR-11, MRTR-13)."""
        mirrored = self._call.envelope.method.mirrored
        name = str(getattr(self._params, mirrored)) if mirrored else ""  # an extension may have a number there
        if isinstance(self._params, CallToolParams):  # as the client sent them, whatever middleware made of them
            sent = self._params.raw_arguments
            raw = b"{}" if sent is msgspec.UNSET else bytes(sent)
        else:
            raw = msgspec.json.encode(getattr(self._params, "arguments", None) or {})
        return binding(self._call.principal, self._call.method, name, raw, server=self._call.services.info.name)


def check_number(call: Call, questions: int) -> None:
    """So many are asked at once, and no more."""
    most = call.services.limits.input_responses
    if questions > most:
        raise UsageError(
            f"{call.described} asks {questions} questions at once, but only {most} answers are read. Ask fewer at a "
            "time, put them into one form, or raise Limits(input_responses=...)."
        )


def check_asks(call: Call, asked: int) -> None:
    """A handler that asks on and on, such as one that lets a model use tools, is stopped (SAM-12)."""
    most = call.services.limits.asks_per_call
    if asked > most:
        raise UsageError(
            f"{call.described} has asked {most} questions and is still not done. End its loop sooner, or raise "
            "Limits(asks_per_call=...)."
        )


def questions(call: Call, signal: InputRequired | None) -> InputRequiredResult:
    """What a call is answered with that ended with `signal`: the questions and the sealed journal."""
    round = asker_of(call)
    assert isinstance(round, Round)
    if signal is not None:
        for request in signal.requests.values():
            check_request(call, request)
        round.add(signal)
    return round.result()


def signal_in(error: BaseException) -> InputRequired | ProtocolError | None:
    """What a handler ended with that is meant for the client: questions or a refusal, also from within a task group."""
    if isinstance(error, InputRequired | ProtocolError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            if (found := signal_in(inner)) is not None:
                return found
    return None


PAGES_REQUIRED = -32042  # L11-41


class Channel:
    """Asks over the channel of a session, and waits."""

    def __init__(self, call: Call) -> None:
        self._call: Call = weakref.proxy(call)  # which has this: a cycle would keep both until a collection finds it
        self._journal = Journal.empty()  # what a handler that is called again has asked and done before
        self._once = Once(call.services, self._journal.once)
        self._rounds = 0
        self._sent = 0  # questions, in all runs
        self._page = secrets.token_urlsafe(16)  # the first part of the ids of all pages
        self._begin_run()

    def _begin_run(self) -> None:
        self._keys = Keys()
        self._page_numbers = count(1)

    @property
    def is_retry(self) -> bool:
        """Whether the handler was called before, for the same purpose."""
        return self._rounds > 0

    @property
    def answers(self) -> Mapping[str, msgspec.Raw]:
        """The answers so far."""
        return {key: answer.value for key, answer in self._journal.answers.items()}

    @property
    def state(self) -> msgspec.Raw | None:
        """What the handler returned to find again, the last that it did."""
        return self._journal.state

    def name_page(self) -> str | None:
        """An id by which the client is told that the user is done there (L11-39, L11-40); the same in every run."""
        return f"{self._page}-{next(self._page_numbers)}"

    def unfit(self, fault: str) -> Exception:
        """The answer was a message of its own: nothing is wrong with the call, whose handler may make do without it."""
        return QuestionFailed(f"The client's answer cannot be used: {fault}")

    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """The answer; that of an earlier run, if there is one: nobody is asked again because a handler is run again."""
        self._once.check_asking()
        question = digest(method, _unnamed(params))
        name = self._keys.name(key, question)
        answer = self._journal.answer(name, question)
        if answer is None:
            answer = await self._send(method, params)
            self._journal.answers[name] = RecordedAnswer(question, answer)
        return answer

    async def _send(self, method: str, params: Any) -> msgspec.Raw:
        call, seconds = self._call, self._call.services.limits.ask_seconds
        if call.cancellation.cancelled:  # CAN-09: nothing is sent any more, and nobody would answer
            raise QuestionFailed(f"The client cannot be asked ({method}): it has cancelled the call.")
        if call.reply.answered:
            raise QuestionFailed(
                f"The client cannot be asked ({method}): the call is answered. Ask before the handler returns."
            )
        self._sent += 1
        check_asks(call, self._sent)
        fitting = self._fitting(method, params)
        try:
            if call.session is not None and call.reply.can_stream:
                answer = await call.session.outstanding.request(
                    call.reply.notify, method, fitting, timeout=seconds, withdraw=self._withdraw
                )
            else:
                answer = await call.connection.send_raw_request(method, fitting, timeout=seconds)
        except RemoteError as error:
            raise QuestionFailed(f"The client refused: {error.message}", error.code, error.data) from None
        except RequestTimeout as error:
            raise QuestionFailed(str(error)) from None
        except NoBackChannelError:
            raise QuestionFailed(
                f"The client cannot be asked ({method}): it takes no stream as an answer, and has none open otherwise."
            ) from None
        return msgspec.Raw(msgspec.json.encode(answer))

    async def _withdraw(self, message: bytes) -> None:
        """Where the question went, unless nothing more is sent there (CAN-09)."""
        call = self._call
        assert call.session is not None
        await (call.session.outstanding.farewell if call.cancellation.cancelled else call.reply.notify)(message)

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """The handler is run again only if it returns its questions, but it may come by here more than once."""
        return await self._once.result(key, fn, args, type)

    async def settle(self, signal: InputRequired) -> bool:
        """Ask what a handler returned as questions, so that it can be called again with the answers."""
        check_number(self._call, len(signal.requests))
        for request in signal.requests.values():
            check_request(self._call, request)
        if isinstance(signal, UrlElicitationRequired):
            raise self._pages(signal)
        most = self._call.services.limits.input_rounds
        if self._rounds >= most:
            raise UsageError(
                f"{self._call.described} has asked in {most} rounds and is still not done. Return a result when the "
                "answers are there, or raise Limits(input_rounds=...)."
            )
        self._rounds += 1
        answers = await _all(self._put(request) for request in signal.requests.values())
        self._journal.answers.update(zip(signal.requests, answers, strict=True))
        if signal.state is not None:
            self._journal.state = to_json(signal.state)
        self._begin_run()
        return True

    async def _put(self, request: InputRequest) -> RecordedAnswer:
        """Ask what a handler put into an `InputRequired`."""
        params = params_of(request)
        return RecordedAnswer(
            digest(request.method, _unnamed(params)), await self._send(request.method, _named(params))
        )

    def _pages(self, signal: UrlElicitationRequired) -> ProtocolError:
        """The error that lists the pages a user has to visit (L11-41)."""
        pages = [self._fitting(request.method, _named(params_of(request))) for request in signal.requests.values()]
        return ProtocolError("The user has to visit a page first.", code=PAGES_REQUIRED, data={"elicitations": pages})

    def _fitting(self, method: str, params: Any) -> Any:
        return self._call.era.question(method, params, self._call.envelope.revision)


def _named(params: Any) -> Any:
    """A page is sent with an id of its own, unless its handler gave it one (L11-39)."""
    if params is not None and params.get("mode") == "url":
        return {"elicitationId": secrets.token_urlsafe(16), **params}
    return params


def _unnamed(params: Any) -> Any:
    """What is asked: which id a page has makes it no other question."""
    return params if params is None else {name: value for name, value in params.items() if name != "elicitationId"}


async def _all(asks: Iterable[Coroutine[Any, Any, RecordedAnswer]]) -> list[RecordedAnswer]:
    """The answers to questions asked at once. When one fails the others are not needed any more: they are withdrawn."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    except Exception:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
