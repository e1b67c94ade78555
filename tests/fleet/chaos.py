"""Clients of both eras that go on while workers and Redis die, and a tally of what they met.

A client retries as the protocol says. In the stateless era it sends a request again whose connection broke, or that was
answered with 502, 503 or 504. In a session it resumes a stream with `Last-Event-ID`, and sends a message again that was
not accepted; if the session is gone (404), it opens a new one. Everything else is an unexplained error, and so is a
broken connection if no worker was killed meanwhile, and a 503 if Redis was not killed: only the answer to a question
may be refused, if the worker that has asked was killed.
"""

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.raw_sessions import FORM, Event, Exchange, SocketPeer, accept, called, message
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY

__all__ = [
    "Changer", "Chaos", "Client", "GetListener", "Killed", "ListenListener", "Listener", "SessionAsker",
    "SessionCaller", "StatelessAsker", "StatelessCaller", "Streamer",
]  # fmt: skip

URIS = [f"tick://{number}" for number in range(40)]
DIED = "The worker that served this call has died."
PATIENCE = 45.0  # seconds: one operation, with all its retries, is over by then
TOLD_SECONDS = 8.0  # listeners are told of a change by then, also if Redis was stopped meanwhile
_BUSY = (0, 502, 503, 504)  # 0: the connection broke before an answer came


@dataclass
class Killed:
    """A worker that was killed."""

    process: int
    at: float  # monotonic time


@dataclass
class Chaos:
    """What all clients share: where the server is, which phase it is, and what they have met."""

    port: int
    phase: str = "calm"
    may_lose_sessions: bool = False  # since Redis was killed
    is_over: bool = False
    phases: list[str] = field(default_factory=lambda: ["calm"])
    tally: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # by what and phase
    errors: list[str] = field(default_factory=list[str])  # those that nothing explains
    killed: list[Killed] = field(default_factory=list[Killed])
    changes: list["AcknowledgedChange"] = field(default_factory=list["AcknowledgedChange"])

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.phases.append(phase)

    def note(self, what: str, count: int = 1) -> None:
        self.tally[what, self.phase] += count

    def total(self, what: str) -> int:
        return sum(count for (name, _), count in self.tally.items() if name == what)

    def fail(self, who: str, what: str) -> None:
        self.note("unexplained errors")
        self.errors.append(f"{self.phase}: {who}: {what}")

    def was_killed(self, process: int, since: float) -> bool:
        """Whether a process was killed after this time."""
        return any(one.process == process and one.at >= since for one in self.killed)

    def table(self, rows: list[str]) -> str:
        """What happened in each phase."""
        width = max(map(len, rows))
        lines = [f"{'':{width}} " + "".join(f"{phase:>15}" for phase in [*self.phases, "all"])]
        for row in rows:
            counts = [self.tally[row, phase] for phase in self.phases]
            lines.append(f"{row:{width}} " + "".join(f"{count:>15,}" for count in [*counts, sum(counts)]))
        return "\n".join(lines)


@dataclass
class AcknowledgedChange:
    """A change that the server has confirmed: listeners must be told of it."""

    uri: str
    begun: float
    confirmed: float
    process: int


class Gone(Exception):
    """The session does not exist any more (404)."""


class Died(Exception):
    """The server says that the worker which served the call has died."""


