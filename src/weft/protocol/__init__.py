"""Parts of the protocol that are pure functions and values: no sockets, no asyncio, no clock."""
