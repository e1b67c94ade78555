"""Run calls: the method table, middleware, errors, load limits, logs, listen streams."""
