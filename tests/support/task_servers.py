"""Servers whose calls of tools become one task, in the state that a test says. They know nothing of Weft."""

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from support.fakes import DISCOVERED, Exchange, FakePipe, initialized, reply, sse
from support.raw_sessions import eventually

__all__ = [
    "ID", "NAME", "RELATED", "SILENCE", "TASKS", "Refusal", "TaskServer", "done", "event", "form", "handle",
    "result", "state",
]  # fmt: skip

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ID = "task-1"
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SILENCE = object()  # a request that is not answered
BEGAN = datetime(2026, 7, 28, tzinfo=UTC)

_seconds = itertools.count()


def result(text: str = "done") -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}


def state(status: str = "working", **more: Any) -> dict[str, Any]:
    """A task of the extension, each later than the one before. The client may ask for it every 50 ms."""
    return {
        "taskId": ID,
        "status": status,
        "createdAt": f"{BEGAN:%Y-%m-%dT%H:%M:%SZ}",
        "lastUpdatedAt": f"{BEGAN + timedelta(seconds=next(_seconds)):%Y-%m-%dT%H:%M:%SZ}",
        "ttlMs": 60_000,
        "pollIntervalMs": 50,
        **more,
    }


def done(text: str = "done") -> dict[str, Any]:
    return state("completed", result=result(text))


def handle(task: dict[str, Any]) -> dict[str, Any]:
    """What the answer to a call says of its task: neither questions nor an outcome, even if the task has them."""
    return {key: value for key, value in task.items() if key not in ("result", "error", "inputRequests")}


def form(message: str = "Who?") -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": NAME}}


class Refusal:
    """An error with which a request is answered."""

    def __init__(self, code: int, message: str = "no", data: Any = None) -> None:
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


class TaskServer(FakePipe):
    """A server in this process, or over HTTP: `http_server(server.serve)`.

    `task` is the present state, in the form of the extension. `on` has functions for methods that are answered in
    another way: they get the message and return the result, a `Refusal` or `SILENCE`. With `pushes`, changes are sent
    on listen streams by `push`.
    """

    def __init__(self, task: dict[str, Any] | None = None, *, is_session: bool = False, pushes: bool = False) -> None:
        super().__init__(lambda _, message: self._pass(message))
        self.task = task or state()
        self.is_session = is_session
        self.pushes = pushes
        self.support: str | None = "optional"  # what the session era's list of tools says of the tool
        self.capability: dict[str, Any] | None = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        self.on: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.answers: dict[str, Any] = {}  # what `tasks/update` has brought, by key
        self.times: dict[str, list[float]] = defaultdict(list)  # when each method was asked for
        self.headers: list[dict[str, str]] = []  # of each request over HTTP
        self.streams: list[Any] = []  # request ids of the listen streams that are open

    async def asked(self, method: str, number: int = 1) -> None:
        """Wait until the client has sent this method so often."""
        await eventually(lambda: len(self.calls(method)) >= number)

    def push(self, task: dict[str, Any]) -> None:
        """Tell all listen streams of a state, which is the present one from now on."""
        self.task = task
        for stream in self.streams:
            self.say({"method": "notifications/tasks", "params": {**task, "_meta": {SUBSCRIPTION: stream}}})

    async def serve(self, exchange: Exchange) -> None:
        """Answer one HTTP request. There are no listen streams over HTTP."""
        if exchange.method != "POST":
            await exchange.respond(405)
            return
        self.heard.append(exchange.message)
        self.headers.append(exchange.headers)
        answer = self._answer(exchange.message)
        if answer is None:
            await (exchange.respond(202) if "id" not in exchange.message else exchange.hang())
        else:
            await exchange.respond(200, answer)

    def _pass(self, message: dict[str, Any]) -> None:
        answer = self._answer(message)
        if answer is not None:
            self.say(answer)
        if message.get("method") == "subscriptions/listen" and self.pushes and answer is None:
            self.streams.append(message["id"])
            wanted = {"taskIds": message["params"]["notifications"]["taskIds"]}
            told = {"notifications": wanted, "_meta": {SUBSCRIPTION: message["id"]}}
            self.say({"method": "notifications/subscriptions/acknowledged", "params": told})

    def _answer(self, message: dict[str, Any]) -> bytes | None:
        method = message.get("method", "")
        self.times[method].append(time.monotonic())
        if "id" not in message or not method:
            return None
        found = self.on[method](message) if method in self.on else self._usual(method, message.get("params", {}))
        if found is SILENCE:
            return None
        return reply(message, error=found.error) if isinstance(found, Refusal) else reply(message, found)

    def _usual(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "server/discover" if not self.is_session:
                capabilities = {"tools": {}, "extensions": {TASKS: {}}}
                return {**DISCOVERED, "capabilities": capabilities}
            case "initialize":
                declared = {"tools": {}, **({} if self.capability is None else {"tasks": self.capability})}
                return {**initialized(), "capabilities": declared}
            case "tools/list":
                execution = {} if self.support is None else {"execution": {"taskSupport": self.support}}
                return {
                    "resultType": "complete",
                    "tools": [{"name": "t", "inputSchema": {"type": "object"}, **execution}],
                }
            case "tools/call":
                return self._called(params)
            case "tasks/get":
                return self._shown()
            case "tasks/result" if self.is_session:
                return result()
            case "tasks/update" if not self.is_session:
                self.answers.update(params["inputResponses"])
                return {"resultType": "complete"}
            case "tasks/cancel":
                self.task = state("cancelled")
                return self._shown() if self.is_session else {"resultType": "complete"}
            case "subscriptions/listen" if self.pushes:
                return SILENCE
        return Refusal(-32601, "Method not found")

    def _called(self, params: dict[str, Any]) -> Any:
        if self.is_session:
            return {"task": self._shown()} if "task" in params else result("plain")
        return {**handle(self.task), "resultType": "task"}

    def _shown(self) -> dict[str, Any]:
        if not self.is_session:
            return {**self.task, "resultType": "complete"}
        named = {"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}
        return {named.get(key, key): value for key, value in handle(self.task).items()}


def event(message: dict[str, Any]) -> bytes:
    """One event of a stream over HTTP."""
    return sse(json.dumps({"jsonrpc": "2.0", **message}))
