"""Explain mistakes and failures to the person who writes or runs the server."""
