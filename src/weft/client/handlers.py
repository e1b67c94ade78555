"""Answer what a server asks of its client, and confirm calls, by functions that the user gives.

    elicit(question)             a form to fill in: return a dict, or "decline", or "cancel" (also None)
    elicit_url(question)         a page to visit: return True when the user consents, else False, or "cancel"
    sample(question)             a turn of a model: return its text or a `CreateMessageResult`; None refuses
    sample_with_tools(question)  the same, by a model that can be given tools
    roots()                      the folders to work in; also just a list of them
    log(message)                 a log message
    confirm(call)                a tool is about to be called: only True has it called

Passing a function declares its capability. A function is async, or plain: a plain one that answers runs in a thread,
and may take its time; `log` is called in the event loop, and should be quick.

Questions and answers are both checked. A question that breaks the rules is refused before the user sees it; an answer
that does not fit the question is not sent. An exception in a function is logged here, and the server gets no more than
that there was one; what was asked and answered is in no log. A server that asks too often is refused.
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

from weft.client.argument_checks import check_function, kind_of, plainly, write_json
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

_own_log = logging.getLogger("weft.client.handlers")

FormFunction: TypeAlias = Callable[[FormQuestion], Any]
UrlFunction: TypeAlias = Callable[[UrlQuestion], Any]
SampleFunction: TypeAlias = Callable[[SampleQuestion], Any]
RootsFunction: TypeAlias = Callable[[], Iterable[RootLike] | Awaitable[Iterable[RootLike]]]
LogFunction: TypeAlias = Callable[[LogMessageParams], Any]

USER_REJECTED = -1  # the code of a refused sampling request
_MAX_LOGS = 1000  # log messages that an async function has not taken yet; more, and the oldest are lost


class ServerRequestHandlers:
    """The functions that the user gave, and how they answer requests of the server.

    >>> handlers = ServerRequestHandlers(elicit=lambda question: {"name": "Ann"})
    >>> handlers.capabilities.elicitation
    ElicitationCapability(form={}, url=None)
    """

    def __init__(
        self,
        *,
        elicit: FormFunction | None = None,
        elicit_url: UrlFunction | None = None,
        sample: SampleFunction | None = None,
        sample_with_tools: SampleFunction | None = None,
        roots: Iterable[RootLike] | RootsFunction | None = None,
        log: LogFunction | None = None,
        limits: ClientLimits = DEFAULT_CLIENT_LIMITS,
    ) -> None:
        self._seldom = Seldom(_own_log)  # for what the server can cause at will
        given = {"elicit": elicit, "elicit_url": elicit_url, "sample": sample, "sample_with_tools": sample_with_tools}
        for option, function in given.items():
            if function is not None:
                check_function(function, f"{option}(question)")
        if callable(roots):
            check_function(roots, "roots()")
        self._elicit = elicit
        self._elicit_url = elicit_url
        self._sample = sample or sample_with_tools
        self._sample_with_tools = sample_with_tools
        self._roots = roots if callable(roots) or roots is None else read_roots(roots)
        self._log = queue_for(log, _MAX_LOGS, "on_log(message)")
        self.server = ""  # who asks, for the questions: set by the client once it knows
        self.capabilities = self._declared()  # what the functions make possible; an era leaves out what it has not
        self._call = Functions().call
        self._limits = limits
        self._allowance = Allowance(limits.asks_per_minute, 60.0)
        self._answers = {
            "elicitation/create": (elicit or elicit_url, self._answer_elicitation),
            "sampling/createMessage": (self._sample, self._answer_sampling),
            "roots/list": (self._roots is not None, self._answer_roots),
        }

    def _declared(self) -> ClientCapabilities:
        has_form, has_url = self._elicit is not None, self._elicit_url is not None
        elicitation = ElicitationCapability({} if has_form else None, {} if has_url else None)
        sampling = SamplingCapability(tools={} if self._sample_with_tools else None)
        return ClientCapabilities(
            roots=None if self._roots is None else RootsCapability(list_changed=True),
            sampling=sampling if self._sample else None,
            elicitation=elicitation if has_form or has_url else None,
        )

    async def answer(self, method: str, params: Any = None) -> dict[str, Any]:
        """Answer one request of the server; `params` are a mapping, or raw JSON.

        Raises the ProtocolError to tell the server: -32601 for what was not declared, -32602 for what breaks the rules,
        -1 when sampling was refused, -32603 when there are too many, or, caused by the exception, a function failed.
        """
        has_function, answer = self._answers.get(method, (None, None))
        if not has_function or answer is None:
            raise MethodNotFound(f"Method not found: this client does not offer {method[:100]}.")
        if self._allowance.wait():
            raise InternalError(
                f"Internal error: this client takes {self._limits.asks_per_minute} questions a minute; ask less often."
            )
        try:
            return await answer(params)
        except (ProtocolError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            plainly(error)
            if isinstance(error, UsageError) and error.__traceback__ is None:  # Weft's own: an answer does not fit
                self._seldom.error("%s was not answered: %s", method, error)
            else:
                self._seldom.exception(
                    "The function that answers %s failed; the server is told only that it did.", method, about=method
                )
            raise InternalError(f"Internal error: the client could not answer {method}.") from error

    def heard(self, method: str, params: Any = None) -> None:
        """Give log messages to their function; ignore other notifications."""
        if method != "notifications/message" or self._log is None:
            return
        try:
            message = read_params(params, LogMessageParams, method)
        except InvalidParams:
            _own_log.debug("The server sent a log message that is none.")
        else:
            self._log.call(message, size=len(params) if isinstance(params, bytes) else 0)

    async def close(self) -> None:
        """Wait for nothing: log messages that an async function has not taken yet are dropped."""
        if self._log is not None:
            await self._log.stop()

    # --- elicitation

    async def _answer_elicitation(self, raw: Any) -> dict[str, Any]:
        params = read_params(raw, ElicitParams, "elicitation/create")
        if params.mode == "url":
            return await self._answer_url(params)
        if self._elicit is None:
            raise InvalidParams("Invalid params: this client did not declare elicitation by form.")
        if params.requested_schema is None:
            raise InvalidParams("Invalid params: elicitation by form needs a requestedSchema.")
        form = Form(params.requested_schema)
        question = FormQuestion(params.message, params.requested_schema, form.defaults, self.server)
        action, content = read_action(await self._call(self._elicit, question))
        if action != "accept":
            return {"action": action}
        return {"action": action, "content": form.checked({**form.defaults, **(content or {})})}

    async def _answer_url(self, params: ElicitParams) -> dict[str, Any]:
        if self._elicit_url is None:
            raise InvalidParams("Invalid params: this client did not declare elicitation by URL.")
        host, warnings = check_page(params.url or "")
        question = UrlQuestion(params.message, params.url or "", host, warnings, self.server, params.elicitation_id)
        action, _ = read_action(await self._call(self._elicit_url, question))
        return {"action": action}  # consent, and nothing about what the user does there

    # --- sampling

    async def _answer_sampling(self, raw: Any) -> dict[str, Any]:
        params = read_params(raw, CreateMessageParams, "sampling/createMessage")
        with_tools = params.tools is not None or params.tool_choice is not None
        function = self._sample_with_tools if with_tools else self._sample
        if function is None:
            raise InvalidParams("Invalid params: this client did not declare sampling with tools.")
        check_sampling(params)
        answer = await self._call(function, SampleQuestion(**msgspec.structs.asdict(params), server=self.server))
        if answer is None:
            raise ProtocolError("User rejected sampling request", code=USER_REJECTED)
        if isinstance(answer, str):
            answer = CreateMessageResult("assistant", TextContent(answer), model="unknown", stop_reason="endTurn")
        if not isinstance(answer, CreateMessageResult):
            raise UsageError(
                f"sample= returned {kind_of(answer)}; return text, a CreateMessageResult, or None to refuse."
            )
        fault = fault_of_answer(params, answer)
        if fault is not None:
            raise UsageError(f"sample= returned what cannot be sent: {fault}")
        plain: dict[str, Any] = msgspec.to_builtins(answer)
        return plain

    # --- roots

    async def _answer_roots(self, _: Any) -> dict[str, Any]:
        found = await self._call(self._roots) if callable(self._roots) else self._roots
        plain: dict[str, Any] = msgspec.to_builtins(
            ListRootsResult(await asyncio.to_thread(reachable, read_roots(found), self._seldom))
        )
        return plain


_OPTIONS = {  # of a client, by what each declares
    ("elicitation", "form"): "elicit",
    ("elicitation", "url"): "elicit_url",
    ("sampling", ""): "sample",
    ("sampling", "tools"): "sample_with_tools",
    ("roots", ""): "roots",
}
_WHOLE = {"elicitation": "form"}  # what is meant where no part of a capability is named


class _Missing(msgspec.Struct, rename="camel"):
    required_capabilities: dict[str, dict[str, Any]]


def options_for(data: Any, declared: ClientCapabilities) -> str:
    """Return the options of a client that declare what a refusal asks for; "" if there are none.

    Only the stateless era has a code for it; what is required is in the data of either era's error.

    >>> options_for({"requiredCapabilities": {"elicitation": {"url": {}}, "roots": {}}}, ClientCapabilities())
    '`elicit_url=` and `roots=`'
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
    if extensions:
        options.append(f"`extensions={extensions}`")
    return " and ".join(options)


