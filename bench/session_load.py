"""Load by clients that open with a handshake: calls in their sessions, sessions opened, and sessions that lie idle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from http_load import wrk
from processes import here, resident_mib
from wire import (
    INITIALIZED,
    SESSION_HEADER,
    SESSION_HEADERS,
    handshake,
    is_right,
    opening_lua,
    session_call,
    session_call_lua,
)

__all__ = ["IDLE", "SESSIONS", "WARM_UP", "idle_kib", "openings", "sessions_of", "throughput_of"]

SESSIONS = 16  # and as many connections
IDLE = 2000
WARM_UP = 100  # sessions before the first weighing: what a server makes once is not the price of a session


class Client:
    """Opens sessions over one connection that stays, and checks each answer."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes, session: str | None, status: int) -> tuple[str | None, bytes]:
        headers = SESSION_HEADERS if session is None else SESSION_HEADERS | {SESSION_HEADER: session}
        self._connection.request("POST", "/mcp", body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != status:
            raise RuntimeError(f"{body!r} was answered with {response.status}, not {status}: {answer!r}")
        return response.headers.get(SESSION_HEADER), answer

    def open(self) -> str:
        """Open a session; its id."""
        session, answer = self._post(handshake(1), None, 200)
        if session is None:
            raise RuntimeError(f"A handshake was answered without a session: {answer!r}")
        self._post(INITIALIZED, session, 202)
        return session

    def check(self, session: str) -> None:
        """Refuses to measure a server whose answer is wrong."""
        _, answer = self._post(session_call(1), session, 200)
        if not is_right(message_of(answer)):
            raise RuntimeError(f"A call in a session was answered {answer!r}; there is no point in measuring that.")


@contextmanager
def client(port: int) -> Iterator[Client]:
    one = Client(port)
    try:
        yield one
    finally:
        one.close()


def message_of(answer: bytes) -> Any:
    """The message in an answer: its JSON, or what its last event holds."""
    if answer.lstrip().startswith(b"{"):
        return json.loads(answer)
    return json.loads([line[5:] for line in answer.splitlines() if line.startswith(b"data:")][-1])


def sessions_of(port: int) -> list[str]:
    """Opens the sessions that calls are made in, and makes one right call in each."""
    with client(port) as one:
        sessions = [one.open() for _ in range(SESSIONS)]
        for session in sessions:
            one.check(session)
    return sessions


def throughput_of(port: int, sessions: list[str], seconds: float) -> dict[str, float]:
    """Calls per second that were answered rightly."""
    facts = wrk(port, "session_call", session_call_lua(sessions), seconds, connections=SESSIONS)
    if facts["completed"] < 0.99 * facts["requests"]:
        raise RuntimeError(f"Of {facts['requests']} calls only {facts['completed']} were answered rightly.")
    facts["per_second"] = facts["completed"] / facts["seconds"]
    return facts


def openings(port: int, seconds: float) -> float:
    """Sessions per second that were opened: two requests each."""
    facts = wrk(port, "opening", opening_lua(), seconds, connections=SESSIONS)
    if facts["completed"] < 0.4 * facts["requests"]:
        raise RuntimeError(
            f"Of {facts['requests']} requests only {facts['completed']} opened a session: expected half."
        )
    return facts["completed"] / facts["seconds"]


def idle_kib(port: int, pid: int) -> float:
    """What a session weighs, on a server that has none, that was opened and is not used; it has no stream."""
    with here(load=True), client(port) as one:
        for _ in range(WARM_UP):
            one.check(one.open())
        before = resident_mib(pid)
        sessions = [one.open() for _ in range(IDLE)]
        time.sleep(0.5)  # what was only needed to open them is gone
        kib_each = (resident_mib(pid) - before) * 1024 / IDLE
        for session in sessions:  # none was ended to make room
            one.check(session)
        return kib_each
