"""Connect a client to one server: negotiate the protocol version, send requests, and handle incoming messages."""
