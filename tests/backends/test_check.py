"""An object that is not a backend is refused when the server is created."""

from typing import Any

import pytest

from support.backends import YieldingBackend
from weft import MemoryBackend, Server
from weft.errors import UsageError


class Partial:
    def __init__(self, **parts: Any) -> None:
        whole = MemoryBackend()
        self.start, self.ping, self.close, self.is_local = whole.start, whole.ping, whole.close, True
        self.store, self.log, self.sets, self.bus = whole.store, whole.log, whole.sets, whole.bus
        for name, part in parts.items():
            setattr(self, name, part)


class WithoutTake:
    def __init__(self) -> None:
        whole = MemoryBackend().store
        self.get, self.put, self.swap, self.touch, self.delete = (
            whole.get,
            whole.put,
            whole.swap,
            whole.touch,
            whole.delete,
        )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (MemoryBackend, r"was given the class MemoryBackend\. Create an object: backend=MemoryBackend\(\.\.\.\)\."),
        (object(), r"an object of object.* lacks store, log, sets, bus, is_local, start\(\), ping\(\), close\(\)\."),
        (Partial(store=WithoutTake()), r"an object of Partial, which is not a backend\. It lacks store\.take\(\)\."),
        (Partial(close=None), r"It lacks close\(\)\."),
    ],
)
def test_what_is_missing_is_named(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Server("shop", backend=given)


@pytest.mark.parametrize("given", [MemoryBackend(), Partial(), YieldingBackend()])
def test_any_object_with_the_methods_is_accepted(given: Any) -> None:
    assert Server("shop", backend=given).backend is given
