"""What goes into a log: lines of calls, masked messages, and warnings that a peer cannot flood it with."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.net.logs import MASK, Seldom, call_line, masked_body, masked_headers, masked_url

SECRET = "s3cr3t-value-that-nobody-reads"


# --- masking


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "authorization",
        "Proxy-Authorization",
        "Cookie",
        "Set-Cookie",
        "DPoP",
        "Mcp-Session-Id",
        "X-Api-Key",
        "X-Something-Of-Theirs",
    ],
)
def test_a_header_is_masked_unless_it_is_known_to_be_harmless(name: str) -> None:
    shown = masked_headers([(name.encode(), SECRET.encode()), (b"content-type", b"text/plain")])
    assert shown == f"{name}: {MASK}, content-type: text/plain"


def test_headers_stay_one_line() -> None:
    assert "\n" not in masked_headers({"Content-Type": "a\nforged: line", "a\nb": "c"})


@pytest.mark.parametrize(
    "name",
    [
        "access_token",
        "refresh_token",
        "id_token",
        "client_secret",
        "code",
        "code_verifier",
        "client_assertion",
        "password",
        "apiKey",
        "api_key",
        "requestState",
        "Authorization",
        "sessionId",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        '{{"jsonrpc":"2.0","params":{{"deep":[{{"{name}":"{secret}"}}]}}}}',
        '{{"cut": true, "{name}" : "{secret}", "rest',  # no JSON any more
        "grant_type=x&{name}={secret}",
    ],
)
def test_what_a_body_says_under_a_secret_name_is_masked(name: str, form: str) -> None:
    shown = masked_body(form.format(name=name, secret=SECRET))
    assert SECRET not in shown
    assert MASK in shown
    assert name in shown


def test_what_follows_bearer_is_masked_wherever_it_stands() -> None:
    assert masked_body(f'{{"text": "sent Authorization: Bearer {SECRET}"}}') == (
        '{"text":"sent Authorization: Bearer ***"}'
    )


def test_what_is_no_secret_is_shown() -> None:
    plain = '{"error":{"code":-32602,"message":"no"},"_meta":{"progressToken":7},"maxTokens":5}'
    assert masked_body(plain) == plain


QUESTION = {"method": "sampling/createMessage", "params": {"messages": [{"content": SECRET}]}}


@pytest.mark.spec("SAM-13")
@pytest.mark.parametrize(
    ("message", "from_client"),
    [
        ({"id": 1, "method": "elicitation/create", "params": {"message": SECRET}}, False),
        ({"id": 1, **QUESTION}, False),
        ({"result": {"inputRequests": {"k0": QUESTION}}}, False),
        ({"params": {"inputResponses": {"k0": {"content": {"card": SECRET}}}}}, False),
        ({"id": 1, "result": {"content": {"text": SECRET}}}, True),
        ([{"id": 1, "result": {"content": {"text": SECRET}}}], True),
    ],
)
@pytest.mark.parametrize("most", [None, 40])
def test_what_is_asked_and_answered_is_masked(message: object, from_client: bool, most: int | None) -> None:
    body = json.dumps(message).replace(SECRET, SECRET * 3000 if most else SECRET)
    for text in (body, body[:-3]):  # a message, and one that was cut off
        assert SECRET not in masked_body(text, from_client=from_client)


def test_what_a_server_answers_is_shown() -> None:
    assert masked_body('{"id":1,"result":{"content":[]}}') == '{"id":1,"result":{"content":[]}}'


def test_a_long_body_is_cut_and_its_secrets_masked_all_the_same() -> None:
    body = b'{"token": "' + SECRET.encode() + b'", "rest": "' + b"x" * 1_000_000 + b'"}'
    shown = masked_body(body)
    assert len(shown) < 4100
    assert SECRET not in shown
    assert shown.endswith(f"({len(body)} bytes)")


def test_a_secret_that_is_cut_off_is_masked_too() -> None:
    assert SECRET not in masked_body(b'{"token": "' + SECRET.encode())


@given(st.binary())
def test_any_body_is_one_line(body: bytes) -> None:
    assert masked_body(body).isprintable()


def test_the_query_and_the_credentials_of_a_url_are_masked() -> None:
    assert masked_url(f"https://u:{SECRET}@a.example/mcp?key={SECRET}") == "https://***@a.example/mcp?***"


TASK = "tdSM9AaCQyRO4CP3zFsP30S9"


@pytest.mark.spec("TASK-34a")
@pytest.mark.parametrize(
    "body",
    [
        {"method": "tasks/get", "params": {"taskId": TASK}},
        {"result": {"resultType": "task", "taskId": TASK, "status": "working"}},
        {"result": {"task": {"taskId": TASK}}},
        {"result": {"tasks": [{"taskId": TASK}, {"taskId": TASK}]}},
        {"method": "notifications/tasks", "params": {"taskId": TASK}},
        {"params": {"notifications": {"taskIds": [TASK, TASK]}}},
        {"params": {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": TASK}}}},
        {"params": {"arguments": {"task_id": TASK}}},
        {"params": {"taskId": [TASK]}},
        {"params": {"taskId": {"x": TASK}, "taskIds": {"x": 1}}},
        {"params": {"text": json.dumps({"taskId": TASK})}},
    ],
)
def test_a_task_is_shown_with_the_first_characters_of_its_id(body: object) -> None:
    """The whole body, one that was cut off, and one that is too long to be read."""
    whole = json.dumps(body)
    assert TASK not in masked_body(whole)
    assert masked_body(whole).startswith("{")
    for text in (whole[:-1], whole[:-1] + ', "more": "' + "x" * 70_000 + '"}'):
        assert TASK not in masked_body(text)
    if f'"taskId": "{TASK}"' in whole:
        assert f'"taskId":"tdSM9A{MASK}"' in masked_body(whole)


@pytest.mark.spec("TASK-34a")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_the_header_with_the_id_of_a_task_is_cut(method: str) -> None:
    shown = masked_headers({"Mcp-Name": TASK, "Mcp-Method": method})
    assert shown == f"Mcp-Name: tdSM9A{MASK}, Mcp-Method: {method}"
    assert masked_headers({"Mcp-Name": "add", "Mcp-Method": "tools/call"}) == "Mcp-Name: add, Mcp-Method: tools/call"


# --- the line of a call


def test_a_name_cannot_write_other_fields_or_another_line() -> None:
    assert call_line("tools/call", "add session 200\nERROR", "stateless", 404, 0.5, "al ice") == (
        "tools/call add_session_200?ERROR stateless 404 500.0 ms al_ice"
    )


# --- what a peer can cause at will


def seldom(caplog: pytest.LogCaptureFixture, clock: list[float]) -> Seldom:
    caplog.set_level(logging.WARNING, "weft.test")
    return Seldom(logging.getLogger("weft.test"), lambda: clock[0])


def test_thirty_thousand_warnings_are_five_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = seldom(caplog, [0.0])
    for _ in range(30_000):
        log.warning("%s sent a ping.", "they")
    assert [record.getMessage() for record in caplog.records] == [
        "they sent a ping.",
        "they sent a ping. (10 times by now)",
        "they sent a ping. (100 times by now)",
        "they sent a ping. (1000 times by now)",
        "they sent a ping. (10000 times by now)",
    ]
    assert {record.filename for record in caplog.records} == {"test_logs.py"}, "the place that logs is named"


def test_after_a_minute_the_first_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    log = seldom(caplog, clock)
    for clock[0] in (0.0, 59.9, 60.0):
        log.warning("again")
    assert [record.getMessage() for record in caplog.records] == ["again", "again"]


def test_one_peer_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    log = seldom(caplog, [0.0])
    for who in ("a", "b", "a"):
        log.warning("%s was here", who, about=who)
    assert [record.getMessage() for record in caplog.records] == ["a was here", "b was here"]


def test_the_counts_are_bounded_however_many_peers_there_are(caplog: pytest.LogCaptureFixture) -> None:
    log = seldom(caplog, [0.0])
    for who in range(3000):
        log.warning("here", about=str(who))
    assert len(log._counts) == 1000


def test_an_exception_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    log = seldom(caplog, [0.0])
    for _ in range(3):
        try:
            raise ValueError(SECRET)
        except ValueError:
            log.exception("It failed.")
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
