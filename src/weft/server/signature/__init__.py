"""A Python function, read: what it takes and returns, as schemas and as what binds arguments to it."""
