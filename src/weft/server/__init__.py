"""The server: features, the way of a call, the transports."""
