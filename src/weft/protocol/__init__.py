"""The parts of the protocol that are pure functions and values. They use no sockets, no asyncio and no clock."""
