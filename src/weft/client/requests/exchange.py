"""Send requests: with retries and rounds of questions, for lists with several pages, and for completions.

In two cases a request is sent again, at most once in each. If the server no longer accepts the session or the protocol
version, the request is sent again after a new negotiation. If an HTTP connection failed, the request is sent again if
it only reads.

Questions of the stateless era are answered in rounds. A server may refuse a request until the user has visited web
pages (URL elicitation). Then the user is asked once about each page, and the request is sent again until the server
accepts it or a time limit has passed.

If a list changes while its pages are fetched, it is fetched once more. If the server does not declare the capability
for a list, the list is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import convert
from msgspec.structs import fields

from weft.client.argument_checks import as_texts, check_text, check_timeout, trim_traceback
from weft.client.callbacks import pause
from weft.client.connection.connection import (
    CallNotes,
    ClientConnection,
    ProgressCallback,
    RequestHandlers,
    code_and_data,
)
from weft.client.connection.negotiate import explained, session_gone
from weft.client.connection.transport import NO_HEADERS, Answer, Refused
from weft.client.handlers import WITHOUT_TASKS, declares_tasks, remedy_for
from weft.client.requests.cache import CACHEABLE, CacheView
from weft.client.results import PendingQuestions, ToolResult
from weft.eras.base import ServerHello
from weft.errors import (
    CannotAnswer,
    ConnectionFailed,
    InvalidAnswer,
    InvalidParams,
    MethodNotFound,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    UsageError,
    WeftError,
)
from weft.jsonrpc import values_in
from weft.limits import ClientLimits
from weft.net.rate import Allowance
from weft.types.base import Result
from weft.types.features import (
    CompleteResult,
    Completion,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)
from weft.types.interaction import InputRequiredResult
from weft.types.tasks import TaskState

log = logging.getLogger("weft.client")

R = TypeVar("R", bound=Result)
T = TypeVar("T")

_COMPLETE = (None, "complete")  # `resultType` of a complete result; it may be absent
_ASKS = "input_required"  # `resultType` of a result with questions
_TASK = "task"  # `resultType` of the handle of a task
_MAY_BE_TASK: frozenset[str | None] = frozenset({_TASK})
# Requests that only read, or have the same effect if they are sent twice. The server
# may have executed other requests although no response arrived.
_REPEATABLE = CACHEABLE | {
    "prompts/get", "completion/complete", "ping", "tasks/get", "tasks/update", "tasks/cancel", "tasks/result"
}  # fmt: skip
_ROUND = ("inputResponses", "requestState")  # params of one round: answers, and the state that the server sent
_QUESTIONS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class Options(msgspec.Struct, frozen=True):
    """The options of one request."""

    timeout: float | None = None
    progress: ProgressCallback | None = None
    headers: Mapping[str, str] = NO_HEADERS
    is_manual: bool = False  # raise PendingQuestions instead of answering the server's questions
    most_seconds: float | None = None  # limit of the total time with all progress; None for `limits.total_seconds`
    progress_token: str | None = None  # the server repeats it with each progress notification; None for the request id
    notes: CallNotes | None = None  # of a call that may become a task


_read_dict = msgspec.json.Decoder(dict[str, Any]).decode
_read_asks = msgspec.json.Decoder(InputRequiredResult).decode
_Read: TypeAlias = Callable[[bytes, str], T | InputRequiredResult]  # decodes the result of a request with this method


@dataclass(eq=False)
class Exchange:
    """Sends the requests of one connection, answers questions of the server, and uses the cache."""

    link: ClientConnection
    handlers: RequestHandlers
    limits: ClientLimits
    renew: Callable[[int], Awaitable[None]]  # negotiates again, unless `link.generation` has changed
    facts: Callable[[], ServerHello]  # returns the server's capabilities
    cache: CacheView | None

    def __post_init__(self) -> None:
        self.page_visits = UrlElicitationRetry(self.link, self.limits, self.answer)

    def request(self, method: str, params: Mapping[str, Any], type: type[R], options: Options) -> Awaitable[R]:
        """Send a request, answer the server's questions, and return the decoded result."""
        return self._rounds(method, params, options, partial(_read, type))

    def request_page(self, method: str, params: Mapping[str, Any], type: type[R]) -> Awaitable[tuple[R, bytes]]:
        """Send a request, answer the server's questions, and return the result twice: decoded, and as JSON bytes."""
        return self._rounds(method, params, Options(), partial(_read_page, type))

    def call(self, params: Mapping[str, Any], options: Options) -> Coroutine[Any, Any, ToolResult | TaskState]:
        """Send `tools/call`, answer the server's questions, and return the result, or the task of the call."""
        return self._rounds("tools/call", params, options, partial(self._read_call, params))

    async def fetch(self, method: str, params: Mapping[str, Any], options: Options) -> bytes:
        """Send a request that never asks questions, such as `tasks/get`, and return its encoded result."""
        try:
            return await self._send(method, params, options)
        except WeftError as error:
            trim_traceback(error)
            raise

    def request_raw(self, method: str, params: Mapping[str, Any], options: Options) -> Awaitable[dict[str, Any]]:
        """Send a request, answer the server's questions, and return the result as a dict."""
        return self._rounds(method, params, options, _read_object)

    async def _rounds(self, method: str, params: Mapping[str, Any], options: Options, read: _Read[T]) -> T:
        given: Mapping[str, Any] = params
        try:
            for _ in range(self.limits.rounds + 1):
                result = read(await self._fetch(method, given, options), method)
                if not isinstance(result, InputRequiredResult):
                    return result
                if options.is_manual:
                    raise PendingQuestions(result)
                given = {key: value for key, value in params.items() if key not in _ROUND}  # without earlier answers
                given |= await self._answers(result)
        except WeftError as error:
            trim_traceback(error)
            raise
        raise too_many_rounds(self.link, self.limits, f"asked, and did not answer {method},")

    def _read_call(
        self, params: Mapping[str, Any], raw: bytes, method: str
    ) -> ToolResult | TaskState | InputRequiredResult:
        """Decode the answer to `tools/call`. `params` are those of the request, which may ask for a task."""
        if "task" not in params:
            result = _read(ToolResult, raw, method, more=_MAY_BE_TASK)
            if result.result_type not in _MAY_BE_TASK:
                return result
        handle = self.link.era.tasks.read_handle(raw, params)
        return _read(ToolResult, raw, method) if handle is None else handle

    # --- one round

    def _fetch(self, method: str, params: Mapping[str, Any], options: Options) -> Awaitable[bytes]:
        """Return the encoded result of a request, from the cache if it has a fresh result, else from the server."""
        if self.cache is None or method not in CACHEABLE:
            return self._send(method, params, options)
        return self._fetch_cached(self.cache, method, params, options)

    async def _fetch_cached(self, cache: CacheView, method: str, params: Mapping[str, Any], options: Options) -> bytes:
        kept = await cache.get(method, params)
        if kept is not None:
            return kept
        mark = cache.mark()
        raw = await self._send(method, params, options)
        await cache.put(method, params, bytes(raw), mark)
        return raw

    async def _send(self, method: str, params: Mapping[str, Any], options: Options, *, was_lost: bool = False) -> bytes:
        """Send a request and return its encoded result.

        The request is sent again if the server no longer accepts the session or the protocol version, or if an HTTP
        connection failed and the request only reads, but not after a second such failure (`was_lost`). If the user must
        visit web pages first, the request is repeated after the visits. Raises ConnectionFailed if the session ended
        after the server had accepted the request, unless the request only reads.
        """
        link = self.link
        if link.settling is not None:
            await link.settling.wait()
        era, generation = link.era, link.generation
        try:
            return (await self._once(method, params, options)).result
        except (Refused, RemoteError) as error:
            code, data = code_and_data(error)
            status = error.status if isinstance(error, Refused) else 200
            if not options.is_manual and era.pages(code, data) is not None:
                failure = self._explained(error, method)
                if isinstance(failure, RemoteError):
                    return await self.page_visits.run(failure, lambda: self._again(method, params, options))
            if not era.is_over(status, code, data):
                raise self._explained(error, method) from None
            refused = error
        except ConnectionFailed as error:
            if was_lost or method not in _REPEATABLE or not link.transport.stream_per_request:
                raise
            log.debug("%s is sent again: %s", method, error)
            return await self._send(method, params, options, was_lost=True)
        await self.renew(generation)
        if isinstance(refused, Refused) and refused.was_seen and method not in _REPEATABLE:
            raise session_gone(refused, method)
        return await self._again(method, params, options)

    async def _again(self, method: str, params: Mapping[str, Any], options: Options) -> bytes:
        try:
            return (await self._once(method, params, options)).result
        except (Refused, RemoteError) as error:
            raise self._explained(error, method) from None

    def _explained(self, error: Refused | RemoteError, method: str) -> WeftError:
        """Return the exception to raise for an error that the server sent.

        If the server does not know the method, the exception names the method. If the server requires a capability that
        the client has not declared, the exception names the option that declares it.
        """
        failure = explained(error)
        if not isinstance(failure, RemoteError):
            return failure
        code, said, data = failure.code, failure.message.rstrip(". "), failure.data
        if code == MethodNotFound.code and method == "tools/call" and self._calls_may_be_tasks():
            if declares_tasks(self.handlers.capabilities):
                return failure
            told = RemoteError(code, f"{said}. {WITHOUT_TASKS}", data)  # this tool can only be called as a task
        elif code == MethodNotFound.code and method not in failure.message:
            told = RemoteError(code, f"{said}: the server does not offer {method}", data)
        elif remedy := remedy_for(data, self.handlers.capabilities):
            told = RemoteError(code, f"{said}. {remedy}", data)
        else:
            return failure
        told.status, told.retry_after = failure.status, failure.retry_after
        return told

    def _calls_may_be_tasks(self) -> bool:
        """Return whether the server has calls that become tasks if the client asks for it: then it has `tools/call`."""
        return self.link.era.tasks.must_ask(self.facts().capabilities)

    def _once(self, method: str, params: Mapping[str, Any], options: Options) -> Awaitable[Answer]:
        return self.link.roundtrip(
            method,
            params,
            headers=options.headers,
            seconds=options.timeout,
            most_seconds=options.most_seconds,
            progress=options.progress,
            progress_token=options.progress_token,
            notes=options.notes,
        )

    # --- questions

    async def _answers(self, asked: InputRequiredResult) -> dict[str, Any]:
        """Answer all questions, and return the params to add in the next round: the answers, and the server's state.

        Raises CannotAnswer if a question cannot be answered, and InvalidAnswer if the questions are invalid.
        """
        requests, state = asked.input_requests, asked.request_state
        if requests is None and state is None:
            raise InvalidAnswer("The server sent `input_required` with neither `inputRequests` nor `requestState`.")
        more: dict[str, Any] = {} if state is None else {"requestState": state}
        if requests is not None:
            check_number(len(requests), "asks", "questions", self.limits)
            answers = [self.answer(key, request.method, request.params) for key, request in requests.items()]
            more["inputResponses"] = dict(zip(requests, await _together(answers), strict=True))
        return more

    async def answer(self, key: str, method: str, params: Any) -> Any:
        """Answer one question of the server, and return the answer. Raises CannotAnswer if there is none."""
        if method not in _QUESTIONS:
            raise InvalidAnswer(f"The server asks for {method[:100]!r} ({key[:100]!r}), which the protocol forbids.")
        try:
            async with asyncio.timeout(self.limits.ask_seconds):
                return await self.handlers.answer(method, params or {})
        except ProtocolError as error:  # in rounds, no error can be sent to the server; the call just ends
            raise CannotAnswer(f"The server asked for {method} ({key[:100]!r}): {_why_not(error)}") from error
        except TimeoutError:
            raise CannotAnswer(f"The server asked for {method} ({key[:100]!r}), and got no answer in time.") from None