class Client(SocketPeer):
    """One client. `step` is one operation; it is repeated until the chaos is over."""

    pause = 0.03  # seconds between two operations, on average
    patience: float | None = PATIENCE  # seconds after which an operation must be over

    def __init__(self, chaos: Chaos, name: str) -> None:
        super().__init__(chaos.port)
        self.chaos = chaos
        self.name = name
        self.number = 0
        self.random = random.Random(f"13 {name}")
        self.sent = 0.0  # when the last request was sent

    async def run(self) -> None:
        while not self.chaos.is_over:
            self.number += 1
            try:
                async with asyncio.timeout(self.patience):
                    await self.step()
            except TimeoutError:
                self.chaos.fail(self.name, f"operation {self.number} is not over after {PATIENCE:.0f} s")
            except Exception as error:
                self.chaos.fail(self.name, f"operation {self.number}: {error!r}")
            self.exchanges.clear()
            await asyncio.sleep(self.random.uniform(0, 2 * self.pause))

    async def step(self) -> None:
        raise NotImplementedError

    async def request(
        self, verb: str, body: Any = None, headers: Mapping[str, str | None] | None = None, *, session: Any = ...
    ) -> Exchange:
        """Send one request. Its status is 0 if the connection breaks before an answer comes."""
        self.sent = time.monotonic()
        try:
            return await super().request(verb, body, headers, session=session)
        except OSError:
            return Exchange()

    def check(self, text: str, **wanted: Any) -> dict[str, Any]:
        """Check that an answer is for this client, and that it is the one to this call."""
        found = json.loads(text)
        mine = {"who": self.name, "client": self.name, **wanted}
        if {key: found.get(key) for key in mine} != mine:
            self.chaos.note("answers to the wrong asker")
            self.chaos.fail(self.name, f"was told {found}, not {mine}")
        return found

    async def wait(self, exchange: Exchange, asked: float | None = None) -> None:
        """Note why a request has to be sent again, check that there is a reason for it, and wait as the server says.

        `asked` is for the answer to a question: when the call began that has asked.
        """
        self.chaos.note("503 with Retry-After" if exchange.status == 503 else "retries")
        if exchange.status == 503:
            assert "retry-after" in exchange.headers, await exchange.body()
        since = asked if exchange.status == 503 else self.sent
        is_explained = since is not None and any(one.at > since - 1 for one in self.chaos.killed)
        if not is_explained and not self.chaos.may_lose_sessions:
            self.chaos.fail(
                self.name, f"operation {self.number} was refused with {exchange.status}, and none was killed"
            )
        await asyncio.sleep(min(float(exchange.headers.get("retry-after", 0.1)), 1.0))


# The stateless era.


class _Stateless(Client):
    async def call(self, tool: str, **params: Any) -> Any:
        """Call a tool until there is an answer. Its result, or the error."""
        meta = {CLIENT_CAPABILITIES_KEY: FORM, CLIENT_INFO_KEY: {"name": self.name, "version": "1"}}
        while True:
            exchange = await self.stateless("tools/call", {"name": tool, **params}, id=self.number, meta=meta)
            if exchange.status in _BUSY:
                await self.wait(exchange)
                continue
            body = await exchange.body()
            try:
                answer = json.loads(body)
            except ValueError:  # it broke off in the middle
                await self.wait(Exchange())
                continue
            if exchange.status != 200 and "error" not in answer:
                raise AssertionError(f"{exchange.status} {body!r}")
            assert answer["id"] == self.number, answer
            return answer

    async def finish(self, tool: str, **arguments: Any) -> Any:
        """Call a tool, answer its questions in further rounds, and return the answer to the last round."""
        params: dict[str, Any] = {"arguments": arguments}
        while True:
            answer = await self.call(tool, **params)
            result = answer.get("result", {})
            if result.get("resultType") != "input_required":
                return answer
            [(key, question)] = result["inputRequests"].items()
            assert question["params"]["message"].startswith(f"{self.name} "), question
            self.chaos.note("questions answered")
            reply = {"action": "accept", "content": {"value": question["params"]["message"]}}
            params |= {"inputResponses": {key: reply}, "requestState": result["requestState"]}


class StatelessCaller(_Stateless):
    """Calls that need no backend."""

    async def step(self) -> None:
        answer = await self.call("echo", arguments={"who": self.name, "number": self.number})
        self.check(text_of(answer), number=self.number)
        self.chaos.note("stateless calls")


