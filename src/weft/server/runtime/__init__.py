"""Run calls: dispatch to handlers, middleware, errors, load limits, request logs, and listen streams."""
