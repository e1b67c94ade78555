"""What a handler knows of its peer."""

from weft import Connection, Context, Server

server = Server("files")


@server.on_roots_changed
async def look(connection: Connection) -> None:
    for root in await connection.list_roots():
        print(root.uri)
    connection.state["seen"] = True


@server.tool
async def who(ctx: Context) -> str:
    name: str | None = ctx.client_info.name if ctx.client_info else None
    session: str | None = ctx.session_id
    ctx.connection.state["calls"] = 1
    return f"{name} {session} {ctx.is_stateless} {ctx.client_supports('roots')}"


@server.on_roots_changed  # expect error
def plain(connection: Connection) -> None:
    return None
