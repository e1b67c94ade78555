"""Read a Python function: its schemas, and how arguments are bound to its parameters."""
