"""Make requests: one with its retries and rounds of questions, a list with its pages, completions at a bounded rate.

A refusal is answered once: the client agrees with the server again, or asks again where that does no harm. Questions of
the stateless era are answered in rounds. Where a server refuses a request until pages were visited, the user is asked
about each page once, and the request is made again until the server accepts it, or time is up.

A list that changes while its pages are fetched is fetched once more; one that the server does not declare is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import convert
from msgspec.structs import fields

from weft.client.argument_checks import as_texts, check_texts, check_timeout, plainly
from weft.client.callbacks import pause
from weft.client.connection.connection import ClientConnection, ProgressCallback, RequestHandlers, code_and_data
from weft.client.connection.negotiate import explained, session_gone
from weft.client.connection.transport import NO_HEADERS, Answer, Refused
from weft.client.handlers import options_for
from weft.client.requests.cache import CACHEABLE, CacheView
from weft.client.results import PendingQuestions
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

log = logging.getLogger("weft.client")

R = TypeVar("R", bound=Result)
T = TypeVar("T")

_COMPLETE = (None, "complete")  # absent means complete
_ASKS = "input_required"
# What only reads: asking twice does no harm. All else may have happened although no answer came.
_REPEATABLE = CACHEABLE | {"prompts/get", "completion/complete", "ping"}
_QUESTIONS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class Options(msgspec.Struct, frozen=True):
    """How one request is made."""

    timeout: float | None = None
    progress: ProgressCallback | None = None
    headers: Mapping[str, str] = NO_HEADERS
    is_manual: bool = False  # questions are handed to the caller


class _Kind(msgspec.Struct, rename="camel"):
    result_type: str | None = None


_read_kind = msgspec.json.Decoder(_Kind).decode
_read_dict = msgspec.json.Decoder(dict[str, Any]).decode
_read_asks = msgspec.json.Decoder(InputRequiredResult).decode
_decoders: dict[type[Result], Any] = {}


class Exchange:
    """Makes requests on one connection."""

    def __init__(
        self,
        link: ClientConnection,
        handlers: RequestHandlers,
        limits: ClientLimits,
        *,
        renew: Callable[[int], Awaitable[None]],
        cache: CacheView | None,
    ) -> None:
        self._link = link
        self._handlers = handlers
        self._limits = limits
        self._renew = renew  # greets the server again, unless that was done since this generation
        self.cache = cache
        self.page_visits = UrlElicitationRetry(link, limits, self._answer)

    def request(self, method: str, params: Mapping[str, Any], type: type[R], options: Options) -> Awaitable[R]:
        """Make a request and read its result; what the server asks before it answers is answered."""
        return self._rounds(method, params, options, _read, type)

    def request_page(
        self, method: str, params: Mapping[str, Any], type: type[R], options: Options
    ) -> Awaitable[tuple[R, bytes]]:
        """Make a request, and return its result both decoded and as it came."""
        return cast("Awaitable[tuple[R, bytes]]", self._rounds(method, params, options, _read_page, type))

    def request_raw(self, method: str, params: Mapping[str, Any], options: Options) -> Awaitable[dict[str, Any]]:
        """Make a request, and return its result as it came."""
        return self._rounds(method, params, options, _read_object, dict[str, Any])

    async def _rounds(
        self,
        method: str,
        params: Mapping[str, Any],
        options: Options,
        read: Callable[[bytes, type[T], str], T | InputRequiredResult],
        type: type[T],
    ) -> T:
        given = params
        try:
            for _ in range(self._limits.rounds + 1):
                result = read(await self._fetch(method, given, options), type, method)
                if not isinstance(result, InputRequiredResult):
                    return result
                given = await self._next_round(params, result, options)
        except WeftError as error:
            plainly(error)
            raise
        raise InvalidAnswer(
            f"{self._link.transport.where} asked {self._limits.rounds} times in a row and did not answer {method}; "
            "raise the limit `rounds` if that is as it should be."
        )

    async def _next_round(
        self, params: Mapping[str, Any], asked: InputRequiredResult, options: Options
    ) -> Mapping[str, Any]:
        """Return the original params with the answers of this round alone."""
        if options.is_manual:
            raise PendingQuestions(asked)
        kept = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
        return {**kept, **await self._answers(asked)}

    # --- one round

    def _fetch(self, method: str, params: Mapping[str, Any], options: Options) -> Awaitable[bytes]:
        """Return the result as it came, from the server or the cache."""
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

    async def _send(self, method: str, params: Mapping[str, Any], options: Options) -> bytes:
        """Send; and once more, where the agreement is over, or nothing can happen twice."""
        link = self._link
        if link.settling is not None:
            await link.settling.wait()
        era, generation = link.era, link.generation
        try:
            return (await self._once(method, params, options)).result
        except (Refused, RemoteError) as error:
            code, data = code_and_data(error)
            status = error.status if isinstance(error, Refused) else 200
            failure = self._explained(error, method)
            if isinstance(failure, RemoteError) and not options.is_manual and era.pages(code, data) is not None:
                return await self.page_visits.run(failure, lambda: self._again(method, params, options))
            if not era.is_over(status, code, data):
                try:
                    raise failure from None
                finally:
                    del failure  # else it and this frame hold each other, and the whole answer with them
            refused = error
        except ConnectionFailed as error:
            if method not in _REPEATABLE or not link.transport.stream_per_request:
                raise
            log.debug("%s is asked again: %s", method, error)
            return await self._again(method, params, options)
        await self._renew(generation)
        if isinstance(refused, Refused) and refused.was_seen and method not in _REPEATABLE:
            raise session_gone(refused, method)
        return await self._again(method, params, options)

    async def _again(self, method: str, params: Mapping[str, Any], options: Options) -> bytes:
        try:
            return (await self._once(method, params, options)).result
        except (Refused, RemoteError) as error:
            raise self._explained(error, method) from None

    def _explained(self, error: Refused | RemoteError, method: str) -> WeftError:
        """Return a refusal as the caller gets it; with the option that declares a capability, where one is missing."""
        failure = explained(error)
        if not isinstance(failure, RemoteError):
            return failure
        code, said, data = failure.code, failure.message.rstrip(". "), failure.data
        if code == MethodNotFound.code and method not in failure.message:
            return RemoteError(code, f"{said}: the server does not offer {method}", data)
        if options := options_for(data, self._handlers.capabilities):
            return RemoteError(code, f"{said}. Give the client {options}.", data)
        return failure

    def _once(self, method: str, params: Mapping[str, Any], options: Options) -> Awaitable[Answer]:
        return self._link.roundtrip(
            method, params, headers=options.headers, seconds=options.timeout, progress=options.progress
        )

    # --- questions

    async def _answers(self, asked: InputRequiredResult) -> dict[str, Any]:
        """Return what is added to the params of the next round: all answers, and the state unchanged."""
        requests = asked.input_requests
        if requests is None and asked.request_state is None:
            raise InvalidAnswer("The server wants to be called again, but says neither with what nor why.")
        more: dict[str, Any] = {}
        if requests is not None:
            if len(requests) > self._limits.input_requests:
                raise InvalidAnswer(f"The server asks {len(requests)} questions at once; `input_requests` bounds them.")
            answered = await _together(
                [self._answer(key, request.method, request.params) for key, request in requests.items()]
            )
            more["inputResponses"] = dict(zip(requests, answered, strict=True))
        if asked.request_state is not None:
            more["requestState"] = asked.request_state
        return more

    async def _answer(self, key: str, method: str, params: Any) -> Any:
        if method not in _QUESTIONS:
            raise InvalidAnswer(f"The server asks for {method[:100]!r} ({key[:100]!r}), which no server may ask for.")
        try:
            async with asyncio.timeout(self._limits.ask_seconds):
                return await self._handlers.answer(method, params or {})
        except ProtocolError as error:  # there is no way to tell the server: it is simply not called again
            raise CannotAnswer(f"The server asked for {method} ({key[:100]!r}): {_why_not(error)}") from error
        except TimeoutError:
            raise CannotAnswer(f"The server asked for {method} ({key[:100]!r}), and nobody answered in time.") from None


def _why_not(refusal: ProtocolError) -> str:
    """Return why a question was not answered, for the program that has the function; the server gets less.

    Nothing that was answered is in it: what Weft finds wrong with an answer names fields and kinds alone.
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
    """Return the params of a call with what a caller adds by hand."""
    if meta is not None:
        params["_meta"] = dict(meta)
    if answers is not None:
        params["inputResponses"] = dict(answers)
    if state is not None:
        params["requestState"] = state
    return params


