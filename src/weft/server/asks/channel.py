"""Channel: how a handler asks a client that has a session. The question is sent, and the answer awaited.

It goes out on the stream of the call that asks, so that the client sees what it belongs to; where the call has no
stream, on the one that belongs to no call.

A handler that returns its questions is called again with the answers, and may ask on the way as well. So there is a
journal here too, like that of a `Round`: what was answered is not asked again.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import NoBackChannelError, ProtocolError, QuestionFailed, RemoteError, RequestTimeout, UsageError
from weft.protocol.journal import Answer, Journal, Keys, digest
from weft.server.asks.asks import check_request, params_of
from weft.server.asks.once import Once, to_json
from weft.server.asks.rounds import InputRequired, UrlElicitationRequired, check_asks, check_number
from weft.types.interaction import InputRequest

if TYPE_CHECKING:
    from weft.server.call import Call

__all__ = ["Channel"]

PAGES_REQUIRED = -32042  # L11-41


class Channel:
    """Asks over the channel of a session, and waits."""

    def __init__(self, call: Call) -> None:
        self._call: Call = weakref.proxy(call)  # which has this: a cycle would keep both until a collection finds it
        self._journal = Journal.empty()  # what a handler that is called again has asked and done before
        self._once = Once(call.server, self._journal.once)
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
            self._journal.answers[name] = Answer(question, answer)
        return answer

    async def _send(self, method: str, params: Any) -> msgspec.Raw:
        call, seconds = self._call, self._call.server.limits.ask_seconds
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
        most = self._call.server.limits.input_rounds
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

    async def _put(self, request: InputRequest) -> Answer:
        """Ask what a handler put into an `InputRequired`."""
        params = params_of(request)
        return Answer(digest(request.method, _unnamed(params)), await self._send(request.method, _named(params)))

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


async def _all(asks: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """The answers to questions asked at once. When one fails the others are not needed any more: they are withdrawn."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    except Exception:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