class StatelessAsker(_Stateless):
    """Calls with questions: one that charges once, and one whose state is for one use."""

    async def step(self) -> None:
        order = f"{self.name.replace(' ', '-')}-{self.number}"
        if self.number % 3:
            answer = await self.finish("buy", who=self.name, order=order)
            asked = {part: f"{self.name} {order} {part}?" for part in ("size", "street")}
            self.check(text_of(answer), order=order, receipt=f"receipt of {order}", **asked)
            self.chaos.note("stateless calls in rounds")
            return
        while True:
            before = self.chaos.total("retries") + self.chaos.total("503 with Retry-After")
            answer = await self.finish("sign", who=self.name, order=order)
            after = self.chaos.total("retries") + self.chaos.total("503 with Retry-After")
            if "error" in answer and answer["error"]["code"] == -32602 and before != after:
                self.chaos.note("states for one use that were used")  # the answer to the first attempt was lost
                order += "-again"
                continue
            self.check(text_of(answer), order=order, reply=f"{self.name} {order} signature?")
            self.chaos.note("stateless calls in rounds")
            return


class Changer(_Stateless):
    """Changes resources, one after another."""

    pause = 0.15

    async def step(self) -> None:
        uri, begun = URIS[self.number % len(URIS)], time.monotonic()
        answer = self.check(text_of(await self.call("change", arguments={"who": self.name, "uri": uri})), uri=uri)
        self.chaos.changes.append(AcknowledgedChange(uri, begun, time.monotonic(), answer["process"]))
        self.chaos.note("changes")


class Listener(Client):
    """Notes what it was told, and when."""

    patience = None  # its operation is as long as the chaos

    def __init__(self, chaos: Chaos, name: str) -> None:
        super().__init__(chaos, name)
        self.heard: dict[str, list[float]] = defaultdict(list)  # times, by URI
        self.open: list[tuple[float, float]] = []  # from when until when each stream or session was open

    def hear(self, event: Event) -> None:
        if event.data is not None and event.data.get("method") == "notifications/resources/updated":
            self.heard[event.data["params"]["uri"]].append(time.monotonic())

    def must_hear(self, change: AcknowledgedChange) -> bool:
        """Whether a change was made, and could be told, while one stream or session was open."""
        return any(since <= change.begun and change.confirmed + TOLD_SECONDS <= until for since, until in self.open)

    def has_heard(self, change: AcknowledgedChange) -> bool:
        return any(at >= change.begun for at in self.heard[change.uri])


class ListenListener(_Stateless, Listener):
    """Has a listen stream. If it breaks, the client listens again, and knows that it may have missed changes."""

    async def step(self) -> None:
        wanted = {"notifications": {"resourceSubscriptions": URIS}}
        stream = await self.stateless("subscriptions/listen", wanted, id=self.number)
        if stream.status in _BUSY:
            await self.wait(stream)
            return
        assert stream.status == 200, (stream.status, await stream.body())
        since = None
        try:
            while not self.chaos.is_over:
                event = await next_event(stream)
                if event is None:
                    continue
                if event.data.get("method") == "notifications/subscriptions/acknowledged":
                    since = time.monotonic()
                self.hear(event)
        except EOFError:
            self.chaos.note("listen streams that broke")
        finally:
            if since is not None:
                self.open.append((since, time.monotonic()))
            await stream.close()


# Sessions.


