"""Reach servers over HTTP."""
