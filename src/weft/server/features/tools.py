"""Tools: the registry, and what happens at `tools/list` and `tools/call`."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import InvalidParams, ProtocolError, RegistrationError, ToolError, UsageError
from weft.net.logs import Seldom
from weft.protocol.headers import Mirror, check_mirrors, find_mirrors
from weft.protocol.names import check_tool_name
from weft.protocol.schema import SchemaError, Validator, check_object_schema, compile_schema
from weft.server.asking.context import Context
from weft.server.asking.rounds import InputRequired
from weft.server.auth.scopes import Audience, check_scopes, require_scopes, usable
from weft.server.calls.call import Call, check_hide, check_needs, require_needs
from weft.server.calls.changes import Change, Changes
from weft.server.calls.tasks import Threads
from weft.server.diagnostics.argument_checks import check_kind, warn_of_mirrors
from weft.server.diagnostics.error_reporting import record, report
from weft.server.diagnostics.source_location import location
from weft.server.features.content import BLOCKS, HELPERS, refuse_unawaited, to_blocks, to_json_text
from weft.server.features.definitions import check_definition, nothing_to_remove, unknown
from weft.server.features.pages import CacheHint, Encoded, Pages
from weft.server.signature.errors import type_name
from weft.server.signature.signature import ArgumentsError, OutputError, Signature, read_signature
from weft.types.base import Icon, Result
from weft.types.content import TextContent
from weft.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool, ToolAnnotations

log = logging.getLogger("weft.tools")

OPAQUE_TYPES = (*BLOCKS, *HELPERS, CallToolResult, InputRequired)  # returned, but no JSON values
NO_ARGUMENTS = b"{}"


class ToolOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What can be said of a tool besides its function."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None  # in place of the function's signature
    output_schema: Mapping[str, Any] | None = None  # in place of the return annotation
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = None
    timeout: float | None = None  # seconds
    single_use: bool = False  # a `requestState` of this tool is accepted once (MRTR-14)
    scopes: Sequence[str] = ()  # without which a token is refused, and the tool not listed
    needs: Sequence[str] = ()  # client capabilities without which the call is refused before it begins
    hide: bool = False  # leave it out of the lists of clients that lack what it needs
    replace: bool = False  # take the place of a tool of the same name


class RegisteredTool:
    """A tool and how it is called."""

    __slots__ = (
        "_full_output",
        "_input",
        "_output",
        "_seldom",
        "_threads",
        "_whole",
        "definition",
        "fn",
        "hide",
        "mirrors",
        "name",
        "needs",
        "scopes",
        "signature",
        "single_use",
        "timeout",
        "where",
    )

    def __init__(self, fn: Callable[..., Any], options: ToolOptions, threads: Threads, *, refs: bool = False) -> None:
        self.fn = fn
        self.where = location(fn)
        check_kind("name", options.name or "", str, "'buy_tea'")
        self.name: str = options.name or str(getattr(fn, "__name__", type(fn).__name__))
        self._check(lambda: check_tool_name(self.name))
        raw = options.input_schema
        self.signature: Signature = read_signature(
            fn,
            injected=(Context,),
            opaque=OPAQUE_TYPES,
            kind="tool",
            name=self.name,
            untyped=raw is not None,
            refs=refs,
        )
        self._whole = self._whole_parameter() if raw is not None else None
        self._input = self._compile(raw, "input_schema") if raw is not None else None
        self._output = self._compile(options.output_schema, "output_schema") if options.output_schema else None
        self._full_output: Validator | None = None  # what structured content is held to, once a tool made its own
        schema = self.signature.input_schema if raw is None else dict(raw)
        self.mirrors: tuple[Mirror, ...] = self._check(lambda: find_mirrors(schema))
        self.timeout = self._check(lambda: _check_timeout(options.timeout))
        self.needs = check_needs(options.needs, self._described)
        self.hide = check_hide(options.hide, self.needs, self._described)
        self.scopes = check_scopes(options.scopes, self._described)
        self.single_use = options.single_use
        self._threads = threads
        self._seldom = Seldom(log)  # for what clients can cause at will
        self.definition = Tool(
            name=self.name,
            title=options.title,
            description=options.description or self.signature.description or None,
            input_schema=schema,
            output_schema=dict(options.output_schema) if options.output_schema else self.signature.output_schema,
            annotations=options.annotations,
            icons=options.icons,
            meta=options.meta,
        )
        check_definition(self.definition, f"Tool {self.name!r}", self.where)
        warn_of_mirrors(self.mirrors, self._described)

    def _whole_parameter(self) -> str | None:
        """With a schema of its own, a tool takes its arguments whole, in one parameter."""
        names = list(self.signature.input_schema.get("properties", {}))
        if len(names) > 1:
            raise RegistrationError(
                f"Tool {self.name!r} cannot be registered ({self.where}): with input_schema= it gets all arguments "
                f"in one dictionary, but it has the parameters {', '.join(names)}. Write `def {self.name}(arguments: "
                "dict[str, Any])`, or leave input_schema= out."
            )
        return names[0] if names else None

    def _check(self, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except ValueError as error:
            raise RegistrationError(f"Tool {self.name!r} cannot be registered ({self.where}): {error}") from None

    def _compile(self, schema: Mapping[str, Any], what: str) -> Validator:
        try:
            compiled = compile_schema(schema)
            if what == "input_schema":
                check_object_schema(schema)
        except SchemaError as error:
            raise RegistrationError(
                f"Tool {self.name!r} cannot be registered ({self.where}): its {what} is wrong: {error}"
            ) from None
        return compiled

    async def invoke(self, call: Call, params: CallToolParams) -> Result:
        """Bind the arguments, call the function, make a result of what it returns."""
        try:
            raw = NO_ARGUMENTS if params.raw_arguments is UNSET else bytes(params.raw_arguments)
            if raw[:1] != b"{":  # TOOL-14: not arguments that do not fit, but no arguments at all
                raise InvalidParams("Invalid params: `arguments` must be an object.")
            kwargs = self._bind(raw)
            if self.signature.injected is not None:
                kwargs[self.signature.injected] = call.context
            if self.timeout is not None:
                value = await self._in_time(kwargs)
            elif self.signature.is_async:
                value = await self.fn(**kwargs)
            else:
                value = await self._threads.run(self.fn, kwargs)
            return self._result(value)
        except BaseException:  # for middleware to see, and for the dispatcher to make an answer of
            call.blamed = self._described
            raise

    @property
    def _described(self) -> str:
        return f"Tool {self.name!r} ({self.where})"

    def _bind(self, raw: bytes) -> dict[str, Any]:
        if self._input is None:
            return self.signature.bind_json(raw)
        try:
            arguments = msgspec.json.decode(raw)
        except msgspec.DecodeError:  # a number that no float can hold
            raise ArgumentsError(["A number is too large."], subject=f"The arguments of {self.name!r}") from None
        if problems := self._input.problems(arguments):
            raise ArgumentsError([str(problem) for problem in problems], subject=f"The arguments of {self.name!r}")
        return {} if self._whole is None else {self._whole: arguments}

    async def _in_time(self, kwargs: dict[str, Any]) -> Any:
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                if self.signature.is_async:
                    return await self.fn(**kwargs)
                return await self._threads.run(self.fn, kwargs)
        except TimeoutError:
            if not limit.expired():
                raise
            # A thread cannot be stopped: what runs there runs on, and only its result is not waited for.
            end = "was stopped" if self.signature.is_async else "was given up"
            self._seldom.warning("%s took longer than its %g s and %s.", self._described, self.timeout, end)
            raise ToolError(f"The tool took longer than its {self.timeout:g} s and {end}.") from None

    def _result(self, value: Any) -> Result:
        if isinstance(value, Result):
            return self._full(value)
        if isinstance(value, InputRequired):
            raise value
        refuse_unawaited(value)
        if self._output is not None:
            structured = self._conforming(self._output, value)
        elif self.signature.dump_output is not None:
            structured = self.signature.dump_output(value)
        else:
            if self.signature.require_text is not None:
                self.signature.require_text(value)
            return CallToolResult(content=to_blocks(value))
        # TOOL-11: clients that do not know structured content read the same as text.
        return CallToolResult(content=[TextContent(to_json_text(structured))], structured_content=structured)

    def _full(self, value: Result) -> Result:
        """A result the tool made itself: a copy, for it will be sealed, and held to what the tool has declared."""
        result = copy(value)
        if isinstance(result, CallToolResult):
            result.content = to_blocks(result.content)
            if self.definition.output_schema is not None and not result.is_error:
                result.structured_content = self._promised(result.structured_content)
        return result

    def _promised(self, value: Any) -> Any:
        """The structured content of a result that the tool made itself: what is declared is what is sent (TOOL-12)."""
        promise, remedy = "its output_schema", "Put what the schema describes into structured_content=."
        if self._output is None:
            promise = f"its return type {type_name(self.signature.returns)}"
            remedy = "Put such a value into structured_content=, or annotate `-> CallToolResult`, to promise nothing."
        if value is UNSET:
            raise OutputError(
                f"{self._described} returned a CallToolResult without structured_content, which clients expect because "
                f"of {promise}. {remedy}"
            )
        if self._full_output is None:  # most tools never need it: what they return has a quicker check
            self._full_output = self._output or self._compile(self.definition.output_schema or {}, "output_schema")
        structured = msgspec.json.decode(to_json_text(value))
        if problems := self._full_output.problems(structured):
            raise OutputError(
                f"{self._described} returned a CallToolResult whose structured_content does not fit {promise}: "
                f"{problems[0]} {remedy}"
            )
        return structured

    def _conforming(self, schema: Validator, value: Any) -> Any:
        """TOOL-12: what is declared is what is sent."""
        structured = msgspec.json.decode(to_json_text(value))
        if problems := schema.problems(structured):
            raise OutputError(f"{self._described} returned a value that does not fit its output_schema: {problems[0]}")
        return structured


def _check_timeout(seconds: Any) -> Any:
    if seconds is None or (type(seconds) in (int, float) and 0 < seconds < math.inf):
        return seconds
    raise ValueError(f"timeout= is a number of seconds above 0, not {seconds!r}. Leave it out for no limit.")


def failure_of(call: Call, error: BaseException) -> CallToolResult | None:
    """Make a result for the model to read of an exception that ended a call of a tool.

    Return None where the call is to be refused instead: by a `ProtocolError`, or by what middleware raised itself.
    """
    if isinstance(error, ProtocolError):
        return failure(f"The tool cannot do this. {error.message}") if call.era.tells_model(error) else None
    told = _told_by(error, call)
    if told:
        return failure("\n".join(told))
    if call.blamed is None:
        return None
    debug = call.server.debug
    if isinstance(error, OutputError):
        return failure(record(str(error), debug=debug))
    return failure(report(call.blamed, error, debug=debug))


def _told_by(error: BaseException, call: Call) -> list[str]:
    """What the ToolErrors say, also those of a task group; nothing if there is anything else among them."""
    if isinstance(error, ArgumentsError):
        return [error.tell(call.server.limits)]
    if isinstance(error, ToolError):
        return [str(error)]
    if not isinstance(error, BaseExceptionGroup):
        return []
    members = [_told_by(inner, call) for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions]
    return [text for member in members for text in member] if all(members) else []


def failure(text: str) -> CallToolResult:
    """Make the result of a tool that failed, for the model to read."""
    return CallToolResult(content=[TextContent(text)], is_error=True)


class Tools:
    """All tools of a server."""

    def __init__(
        self, changes: Changes, threads: Threads, cache_hint: CacheHint, page_size: int, *, refs: bool = False
    ) -> None:
        self._changes = changes
        self._threads = threads
        self._refs = refs  # whether schemas have their definitions under `$defs`
        self._cache_hint = cache_hint
        self._pages: Pages[RegisteredTool] = Pages("tools", page_size)
        self._tools: dict[str, RegisteredTool] = {}  # the same, for the quickest look-up there is
        self._audience = Audience()
        self._guarded: dict[str, RegisteredTool] = {}  # those whose calls must pass a check first
        self._lock = threading.Lock()  # tools come and go from threads, too
        self.used = False  # once there was a tool, the capability stays declared

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[RegisteredTool]:
        return iter(self._pages)

    def get(self, name: str) -> RegisteredTool | None:
        """The tool of this name."""
        return self._pages.get(name)

    def add(self, fn: Callable[..., Any], options: ToolOptions) -> RegisteredTool:
        """Register a tool; listeners hear of it."""
        tool = RegisteredTool(fn, options, self._threads, refs=self._refs)
        with self._lock:
            if not options.replace:
                self._check_free(tool)
            if tool.mirrors or tool.needs or tool.single_use or tool.scopes:  # guarded before it can be found
                self._guarded[tool.name] = tool
                self._audience.add(tool)
            self._tools[tool.name] = tool
            if self._guarded.get(tool.name) is not tool:  # it replaces one that was
                self._guarded.pop(tool.name, None)
            self._pages.add(tool.name, tool)
            self.used = True
        self._changes.publish(Change("tools"))
        return tool

    def _check_free(self, tool: RegisteredTool) -> None:
        taken = self._pages.get(tool.name)
        if taken is not None:
            raise RegistrationError(
                f"Tool {tool.name!r} is registered twice: at {taken.where} and at {tool.where}. "
                "Clients find a tool by its name, so one of the two could never be called. "
                "Give one of them another name with @server.tool(name=...), or the second replace=True."
            )

    def remove(self, name: str) -> None:
        """Take a tool out; listeners hear of it. UsageError when there is none."""
        with self._lock:
            if self._pages.remove(name) is None:
                raise nothing_to_remove("tool", name, self._pages.names())
            del self._tools[name]
            self._guarded.pop(name, None)
        self._changes.publish(Change("tools"))

    async def list(self, call: Call) -> Encoded:
        """`tools/list`."""
        return self._audience.page(call, self._pages, self._page)

    def _page(self, tools: Sequence[RegisteredTool], next_cursor: str | None) -> ListToolsResult:
        return ListToolsResult(
            tools=[tool.definition for tool in tools],
            next_cursor=next_cursor,
            ttl_ms=self._cache_hint.ttl_ms,
            cache_scope=self._audience.scope(self._cache_hint.list_scope),
        )

    def call(self, call: Call) -> Awaitable[Result]:
        """`tools/call`."""
        params = call.envelope.params
        assert isinstance(params, CallToolParams)
        if call.params_seen:
            params = self._as_changed(call, params)
        tool = self._tools.get(params.name)
        if tool is None:
            raise unknown("tool", params.name, [tool.name for tool in usable(call, self._pages)])
        return tool.invoke(call, params)

    def _as_changed(self, call: Call, params: CallToolParams) -> CallToolParams:
        """Return the params as middleware left them, to be validated like those that a client sent."""
        if "arguments" not in params.__dict__:
            return params
        arguments: Any = params.arguments
        if not isinstance(arguments, dict):
            raise UsageError(
                "Middleware has set `ctx.params.arguments` to something of the type "
                f"{type(arguments).__name__!r}. Assign a dictionary."
            )
        return msgspec.structs.replace(params, raw_arguments=msgspec.Raw(to_json_text(arguments).encode()))

    def check(self, call: Call) -> None:
        """What a call must pass before anything runs: scopes, headers that repeat its arguments, what it needs."""
        params = call.envelope.params
        assert isinstance(params, CallToolParams)
        tool = self._guarded.get(params.name)
        if tool is None:
            return
        if tool.scopes:
            require_scopes(call, tool.scopes)
        # Headers repeat what the client sent, not what middleware made of it.
        if tool.mirrors and call.headers is not None and call.era.mirrors_params and not call.params_seen:
            check_mirrors(tool.mirrors, call.headers, _decoded(params.raw_arguments))
        require_needs(call, tool.needs)
        if tool.single_use and call.round is not None:  # where there are no rounds, it is a field that nobody knows
            call.spends = params.request_state


def _decoded(arguments: msgspec.Raw | UnsetType) -> Mapping[str, Any]:
    try:
        value: Any = None if arguments is UNSET else msgspec.json.decode(arguments)
    except msgspec.DecodeError:  # a number that no float can hold
        raise InvalidParams("Invalid params: a number in `arguments` is too large.") from None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
