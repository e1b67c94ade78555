"""Hold what serving calls needs of a server: its eras, dispatcher, lifespan, open calls and listen streams."""

from __future__ import annotations

from typing import Any

from weft.eras.base import ServerEra
from weft.server.calls.connection import Connection
from weft.server.calls.services import CachedValue, Services
from weft.server.runtime.dispatch import Dispatcher
from weft.server.runtime.lifespan import Background, Lifespan, LifespanFactory
from weft.server.runtime.load import OpenCalls
from weft.server.runtime.subscriptions import ListenStreams


class Runtime(Services):
    """What the transports need of a server."""

    def __init__(
        self, *args: Any, eras: tuple[ServerEra, ...], lifespan: LifespanFactory | None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.eras = eras  # served, in the order in which a message is offered to them
        self.lifespan = Lifespan(lifespan, self)
        self.background = Background(self)
        self.open_calls = OpenCalls()  # calls that wait for something
        self.subscriptions = ListenStreams(self)

    @CachedValue
    def dispatcher(self) -> Dispatcher:
        """Serves calls."""
        return self.make_dispatcher()

    def make_dispatcher(self) -> Dispatcher:
        """Compose the method table and the middleware of now."""
        raise NotImplementedError

    def roots_changed(self, connection: Connection) -> None:
        """Call the functions that the user registered for changed roots."""
        raise NotImplementedError

    def close_streams(self) -> None:
        """End the streams that never end by themselves, because the process is about to stop."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Release everything, at the end of the process."""
        raise NotImplementedError

    def is_full(self, *, own: int = 0) -> bool:
        """Return whether the process serves as many requests as it may; listen streams have a separate limit.

        `own` is how many of the counted requests are the caller's.
        """
        most = self.limits.in_flight + own
        return self.in_flight >= most and self.in_flight - len(self.subscriptions) >= most
