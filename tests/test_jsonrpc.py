"""The frame: bytes to one message and back."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InvalidRequest, ParseError, ProtocolError
from weft.jsonrpc import Frame, decode, encode_error, encode_notification, encode_request, encode_result
from weft.limits import Limits
from weft.types.base import EmptyResult

REQUEST = b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"a":[1, 2]}}'


def test_an_error_has_only_unicode() -> None:
    """Its message is often the text of an exception, with the name of a file. Each lone surrogate is replaced."""
    encoded = encode_error(1, 7, "no \udcff\ud83d\udcffé😀", {"a": "é"})
    assert json.loads(encoded)["error"] == {"code": 7, "message": "no \ufffd\ufffd\ufffdé😀", "data": {"a": "é"}}
    with pytest.raises(UnicodeEncodeError):
        encode_error(1, 7, "no", "\udcff")


@pytest.mark.spec("JRPC-02", "JRPC-23")
def test_the_three_kinds() -> None:
    request = decode(REQUEST)
    assert (request.is_request, request.is_notification, request.is_response) == (True, False, False)
    assert bytes(request.params) == b'{"a":[1, 2]}'  # left as it came
    note = decode(b'{"jsonrpc":"2.0","method":"notifications/cancelled"}')
    assert (note.is_request, note.is_notification, note.is_response) == (False, True, False)
    assert note.reply_id is None
    for answer in (
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
    ):
        frame = decode(answer)
        assert (frame.is_request, frame.is_notification, frame.is_response) == (False, False, True)


@pytest.mark.spec("JRPC-06", "JRPC-03")
@pytest.mark.parametrize("id", [0, -1, 1, 2**53, -(2**53), "", "0", "é", "x" * 256])
def test_ids_keep_value_and_type(id: int | str) -> None:
    frame = decode(msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "x"}))
    assert frame.reply_id == id
    assert type(frame.reply_id) is type(id)
    assert frame.is_request
    for answer in (encode_result(id, EmptyResult()), encode_error(id, -32603, "no"), encode_request(id, "x")):
        back = json.loads(answer)["id"]
        assert (back, type(back)) == (id, type(id))


@pytest.mark.spec("JRPC-04")
@pytest.mark.parametrize(
    "id", ["null", "true", "1.5", "{}", "[]", str(2**53 + 1), "-" + str(2**53 + 1), '"' + "x" * 257 + '"', "1e400"]
)
def test_ids_that_are_none(id: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(b'{"jsonrpc":"2.0","id":%s,"method":"x"}' % id.encode())
    assert refused.value.code in (-32600, -32700)
    assert refused.value.request_id is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"nul",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"jsonrpc":"2.0","method":"\\ud800"}',
        b'{"a":NaN}',
        b'{"a":"\xed\xa0\x80"}',
        b"{}{}",
    ],
)
@pytest.mark.security("D2")
@pytest.mark.spec("TRN-01", "JRPC-11")
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(ParseError) as refused:
        decode(data)
    assert refused.value.request_id is None


@pytest.mark.spec("JRPC-02")
@pytest.mark.parametrize(
    ("data", "id"),
    [
        (b"[]", None),
        (b"[1]", None),
        (b"3", None),
        (b"null", None),
        (b"{}", None),
        (b'{"id":5}', 5),
        (b'{"jsonrpc":"1.0","id":5,"method":"x"}', 5),
        (b'{"jsonrpc":2,"id":"a","method":"x"}', "a"),
        (b'{"jsonrpc":"2.0","id":5,"method":3}', 5),
        (b'{"jsonrpc":"2.0","id":5}', 5),
        (b'{"jsonrpc":"2.0","id":{},"method":3}', None),
    ],
)
def test_what_is_no_message(data: bytes, id: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(data)
    assert refused.value.request_id == id


@pytest.mark.security("D2", "R12")
@pytest.mark.parametrize("bracket", [("[", "]"), ('{"a":', "}")])
def test_depth(bracket: tuple[str, str]) -> None:
    def nested(depth: int) -> bytes:
        inner = bracket[0] * depth + "1" + bracket[1] * depth
        return f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{inner}}}'.encode()

    limits = Limits(json_depth=10)
    assert decode(nested(9), limits).is_request
    with pytest.raises(ParseError, match="10 deep"):
        decode(nested(10), limits)
    with pytest.raises(ParseError):
        decode(nested(50_000), limits)


@pytest.mark.security("D3", "R12")
@pytest.mark.parametrize("where", ['{"a":%s}', "[%s]", '{"a":-%s}', '{"a":0.%s}', '{"a":1e%s}'])
def test_digits(where: str) -> None:
    limits = Limits(number_digits=50)

    def message(digits: int) -> bytes:
        return f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{where % ("1" * digits)}}}'.encode()

    with pytest.raises(ParseError, match=r"50 digits|not valid JSON"):
        decode(message(51), limits)
    if "e" not in where:
        assert decode(message(50), limits).is_request


FRAME = 10 + 4 * 10 + 3  # an object with four names, and three commas


@pytest.mark.security("D3")
@pytest.mark.parametrize(
    ("most", "fits", "does_not"),
    [
        (FRAME + 10 + 3, "[1,1,1,1]", "[1,1,1,1,1]"),
        (FRAME + 10 + 21, "[[],[]]", "[[],[],1]"),
        (FRAME + 10 + 10, '{"a":1}', '{"a":1,"b":1}'),
        (FRAME + 10 + 2, '["","",""]', '["","","",""]'),
    ],
)
def test_values(most: int, fits: str, does_not: str) -> None:
    def message(params: str) -> bytes:
        return f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}'.encode()

    limits = Limits(json_values=most, number_digits=10)  # (shorter messages are not looked at)
    assert decode(message(fits), limits).is_request
    with pytest.raises(ParseError, match=f"at most {most} values"):
        decode(message(does_not), limits)


@pytest.mark.security("D2", "D3")
def test_bounds_do_not_count_inside_strings() -> None:
    limits = Limits(json_depth=5, number_digits=5)
    with_marks = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": '[,:{"\\' * 1000}})
    assert decode(with_marks.encode(), Limits(json_values=80)).is_request
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": '[[[[[["\\{{{{' + "9" * 100}})
    assert decode(text.encode(), limits).is_request


@given(st.binary(max_size=60))
@pytest.mark.security("R1", "D2")
def test_one_exception_type_escapes(data: bytes) -> None:
    with suppress(ParseError, InvalidRequest):
        assert isinstance(decode(data), Frame)


@pytest.mark.spec("JRPC-11", "JRPC-12")
def test_errors() -> None:
    assert json.loads(encode_error(None, -32700, "no")) == {
        "jsonrpc": "2.0",
        "error": {"code": -32700, "message": "no"},
    }
    assert json.loads(encode_error(0, 1, "no", {"x": 1}))["error"] == {"code": 1, "message": "no", "data": {"x": 1}}


@pytest.mark.spec("JRPC-23")
def test_notifications_have_no_id() -> None:
    assert json.loads(encode_notification("n")) == {"jsonrpc": "2.0", "method": "n"}
    assert json.loads(encode_notification("n", {"a": 1})) == {"jsonrpc": "2.0", "method": "n", "params": {"a": 1}}


def test_what_was_encoded_before_is_written_as_it_is() -> None:
    assert encode_result(1, msgspec.Raw(b'{"x": 1}')) == b'{"jsonrpc":"2.0","id":1,"result":{"x": 1}}'
