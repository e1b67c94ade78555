"""What a request may be told on its way: progress for its token, logs for its level, on its own stream only."""

import threading

import pytest

from support import LOG_LEVEL_KEY, VERSION, Live, Response, until

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def progress(response: Response) -> list[dict]:
    return [note["params"] for note in response.messages if note.get("method") == "notifications/progress"]


def logs(response: Response) -> list[dict]:
    return [note["params"] for note in response.messages if note.get("method") == "notifications/message"]


@pytest.mark.spec("PROG-03")
def test_progress_strictly_increases(live: Live) -> None:
    response = live.tool("steps", {"values": [1, 1, 0.5, 2, 2, 1, 3.5]}, meta={"progressToken": "p"})
    assert [note["progress"] for note in progress(response)] == [1, 2, 3.5]


@pytest.mark.spec("PROG-05", "PROG-08", "PROG-04")
@pytest.mark.parametrize("token", ["p", "", 0, 7, -1])
def test_progress_goes_by_the_token_as_it_came(live: Live, token: int | str) -> None:
    (note,) = progress(live.tool("steps", {"values": [0.5]}, meta={"progressToken": token}))
    assert note == {"progressToken": token, "progress": 0.5, "total": 0.5, "message": "on it"}
    assert type(note["progressToken"]) is type(token)


@pytest.mark.spec("PROG-08", "PROG-05")
def test_without_a_token_there_is_no_progress(live: Live) -> None:
    response = live.tool("steps", {"values": [1, 2]})
    assert not response.is_stream
    assert response.result["content"][0]["text"] == "done"


@pytest.mark.parametrize("token", [1.5, True, [], {}])
def test_a_token_is_a_string_or_an_integer(live: Live, token: object) -> None:
    assert live.tool("steps", {"values": [1]}, meta={"progressToken": token}).refusal == (400, -32602)


@pytest.mark.security("D2", "R12")
@pytest.mark.parametrize(("most", "more"), [("x" * 256, "x" * 257), ("é" * 128, "é" * 129), (2**53, 2**53 + 1)])
def test_a_token_has_the_bounds_of_an_id(live: Live, most: int | str, more: int | str) -> None:
    (note,) = progress(live.tool("steps", {"values": [0.5]}, meta={"progressToken": most}))
    assert note["progressToken"] == most
    response = live.tool("steps", {"values": [1]}, meta={"progressToken": more})
    assert response.refusal == (400, -32602)
    assert "progressToken" in response.error["message"]


@pytest.mark.spec("PROG-06", "LOG-04", "HTTP-15")
def test_nothing_is_told_after_the_answer(live: Live) -> None:
    response = live.tool("late", {"token": "late"}, meta={"progressToken": 1, LOG_LEVEL_KEY: "debug"})
    assert [note["progress"] for note in progress(response)] == [1]
    assert "result" in response.messages[-1]
    until(lambda: "reported late" in live.server.log.of("late"))
    assert live.healthy()


@pytest.mark.spec("LOG-02")
def test_without_a_level_nothing_is_logged(live: Live) -> None:
    response = live.tool("chatter")
    assert not response.is_stream
    assert response.result["content"][0]["text"] == "done"


@pytest.mark.spec("LOG-03")
@pytest.mark.parametrize("level", LEVELS)
def test_the_level_and_above(live: Live, level: str) -> None:
    response = live.tool("chatter", meta={LOG_LEVEL_KEY: level})
    assert [note["level"] for note in logs(response)] == LEVELS[LEVELS.index(level) :]
    assert logs(response)[0] == {"level": level, "data": f"{level} ", "logger": "chatter"}
    assert "result" in response.messages[-1]


@pytest.mark.spec("LOG-05", "JRPC-26")
@pytest.mark.parametrize("level", ["verbose", "", "DEBUG", 3, {}])
def test_a_level_that_is_none_refuses_the_request(live: Live, level: object) -> None:
    assert live.tool("chatter", meta={LOG_LEVEL_KEY: level}).refusal == (400, -32602)


@pytest.mark.spec("LOG-04", "HTTP-15", "STATE-01", "STATE-02")
def test_notifications_stay_with_their_own_request(live: Live) -> None:
    answers: dict[str, Response] = {}

    def call(token: str, level: str) -> None:
        answers[token] = live.tool("chatter", {"token": token}, meta={LOG_LEVEL_KEY: level})

    wanted = {f"t{number}": LEVELS[number % 8] for number in range(16)}
    threads = [threading.Thread(target=call, args=pair) for pair in wanted.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for token, level in wanted.items():
        assert [note["data"] for note in logs(answers[token])] == [
            f"{name} {token}" for name in LEVELS[LEVELS.index(level) :]
        ]


@pytest.mark.spec("LOG-01")
def test_logging_is_declared(live: Live) -> None:
    assert live.call("server/discover").result["capabilities"]["logging"] == {}


@pytest.mark.spec("LOG-06")
def test_a_failure_is_not_told_to_the_client_by_the_log(live: Live) -> None:
    response = live.tool("fail", {"how": "error"}, meta={LOG_LEVEL_KEY: "debug"})
    assert b"secret-password" not in response.body
    assert b"everything.py" not in response.body


@pytest.mark.spec("META-10")
def test_trace_context_needs_no_prefix_and_foreign_keys_are_left_alone(live: Live) -> None:
    meta = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b",
        "baggage": "k=v",
        "com.example/thing": {"deep": [1]},
        "io.modelcontextprotocol/unheardOf": 7,
    }
    assert live.tool("who", meta=meta).result["structuredContent"]["version"] == VERSION
