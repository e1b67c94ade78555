"""Read a Python function: make its schemas, and bind arguments to its parameters."""
