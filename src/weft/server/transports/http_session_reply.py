"""The answer to one request of a session: JSON, or a stream that outlives its connection.

Unlike in the stateless era, a client that goes away has not given its request up (L11-13). What is sent on a stream is
kept, so that the client can come back and have the rest; the call goes on meanwhile. From 2025-11-25 on the server may
also send the client away itself, to be asked later (L11-15, L11-16).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from weft.protocol.sse import encode as encode_event
from weft.server.call import Reply
from weft.server.faults import report
from weft.server.sessions.session import Session
from weft.server.sessions.streams import Streams
from weft.server.transports.http_reply import Accepts, HttpReply

__all__ = ["Answering", "SessionReply"]


class Answering(Reply, Protocol):
    """Where the output of one request of a session goes, and its answer too."""

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer."""
        ...

    async def give_up(self) -> None:
        """There will be no answer."""
        ...

    def drop(self) -> None:
        """Whoever was to do one of the two has ended: nobody need wait, if it has done neither."""
        ...


class SessionReply(HttpReply):
    """Writes the response of one request, and lets go of it when the client does."""

    def __init__(self, origin: HttpReply, session: Session | None, streams: Streams, *, polling: bool) -> None:
        super().__init__(origin.send, origin.limits)  # takes over from the one made before the era was known
        self.accepts = origin.accepts
        self.metadata_url = origin.metadata_url
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the HTTP response is
        self._session = session
        self._streams = streams
        self._polling = polling  # clients of its revision come back when they are sent away; never without a session
        self.last_event: str | None = None  # the id of what was written last
        self._stream: str | None = None  # its name, once there is one; never without a session
        self._answered = False
        self._handed_over = False
        self._lost = False  # something could not be kept, and that is in the log

    @property
    def is_stream(self) -> bool:
        """Whether it has become one, wherever the client is."""
        return self._stream is not None or self.streaming

    @property
    def answered(self) -> bool:
        """Whether the answer is written, wherever the client is."""
        return self._answered

    async def notify(self, message: bytes) -> None:
        """Send a message that belongs to the call, before its answer."""
        if self._answered or Accepts.STREAM not in self.accepts:
            return
        async with self._held:
            if not self._answered:
                await self._write(message, last=False)

    async def answer(self, status: int, body: bytes) -> None:
        """Send the answer. Where the client has gone from a stream, it is kept for when it comes back."""
        async with self._held:
            self._answered = True
            if self.is_stream or (self.accepts is Accepts.STREAM and status == 200):
                await self._write(body, last=True)
            elif not self.finished:
                await self._answer_json(status, body)
        self._conclude()

    async def give_up(self) -> None:
        """The call was cancelled: nothing more is said (CAN-09), but the response has to end."""
        async with self._held:
            self._answered = True
            if self._stream is not None and self._session is not None and not self._session.ended:
                await self._keep(b"", last=True)
            if self.streaming and not self.finished:
                await self._event(b"", last=True)
            elif not self.finished:
                await self.accept()
        self._conclude()

    async def close_stream(self, retry_seconds: float) -> None:
        """Send the client away for a while: it comes back for the rest (L11-16). Where it would not, do nothing."""
        if not self._polling or not self.can_stream:
            return
        async with self._held:
            retry = round(retry_seconds * 1000)
            last_words = b"retry: %d\n\n" % retry
            if self._stream is None and not self.finished and not self._answered:
                await self._prime(retry)
                last_words = b""
            if self._answered or self._lost:  # what is not kept is lost to who goes
                return
            if self.finished:
                self._send_on(retry)
            else:
                await self._event(last_words, last=True)
        self.let_go()

    def _send_on(self, retry: int) -> None:
        """The client has come back for this stream before: send it away from where it reads now."""
        assert self._session is not None
        taken_up = self._session.resumed.pop(self._stream or "", None)
        if taken_up is not None:
            taken_up.end(retry)

    def drop(self) -> None:
        """Nobody writes here any more."""
        self.let_go()

    def let_go(self) -> None:
        """The HTTP response is over, whoever ended it; the call may go on."""
        self.close()
        if not self.over.done():
            self.over.set_result(None)

    def hand_over(self) -> None:
        """The client reads the rest elsewhere: this response ends without it."""
        if not self.finished:
            self._handed_over = self.streaming
        self.let_go()

    async def end(self) -> None:
        """Once the response is over: end it on the wire too, where that was not done with the last event."""
        if self._handed_over:
            await self._event(b"", last=True)

    def _conclude(self) -> None:
        """Nothing follows, here or wherever the client has gone."""
        self.let_go()
        if self._stream is not None and self._session is not None:
            self._session.open_streams.pop(self._stream, None)
            if self._lost and (taken_up := self._session.resumed.pop(self._stream, None)) is not None:
                taken_up.end()  # it may wait for an end that is not kept

    async def _write(self, message: bytes, *, last: bool) -> None:
        session = self._session
        if session is None or session.ended:  # nobody would come for what was kept: a plain stream
            if not self.finished:
                await self._event(encode_event(message), last=last)
            return
        if self._stream is None:
            await self._prime(None)
        assert self._stream is not None
        kept = await self._keep(message, last=last)
        if self.finished:  # the client may read it elsewhere, at its own pace
            await self._streams.room(session.id, self._stream)
        else:
            await self._event(encode_event(message, id=kept), last=last)

    async def _keep(self, message: bytes, *, last: bool = False) -> str | None:
        """Keep an event for a client that comes back; its id.

        None where that failed: the call has not, and who is still there hears of it all the same.
        """
        assert self._session is not None
        assert self._stream is not None
        try:
            self.last_event = await self._streams.append(self._session.id, self._stream, message, is_last=last)
        except Exception as error:  # noqa: BLE001 - whatever a Backend raises
            if not self._lost:
                report("Keeping the stream of a call in the Backend", error, debug=False)
            self._lost = True
            return None
        return self.last_event

    async def _prime(self, retry: int | None) -> None:
        """Begin a stream. Where clients know of it, with an event that holds nothing but an id to come back with."""
        assert self._session is not None
        self._stream = self._session.name_stream()
        self._session.open_streams[self._stream] = self
        if self._polling:
            kept = await self._keep(b"")
            if not self.finished:
                await self._event(encode_event(b"", id=kept, retry=retry), last=False)

    async def _cut(self, reason: str, *, last: bool) -> None:
        """A client that does not read has gone as far as this response is concerned."""
        self.let_go()
