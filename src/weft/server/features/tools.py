"""Register and call tools: `tools/list` and `tools/call`."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from functools import cached_property
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import InvalidParams, ProtocolError, ToolError, UsageError
from weft.jsonrpc import to_unicode
from weft.net.logs import Seldom
from weft.protocol.headers import Mirror, check_mirrors, find_mirrors
from weft.protocol.names import check_tool_name
from weft.protocol.schema import SchemaError, Validator, check_object_schema, compile_schema
from weft.server.asking.rounds import InputRequired, round_of
from weft.server.calls.call import Call, require_needs
from weft.server.calls.changes import Changes
from weft.server.calls.execution import Threads
from weft.server.diagnostics import location, record, report
from weft.server.features.content import BLOCKS, MEDIA, to_blocks
from weft.server.features.registry import CacheHint, Feature, FeatureOptions, Registry, require_scopes
from weft.server.signature.errors import type_name
from weft.server.signature.output import refuse_unawaited, to_json_text
from weft.server.signature.signature import ArgumentsError, OutputError, Signature, read_signature
from weft.types.base import Result
from weft.types.features import CallToolParams, CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from weft.types.tasks import ToolExecution

log = logging.getLogger("weft.tools")
advice = logging.getLogger("weft.advice")

OPAQUE_TYPES = (*BLOCKS, *MEDIA, CallToolResult, InputRequired)  # Return types that are not JSON values.
NO_ARGUMENTS = b"{}"  # Used if a call has no `arguments`.

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # One word of a name in snake_case or camelCase.
_SENSITIVE = re.compile(
    r"(?:^|_)(?:password|passphrase|passwd|pwd|pin|secret|token|api_?key|private_?key|authorization|credentials?|cookie"
    r"|session_?id|ssn|social_security|e_?mail|phone|birth(?:day|date)?|passport|iban|card_number|cvc|cvv)(?:_|$)"
)


class Task(msgspec.Struct, frozen=True):
    """How calls of a tool become tasks, which go on after the call is answered: `@server.tool(task=Task(after=2.0))`.

    With `support="optional"`, clients that do not know of tasks wait for the result; with "required", their calls are
    refused. A call that is done within `after` seconds is answered plainly. `task="optional"` is short for `Task()`.

    >>> Task("required", ttl=600).ttl
    600
    """

    support: Literal["optional", "required"] = "optional"
    after: float = 0.0  # Seconds after which a call becomes a task; 0: at once.
    ttl: float = 3600.0  # Seconds after its creation for which a task is kept, and in which it must be done.
    poll: float = 1.0  # Seconds that a client should wait between two requests for the state.
    # What happens if the worker dies or stops while the handler runs: it runs again on another one, or the task fails.
    restart: Literal["resume", "never"] = "resume"
    immediate_response: str | None = None  # What a model may be told while the task runs; for clients of 2025-11-25.

    def __post_init__(self) -> None:
        for name, value, known in (
            ("support", self.support, ("optional", "required")),
            ("restart", self.restart, ("resume", "never")),
        ):
            if value not in known:
                raise UsageError(f"Task({name}={value!r}) is not possible: it is {' or '.join(map(repr, known))}.")
        for name, seconds, least in (("after", self.after, 0.0), ("ttl", self.ttl, 1.0), ("poll", self.poll, 0.01)):
            if not isinstance(seconds, int | float) or not least <= seconds < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
                raise UsageError(f"Task({name}={seconds!r}) is not possible: give seconds, {least:g} or more.")
        if not isinstance(self.immediate_response, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UsageError(f"Task(immediate_response={self.immediate_response!r}) is not possible: give a text.")


def read_task(given: Task | str | bool | None) -> Task | None:  # noqa: FBT001 - an option of the user
    """Return the option `task` of a tool as a `Task`; None if calls of the tool never become tasks.

    >>> read_task("optional") == Task(), read_task(None)
    (True, None)
    """
    if given is None or given is False or given == "forbidden":
        return None
    if given is True:
        return Task()
    if isinstance(given, str):
        return Task(cast("Any", given))
    if not isinstance(given, Task):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise UsageError(f"task={given!r} is not possible: write task='optional', task='required' or task=Task(...).")
    return given


class ToolOptions(FeatureOptions, kw_only=True, frozen=True):
    """The options of a tool."""

    input_schema: Mapping[str, Any] | None = None  # Replaces the schema from the function's signature.
    output_schema: Mapping[str, Any] | None = None  # Replaces the schema from the return annotation.
    annotations: ToolAnnotations | None = None
    timeout: float | None = None  # In seconds.
    single_use: bool = False  # Whether each `requestState` of this tool is accepted only once.
    task: Task | str | bool | None = None  # Whether and how calls become tasks.


class RegisteredTool(Feature):
    """A tool and its function."""

    kind = "Tool"

    def __init__(self, fn: Callable[..., Any], options: ToolOptions, threads: Threads, *, refs: bool = False) -> None:
        super().__init__(options.name or str(getattr(fn, "__name__", type(fn).__name__)), location(fn), options)
        self.fn = fn
        self.timeout = options.timeout
        self.single_use = options.single_use
        try:
            self.task = read_task(options.task)
        except UsageError as error:
            raise self.refusal(error) from None
        self._threads = threads
        self._seldom = Seldom(log)  # Logs only some of the warnings that clients can cause again and again.
        raw = options.input_schema
        self.signature: Signature = read_signature(
            fn,
            injected=(Call.context_type,),
            opaque=OPAQUE_TYPES,
            kind="tool",
            name=self.name,
            untyped=raw is not None,
            refs=refs,
        )
        self._whole = self._whole_parameter() if raw is not None else None
        self._input = self._compile(raw, "input_schema") if raw is not None else None
        self._has_output_schema = bool(options.output_schema)
        schema = self.signature.input_schema if raw is None else dict(raw)
        try:
            check_tool_name(self.name)
            self.mirrors: tuple[Mirror, ...] = find_mirrors(schema)
            if options.timeout is not None and not 0 < options.timeout < math.inf:
                raise ValueError(
                    f"timeout= is a number of seconds above 0, not {options.timeout!r}. Leave it out for no limit."
                )
        except ValueError as error:
            raise self.refusal(error) from None
        self.definition = Tool(
            name=self.name,
            title=options.title,
            description=options.description or self.signature.description or None,
            input_schema=schema,
            output_schema=dict(options.output_schema) if options.output_schema else self.signature.output_schema,
            annotations=options.annotations,
            icons=options.icons,
            meta=options.meta,
            execution=None if self.task is None else ToolExecution(self.task.support),
        )
        if self._has_output_schema:
            _ = self._output  # Raises an error if the schema is wrong.
        # Whether calls are checked before any code of the user runs.
        self.is_guarded = bool(self.mirrors or self.needs or self.single_use or self.scopes)
        for mirror in self.mirrors:
            if any(map(_is_sensitive, mirror.path)):
                advice.warning(
                    "%s repeats its parameter %r in the header %s. Its name suggests a secret or personal data, and "
                    "proxies write headers into their logs. Remove the x-mcp-header annotation.",
                    self.described,
                    ".".join(mirror.path),
                    mirror.header,
                )

    def _whole_parameter(self) -> str | None:
        """Return the name of the parameter that gets all arguments as one dictionary, in a tool with `input_schema=`.

        Returns None if the function has no parameter. Raises RegistrationError if the function has several parameters.
        """
        names = list(self.signature.input_schema.get("properties", {}))
        if len(names) > 1:
            raise self.refusal(
                f"with input_schema= it gets all arguments in one dictionary, but it has the parameters "
                f"{', '.join(names)}. Write `def {self.name}(arguments: dict[str, Any])`, or leave input_schema= out."
            )
        return names[0] if names else None

    def _compile(self, schema: Mapping[str, Any], what: str) -> Validator:
        try:
            compiled = compile_schema(schema)
            if what == "input_schema":
                check_object_schema(schema)
        except SchemaError as error:
            raise self.refusal(f"its {what} is wrong: {error}") from None
        return compiled

    @cached_property
    def _output(self) -> Validator:
        """The validator for the output schema. It is compiled at first use, because most tools use a faster check."""
        return self._compile(self.definition.output_schema or {}, "output_schema")

    async def invoke(self, call: Call, params: CallToolParams) -> Result:
        """Call the tool's function with the arguments in `params`, and turn its return value into a result."""
        try:
            raw = NO_ARGUMENTS if params.raw_arguments is UNSET else bytes(params.raw_arguments)
            if raw[:1] != b"{":
                raise InvalidParams("Invalid params: `arguments` must be an object.")
            kwargs = self._bind(raw)
            if self.signature.injected is not None:
                kwargs[self.signature.injected] = call.context
            if self.timeout is not None:
                value = await self._in_time(call, kwargs)
            elif self.signature.is_async:
                value = await self.fn(**kwargs)
            else:
                value = await self._threads_for(call).run(self.fn, kwargs)
            return self._result(value)
        except BaseException:  # Middleware may catch it; otherwise the dispatcher answers with an error.
            call.blamed = self.described
            raise

    def _bind(self, raw: bytes) -> dict[str, Any]:
        if self._input is None:
            return self.signature.bind_json(raw)
        try:
            arguments = msgspec.json.decode(raw)
        except msgspec.DecodeError:  # a number that is too large for a float
            raise ArgumentsError(["A number is too large."], subject=f"The arguments of {self.name!r}") from None
        if problems := self._input.problems(arguments):
            raise ArgumentsError([str(problem) for problem in problems], subject=f"The arguments of {self.name!r}")
        return {} if self._whole is None else {self._whole: arguments}

    def _threads_for(self, call: Call) -> Threads:
        """Return the threads for plain functions. Calls that are tasks, or may become tasks, keep no others waiting."""
        threads: Threads | None = None if call.task is None else call.task.threads
        return threads or self._threads

    async def _in_time(self, call: Call, kwargs: dict[str, Any]) -> Any:
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                if self.signature.is_async:
                    return await self.fn(**kwargs)
                return await self._threads_for(call).run(self.fn, kwargs)
        except TimeoutError:
            if not limit.expired():
                raise
            # A thread cannot be stopped: the function continues, and its result is dropped.
            end = "was stopped" if self.signature.is_async else "was given up"
            self._seldom.warning("%s took longer than its %g s and %s.", self.described, self.timeout, end)
            raise ToolError(f"The tool took longer than its {self.timeout:g} s and {end}.") from None

    def _result(self, value: Any) -> Result:
        if isinstance(value, Result):
            return self._full(value)
        if isinstance(value, InputRequired):
            raise value
        refuse_unawaited(value)
        if self._has_output_schema:
            structured = self._conforming(value, "value that", "its output_schema")
        elif self.signature.dump_output is not None:
            structured = self.signature.dump_output(value)
        else:
            if self.signature.require_text is not None:
                self.signature.require_text(value)
            return CallToolResult(content=to_blocks(value))
        # Clients that do not support structured content read the value as text.
        return CallToolResult(content=[TextContent(to_json_text(structured))], structured_content=structured)

    def _full(self, value: Result) -> Result:
        """Return a copy of a result object that the tool's function has returned.

        The structured content of the result is checked against the output schema, unless the result is an error.
        """
        result = copy(value)
        if isinstance(result, CallToolResult):
            result.content = to_blocks(result.content)
            if self.definition.output_schema is not None and not result.is_error:
                result.structured_content = self._promised(result.structured_content)
        return result

    def _promised(self, value: Any) -> Any:
        """Check the structured content of a result that the function returned, and convert it to JSON values.

        Raises OutputError if the structured content is missing or does not match the output schema.
        """
        promise, remedy = "its output_schema", "Put a value that fits the schema into structured_content=."
        if not self._has_output_schema:
            promise = f"its return type {type_name(self.signature.returns)}"
            remedy = "Put such a value into structured_content=, or annotate `-> CallToolResult`, for no output schema."
        if value is UNSET:
            raise OutputError(
                f"{self.described} returned a CallToolResult without structured_content, which clients expect because "
                f"of {promise}. {remedy}"
            )
        return self._conforming(value, "CallToolResult whose structured_content", promise, remedy)

    def _conforming(self, value: Any, what: str, promise: str, remedy: str = "") -> Any:
        structured = msgspec.json.decode(to_json_text(value))
        if problems := self._output.problems(structured):
            text = f"{self.described} returned a {what} does not fit {promise}: {problems[0]} {remedy}"
            raise OutputError(text.rstrip())
        return structured


