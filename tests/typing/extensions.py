"""An extension with a method of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft import Extension, Server


class Echo(Extension):
    id = "com.example/echo"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"loud": True}


class Wrong(Extension):
    id = 5  # expect error


server = Server("echo", extensions=[Echo()])
Server("echo", extensions=["com.example/echo"])  # expect error
declared: Sequence[Extension] = server.engine.extensions
