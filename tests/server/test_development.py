"""The watch for calls that block the loop: it keeps nothing of the loop or its requests, and ends with the loop."""

import asyncio
import gc
import sys
import threading
import time
import weakref
from contextvars import ContextVar

from support import until
from weft.server.run import development

kept: ContextVar[object] = ContextVar("kept")


class Thing:
    """Something of a request."""


def watches() -> int:
    return sum(thread.name == "weft-development" for thread in threading.enumerate())


def test_it_keeps_nothing_of_the_request_that_it_began_with() -> None:
    found: list[weakref.ref[Thing]] = []

    async def request() -> None:
        thing = Thing()
        found.append(weakref.ref(thing))
        kept.set(thing)
        development.watch_for_blocking(asyncio.get_running_loop(), debug=True)
        time.sleep(0.5)  # noqa: ASYNC251 - blocks: the watch looks at this very frame

    async def main() -> None:
        await asyncio.create_task(request())
        await asyncio.sleep(3 * development.DEVELOPMENT_BEAT_SECONDS)
        gc.collect()
        assert found[0]() is None

    asyncio.run(main())


def test_it_ends_with_the_loop_and_does_not_keep_it() -> None:
    others = watches()  # of tests before, whose loops are not closed

    async def main() -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            development.watch_for_blocking(loop, debug=False)
        assert watches() <= others + 1
        return loop

    loop = weakref.ref(asyncio.run(main()))
    gc.collect()
    assert loop() is None  # though the thread still sleeps
    until(lambda: watches() <= others)


def test_code_of_the_user_outside_any_handler_is_not_blamed() -> None:
    assert development._find(sys._getframe()) is None
