"""Call the program's functions to answer requests of a server and to confirm tool calls.

    elicit(question)             a form to fill in: return a dict, "decline" or "cancel" (or None)
    elicit_url(question)         a page to visit: return True if the user consents, else False, or "cancel"
    sample(question)             a request to a model: return its text or a `CreateMessageResult`; None refuses
    sample_with_tools(question)  the same, for a model that can use tools
    roots()                      return the folders to work in (a list can be given instead of a function)
    log(message)                 a log message
    confirm(call)                called before each tool call: return True to send the call

Passing a function declares its capability. A function is sync or async. A sync function that answers a question runs in
a thread, so it can block. `log` is called in the event loop, so it should be quick.

Questions and answers are both checked. If a question breaks the rules, it is refused before the user sees it. If an
answer does not match the schema or the rules of its question, it is not sent. If a function raises an exception, the
exception is logged, and the server learns only that the function failed. Questions and answers are never logged. If a
server asks too often, its questions are refused.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec

from weft.client.argument_checks import check_function, kind_of, trim_traceback, write_json
from weft.client.callbacks import Functions, queue_for
from weft.client.config import Command
from weft.client.questions import (
    Form,
    FormQuestion,
    RootLike,
    SampleQuestion,
    UrlQuestion,
    check_page,
    check_sampling,
    reachable,
    read_action,
    read_params,
    read_roots,
)
from weft.client.results import CallDeclined
from weft.errors import InternalError, InvalidParams, MethodNotFound, ProtocolError, UsageError
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits
from weft.net.logs import Seldom
from weft.net.rate import Allowance
from weft.protocol.sampling import fault_of_answer
from weft.types.features import TextContent
from weft.types.interaction import CreateMessageParams, CreateMessageResult, ElicitParams, ListRootsResult
from weft.types.lifecycle import (
    ClientCapabilities,
    ElicitationCapability,
    LogMessageParams,
    RootsCapability,
    SamplingCapability,
)
from weft.types.tasks import TASKS_EXTENSION

_log = logging.getLogger("weft.client.handlers")

FormFunction: TypeAlias = Callable[[FormQuestion], Any]
UrlFunction: TypeAlias = Callable[[UrlQuestion], Any]
SampleFunction: TypeAlias = Callable[[SampleQuestion], Any]
RootsFunction: TypeAlias = Callable[[], Iterable[RootLike] | Awaitable[Iterable[RootLike]]]
LogFunction: TypeAlias = Callable[[LogMessageParams], Any]

USER_REJECTED = -1  # error code for a refused sampling request
_MAX_LOGS = 1000  # log messages that wait for an async function; if there are more, the oldest are dropped


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that is about to be sent. Show the user the `server`, the `name` and the `arguments`."""

    name: str
    arguments: Mapping[str, Any] = field(repr=False)  # may contain secrets, so they are never logged
    server: str


ConfirmFunction: TypeAlias = Callable[[ToolCall], Any]


