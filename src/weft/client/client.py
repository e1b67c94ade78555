"""Connect to a server and call it: `Client`; and join the tools of several clients.

`Client` has the public methods and the life of a connection, and leaves the work to other modules. It knows neither
which era is spoken nor how messages travel.

`ConnectLock` serializes what changes a connection: connecting, reconnecting, greeting again. A close interrupts the
change under way, and both it and all that wait end with ConnectionFailed. The interrupted change ends the connection
itself, so that nothing stays open if the closing task is cancelled.

The names of joined tools begin with the name that the program gave to the server, not with what a server calls itself.
So no server can give a tool the name of another server's tool.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import msgspec
from msgspec import UNSET

from weft.client.argument_checks import (
    as_texts,
    check_limits,
    explain_arguments,
    kind_of,
    not_connected,
    plainly,
    read_extensions,
    read_level,
    resource_not_found,
)
from weft.client.callbacks import queue_for
from weft.client.connection.connection import ClientConnection, ProgressCallback, code_and_data
from weft.client.connection.negotiate import Memory, Negotiator, eras_for, explained
from weft.client.connection.transport import NO_HEADERS, Refused
from weft.client.handlers import (
    ConfirmFunction,
    Confirming,
    FormFunction,
    LogFunction,
    RootsFunction,
    SampleFunction,
    ServerRequestHandlers,
    UrlFunction,
)
from weft.client.questions import RootLike
from weft.client.requests.cache import ResponseCache, Toolbox, authorization_partition, cache_from, unique_name, whose
from weft.client.requests.exchange import Exchange, ListPages, Options, Suggestions, completion_params, with_rounds
from weft.client.requests.subscriptions import Listening, Subscriptions, wish_for
from weft.client.results import ToolCallFailed, ToolResult, read_value
from weft.client.targets import Dialled, dial
from weft.eras.base import EraName, ServerHello
from weft.errors import ConnectionFailed, HeaderMismatch, RemoteError, UsageError, WeftError
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits
from weft.protocol.headers import encode_value
from weft.types.base import EmptyResult, Implementation, LogLevel, RequestId
from weft.types.features import (
    Completion,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    Tool,
)
from weft.types.lifecycle import ServerCapabilities

if TYPE_CHECKING:
    from weft.client.connection.transport import Auth, Transport

T = TypeVar("T")


def closed() -> ConnectionFailed:
    """Return the error of an operation that a close has interrupted."""
    return ConnectionFailed("The client was closed meanwhile.")


class ConnectLock:
    """Serialize connecting, reconnecting and greeting again; a close interrupts them."""

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end = end  # ends the connection, if there is one
        self._is_ending = False
        self.turn = asyncio.Lock()
        self.changing: asyncio.Task[Any] | None = None  # has the turn, and was not told yet to stop
        self.closings = 0  # how often it was closed: a change that began before the last time does not go on

    def change(self) -> _Change:
        """Return a turn, for `async with`; ConnectionFailed when the client is closed before it is over."""
        return _Change(self)

    async def close(self) -> None:
        """Stop the change under way, and end the connection."""
        self.closings += 1
        here, changing = asyncio.current_task(), self.changing
        assert here is not None
        if self._is_ending and here.cancelling():
            return  # the task that ends the connection waits for this one
        if changing is not None:
            self.changing = None
            changing.cancel()  # this very task, where connecting has called a function that closes: it ends there
        async with self.turn:
            await self.end()

    async def end(self) -> None:
        """End the connection. The caller has the turn."""
        self._is_ending = True
        try:
            await self._end()
        finally:
            self._is_ending = False


class _Change:
    """One turn. As with a timeout, the task's own cancellation stays one, and that by a close becomes an error."""

    def __init__(self, life: ConnectLock) -> None:
        self._life = life

    async def __aenter__(self) -> None:
        life, task = self._life, asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()  # by others, before
        self._closings = life.closings
        await life.turn.acquire()
        if life.closings != self._closings:
            life.turn.release()
            raise closed()
        life.changing = task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        life, task = self._life, self._task
        if life.changing is None:
            task.uncancel()  # by the one who closes
        life.changing = None
        try:
            if life.closings == self._closings:
                return
            await life.end()
        finally:
            life.turn.release()
        is_ours = isinstance(error, asyncio.CancelledError) and task.cancelling() <= self._cancelling
        if error is None or isinstance(error, WeftError) or is_ours:
            raise closed() from None


