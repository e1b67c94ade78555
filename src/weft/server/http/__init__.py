"""Serve MCP over HTTP: the ASGI app, requests with and without a session, and streams."""
