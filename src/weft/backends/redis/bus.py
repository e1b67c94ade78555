"""Implement the bus of a Redis backend with pub/sub, in a cluster with sharded pub/sub.

All topics of one server share one connection, a link. If a link breaks, its topics wait, get another link, and their
subscribers are told that they may have missed messages. In a cluster, the server of a topic is the node of its key, and
can change.

A message begins with a mark. If the reply to a publication was lost, the publication is repeated with the same mark,
and subscribers ignore the second message.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from weft.backends import Hear, Unsubscribe
from weft.backends.redis.commands import (
    ATTEMPT_SECONDS,
    Commands,
    RedisFailure,
    is_passing,
    moved_slot,
    pause_seconds,
    reason_of,
)
from weft.backends.redis.servers import Address, Connection, close
from weft.backends.redis.store import MARK_BYTES
from weft.net.logs import Seldom

PING_SECONDS = 5.0  # A link on which nothing was received for this time is checked with a PING.
DEAD_SECONDS = 12.0  # A link on which nothing was received for this time is closed.
UNSUBSCRIBE_SECONDS = 1.0  # Longest wait for the confirmation that a subscription has ended.
MOST_MARKS = 10_000  # Marks of received messages that are remembered.
STEADY_SECONDS = 5.0  # If a link breaks after this time, it is always logged. Others may break often, and are counted.

log = logging.getLogger("weft.redis")
_seldom = Seldom(log)


@dataclass(slots=True, eq=False)
class _Subscriber:
    hear: Hear
    missed: Callable[[], None] | None
    is_told_of_gaps: bool = False  # whether `subscribe` has returned, so that messages may have been missed


@dataclass(slots=True, eq=False)
class _Topic:
    """A topic with subscribers in this process."""

    channel: bytes
    subscribers: dict[_Subscriber, None] = field(default_factory=dict[_Subscriber, None])  # in order
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)  # whether Redis sends the messages of the topic
    has_gap: bool = False  # whether messages may have been lost since the last confirmation
    refusal: BaseException | None = None  # why Redis does not allow the subscription
    link: _Link | None = None

    def confirm(self) -> None:
        """Note that Redis sends the messages of the topic from now on."""
        self.confirmed.set()
        if self.has_gap:
            self.has_gap = False
            for subscriber in list(self.subscribers):
                if subscriber.missed is not None and subscriber.is_told_of_gaps:
                    _call("missed", subscriber.missed)

    def lose(self) -> None:
        """Note that Redis does not send the messages of the topic any more."""
        self.has_gap = self.has_gap or self.confirmed.is_set()
        self.confirmed.clear()
        self.link = None


def _call(name: str, function: Callable[..., None], *args: bytes) -> None:
    """Call a function of a subscriber. An exception must not disturb other subscribers."""
    try:
        function(*args)
    except Exception:  # noqa: BLE001 - it is logged
        _seldom.exception("The function `%s` of a subscriber raised an exception.", name, about=name)


class _Link:
    """One connection on which the messages of some topics are received. It ends when the connection breaks."""

    def __init__(self, bus: RedisBus, address: Address) -> None:
        self.address = address
        self._bus = bus
        self._words = (b"SSUBSCRIBE", b"SUNSUBSCRIBE") if bus.commands.is_cluster else (b"SUBSCRIBE", b"UNSUBSCRIBE")
        self._unsent: list[tuple[bytes, ...]] = []  # commands
        self._has_unsent = asyncio.Event()
        self._received_at = asyncio.get_running_loop().time()
        self._topics: dict[bytes, _Topic] = {}
        self._joining: Counter[bytes] = Counter()  # confirmations of subscriptions that are still to come
        self._leaving: dict[bytes, list[asyncio.Event]] = {}  # confirmations of ends that are still to come
        self._failure: BaseException | None = None  # why the connection broke
        self.task = asyncio.create_task(self._run())
        # Not in `_run`, which does nothing if the task is cancelled before it has begun.
        self.task.add_done_callback(self._end)

    def join(self, topic: _Topic) -> None:
        """Subscribe to a topic."""
        topic.link = self
        self._topics[topic.channel] = topic
        self._joining[topic.channel] += 1
        self._send(self._words[0], topic.channel)

    def leave(self, topic: _Topic) -> asyncio.Event:
        """End the subscription to a topic. The event is set when Redis has confirmed it, or the link has ended."""
        del self._topics[topic.channel]
        confirmed = asyncio.Event()
        self._leaving.setdefault(topic.channel, []).append(confirmed)
        self._send(self._words[1], topic.channel)
        return confirmed

    def _send(self, *command: bytes) -> None:
        self._unsent.append(command)
        self._has_unsent.set()

    async def _run(self) -> None:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                connection = await self._bus.commands.servers.connect(self.address)
            self._received_at = asyncio.get_running_loop().time()
            await self._read_and_write(connection)
        except RedisFailure as error:
            self._failure = error
        finally:
            if connection is not None:
                await close(connection)

    def _end(self, _task: asyncio.Task[None]) -> None:
        """Give up all topics, because the connection is closed."""
        for confirmed in (event for events in self._leaving.values() for event in events):
            confirmed.set()
        self._bus.lose(list(self._topics.values()), self, self._failure)

    async def _read_and_write(self, connection: Connection) -> None:
        """Use the connection until it breaks. Raises the failure."""
        tasks = [asyncio.create_task(self._read(connection)), asyncio.create_task(self._write(connection))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, connection: Connection) -> None:
        """Send the commands that wait, and check that the connection is alive. Raises TimeoutError if it is not."""
        loop = asyncio.get_running_loop()
        while True:
            quiet = loop.time() - self._received_at
            if quiet > DEAD_SECONDS:
                raise TimeoutError
            if not self._unsent:
                try:
                    async with asyncio.timeout(max(PING_SECONDS - quiet, PING_SECONDS / 5)):
                        await self._has_unsent.wait()
                except TimeoutError:
                    self._send(b"PING")
                    continue
            commands, self._unsent = self._unsent, []
            self._has_unsent.clear()
            async with asyncio.timeout(DEAD_SECONDS):
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)

    async def _read(self, connection: Connection) -> None:
        """Receive messages and confirmations."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                reply: Any = await connection.read_response()
            except ResponseError as error:
                self._move_slot(error)
                continue
            finally:
                self._received_at = loop.time()
            match reply:
                case [b"message" | b"smessage", bytes(channel), bytes(message)]:
                    self._bus.deliver(self._topics.get(channel), message)
                case [b"subscribe" | b"ssubscribe", bytes(channel), _]:
                    self._confirm_join(channel)
                case [b"unsubscribe" | b"sunsubscribe", bytes(channel), _]:
                    self._confirm_leave(channel)
                case _:  # the answer to a PING
                    pass

    def _confirm_join(self, channel: bytes) -> None:
        self._joining[channel] -= 1
        if self._joining[channel] > 0:
            return  # an earlier subscription, which has ended since
        del self._joining[channel]
        if (topic := self._topics.get(channel)) is not None:
            topic.confirm()
            self._bus.has_joined()

    def _confirm_leave(self, channel: bytes) -> None:
        events = self._leaving.get(channel)
        if events:
            events.pop(0).set()
            if not events:
                del self._leaving[channel]
        elif (topic := self._topics.pop(channel, None)) is not None:  # the slot was moved to another node
            self._bus.lose([topic])

    def _move_slot(self, error: ResponseError) -> None:
        """Give up the topics of a slot that another node has. Raises an error that does not say this."""
        if self._bus.commands.follow(error) is None:
            raise error
        slot = moved_slot(error)
        moved = [topic for channel, topic in self._topics.items() if key_slot(channel) == slot]
        for topic in moved:
            del self._topics[topic.channel]
            self._joining.pop(topic.channel, None)
        self._bus.lose(moved)


