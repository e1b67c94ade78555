"""Channel: how a handler asks a client that has a session. The question is sent, and the answer awaited.

It goes out on the stream of the call that asks, so that the client sees what it belongs to; where the call has no
stream, on the one that belongs to no call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import NoBackChannelError, ProtocolError, QuestionFailed, RemoteError, RequestTimeout, UsageError
from weft.server.asks import check_request
from weft.server.rounds import InputRequired, Once, UrlElicitationRequired, to_json
from weft.types.interaction import InputRequest

if TYPE_CHECKING:
    from weft.server.call import Call

__all__ = ["Channel"]

PAGES_REQUIRED = -32042  # L11-41


class Channel:
    """Asks over the channel of a session, and waits."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._once = Once(call, {})
        self._rounds = 0
        self.answers: Mapping[str, msgspec.Raw] = {}  # to the questions of an `InputRequired` that was returned
        self.state: msgspec.Raw | None = None  # and its state

    @property
    def is_retry(self) -> bool:
        """Whether the handler was called before, for the same purpose."""
        return self._rounds > 0

    def name_page(self) -> str | None:
        """An id by which the client is told that the user is done there (L11-39, L11-40)."""
        return secrets.token_urlsafe(16)

    async def ask(self, method: str, params: Any, key: str | None) -> msgspec.Raw:
        """Send the question; the key is not needed, for the answer comes back to this very place."""
        call, seconds = self._call, self._call.server.limits.ask_seconds
        fitting = call.era.question(method, params, call.envelope.revision)
        try:
            if call.session is not None and call.reply.can_stream:
                answer = await call.session.outstanding.request(call.reply.notify, method, fitting, timeout=seconds)
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

    async def once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """The handler is run again only if it returns its questions, but it may come by here more than once."""
        return await self._once.result(key, fn, args, type)

    async def settle(self, signal: InputRequired) -> bool:
        """Ask what a handler returned as questions, so that it can be called again with the answers."""
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
        answers = await _all(self._send(request) for request in signal.requests.values())
        self.answers = {**self.answers, **dict(zip(signal.requests, answers, strict=True))}
        self.state = None if signal.state is None else to_json(signal.state)
        return True

    async def _send(self, request: InputRequest) -> msgspec.Raw:
        params: Any = None if request.params is msgspec.UNSET else msgspec.to_builtins(request.params)
        return await self.ask(request.method, self._named(params), None)

    def _named(self, params: Any) -> Any:
        if params is not None and params.get("mode") == "url":
            return {**params, "elicitationId": self.name_page()}
        return params

    def _pages(self, signal: UrlElicitationRequired) -> ProtocolError:
        """The error that lists the pages a user has to visit (L11-41)."""
        pages: list[Any] = [self._named(msgspec.to_builtins(request.params)) for request in signal.requests.values()]
        fitting = [self._call.era.question("elicitation/create", page, self._call.envelope.revision) for page in pages]
        message = "The user has to visit a page first."
        return ProtocolError(message, code=PAGES_REQUIRED, data={"elicitations": fitting})


async def _all(asks: Iterable[Coroutine[Any, Any, msgspec.Raw]]) -> list[msgspec.Raw]:
    """The answers to questions asked at once. When one fails the others are not needed any more: they are withdrawn."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return await asyncio.gather(*tasks)
    except Exception:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