log = logging.getLogger("weft.client.handlers")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that is about to be made. Show who gets which arguments: they leave this program with it."""

    name: str
    arguments: Mapping[str, Any] = field(repr=False)  # may be secrets, so they are in no log
    server: str


ConfirmFunction: TypeAlias = Callable[[ToolCall], Any]


class Confirming:
    """Asks the user's function about every call; the hints of the server decide nothing."""

    def __init__(self, function: ConfirmFunction) -> None:
        check_function(function, "confirm(call)")
        self._function = function
        self._functions = Functions()

    async def agreed(self, name: str, arguments: Mapping[str, Any], server: str) -> Mapping[str, Any]:
        """Return the arguments to send: a copy of those that were shown.

        CallDeclined for every answer but True.
        """
        as_sent = write_json("tools/call", {"arguments": arguments}, msgspec.json.encode, arguments)
        shown = ToolCall(name, msgspec.json.decode(as_sent), server)
        if await self._functions.call(self._function, shown) is not True:
            log.info("The call of the tool %r of %s was declined.", name, server)
            raise CallDeclined(f"The call of the tool {name!r} was declined by confirm=; nothing was sent.")
        log.info("The call of the tool %r of %s was confirmed.", name, server)
        confirmed: Mapping[str, Any] = msgspec.json.decode(as_sent)
        return confirmed


