"""Workers of a fleet that are in the process of the test."""

from weft import Server


async def die(server: Server) -> None:
    """End a worker as a kill does: it says nothing, and its lease expires."""
    one = server.engine.fleet
    one._renewing.cancel()
    while one._leave_bus:
        await one._leave_bus.pop()()
    await one._backend.store.delete(f"worker/{one.worker}")
