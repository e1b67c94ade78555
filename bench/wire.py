"""The requests that everything is measured with, as bytes and as scripts for wrk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "HEADERS",
    "INITIALIZED",
    "LIST_HEADERS",
    "SESSION_HEADER",
    "SESSION_HEADERS",
    "SESSION_REVISION",
    "TASKS",
    "asking_lua",
    "call",
    "call_lua",
    "call_of",
    "change",
    "handshake",
    "headers_of",
    "is_right",
    "listen",
    "listing",
    "opening_lua",
    "session_answer",
    "session_booking",
    "session_call",
    "session_call_lua",
    "status_lua",
]

REVISION = "2026-07-28"
SESSION_REVISION = "2025-11-25"  # the last one that has sessions
SESSION_HEADER = "Mcp-Session-Id"
META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
TASKS = META | {
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
}
ASKABLE = META | {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
EXPECTED_TEXT = "5"
BOARD = "bench://board"


def headers_of(method: str, name: str | None = None) -> dict[str, str]:
    """The headers that go with a request."""
    return {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": method,
        **({} if name is None else {"Mcp-Name": name}),
    }


HEADERS = headers_of("tools/call", "add")
LIST_HEADERS = headers_of("tools/list")


def request(id: int, method: str, params: Mapping[str, Any], meta: Mapping[str, Any] = META) -> bytes:
    """A request, without a line end."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}).encode()


def call(id: int) -> bytes:
    """A tools/call of `add(2, 3)`."""
    return request(id, "tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}})


def call_of(tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any] = META) -> bytes:
    """A tools/call of any tool, which is sent once."""
    return request(1, "tools/call", {"name": tool, "arguments": arguments}, meta)


def listing(id: int) -> bytes:
    """A tools/list."""
    return request(id, "tools/list", {})


def listen(id: int) -> bytes:
    """A wish to hear of the one resource."""
    return request(id, "subscriptions/listen", {"notifications": {"resourceSubscriptions": [BOARD]}})


def change(id: int) -> bytes:
    """A tools/call of `change`, which changes the one resource."""
    return request(id, "tools/call", {"name": "change", "arguments": {}})


# What a client of the session era sends: it introduces itself once, and names its session from then on.
SESSION_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": SESSION_REVISION,
}
INITIALIZED = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()


def handshake(id: int, capabilities: Mapping[str, Any] | None = None) -> bytes:
    """The request that opens a session."""
    info = {"name": "bench", "version": "1.0"}
    params = {"protocolVersion": SESSION_REVISION, "capabilities": capabilities or {}, "clientInfo": info}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params}).encode()


