"""Batches: several messages in one array, of the one revision that has them (L03-01, L03-03)."""

from __future__ import annotations

import msgspec

from weft.eras.session import HANDSHAKE
from weft.errors import InvalidRequest, ParseError, ProtocolError
from weft.jsonrpc import Frame, check_bounds, decode, encode_error
from weft.limits import Limits
from weft.server.transports.http_session_reply import SessionReply

__all__ = ["Batch"]


class Batch:
    """The answers to the requests of one array: a JSON array, or the events of a stream once there is one."""

    def __init__(self, reply: SessionReply, size: int) -> None:
        self._reply = reply
        self._missing = size
        self._answers: list[bytes] = []

    @staticmethod
    def read(body: bytes, limits: Limits) -> list[Frame | bytes]:
        """The messages of an array; in place of one that is none, the refusal of it."""
        check_bounds(body, limits)
        try:
            parts = msgspec.json.decode(body, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            raise ParseError("Parse error: the message is not valid JSON in UTF-8.") from None
        if not parts or len(parts) > limits.batch:
            raise InvalidRequest(f"Invalid request: a batch has at least one message and at most {limits.batch}.")
        return [_read(bytes(part), limits) for part in parts]

    @property
    def can_stream(self) -> bool:
        """Whether messages before the answers get there."""
        return self._reply.can_stream

    def part(self) -> _Part:
        """Where the output of one of the requests goes."""
        return _Part(self)

    async def notify(self, message: bytes) -> None:
        """Send a message that belongs to one of the requests: the answers that are there follow it on the stream."""
        await self._reply.notify(message)
        await self._spill()

    async def add(self, answer: bytes | None) -> None:
        """One request is answered, or (None) never will be."""
        self._missing -= 1
        if answer is not None:
            self._answers.append(answer)
        if not self._missing:
            await self._finish()
        elif self._reply.is_stream:
            await self._spill()

    def drop(self) -> None:
        """Whoever was to answer one of the requests has ended without: the rest is not waited for."""
        self._reply.drop()

    async def _spill(self) -> None:
        while self._answers and self._reply.is_stream and self._missing:
            await self._reply.notify(self._answers.pop(0))

    async def _finish(self) -> None:
        if self._reply.is_stream:
            *others, last = self._answers or [b""]
            for answer in others:
                await self._reply.notify(answer)
            await (self._reply.answer(200, last) if last else self._reply.give_up())
        elif self._answers:
            await self._reply.answer(200, b"[" + b",".join(self._answers) + b"]")
        else:
            await self._reply.give_up()


class _Part:
    """The reply of one request of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.answered = False

    @property
    def can_stream(self) -> bool:
        return self._batch.can_stream

    async def notify(self, message: bytes) -> None:
        if not self.answered:
            await self._batch.notify(message)

    def epilogue(self, message: bytes) -> None:
        """Not needed: the stream ends with the last answer."""

    async def close_stream(self, retry_seconds: float) -> None:
        """The stream is not this request's alone."""

    async def answer(self, status: int, body: bytes) -> None:
        self.answered = True
        await self._batch.add(body)

    async def give_up(self) -> None:
        self.answered = True
        await self._batch.add(None)

    def drop(self) -> None:
        if not self.answered:
            self.answered = True
            self._batch.drop()


def _read(part: bytes, limits: Limits) -> Frame | bytes:
    try:
        frame = decode(part, limits)
    except ProtocolError as error:
        return encode_error(error.request_id, error.code, error.message)
    if frame.method == HANDSHAKE and frame.is_request:  # L03-02
        return encode_error(
            frame.reply_id, InvalidRequest.code, "Invalid request: the handshake is not part of a batch."
        )
    return frame
