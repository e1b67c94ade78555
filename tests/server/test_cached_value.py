"""What a server makes once, and anew after a change, also when the change comes from another thread."""

import threading
from typing import Any

from weft import Server
from weft.server.calls.services import CachedValue
from weft.server.run.engine import Engine


class Shop:
    def __init__(self) -> None:
        self.made = 0

    @CachedValue
    def sign(self) -> int:
        """What hangs above the door."""
        self.made += 1
        return self.made


def test_it_is_made_once_for_each_owner():
    shop, other = Shop(), Shop()
    assert (shop.sign, shop.sign, other.sign) == (1, 1, 1)
    assert Shop.sign.__doc__ == "What hangs above the door."
    Shop.sign.forget(shop)
    Shop.sign.forget(shop)
    assert (shop.sign, other.sign) == (2, 1)


def test_a_tool_that_a_thread_adds_while_the_offer_is_made_is_offered():
    read, told = threading.Event(), threading.Event()

    class Slow(Engine):
        @property
        def capabilities(self) -> Any:
            found = super().capabilities
            read.set()
            told.wait(0.2)  # the thread has told of its tool by then, or waits with that until the offer is made
            return found

    server = Server("shop")
    server.engine.__class__ = Slow

    def add() -> None:
        read.wait(30)
        server.add_tool(lambda: None, name="late")
        told.set()

    thread = threading.Thread(target=add)
    thread.start()
    assert "tools/call" not in server.engine.offer.methods["stateless"]
    thread.join(30)
    assert "tools/call" in server.engine.offer.methods["stateless"]
