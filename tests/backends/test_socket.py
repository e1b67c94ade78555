"""The backend that workers of one machine share: the memory of their parent, over a socket for each worker."""

import asyncio
import logging
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvloop

from weft.backends import Backend
from weft.backends import socket as module
from weft.backends.memory import MemoryBackend
from weft.backends.socket import BackendServer, SocketBackend
from weft.errors import BackendUnavailable, StartError
from weft.testing import BackendContract


class Machine:
    """A parent with a backend, and workers that use it, all in one process."""

    def __init__(self) -> None:
        self.memory = MemoryBackend()
        self.server = BackendServer(self.memory)
        self.sockets: list[socket.socket] = []  # the workers' ends
        self.cut = 0  # how many connections the parent has cut

    def raw(self) -> socket.socket:
        """The worker's end of a new connection."""
        ours, theirs = socket.socketpair()
        self.server.serve(ours, self._count_cut)
        self.sockets.append(theirs)
        return theirs

    def _count_cut(self) -> None:
        self.cut += 1

    def worker(self) -> SocketBackend:
        return SocketBackend(self.raw())


@asynccontextmanager
async def running_machine() -> AsyncIterator[Machine]:
    machine = Machine()
    yield machine
    machine.server.close()
    assert machine.memory.bus._topics == {}
    for each in machine.sockets:
        each.close()


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    async with running_machine() as made:
        yield made


class TestContract(BackendContract):
    """What the interface says, with a parent in another thread and another kind of event loop."""

    @pytest.fixture(autouse=True)
    def _parent(self) -> Iterator[None]:
        self._loop = uvloop.new_event_loop()
        self._server = BackendServer(MemoryBackend())
        self._sockets: list[socket.socket] = []
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        yield
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()
        self._loop.close()
        for each in self._sockets:
            each.close()

    async def make_backend(self) -> Backend:
        ours, theirs = socket.socketpair()
        self._loop.call_soon_threadsafe(self._server.serve, ours)
        self._sockets.append(theirs)
        return SocketBackend(theirs)


def frame(*values: Any) -> bytes:
    body = msgspec.msgpack.encode(values)
    return len(body).to_bytes(4, "big") + body