class _WithSession(Client):
    begun = 0.0  # when the last call was begun
    served_by: int | None = None  # the process that serves this call, if it has told

    async def ensure(self) -> None:
        """Open a session, if there is none."""
        while self.session is None:
            params = {"protocolVersion": "2025-11-25", "capabilities": FORM,
                      "clientInfo": {"name": self.name, "version": "1"}}  # fmt: skip
            opened = await self.request("POST", message("initialize", params, 0), session=None)
            if opened.status in _BUSY or not await is_whole(opened):
                await self.wait(opened)
                continue
            assert opened.status == 200, (opened.status, await opened.body())
            self.session = opened.headers["mcp-session-id"]
            try:
                await self.tell(message("notifications/initialized"))
            except Gone:
                self.lose()
                continue
            self.chaos.note("sessions opened")

    def lose(self) -> None:
        """The session is gone. That may happen only if Redis has lost its data."""
        self.session = None
        self.chaos.note("sessions told gone (404)")
        if not self.chaos.may_lose_sessions:
            self.chaos.fail(self.name, "a session was lost")

    async def tell(self, body: Any, asked: float | None = None) -> None:
        """Send a message that has no answer, until it is accepted. For `asked` see `wait`."""
        while True:
            told = await self.post(body)
            if told.status == 404:
                raise Gone
            if told.status not in _BUSY:
                assert told.status == 202, (told.status, await told.body())
                return
            await self.wait(told, asked)

    async def call(
        self, tool: str, hear: Callable[[Event], Any] | None = None, *, cuts: int = 0, **arguments: Any
    ) -> Any:
        """Call a tool, and return its answer. The stream is resumed if it breaks, or if this client breaks it itself.

        `hear` is called with each event. `cuts` is the number of events after which this client breaks the stream.
        """
        self.begun, self.served_by = time.monotonic(), None
        progress = "p" if hear is not None else None
        last: str | None = None  # id of the last event
        is_mine = False  # whether this client has broken the stream
        while True:
            if last is None:
                stream = await self.post(called(tool, self.number, progress, who=self.name, **arguments))
            else:
                stream = await self.get(last)
                self.chaos.note("streams resumed" if not is_mine else "streams cut and resumed")
            if stream.status == 404:
                raise Gone
            if stream.status in _BUSY:
                await self.wait(stream)
                continue
            assert stream.status == 200, (stream.status, last, await stream.body())
            if not stream.is_stream:
                answer = await whole_json(stream)
                if answer is None:
                    await self.wait(Exchange())
                    continue
                return self.answer_of(answer)
            is_mine, heard = False, 0
            try:
                async for event in events_of(stream):
                    last, heard = event.id or last, heard + 1
                    if event.data is not None and "method" not in event.data:
                        return self.answer_of(event.data)
                    self.chaos.note("events")
                    if event.data is not None:
                        await self.take(event, hear)
                    if cuts and heard >= cuts:
                        is_mine = True
                        break
                else:
                    if last is None:
                        await self.wait(Exchange())
            finally:
                await stream.close()

    async def take(self, event: Event, hear: Callable[[Event], Any] | None) -> None:
        if hear is not None:
            hear(event)
        else:
            await self.reply(event.data)

    def answer_of(self, answer: Any) -> Any:
        assert answer["id"] == self.number, answer
        if DIED in answer.get("error", {}).get("message", ""):
            raise Died
        return answer

    async def reply(self, question: Any) -> None:
        """Answer a question on a connection of its own, so at any worker."""
        assert question["method"] == "elicitation/create", question
        text = question["params"]["message"]
        assert text.startswith(f"{self.name} {self.number}"), question
        await self.tell(accept(question, text), self.begun)
        self.chaos.note("questions answered")

    async def step(self) -> None:
        await self.ensure()
        try:
            await self.use()
        except Gone:
            self.lose()
        except Died:
            self.chaos.note("calls of killed workers")
            self.check_death()

    def check_death(self) -> None:
        """Check that the worker of this call was killed, if it had time to tell which one it was."""
        processes = [self.served_by] if self.served_by else [one.process for one in self.chaos.killed]
        if not any(self.chaos.was_killed(process, self.begun) for process in processes):
            self.chaos.fail(self.name, f"the server says that the worker of a call has died, but {processes} live")

    async def use(self) -> None:
        raise NotImplementedError


class SessionCaller(_WithSession):
    """Plain calls in a session."""

    async def use(self) -> None:
        answer = await self.call("echo", number=self.number)
        self.check(text_of(answer), number=self.number)
        self.chaos.note("session calls")