@dataclass(kw_only=True, eq=False, repr=False)
class ServerRequestHandlers:
    """Answers the requests of the server with the program's functions.

    >>> handlers = ServerRequestHandlers(elicit=lambda question: {"name": "Ann"})
    >>> handlers.capabilities.elicitation
    ElicitationCapability(form={}, url=None)
    """

    elicit: FormFunction | None = None
    elicit_url: UrlFunction | None = None
    sample: SampleFunction | None = None
    sample_with_tools: SampleFunction | None = None
    roots: Iterable[RootLike] | RootsFunction | None = None
    confirm: ConfirmFunction | None = None
    log: LogFunction | None = None
    limits: ClientLimits = DEFAULT_CLIENT_LIMITS
    server: str = ""  # name and address of the server, shown with questions; set after the negotiation

    def __post_init__(self) -> None:
        for form in ("elicit(question)", "elicit_url(question)", "sample(question)", "sample_with_tools(question)"):
            check_function(getattr(self, form.partition("(")[0]), form)
        check_function(self.confirm, "confirm(call)")
        if callable(self.roots):
            check_function(self.roots, "roots()")
        elif self.roots is not None:
            self.roots = read_roots(self.roots)
        self._logs = queue_for(self.log, _MAX_LOGS, "on_log(message)")
        self._seldom = Seldom(_log)  # rate-limited, because the server can cause these log lines at will
        self._call = Functions().call
        self._call_confirm = Functions().call  # has its own threads, so that hanging questions do not stop calls
        self._allowance = Allowance(self.limits.asks_per_minute, 60.0)
        self._answers: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {}  # by method
        self.capabilities = ClientCapabilities()  # for both eras; each era sends only the capabilities that it has
        if self.elicit or self.elicit_url:
            elicitation = ElicitationCapability({} if self.elicit else None, {} if self.elicit_url else None)
            self.capabilities.elicitation = elicitation
            self._answers["elicitation/create"] = self._answer_elicitation
        if self.sample or self.sample_with_tools:
            self.capabilities.sampling = SamplingCapability(tools={} if self.sample_with_tools else None)
            self._answers["sampling/createMessage"] = self._answer_sampling
        if self.roots is not None:
            self.capabilities.roots = RootsCapability(list_changed=True)
            self._answers["roots/list"] = self._answer_roots

    async def answer(self, method: str, params: Any = None) -> dict[str, Any]:
        """Answer one request of the server, and return the result to send. `params` is a mapping or raw JSON.

        Raises a ProtocolError, which is sent to the server. Its code is -32601 if the capability was not declared,
        -32602 if the question breaks the rules, and -1 if the program refuses a sampling request. The code is -32603 if
        the server asks too often, if the program's function fails, or if the function's answer cannot be sent.
        """
        if (answer := self._answers.get(method)) is None:
            raise MethodNotFound(f"Method not found: this client does not offer {method[:100]}.")
        if self._allowance.wait():
            raise InternalError(f"Internal error: this client takes {self.limits.asks_per_minute} questions a minute.")
        try:
            return await answer(params)
        except (ProtocolError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            trim_traceback(error)
            if isinstance(error, UsageError) and error.__traceback__ is None:  # raised by Weft: the answer does not fit
                self._seldom.error("%s was not answered: %s", method, error)
            else:
                self._seldom.exception(
                    "The function that answers %s failed; the server gets only a general error.", method, about=method
                )
            raise InternalError(f"Internal error: the client could not answer {method}.") from error

    def receive(self, method: str, params: Any = None) -> None:
        """Call the program's function `log` if the notification is a log message. Ignore other notifications."""
        if method != "notifications/message" or self._logs is None:
            return
        try:
            message = read_params(params, LogMessageParams, method)
        except InvalidParams:
            _log.debug("The server sent an invalid log message.")
        else:
            self._logs.call(message, size=len(params) if isinstance(params, bytes) else 0)

    async def close(self) -> None:
        """Cancel the running call of the program's function `log`, and drop all waiting log messages."""
        if self._logs is not None:
            await self._logs.stop()

    async def agreed(self, confirm: ConfirmFunction, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call `confirm` before a tool call is sent, and return the arguments to send.

        `confirm` gets a copy of the arguments, so it cannot change the arguments that are sent. It is called for every
        tool, even if the server marks the tool as harmless. Raises CallDeclined unless `confirm` returns True.
        """
        as_sent = write_json("tools/call", {"arguments": arguments}, msgspec.json.encode, arguments)
        if await self._call_confirm(confirm, ToolCall(name, msgspec.json.decode(as_sent), self.server)) is not True:
            _log.info("The call of the tool %r of %s was declined.", name, self.server)
            raise CallDeclined(f"The call of the tool {name!r} was declined by confirm=; nothing was sent.")
        _log.info("The call of the tool %r of %s was confirmed.", name, self.server)
        confirmed: Mapping[str, Any] = msgspec.json.decode(as_sent)
        return confirmed

    # --- elicitation

    async def _answer_elicitation(self, raw: Any) -> dict[str, Any]:
        params = read_params(raw, ElicitParams, "elicitation/create")
        if params.mode == "url":
            return await self._answer_url(params)
        if self.elicit is None:
            raise InvalidParams("Invalid params: this client did not declare elicitation by form.")
        if params.requested_schema is None:
            raise InvalidParams("Invalid params: elicitation by form needs a requestedSchema.")
        form = Form(params.requested_schema)
        question = FormQuestion(params.message, params.requested_schema, form.defaults, self.server)
        action, content = read_action(await self._call(self.elicit, question))
        if action != "accept":
            return {"action": action}
        return {"action": action, "content": form.checked({**form.defaults, **(content or {})})}

    async def _answer_url(self, params: ElicitParams) -> dict[str, Any]:
        if self.elicit_url is None:
            raise InvalidParams("Invalid params: this client did not declare elicitation by URL.")
        host, warnings = check_page(params.url or "")
        question = UrlQuestion(params.message, params.url or "", host, warnings, self.server, params.elicitation_id)
        action, _ = read_action(await self._call(self.elicit_url, question))
        return {"action": action}  # only whether the user consents

    # --- sampling

    async def _answer_sampling(self, raw: Any) -> dict[str, Any]:
        params = read_params(raw, CreateMessageParams, "sampling/createMessage")
        with_tools = params.tools is not None or params.tool_choice is not None
        function = self.sample_with_tools if with_tools else self.sample or self.sample_with_tools
        if function is None:
            raise InvalidParams("Invalid params: this client did not declare sampling with tools.")
        check_sampling(params)
        answer = await self._call(function, SampleQuestion(**msgspec.structs.asdict(params), server=self.server))
        if answer is None:
            raise ProtocolError("User rejected sampling request", code=USER_REJECTED)
        if isinstance(answer, str):
            answer = CreateMessageResult("assistant", TextContent(answer), model="unknown", stop_reason="endTurn")
        if not isinstance(answer, CreateMessageResult):
            raise UsageError(f"sample= returned {kind_of(answer)}; return text, a CreateMessageResult, or None.")
        fault = fault_of_answer(params, answer)
        if fault is not None:
            raise UsageError(f"sample= returned an answer that cannot be sent: {fault}")
        plain: dict[str, Any] = msgspec.to_builtins(answer)
        return plain

    # --- roots

    async def _answer_roots(self, _: Any) -> dict[str, Any]:
        found = await self._call(self.roots) if callable(self.roots) else self.roots
        plain: dict[str, Any] = msgspec.to_builtins(
            ListRootsResult(await asyncio.to_thread(reachable, read_roots(found), self._seldom))
        )
        return plain


_OPTIONS = {  # option of `Client` that declares each capability
    ("elicitation", "form"): "elicit",
    ("elicitation", "url"): "elicit_url",
    ("sampling", ""): "sample",
    ("sampling", "tools"): "sample_with_tools",
    ("roots", ""): "roots",
}
_WHOLE = {"elicitation": "form"}  # the part that a server means if it names only the capability


class _Missing(msgspec.Struct, rename="camel"):
    required_capabilities: dict[str, dict[str, Any]]


WITHOUT_TASKS = "Remove `tasks=False` from the client."


def declares_tasks(declared: ClientCapabilities) -> bool:
    """Return whether a client with these capabilities follows tasks: it does, unless it was given `tasks=False`."""
    return TASKS_EXTENSION in (declared.extensions or {})


def remedy_for(data: Any, declared: ClientCapabilities) -> str:
    """Say which options of `Client` declare the capabilities that the server requires and the client lacks.

    `data` is the data of the server's error, which lists the required capabilities. `declared` are the capabilities of
    the client. Returns "" if there is no option to change, or if `data` lists no capabilities.

    >>> remedy_for({"requiredCapabilities": {"elicitation": {"url": {}}, "roots": {}}}, ClientCapabilities())
    'Give the client `elicit_url=` and `roots=`.'
    """
    try:
        required = msgspec.convert(data, _Missing).required_capabilities
    except msgspec.ValidationError:
        return ""
    has: dict[str, dict[str, Any]] = msgspec.to_builtins(declared)
    needed = [(name, part) for name, parts in required.items() for part in parts or (_WHOLE.get(name, ""),)]
    missing = [(name, part) for name, part in needed if name not in has or (part and part not in has[name])]
    options = [f"`{_OPTIONS[one]}=`" for one in missing if one in _OPTIONS]
    extensions: dict[str, Any] = {part: {} for name, part in missing if name == "extensions" and part}
    needs_tasks = extensions.pop(TASKS_EXTENSION, None) is not None
    if extensions:
        options.append(f"`extensions={extensions}`")
    remedies = [f"Give the client {' and '.join(options)}."] if options else []
    return " ".join([*remedies, WITHOUT_TASKS] if needs_tasks else remedies)


@dataclass(frozen=True, slots=True)
class CommandQuestion:
    """The question whether a command may be started. Show the user the whole `command` and all `warnings`."""

    command: str  # the complete command line, with invisible characters escaped
    warnings: tuple[str, ...]


_SHELLS = {"bash", "cmd", "dash", "fish", "powershell", "pwsh", "sh", "zsh"}
_SUSPICIOUS = {  # by warning: the names of the programs that get this warning
    "asks for more rights than you have": {"doas", "pkexec", "runas", "su", "sudo"},
    "is a shell, which does whatever its arguments say": _SHELLS,
    "can remove files": {"dd", "del", "mkfs", "rm", "rmdir", "shred"},
    "talks to other machines": {"curl", "ftp", "nc", "ncat", "scp", "ssh", "wget"},
}
_PRIVATE = re.compile(r"(?i)\.(aws|docker|gnupg|kube|netrc|ssh)\b|/etc/|id_(rsa|ed25519)|\\System32\\")
_LOADERS = re.compile(
    r"(?i)(LD_|DYLD_|UV_|PIP_|NPM_CONFIG_|GIT_).*|PATH|NODE_OPTIONS|NODE_PATH|PYTHON(PATH|STARTUP|HOME|BREAKPOINT)|PERL5(OPT|LIB)"
    r"|RUBY(OPT|LIB)|BASH_ENV|ENV|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
)


def command_question(target: Command) -> CommandQuestion:
    r"""Return the question to show before starting a command from an untrusted source, such as a configuration file.

    >>> print(*command_question(Command(("sudo", "uvx", "mcp-server-time"))).warnings, sep="\n")
    It runs on this machine with all your rights: start it only if you trust where it comes from.
    'sudo' asks for more rights than you have.
    """
    words = [word for part in target.command for word in part.split()]
    names = [PurePath(word.replace("\\", "/")).name.lower().removesuffix(".exe") for word in words]
    warnings = ["It runs on this machine with all your rights: start it only if you trust where it comes from."]
    for what, known in _SUSPICIOUS.items():
        warnings += [f"{name!r} {what}." for name in dict.fromkeys(names) if name in known]
    warnings += [f"{word!r} names a place for secrets or system files." for word in words if _PRIVATE.search(word)]
    assigned = [word.partition("=")[0] for word in words if "=" in word]  # as for `env`
    names = list(dict.fromkeys(name for name in (*target.env, *assigned) if changes_code(name)))
    warnings += [f"The variable {name!r} changes which code is run." for name in names]
    return CommandQuestion(visible(target.line), tuple(warnings))


def changes_code(variable: str) -> bool:
    """Return whether this environment variable, such as PYTHONPATH, can change which code a program loads."""
    return _LOADERS.fullmatch(variable) is not None


def visible(text: str) -> str:
    r"""Return the text with all non-printable characters escaped.

    >>> visible("a\x1b[8mb")
    'a\\x1b[8mb'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