_memory = Memory()  # what was found out about servers, in this process


class Client:
    """A connection to one server, of either era, over any transport.

    `target` is a URL or `Http`, a command (list or text) or `Command`, a `Server`, an ASGI app or `Asgi`, a transport,
    or an `mcpServers` configuration: one entry, or all of it, or the `Path` of its file, with `server` to choose one.
    `auth` is a login, or a token as text, for a URL or an app.

        async with Client("https://flights.example/mcp") as client:
            result = await client.call_tool("book", {"flight": "LX38"})
            print(result.text)

    Without `async with`, call `connect` first and `close` at the end, from whatever tasks. What the server may ask is
    answered by functions (`elicit`, `sample`, `roots` …): a capability is declared because its function is there.
    """

    _opening = "async with"  # how a user opens it, for messages

    def __init__(
        self,
        target: Any,
        *,
        eras: Sequence[EraName] = ("stateless", "session"),
        version: str | None = None,
        server: str | None = None,
        auth: Auth | str | None = None,
        info: Implementation | None = None,
        elicit: FormFunction | None = None,
        elicit_url: UrlFunction | None = None,
        sample: SampleFunction | None = None,
        sample_with_tools: SampleFunction | None = None,
        roots: Iterable[RootLike] | RootsFunction | None = None,
        extensions: Mapping[str, Mapping[str, Any]] | None = None,
        confirm: ConfirmFunction | None = None,
        on_log: LogFunction | None = None,
        log_level: LogLevel | None = None,
        on_notification: Callable[[str, Any], Any] | None = None,
        cache: ResponseCache | bool = True,
        check_output: bool = True,
        manual_input: bool = False,
        limits: ClientLimits = DEFAULT_CLIENT_LIMITS,
    ) -> None:
        self._limits = check_limits(limits)
        self._eras = eras_for(eras, version)
        self._is_pinned = len(self._eras) == 1 or version is not None
        self._info = info or Implementation("weft", sys.modules["weft"].__version__)  # it imports this, not vice versa
        self._dial: Callable[[], Dialled] = lambda: dial(target, limits, server=server, auth=auth)
        dialled = self._dial()
        self._dialled: Dialled | None = dialled  # for the next connection
        self._url = dialled.key  # of the server, where it has one
        self._handlers = ServerRequestHandlers(
            elicit=elicit,
            elicit_url=elicit_url,
            sample=sample,
            sample_with_tools=sample_with_tools,
            roots=roots,
            log=on_log,
            limits=limits,
        )
        self._confirming = None if confirm is None else Confirming(confirm)
        declared = read_extensions(extensions)
        if (extension := getattr(dialled.auth, "extension", None)) is not None:
            declared.setdefault(extension, {})
        self._handlers.capabilities.extensions = declared or None
        self._on_notification = queue_for(on_notification, limits.changes_kept, "on_notification(method, params)")
        self._log_level: LogLevel | None = None if log_level is None else read_level(log_level)
        self._cache = cache_from(cache, limits)
        self._is_caching = cache is not False
        self._check_output = check_output
        self._is_manual = manual_input
        self._toolbox = Toolbox()
        self._life = ConnectLock(self._end)  # connecting, greeting again, and closing, from any task
        self._opened: ClientConnection | None = None  # to be closed
        self._link: ClientConnection | None = None  # the same, once it is agreed what is spoken
        self._welcome: ServerHello | None = None

    # --- the life of a connection

    if not TYPE_CHECKING:  # type checkers know that there is none

        def __enter__(self) -> Self:
            raise UsageError(
                "weft.Client is opened by `async with`, in an async function; in code that does not await, use `with "
                "weft.sync.Client(...)`."
            )

        def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, and find out which era the server speaks; do nothing where that was done already."""
        async with self._life.change():
            if self._link is not None:
                self._link.check_loop()
                return
            await self._life.end()  # finish an interrupted close
            dialled, self._dialled = self._dialled or self._dial(), None  # each connection has its own
            link = self._opened = ClientConnection(
                dialled.transport, self._eras[0], self._handlers, self._info, self._limits
            )
            self._put_together(link, dialled)
            try:
                await link.open()
                await self._greet(link)
            except BaseException as error:
                await self._life.end()
                plainly(error)
                raise
            self._link = link

    def _put_together(self, link: ClientConnection, dialled: Dialled) -> None:
        link.log_level = self._log_level
        link.on_notification = self._heard
        self._negotiator = Negotiator(
            link,
            self._eras,
            info=self._info,
            capabilities=lambda: self._handlers.capabilities,
            limits=self._limits,
            memory=Memory() if dialled.key is None or self._is_pinned else _memory,  # what was pinned is no finding
            key=dialled.key or "here",
            old_transport=dialled.old_transport,
        )
        view = None
        if self._is_caching:
            name = dialled.key or f"{dialled.transport.where} {unique_name(self)}"
            view = self._cache.view(name, authorization_partition({**dialled.headers, **whose(dialled.auth)}))
        self._exchange = Exchange(link, self._handlers, self._limits, renew=partial(self._renew, link), cache=view)
        self._pages = ListPages(self._exchange, self._limits, self._facts, self._negotiator.look_again)
        self._suggestions = Suggestions(self._exchange, self._limits)
        self._subscriptions = Subscriptions(link, self._limits, self.request, self._facts)
        link.on_stream_reopened = self._subscriptions.reopened
        link.on_silence = self._subscriptions.silenced
        link.on_over = partial(self._renew, link)

    async def _greet(self, link: ClientConnection, *, is_reopening: bool = False) -> None:
        self._welcome = await self._negotiator.negotiate(is_reopening=is_reopening)
        info, where = self._welcome.server_info, link.transport.where
        self._handlers.server = where if info is None else f"{info.display_name} ({where})"
        if self._log_level is not None and self._welcome.capabilities.logging is not None:
            request = link.era.log_request(self._log_level)
            if request is not None:
                with suppress(WeftError):  # no reason to fail, nor to greet again
                    await link.roundtrip(*request)

    async def _renew(self, link: ClientConnection, generation: int) -> None:
        """Greet the server again, once for all requests that found that it is needed."""
        async with self._life.change():
            if self._link is not link:
                raise closed()
            if link.generation == generation:
                await self._greet(link)
                link.spawn(self._subscriptions.renewed())

    async def reconnect(self) -> None:
        """Start over: a child process is started again. Requests under way are lost; listening goes on."""
        async with self._life.change():
            link = self._connected()
            await self._greet(link, is_reopening=True)
            link.spawn(self._subscriptions.renewed())

    async def close(self) -> None:
        """End the connection, or the connecting. What is under way gets a ConnectionFailed; no task is left behind."""
        await self._life.close()

    async def _end(self) -> None:
        link = self._opened
        if link is None:
            return
        link.check_loop()
        self._link = None
        self._subscriptions.close()
        try:
            await link.close()
            self._opened = None  # not reached when the closing task is cancelled: the next close waits for the rest
        finally:
            await self._handlers.close()
            if self._on_notification is not None:
                await self._on_notification.stop()

    def _connected(self) -> ClientConnection:
        if self._link is None:
            raise not_connected(self._opening, was_closed=self._life.closings > 0)
        return self._link

    # --- what was found out

    @property
    def era(self) -> str:
        """The era that is spoken: "stateless" or "session"."""
        return self._connected().era.name

    @property
    def protocol_version(self) -> str:
        """The version that is spoken."""
        return self._connected().era.version

    @property
    def server_info(self) -> Implementation | None:
        """Name and version of the server, if it told."""
        return self._facts().server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """What the server offers."""
        return self._facts().capabilities

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used, in its own words."""
        return self._facts().instructions

    @property
    def transport(self) -> Transport:
        """How messages travel; a child process has its `stderr` and `pid` here."""
        return self._connected().transport

    def _facts(self) -> ServerHello:
        self._connected()
        assert self._welcome is not None
        return self._welcome

    def _lists(self) -> ListPages:
        self._connected()
        return self._pages

    # --- tools

    async def list_tools(self) -> list[Tool]:
        """Return all tools that can be used."""
        tools = await self._lists().all("tools/list", ListToolsResult, lambda page: page.tools)
        return self._learn(tools, self._toolbox.learn_all)

    async def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of tools; its `next_cursor` leads to the next."""
        page = await self._lists().one("tools/list", ListToolsResult, cursor)
        page.tools = self._learn(page.tools, self._toolbox.learn)
        return page

    def _learn(self, tools: list[Tool], learn: Callable[..., list[Tool]]) -> list[Tool]:
        link = self._connected()
        return learn(tools, mirrors=link.era.mirrors_params and link.transport.stream_per_request)

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: None = None,
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> ToolResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> T: ...

    @explain_arguments
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: Any = None,
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> Any:
        """Call a tool. A tool that failed is a result with `is_error`; RemoteError is a call that could not be made.

        With `raise_on_error`, a tool that failed raises `ToolCallFailed`. With `result_type`, it does too, and what the
        tool returned is returned as a value of this type; InvalidAnswer when it is none. With `manual_input`, questions
        of the server are raised as `PendingQuestions`: call again with `answers` and `state`.
        """
        self._connected()
        given = arguments or {}
        if self._confirming is not None:
            given = await self._confirming.agreed(name, given, self._handlers.server)
        params = with_rounds({"name": name, "arguments": given}, meta, answers, state)
        try:
            options = Options(timeout, progress, self._toolbox.headers(name, given), self._is_manual)
            result = await self._exchange.request("tools/call", params, ToolResult, options)
        except RemoteError as error:
            if error.code != HeaderMismatch.code:
                raise
            if self._exchange.cache is not None:  # what is known of its headers is wrong, or nothing is
                await self._exchange.cache.drop("tools/list")
            await self.list_tools()
            options = Options(timeout, progress, self._toolbox.headers(name, given), self._is_manual)
            result = await self._exchange.request("tools/call", params, ToolResult, options)
        if self._check_output:
            if not self._toolbox.knows(name) and result.structured_content is not UNSET:
                await self._get_to_know()
            self._toolbox.check(name, result)
        if result.is_error and (raise_on_error or result_type is not None):
            raise ToolCallFailed(name, result)
        return result if result_type is None else read_value(name, result, result_type)

    async def _get_to_know(self) -> None:
        """Fetch the list of tools, once, if it never was: an output is to be checked."""
        if not self._toolbox.is_complete:
            self._toolbox.is_complete = True
            with suppress(WeftError):  # the call itself was done
                await self.list_tools()

    # --- resources

    async def list_resources(self) -> list[Resource]:
        """Return all resources."""
        return await self._lists().all("resources/list", ListResourcesResult, lambda page: page.resources)

    async def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """Return one page of resources."""
        return await self._lists().one("resources/list", ListResourcesResult, cursor)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates."""
        return await self._lists().all(
            "resources/templates/list", ListResourceTemplatesResult, lambda page: page.resource_templates
        )

    async def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """Return one page of resource templates."""
        return await self._lists().one("resources/templates/list", ListResourceTemplatesResult, cursor)

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> ReadResourceResult:
        """Read a resource; a RemoteError with `not_found` when the server has none of this URI."""
        link = self._connected()
        params = with_rounds({"uri": uri}, None, answers, state)
        options = Options(timeout, progress, is_manual=self._is_manual)
        try:
            return await self._exchange.request("resources/read", params, ReadResourceResult, options)
        except RemoteError as error:
            if link.era.is_missing(error.code, error.data):
                raise resource_not_found(error, uri) from None
            raise

    # --- prompts

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts."""
        return await self._lists().all("prompts/list", ListPromptsResult, lambda page: page.prompts)

    async def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """Return one page of prompts."""
        return await self._lists().one("prompts/list", ListPromptsResult, cursor)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str | float] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> GetPromptResult:
        """Fill in a prompt. The values of arguments are text; numbers and booleans become text, as JSON has them."""
        self._connected()
        texts = as_texts(arguments, f"the prompt {name!r}")
        params = with_rounds({"name": name, "arguments": texts}, None, answers, state)
        options = Options(timeout, progress, is_manual=self._is_manual)
        return await self._exchange.request("prompts/get", params, GetPromptResult, options)

    async def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        arguments: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Return suggestions for an argument of a prompt, or of a resource template, for what is typed so far."""
        params = completion_params(argument, value, prompt, template, arguments)
        self._connected()
        return await self._suggestions.ask(params, timeout)

    # --- the rest

    def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Iterable[str] = ()
    ) -> Listening:
        """Return the changes of lists and of single resources as they come; of all lists by default.

        async with client.listen(uris=["file:///log"]) as changes:
            async for change in changes:
                ...
        """
        self._connected()
        return Listening(self._subscriptions, wish_for(list(uris), tools=tools, prompts=prompts, resources=resources))

    async def ping(self, *, timeout: float | None = None) -> None:
        """Ask whether the server is there, where its revision has that; UsageError where not."""
        if "ping" not in self._connected().era.methods:
            raise UsageError(
                "The protocol version spoken here has no ping; any request shows that the server is there."
            )
        await self._exchange.request("ping", {}, EmptyResult, Options(timeout))

    async def set_log_level(self, level: LogLevel) -> None:
        """Ask for log messages of this level and above from now on."""
        link = self._connected()
        self._log_level = link.log_level = read_level(level)
        request = link.era.log_request(self._log_level)
        if request is not None:
            await self._exchange.request(*request, EmptyResult, Options())

    async def roots_changed(self) -> None:
        """Notify the server that the roots have changed, where its era has that notification."""
        link = self._connected()
        if link.era.answers_requests and link.capabilities.roots is not None:
            await self.notify("notifications/roots/list_changed")

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        mirrored: str | None = None,
    ) -> dict[str, Any]:
        """Make any request, and return its result as it came. Questions of the server are answered as in other calls.

        `mirrored` names the param that the header Mcp-Name repeats, where a method of an extension has one.
        """
        given = params or {}
        headers: Mapping[str, str] = NO_HEADERS
        if self._connected().era.mirrors_params and mirrored is not None and mirrored in given:
            headers = {"Mcp-Name": encode_value(str(given[mirrored]))}
        options = Options(timeout, progress, headers, self._is_manual)
        return await self._exchange.request_raw(method, given, options)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send any notification."""
        link = self._connected()
        era, generation = link.era, link.generation
        try:
            try:
                await link.notify(method, params)
            except Refused as refused:
                if not era.is_over(refused.status, *code_and_data(refused)):
                    raise
                await self._renew(link, generation)
                await link.notify(method, params)
        except Refused as refused:
            raise explained(refused) from None

    # --- inside

    def _heard(self, method: str, params: bytes, origin: RequestId | None) -> None:
        """Take a notification that belongs to no request."""
        self._handlers.heard(method, params)
        self._exchange.page_visits.heard(method, params)
        self._pages.heard(method)
        if method == "notifications/tools/list_changed":
            self._toolbox.forget()
        link, cache = self._opened, self._exchange.cache
        has_changed = method.endswith(("list_changed", "updated"))
        if link is not None and cache is not None and has_changed and cache.hear(method, msgspec.json.decode(params)):
            link.spawn(cache.drop_stale())
        self._subscriptions.heard(method, params, origin)
        if self._on_notification is not None:
            self._on_notification.call(method, msgspec.json.decode(params), size=len(params))


_BETWEEN = "__"
_KEY = re.compile(r"[A-Za-z0-9]+(?:[_.-][A-Za-z0-9]+)*")  # nothing that could be read as the end of it


@dataclass(frozen=True, slots=True)
class JoinedTool:
    """A tool, by a name that no other tool of any of the servers has."""

    name: str
    tool: Tool  # as its server describes it, with the name that it has there
    client: Client

    async def call(self, arguments: Mapping[str, Any] | None = None, **options: Any) -> ToolResult:
        """Call it where it is; the options are those of `Client.call_tool`."""
        return await self.client.call_tool(self.tool.name, arguments, **options)


async def join_tools(clients: Mapping[str, Client]) -> dict[str, JoinedTool]:
    """Return all tools of some connected clients, by names such as `flights__book`: the given name and the tool's.

    tools = await join_tools({"flights": flights, "hotels": hotels})
    await tools["flights__book"].call({"flight": "LX38"})
    """
    check_clients(clients, Client)
    found = [
        JoinedTool(joined_name(key, tool), tool, client)
        for key, client in clients.items()
        for tool in await client.list_tools()
    ]
    return {joined.name: joined for joined in found}


def joined_name(key: str, tool: Tool) -> str:
    """Return the name of a tool among those of all servers."""
    return f"{key}{_BETWEEN}{tool.name}"


def check_clients(clients: Any, kind: type) -> None:
    """Raise UsageError unless these are clients of a kind, by names that can begin those of tools."""
    if not isinstance(clients, Mapping):
        raise UsageError(
            f"join_tools was given {kind_of(clients)}; give a dictionary of names to clients: "
            "{'flights': flights, 'hotels': hotels}."
        )
    for key, client in cast("Mapping[Any, Any]", clients).items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise UsageError(
                f"The server name {str(key)[:100]!r} cannot begin the names of tools; use letters and digits, with "
                "single '_', '-' or '.' between them."
            )
        if not isinstance(client, kind):
            raise UsageError(
                f"join_tools was given {kind_of(client)} as {key!r}; give clients: `weft.client.join_tools` "
                "takes those of `weft.Client`, `weft.sync.join_tools` those of `weft.sync.Client`."
            )