def session_call(id: int) -> bytes:
    """A tools/call of `add(2, 3)` in a session."""
    params = {"name": "add", "arguments": {"a": 2, "b": 3}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()


def session_booking(id: int) -> bytes:
    """A tools/call of `book` in a session, which asks one question."""
    params = {"name": "book", "arguments": {"flight": "LX38"}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()


def session_answer(id: str) -> bytes:
    """The answer to the question with this id."""
    result = {"action": "accept", "content": {"number": "12A"}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


def is_right(answer: Any) -> bool:
    """Whether a decoded answer is the result of the call, and says 5."""
    content = answer.get("result", {}).get("content") or [{}]
    return content[0].get("text") == EXPECTED_TEXT


SUMMARY = """
    local errors = summary.errors
    io.write(string.format(
        '{"requests": %d, "completed": %d, "seconds": %.6f, "refused": %d, "broken": %d, ' ..
        '"p50_ms": %.3f, "p99_ms": %.3f}\\n',
        summary.requests, completed, summary.duration / 1e6, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout,
        latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
"""

# The end of a script whose `response` counts in the global `completed` what came to a right end.
COUNTED = f"""local thread
function setup(one) thread = one end
function done(summary, latency, requests)
    local completed = thread:get("completed")
{SUMMARY}
end
"""


def lua_headers(headers: Mapping[str, str]) -> str:
    return "\n".join(f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items())


def call_lua(headers: dict[str, str] = HEADERS) -> str:
    """The script that makes wrk send calls, each with an id of its own, and count the right answers.

    An answer is right if it says 5 and has the id of a call that is not answered yet.
    """
    first = 1_000_000  # all ids have as many digits: the length of a request never changes
    return f"""wrk.method = "POST"
{lua_headers(headers)}
local first, sent, pending, before, after = "{first}", 0, {{}}, "", ""
completed = 0
function init(args)
    local whole = wrk.format(nil, nil, nil, [[{call(first).decode()}]])
    local from, to = whole:find('"id": ' .. first, 1, true)
    before, after = whole:sub(1, to - #first), whole:sub(to + 1)
end
function request()
    sent = sent + 1
    local id = tostring({first} + sent)
    pending[id] = true
    return before .. id .. after
end
function response(status, headers, body)
    local id = body:match('"id":%s*(%d+)')
    if status == 200 and pending[id] and body:find('"text":%s*"{EXPECTED_TEXT}"') then
        completed = completed + 1
        pending[id] = nil
    end
end
{COUNTED}"""


def status_lua(task: str) -> str:
    """The script that makes wrk ask for the state of a task, and count the right answers."""
    return f"""wrk.method = "POST"
{lua_headers(headers_of("tasks/get", task))}
local whole
completed = 0
function init(args)
    whole = wrk.format(nil, nil, nil, [[{request(1, "tasks/get", {"taskId": task}, TASKS).decode()}]])
end
function request()
    return whole
end
function response(status, headers, body)
    if status == 200 and body:find("{task}", 1, true) and body:find('"status":%s*"working"') then
        completed = completed + 1
    end
end
{COUNTED}"""


def asking_lua() -> str:
    """The script that makes wrk call `book`, answer its question, and count the bookings.

    Whose question is answered next does not matter: the calls know nothing of each other, and all say the same.
    """
    params = {"name": "book", "arguments": {"flight": "LX38"}}
    first = request(1, "tools/call", params, ASKABLE).decode()
    answer = {"action": "accept", "content": {"number": "12A"}}
    retry = request(2, "tools/call", {**params, "inputResponses": {"KEY": answer}, "requestState": "STATE"}, ASKABLE)
    before, rest = retry.decode().split("KEY")
    between, after = rest.split("STATE")
    return f"""wrk.method = "POST"
{lua_headers(headers_of("tools/call", "book"))}
local first, asked = [[{first}]], {{}}
completed = 0
function request()
    local question = table.remove(asked)
    if question == nil then return wrk.format(nil, nil, nil, first) end
    return wrk.format(nil, nil, nil, [[{before}]] .. question[1] .. [[{between}]] .. question[2] .. [[{after}]])
end
function response(status, headers, body)
    local key = body:match('"inputRequests":%s*{{%s*"([^"]+)"')
    local state = body:match('"requestState":%s*"([^"]+)"')
    if key and state then
        asked[#asked + 1] = {{key, state}}
    elseif body:find("LX38 12A", 1, true) then
        completed = completed + 1
    end
end
{COUNTED}"""


def session_call_lua(sessions: Sequence[str]) -> str:
    """The script that makes wrk send calls of these sessions in turn, each with an id of its own, and count the right
    answers."""
    first = 1_000_000  # all ids have as many digits: the length of a request never changes
    return f"""wrk.method = "POST"
{lua_headers(SESSION_HEADERS)}
local sessions, first = {{{", ".join(map(json.dumps, sessions))}}}, "{first}"
local before, after, sent = {{}}, {{}}, 0
completed = 0
function init(args)
    for number, session in ipairs(sessions) do
        wrk.headers["{SESSION_HEADER}"] = session
        local whole = wrk.format(nil, nil, nil, [[{session_call(first).decode()}]])
        local from, to = whole:find('"id": ' .. first, 1, true)
        before[number], after[number] = whole:sub(1, to - #first), whole:sub(to + 1)
    end
end
function request()
    local number = sent % #sessions + 1
    sent = sent + 1
    return before[number] .. ({first} + sent) .. after[number]
end
function response(status, headers, body)
    if status == 200 and body:find('"text":%s*"{EXPECTED_TEXT}"') then completed = completed + 1 end
end
{COUNTED}"""


def opening_lua() -> str:
    """The script that makes wrk open sessions: the handshake, then the notification that ends it; counts the latter."""
    return f"""wrk.method = "POST"
{lua_headers(SESSION_HEADERS)}
local answered = {{}}
completed = 0
function request()
    local session = table.remove(answered)
    wrk.headers["{SESSION_HEADER}"] = session
    return wrk.format(nil, nil, nil, session and [[{INITIALIZED.decode()}]] or [[{handshake(1).decode()}]])
end
function response(status, headers, body)
    if status == 202 then
        completed = completed + 1
    elseif status == 200 and body:find("serverInfo", 1, true) then
        answered[#answered + 1] = headers["mcp-session-id"] or headers["{SESSION_HEADER}"]
    end
end
{COUNTED}"""
