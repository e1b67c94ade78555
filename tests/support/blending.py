"""A server with an extension of its own, for tests in both eras: `python -m support.blending` serves it on stdio."""

from collections.abc import Sequence
from typing import Any

from weft import Context, Extension, Server
from weft.protocol.revisions import Method
from weft.server.calls.call import Call
from weft.types.base import Result
from weft.types.lifecycle import RequestParams

__all__ = ["BLENDING", "Blending", "make_blending_server"]

BLENDING = "com.example/blending"


class BlendParams(RequestParams, kw_only=True):
    name: str
    teas: list[str] = []  # noqa: RUF012 - as users write it; each has a list to itself


class BlendResult(Result, kw_only=True):
    """Every field with a default here was once left out of the answer."""

    name: str
    teas: list[str] = []  # noqa: RUF012 - as users write it; each has a list to itself
    strength: int = 0
    is_sold: bool = False
    note: str = ""
    remark: str | None = None  # absent by default: None means that there is none
    ttl_ms: int = 0


class Blending(Extension):
    id = BLENDING
    result_types = frozenset({"blend"})

    @property
    def settings(self) -> dict[str, Any]:
        return {"maxTeas": 3}

    def methods(self) -> Sequence[Any]:
        return [
            (Method("blend/create", BlendParams, mirrored="name"), self.create),
            (Method("blend/plain", BlendParams), self.create),
            (Method("blend/typed", BlendParams), self.create_typed),
        ]

    async def create(self, call: Call) -> Result:
        return BlendResult(name=call.context.params.name)

    async def create_typed(self, call: Call) -> Result:
        return BlendResult(name=call.context.params.name, result_type="blend")


def make_blending_server(**options: Any) -> Server:
    server = Server("teashop", extensions=[Blending()], **options)

    @server.tool
    def seen(ctx: Context) -> str:
        """What of the extension the client declared."""
        return str((ctx.client_capabilities.extensions or {}).get(BLENDING))

    return server


if __name__ == "__main__":
    make_blending_server().run()