def check_number(number: int, verb: str, things: str, limits: ClientLimits) -> None:
    """Raise InvalidAnswer if the server asks, or names, more things at once than the limit `input_requests`."""
    if number > limits.input_requests:
        raise InvalidAnswer(f"The server {verb} {number} {things} at once, more than the limit `input_requests`.")


def too_many_rounds(link: ClientConnection, limits: ClientLimits, what: str) -> InvalidAnswer:
    """Return the error for a server that asks too many times in a row.

    `what` says in the error message what the server has done each time.
    """
    return InvalidAnswer(
        f"{link.transport.where} {what} {limits.rounds} times in a row; raise the limit `rounds` if that is expected."
    )


def _why_not(refusal: ProtocolError) -> str:
    """Return the reason why a question was not answered, for the exception that the program gets.

    The reason names the fields and types that are wrong, but contains no part of the answer.
    """
    cause = refusal.__cause__
    if isinstance(cause, UsageError):
        return str(cause)
    if cause is None:
        return refusal.message
    return f"the function that answers this raised {type(cause).__name__}; the log has its traceback."


def with_rounds(
    params: dict[str, Any], meta: Mapping[str, Any] | None, answers: Mapping[str, Any] | None, state: str | None
) -> dict[str, Any]:
    """Add `meta`, `answers` and `state`, where they are not None, to the params of a call. Return the params."""
    if meta is not None:
        params["_meta"] = dict(meta)
    if answers is not None:
        params["inputResponses"] = dict(answers)
    if state is not None:
        params["requestState"] = state
    return params