class SessionAsker(_WithSession):
    """Calls that ask while they run."""

    async def use(self) -> None:
        answer = await self.call("ask", number=self.number)
        self.check(text_of(answer), number=self.number, reply=f"{self.name} {self.number}?")
        self.chaos.note("session calls that ask")


class Streamer(_WithSession):
    """Calls that report progress. Each number must be told once and in order, over all responses of the stream."""

    async def use(self) -> None:
        heard: list[int] = []
        to, cuts = self.random.randint(10, 30), self.random.choice([0, 0, 4, 9])

        def hear(event: Event) -> None:
            params = event.data["params"]
            name, _, process = params["message"].rpartition(" by ")
            assert name == self.name, event
            self.served_by = int(process)
            heard.append(params["progress"])
            self.chaos.note("progress events")
            if heard != list(range(1, len(heard) + 1)):
                self.chaos.note("events lost or told twice")
                self.chaos.fail(self.name, f"progress was {heard}")

        answer = await self.call("count", hear, cuts=cuts, to=to, pause=0.03)
        self.check(text_of(answer), number=to)
        if len(heard) != to:
            self.chaos.note("events lost or told twice")
            self.chaos.fail(self.name, f"progress was {heard} of {to}")
        self.chaos.note("streamed calls")


class GetListener(_WithSession, Listener):
    """Has the stream of a session that belongs to no request. It is resumed if it breaks: no change may be missed."""

    last: str | None = None  # id of the last event
    ids: set[str]  # of all events of this session

    async def use(self) -> None:
        self.last, self.ids = None, set()
        for uri in URIS:
            await self.subscribe(uri)
        since = None
        try:
            while not self.chaos.is_over:
                stream = await self.get(self.last)
                if stream.status == 404:
                    raise Gone
                if stream.status in _BUSY:
                    await self.wait(stream)
                    continue
                assert stream.status == 200, (stream.status, await stream.body())
                if since is None:
                    since = time.monotonic()
                else:
                    self.chaos.note("GET streams resumed")
                await self.listen(stream)
        finally:
            if since is not None:
                self.open.append((since, time.monotonic()))

    async def listen(self, stream: Exchange) -> None:
        until = time.monotonic() + self.random.uniform(2, 6)  # then this client breaks the stream
        try:
            while not self.chaos.is_over and time.monotonic() < until:
                event = await next_event(stream)
                if event is not None:
                    self.take_id(event)
                    self.hear(event)
        except EOFError:
            pass
        finally:
            await stream.close()

    def take_id(self, event: Event) -> None:
        self.chaos.note("events")
        if event.id is None:
            return
        if event.id in self.ids:
            self.chaos.note("events lost or told twice")
            self.chaos.fail(self.name, f"event {event.id} came twice")
        self.ids.add(event.id)
        self.last = event.id

    async def subscribe(self, uri: str) -> None:
        while True:
            done = await self.post(message("resources/subscribe", {"uri": uri}, uri))
            if done.status == 404:
                raise Gone
            if done.status in _BUSY or (answer := await whole_json(done)) is None:
                await self.wait(done)
                continue
            assert answer.get("result") == {}, answer
            return


# Reading.


def text_of(answer: Any) -> str:
    assert "result" in answer, answer
    assert not answer["result"].get("isError"), answer
    return answer["result"]["content"][0]["text"]


async def next_event(stream: Exchange) -> Event | None:
    """The next event; None if none came for a moment, so that a client can see that the chaos is over."""
    try:
        return await stream.next(0.25)
    except TimeoutError:
        return None


async def events_of(stream: Exchange) -> AsyncIterator[Event]:
    """All events until the stream ends or breaks."""
    while True:
        try:
            yield await stream.next(PATIENCE)
        except EOFError:
            return


async def whole_json(exchange: Exchange) -> Any:
    """The body as JSON; None if it broke off."""
    try:
        return json.loads(await exchange.body())
    except ValueError:
        return None


async def is_whole(exchange: Exchange) -> bool:
    return await whole_json(exchange) is not None