class RedisBus:
    """Sends messages, and receives those of the topics that have subscribers in this process.

    It belongs to one event loop, from the first subscription until `close`.
    """

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self._topics: dict[bytes, _Topic] = {}
        self._links: dict[Address, _Link] = {}
        self._waiting: dict[bytes, _Topic] = {}  # topics without a link
        self._has_waiting = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None  # gives links to topics
        self._failures = 0  # links that broke since the last confirmed subscription
        self._failure: BaseException | None = None  # the last of them
        self._joined_at = -math.inf  # when the last outage was over
        self._has_outage = False  # whether messages cannot be received now
        self._is_outage_new = False  # whether the connection was steady before; then its end is logged, too
        self._is_outdated = False  # whether topics may have moved to other nodes of the cluster
        self._marks: set[bytes] = set()  # marks of messages that were received
        self._marks_in_order: deque[bytes] = deque()

    async def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message, and return the number of processes that get it."""
        word = "SPUBLISH" if self.commands.is_cluster else "PUBLISH"
        count: int = await self.commands.run(channel, word, channel, os.urandom(MARK_BYTES) + message)
        return count

    async def subscribe(self, channel: bytes, hear: Hear, missed: Callable[[], None] | None) -> Unsubscribe:
        """Call `hear` with each message, and `missed` after messages may have been lost."""
        subscriber = _Subscriber(hear, missed)
        topic = self._topics.get(channel)
        if topic is None:
            topic = self._topics[channel] = _Topic(channel)
            self._place_later(topic)
        topic.subscribers[subscriber] = None
        try:
            async with asyncio.timeout(self.commands.timeout):
                await topic.confirmed.wait()
            if topic.refusal is not None:
                raise self.commands.refused(topic.refusal) from topic.refusal
        except BaseException as error:
            self._drop(topic, subscriber)
            if isinstance(error, TimeoutError):
                raise self.commands.unreachable(self._failure or error) from None
            raise
        subscriber.is_told_of_gaps = True
        return lambda: self._unsubscribe(topic, subscriber)

    async def _unsubscribe(self, topic: _Topic, subscriber: _Subscriber) -> None:
        """End a subscription. Wait a moment for the confirmation, after which `publish` does not count it."""
        confirmed = self._drop(topic, subscriber)
        if confirmed is not None:
            try:
                async with asyncio.timeout(UNSUBSCRIBE_SECONDS):
                    await confirmed.wait()
            except TimeoutError:
                pass  # Redis is slow, or gone. The subscriber gets no messages in any case.

    def _drop(self, topic: _Topic, subscriber: _Subscriber) -> asyncio.Event | None:
        """Remove a subscriber. If it was the last, end the subscription to the topic."""
        topic.subscribers.pop(subscriber, None)
        if topic.subscribers or self._topics.get(topic.channel) is not topic:
            return None
        del self._topics[topic.channel]
        self._waiting.pop(topic.channel, None)
        return topic.link.leave(topic) if topic.link is not None else None

    def deliver(self, topic: _Topic | None, marked: bytes) -> None:
        """Give a message to the subscribers of its topic."""
        mark, message = marked[:MARK_BYTES], marked[MARK_BYTES:]
        if mark in self._marks:
            return  # the publication was repeated
        self._marks.add(mark)
        self._marks_in_order.append(mark)
        if len(self._marks_in_order) > MOST_MARKS:
            self._marks.discard(self._marks_in_order.popleft())
        for subscriber in list(topic.subscribers) if topic is not None else ():
            _call("hear", subscriber.hear, message)

    def lose(self, topics: list[_Topic], link: _Link | None = None, failure: BaseException | None = None) -> None:
        """Look for another link for topics, because their link has ended, or the cluster has moved them."""
        if link is not None:
            if self._links.get(link.address) is link:
                del self._links[link.address]
            self._failures += 1
            self._failure = failure
        if self._keeper is None:
            return  # closed
        if link is not None and topics:
            self._log_broken(reason_of(failure) if failure else "it was closed")
        self._is_outdated = True
        for topic in topics:
            if failure is not None and not is_passing(failure) and not (topic.confirmed.is_set() or topic.has_gap):
                topic.refusal = failure  # its subscribers do not wait any longer
                topic.link = None
                topic.confirmed.set()
                continue
            topic.lose()
            self._place_later(topic)

    def _log_broken(self, why: str) -> None:
        text = "The connection to Redis for messages broke (%s). Connecting again."
        if self._has_outage:
            return
        self._has_outage = True
        self._is_outage_new = asyncio.get_running_loop().time() - self._joined_at > STEADY_SECONDS
        if self._is_outage_new:
            log.warning(text, why)
        else:
            _seldom.warning(text, why, about=why)

    def has_joined(self) -> None:
        """Note that a subscription was confirmed: the next failure is the first again."""
        self._failures = 0
        if self._has_outage and all(topic.confirmed.is_set() for topic in self._topics.values()):
            self._has_outage = False
            self._joined_at = asyncio.get_running_loop().time()
            if self._is_outage_new:
                log.info("The connection to Redis for messages is open again.")

    def _place_later(self, topic: _Topic) -> None:
        self._waiting[topic.channel] = topic
        self._has_waiting.set()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_placing())

    async def _keep_placing(self) -> None:
        """Give each topic that waits a link, with growing pauses while links break."""
        while True:
            await self._has_waiting.wait()
            if self._failures:
                await asyncio.sleep(pause_seconds(self._failures))
            if self._is_outdated:
                self._is_outdated = False
                await self.commands.refresh()
            self._has_waiting.clear()
            waiting, self._waiting = self._waiting, {}
            for topic in waiting.values():
                address = self.commands.address_of(topic.channel)
                if address is None:  # no node has it, for now
                    self._failures += 1
                    self._is_outdated = True
                    self._place_later(topic)
                    continue
                link = self._links.get(address)
                if link is None:
                    link = self._links[address] = _Link(self, address)
                link.join(topic)

    def renew(self) -> None:
        """Use new connections for all subscriptions."""
        for link in self._links.values():
            link.task.cancel()

    async def close(self) -> None:
        """End all subscriptions and connections."""
        tasks = [link.task for link in self._links.values()]
        if self._keeper is not None:
            tasks.append(self._keeper)
            self._keeper = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._topics.clear()
        self._waiting.clear()
