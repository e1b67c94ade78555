"""The session era by itself: no socket, no event loop."""

from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY, VERSION, encode, message
from support.peers import SESSION_VERSIONS
from support.sessions import NEWEST, introduction, rpc
from weft.eras.base import Envelope, Offer, choose
from weft.eras.session import SESSION, HeaderPeer
from weft.eras.stateless import STATELESS
from weft.errors import (
    HeaderMismatch,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    ResourceNotFound,
)
from weft.jsonrpc import decode
from weft.protocol.headers import Headers, read
from weft.protocol.revisions import METHODS, SESSION_2025_11_25, Revision
from weft.types.base import EmptyResult, Implementation, LogLevel
from weft.types.lifecycle import ClientCapabilities, ElicitationCapability, ProgressParams, RootsCapability

METHODS_OF = {"session": {name: METHODS[name] for name in SESSION.methods}, "stateless": METHODS}
OFFER = Offer(METHODS_OF, {}, (VERSION, *SESSION.versions))
STRICT = Offer(METHODS_OF, {}, (VERSION, *SESSION.versions), require_initialized=True)
BOTH = (STATELESS, SESSION)


class Known:
    """A peer of which something is remembered."""

    def __init__(self, version: str = NEWEST, *, greeted: bool = True, ready: bool = True) -> None:
        self.protocol_version = version
        self.client_capabilities = ClientCapabilities(roots=RootsCapability())
        self.client_info = Implementation("known", "1")
        self.log_level: LogLevel | None = "error"
        self.handshake_done = greeted
        self.is_ready = ready


def opened(body: dict, peer: Any = None, headers: Headers | None = None, offer: Offer = OFFER) -> Envelope:
    return SESSION.open(decode(encode(body)), headers, offer, peer)


