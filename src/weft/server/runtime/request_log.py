"""Log requests under `weft.server`: at level `info` one line per call and per refusal, at `debug` every message.

Whether calls are logged is decided once, when `dispatcher_class` is called. For messages that are refused before they
become calls, the log level is checked each time.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter

import msgspec

from weft.errors import InternalError
from weft.net.asgi import Scope
from weft.net.logs import call_line, masked_url
from weft.protocol.names import printable
from weft.server.calls.call import Call
from weft.server.runtime.dispatch import Answer, Dispatcher
from weft.types.tasks import SHOWN_OF_TASK_ID

log = logging.getLogger("weft.server")

_MOST_REASON = 300  # maximum number of characters of a logged text


def dispatcher_class() -> type[Dispatcher]:
    """Return `LoggedDispatcher` if the log level is `info` or lower, else `Dispatcher`."""
    return LoggedDispatcher if log.isEnabledFor(logging.INFO) else Dispatcher


def is_wire_logged() -> bool:
    """Return whether every message is logged: this is the case if the log level is `debug`."""
    return log.isEnabledFor(logging.DEBUG)


class LoggedDispatcher(Dispatcher):
    """A dispatcher that logs one line for each call."""

    async def run(self, call: Call) -> Answer:
        """Serve one call and log it; return the HTTP status and the encoded response."""
        began = perf_counter()
        status: object = InternalError.code
        try:
            answer = await super().run(call)
            status = _status(call, *answer)
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        else:
            return answer
        finally:
            mirrored = call.envelope.method.mirrored
            name = getattr(call.envelope.params, mirrored, None) if mirrored else None
            if mirrored == "task_id" and isinstance(name, str):
                name = name[:SHOWN_OF_TASK_ID]  # the id may be all that is needed to read the result
            principal = "" if call.token_info is None else call.token_info.subject
            log.info("%s", call_line(call.method, name, call.era.name, status, perf_counter() - began, principal))


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an error or a result that are needed for the log."""

    code: int | None = None
    is_error: bool = False
    result_type: str = ""
    task: dict[str, object] | None = None


class _LoggedOutcome(msgspec.Struct):
    error: _Part = _Part()
    result: _Part = _Part()


_read = msgspec.json.Decoder(_LoggedOutcome).decode


def _status(call: Call, status: int, body: bytes) -> object:
    """Return how a call ended, for the log: "isError", "asks" (for questions), an error code ("-32602"), or "ok".

    With HTTP, the status code comes first, as in "200/isError", and "200" alone means "ok". "200/task" means that the
    call has become a task. Each run of its handler is logged with "task" instead of the status code.
    """
    try:
        outcome = _read(body)
    except msgspec.DecodeError:  # an extension's result may have an `isError` of another type
        outcome = _LoggedOutcome()
    words = [] if call.headers is None else [str(status)]
    if call.task is not None and call.task.is_task:
        words = ["task"]
    if outcome.error.code is not None:
        words.append(str(outcome.error.code))
    elif outcome.result.is_error:
        words.append("isError")
    elif outcome.result.result_type == "input_required":
        words.append("asks")
    elif outcome.result.result_type == "task" or outcome.result.task is not None:
        words.append("task")
    return "/".join(words) or "ok"


def refused(what: object, era: str, status: object, reason: str) -> None:
    """Log that a message was refused before it became a call. `what` is the method of the message, if known."""
    if log.isEnabledFor(logging.INFO):
        method = what if isinstance(what, str) else "a message"
        log.info("refused %s %s %s: %s", _plain(method), era, status, _plain(reason))


def refused_http(scope: Scope, status: int, reason: str) -> None:
    """Log that an HTTP request was refused before the message in its body was read."""
    if log.isEnabledFor(logging.INFO):
        address = (scope.get("client") or "-")[0]
        method, path = _plain(scope["method"]), masked_url(scope["path"])
        log.info("refused %s %s %d %s: %s", method, path, status, address, _plain(reason))


def _plain(text: str) -> str:
    return printable(text[:_MOST_REASON], "?")
