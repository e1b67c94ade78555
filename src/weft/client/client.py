"""Connect to a server and call it.

`Client` has the public methods, and opens and closes the connection. Other modules do the work. `Client` does not
depend on the era or on the transport.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, TypeVar, Unpack, overload
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from weft.client.argument_checks import (
    as_texts,
    check_limits,
    explain_arguments,
    not_connected,
    read_extensions,
    read_level,
    trim_traceback,
)
from weft.client.callbacks import queue_for
from weft.client.connection.connect_lock import ConnectLock, closed
from weft.client.connection.connection import CallNotes, ClientConnection, ProgressCallback, code_and_data
from weft.client.connection.negotiate import Memory, Negotiator, eras_for, explained
from weft.client.connection.transport import NO_HEADERS, Answer, Refused
from weft.client.handlers import (
    WITHOUT_TASKS,
    ConfirmFunction,
    FormFunction,
    LogFunction,
    RootsFunction,
    SampleFunction,
    ServerRequestHandlers,
    UrlFunction,
)
from weft.client.question_tasks import QuestionTasks, task_capability
from weft.client.questions import RootLike
from weft.client.requests.cache import (
    MemoryCacheStore,
    ResponseCache,
    Toolbox,
    authorization_partition,
    identify_login,
    unique_name,
)
from weft.client.requests.exchange import Exchange, ListPages, Options, Suggestions, completion_params, with_rounds
from weft.client.requests.known_tasks import KnownTask, Tasks
from weft.client.requests.subscriptions import Listening, Subscriptions, filter_for
from weft.client.requests.tasks import TaskHandle, read_result
from weft.client.results import ToolResult
from weft.client.targets import Dialled, dial
from weft.eras.base import EraName, ServerHello
from weft.errors import HeaderMismatch, InvalidAnswer, RemoteError, RequestTimeout, UsageError, WeftError
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
from weft.types.tasks import TASKS_EXTENSION, TaskState

if TYPE_CHECKING:
    from weft.client.connection.transport import Auth, Transport

T = TypeVar("T")


Arguments: TypeAlias = Mapping[str, Any] | None


class CallOptions(TypedDict, total=False):
    """The keyword arguments of `Client.call_tool`, as a type for its overloads."""

    raise_on_error: bool
    timeout: float | None
    progress: ProgressCallback | None
    meta: Mapping[str, Any] | None
    answers: Mapping[str, Any] | None
    state: str | None


_memory = Memory()  # the era of each server; shared by all clients of this process


class Client:
    """A client for one server. It works with both eras and with any transport.

    `target` says where the server is. It can be:

    - a URL, or an `Http` object with a URL and options
    - a command (list or text), or a `Command` object with a command and options
    - a `Server` in this process, an ASGI app, or an `Asgi` object with an app and options
    - a transport
    - an `mcpServers` configuration: one of its entries, the whole configuration, or the `Path` of its file

    If the configuration has several entries, `server` is the name of the entry to use. `auth` is a login or a token (a
    string), for a URL or an app.

        async with Client("https://flights.example/mcp") as client:
            result = await client.call_tool("book", {"flight": "LX38"})
            print(result.text)

    Without `async with`, call `connect` first and `close` at the end. Different tasks may call these two methods. Pass
    functions (`elicit`, `sample`, `roots` …) to answer the server's questions. Passing a function also declares the
    matching capability to the server.
    """

    _opening = "async with"  # how a program opens this client, for error messages

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
        tasks: bool = True,
        limits: ClientLimits = DEFAULT_CLIENT_LIMITS,
    ) -> None:
        check_limits(limits)
        self._limits = limits
        self._eras = eras_for(eras, version)
        self._is_pinned = len(self._eras) == 1 or version is not None
        # From `sys.modules`, because `weft` imports this module.
        self._info = info or Implementation("weft", sys.modules["weft"].__version__)
        self._dial: Callable[[], Dialled] = lambda: dial(target, limits, server=server, auth=auth)
        dialled = self._dial()
        self._dialled: Dialled | None = dialled  # the transport for the next connection; None once it is used
        self._url = dialled.key  # URL of the server, or None
        self._handlers = ServerRequestHandlers(
            elicit=elicit,
            elicit_url=elicit_url,
            sample=sample,
            sample_with_tools=sample_with_tools,
            roots=roots,
            confirm=confirm,
            log=on_log,
            limits=limits,
        )
        declared = read_extensions(extensions)
        if (extension := getattr(dialled.auth, "extension", None)) is not None:
            declared.setdefault(extension, {})
        self._has_tasks = tasks
        if tasks:
            declared.setdefault(TASKS_EXTENSION, {})
            self._handlers.capabilities.tasks = task_capability(self._handlers.capabilities)
        self._handlers.capabilities.extensions = declared or None
        self._on_notification = queue_for(on_notification, limits.changes_kept, "on_notification(method, params)")
        self._log_level: LogLevel | None = None if log_level is None else read_level(log_level)
        store = MemoryCacheStore(max_entries=limits.cache_entries, max_bytes=limits.cache_bytes)
        self._cache = (ResponseCache(store) if cache else None) if isinstance(cache, bool) else cache
        self._check_output = check_output
        self._is_manual = manual_input
        self._toolbox = Toolbox()
        self._known_tasks = WeakValueDictionary[str, KnownTask]()  # those that have a handle, by id
        self._life = ConnectLock(self._end)
        self._opened: ClientConnection | None = None  # the connection, until it is closed completely
        self._link: ClientConnection | None = None  # the connection, while it is negotiated and open
        self._welcome: ServerHello | None = None  # name, capabilities and instructions of the server

    # --- opening and closing

    if not TYPE_CHECKING:  # so that type checkers report `with Client(...)`

        def __enter__(self) -> Self:
            raise UsageError(
                "weft.Client is opened by `async with`, in an async function; in code that does not await, use `with "
                "weft.sync.Client(...)`."
            )

        def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect to the server, and negotiate the protocol version. Do nothing if the client is already connected."""
        async with self._life.change():
            if self._link is not None:
                self._link.check_loop()
                return
            await self._life.end()  # finish an interrupted close
            dialled, self._dialled = self._dialled or self._dial(), None  # each connection needs a new transport
            self._questions = QuestionTasks(self._handlers, self._limits, lambda: link)
            link = self._opened = ClientConnection(
                dialled.transport, self._eras[0], self._questions, self._info, self._limits
            )
            self._put_together(link, dialled)
            try:
                await link.open()
                await self._greet(link)
            except BaseException as error:
                await self._life.end()
                trim_traceback(error)
                raise
            self._link = link

    def _put_together(self, link: ClientConnection, dialled: Dialled) -> None:
        link.log_level = self._log_level
        link.on_notification = self._receive
        self._negotiator = Negotiator(
            link,
            self._eras,
            memory=Memory() if dialled.key is None or self._is_pinned else _memory,  # a pinned era is not remembered
            key=dialled.key or "here",
            old_transport=dialled.old_transport,
        )
        view = None
        if self._cache is not None:
            name = dialled.key or f"{dialled.transport.where} {unique_name(self)}"
            view = self._cache.view(name, authorization_partition({**dialled.headers, **identify_login(dialled.auth)}))
        self._exchange = Exchange(link, self._handlers, self._limits, partial(self._renew, link), self._facts, view)
        self._pages = ListPages(self._exchange, self._limits, self._facts, self._negotiator.look_again)
        self._suggestions = Suggestions(self._exchange, self._limits)
        self._subscriptions = Subscriptions(link, self._limits, self.request, self._facts)
        self._tasks = Tasks(
            link,
            self._exchange,
            self._subscriptions,
            self._limits,
            self._check_result,
            self._is_manual,
            self._known_tasks,
        )
        link.on_question = self._tasks.questioned
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
                with suppress(WeftError):  # not important enough to fail, or to negotiate again
                    await link.roundtrip(*request)

    async def _renew(self, link: ClientConnection, generation: int) -> None:
        """Negotiate with the server again, unless another task has already done that.

        `generation` is the value of `link.generation` when the request was sent. Each negotiation changes
        `link.generation`.
        """
        async with self._life.change():
            if self._link is not link:
                raise closed()
            if link.generation == generation:
                await self._greet(link)
                link.spawn(self._subscriptions.renewed())

    async def reconnect(self) -> None:
        """Close the connection and open it again. A child process is started again.

        Requests in flight raise ConnectionFailed, except over Streamable HTTP. Open `Listening` objects subscribe
        again.
        """
        async with self._life.change():
            link = self._connected()
            await self._greet(link, is_reopening=True)
            link.spawn(self._subscriptions.renewed())

    async def close(self) -> None:
        """Close the connection. If `connect` still runs in another task, it is interrupted.

        Requests in flight raise ConnectionFailed. All tasks of the client are ended.
        """
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
            self._opened = None  # not reached when the closing task is cancelled; the next close then does the rest
        finally:
            self._tasks.close()
            await self._questions.close()
            await self._handlers.close()
            if self._on_notification is not None:
                await self._on_notification.stop()

    def _connected(self) -> ClientConnection:
        if self._link is None:
            raise not_connected(self._opening, was_closed=self._life.closings > 0)
        return self._link

    # --- the result of the negotiation

    @property
    def era(self) -> str:
        """The era (family of protocol versions) of this connection: "stateless" or "session"."""
        return self._connected().era.name

    @property
    def protocol_version(self) -> str:
        """The protocol version of this connection, such as "2025-11-25"."""
        return self._connected().era.version

    @property
    def server_info(self) -> Implementation | None:
        """The name and version of the server, or None if the server did not send them."""
        return self._facts().server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declared."""
        return self._facts().capabilities

    @property
    def instructions(self) -> str | None:
        """The server's text on how to use its features, or None if the server did not send a text."""
        return self._facts().instructions

    @property
    def transport(self) -> Transport:
        """The transport of this connection. If the server is a child process, the transport has `stderr` and `pid`."""
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
        """Return all tools of the server.

        In the stateless era over HTTP, tools with invalid `x-mcp-header` annotations are left out.
        """
        tools = await self._lists().all("tools/list", ListToolsResult, lambda page: page.tools)
        return self._toolbox.learn(tools, mirrors=self._mirrors(), is_complete=True)

    async def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of tools. `cursor` is the `next_cursor` of the page before; None means the first page."""
        page = await self._lists().one("tools/list", ListToolsResult, cursor)
        page.tools = self._toolbox.learn(page.tools, mirrors=self._mirrors())
        return page

    def _mirrors(self) -> bool:
        """Return whether tool arguments are also sent in HTTP headers."""
        link = self._connected()
        return link.era.mirrors_params and link.transport.stream_per_request

    @overload
    async def call_tool(
        self, name: str, arguments: Arguments = None, *, result_type: None = None, **options: Unpack[CallOptions]
    ) -> ToolResult: ...

    @overload
    async def call_tool(
        self, name: str, arguments: Arguments = None, *, result_type: type[T], **options: Unpack[CallOptions]
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
        """Call a tool and return its result.

        If the tool fails, the result has `is_error=True`. If the server rejects the call, RemoteError is raised.

        With `raise_on_error` or `result_type`, `ToolCallFailed` is raised if the tool fails. With `result_type`, the
        result is converted to this type. Raises InvalidAnswer if that is not possible.

        If the server answers with a task, the client follows the task until its end: `progress` is called with each new
        status message, and the questions of the task are answered like all others. If the call is cancelled, or takes
        longer than `timeout`, the task is cancelled. Raises TaskEnded if it was cancelled otherwise, or has expired.

        If the client has `manual_input` and the server asks questions, `PendingQuestions` is raised. Then repeat the
        call with your `answers` and with the `state` of that exception; or answer the questions of its `task`.
        """
        notes = CallNotes()
        result = await self._call(name, arguments, with_rounds({}, meta, answers, state), timeout, progress, notes)
        if isinstance(result, TaskHandle):
            result = await self._follow(result, timeout, progress, notes.left)
        await self._check_result(name, result)
        return read_result(name, result, result_type, raise_on_error=raise_on_error)

    @explain_arguments
    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> TaskHandle:
        """Call a tool, and return as soon as the server has answered with a task, or with the result.

        `timeout` and `progress` are for the time until then. `ttl` is for how many seconds the server should keep the
        task; only servers of the session era can be asked for that. All other parameters are those of `call_tool`.
        """
        more = with_rounds({}, meta, answers, state)
        started = await self._call(name, arguments, more, timeout, progress, CallNotes(), ttl)
        if isinstance(started, TaskHandle):
            return started
        return TaskHandle(self._present_tasks, name, None, result=started)

    def task(self, id: str, *, tool: str = "") -> TaskHandle:
        """Return a handle for a task that was started before, perhaps by another process. Sends nothing.

        If you give the name of the `tool`, the result is checked against the output schema of the tool.
        """
        if not isinstance(id, str) or not id:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UsageError("client.task(id) takes the id of a task: `handle.id`, which is None if there is no task.")
        return TaskHandle(self._present_tasks, tool, id)

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        more: Mapping[str, Any],
        timeout: float | None,
        progress: ProgressCallback | None,
        notes: CallNotes,
        ttl: float | None = None,
    ) -> ToolResult | TaskHandle:
        """Call a tool, and return its result, or a handle of the task that the call has become.

        `more` are further params. If the client did not know all headers that the call needs, it is sent a second time.
        """
        link, given = self._connected(), arguments or {}
        if self._handlers.confirm is not None:
            given = await self._handlers.agreed(self._handlers.confirm, name, given)
        params: Mapping[str, Any] = {"name": name, "arguments": given, **more}
        token = None
        if self._has_tasks and link.era.tasks.must_ask(self._facts().capabilities):
            if not self._toolbox.knows(name) and not self._toolbox.is_complete:
                with suppress(RemoteError, InvalidAnswer):  # without the list, the call is made without a task
                    await self.list_tools()
            params = link.era.tasks.ask(params, self._toolbox.task_support(name), ttl)
            token = link.new_progress_token()
        notes.must_go_on = "task" in params
        send = self._call_as_task if notes.must_go_on else self._exchange.call
        try:
            outcome = await send(params, self._options(name, given, timeout, progress, token, notes))
        except WeftError as error:
            if not isinstance(error, RemoteError) or error.code != HeaderMismatch.code:
                trim_traceback(error)
                raise
            if self._exchange.cache is not None:  # the client has a wrong or no description of the tool's headers
                await self._exchange.cache.drop("tools/list")
            await self.list_tools()
            outcome = await send(params, self._options(name, given, timeout, progress, token, notes))
        return self._handle(name, outcome, token) if isinstance(outcome, TaskState) else outcome

    def _handle(self, name: str, state: TaskState, token: str | None) -> TaskHandle:
        """Return a handle of the task that a call has become. `token` is the progress token of the call."""
        if not self._has_tasks:
            raise InvalidAnswer(
                f"The server answered {name[:100]!r} with a task, which this client does not follow. {WITHOUT_TASKS}"
            )
        known = self._tasks.created(state, token)
        told = state.immediate_response
        return TaskHandle(self._present_tasks, name, state.id, known=known, immediate_response=told)

    def _options(
        self,
        name: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        progress: ProgressCallback | None,
        token: str | None,
        notes: CallNotes,
    ) -> Options:
        headers = self._toolbox.headers(name, arguments)
        return Options(timeout, progress, headers, self._is_manual, progress_token=token, notes=notes)

    async def _call_as_task(self, params: Mapping[str, Any], options: Options) -> ToolResult | TaskState:
        """Send a call that asks for a task, and return its outcome.

        If the caller stops waiting before the task is known, the task is cancelled as soon as it is known: a request
        that asks for a task must not be cancelled by a notification.
        """
        link, notes = self._connected(), options.notes
        try:
            return await self._exchange.call(params, options)
        except BaseException as error:
            if notes is None or notes.going_on is None or link.is_closed:
                raise
            cancelling = link.spawn(self._cancel_created(link, notes.going_on, params))
            if isinstance(error, RequestTimeout):
                raise RequestTimeout(f"{error} If it starts the task later, the client cancels it.") from None
            await asyncio.wait([cancelling], timeout=self._limits.close_seconds)
            raise

    async def _cancel_created(
        self, link: ClientConnection, calling: asyncio.Task[Answer], params: Mapping[str, Any]
    ) -> None:
        """Wait until the server has answered a call with a task, and cancel the task."""
        if not (await asyncio.wait([calling], timeout=self._limits.total_seconds))[0]:
            calling.cancel()
            return
        answer = await calling
        if answer.frame.result is not UNSET:
            state = link.era.tasks.read_handle(answer.result, params)
            if state is not None:
                await self._tasks.cancel(state.id)

    async def _follow(
        self, handle: TaskHandle, timeout: float | None, progress: ProgressCallback | None, left: float
    ) -> ToolResult:
        """Wait for the result of a task. If nobody waits for it any more, cancel the task.

        `left` is how many seconds of the timeout were left when the server answered with the task.
        """
        link = self._connected()
        try:
            return await handle.follow(timeout, progress, left=left, is_call=True)
        except BaseException as error:
            if not link.is_closed and handle.must_cancel(error):
                cancelling = link.spawn(handle.cancel())
                await asyncio.wait([cancelling], timeout=self._limits.close_seconds)
            trim_traceback(error)
            raise

    def _present_tasks(self) -> Tasks:
        self._connected()
        return self._tasks

    async def _check_result(self, name: str, result: ToolResult) -> None:
        """Raise InvalidAnswer if a result does not match the output schema of its tool. `name` is "" if unknown."""
        if not self._check_output or not name:
            return
        is_unknown = not self._toolbox.knows(name) and not self._toolbox.is_complete
        if is_unknown and result.structured_content is not UNSET:  # the check needs the output schema of the tool
            self._toolbox.is_complete = True  # so that this is tried only once until the list changes
            with suppress(WeftError):  # the call itself has succeeded
                await self.list_tools()
        self._toolbox.check(name, result)

    # --- resources

    async def list_resources(self) -> list[Resource]:
        """Return all resources of the server."""
        return await self._lists().all("resources/list", ListResourcesResult, lambda page: page.resources)

    async def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """Return one page of resources. `cursor` is the `next_cursor` of the page before; None means the first page."""
        return await self._lists().one("resources/list", ListResourcesResult, cursor)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates of the server."""
        return await self._lists().all(
            "resources/templates/list", ListResourceTemplatesResult, lambda page: page.resource_templates
        )

    async def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """Return one page of resource templates.

        `cursor` is the `next_cursor` of the page before; None means the first page.
        """
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
        """Return the contents of a resource.

        If the server has no resource with this URI, RemoteError is raised with `not_found=True`.
        """
        link = self._connected()
        params = with_rounds({"uri": uri}, None, answers, state)
        options = Options(timeout, progress, is_manual=self._is_manual)
        try:
            return await self._exchange.request("resources/read", params, ReadResourceResult, options)
        except RemoteError as error:
            if link.era.is_missing(error.code, error.data):
                said = error.message if uri in error.message else f"{error.message.rstrip('. ')}: {uri[:200]}"
                raise RemoteError(error.code, said, error.data, not_found=True) from None
            raise

    # --- prompts

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts of the server."""
        return await self._lists().all("prompts/list", ListPromptsResult, lambda page: page.prompts)

    async def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """Return one page of prompts. `cursor` is the `next_cursor` of the page before; None means the first page."""
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
        """Return the messages of a prompt with these arguments. Numbers and booleans are sent as JSON text."""
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
        """Return suggestions for the value of an argument of a prompt or resource template.

        `argument` is the name of the argument, and `value` the text typed so far. Give either the name of the `prompt`
        or the URI of the `template`. `arguments` are the other arguments that already have a value.
        """
        params = completion_params(argument, value, prompt, template, arguments)
        self._connected()
        return await self._suggestions.ask(params, timeout)

    # --- listening, and other requests

    def listen(
        self, *, tools: bool = False, prompts: bool = False, resources: bool = False, uris: Iterable[str] = ()
    ) -> Listening:
        """Return an async iterator over changes of the chosen lists and of the resources in `uris`.

        The arguments `tools`, `prompts` and `resources` choose the lists. Without any argument, all three are chosen.

        async with client.listen(uris=["file:///log"]) as changes:
            async for change in changes:
                ...
        """
        self._connected()
        requested = filter_for(list(uris), tools=tools, prompts=prompts, resources=resources)
        return Listening(self._subscriptions, requested)

    async def ping(self, *, timeout: float | None = None) -> None:
        """Check that the server answers. Raises UsageError if the protocol version has no ping."""
        if "ping" not in self._connected().era.methods:
            raise UsageError("This protocol version has no ping; any request shows that the server is there.")
        await self._exchange.request("ping", {}, EmptyResult, Options(timeout))

    async def set_log_level(self, level: LogLevel) -> None:
        """Ask the server to send log messages of this level and of all more severe levels from now on."""
        link = self._connected()
        self._log_level = link.log_level = read_level(level)
        request = link.era.log_request(self._log_level)
        if request is not None:
            await self._exchange.request(*request, EmptyResult, Options())

    async def roots_changed(self) -> None:
        """Notify the server that the roots have changed, if the era has this notification and the client has roots."""
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
        """Send a request with any method, and return its result as decoded JSON.

        Questions of the server are answered as in `call_tool`. `mirrored` is the name of a param. If the era repeats
        params in headers, the value of this param is also sent in the header Mcp-Name, as some extensions require.
        """
        given = params or {}
        headers: Mapping[str, str] = NO_HEADERS
        if self._connected().era.mirrors_params and mirrored is not None and mirrored in given:
            headers = {"Mcp-Name": encode_value(str(given[mirrored]))}
        options = Options(timeout, progress, headers, self._is_manual)
        return await self._exchange.request_raw(method, given, options)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification with any method to the server."""
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

    # --- internal

    def _receive(self, method: str, params: bytes, origin: RequestId | None) -> None:
        """Pass a notification of the server to the objects that use it, such as the cache.

        Progress and cancellation notifications are handled elsewhere. `origin` is the id of the request on whose stream
        the notification arrived, or None.
        """
        self._handlers.receive(method, params)
        self._exchange.page_visits.receive(method, params)
        self._pages.receive(method)
        if method == "notifications/tools/list_changed":
            self._toolbox.is_complete = False
        link, cache = self._opened, self._exchange.cache
        if link is not None and cache is not None and cache.receive(method, params):
            link.spawn(cache.drop_stale())
        self._subscriptions.receive(method, params, origin)
        self._tasks.receive(method, params)
        if self._on_notification is not None:
            self._on_notification.call(method, msgspec.json.decode(params), size=len(params))
