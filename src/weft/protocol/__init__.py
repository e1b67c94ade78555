"""The protocol as pure functions and values: no sockets, no asyncio, no clock."""