async def _together(questions: list[Any]) -> list[Any]:
    """Await all `questions` concurrently, and return their results.

    If one question fails, its exception is raised, and the other questions are cancelled.
    """
    tasks = [asyncio.ensure_future(question) for question in questions]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@cache
def _decoder(type: type[Result]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type)


def _read(
    type: type[R], raw: bytes, method: str, *, more: frozenset[str | None] = frozenset()
) -> R | InputRequiredResult:
    """Decode `raw` as a result of this type, or as the server's questions. Raises InvalidAnswer if `raw` is neither.

    `more` are values of `resultType` that are accepted besides those of the core protocol.
    """
    try:
        result: R = _decoder(type).decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            if (asked := _read_asks(raw)).result_type == _ASKS:
                return asked
        raise InvalidAnswer(f"The server's answer to {method} cannot be read: {error}.") from None
    if result.result_type in _COMPLETE or result.result_type in more:
        return result
    if result.result_type != _ASKS:
        kind = str(result.result_type)[:100]
        raise InvalidAnswer(f"The server's answer to {method} has the unknown resultType {kind!r}.")
    return _read_questions(raw)


def _read_page(type: type[R], raw: bytes, method: str) -> tuple[R, bytes] | InputRequiredResult:
    result = _read(type, raw, method)
    return result if isinstance(result, InputRequiredResult) else (result, bytes(raw))


