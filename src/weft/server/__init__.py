"""Serve MCP: what a program registers, how a call is answered, and what carries it."""