def _is_sensitive(name: str) -> bool:
    return _SENSITIVE.search("_".join(_WORD.findall(name)).lower()) is not None


def failure_of(call: Call, error: BaseException) -> CallToolResult | None:
    """Turn the exception of a tool call into a result that describes the error to the model.

    Returns None if the call must be answered with a JSON-RPC error instead: for a ProtocolError that the era does not
    show to the model, and for every other exception of middleware that is not a ToolError.
    """
    if isinstance(error, ProtocolError):
        return failure(f"The tool cannot do this. {error.message}") if call.era.tells_model(error) else None
    texts = _model_texts(error, call)
    if texts:
        return failure("\n".join(texts))
    if call.blamed is None:
        return None
    debug = call.services.debug
    if isinstance(error, OutputError):
        return failure(record(str(error), debug=debug))
    return failure(report(call.blamed, error, debug=debug))


def _model_texts(error: BaseException, call: Call) -> list[str]:
    """Return the texts of a ToolError, or of an exception group with only ToolErrors; otherwise an empty list."""
    if isinstance(error, ArgumentsError):
        return [error.describe(call.services.limits)]
    if isinstance(error, ToolError):
        return [str(error)]
    if not isinstance(error, BaseExceptionGroup):
        return []
    members = [_model_texts(inner, call) for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    return [text for member in members for text in member] if all(members) else []


def failure(text: str) -> CallToolResult:
    """Return the result for a failed tool call, with `text` for the model."""
    return CallToolResult(content=[TextContent(to_unicode(text))], is_error=True)


class Tools(Registry[RegisteredTool]):
    """All tools of a server."""

    def __init__(
        self, changes: Changes, threads: Threads, cache_hint: CacheHint, page_size: int, *, refs: bool = False
    ) -> None:
        super().__init__("tools", changes, page_size, ListToolsResult, cache_hint)
        self._threads = threads
        self._refs = refs  # Whether schemas keep their definitions under `$defs`.
        self.has_tasks = False  # Whether calls of a tool could ever become tasks.

    def add(self, fn: Callable[..., Any], options: ToolOptions) -> None:
        """Register a function as a tool, and notify subscribers that the list has changed."""
        tool = RegisteredTool(fn, options, self._threads, refs=self._refs)
        self.has_tasks = self.has_tasks or tool.task is not None  # Before the tool can be called.
        self._add(self._pages, tool, replace=options.replace)

    def call(self, call: Call) -> Awaitable[Result]:
        """Serve `tools/call`."""
        params = call.envelope.params
        assert isinstance(params, CallToolParams)
        if call.params_seen:
            params = self._as_changed(params)
        tool = self._pages.items.get(params.name)
        if tool is None:
            raise self._unknown(call, params.name)
        return tool.invoke(call, params)

    def _as_changed(self, params: CallToolParams) -> CallToolParams:
        """Return the params with the arguments that middleware has set, or unchanged if middleware has set none."""
        if "arguments" not in params.__dict__:
            return params
        arguments: Any = params.arguments
        if not isinstance(arguments, dict):
            raise UsageError(
                "Middleware has set `ctx.params.arguments` to a value of type "
                f"{type(arguments).__name__!r}. Assign a dictionary."
            )
        return msgspec.structs.replace(params, raw_arguments=msgspec.Raw(to_json_text(arguments).encode()))

    def check(self, call: Call) -> None:
        """Check the token's scopes, the headers that repeat arguments, and the client's capabilities.

        Raises an error if a check fails. Must be called before any code of the user runs. If the tool is single-use,
        the `requestState` that the call uses up is stored in `call.spends`.
        """
        params = call.envelope.params
        assert isinstance(params, CallToolParams)
        tool = self._pages.items.get(params.name)
        if tool is None or not tool.is_guarded:
            return
        if tool.scopes:
            require_scopes(call, tool.scopes)
        # Headers repeat the arguments that the client sent, not those that middleware has set.
        if tool.mirrors and call.headers is not None and call.era.mirrors_params and not call.params_seen:
            check_mirrors(tool.mirrors, call.headers, _decoded(params.raw_arguments))
        require_needs(call, tool.needs)
        if tool.single_use and round_of(call) is not None:  # Without rounds, `requestState` is an unknown field.
            call.spends = params.request_state


def _decoded(arguments: msgspec.Raw | UnsetType) -> Mapping[str, Any]:
    try:
        value: Any = None if arguments is UNSET else msgspec.json.decode(arguments)
    except msgspec.DecodeError:  # a number that is too large for a float
        raise InvalidParams("Invalid params: a number in `arguments` is too large.") from None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
