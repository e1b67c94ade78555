"""Run the commands that talk to a server: `weft call`, `task`, `list`, `read` and `prompt`.

The server is given by a URL, a command or a configuration file. `weft.Client` sends the requests. A configuration file
can name any program and any environment variable. So a command from a file is shown in full, and started only after the
user has agreed. Environment variables are sent to a URL from a file only after the user has agreed.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from weft import errors
from weft.cli.printing import WrongCommand, show, show_failure, show_json, show_line, to_line, to_text
from weft.client.client import Client
from weft.client.config import Command, Http, Target, parse_target
from weft.client.connection.transport import Refused
from weft.client.handlers import changes_code, command_question, visible
from weft.client.requests.exchange import means_no_list
from weft.client.requests.tasks import TaskHandle, WaitTimeout
from weft.client.results import PendingQuestions, ToolResult
from weft.limits import ClientLimits
from weft.net.hosts import is_loopback
from weft.protocol.schema import is_array, is_object
from weft.types.interaction import InputRequiredResult
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import FINAL

_TIMEOUT = 60.0  # seconds for a request, if --timeout is not given
_HOLD_SECONDS = 0.5  # until a message of a task is printed: the error at the end of the task may repeat it
_SUBCOMMANDS = {
    "prompts/get": "prompt",
    "resources/read": "read",
    "tasks/get": "task",
    "tasks/cancel": "task",
}  # subcommand of `weft` by method; default: call

_ANSWERING = {"elicitation": "elicit", "sampling": "sample", "roots": "roots"}  # capability: argument of `Client`


class CallFailed(errors.WeftError):
    """Raised if the server cannot be reached, if it refuses the request, or if the user does not give permission."""


class TaskTimeout(WaitTimeout):
    """Raised if a task sends no message for as long as --timeout says."""


class TaskFailed(errors.RemoteError):
    """Raised for the error with which a task has ended. No request was refused."""


class RemoteServer:
    """A server to which the `weft` command sends requests. It is given by a URL, a command or a configuration entry.

    `run`, `request`, `call_tool`, `follow` and `get_prompt` each open a new connection and close it. `timeout` is how
    long a request may take (default: 60 seconds), and how long a task may take without a message (default: no limit).
    `words` name the server on a command line of `weft`; they are shown to the user (default: its URL or command). The
    constructor raises UsageError if the server or an option is invalid.
    """

    def __init__(
        self,
        server: str | Target,
        timeout: float | None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        words: Sequence[str] = (),
    ) -> None:
        self._server = server
        self.where = server if isinstance(server, str) else server.where  # the server's name in messages
        self._words = words or (self.where,)
        self._timeout = _TIMEOUT if timeout is None else timeout
        self._patience = timeout  # for tasks
        self._token = token
        self._headers = headers or {}
        self._asking = "the first request"  # name of the current request, for error messages
        self._limits = ClientLimits(request_seconds=self._timeout, total_seconds=self._timeout)
        self._client()  # raises UsageError before anything is sent

    def _client(self) -> Client:
        found = parse_target(self._server)
        if isinstance(found, Command):
            target: Target = replace(found, on_stderr=_show_stderr)
        else:
            target = replace(found, headers={**found.headers, **self._headers})
        return Client(
            target,
            limits=self._limits,
            auth=self._token,
            on_notification=_show_notification,
            check_output=False,
            manual_input=True,
        )

    @property
    def is_child(self) -> bool:
        """Whether the server is a child process, which ends with the connection."""
        return isinstance(parse_target(self._server), Command)

    def call_tool(self, tool: str, arguments: dict[str, Any], *, in_background: bool = False) -> dict[str, Any] | str:
        """Call a tool and return its result. If the call becomes a task, wait for it, and show its messages.

        With `in_background`, return the id of the task instead of waiting for it.
        """

        async def call(client: Client) -> Any:
            async with asyncio.timeout(self._timeout):
                handle = await client.start_tool(tool, arguments)
            if handle.id is None or not in_background:
                return await self._result_of_call(handle)
            return handle.id

        outcome: dict[str, Any] | str = self.run("tools/call", call, can_take_long=True)
        return outcome

    async def _result_of_call(self, handle: TaskHandle) -> ToolResult:
        """Return the result of a call. If nobody waits for its task any more, cancel the task, and tell the user."""
        try:
            return await self._follow(handle)
        except BaseException as error:
            if handle.id is None:
                raise
            is_silent = isinstance(error, errors.RequestTimeout) and not isinstance(error, TaskTimeout)
            if not is_silent and (handle.must_cancel(error) or isinstance(error, PendingQuestions)):
                await self._abandon(handle, handle.id)
            elif (is_silent or isinstance(error, errors.ConnectionFailed)) and not self.is_child:
                self._show_where("The task may go on", handle.id)
            raise

    async def _abandon(self, handle: TaskHandle, id: str) -> None:
        """Cancel a task within a short time, and tell the user what has become of it."""
        fate = None
        try:
            with suppress(errors.WeftError, TimeoutError):
                async with asyncio.timeout(self._limits.close_seconds):
                    fate = await _cancel(handle)
        finally:  # also if Ctrl-C was pressed again
            if fate is None:
                self._show_where("The task may go on", id)
            else:
                show_line(fate, sys.stderr)

    def follow(self, id: str) -> dict[str, Any]:
        """Wait for a task, show its messages, and return its result. If that fails, tell the user that it goes on."""

        async def follow(client: Client) -> ToolResult:
            handle = client.task(id)
            try:
                return await self._follow(handle)
            except errors.RemoteError as error:
                if not await self._has_failed(handle):
                    raise
                raise TaskFailed(error.code, error.message, error.data) from None
            except (asyncio.CancelledError, TaskTimeout, PendingQuestions):
                self._show_where("The task goes on", id)
                raise
            except (errors.ConnectionFailed, errors.RequestTimeout):
                self._show_where("The task may go on", id)
                raise

        result: dict[str, Any] = self.run("tasks/get", follow, can_take_long=True)
        return result

    async def _has_failed(self, handle: TaskHandle) -> bool:
        """Ask for the state of a task within a short time, and return whether the task has failed."""
        with suppress(errors.WeftError, TimeoutError):
            async with asyncio.timeout(self._limits.close_seconds):
                return (await handle.status()).status == "failed"
        return False

    def task_status(self, id: str) -> tuple[str, list[str]]:
        """Return the present state of a task as a line, and its unanswered questions, each as a line."""

        async def read(client: Client) -> tuple[str, list[str]]:
            state = await client.task(id).status()
            line = f"{state.status}: {state.message}" if state.message else state.status
            return line, [_question(raw) for raw in state.questions.values()]

        line, questions = self.run("tasks/get", read)
        return line, questions

    def cancel(self, id: str) -> str:
        """Cancel a task, and return a sentence that says what has become of it."""
        fate: str = self.run("tasks/cancel", lambda client: _cancel(client.task(id)))
        return fate

    async def _follow(self, handle: TaskHandle) -> ToolResult:
        """Wait for the result of a task, and show its messages."""
        messages, error = _TaskMessages(), ""
        try:
            result = await self._result(handle, messages.show)
            error = result.text if result.is_error else ""
        except WaitTimeout as late:
            if self._patience is None:
                raise TaskTimeout(str(late)) from None
            why = f"The task sent no message for {self._patience:g} s."
            raise TaskTimeout(f"{why} If it needs longer, raise --timeout, or leave it out.") from None
        except errors.WeftError as failure:
            error = str(failure)
            raise
        finally:
            messages.end(error)
        return result

    async def _result(self, handle: TaskHandle, progress: Callable[[ProgressParams], None]) -> ToolResult:
        """Wait for the result of a task. Raises PendingQuestions as soon as the task asks a question.

        In the session era, the state says only that the task asks. The server sends its questions to clients that can
        answer, so this one would wait for ever.
        """
        waiting = asyncio.create_task(handle.result(progress=progress, timeout=self._patience))
        asking = asyncio.create_task(_asks(handle))
        try:
            await asyncio.wait([waiting, asking], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and asking.result():
                raise PendingQuestions(InputRequiredResult(), handle)
            return await waiting
        finally:
            waiting.cancel()
            asking.cancel()
            await asyncio.wait([waiting, asking])

    def _show_where(self, fate: str, id: str) -> None:
        """Tell the user what has become of a task, and with which command to wait for it."""
        show_line(f"{fate}: {shlex.join(['weft', 'task', *self._words, id])}", sys.stderr)

    def get_prompt(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Get a prompt and return the result with its messages."""
        result: dict[str, Any] = self.run("prompts/get", lambda client: client.get_prompt(name, arguments))
        return result

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its result."""
        result: dict[str, Any] = self.run(method, lambda client: client.request(method, params))
        return result

    async def fetch_list(self, client: Client, method: str, key: str) -> list[Any]:
        """Fetch all pages of a list and return the items. `key` is the field of each result that contains the items."""
        self._asking = method
        items: list[Any] = []
        params: dict[str, Any] = {}
        for _ in range(self._limits.pages):
            try:
                result = await client.request(method, params)
            except errors.RemoteError as error:
                if means_no_list(error, params.get("cursor")):
                    break
                raise
            found = result.get(key)
            items += found if is_array(found) else ()
            if result.get("nextCursor") is None:
                break
            params = {"cursor": result["nextCursor"]}
        return items

    def run(self, asking: str, work: Callable[[Client], Awaitable[Any]], *, can_take_long: bool = False) -> Any:
        """Connect to the server, run `work`, close the connection, and return the result of `work` as JSON types.

        `asking` is the name of the request in error messages. Errors of the client are raised as CallFailed. Only
        UsageError is raised unchanged. With `can_take_long`, the timeout is only for the connection.
        """
        try:
            result = msgspec.to_builtins(asyncio.run(self._within(asking, work, can_take_long=can_take_long)))
        except errors.UsageError:
            raise
        except (errors.WeftError, TimeoutError) as error:
            raise self.failure(error) from None
        return result

    async def _within(self, asking: str, work: Callable[[Client], Awaitable[Any]], *, can_take_long: bool) -> Any:
        client = self._client()
        try:
            async with asyncio.timeout(self._timeout) as limit:
                await client.connect()
                self._asking = asking
                if can_take_long:
                    limit.reschedule(None)
                return await work(client)
        finally:
            await client.close()

    def failure(self, error: errors.WeftError | TimeoutError) -> CallFailed:
        """Convert an exception of the client to a CallFailed with a message for the user."""
        match error:
            case TaskTimeout():
                text = str(error)
            case errors.RequestTimeout() | TimeoutError():
                text = f"{self.where} did not answer within {self._timeout:g} s. If it needs longer, raise --timeout."
            case errors.RemoteError():
                hint = _unanswered(self._asking, error.data) if error.code == errors.MissingCapability.code else ""
                what = "The task failed" if isinstance(error, TaskFailed) else f"{self.where} refused {self._asking}"
                text = f"{what}: {error}{hint}"
            case PendingQuestions():
                hint = _unanswered(self._asking)
                text = f"{self.where} asked a question in {self._asking} (input_required).{hint}"
            case errors.AuthorizationFailed() | errors.ConnectionFailed():
                text = self._why(error)
            case _:
                text = str(error)
        return CallFailed(text)

    def _why(self, error: errors.AuthorizationFailed | errors.ConnectionFailed) -> str:
        if self._token is None and isinstance(refused := error.__context__, Refused) and refused.status == 401:
            return self._unauthorized(refused)
        if not isinstance(getattr(error.__context__, "os_error", None), ConnectionRefusedError):
            return str(error)
        parts = urlsplit(self.where)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return (
            f"No server is running at {self.where}: {parts.hostname}:{port} refused the connection. Start it (weft "
            f"run FILE --http --port {port}), or check the address."
        )

    def _unauthorized(self, refused: Refused) -> str:
        said = f" ({refused.reason.rstrip('.')})" if refused.reason else ""
        entry = self._server if isinstance(self._server, Http) else None  # from a configuration file
        if has_authorization(self._headers):
            return f"{self.where} refused the Authorization in --header (HTTP 401){said}; check it."
        if entry is not None and has_authorization(entry.headers):
            return f"{self.where} refused the Authorization in the file (HTTP 401){said}; check it."
        if entry is not None:  # WEFT_TOKEN is not sent to servers from a file
            remedy = ", or a header in the 'headers' of its entry in the file."
        else:
            remedy = " or in the variable WEFT_TOKEN, or another header with --header 'NAME: VALUE'."
        return f"{self.where} requires authorization (HTTP 401){said}. Give a token with --token TOKEN{remedy}"


def has_authorization(headers: Mapping[str, str]) -> bool:
    """Return whether the headers contain Authorization, in upper or lower case."""
    return any(name.lower() == "authorization" for name in headers)


def _unanswered(asking: str, data: Any = None) -> str:
    """Return a hint for the user that `weft` cannot answer questions of the server.

    The hint names the option of `Client` that can answer the question. `asking` is the method of the request. `data` is
    the data of the server's error, which may name the capability that the server needs.
    """
    wanted = _object(_object(data).get("requiredCapabilities"))
    option = next((option for name, option in _ANSWERING.items() if name in wanted), "elicit")
    return f" `weft {_SUBCOMMANDS.get(asking, 'call')}` cannot answer questions; use Client({option}=...)."


def _show_notification(method: str, params: Any) -> None:
    if not method.startswith(("notifications/tasks", "notifications/subscriptions/")):  # shown as progress
        show_line(f"{method}: {_json(params)}", sys.stderr)


class _TaskMessages:
    """Prints the messages of a task on stderr, except the last one if the error of the task repeats it."""

    def __init__(self) -> None:
        self._held: str | None = None  # the newest message, until it is printed
        self._printing: asyncio.TimerHandle | None = None  # prints that message

    def show(self, update: ProgressParams) -> None:
        """Print a message after a short time, and the one before at once."""
        self._print()
        numbers = f"{update.progress:g}" if update.total is None else f"{update.progress:g}/{update.total:g}"
        self._held = update.message or numbers
        self._printing = asyncio.get_running_loop().call_later(_HOLD_SECONDS, self._print)

    def end(self, error: str) -> None:
        """Print the last message, unless it is a part of the error with which the task has ended."""
        if self._held is not None and self._held in error:
            self._held = None
        self._print()

    def _print(self) -> None:
        if self._printing is not None:
            self._printing.cancel()
        if self._held is not None:
            show_line(self._held, sys.stderr)
            self._held = None


async def _asks(handle: TaskHandle) -> bool:
    """Return True as soon as a task asks a question; False if it has ended, or cannot be followed."""
    with suppress(errors.WeftError):
        async with aclosing(aiter(handle)) as states:
            async for state in states:
                if state.status == "input_required":
                    return True
    return False


async def _cancel(handle: TaskHandle) -> str:
    """Cancel a task, and return a sentence that says what has become of it."""
    await handle.cancel()
    status = "working"
    with suppress(errors.WeftError):  # the task is cancelled, although its state cannot be read now
        try:
            status = (await handle.status()).status
        except errors.TaskEnded:  # the server has deleted it
            status = "cancelled"
    if status == "cancelled":
        return "The task was cancelled."
    return f"The task had ended already: {status}." if status in FINAL else "The server was asked to cancel the task."


def _question(raw: msgspec.Raw) -> str:
    """Return the text of a question to the user as one line; its method, if it has no text."""
    question: dict[str, Any] = {}
    with suppress(msgspec.DecodeError, RecursionError):
        question = _object(msgspec.json.decode(raw))
    params = _object(question.get("params"))
    parts = [str(params[key]) for key in ("message", "url") if params.get(key)]
    return " ".join(parts) or str(question.get("method"))


def _show_stderr(line: str) -> None:
    show_line(line, sys.stderr)


def check_command(command: str) -> None:
    """Raise WrongCommand if a command is a Python file that cannot be executed."""
    path = Path(command.strip())
    if path.suffix == ".py" and path.is_file() and not (os.sep in command and os.access(path, os.X_OK)):
        remedy = shlex.quote(shlex.join(["python", str(path)]))
        raise WrongCommand(f"{command} is not a program; write --stdio {remedy}.")


def check_url(url: str) -> None:
    """Raise WrongCommand if a URL is invalid, or if it uses unencrypted http to another machine."""
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme, parts.hostname if parts.port != 0 else None
    except ValueError:  # the port is not a number below 65536
        scheme, host = "", None
    if scheme not in ("http", "https") or not host:
        raise WrongCommand(
            f"{url!r} is not the URL of a server; write one like http://127.0.0.1:8000/mcp. To start a server by a "
            "command, add --stdio."
        )
    if scheme == "http" and not is_loopback(host):
        raise WrongCommand(f"{url} is not encrypted; use https:// for a server that is not on this machine.")


def approve(target: Target, path: str) -> None:
    """Ask the user for permission to start a command, or to send environment variables to a URL.

    `target` is a server from the configuration file `path`. Raises CallFailed if the user does not agree.
    """
    if isinstance(target, Command):
        _ask(_describe(target, path), "start", "started")
    elif target.taken:
        parts = urlsplit(target.url)
        what = f"  variables:    {', '.join(target.taken)}"
        where = f"  to:           {visible(f'{parts.scheme}://{parts.netloc}')}"
        _ask(f"{visible(path)} wants to send variables of your environment:\n{what}\n{where}", "send", "sent")


def _ask(shown: str, do: str, done: str) -> None:
    print(shown, file=sys.stderr)
    if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - None if closed
        raise CallFailed(
            f"Nothing was {done}: stdin is not a terminal, so you cannot be asked. Read the text above, and add --yes "
            f"to {do} it."
        )
    print(f"{do.capitalize()} it? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise CallFailed(f"Nothing was {done}.")


def _describe(target: Command, path: str) -> str:
    """Describe a whole command for the user. Control characters are escaped, so that the terminal hides nothing."""
    question = command_question(target)
    lines = [f"{visible(path)} wants to start a program:", f"  command:      {question.command}"]
    if target.cwd is not None:
        lines.append(f"  in:           {visible(target.cwd)}")
    if hidden := [name for name in target.env if not changes_code(name)]:
        lines.append(f"  environment:  {visible(', '.join(hidden))} (the values are in the file)")
    changing = {name: value for name, value in target.env.items() if changes_code(name)}
    lines += [f"  environment:  {visible(f'{name}={value}')}" for name, value in changing.items()]
    if target.taken:
        lines.append(f"  it receives:  {', '.join(target.taken)} of your environment")
    return "\n".join([*lines, *question.warnings])


NESTING = 4  # how many levels of a nested type are printed


def call(peer: RemoteServer, parsed: Namespace) -> int:
    """Call a tool and print its result, or with --background the id of its task.

    Returns the exit code: 1 if the result is an error, otherwise 0.
    """
    outcome = peer.call_tool(parsed.tool, _read_arguments(parsed.arguments), in_background=parsed.background)
    if isinstance(outcome, str):
        show_line(outcome)
        if peer.is_child:
            show_line(
                "The server has ended with this command, and the task with it, unless the server keeps its tasks "
                "elsewhere, such as in Redis.",
                sys.stderr,
            )
        return 0
    if parsed.background:
        show_line("The server has answered without a task.", sys.stderr)
    return _show_result(outcome)


def task(peer: RemoteServer, parsed: Namespace) -> int:
    """Wait for a task and print its result; or print its state, or cancel it. Return 1 if the result is an error."""
    if parsed.cancel:
        show_line(peer.cancel(parsed.id), sys.stderr)
        return 0
    if parsed.status:
        line, questions = peer.task_status(parsed.id)
        show_line(line)
        for question in questions:
            show_line(f"  asks: {question}")
        return 0
    return _show_result(peer.follow(parsed.id))


def _show_result(result: Any) -> int:
    failed = bool(result.get("isError"))
    stream = sys.stderr if failed else sys.stdout
    blocks = _objects(result.get("content"))
    for block in blocks:
        show(_show(block), stream)
    if not blocks and "structuredContent" in result:
        show_json(result["structuredContent"], stream)
    return 1 if failed else 0


def read(peer: RemoteServer, parsed: Namespace) -> int:
    """Read a resource and write it to stdout. On a terminal, print only the type and size of binary content."""
    result = peer.request("resources/read", {"uri": parsed.uri})
    for part in _objects(result.get("contents")):
        if "blob" not in part:
            show(str(part.get("text", "")))
        elif sys.stdout.isatty():  # a terminal cannot show bytes
            show_line(f"[{part.get('mimeType', 'bytes')}, {len(_bytes(peer, part['blob']))} bytes; use > FILE]")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(_bytes(peer, part["blob"]))
    return 0


def prompt(peer: RemoteServer, parsed: Namespace) -> int:
    """Get a prompt, and print each message as `role: text`. The second and later lines of a text are indented."""
    arguments = _read_arguments(parsed.arguments).items()
    texts = {name: value if isinstance(value, str) else _json(value) for name, value in arguments if value is not None}
    result = peer.get_prompt(parsed.name, texts)
    for message in _objects(result.get("messages")):
        content = to_text(_show(_object(message.get("content")))).splitlines() or [""]
        print(f"{to_line(str(message.get('role')))}: {content[0]}")
        for line in content[1:]:
            print(f"  {line}")
    return 0


def list_all(peer: RemoteServer, _parsed: Namespace) -> int:
    """Print the tools, resources and prompts of a server. Return 1 if the server refused one of the lists, else 0."""
    found: list[list[Any] | CallFailed] = []  # in the order of `_LISTS`; the items, or why there are none

    async def fetch_lists(client: Client) -> None:
        for _, capability, method, key, _ in _LISTS:
            is_offered = getattr(client.server_capabilities, capability) is not None
            try:
                found.append(msgspec.to_builtins(await peer.fetch_list(client, method, key)) if is_offered else [])
            except (errors.RemoteError, errors.InvalidAnswer) as error:
                found.append(peer.failure(error))

    try:
        peer.run("the lists", fetch_lists)
    finally:  # print what was fetched, but not within the timeout, because the reader of the output may be slow
        for (title, _, _, _, describe), items in zip(_LISTS, found, strict=False):
            _show_list(title, items, describe)
    if not any(found):
        show_line(f"{peer.where} has no tools, resources or prompts.", sys.stderr)
    return 1 if any(isinstance(items, CallFailed) for items in found) else 0


def _show_list(title: str, items: list[Any] | CallFailed, describe: Callable[[Mapping[str, Any]], str] | None) -> None:
    if isinstance(items, CallFailed):
        show_failure(str(items))
        return
    if items:
        print(f"{title}:")
    for item in filter(None, _objects(items)):
        name = item.get("uriTemplate") or item.get("uri") or item.get("name")
        about = str(item.get("description") or item.get("title") or "").strip().partition("\n")[0]
        show_line(f"  {name}" + (f"  {about}" if about else ""))
        if describe is not None and (arguments := describe(item)):
            show_line(f"    {arguments}")


COMMANDS = {"call": call, "task": task, "list": list_all, "read": read, "prompt": prompt}


def _bytes(peer: RemoteServer, blob: Any) -> bytes:
    try:
        return base64.b64decode(blob)
    except (ValueError, TypeError):
        raise CallFailed(f"{peer.where} sent bytes that cannot be read: they are not in base64.") from None


def _tool_arguments(tool: Mapping[str, Any]) -> str:
    """Return the arguments of a tool as one line, such as `tea: string, milk?: boolean, grams: integer = 100`.

    A `?` marks an optional argument without a default.
    """
    schema = _object(tool.get("inputSchema"))
    required = schema.get("required")
    required = required if is_array(required) else ()
    words: list[str] = []
    for name, about in _object(schema.get("properties")).items():
        default = f" = {_json(about['default'])}" if is_object(about) and "default" in about else ""
        words.append(f"{name}{'' if default or name in required else '?'}: {_type(about, schema)}{default}")
    return ", ".join(words)


def _prompt_arguments(item: Mapping[str, Any]) -> str:
    """Return the arguments of a prompt as one line, such as `mood, tea?`. A `?` marks an optional argument."""
    arguments = _objects(item.get("arguments"))
    return ", ".join(f"{one.get('name')}{'' if one.get('required') else '?'}" for one in arguments)


# Title, capability, method, key of the items, and the function that describes the arguments of an item.
_LISTS: tuple[tuple[str, str, str, str, Callable[[Mapping[str, Any]], str] | None], ...] = (
    ("tools", "tools", "tools/list", "tools", _tool_arguments),
    ("resources", "resources", "resources/list", "resources", None),
    ("resource templates", "resources", "resources/templates/list", "resourceTemplates", None),
    ("prompts", "prompts", "prompts/list", "prompts", _prompt_arguments),
)


def _type(about: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return a short description of the type in the JSON schema `about`, such as `string | null`.

    `root` is the schema that contains the definitions. The depth is limited, because a schema may refer to itself.
    """
    facts = _object(about) if depth < NESTING else {}
    if "$ref" in facts:
        return _type(_object(root.get("$defs")).get(str(facts["$ref"]).rpartition("/")[2]), root, depth + 1)
    if is_array(facts.get("enum")) or "const" in facts:
        return " | ".join(_json(one) for one in facts.get("enum") or [facts.get("const")])
    if is_array(facts.get("anyOf")):
        return " | ".join(_type(one, root, depth + 1) for one in facts["anyOf"])
    if facts.get("type") == "array" and "items" in facts:
        return f"[{_type(facts['items'], root, depth + 1)}]"
    if names := _object(facts.get("properties")):
        return f"{{{', '.join(names)}}}"
    kind = facts.get("type", "any")
    return " | ".join(map(str, kind)) if is_array(kind) else str(kind)


def _object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, otherwise an empty object."""
    return value if is_object(value) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [_object(one) for one in value] if is_array(value) else []


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read_arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise WrongCommand(f"The arguments are not a JSON object ({error}); write them like '{{\"a\": 1}}'.") from None


def _show(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind}, {block.get('mimeType')}, {len(block.get('data', '')) * 3 // 4} bytes]"
    if kind == "resource_link":
        return f"[resource {block.get('uri')}]"
    return _json(block)