async def _together(questions: list[Any]) -> list[Any]:
    """Answer all at once; the first failure is raised as it is, and ends the others."""
    tasks = [asyncio.ensure_future(question) for question in questions]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read(raw: bytes, type: type[R], method: str) -> R | InputRequiredResult:
    """Read a result of the type expected, or questions; InvalidAnswer for anything else."""
    decoder = _decoders.get(type)
    if decoder is None:
        decoder = _decoders[type] = msgspec.json.Decoder(type)
    try:
        result: R = decoder.decode(raw)
        if result.result_type in _COMPLETE:
            return result
        kind: str | None = result.result_type
    except (msgspec.DecodeError, RecursionError) as error:
        kind = _kind(raw)
        if kind != _ASKS:
            raise InvalidAnswer(f"The server's answer to {method} cannot be read: {error}.") from None
    if kind != _ASKS:
        raise InvalidAnswer(f"The server's answer to {method} is of the unknown kind {str(kind)[:100]!r}.")
    return _read_questions(raw)


def _read_page(raw: bytes, type: Any, method: str) -> Any:
    result = _read(raw, type, method)
    return result if isinstance(result, InputRequiredResult) else (result, bytes(raw))


def _read_questions(raw: bytes) -> InputRequiredResult:
    try:
        return _read_asks(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's questions cannot be read: {error}.") from None


def _read_object(raw: bytes, _: Any, method: str) -> dict[str, Any] | InputRequiredResult:
    """Read a result as it came, or questions."""
    try:
        result = _read_dict(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's answer to {method} cannot be read: {error}.") from None
    return _read_questions(raw) if result.get("resultType") == _ASKS else result


def _kind(raw: bytes) -> str | None:
    try:
        return _read_kind(raw).result_type
    except (msgspec.DecodeError, RecursionError):
        return None


_COMPLETE_NOTIFICATION = "notifications/elicitation/complete"

_Ask = Callable[[str, str, Any], Awaitable[Any]]
"""Puts a question to the user: its key, its method, its params. Returns the answer."""

_Again = Callable[[], Awaitable[bytes]]
"""Makes the request again."""


class _Complete(msgspec.Struct, rename="camel"):
    elicitation_id: str


class _PageVisits:
    """The pages that one request waits for."""

    def __init__(self) -> None:
        self.end = 0.0  # when one gives up, unless there is a new page
        self.visited: set[str] = set()  # the pages that the user was asked about, by URL
        self.rounds = 0
        self.news = asyncio.Event()  # the user is done with a page


class UrlElicitationRetry:
    """The pages that requests of one client wait for."""

    def __init__(self, link: ClientConnection, limits: ClientLimits, ask: _Ask) -> None:
        self._link = link
        self._limits = limits
        self._ask = ask
        self._waiting: dict[str, _PageVisits] = {}  # by the ids of pages; unknown ids are ignored

    def heard(self, method: str, params: bytes) -> None:
        """Take a notification that a page is done."""
        if method == _COMPLETE_NOTIFICATION:
            visits = self._waiting.pop(msgspec.json.decode(params, type=_Complete).elicitation_id, None)
            if visits is not None:
                visits.news.set()

    async def run(self, error: RemoteError, again: _Again) -> bytes:
        """Do what the error asks for, and make the request again. Any other error is raised as it is."""
        visits = _PageVisits()
        attempt = 0
        while True:
            pages = self._pages(error)
            ids = [page["elicitationId"] for page in pages if isinstance(page.get("elicitationId"), str)]
            self._waiting.update(dict.fromkeys(ids, visits))
            try:
                if await self._ask_about(pages, visits, error):
                    attempt = 0
                await self._wait(visits, attempt, error)
            finally:
                for one in ids:
                    self._waiting.pop(one, None)
            try:
                return await again()
            except RemoteError as refused:
                error = refused
                attempt += 1

    def _pages(self, error: RemoteError) -> list[Mapping[str, Any]]:
        """Return the pages that an error names; raise it where it names none, or the user cannot be asked."""
        pages = self._link.era.pages(error.code, error.data)
        elicitation = self._link.capabilities.elicitation
        if not pages or elicitation is None or elicitation.url is None:
            raise error
        if len(pages) > self._limits.input_requests:
            raise InvalidAnswer(f"The server names {len(pages)} pages at once; `input_requests` bounds them.")
        if not all(isinstance(page, dict) for page in pages):
            raise error
        return cast("list[Mapping[str, Any]]", pages)

    async def _ask_about(self, pages: list[Mapping[str, Any]], visits: _PageVisits, error: RemoteError) -> bool:
        """Ask about the pages that are new, one after the other; whether there were any. A refusal raises the error."""
        new = [page for page in pages if str(page.get("url")) not in visits.visited]
        if new or visits.news.is_set():
            visits.rounds += 1
            if visits.rounds > self._limits.rounds:
                raise InvalidAnswer(
                    f"{self._link.transport.where} named pages to visit {self._limits.rounds} times in a row; raise "
                    "the limit `rounds` if that is as it should be."
                )
        visits.news.clear()
        for page in new:
            visits.visited.add(str(page.get("url")))
            answer = await self._ask("page", "elicitation/create", {"message": error.message, **page, "mode": "url"})
            if answer["action"] != "accept":
                raise error
        if new:
            visits.end = asyncio.get_running_loop().time() + self._limits.ask_seconds
        return bool(new)

    async def _wait(self, visits: _PageVisits, attempt: int, error: RemoteError) -> None:
        """Wait until the user is done, or it is time to look whether they are; in all, as long as for any question."""
        if asyncio.get_running_loop().time() >= visits.end:
            raise error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause(attempt)):
                await visits.news.wait()


Page = TypeVar("Page", ListToolsResult, ListResourcesResult, ListResourceTemplatesResult, ListPromptsResult)


def says_none(error: RemoteError, cursor: str | None) -> bool:
    """Return whether the refusal of a page says that there is no such list.

    Many servers declare `resources`, know no templates, and answer -32601. In the middle of a list it means another
    thing.
    """
    return cursor is None and error.code == MethodNotFound.code


class ListPages:
    """The lists of one server."""

    def __init__(
        self,
        exchange: Exchange,
        limits: ClientLimits,
        facts: Callable[[], ServerHello],
        look_again: Callable[[ServerHello], Awaitable[None]],
    ) -> None:
        self._exchange = exchange
        self._limits = limits
        self._facts = facts
        self._look_again = look_again
        self._changed: set[str] = set()  # lists that the server has told of, so it has them

    async def one(self, method: str, type: type[Page], cursor: str | None) -> Page:
        """Return one page; its `next_cursor` leads to the next. A list that the server does not have is empty."""
        page, _ = await self._one(method, type, cursor)
        return page

    async def _one(self, method: str, type: type[Page], cursor: str | None) -> tuple[Page, bytes]:
        """Return one page, and its bytes."""
        if await self._is_there(method.partition("/")[0]):
            params = {} if cursor is None else {"cursor": cursor}
            try:
                return await self._exchange.request_page(method, params, type, Options())
            except RemoteError as error:
                if not says_none(error, cursor):
                    raise
        empty: dict[str, list[Any]] = {one.encode_name: [] for one in fields(type) if one.required}
        return convert(empty, type), b""

    def heard(self, notification: str) -> None:
        """Note that the server has a list that it says has changed."""
        kind, _, rest = notification.removeprefix("notifications/").partition("/")
        if rest == "list_changed":
            self._changed.add(kind)

    async def _is_there(self, capability: str) -> bool:
        """Return whether the server has such lists. One that had none before may have got them since."""
        facts = self._facts()
        if capability not in self._changed and getattr(facts.capabilities, capability) is None:
            await self._look_again(facts)
        return capability in self._changed or getattr(facts.capabilities, capability) is not None

    async def all(self, method: str, type: type[Page], items: Callable[[Page], list[Any]]) -> list[Any]:
        """Return all items. A cursor that is refused half-way means that the list has changed: it is fetched again."""
        try:
            return await self._walk(method, type, items)
        except _CursorRefused:
            if self._exchange.cache is not None:
                await self._exchange.cache.drop(method)
        try:
            return await self._walk(method, type, items)
        except _CursorRefused as refused:
            raise refused.error from None

    async def _walk(self, method: str, type: type[Page], items: Callable[[Page], list[Any]]) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        size = values = 0
        for _ in range(self._limits.pages):
            try:
                page, raw = await self._one(method, type, cursor)
            except RemoteError as error:
                if cursor is not None and error.code == InvalidParams.code:
                    raise _CursorRefused(error) from None
                raise
            if cursor is not None or page.next_cursor is not None:  # one page alone was counted when it came
                size, values = size + len(raw), values + values_in(raw)
                self._check(method, size, values)
            found += items(page)
            cursor = page.next_cursor
            if cursor is None:  # any other is one more page, the empty one too
                return found
        most = self._limits.pages
        raise InvalidAnswer(f"{method} has more than {most} pages; raise the limit `pages`, or go page by page.")

    def _check(self, method: str, size: int, values: int) -> None:
        """Raise InvalidAnswer when pages together are more than one message may be: all are kept until the last."""
        limits = self._limits
        if size > limits.message_bytes:
            most, limit = f"{limits.message_bytes} bytes", "message_bytes"
        elif values > limits.json_values:
            most, limit = f"{limits.json_values} values", "json_values"
        else:
            return
        raise InvalidAnswer(
            f"The pages of {method} have more than {most} together; raise the limit `{limit}`, or go page by page."
        )


class _CursorRefused(Exception):
    """Inside this module only."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__()
        self.error = error


MOST_VALUES = 100
"""So many values may be in one answer; whatever a server sends beyond them is left out."""


class Suggestions:
    """Asks one server for suggestions."""

    def __init__(self, exchange: Exchange, limits: ClientLimits) -> None:
        self._exchange = exchange
        self._allowance = Allowance(limits.completions_per_second, 1.0)
        self._line = asyncio.Lock()

    async def ask(self, params: Mapping[str, Any], timeout: float | None) -> Completion:
        """Return the values that the server suggests, in its order."""
        check_timeout(timeout)
        left = await self._turn(timeout)
        result = await self._exchange.request("completion/complete", params, CompleteResult, Options(left))
        found = result.completion
        if len(found.values) > MOST_VALUES:
            return Completion(found.values[:MOST_VALUES], found.total, has_more=True)
        return found

    async def _turn(self, timeout: float | None) -> float | None:
        """Wait for the allowed rate, first come, first served; return what is left of the timeout."""
        try:
            async with asyncio.timeout(timeout) as limit, self._line:
                while seconds := self._allowance.wait():  # noqa: ASYNC110 - how long is known, and there is no event
                    await asyncio.sleep(seconds)
        except TimeoutError:
            raise RequestTimeout(
                f"The turn of this completion/complete did not come within {timeout:g} s: more are asked for than "
                "`completions_per_second` has. Ask when the user pauses, or raise the limit."
            ) from None
        end = limit.when()
        return None if end is None else max(end - asyncio.get_running_loop().time(), 0.0)


def completion_params(
    argument: str, value: str, prompt: str | None, template: str | None, arguments: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the params of a request for suggestions; UsageError where they are not clear.

    >>> completion_params("city", "Par", "plan", None, None)
    {'ref': {'type': 'ref/prompt', 'name': 'plan'}, 'argument': {'name': 'city', 'value': 'Par'}}
    """
    if (prompt is None) == (template is None):
        raise UsageError("Name what the argument belongs to: give either `prompt` or `template`.")
    owner = f"the prompt {prompt!r}" if prompt is not None else f"the template {template!r}"
    check_texts({argument: value}, owner)
    texts = as_texts(arguments, owner)
    ref = {"type": "ref/prompt", "name": prompt} if prompt is not None else {"type": "ref/resource", "uri": template}
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
    if texts:
        params["context"] = {"arguments": texts}
    return params
