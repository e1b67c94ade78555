"""Encode server-sent events, and decode an event stream chunk by chunk (text/event-stream in the HTML standard)."""

from __future__ import annotations

import re

import msgspec

COMMENT = b":\n\n"
"""The shortest SSE comment. It is sent to keep a connection alive; clients ignore it."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_MAX_RETRY_DIGITS = 15


class Event(msgspec.Struct, frozen=True, gc=False):
    """One decoded event.

    `id` is the id of this event. If this event has no id, `id` is the last id that came before in the stream. `retry`
    is the reconnection time in milliseconds, or None if this event has none.
    """

    data: str
    event: str = "message"
    id: str | None = None
    retry: int | None = None


def encode(data: bytes, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    r"""Return one encoded event.

    Raises ValueError if `event` or `id` has a line break, if `id` has a NUL character, or if `retry` is negative.

    >>> encode(b'{"a":1}', id="7")
    b'id: 7\ndata: {"a":1}\n\n'
    """
    head = b""
    if event is not None:
        head += b"event: " + _one_line("event", event) + b"\n"
    if id is not None:
        if "\0" in id:
            raise ValueError("The id of a server-sent event cannot contain a NUL; remove it.")
        head += b"id: " + _one_line("id", id) + b"\n"
    if retry is not None:
        if retry < 0:
            raise ValueError("The retry of a server-sent event must be zero or more milliseconds.")
        head += b"retry: %d\n" % retry
    if b"\n" in data or b"\r" in data:
        data = _LINE_END.sub(b"\ndata: ", data)
    return b"%bdata: %b\n\n" % (head, data)


def _one_line(field: str, text: str) -> bytes:
    if "\n" in text or "\r" in text:
        raise ValueError(f"The {field} of a server-sent event must be one line; remove the line breaks.")
    return text.encode()


class Decoder:
    r"""An incremental decoder of an event stream.

    `last_event_id` is the id after which the stream can be resumed. `retry` is the reconnection time that the peer sent
    last, in milliseconds. Both values can change even if `feed` returns no event. `feed` raises ValueError if an event
    exceeds `max_event_bytes`; the caller must then close the stream.

    >>> decoder = Decoder()
    >>> decoder.feed(b"data: on"), decoder.feed(b"e\n\n")
    ([], [Event(data='one', event='message', id=None, retry=None)])
    """

    def __init__(self, *, max_event_bytes: int = 16 * 1024 * 1024) -> None:
        self.last_event_id: str | None = None
        self.retry: int | None = None
        self._max = max_event_bytes
        self._line = bytearray()  # the incomplete line
        self._size = 0  # bytes of the event so far, including the incomplete line
        self._after_cr = False  # whether the last chunk ended with CR; then an LF at the start of the next is skipped
        self._at_start = True  # whether no line is complete yet; the first line may begin with a byte-order mark
        self._data: bytearray | None = None  # the data lines, joined; a list of lines would need more memory
        self._event = b""
        self._id: bytes | None = None  # becomes `last_event_id` when the event is complete
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Decode a chunk of bytes and return the events that are complete now."""
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        events: list[Event] = []
        position = 0
        for end in _LINE_END.finditer(chunk):
            self._grow(chunk[position : end.start()])
            position = end.end()
            if (event := self._finish_line()) is not None:
                events.append(event)
        self._grow(chunk[position:])
        return events

    def _grow(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max:
            raise ValueError(f"A server-sent event exceeds {self._max} bytes; the peer must send smaller events.")
        self._line += piece

    def _finish_line(self) -> Event | None:
        line = bytes(self._line)
        self._line.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        self._set_field(name, value.removeprefix(b" "), len(line))
        return None

    def _set_field(self, name: bytes, value: bytes, size: int) -> None:
        if name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n"
                self._data += value
        elif name == b"event":
            self._event = value
        elif name == b"id":
            if b"\0" not in value:
                self._id = value
        elif name == b"retry":
            if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self._retry = self.retry = int(value)
        else:  # ignore comments, which have an empty name, and unknown fields
            self._size -= size

    def _dispatch(self) -> Event | None:
        data, event, retry = self._data, self._event, self._retry
        self._data, self._event, self._retry, self._size = None, b"", None, 0
        if self._id is not None:
            self.last_event_id = self._id.decode("utf-8", "replace")
            self._id = None
        if data is None:
            return None
        kind = event.decode("utf-8", "replace") or "message"
        return Event(data.decode("utf-8", "replace"), kind, self.last_event_id, retry)
