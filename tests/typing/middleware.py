"""Middleware, by decorator and by option."""

import time
from typing import Any

from weft import Context, Server
from weft.middleware import Middleware, Next


async def timing(ctx: Context, next: Next) -> Any:
    began = time.perf_counter()
    try:
        return await next()
    finally:
        print(ctx.method, time.perf_counter() - began)


server = Server("flights", middleware=[timing])
also: Middleware = timing


@server.middleware
async def stamped(ctx: Context, next: Next) -> Any:
    ctx.state["began"] = time.time()
    return await next()


def backwards(next: Next, ctx: Context) -> Any:
    return next()


@server.middleware  # expect error
def plain(ctx: Context) -> None:
    return None


Server("x", middleware=[backwards])  # expect error
Server("x", middleware=timing)  # expect error
