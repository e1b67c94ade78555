"""Serve MCP: register features, answer calls, and connect clients over HTTP or stdio."""
