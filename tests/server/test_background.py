"""Functions that run beside the calls: how often, how many, and what becomes of what they raise."""

import asyncio

import pytest

from support.raw_sessions import AppPeer, answer_to, eventually, message
from weft import Connection, QuestionFailed, Server
from weft.server.runtime import runtime as background
from weft.server.runtime.runtime import Background

ROOTS = {"roots": {"listChanged": True}}
CHANGED = message("notifications/roots/list_changed")


def a_connection() -> Connection:
    return Connection.from_envelope("2031-01-01", None, None)


async def test_what_is_said_often_is_done_once_more() -> None:
    server = Server("x")
    runs, go = [], asyncio.Event()

    async def work(_: Connection) -> None:
        runs.append(len(runs))
        await go.wait()

    connection = a_connection()
    for _ in range(3):
        server.engine.background.start("on_change", work, connection)
        await asyncio.sleep(0)
    assert runs == [0]
    go.set()
    await asyncio.sleep(0.01)
    assert runs == [0, 1]
    server.engine.background.start("on_change", work, connection)
    await asyncio.sleep(0.01)
    assert runs == [0, 1, 2]


@pytest.mark.security("R12")
async def test_one_too_many_is_dropped_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "MOST", 2)
    running = Background(Server("x").engine)
    begun: list[Connection] = []

    async def work(connection: Connection) -> None:
        begun.append(connection)
        await asyncio.sleep(30)

    connections = [a_connection() for _ in range(8)]
    for connection in connections:
        running.start("on_change", work, connection)
    await asyncio.sleep(0)
    assert begun == connections[:2]
    assert caplog.text.count("'work' was not called") == 1  # clients can cause it as often as they like
    await running.close(1)


@pytest.mark.spec("L11-37")
async def test_a_client_that_says_so_without_end_leaves_room_for_others() -> None:
    server = Server("x")
    told: list[str] = []

    @server.on_roots_changed
    async def ask(connection: Connection) -> None:
        told.append(connection.connection_id)
        await connection.send_raw_request("roots/list")

    app = server.asgi()
    loud, quiet = AppPeer(app), AppPeer(app)
    for peer in (loud, quiet):
        await peer.open(capabilities=ROOTS)
        await peer.get()
    for _ in range(background.MOST + 1):
        await loud.post(CHANGED)
    await quiet.post(CHANGED)
    await asyncio.sleep(0.01)
    assert told == [loud.session, quiet.session]
    await server.stop()
    for peer in (loud, quiet):
        await peer.leave()


@pytest.mark.security("R1")
@pytest.mark.mistake("plain function for on_roots_changed")
async def test_a_plain_function_is_told_of_in_the_log_and_fails_no_message(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("x")

    @server.on_roots_changed
    def forgetful(connection: Connection) -> None:
        pass

    @server.on_roots_changed
    def failing(connection: Connection) -> None:
        raise ValueError

    peer = AppPeer(server.asgi())
    await peer.open(capabilities=ROOTS)
    assert (await peer.post(CHANGED)).status == 202
    await asyncio.sleep(0.01)
    assert "must be async" in caplog.text
    assert "'failing' raised ValueError" in caplog.text
    await server.stop()
    await peer.leave()


@pytest.mark.spec("L11-37")
async def test_the_roots_that_have_changed_can_be_asked_for() -> None:
    server = Server("x")
    found: list[str] = []
    failed: list[str] = []

    @server.on_roots_changed
    async def look(connection: Connection) -> None:
        try:
            found.extend(root.uri for root in await connection.list_roots())
        except QuestionFailed as error:
            failed.append(str(error))

    peer = AppPeer(server.asgi())
    await peer.open(capabilities=ROOTS)
    stream = await peer.get()
    for result in ({"roots": [{"uri": "file:///tea"}]}, {"roots": "all of them"}):
        await peer.post(CHANGED)
        question = await stream.question("roots/list")
        await peer.post(answer_to(question, result))
    await eventually(lambda: failed)
    assert found == ["file:///tea"]
    assert failed == ["The client's answer cannot be used: it is no list of roots."]
    await server.stop()
    await peer.leave()