@dataclass(frozen=True, slots=True)
class CommandQuestion:
    """A program to be started, if the user consents. Show the whole `command`, and all `warnings`."""

    command: str  # as one would type it, nothing left out, what cannot be seen written as an escape
    warnings: tuple[str, ...]


_RIGHTS = frozenset({"doas", "pkexec", "runas", "su", "sudo"})
_SHELLS = frozenset({"bash", "cmd", "dash", "fish", "powershell", "pwsh", "sh", "zsh"})
_REMOVERS = frozenset({"dd", "del", "mkfs", "rm", "rmdir", "shred"})
_FETCHERS = frozenset({"curl", "ftp", "nc", "ncat", "scp", "ssh", "wget"})
_PRIVATE = re.compile(r"(?i)\.(aws|docker|gnupg|kube|netrc|ssh)\b|/etc/|id_(rsa|ed25519)|\\System32\\")
_LOADERS = re.compile(
    r"(?i)(LD_|DYLD_|UV_|PIP_|NPM_CONFIG_|GIT_).*|PATH|NODE_OPTIONS|NODE_PATH|PYTHON(PATH|STARTUP|HOME|BREAKPOINT)|PERL5(OPT|LIB)"
    r"|RUBY(OPT|LIB)|BASH_ENV|ENV|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
)


def command_question(target: Command) -> CommandQuestion:
    r"""Return what to show before a command is started that somebody else wrote: a link, a configuration.

    >>> print(*command_question(Command(("sudo", "uvx", "mcp-server-time"))).warnings, sep="\n")
    It runs on this machine with all your rights: start it only if you trust where it comes from.
    'sudo' asks for more rights than you have.
    """
    words = [word for part in target.command for word in part.split()]
    names = [PurePath(word.replace("\\", "/")).name.lower().removesuffix(".exe") for word in words]
    warnings = ["It runs on this machine with all your rights: start it only if you trust where it comes from."]
    for known, what in (
        (_RIGHTS, "asks for more rights than you have"),
        (_SHELLS, "is a shell, which does whatever its arguments say"),
        (_REMOVERS, "can remove files"),
        (_FETCHERS, "talks to other machines"),
    ):
        warnings += [f"{name!r} {what}." for name in dict.fromkeys(names) if name in known]
    warnings += [f"{word!r} is a place of secrets, or of the system." for word in words if _PRIVATE.search(word)]
    assigned = [word.partition("=")[0] for word in words if "=" in word]  # as for `env`
    names = list(dict.fromkeys(name for name in (*target.env, *assigned) if changes_code(name)))
    warnings += [f"The variable {name!r} changes which code is run." for name in names]
    return CommandQuestion(visible(target.line), tuple(warnings))


def changes_code(variable: str) -> bool:
    """Return whether a variable of the environment makes programs run other code, or fetch it from elsewhere."""
    return _LOADERS.fullmatch(variable) is not None


def visible(text: str) -> str:
    r"""Return text with nothing in it that a terminal would hide.

    >>> visible("a\x1b[8mb")
    'a\\x1b[8mb'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