async def eventually(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not fact():  # noqa: ASYNC110 - any fact
            await asyncio.sleep(0.005)


# Operations.


async def test_what_one_worker_stores_another_finds(machine: Machine) -> None:
    a, b = machine.worker(), machine.worker()
    await a.store.put("k", b"1", ttl=10)
    assert await b.store.get("k") == b"1"
    assert await b.store.swap("k", b"1", b"2", ttl=10)
    assert not await a.store.swap("k", b"1", b"3", ttl=10)
    assert await a.store.touch("k", ttl=float("inf"))
    assert await a.store.delete("k")
    assert await b.store.get("k") is None
    assert await a.store.take("t", count=1, seconds=60) == 0
    assert await b.store.take("t", count=1, seconds=60) > 50


async def test_logs_and_sets_are_shared(machine: Machine) -> None:
    a, b = machine.worker(), machine.worker()
    first = await a.log.append("l", b"x", ttl=10, most=2)
    second = await b.log.append("l", b"y", ttl=10, most=2)
    assert await a.log.read("l", 0) == [(first, b"x"), (second, b"y")]
    assert await a.log.read("l", first) == [(second, b"y")]
    await a.log.append("l", b"z", ttl=10, most=1)
    assert await b.log.read("l", first) is None
    assert await b.log.last("l") > second
    await b.log.delete("l")
    assert await a.log.last("l") == 0
    assert await a.sets.add("s", "m", ttl=10)
    assert await b.sets.add("s", "k", ttl=10)
    assert not await b.sets.add("s", "n", ttl=10, most=2)
    assert list(await a.sets.names("s")) == ["k", "m"]
    assert await b.sets.remove("s", "m")
    assert not await a.sets.remove("s", "m")


async def test_many_operations_at_once_get_their_own_answers(machine: Machine) -> None:
    worker = machine.worker()
    await asyncio.gather(*(worker.store.put(f"k{n}", b"%d" % n, ttl=10) for n in range(500)))
    assert await asyncio.gather(*(worker.store.get(f"k{n}") for n in range(500))) == [b"%d" % n for n in range(500)]


async def test_large_values_come_in_pieces(machine: Machine) -> None:
    a, b = machine.worker(), machine.worker()
    value = bytes(range(256)) * 4096 * 3
    await asyncio.gather(*(a.store.put(f"k{n}", value, ttl=10) for n in range(5)))
    assert await asyncio.gather(*(b.store.get(f"k{n}") for n in range(5))) == [value] * 5


async def test_requests_wait_while_their_worker_does_not_read_the_answers(machine: Machine) -> None:
    worker = machine.worker()
    await worker.store.put("k", b"x" * module.PAUSE_BYTES, ttl=10)
    (served,) = machine.server._connections
    loop = asyncio.get_running_loop()
    loop.remove_reader(machine.sockets[0])
    reading = asyncio.gather(*(worker.store.get("k") for _ in range(20)))
    await asyncio.sleep(0.05)
    assert len(served._unsent) < 3 * module.PAUSE_BYTES
    loop.add_reader(machine.sockets[0], worker._client._read)
    assert await reading == [b"x" * module.PAUSE_BYTES] * 20
    assert not served._is_writing


async def test_an_operation_that_fails_is_told_and_the_connection_goes_on(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    worker = machine.worker()
    with pytest.raises(BackendUnavailable, match=r"store\.put failed: "):
        await worker.store.put("k", b"v", ttl=None)  # type: ignore[arg-type]
    assert "an operation of the backend failed" in caplog.text
    await worker.ping()
    assert machine.cut == 0


async def test_a_request_or_a_result_that_is_too_long_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = machine.worker()
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with pytest.raises(BackendUnavailable, match=r"store\.put has \d+ bytes, which are too many to send now"):
        await worker.store.put("k", b"x" * 1000, ttl=10)
    for _ in range(2):
        await worker.log.append("l", b"x" * 600, ttl=10, most=9)
    with pytest.raises(BackendUnavailable, match=r"The result of log\.read has \d+ bytes, which are too many"):
        await worker.log.read("l", 0)
    assert await worker.log.last("l") > 0


# The bus.


async def test_every_worker_hears_what_is_published(machine: Machine) -> None:
    a, b, heard = machine.worker(), machine.worker(), []
    await a.bus.subscribe("t", lambda message: heard.append(("a", message)))
    await b.bus.subscribe("t", lambda message: heard.append(("b", message)))
    assert await a.bus.publish("t", b"1") == 2
    assert ("a", b"1") in heard  # before the answer
    await eventually(lambda: ("b", b"1") in heard)
    assert await a.bus.publish("other", b"2") == 0


async def test_a_message_is_at_its_subscriber_before_the_publisher_has_its_answer(machine: Machine) -> None:
    raw, worker = machine.raw(), machine.worker()
    raw.setblocking(False)
    raw.send(frame(1, "subscribe", ["t"], {}))
    await eventually(lambda: select.select([raw], [], [], 0)[0])
    assert raw.recv(100) == frame(1, None, None)
    assert await worker.bus.publish("t", b"news") == 1
    assert raw.recv(100) == frame(0, "t", b"news")


async def test_subscribers_in_one_worker_share_a_subscription(machine: Machine) -> None:
    worker, heard = machine.worker(), []
    leave = [await worker.bus.subscribe("t", heard.append) for _ in range(2)]
    assert await worker.bus.publish("t", b"1") == 1
    assert heard == [b"1", b"1"]
    await leave[0]()
    await leave[0]()
    assert await worker.bus.publish("t", b"2") == 1
    assert heard == [b"1", b"1", b"2"]
    await leave[1]()
    assert await worker.bus.publish("t", b"3") == 0


async def test_who_unsubscribes_and_subscribes_at_once_is_subscribed(machine: Machine) -> None:
    worker, heard = machine.worker(), []
    leave = await worker.bus.subscribe("t", heard.append)
    await asyncio.gather(leave(), worker.bus.subscribe("t", heard.append))
    assert await worker.bus.publish("t", b"1") == 1
    assert heard == [b"1"]


async def test_a_subscriber_that_fails_does_not_keep_others_from_hearing(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    worker, heard = machine.worker(), []

    def fail(message: bytes) -> None:
        raise ValueError

    await worker.bus.subscribe("t", fail)
    await worker.bus.subscribe("t", heard.append)
    await worker.bus.publish("t", b"1")
    assert heard == [b"1"]
    assert "a subscriber of a topic failed" in caplog.text


async def test_a_subscription_that_is_given_up_leaves_nothing(machine: Machine) -> None:
    worker = machine.worker()
    await worker.ping()
    task = asyncio.create_task(worker.bus.subscribe("t", print))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert await worker.bus.publish("t", b"1") == 0
    assert worker._client.topics == {}


async def test_a_worker_that_has_ended_is_no_subscriber(machine: Machine) -> None:
    a, b = machine.worker(), machine.worker()
    await a.bus.subscribe("t", print)
    a._client.detach()
    machine.sockets[0].close()
    await eventually(lambda: len(machine.server._connections) == 1)
    assert await b.bus.publish("t", b"1") == 0
    assert machine.cut == 0  # it ended by itself


# What a worker does wrong.


def deep(levels: int) -> bytes:
    """A request whose arguments are nested too deeply to be read."""
    said = b"\x94\x01\xa9store.get\x91" + b"\x91" * levels + b"\x90\x80"
    return len(said).to_bytes(4, "big") + said


NONSENSE = [
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x01\xc1",
    b"\x00\x00\x00\x00",
    frame(1, "store.get", ["k"]),
    frame("1", "store.get", ["k"], {}),
    frame(1, "store.clear", [], {}),
    frame(1, "store.get", [], {}),
    frame(1, "store.get", ["k"], {"ttl": 3}),
    frame(1, "store.get", [["k"], 2, 3], {}),
    deep(100_000),
]


@pytest.mark.security("R12")
@pytest.mark.parametrize("said", NONSENSE)
async def test_a_worker_that_sends_nonsense_is_cut_off_alone(
    machine: Machine, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    raw, worker = machine.raw(), machine.worker()
    raw.sendall(frame(7, "ping", [], {}) + said + frame(8, "ping", [], {}))
    await eventually(lambda: machine.cut)
    assert machine.cut == 1
    assert "the connection to a worker is closed: " in caplog.text
    assert raw.recv(1000) in (b"", frame(7, None, None))
    await worker.ping()


@pytest.mark.security("R12")
async def test_a_worker_that_is_busy_is_told_what_it_has_missed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT", 3_000_000)
    busy, worker = machine.worker(), machine.worker()
    heard: list[bytes] = []

    def fail() -> None:
        raise ValueError

    await busy.bus.subscribe("t", heard.append, fail)
    await busy.bus.subscribe("t", lambda _: None, lambda: heard.append(b"missed"))
    served = next(one for one in machine.server._connections if one._topics)
    loop = asyncio.get_running_loop()
    loop.remove_reader(machine.sockets[0])
    assert [await worker.bus.publish("t", b"x" * 100_000) for _ in range(60)] == [1] * 60
    assert len(served._unsent) <= 3_100_000
    await worker.bus.publish("t", b"small, and dropped too")
    loop.add_reader(machine.sockets[0], busy._client._read)
    await eventually(lambda: b"missed" in heard)
    assert await worker.bus.publish("t", b"after") == 1
    await eventually(lambda: b"after" in heard)
    assert heard[-2:] == [b"missed", b"after"]
    assert set(heard[:-2]) == {b"x" * 100_000}
    assert 10 < len(heard) < 60
    assert machine.cut == 0
    assert "has missed messages of others" in caplog.text


@pytest.mark.security("R12")
async def test_a_worker_that_has_hung_is_cut_off(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STALLED_SECONDS", 0.2)
    deaf, worker = machine.worker(), machine.worker()
    await deaf.bus.subscribe("t", print)
    asyncio.get_running_loop().remove_reader(machine.sockets[0])
    assert [await worker.bus.publish("t", b"x" * 100_000) for _ in range(20)] == [1] * 20
    assert machine.cut == 0
    await eventually(lambda: machine.cut)
    assert await worker.bus.publish("t", b"x") == 0
    assert "it has read nothing for 0.2 s, and" in caplog.text


async def test_a_worker_that_reads_slowly_is_not_cut_off(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_SECONDS", 0.1)
    raw, worker = machine.raw(), machine.worker()
    raw.sendall(frame(1, "subscribe", ["t"], {}))
    await eventually(lambda: machine.server._connections and select.select([raw], [], [], 0)[0])
    for _ in range(20):
        await worker.bus.publish("t", b"x" * 100_000)
    for _ in range(10):
        await asyncio.sleep(0.05)
        raw.recv(150_000)
    assert machine.cut == 0


@pytest.mark.security("R12")
async def test_a_worker_that_has_hung_is_cut_off_also_if_the_system_stores_what_it_does_not_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STALLED_SECONDS", 0.2)
    deaf, worker = machine.worker(), machine.worker()
    await deaf.bus.subscribe("t", print)
    asyncio.get_running_loop().remove_reader(machine.sockets[0])
    await asyncio.sleep(0.3)
    assert machine.cut == 0  # no message waits
    assert await worker.bus.publish("t", b"small") == 1
    await eventually(lambda: machine.cut)
    assert await worker.bus.publish("t", b"x") == 0
    assert "it has sent nothing for 0.2 s, though there are messages for it" in caplog.text


async def test_a_worker_that_lives_is_not_cut_off(machine: Machine) -> None:
    is_ready = False
    ours, raw = socket.socketpair()
    machine.server.serve(ours, machine._count_cut, lambda: is_ready)
    machine.sockets.append(raw)
    raw.sendall(frame(1, "subscribe", ["t"], {}))
    await eventually(lambda: machine.memory.bus._topics)
    (served,) = machine.server._connections
    await machine.memory.bus.publish("t", b"first")
    timer = served._silence
    served._check_silence()
    assert served._silence not in (None, timer)  # while it starts, it may block: it is checked later
    is_ready = True
    raw.sendall(frame(2, "ping", [], {}))
    served._check_silence()  # before the event loop has read
    assert served._silence is None  # until the next message
    await machine.memory.bus.publish("t", b"second")
    raw.sendall(frame(3, "ping", [], {}))
    await eventually(lambda: served._silence is None)
    await machine.memory.bus.publish("t", b"third")
    served._is_reading = False  # as while many answers wait
    served._check_silence()
    assert machine.cut == 0
    served._is_reading = True
    served._check_silence()
    assert machine.cut == 1


# Failures.


async def test_a_parent_that_is_gone_is_told_at_once(machine: Machine) -> None:
    raw, parents = socket.socketpair()
    with raw, parents:
        worker = SocketBackend(raw)
        asking = asyncio.create_task(worker.store.get("k"))
        await asyncio.sleep(0)
        parents.close()
        with pytest.raises(BackendUnavailable, match="The process that started this worker is gone"):
            await asking
        with pytest.raises(BackendUnavailable, match="is gone, so this worker stops"):
            await worker.ping()
        with pytest.raises(StartError, match=r"is gone, .* Start the server again"):
            await worker.start()
        with pytest.raises(BackendUnavailable):
            await worker.bus.subscribe("t", print)


async def test_a_parent_that_is_gone_before_the_first_request_is_told(machine: Machine) -> None:
    raw, parents = socket.socketpair()
    with raw:
        parents.close()
        with pytest.raises(BackendUnavailable, match="is gone"):
            await SocketBackend(raw).store.get("k")


async def test_an_answer_that_does_not_come_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(module, "PING_SECONDS", 0.02)
    raw, parents = socket.socketpair()
    with raw, parents:
        worker = SocketBackend(raw)
        asking = asyncio.gather(worker.store.get("a"), worker.store.get("b"), return_exceptions=True)
        await asyncio.sleep(0.02)
        late = asyncio.create_task(worker.store.get("c"))
        assert [str(error) for error in await asking] == [
            "The process that shares its memory with this worker did not answer for 0.05 s."
        ] * 2
        assert not late.done()
        parents.send(frame(1, b"too late", None) + frame(3, b"just in time", None))
        assert await late == b"just in time"
        with pytest.raises(BackendUnavailable, match=r"did not answer for 0\.02 s"):
            await worker.ping()
        await eventually(lambda: not worker._client._waiting)
        await worker.close()


async def test_a_request_whose_caller_waits_no_more_has_no_effect_on_others(machine: Machine) -> None:
    worker = machine.worker()
    asking = asyncio.create_task(worker.store.put("k", b"1", ttl=10))
    await asyncio.sleep(0)
    asking.cancel()
    assert await worker.store.get("k") == b"1"
    assert worker._client._waiting == {}


async def test_a_worker_sends_no_more_than_its_parent_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT", 1_000_000)
    raw, parents = socket.socketpair()
    with raw, parents:
        worker = SocketBackend(raw)
        asking = [asyncio.create_task(worker.store.put("k", b"x" * 100_000, ttl=10)) for _ in range(20)]
        await asyncio.sleep(0.05)
        refused = [task for task in asking if task.done()]
        assert 0 < len(refused) < 20
        for task in refused:
            with pytest.raises(BackendUnavailable, match="too many to send now"):
                await task
        assert len(worker._client._unsent) <= 1_000_000
        for task in asking:
            task.cancel()
        await worker.close()


# Starting and closing.


async def test_the_last_user_that_closes_it_releases_the_event_loop(machine: Machine) -> None:
    worker = machine.worker()
    loop = asyncio.get_running_loop()
    await worker.start()
    await worker.start()
    await worker.close()
    assert worker._client._loop is loop
    await worker.close()
    assert not loop.remove_reader(machine.sockets[0])
    await worker.start()  # a program may run a server again
    await worker.store.put("k", b"1", ttl=10)
    await worker.close()
    await worker.close()


async def test_what_waits_for_an_answer_when_it_is_closed_fails(machine: Machine) -> None:
    worker = machine.worker()
    await worker.start()
    asking = asyncio.create_task(worker.store.get("k"))
    await asyncio.sleep(0)
    await worker.close()
    with pytest.raises(BackendUnavailable, match="The connection to the backend was closed"):
        await asking


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_can_be_used_in_one_event_loop_after_another(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def use(worker: SocketBackend, ours: socket.socket, heard: list[bytes]) -> None:
        server = BackendServer(memory)
        server.serve(ours.dup())
        await worker.start()
        await worker.store.put("k", b"1", ttl=10)
        await worker.bus.subscribe("t", heard.append)
        assert await worker.bus.publish("t", b"1") == 1
        task = asyncio.create_task(worker.store.get("k"))
        await asyncio.sleep(0)
        server.close()
        task.cancel()

    memory = MemoryBackend()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker, heard = SocketBackend(theirs), []
        for _ in range(2):
            with asyncio.Runner(loop_factory=make_loop) as runner:
                runner.run(use(worker, ours, heard))
        assert heard == [b"1"] * 3


async def test_every_operation_of_a_backend_is_served() -> None:
    parts = {part: getattr(MemoryBackend(), part) for part in module._OPERATIONS}
    offered = {part: {name for name in dir(of) if not name.startswith("_")} for part, of in parts.items()}
    assert {part: set(names) for part, names in module._OPERATIONS.items()} | {
        "bus": {"publish", "subscribe"}
    } == offered


@pytest.fixture(autouse=True)
def _at_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