def http(**headers: str) -> Headers:
    return read([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


# The handshake.


@pytest.mark.spec("L11-02", "COMPAT-22")
@pytest.mark.parametrize(
    "asked", [*SESSION_VERSIONS, VERSION, "2031-01-01", "1999-01-01", "2025-11-25 ", "x", "", "\u2603"]
)
def test_the_version_asked_for_if_there_is_such_else_the_newest(asked: str) -> None:
    envelope = opened(rpc("initialize", introduction(asked)), Known(greeted=False))
    assert envelope.revision.version == (asked if asked in SESSION_VERSIONS else NEWEST)


@pytest.mark.spec("L11-01", "L11-06")
def test_what_a_client_says_of_itself_is_kept_as_far_as_its_revision_has_it() -> None:
    declared = {"roots": {}, "elicitation": {"form": {}, "url": {}}, "unheardOf": {"x": 1}}
    for version, elicitation in (
        ("2025-03-26", None),
        ("2025-06-18", ElicitationCapability()),
        (NEWEST, ElicitationCapability(form={}, url={})),
    ):
        envelope = opened(rpc("initialize", introduction(version, declared)), Known(greeted=False))
        assert envelope.client_capabilities == ClientCapabilities(roots=RootsCapability(), elicitation=elicitation)
        assert envelope.client_info == Implementation("guest", "1")
        assert envelope.method.name == "initialize"


@pytest.mark.spec("L11-01")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_second_handshake_is_refused(version: str) -> None:
    with pytest.raises(InvalidRequest, match="already"):
        opened(rpc("initialize", introduction(version)), Known(version))


@pytest.mark.spec("L11-01")
@pytest.mark.parametrize("key", ["protocolVersion", "capabilities", "clientInfo"])
@pytest.mark.parametrize("value", [None, 7, "secret"])
def test_a_handshake_that_cannot_be_read(key: str, value: Any) -> None:
    if (key, value) == ("protocolVersion", "secret"):
        return  # a version is any text
    params = {**introduction(), key: value}
    if value is None:
        del params[key]
    with pytest.raises(InvalidParams) as caught:
        opened(rpc("initialize", params))
    assert "secret" not in caught.value.message


@pytest.mark.spec("L11-05")
@pytest.mark.parametrize("peer", [None, Known(greeted=False, ready=False)], ids=["nobody", "ungreeted"])
def test_before_the_handshake_there_is_only_ping(peer: Any) -> None:
    assert opened(rpc("ping"), peer).method.name == "ping"
    for method in ("tools/list", "logging/setLevel", "no/such/method"):
        with pytest.raises(InvalidRequest, match=rf"`initialize` first.*{VERSION}.*2024-11-05"):
            opened(rpc(method, {"level": "info"}), peer)


@pytest.mark.spec("L11-05")
def test_where_it_must_be_confirmed_there_is_only_ping_until_then() -> None:
    greeted = Known(ready=False)
    assert opened(rpc("ping"), greeted, offer=STRICT).method.name == "ping"
    with pytest.raises(InvalidRequest, match="notifications/initialized"):
        opened(rpc("tools/list"), greeted, offer=STRICT)
    assert opened(rpc("tools/list"), greeted).method.name == "tools/list"
    assert opened(rpc("tools/list"), Known(), offer=STRICT).method.name == "tools/list"


# Requests.


@pytest.mark.spec("L11-06", "L11-33", "L24-07")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_request_is_read_with_what_its_session_remembers(version: str) -> None:
    envelope = opened(rpc("tools/list", {"cursor": "c", "_meta": {"progressToken": 0}}), Known(version))
    assert (envelope.revision.version, envelope.log_level, envelope.progress_token) == (version, "error", 0)
    assert envelope.client_info == Implementation("known", "1")
    assert envelope.params.cursor == "c"
    assert opened(rpc("tools/list"), Known(version)).progress_token is None


@pytest.mark.security("D2", "R12")
@pytest.mark.parametrize("token", ["x" * 257, "é" * 129, 2**53 + 1, -(2**53) - 1])
def test_a_progress_token_has_the_bounds_of_an_id(token: int | str) -> None:
    body = rpc("tools/list", {"_meta": {"progressToken": token}})
    with pytest.raises(InvalidParams, match="progressToken"):
        opened(body, Known())
    wider = Offer(METHODS_OF, {}, (VERSION, *SESSION.versions), id_bytes=300)
    if isinstance(token, str):
        assert opened(body, Known(), offer=wider).progress_token == token


@pytest.mark.spec("COMPAT-02")
@pytest.mark.parametrize("method", ["server/discover", "subscriptions/listen", "tasks/get", "no/such/method"])
def test_methods_that_this_era_does_not_have(method: str) -> None:
    with pytest.raises(MethodNotFound):
        opened(rpc(method), Known())


def test_params_that_cannot_be_read() -> None:
    for params in ({"level": "secret"}, {}, None):
        with pytest.raises(InvalidParams) as caught:
            opened(rpc("logging/setLevel", params), Known())
        assert "secret" not in caught.value.message


@pytest.mark.spec("L11-43")
def test_a_task_that_nobody_offers_is_ignored() -> None:
    envelope = opened(rpc("tools/call", {"name": "x", "task": {"ttl": 1}}), Known())
    assert envelope.method.name == "tools/call"
    assert not any(name.startswith("tasks/") for name in SESSION.methods)


# Headers.


@pytest.mark.spec("L11-29")
@pytest.mark.parametrize("stated", ["x", "", "2020-01-01", VERSION, "2025-11-25,2025-11-25"])
def test_a_version_header_that_names_no_revision_of_this_era(stated: str) -> None:
    with pytest.raises(InvalidRequest, match="2025-11-25, 2025-06-18"):
        opened(rpc("tools/list"), Known(), http(mcp_protocol_version=stated))


@pytest.mark.spec("L11-28", "L03-04", "L11-53")
def test_no_header_is_needed() -> None:
    assert opened(rpc("tools/list"), Known(), http()).revision.version == NEWEST
    odd = http(mcp_protocol_version=NEWEST, mcp_method="prompts/list", mcp_name="x")
    assert opened(rpc("tools/list"), Known(), odd).method.name == "tools/list"


@pytest.mark.spec("L11-28", "COMPAT-15")
@pytest.mark.parametrize(("stated", "version"), [(None, "2025-03-26"), ("2025-06-18", "2025-06-18")])
def test_whom_nobody_remembers_has_the_version_of_the_header(stated: str | None, version: str) -> None:
    headers = http() if stated is None else http(mcp_protocol_version=stated)
    envelope = opened(rpc("tools/list"), HeaderPeer(headers), headers, STRICT)
    assert envelope.revision.version == version
    assert envelope.client_capabilities == ClientCapabilities()


# Which era.


@pytest.mark.spec("COMPAT-02", "COMPAT-01")
def test_the_era_of_a_message() -> None:
    def era(body: dict, headers: Headers | None = None, eras: Any = BOTH) -> str:
        return choose(eras, decode(encode(body)), headers)[0].name

    assert era(message("tools/list")) == "stateless"
    assert era(message("initialize", introduction())) == "stateless"
    assert era(rpc("initialize", introduction())) == "session"
    assert era(rpc("initialize", introduction(VERSION))) == "session"
    assert era(rpc("tools/list", {"_meta": {"progressToken": 1}})) == "session"
    assert era(rpc("tools/call", {"name": "x", "arguments": {"protocolVersion": VERSION}})) == "session"
    half = rpc("tools/list", {"_meta": {CLIENT_CAPABILITIES_KEY: {"protocolVersion": 1}}})  # it has one key of two
    assert era(half) == "stateless"
    assert era(half, http(mcp_protocol_version=NEWEST)) == "session"
    assert era(rpc("tools/list", {"_meta": {PROTOCOL_VERSION_KEY: "2025-11-25"}})) == "stateless"  # C6: it is told
    for stated, name in ((VERSION, "stateless"), ("2031-01-01", "stateless"), (NEWEST, "session"), ("x", "session")):
        assert era(rpc("tools/list"), http(mcp_protocol_version=stated)) == name
    assert era(rpc("notifications/cancelled", {"requestId": 1}, id=None), http()) == "stateless"
    assert era(rpc("notifications/cancelled", {"requestId": 1}, id=None), http(mcp_session_id="s")) == "session"
    assert era({"jsonrpc": "2.0", "id": "s-1", "result": {"protocolVersion": VERSION}}) == "session"
    assert era(message("tools/list"), eras=(SESSION,)) == "session"
    assert era(rpc("initialize", introduction()), eras=(STATELESS,)) == "stateless"


@pytest.mark.spec("L03-01", "L06-01", "L11-15", "L06-02")
def test_what_only_one_revision_has() -> None:
    assert [v for v in SESSION_VERSIONS if SESSION.takes_batches(Known(v))] == ["2025-03-26"]
    assert not SESSION.takes_batches(Known("2025-03-26", greeted=False))
    assert [v for v in SESSION_VERSIONS if SESSION.may_close_early(Known(v))] == ["2025-11-25"]


# What goes out.


@pytest.mark.spec("L11-33")
def test_log_messages_from_the_level_on_that_was_asked_for() -> None:
    levels: list[LogLevel] = ["debug", "info", "warning", "error"]
    assert [level for level in levels if SESSION.may_log(level, "warning")] == ["warning", "error"]
    silent, known = Known(), Known()
    silent.log_level = None  # it has not said
    for peer, expected in ((known, levels[3:]), (silent, levels[1:]), (HeaderPeer(http()), levels[1:])):
        asked = opened(rpc("tools/list"), peer).log_level
        assert [level for level in levels if SESSION.may_log(level, asked)] == expected


@pytest.mark.spec("L11-35", "COMPAT-23")
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ResourceNotFound("x://y"), -32002),
        (InvalidParams("no"), -32602),
        (MethodNotFound("no"), -32601),
        (InternalError("no"), -32603),
        (InvalidRequest("no"), -32600),
        (MissingCapability("no", required={"roots": {}}), -32600),
        (HeaderMismatch("no"), -32020),
        (ProtocolError("pages", code=-32042, data={"elicitations": []}), -32042),
    ],
)
def test_codes_and_statuses(error: ProtocolError, code: int, opened: bool) -> None:
    wire = SESSION.refuse(error, opened=opened)
    assert (wire.code, wire.message, wire.data) == (code, error.message, error.data)
    assert wire.status == (400 if code == -32600 and not opened else 200)
    modern = STATELESS.refuse(ResourceNotFound("x://y"), opened=opened)
    assert modern.code == -32602


@pytest.mark.spec("L11-52", "L03-08", "COMPAT-23")
def test_results_and_notices_are_fitted() -> None:
    by_version: dict[str, Revision] = {r.version: r for r in _revisions()}
    assert SESSION.seal(EmptyResult(result_type="complete"), OFFER, SESSION_2025_11_25) == EmptyResult()
    progress = ProgressParams(progress_token=1, progress=1, message="m")
    messages = [SESSION.notice(progress, by_version[version]).message for version in SESSION_VERSIONS]
    assert messages == [None, "m", "m", "m"]
    form = {"mode": "form", "message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    asked = [SESSION.question("elicitation/create", form, by_version[v]) for v in SESSION_VERSIONS[2:]]
    assert ["mode" in one for one in asked] == [False, True]


def _revisions() -> list[Revision]:
    return [opened(rpc("tools/list"), Known(version)).revision for version in SESSION_VERSIONS]
