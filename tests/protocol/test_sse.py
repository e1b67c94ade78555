"""Server-sent events, written and read back in pieces."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocol.sse import COMMENT, Decoder, Event, encode


def decode(stream: bytes) -> list[Event]:
    return Decoder().feed(stream)


# --- writing


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({}, b"data: {}\n\n"),
        ({"event": "message"}, b"event: message\ndata: {}\n\n"),
        (
            {"event": "e", "id": "7", "retry": 0},
            b"event: e\nid: 7\nretry: 0\ndata: {}\n\n",
        ),
        ({"id": ""}, b"id: \ndata: {}\n\n"),
    ],
)
def test_events_are_written(arguments: dict[str, object], written: bytes) -> None:
    assert encode(b"{}", **arguments) == written


def test_line_breaks_in_the_data_do_not_end_the_event() -> None:
    assert encode(b"a\nb\r\nc\rd\n\nevil: 1") == (b"data: a\ndata: b\ndata: c\ndata: d\ndata: \ndata: evil: 1\n\n")


@pytest.mark.parametrize(
    "arguments", [{"event": "a\nb"}, {"event": "a\rb"}, {"id": "a\n\ndata: evil"}, {"id": "a\0"}, {"retry": -1}]
)
def test_fields_that_would_break_the_stream_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="of a server-sent event"):
        encode(b"", **arguments)


def test_comments_are_not_read() -> None:
    assert decode(COMMENT + b": data: x\n: still\n\n" + encode(b"1")) == [Event("1")]


# --- reading

STREAMS = [
    (b"data: a\n\n", [Event("a")]),
    (b"data: a\r\n\r\n", [Event("a")]),
    (b"data: a\r\r", [Event("a")]),
    (b"data: a\r\n\rdata: b\n\r\n", [Event("a"), Event("b")]),
    (b"\xef\xbb\xbfdata: a\n\n", [Event("a")]),
    (b"\n\xef\xbb\xbfdata: a\n\n", []),
    (b"data: a\ndata: b\ndata\ndata:  c\n\n", [Event("a\nb\n\n c")]),
    (b"data:a\n\n", [Event("a")]),
    (b"data\n\n", [Event("")]),
    (b"data:\n\n", [Event("")]),
    (b"\n\n\n", []),
    (b"data: unfinished\n", []),
    (b"event: e\n\ndata: a\n\n", [Event("a")]),
    (b"event: e\ndata: a\n\ndata: b\n\n", [Event("a", "e"), Event("b")]),
    (b"event:\ndata: a\n\n", [Event("a")]),
    (b"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", [Event("a", id="1"), Event("b", id="1"), Event("c", id="")]),
    (b"id: 1\n\ndata: a\n\n", [Event("a", id="1")]),
    (b"id: 1\nid: x\x00y\ndata: a\n\n", [Event("a", id="1")]),
    (b"retry: 30\ndata: a\n\ndata: b\n\n", [Event("a", retry=30), Event("b")]),
    (b"retry: 3x\nretry: -1\nretry: \xd9\xa3\nretry:\ndata: a\n\n", [Event("a")]),
    (b"retry: " + b"9" * 5000 + b"\ndata: a\n\n", [Event("a")]),
    (b": data: x\n:\nunknown: 1\nDATA: x\n data: x\ndata: a\n\n", [Event("a")]),
    ("data: é世\U0001f600\n\n".encode(), [Event("é世\U0001f600")]),
    ("data: a\u2028b\x85c\x0bd\n\n".encode(), [Event("a\u2028b\x85c\x0bd")]),
    (b"data: \xff\n\n", [Event("\N{REPLACEMENT CHARACTER}")]),
]


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_streams_are_read_whole_and_byte_by_byte(stream: bytes, events: list[Event]) -> None:
    assert decode(stream) == events
    decoder = Decoder()
    assert [event for byte in stream for event in decoder.feed(bytes([byte]))] == events


@given(
    stream=st.lists(
        st.sampled_from(
            [
                *(b"data: ", b"data", b"event: ", b"id: ", b"retry: ", b"1", b"x", b":", b" ", b"\0", "é".encode()),
                *(b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf"),
            ]
        )
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 80)),
)
def test_any_chunking_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    decoder, whole = Decoder(), Decoder()
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(bounds)]
    assert b"".join(chunks) == stream
    assert [event for chunk in chunks for event in decoder.feed(chunk)] == whole.feed(stream)
    assert (decoder.last_event_id, decoder.retry) == (whole.last_event_id, whole.retry)


ONE_LINE = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))


@given(data=st.text(), event=ONE_LINE.filter(bool), id=ONE_LINE, retry=st.integers(0, 10**9))
def test_what_is_written_is_read_back(data: str, event: str, id: str, retry: int) -> None:
    read = decode(encode(data.encode(), event=event, id=id, retry=retry))
    assert read == [Event(data.replace("\r\n", "\n").replace("\r", "\n"), event, id, retry)]


def test_the_id_to_resume_after_and_the_wait_need_no_event() -> None:
    decoder = Decoder()
    assert decoder.feed(b"id: 5\nretry: 100\n") == []
    assert (decoder.last_event_id, decoder.retry) == (None, 100)  # the id counts once its event is complete
    assert decoder.feed(b"\n") == []
    assert decoder.last_event_id == "5"


@pytest.mark.security("R12")
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_one_byte_too_many_in_an_event_is_refused(size: int) -> None:
    def feed(stream: bytes) -> list[Event]:
        decoder = Decoder(max_event_bytes=100)
        chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
        return [event for chunk in chunks for event in decoder.feed(chunk)]

    fits = b"data:" + b"x" * 95 + b"\n\n"
    assert len(feed(fits * 3)) == 3
    assert len(feed(b"data:" + b"x" * 40 + b"\ndata:" + b"x" * 50 + b"\n\n")) == 1
    for stream in (
        b"data:" + b"x" * 96,
        b"data:" + b"x" * 40 + b"\ndata:" + b"x" * 51,
        b":" + b"x" * 100,
        b"event:x\n" * 15,
    ):
        with pytest.raises(ValueError, match="exceeds 100 bytes"):
            feed(stream)


@pytest.mark.security("D12", "R12")
def test_by_default_an_event_may_have_sixteen_mebibytes() -> None:
    assert Decoder().feed(b":" + b"x" * (16 * 1024 * 1024 - 1)) == []
    with pytest.raises(ValueError, match="exceeds 16777216 bytes"):
        Decoder().feed(b":" + b"x" * (16 * 1024 * 1024))


def test_comments_do_not_add_up_to_an_event_too_large() -> None:
    assert Decoder(max_event_bytes=100).feed(b": keep-alive\n" * 100 + b"data: a\n\n") == [Event("a")]


def test_lines_of_data_take_little_more_memory_than_they_have_bytes() -> None:
    decoder = Decoder()
    tracemalloc.start()
    try:
        assert decoder.feed(b"data:ab\n" * 131_072) == []
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * 1024 * 1024
    (event,) = decoder.feed(b"\n")
    assert event.data == "\n".join(["ab"] * 131_072)
