"""Hold one connection to a server: its transport, its era, its pending requests."""