def _read_questions(raw: bytes) -> InputRequiredResult:
    try:
        return _read_asks(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's questions cannot be read: {error}.") from None


def _read_object(raw: bytes, method: str) -> dict[str, Any] | InputRequiredResult:
    """Decode `raw` as a dict or, if the server asks questions, as these questions.

    Raises InvalidAnswer if `raw` cannot be decoded.
    """
    try:
        result = _read_dict(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's answer to {method} cannot be read: {error}.") from None
    if result.get("resultType") == _TASK and method != "tools/call":
        raise InvalidAnswer(f"The server's answer to {method} is a task, which only calls of tools can be.")
    return _read_questions(raw) if result.get("resultType") == _ASKS else result


_COMPLETE_NOTIFICATION = "notifications/elicitation/complete"


class _Complete(msgspec.Struct, rename="camel"):
    elicitation_id: str


@dataclass(eq=False)
class UrlElicitationRetry:
    """Repeats requests that a server refuses until the user has visited web pages (URL elicitation)."""

    link: ClientConnection
    limits: ClientLimits
    ask: Callable[[str, str, Any], Awaitable[Any]]  # asks the user a question, given by its key, method and params
    # By elicitation id: the event to set when the server reports that the user has finished on the page.
    _finished: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    def receive(self, method: str, params: bytes) -> None:
        """Handle the notification that the user has finished on a web page. Ignore other notifications."""
        if method == _COMPLETE_NOTIFICATION:
            finished = self._finished.pop(msgspec.json.decode(params, type=_Complete).elicitation_id, None)
            if finished is not None:
                finished.set()

    async def run(self, error: RemoteError, again: Callable[[], Awaitable[bytes]]) -> bytes:
        """Ask the user to visit the web pages that `error` names, and repeat the request until it succeeds.

        `again` sends the request and returns its encoded result. Raises the server's latest error if the user refuses,
        if the time limit `ask_seconds` has passed, or if the latest error names no pages. Raises InvalidAnswer if the
        server too often names new pages or reports finished pages.
        """
        now, finished = asyncio.get_running_loop().time, asyncio.Event()
        visited: set[str] = set()  # URLs of the pages that the user was asked about
        rounds = attempt = 0
        end = 0.0  # when to give up; each new page moves it
        while True:
            pages = self._pages(error)
            new = {str(page.get("url")): page for page in pages if str(page.get("url")) not in visited}
            rounds += 1 if new or finished.is_set() else 0
            if rounds > self.limits.rounds:
                raise too_many_rounds(self.link, self.limits, "named pages to visit")
            finished.clear()
            ids = [page["elicitationId"] for page in pages if isinstance(page.get("elicitationId"), str)]
            self._finished.update(dict.fromkeys(ids, finished))
            try:
                for page in new.values():
                    question = {"message": error.message, **page, "mode": "url"}
                    if (await self.ask("page", "elicitation/create", question))["action"] != "accept":
                        raise error
                if new:
                    visited |= new.keys()
                    attempt, end = 0, now() + self.limits.ask_seconds
                if now() >= end:
                    raise error
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause(attempt)):
                        await finished.wait()
            finally:
                for one in ids:
                    self._finished.pop(one, None)
            try:
                return await again()
            except RemoteError as refused:
                error = refused
                attempt += 1

    def _pages(self, error: RemoteError) -> list[Mapping[str, Any]]:
        """Return the web pages that an error names.

        Raises `error` itself if it names no pages, or if the client cannot ask the user. Raises InvalidAnswer if it
        names too many pages.
        """
        pages = self.link.era.pages(error.code, error.data)
        elicitation = self.link.capabilities.elicitation
        can_ask = elicitation is not None and elicitation.url is not None
        if not pages or not can_ask or not all(isinstance(page, dict) for page in pages):
            raise error
        check_number(len(pages), "names", "pages", self.limits)
        return cast("list[Mapping[str, Any]]", pages)


Page = TypeVar("Page", ListToolsResult, ListResourcesResult, ListResourceTemplatesResult, ListPromptsResult)


def means_no_list(error: RemoteError, cursor: str | None) -> bool:
    """Return whether an error means that the server does not have the requested list.

    `cursor` is the cursor of the requested page. Many servers declare `resources` but have no templates, and answer the
    request for the first page with -32601. For a later page, -32601 means something else.
    """
    return cursor is None and error.code == MethodNotFound.code


@dataclass(eq=False)
class ListPages:
    """Fetches the lists of one server, page by page."""

    exchange: Exchange
    limits: ClientLimits
    facts: Callable[[], ServerHello]  # returns the server's capabilities
    look_again: Callable[[ServerHello], Awaitable[None]]  # asks the server for its capabilities again
    _changed: set[str] = field(default_factory=set[str])  # lists that have changed, so the server has them

    async def one(self, method: str, type: type[Page], cursor: str | None) -> Page:
        """Return one page of a list. The page is empty if the server does not have this list.

        `method` requests the list, such as "tools/list". `cursor` is the `next_cursor` of the page before, or None for
        the first page.
        """
        page, _ = await self._one(method, type, cursor)
        return page

    async def _one(self, method: str, type: type[Page], cursor: str | None) -> tuple[Page, bytes]:
        """Return one page, and its encoded bytes. If the server does not have this list, both are empty."""
        if await self._is_there(method.partition("/")[0]):
            params = {} if cursor is None else {"cursor": cursor}
            try:
                return await self.exchange.request_page(method, params, type)
            except RemoteError as error:
                if not means_no_list(error, cursor):
                    raise
        empty: dict[str, list[Any]] = {one.encode_name: [] for one in fields(type) if one.required}
        return convert(empty, type), b""

    def receive(self, notification: str) -> None:
        """If the notification says that a list has changed, record that the server has this list."""
        kind, _, rest = notification.removeprefix("notifications/").partition("/")
        if rest == "list_changed":
            self._changed.add(kind)

    async def _is_there(self, capability: str) -> bool:
        """Return whether the server has the list of a capability, such as "tools".

        That is the case if the server has declared the capability, or has sent a notification that the list has
        changed. If neither is the case, the server is first asked for its capabilities again.
        """
        facts = self.facts()
        if capability not in self._changed and getattr(facts.capabilities, capability) is None:
            await self.look_again(facts)
        return capability in self._changed or getattr(facts.capabilities, capability) is not None

    async def all(self, method: str, type: type[Page], items: Callable[[Page], list[Any]]) -> list[Any]:
        """Return the items of all pages of a list. `items` returns the items of one page.

        If the server refuses the cursor of a later page, the list has changed, and the whole list is fetched once more.
        Raises InvalidAnswer if the list is too large.
        """
        try:
            return await self._walk(method, type, items)
        except _CursorRefused:
            if self.exchange.cache is not None:
                await self.exchange.cache.drop(method)
        return await self._walk(method, type, items)

    async def _walk(self, method: str, type: type[Page], items: Callable[[Page], list[Any]]) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        size = values = 0
        for _ in range(self.limits.pages):
            try:
                page, raw = await self._one(method, type, cursor)
            except RemoteError as error:
                if cursor is not None and error.code == InvalidParams.code:
                    raise _CursorRefused(error.code, error.message, error.data) from None
                raise
            if cursor is not None or page.next_cursor is not None:  # a single page was checked when it was decoded
                size, values = size + len(raw), values + values_in(raw)
                self._check(method, size, values)
            found += items(page)
            cursor = page.next_cursor
            if cursor is None:  # an empty cursor is a cursor, too
                return found
        most = self.limits.pages
        raise InvalidAnswer(f"{method} has more than {most} pages; raise the limit `pages`, or go page by page.")

    def _check(self, method: str, size: int, values: int) -> None:
        """Raise InvalidAnswer if the pages of a list are too large in total. The limits are those of one message.

        `size` is the total number of bytes so far, and `values` the total number of JSON values.
        """
        for count, limit in ((size, "message_bytes"), (values, "json_values")):
            most: int = getattr(self.limits, limit)
            if count > most:
                raise InvalidAnswer(
                    f"The pages of {method} exceed {most} together, the limit `{limit}`; raise it, or go page by page."
                )


class _CursorRefused(RemoteError):
    """The error for a cursor that the server refused."""


MOST_VALUES = 100
"""Maximum number of values in one completion. If a server sends more values, only the first 100 are used."""


class Suggestions:
    """Sends completion requests to one server, with a rate limit."""

    def __init__(self, exchange: Exchange, limits: ClientLimits) -> None:
        self._exchange = exchange
        self._allowance = Allowance(limits.completions_per_second, 1.0)
        self._line = asyncio.Lock()  # lets waiting requests continue in their order

    async def ask(self, params: Mapping[str, Any], timeout: float | None) -> Completion:
        """Wait until the rate limit allows a completion request, send it, and return the server's suggestions.

        `timeout` is the limit in seconds for waiting and sending together. Raises RequestTimeout if it is exceeded.
        """
        check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout) as limit, self._line:
                while seconds := self._allowance.wait():  # noqa: ASYNC110 - how long is known, and there is no event
                    await asyncio.sleep(seconds)
        except TimeoutError:
            raise RequestTimeout(f"`completions_per_second` allowed no request within {timeout:g} s.") from None
        end = limit.when()
        left = None if end is None else max(end - asyncio.get_running_loop().time(), 0.0)
        result = await self._exchange.request("completion/complete", params, CompleteResult, Options(left))
        found = result.completion
        if len(found.values) > MOST_VALUES:
            return Completion(found.values[:MOST_VALUES], found.total, has_more=True)
        return found


def completion_params(
    argument: str, value: str, prompt: str | None, template: str | None, arguments: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the params of a completion request.

    Raises UsageError unless exactly one of `prompt` and `template` is given.

    >>> completion_params("city", "Par", "plan", None, None)
    {'ref': {'type': 'ref/prompt', 'name': 'plan'}, 'argument': {'name': 'city', 'value': 'Par'}}
    """
    if (prompt is None) == (template is None):
        raise UsageError("Name what the argument belongs to: give either `prompt` or `template`.")
    owner = f"the prompt {prompt!r}" if prompt is not None else f"the template {template!r}"
    check_text(argument, value, owner)
    ref = {"type": "ref/prompt", "name": prompt} if prompt is not None else {"type": "ref/resource", "uri": template}
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
    if arguments:
        params["context"] = {"arguments": as_texts(arguments, owner)}
    return params
