"""Serve MCP over lines: stdin and stdout, or a client in the same process."""
